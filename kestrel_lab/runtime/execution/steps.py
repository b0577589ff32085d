"""The steps of one plan: each is given its artifacts and carried out, in a stage again where it fails."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kestrel_lab.answers.claim_markdown import asks_for_claims
from kestrel_lab.answers.output_types import OutputType
from kestrel_lab.core.calls import REPEATABLE, Call, Danger, Problem
from kestrel_lab.core.errors import START_STEP, ModelError, RunError, ToolError, UsageError, did_you_mean
from kestrel_lab.core.events.union import (
    BudgetWarned,
    StageFinished,
    StageStarted,
    StepRetried,
    StepStarted,
)
from kestrel_lab.core.json_types import Json, content_key, readable, values_in
from kestrel_lab.core.messages import ToolRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.plan_shapes import all_steps
from kestrel_lab.core.step import STEPS
from kestrel_lab.eventlog.conversation import Conversation
from kestrel_lab.runtime.agent.loop import run_agent
from kestrel_lab.runtime.agent.structured_output import Dialogue, UnusableAnswer, read_typed
from kestrel_lab.runtime.agent.tool_calls import run_requests
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.execution.artifacts import artifacts_prompt, as_text, find_artifact, step_output
from kestrel_lab.runtime.execution.operation import Done, Operation, Scope, in_scope
from kestrel_lab.runtime.execution.scheduler import Outcome
from kestrel_lab.runtime.execution.stages import ended_stage, failure_class, output_ref
from kestrel_lab.runtime.supervision.failure_kinds import RECOVERABLE, FailureClass
from kestrel_lab.shell_syntax.template import check_command, render_call
from kestrel_lab.tools.tool import ToolArgumentsError, Toolbox

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Model


_REPAIR = """\
Put a step right that failed:

{work}

