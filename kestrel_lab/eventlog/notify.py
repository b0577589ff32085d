"""Waiting for what another process writes, without polling: the file system says when the log has grown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_PAUSES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.16)
"""Seconds between looks at the beginning, since a watch takes a moment to be set up, and after a change: the
file is written first, and counts only once the disk has confirmed it.
"""


async def wait_until(path: Path, look: Callable[[], T | None]) -> T:
    """Call `look` now and each time the log at `path` grows, until it returns something.

    Wakes within a few tens of milliseconds of another process's commit; within a second where the file
    system sends no notifications or the operating system has no more to give. Ends only by its answer or
    by cancellation.
    """
    try:
        return await _watch(path, look)
    except (
        OSError,
        RuntimeError,
    ):  # watchfiles' errors; Linux allows a user 128 watchers by default
        while (found := look()) is None:  # the other side is a file, which sets no event  # noqa: ASYNC110
            await asyncio.sleep(1)
        return found


async def _watch(path: Path, look: Callable[[], T | None]) -> T:
    # Only here, because it loads multiprocessing, and most runs wait for no other process.
    from watchfiles import awatch

    names = {path.name, f"{path.name}-wal"}
    watch = awatch(
        path.parent,
        recursive=False,
        debounce=20,
        step=5,
        watch_filter=lambda _, changed: Path(changed).name in names,
        yield_on_timeout=True,
        rust_timeout=1000,
    )
    async with aclosing(watch) as changes:
        while True:
            grown = asyncio.ensure_future(anext(changes))
            try:
                for pause in _PAUSES:
                    if (found := look()) is not None:
                        return found
                    if (await asyncio.wait({grown}, timeout=pause))[0]:
                        break
                await grown
            finally:
                grown.cancel()
                await asyncio.gather(grown, return_exceptions=True)
