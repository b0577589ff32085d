"""A session as an ACP agent: editors that speak the agent client protocol run goals, see the calls, and
answer the questions.

Source: agentclientprotocol.com, protocol version 1. Each prompt is a run in the log; the prompts of a session
are one conversation.
"""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64decode
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, Final, Unpack, cast
from uuid import uuid4

from kestrel_lab.adapters.object_lines import ObjectLines
from kestrel_lab.core.calls import REPEATABLE
from kestrel_lab.core.errors import ApprovalRequired, KestrelError, UsageError
from kestrel_lab.core.events import union as e
from kestrel_lab.core.messages import ImagePart
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.host.version import __version__
from kestrel_lab.runtime.conversation import Chat
from kestrel_lab.runtime.options import RunOptions
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import run, start

# Images come inside their message, as Base64.
_LONGEST: Final = 50 * 1024 * 1024
_INVALID: Final = -32600
"""The code of JSON-RPC for what is no request."""
_SCOPES: Final = {"once": "once", "always": "run", "reject": "once"}
_STOPS: Final = {"cycles": "max_turn_requests", "tokens": "max_tokens"}


async def serve_acp(lab: Services, **options: Unpack[RunOptions]) -> None:
    """Serve one editor on standard input and output until the input ends; `options` are those of its runs.

    Whatever else would be written to standard output goes to standard error.
    """
    # The library is slow to load, and only this command needs it.
    from acp import run_agent, stdio_streams

    try:
        reader, writer = await stdio_streams(limit=_LONGEST)
    except ValueError as error:
        raise UsageError(
            "kestrel acp is started by an editor, which uses it through pipes; its input and "
            "output cannot be files"
        ) from error

    def refuse(line: bytes) -> None:
        problem = f"a message is a JSON object, not {one_line(line.decode('utf-8', 'replace'), 80)}"
        writer.write(
            json.dumps(
                {"jsonrpc": "2.0", "id": None, "error": {"code": _INVALID, "message": problem}}
            ).encode()
            + b"\n"
        )

    with redirect_stdout(sys.stderr):
        await run_agent(cast("Any", AcpAgent(lab, options)), writer, ObjectLines(reader, refuse))


class AcpAgent:
    """The agent's side of the protocol. Its methods are the protocol's requests, which the library calls."""

    def __init__(self, lab: Services, options: RunOptions) -> None:
        self._lab, self._options = lab, options
        self._chats: dict[str, Chat] = {}
        self._runs: dict[str, Run] = {}
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        """Keep the client: it receives updates and answers requests for approval."""
        self._client = conn

    async def initialize(self, protocol_version: int, **about: Any) -> Any:
        """Answer with the protocol version and the capabilities of this agent."""
        from acp import PROTOCOL_VERSION, InitializeResponse
        from acp.schema import AgentCapabilities, Implementation, PromptCapabilities

        return InitializeResponse(
            protocol_version=min(protocol_version, PROTOCOL_VERSION),
            agent_capabilities=AgentCapabilities(
                prompt_capabilities=PromptCapabilities(image=True, embedded_context=True)
            ),
            agent_info=Implementation(name="kestrel-lab", title="kestrel_lab", version=__version__),
            auth_methods=[],
        )

    async def new_session(self, cwd: str, **more: Any) -> Any:
        """Begin a conversation in a folder.

        MCP servers of the editor are not taken over: those of the settings are used.
        """
        from acp import NewSessionResponse, RequestError

        if not Path(cwd).is_dir():  # one look, at the beginning  # noqa: ASYNC240
            raise RequestError.invalid_params({"cwd": f"there is no folder {cwd!r}"})
        known = uuid4().hex
        options: RunOptions = {
            **self._options,
            "workspace": cwd,
            "approver": lambda asked: self._ask(known, asked),
        }
        self._chats[known] = Chat(partial(start, self._lab), partial(run, self._lab), options)
        return NewSessionResponse(session_id=known)

    async def prompt(self, session_id: str, prompt: list[Any], **more: Any) -> Any:
        """Carry out the next turn of a conversation."""
        from acp import PromptResponse, RequestError
        from acp.schema import Usage

        if (chat := self._chats.get(session_id)) is None:
            raise RequestError.invalid_params({"sessionId": f"there is no session {session_id!r}"})
        if session_id in self._runs:
            raise RequestError.invalid_request({"sessionId": "the turn before is not done: cancel it first"})
        images = [
            ImagePart.of(b64decode(part.data), part.mime_type) for part in prompt if part.type == "image"
        ]
        try:
            run = chat.begin("\n\n".join(filter(None, map(_text, prompt))), images=images)
        except KestrelError as error:
            raise RequestError(-32603, str(error)) from error
        self._runs[session_id] = run
        reported = _RunUpdates(self._client, session_id, run)
        try:
            await reported.finish()
        finally:
            del self._runs[session_id]
        used = run.usage
        usage = Usage(total_tokens=used.tokens, input_tokens=used.tokens_in, output_tokens=used.tokens_out)
        return PromptResponse(stop_reason=cast("Any", reported.stop), usage=usage)

    async def cancel(self, session_id: str, **more: Any) -> None:
        """End the turn under way."""
        if (run := self._runs.get(session_id)) is not None:
            run.cancel()

    async def _ask(self, session_id: str, asked: e.ApprovalAsked) -> e.ApprovalGiven:
        """Put a question to the person in the editor; what only words can answer is denied and says so."""
        from acp.schema import PermissionOption, ToolCallUpdate

        def given(option: str, reason: str = "") -> e.ApprovalGiven:
            return e.ApprovalGiven(
                call=asked.call,
                granted=option in ("once", "always"),
                by="editor",
                how="click",
                reason=reason,
                scope=_SCOPES.get(option, "once"),
            )

        if asked.why == "question":
            return given("reject", "the editor can say yes or no, and no words: ask in your answer")
        choices = [
            PermissionOption(option_id="once", name="Allow", kind="allow_once"),
            PermissionOption(
                option_id="always", name=f"Allow {asked.tool} for the rest of the run", kind="allow_always"
            ),
            PermissionOption(option_id="reject", name="Deny", kind="reject_once"),
        ]
        why = [] if asked.why == "danger" else [asked.why]
        content = _content("\n\n".join(filter(None, (*why, asked.preview))))
        answer = await self._client.request_permission(
            session_id=session_id,
            tool_call=ToolCallUpdate(
                tool_call_id=asked.call,
                title=_title(asked.tool, asked.args),
                raw_input=asked.args,
                content=content,
            ),
            options=choices,
        )
        return given(getattr(answer.outcome, "option_id", "reject"))


