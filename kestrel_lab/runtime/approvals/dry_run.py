"""Dry run of a call before it is decided on: its tool finds out what it would do, where that has no effect."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.calls import Call
from kestrel_lab.core.events.union import CellsChanged, KernelChanged, KernelPreviewed
from kestrel_lab.core.json_types import Json
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.tools.tool import CodeContext, DryRun, ToolContext


async def dry_run_of(call: Call, ctx: RunContext) -> DryRun | None:
    """Return what `call` would do; `None` where its tool cannot say."""
    tool = ctx.tools.find(call.target)
    if tool is None or tool.dry_run is None:
        return None
    scope = ToolContext(workspace=ctx.workspace, run_id=ctx.run_id, call_id=call.id, sandbox=ctx.sandbox, code=code_context(call, ctx))
    return await tool.dry_run(call.args, scope)


async def with_dry_run(call: Call, ctx: RunContext) -> Call:
    """Return the call with the danger that its dry run found, and where it has its effect."""
    found = await dry_run_of(call, ctx)
    return call if found is None else replace(call, danger=found.danger, sandbox=found.sandbox)


def code_context(call: Call, ctx: RunContext) -> CodeContext:
    """Return what a tool that runs code may know of `call`."""

    def emit(event: KernelPreviewed | KernelChanged | CellsChanged, images: Sequence[tuple[str, bytes]]) -> None:
        if isinstance(event, CellsChanged):
            return ctx.emit(event)
        kept: list[dict[str, Json]] = [
            {"media": media, "blob": ctx.store.results.keep_bytes(content), "bytes": len(content)} for media, content in images
        ]
        shown: list[dict[str, Json]] = [
            {**one, "data": base64.b64encode(content).decode()} for one, (_, content) in zip(kept, images, strict=True)
        ]
        return ctx.emit(replace(event, images=kept), shown=replace(event, images=shown) if images else None)

    return CodeContext(
        emit=emit,
        step=call.step,
        sandbox=call.sandbox,
        danger=call.danger,
        live=not ctx.options.scenario and not (ctx.state.started is not None and ctx.state.started.scenario),
        earlier=ctx.state.kernels,
        untraced=lambda: ctx.files is not None and ctx.files.known(),
    )
