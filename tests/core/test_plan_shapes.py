"""Shapes of plans as steps: what each waits for and is given, and what cannot be a shape."""

from collections.abc import Callable
from typing import Any

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.plan_shapes import (
    CONFIDENT,
    Edge,
    Part,
    Repeats,
    Shape,
    Unsure,
    Voting,
    all_steps,
    along_edges,
    condition_names,
    council_plan,
    ensemble_plan,
    escalation_plan,
    in_sequence,
    loop_plan,
    planned_rows,
    router_plan,
    side_by_side,
)
from kestrel_lab.core.step import Step


def agent(name: str, *, fed: bool = False, **fields: Any) -> Part:
    """An agent that makes an artifact of its name."""
    return Part(Step(**{"id": name, "goal": f"do {name}", "produces": (f"{name}_made",), **fields}), fed)


A, B, C = agent("a"), agent("b"), agent("c")


def ways(shape: Shape) -> dict[str, tuple[tuple[str, ...], tuple[str, ...], str]]:
    """What each step waits for, is given, and its condition."""
    return {step.id: (step.depends_on, step.consumes, step.when) for step in shape.steps}


def test_in_a_sequence_each_waits_for_the_one_before() -> None:
    """A fed part is given what that made; where it may be skipped, also what was made before it."""
    assert ways(in_sequence([A, agent("b", fed=True), C])) == {
        "a": ((), (), ""),
        "b": (("a",), ("a_made",), ""),
        "c": (("b",), (), ""),
    }
    skipped = in_sequence([A, agent("b", when="true", consumes=()), agent("c", fed=True)])
    assert ways(skipped)["c"] == (("b",), ("a_made", "b_made"), "")


def test_side_by_side_nothing_waits_but_the_join() -> None:
    """The join waits for all, and is given what all made only if it is fed."""
    assert ways(side_by_side([A, B])) == {"a": ((), (), ""), "b": ((), (), "")}
    assert ways(side_by_side([A, B], agent("c", fed=True)))["c"] == (("a", "b"), ("a_made", "b_made"), "")
    assert ways(side_by_side([A, B], C))["c"] == (("a", "b"), (), "")


def test_a_loop_is_one_step_with_what_its_parts_make() -> None:
    """Artifacts are null before they are made, or as the state says; its name is free; the last part's
    product is the answer.
    """
    shape = loop_plan([A, agent("loop")], until="a_made > 3", repeats=Repeats(limit=2, state={"a_made": 1}))
    (step,) = shape.steps
    assert (step.id, step.operation, shape.artifacts) == ("loop_", "loop", {"a_made": 1, "loop_made": None})
    assert (step.args["result"], step.args["limit"], step.args["at_limit"]) == ("loop_made", 2, "fail")
    assert loop_plan([A], until="", repeats=Repeats(limit=1, result="x")).steps[0].args["result"] == "x"
    assert [one.id for one in all_steps(shape.steps)] == ["loop_", "a", "loop"]
    assert planned_rows(A.step) == []
    assert planned_rows(step)[0][2] == "loop until a_made > 3, at most 2 rounds"
    assert planned_rows(step)[2] == ("loop_ › loop", "", "do loop", "a", "", "loop_made")


def test_a_graph_without_cycles_is_steps_with_conditions() -> None:
    """A node runs if an edge leads to it from a node that ran and its condition holds; the order is that of
    the edges.
    """
    shape = along_edges(
        [C, A, agent("b", fed=True)], [Edge("a", "b", "a_made > 1"), Edge("a", "c"), Edge("b", "c", "b_made")]
    )
    assert [step.id for step in shape.steps] == ["a", "b", "c"]
    found = ways(shape)
    assert found["a"] == ((), (), "")
    assert found["b"] == (("a",), ("a_made",), "(a_made > 1)")
    assert found["c"] == (("a", "b"), (), "")  # one edge is always followed
    both = ways(
        along_edges(
            [A, B, C], [Edge("a", "b", "a_made > 1"), Edge("a", "c", "a_made < 1"), Edge("b", "c", "b_made")]
        )
    )
    assert both["c"][2] == "((a_made < 1)) or (not steps.b.skipped and (b_made))"
    assert both["c"][1] == ("a_made", "b_made")
    own = along_edges(
        [A, agent("b", when="a_made > 0", consumes=("a_made",))], [Edge("a", "b", "a_made < 9")]
    )
    assert own.steps[1].when == "((a_made < 9)) and (a_made > 0)"
    held = along_edges([A], [], repeats=Repeats(state={"a_made": 7}))
    assert (held.artifacts, held.steps[0].consumes) == ({"a_made": 7}, ("a_made",))


