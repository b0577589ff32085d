"""Tools of the group `kernel`: run Python, list variables, inspect one; in the notebook's kernel, or in one
that belongs to the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, Danger
from kestrel_lab.core.errors import CodeError, ConflictError, ToolError, did_you_mean
from kestrel_lab.core.events.union import KernelChanged, KernelPreviewed
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.kernel.inspection import inspect_name, variable_lines
from kestrel_lab.tools.kernel.live_kernel import ExecutionResult, LiveKernel, kernel_of, live_shell
from kestrel_lab.tools.kernel.own_kernel import Kernels, OwnKernel
from kestrel_lab.tools.kernel.variables import user_variables
from kestrel_lab.tools.sandbox.command_watch import CommandWatch
from kestrel_lab.tools.tool import CodeContext, DryRun, Tool, ToolContext

GROUP = "kernel"
MAX_CHARS = 8_000
"""Characters of each part of an answer."""
NO_OUTPUT = "[no output]"


def kernel_tools(kernels: Kernels) -> list[Tool]:
    """Return `run_python`, `list_variables` and `inspect_variable`; off a notebook they work in `kernels`."""

    @tool(
        danger_level=Danger.MEDIUM,
        effect="opaque",
        version="1",
        parallel_safe=False,
        reads="kernel workspace",
        reaches="workspace",
    )
    async def run_python(code: str, ctx: ToolContext) -> str:
        """Run Python code as a cell of the notebook and return what it prints, displays and gives, and which
        variables it changed.

        Variables stay for the next call. The value of the last expression is part of the answer. Figures of
        matplotlib are shown to the user. Look at data by their head or a summary: long output is shortened.

        Args:
            code: The code of a cell.
            ctx: The run it works for.

        """
        live, about = live_kernel_of(ctx), context_of(ctx)
        if live is None:
            return await _run_own(_own_kernel(kernels, ctx), code, about, ctx)
        note, ran = await run_live(live, code, about, ctx)
        return checked_text(ran, note)

    @tool(
        danger_level=Danger.SAFE,
        effect="idempotent",
        version="1",
        parallel_safe=False,
        reads="kernel private",
        reaches="nothing",
    )
    async def list_variables(ctx: ToolContext) -> str:
        """List the variables of the kernel that run_python works in: name, type, and size or value.

        Args:
            ctx: The run it works for.

        """
        if (live := live_kernel_of(ctx)) is not None:
            return variable_lines(live.shell.user_ns)
        return await asyncio.to_thread(_own_kernel(kernels, ctx).listed)

    @tool(
        danger_level=Danger.SAFE,
        effect="idempotent",
        version="1",
        parallel_safe=False,
        reads="kernel private",
        reaches="nothing",
    )
    async def inspect_variable(name: str, ctx: ToolContext) -> str:
        """Describe a variable: type, shape, columns with their types, missing values and statistics, and the
        first rows.

        Args:
            name: Name of the variable.
            ctx: The run it works for.

        """
        if (live := live_kernel_of(ctx)) is None:
            return await asyncio.to_thread(_own_kernel(kernels, ctx).inspected, name)
        known = user_variables(live.shell.user_ns)
        if name not in known:
            raise ToolError(
                f"there is no variable {name!r}; "
                f"{did_you_mean(name, known) if known else 'there are none yet'}"
            )
        return inspect_name(known, name)

    return [
        replace(run_python, dry_run=_dry_run, group=GROUP),
        *(replace(made, group=GROUP) for made in (list_variables, inspect_variable)),
    ]


async def _dry_run(args: dict[str, Json], ctx: ToolContext) -> DryRun | None:
    """Preview a call's code in the notebook's kernel; a separate kernel is sandboxed and needs none."""
    live = live_kernel_of(ctx)
    return None if live is None else await preview_code(live, str(args["code"]), ctx)


async def preview_code(live: LiveKernel, code: str, ctx: ToolContext, *, head: str = "") -> DryRun:
    """Return what `code` would do now, and record the first preview of the call; its text follows `head`, in
    the question and in one that is asked before the preview has ended.
    """
    about, known = context_of(ctx), live.known(ctx.call_id)
    preview = await live.preview(code, str(ctx.workspace.root), ctx.call_id, untraced=about.untraced())
    text = f"{head}{preview.text}"
    if preview is not known:
        about.emit(
            KernelPreviewed(
                call=ctx.call_id,
                step=about.step,
                seconds=preview.seconds,
                problem=preview.problem,
                changes=[change.as_json() for change in preview.changes],
                refused=list(preview.refused),
                error=preview.error,
                adoptable=preview.adoptable,
                danger=preview.danger.name,
                sandbox=preview.sandbox,
                text=ctx.redactor.text(text),
            ),
            preview.images,
        )
    return DryRun(danger=preview.danger, sandbox=preview.sandbox, text=text)


def live_kernel_of(ctx: ToolContext) -> LiveKernel | None:
    """Return the kernel of the notebook that the run works in; `None` off a notebook and in a suite."""
    shell = live_shell()
    return kernel_of(shell) if shell is not None and ctx.code is not None and ctx.code.live else None


def _own_kernel(kernels: Kernels, ctx: ToolContext) -> OwnKernel:
    return kernels.of(ctx.run_id, ctx.workspace.root, ctx.sandbox.memory)


def context_of(ctx: ToolContext) -> CodeContext:
    """Return what a tool that runs code may know of its call; raises `ToolError` outside a run."""
    if ctx.code is None:
        raise ToolError("code can be run only within a run, which records the result")
    return ctx.code


async def run_live(
    live: LiveKernel, code: str, about: CodeContext, ctx: ToolContext, *, cell: bool = False
) -> tuple[str, ExecutionResult]:
    """Take over what the preview computed, or run the code, as it was decided; returns what the model has to
    know first, and what came of it.

    The code of a `cell` is recorded with the event, and its output is not shown: it belongs into the cell.
    """
    place = str(ctx.workspace.root)
    if about.sandbox == PREVIEWED:
        preview = await live.preview(code, place, ctx.call_id, untraced=about.untraced())
        if not preview.adoptable or preview.danger > about.danger:
            raise ConflictError(
                "what this code does now is not what it did in its preview: nothing was changed; make "
                "the call again"
            )
        ran = live.adopt(preview, ctx.run_id, ctx.call_id, show=not cell)
    elif about.sandbox.partition(" ")[0] == IN_KERNEL and live.is_ready(ctx.call_id, code, about.danger):
        # Its preview came after the question: the person may have waited for it.
        ran = live.adopt(live.preview_for(ctx.call_id), ctx.run_id, ctx.call_id, show=not cell)
    elif about.sandbox.partition(" ")[0] == IN_KERNEL:
        ran = await live.execute(
            code,
            place,
            ctx.run_id,
            ctx.call_id,
            show=not cell,
            report=lambda text: ctx.output(ctx.redactor.text(text)),
        )
    else:
        raise ToolError("this code was not approved to run in the kernel")
    note = new_kernel_notice(about, live.id)
    _record(ran, live.id, about, ctx, code if cell else "")
    return note, ran


async def _run_own(kernel: OwnKernel, code: str, about: CodeContext, ctx: ToolContext) -> str:
    watch = CommandWatch.of(str(ctx.workspace.root))
    before = await asyncio.to_thread(watch.look)
    try:
        ran = await asyncio.to_thread(kernel.execute, code)
    except asyncio.CancelledError:
        kernel.interrupt()
        raise
    note = new_kernel_notice(about, kernel.id)
    _record(ran, kernel.id, about, ctx)
    return checked_text(ran, note, await asyncio.to_thread(watch.settle, before))


def _record(ran: ExecutionResult, kernel: str, about: CodeContext, ctx: ToolContext, code: str = "") -> None:
    about.emit(
        KernelChanged(
            call=ctx.call_id,
            step=about.step,
            how=ran.how,
            kernel=kernel,
            before=ran.before,
            changes=[change.as_json() for change in ran.changes],
            error=ran.reason,
            undoable=not any(change.lost for change in ran.changes),
            code=ctx.redactor.text(code),
            table=[[ctx.redactor.text(cell) for cell in cells] for cells in ran.table],
        ),
        ran.output.images,
    )
    for media, content in ran.output.images:
        ctx.show(ImagePart.of(content, media))


def new_kernel_notice(about: CodeContext, kernel: str) -> str:
    """Return what a model and its reader have to know in the first call to a kernel other than those of
    earlier calls: in a fork, after a resume or a death.
    """
    if not about.earlier or kernel in about.earlier.values():
        return ""
    calls = ", ".join(about.earlier)
    return (
        f"[the kernel in which {calls} ran is gone, with its variables: run the code of these calls "
        "again first if you need them]\n"
    )


def checked_text(ran: ExecutionResult, note: str = "", warnings: Sequence[str] = ()) -> str:
    """Return what came of code as a model reads it, with what it has to know before and after; raises
    `CodeError` unless the code ended well.
    """
    text = note + execution_text(ran) + "".join(f"\n[{one}]" for one in warnings)
    if ran.reason:
        text = f"[a person stopped this code while it ran]\n{text}" if ran.stopped else text
        raise CodeError(ran.reason, text, stopped=ran.stopped)
    return text


def execution_text(ran: ExecutionResult) -> str:
    """Return what came of code as a model reads it."""
    parts = [
        head_tail(text.rstrip(), MAX_CHARS)[0]
        for text in (ran.output.text, *ran.output.texts, ran.given, "" if ran.stopped else ran.error)
    ]
    for number, (media, content) in enumerate(ran.output.images, 1):
        parts.append(f"[figure {number}: {media}, {len(content):,} bytes, shown to the user]")
    parts += [f"[{change.line}]" for change in ran.changes]
    if ran.given_up:
        parts.append(
            f"[changes inside of objects by {', '.join(ran.given_up)} cannot be undone any more: too "
            "much memory was held]"
        )
    return "\n".join(part for part in parts if part) or NO_OUTPUT
