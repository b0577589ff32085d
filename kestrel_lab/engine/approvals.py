"""Who decides on a call: the policy, an earlier decision, whoever is here, or another process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from kestrel_lab.core.calls import REPEATABLE, Call, Danger
from kestrel_lab.core.errors import AlreadyDecided, ApprovalRequired, UsageError
from kestrel_lab.core.events import ApprovalAsked, ApprovalGiven, Record
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.states import RunStatus
from kestrel_lab.core.text import head_tail
from kestrel_lab.engine.containment import met, why_denied
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.noting import notes_of
from kestrel_lab.engine.origins import origins_of
from kestrel_lab.engine.references import worded
from kestrel_lab.engine.ruled import binding, is_for, standing_leave
from kestrel_lab.log.notify import wait_until
from kestrel_lab.middleware.policy import Ruling
from kestrel_lab.tools.registry import ToolArgumentsError, ToolContext
from kestrel_lab.tools.rules.offering import offer

PREVIEW_CHARS = 20_000
"""How much of what a call would change is recorded with the question about it."""
ALWAYS = "a yes for the rest of the run"
"""Who let a call go on that is like one that a person allowed for the whole run."""


@dataclass
class ApprovalDesk:
    """Decides on the calls of one run, one at a time or many at once.

    A question is on disk before anyone is asked. The first answer stands, whether it comes from the
    approver here, from `Run.decide`, or from another process; the run goes on at once.
    """

    ctx: RunContext
    _answers: dict[str, asyncio.Future[ApprovalGiven]] = field(default_factory=dict)
    _in_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Questions of a turn are asked in the order of its calls, however long their previews take."""

    async def decide(self, call: Call) -> ApprovalGiven | None:
        """The decision on `call`, or `None` when none is needed.

        Raises `ApprovalRequired` when it must be asked and nobody is here.
        """
        unknown = call.attempt > 1 and call.effect not in REPEATABLE
        question = f"{call.id}#{call.attempt}" if unknown else call.id
        if call.unheld:  # leave that was given for a command in a sandbox is none for one without
            question += "@S0"
        bound = binding(call, self.ctx.tools, self.ctx.workspace)
        if not is_for(self.ctx.state, question, call, bound):  # another call than the one that was decided on
            question += f"@{bound[:8]}"
        await self._withdraw(call, question)
        if (known := self.ctx.state.decisions.get(question)) is not None:
            return known
        contained = self._contained(call)
        if call.attempt > 1 and not unknown and not contained:
            return None
        ruling = self.ctx.policy.ruling(call)
        forbidden = ruling.how == "rule" and ruling.verdict == "deny"
        if self._asks_person(call) and not forbidden:
            return await self._put(_asked(call, "question", bound), call)
        always = not forbidden and not self._each_for_itself(call) and standing_leave(self.ctx.state, call, bound)
        needed = unknown or bool(contained) or not (always or ruling.verdict == "allow")
        if not needed and question not in self.ctx.state.questions:
            return _gone_on(call, ruling, always=always)
        why = (
            "unknown_outcome"
            if unknown
            else ruling.why
            if ruling.how == "rule" and not contained
            else "contained"
            if contained
            else "danger"
        )
        asked = replace(_asked(call, why, bound), question=question, offer=offer(call), contained=contained)
        if contained and ruling.verdict != "deny" and self._nobody_decides():
            return await self._settle(asked, Ruling("deny", "policy", why_denied(contained), "policy"), granted=False)
        if needed and ruling.verdict != "deny":
            return await self._ask(asked, call)
        if always:
            ruling = Ruling("allow", "policy", "allowed for the whole run", "policy")
        return await self._settle(asked, ruling, granted=not needed)

    async def _withdraw(self, call: Call, question: str) -> None:
        """Answer what an earlier session asked about this call when it was another one: nobody needs to any more."""
        for asked in [asked for asked in self.ctx.state.questions.values() if asked.call == call.id and asked.question != question]:
            await self._settle(asked, Ruling("deny", "policy", "the call is another one now", "policy"), granted=False)

    def _contained(self, call: Call) -> dict[str, Json]:
        """What met in `call` that only a person may allow, whatever the policy says; empty where nothing did."""
        ctx = self.ctx
        if ctx.containment == "off" or call.target not in ctx.tools:
            return {}
        return met(call, ctx.tools.get(call.target), ctx.flow, ctx.workspace)

    def _nobody_decides(self) -> bool:
        """Whether no person is to be waited for."""
        policy = self.ctx.policy
        return policy.otherwise == "deny" or (policy.unattended and self.ctx.approver is None)

    def _each_for_itself(self, call: Call) -> bool:
        """Whether leave for one call says nothing of another one: its arguments decide how dangerous it is."""
        return call.target in self.ctx.tools and self.ctx.tools.get(call.target).danger_of is not None

    def _asks_person(self, call: Call) -> bool:
        return call.target in self.ctx.tools and self.ctx.tools.get(call.target).asks_person

    async def _put(self, asked: ApprovalAsked, call: Call) -> ApprovalGiven | None:
        """Put a question to a person: under `ask` the run waits for one, under `auto` only if one is here, under `deny` never."""
        policy = self.ctx.policy
        if not policy.unattended or (policy.otherwise == "ask" and self.ctx.approver is not None):
            return await self._ask(asked, call)
        if asked.question in self.ctx.state.questions:
            return await self._settle(asked, Ruling("deny", "policy", "nobody is here to answer", "policy"), granted=False)
        return None

    async def _preview(self, call: Call) -> str:
        """What the call would change, read in a thread; a preview that fails is none, the question is asked without."""
        preview = self.ctx.tools.get(call.target).preview if call.target in self.ctx.tools else None
        if preview is None:
            return ""
        scope = ToolContext(workspace=self.ctx.workspace, notes=notes_of(self.ctx, call.step))
        try:
            text = await asyncio.to_thread(preview, call.args, scope)
        except Exception as error:  # noqa: BLE001  # the boundary to a tool's own code; the person is told
            text = f"no preview: {type(error).__name__}: {error}"
        return head_tail(text, PREVIEW_CHARS)[0]

    def answer(self, given: ApprovalGiven) -> None:
        """Hand in a decision from this process; the first one stands. Call on the run's loop."""
        question = given.question or given.call
        waiting = self._answers.get(question)
        if waiting is not None and not waiting.done():
            waiting.set_result(given)
        elif waiting is None and question in self.ctx.state.questions:  # nobody was here to be asked
            self.ctx.emit(replace(given, question=question), urgent=True)

    def checked(self, asked: ApprovalAsked, given: ApprovalGiven) -> ApprovalGiven:
        """`given` with edited arguments completed; raises `UsageError` if they do not fit the tool."""
        if given.args is None or not given.granted:
            return given
        try:
            return replace(given, args=self.ctx.tools.get(asked.tool).validate(given.args))
        except ToolArgumentsError as error:
            raise UsageError(str(error)) from error

    async def _settle(self, asked: ApprovalAsked, ruling: Ruling, *, granted: bool) -> ApprovalGiven:
        """Decide by rule or policy, also on a question that an earlier session left open."""
        if asked.question not in self.ctx.state.questions:
            self.ctx.emit(replace(asked, origins=origins_of(asked.args, self.ctx.flow.now())) if asked.contained else asked)
        by = ruling.by if ruling.how == "rule" else "policy"
        given = ApprovalGiven(call=asked.call, question=asked.question, granted=granted, by=by, how=ruling.how, reason=ruling.why)
        return self._go_on(await self._record(given))

    def _go_on(self, given: ApprovalGiven) -> ApprovalGiven:
        if not self.ctx.state.questions and self.ctx.state.status is RunStatus.WAITING_APPROVAL:
            self.ctx.go(RunStatus.EXECUTING, "decided")
        return given

    async def _ask(self, asked: ApprovalAsked, call: Call) -> ApprovalGiven:
        ctx = self.ctx
        async with self._in_order:
            if asked.question not in ctx.state.questions:
                told = replace(asked, preview=await self._preview(call), origins=origins_of(call.args, ctx.flow.now()))
                ctx.emit(told, urgent=True, shown=await worded(told, ctx))
            asked = await worded(ctx.state.questions[asked.question], ctx)
        if ctx.state.status is RunStatus.EXECUTING:
            ctx.go(RunStatus.WAITING_APPROVAL, f"{asked.tool} waits for {'an answer' if asked.why == 'question' else 'approval'}")
        await ctx.on_disk()
        if (known := ctx.state.decisions.get(asked.question)) is not None:  # a listener was quick
            return self._go_on(known)
        if ctx.approver is None:
            raise ApprovalRequired(ctx.run_id, asked.tool, asked.args, question=asked.why == "question")
        ctx.clock.hold()
        try:
            given = await self._first_answer(asked)
        finally:
            ctx.clock.release()
        return self._go_on(given)

    async def _first_answer(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Race the approver, `answer` and the log; record what is not recorded yet."""
        ctx, question = self.ctx, asked.question
        began = time.perf_counter()
        here: asyncio.Future[ApprovalGiven] = asyncio.get_running_loop().create_future()
        self._answers[question] = here
        elsewhere = asyncio.create_task(wait_until(ctx.store.path, lambda: ctx.store.decision(ctx.run_id, question)))
        person = asyncio.create_task(self._ask_person(asked))
        racers: tuple[asyncio.Future[Any], ...] = (here, elsewhere, person)
        try:
            done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
            if elsewhere in done:
                return _adopt(ctx, elsewhere.result())
            first = here if here in done else person
            given = replace(first.result(), call=asked.call, question=question, waited=time.perf_counter() - began)
            return await self._record(given)
        finally:
            del self._answers[question]
            for racer in racers:
                racer.cancel()
            await asyncio.gather(elsewhere, person, return_exceptions=True)

    async def _ask_person(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Ask until the answer can be used: edited arguments must fit the tool."""
        assert self.ctx.approver is not None
        while True:
            given = await self.ctx.approver(asked)
            try:
                return self.checked(asked, given)
            except UsageError as error:
                asked = replace(asked, args=given.args or {}, why=str(error), preview="")

    async def _record(self, given: ApprovalGiven) -> ApprovalGiven:
        """Make `given` the decision, unless another process was faster: then that one stands.

        A cancellation waits for it, because what is in the log must be in the state too.
        """
        writing = asyncio.create_task(self._write(given))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _write(self, given: ApprovalGiven) -> ApprovalGiven:
        ctx, at = self.ctx, time.time()
        done = ctx.store.append(ctx.run_id, given, at=at, urgent=True)
        try:
            await asyncio.wrap_future(done)
        except AlreadyDecided:
            earlier = ctx.store.decision(ctx.run_id, given.question)
            if earlier is None:
                raise
            return _adopt(ctx, earlier)
        ctx.adopt(given, at)
        return given


def _gone_on(call: Call, ruling: Ruling, *, always: bool) -> ApprovalGiven | None:
    """Leave without a question, which `tool_called` will say; `None` for what is so harmless that no policy asks about it."""
    if ruling.how == "policy" and call.danger <= Danger.LOW:
        return None
    by, how, why = (ALWAYS, "policy", "") if always and ruling.verdict != "allow" else (ruling.by, ruling.how, ruling.why)
    return ApprovalGiven(call=call.id, granted=True, by=by, how=how, reason=why)


def _asked(call: Call, why: str, key: str) -> ApprovalAsked:
    return ApprovalAsked(
        call=call.id,
        step=call.step,
        tool=call.target,
        args=call.args,
        danger=call.danger.name,
        key=key,
        why=why,
        question=call.id,
        sandbox=call.sandbox,
    )


def _adopt(ctx: RunContext, record: Record) -> ApprovalGiven:
    ctx.adopt(record.event, record.at)
    assert isinstance(record.event, ApprovalGiven)
    return record.event
