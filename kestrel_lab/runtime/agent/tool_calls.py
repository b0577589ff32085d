"""One turn's tool calls: prepared and approved together, run in parallel where their danger allows."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from typing import Any, cast

from kestrel_lab.core.calls import REPEATABLE, Call, Danger, Problem, Result
from kestrel_lab.core.errors import (
    ApprovalRequired,
    CodeError,
    ConflictError,
    KestrelError,
    Signal,
    StoreError,
    UsageError,
    did_you_mean,
    error_text,
    most_severe,
    stops_task,
)
from kestrel_lab.core.events.union import FolderChanged, Progress, SchedulerParallelBatch, ToolDelta
from kestrel_lab.core.expressions.templates import is_chained, with_answers
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ToolRequest
from kestrel_lab.core.plan import Step
from kestrel_lab.core.protocols import Handler
from kestrel_lab.eventlog.conversation import Conversation
from kestrel_lab.eventlog.large_results import Spool
from kestrel_lab.middleware.cache import ToolCache
from kestrel_lab.middleware.layers import Approval, GuardedLayer, Timeout, TurnOrder, compose_layers
from kestrel_lab.middleware.record_events import RecordAnswer, RecordIntent
from kestrel_lab.runtime.agent.file_trace import FileTrace
from kestrel_lab.runtime.agent.macro_calls import MacroCalls
from kestrel_lab.runtime.agent.result_spool import begin_spool, end_spools, stored_result
from kestrel_lab.runtime.agent.touched_files import TouchedFiles
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.approvals.preview import (
    code_context,
    end_dry_run,
    ending_dry_runs,
    versions_of,
    with_dry_run,
)
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.context.tool_cache import is_cacheable
from kestrel_lab.runtime.memory.run_memory import notes_of
from kestrel_lab.runtime.supervision.failure_kinds import RECOVERABLE, classify_failure
from kestrel_lab.tools import read_result as reading
from kestrel_lab.tools.files.versions import Versions
from kestrel_lab.tools.sandbox.levels import Level
from kestrel_lab.tools.sandbox.select import choose_level_async
from kestrel_lab.tools.tool import Tasks, Tool, ToolArgumentsError, Toolbox, ToolContext, render_result

TOGETHER = Danger.LOW
"""Calls up to this danger may run beside others of their turn."""
PREVIEW_PATIENCE_S = 0.7
"""Seconds that the previews of a turn may take before its questions are asked without them."""
_SHARED = frozenset({"workspace", "anything"})
"""What calls of different steps may change at the same time: see `tools.data_flow.Reach`."""


async def run_turn(step: Step, conversation: Conversation, ctx: RunContext, approvals: RunApprovals) -> bool:
    """Answer every open request of the last model turn; returns whether other tasks of the event loop had a
    turn meanwhile.

    Of more requests than the limit `calls_per_turn` the rest follow in further batches, each of which is
    asked about by itself. A failing call is answered with an error for the model and harms no other. When a
    call needs a person and none is here, the others are finished first, except those whose place is after it;
    then `ApprovalRequired` is raised.
    """
    most, left, turned = ctx.given.limits.calls_per_turn, conversation.open_requests, False
    chained = {request.id for request in conversation.requests if is_chained(request.args)}
    while left:
        # A call that refers to an answer of its turn waits for those before it: its arguments are what is
        # asked about.
        size = next(
            (place for place, request in enumerate(left) if place and request.id in chained), len(left)
        )
        turned = (
            await run_requests(left[: min(most, size)], step, ctx, approvals, chained=bool(chained)) or turned
        )
        left = left[min(most, size) :]
    return turned


async def run_requests(
    requests: Sequence[ToolRequest],
    step: Step,
    ctx: RunContext,
    approvals: RunApprovals,
    *,
    chained: bool = False,
) -> bool:
    """Answer `requests`, at most as many as may run at once, of a turn in which calls refer to answers of
    others if it is `chained`. Contract: `run_turn`.
    """
    if len(requests) == 1:
        await ctx.yield_control()
    else:  # several calls become tasks, which let the event loop turn over
        ctx.check_going()
    state, toolbox = ctx.state, ctx.tools
    record = RecordAnswer(
        ctx.emit,
        lambda call, value: (
            render_result(value)
            if (tool := toolbox.find(call.target)) is None or tool.shown is None
            else tool.shown(value)
        ),
        lambda call: 20_000 if (tool := toolbox.find(call.target)) is None else tool.max_chars,
        begun=lambda call: call.id in state.begun,
        keeps=lambda call: bool(step.tool) or state.macro_of(call.id) is not None or chained,
        store=ctx.services.store.results.keep,
        interrupted=lambda: ctx.interrupted,
        reader="" if reading.NAME in ctx.toolbox else reading.NAME,
    )
    prepared = await _prepare_calls(requests, step, ctx, record)
    if not prepared:
        return False
    toolbox, calls, tools = ctx.tools, [call for call, _ in prepared], [tool for _, tool in prepared]
    together = frozenset([call.id for call, tool in prepared if _may_run_beside_others(call, tool, toolbox)])
    if len(together) > 1:
        ctx.emit(SchedulerParallelBatch(step=step.id, calls=sorted(together)))
    alone = {call.id for call, tool in prepared if _runs_alone(call, tool)}
    order = TurnOrder(calls, together, alone, ctx.alone)
    handler = compose_layers(
        _tool_handler(
            step,
            ctx,
            toolbox,
            approvals,
            lambda request: run_requests([request], step, ctx, approvals, chained=chained),
        ),
        record,
        *((ctx.nested,) if ctx.nested is not None else ()),
        *map(GuardedLayer, ctx.given.usual["middleware"]),
        Approval(ending_dry_runs(approvals.decide, ctx)),
        *((order,) if order.matters else ()),
        *(
            (Approval(approvals.confirm),)
            if state.shows or [tool for tool in tools if tool.preview or tool.dry_run]
            else ()
        ),
        FileTrace(ctx, calls),
        *(
            (TouchedFiles(ctx),)
            if ctx.given.ports.look and "workspace" in {tool.flow.reaches for tool in tools}
            else ()
        ),
        # In its place: a call that may not be made is not answered either, and a read sees the write before
        # it.
        *(_cache(ctx) if any(map(is_cacheable, tools)) else ()),
        *((_timeout(toolbox),) if {tool.timeout_s for tool in tools} != {None} else ()),
        RecordIntent(ctx.emit, ctx.on_disk),
    )

    one = partial(_run_one, handler, order, ctx)
    if len(calls) == 1:
        await one(calls[0])
        return False
    if pure := all(call.effect == "pure" for call in calls):
        await ctx.yield_control()
    return await _await_all(calls, one, at_once=not pure)


async def _run_one(handler: Handler, order: TurnOrder, ctx: RunContext, call: Call) -> None:
    """Run one call of a turn and record its answer; the run is stopped where a person did so."""
    # By what was called before it in this turn of the event loop.
    if ctx.stopping:
        raise asyncio.CancelledError
    try:
        result = await handler(call)
    except ApprovalRequired as signal:
        order.leave(call, signal)
        raise
    finally:
        order.end(call)
        if ctx.dry_runs:
            await end_dry_run(call, ctx)
    # By a person, who thereby stops the run.
    if result.error is not None and result.error.kind == "cancelled":
        ctx.break_off()
        raise asyncio.CancelledError


async def _prepare_calls(
    requests: Sequence[ToolRequest], step: Step, ctx: RunContext, record: RecordAnswer
) -> list[tuple[Call, Tool]]:
    """Return the calls that `requests` mean, with their tools; invalid ones are answered with the error."""
    calls: list[tuple[Call, Tool]] = []
    until = asyncio.get_running_loop().time() + PREVIEW_PATIENCE_S
    toolbox, offered = ctx.tools, ctx.offered(step) if not step.tool else None
    for request in requests:
        prepared = _prepare(request, step, ctx, toolbox, offered)
        if isinstance(prepared, Call):
            tool = toolbox.get(prepared.target)
            if tool.dry_run is not None:
                prepared = await with_dry_run(prepared, ctx, until)
            if tool.sandbox is not None:
                prepared = await _held_in(prepared, tool.sandbox, ctx)
        elif prepared.kind == "unknown_tool" and ctx.growth is not None:
            prepared = replace(prepared, message=await ctx.growth.missing(request, prepared.message))
            # What fits was added.
            toolbox, offered = ctx.tools, ctx.offered(step) if not step.tool else None
        if isinstance(prepared, Call):
            calls.append((prepared, tool))
        else:
            record.answered(
                Call(id=request.id, kind="tool", target=request.name, args=request.args, step=step.id),
                Result(error=prepared),
            )
    return calls


async def _await_all(
    calls: Sequence[Call], run: Callable[[Call], Coroutine[Any, Any, None]], *, at_once: bool
) -> bool:
    """Run all calls beside each other, then raise what matters most: a real error before a wish for approval,
    with the others as notes.

    Returns whether the event loop turned over. A task costs more than a call that never waits for anything.
    So the calls are awaited here one after the other, and as soon as one waits the event loop begins the
    rest, each in a task: in the same order and at the same time as ever. With `at_once` all begin in the same
    turn of the loop, the first one here: so calls that wait for the disk share a commit.
    """
    loop, tasks, errors = asyncio.get_running_loop(), list[asyncio.Task[None]](), list[BaseException]()
    working, ended = 0, asyncio.Event()

    async def run_in_task(call: Call) -> None:
        nonlocal working
        try:
            await _collect_error(run(call), errors)
        finally:
            working -= 1
            if not working:  # one wake-up for all: `gather` takes one for each
                ended.set()

    def begin(rest: deque[Call]) -> None:
        nonlocal working
        working += len(rest)
        tasks.extend([loop.create_task(run_in_task(call)) for call in rest])
        rest.clear()

    here = deque(calls[:1] if at_once else calls)
    begin(deque(calls[len(here) :]))
    beginning = loop.call_soon(begin, here)
    try:
        while here:
            await _collect_error(run(here.popleft()), errors)
        if tasks:
            await ended.wait()
    except asyncio.CancelledError:
        # The tasks are our own: nobody else would end them.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        beginning.cancel()
    if errors:
        # That the run is interrupted comes before all.
        raise next((error for error in errors if isinstance(error, asyncio.CancelledError)), None) or (
            most_severe(errors)
        )
    return bool(tasks)


async def _collect_error(running: Coroutine[Any, Any, None], errors: list[BaseException]) -> None:
    """Await a call, and keep what it raises for when the others have ended.

    Raises `CancelledError` where this task is cancelled.
    """
    try:
        await running
    except (Exception, asyncio.CancelledError) as error:  # each is raised, or a note of what is
        errors.append(error)
        if (
            isinstance(error, asyncio.CancelledError)
            and cast("asyncio.Task[Any]", asyncio.current_task()).cancelling()
        ):
            raise


def _prepare(
    request: ToolRequest, step: Step, ctx: RunContext, toolbox: Toolbox, offered: Collection[str] | None
) -> Call | Problem:
    """Return the call that `request` means, or its error; `offered` names the allowed tools (`None`: all)."""
    if request.problem:
        return Problem(
            kind="invalid_arguments",
            message=f"the arguments of {request.name} could not be read: {request.problem}",
        )
    tool = toolbox.find(request.name)
    if tool is None or (offered is not None and request.name not in offered):
        names = toolbox.names if offered is None else offered
        return Problem(
            kind="unknown_tool",
            message=f"there is no tool {request.name!r}; {did_you_mean(request.name, names)}",
        )
    begun = ctx.state.begun.get(request.id)
    try:
        args = tool.validate(_fill_references(request, step, ctx) if begun is None else begun.args)
    except (ToolArgumentsError, UsageError) as error:
        return Problem(kind="invalid_arguments", message=str(error))
    # A step's call that failed may have had its effect: made anew, it is asked about like one of unknown
    # outcome.
    tries = ctx.state.conversation(step.id).attempt if step.tool and tool.effect not in REPEATABLE else 1
    return _call(request.id, tool, args, step, attempt=tries if begun is None else begun.attempt + 1)


def _fill_references(request: ToolRequest, step: Step, ctx: RunContext) -> dict[str, Json]:
    """Return a request's arguments with references to earlier answers resolved; raises `UsageError`."""
    if not is_chained(request.args):
        return request.args
    conversation = ctx.state.conversation(step.id)
    before = [other.id for other in takewhile(lambda other: other.id != request.id, conversation.requests)]
    return cast(
        "dict[str, Json]",
        with_answers(request.args, {name: conversation.values.get(name) for name in before}),
    )


