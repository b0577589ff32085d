"""ACP as a client: any program that speaks the agent client protocol is a runner, its permission requests are
our approvals.

Source: agentclientprotocol.com, protocol version 1; spoken by the library `agent-client-protocol`. Version 2,
a draft, is offered by the name `acp2:COMMAND`, see `acp_wire`; what knows version 1 only answers so.
The client offers neither files nor terminals: the agent uses its own, in its sandbox.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.adapters.acp_wire import AcpWire
from kestrel_lab.adapters.adapter import (
    DANGERS,
    Capabilities,
    Decision,
    Permission,
    Reported,
    Task,
    ToolDone,
    TurnParts,
)
from kestrel_lab.adapters.claude_code import CLAUDE_CODE
from kestrel_lab.adapters.codex import CODEX
from kestrel_lab.adapters.gemini import GEMINI
from kestrel_lab.adapters.opencode import OPENCODE
from kestrel_lab.adapters.subprocess_reader import (
    RunningProgram,
    agent_process,
    not_a_model_error,
    require_program,
)
from kestrel_lab.core.calls import Danger, Usage
from kestrel_lab.core.errors import LimitError, ModelError, UsageError
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.host.user import home_folder
from kestrel_lab.host.version import __version__

ACP: Final = "acp"
ACP_2: Final = "acp2"
_PROGRAMS: Final = (CLAUDE_CODE, CODEX, GEMINI, OPENCODE)
_PLACES: Final = (".{}", ".config/{}", ".local/share/{}", ".local/state/{}", ".cache/{}")
"""Folders below the home folder where programs keep settings and sessions."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AcpAdapter:
    """A program that speaks ACP over its standard input and output."""

    env: Mapping[str, str]
    command: str
    """Its command line, such as `opencode acp` or `gemini --acp`."""
    kind: ModelKind = "real"
    version: int = 1
    """The newest version of the protocol that is offered."""

    def __post_init__(self) -> None:
        if not self.command.strip():
            raise UsageError(f"name the command of the agent behind {self._word}:, such as acp:opencode acp")

    @property
    def _word(self) -> str:
        return ACP if self.version == 1 else ACP_2

    @property
    def name(self) -> str:
        """`acp:COMMAND`, or `acp2:COMMAND`."""
        return f"{self._word}:{self.command}"

    @property
    def capabilities(self) -> Capabilities:
        """Those that the protocol has; what the program lacks of them shows when it starts."""
        return Capabilities(streams=True, approvals=True, resume="end", cost=True, images=True)

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        raise not_a_model_error(self.name)

    def check(self, folder: Path) -> None:
        """Raise `UsageError` if the program is not installed."""
        require_program(shlex.split(self.command)[0], folder, self.env, "")

    async def work(self, task: Task) -> AsyncIterator[Reported]:
        """Start the program, prompt it and yield what it reports; see `Adapter.work`."""
        argv = shlex.split(self.command)
        # Its input and output are the protocol, and no terminal. Many agents are written for one and look for
        # it elsewhere.
        task = replace(task, pty=False)
        async with agent_process(argv, task, self.env, self._state(argv[0]), terminal=True) as running:
            client = _Client(task.cost_usd)
            prompting = asyncio.ensure_future(self._prompt(client, running, task))
            prompting.add_done_callback(lambda _: client.reported.put_nowait(None))
            try:
                while (reported := await client.reported.get()) is not None:
                    if isinstance(reported, _Question):
                        reported.answer.set_result(await task.ask(reported.permission))
                    elif isinstance(reported, LimitError):
                        raise reported
                    elif isinstance(reported, str):
                        task.delta(reported)
                    else:
                        yield reported
                prompting.result()
            finally:
                prompting.cancel()
                await asyncio.gather(prompting, return_exceptions=True)

    def _state(self, program: str) -> tuple[str, ...]:
        name = Path(program).name
        known = next((one for one in _PROGRAMS if name.startswith(one.name.partition("-")[0])), None)
        if known is not None:
            return known.state
        home = Path(self.env.get("HOME") or home_folder())
        return tuple(place for one in _PLACES if (home / (place := one.format(name))).exists())

    async def _prompt(self, client: _Client, running: RunningProgram, task: Task) -> None:
        from acp import RequestError, connect_to_agent
        from acp.schema import ClientCapabilities, ImageContentBlock, Implementation, TextContentBlock

        connection = connect_to_agent(
            cast("Any", client),
            AcpWire(
                reader=running.program.stdout,
                writer=running.program.stdin,
                refused=running.note,
                version=self.version,
            ),
        )
        try:
            about = Implementation(name="kestrel-lab", title="kestrel_lab", version=__version__)
            known = await connection.initialize(
                protocol_version=self.version, client_capabilities=ClientCapabilities(), client_info=about
            )
            can, folder = known.agent_capabilities, str(task.folder)
            sessions = can.session_capabilities if can is not None else None
            if task.session and sessions is not None and sessions.resume is not None:
                await connection.resume_session(session_id=task.session, cwd=folder, mcp_servers=[])
                client.session = task.session
            elif task.session and can is not None and can.load_session:
                # The agent repeats the whole conversation.
                client.silent = True
                await connection.load_session(session_id=task.session, cwd=folder, mcp_servers=[])
                client.session, client.silent = task.session, False
            else:
                client.session = (await connection.new_session(cwd=folder, mcp_servers=[])).session_id
            text = task.said(resumed=bool(task.session) and client.session == task.session)
            images = [
                ImageContentBlock(type="image", data=image.data, mime_type=image.media_type)
                for image in task.images
            ]
            client.end(
                await connection.prompt(
                    session_id=client.session, prompt=[*images, TextContentBlock(type="text", text=text)]
                )
            )
        except RequestError as error:
            raise ModelError(
                f"{self.name} failed: {error}{f' ({error.data})' if error.data else ''}"
            ) from error
        except (ConnectionError, EOFError) as error:
            raise ModelError(
                f"{self.name} ended without an answer: {await running.how_it_ended()}"
            ) from error
        finally:
            await connection.close()


