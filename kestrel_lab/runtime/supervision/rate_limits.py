"""Adaptive concurrency: how many calls an endpoint gets at once, and the queue of those that wait.

The limit grows with successes and is cut when the endpoint answers with a rate limit (additive increase,
multiplicative decrease). Many calls are refused together when a rate limit is reached. They count as one
episode: refusals of calls that had begun before the last cut do not cut again, they can only make the pause
longer.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kestrel_lab.runtime.supervision.health import Clock


@dataclass(frozen=True, kw_only=True, slots=True)
class ThrottlePolicy:
    """How fast the limit grows and how far it is cut."""

    start: int = 8
    """Calls at once at the beginning: as many as steps of a plan run together."""
    cut: float = 0.7
    """The share of the width that is left after an episode."""
    pause_s: float = 0.5
    """The pause after a refusal that names no time; doubled with each episode in a row."""
    pause_max_s: float = 30.0
    jitter: float = 0.2
    """Up to this share of the pause is added at random, so that many processes do not return together."""


class Throttle:
    """The width of one endpoint: the calls that may be under way at once. Arithmetic on an injected clock,
    without waiting.

    A call enters with `enter` and reports with its ticket. Until the first episode each success adds one to
    the width, so that it doubles with each round of calls; afterwards it takes two rounds of successes to add
    one. The width grows only while all of it is used, and never beyond `bound`.
    """

    __slots__ = (
        "_clock",
        "_cut_at",
        "_number",
        "_policy",
        "_random",
        "_row",
        "_slow",
        "_until",
        "_width",
        "bounds",
        "episodes",
        "in_flight",
        "refusals",
        "succeeded_at",
    )

    def __init__(self, policy: ThrottlePolicy, clock: Clock, random: Callable[[], float]) -> None:
        """Begin with the policy's width; `random` gives numbers from 0 to 1."""
        self._policy, self._clock, self._random = policy, clock, random
        self._width = float(policy.start)
        self._slow = True
        self._until = -math.inf
        self._number = self._cut_at = self._row = 0
        self.bounds: list[int] = []
        """The most calls at once that users of the endpoint allow; of several bounds the largest holds."""
        self.in_flight = 0
        self.episodes = 0
        """The number of cuts."""
        self.refusals = 0
        """Calls that were refused with a rate limit."""
        self.succeeded_at = -math.inf
        """The time of the last answer, on the injected clock."""

    @property
    def width(self) -> int:
        """The calls that may be under way at once now."""
        return max(1, math.floor(min(self._width, self.bound)))

    @property
    def bound(self) -> float:
        """The largest limit set by users of the endpoint; infinite without one."""
        return max(self.bounds, default=math.inf)

    @property
    def retry_in(self) -> float:
        """The seconds left of a pause."""
        return max(0.0, self._until - self._clock())

    def enter(self) -> int | None:
        """Return a ticket for one call, or `None` when no call may be made now."""
        if self.in_flight >= self.width or self.retry_in > 0:
            return None
        self.in_flight += 1
        self._number += 1
        return self._number

    def succeeded(self, ticket: int) -> None:
        """Report that the call was answered."""
        used_up = self.in_flight >= self.width
        self.in_flight -= 1
        self.succeeded_at = self._clock()
        if ticket <= self._cut_at:
            return
        self._row = 0
        if used_up and self._width < self.bound:
            self._width = min(self._width + (1.0 if self._slow else 0.5 / self._width), self.bound)

    def refused(self, ticket: int, wait_s: float | None) -> None:
        """Report a rate limit, and the pause that the endpoint asked for, if any."""
        self.in_flight -= 1
        self.refusals += 1
        if ticket > self._cut_at:
            self._width = max(1.0, min(self._width, self.bound) * self._policy.cut)
            self._slow = False
            self._cut_at = self._number
            self.episodes += 1
            self._row += 1
            self._until = max(self._until, self._clock() + (self._pause() if wait_s is None else wait_s))
        elif wait_s is not None:
            self._until = max(self._until, self._clock() + wait_s)

    def released(self) -> None:
        """Report a call that ended without evidence on the rate limit."""
        self.in_flight -= 1

    def _pause(self) -> float:
        grown: float = min(self._policy.pause_s * 2 ** min(self._row - 1, 60), self._policy.pause_max_s)
        return grown * (1 + self._policy.jitter * self._random())


@dataclass(slots=True, eq=False)
class _Waiter:
    loop: asyncio.AbstractEventLoop
    turn: asyncio.Future[None]


class Gate:
    """The queue of calls at one endpoint: first come, first served, from any thread and event loop."""

    def __init__(self, throttle: Throttle) -> None:
        self.throttle = throttle
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    @property
    def waiting(self) -> int:
        """The number of waiting calls."""
        return len(self._waiting)

    async def enter(self) -> int:
        """Wait for a turn and return its ticket, which `succeeded`, `refused` or `released` must end."""
        with self._lock:
            # Runs of several event loops and threads share an endpoint.
            if not self._waiting and (ticket := self.throttle.enter()) is not None:
                return ticket
            loop = asyncio.get_running_loop()
            waiter = _Waiter(loop, loop.create_future())
            self._waiting.append(waiter)
        try:
            return await self._turn(waiter)
        except BaseException:
            with self._lock:
                # `_wake` removes it when its event loop has closed.
                if waiter in self._waiting:
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
                # Only the first in the queue watches the clock; meanwhile the pause may have become longer.
                pause = (self.throttle.retry_in or None) if first else None
            try:
                async with asyncio.timeout(pause):
                    await waiter.turn
            except TimeoutError:
                continue

    def succeeded(self, ticket: int) -> None:
        """Report that the call was answered."""
        with self._lock:
            self.throttle.succeeded(ticket)
            self._wake()

    def refused(self, ticket: int, wait_s: float | None) -> None:
        """Report a rate limit; see `Throttle.refused`."""
        with self._lock:
            self.throttle.refused(ticket, wait_s)
            self._wake()

    def released(self) -> None:
        """Report a call that ended without evidence on the rate limit."""
        with self._lock:
            self.throttle.released()
            self._wake()

    @contextmanager
    def bounded(self, calls: int) -> Iterator[None]:
        """Limit the calls at once to `calls` while the block runs."""
        with self._lock:
            self.throttle.bounds.append(calls)
        try:
            yield
        finally:
            with self._lock:
                self.throttle.bounds.remove(calls)
                self._wake()

    def _wake(self) -> None:
        """Wake the first in the queue; a caller whose event loop has closed loses its place."""
        while self._waiting:
            waiter = self._waiting[0]
            try:
                waiter.loop.call_soon_threadsafe(_let_through, waiter)
            except (
                RuntimeError
            ):  # closed; asking `is_closed` first would leave a moment in which it closes all the same
                self._waiting.popleft()
            else:
                return


def _let_through(waiter: _Waiter) -> None:
    if not waiter.turn.done():
        waiter.turn.set_result(None)
