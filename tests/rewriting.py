"""Assertions are rewritten once for all processes of a run.

They start together and read the same files in the same order: without bytecode of an earlier run each would rewrite
all of them, 13 seconds of processor time.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest
from _pytest.assertion import rewrite


def rewrite_share(config: pytest.Config, files: Sequence[Path]) -> None:
    """Keep rewritten bytecode of each n-th of `files`, in each of the n processes of xdist of others.

    What a process does not find when it needs it, it rewrites by itself.
    """
    worker = getattr(config, "workerinput", None)
    if worker is None:
        return
    state = config.stash[rewrite.assertstate_key]
    for file in files[int(worker["workerid"].removeprefix("gw")) :: worker["workercount"]]:
        folder = rewrite.get_cache_dir(file)
        kept = folder / f"{file.stem}{rewrite.PYC_TAIL}"
        if not kept.exists() and rewrite.try_makedirs(folder):
            source, code = rewrite._rewrite_test(file, config)
            rewrite._write_pyc(state, code, source, kept)
