"""Runs the steps of a plan as soon as what each needs is done; knows nothing of what a step is."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from kestrel_lab.core.errors import LimitError, RunError, Signal, UsageError
from kestrel_lab.core.events import Event, StepFinished
from kestrel_lab.core.plan import Plan, Step

RunStep = Callable[[Step], Awaitable[None]]
"""Does the work of one step; raises a `RunError` when it fails."""


def _unheard(_: Event) -> None:
    """Nobody is told."""


class StepScheduler:
    """Carries out a plan, once.

    A step starts when all it needs are done and there is room; there are no layers. Exclusive steps
    (`parallelizable=False` or `needs_approval`) never run beside each other and always in the order of
    `Plan.order`; other steps may run beside them.
    """

    def __init__(
        self, plan: Plan, run_step: RunStep, *, emit: Callable[[Event], Any] = _unheard, finished: Mapping[str, bool] | None = None
    ) -> None:
        """Prepare.

        Args:
            plan: What to carry out.
            run_step: Does the work of one step.
            emit: Told a `step_finished` for each step that ended or was skipped.
            finished: Steps an earlier session finished: those with `True` are not run again.
        """
        self._plan = plan
        self._run_step = run_step
        self._emit = emit
        self._done = {name for name, ok in (finished or {}).items() if ok}
        self._steps = {step.id: step for step in plan.steps}
        self._place = {name: place for place, name in enumerate(self._steps)}
        self._waits = {name: {need for need in needs if need not in self._done} for name, needs in plan.needs().items()}
        self._dependants: dict[str, list[str]] = {name: [] for name in self._steps}
        for name, needs in self._waits.items():
            for need in needs:
                self._dependants[need].append(name)
        self._ready: list[int] = []  # a heap of places, of steps that may run beside any other
        self._exclusive = deque(step.id for step in plan.order() if step.exclusive and step.id not in self._done)
        self._running: dict[asyncio.Task[None], Step] = {}
        self._errors: dict[str, RunError] = {}
        self._skipped: set[str] = set()
        self._stops: list[BaseException] = []

    @staticmethod
    def get_ready_steps(plan: Plan, finished: Collection[str] = ()) -> tuple[Step, ...]:
        """The steps that are not `finished` and need nothing that is not, in the order written."""
        done, needs = frozenset(finished), plan.needs()
        return tuple(step for step in plan.steps if step.id not in done and done.issuperset(needs[step.id]))

    async def run_parallel(self, limit: int) -> None:
        """Run everything that is not finished, at most `limit` steps at once.

        A step that raises a `RunError` has failed: what depends on it, however far, is skipped, and the rest
        goes on; at the end a `RunError` names what failed and what was skipped (a plan of one step raises
        the step's own error). Any other error, a reached limit or `ApprovalRequired` starts nothing more:
        steps under way are finished, then it is raised, an error before a wish for approval. Cancellation
        cancels every step under way, waits for them and goes on.
        """
        if limit < 1:
            msg = f"at least one step must be allowed at once, not {limit}"
            raise UsageError(msg)
        ended: asyncio.Queue[asyncio.Task[None]] = asyncio.Queue()
        for step in self._plan.steps:
            if not self._waits[step.id] and not step.exclusive and step.id not in self._done:
                heapq.heappush(self._ready, self._place[step.id])
        try:
            self._start(limit, ended)
            while self._running:
                self._settle(await ended.get())
                self._start(limit, ended)
        finally:
            for task in self._running:
                task.cancel()
            await asyncio.gather(*self._running, return_exceptions=True)
        if self._stops:
            raise min(self._stops, key=lambda error: isinstance(error, Signal))
        if self._errors:
            raise self._failure()

    def _start(self, limit: int, ended: asyncio.Queue[asyncio.Task[None]]) -> None:
        while not self._stops and len(self._running) < limit and (step := self._next()) is not None:
            task = asyncio.create_task(self._one(step), name=f"step {step.id}")
            self._running[task] = step
            task.add_done_callback(ended.put_nowait)

    async def _one(self, step: Step) -> None:
        await self._run_step(step)

    def _next(self) -> Step | None:
        """The first step, as written, that may start now; it is taken off its queue."""
        while self._exclusive and self._exclusive[0] in self._skipped:
            self._exclusive.popleft()
        first = self._exclusive[0] if self._exclusive else None
        alone = first is not None and not self._waits[first] and not any(step.exclusive for step in self._running.values())
        if first is not None and alone and (not self._ready or self._place[first] < self._ready[0]):
            return self._steps[self._exclusive.popleft()]
        return self._plan.steps[heapq.heappop(self._ready)] if self._ready else None

    def _settle(self, task: asyncio.Task[None]) -> None:
        step = self._running.pop(task)
        if task.cancelled():  # by what it does, not by us: whoever stops a step stops the run
            raise asyncio.CancelledError
        error = task.exception()
        if error is None:
            self._emit(StepFinished(step=step.id, ok=True))
            for name in self._dependants[step.id]:
                self._waits[name].discard(step.id)
                if not self._waits[name] and not self._steps[name].exclusive:
                    heapq.heappush(self._ready, self._place[name])
        elif isinstance(error, RunError) and not isinstance(error, LimitError):
            self._errors[step.id] = error
            self._emit(StepFinished(step=step.id, ok=False, reason=str(error)))
            self._skip_after(step.id)
        else:
            self._stops.append(error)

    def _skip_after(self, failed: str) -> None:
        """Skip all that depends on the failed step and was not skipped before, in the order written."""
        found: set[str] = set()
        todo = [failed]
        while todo:
            new = [name for name in self._dependants[todo.pop()] if name not in found and name not in self._skipped]
            found.update(new)
            todo += new
        self._skipped |= found
        for name in sorted(found, key=self._place.__getitem__):
            self._emit(StepFinished(step=name, ok=False, reason=f"skipped: step {failed!r} failed"))

    def _failure(self) -> RunError:
        if len(self._steps) == 1:
            return next(iter(self._errors.values()))
        failed = sorted(self._errors, key=self._place.__getitem__)
        told = "; ".join(f"step {name!r} failed: {self._errors[name]}" for name in failed)
        skipped = sorted(self._skipped, key=self._place.__getitem__)
        return RunError(f"{told}; skipped: {', '.join(skipped)}" if skipped else told)
