"""Approval of calls: by the policy, by an earlier decision, by a person here, or by another process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from kestrel_lab.core.calls import PREVIEWING, REPEATABLE, Call, Danger
from kestrel_lab.core.errors import AlreadyDecided, ApprovalRequired, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Record
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.permissions.command_patterns import offered_pattern
from kestrel_lab.permissions.policy import Ruling
from kestrel_lab.runtime.approvals.preview import allowed_by_preview, dry_run_of, preview_of
from kestrel_lab.runtime.approvals.scope import decision_applies, decision_binding, is_allowed_for_run
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.memory.run_memory import question_with_notes
from kestrel_lab.runtime.security.authority import further_calls, open_stated_calls
from kestrel_lab.runtime.security.containment import (
    contained_flows,
    sends_arguments,
    undeclared_questions,
    why_denied,
)
from kestrel_lab.runtime.security.provenance import argument_origins, private_sources
from kestrel_lab.runtime.security.tool_declarations import (
    declaration_id,
    declaration_question,
    read_answer,
    store_declaration,
)
from kestrel_lab.tools.files.versions import preview_key
from kestrel_lab.tools.skills import LOAD_SKILL
from kestrel_lab.tools.tool import Tool, ToolArgumentsError

PREVIEW_CHARS = 20_000
"""Characters of a preview recorded with a question."""
CHANGED = "what it would change is not what was shown before"
"""The reason given when a call is asked about a second time."""
TOGETHER = "a person denied it together with another call"
"""The reason given when a no to a question is for a further call that it showed."""
ALWAYS = "a yes for the rest of the run"
"""The name of what allows a call that a person allowed for the whole run."""

_LASTING = (
    "This program offers no yes for one call: it takes yours for every later call of this kind in its "
    "session, and does not ask again."
)


@dataclass
class RunApprovals:
    """Decides on the calls of one run, one at a time or many at once.

    A question is on disk before anyone is asked. The first answer stands, whether it comes from the
    approver here, from `Run.decide`, or from another process; the run goes on at once.
    """

    ctx: RunContext
    of_programs: dict[str, bool] = field(default_factory=dict)
    """Calls of another agent's program: whether other arguments can be put in place of its own."""
    lasting: set[str] = field(default_factory=set)
    """Those of them that their program takes a yes to for later calls too."""

    _answers: dict[str, asyncio.Future[ApprovalGiven]] = field(default_factory=dict)
    _in_order: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Questions of a turn are asked in the order of its calls, however long their previews take."""

    _grouping: asyncio.Lock = field(default_factory=asyncio.Lock)
    """One question is about all calls of a turn that containment asks about."""

    _declaring: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Asks about an undeclared tool once, even if several calls of a turn need the answer."""

    _inquiries: int = 0
    """Number of questions asked by running tools."""

    async def decide(self, call: Call) -> ApprovalGiven | None:
        """Return the decision on `call`, or `None` if it needs none.

        Raises `ApprovalRequired` if a decision is needed and there is no approver.
        """
        state = self.ctx.state
        unknown = call.attempt > 1 and call.effect not in REPEATABLE
        question = f"{call.id}#{call.attempt}" if unknown else call.id
        # An approval of a sandboxed command does not cover an unsandboxed one.
        if call.unsandboxed:
            question += "@S0"
        # Most runs ask nobody anything: then nothing was decided that the hash of the call could be compared
        # with.
        bound = (
            decision_binding(call, self.ctx.tools, self.ctx.state.project)
            if state.decisions or state.questions
            else ""
        )
        # Another call than the one that was decided on.
        if bound and not decision_applies(state, question, call, bound):
            question += f"@{bound[:8]}"
        if state.questions:
            await self._withdraw(call, question, again=False)
        if (known := state.decisions.get(question)) is not None:
            return known
        contained, carried = self._contained(call)
        if contained or carried or state.questions:
            contained, call = await self._judged(call, contained, carried)
        if contained and not self._nobody_decides():
            # Who answers for one call of a turn may answer for the others.
            async with self._grouping:
                return await self._decided(call, question, bound, self._contained(call)[0], unknown=unknown)
        return await self._decided(call, question, bound, contained, unknown=unknown)

    async def _decided(
        self, call: Call, question: str, bound: str, contained: dict[str, Json], *, unknown: bool
    ) -> ApprovalGiven | None:
        """Return the decision on a call, given the findings of containment."""
        state, tool = self.ctx.state, self.ctx.tools.find(call.target)
        if call.attempt > 1 and not unknown and not contained:
            return None
        ruling = self.ctx.given.policy.ruling(call)
        forbidden = ruling.how == "rule" and ruling.verdict == "deny"
        if tool is not None and tool.asks_person and not forbidden:
            return await self._put(self._asked(call, "question"), call)
        # An approval of one call does not cover another.
        each_for_itself = tool is not None and tool.danger_of is not None
        always = not forbidden and not each_for_itself and is_allowed_for_run(state, call, bound)
        needed = unknown or bool(contained) or not (always or ruling.verdict == "allow")
        if not needed and question not in state.questions:
            return _gone_on(call, ruling, always=always)
        asked = self._asked(call, _reason(ruling, unknown=unknown, contained=bool(contained)))
        asked = replace(asked, question=question, offer=offered_pattern(call), contained=contained)
        contested = bool(contained) and ruling.verdict != "deny"
        if contested and (
            why := self._refused_with(call) or (why_denied(contained) if self._nobody_decides() else "")
        ):
            return await self._deny(asked, why)
        if needed and ruling.verdict != "deny":
            if contained and question not in state.questions:
                if any(
                    call.id == one.get("call")
                    for open_one in state.questions.values()
                    for one in further_calls(open_one.contained)
                ):
                    # The question that waits is about it too.
                    raise ApprovalRequired(self.ctx.run_id, call.target, call.args)
                asked = replace(asked, contained={**contained, **self._task(call)})
            return await self._ask(asked, call)
        if always:
            ruling = Ruling("allow", "policy", "allowed for the whole run", "policy")
        return await self._settle(asked, ruling, granted=not needed)

    async def confirm(self, call: Call) -> ApprovalGiven | None:
        """Return the decision on a call whose preview has changed since it was approved; `None` if it has
        none or is unchanged.
        """
        state = self.ctx.state
        if (shown := state.shows.get(call.id)) is None:
            return None
        # A person has said what to run instead.
        if not shown:
            return next(
                given
                for given in reversed(state.decisions.values())
                if given.call == call.id and given.args is not None
            )
        _, shows = await self._preview(call)
        if shows == shown:
            return None
        question = f"{call.id}~{shows[:8]}"
        await self._withdraw(call, question, again=True)
        if (known := state.decisions.get(question)) is not None:
            return known
        asked = self._asked(call, CHANGED)
        return await self._ask(replace(asked, question=question, contained=self._contained(call)[0]), call)

    async def _withdraw(self, call: Call, question: str, *, again: bool) -> None:
        """Deny the open questions of an earlier session about this call, first or `again`, when the call has
        changed since.
        """
        for asked in tuple(self.ctx.state.questions.values()):
            if asked.call != call.id or asked.question == question or (asked.why == CHANGED) is not again:
                continue
            await self._deny(asked, "the call is another one now")

    async def _judged(
        self, call: Call, contained: dict[str, Json], carried: list[str]
    ) -> tuple[dict[str, Json], Call]:
        """Return what containment found in `call`, after undeclared tools were asked about, and the call with
        its danger.
        """
        if contained and not self._nobody_decides():
            async with self._declaring:
                while True:
                    contained, carried = self._contained(call)
                    if not contained or not await self._declare(call):
                        break
        # Of an earlier session, and no longer asked.
        for asked in tuple(self.ctx.state.questions.values()):
            if asked.call.startswith(f"{call.id}?"):
                await self._deny(asked, "nobody is here to answer")
        if not contained and carried:  # as dangerous as sending it
            call = replace(call, danger=max(call.danger, Danger.HIGH))
        return contained, call

    def _contained(self, call: Call) -> tuple[dict[str, Json], list[str]]:
        """Return the findings of containment that only a person may allow, and private sources in the
        arguments.

        Both are empty if containment is off.
        """
        ctx, tool = self.ctx, self.ctx.tools.find(call.target)
        if ctx.given.containment == "off" or tool is None:
            return {}, []
        if not (call.sandbox or tool.asks or "reaches" in tool.unsaid) and tool.flow.reaches == "nothing":
            return {}, []
        carried: list[str] = []
        if sends_arguments(call, tool):
            # A service learns nothing new from the answer of another of its own tools.
            service = _service(tool)
            carried = private_sources(
                call.args,
                ctx.flow.now(),
                {one.name for one in ctx.tools if service and _service(one) == service},
            )
        return contained_flows(
            call, tool, ctx.flow, ctx.given.workspace, carried, rules=ctx.given.policy.rules
        ), carried

    def _task(self, call: Call) -> dict[str, Json]:
        """Return what else a question of containment is about: the other calls of the turn, and what was
        stated and is left to do.
        """
        stated = open_stated_calls(self.ctx.flow.now())
        return {"wants": self._wants(call), **({"stated": stated} if stated else {})}

    def _wants(self, call: Call) -> list[Json]:
        """Return the turn's other calls with findings of containment: one question covers all of them."""
        ctx, found = self.ctx, list[Json]()
        for request in ctx.state.conversation(call.step).open_requests:
            tool = ctx.tools.find(request.name)
            if (
                request.id == call.id
                or tool is None
                or tool.asks_person
                or request.problem
                or request.id in ctx.state.decisions
            ):
                continue
            try:
                other = replace(call, id=request.id, target=request.name, args=tool.validate(request.args))
            except ToolArgumentsError:
                # It is answered with what is wrong with it.
                continue
            if self._contained(other)[0]:
                found.append({"call": other.id, "tool": other.target, "args": other.args})
        return found

    def _refused_with(self, call: Call) -> str:
        """Return why an earlier denial covers `call` too; empty if none does."""
        taint = self.ctx.flow.now()
        if taint.closed:
            return "a person allows no further call of this run that what others wrote may have caused"
        return TOGETHER if call.id in taint.refused else ""

    async def _declare(self, call: Call) -> bool:
        """Ask a person what an undeclared tool does if `call` depends on it; return true if the answer is
        new.
        """
        ctx = self.ctx
        for name, question in undeclared_questions(call, ctx.tools.get(call.target), ctx.flow):
            known = ctx.state.decisions.get(declaration_id(name, question, call))
            if known is None:
                given = await self._ask(
                    declaration_question(name, question, call), replace(call, target="", args={})
                )
                yes = read_answer(given.answer) if given.granted else None
                if yes is not None:
                    store_declaration(ctx.tools.get(name), question, ctx.services.store, yes=yes)
                    return True
        return False

    def _nobody_decides(self) -> bool:
        """Return whether the run waits for no person."""
        policy = self.ctx.given.policy
        return policy.otherwise == "deny" or (
            policy.unattended and self.ctx.given.options.get("approver") is None
        )

    @property
    def attended(self) -> bool:
        """True if a person can be asked while a call runs."""
        return (
            self.ctx.given.options.get("approver") is not None and self.ctx.given.policy.otherwise != "deny"
        )

    async def inquire(self, call: Call, text: str, options: Sequence[str]) -> str | None:
        """Ask the person a question of a running call; `None` if they decline."""
        self._inquiries += 1
        name = f"{call.id}?{call.attempt}.{self._inquiries}"
        args: dict[str, Json] = {"question": text, "options": list(options)}
        asked = replace(self._asked(call, "question"), call=name, question=name, args=args, key="")
        given = await self._ask(asked, replace(call, target="", args={}))
        return given.answer if given.granted else None

    def _asked(self, call: Call, why: str) -> ApprovalAsked:
        return ApprovalAsked(
            call=call.id,
            step=call.step,
            tool=call.target,
            args=call.args,
            danger=call.danger.name,
            key=decision_binding(call, self.ctx.tools, self.ctx.state.project),
            why=why,
            question=call.id,
            sandbox=call.sandbox,
            skills=self._loaded(call) if self.ctx.given.skills else [],
        )

    def _loaded(self, call: Call) -> list[str]:
        """Return the folders of skills loaded by the calling agent, whose instructions it may follow."""
        asked = [
            one
            for message in self.ctx.state.conversation(call.step).messages
            for one in message.calls
            if one.name == LOAD_SKILL
        ]
        skills = [self.ctx.given.skills.get(str(one.args.get("name"))) for one in asked]
        return list(dict.fromkeys(skill.shown for skill in skills if skill is not None))

    async def _put(self, asked: ApprovalAsked, call: Call) -> ApprovalGiven | None:
        """Ask a person. Under `ask` the run waits for one, under `auto` only with an approver, under `deny`
        never.
        """
        policy = self.ctx.given.policy
        if not policy.unattended or (
            policy.otherwise == "ask" and self.ctx.given.options.get("approver") is not None
        ):
            return await self._ask(asked, call)
        if asked.question in self.ctx.state.questions:
            return await self._deny(asked, "nobody is here to answer")
        return None

    async def _preview(self, call: Call) -> tuple[str, str]:
        """Return the preview of a call, made in a thread, and its key; both empty if the tool has none."""
        if call.id in self.lasting:
            return _LASTING, preview_key(_LASTING)
        tool = self.ctx.tools.find(call.target)
        if (work := self.ctx.dry_runs.get(call.id)) is not None and not work.done():
            return PREVIEWING, ""
        if (dry := await dry_run_of(call, self.ctx)) is not None:
            text = self.ctx.services.redactor.text(dry.text)
            return head_tail(text, PREVIEW_CHARS)[0], preview_key(text)
        if tool is None or tool.preview is None:
            return "", ""
        text = await asyncio.to_thread(preview_of, call, self.ctx)
        return head_tail(text, PREVIEW_CHARS)[0], preview_key(text)

    def _origins(self, asked: ApprovalAsked) -> list[dict[str, Json]]:
        """Return where each argument comes from; arguments the model did not name come from the tool."""
        requests = (
            request
            for conversation in self.ctx.state.conversations.values()
            for request in conversation.requests
        )
        said = next((request.args for request in requests if request.id == asked.call), asked.args)
        tool = self.ctx.tools.find(asked.tool)
        filled = {
            name: f"filled in by {asked.tool}, not said by the model"
            for name in asked.args
            if name not in said
        }
        if tool is not None and tool.filled is not None:
            filled |= tool.filled(asked.args)
        return argument_origins(asked.args, self.ctx.flow.now(), filled)

    def answer(self, given: ApprovalGiven) -> None:
        """Record a decision made in this process; the first one wins. Call on the run's loop."""
        question = given.question or given.call
        waiting = self._answers.get(question)
        if waiting is not None and not waiting.done():
            waiting.set_result(given)
        elif waiting is None and question in self.ctx.state.questions:
            # Nobody was here to be asked.
            self.ctx.emit(replace(given, question=question), urgent=True)

    def checked(self, asked: ApprovalAsked, given: ApprovalGiven) -> ApprovalGiven:
        """Return `given` with completed arguments; raises `UsageError` if they are invalid for the tool or
        the program.
        """
        if given.args is None or not given.granted:
            return given
        # Our tools say nothing about its arguments.
        if asked.call in self.of_programs:
            if not self.of_programs[asked.call]:
                raise UsageError(
                    "this program takes no other arguments: allow the call as it is, or deny it and "
                    "say what to do instead"
                )
            return given
        try:
            return replace(given, args=self.ctx.tools.get(asked.tool).validate(given.args))
        except ToolArgumentsError as error:
            raise UsageError(str(error)) from error

    async def _settle(self, asked: ApprovalAsked, ruling: Ruling, *, granted: bool) -> ApprovalGiven:
        """Decide by rule or policy, also on a question that an earlier session left open."""
        if asked.question not in self.ctx.state.questions:
            self.ctx.emit(replace(asked, origins=self._origins(asked)) if asked.contained else asked)
        by = ruling.by if ruling.how == "rule" else "policy"
        given = ApprovalGiven(
            call=asked.call,
            question=asked.question,
            granted=granted,
            by=by,
            how=ruling.how,
            reason=ruling.why,
        )
        return self._go_on(await self._record(given))

    async def _deny(self, asked: ApprovalAsked, why: str) -> ApprovalGiven:
        return await self._settle(asked, Ruling("deny", "policy", why, "policy"), granted=False)

    def _go_on(self, given: ApprovalGiven) -> ApprovalGiven:
        if not self.ctx.state.questions and self.ctx.state.status is RunStatus.WAITING_APPROVAL:
            self.ctx.go(RunStatus.EXECUTING, "decided")
        return given

    async def _ask(self, asked: ApprovalAsked, call: Call) -> ApprovalGiven:
        ctx = self.ctx
        async with self._in_order:
            if asked.question not in ctx.state.questions:
                preview, shows = await self._preview(call)
                question = replace(asked, preview=preview, shows=shows, origins=self._origins(asked))
                ctx.emit(question, urgent=True, shown=await question_with_notes(question, ctx))
            asked = await question_with_notes(ctx.state.questions[asked.question], ctx)
        if ctx.state.status is RunStatus.EXECUTING:
            ctx.go(
                RunStatus.WAITING_APPROVAL,
                f"{asked.tool} waits for {'an answer' if asked.why == 'question' else 'approval'}",
            )
        await ctx.on_disk()
        if (known := ctx.state.decisions.get(asked.question)) is not None:  # a listener was quick
            return self._go_on(known)
        if ctx.given.options.get("approver") is None:
            why = (
                f"no level of danger lets code into your own kernel; a rule that allows {asked.tool} does"
                if call.in_kernel
                else ""
            )
            raise ApprovalRequired(
                ctx.run_id, asked.tool, asked.args, question=asked.why == "question", why=why
            )
        ctx.clock.hold()
        try:
            given = await self._first_answer(asked, call)
        finally:
            ctx.clock.release()
        return self._go_on(given)

    async def _first_answer(self, asked: ApprovalAsked, call: Call) -> ApprovalGiven:
        """Race the approver, `answer` and the log; record what is not recorded yet."""
        ctx, question = self.ctx, asked.question
        began = time.perf_counter()
        here: asyncio.Future[ApprovalGiven] = asyncio.get_running_loop().create_future()
        self._answers[question] = here
        elsewhere = asyncio.create_task(
            wait_until(ctx.services.store.path, lambda: ctx.services.store.decision(ctx.run_id, question))
        )
        person = asyncio.create_task(self._ask_person(asked))
        preview = asyncio.create_task(allowed_by_preview(asked, call, ctx, self._contained))
        racers: tuple[asyncio.Future[Any], ...] = (here, elsewhere, person, preview)
        try:
            done, _ = await asyncio.wait(racers, return_when=asyncio.FIRST_COMPLETED)
            if elsewhere in done:
                return _adopt(ctx, elsewhere.result())
            first = next(racer for racer in (here, person, preview) if racer in done)
            if first.cancelled():
                ctx.break_off()
            given = replace(
                first.result(), call=asked.call, question=question, waited=time.perf_counter() - began
            )
            return await self._record(given)
        finally:
            del self._answers[question]
            for racer in racers:
                racer.cancel()
            await asyncio.gather(elsewhere, person, preview, return_exceptions=True)

    async def _ask_person(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Ask until the answer can be used: edited arguments must fit the tool.

        The same ones again, which do not, are a denial.
        """
        approver = self.ctx.given.options.get("approver")
        assert approver is not None
        refused: dict[str, Json] | None = None
        while True:
            try:
                given = await approver(asked)
            except KeyboardInterrupt:  # out of a task it would tear down the event loop
                raise asyncio.CancelledError from None
            try:
                return self.checked(asked, given)
            except UsageError as error:
                if given.args == refused:
                    return replace(given, granted=False, args=None, reason=str(error))
                refused = given.args
                asked = replace(asked, args=given.args or {}, why=str(error), preview="")

    async def _record(self, given: ApprovalGiven) -> ApprovalGiven:
        """Record `given` as the decision, unless another process decided first.

        Cancellation waits for it: the state must include what the log has.
        """
        writing = asyncio.create_task(self._write(given))
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await writing
            raise

    async def _write(self, given: ApprovalGiven) -> ApprovalGiven:
        ctx, at = self.ctx, time.time()
        done = ctx.services.store.append(ctx.run_id, given, at=at, urgent=True)
        try:
            await asyncio.wrap_future(done)
        except AlreadyDecided:
            earlier = ctx.services.store.decision(ctx.run_id, given.question)
            if earlier is None:
                raise
            return _adopt(ctx, earlier)
        ctx.adopt(given, at)
        return given


def _service(tool: Tool) -> str:
    """Return the service behind a tool: its MCP server or group; empty if unknown."""
    server, colon, _ = tool.name.partition(":")
    return server if colon else tool.group


def _gone_on(call: Call, ruling: Ruling, *, always: bool) -> ApprovalGiven | None:
    """Return the decision that no question is needed, for `tool_called`; `None` for harmless calls."""
    if ruling.how == "policy" and call.danger <= Danger.LOW:
        return None
    by, how, why = (
        (ALWAYS, "policy", "")
        if always and ruling.verdict != "allow"
        else (ruling.by, ruling.how, ruling.why)
    )
    return ApprovalGiven(call=call.id, granted=True, by=by, how=how, reason=why)


def _reason(ruling: Ruling, *, unknown: bool, contained: bool) -> str:
    """Return why a call is asked about: the most urgent reason if several apply."""
    if unknown:
        return "unknown_outcome"
    if contained:
        return "contained"
    return ruling.why if ruling.how == "rule" else "danger"


def _adopt(ctx: RunContext, record: Record) -> ApprovalGiven:
    ctx.adopt(record.event, record.at)
    assert isinstance(record.event, ApprovalGiven)
    return record.event
