"""Waiting for what another process writes, without polling: the file system says when the log has grown."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

from watchfiles import awatch

T = TypeVar("T")


async def wait_until(path: Path, look: Callable[[], T | None]) -> T:
    """Call `look` now and each time the log at `path` grows, until it returns something.

    Wakes within a few tens of milliseconds of another process's commit; on a file system that sends no
    notifications, within a second. Ends only by its answer or by cancellation.
    """
    names = {path.name, f"{path.name}-wal"}
    watch = awatch(
        path.parent,
        recursive=False,
        debounce=20,
        step=5,
        watch_filter=lambda _, changed: os.path.basename(changed) in names,
        yield_on_timeout=True,
        rust_timeout=1000,
    )
    async with aclosing(watch) as changes:
        while (found := look()) is None:
            await anext(changes)
    return found
