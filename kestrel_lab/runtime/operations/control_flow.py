"""Control flow: `loop`, `graph`, `workflow` and `escalation` grow the next steps after the last."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import cast

from kestrel_lab.agents import GOAL
from kestrel_lab.core.errors import UnmetError
from kestrel_lab.core.events.union import BudgetWarned, ModelEscalated
from kestrel_lab.core.expressions.conditions import parse_condition
from kestrel_lab.core.expressions.templates import escape_template, render_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.plan_shapes import Edge, condition_names
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Scope, prefix_steps


async def loop(scope: Scope) -> Done:
    """Grow one more round of a loop, or give its answer; `core.plan_shapes.loop_plan` writes the arguments.

    Round n has the steps `ID#n`, and after them `LOOP#n`, which decides whether to go on. At the limit the
    loop raises `RunError`, or records a warning and gives the last result, as `at_limit` says.
    """
    args = scope.args
    until, limit, done = str(args["until"]), cast("int", args["limit"]), cast("int", args.get("round", 0))
    name, result = scope.whole, str(args["result"])
    if done:
        if parse_condition(until).holds(scope.inputs):
            return Done(output=scope.inputs[result])
        if done >= limit:
            rounds = "its one round" if limit == 1 else f"its {limit} rounds"
            limit_reached(
                scope,
                f"{name!r} has done {rounds} and it still does not hold that {until}",
                fail=args["at_limit"] == "fail",
            )
            return Done(output=scope.inputs[result])
    body = scope.held("body")
    steps = tuple(numbered_visit(step, {other.id: done + 1 for other in body}) for step in body)
    return Done(
        grows=(
            *steps,
            decision_step(
                scope, name, done + 1, {**args, "round": done + 1}, steps, {*condition_names(until), result}
            ),
        )
    )


def decision_step(
    scope: Scope, name: str, turn: int, args: Mapping[str, Json], after: tuple[Step, ...], names: set[str]
) -> Step:
    """Return the step that decides how to go on after `after`: the same operation, new arguments."""
    return Step(
        id=f"{name}#{turn}",
        operation=scope.step.operation,
        args=escape_template(dict(args)),
        depends_on=tuple(step.id for step in after),
        consumes=tuple(sorted(names)),
        stage=scope.step.stage,
    )


def numbered_visit(step: Step, turns: Mapping[str, int]) -> Step:
    """Return the n-th visit of a step, `ID#n`; `turns` has n for the step and for those it may wait for."""
    return replace(
        step,
        id=f"{step.id}#{turns[step.id]}",
        depends_on=tuple(f"{need}#{turns[need]}" for need in step.depends_on),
    )


def limit_reached(scope: Scope, what: str, *, fail: bool) -> None:
    """Raise `UnmetError` for a limit that was reached, or record a warning."""
    if fail:
        raise UnmetError(what)
    scope.ctx.emit(BudgetWarned(limit=scope.step.operation, message=f"{what}; it goes on with what there is"))


async def graph(scope: Scope) -> Done:
    """Visit the nodes to which the last wave leads, or give the answer; `core.plan_shapes.along_edges` writes
    the arguments.

    The n-th visit of a node is the step `ID#n`, and after wave n comes `GRAPH#n`, which decides where to go
    on. A node that was skipped leads nowhere. At the limit the graph raises `RunError`, or records a warning,
    as `at_limit` says.
    """
    args = scope.args
    nodes = {step.id: step for step in scope.held("nodes")}
    edges = [Edge(**cast("dict[str, str]", item)) for item in cast("list[Json]", args["edges"])]
    visits = cast("dict[str, int]", args.get("visits", {}))
    wave, turn = cast("list[str]", args.get("wave", [])), cast("int", args.get("turn", 0))
    following = _next_nodes(scope, nodes, edges, wave, visits) if wave else cast("list[str]", args["start"])
    if not following:
        return Done(output=_answer(scope, nodes, wave))
    limit, name = cast("int", args["limit"]), scope.whole
    if sum(visits.values()) + len(following) > limit:
        what = (
            f"{name!r} has visited {sum(visits.values())} nodes of at most {limit}, and edges lead on "
            f"to {', '.join(following)}"
        )
        limit_reached(scope, what, fail=args["at_limit"] == "fail")
        return Done(output=_answer(scope, nodes, wave))
    visits = {**visits, **{node: visits.get(node, 0) + 1 for node in following}}
    steps = tuple(numbered_visit(step, visits) for node, step in nodes.items() if node in following)
    names = {name for edge in edges if edge.source in following for name in condition_names(edge.when)}
    names |= (
        {str(args["result"])}
        if args["result"]
        else {made for node in following for made in nodes[node].produces}
    )
    more: dict[str, Json] = {"turn": turn + 1, "wave": list(following), "visits": dict(visits)}
    return Done(grows=(*steps, decision_step(scope, name, turn + 1, {**args, **more}, steps, names)))


def _next_nodes(
    scope: Scope,
    nodes: Mapping[str, Step],
    edges: Sequence[Edge],
    wave: Sequence[str],
    visits: Mapping[str, int],
) -> list[str]:
    """Return the nodes of the next wave, in the order of the file."""
    ran = {node for node in wave if not scope.went(f"{node}#{visits[node]}")["skipped"]}
    ways = [edge for edge in edges if edge.source in ran]
    led = {
        edge.target
        for edge in ways
        if not edge.when.strip() or parse_condition(edge.when).holds(scope.inputs)
    }
    return [node for node in nodes if node in led]


def _answer(scope: Scope, nodes: Mapping[str, Step], wave: Sequence[str]) -> Json:
    if result := scope.args["result"]:
        return scope.inputs[str(result)]
    made = [scope.inputs[name] for node in nodes if node in wave for name in nodes[node].produces[-1:]]
    return made[0] if len(made) == 1 else "\n\n".join(as_text(value) for value in made if value is not None)


async def workflow(scope: Scope) -> Done:
    """Grow the steps of a plan; `core.plan_shapes.plan_step` writes the arguments.

    What the step consumes is there in the plan under the same names, and those of its first steps that
    consume nothing else are given what no input refers to. Its answer is what the last steps of the plan
    answer.
    """
    plan = Plan.from_json(cast("dict[str, Json]", scope.args["plan"]))
    fed = {
        name: value
        for name, value in scope.inputs.items()
        if name not in scope.step.references and name != GOAL
    }
    artifacts = {**plan.artifacts, **fed, **cast("dict[str, Json]", scope.args["inputs"])}
    first = [name for name, needs in plan.needs().items() if not needs]
    steps = [
        _with_artifacts(step, [name for name in fed if plan.artifacts.get(name) is None])
        if step.id in first
        else step
        for step in plan.steps
    ]
    name = scope.step.id
    return Done(
        grows=prefix_steps(name, steps, scope=name),
        artifacts={f"{name}/{artifact}": value for artifact, value in artifacts.items()},
    )


def _with_artifacts(step: Step, names: Collection[str]) -> Step:
    """Return the step, or a compound's first, also consuming these, if it has a goal and names none."""
    if not names or step.tool or (step.consumes and not step.operation):
        return step
    if step.operation in ("loop", "graph"):
        key = "body" if step.operation == "loop" else "nodes"
        inner = [
            Step.from_json(body)
            for body in cast("list[dict[str, Json]]", render_template(step.args[key], {}))
        ]
        first = (
            {inner[0].id}
            if key == "body"
            else set(cast("list[str]", render_template(step.args["start"], {})))
        )
        entries: Json = [(_with_artifacts(one, names) if one.id in first else one).as_json() for one in inner]
        return replace(step, args={**step.args, key: escape_template(entries)})
    if step.operation not in ("", "council", "escalation", "workflow"):
        return step
    return replace(step, consumes=tuple(dict.fromkeys((*step.consumes, *names))))


