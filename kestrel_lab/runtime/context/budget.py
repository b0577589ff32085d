"""What model calls may use is reserved before they are made: calls of parallel steps do not pass together a
limit that each alone would keep.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType

from kestrel_lab.core.events.union import ModelAnswered
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.run_types import Limits
from kestrel_lab.eventlog.run_state import RunState

MARGIN = 2.0
"""How many times the largest call of a model so far its next call may use: conversations grow."""


@dataclass(slots=True)
class SpentBudget:
    """US dollars and tokens."""

    cost_usd: float = 0.0
    tokens: float = 0


MaxUsageByModel = dict[str, SpentBudget]
"""The most that one call has used, by model; shared by the runs of a session."""


@dataclass(slots=True)
class _UnderWay:
    """A call between its reservation and its end."""

    step: str
    cycle: int
    model: Model
    used: SpentBudget = field(default_factory=SpentBudget)
    answered: bool = False


class Allowance:
    """The model calls of a run that are under way, and whether there is room for one more.

    Turns are never more than the limit. Dollars and tokens pass theirs by one call at most, as long as no
    call uses more than `MARGIN` times what the largest call of its model did: where the rest is too small for
    all that are under way, one waits for the other. The first call of a real model is made alone, since
    nothing is known about its size.
    """

    def __init__(self, limits: Limits, state: RunState, max_usage: MaxUsageByModel) -> None:
        self._limits, self._state, self._max_usage = limits, state, max_usage
        self._calls: dict[str, _UnderWay] = {}
        self._ended = asyncio.Event()

    @property
    def unrecorded(self) -> int:
        """Turns that are reserved and not in the state yet."""
        return sum(self._state.conversation(call.step).cycles < call.cycle for call in self._calls.values())

    async def reserve(
        self, call: str, step: str, cycle: int, model: Model, check: Callable[[], None]
    ) -> None:
        """Wait until there is room for the call of that id; it counts as under way until `end`.

        `check` raises when a limit is reached; it is asked again whenever a call has ended.
        """
        check()
        while not self._has_room(model):
            await self._ended.wait()
            check()
        self._calls[call] = _UnderWay(step, cycle, model)

    def note(self, event: ModelAnswered) -> None:
        """Count what a call, or an attempt of it, has used."""
        if (call := self._calls.get(event.call)) is not None:
            call.used.cost_usd += event.cost_usd or 0.0
            call.used.tokens += event.tokens_in + event.tokens_out
            call.answered = call.answered or event.error is None

    def _has_room(self, model: Model) -> bool:
        if not self._calls:
            return True
        usage, limits = self._state.usage, self._limits
        may_use = [self._may_use(one) for one in (*(call.model for call in self._calls.values()), model)]
        return (
            limits.cost_usd is None
            or usage.cost_usd + sum(one.cost_usd for one in may_use) <= limits.cost_usd
        ) and (limits.tokens is None or usage.tokens + sum(one.tokens for one in may_use) <= limits.tokens)

    def _may_use(self, model: Model) -> SpentBudget:
        if (known := self._max_usage.get(model.name)) is not None:
            return SpentBudget(MARGIN * known.cost_usd, MARGIN * known.tokens)
        return SpentBudget(math.inf, math.inf) if model.kind == "real" else SpentBudget()

    def end(self, call: str) -> None:
        """Count a call that was reserved as ended."""
        if (ended := self._calls.pop(call)).answered:
            known = self._max_usage.setdefault(ended.model.name, SpentBudget())
            known.cost_usd, known.tokens = (
                max(known.cost_usd, ended.used.cost_usd),
                max(known.tokens, ended.used.tokens),
            )
        self._ended.set()
        self._ended = asyncio.Event()


# The two deadlines of a run: one on all its time, one on working time, which stands still while it only
# waits.


def seconds_left(limit: float | None, used: float) -> float | None:
    """Return the seconds that a limit leaves; never none, since a run that begins has to end by itself."""
    return None if limit is None else max(0.001, limit - used)


class WorkClock:
    """Ends the block it guards after so many seconds of work, or so many of any kind; raises `TimeoutError`
    there.
    """

    def __init__(self, seconds: float | None, wall_seconds: float | None = None) -> None:
        self._left, self._wall_left = seconds, wall_seconds
        self._bound, self._wall = asyncio.timeout(None), asyncio.timeout(None)
        self._stack = AsyncExitStack()
        self._entered = False
        self._holds = 0
        self._parts: set[WorkClock] = set()

    @asynccontextmanager
    async def part(self, seconds: float | None) -> AsyncIterator[WorkClock]:
        """Give a block within, that of a sub-agent, so many seconds of work of its own; they stand still when
        those of the whole do.
        """
        part = WorkClock(seconds)
        part._holds = self._holds
        self._parts.add(part)
        try:
            async with part:
                yield part
        finally:
            self._parts.discard(part)

    async def __aenter__(self) -> WorkClock:
        if self._wall_left is not None:
            await self._stack.enter_async_context(self._wall)
            self._wall.reschedule(asyncio.get_running_loop().time() + self._wall_left)
        await self._stack.enter_async_context(self._bound)
        self._entered = True
        if self._holds == 0:
            self._run()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered = False
        await self._stack.__aexit__(kind, error, trace)

    @property
    def overdue(self) -> str:
        """The limit whose deadline lies in the past by the clock, also while the event loop has not got to
        it; empty for none.
        """
        if not self._entered:
            return ""
        work, wall = self._bound.when(), None if self._wall_left is None else self._wall.when()
        if work is None and wall is None:
            return ""
        now = asyncio.get_running_loop().time()
        return (
            "seconds"
            if work is not None and now >= work
            else "wall_seconds"
            if wall is not None and now >= wall
            else ""
        )

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
        for part in self._parts:
            part.hold()
        deadline = self._bound.when() if self._entered and not self._bound.expired() else None
        if self._holds == 1 and deadline is not None:
            self._left = max(0.0, deadline - asyncio.get_running_loop().time())
            self._bound.reschedule(None)

    def release(self) -> None:
        """Let it run again."""
        self._holds -= 1
        for part in self._parts:
            part.release()
        if self._holds == 0 and self._entered:
            self._run()

    def give_back(self, seconds: float) -> None:
        """Add seconds that were taken for work and were none."""
        for part in self._parts:
            part.give_back(seconds)
        if self._left is not None:
            self._left += seconds
            if (
                self._entered
                and self._holds == 0
                and (deadline := self._bound.when()) is not None
                and not self._bound.expired()
            ):
                self._bound.reschedule(deadline + seconds)

    def _run(self) -> None:
        if self._left is not None and not self._bound.expired():
            self._bound.reschedule(asyncio.get_running_loop().time() + self._left)
