"""Which notes a run was given, by its log."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.checks.retrieval import Recalled
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import MemoryRecalled, Record
from kestrel_lab.core.protocols import Trial


def judged(check, *given):
    """The score of a run whose memory gave these notes, step by step."""
    events = [MemoryRecalled(step="s", notes=[{"id": one} for one in notes]) for notes in given]
    records = tuple(
        Record(run_id="r", seq=n, eid=str(n), at=float(n), event=event) for n, event in enumerate(events, 1)
    )
    return asyncio.run(check(Trial(goal="g", answer="", records=records, workspace=Path())))


A, AB, B = "a0123abcd", "ab0123abcd", "b0123abcd"


@pytest.mark.parametrize(
    ("check", "given", "value", "passed"),
    [
        ({"notes": ("a",)}, [[B, A]], 1.0, True),
        ({"notes": ("a",), "k": 1}, [[B, A]], 0.0, False),
        ({"notes": ("a", "b"), "k": 2}, [[A], [A, B]], 1.0, True),  # given twice counts once
        ({"notes": ("a", "b")}, [[A]], 0.5, False),
        ({"notes": ("a",)}, [[AB]], 0.0, False),  # another note whose name begins alike
        ({"notes": ("a",)}, [], 0.0, False),
        ({"never": ("b",)}, [[A]], 1.0, True),
        ({"never": ("b",)}, [[A, B]], 0.0, False),
        (
            {"notes": ("a",), "never": ("b",), "k": 1},
            [[A, B]],
            1.0,
            False,
        ),  # behind the first k is given all the same
    ],
    ids=str,
)
def test_notes_are_counted_by_name(check, given, value, passed):
    """Wanted notes among the first k, unwanted ones nowhere; what is wrong is named."""
    score = judged(Recalled(**check), *given)
    assert (score.value, score.passed, bool(score.reason)) == (value, passed, not passed)
    assert score.check.startswith(f"recall@{check.get('k', 5)}") == ("notes" in check)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"notes": ("a", "a")},
        {"notes": ("a",), "never": ("a",)},
        {"notes": ("",)},
        {"notes": ("a",), "k": 0},
    ],
    ids=str,
)
def test_a_check_of_nothing_is_refused(wrong):
    """No names, one of them twice or empty, and no places are told before anything runs."""
    with pytest.raises(UsageError, match="recalled needs names"):
        Recalled(**wrong)
