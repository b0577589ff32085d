"""The agent loop: think (ask the model), act (run the calls it asks for), observe (their answers), decide (go
on or end).

The conversation is part of the folded state, so a loop that starts on a resumed state goes on exactly
where the log ends: open tool calls first, then the next model turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec.structs import replace

from kestrel_lab.adapters.adapter import is_adapter
from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.errors import ModelError, error_boundary
from kestrel_lab.core.events.union import ModelDelta, Progress, Prompted
from kestrel_lab.core.messages import (
    Message,
    ModelAnswer,
    ModelParams,
    ModelRequest,
    ThinkingDelta,
    ToolRequest,
)
from kestrel_lab.core.plan import Step
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.usage import IdleTime
from kestrel_lab.eventlog.conversation import Conversation
from kestrel_lab.middleware.layers import GuardedLayer, compose_layers
from kestrel_lab.middleware.record_events import RecordModel
from kestrel_lab.models.chat_format import object_schema
from kestrel_lab.runtime.agent.adapter_step import run_adapter
from kestrel_lab.runtime.agent.compaction import make_room
from kestrel_lab.runtime.agent.tool_calls import run_turn
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.images import with_images
from kestrel_lab.runtime.context.price_check import check_price, warn_unpriced
from kestrel_lab.runtime.context.run_context import RunContext, call_hooks
from kestrel_lab.runtime.memory.run_memory import with_note_texts
from kestrel_lab.runtime.supervision.model_guard import guard_model

SILENT: Final = "You ended without a text. Say what came of it: give your answer now, as plain text."
"""Prompt sent once after an empty answer."""
WITHHELD: Final = ("content_filter", "refusal")
"""Ends of an answer that the provider or the model withholds: asking again does not help."""


async def run_agent(step: Step, ctx: RunContext, approvals: RunApprovals) -> str:
    """Work on `step` until the model answers without calling a tool; return that answer.

    A model that falls silent after tool calls is asked once for an answer; if it then says nothing either,
    the answer is empty, as is one that the provider withheld. Raises `LimitError` when a limit is reached,
    `ModelError` when the model fails or does nothing at all, and `ApprovalRequired` when a call needs a
    person and none is here.
    """
    if is_adapter(model := ctx.model_of(step)):
        return await run_adapter(step, model, ctx, approvals)
    conversation = ctx.state.conversation(step.id)
    while True:
        yielded = False
        asked = conversation.requests
        if asked:
            await call_hooks(ctx, "before_act", step.id)
            yielded = await run_turn(step, conversation, ctx, approvals)
        elif conversation.messages[-1].role == "assistant":
            await call_hooks(ctx, "before_decide", step.id)
            done = (
                conversation.messages[-1].text.strip()
                or conversation.finish in WITHHELD
                or conversation.again
                or not _has_called_tools(conversation)
            )
            await call_hooks(
                ctx,
                "after_decide",
                step.id,
                goes_on=not done,
                answer=conversation.messages[-1].text if done else "",
            )
            if done:
                return _answer(conversation)
            ctx.emit(Prompted(step=step.id, text=SILENT, again=True))
        observed = bool(asked) and ctx.given.usual.get("hooks") is not None
        answers = (
            {
                message.call_id: message.text
                for message in conversation.messages[-len(asked) :]
                if message.role == "tool"
            }
            if observed
            else {}
        )
        if observed:
            await call_hooks(ctx, "after_act", step.id, answers=answers)
            await call_hooks(ctx, "before_observe", step.id, answers=answers)
        await ctx.yield_control(turn=not yielded)
        await make_room(
            step, ctx.model_of(step), conversation, ctx, lambda asker, asking: _final_text(asker, asking, ctx)
        )
        if observed:
            await call_hooks(ctx, "after_observe", step.id, answers=answers)
            await call_hooks(ctx, "before_decide", step.id)
            await call_hooks(ctx, "after_decide", step.id, goes_on=True)
        await _turn(step, conversation, ctx)


async def _turn(step: Step, conversation: Conversation, ctx: RunContext) -> None:
    cycle, model = conversation.cycles + 1, ctx.model_of(step)
    call = f"{step.id}.m{cycle}"
    await ctx.allowance.reserve(call, step.id, cycle, model, lambda: ctx.check_limits(step))
    try:
        await call_hooks(ctx, "before_think", step.id, cycle=cycle)
        await _think(call, cycle, model, step, conversation, ctx)
        await call_hooks(ctx, "after_think", step.id)
    finally:
        ctx.allowance.end(call)


async def _final_text(step: Step, conversation: Conversation, ctx: RunContext) -> str:
    await _turn(step, conversation, ctx)
    return conversation.text


async def _think(
    call_id: str, cycle: int, model: Model, step: Step, conversation: Conversation, ctx: RunContext
) -> None:
    sent: Sequence[Message] = conversation.sent
    if ctx.state.recalled:
        sent = await with_note_texts(sent, ctx)
    call = Call(
        id=call_id,
        kind="model",
        target=model.name,
        request=_params(step, ctx).over(
            ModelRequest(
                messages=with_images(sent, ctx.services.store),
                tools=ctx.specs_of(step),
                schema=None if step.schema is None else object_schema(step.schema),
                temperature=step.temperature,
                stream=bool(ctx.listeners),
            )
        ),
        step=step.id,
        effect="pure",
    )

    limits = ctx.given.limits
    idle = IdleTime(hold=ctx.clock.hold, release=ctx.clock.release, give_back=ctx.clock.give_back)

    async def ask(asked: Call) -> Result:
        assert asked.request is not None
        with error_boundary(ModelError, f"model {model.name!r}"):
            answer = await guard_model(
                model,
                ctx.services.supervisor,
                ctx.emit,
                patience_s=limits.patience_s,
                idle=idle,
                call_s=limits.model_seconds,
                before_call=partial(check_price, ctx),
            )(
                asked.request,
                lambda text: ctx.tell(
                    ModelDelta(call=asked.id, text=text, thinking=isinstance(text, ThinkingDelta))
                ),
            )
            if not isinstance(answer, ModelAnswer):
                raise TypeError(f"it returned a value of type {type(answer).__name__}, not a ModelAnswer")
        # Models reuse ids between turns; ours are unique in the run, whichever model answers.
        calls = tuple(
            [
                replace(
                    wanted if isinstance(wanted.args, dict) else _without_arguments(wanted),
                    id=f"{step.id}.{cycle}.{place}",
                )
                for place, wanted in enumerate(answer.calls, 1)
            ]
        )
        return Result(answer=replace(answer, calls=calls))

    unpriced = ctx.state.usage.unpriced
    layers = map(GuardedLayer, ctx.given.usual["middleware"])
    result = await compose_layers(ask, RecordModel(ctx.emit, cycle, idle), *layers)(call)
    # Of other models only their answers tell whether their calls have a price.
    if unpriced == 0 < ctx.state.usage.unpriced:
        warn_unpriced(ctx, model)
    if result.answer is not None and result.answer.finish == "length":
        ctx.emit(Progress(text="the model's answer was cut off at its output limit"))


def _without_arguments(wanted: ToolRequest) -> ToolRequest:
    """Return a call whose arguments are not an object as one that is answered with that error."""
    problem = (
        wanted.problem
        or f"the arguments of {wanted.name} have to be a JSON object, not {str(wanted.args)[:80]}"
    )
    return replace(wanted, args={}, problem=problem)


def _params(step: Step, ctx: RunContext) -> ModelParams:
    run = ModelParams.of(ctx.given.options.get("params"))
    return run | ModelParams.of(step.params) if step.params else run


def _has_called_tools(conversation: Conversation) -> bool:
    return any(message.role == "tool" for message in conversation.messages)


def _answer(conversation: Conversation) -> str:
    text = conversation.messages[-1].text.strip()
    if not text and conversation.finish not in WITHHELD and not _has_called_tools(conversation):
        raise ModelError("the model ended without an answer: neither text nor a tool call")
    return text
