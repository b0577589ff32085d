"""A plan is a directed acyclic graph by construction."""

import hashlib
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.plan import Plan, Step


def step(name: str, *needs: str, produces: tuple[str, ...] = (), consumes: tuple[str, ...] = ()) -> Step:
    """A step."""
    return Step(id=name, goal=f"do {name}", depends_on=needs, produces=produces, consumes=consumes)


names = [f"s{number}" for number in range(7)]
graphs = st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=14)


def has_cycle(edges: list[tuple[str, str]]) -> bool:
    """Whether a walk along the edges can return, found by taking away nodes that need nothing."""
    left = set(names)
    while free := {
        name for name in left if not any(after == name and before in left for before, after in edges)
    }:
        left -= free
    return bool(left)


@given(edges=graphs)
def test_a_plan_is_accepted_if_and_only_if_it_has_no_cycle(edges: list[tuple[str, str]]) -> None:
    """Over random graphs: an acyclic one becomes a plan with exactly its edges; another names steps that do
    form a circle.
    """
    steps = tuple(step(name, *(before for before, after in edges if after == name)) for name in names)
    if not has_cycle(edges):
        assert set(Plan(steps=steps).graph().edges) == set(edges)
        return
    with pytest.raises(UsageError, match="in a circle: ") as caught:
        Plan(steps=steps)
    circle = str(caught.value).partition("circle: ")[2].split(" → ")
    assert set(zip(circle, [*circle[1:], circle[0]], strict=True)) <= set(edges)


@given(edges=graphs)
def test_an_artifact_is_an_edge(edges: list[tuple[str, str]]) -> None:
    """Consuming what a step produces means the same as depending on it."""
    written = tuple(step(name, *(before for before, after in edges if after == name)) for name in names)
    implied = tuple(
        step(
            name,
            produces=(f"of {name}",),
            consumes=tuple(f"of {before}" for before, after in edges if after == name),
        )
        for name in names
    )
    if has_cycle(edges):
        with pytest.raises(UsageError, match="circle"):
            Plan(steps=implied)
    else:
        assert set(Plan(steps=implied).graph().edges) == set(Plan(steps=written).graph().edges)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((step("a"), step("b"), step("a"), step("b")), "step ids used twice: a, b"),
        ((step("a", "x", "y"),), "not in the plan: x, y"),
        ((step("a", "a"),), "in a circle: a"),
        ((step("a", produces=("r",)), step("b", produces=("r",))), "steps 'a' and 'b' both produce 'r'"),
        ((step("a", consumes=("r",)),), "step 'a' consumes 'r', which no step produces"),
        ((), "the plan has no steps"),
    ],
)
def test_what_is_wrong_is_named(steps: tuple[Step, ...], message: str) -> None:
    """Each mistake names the steps that made it."""
    with pytest.raises(UsageError, match=re.escape(message)):
        Plan(steps=steps)


def test_what_is_there_already_may_be_consumed() -> None:
    """An artifact given with the plan needs no producer; a plan is plain JSON."""
    plan = Plan(steps=(step("a", consumes=("r",)),), artifacts={"r": 1}, acceptance_criteria=("works",))
    assert json.loads(json.dumps(plan.as_json()))["artifacts"] == {"r": 1}
    assert Plan.single("go").steps == (Step(id="answer", goal="go"),)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "step 'a' has neither a goal nor a tool nor an operation: give exactly one"),
        ({"goal": "  "}, "step 'a' has neither a goal nor a tool nor an operation: give exactly one"),
        ({"goal": "go", "tool": "grep"}, "step 'a' has both a goal and a tool: give exactly one"),
        ({"goal": "go", "args": {"x": 1}}, "step 'a' has args without a tool"),
        ({"goal": "go", "depends_on": "b"}, "depends_on of step 'a' must be a list, not the text 'b'"),
        ({"tool": "grep", "args": {"x": "{{r}}"}}, "step 'a' refers to 'r', which it does not consume"),
    ],
)
def test_a_step_is_one_thing(fields: dict[str, Any], message: str) -> None:
    """A step is a goal or a call; anything else is refused and the step named."""
    with pytest.raises(UsageError, match=re.escape(message)):
        Step(id="a", **fields)


