"""`kestrel` in this process: the same entry point as the command's, without a second or two for each start."""

from __future__ import annotations

import io
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`; gives what its process would: exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(list(words))
    return subprocess.CompletedProcess(["kestrel", *words], int(end.value.code or 0), out.getvalue(), err.getvalue())
