"""Run lifecycle: carries out a plan from PLANNING to the last state, and records how the run ends."""

from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from functools import partial

from kestrel_lab.core.errors import (
    DependencyError,
    LimitError,
    RunError,
    Signal,
    StoreError,
    UnmetError,
    UsageError,
    error_text,
)
from kestrel_lab.core.events.union import PlanProposed, RunFinished, RunInterrupted, StepFinished
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.step import Step
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import STOPPED
from kestrel_lab.runtime.agent.structured_output import read_typed
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.run_context import RunContext, call_hooks
from kestrel_lab.runtime.execution.artifacts import answer_value
from kestrel_lab.runtime.execution.delegation import run_delegate
from kestrel_lab.runtime.execution.scheduler import StepScheduler
from kestrel_lab.runtime.execution.steps import StepRunner
from kestrel_lab.runtime.operations.registry import OPERATIONS, WITHOUT_MODEL
from kestrel_lab.runtime.review.answer_review import review_answer
from kestrel_lab.runtime.supervision.model_guard import wait_for_model as model_ready

LEAST_ROOM = 4_000_000
"""Bytes that must be free where the log is: SQLite needs some even to keep little."""


async def check_dependencies(ctx: RunContext, step: Step) -> None:
    """Return once `step` can begin; raises `DependencyError` that says what it needs and is not there.

    A model is checked where that costs nothing, and waited for as long as the budget's `gate_s` allows.
    """
    folder = ctx.services.store.path.parent
    if (free := shutil.disk_usage(folder).free) < LEAST_ROOM:
        msg = (
            f"the disk of the log has {free:,} bytes left, at least {LEAST_ROOM:,} are needed: make "
            f"room on the disk of {folder}"
        )
        raise DependencyError("the disk of the log", "failed", msg)  # its name and state
    if not step.tool and step.operation not in WITHOUT_MODEL:
        await model_ready(ctx.model_of(step), ctx.services.supervisor, timeout=ctx.given.ports.budget.gate_s)


async def carry_out(ctx: RunContext, approvals: RunApprovals, plan: Plan) -> None:
    """Carry out `plan`; on return the run is COMPLETE or FAILED and all of it is on disk, unless
    its result is `Ports.stored_behind` it.

    A limit or a failing model ends the run FAILED with the reason recorded. `ApprovalRequired` escapes and
    leaves the run WAITING_APPROVAL. `Run.cancel` ends it CANCELLED; any other cancellation, by Ctrl-C for
    example, interrupts it: it stays in its state, nobody's, to be resumed. Either way `CancelledError` goes
    on. An error of the store escapes and leaves the run where its log ends, to be resumed; a `UsageError` or
    a defect of the engine escapes after the run was marked FAILED. Steps that are done are not done again;
    one that failed before the run was resumed is tried again.
    """
    ctx.task = asyncio.current_task()
    try:
        async with ctx.clock:
            answer = await _run_plan(ctx, approvals, plan)
        _check_type(ctx)
        end = _finish_event(
            ctx, await review_answer(ctx, answer)
        )  # no work of the run: a limit cannot take its answer away
    except asyncio.CancelledError:
        record_stop(ctx)
        await asyncio.shield(ctx.on_disk())
        await _call_end_hooks(ctx)
        raise
    except TimeoutError as error:
        if not ctx.clock.expired:  # somebody else's, an approver's for example
            await _defect(ctx, error)
            raise
        _end_at_limit(ctx, ctx.out_of_time(ctx.clock.limit))
    except LimitError as error:
        _end_at_limit(ctx, error)
    except RunError as error:
        outcome = "unmet" if isinstance(error, UnmetError) else "error"
        answer = _words_of_failed_step(ctx.state, error) or _so_far(ctx)
        end = RunFinished(outcome=outcome, answer=answer, reason=_message_with_notes(error))
        _end_run(ctx, RunStatus.FAILED, end)
    except Signal:
        ctx.checkpoint("interrupt")
        await asyncio.wrap_future(ctx.services.store.release(ctx.run_id))
        raise
    except StoreError:
        raise
    except Exception as error:
        await _defect(ctx, error)
        raise
    else:
        _end_run(ctx, RunStatus.COMPLETE if end.outcome == "complete" else RunStatus.FAILED, end)
    await _end_on_disk(ctx)
    await _call_end_hooks(ctx)


async def _end_on_disk(ctx: RunContext) -> None:
    """Wait for the disk, unless what is stored behind the run does."""
    if not ctx.given.ports.stored_behind:
        await ctx.on_disk()


async def _call_end_hooks(ctx: RunContext) -> None:
    """Call the hooks for a run that has ended; that one of them fails is reported and changes nothing."""
    if not ctx.state.status.terminal:
        return
    try:
        await call_hooks(ctx, "after_run", answer=ctx.state.answer)
    except RunError as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"run {ctx.run_id} has ended, and {error}", "exception": error}
        )


def _check_type(ctx: RunContext) -> None:
    """Raise `UnmetError` where the answer is not what `output` asks for: a tool or an operation gave it."""
    if (output := ctx.given.output) is None:
        return
    try:
        read_typed(dumps(answer_value(ctx.state)), output.schema, output.value)
    except UsageError as error:
        raise UnmetError(f"the answer is not what output= asks for: {error}") from error