def test_a_graph_with_cycles_is_one_step() -> None:
    """Its nodes, edges and start are arguments; it needs a limit; conditions of edges are told in the
    plan.
    """
    edges = [Edge("a", "b"), Edge("b", "a", "b_made < 3"), Edge("b", "c", "b_made >= 3")]
    (step,) = along_edges([A, B, C], edges, start=["a"], repeats=Repeats(limit=9)).steps
    assert (step.operation, step.args["start"], step.args["limit"], step.args["result"]) == (
        "graph",
        ["a"],
        9,
        "",
    )
    rows = planned_rows(step)
    assert rows[0][2] == "graph, at most 9 visits"
    assert [row[3:5] for row in rows[1:]] == [("b", "b_made < 3"), ("a", ""), ("b", "b_made >= 3")]


def test_a_router_chooses_one_route() -> None:
    """Each route has the condition that it was chosen; the one for doubt is taken below a confidence as
    well.
    """
    plain = router_plan(A, [B, C], {"b": "for tea"})
    assert [step.when for step in plain.steps[1:]] == ["(a_made.route == 'b')", "(a_made.route == 'c')"]
    assert plain.steps[0].goal.endswith("- b: for tea\n- c: c")
    assert plain.steps[0].schema is not None
    unsure = router_plan(A, [B, C], {}, unsure=Unsure(otherwise="c", below=0.5))
    assert [step.when for step in unsure.steps[1:]] == [
        "(a_made.route == 'b' and a_made.confidence >= 0.5)",
        "(a_made.route == 'c' or a_made.confidence < 0.5)",
    ]


def test_the_synthesiser_begins_where_any_member_made_something() -> None:
    """Failures of others do not hold it back; a condition of its own stays."""
    step = ensemble_plan([A, B], agent("c", fed=True)).steps[-1]
    assert (step.after_failure, step.when, step.consumes) == (
        True,
        "steps.a.ok or steps.b.ok",
        ("a_made", "b_made"),
    )
    assert ensemble_plan([A, B], agent("c", when="steps.a.ok")).steps[-1].when == "steps.a.ok"


def test_councils_and_escalations_hold_their_agents() -> None:
    """One step each, which is given what its agents consume; where confidence decides, agents say theirs."""
    (council,) = council_plan(
        [agent("a", consumes=("x",)), agent("b", consumes=("x", "y"))],
        C,
        voting=Voting(rounds=3, majority=0.6),
    ).steps
    assert (council.operation, council.consumes, council.args["rounds"], council.args["majority"]) == (
        "council",
        ("x", "y"),
        3,
        0.6,
    )
    assert [step.id for step in all_steps([council])] == ["council", "a", "b", "c"]
    schema = {"type": "object", "properties": {"confidence": {"type": "number"}}}
    (sure,) = escalation_plan([A, agent("b", schema=schema)], below=0.7).steps
    assert [step.schema for step in all_steps([sure])[1:]] == [CONFIDENT, schema]
    assert [step.schema for step in all_steps(escalation_plan([A, B]).steps)[1:]] == [None, None]
    for bound in (0.0, 1.0):
        assert escalation_plan([A, B], below=bound).steps[0].args["below"] == bound


