"""The view model of a run: what events make of it, and that its patches say the same."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core import events as e
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.views.html import run_html
from kestrel_lab.views.rows import Change
from kestrel_lab.views.runview import RunView, view_of
from kestrel_lab.views.text import run_text


def patch(state: dict[str, dict[str, dict[str, Any]]], changes: list[Change]) -> None:
    """What any screen does with patches; the panel's JavaScript does the same."""
    for change in copy.deepcopy(changes):
        op, key = str(change.pop("op")), str(change["id"])
        if op == "text":
            state["row"][key]["text"] += change["append"]
        elif op == "asked":
            state["ask"].pop(key, None)
        else:
            state[op].setdefault(key, {}).update(change)


def screen() -> dict[str, dict[str, dict[str, Any]]]:
    """An empty screen."""
    return {"head": {}, "step": {}, "row": {}, "ask": {}}


def ordered(state: dict[str, dict[str, dict[str, Any]]]) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """The state with the order of its parts."""
    return [(op, list(parts.items())) for op, parts in state.items()]


CALLS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "hello", "\x1b[31mred", "\u200b", "42"])
ARGS = st.dictionaries(st.sampled_from(["path", "command"]), st.one_of(TEXTS, st.integers(), st.none()))
PROBLEM = st.sampled_from([None, {"kind": "denied", "message": "no"}, {"kind": "failed", "message": "boom"}])
EVENTS = st.one_of(
    st.builds(e.RunStarted, goal=TEXTS, workspace=st.just("."), model=st.just("m"), model_kind=st.sampled_from(["real", "scripted"])),
    st.builds(e.StateTransition, source=st.just(""), target=st.sampled_from(["EXECUTING", "WAITING_APPROVAL", "COMPLETE", "FAILED"])),
    st.builds(e.RunResumed, by=TEXTS, model_kind=st.sampled_from(["real", "replay"])),
    st.builds(e.RunForked, parent=st.just("p"), at=st.just(3), model=TEXTS, given=st.sampled_from(["", "answer", "result"])),
    st.builds(e.PlanProposed, plan=st.just({"steps": [{"id": "s1", "goal": "x"}, {"id": "s2", "goal": "y", "depends_on": ["s1"]}]})),
    st.builds(e.StepStarted, step=st.sampled_from(["s1", "s3"]), goal=TEXTS),
    st.builds(e.StepFinished, step=st.sampled_from(["s1", "s3"]), ok=st.booleans()),
    st.builds(e.ModelCalled, call=CALLS, step=st.just("s1"), model=st.just("m"), cycle=st.just(1), messages=st.just(1)),
    st.builds(e.ModelDelta, call=CALLS, text=TEXTS),
    st.builds(
        e.ModelAnswered,
        call=CALLS,
        step=st.just("s1"),
        model=st.just("m"),
        text=TEXTS,
        cost_usd=st.sampled_from([None, 0.5]),
        error=PROBLEM,
        calls=st.lists(st.fixed_dictionaries({"id": CALLS, "name": st.just("bash"), "args": ARGS}), max_size=2),
    ),
    st.builds(e.ToolCalled, call=CALLS, step=st.just("s1"), tool=st.just("bash"), args=ARGS),
    st.builds(e.ToolAnswered, call=CALLS, step=st.just("s1"), tool=st.just("bash"), text=TEXTS, error=PROBLEM),
    st.builds(e.CacheHit, call=CALLS, tool=st.just("bash"), key=st.just("k")),
    st.builds(e.ApprovalAsked, call=CALLS, step=st.just("s1"), tool=st.just("bash"), args=ARGS, danger=st.just("HIGH"), key=st.just("k")),
    st.builds(e.ApprovalGiven, call=CALLS, granted=st.booleans(), by=st.just("ana"), how=st.just("click"), reason=TEXTS),
    st.builds(e.BudgetWarned, limit=st.just("cost_usd"), message=TEXTS),
    st.builds(e.ModelEscalated, step=st.just("s1"), source=TEXTS, target=TEXTS, reason=TEXTS),
    st.builds(
        e.HealthChanged,
        dependency=TEXTS,
        kind=st.just("model"),
        source=st.just("ready"),
        target=st.sampled_from(["ready", "recovering", "failed"]),
        reason=TEXTS,
    ),
    st.builds(e.Progress, text=TEXTS, fraction=st.sampled_from([None, 0.5])),
    st.builds(e.RunFinished, outcome=st.just("complete"), answer=TEXTS),
)


