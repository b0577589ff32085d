"""The operation `loop`: steps repeated until a condition holds; each round is grown when the one before is done."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import UnmetError
from kestrel_lab.core.events.union import BudgetWarned
from kestrel_lab.core.expressions.conditions import parse
from kestrel_lab.core.expressions.templates import escape
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan_shapes import asked_names
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.operation import Done, Scope


async def loop(scope: Scope) -> Done:
    """Grow one more round of a loop, or give its answer; `core.plan_shapes.repeated` writes the arguments.

    Round n has the steps `ID#n`, and after them `LOOP#n`, which decides whether to go on. At the limit the loop raises
    `RunError`, or records a warning and gives the last result, as `at_limit` says.
    """
    args = scope.args
    until, limit, done = str(args["until"]), cast("int", args["limit"]), cast("int", args.get("round", 0))
    name, result = scope.step.id.rpartition("#")[0] if done else scope.step.id, str(args["result"])
    if done:
        if parse(until).holds(scope.inputs):
            return Done(output=scope.inputs[result])
        if done >= limit:
            reached(scope, f"{name!r} has done {_rounds(limit)} and it still does not hold that {until}", fail=args["at_limit"] == "fail")
            return Done(output=scope.inputs[result])
    body = tuple(Step.from_json(cast("dict[str, Json]", item)) for item in cast("list[Json]", args["body"]))
    steps = tuple(numbered(step, {other.id: done + 1 for other in body}) for step in body)
    return Done(grows=(*steps, asking(scope, name, done + 1, {**args, "round": done + 1}, steps, {*asked_names(until), result})))


def asking(scope: Scope, name: str, turn: int, args: Mapping[str, Json], after: tuple[Step, ...], names: set[str]) -> Step:
    """Return the step that decides how to go on after the steps `after`: the same operation, with new arguments."""
    return Step(
        id=f"{name}#{turn}",
        operation=scope.step.operation,
        args=cast("dict[str, Json]", escape(dict(args))),
        depends_on=tuple(step.id for step in after),
        consumes=tuple(sorted(names)),
        stage=scope.step.stage,
    )


def numbered(step: Step, turns: Mapping[str, int]) -> Step:
    """Return the n-th visit of a step, `ID#n`; `turns` has n for the step and for those it may wait for."""
    return replace(step, id=f"{step.id}#{turns[step.id]}", depends_on=tuple(f"{need}#{turns[need]}" for need in step.depends_on))


def reached(scope: Scope, what: str, *, fail: bool) -> None:
    """Raise `UnmetError` for a limit that was reached, or record a warning."""
    if fail:
        raise UnmetError(what)
    scope.ctx.emit(BudgetWarned(limit=scope.step.operation, message=f"{what}; it goes on with what there is"))


def _rounds(limit: int) -> str:
    return "its one round" if limit == 1 else f"its {limit} rounds"