SCHEMA = {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: loop_plan([A], until="x", repeats=Repeats(limit=0)), "limit must be from 1 to 50, not 0"),
        (lambda: loop_plan([A], until="x", repeats=Repeats(limit=51)), "limit must be from 1 to 50, not 51"),
        (
            lambda: loop_plan([A], until="steps.a.ok", repeats=Repeats(limit=2)),
            "conditions are about artifacts",
        ),
        (
            lambda: loop_plan([agent("a", after_failure=True)], until="x", repeats=Repeats(limit=2)),
            "after_failure is for steps that run once",
        ),
        (lambda: along_edges([A], [Edge("a", "z")]), "there is no node 'z'"),
        (lambda: along_edges([A], [Edge("z", "a")]), "there is no node 'z'"),
        (lambda: along_edges([A, B], [Edge("a", "b")], start=["z"]), "there is no node 'z'"),
        (lambda: along_edges([A, B], [Edge("a", "b"), Edge("b", "a")]), "none is the first"),
        (
            lambda: along_edges([A, B, C], [Edge("b", "c"), Edge("c", "b")]),
            "no path of edges leads from the start to 'b', 'c'",
        ),
        (lambda: along_edges([A, B], [Edge("a", "b"), Edge("b", "a")], start=["a"]), "give it a limit"),
        (
            lambda: along_edges(
                [A, B], [Edge("a", "b"), Edge("b", "a")], start=["a"], repeats=Repeats(limit=201)
            ),
            "from 1 to 200, not 201",
        ),
        (lambda: along_edges([A], [], repeats=Repeats(result="x")), "only for graphs with cycles"),
        (lambda: along_edges([A, agent("b", depends_on=("a",))], []), "depends_on or after_failure"),
        (lambda: along_edges([agent("a", after_failure=True)], []), "depends_on or after_failure"),
        (lambda: router_plan(agent("a", schema=SCHEMA), [B], {}), "an agent without a schema"),
        (lambda: router_plan(Part(Step(id="a", tool="ls")), [B], {}), "an agent without a schema"),
        (lambda: router_plan(A, [B], {}, unsure=Unsure(below=0.5)), "give both"),
        (lambda: router_plan(A, [B], {}, unsure=Unsure(otherwise="b")), "give both"),
        (lambda: router_plan(A, [B], {}, unsure=Unsure(otherwise="z", below=0.5)), "give both"),
        (lambda: council_plan([A], C), "at least two members"),
        (lambda: council_plan([A, B], C, voting=Voting(rounds=0)), "1 to 10 rounds"),
        (lambda: council_plan([A, B], C, voting=Voting(rounds=11)), "1 to 10 rounds"),
        (lambda: council_plan([A, B], C, voting=Voting(majority=1.0)), "less than 1"),
        (lambda: council_plan([A, B], C, voting=Voting(majority=-0.1)), "less than 1"),
        (lambda: council_plan([A, B], agent("c", schema=SCHEMA)), "'c' must be an agent without a schema"),
        (
            lambda: council_plan([A, Part(Step(id="b", tool="ls"))], C),
            "'b' must be an agent without a schema",
        ),
        (lambda: council_plan([A, agent("b", depends_on=("a",))], C), "decides itself"),
        (lambda: escalation_plan([A]), "at least two tiers"),
        (lambda: escalation_plan([A, B], below=1.1), "from 0 to 1, not 1.1"),
        (lambda: escalation_plan([A, B], below=-0.1), "from 0 to 1, not -0.1"),
        (
            lambda: escalation_plan([A, agent("b", schema=SCHEMA)], below=0.5),
            "schema of 'b' needs a property 'confidence'",
        ),
        (lambda: escalation_plan([A, agent("b", after_failure=True)]), "decides itself"),
        (lambda: condition_names("nowhere > 1", ["somewhere"]), "nothing makes 'nowhere'"),
    ],
)
def test_what_cannot_be_a_shape_says_why(make: Callable[[], object], why: str) -> None:
    """Bounds, missing nodes, agents that cannot take part."""
    with pytest.raises(UsageError, match=why):
        make()


def test_bounds_belong_to_what_can_be_a_shape() -> None:
    """The most rounds, visits and council rounds may be asked for."""
    for limit in (1, 50):
        assert loop_plan([A], until="a_made", repeats=Repeats(limit=limit)).steps[0].args["limit"] == limit
    assert along_edges([A, B], [Edge("a", "b"), Edge("b", "a")], start=["a"], repeats=Repeats(limit=200))
    for rounds in (1, 10):
        assert council_plan([A, B], C, voting=Voting(rounds=rounds, majority=0.0))
    assert condition_names(" ") == ()
    assert condition_names("b > 1 and a", ["a", "b"]) == ("a", "b")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": " ", "goal": "x"}, "empty id"),
        ({"id": "a\u200b", "goal": "x"}, "cannot be seen"),
        ({"id": "a"}, "neither a goal nor a tool nor an operation"),
        ({"id": "a", "goal": "x", "tool": "ls"}, "both a goal and a tool"),
        ({"id": "a", "goal": "x", "args": {"b": 1}}, "args without a tool"),
        ({"id": "a", "goal": "x", "depends_on": "b"}, "must be a list, not the text 'b'"),
        ({"id": "a", "tool": "ls", "team": {"b": {}}}, "a team and no goal"),
        (
            {"id": "a", "goal": "x", "given": {"b": 1}, "consumes": ("b",)},
            "both consumes 'b' and is given it",
        ),
        ({"id": "a", "goal": "x", "turns": 0}, "at least one is needed"),
        ({"id": "a", "tool": "ls", "args": {"x": "{{b}}"}}, "refers to 'b', which it does not consume"),
        ({"id": "a", "goal": "x", "when": "b >"}, "step 'a': "),
    ],
)
def test_what_cannot_be_a_step_says_why(fields: dict[str, Any], why: str) -> None:
    """The step is named, with what is wrong."""
    with pytest.raises(UsageError, match=why):
        Step(**fields)


def test_a_step_may_have_one_turn_and_what_it_is_given() -> None:
    """The bound belongs to it, and lists become tuples."""
    step = Step(id="a", goal="{{b}} {{c}}", turns=1, given={"b": 1}, consumes=["c"])  # type: ignore[arg-type]
    assert (step.turns, step.consumes) == (1, ("c",))
