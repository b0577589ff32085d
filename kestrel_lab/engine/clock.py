"""A deadline on working time: it stands still while a person is asked."""

from __future__ import annotations

import asyncio
from types import TracebackType


class WorkClock:
    """Ends the block it guards after so many seconds of work; raises `TimeoutError` there."""

    def __init__(self, seconds: float | None) -> None:
        self._left = seconds
        self._bound = asyncio.timeout(None)
        self._holds = 0

    async def __aenter__(self) -> WorkClock:
        await self._bound.__aenter__()
        self._run()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self._bound.__aexit__(kind, error, trace)

    @property
    def expired(self) -> bool:
        """Whether the deadline has passed."""
        return self._bound.expired()

    def hold(self) -> None:
        """Stand still until as many calls of `release`."""
        self._holds += 1
        deadline = self._bound.when()
        if self._holds == 1 and deadline is not None:
            self._left = max(0.0, deadline - asyncio.get_running_loop().time())
            self._bound.reschedule(None)

    def release(self) -> None:
        """Run again."""
        self._holds -= 1
        if self._holds == 0:
            self._run()

    def _run(self) -> None:
        if self._left is not None:
            self._bound.reschedule(asyncio.get_running_loop().time() + self._left)
