"""Waiting in tests: for a condition and not for a time, so that a busy machine makes a test slow and never
red.
"""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long a condition may take to come true: far beyond what any machine needs."""
PATIENCE_MS = 1_000 * PATIENCE_S
"""The same for browsers."""
FOREVER_S = 86_400.0
"""A pause that only somebody's interruption ends: a test in which nobody interrupts it is ended by pytest's
own limit.
"""


def readable(fd: int, seconds: float) -> bool:
    """Return whether `fd` can be read within this time, or has ended; `select.select` takes no number over
    1,023.
    """
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(1_000 * seconds))


def until(found: Callable[[], T], what: str = "what is waited for") -> T:
    """Return what `found` returns, once that is true."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S:.0f} s"
        time.sleep(0.01)
    return value


async def becomes(found: Callable[[], T], what: str = "what is waited for") -> T:
    """Return what `found` returns, once that is true, while the event loop goes on."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := found()):
        assert time.monotonic() < deadline, f"{what} did not come within {PATIENCE_S:.0f} s"
        await asyncio.sleep(0.01)
    return value


class Meeting:
    """Who enters waits until so many are within at once: what runs side by side does so, however long each
    takes to come.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.now = self.most = 0
        self._met = asyncio.Event()

    async def __aenter__(self) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        if self.now == self.number:
            self._met.set()
        await asyncio.wait_for(self._met.wait(), PATIENCE_S)

    async def __aexit__(self, *_: object) -> None:
        self.now -= 1


class LoopClock:
    """The clock of the running event loop, which a test puts forward instead of waiting."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._real, self.skipped_s = loop.time, 0.0
        loop.time = self  # type: ignore[method-assign]

    def __call__(self) -> float:
        return self._real() + self.skipped_s

    def skip(self, seconds: float) -> None:
        """Let so many seconds have passed; timers that are due then run when the loop turns over."""
        self.skipped_s += seconds
