"""Stages in the log: how a failure of one is classified and reported, and its checkpoints as rows."""

from __future__ import annotations

from kestrel_lab.core.calls import Problem
from kestrel_lab.core.errors import LimitError, RunError, ToolError, UnmetError
from kestrel_lab.core.events.union import Record, StageFinished
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Step
from kestrel_lab.eventlog.conversation import Conversation
from kestrel_lab.runtime.supervision.failure_kinds import FailureClass, classify_failure, failure_advice


def failure_class(error: RunError) -> FailureClass:
    """The kind of failure that ended an attempt; a call's own is in its answer."""
    return classify_failure(_failure(error))


def ended_stage(kind: FailureClass, attempts: int, error: RunError) -> RunError:
    """Return the error that ends a stage: with its class, the number of attempts and what to do."""
    if isinstance(error, LimitError):  # a limit of the run names itself
        return error
    after = f" after {attempts} attempts" if attempts > 1 else ""
    kind_of_error = UnmetError if isinstance(error, UnmetError) else RunError
    ended = kind_of_error(f"{str(error).rstrip('. ')} ({kind}{after}). {failure_advice(_failure(error))}")
    ended.__cause__ = error
    return ended


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
