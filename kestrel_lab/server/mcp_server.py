"""A session as an MCP server: other programs call its tools. Over HTTP: `serve`.

Every call of a tool is a run in the log, under a policy that asks nobody: what the policy does not allow is
refused and said so. The tools that read the log (`server.log_tools`) are served beside them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import ApprovalRequired, KestrelError
from kestrel_lab.core.events.union import Event, Progress, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.messages import Message
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.conversation import read_images
from kestrel_lab.host.version import __version__
from kestrel_lab.models.chat_format import wire_name
from kestrel_lab.runtime.context.images import with_images
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import start
from kestrel_lab.server.log_tools import LOG_TOOLS, LogTool
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.tool import Tool, Toolbox

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolResult


async def serve_stdio(
    lab: Services, *, approve: str = "deny", workspace: str = ".", tools: Sequence[str] | None = None
) -> None:
    """Serve on standard input and output until the input ends.

    Whatever else would be written to standard output goes to standard error. Raises `UsageError` for an
    unknown tool.
    """
    from mcp.server.stdio import stdio_server

    server = make_server(lab, approve=approve, workspace=workspace, tools=tools)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def make_server(lab: Services, *, approve: str, workspace: str, tools: Sequence[str] | None) -> Server[Any]:
    """The server, not yet listening."""
    from mcp.server.lowlevel import Server
    from mcp_types import CallToolRequestParams, ListToolsResult, PaginatedRequestParams
    from mcp_types import Tool as WireTool

    # A question to a person has no place here: nobody sits on the other side.
    reading = {name: one for name, one in LOG_TOOLS.items() if tools is None or name in tools}
    named = None if tools is None else [name for name in tools if name not in reading]
    offered = Toolbox(tool for tool in lab.registry.resolve_tools(named) if not tool.asks_person)
    by_wire = {wire_name(tool.name): tool for tool in offered}
    listed = [
        WireTool(name=name, description=tool.description, input_schema=tool.schema)
        for name, tool in by_wire.items()
    ] + [
        WireTool(name=name, description=one.description, input_schema=one.schema)
        for name, one in reading.items()
    ]

    async def list_tools(_: Any, __: PaginatedRequestParams | None) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(ctx: Any, params: CallToolRequestParams) -> CallToolResult:
        if (reader := reading.get(params.name)) is not None:
            return await _read_log(lab, reader, params.arguments or {})
        if (tool := by_wire.get(params.name)) is None:
            return _text_result(f"there is no tool {one_line(params.name)!r}", failed=True)
        return await _follow_run(
            ctx, lab, lambda: _call(lab, tool, params.arguments or {}, approve, workspace)
        )

    return Server("kestrel_lab", version=__version__, on_list_tools=list_tools, on_call_tool=call_tool)


async def _read_log(lab: Services, reader: LogTool, args: dict[str, Any]) -> CallToolResult:
    """The answer of a tool that reads the log: JSON, and the same as text for clients that take only that."""
    from mcp_types import CallToolResult, TextContent

    try:
        found = await asyncio.to_thread(reader.answer, lab.store, args)
    except KestrelError as error:
        return _text_result(str(error), failed=True)
    return CallToolResult(content=[TextContent(type="text", text=dumps(found))], structured_content=found)


def _call(lab: Services, tool: Tool, args: dict[str, Any], approve: str, workspace: str) -> Run:
    """A run of that one call; it has a model that says nothing, because no agent takes part."""
    plan = Plan(steps=(Step(id="call", tool=tool.name, args=tool.validate(args)),))
    silent = ScriptedModel([], name="nobody")
    return start(
        lab,
        f"{tool.name} for an MCP client",
        model=silent,
        tools=Toolbox([tool]),
        workspace=workspace,
        approve=approve,
        plan=plan,
    )


async def _follow_run(ctx: Any, lab: Services, begin: Callable[[], Run]) -> CallToolResult:
    """The answer of a run; it is stopped when the client takes its call back."""
    try:
        run = begin()
    except (KestrelError, ValueError) as error:
        return _text_result(str(error), failed=True)
    sending: set[asyncio.Task[None]] = set()
    count = 0

    def report(event: Event) -> None:
        nonlocal count
        if (text := _progress(event)) is not None:
            count += 1
            task = asyncio.get_running_loop().create_task(ctx.session.report_progress(count, None, text))
            sending.add(task)
            task.add_done_callback(sending.discard)

    stop = run.subscribe(report)
    try:
        await run.wait()
    except asyncio.CancelledError:
        # The client took its call back: nobody is left who would use the answer.
        run.cancel()
        raise
    except ApprovalRequired:
        why = "not allowed by the approval policy of this server, and nobody is asked here"
        return _text_result(
            f"{why}; a person can allow it later: kestrel approve {run.id}, then kestrel resume {run.id}",
            failed=True,
        )
    except KestrelError as error:
        return _text_result(str(error), failed=True)
    finally:
        stop()
        await asyncio.gather(*sending, return_exceptions=True)
    return _call_result(run, lab)


def _call_result(run: Run, lab: Services) -> CallToolResult:
    """The answer of a run of one call: its text, its images, and its JSON if that is an object."""
    from mcp_types import CallToolResult, ImageContent, TextContent

    event = next((event for event in reversed(run.events()) if isinstance(event, ToolAnswered)), None)
    content: list[Any] = [TextContent(type="text", text=run.answer or run.reason)]
    if event is not None and event.images:
        shown = with_images([Message(role="tool", images=read_images(event.images))], lab.store)[0].images
        content += [
            ImageContent(type="image", data=image.data, mime_type=image.media_type) for image in shown
        ]
    return CallToolResult(
        content=content,
        structured_content=None if event is None or not isinstance(event.value, dict) else event.value,
        is_error=run.status is not RunStatus.COMPLETE,
    )


def _progress(event: Event) -> str | None:
    match event:
        case Progress(text=text) if text:
            return text
        case ToolCalled(tool=tool):
            return f"calls {tool}"
        case ToolAnswered(tool=tool):
            return f"{tool} answered"
    return None


def _text_result(text: str, *, failed: bool) -> CallToolResult:
    from mcp_types import CallToolResult, TextContent

    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)
