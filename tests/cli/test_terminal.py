"""The display of a run in a terminal: what has settled is printed once, and a streamed piece costs the same in a long run."""

from __future__ import annotations

import io
import sys
from typing import Any
from unittest import mock

from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kestrel_lab.cli import terminal
from kestrel_lab.cli.terminal import TerminalDisplay
from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    Prompted,
    RunFinished,
    RunInterrupted,
    RunStarted,
    StageStarted,
    StateTransition,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.views.rows import StageRow, TextRow
from kestrel_lab.views.run_view import RunView

names = st.sampled_from(["a", "b", "c"])
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(ModelCalled, call=names, step=names, model=names, cycle=st.just(1), messages=st.just(1)),
    st.builds(ModelDelta, call=names, text=names),
    st.builds(
        ModelAnswered, call=names, step=names, model=names, text=names | st.just(""), calls=st.just([{"id": "c", "name": "x", "args": {}}])
    ),
    st.builds(ToolCalled, call=names, step=names, tool=names, args=st.just({})),
    st.builds(ToolAnswered, call=names, step=names, tool=names, text=names),
    st.builds(StageStarted, stage=names),
    st.builds(Prompted, step=names, text=names),
    st.builds(RunInterrupted),
    st.builds(RunFinished, outcome=st.just("complete"), answer=names),
)


def walked(history: list[Event]) -> list[str]:
    """The ids of the rows that are printed, in order and without empty texts, found by walking all rows after each event."""
    view, printed, texts = RunView(), [], {}
    for event in history:
        view.apply(event, 1.0)
        last = next(reversed(view.rows), "")
        for row in view.rows.values():
            undecided = isinstance(row, TextRow) and row.id == last and not view.done
            if row.id not in printed and not undecided and (isinstance(row, StageRow) or row.state in terminal._SETTLED):
                printed.append(row.id)
                texts[row.id] = row.text if isinstance(row, TextRow) else "x"
    return [name for name in printed if texts[name].strip()]


@settings(max_examples=200)
@given(history=st.lists(events, max_size=20))
def test_what_has_settled_is_printed_once_and_in_order(history: list[Event]) -> None:
    """Whatever happens, the same rows are printed as if all of them were walked each time."""
    display, printed = TerminalDisplay(Console(file=io.StringIO())), []
    with mock.patch.object(terminal, "_row_text", lambda row: printed.append(row.id) or ""):
        for event in history:
            display.tell(event, 1.0)
    assert printed == walked(history)


def _calls_of_a_piece(rows: int) -> int:
    """How many functions a streamed piece calls, behind so many rows."""
    display = TerminalDisplay(Console(file=io.StringIO()))
    for number in range(rows):
        display.tell(Prompted(step="s", text=f"said {number}"), 1.0)
    display.tell(ModelCalled(call="m", step="s", model="m", cycle=1, messages=1), 1.0)
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    try:
        display.tell(ModelDelta(call="m", text="piece"), 1.0)
    finally:
        sys.setprofile(None)
    return calls


def test_a_streamed_piece_costs_the_same_behind_many_rows() -> None:
    """Rows that are printed are not looked at again: 1.4 ms a piece at 4,000 rows made streams stutter."""
    assert _calls_of_a_piece(2_000) <= _calls_of_a_piece(20) + 5


def test_the_reason_of_a_failure_is_printed_once() -> None:
    """The last line leaves it out where a row has shown it, and says it where none has."""
    why = "m: no connection to http://here (Connection refused)"

    def printed(*events: Event) -> str:
        display = TerminalDisplay(Console(file=(out := io.StringIO()), width=200))
        for event in (*events, RunFinished(outcome="failed", reason=why), StateTransition(source="EXECUTING", target="FAILED")):
            display.tell(event)
        display._console.print(display.ending())
        return out.getvalue()

    asked = ModelCalled(call="a", step="s", model="m", cycle=1, messages=1)
    assert printed(asked, ModelAnswered(call="a", step="s", model="m", error={"message": why})).count(why) == 1
    assert printed().count(why) == 1


def test_a_run_that_is_shown_later_took_as_long_as_it_did() -> None:
    """The last line says so, from its log and not from the clock on the wall; of a run that never began there is nothing to say."""
    display = TerminalDisplay(Console(file=io.StringIO(), width=200))
    assert "0 ms" in display.ending().plain
    display.tell(RunStarted(goal="go", workspace="/w", model="m"), 100.0)
    display.tell(RunFinished(outcome="complete", answer="done"), 104.0)
    display.tell(StateTransition(source="EXECUTING", target="COMPLETE"), 104.0)
    assert display.ending().plain.splitlines()[0].endswith("4.0 s")
