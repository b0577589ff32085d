"""Sub-agents: what `delegate` starts.

Each is a step of the run with its parent's id, its own conversation, tools and share of the limits.
"""

from __future__ import annotations

from dataclasses import replace

from kestrel_lab.core.errors import LimitError, RunError, ToolError, UsageError, did_you_mean
from kestrel_lab.core.events.union import StepFinished, StepStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.step import Step
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.execution.artifacts import own_output
from kestrel_lab.runtime.execution.steps import warn_of_missing_tools, work_on_step
from kestrel_lab.tools.delegation import DELEGATE, WORKER


async def run_delegate(
    ctx: RunContext, approvals: RunApprovals, parent: Step, call: str, agent: str, goal: str, share: float
) -> Json:
    """Have `agent` work on `goal` for the call of that id, and return its answer; goes on where the log of an
    earlier session ends.

    Raises `ToolError` when the agent fails, also by its share of the limits, `UsageError` for an agent that
    is not there or a share that is none, and `ApprovalRequired` when one of its calls needs a person and none
    is here.
    """
    state, step = ctx.state, _step(parent, f"{call}/{agent}", agent, goal, ctx)
    if state.finished_steps.get(step.id):
        return own_output(step, state)
    limits = state.conversation(step.id).limits if call in state.branches else _shares(ctx, parent, share)
    warn_of_missing_tools(step, ctx)
    model = ctx.model_of(step)
    ctx.emit(
        StepStarted(
            step=step.id,
            goal=goal,
            model=step.model,
            model_kind=model.kind if step.model else "real",
            system=ctx.system_of(step),
            parent=parent.id,
            call=call,
            limits=limits,
        )
    )
    seconds = limits["seconds"] - state.spent(step.id).get("seconds", 0) if "seconds" in limits else None
    try:
        async with ctx.clock.part(None if seconds is None else max(0.001, seconds)) as clock:
            await work_on_step(step, ctx, approvals)
    except LimitError:  # of the run, which ends by it
        raise
    except (RunError, TimeoutError) as error:
        timed_out = isinstance(error, TimeoutError)
        if timed_out and not clock.expired:
            raise
        reason = (
            f"its share of the time, {limits['seconds']:.3g} s of work, is used" if timed_out else str(error)
        )
        ctx.emit(StepFinished(step=step.id, ok=False, reason=reason))
        raise ToolError(f"agent {agent!r} did not come to an end: {reason}") from error
    ctx.emit(StepFinished(step=step.id, ok=True))
    return own_output(step, state)


def _step(parent: Step, name: str, agent: str, goal: str, ctx: RunContext) -> Step:
    """Return the step of a sub-agent: a member of its parent's team, or one like its parent without
    instructions.
    """
    if not goal.strip():
        raise UsageError("the goal is empty: say what the agent is to do")
    for member in parent.members:
        if member.id == agent:
            return replace(
                member, id=name, goal=goal, tools=parent.tools if member.tools is None else member.tools
            )
    if parent.team or agent != WORKER:
        raise UsageError(f"there is no agent {agent!r}; {did_you_mean(agent, parent.team or [WORKER])}")
    offered = ctx.offered(parent)
    tools = tuple(tool for tool in (ctx.toolbox.names if offered is None else offered) if tool != DELEGATE)
    return Step(
        id=name,
        goal=goal,
        tools=tools,
        model=parent.model,
        params=parent.params,
        temperature=parent.temperature,
        react=parent.react,
    )


def _shares(ctx: RunContext, parent: Step, share: float) -> dict[str, float]:
    """Return what a sub-agent may use: a part of what its parent has left, so that those of one turn do not
    promise more than there is.
    """
    if not 0 <= share <= 1:
        raise UsageError(f"share must be from 0 to 1, not {share:g}")
    state, limits = ctx.state, ctx.given.limits
    siblings = max(1, sum(request.name == DELEGATE for request in state.conversation(parent.id).requests))
    part = min(share or 1 / (siblings + 1), 1 / siblings)
    used = {"cost_usd": state.usage.cost_usd, "tokens": state.usage.tokens, "seconds": state.working_s}
    left = {name: bound - used[name] for name in used if (bound := getattr(limits, name)) is not None}
    above = parent.id
    while conversation := state.conversations[above].within and state.conversations[above]:
        spent = state.spent(above)
        left |= {
            name: min(left.get(name, bound), bound - spent.get(name, 0))
            for name, bound in conversation.limits.items()
        }
        above = conversation.within
    return {name: max(0.0, part * rest) for name, rest in left.items()}
