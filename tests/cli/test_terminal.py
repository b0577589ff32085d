"""The display of a run in a terminal: what has settled is printed once, and a streamed piece costs the same
in a long run.
"""

from __future__ import annotations

import asyncio
import io
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from waits import PATIENCE_S, becomes

from kestrel_lab.cli import terminal
from kestrel_lab.cli.terminal import TerminalApprover, TerminalDisplay
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    Progress,
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
        ModelAnswered,
        call=names,
        step=names,
        model=names,
        text=names | st.just(""),
        calls=st.just([{"id": "c", "name": "x", "args": {}}]),
    ),
    st.builds(ToolCalled, call=names, step=names, tool=names, args=st.just({})),
    st.builds(ToolAnswered, call=names, step=names, tool=names, text=names),
    st.builds(StageStarted, stage=names),
    st.builds(Prompted, step=names, text=names),
    st.builds(RunInterrupted),
    st.builds(RunFinished, outcome=st.just("complete"), answer=names),
)


def walked(history: list[Event]) -> list[str]:
    """The ids of the rows that are printed, in order and without empty texts, found by walking all rows after
    each event.
    """
    view, printed, texts = RunView(), [], {}
    for event in history:
        view.apply(event, 1.0)
        last = next(reversed(view.rows), "")
        for row in view.rows.values():
            undecided = isinstance(row, TextRow) and row.id == last and not view.done
            if (
                row.id not in printed
                and not undecided
                and (isinstance(row, StageRow) or row.state in terminal._SETTLED)
            ):
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
        for event in (
            *events,
            RunFinished(outcome="failed", reason=why),
            StateTransition(source="EXECUTING", target="FAILED"),
        ):
            display.tell(event)
        display._console.print(display.ending())
        return out.getvalue()

    asked = ModelCalled(call="a", step="s", model="m", cycle=1, messages=1)
    assert (
        printed(asked, ModelAnswered(call="a", step="s", model="m", error={"message": why})).count(why) == 1
    )
    assert printed().count(why) == 1


def test_a_run_that_is_shown_later_took_as_long_as_it_did() -> None:
    """The last line says so, from its log and not from the clock on the wall; of a run that never began there
    is nothing to say.
    """
    display = TerminalDisplay(Console(file=io.StringIO(), width=200))
    assert "0 ms" in display.ending().plain
    display.tell(RunStarted(goal="go", workspace="/w", model="m"), 100.0)
    display.tell(RunFinished(outcome="complete", answer="done"), 104.0)
    display.tell(StateTransition(source="EXECUTING", target="COMPLETE"), 104.0)
    assert display.ending().plain.splitlines()[0].endswith("4.0 s")


