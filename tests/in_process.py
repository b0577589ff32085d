"""`kestrel` in this process: the same entry point as the command's, without a second or two for each
start.
"""

from __future__ import annotations

import io
import os
import subprocess
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main
from kestrel_lab.host.homes import default_home


def kestrel(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in `folder`; gives what its process would: exit code, output and errors."""
    out, err = io.StringIO(), io.StringIO()
    with chdir(folder), redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as end:
        main(list(words))
    return subprocess.CompletedProcess(
        ["kestrel", *words], int(end.value.code or 0), out.getvalue(), err.getvalue()
    )


def home_of(folder: Path) -> Path:
    """Return the home of commands that are typed in `folder`, where no other is set."""
    return default_home(folder, os.environ)
