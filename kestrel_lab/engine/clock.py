"""The two deadlines of a run: one on all its time, one on working time, which stands still while it only waits."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType


class WorkClock:
    """Ends the block it guards after so many seconds of work, or so many of any kind; raises `TimeoutError` there."""

    def __init__(self, seconds: float | None, wall_seconds: float | None = None) -> None:
        self._left, self._wall_left = seconds, wall_seconds
        self._bound, self._wall = asyncio.timeout(None), asyncio.timeout(None)
        self._stack = AsyncExitStack()
        self._entered = False
        self._holds = 0

    async def __aenter__(self) -> WorkClock:
        if self._wall_left is not None:
            await self._stack.enter_async_context(self._wall)
            self._wall.reschedule(asyncio.get_running_loop().time() + self._wall_left)
        await self._stack.enter_async_context(self._bound)
        self._entered = True
        self._run()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._entered = False
        await self._stack.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        """Whether one of the deadlines has passed."""
        return self._bound.expired() or (self._wall_left is not None and self._wall.expired())

    @property
    def limit(self) -> str:
        """The limit that the passed deadline belongs to."""
        return "seconds" if self._bound.expired() else "wall_seconds"

    def hold(self) -> None:
        """Let working time stand still until as many calls of `release`."""
        self._holds += 1
        deadline = self._bound.when() if self._entered and not self._bound.expired() else None
        if self._holds == 1 and deadline is not None:
            self._left = max(0.0, deadline - asyncio.get_running_loop().time())
            self._bound.reschedule(None)

    def release(self) -> None:
        """Let it run again."""
        self._holds -= 1
        if self._holds == 0 and self._entered:
            self._run()

    def _run(self) -> None:
        if self._left is not None and not self._bound.expired():
            self._bound.reschedule(asyncio.get_running_loop().time() + self._left)
