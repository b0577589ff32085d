"""Loops and graphs do what a tiny interpreter says, also when they are stopped anywhere; what cannot be is
refused.
"""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import illegal_states, put_prefix
from shapes_reference import NAMES, Case, Outcome, Work, expected, mix, mixed, random_graph, random_loop

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import BudgetWarned, PlanExtended, StepFinished, StepStarted, ToolCalled
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.plan_shapes import (
    Edge,
    Part,
    Repeats,
    all_steps,
    along_edges,
    in_sequence,
    loop_plan,
    side_by_side,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Operation, Scope
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel

KINDS: dict[str, Callable[[int], Case]] = {
    "loop": random_loop,
    "cyclic graph": lambda seed: random_graph(seed, cyclic=True),
    "acyclic graph": lambda seed: random_graph(seed, cyclic=False),
}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One log for many small runs."""
    opened = Lab(tmp_path_factory.mktemp("shapes"), env={}, tools=[mix], model=ScriptedModel([]))
    yield opened
    opened.close()


def plan_of(case: Case) -> Plan:
    """The plan of a case; where every node is there from the start, with a last one that is given every
    artifact.
    """
    steps = case.shape.steps
    if not case.cyclic:
        last = Work("end", NAMES, "answer", "").part.step
        steps = (*steps, replace(last, depends_on=tuple(step.id for step in steps)))
    return Plan(steps=steps, artifacts=case.shape.artifacts)


def differs(case: Case, run: Run, outcome: Outcome) -> bool:
    """Whether the run is not what the interpreter says: which nodes were done, in the order of the plan, the
    limit, the answer.
    """
    called = {event.step for event in run.events() if isinstance(event, ToolCalled)}
    done = [step.id for step in run.plan.steps if step.id in called and step.id != "end"]
    answer = outcome.values[case.result] if case.cyclic else mixed("end", outcome.values)
    if (done, run.status is RunStatus.FAILED) != (outcome.done, outcome.limited):
        return True
    return not outcome.limited and run.answer != as_text(answer)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_a_random_shape_does_what_the_interpreter_says(kind: str, lab: Lab, seed: int) -> None:
    """The same nodes, in the same order, the same answer, and the limit reached or not."""
    case = KINDS[kind](seed)
    run = lab.run_sync("go", plan=plan_of(case))
    assert not differs(case, run, expected(case)), (run.plan, run.answer, run.reason)


@pytest.mark.parametrize(
    ("kind", "bug"),
    [
        ("loop", "one round too many"),
        ("loop", "each round begins anew"),
        ("loop", "a skipped node leaves null"),
        ("cyclic graph", "one visit too many"),
        ("cyclic graph", "a skipped node leads on"),
        ("cyclic graph", "a skipped node leaves null"),
        ("acyclic graph", "all edges must hold"),
        ("acyclic graph", "a skipped node leads on"),
        ("acyclic graph", "a skipped node leaves null"),
    ],
)
def test_the_law_tells_a_bug(kind: str, bug: str, lab: Lab) -> None:
    """An interpreter with one deliberate bug disagrees with some of sixty shapes: the law above is not
    empty.
    """
    cases = [KINDS[kind](seed) for seed in range(60)]
    assert any(differs(case, lab.run_sync("go", plan=plan_of(case)), expected(case, bug)) for case in cases)


LOOP = replace(random_loop(0), until="x == 9", limit=3)
WAYS = (Edge("n0", "n1"), Edge("n1", "n0"), Edge("n0", "n2"))


def cut_everywhere(shape: Case, tmp_path: Path) -> Iterator[str]:
    """What goes wrong when a run of the shape, whose limit lets it go on, is stopped after each of its events
    and resumed.
    """
    (step,) = shape.shape.steps
    plan = Plan(
        steps=(replace(step, args={**step.args, "at_limit": "continue"}),), artifacts=shape.shape.artifacts
    )
    whole = Lab(tmp_path / "whole", env={}, tools=[mix], model=ScriptedModel([]))
    reference = whole.run_sync("go", plan=plan)
    records = reference.records()
    assert reference.status is RunStatus.COMPLETE
    whole.close()
    other = Lab(tmp_path / "other", env={}, tools=[mix])
    for cut in range(1, len(records)):
        wrong: list[str] = []
        run = asyncio.run(other.resume(put_prefix(other, records, cut), model=ScriptedModel([])))
        if (run.status, run.answer, run.plan) != (reference.status, reference.answer, reference.plan):
            wrong.append(f"cut {cut}: {run.status} {run.answer!r} {run.reason}, {len(run.plan.steps)} steps")
        finished = {record.event.step for record in records[:cut] if isinstance(record.event, StepFinished)}
        again = {record.event.step for record in run.records()[cut:] if isinstance(record.event, StepStarted)}
        wrong += [f"cut {cut}: done again: {finished & again}"] if finished & again else []
        wrong += illegal_states(run.records())
        yield from wrong
    other.close()


@pytest.mark.parametrize(
    "case", [LOOP, replace(random_graph(3, cyclic=True), limit=7)], ids=["loop", "graph"]
)
def test_any_prefix_is_completed(case: Case, tmp_path: Path) -> None:
    """Cut after any event and resumed, a loop and a cyclic graph end with the same plan and answer; no
    finished step runs again.
    """
    assert list(cut_everywhere(case, tmp_path)) == []


def test_a_loop_that_counts_beside_the_log_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant counts its rounds in the process: resumed, it does not know how many there were."""
    right: Operation = OPERATIONS["loop"]
    counted: dict[str, int] = {}

    async def forgetful(scope: Scope) -> Done:
        rounds = counted.get(scope.ctx.run_id + scope.step.operation, 0)
        counted[scope.ctx.run_id + scope.step.operation] = rounds + 1
        wrong = {
            **scope.args,
            "limit": scope.args["limit"]
            if rounds == scope.args.get("round", 0)
            else scope.args.get("round", 0),
        }
        return await right(replace(scope, args=wrong))

    monkeypatch.setitem(OPERATIONS, "loop", forgetful)  # type: ignore[arg-type]  # the table itself
    assert next(cut_everywhere(LOOP, tmp_path), None) is not None


@pytest.mark.parametrize("at_limit", ["fail", "continue"])
def test_a_limit_is_told(at_limit: str, lab: Lab) -> None:
    """Reached before the condition holds, it fails the run with the condition, or is a warning in the log, as
    the file says.
    """
    (step,) = LOOP.shape.steps
    plan = Plan(
        steps=(replace(step, args={**step.args, "at_limit": at_limit}),), artifacts=LOOP.shape.artifacts
    )
    run = lab.run_sync("go", plan=plan)
    warned = [event.message for event in run.events() if isinstance(event, BudgetWarned)]
    told = "'loop' has done its 3 rounds and it still does not hold that x == 9"
    if at_limit == "fail":
        assert (run.status, run.reason, warned) == (RunStatus.FAILED, f"step 'loop#3' failed: {told}", [])
    else:
        assert (run.status, run.reason, warned) == (
            RunStatus.COMPLETE,
            "",
            [f"{told}; it goes on with what there is"],
        )
    assert len([event for event in run.events() if isinstance(event, PlanExtended)]) == 3


def agent(name: str, **fields: object) -> Part:
    """An agent's part, which is given what comes before it."""
    return Part(Step(id=name, goal=name, produces=(name,), **fields), fed=True)  # type: ignore[arg-type]


def test_parts_are_given_what_comes_before_them() -> None:
    """In sequence the product of the one before, and of those before that if it may be skipped; at a join all
    products.
    """
    chain = in_sequence(
        [agent("a"), agent("b", when="a == 'x'", consumes=("a",)), agent("c"), agent("d")]
    ).steps
    assert [(step.consumes, step.depends_on) for step in chain] == [
        ((), ()),
        (("a",), ("a",)),
        (("a", "b"), ("b",)),
        (("c",), ("c",)),
    ]
    joined = side_by_side([agent("a"), agent("b")], agent("j")).steps
    assert [(step.consumes, step.depends_on) for step in joined] == [
        ((), ()),
        ((), ()),
        (("a", "b"), ("a", "b")),
    ]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100)
