"""The operations `intake` (the intent of a goal decides the form of its answer) and `converse` (prepared user
turns).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from kestrel_lab.answers.contracts import CONTRACTS, FOR_INTENT, parse_level
from kestrel_lab.answers.intent import decide_intent
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.operation import Done, Scope, prefix_steps
from kestrel_lab.runtime.operations.arguments import Arguments, step_dialogue, temperature_of
from kestrel_lab.runtime.operations.verify_plan import verification_step

_DRAFT: Final = "answer_of_{}"


async def intake(scope: Scope) -> Done:
    """Classify the intent of `goal`, work on it with the contract of that intent, and verify the answer.

    Arguments: `goal`, the run's if not given; `verify`, the level of verification beside the form (`warn`).
    Rules guess the intent; only where they are unsure the model is asked, once and at temperature 0, and an
    answer that names no intent leaves the guess as it is. Grows `work` and `check`; the last artifact that
    this step produces is the answer that passed, one before it the operation's own output, `{intent, share,
    by, form}`.
    """
    args = Arguments(scope)
    goal = args.goal() or args.required("goal")
    level = parse_level(args.text("verify") or "warn")

    async def second(question: str) -> str:
        try:
            return await step_dialogue(scope, temperature=temperature_of(scope)).ask(question, str)
        except ModelError:
            if not scope.ctx.state.conversation(scope.step.id).replies:
                raise
            return ""  # it answered with nothing; a model that cannot be reached could not do the work either

    found = await decide_intent(goal, second)
    form = FOR_INTENT[found.intent]
    draft = _DRAFT.format(scope.step.id)
    check = verification_step("check", draft, level, form)
    steps = (
        Step(id="work", goal=goal, instructions=CONTRACTS[form].instructions, produces=(draft,)),
        replace(check, produces=scope.step.produces[-1:]),
    )
    grown = prefix_steps(scope.step.id, steps, stage=scope.step.stage)
    return Done(
        output={"intent": found.intent, "share": round(found.share, 3), "by": found.by, "form": form},
        grows=grown,
    )


async def converse(scope: Scope) -> Done:
    """Send the texts `says` to the step's model one by one, each after the answer to the one before; the last
    answer is the output.
    """
    talk, answer = step_dialogue(scope), ""
    for text in cast("list[str]", scope.args["says"]):
        answer = await talk.ask(text, str)
    return Done(output=answer)


def conversation_plan(says: tuple[str, ...], tools: tuple[str, ...]) -> Plan:
    """Return a plan of one conversation with these user turns and tools."""
    return Plan(
        steps=(
            Step(
                id="conversation",
                operation="converse",
                args={"says": escape_template(list[Json](says))},
                tools=tools,
            ),
        )
    )
