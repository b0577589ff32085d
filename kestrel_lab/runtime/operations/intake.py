"""The operations `intake` (the goal's intent decides the answer's form) and `converse` (user turns)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final, cast

from kestrel_lab.answers.contracts import CONTRACTS, FOR_INTENT, parse_level
from kestrel_lab.answers.intent import decide_intent
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.expressions.templates import escape_template
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.execution.operation import Done, Scope, prefix_steps
from kestrel_lab.runtime.operations.arguments import Arguments, step_dialogue, temperature_of
from kestrel_lab.runtime.operations.verify_plan import verification_step

_DRAFT: Final = "answer_of_{}"


async def intake(scope: Scope) -> Done:
    """Classify the intent of `goal`, work on it with the contract of that intent, and verify the answer.

    Arguments: `goal`, the run's if not given; `verify`, the level of verification beside the form (`warn`).
    The step's model names the intent, asked once and at temperature 0; where its answer names none, or the
    model is `none`, rules guess it. Grows `work` and `check`; the last artifact that
    this step produces is the answer that passed, one before it the operation's own output, `{intent, share,
    by, form}`.
    """
    args = Arguments(scope)
    goal = args.goal() or args.required("goal")
    level = parse_level(args.text("verify") or "warn")

    async def ask_model(question: str) -> str:
        try:
            return await step_dialogue(scope, temperature=temperature_of(scope)).ask(question, str)
        except ModelError:
            if not scope.ctx.state.conversation(scope.step.id).replies:
                raise
            # It answered with nothing; a model that cannot be reached could not do the work either.
            return ""

    found = await decide_intent(goal, ask_model)
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
    """Send the texts `says` to the step's model in turn; the last answer is the output.

    Behind them a model may play the `user`, `{instructions, model, turns, until}`: it says what comes next,
    until it says `until` or has had its turns. What it uses is in no number of the run; a trial adds it.
    """
    conversation, said = step_dialogue(scope), list[tuple[str, str]]()
    for text in cast("list[str]", scope.args["says"]):
        said.append((text, await conversation.ask(text, str)))
    if isinstance(user := scope.args.get("user"), dict):
        model, until = scope.ctx.given.resolve(str(user["model"])), str(user["until"])
        for _ in range(int(cast("int", user["turns"]))):
            text = (await _as_user(model, str(user["instructions"]), until, said)).strip()
            if not text or text.rstrip(".!").endswith(until):
                break
            said.append((text, await conversation.ask(text, str)))
    return Done(output=said[-1][1])


_USER: Final = """\
You play a user who talks with an assistant. Say what this user would say next, in their words, and nothing \
else: one short message, no stage directions. Tell only what the user knows. When the user has what they \
wanted, or it is clear that they will not get it, answer with {until} and nothing else.

The user:
{instructions}"""


async def _as_user(model: Model, instructions: str, until: str, said: list[tuple[str, str]]) -> str:
    """Return what a model says as the user, to whom its own earlier messages are those of an assistant."""
    messages = [Message(role="system", text=_USER.format(until=until, instructions=instructions))]
    messages.append(Message(role="user", text="(The conversation begins.)"))
    for own, answer in said:
        messages += [Message(role="assistant", text=own), Message(role="user", text=answer or "(nothing)")]
    return (await model(ModelRequest(messages=tuple(messages), stream=False), lambda _: None)).text


def conversation_plan(
    says: tuple[str, ...], tools: tuple[str, ...], user: dict[str, Json] | None = None
) -> Plan:
    """Return a plan of one conversation with these user turns and tools; see `converse` for the `user`."""
    args: dict[str, Json] = {"says": [*says]}
    if user is not None:
        args["user"] = user
    return Plan(
        steps=(Step(id="conversation", operation="converse", args=escape_template(args), tools=tools),)
    )
