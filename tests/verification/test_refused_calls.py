"""What only refused calls could have done is not reported as done, in whatever voice; true reports beside a
refusal are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from kestrel_lab.core.events.actions import actions_of
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CellsChanged,
    Event,
    KernelChanged,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.verification import refused_calls
from kestrel_lab.verification.answered_calls import AnsweredCall
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject

NO: dict[str, Json] = {"kind": "denied", "message": "no", "transient": False}
CLEAN = "df = df.dropna()\ntotals = df.groupby('x').sum()"


def denied(tool: str, args: dict[str, Json], name: str = "d") -> list[Event]:
    """A call that a person turned down."""
    return [
        ApprovalAsked(call=name, step="main", tool=tool, args=args, danger="MEDIUM", key="k"),
        ApprovalGiven(call=name, granted=False, by="ann", how="prompt"),
        ToolAnswered(call=name, step="main", tool=tool, text="", error=NO),
    ]


def done(tool: str, args: dict[str, Json], *more: Event, name: str = "c", **answer: object) -> list[Event]:
    """A call that was made."""
    return [
        ToolCalled(call=name, step="main", tool=tool, args=args, danger="MEDIUM"),
        *more,
        ToolAnswered(call=name, step="main", tool=tool, text="ok", **answer),  # type: ignore[arg-type]
    ]


NO_CLEAN = denied("run_python", {"code": CLEAN})
RAN = KernelChanged(
    call="c", step="main", how="executed", kernel="k", changes=[{"name": "df", "kind": "changed", "text": ""}]
)
CLEANED = done("run_python", {"code": CLEAN}, RAN)
OTHER = done(
    "run_python",
    {"code": "y = 1"},
    KernelChanged(call="c", step="main", how="executed", kernel="k", changes=[{"name": "y"}]),
)
NO_CELL = denied("insert_cell", {"source": "df.plot()"})
CELL = done("insert_cell", {"source": "x"}, CellsChanged(call="c", step="main", how="document", changes=[]))
NO_MAIL = denied("send_mail", {"to": "bob"})
NO_DELETE = denied("delete_event", {"id": "7"})
LIST = done("bash", {"command": "ls"}, touched=[])


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (NO_CLEAN, "Done. `df` lost its rows."),
        (NO_CLEAN, "Done."),
        (NO_CLEAN, "All done!"),
        (NO_CLEAN, "It's done: 3 rows are left."),
        (NO_CLEAN, "The task is complete."),
        (NO_CLEAN, "`df` was cleaned."),
        (NO_CLEAN, "The missing rows have been removed from df."),
        (NO_CLEAN, "`df` now has 90 rows."),
        (NO_CLEAN, "The empty rows of `df` are gone."),
        (NO_CLEAN, "I dropped the empty rows of `df`."),
        (NO_CLEAN, "`totals` has been computed from `df`."),
        ([*NO_CLEAN, *LIST], "`df` was deduplicated successfully."),
        ([*OTHER, *NO_CLEAN], "`df` was cleaned."),
        (NO_CELL, "The cell has been inserted below."),
        (NO_CELL, "A new cell with the plot was added."),
        (NO_CELL, "I inserted a cell with the plot."),
        ([*NO_CELL, *LIST], "The cell was inserted."),
        (denied("edit_cell", {"cell": "a", "old": "1", "new": "2"}), "Cell 3 was changed to use 2."),
        (denied("delete_cell", {"cell": "a"}), "The last cell has been deleted."),
        (NO_MAIL, "The mail has been sent to Bob."),
        ([*NO_MAIL, *LIST], "The message was successfully sent."),
        (NO_DELETE, "The event was deleted."),
    ],
)
def test_a_report_of_what_was_refused_is_found(events: Sequence[Event], answer: str) -> None:
    """That the task is done, that a variable, a cell, a message or something else was changed: nothing but
    the refused call could have done it.
    """
    assert check_answer(Subject(answer=answer, actions=actions_of(events))) != ()


@pytest.mark.parametrize("answer", ["Done.", "All done!", "The task is complete."])
def test_what_an_earlier_run_did_excuses_no_done(answer: str) -> None:
    """In a conversation the earlier run cleaned the frame, and in this one the person refused: that the task
    is done is false. Where this run did something else by itself, the report may be of that.
    """
    earlier = actions_of(done("run_python", {"code": CLEAN}, RAN, name="e"))
    refused = Subject(answer=answer, actions=actions_of(NO_CLEAN), earlier=earlier)
    assert [issue.severity for issue in check_answer(refused)] == ["critical"]
    worked = Subject(answer=answer, actions=actions_of([*NO_CLEAN, *CLEANED]), earlier=earlier)
    assert check_answer(worked) == ()


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        (NO_CLEAN, "`df` was not cleaned: you denied it."),
        (NO_CLEAN, "I could not drop the rows of `df`."),
        (NO_CLEAN, "`df` has 100 rows."),
        (NO_CLEAN, "`df` was loaded from sales.csv and contained 3 duplicates."),
        (NO_CLEAN, "Run `df = df.dropna()` yourself; once `df` was cleaned, plot it."),
        (NO_CLEAN, "Shall I say that `df` was cleaned?"),
        (NO_CLEAN, "The weather was described in the file."),
        (NO_CLEAN, "Done. Nothing was changed."),
        ([*NO_CLEAN, *CLEANED], "Done. `df` lost its rows."),
        (CLEANED, "`df` was cleaned."),
        ([*denied("bash", {"command": "rm x"}), *CLEANED], "Done. `df` was cleaned."),
        ([*NO_CELL, *CELL], "The cell has been inserted."),
        ([*NO_MAIL, *done("mcp_send", {"to": "bob"})], "The mail has been sent."),
        ([*NO_DELETE, *done("remove_events", {"ids": ["7"]})], "The event was deleted."),
        (OTHER, "The library was renamed in 2019."),
        ([], "`df` was cleaned by the caller."),
    ],
)
def test_a_true_report_is_left_alone(events: Sequence[Event], answer: str) -> None:
    """What an answer says of the refusal, of the state of things, of what may be done, and what another call
    did.
    """
    assert check_answer(Subject(answer=answer, actions=actions_of(events))) == ()


def test_a_call_that_a_rule_denied_is_known_by_what_the_model_asked_for() -> None:
    """Nobody was asked, so only the model's own request has the arguments."""
    events = [ToolAnswered(call="d", step="main", tool="run_python", text="", error=NO)]
    asked = AnsweredCall(
        call="d", tool="run_python", args={"code": CLEAN}, ok=False, text="no", denied="denied by a rule"
    )
    found = check_answer(Subject(answer="`df` was cleaned.", actions=actions_of(events), calls=(asked,)))
    assert [one.what for one in found] == [
        "the answer says “was cleaned”, but the call of run_python was denied"
    ]


def test_a_check_that_believes_in_any_voice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that sees no change in a sentence lets the report pass."""
    monkeypatch.setattr(refused_calls, "_claimed_change", lambda _: "")
    assert check_answer(Subject(answer="`df` was cleaned.", actions=actions_of(NO_CLEAN))) == ()
