"""Who decides on a call: the policy, an earlier decision, whoever is here, or another process."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Any

from kestrel_lab.core.calls import REPEATABLE, Call
from kestrel_lab.core.errors import AlreadyDecided, ApprovalRequired, UsageError
from kestrel_lab.core.events import ApprovalAsked, ApprovalGiven, Record
from kestrel_lab.core.states import RunStatus
from kestrel_lab.engine.context import RunContext
from kestrel_lab.log.notify import wait_until
from kestrel_lab.tools.registry import ToolArgumentsError


@dataclass
class ApprovalDesk:
    """Decides on the calls of one run, one at a time or many at once.

    A question is on disk before anyone is asked. The first answer stands, whether it comes from the
    approver here, from `Run.decide`, or from another process; the run goes on at once.
    """

    ctx: RunContext
    _answers: dict[str, asyncio.Future[ApprovalGiven]] = field(default_factory=dict)

    async def decide(self, call: Call) -> ApprovalGiven | None:
        """The decision on `call`, or `None` when none is needed.

        Raises `ApprovalRequired` when it must be asked and nobody is here.
        """
        unknown = call.attempt > 1 and call.effect not in REPEATABLE
        question = f"{call.id}#{call.attempt}" if unknown else call.id
        if (known := self.ctx.state.decisions.get(question)) is not None:
            return known
        if call.attempt > 1 and not unknown:
            return None
        verdict = self.ctx.policy.verdict(call)
        always = call.target in self.ctx.state.always
        needed = unknown or not (always or verdict == "allow")
        if not needed and question not in self.ctx.state.questions:
            return None
        asked = ApprovalAsked(
            call=call.id,
            step=call.step,
            tool=call.target,
            args=call.args,
            danger=call.danger.name,
            key=call.key,
            why="unknown_outcome" if unknown else "danger",
            question=question,
        )
        if needed and verdict != "deny":
            return await self._ask(asked)
        reason = "allowed for the whole run" if always else f"the approval policy is {self.ctx.policy.text!r}"
        return await self._settle(asked, granted=not needed, reason=reason)

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
            return replace(given, args=self.ctx.toolbox.get(asked.tool).validate(given.args))
        except ToolArgumentsError as error:
            raise UsageError(str(error)) from error

    async def _settle(self, asked: ApprovalAsked, *, granted: bool, reason: str) -> ApprovalGiven:
        """Decide by rule, also on a question that an earlier session left open."""
        if asked.question not in self.ctx.state.questions:
            self.ctx.emit(asked)
        given = ApprovalGiven(call=asked.call, question=asked.question, granted=granted, by="policy", how="policy", reason=reason)
        return self._go_on(await self._record(given))

    def _go_on(self, given: ApprovalGiven) -> ApprovalGiven:
        if not self.ctx.state.questions and self.ctx.state.status is RunStatus.WAITING_APPROVAL:
            self.ctx.go(RunStatus.EXECUTING, "decided")
        return given

    async def _ask(self, asked: ApprovalAsked) -> ApprovalGiven:
        ctx = self.ctx
        if asked.question not in ctx.state.questions:
            ctx.emit(asked, urgent=True)
        if ctx.state.status is RunStatus.EXECUTING:
            ctx.go(RunStatus.WAITING_APPROVAL, f"{asked.tool} waits for approval")
        await ctx.on_disk()
        if (known := ctx.state.decisions.get(asked.question)) is not None:  # a listener was quick
            return self._go_on(known)
        if ctx.approver is None:
            raise ApprovalRequired(ctx.run_id, asked.tool, asked.args)
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
                asked = replace(asked, args=given.args or {}, why=str(error))

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


def _adopt(ctx: RunContext, record: Record) -> ApprovalGiven:
    ctx.adopt(record.event, record.at)
    assert isinstance(record.event, ApprovalGiven)
    return record.event
