"""Locks on files that keep tasks, threads and processes apart; the system releases the lock of a process that is killed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: nobody is kept apart there
    fcntl = None  # type: ignore[assignment,unused-ignore]


@contextmanager
def held(file: Path) -> Iterator[bool]:
    """Hold the lock of `file` in the block, if nobody else does; gives whether it is held."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_CREAT | os.O_RDWR, 0o600)
    taken = _taken(handle)
    try:
        yield taken
    finally:
        if taken and fcntl is not None:
            # A child that was forked meanwhile has the handle, too: closing ours alone would not release the lock.
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


@asynccontextmanager
async def locked(file: Path, *, every_s: float = 0.1) -> AsyncIterator[None]:
    """Wait until nobody else holds the lock of `file`, and hold it in the block."""
    while True:
        with held(file) as taken:
            if taken:
                yield
                return
        await asyncio.sleep(every_s)


def _taken(handle: int) -> bool:
    if fcntl is None:
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