async def _held_in(call: Call, least: Level, ctx: RunContext) -> Call | Problem:
    """The call with its commands' sandbox level; CRITICAL without a sandbox, unless that was asked for."""
    try:
        choice = await choose_level_async(ctx.given.sandbox, ctx.given.workspace.root, least)
    except UsageError as error:
        return Problem(kind="failed", message=str(error))
    network = " with network" if ctx.given.sandbox.network and choice.level else ""
    return replace(
        call, sandbox=f"{choice}{network}", danger=call.danger if choice.wanted else Danger.CRITICAL
    )


def _may_run_beside_others(call: Call, tool: Tool, toolbox: Toolbox) -> bool:
    """Whether the call of `tool`, and each call it makes, is neither dangerous nor meant to run alone."""
    return (
        call.danger <= TOGETHER
        and tool.parallel_safe
        and (
            tool.parts is None
            or all(
                part.danger <= TOGETHER and part.parallel_safe
                for part in map(toolbox.get, tool.parts(call.args))
            )
        )
    )


def _runs_alone(call: Call, tool: Tool) -> bool:
    """Return whether no other such call of any step may be at work meanwhile: both may change the workspace,
    or nobody knows what.

    A call that is made of calls changes nothing itself.
    """
    return not tool.parallel_safe or (
        call.danger > TOGETHER and tool.flow.at(call.sandbox).reaches in _SHARED
    )


