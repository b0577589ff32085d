"""A disk of a few megabytes, of memory, that only one test's process sees."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

from waits import PATIENCE_S

_PRELUDE = """
import errno, os, sys
from pathlib import Path
disk = Path(sys.argv[1])

def fill_disk(leave=0):
    "Take all room but `leave` bytes."
    filler = os.open(disk / "filler", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    free_disk()
    for size in (65_536, 4_096):
        try:
            while True:
                os.write(filler, bytes(size))
        except OSError as error:
            assert error.errno == errno.ENOSPC
    os.truncate(filler, os.fstat(filler).st_size - leave)
    os.close(filler)

def free_disk():
    "Give all of it back."
    os.truncate(disk / "filler", 0)
"""


@cache
def can_mount() -> bool:
    """Whether a process may mount a disk of its own here: it needs namespaces of users."""
    try:
        done = subprocess.run(
            ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        )
    except OSError:
        return False
    return done.returncode == 0


def run_on_small_disk(
    folder: Path, code: str, *arguments: str, size: str = "3M"
) -> subprocess.CompletedProcess[str]:
    """Run Python code with a new disk mounted at `folder`, which is gone afterwards.

    The code has the functions `fill_disk` and `free_disk`, and the path `disk`.
    """
    mount = f'mount -t tmpfs -o size={size} none "$1" && shift && exec "$@"'
    command = ["unshare", "-Urm", "sh", "-c", mount, "-", str(folder)]
    return subprocess.run(
        [*command, sys.executable, "-c", f"{_PRELUDE}\n{code}", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
