"""Previews and dry runs of calls before they are decided, and the file versions they rely on."""

from __future__ import annotations

import asyncio
import base64
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Call, Danger
from kestrel_lab.core.errors import ConflictError, error_text, stops_task
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    CellsChanged,
    KernelChanged,
    KernelPreviewed,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.runtime.context.run_context import RunContext, in_notebook
from kestrel_lab.runtime.memory.run_memory import notes_of
from kestrel_lab.tools.files.versions import Versions, preview_key
from kestrel_lab.tools.tool import CodeContext, DryRun, ToolContext


def versions_of(call: Call, ctx: RunContext) -> Versions:
    """Return the file versions that `call` relies on."""
    conversation = ctx.state.conversation(call.step)

    def other(path: str) -> str:
        writers = [step for step in ctx.state.writers.get(path, ()) if step != call.step]
        before = earlier_steps(ctx.state.planned, call.step) if writers else set()
        return next((step for step in reversed(writers) if step not in before), "")

    def as_shown() -> None:
        shown = ctx.state.shows.get(call.id)
        if shown and shown != preview_key(preview_of(call, ctx)):
            raise ConflictError(
                f"{call.target} did nothing: what it would change is not what was approved any more; "
                "call it again"
            )

    def keep(content: bytes) -> str:
        text = content.decode("utf-8", "replace")
        # What is kept holds no secret.
        return (
            ctx.services.store.results.keep_bytes(content) if ctx.services.redactor.text(text) == text else ""
        )

    return Versions(
        known=conversation.files, since=conversation.began, other=other, as_shown=as_shown, keep=keep
    )


def earlier_steps(plan: Plan, step: str) -> set[str]:
    """Return the steps `step` waits for, directly or not, and earlier steps that never run in parallel with
    it.
    """
    needs = plan.needs()
    order = plan.order()
    exclusive = [one.id for one in order if one.exclusive]
    for earlier, later in itertools.pairwise(exclusive):
        needs[later] = (*needs[later], earlier)
    found: set[str] = set()
    todo = [step]
    while todo:
        for name in needs.get(todo.pop(), ()):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


def preview_of(call: Call, ctx: RunContext) -> str:
    """Return the tool's preview of `call`, or why it failed; empty if the tool has none."""
    tool = ctx.tools.find(call.target)
    if tool is None or tool.preview is None:
        return ""
    try:
        return tool.preview(
            call.args, ToolContext(workspace=ctx.given.workspace, notes=notes_of(ctx, call.step))
        )
    except BaseException as error:  # the boundary to a tool's own code; the person sees it
        if stops_task(error):
            raise
        return f"no preview: {error_text(error)}"


async def dry_run_of(call: Call, ctx: RunContext) -> DryRun | None:
    """Return the dry run of `call`; `None` if its tool has none."""
    tool = ctx.tools.find(call.target)
    if tool is None or tool.dry_run is None:
        return None
    scope = ToolContext(
        workspace=ctx.given.workspace,
        run_id=ctx.run_id,
        call_id=call.id,
        sandbox=ctx.given.sandbox,
        redactor=ctx.services.redactor,
        code=code_context(call, ctx),
    )
    ctx.clock.hold()
    try:
        return await tool.dry_run(call.args, scope)
    finally:
        ctx.clock.release()


async def with_dry_run(call: Call, ctx: RunContext, until: float) -> Call:
    """Return the call with the danger and place of effect found by its dry run.

    Where a person can be asked, a dry run is waited for until `until` by the event loop's clock. One that
    takes longer goes on beside the question: the call counts as one without a preview.
    """
    work = asyncio.ensure_future(dry_run_of(call, ctx))
    asks = ctx.given.options.get("approver") is not None and ctx.given.policy.otherwise != "deny"
    patience = max(0.0, until - asyncio.get_running_loop().time()) if asks else None
    try:
        await asyncio.wait({work}, timeout=patience)
    except asyncio.CancelledError:
        work.cancel()
        raise
    if not work.done():
        ctx.dry_runs[call.id] = work
        return replace(call, danger=Danger.HIGH, sandbox=IN_KERNEL)
    found = work.result()
    return call if found is None else replace(call, danger=found.danger, sandbox=found.sandbox)


async def allowed_by_preview(
    asked: ApprovalAsked,
    call: Call,
    ctx: RunContext,
    contained: Callable[[Call], tuple[dict[str, Json], Any]],
) -> ApprovalGiven:
    """Wait for a preview that makes the question needless, which may be for ever: nothing but plain values
    came of the code, the policy lets that go on, and containment has nothing against it.
    """
    work = ctx.dry_runs.get(call.id)
    if work is not None:
        # Of one that fails the card says so, and the person decides.
        await asyncio.wait({work})
    ended = work is not None and not work.cancelled() and work.exception() is None
    found = work.result() if work is not None and ended and asked.why == "danger" else None
    if found is not None and found.sandbox == PREVIEWED:
        now = replace(call, danger=found.danger, sandbox=found.sandbox)
        ruling = ctx.given.policy.ruling(now)
        if ruling.verdict == "allow" and not contained(now)[0]:
            return ApprovalGiven(
                call=call.id,
                granted=True,
                by=ruling.by,
                how=ruling.how,
                sandbox=PREVIEWED,
                danger=found.danger.name,
            )
    needed: asyncio.Future[ApprovalGiven] = asyncio.get_running_loop().create_future()
    return await needed


Decide = Callable[[Call], Awaitable[ApprovalGiven | None]]


def ending_dry_runs(decide: Decide, ctx: RunContext) -> Decide:
    """Return what decides on calls; a dry run that is still at work then is of no use, and ends."""
    if not ctx.dry_runs:  # three calls of functions less in each call of a tool
        return decide

    async def decided(call: Call) -> ApprovalGiven | None:
        try:
            return await decide(call)
        finally:
            await end_dry_run(call, ctx)

    return decided


async def end_dry_run(call: Call, ctx: RunContext) -> None:
    """Break the dry run of a call off, if it is still at work."""
    if (work := ctx.dry_runs.pop(call.id, None)) is not None:
        work.cancel()
        # What went wrong in it is no matter any more: the call was decided without it.
        await asyncio.gather(work, return_exceptions=True)


def code_context(call: Call, ctx: RunContext) -> CodeContext:
    """Return what a tool that runs code may know of `call`."""

    def emit(
        event: KernelPreviewed | KernelChanged | CellsChanged, images: Sequence[tuple[str, bytes]]
    ) -> None:
        if isinstance(event, CellsChanged):
            return ctx.emit(event)
        kept: list[dict[str, Json]] = [
            {"media": media, "blob": ctx.services.store.results.keep_bytes(content), "bytes": len(content)}
            for media, content in images
        ]
        shown: list[dict[str, Json]] = [
            {**one, "data": base64.b64encode(content).decode()}
            for one, (_, content) in zip(kept, images, strict=True)
        ]
        return ctx.emit(replace(event, images=kept), shown=replace(event, images=shown) if images else None)

    return CodeContext(
        emit=emit,
        step=call.step,
        sandbox=call.sandbox,
        danger=call.danger,
        live=in_notebook(ctx),
        earlier=ctx.state.kernels,
        untraced=lambda: ctx.services.files is not None and ctx.services.files.known(),
    )
