"""Claims about the comparison of two runs: which events are the same, and where the runs part."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from kestrel_lab.core.events.union import Event, ModelAnswered, Prompted, Record, StateTransition, ToolAnswered
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.runtime.diff import RunDiff, diff_runs

NUMBERS = count(1)


def record(event: Event, eid: str = "") -> Record:
    """The event at a time and under an id of its own, unless `eid` says which."""
    number = next(NUMBERS)
    return Record(run_id=f"r{number}", seq=number, eid=eid or f"e{number}", at=float(number), event=event)


def parted(left: list[Record], right: list[Record]) -> RunDiff:
    """The comparison of two runs that have these records."""
    return diff_runs(SimpleNamespace(records=lambda: left), SimpleNamespace(records=lambda: right))


def said(text: str, seconds: float = 1.0) -> ModelAnswered:
    """An answer of a model."""
    return ModelAnswered(call="m1", step="main", model="m", text=text, seconds=seconds)


@pytest.mark.parametrize(
    ("left", "right", "same"),
    [
        (record(said("yes", 1.0)), record(said("yes", 2.0)), True),
        (record(said("yes")), record(said("no")), False),
        (record(said("yes"), "copied"), record(said("[redacted]"), "copied"), True),
        (record(said("yes"), "copied"), record(Prompted(step="main", text="yes"), "copied"), False),
        (record(said("yes")), record(Prompted(step="main", text="yes")), False),
    ],
    ids=["other times", "other text", "a copied record", "another type under one id", "another type"],
)
def test_events_are_the_same_by_type_and_fields(left: Record, right: Record, same: bool) -> None:
    """Times and ids do not count, type and fields do; a record that a fork copied is the same whatever became of its text."""
    found = parted([left], [right])
    assert (found.same, found.shared, list(found.frame["same"])) == (same, int(same), [same] if len(found.rows) == 1 else [False, False])


def test_the_parting_is_the_first_difference() -> None:
    """What is the same behind it is marked as such and is not shared; changes of state are passed over."""
    moved = StateTransition(source=RunStatus.PLANNING, target=RunStatus.EXECUTING)
    answered = ToolAnswered(call="t1", step="main", tool="grep", text="3 lines")
    left = [record(Prompted(step="main", text="go")), record(moved), record(said("yes")), record(answered)]
    right = [record(Prompted(step="main", text="go")), record(said("no")), record(answered)]
    found = parted(left, right)
    assert (found.shared, found.first_a, found.first_b) == (1, left[2], right[1])
    assert list(found.frame["same"]) == [True, False, True]
