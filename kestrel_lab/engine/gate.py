"""Where calls wait for their turn at an endpoint: first come, first served, from whichever thread or event loop."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kestrel_lab.engine.throttle import Throttle


@dataclass(slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    turn: asyncio.Future[None]


class Gate:
    """The calls of one endpoint: those under way, and those that wait until `throttle` lets them in."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiting)

    async def enter(self) -> int:
        """Wait for a turn; the ticket is to be given back by `succeeded`, `refused` or `released`."""
        with self._lock:
            if not self._waiting and (ticket := self.throttle.enter()) is not None:
                return ticket
            loop = asyncio.get_running_loop()
            waiter = _Waiter(loop, loop.create_future())
            self._waiting.append(waiter)
        try:
            return await self._turn(waiter)
        except BaseException:
            with self._lock:
                self._waiting.remove(waiter)
                self._wake()
            raise

    async def _turn(self, waiter: _Waiter) -> int:
        while True:
            waiter.turn = waiter.loop.create_future()
            with self._lock:
                first = self._waiting[0] is waiter
                if first and (ticket := self.throttle.enter()) is not None:
                    self._waiting.popleft()
                    self._wake()
                    return ticket
                # Only the first of the line watches the clock; a pause may have become longer when it looks again.
                pause = (self.throttle.retry_in or None) if first else None
            try:
                async with asyncio.timeout(pause):
                    await waiter.turn
            except TimeoutError:
                continue

    def succeeded(self, ticket: int) -> None:
        """Take in that the call was answered."""
        with self._lock:
            self.throttle.succeeded(ticket)
            self._wake()

    def refused(self, ticket: int, wait_s: float | None) -> None:
        """Take in that the endpoint wants fewer calls; see `Throttle.refused`."""
        with self._lock:
            self.throttle.refused(ticket, wait_s)
            self._wake()

    def released(self) -> None:
        """Take in that a call ended without saying anything about the endpoint's limit."""
        with self._lock:
            self.throttle.released()
            self._wake()

    @contextmanager
    def bounded(self, calls: int) -> Iterator[None]:
        """Let at most so many calls in at once while the block runs."""
        with self._lock:
            self.throttle.add_bound(calls)
        try:
            yield
        finally:
            with self._lock:
                self.throttle.remove_bound(calls)
                self._wake()

    def _wake(self) -> None:
        """Have the first of the line look again."""
        while self._waiting and self._waiting[0].loop.is_closed():
            self._waiting.popleft()
        if self._waiting:
            waiter = self._waiting[0]
            waiter.loop.call_soon_threadsafe(_let, waiter)


def _let(waiter: _Waiter) -> None:
    if not waiter.turn.done():
        waiter.turn.set_result(None)
