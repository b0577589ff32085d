"""A plan is a directed acyclic graph by construction."""

import json
import re

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
    while free := {name for name in left if not any(after == name and before in left for before, after in edges)}:
        left -= free
    return bool(left)


@given(edges=graphs)
def test_a_plan_is_accepted_if_and_only_if_it_has_no_cycle(edges: list[tuple[str, str]]) -> None:
    """Over random graphs: an acyclic one becomes a plan with exactly its edges; another names steps that do form a circle."""
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
        step(name, produces=(f"of {name}",), consumes=tuple(f"of {before}" for before, after in edges if after == name)) for name in names
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