def console() -> tuple[Console, io.StringIO]:
    """A console without a terminal, and what is printed on it."""
    return Console(file=(out := io.StringIO()), width=200), out


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Types lines at a terminal that is the standard input, which gives a line at a time; `END` is Ctrl-D."""
    keyboard, line = os.openpty()
    with open(line) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield lambda *lines: os.write(
            keyboard, "".join(one if one == END else f"{one}\n" for one in lines).encode()
        )
    os.close(keyboard)


END = "\x04"
CALL = ApprovalAsked(
    call="c", step="s", tool="bash", args={"command": "ls"}, danger="HIGH", key="k", why="danger"
)
QUESTION = replace(
    CALL, tool="ask_user", args={"question": "Which colour?", "options": ["red", "blue"]}, why="question"
)


def decide(asked: ApprovalAsked, timeout_s: float | None = PATIENCE_S) -> tuple[ApprovalGiven, str]:
    """What is decided at the terminal, and what is printed there."""
    at, out = console()
    display = TerminalDisplay(at)
    display.tell(asked, 1.0)
    return asyncio.run(TerminalApprover(at, display, "ann", timeout_s)(asked)), out.getvalue()


@pytest.mark.parametrize(
    ("asked", "lines", "decided", "told"),
    [
        (CALL, ["y"], {"granted": True}, "bash · HIGH · wants to run"),
        (
            CALL,
            [" YES "],
            {"granted": True},
            "[y]es, [n]o, [e]dit, [s]ame call always, [a]lways in this run? ",
        ),
        (
            CALL,
            ["n", " too risky "],
            {"granted": False, "reason": "too risky"},
            "reason for the model (may be empty): ",
        ),
        (CALL, ["no", ""], {"granted": False}, ""),
        (CALL, [END, END], {"granted": False}, ""),
        (CALL, ["a"], {"granted": True, "scope": "run"}, ""),
        (CALL, ["what", "s"], {"granted": True, "scope": "same"}, ""),
        (CALL, ["l", "y"], {"granted": True}, ""),
        (replace(CALL, offer="ls ..."), ["l"], {"granted": True, "scope": "like"}, "[l]ike ls ... always"),
        (
            CALL,
            ["e", '{"command": "pwd"}'],
            {"granted": True, "args": {"command": "pwd"}},
            "arguments as JSON: ",
        ),
        (CALL, ["edit", "{", "y"], {"granted": True}, "not JSON: "),
        (CALL, ["e", "[]", "y"], {"granted": True}, "the arguments must be a JSON object"),
        (QUESTION, ["2"], {"granted": True, "answer": "blue"}, "the agent asks"),
        (QUESTION, ["green"], {"granted": True, "answer": "green"}, "answer (empty for none): "),
        (QUESTION, [""], {"granted": False, "reason": "no answer was given"}, ""),
        (QUESTION, [END], {"granted": False, "reason": "no answer was given"}, ""),
    ],
)
def test_what_is_typed_is_the_decision(
    typed: Callable[..., None], asked: ApprovalAsked, lines: list[str], decided: dict[str, Any], told: str
) -> None:
    """Keys, words and edited arguments decide on a call; what is not understood is asked again, and the end
    of the input is a no.
    """
    typed(*lines)
    given, screen = decide(asked)
    assert given == ApprovalGiven(call="c", by="ann", how="prompt", **decided)
    assert told in screen


def test_nobody_at_the_terminal_is_a_no(typed: Callable[..., None]) -> None:
    """After the time that was set the call is denied, which is said."""
    why = "nobody answered within 0.01 s"
    given, screen = decide(CALL, timeout_s=0.01)
    assert given == ApprovalGiven(call="c", granted=False, by="timeout", how="policy", reason=why)
    assert why in screen


@pytest.mark.parametrize(
    ("asked", "shown", "hidden"),
    [
        (CALL, ["command", "ls"], ["danger", "sandbox", "Run it again"]),
        (
            replace(CALL, why="unknown_outcome"),
            ["The last session ended while this call ran", "Run it again?"],
            ["unknown_outcome"],
        ),
        (replace(CALL, why="rule 2 says so"), ["rule 2 says so"], []),
        (replace(CALL, sandbox="S0 (none here)"), ["sandbox S0 (none here)"], []),
        (replace(CALL, preview="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n"), ["-old", "+new"], []),
        (
            replace(CALL, origins=[{"arg": "command", "from": [{"kind": "goal", "source": ""}]}]),
            ["command: from the goal"],
            [],
        ),
        (
            replace(
                CALL,
                why="contained",
                contained={"untrusted": ["a.txt"], "private": ["mail"], "effect": "sends it"},
            ),
            [
                "The model has read what others wrote (a.txt) and can know what is private (mail); sends it.",
                "none from here on",
            ],
            ["\ncontained"],
        ),
        (QUESTION, ["Which colour?", "1. red", "2. blue"], ["wants to run"]),
        (replace(QUESTION, tool="tracker:ask"), ["tracker:ask"], ["the agent asks"]),
    ],
)
def test_what_is_decided_on_is_shown_whole(
    typed: Callable[..., None], asked: ApprovalAsked, shown: list[str], hidden: list[str]
) -> None:
    """Arguments, what the call would change, where its words come from and why it is asked; a server that
    asks is not the agent.
    """
    typed("y")
    screen = decide(asked)[1]
    assert [text for text in shown if text not in screen] == []
    assert [text for text in hidden if text in screen] == []


def test_questions_wait_for_each_other(typed: Callable[..., None]) -> None:
    """Of several calls that ask at once the second is shown when the first is decided."""
    at, out = console()
    display = TerminalDisplay(at)
    ask = TerminalApprover(at, display, "ann", PATIENCE_S)

    async def both() -> list[ApprovalGiven]:
        waiting = [asyncio.create_task(ask(replace(CALL, call=name))) for name in "ab"]
        await becomes(lambda: "wants to run" in out.getvalue())
        assert out.getvalue().count("wants to run") == 1
        typed("y", "a")
        return await asyncio.gather(*waiting)

    assert [(one.call, one.scope) for one in asyncio.run(both())] == [("a", "once"), ("b", "run")]


def moving(*events: Event) -> str:
    """The moving lines of a terminal after these events: they are drawn at once when a question has been
    asked.
    """
    at = Console(file=(out := io.StringIO()), width=200, force_terminal=True, color_system=None)
    display = TerminalDisplay(at)
    with display.shown():
        for event in events:
            display.tell(event, 1.0)
        with display.paused():
            before = len(out.getvalue())
        return out.getvalue()[before:]


ASKED = ModelCalled(call="m", step="s", model="gpt", cycle=1, messages=1)
ASKS = {"id": "t", "name": "bash", "args": {"command": "make"}}
WORKS = ToolCalled(call="t", step="s", tool="bash", args={"command": "make"})


@pytest.mark.parametrize(
    ("events", "shown", "hidden"),
    [
        ([], ["starting …"], []),
        ([ASKED], ["waiting for gpt: the first answer takes longest", "0 tokens"], ["starting"]),
        (
            [ASKED, ModelDelta(call="m", text="one\n2\n3\n4\n5\n6\n7\n8\n9")],
            ["2", "9"],
            ["one", "waiting for"],
        ),
        (
            [ASKED, ModelDelta(call="m", text="first\nthen", thinking=True)],
            ["thinking: then"],
            ["first", "waiting"],
        ),
        (
            [ASKED, ModelAnswered(call="m", step="s", model="gpt", text="hello"), replace(ASKED, call="n")],
            ["waiting for gpt"],
            ["the first answer"],
        ),
        ([WORKS, Progress(text="half done")], ["bash", "make", "running"], []),
        ([WORKS, ToolAnswered(call="t", step="s", tool="bash", text="made")], [], ["bash"]),
    ],
)
def test_what_goes_on_is_in_the_moving_lines(
    events: list[Event], shown: list[str], hidden: list[str]
) -> None:
    """Calls under way and the end of what a model writes or thinks; what has ended is printed above them and
    no longer there.
    """
    lines = moving(RunStarted(goal="go", workspace="/w", model="gpt"), *events) if events else moving()
    assert [text for text in shown if text not in lines] == []
    assert [text for text in hidden if text in lines] == []


def test_without_a_terminal_no_line_moves() -> None:
    """Neither while the run works nor after a question."""
    at, out = console()
    display = TerminalDisplay(at)
    with display.shown():
        display.tell(WORKS, 1.0)
        with display.paused():
            pass
    assert out.getvalue() == ""


def test_progress_is_printed_now_and_then_and_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no terminal: a line every few seconds, and the last one whenever it comes."""
    clock = [100.0]
    monkeypatch.setattr(terminal, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    at, out = console()
    with terminal.progress_bar(at) as report:
        for done, later_s in ((1, 0.0), (2, 5.0), (3, 0.1), (4, 4.9), (9, 0.0)):
            clock[0] += later_s
            report(done, 9, f"trial {done}")
    assert out.getvalue().splitlines() == ["1/9 trial 1", "3/9 trial 3", "9/9 trial 9"]


def test_a_terminal_draws_a_bar_with_the_note_below() -> None:
    """The bar says how far it is; the note is harmless text on a line of its own, and both are gone at the
    end.
    """
    at = Console(file=(out := io.StringIO()), width=60, force_terminal=True, color_system=None)
    with terminal.progress_bar(at) as report:
        report(3, 9, "trial \x1b[31m3\nof it")
    last = out.getvalue().rpartition("running")[2]
    assert "3/9" in last
    assert "trial 3 of it" in last.splitlines()[1]
    assert last.endswith("\x1b[2K")


ENDED = StateTransition(source="EXECUTING", target="COMPLETE")
FAILED = {"kind": "failed", "message": "no such file", "transient": False}


@pytest.mark.parametrize(
    ("events", "lines"),
    [
        ([StageStarted(stage="plan")], "stage plan\n"),
        ([StageStarted(stage="plan", attempt=2)], "stage plan, attempt 2\n"),
        ([WORKS, ToolAnswered(call="t", step="s", tool="bash", text="made it")], "    made it\n"),
        ([WORKS, ToolAnswered(call="t", step="s", tool="bash", text="", error=FAILED)], "✗ bash make"),
        (
            [
                ASKED,
                ModelAnswered(
                    call="m", step="s", model="gpt", text="first", thinking=[{"text": "hm"}], calls=[ASKS]
                ),
                WORKS,
            ],
            "  thinking: hm",
        ),
        (
            [
                ASKED,
                ModelAnswered(call="m", step="s", model="gpt", text="done"),
                RunFinished(outcome="complete", answer="done"),
                ENDED,
            ],
            "─ answer ─",
        ),
    ],
)
def test_each_kind_of_row_has_its_line(events: list[Event], lines: str) -> None:
    """Stages, calls with the beginning of their result, what a model said and thought, and the answer in a
    frame.
    """
    at, out = console()
    display = TerminalDisplay(at)
    for event in events:
        display.tell(event, 1.0)
    assert lines in out.getvalue()
    assert ("─ answer ─" in out.getvalue()) is (lines == "─ answer ─")
    assert ("thinking" in out.getvalue()) is ("thinking" in lines)


@pytest.mark.parametrize("terminal", [True, False])
def test_an_answer_is_drawn_in_a_terminal_and_written_elsewhere(terminal: bool) -> None:
    """Headings and tables are drawn, numbers right-aligned as the table says; elements, places and lines stay.
    What is written into a file is the text itself.
    """
    text = "### Result\n\nSee <b>here</b> [roof.txt:1]\nand there.\n\n| name | count |\n| :-- | --: |\n| a | 7 |\n"
    out = io.StringIO()
    display = TerminalDisplay(Console(file=out, force_terminal=terminal, width=60, color_system=None))
    for event in (
        RunStarted(goal="g", workspace="w", model="m"),
        RunFinished(outcome="complete", answer=text),
        StateTransition(source="EXECUTING", target="COMPLETE"),
    ):
        display.tell(event, 1.0)
    shown = out.getvalue()
    assert "See <b>here</b> [roof.txt:1]" in shown
    assert "here</b> [roof.txt:1] and there" not in shown
    assert ("### Result" in shown, "| a | 7 |" in shown) == (not terminal, not terminal)
    assert bool(re.search(r"│ +name +count +│", shown)) == terminal
    assert bool(re.search(r"│ +a {8,}7 +│", shown)) == terminal