@pytest.mark.parametrize(
    ("artifacts", "steps", "message"),
    [
        ({"r": {1}}, (step("a"),), "the artifacts of the plan are not JSON"),
        ({}, (Step(id="a", tool="t", args={"x": {1}}),), "the args of step 'a' of the plan are not JSON"),  # type: ignore[dict-item]
        (
            {"r": 1},
            (step("a", produces=("r",)),),
            "step 'a' produces 'r', which is there before the first step",
        ),
    ],
)
def test_a_plan_can_be_stored(artifacts: dict[str, Any], steps: tuple[Step, ...], message: str) -> None:
    """What could not be kept in the log is refused at once."""
    with pytest.raises(UsageError, match=re.escape(message)):
        Plan(steps=steps, artifacts=artifacts)


@given(edges=graphs)
def test_a_plan_comes_back_from_json(edges: list[tuple[str, str]]) -> None:
    """Written as JSON and read again a plan is equal; its order keeps every need; its ends are what nothing
    needs.
    """
    if has_cycle(edges):
        return
    plan = Plan(
        steps=tuple(
            Step(
                id=n,
                tool="t",
                args={"x": [n]},
                depends_on=tuple(a for a, b in edges if b == n),
                stage="one",
                needs_approval=True,
            )
            for n in names
        ),
        artifacts={"r": [1, None]},
        acceptance_criteria=("works",),
    )
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan
    place = {s.id: number for number, s in enumerate(plan.order())}
    assert len(place) == len(names)
    assert all(place[before] < place[after] for before, after in edges)
    assert [s.id for s in plan.ends()] == [n for n in names if not any(before == n for before, _ in edges)]


def test_json_that_is_no_plan_is_refused() -> None:
    """Reading checks as building does; what an older version did not write has defaults, what a newer one
    wrote is ignored.
    """
    old = {"steps": [{"id": "answer", "goal": "go", "shape": "round"}]}
    assert Plan.from_json(old) == Plan.single("go")  # type: ignore[arg-type]
    step = {"id": "a", "goal": "go"}
    wrong = [
        {"steps": [step | {key: 1}]}
        for key in ("goal", "tool", "args", "depends_on", "needs_approval", "stage")
    ]
    wrong += [{"steps": [step], "artifacts": [1]}, {"steps": [step], "acceptance_criteria": "works"}]
    for body in ({}, {"steps": "a"}, {"steps": [{"goal": "go"}]}, {"steps": [{"id": "a"}]}, *wrong):
        with pytest.raises(UsageError):
            Plan.from_json(body)  # type: ignore[arg-type]


def test_a_step_id_can_be_seen() -> None:
    """An id with hidden characters, which a person or a front end could not tell from another, is refused by
    name.
    """
    for hidden in ("a\u202eb", "a\ud800", "a\x1b[2J", "a\u200b"):
        with pytest.raises(UsageError, match="cannot be seen: leave them out"):
            Step(id=hidden, goal="x")


def test_a_stored_step_keeps_its_hash() -> None:
    """The hash was computed by an earlier version, in which the fields were declared in another order."""
    body: dict[str, Any] = {
        "id": "all",
        "goal": "do {{x}}",
        "depends_on": ["a"],
        "produces": ["p"],
        "consumes": ["x"],
        "given": {"g": 1},
        "parallelizable": False,
        "needs_approval": True,
        "stage": "s",
        "when": "x > 1",
        "after_failure": True,
        "parent": "r",
        "scope": "w",
        "model": "m",
        "instructions": "i",
        "tools": ["t"],
        "team": {"b": {"instructions": "j", "description": "d"}},
        "turns": 3,
        "repairs": 2,
        "react": True,
        "temperature": 0.5,
        "params": {"top_p": 1},
        "schema": {"type": "object"},
    }
    stored = Step.from_json(body).as_json()
    assert stored == body
    text = json.dumps(stored, sort_keys=True).encode()
    assert (
        hashlib.sha256(text).hexdigest() == "4a0fe05013b1b8951eb1a05995cff379f67f56b5446d3db31d12585e225370a2"
    )