def _call(call_id: str, tool: Tool, args: dict[str, Json], step: Step, *, attempt: int) -> Call:
    own = tool.danger if tool.danger_of is None else tool.danger_of(args)
    danger = max(own, Danger.HIGH) if step.tool == tool.name and step.needs_approval else own
    return Call(
        id=call_id,
        kind="tool",
        target=tool.name,
        args=args,
        step=step.id,
        danger=danger,
        effect=tool.effect,
        attempt=attempt,
    )


def _timeout(toolbox: Toolbox) -> Timeout:
    return Timeout(
        lambda call: toolbox.get(call.target).timeout_s, lambda call: toolbox.get(call.target).in_thread
    )


def _cache(ctx: RunContext) -> tuple[ToolCache, ...]:
    return (
        ()
        if ctx.services.cache is None
        else ctx.services.cache.layers(
            ctx.given.options.get("cache"),
            ctx.tools,
            ToolContext(workspace=ctx.given.workspace, run_id=ctx.run_id),
            ctx.emit,
        )
    )


def _tool_handler(
    step: Step,
    ctx: RunContext,
    toolbox: Toolbox,
    approvals: RunApprovals,
    answer: Callable[[ToolRequest], Awaitable[object]],
) -> Handler:
    """Return what runs the tool itself; whatever it raises becomes an error that the model can read.

    `answer` carries out a request that the tool makes, as if the model had made it.
    """

    def tell(text: str, fraction: float | None = None) -> None:
        ctx.emit(Progress(text=ctx.services.redactor.text(text), fraction=fraction))

    def scope_of(
        call: Call, parts: MacroCalls | None, spools: list[Spool], images: list[ImagePart]
    ) -> ToolContext:
        return ToolContext(
            workspace=ctx.given.workspace.for_call(),
            run_id=ctx.run_id,
            call_id=call.id,
            versions=versions_of(call, ctx),
            progress=tell,
            time=ctx.began,
            tasks=Tasks(listed=lambda: tuple(ctx.state.tasks.values()), change=ctx.emit),
            notes=notes_of(ctx, step.id),
            parts=parts,
            delegate=None if ctx.delegate is None else partial(ctx.delegate, step, call.id),
            sandbox=ctx.given.sandbox,
            folder=ctx.state.conversation(call.step).folder,
            moved=lambda folder: ctx.emit(FolderChanged(call=call.id, step=call.step, folder=folder)),
            output=lambda text: ctx.tell(ToolDelta(call=call.id, text=text)),
            redactor=ctx.services.redactor,
            kept=partial(stored_result, ctx),
            spool=partial(begin_spool, ctx, spools),
            show=images.append,
            looked_up=lambda looked: ctx.emit(replace(looked, step=call.step, call=call.id)),
            code=code_context(call, ctx),
            ask=partial(approvals.inquire, call) if approvals.attended else None,
        )

    async def run(call: Call) -> Result:
        tool = toolbox.get(call.target)
        parts = None if tool.parts is None else MacroCalls(call, ctx, answer)
        spools: list[Spool] = []
        images: list[ImagePart] = []
        scope = scope_of(call, parts, spools, images) if tool.context_parameter else None
        known = Versions() if scope is None else scope.versions
        began = time.perf_counter()

        name, chars, problem = "", 0, None
        try:
            value = ctx.services.redactor.json(await tool.run(call.args, scope))
            name, chars = end_spools(spools)
        except KeyboardInterrupt:
            # Ctrl-C reached a tool on the main thread. Escaping from a task it would tear down the event
            # loop.
            ctx.break_off()
            raise asyncio.CancelledError from None
        except (Signal, StoreError):
            # These end the run or the turn and are no answers of the tool.
            raise
        except BaseException as error:  # foreign code: classified here, recorded by the layers above
            # The calls of a macro or of a sub-agent are cancelled without this task where the run is stopped.
            stopped = ctx.stopping and isinstance(error, asyncio.CancelledError)
            if stopped or stops_task(error):
                raise
            value, problem = _failure(error, ctx)
        finally:
            for spool in spools:
                spool.drop()
        return Result(
            value=value,
            error=problem,
            seconds=(parts.seconds if parts else 0.0) or time.perf_counter() - began,
            whole=name,
            chars=chars,
            knows=known.knows,
            changed=known.changed,
            before=known.before,
            images=(*images,),
        )

    return run


def _failure(error: BaseException, ctx: RunContext) -> tuple[Json, Problem]:
    """Return answer and problem of a call that raised; code run by it is answered with its output so far."""
    shown = ctx.services.redactor.text
    if isinstance(error, CodeError):
        return shown(error.output), Problem(
            kind="cancelled" if error.stopped else "raised", message=shown(str(error))
        )
    text = shown(str(error) if isinstance(error, KestrelError) else error_text(error))
    if isinstance(error, ConflictError):
        return None, Problem(kind="conflict", message=text)
    return None, Problem(kind="failed", message=text, transient=classify_failure(error) in RECOVERABLE)
