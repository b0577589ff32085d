"""The view model of a run: what events make of it, and that its patches say the same."""

from __future__ import annotations

import copy
import time
from dataclasses import fields
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.rows import Change, NoticeRow
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import RunView, view_of


def patch(state: dict[str, dict[str, dict[str, Any]]], changes: list[Change]) -> None:
    """What any screen does with patches; the panel's JavaScript does the same."""
    for change in copy.deepcopy(changes):
        op, key = str(change.pop("op")), str(change["id"])
        if op == "text":
            state["row"][key]["text"] += change.get("append", "")
            state["row"][key]["thinking"] += change.get("thought", "")
        elif op == "asked":
            state["ask"].pop(key, None)
        else:
            state[op].setdefault(key, {}).update(change)


def screen() -> dict[str, dict[str, dict[str, Any]]]:
    """An empty screen."""
    return {"head": {}, "step": {}, "graph": {}, "row": {}, "ask": {}}


def ordered(
    state: dict[str, dict[str, dict[str, Any]]],
) -> list[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """The state with the order of its parts."""
    return [(op, list(parts.items())) for op, parts in state.items()]


CALLS = st.sampled_from(["a", "b", "c"])
TEXTS = st.sampled_from(["", "hello", "\x1b[31mred", "\u200b", "42"])
ARGS = st.dictionaries(st.sampled_from(["path", "command"]), st.one_of(TEXTS, st.integers(), st.none()))
PROBLEM = st.sampled_from([None, {"kind": "denied", "message": "no"}, {"kind": "failed", "message": "boom"}])
STEPS = st.sampled_from(["s1", "s2", "s3", "s1/a", "s1/b", "\u202es"])
SPECS: st.SearchStrategy[dict[str, Json]] = st.fixed_dictionaries(
    {"id": STEPS, "goal": TEXTS},
    optional={
        "depends_on": st.lists(STEPS, max_size=2),
        "stage": st.sampled_from(["look", "act\u200b"]),
        "parent": STEPS,
        "needs_approval": st.booleans(),
    },
)
BY_NAME: dict[str, st.SearchStrategy[Any]] = {
    "call": CALLS,
    "step": STEPS,
    "tool": st.just("bash"),
    "args": ARGS,
    "model_kind": st.sampled_from(["real", "scripted", "replay"]),
    "target": st.sampled_from(["EXECUTING", "WAITING_APPROVAL", "COMPLETE", "FAILED"]),
    "plan": st.lists(SPECS, max_size=4).map(lambda steps: {"steps": steps}),
    "steps": st.lists(SPECS, max_size=3),
    "stage": st.sampled_from(["look", "act\u200b"]),
    "status": st.sampled_from(["done", "skipped", "retrying", "failed"]),
    "task": STEPS,
    "calls": st.lists(
        st.fixed_dictionaries({"id": CALLS, "name": st.just("bash"), "args": ARGS}), max_size=2
    ),
    "error": PROBLEM,
    "notes": st.lists(st.dictionaries(TEXTS, TEXTS, max_size=2), max_size=2),
    "note": st.dictionaries(TEXTS, TEXTS, max_size=2),
    "given": st.sampled_from(["", "answer", "result"]),
    "value": st.none(),
    "output": st.none(),
}
BY_TYPE: dict[str, st.SearchStrategy[Any]] = {
    "str": TEXTS,
    "int": st.integers(0, 3),
    "bool": st.booleans(),
    "float": st.sampled_from([0.0, 0.5]),
    "float | None": st.sampled_from([None, 0.5]),
    "str | None": st.none() | TEXTS,
    "int | None": st.none() | st.integers(0, 3),
    "list[str]": st.lists(TEXTS, max_size=2),
    "list[list[str]]": st.lists(st.lists(TEXTS, max_size=2), max_size=2),
    "list[str] | None": st.none() | st.lists(TEXTS, max_size=2),
    "list[dict[str, Json]]": st.just([]),
    "dict[str, Json]": st.just({}),
    "dict[str, float]": st.just({}),
    "dict[str, int]": st.just({}),
    "dict[str, str]": st.just({}),
    "dict[str, Json] | None": st.none(),
    "Json": st.none(),
}


def any_of(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Events of one class, with values that make it meet others."""
    named = (
        BY_NAME
        if kind not in {e.SchedulerParallelBatch, e.ToolAnswered, e.ModelAnswered}
        else {**BY_NAME, "given": st.booleans()}
    )
    named = (
        {**named, "calls": st.lists(CALLS)} if kind in {e.SchedulerParallelBatch, e.KernelUndone} else named
    )
    return st.builds(
        kind, **{field.name: named.get(field.name, BY_TYPE[str(field.type)]) for field in fields(kind)}
    )


EVENTS = st.one_of([any_of(kind) for kind in e.EVENT_TYPES.values()])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(EVENTS, max_size=25), st.integers(0, 25))
def test_patches_and_snapshot_agree_wherever_a_screen_joins(history: list[e.Event], join: int) -> None:
    """A screen that saw every patch, one that starts from a snapshot, and one that joins midway all show the
    same.
    """
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
        "kind": "approval",
        "text": "",
        "options": [],
        "diff": "",
        "folded": False,
        "tool": "bash",
        "danger": "HIGH",
        "why": "",
        "args": [["command", "wc -l"]],
        "origins": [],
        "json": '{\n  "command": "wc -l"\n}',
        "offer": "",
        "previewing": 0.0,
        "images": [],
        "contained": False,
    }


def test_a_contained_call_shows_what_met_and_where_its_words_come_from() -> None:
    """Whoever is asked is told the three things, and for each argument whose words it has; nothing hidden is
    left in them.
    """
    view = story()
    page = "web_fetch https://evil.example/\u202e"
    origins: list[dict[str, Json]] = [
        {
            "arg": "url",
            "from": [
                {"source": "the goal", "kind": "goal", "piece": ""},
                {"source": page, "kind": "untrusted", "piece": "x=1"},
            ],
        },
        {"arg": "body", "from": [{"source": "read_file notes.txt", "kind": "private", "piece": "the key"}]},
        {"arg": "title", "from": []},
    ]
    met: dict[str, Json] = {
        "untrusted": [page],
        "private": ["read_file notes.txt"],
        "effect": "it sends something out",
    }
    args: dict[str, Json] = {"url": "u", "body": "b", "title": "t"}
    view.apply(
        e.ApprovalAsked(
            call="p",
            step="s",
            tool="http_post",
            args=args,
            danger="HIGH",
            key="k",
            why="contained",
            contained=met,
            origins=origins,
        )
    )
    shown = "web_fetch https://evil.example/\\u{202e}"
    ask = view.asks["p"]
    assert ask.why == (
        f"The model has read what others wrote ({shown}) and can know what is private (read_file "
        "notes.txt); it sends something out."
    )
    assert ask.origins == [
        ["url", f"from the goal; from {shown} (untrusted): x=1"],
        ["body", "from read_file notes.txt (private): the key"],
    ]


def test_a_question_shows_what_is_asked_and_what_may_be_answered() -> None:
    """A question has its text and its options, harmless; who answered is told in its row."""
    view = story()
    asked: dict[str, Json] = {"question": "which\u202e?", "options": ["red", 5, "\x1b[31mblue"]}
    view.apply(
        e.ApprovalAsked(
            call="q", step="s", tool="ask_user", args=asked, danger="SAFE", key="k", why="question"
        )
    )
    ask = view.asks["q"]
    assert (ask.kind, ask.text, ask.options) == ("question", "which\\u{202e}?", ["red", "5", "blue"])
    view.apply(e.ApprovalGiven(call="q", granted=True, by="ana", how="click", answer="red"))
    assert view.rows["c:q"].whole()["note"] == "answered by ana: red"


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

    assert (view.asks, view.rows["c:c1"].whole()["state"], view.head.ended, view.head.reason) == (
        {},
        "stopped",
        9.0,
        "stopped",
    )


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
    view.apply(
        e.Record(run_id="r1", seq=1, eid="e", at=5.0, event=e.RunStarted(goal="g", workspace=".", model="m"))
    )

    assert (view.head.run, view.head.working) == ("r1", 5.0)


def test_a_fork_says_where_it_comes_from() -> None:
    """A forked run has its own id and start, the fork's model, no question of its parent's, and a notice that
    names parent and event.
    """
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
    view = view_of(
        [
            e.Record(run_id="f", seq=seq, eid=str(seq), at=10.0 * seq, event=event)
            for seq, event in enumerate(history, 1)
        ]
    )

    assert (view.head.run, view.head.model, view.head.model_kind, view.head.working) == (
        "f",
        "echo",
        "scripted",
        50.0,
    )
    assert view.asks == {}
    assert "info: forked from r<b> at 4 with a result given by hand" in run_text(view)
    assert "given by hand" in run_text(view).split("bash")[1]
    assert "forked from r&lt;b&gt; at 4" in run_html(view)


def test_health_is_a_notice_and_stays_in_the_head_while_something_is_not_in_order() -> None:
    """Each change is a row with dependency, state and reason; the head names what is not in order now, and
    nothing else.
    """
    view = RunView()

    def change(name: str, target: str, reason: str = "") -> list[Change]:
        return view.apply(
            e.HealthChanged(dependency=name, kind="mcp", source="ready", target=target, reason=reason)
        )

    assert change("notes", "ready") == [
        NoticeRow(id="n:0", level="info", text="mcp notes is ready").whole(),
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


def proposed(*specs: dict[str, Json]) -> RunView:
    """A run with a plan."""
    view = RunView()
    view.apply(e.PlanProposed(plan={"steps": list[Json](specs)}))
    return view


def states(view: RunView) -> dict[str, str]:
    """How far each step is."""
    return {step.id: step.state for step in view.steps.values()}


def test_a_step_says_how_far_it_is() -> None:
    """Pending, running, waiting for a person until all its questions are answered, and how it ended."""
    view = proposed({"id": "a", "goal": "x"}, {"id": "b", "goal": "y"}, {"id": "c", "goal": "z"})
    seen = [states(view)]
    question = {"step": "a", "tool": "bash", "args": {}, "danger": "HIGH", "key": "k"}
    for event in (
        e.StepStarted(step="a", goal="x"),
        e.ApprovalAsked(call="1", **question),  # type: ignore[arg-type]
        e.ApprovalAsked(call="2", **question),  # type: ignore[arg-type]
        e.ApprovalGiven(call="1", granted=True, by="ana", how="click"),
        e.ApprovalGiven(call="2", granted=False, by="ana", how="click"),
        e.StepFinished(step="a", ok=True),
        e.StepFinished(step="b", ok=False, skipped=True, reason="skipped: step 'x' failed"),
        e.StepStarted(step="c", goal="z"),
        e.StateTransition(source="EXECUTING", target="CANCELLED"),
    ):
        view.apply(event)
        seen.append(states(view))
    assert [state["a"] for state in seen[:7]] == [
        "pending",
        "running",
        "waiting",
        "waiting",
        "waiting",
        "running",
        "ok",
    ]
    assert seen[-1] == {"a": "ok", "b": "skipped", "c": "stopped"}


def test_a_plan_that_grows_is_drawn_anew() -> None:
    """What a step grew stands right of it and left of what waited for it; only what changed is sent."""
    view = proposed({"id": "plan", "operation": "plan"}, {"id": "end", "goal": "end", "depends_on": ["plan"]})
    before = view.steps["end"].x
    changes = view.apply(e.PlanExtended(step="plan", steps=[{"id": "plan/a", "goal": "a", "parent": "plan"}]))
    place = {step.id: step.x for step in view.steps.values()}
    assert place["plan"] < place["plan/a"] == before < place["end"]
    assert view.steps["end"].needs == ["plan/a"]
    assert [line[:2] for line in view.plan.graph.lines] == [["plan/a", "end"], ["plan", "plan/a"]] or len(
        view.plan.graph.lines
    ) == 2  # type: ignore[index]
    assert {change["op"] for change in changes} == {"step", "graph"}
    assert view.apply(e.StepStarted(step="plan/a", goal="a")) == [
        {"op": "step", "id": "plan/a", "state": "running", "goal": "a", "reason": ""},
        {"op": "graph", "id": "graph", "summary": "Plan of 3 steps: 2 pending, 1 running"},
    ]


def test_long_plans_fold_and_unfold() -> None:
    """Growth that is done moves into the step that grew it; when the run goes back to it, it has its places
    again.
    """
    view = proposed(
        {"id": "p", "operation": "plan"},
        *({"id": f"x{n}", "goal": "x", "depends_on": ["p"]} for n in range(30)),
    )
    view.apply(
        e.PlanExtended(step="p", steps=[{"id": f"p/{n}", "goal": "g", "parent": "p"} for n in range(7)])
    )
    for name in ("p", *(f"p/{n}" for n in range(7))):
        view.apply(e.StepFinished(step=name, ok=True))
    assert (view.steps["p"].label, view.steps["p"].folded) == ("p (8 steps)", 7)
    assert {view.steps[f"p/{n}"].within for n in range(7)} == {"p"}
    view.apply(e.StepStarted(step="p/3", goal="g"))
    assert (view.steps["p"].label, view.steps["p/3"].within, view.steps["p/3"].label) == ("p", "", "p/3")


def test_stages_say_how_far_they_are() -> None:
    """A stage runs until all its steps have ended, fails with one of them, and a new attempt starts over."""
    view = proposed({"id": "a", "goal": "x", "stage": "look"}, {"id": "b", "goal": "y", "stage": "look"})
    seen = []
    for event in (
        e.StageStarted(stage="look"),
        e.StageFinished(stage="look", task="a", status="done"),
        e.StageFinished(stage="look", task="b", status="retrying"),
        e.StageStarted(stage="look", attempt=2),
        e.StageFinished(stage="look", task="b", status="done", attempt=2),
        e.StageFinished(stage="look", task="b", status="failed", attempt=2),
    ):
        view.apply(event)
        seen.append((view.plan.stage_state("look"), view.plan.graph.bands[0][0]))  # type: ignore[index]
    assert seen == [
        ("running", "look …"),
        ("running", "look …"),
        ("retrying", "look ↻"),
        ("running", "look …"),
        ("done", "look ✓"),
        ("failed", "look ✗"),
    ]


def test_calls_of_a_macro_are_inside_it() -> None:
    """Calls whose ids go on from the macro's call belong to it; one that only looks alike does not."""
    view = RunView()
    view.apply(e.MacroStarted(call="s.1.1", step="s", macro="tidy", version=1))
    for call in ("s.1.1.1", "s.1.1/2", "s.1.10", "s.1"):
        view.apply(e.ToolCalled(call=call, step="s", tool="bash", args={}))
    inside = {row.id: row.inside for row in view.rows.values() if row.kind == "call"}  # type: ignore[union-attr]
    assert inside == {"c:s.1.1": "", "c:s.1.1.1": "tidy", "c:s.1.1/2": "tidy", "c:s.1.10": "", "c:s.1": ""}


def test_a_thousand_steps_are_shown_in_little_time() -> None:
    """A step that ends does not arrange the plan anew: 1,000 steps begin and end within a few seconds."""
    view = proposed(
        *(
            {"id": f"s{n}", "goal": "g", "depends_on": [f"s{n - d}" for d in (1, 5, 9) if n >= d + n % 3]}
            for n in range(1_000)
        )
    )
    began = time.thread_time()
    for n in range(1_000):
        view.apply(e.StepStarted(step=f"s{n}", goal="g"))
        view.apply(e.StepFinished(step=f"s{n}", ok=True))
    assert time.thread_time() - began < 5


def test_a_row_says_which_rule_let_a_call_go_on() -> None:
    """What a rule or an earlier yes allowed says so; what the policy's level allows needs no words, a
    person's yes has them already.
    """
    view = RunView()
    notes = []
    for number, leave in enumerate(
        ("rule 1 of kestrel.toml: allow bash `ls`", "a yes for the rest of the run", "policy auto", "")
    ):
        view.apply(
            e.ToolCalled(call=f"c{number}", step="s", tool="bash", args={}, danger="HIGH", leave=leave)
        )
        notes.append(view.rows[f"c:c{number}"].whole()["note"])
    assert notes == [
        "allowed by rule 1 of kestrel.toml: allow bash `ls`",
        "allowed by a yes for the rest of the run",
        "",
        "",
    ]
