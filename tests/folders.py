"""Where tests keep what has no place of its own: a folder in which the next start finds what a killed process
left.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "kestrel-tests-"
"""Not that of an earlier version, whose folders had no lock while they were used."""


@contextmanager
def _locked(folder: Path, how: int) -> Iterator[None]:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, how)
        yield
    finally:
        os.close(handle)


def state_folder(parent: Path) -> Path:
    """Make an empty folder under `parent` that is this process's until it ends; remove those of processes that
    have ended.

    A folder is its process's by a lock, which the system takes away however the process ends.
    """
    with _locked(parent, fcntl.LOCK_EX):  # nobody else looks between the making of a folder and its lock
        for left in parent.glob(f"{PREFIX}*"):
            with suppress(OSError), _locked(left, fcntl.LOCK_EX | fcntl.LOCK_NB):  # not ours to remove
                shutil.rmtree(left, ignore_errors=True)
        made = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        fcntl.flock(
            os.open(made, os.O_RDONLY | os.O_DIRECTORY), fcntl.LOCK_SH
        )  # open for good: it is the lock
    return made