_ENDINGS = {
    "length": "the answer is cut off: the model reached its output limit (parameter max_tokens)",
    "content_filter": "the provider's content filter withheld the answer or the rest of it",
    "refusal": "the model refused",
    "empty": "the answer is empty: the model said nothing",
}


def _finish_event(ctx: RunContext, end: RunFinished) -> RunFinished:
    """Return the end of a run with what is wrong with how its answer ended, if anything is."""
    state = ctx.state
    if end.answer.strip() and _ENDINGS.keys().isdisjoint(
        [conversation.finish for conversation in state.conversations.values()]
    ):
        return end
    last = {step.id for step in state.planned.ends() if not step.operation and not step.tool}
    ends = [conversation.finish for name, conversation in state.conversations.items() if name in last]
    finish = next(
        (word for word in ("refusal", "content_filter", "length") if word in ends),
        "" if end.answer.strip() or not last else "empty",
    )
    return (
        replace(end, finish=finish, reason="; ".join(filter(None, (end.reason, _ENDINGS[finish]))))
        if finish
        else end
    )


def _end_at_limit(ctx: RunContext, error: LimitError) -> None:
    _end_run(
        ctx,
        RunStatus.FAILED,
        RunFinished(outcome="limit", limit=error.limit, answer=_so_far(ctx), reason=str(error)),
    )


def _message_with_notes(error: Exception) -> str:
    """Return what the error says, with the errors that came at the same time."""
    return "; ".join([str(error), *getattr(error, "__notes__", ())])


async def _defect(ctx: RunContext, error: Exception) -> None:
    text = "; ".join(line.strip() for line in error_text(error).splitlines())
    reason = _message_with_notes(error) if isinstance(error, UsageError) else f"the engine failed: {text}"
    _end_run(ctx, RunStatus.FAILED, RunFinished(outcome="error", answer=_so_far(ctx), reason=reason))
    await ctx.on_disk()
    await _call_end_hooks(ctx)


async def _run_plan(ctx: RunContext, approvals: RunApprovals, plan: Plan) -> str:
    if ctx.equip is not None:
        ctx.clock.hold()  # waiting for servers is no work of the run
        try:
            await ctx.equip()
        finally:
            ctx.clock.release()
    if not ctx.state.plan:
        ctx.emit(PlanProposed(plan=plan.as_json()))
    if ctx.state.status is RunStatus.PLANNING:
        ctx.go(RunStatus.EXECUTING)
    if ctx.state.status is RunStatus.WAITING_APPROVAL and not ctx.state.questions:
        ctx.go(RunStatus.EXECUTING, "decided")
    await call_hooks(ctx, "before_run")
    ctx.delegate = partial(run_delegate, ctx, approvals)
    runner, state = StepRunner(plan, ctx, approvals, OPERATIONS, check_dependencies), ctx.state
    scheduler = StepScheduler(
        plan, runner, emit=ctx.emit, finished=state.finished_steps, skipped=state.skipped_steps
    )
    try:
        await scheduler.run_parallel(ctx.given.limits.steps_at_once)
    finally:
        ctx.delegate = None  # it refers to the run, which would stay in memory for it
    return runner.answer()


def record_stop(ctx: RunContext) -> None:
    """Record that work on the run was stopped: for good where somebody decided that, else until it is
    resumed.
    """
    if ctx.cancelled:
        _end_run(
            ctx, RunStatus.CANCELLED, RunFinished(outcome="cancelled", answer=_so_far(ctx), reason=STOPPED)
        )
        return
    ctx.checkpoint("interrupt")
    ctx.emit(RunInterrupted(), urgent=True)
    ctx.services.store.release(ctx.run_id)


def _end_run(ctx: RunContext, status: RunStatus, finished: RunFinished) -> None:
    if status is not RunStatus.COMPLETE:
        ctx.checkpoint("interrupt" if status is RunStatus.CANCELLED else "error")
    for step in ctx.state.conversations:
        if step not in ctx.state.finished_steps:
            ctx.emit(StepFinished(step=step, ok=False, reason=finished.reason))
    ctx.emit(finished)
    ctx.go(status, finished.reason)


def _so_far(ctx: RunContext) -> str:
    """Return the answer of a run that ends early: the last text of a model that worked as an agent, none of
    behind a step that failed.
    """
    state = ctx.state
    agents = {step.id for step in state.planned.steps if not step.operation}
    begun = [*state.conversations]
    failed = [
        name
        for name, ok in state.finished_steps.items()
        if not ok and name not in state.skipped_steps and name in begun
    ]
    last = begun[: begun.index(failed[0]) + 1] if failed else begun
    return next(
        (text for name in reversed(last) if (text := state.conversations[name].text) and name in agents), ""
    )


def _words_of_failed_step(state: RunState, error: RunError) -> str:
    """Return what the step says whose failure ended a plan: its agent's text or its tool's error, else why it
    failed. Empty where an operation failed, which judges or combines what others say.
    """
    steps = {step.id: step for step in state.planned.steps}
    for name in error.failed_steps:
        if not steps[name].operation:
            conversation = state.conversation(name)
            return conversation.text or conversation.error or state.reasons.get(name, "")
    return ""