class _RunUpdates:
    """Sends a client the events of one run as they come."""

    def __init__(self, client: Any, session_id: str, run: Run) -> None:
        self._client, self._session_id, self._run = client, session_id, run
        self._events: asyncio.Queue[e.Event | None] = asyncio.Queue()
        self._streamed: set[str] = set()
        self.stop = "end_turn"
        """Why the turn ended, in the protocol's words."""

    async def finish(self) -> None:
        """Send the run's events to the client until the run has ended; cancelling this cancels the run."""
        stop = self._run.subscribe(self._events.put_nowait)
        ending = asyncio.ensure_future(self._run.wait())
        ending.add_done_callback(lambda _: self._events.put_nowait(None))
        try:
            while (event := await self._events.get()) is not None:
                for update in self._updates(event):
                    await self._client.session_update(session_id=self._session_id, update=update)
        finally:
            stop()
            if not ending.done():
                self._run.cancel()
        await asyncio.gather(ending, return_exceptions=True)
        if (
            not ending.cancelled()
            and isinstance(error := ending.exception(), Exception)
            and not isinstance(error, ApprovalRequired)
        ):
            raise error

    def _updates(self, event: e.Event) -> list[Any]:
        from acp import start_tool_call, update_agent_message_text, update_tool_call

        match event:
            case e.ModelDelta():
                self._streamed.add(event.call)
                return [update_agent_message_text(event.text)]
            case e.ModelAnswered():
                said = (
                    [update_agent_message_text(event.text)]
                    if event.text and event.call not in self._streamed
                    else []
                )
                calls = [
                    start_tool_call(
                        str(one["id"]),
                        _title(str(one["name"]), one.get("args")),
                        status="pending",
                        raw_input=one.get("args"),
                    )
                    for one in event.calls
                ]
                return [*said, *calls]
            case e.ToolCalled():
                kind = "execute" if event.sandbox else "read" if event.effect in REPEATABLE else "edit"
                return [
                    update_tool_call(
                        event.call, kind=cast("Any", kind), status="in_progress", raw_input=event.args
                    )
                ]
            case e.ToolAnswered():
                return [
                    update_tool_call(
                        event.call,
                        status=cast("Any", "completed" if event.error is None else "failed"),
                        content=_content(event.text),
                    )
                ]
            case e.RunFinished():
                self.stop = (
                    "cancelled" if event.outcome == "cancelled" else _STOPS.get(event.limit, "end_turn")
                )
                return [update_agent_message_text(f"\n\n({event.reason})")] if event.reason else []
            case _:
                return []


def _title(tool: str, args: Any) -> str:
    first = next((str(value) for value in args.values()), "") if isinstance(args, dict) else ""
    return one_line(f"{tool} {first}".strip(), 80)


def _content(text: str) -> list[Any]:
    from acp import text_block, tool_content

    return [tool_content(text_block(text))] if text else []


def _text(part: Any) -> str:
    """Return the text of a part of a prompt: what the person wrote, and what the editor puts beside it."""
    if part.type == "resource":
        return f"{part.resource.uri}:\n{getattr(part.resource, 'text', '[binary]')}"
    return str(part.uri) if part.type == "resource_link" else str(getattr(part, "text", ""))