@given(seed=st.integers(0, 10**6))
def test_a_random_shape_is_a_valid_plan(kind: str, seed: int) -> None:
    """It can be stored and read again, says what it will grow, and shows it."""
    case = KINDS[kind](seed)
    plan = plan_of(case)
    assert Plan.from_json(plan.as_json()) == plan
    assert {work.name for work in case.works} <= {step.id for step in all_steps(plan.steps)}
    assert len(plan.table()[1]) == len(all_steps(plan.steps))


def test_what_cannot_be_a_shape_is_refused() -> None:
    """A circle without a limit, limits out of bounds, edges to nowhere, nodes out of reach, conditions about
    steps.
    """
    a, b = agent("a"), agent("b")
    refused: list[tuple[Callable[[], object], str]] = [
        (
            lambda: along_edges([a, b], [Edge("a", "b"), Edge("b", "a")], start=["a"]),
            r"goes in a circle, (a → b → a|b → a → b): give it a limit",
        ),
        (
            lambda: along_edges([a], [Edge("a", "a")], start=["a"], repeats=Repeats(limit=201)),
            "from 1 to 200, not 201",
        ),
        (lambda: along_edges([a, b], [Edge("a", "bb")]), "there is no node 'bb'; did you mean 'b'"),
        (
            lambda: along_edges([a, b], [Edge("b", "b")], repeats=Repeats(limit=3)),
            "no path of edges leads from the start to 'b'",
        ),
        (
            lambda: along_edges([a], [Edge("a", "a")], repeats=Repeats(limit=3)),
            "none is the first: name it under start",
        ),
        (lambda: along_edges([a, b], [Edge("a", "b", "steps.a.ok")]), "not about 'steps'"),
        (
            lambda: along_edges([a, b], [Edge("a", "b")], repeats=Repeats(result="a")),
            "result is only for graphs with cycles",
        ),
        (lambda: loop_plan([a], until="a ==", repeats=Repeats(limit=3)), "condition 'a ==': "),
        (lambda: loop_plan([a], until="a == 1", repeats=Repeats(limit=51)), "from 1 to 50, not 51"),
        (
            lambda: loop_plan([agent("c", after_failure=True)], until="c == 1", repeats=Repeats(limit=1)),
            "after_failure is for steps that run once",
        ),
    ]
    for make, told in refused:
        with pytest.raises(UsageError, match=told):
            make()