@dataclass(frozen=True, slots=True)
class _Question:
    permission: Permission
    answer: asyncio.Future[Decision]


class _Client:
    """Client side of a session: converts the agent's messages to `Reported` values, in order."""

    def __init__(self, cost_usd: float | None) -> None:
        """`cost_usd` is what the agent may spend."""
        self.reported: asyncio.Queue[Reported | _Question | str | LimitError | None] = asyncio.Queue()
        self._may_spend = cost_usd
        self.session, self.silent = "", False
        self._parts = TurnParts()
        self._kinds: dict[str, str] = {}
        self._open: set[str] = set()
        """Calls reported without a result so far."""
        self._content: dict[str, str] = {}
        self._cost: float | None = None

    def on_connect(self, conn: Any) -> None:
        """No-op: the connection is known already."""

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        """Take one piece of news."""
        if self.silent:
            return
        match update.session_update:
            case "agent_message_chunk":
                text = getattr(update.content, "text", None) or f"[{update.content.type}]"
                if self._parts.calls:
                    self._flush()
                self._parts.text += text
                self.reported.put_nowait(text)
            case "tool_call" | "tool_call_update":
                self._call(update)
            case "usage_update" if update.cost is not None and update.cost.currency == "USD":
                self._cost = update.cost.amount
                self._check_cost(update.cost.amount)

    def _check_cost(self, spent: float) -> None:
        """End the work at the limit: the protocol has no option by which the agent would."""
        if self._may_spend is None or spent < self._may_spend:
            return
        self._flush_last()
        self.reported.put_nowait(
            LimitError("cost_usd", f"the limit of ${self._may_spend:g} is reached: ${spent:.4f} spent")
        )

    def _flush_last(self) -> None:
        """Report what was said so far, with what it cost."""
        self.reported.put_nowait(
            self._parts.turn(
                ModelAnswer(usage=Usage(cost_usd=self._cost or 0.0)), self.session, counted=False
            )
        )

    def _call(self, update: Any) -> None:
        known = update.tool_call_id
        self._kinds[known] = update.kind or self._kinds.get(known, "other")
        if known not in self._open:
            old = self._parts.calls.get(known)
            # A title that is one word is the tool's name with most agents; later ones say what the call does.
            title = update.title or ""
            name = (
                old.name if old is not None else title if title and " " not in title else self._kinds[known]
            )
            args = (
                dict(update.raw_input)
                if isinstance(update.raw_input, dict)
                else {"title": title}
                if title and old is None
                else {}
            )
            self._parts.calls[known] = ToolRequest(
                id=known, name=name, args={**(old.args if old is not None else {}), **args}
            )
        if update.content:
            self._content[known] = "\n".join(_text(part) for part in update.content)
        if update.status in ("completed", "failed"):
            if known not in self._open:
                self._flush()
            self._open.discard(known)
            self.reported.put_nowait(
                ToolDone(
                    call=known,
                    text=self._content.pop(known, "")
                    or ("" if update.raw_output is None else str(update.raw_output)),
                    error=update.status == "failed",
                    session=self.session,
                )
            )

    def _flush(self) -> None:
        self._open.update(self._parts.calls)
        self.reported.put_nowait(self._parts.turn(session=self.session))

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[Any], **kwargs: Any
    ) -> Any:
        """Ask the run for a decision on a call."""
        from acp.schema import AllowedOutcome, DeniedOutcome, RequestPermissionResponse

        known = tool_call.tool_call_id
        given = dict(tool_call.raw_input) if isinstance(tool_call.raw_input, dict) else {}
        if known not in self._open:
            self._call(tool_call)
        request = self._parts.calls.get(known) or ToolRequest(
            id=known, name=tool_call.kind or "other", args=given or {"title": tool_call.title}
        )
        if self._parts.calls:
            self._flush()
        danger = DANGERS.get(tool_call.kind or self._kinds.get(known, ""), Danger.HIGH)
        # Reversed, so that of several options of one kind the first counts.
        by_kind = {one.kind: one for one in reversed(options)}
        question = _Question(
            Permission(
                request=request,
                danger=danger,
                lasting="allow_once" not in by_kind and "allow_always" in by_kind,
            ),
            asyncio.get_running_loop().create_future(),
        )
        self.reported.put_nowait(question)
        decided = await question.answer
        word = "allow" if decided.granted else "reject"
        option = by_kind.get(f"{word}_once", by_kind.get(f"{word}_always"))
        if option is None:
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        return RequestPermissionResponse(
            outcome=AllowedOutcome(outcome="selected", option_id=option.option_id)
        )

    def end(self, done: Any) -> None:
        """Take the end of the turn of the protocol, which has any number of the model's."""
        used = done.usage
        usage = Usage(unpriced=1) if self._cost is None else Usage(cost_usd=self._cost)
        if used is not None:
            usage += usage_of(used)
        if self._parts.calls:
            self._flush()
        self.reported.put_nowait(
            self._parts.turn(ModelAnswer(usage=usage), self.session, counted=used is not None)
        )
        if done.stop_reason in ("refusal", "max_tokens", "max_turn_requests", "cancelled"):
            raise ModelError(f"the agent stopped: {done.stop_reason}")


def usage_of(used: Any) -> Usage:
    """Return the tokens with those of the cache among the read and thoughts among the written ones.

    The protocol leaves open whether an agent counts them there already; the total says it.
    """
    read, stored, thought = (
        count or 0 for count in (used.cached_read_tokens, used.cached_write_tokens, used.thought_tokens)
    )
    apart = used.total_tokens - used.input_tokens - used.output_tokens
    cached = read + stored if apart >= read + stored else 0
    return Usage(
        tokens_in=used.input_tokens + cached,
        tokens_out=used.output_tokens + (thought if apart - cached >= thought else 0),
        tokens_cached=read,
        tokens_cache_written=stored,
        tokens_reasoning=thought,
    )


def _text(part: Any) -> str:
    if part.type == "diff":
        return f"[change of {part.path}]"
    return getattr(getattr(part, "content", None), "text", None) or f"[{part.type}]"
