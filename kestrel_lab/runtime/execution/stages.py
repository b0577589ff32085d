"""Stages: each step of one is checked before it begins, tried again where that is harmless, and leaves a
checkpoint.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from kestrel_lab.core.calls import REPEATABLE, Problem
from kestrel_lab.core.errors import LimitError, RunError, ToolError, UnmetError
from kestrel_lab.core.events.union import Event, Record, StageFinished, StageStarted, StepRetried
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.plan import Step
from kestrel_lab.eventlog.conversation import Conversation
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.runtime.execution.scheduler import Outcome
from kestrel_lab.runtime.supervision.failure_kinds import (
    RECOVERABLE,
    FailureClass,
    RetryBudget,
    Sleep,
    classify_failure,
    failure_advice,
)
from kestrel_lab.tools.tool import Toolbox


class StageRunner:
    """Carries out steps as `run` does, with what it means to be in a stage around it; steps of no stage are
    left to `run`.

    A failure is classified. One that may pass is tried again within the budget, if repeating is harmless:
    agents and operations go on where their conversation is, a call is repeated only if its tool says it may
    be. All others end the step at once, with a reason that says what to do. How often a step was tried is in
    the log, so a resumed run goes on counting.
    """

    def __init__(
        self,
        run: Callable[[Step], Awaitable[Outcome]],
        *,
        state: RunState,
        toolbox: Toolbox,
        emit: Callable[[Event], Any],
        inputs: Callable[[Step], Mapping[str, Json]],
        preflight: Callable[[Step], Awaitable[None]],
        on_disk: Callable[[], Awaitable[None]],
        repair: Callable[[Step, RunError], Outcome | None] = lambda _step, _error: None,
        budget: RetryBudget | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        """Prepare; `inputs` gives the artifacts of a step, `preflight` raises a `RunError` when something
        that it needs is not there.

        `emit` records an event and takes it into `state`; `on_disk` waits until what was recorded is safe:
        nothing is begun, or begun anew, before a checkpoint is. `repair` gives the outcome of a step that
        failed for good and grows what puts it right, or `None`.
        """
        self._run, self._state, self._toolbox, self._emit = run, state, toolbox, emit
        self._inputs, self._preflight, self._on_disk, self._sleep = inputs, preflight, on_disk, sleep
        self._repair, self._budget = repair, budget or RetryBudget()

    async def __call__(self, step: Step) -> Outcome:
        """Carry out `step`; raises what `run` raises, a failure of a stage with its class and what to do."""
        if not step.stage:
            return await self._run(step)
        conversation = self._begin(step)
        while True:
            if self._state.stages.get(step.stage, 0) < conversation.attempt:
                self._emit(StageStarted(stage=step.stage, attempt=conversation.attempt))
            try:
                await self._preflight(step)
                outcome = await self._run(step)
            except RunError as error:
                if (repaired := await self._failed(step, conversation, error)) is not None:
                    return repaired
            else:
                self._checkpoint(step, "skipped" if outcome.skipped else "done", conversation)
                await self._on_disk()
                return outcome

    def _begin(self, step: Step) -> Conversation:
        """What was said in the step so far; one that a resumed run gives another try begins a new attempt."""
        conversation, last = self._state.conversation(step.id), self._state.checkpoints.get(step.id)
        waited = (
            last is not None and last.status == "retrying" and last.attempt == conversation.attempt
        )  # the session ended in between
        if last is not None and (waited or last.status == "failed"):
            self._retry(step, conversation, last.error_class, last.error_message, 0.0)
        return conversation

    async def _failed(self, step: Step, conversation: Conversation, error: RunError) -> Outcome | None:
        """Wait until the next attempt may begin; return what puts the step right where it may not, or raise
        what ends it.
        """
        kind = failure_class(error)
        wait = self._budget.wait(error, conversation.attempt - conversation.earlier)
        if not self._may_repeat(step, conversation, kind, wait):
            self._checkpoint(step, "failed", conversation, kind, str(error))
            if kind == "logic" and (repaired := self._repair(step, error)) is not None:
                await self._on_disk()
                return repaired
            raise self._ended(conversation, kind, error)
        self._checkpoint(step, "retrying", conversation, kind, str(error))
        self._retry(step, conversation, kind, str(error), wait)
        await self._on_disk()
        await self._sleep(wait)
        return None

    def _may_repeat(self, step: Step, conversation: Conversation, kind: FailureClass, wait: float) -> bool:
        harmless = not step.tool or self._toolbox.get(step.tool).effect in REPEATABLE
        within = (
            conversation.attempt - conversation.earlier < self._budget.attempts
            and conversation.waited_s + wait <= self._budget.total_wait_s
        )
        return kind in RECOVERABLE and harmless and within

    def _retry(self, step: Step, conversation: Conversation, kind: str, reason: str, wait: float) -> None:
        self._emit(
            StepRetried(
                step=step.id, attempt=conversation.attempt + 1, error_class=kind, reason=reason, wait_s=wait
            )
        )

    def _checkpoint(
        self, step: Step, status: str, conversation: Conversation, kind: str = "", message: str = ""
    ) -> None:
        """Record how the attempt ended, unless the last session did that before it died."""
        row = StageFinished(
            stage=step.stage,
            task=step.id,
            status=status,
            attempt=conversation.attempt,
            inputs_hash=content_key(step.as_json(), self._inputs(step)),
            outputs_ref=output_ref(step, conversation) if status == "done" else "",
            error_class=kind,
            error_message=message,
        )
        if self._state.checkpoints.get(step.id) != row:
            self._emit(row)

    @staticmethod
    def _ended(conversation: Conversation, kind: FailureClass, error: RunError) -> RunError:
        if isinstance(error, LimitError):  # of the run, which says so itself
            return error
        tries = conversation.attempt - conversation.earlier
        after = f" after {tries} attempts" if tries > 1 else ""
        kind_of_error = UnmetError if isinstance(error, UnmetError) else RunError
        ended = kind_of_error(f"{str(error).rstrip('. ')} ({kind}{after}). {failure_advice(_failure(error))}")
        ended.__cause__ = error
        return ended


def failure_class(error: RunError) -> FailureClass:
    """The kind of failure that ended an attempt; a call's own is in its answer."""
    return classify_failure(_failure(error))


def _failure(error: RunError) -> RunError | Problem:
    return error.problem if isinstance(error, ToolError) and error.problem is not None else error


def output_ref(step: Step, conversation: Conversation) -> str:
    """Where the output of a step that is done is in the log: its call, else the step itself."""
    return next(reversed(conversation.answers), step.id) if step.tool else step.id


# Checkpoints of stages as rows: the columns of the view `stage_checkpoints`.

STAGE_COLUMNS = (
    *("run_id", "task_id", "stage", "status", "attempt"),
    *("inputs_hash", "outputs_ref", "error_class", "error_message", "timestamp"),
)


def stage_row(record: Record) -> tuple[Json, ...]:
    """The row that the record of a `stage_finished` is, the time in seconds since 1970."""
    event = record.event
    assert isinstance(event, StageFinished)
    return (
        *(record.run_id, event.task, event.stage, event.status, event.attempt),
        *(event.inputs_hash, event.outputs_ref, event.error_class, event.error_message, record.at),
    )