@given(st.lists(EVENTS, max_size=25), st.integers(0, 25))
def test_patches_and_snapshot_agree_wherever_a_screen_joins(history: list[e.Event], join: int) -> None:
    """A screen that saw every patch, one that starts from a snapshot, and one that joins midway all show the same."""
    view, watching, joining = RunView(), screen(), screen()
    patch(watching, view.snapshot())
    for index, event in enumerate(history):
        if index == join:
            patch(joining, view.snapshot())
        changes = view.apply(event, at=float(index))
        patch(watching, changes)
        if index >= join:
            patch(joining, changes)
    late = screen()
    patch(late, view.snapshot())
    if join >= len(history):
        patch(joining, view.snapshot())

    assert ordered(watching) == ordered(late) == ordered(joining)


WANTED: dict[str, Json] = {"id": "c1", "name": "bash", "args": {"command": "wc -l"}}


def story() -> RunView:
    """A run that streams, asks, runs a tool and answers."""
    view = RunView()
    for event in (
        e.RunStarted(goal="count", workspace=".", model="toy", model_kind="scripted"),
        e.StateTransition(source="PLANNING", target="EXECUTING"),
        e.ModelCalled(call="m1", step="s", model="toy", cycle=1, messages=1),
        e.ModelDelta(call="m1", text="let me "),
        e.ModelDelta(call="m1", text="look"),
        e.ModelAnswered(call="m1", step="s", model="toy", text="let me look", calls=[WANTED], tokens_in=10),
        e.ApprovalAsked(call="c1", step="s", tool="bash", args={"command": "wc -l"}, danger="HIGH", key="k"),
    ):
        view.apply(event, at=1.0)
    return view


def test_streamed_text_appears_once() -> None:
    """What came in pieces is not repeated when the whole answer arrives."""
    assert [row.text for row in story().rows.values() if row.kind == "text"] == ["let me look"]  # type: ignore[union-attr]


def test_a_waiting_call_shows_its_exact_arguments() -> None:
    """An approval shows the tool, its danger and every argument."""
    ask = story().asks["c1"]

    assert ask.whole() == {
        "op": "ask",
        "id": "c1",
        "tool": "bash",
        "danger": "HIGH",
        "why": "",
        "args": [["command", "wc -l"]],
        "json": '{\n  "command": "wc -l"\n}',
    }


def test_a_decision_removes_the_question_and_is_told_in_the_row() -> None:
    """After approval the question is gone and the row says who approved."""
    view = story()
    changes = view.apply(e.ApprovalGiven(call="c1", granted=True, by="ana", how="click", scope="run"))

    assert (view.asks, changes[-1]) == ({}, {"op": "asked", "id": "c1"})
    assert view.rows["c:c1"].whole()["note"] == "approved by ana for the whole run"


def test_the_answer_is_the_last_text_and_not_shown_twice() -> None:
    """An answer that was streamed marks its row; one that was not gets a row."""
    view = story()
    view.apply(e.ModelAnswered(call="m2", step="s", model="toy", text="42"))
    view.apply(e.RunFinished(outcome="complete", answer="42"))
    other = story()
    other.apply(e.RunFinished(outcome="complete", answer="43"))

    assert (view.answer, list(view.rows)) == ("42", ["t:m1", "c:c1", "t:m2"])
    assert (other.answer, list(other.rows)) == ("43", ["t:m1", "c:c1", "answer"])


