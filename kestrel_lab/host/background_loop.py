"""An event loop on a thread of its own, for connections that last longer than the loop of a caller.

Notebook cells, `asyncio.run` and threads come and go; a connection has to stay on the loop that opened it.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
_GRACE_S = 1.0
"""Seconds that running work may take to end after `stop`."""


class BackgroundLoop:
    """An event loop on a daemon thread, started at the first use.

    Every method may be called from any thread.
    """

    def __init__(self, at_exit: Callable[[], None], *, name: str, closed: str) -> None:
        """Start nothing; `at_exit` is called before the process ends, if the loop still runs then.

        `name` is that of the thread; `closed` says to whoever waits for work why it will not end, once the
        loop was stopped.
        """
        self._at_exit, self._name, self._closed = at_exit, name, closed
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def running(self) -> bool:
        """Whether the loop was started and not stopped since."""
        return self._loop is not None

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` on the loop; never wait for the result on the loop itself."""
        with self._lock:
            if self._loop is None:
                runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
                self._loop = runner.get_loop()
                threading.Thread(target=_serve, args=(runner,), name=self._name, daemon=True).start()
                atexit.register(self._at_exit)
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` on the loop; cancelling the caller cancels it.

        Raises `ConnectionError` when the loop is stopped meanwhile.
        """
        try:
            return await asyncio.wrap_future(self.submit(work))
        except asyncio.CancelledError:
            # Either the caller was cancelled, which must go on, or the loop was stopped, which is an error.
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise ConnectionError(self._closed) from None

    def stop(self) -> None:
        """Stop the loop without waiting for it; a later `submit` starts another one."""
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                atexit.unregister(self._at_exit)
                loop.call_soon_threadsafe(loop.stop)


def _serve(runner: asyncio.Runner) -> None:
    with runner:
        loop = runner.get_loop()
        loop.run_forever()
        # Work in progress gets a moment to close its connections; the process may be about to end.
        if left := asyncio.all_tasks(loop):
            loop.run_until_complete(asyncio.wait(left, timeout=_GRACE_S))
