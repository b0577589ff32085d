"""The operation `escalation`: tiers of agents, each of which takes over where the one before fails or is not sure enough."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from kestrel_lab.core.errors import UnmetError
from kestrel_lab.core.events.union import BudgetWarned, ModelEscalated
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.operation import Done, Scope
from kestrel_lab.runtime.operations.loop import asking


async def escalation(scope: Scope) -> Done:
    """Grow the next tier, or give the answer; `core.plan_shapes.escalating` writes the arguments.

    Tier n is the step `ID/TIER`, and after it comes `ID#n`, which decides. A tier is done with if it ended well, its council was
    not split, and it is as sure as `below` asks; the last tier's answer is taken with a warning where it is not. Raises `UnmetError`
    where the last tier fails.
    """
    args, name = scope.args, scope.name
    tiers = [Step.from_json(body) for body in cast("list[dict[str, Json]]", args["tiers"])]
    turn, below = cast("int", args.get("turn", 0)), cast("float", args["below"])
    told: dict[str, Json] = {}
    if turn:
        last = tiers[turn - 1]
        went = scope.went(f"{name}/{last.id}")
        answer, confidence = _read(went["answer"], last)
        whole = f"{scope.step.id.rpartition('#')[0]}/{last.id}"
        held = [council for step, council in scope.ctx.state.councils.items() if step == whole or step.startswith(f"{whole}/")]
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
            scope.ctx.emit(BudgetWarned(limit="escalation", message=f"{reason}, and nobody is left to take over: its answer stands"))
            return Done(output=answer)
        told = {"earlier answer": answer, "why it is not taken": reason}
        escalated = ModelEscalated(step=scope.step.id, source=last.id, target=tiers[turn].id, reason=one_line(reason, 200))
        if scope.step.id not in scope.ctx.state.escalated:  # said before a crash
            scope.ctx.emit(escalated)
    fed = {name: value for name, value in scope.inputs.items() if name not in tiers[turn].consumes}
    given = {**fed, **told} if not tiers[turn].tool else {}
    step = replace(tiers[turn], id=f"{name}/{tiers[turn].id}", given={**tiers[turn].given, **given})
    after = asking(scope, name, turn + 1, {**args, "turn": turn + 1}, (step,), set(scope.step.consumes))
    return Done(grows=(step, replace(after, after_failure=True)))


def _read(value: Json, step: Step) -> tuple[Json, float | None]:
    """Return the answer of a tier and its confidence, if it gave one."""
    if step.schema is None or not isinstance(value, dict):
        return value, None
    confidence = value.get("confidence")
    only = value["answer"] if value.keys() == {"answer", "confidence"} else value
    return only, float(confidence) if isinstance(confidence, int | float) else None
