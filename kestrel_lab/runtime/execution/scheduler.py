"""Runs the steps of a plan as soon as what each needs is done; knows nothing of what a step is."""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kestrel_lab.core.errors import LimitError, RunError, UnmetError, UsageError, most_severe
from kestrel_lab.core.events.union import Event, PlanExtended, StepFinished
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan, Step


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """How the work of a step ended well."""

    output: Json = None
    """What an operation gave."""
    skipped: bool = False
    """Its condition did not hold, so nothing was done."""
    grown: Plan | None = None
    """The plan with the steps that it grew, if it grew any."""
    artifacts: Mapping[str, Json] = field(default_factory=dict)
    """Artifacts that are there before these."""
    reason: str = ""
    """Why what it grew is needed, where it failed and is put right."""


RunStep = Callable[[Step], Awaitable["Outcome | None"]]
"""Does the work of one step; `None` is a plain `Outcome`. Raises a `RunError` when it fails."""
_PLAIN = Outcome()


def _ignore(_: Event) -> None:
    """No-op."""


def _reachable_from(starts: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """Everything that can be reached from `starts`, they themselves only if there is a way back."""
    found: set[str] = set()
    todo = list(starts)
    while todo:
        for name in onward(todo.pop()):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


class StepScheduler:
    """Carries out a plan, once.

    A step starts when all it needs are done and there is room; there are no layers. Exclusive steps
    (`parallelizable=False` or `needs_approval`) never run beside each other and always in the order of
    `Plan.order`; other steps may run beside them. Steps that a step grows are carried out like all others.
    """

    def __init__(
        self,
        plan: Plan,
        run_step: RunStep,
        *,
        emit: Callable[[Event], Any] = _ignore,
        finished: Mapping[str, bool] | None = None,
        skipped: Collection[str] = (),
    ) -> None:
        """Prepare; of the steps that an earlier session `finished` those with `True` are not run again.

        `skipped` are those whose condition did not hold. `emit` gets a `step_finished` for each step that
        ended or was skipped, and a `plan_extended` before it.
        """
        self._run_step = run_step
        self._emit = emit
        self._done = {name for name, ok in (finished or {}).items() if ok}
        self._idle = set(skipped)
        self._running: dict[asyncio.Task[Outcome | None], Step] = {}
        self._errors: dict[str, RunError] = {}
        self._skipped: set[str] = set()
        self._stops: list[BaseException] = []
        self._arrange(plan)
        for name, ok in (finished or {}).items():
            if not ok and name not in self._idle and name in self._steps:
                self._leave(name)

    def _arrange(self, plan: Plan) -> None:
        """Take `plan` as the one to carry out, with what is done so far."""
        self._plan = plan
        self._steps = {step.id: step for step in plan.steps}
        self._place = {name: place for place, name in enumerate(self._steps)}
        self._needs = plan.needs()
        self._after: dict[str, list[str]] = {name: [] for name in self._steps}
        for name, needs in self._needs.items():
            for need in needs:
                self._after[need].append(name)
        ended = self._done | self._skipped | self._errors.keys()
        self._waits = {
            name: set() if name in ended else {need for need in needs if not self._over(name, need)}
            for name, needs in self._needs.items()
        }
        self._dependants: dict[str, list[str]] = {name: [] for name in self._steps}
        for name, waits in self._waits.items():
            for need in waits:
                self._dependants[need].append(name)
        begun = ended | {step.id for step in self._running.values()}
        self._exclusive = deque(step.id for step in plan.order() if step.exclusive and step.id not in begun)
        # A heap of places, of steps that may run beside any other.
        self._ready = [
            place
            for name, place in self._place.items()
            if not self._waits[name] and not self._steps[name].exclusive and name not in begun
        ]

    @staticmethod
    def get_ready_steps(plan: Plan, finished: Collection[str] = ()) -> tuple[Step, ...]:
        """The steps that are not `finished` and need nothing that is not, in the order written."""
        done, needs = frozenset(finished), plan.needs()
        return tuple(step for step in plan.steps if step.id not in done and done.issuperset(needs[step.id]))

    async def run_parallel(self, limit: int) -> None:
        """Run everything that is not finished, at most `limit` steps at once.

        A step that raises a `RunError` has failed: what depends on it, however far, is skipped, and the rest
        goes on. A dependant with `after_failure` is not skipped; it starts when all it needs have ended, and
        if it ends well the failure counts as dealt with. What waits for such a step as well goes by how that
        one ends. At the end a `RunError` names what failed and what was skipped (a plan of one step raises
        the step's own error). Any other error, a reached limit or `ApprovalRequired` starts nothing more:
        steps under way are finished, then it is raised, an error before a wish for approval. Cancellation
        cancels every step under way, waits for them and goes on.
        """
        if limit < 1:
            raise UsageError(f"at least one step must be allowed at once, not {limit}")
        ended: asyncio.Queue[asyncio.Task[Outcome | None]] = asyncio.Queue()
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
            raise most_severe(self._stops)
        if unsettled := [name for name in self._errors if not self._dealt_with(name)]:
            raise self._failure(unsettled)

    def _start(self, limit: int, ended: asyncio.Queue[asyncio.Task[Outcome | None]]) -> None:
        while not self._stops and len(self._running) < limit and (step := self._next()) is not None:
            task = asyncio.create_task(self._one(step), name=f"step {step.id}")
            self._running[task] = step
            task.add_done_callback(ended.put_nowait)

    async def _one(self, step: Step) -> Outcome | None:
        try:
            return await self._run_step(step)
        except KeyboardInterrupt:
            # A second Ctrl-C reached code that blocks this thread. Out of a task it would tear down the event
            # loop.
            raise asyncio.CancelledError from None

    def _next(self) -> Step | None:
        """The first step, as written, that may start now; it is taken off its queue."""
        while self._exclusive and self._exclusive[0] in self._skipped:
            self._exclusive.popleft()
        first = self._exclusive[0] if self._exclusive else None
        alone = (
            first is not None
            and not self._waits[first]
            and not any(step.exclusive for step in self._running.values())
        )
        if first is not None and alone and (not self._ready or self._place[first] < self._ready[0]):
            return self._steps[self._exclusive.popleft()]
        return self._plan.steps[heapq.heappop(self._ready)] if self._ready else None

    def _settle(self, task: asyncio.Task[Outcome | None]) -> None:
        step = self._running.pop(task)
        if task.cancelled():  # by its own work, not by us: stopping a step stops the run
            raise asyncio.CancelledError
        error = task.exception()
        if error is None:
            self._finish(step, task.result() or _PLAIN)
        elif isinstance(error, RunError) and not isinstance(error, LimitError):
            self._errors[step.id] = error
            self._emit(StepFinished(step=step.id, ok=False, reason=str(error)))
            self._skip_after(step.id)
        else:
            self._stops.append(error)

    def _finish(self, step: Step, outcome: Outcome) -> None:
        self._done.add(step.id)
        if outcome.skipped:
            self._idle.add(step.id)
        if outcome.grown is not None:
            new = [other for other in outcome.grown.steps if other.id not in self._steps]
            self._emit(
                PlanExtended(
                    step=step.id, steps=[other.as_json() for other in new], artifacts=dict(outcome.artifacts)
                )
            )
        self._emit(
            StepFinished(
                step=step.id, ok=True, skipped=outcome.skipped, output=outcome.output, reason=outcome.reason
            )
        )
        if outcome.grown is not None:
            self._arrange(outcome.grown)
            for name in (*self._errors, *self._skipped):  # what has grown may wait for what failed before
                self._skip_after(name)
            return
        for name in self._dependants[step.id]:
            self._waited_for(name, step.id)

    def _waited_for(self, name: str, need: str) -> None:
        self._waits[name].discard(need)
        if not self._waits[name] and not self._steps[name].exclusive and name not in self._skipped:
            heapq.heappush(self._ready, self._place[name])

    def _skip_after(self, failed: str) -> None:
        """Skip all that depends on the failed step and was not skipped before, in the order written."""
        found: dict[str, None] = {}
        todo = [failed]
        while todo:
            need = todo.pop()
            for name in self._dependants[need]:
                over = name in found or name in self._skipped or self._steps[name].after_failure
                if not over and not self._covered(name, need):
                    found[name] = None
                    todo.append(name)
        self._skipped.update(found)
        for name in sorted(found, key=self._place.__getitem__):
            self._emit(
                StepFinished(step=name, ok=False, skipped=True, reason=f"skipped: step {failed!r} failed")
            )
        for need in (failed, *found):
            for name in self._dependants[need]:
                if name not in self._skipped and need in self._waits[name]:
                    self._waited_for(name, need)

    def _dealt_with(self, failed: str) -> bool:
        """Whether a step that comes after the failed one, with nothing but skipped steps between, took it up:
        by its end it is judged.
        """
        beyond = _reachable_from(
            [failed], lambda name: self._after[name] if name == failed or name in self._skipped else ()
        )
        taken_up = (self._done - self._idle) | self._errors.keys()
        return any(self._steps[name].after_failure and name in taken_up for name in beyond if name != failed)

    def _over(self, name: str, need: str) -> bool:
        if need in self._done:
            return True
        ended = need in self._errors or need in self._skipped
        return ended and (self._steps[name].after_failure or self._covered(name, need))

    def _covered(self, name: str, failed: str) -> bool:
        """Whether `name` waits for a step that deals with it if `failed` fails."""
        return not self._before(name).isdisjoint(self._dealing(failed))

    def _before(self, name: str) -> set[str]:
        return _reachable_from([name], self._needs.__getitem__)

    def _dealing(self, failed: str) -> set[str]:
        """The steps with `after_failure` that come after `failed`, none of them between."""
        beyond = _reachable_from(
            [failed],
            lambda name: [] if name != failed and self._steps[name].after_failure else self._after[name],
        )
        return {name for name in beyond if self._steps[name].after_failure}

    def _leave(self, failed: str) -> None:
        """Leave a step that failed before the run was resumed as it is, if it was dealt with then."""
        if not self._dealing(failed) & (self._done - self._idle):
            return
        self._errors[failed] = RunError("it failed before the run was resumed, and that was dealt with")
        for name in self._idle - self._done:
            if failed in self._before(name) and not self._covered(name, failed):
                self._skipped.add(name)
        self._arrange(self._plan)

    def _failure(self, unsettled: list[str]) -> RunError:
        if len(self._steps) == 1:
            return next(iter(self._errors.values()))
        failed = sorted(unsettled, key=self._place.__getitem__)
        failures = "; ".join(f"step {name!r} failed: {self._errors[name]}" for name in failed)
        skipped = sorted(self._skipped, key=self._place.__getitem__)
        kind = UnmetError if all(isinstance(self._errors[name], UnmetError) for name in failed) else RunError
        error = kind(f"{failures}; skipped: {', '.join(skipped)}" if skipped else failures)
        error.failed_steps = tuple(failed)
        return error
