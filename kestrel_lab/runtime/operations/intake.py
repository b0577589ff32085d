"""The operation `intake`: what a goal asks for decides which form its answer is to have."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from kestrel_lab.answers.contracts import CONTRACTS, FOR_INTENT
from kestrel_lab.answers.intent import settle
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.expressions.templates import escape
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.agent.structured_output import Dialogue
from kestrel_lab.runtime.execution.artifacts import as_text
from kestrel_lab.runtime.execution.operation import Done, Scope, under
from kestrel_lab.runtime.operations.verify_plan import parse_level, verification

_DRAFT: Final = "answer_of_{}"


async def intake(scope: Scope) -> Done:
    """Find out what `goal` asks for, have it worked on with the contract that fits, and have the answer verified.

    Arguments: `goal`, the run's if not given; `verify`, the level of verification beside the form (`warn`). Rules guess
    the intent; only where they are unsure the model is asked, once and without chance, and what names no intent leaves
    the guess as it is. Grows `work` and `check`; the last artifact that this step produces is the answer that passed, one
    before it the operation's own output, `{intent, share, by, form}`.
    """
    started = scope.ctx.state.started
    goal = as_text(scope.args.get("goal")).strip() or ("" if started is None else started.goal)
    if not goal:
        msg = "the operation 'intake' needs a goal in its args"
        raise UsageError(msg)
    level = parse_level(as_text(scope.args.get("verify")) or "warn")
    asks = replace(scope.step, temperature=0.0 if scope.step.temperature is None else scope.step.temperature)

    async def second(question: str) -> str:
        try:
            return await Dialogue(asks, scope.ctx, scope.desk).ask(question, str)
        except ModelError:
            if not scope.talk.replies:
                raise
            return ""  # it did answer, with nothing; a model that cannot be reached would not do the work either

    found = await settle(goal, second)
    form = FOR_INTENT[found.intent]
    draft = _DRAFT.format(scope.step.id)
    check = verification("check", draft, level, form)
    steps = (
        Step(id="work", goal=goal, instructions=CONTRACTS[form].instructions, produces=(draft,)),
        replace(check, produces=scope.step.produces[-1:]),
    )
    grown = under(scope.step.id, steps, stage=scope.step.stage)
    return Done(output={"intent": found.intent, "share": round(found.share, 3), "by": found.by, "form": form}, grows=grown)


# The operation `converse`: what a user says, one thing after the other, each when the one before has been answered.


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
