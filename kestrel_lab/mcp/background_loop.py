"""The event loop on which all MCP servers of this process are talked to, on a thread of its own.

A notebook's cells, `asyncio.run` and threads come and go; a connection stays with the one loop it was made on.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_CLOSE_S = 8.0

_lock = threading.Lock()
_loop: asyncio.AbstractEventLoop | None = None
_closers: set[Callable[[], Coroutine[Any, Any, None]]] = set()


def submit(work: Coroutine[Any, Any, T]) -> Future[T]:
    """Run `work` on the loop of the servers, begun at the first use; from any thread but its own."""
    global _loop  # noqa: PLW0603  # there is one per process
    with _lock:
        if _loop is None:
            _loop = asyncio.new_event_loop()
            threading.Thread(target=_loop.run_forever, name="kestrel-mcp", daemon=True).start()
            atexit.register(close_all)
    return asyncio.run_coroutine_threadsafe(work, _loop)


async def there(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` that is done on the loop of the servers; cancelling it here cancels it there."""
    return await asyncio.wrap_future(submit(work))


def keep(closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Call `closer` before the process ends."""
    _closers.add(closer)


def drop(closer: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Do not call it any more."""
    _closers.discard(closer)


def close_all() -> None:
    """Close every connection that is still open, from any thread but the loop's, and wait until that is done."""
    if not _closers:
        return

    async def work() -> None:
        await asyncio.gather(*(closer() for closer in tuple(_closers)), return_exceptions=True)

    try:
        submit(work()).result(_CLOSE_S)
    except TimeoutError:
        return  # the servers' processes die with this one
