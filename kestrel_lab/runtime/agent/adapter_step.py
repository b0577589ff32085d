"""A step that another agent's program works on: what it tells becomes the events of the run, its questions
become approvals.

The program makes its own calls, so middleware, cache and containment of ours do not apply to them; its
sandbox, the run's limits and approvals do. A resumed run continues the program's own session, or begins a
new one with the conversation so far as its first message.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final, cast

from kestrel_lab.adapters.adapter import Adapter, Decision, Permission, Reported, Task, ToolDone, Turn
from kestrel_lab.core.calls import Call, Danger, Problem
from kestrel_lab.core.errors import ModelError, RunError, ToolError
from kestrel_lab.core.events.tool_kinds import only_reads
from kestrel_lab.core.events.union import (
    ApprovalGiven,
    BudgetWarned,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    Progress,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.core.step import Step
from kestrel_lab.host.user import decider
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.images import with_images
from kestrel_lab.runtime.context.price_check import warn_unpriced
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.memory.run_memory import with_note_texts
from kestrel_lab.tools.sandbox.select import Choice, choose_level_async

GO_ON: Final = "You were stopped in the middle of your work. Go on with it."
_RESULT: Final = 20_000
"""Characters of a result that are shown; a longer one is kept whole beside the log."""
_RETOLD: Final = 4_000
"""Characters of each result that are sent again to a program that lost its session."""


async def run_adapter(step: Step, adapter: Adapter, ctx: RunContext, approvals: RunApprovals) -> str:
    """Have the program of `adapter` work on `step` until it answers; return that answer.

    Raises what `run_agent` raises.
    """
    conversation = ctx.state.conversation(step.id)
    if conversation.messages[-1].role == "assistant" and not conversation.requests:
        return conversation.messages[-1].text.strip()
    adapter.check(ctx.given.workspace.root)
    # It has to reach its model.
    sandbox = replace(ctx.given.sandbox, network=True)
    choice = await choose_level_async(sandbox, ctx.given.workspace.root)
    work = _Work(step, adapter, ctx, approvals, choice)
    if not (adapter.capabilities.approvals and choice.wanted):
        await work.ask_to_begin()
    work.keep_decisions()
    if (may_spend := ctx.given.limits.cost_usd) is not None and not adapter.capabilities.cost:
        text = (
            f"{adapter.name} does not report what it spends: the limit of ${may_spend:g} cannot stop it, "
            "only those of time and turns can"
        )
        ctx.emit(BudgetWarned(limit="cost_usd", message=text))
    work.close_calls("the program was stopped while this call ran or waited; it may have taken effect")
    # Programs look for a session in the folder where it was begun.
    moved = conversation.borrowed and bool(ctx.state.private_copy)
    resumes = (
        bool(conversation.session)
        and not moved
        and (not conversation.borrowed or adapter.capabilities.resume == "any")
    )
    messages = with_images(await with_note_texts(conversation.sent, ctx), ctx.services.store)
    last = messages[-1] if messages[-1].role == "user" else Message(role="user", text=GO_ON)
    form = (
        ""
        if step.schema is None
        else f"\n\nAnswer with nothing but JSON that fits this JSON Schema:\n{json.dumps(step.schema)}"
    )
    prompt = f"{last.text}{form}"
    task = Task(
        prompt=prompt,
        transcript=f"{_conversation_text(messages[:-1] if last is messages[-1] else messages)}{prompt}",
        folder=ctx.given.workspace.root,
        level=choice.level,
        sandbox=sandbox,
        ask=work.ask,
        delta=work.delta,
        instructions="\n\n".join(filter(None, (ctx.given.options["instructions"], step.instructions))),
        images=last.images,
        session=conversation.session if resumes else "",
        copy=conversation.borrowed,
        turns=None
        if ctx.given.limits.cycles is None
        else max(1, ctx.given.limits.cycles - ctx.state.usage.model_calls),
        cost_usd=None
        if ctx.given.limits.cost_usd is None
        else max(0.01, ctx.given.limits.cost_usd - ctx.state.usage.cost_usd),
        pty=bool(ctx.given.options.get("pty") or ctx.given.usual["pty"]),
    )
    try:
        await work.keep_files(step.id, "before")
        work.ask_model()
        async with aclosing(adapter.work(task)) as telling:  # type: ignore[type-var]  # every adapter's is a generator
            async for reported in telling:
                if isinstance(reported, ToolDone):
                    await work.keep_files(reported.call, "after")
                await work.take(reported)
        await work.keep_files(step.id, "after")
    except (RunError, asyncio.CancelledError) as error:
        work.broke(error)
        raise
    work.close_calls("the program ended without a result of this call")
    if work.asked or conversation.messages[-1].role != "assistant":
        nothing = ModelError(f"{adapter.name} ended without an answer")
        work.broke(nothing)
        raise nothing
    return conversation.messages[-1].text.strip()


class _Work:
    """What a program has reported of one step and the log does not have yet."""

    def __init__(
        self, step: Step, adapter: Adapter, ctx: RunContext, approvals: RunApprovals, choice: Choice
    ) -> None:
        self._step, self._adapter, self._ctx = step, adapter, ctx
        self._approvals, self._choice = approvals, choice
        self._conversation = ctx.state.conversation(step.id)
        self.asked = ""
        """The model call that was reported as begun and has no answer."""
        self._since = self._turned = 0.0
        self._ours: dict[str, Call] = {}
        """Calls by the program's ids."""
        self._denied: set[str] = set()
        self._given: dict[str, ApprovalGiven] = {}
        """Decisions that came after the program stopped waiting, by call key; used if it asks again."""
        self._held: deque[Reported] = deque()
        """Messages that wait for results of earlier calls: a turn is logged once the last one is complete."""

    async def ask_to_begin(self) -> None:
        """Ask once for leave of a program that asks for none itself, or that no sandbox holds."""
        args = {"goal": self._step.goal or self._step.work}
        danger = Danger.HIGH if self._choice.wanted else Danger.CRITICAL
        call = Call(
            id=f"{self._step.id}.start",
            kind="tool",
            target=self._adapter.name,
            args={**args},
            step=self._step.id,
            danger=danger,
        )
        self._approvals.of_programs[call.id] = False
        given = await self._approvals.decide(replace(call, sandbox=self._level))
        if given is not None and not given.granted:
            raise ToolError(
                f"{self._adapter.name} was not allowed to begin"
                + (f": {given.reason}" if given.reason else "")
            )

    @property
    def _level(self) -> str:
        return f"{self._choice}{' with network' if self._choice.level else ''}"

    async def keep_files(self, call: str, when: str) -> None:
        """Keep what files hold, see `FileHistory`: the program changes them itself."""
        if self._ctx.history is not None:
            await self._ctx.history.note(call, when, self._ctx.emit)

    def ask_model(self) -> None:
        """Record that the program's model is asked. Raises `LimitError` when no further turn is left."""
        if self.asked:
            return
        self._ctx.check_limits(self._step)
        self._begin_turn()

    def _begin_turn(self) -> None:
        cycle = self._conversation.cycles + 1
        self.asked, self._since = f"{self._step.id}.m{cycle}", time.perf_counter()
        messages = len(self._conversation.messages)
        self._ctx.emit(
            ModelCalled(
                call=self.asked, step=self._step.id, model=self._adapter.name, cycle=cycle, messages=messages
            )
        )

    def delta(self, text: str) -> None:
        """Show a piece of text."""
        if self._ctx.listeners and self.asked:
            self._ctx.tell(ModelDelta(call=self.asked, text=text))

    async def take(self, reported: Reported) -> None:
        """Record what the program tells, in an order that a conversation can have."""
        await self._ctx.yield_control()
        late = isinstance(reported, Turn) or (
            isinstance(reported, ToolDone) and reported.call not in self._ours
        )
        if late and (self._held or self._conversation.open_requests):
            self._held.append(reported)
            return
        self._record(reported)
        while self._held and not self._conversation.open_requests:
            self._record(self._held.popleft())
            while (done := next(self._results(), None)) is not None:
                self._held.remove(done)
                self._record(done)

    def _results(self) -> Iterator[ToolDone]:
        return (one for one in self._held if isinstance(one, ToolDone) and one.call in self._ours)

    def _record(self, reported: Reported) -> None:
        if isinstance(reported, Turn):
            self._turn(reported)
        elif isinstance(reported, ToolDone):
            self._done(reported)
        else:
            self._ctx.emit(Progress(text=self._ctx.services.redactor.text(reported.text)))

    def _turn(self, turn: Turn) -> None:
        if not self.asked:
            self._begin_turn()
        cycle, answer, usage = self._conversation.cycles, turn.answer, turn.answer.usage
        calls = [
            replace(one, id=f"{self._step.id}.{cycle}.{place}") for place, one in enumerate(answer.calls, 1)
        ]
        for theirs, ours in zip(answer.calls, calls, strict=True):
            self._ours[theirs.id] = self._call(
                ours.id, ours.name, self._ctx.services.redactor.json(ours.args), Danger.SAFE
            )
        unpriced = self._ctx.state.usage.unpriced
        asked, self.asked, self._turned = self.asked, "", time.perf_counter()
        self._ctx.emit(
            ModelAnswered(
                call=asked,
                step=self._step.id,
                model=answer.model or self._adapter.name,
                text=self._ctx.services.redactor.text(answer.text),
                calls=[
                    {"id": one.id, "name": one.name, "args": self._ours[theirs.id].args}
                    for one, theirs in zip(calls, answer.calls, strict=True)
                ],
                tokens_in=usage.tokens_in,
                tokens_out=usage.tokens_out,
                tokens_cached=usage.tokens_cached,
                tokens_cache_written=usage.tokens_cache_written,
                tokens_reasoning=usage.tokens_reasoning,
                cost_usd=None if usage.unpriced else usage.cost_usd,
                seconds=time.perf_counter() - self._since,
                finish=answer.finish,
                metered=turn.counted,
                session=turn.session,
            )
        )
        # A program without a cost was told of before it began.
        if self._adapter.capabilities.cost and unpriced == 0 < self._ctx.state.usage.unpriced:
            warn_unpriced(self._ctx, self._adapter)
        # Nobody is asked: they run already.
        if not self._adapter.capabilities.approvals:
            for one in calls:
                self._run(next(call for call in self._ours.values() if call.id == one.id), "")

    def _call(self, known: str, tool: str, args: Json, danger: Danger) -> Call:
        return Call(
            id=known,
            kind="tool",
            target=tool,
            args=cast("dict[str, Json]", args),
            step=self._step.id,
            danger=danger,
            sandbox=self._level,
        )

    def _run(self, call: Call, leave: str) -> None:
        # Of a call that was not asked about nobody knows.
        danger = call.danger.name if leave else ""
        event = ToolCalled(
            call=call.id,
            step=call.step,
            tool=call.target,
            args=call.args,
            danger=danger,
            effect="pure" if only_reads(call.target, call.args) else "opaque",
            sandbox=call.sandbox,
            leave=leave,
        )
        self._ctx.emit(event)

    def _done(self, done: ToolDone) -> None:
        call = self._ours.get(done.call)
        if call is None:
            self._ctx.emit(Progress(text=f"{self._adapter.name}: a result of a call that it did not make"))
            return
        if call.id not in self._ctx.state.begun and call.id not in self._denied:
            self._run(call, "")
        whole = self._ctx.services.redactor.text(done.text)
        text, cut = head_tail(whole, _RESULT)
        name, chars = self._ctx.services.store.results.keep(whole) if cut else ("", 0)
        kind = "denied" if call.id in self._denied else "failed"
        problem = (
            Problem(kind=kind, message=text or f"{call.target} failed").as_json() if done.error else None
        )
        answered = ToolAnswered(
            call=call.id,
            step=call.step,
            tool=call.target,
            text=text,
            error=problem,
            seconds=time.perf_counter() - self._turned,
            truncated=cut,
            whole=name,
            chars=chars,
            session=done.session,
        )
        self._ctx.emit(answered)
        if not self._conversation.open_requests and not self._held:
            self.ask_model()

    async def ask(self, asked: Permission) -> Decision:
        """Ask the run's approver a question of the program."""
        request = asked.request
        known = self._ours.get(request.id)
        # Of a sub-agent's call.
        name = (
            known.id if known is not None else f"{self._step.id}.{self._conversation.cycles}.sub.{request.id}"
        )
        call = self._call(name, request.name, self._ctx.services.redactor.json(request.args), asked.danger)
        self._approvals.of_programs[name] = self._adapter.capabilities.edits
        if asked.lasting:
            self._approvals.lasting.add(name)
        given = self._given.pop(call.key, None) or await self._approvals.decide(call)
        if given is not None and not given.granted:
            self._denied.add(name)
            because = f": {given.reason}" if given.reason else ""
            return Decision(
                granted=False,
                reason=f"{request.name} was denied by {decider(given.by)}{because}. Do not repeat this call.",
            )
        args = None if given is None else given.args
        if known is not None:
            call = call if args is None else replace(call, args=args)
            self._ours[request.id] = call
            self._run(call, _decision_text(given))
            await self._ctx.on_disk()
        return Decision(granted=True, args=args)

    def keep_decisions(self) -> None:
        """Keep decisions on calls that the program could not make because the run had stopped to wait."""
        for request in self._conversation.open_requests:
            given = self._ctx.state.decisions.get(request.id)
            if given is not None and request.id not in self._ctx.state.begun:
                self._given[
                    self._call(request.id, request.name, cast("Json", request.args), Danger.SAFE).key
                ] = given

    def close_calls(self, why: str) -> None:
        """Answer what has no answer, so that the conversation is whole."""
        while self._conversation.open_requests or self._held:
            for request in self._conversation.open_requests:
                problem = Problem(kind="unknown_outcome", message=why).as_json()
                self._ctx.emit(
                    ToolAnswered(
                        call=request.id, step=self._step.id, tool=request.name, text=why, error=problem
                    )
                )
            while self._held and not self._conversation.open_requests:
                self._record(self._held.popleft())

    def broke(self, error: BaseException) -> None:
        """Record that a model call has no answer, and why."""
        if self.asked:
            stopped = not isinstance(error, ModelError)
            kind, text = ("cancelled", "the program was stopped") if stopped else ("failed", str(error))
            problem = Problem(kind=kind, message=text).as_json()
            seconds = time.perf_counter() - self._since
            self._ctx.emit(
                ModelAnswered(
                    call=self.asked,
                    step=self._step.id,
                    model=self._adapter.name,
                    error=problem,
                    seconds=seconds,
                )
            )
            self.asked = ""


def _decision_text(given: ApprovalGiven | None) -> str:
    if given is None:
        return "its danger asks for nobody's leave"
    return f"{given.by}: {given.reason}" if given.reason and given.how != "policy" else given.by


def _conversation_text(messages: Sequence[Message]) -> str:
    """Return a conversation as text, for a program that does not have it; empty where there is none."""
    said = []
    for message in messages:
        if message.role == "system":
            continue
        calls = "".join(
            f"\n[call of {call.name}: {json.dumps(call.args, ensure_ascii=False)}]" for call in message.calls
        )
        who = f"result of {message.name}" if message.role == "tool" else message.role
        said.append(f"{who}: {head_tail(message.text, _RETOLD)[0]}{calls}")
    return (
        f"The conversation so far, in which you are the assistant:\n\n{chr(10).join(said)}\n\nNow:\n\n"
        if said
        else ""
    )