def test_nothing_is_under_way_in_a_run_that_ended() -> None:
    """A cancelled run has no running row and asks nothing."""
    view = story()
    view.apply(e.StateTransition(source="EXECUTING", target="CANCELLED", reason="stopped"), at=9.0)

    assert (view.asks, view.rows["c:c1"].whole()["state"], view.head.ended, view.head.reason) == ({}, "stopped", 9.0, "stopped")


def test_cost_that_is_not_known_is_said() -> None:
    """A model call without a price is counted apart from the money."""
    view = story()
    view.apply(e.ModelAnswered(call="m2", step="s", model="toy", cost_usd=0.25))

    assert view.head.usage == "10 tokens · $0.2500 + 1 unpriced · 2 model calls · 0 tool calls"


def test_a_run_with_a_scripted_part_stays_labelled() -> None:
    """Resuming a scripted run with a real model does not hide that it was scripted."""
    view = story()
    view.apply(e.RunResumed(by="ana", model="gpt", model_kind="real"))

    assert (view.head.model, view.head.model_kind) == ("gpt", "scripted")


def test_a_record_names_its_run() -> None:
    """Records carry the run's id and time."""
    view = RunView()
    view.apply(e.Record(run_id="r1", seq=1, eid="e", at=5.0, event=e.RunStarted(goal="g", workspace=".", model="m")))

    assert (view.head.run, view.head.started) == ("r1", 5.0)


def test_a_fork_says_where_it_comes_from() -> None:
    """A forked run has its own id and start, the fork's model, no question of its parent's, and a notice that names parent and event."""
    asked = e.ApprovalAsked(call="c", step="s", tool="bash", args={}, danger="HIGH", key="k")
    forked = e.RunForked(parent="r<b>", at=4, model="echo", model_kind="real", given="result")
    history: list[e.Event] = [
        e.RunStarted(goal="g", workspace=".", model="m", model_kind="scripted"),
        e.ModelCalled(call="m1", step="s", model="m", cycle=1, messages=1),
        e.ModelAnswered(call="m1", step="s", model="m", calls=[{"id": "c", "name": "bash", "args": {}}]),
        asked,
        forked,
        e.ToolAnswered(call="c", step="s", tool="bash", text="ok", given=True),
    ]
    view = view_of([e.Record(run_id="f", seq=seq, eid=str(seq), at=10.0 * seq, event=event) for seq, event in enumerate(history, 1)])

    assert (view.head.run, view.head.model, view.head.model_kind, view.head.started) == ("f", "echo", "scripted", 50.0)
    assert view.asks == {}
    assert "info: forked from r<b> at 4 with a result given by hand" in run_text(view)
    assert "given by hand" in run_text(view).split("bash")[1]
    assert "forked from r&lt;b&gt; at 4" in run_html(view)


def test_health_is_a_notice_and_stays_in_the_head_while_something_is_not_in_order() -> None:
    """Each change is a row with dependency, state and reason; the head names what is not in order now, and nothing else."""
    view = RunView()

    def change(name: str, target: str, reason: str = "") -> list[Change]:
        return view.apply(e.HealthChanged(dependency=name, kind="mcp", source="ready", target=target, reason=reason))

    assert change("notes", "ready") == [
        {"op": "row", "id": "n:0", "kind": "notice", "level": "info", "text": "mcp notes is ready"},
        {"op": "head", "id": "head", "health": ""},
    ]
    assert change("notes", "degraded", "no answer")[0]["text"] == "mcp notes is degraded: no answer"
    change("web", "failed")
    change("notes", "recovering")
    assert view.head.health == "web failed, notes recovering"
    assert "not in order: web failed, notes recovering" in run_text(view)
    assert "<b>Not in order:</b> web failed, notes recovering" in run_html(view)
    change("web", "starting")
    change("notes", "ready")
    assert view.head.health == ""
    assert "not in order" not in run_text(view).lower() + run_html(view).lower()
