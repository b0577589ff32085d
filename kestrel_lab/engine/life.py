"""The life of a run, from PLANNING to its last state, whatever happens between."""

from __future__ import annotations

import asyncio
from functools import partial

from kestrel_lab.core.errors import LimitError, RunError, Signal, StoreError, UnmetError, UsageError
from kestrel_lab.core.events import PlanProposed, RunFinished, StepFinished
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.states import RunStatus
from kestrel_lab.engine.approvals import ApprovalDesk
from kestrel_lab.engine.context import RunContext
from kestrel_lab.engine.looking import finished
from kestrel_lab.engine.operations import OPERATIONS
from kestrel_lab.engine.preflight import preflight
from kestrel_lab.engine.scheduler import StepScheduler
from kestrel_lab.engine.stages import StageRunner
from kestrel_lab.engine.steps import StepRunner


async def live(ctx: RunContext, desk: ApprovalDesk, plan: Plan) -> None:
    """Carry out `plan`; on return the run is COMPLETE or FAILED and all of it is on disk.

    A limit or a failing model ends the run FAILED with the reason recorded. `ApprovalRequired` escapes
    and leaves the run WAITING_APPROVAL; cancellation ends it CANCELLED and goes on. An error of the store
    escapes and leaves the run where its log ends, to be resumed; a `UsageError` or a defect of the engine
    escapes after the run was marked FAILED. Steps that are done are not done again; one that failed before
    the run was resumed is tried again.
    """
    try:
        async with ctx.clock:
            answer = await _work(ctx, desk, plan)
        end = await finished(ctx, answer)  # no work of the run: a limit cannot take its answer away
    except asyncio.CancelledError:
        end_cancelled(ctx)
        await asyncio.shield(ctx.on_disk())
        raise
    except TimeoutError as error:
        if not ctx.clock.expired:  # somebody else's, an approver's for example
            await _defect(ctx, error)
            raise
        limit = ctx.clock.limit
        what = "s of work" if limit == "seconds" else "s since it began"
        reason = f"the limit of {getattr(ctx.limits, limit):g} {what} is reached"
        _end(ctx, RunStatus.FAILED, RunFinished(outcome="limit", limit=limit, answer=_so_far(ctx), reason=reason))
    except LimitError as error:
        _end(ctx, RunStatus.FAILED, RunFinished(outcome="limit", limit=error.limit, answer=_so_far(ctx), reason=str(error)))
    except RunError as error:
        outcome = "unmet" if isinstance(error, UnmetError) else "error"
        _end(ctx, RunStatus.FAILED, RunFinished(outcome=outcome, answer=_so_far(ctx), reason=str(error)))
    except Signal:
        ctx.checkpoint("interrupt")
        await asyncio.wrap_future(ctx.store.release(ctx.run_id))
        raise
    except StoreError:
        raise
    except Exception as error:
        await _defect(ctx, error)
        raise
    else:
        _end(ctx, RunStatus.COMPLETE if end.outcome == "complete" else RunStatus.FAILED, end)
    await ctx.on_disk()


async def _defect(ctx: RunContext, error: Exception) -> None:
    reason = str(error) if isinstance(error, UsageError) else f"the engine failed: {type(error).__name__}: {error}"
    _end(ctx, RunStatus.FAILED, RunFinished(outcome="error", answer=_so_far(ctx), reason=reason))
    await ctx.on_disk()


async def _work(ctx: RunContext, desk: ApprovalDesk, plan: Plan) -> str:
    if not ctx.state.plan:
        ctx.emit(PlanProposed(plan=plan.as_json()))
    if ctx.state.status is RunStatus.PLANNING:
        ctx.go(RunStatus.EXECUTING)
    if ctx.state.status is RunStatus.WAITING_APPROVAL and not ctx.state.questions:
        ctx.go(RunStatus.EXECUTING, "decided")
    runner, state = StepRunner(plan, ctx, desk, OPERATIONS), ctx.state
    stages = StageRunner(
        runner,
        state=state,
        toolbox=ctx.toolbox,
        emit=ctx.emit,
        inputs=runner.inputs,
        preflight=partial(preflight, ctx),
        on_disk=ctx.on_disk,
        budget=ctx.ports.budget,
        sleep=ctx.sleep,
    )
    scheduler = StepScheduler(plan, stages, emit=ctx.emit, finished=state.finished_steps, skipped=state.skipped_steps)
    await scheduler.run_parallel(ctx.limits.steps_at_once)
    return runner.answer()


def end_cancelled(ctx: RunContext) -> None:
    """Record that the run was stopped."""
    _end(ctx, RunStatus.CANCELLED, RunFinished(outcome="cancelled", answer=_so_far(ctx), reason="stopped on request"))


def _end(ctx: RunContext, status: RunStatus, finished: RunFinished) -> None:
    if status is not RunStatus.COMPLETE:
        ctx.checkpoint("interrupt" if status is RunStatus.CANCELLED else "error")
    for step in ctx.state.conversations:
        if step not in ctx.state.finished_steps:
            ctx.emit(StepFinished(step=step, ok=False, reason=finished.reason))
    ctx.emit(finished)
    ctx.go(status, finished.reason)


def _so_far(ctx: RunContext) -> str:
    """What the run has when something ends it early: the last thing a model said as an agent, not to the engine."""
    agents = {step.id for step in ctx.state.planned.steps if not step.operation}
    return next((talk.text for name, talk in reversed(ctx.state.conversations.items()) if talk.text and name in agents), "")
