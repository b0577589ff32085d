"""What each event does to the rows and the head of a run's view: decisions, health, previews, undoing,
streams, endings, limits.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kestrel_lab.core.calls import PREVIEWING
from kestrel_lab.core.errors import START_STEP
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.views.rows import CallRow, NoticeRow, TextRow
from kestrel_lab.views.run_view import RunView

ANSWERED: dict[str, Any] = {"call": "m", "step": "s", "model": "toy"}


def after(*events: e.Event, at: float = 1.0) -> RunView:
    """The view after these events."""
    view = RunView()
    for event in events:
        view.apply(event, at)
    return view


def asked(call: str = "c", **fields: Any) -> e.ApprovalAsked:
    """A question about a call."""
    return e.ApprovalAsked(
        **{
            "call": call,
            "step": "s",
            "tool": "bash",
            "args": {"command": "ls"},
            "danger": "HIGH",
            "key": "k",
            **fields,
        }
    )


def row(view: RunView, call: str = "c") -> CallRow:
    """The row of a call."""
    found = view.rows[f"c:{call}"]
    assert isinstance(found, CallRow)
    return found


def notices(view: RunView) -> list[tuple[str, str]]:
    """Level and text of each notice."""
    return [(one.level, one.text) for one in view.rows.values() if isinstance(one, NoticeRow)]


@pytest.mark.parametrize(
    ("given", "note", "state"),
    [
        ({"granted": True}, "approved by ann", "asked"),
        ({"granted": True, "args": {"command": "pwd"}}, "approved with edited arguments by ann", "asked"),
        ({"granted": True, "scope": "run"}, "approved by ann for the whole run", "asked"),
        (
            {"granted": True, "scope": "same", "reason": "fine"},
            "approved by ann for equal calls of the run: fine",
            "asked",
        ),
        ({"granted": True, "scope": "like"}, "approved by ann for commands like it in the run", "asked"),
        ({"granted": True, "answer": "blue"}, "answered by ann: blue", "asked"),
        ({"granted": False, "reason": "not now"}, "denied by ann: not now", "denied"),
        ({"granted": False, "args": {"command": "pwd"}}, "denied by ann", "denied"),
    ],
)
def test_a_decision_says_who_what_and_for_how_much(given: dict[str, Any], note: str, state: str) -> None:
    """The row of the call has the decision; the question is gone."""
    view = after(asked(), e.ApprovalGiven(call="c", by="ann", how="prompt", **given))
    assert (row(view).note, row(view).state, [*view.asks]) == (note, state, [])


def test_the_beginning_of_a_step_is_settled_by_its_yes() -> None:
    """No tool answers the beginning of a step, or what a tool itself asks about."""
    for call, tool in (("c", START_STEP), ("c?1", "bash")):
        view = after(asked(call, tool=tool), e.ApprovalGiven(call=call, granted=True, by="ann", how="prompt"))
        assert row(view, call).state == "ok"


def test_a_question_says_why_it_is_asked() -> None:
    """The reason, the sandbox and skills that were loaded; options only of a question; figures of the
    preview.
    """
    view = after(
        e.KernelPreviewed(
            call="c",
            step="s",
            images=[
                {"media": "image/png", "data": "QUJD"},
                {"media": "image/svg+xml", "data": "QUJD"},
                {"media": "image/png"},
            ],
        ),
        asked(
            why="rule 3",
            sandbox="strict",
            skills=["pdf"],
            offer="ls *",
            preview="--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y",
        ),
        asked("q", tool="ask_user", why="question", args={"question": "Which?", "options": ["a", "b"]}),
        asked("u", why="unknown_outcome", args={"options": ["a"]}),
        asked("d", why="danger"),
    )
    ask = view.asks["c"]
    assert (ask.kind, ask.text, ask.options, ask.why) == (
        "approval",
        "",
        [],
        "rule 3 · sandbox strict · after loading pdf",
    )
    assert (ask.folded, ask.images, ask.offer, ask.contained) == (
        True,
        ["data:image/png;base64,QUJD"],
        "ls *",
        False,
    )
    question = view.asks["q"]
    assert (question.kind, question.text, question.options, question.why, question.folded) == (
        "question",
        "Which?",
        ["a", "b"],
        "",
        False,
    )
    assert (
        view.asks["u"].options,
        view.asks["u"].why.startswith("The last session ended"),
        view.asks["d"].why,
    ) == ([], True, "")
    assert {one.state for one in view.rows.values() if isinstance(one, CallRow)} == {"waiting"}


def test_arguments_that_nobody_named_are_not_shown_until_a_person_changes_them() -> None:
    """Defaults are left out of the row of a call; what a person edited is shown whole."""
    wanted = e.ModelAnswered(**ANSWERED, calls=[{"id": "c", "name": "bash", "args": {"command": "ls"}}])
    full: dict[str, Json] = {"command": "ls", "timeout": 5}
    view = after(wanted, asked(args=full))
    assert row(view).args == [["command", "ls"]]
    view.apply(e.ApprovalGiven(call="c", granted=True, by="ann", how="prompt", args=full))
    view.apply(e.ToolCalled(call="c", step="s", tool="bash", args=full, danger="HIGH"))
    assert row(view).args == [["command", "ls"], ["timeout", "5"]]


def health(target: str, kind: str = "model", reason: str = "") -> e.HealthChanged:
    """A dependency is in another state."""
    return e.HealthChanged(dependency="toy", kind=kind, source="x", target=target, reason=reason)


@pytest.mark.parametrize(
    ("events", "told", "head"),
    [
        ([health("ready")], [], ""),  # a model that answers is no news
        ([health("ready", "server")], [("info", "server toy is ready")], ""),
        ([health("degraded", reason="slow")], [("warning", "model toy is degraded: slow")], "toy degraded"),
        (
            [health("degraded"), health("ready")],
            [("warning", "model toy is degraded"), ("info", "model toy is ready")],
            "",
        ),
        (
            [health("degraded"), health("down")],
            [("warning", "model toy is degraded"), ("warning", "model toy is down")],
            "toy down",
        ),
        ([health("starting", "server")], [("info", "server toy is starting")], ""),
    ],
)
def test_health_is_told_when_it_is_news(
    events: list[e.Event], told: list[tuple[str, str]], head: str
) -> None:
    """What is not in order stays in the head; that it is again is told where it was not."""
    view = after(*events)
    assert (notices(view), view.head.health) == (told, head)


def test_what_was_undone_is_named_with_what_could_not_be() -> None:
    """Names, files and cells, then what is lost and why; the call cannot be undone twice."""
    called = e.ToolCalled(call="c", step="s", tool="kernel_run", args={}, danger="HIGH")
    changed = e.KernelChanged(call="c", step="s", how="executed", kernel="k", changes=[{"name": "df"}])
    view = after(called, changed)
    assert row(view).undo == "c"
    view.apply(
        e.KernelUndone(
            calls=["c", "gone"],
            kernel="k",
            restored=["df"],
            files=["a.csv"],
            cells=["7"],
            missing={"con": "no copy"},
        )
    )
    assert (row(view).undo, row(view).state) == ("", "undone")
    assert notices(view) == [
        ("info", "undone c, gone: df, a.csv, cell 7 restored; con could not be restored: no copy")
    ]
    assert notices(after(e.KernelUndone(calls=["c"], kernel="k"))) == [("info", "undone c: nothing restored")]


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"seconds": 0.5, "metered": True, "tokens_in": 4, "tokens_out": 2}, "toy · 6 tokens · 0.5 s"),
        ({"seconds": 0.5, "metered": False, "cost_usd": 0.25}, "toy · $0.2500 · 0.5 s"),
        ({"cached": True, "metered": False}, "toy · cached"),
        ({"replayed": True, "metered": False}, "toy · replayed"),
        ({"routed": "small", "seconds": 0.5, "metered": False}, "toy (small) · 0.5 s"),
    ],
)
def test_an_answer_says_what_it_took(fields: dict[str, Any], note: str) -> None:
    """The model and its route, tokens where they were counted, money where it is known, and the time."""
    text = after(e.ModelAnswered(**ANSWERED, text="Hi", **fields)).rows["t:m"]
    assert isinstance(text, TextRow)
    assert (text.note, text.text, text.state, text.step) == (note, "Hi", "done", "s")


def test_a_failed_answer_keeps_its_text_and_says_why() -> None:
    """The error stands behind what came before it."""
    failed = after(e.ModelAnswered(**ANSWERED, text="Hal", error={"message": "cut off"})).rows["t:m"]
    silent = after(e.ModelAnswered(**ANSWERED, error={})).rows["t:m"]
    assert isinstance(failed, TextRow)
    assert isinstance(silent, TextRow)
    assert (failed.text, failed.state, silent.state) == ("Hal\ncut off", "error", "done")


def test_a_stream_ends_where_its_answer_is() -> None:
    """Pieces are shown as they come, thoughts apart; nothing comes behind a settled answer, and an empty
    piece is none.
    """
    view = after(e.ModelCalled(call="m", step="s", model="toy", cycle=1, messages=1))
    text = view.rows["t:m"]
    assert isinstance(text, TextRow)
    assert view.apply(e.ModelDelta(call="m", text="")) == []
    view.apply(e.ModelDelta(call="m", text="hm", thinking=True))
    view.apply(e.ModelDelta(call="m", text="Hi"))
    view.apply(e.ModelDelta(call="m", text=" you"))
    assert (text.text, text.thinking, text.state) == ("Hi you", "hm", "streaming")
    view.apply(e.ModelAnswered(**ANSWERED, text="Hi you."))
    assert view.apply(e.ModelDelta(call="m", text="late")) == []
    assert (text.text, text.state) == ("Hi you.", "done")


@pytest.mark.parametrize(
    ("answered", "state", "note", "took"),
    [
        ({"text": "1"}, "ok", "", "0.5 s"),
        ({"cached": True}, "ok", "cached", "0.5 s"),
        ({"error": {"kind": "denied"}}, "denied", "", ""),
        ({"error": {"kind": "cancelled"}}, "stopped", "", "0.5 s"),
        ({"error": {"kind": "failed"}}, "error", "", "0.5 s"),
        ({"whole": "a1", "chars": 9_000}, "ok", 'whole text: 9,000 characters, run.results["c"]', "0.5 s"),
    ],
)
def test_a_call_ends_as_its_answer_says(answered: dict[str, Any], state: str, note: str, took: str) -> None:
    """State, note and time of a call that was answered; one that was denied took none."""
    view = after(
        e.ToolCalled(call="c", step="s", tool="bash", args={}, danger="SAFE"),
        e.ToolAnswered(**{"call": "c", "step": "s", "tool": "bash", "text": "", "seconds": 0.5, **answered}),
    )
    assert (row(view).state, row(view).note, row(view).took, row(view).since) == (state, note, took, 0.0)


@pytest.mark.parametrize(
    ("called", "note"),
    [
        ({}, ""),
        ({"attempt": 2}, "attempt 2"),
        ({"leave": "rule git *"}, "allowed by rule git *"),
        ({"leave": "policy auto"}, ""),
        (
            {"leave": "rule git *", "attempt": 3, "sandbox": "strict"},
            "attempt 3 · allowed by rule git * · sandbox strict",
        ),
    ],
)
def test_a_call_says_by_what_it_goes_on(called: dict[str, Any], note: str) -> None:
    """Which attempt it is, which rule let it go on, in which sandbox."""
    view = after(e.ToolCalled(call="c", step="s", tool="bash", args={}, danger="SAFE", **called), at=7.0)
    assert (row(view).note, row(view).state, row(view).since) == (note, "running", 7.0)


def test_what_a_tool_writes_is_shown_while_it_runs() -> None:
    """The last line of the output so far; nothing for a call that is not known or over."""
    view = after(e.ToolCalled(call="c", step="s", tool="bash", args={}, danger="SAFE"))
    view.apply(e.ToolDelta(call="c", text="one\ntwo\n"))
    assert (row(view).result, row(view).preview) == ("one\ntwo\n", "two")
    assert view.apply(e.ToolDelta(call="x", text="lost")) == []
    view.apply(e.ToolAnswered(call="c", step="s", tool="bash", text="three"))
    assert view.apply(e.ToolDelta(call="c", text="late")) == []
    assert row(view).result == "three"


def test_a_run_that_is_left_can_be_taken_up() -> None:
    """A run that nobody works on is interrupted, once; one that waits keeps its question, unless somebody
    stopped it; going on brings its state and its question back.
    """
    view = after(
        e.RunStarted(goal="g", workspace="/w", model="m"),
        e.StateTransition(source="PLANNING", target="EXECUTING"),
        e.ToolCalled(call="c", step="s", tool="bash", args={}, danger="SAFE"),
    )
    assert view.interrupt(5.0)
    assert (view.head.status, view.head.ended, row(view).state) == ("INTERRUPTED", 5.0, "stopped")
    assert view.interrupt(6.0) == []
    view.apply(e.RunResumed(by="x", model="m"))
    assert (view.head.status, view.head.ended) == ("EXECUTING", 0.0)
    view.apply(asked("w"))
    view.apply(e.StateTransition(source="EXECUTING", target="WAITING_APPROVAL"))
    left = copy.deepcopy(view)
    left.interrupt(8.0)
    assert (left.head.status, [*left.asks], row(left, "w").state) == ("WAITING_APPROVAL", ["w"], "waiting")
    assert left.interrupt(9.0) == []
    view.apply(e.RunInterrupted(), 8.0)
    assert (view.head.status, [*view.asks], row(view, "w").state) == ("INTERRUPTED", [], "stopped")
    assert row(view, "w").note == "not decided, not run"
    view.apply(e.RunResumed(by="x", model="m"))
    assert (view.head.status, [*view.asks], row(view, "w").state) == ("WAITING_APPROVAL", ["w"], "waiting")
    assert row(view, "w").note == ""
    done = after(e.StateTransition(source="EXECUTING", target="COMPLETE", reason="all done"), at=3.0)
    assert (done.interrupt(9.0), done.done, done.head.ended, done.head.reason) == ([], True, 3.0, "all done")


@pytest.mark.parametrize(
    ("forked", "text"),
    [
        ({}, "forked from r at 7"),
        ({"given": "answer"}, "forked from r at 7 with an answer given by hand"),
        ({"given": "result"}, "forked from r at 7 with a result given by hand"),
        (
            {"stage": "act"},
            "goes on with r, which had ended, behind its last completed stage 'act' (event 7)",
        ),
    ],
)
def test_a_fork_says_what_was_given(forked: dict[str, Any], text: str) -> None:
    """The parent and the place; questions of the parent are withdrawn, and the model answers in rows of its
    own.
    """
    view = after(
        asked(),
        e.ModelAnswered(**ANSWERED, text="old"),
        e.RunForked(parent="r", at=7, model="m", **forked),
        e.ModelAnswered(**ANSWERED, text="new"),
    )
    assert notices(view) == [("info", text)]
    assert view.asks == {}
    assert [one.text for one in view.rows.values() if isinstance(one, TextRow)] == ["old", "new"]


def test_a_prompt_that_comes_again_says_so() -> None:
    """The first question of a step is asked, later ones again."""
    view = after(
        e.Prompted(step="s", text="Do it"),
        e.ModelAnswered(**ANSWERED, text="No"),
        e.Prompted(step="s", text="Do it!"),
        e.Prompted(step="t", text="x"),
    )
    assert [text for _, text in notices(view)] == ["asked: Do it", "asked again: Do it!", "asked: x"]


def test_limits_without_a_number_are_not_counted() -> None:
    """Only limits that are numbers above 0 are counted; money only where some price is known."""
    limits: dict[str, Json] = {"cycles": 0, "cost_usd": 2.0, "tokens": None, "seconds": 60}
    view = after(e.RunStarted(goal="g", workspace="/w", model="m", limits=limits))
    assert (view.head.budget, view.head.seconds) == ([["$0.0000 of $2", 0.0]], 60)
    view.apply(e.ModelAnswered(**ANSWERED, tokens_in=5, metered=True, cost_usd=None), 2.0)
    assert view.head.budget == []
    view.apply(e.ModelAnswered(**ANSWERED, tokens_in=5, metered=True, cost_usd=0.5), 3.0)
    assert view.head.budget == [["$0.5000 + unknown cost of $2", 0.25]]
    view.apply(e.RunResumed(by="x", model="m", limits={"tokens": 100}))
    assert view.head.budget == [["10 of 100 tokens", 0.1]]


def test_numbers_of_the_answer_point_at_the_call_that_gave_them() -> None:
    """A number of several digits is linked to the last call that gave it; a short one may be there by
    chance.
    """
    view = after(
        e.ToolCalled(call="a", step="s", tool="bash", args={}, danger="SAFE"),
        e.ToolAnswered(call="a", step="s", tool="bash", text="4711 rows in 3 files"),
        e.ToolCalled(call="b", step="s", tool="bash", args={}, danger="SAFE"),
        e.ToolAnswered(call="b", step="s", tool="bash", text="4711"),
        e.RunFinished(outcome="complete", answer="4711 rows in 3 files"),
    )
    answer = next(one for one in view.rows.values() if isinstance(one, TextRow) and one.role == "answer")
    assert answer.numbers == {"4711": "c:b"}
    assert view.answer == "4711 rows in 3 files"
    assert not view.cites
    assert after(e.RunFinished(outcome="complete", answer="It is red [a.py:3].")).cites


@pytest.mark.parametrize(
    ("how", "args", "danger", "note"),
    [
        ("adopted", None, "MEDIUM", "approved · values of its preview, the code is not run again"),
        ("executed", None, "HIGH", "approved · runs in your kernel"),
        ("executed", {"code": "y = 1"}, "HIGH", "approved with edited arguments · runs in your kernel"),
    ],
)
def test_a_row_shows_what_was_approved(how: str, args: dict[str, Any] | None, danger: str, note: str) -> None:
    """A preview that came while the question waited is what was approved, although the call began as one
    without; where the code then ran, the row says so.
    """
    question = e.ApprovalAsked(
        call="c",
        step="s",
        tool="python",
        args={"code": "x = 1"},
        danger="HIGH",
        sandbox="kernel",
        key="k",
        preview=PREVIEWING,
    )
    decided = e.ApprovalGiven(call="c", granted=True, by="prompt", how="click", args=args)
    begun = e.ToolCalled(
        call="c", step="s", tool="python", args=args or {"code": "x = 1"}, danger="HIGH", sandbox="kernel"
    )
    view = after(
        question,
        e.KernelPreviewed(
            call="c", step="s", danger="MEDIUM", sandbox="preview", adoptable=True, text="x is new"
        ),
        decided,
        begun,
        e.KernelChanged(call="c", step="s", how=how, kernel="k"),
    )
    assert (row(view).danger, row(view).note) == (danger, note)


def test_a_refused_note_stays_visible() -> None:
    """Why a note was not remembered is a row of its own; how far a step is, is not."""
    view = after(
        e.Progress(text="half"), e.Progress(text="not remembered, it looks like a secret: x", lasting=True)
    )
    assert [part.text for part in view.rows.values() if part.kind == "notice"] == [
        "not remembered, it looks like a secret: x"
    ]
