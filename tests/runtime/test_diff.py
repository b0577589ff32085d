"""Claims about the comparison of two runs: which events are the same, and where the runs part."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace

import pytest

from kestrel_lab.core.events.union import (
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    Prompted,
    Record,
    RunFinished,
    StateTransition,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
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
    """Times and ids do not count, type and fields do; a record that a fork copied is the same whatever became
    of its text.
    """
    found = parted([left], [right])
    assert (found.same, found.shared, list(found.frame["same"])) == (
        same,
        int(same),
        [same] if len(found.rows) == 1 else [False, False],
    )


def test_the_parting_is_the_first_difference() -> None:
    """What is the same after it is marked as such, not shared and not shown; changes of state are passed over."""
    moved = StateTransition(source=RunStatus.PLANNING, target=RunStatus.EXECUTING)
    answered = ToolAnswered(call="t1", step="main", tool="grep", text="3 lines")
    left = [record(Prompted(step="main", text="go")), record(moved), record(said("yes")), record(answered)]
    right = [record(Prompted(step="main", text="go")), record(said("no")), record(answered)]
    found = parted(left, right)
    assert (found.shared, found.first_a, found.first_b) == (1, left[2], right[1])
    assert list(found.frame["same"]) == [True, False, True]
    assert found.headline == "the runs share 1 event, then part; 1 of 2 events from there differ"
    assert "grep" not in "".join(map(str, found._parted))


def test_what_a_fork_says_of_itself_and_of_beginning_again_is_passed_over() -> None:
    """Of a step the first beginning counts, of a model call and a question the last."""
    begun, asked = (
        StepStarted(step="main", goal="go"),
        ModelCalled(call="m1", step="main", model="m", cycle=1, messages=2),
    )
    left = [record(begun), record(asked), record(said("yes"))]
    right = [record(begun), record(asked), record(begun), record(asked), record(said("yes"))]
    found = parted(left, right)
    assert (found.same, found.shared) == (True, 3)
    assert [(a.seq, b.seq) for a, b in found.rows if a and b] == [
        (left[0].seq, right[0].seq),
        (left[1].seq, right[3].seq),
        (left[2].seq, right[4].seq),
    ]


def test_a_longer_run_parts_where_the_other_ends() -> None:
    """What only one run has stands alone on its row, and of many rows some are shown."""
    both = [record(Prompted(step="main", text="go"))]
    found = parted(both, [*both, *(record(said(str(number))) for number in range(45))])
    assert (found.same, found.shared, found.first_a, len(found.rows)) == (False, 1, None, 46)
    assert (
        found.first_b is not None
        and found.headline == "the runs share 1 event, then part; 5 more rows are in .frame"
    )
    frame = found.frame
    assert list(frame["same"]) == [True] + [False] * 45
    assert frame["a_seq"].isna().sum() == 45 and frame["b_seq"].notna().all()
    shorter = parted([*both, record(said("a"))], both)
    assert (shorter.first_b, shorter.headline) == (None, "the runs share 1 event, then part")


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (ModelCalled(call="m1", step="main", model="m", cycle=1, messages=2), "m"),
        (
            ModelAnswered(
                call="m1",
                step="main",
                model="m",
                text="so",
                calls=[{"name": "grep", "args": {"pattern": "x"}}],
            ),
            "so → grep x",
        ),
        (ModelAnswered(call="m1", step="main", model="m", error={"message": "too long"}), "too long"),
        (ToolCalled(call="t", step="main", tool="grep", args={"pattern": "x"}), "grep x"),
        (ToolAnswered(call="t", step="main", tool="grep", text="3\nlines"), "grep: 3 lines"),
        (ApprovalGiven(call="t", granted=True, by="me", how="asked", reason="fine"), "approved by me fine"),
        (ApprovalGiven(call="t", granted=False, by="me", how="asked", reason="no"), "denied by me no"),
        (
            ApprovalGiven(call="t", granted=True, by="me", how="asked", reason="r", answer="blue"),
            "answered by me blue",
        ),
        (RunFinished(outcome="succeeded", answer="42", reason=""), "succeeded: 42"),
        (RunFinished(outcome="failed", answer="", reason="no model"), "failed: no model"),
        (Prompted(step="main", text="go"), "step=main, text=go, again=False"),
    ],
)
def test_an_event_is_told_in_a_line(event: Event, text: str) -> None:
    """What happened, for whoever compares."""
    assert list(parted([record(event)], []).frame["a"]) == [text]
