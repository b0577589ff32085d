"""Processes that have the package imported when they begin: forks of one that does nothing else. A start of
Python that imports it takes a second of processor time, a fork milliseconds.

For what is killed, or competes with other processes; not where the start of a process is the claim.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        "kestrel_lab.runtime.security.file_taint",
        "kestrel_lab.retrieval.indexing.file_list",
        "kestrel_lab.verification.workspace_files",
    ]
)


def forked(function: Callable[..., object], *arguments: object, out: Path, errors: Path) -> ForkServerProcess:
    """Start a process that calls a function of a module, with its output in files."""
    process = _FORKS.Process(target=_call, args=(function, arguments, out, errors), daemon=True)
    process.start()
    return process


def _call(function: Callable[..., object], arguments: tuple[object, ...], out: Path, errors: Path) -> None:
    for stream, file in ((sys.stdout, out), (sys.stderr, errors)):
        with file.open("ab") as opened:
            os.dup2(opened.fileno(), stream.fileno())
    function(*arguments)
