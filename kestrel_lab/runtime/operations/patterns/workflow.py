"""The operation `workflow`: a workflow as a step of another, grown with artifacts of its own names."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import cast

from kestrel_lab.agents import GOAL
from kestrel_lab.core.expressions.templates import escape, render
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.operation import Done, Scope, under


async def workflow(scope: Scope) -> Done:
    """Grow the steps of a plan; `core.plan_shapes.nested` writes the arguments.

    What the step consumes is there in the plan under the same names, and those of its first steps that consume nothing else are
    given what no input refers to. Its answer is what the last steps of the plan answer.
    """
    plan = Plan.from_json(cast("dict[str, Json]", scope.args["plan"]))
    fed = {name: value for name, value in scope.inputs.items() if name not in scope.step.references and name != GOAL}
    artifacts = {**plan.artifacts, **fed, **cast("dict[str, Json]", scope.args["inputs"])}
    first = [name for name, needs in plan.needs().items() if not needs]
    steps = [_fed(step, [name for name in fed if plan.artifacts.get(name) is None]) if step.id in first else step for step in plan.steps]
    name = scope.step.id
    return Done(
        grows=under(name, steps, scope=name),
        artifacts={f"{name}/{artifact}": value for artifact, value in artifacts.items()},
    )


def _fed(step: Step, names: Collection[str]) -> Step:
    """Return the step, or the first of a loop's or a graph's, consuming these as well, if it works on a goal and names nothing itself."""
    if not names or step.tool or (step.consumes and not step.operation):
        return step
    if step.operation in ("loop", "graph"):
        key = "body" if step.operation == "loop" else "nodes"
        inner = [Step.from_json(body) for body in cast("list[dict[str, Json]]", render(step.args[key], {}))]
        first = {inner[0].id} if key == "body" else set(cast("list[str]", render(step.args["start"], {})))
        told: Json = [(_fed(one, names) if one.id in first else one).as_json() for one in inner]
        return replace(step, args={**step.args, key: escape(told)})
    if step.operation not in ("", "council", "escalation", "workflow"):
        return step
    return replace(step, consumes=tuple(dict.fromkeys((*step.consumes, *names))))
