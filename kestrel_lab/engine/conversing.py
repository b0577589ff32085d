"""The operation `converse`: what a user says, one thing after the other, each when the one before has been answered."""

from __future__ import annotations

from typing import cast

from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.core.template import escape
from kestrel_lab.engine.dialogue import Dialogue
from kestrel_lab.engine.operation import Done, Scope


async def converse(scope: Scope) -> Done:
    """Say each of the texts `says` to the step's model, which uses the step's tools until it answers; the last answer is the output."""
    dialogue = Dialogue(scope.step, scope.ctx, scope.desk)
    answer = ""
    for text in cast("list[str]", scope.args["says"]):
        answer = await dialogue.ask(text, str)
    return Done(output=answer)


def conversation(says: tuple[str, ...], tools: tuple[str, ...]) -> Plan:
    """A plan of one conversation in which the user says so and the agent may use these tools."""
    return Plan(steps=(Step(id="conversation", operation="converse", args={"says": escape(list(says))}, tools=tools),))