async def escalation(scope: Scope) -> Done:
    """Grow the next tier, or give the answer; `core.plan_shapes.escalation_plan` writes the arguments.

    Tier n is the step `ID/TIER`, and after it comes `ID#n`, which decides. A tier is done with if it ended
    well, its council was not split, and it is as sure as `below` asks; the last tier's answer is taken with a
    warning where it is not. Raises `UnmetError` where the last tier fails.
    """
    args, name = scope.args, scope.name
    tiers = scope.held("tiers")
    turn, below = cast("int", args.get("turn", 0)), cast("float", args["below"])
    handed_on: dict[str, Json] = {}
    if turn:
        last = tiers[turn - 1]
        went = scope.went(f"{name}/{last.id}")
        answer, confidence = _read(went["answer"], last)
        whole = f"{scope.whole}/{last.id}"
        held = [
            council
            for step, council in scope.ctx.state.councils.items()
            if step == whole or step.startswith(f"{whole}/")
        ]
        council = held[-1] if held else None
        confidence = council.confidence if council is not None else confidence
        if not went["ok"]:
            reason = f"{last.id} failed: {went['reason']}"
        elif council is not None and council.split:
            reason = f"the vote of {last.id} was split"
        elif confidence is not None and confidence < below:
            reason = f"{last.id} is {confidence:.0%} sure, less than {below:.0%}"
        else:
            return Done(output=answer)
        if turn == len(tiers):
            if not went["ok"]:
                raise UnmetError(f"{name}: no tier came to an answer; {one_line(reason, 500)}")
            scope.ctx.emit(
                BudgetWarned(
                    limit="escalation",
                    message=f"{reason}, and nobody is left to take over: its answer stands",
                )
            )
            return Done(output=answer)
        handed_on = {"earlier answer": answer, "why it is not taken": reason}
        escalated = ModelEscalated(
            step=scope.step.id, source=last.id, target=tiers[turn].id, reason=one_line(reason, 200)
        )
        # Said before a crash.
        if scope.step.id not in scope.ctx.state.escalated:
            scope.ctx.emit(escalated)
    fed = {name: value for name, value in scope.inputs.items() if name not in tiers[turn].consumes}
    given = {**fed, **handed_on} if not tiers[turn].tool else {}
    step = replace(tiers[turn], id=f"{name}/{tiers[turn].id}", given={**tiers[turn].given, **given})
    after = decision_step(
        scope, name, turn + 1, {**args, "turn": turn + 1}, (step,), set(scope.step.consumes)
    )
    return Done(grows=(step, replace(after, after_failure=True)))


def _read(value: Json, step: Step) -> tuple[Json, float | None]:
    """Return the answer of a tier and its confidence, if it gave one."""
    if step.schema is None or not isinstance(value, dict):
        return value, None
    confidence = value.get("confidence")
    only = value["answer"] if value.keys() == {"answer", "confidence"} else value
    return only, float(confidence) if isinstance(confidence, int | float) else None