The artifacts below say why it failed. Find out what is wrong, do what the step was for, in another way \
where this one does not work, \
and say what came of it as the step would have."""


def check_steps(
    steps: Iterable[Step],
    toolbox: Toolbox,
    operations: Mapping[str, Operation],
    resolve: Callable[[str], Model],
) -> None:
    """Raise `UsageError` for a step whose tool, operation or model does not exist or whose arguments do not
    fit its tool. An agent that names a tool which does not exist goes on without it: see
    `warn_of_missing_tools`.

    Arguments that stand for artifacts are looked at when the step runs, all others of the step with them.
    """
    for step in steps:
        try:
            if step.tool and (tool := toolbox.get(step.tool)) and not step.references:
                tool.validate(step.args)
            check_command(step.args)
            if step.operation and step.operation not in operations:
                raise UsageError(
                    f"there is no operation {step.operation!r}; {did_you_mean(step.operation, operations)}"
                )
            if step.operation:
                toolbox.only(step.tools or ())
            if step.model:
                resolve(step.model)
        except (UsageError, ToolArgumentsError) as error:
            raise UsageError(
                f"{f'stage {step.stage!r}, ' if step.stage else ''}step {step.id!r}: {error}"
            ) from error


def warn_of_missing_tools(step: Step, ctx: RunContext) -> None:
    """Record a warning for each tool that the agent of `step` names and that the run does not have."""
    for name in step.tools or ():
        if step.goal and name not in ctx.toolbox:
            nearest = did_you_mean(name, ctx.toolbox.names)
            message = f"agent {step.id!r} works without the tool {name!r}, which does not exist: {nearest}"
            ctx.emit(BudgetWarned(limit="tools", message=message))


def steps_without(servers: Collection[str], steps: Iterable[Step]) -> list[Step]:
    """The steps that name no tool of these servers."""
    return [
        step
        for step in steps
        if not any(name.partition(":")[0] in servers for name in (step.tool, *(step.tools or ())))
    ]


async def work_on_step(step: Step, ctx: RunContext, approvals: RunApprovals) -> None:
    """Have the agent of `step` work on its goal; raises what `run_agent` raises, and `UnusableAnswer` for one
    that does not fit its schema.
    """
    if step.schema is None:
        await run_agent(step, ctx, approvals)
        return
    if claimed := asks_for_claims(step.schema):
        from kestrel_lab.answers.claim_form import ClaimedAnswer  # with pydantic: only where it is asked for

    output = OutputType.of(ClaimedAnswer) if claimed else ctx.given.output
    fits = output.value if output is not None and output.schema == step.schema else None
    try:
        await Dialogue(step, ctx, approvals).ask(
            step.goal, lambda text: read_typed(text, None if claimed else step.schema, fits)
        )
    except UnusableAnswer:
        said = ctx.state.conversation(step.id).messages[-1].text
        if not claimed or any(isinstance(one, dict) and "claims" in one for one in values_in(said)):
            raise  # prose is read sentence by sentence; claims in another form are not prose


def _may_be_repaired(step: Step, error: RunError, kind: FailureClass) -> bool:
    """Return whether an agent may put a failed step right, and can.

    What a person or a rule denied is not done by other means, and a limit leaves nothing to repair with. A
    call that failed can be replaced by another way. An agent that failed can be followed by another one,
    unless its model cannot be asked at all.
    """
    if kind == "budget":
        return False
    if isinstance(error, ToolError):
        return error.problem is not None and error.problem.kind != "denied"
    if step.tool:
        return True
    return kind == "logic" and not (isinstance(error, ModelError) and error.caller)


@dataclass(slots=True, eq=False)
class StepRunner:
    """Does the work of the steps of one run, or goes on with it where the log ends.

    A step of a stage is checked before it begins, tried again where that is harmless, and leaves a
    checkpoint. A failure that may pass is tried again within `Ports.budget`: agents and operations go on
    where their conversation is, a call is repeated only if its tool says it may be. All others end the step
    at once, with a reason that says what to do. How often a step was tried is in the log, so a resumed run
    goes on counting.
    """

    plan: Plan
    """As far as it has grown."""
    _ctx: RunContext
    _approvals: RunApprovals
    _operations: Mapping[str, Operation]
    _preflight: Callable[[RunContext, Step], Awaitable[None]]
    """Raises a `RunError` when something that a step of a stage needs is not there."""

    async def __call__(self, step: Step) -> Outcome:
        """Carry out `step`; `artifacts.step_output` then says what it answered.

        Raises what `work` raises; the failure of a stage with its class and what to do.
        """
        return await (self._work_in_stage(step) if step.stage else self.work(step))

    async def work(self, step: Step) -> Outcome:
        """Carry out `step` once.

        Raises `ToolError` when its call fails or it is not approved, and what `run_agent` or the operation
        raises.
        """
        ctx, inputs = self._ctx, self.inputs(step)
        if not self._wanted(step, inputs):
            return Outcome(skipped=True)
        warn_of_missing_tools(step, ctx)
        model = ctx.model_of(step)
        goal = step.goal
        ctx.emit(
            StepStarted(
                step=step.id,
                goal=goal,
                context=artifacts_prompt(inputs) if goal and inputs else "",
                model=step.model,
                model_kind=model.kind if step.model else "real",
                system=ctx.system_of(step) if goal and step.instructions else None,
                images=[]
                if not goal or self.plan.needs()[step.id] or ctx.state.started is None
                else ctx.state.started.images,
            )
        )
        if step.tool:
            await self._call(step, inputs)
            return Outcome()
        if step.needs_approval:
            await self._ask(step)
        if step.operation:
            return await self._operate(step, inputs)
        await work_on_step(step, ctx, self._approvals)
        return Outcome()

    async def _work_in_stage(self, step: Step) -> Outcome:
        ctx = self._ctx
        conversation = self._begin_attempt(step)
        while True:
            if ctx.state.stages.get(step.stage, 0) < conversation.attempt:
                ctx.emit(StageStarted(stage=step.stage, attempt=conversation.attempt))
            try:
                await self._preflight(ctx, step)
                outcome = await self.work(step)
            except RunError as error:
                if (repaired := await self._failed(step, conversation, error)) is not None:
                    return repaired
            else:
                self._checkpoint(step, "skipped" if outcome.skipped else "done", conversation)
                await ctx.on_disk()  # nothing begins before the checkpoint of what it needs is safe
                return outcome

    def _begin_attempt(self, step: Step) -> Conversation:
        """Return the conversation of the step; where a resumed run tries again, a new attempt begins."""
        conversation, last = self._ctx.state.conversation(step.id), self._ctx.state.checkpoints.get(step.id)
        # The session ended between the checkpoint of a failed attempt and the next attempt.
        waited = last is not None and last.status == "retrying" and last.attempt == conversation.attempt
        if last is not None and (waited or last.status == "failed"):
            self._retry(step, conversation, last.error_class, last.error_message, 0.0)
        return conversation

    async def _failed(self, step: Step, conversation: Conversation, error: RunError) -> Outcome | None:
        """Wait until the next attempt may begin; where none may, return what puts the step right, or raise
        what ends it.
        """
        kind = failure_class(error)
        wait = self._ctx.given.ports.budget.wait(error, conversation.attempt - conversation.earlier)
        if not self._may_repeat(step, conversation, kind, wait):
            self._checkpoint(step, "failed", conversation, kind, str(error))
            if (repaired := self.repair(step, error, kind)) is not None:
                await self._ctx.on_disk()
                return repaired
            raise ended_stage(kind, conversation.attempt - conversation.earlier, error)
        self._checkpoint(step, "retrying", conversation, kind, str(error))
        self._retry(step, conversation, kind, str(error), wait)
        await self._ctx.on_disk()
        await self._ctx.sleep(wait)
        return None

    def _may_repeat(self, step: Step, conversation: Conversation, kind: FailureClass, wait: float) -> bool:
        budget = self._ctx.given.ports.budget
        harmless = not step.tool or self._ctx.toolbox.get(step.tool).effect in REPEATABLE
        within = (
            conversation.attempt - conversation.earlier < budget.attempts
            and conversation.waited_s + wait <= budget.total_wait_s
        )
        return kind in RECOVERABLE and harmless and within

    def _retry(self, step: Step, conversation: Conversation, kind: str, reason: str, wait: float) -> None:
        self._ctx.emit(
            StepRetried(
                step=step.id, attempt=conversation.attempt + 1, error_class=kind, reason=reason, wait_s=wait
            )
        )

    def _checkpoint(
        self, step: Step, status: str, conversation: Conversation, kind: str = "", message: str = ""
    ) -> None:
        """Record how the attempt ended, unless the last session did that before it died."""
        row = StageFinished(
            stage=step.stage,
            task=step.id,
            status=status,
            attempt=conversation.attempt,
            inputs_hash=content_key(step.as_json(), self.inputs(step)),
            outputs_ref=output_ref(step, conversation) if status == "done" else "",
            error_class=kind,
            error_message=message,
        )
        if self._ctx.state.checkpoints.get(step.id) != row:
            self._ctx.emit(row)

    def repair(self, step: Step, error: RunError, kind: FailureClass) -> Outcome | None:
        """Return the outcome of a step that failed and grows an agent's step to put it right; `None` where
        that may not be, or would not help.
        """
        if step.repairs < 1 or not _may_be_repaired(step, error, kind):
            return None
        first, _, number = step.id.partition("/repair#")
        text = "" if step.tool else self._ctx.state.conversation(step.id).text
        given: dict[str, Json] = {"why it failed": str(error)}
        if text:
            given["what it said"] = text
        new = Step(
            id=f"{first}/repair#{int(number or 0) + 1}",
            goal=_REPAIR.format(work=step.goal or f"call {step.tool} with {readable(step.args)}"),
            given={name: value for name, value in given.items() if name not in step.consumes}
            if not number
            else step.given | given,
            depends_on=(step.id,),
            consumes=step.consumes,
            produces=step.produces,
            parallelizable=False,
            model=step.model,
            instructions=step.instructions,
            tools=step.tools,
            schema=step.schema,
            stage="repair",
            repairs=step.repairs - 1,
        )
        return Outcome(
            grown=self._grown(step, Done(grows=(new,))), reason=f"it failed: {error}; {new.id} puts it right"
        )

    def inputs(self, step: Step) -> dict[str, Json]:
        """The artifacts that `step` is given, by name."""
        return {**step.given} | {
            name: find_artifact(self.plan, step, name, self._ctx.state) for name in step.consumes
        }

    def answer(self) -> str:
        """What the run answers: the outputs of the steps that nothing waits for."""
        state = self._ctx.state
        texts = (
            as_text(step_output(self.plan, step, state))
            for step in self.plan.ends()
            if step.id not in state.skipped_steps
        )
        return "\n\n".join(text for text in texts if text)

    def _wanted(self, step: Step, inputs: Mapping[str, Json]) -> bool:
        condition = step.condition
        if condition is None:
            return True
        try:
            within = f"{step.scope}/" if step.scope else ""  # a file names its own steps
            went = {name.removeprefix(within): how for name, how in self._went(step).items()}
            return condition.holds({**inputs, STEPS: cast("Json", went)})
        except UsageError as error:
            raise RunError(f"the condition of step {step.id!r} cannot be decided: {error}") from error

    def _went(self, step: Step) -> dict[str, Json]:
        state = self._ctx.state
        known = {other.id: other for other in self.plan.steps}
        return {
            name: {
                "ok": state.finished_steps.get(name, False),
                "skipped": name in state.skipped_steps,
                "answer": step_output(self.plan, known[name], state)
                if state.finished_steps.get(name)
                else None,
                "reason": state.reasons.get(name, ""),
            }
            for name in self.plan.needs()[step.id]
        }

    async def _operate(self, step: Step, inputs: Mapping[str, Json]) -> Outcome:
        scope = Scope(
            step=step,
            args=self._args(step, inputs),
            inputs=inputs,
            steps=self._went(step),
            plan=self.plan,
            ctx=self._ctx,
            approvals=self._approvals,
        )
        try:
            done = await self._operations[step.operation](scope)
            return Outcome(
                output=done.output,
                skipped=done.skipped,
                grown=self._grown(step, done),
                artifacts=done.artifacts,
            )
        except UsageError as error:
            raise RunError(str(error)) from error

    def _grown(self, step: Step, done: Done) -> Plan | None:
        """The plan with what `step` grew; what it grew before a crash is there already.

        In a nested workflow it is part of that.
        """
        steps = in_scope(step.scope, done.grows)
        known = {other.id: other.parent for other in self.plan.steps}
        new = [other for other in steps if known.get(other.id) != step.id]
        if not steps:
            return None
        check_steps(all_steps(new), self._ctx.toolbox, self._operations, self._ctx.given.resolve)
        self.plan = self.plan.grown(step.id, new, done.artifacts)
        return self.plan if new else None

    def _args(self, step: Step, inputs: Mapping[str, Json]) -> dict[str, Json]:
        try:
            return render_call(step.args, inputs)
        except UsageError as error:
            raise RunError(f"the arguments of step {step.id!r} cannot be filled in: {error}") from error

    async def _call(self, step: Step, inputs: Mapping[str, Json]) -> None:
        conversation = self._ctx.state.conversation(step.id)
        call_id = f"{step.id}.call" if conversation.attempt == 1 else f"{step.id}.call.{conversation.attempt}"
        if call_id not in conversation.answers:
            request = ToolRequest(id=call_id, name=step.tool, args=self._args(step, inputs))
            await run_requests([request], step, self._ctx, self._approvals)
        if conversation.error:
            problem = Problem(
                kind=conversation.problem, message=conversation.error, transient=conversation.passing
            )
            raise ToolError(f"{step.tool}: {conversation.error}", problem)  # the message and what it is about

    async def _ask(self, step: Step) -> None:
        """Wait until an agent may begin; a resumed step that was allowed is not asked about again."""
        args: dict[str, Json] = {"step": step.id, "goal": step.work}
        asked = Call(
            id=f"{step.id}.start",
            kind="tool",
            target=START_STEP,
            args=args,
            step=step.id,
            danger=Danger.HIGH,
            effect="pure",
        )
        given = await self._approvals.decide(asked)
        if given is not None and not given.granted:
            raise ToolError("it was not approved" + (f": {given.reason}" if given.reason else ""))
