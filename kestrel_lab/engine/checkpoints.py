"""Checkpoints of stages as rows: the columns of the view `stage_checkpoints`."""

from __future__ import annotations

from kestrel_lab.core.events import Record, StageFinished
from kestrel_lab.core.jsontypes import Json

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
