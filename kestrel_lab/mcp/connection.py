"""Connections to MCP servers through the official SDK: open, list tools, call, read resources and prompts,
ping, close.

Everything here runs on one event loop (see `host.background_loop`); one task per connection enters and leaves
the SDK's contexts.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text
from kestrel_lab.host.version import __version__
from kestrel_lab.mcp.approvals import Definition, check_definitions
from kestrel_lab.mcp.authorization import provider_of
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.elicitation import Ask, Person, answer_elicitation
from kestrel_lab.mcp.repair import repair_results
from kestrel_lab.mcp.results import LONGEST, Answer, answer_of, resource_text, text_of
from kestrel_lab.mcp.sandboxing import network_hint, sandboxed_server
from kestrel_lab.mcp.stdio_transport import ServerLog, open_pipe
from kestrel_lab.tools.results import render_result
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment

if TYPE_CHECKING:
    # Loaded on use: half a second.
    from mcp import Client

Progress = Callable[[str, float | None], None]
_PAGES = 50
"""Most pages of one listing: a server may return a next cursor forever."""
_PING_S = 4.0
_BETWEEN_S = 0.1
"""Least seconds between two reports of progress."""
_TIMED_OUT = -32001
_NO_LIMIT_S = 86_400.0
"""Timeout passed to the SDK. Its clock keeps running while a person is asked, so `Person.clock` has the real
limit.
"""
_PERSON: ContextVar[Person | None] = ContextVar("kestrel_mcp_person", default=None)
_QUIET = logging.NullHandler()
"""Keeps tracebacks of the SDK off the terminal: its errors are raised, too."""
READ_RESOURCE = Definition(
    name="read_resource",
    fields={
        "name": "read_resource",
        "description": "Read a resource of this server, such as a file or a record. Without an address: "
        "list the "
        "resources there are.",
        "inputSchema": {
            "type": "object",
            "properties": {
                "uri": {"type": "string", "default": "", "description": "The address, from the list."}
            },
        },
        "annotations": {"readOnlyHint": True},
    },
)
"""The tool for the resources of a server that has any; approved and pinned like its own tools."""


class Connection:
    """The connection to a server that was started or reached, until either side ends it."""

    def __init__(
        self,
        config: ServerConfig,
        ours: Mapping[str, str],
        log: Path,
        ended: Callable[[str], None],
        sandbox: Sandbox | None = None,
        ask: Ask | None = None,
    ) -> None:
        """Prepare without connecting.

        `ended` is called with the reason if an open connection ends by itself; `ask` asks a person to log in
        while it opens.
        """
        self.config = config
        self.definitions: dict[str, Definition] = {}
        """The tools that the server has now, by name."""
        self.refused: dict[str, str] = {}
        """Tools that are never offered, with the reason."""
        self.who = ""
        self.level: Level | None = None
        """The sandbox level of its process; `None` for a server reached by address, or not yet started."""
        self.reason = ""
        """Why the connection ended; empty while it is open."""
        self.sandbox = sandbox or Sandbox()
        self._ours, self._log_path, self._on_end, self._opener = ours, log, ended, ask
        self._log: ServerLog | None = None
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._opened = False
        self._stop, self._turn = asyncio.Event(), asyncio.Event()
        # Counts announced changes of the tools, and which of them the last listing has. The first listing
        # counts as a change.
        self._wanted, self._listed = 1, 0
        self._listing = asyncio.Lock()
        self._left_out: dict[str, str] = {}
        """Invalid parts of the last listing, with reasons."""
        self._at_work: dict[Person, None] = {}
        """The persons behind the requests in progress, in their order."""

    @property
    def alive(self) -> bool:
        """True while tools can be called."""
        return (
            self._client is not None
            and not self.reason
            and self._owner is not None
            and not self._owner.done()
        )

    async def open(self) -> None:
        """Connect and list the tools, once; raises `ConnectionError` with the reason."""
        # Loading takes half a second, which must not count as the server's time.
        await asyncio.to_thread(import_module, "mcp")
        logging.getLogger("mcp").addHandler(_QUIET)
        if self._stop.is_set():
            raise ConnectionError("it was closed before it was started")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        seconds = self.config.start_timeout_s
        self._owner = asyncio.create_task(self._own(ready), name=f"kestrel mcp {self.config.name}")
        try:
            async with self._working(self._opener, seconds):
                # `_own` sets `ready` later even if this caller is cancelled: a cancelled future would make it
                # fail.
                await asyncio.shield(ready)
            self._opened = True
        except TimeoutError:
            await self.close()
            raise ConnectionError(self._with_last(f"it was not ready within {seconds:g} s")) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and all processes of the server; further calls do nothing.

        A pending `open` raises `ConnectionError`.
        """
        owner, self._owner = self._owner, None
        self._stop.set()
        self._turn.set()
        if owner is None:
            return
        # Once open, `_stop` ends the task, which leaves the SDK's contexts in order. Before, it may be
        # waiting for a server that never answers.
        if not self._opened:
            owner.cancel()
        await asyncio.wait([owner])

    async def call(
        self, tool: str, pin: str, args: dict[str, Json], progress: Progress, ask: Ask | None = None
    ) -> Answer:
        """Call `tool` if its definition still has the hash `pin`, and return its answer; `ask` asks a person.

        Structured content that violates the schema is kept, with a note. Raises `ToolError` for errors of the
        tool, `ConnectionError` if the server is gone, and `TimeoutError` if it does not answer in time.
        """
        client = self._open_client()
        # In this order: a change that the server has announced counts before the call, not after it.
        await self._list()
        self._check(tool, pin)
        # A lone surrogate, as in a text that was cut within a character, cannot be encoded: the SDK's error
        # about it would end the connection.
        args = json.loads(json.dumps(args, ensure_ascii=False).encode("utf-8", "replace"))
        if pin == READ_RESOURCE.pin:
            return await self.resource(str(args.get("uri") or ""), ask)

        async def send() -> Any:
            given = cast("dict[str, Any]", args)
            return await client.call_tool(
                tool, given, read_timeout_seconds=_NO_LIMIT_S, progress_callback=_progress_callback(progress)
            )

        async with self._working(ask, self.config.timeout_s) as person:
            result = await self._asked(lambda: self._after_addresses(send))
        answer = answer_of(result)
        declined = "".join(
            f"\n[nobody was here to answer, so this was declined: {one_line(text, 500)}]"
            for text in person.unanswered
        )
        if result.is_error:
            text = text_of(result.content)[0] or "the tool failed and does not say why"
            raise ToolError(f"{text}{declined}" + network_hint(self.config, self.level, text))
        return replace(answer, value=f"{render_result(answer.value)}{declined}") if declined else answer

    async def resource(self, uri: str, ask: Ask | None = None) -> Answer:
        """Read a resource; without an address list resources and templates of addresses.

        Errors: as `call`.
        """
        client = self._open_client()
        async with self._working(ask, self.config.timeout_s):
            if uri:
                contents, images = (
                    (await self._asked(lambda: client.read_resource(uri))).contents,
                    list[ImagePart](),
                )
                text = sanitize_text("\n".join(resource_text(one, images) for one in contents))
                return Answer(value=head_tail(text, LONGEST)[0], images=(*images,))
            found = [
                *await self._pages(client.list_resources, "resources"),
                *await self._pages(client.list_resource_templates, "resource_templates"),
            ]
        lines = [
            f"{getattr(one, 'uri', None) or one.uri_template}  "
            f"{one_line(one.description or one.title or one.name, 200)}"
            for one in found
        ]
        return Answer(
            value=head_tail(sanitize_text("\n".join(lines)), LONGEST)[0] or "[the server has no resources]"
        )

    async def prompts(self) -> list[Any]:
        """Return the prompts of the server, as `mcp_types.Prompt`. Errors: as `call`."""
        client = self._open_client()
        if client.server_capabilities.prompts is None:
            return []
        async with self._working(None, self.config.timeout_s):
            return await self._pages(client.list_prompts, "prompts")

    async def prompt(self, name: str, args: Mapping[str, str], ask: Ask | None = None) -> str:
        """Return the text of a prompt, with roles if it has several messages.

        Errors: as `call`.
        """
        client = self._open_client()
        async with self._working(ask, self.config.timeout_s):
            messages = (await self._asked(lambda: client.get_prompt(name, dict(args)))).messages
        texts = [(one.role, text_of([one.content])[0]) for one in messages]
        return texts[0][1] if len(texts) == 1 else "\n\n".join(f"{role}:\n{text}" for role, text in texts)

    async def ping(self) -> None:
        """Return once the server has answered a ping; raises `ConnectionError` or `TimeoutError`."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        session = self._open_client().session
        version = session.protocol_version or ""
        # An error is an answer, too: the server is alive.
        with suppress(ToolError):
            async with asyncio.timeout(_PING_S):
                modern = version in MODERN_PROTOCOL_VERSIONS
                await self._asked(lambda: session.send_discover(version) if modern else session.send_ping())

    @asynccontextmanager
    async def _working(self, ask: Ask | None, seconds: float) -> AsyncIterator[Person]:
        """Limit the requests of the block to `seconds`, not counting time in which a person is asked."""
        async with asyncio.timeout(seconds) as clock:
            person = Person(ask, clock, seconds)
            self._at_work[person] = None
            known = _PERSON.set(person)
            try:
                yield person
            finally:
                _PERSON.reset(known)
                del self._at_work[person]

    def _person(self) -> Person:
        """Return the person for a server's question; nobody if it may belong to several requests."""
        # Known if the question is handled in the context of its request. Otherwise it belongs to the only
        # request in progress, if there is just one.
        mine = _PERSON.get()
        if mine in self._at_work:
            return mine
        return (
            next(iter(self._at_work)) if len(self._at_work) == 1 else Person(None, asyncio.timeout(None), 0)
        )

    # The SDK names the parameter.
    async def _elicited(self, context: Any, params: Any) -> Any:
        return await answer_elicitation(self.config.name, params, self._person().ask)

    async def _after_addresses(self, send: Callable[[], Awaitable[Any]]) -> Any:
        """Repeat a request after the person visited the addresses that the server asked for (protocol
        2025-11-25).
        """
        from mcp import MCPError
        from mcp.shared.exceptions import UrlElicitationRequiredError
        from mcp_types import URL_ELICITATION_REQUIRED

        try:
            return await send()
        except MCPError as error:
            if error.code != URL_ELICITATION_REQUIRED:
                raise
            for one in UrlElicitationRequiredError.from_error(error.error).elicitations:
                if (await self._elicited(None, one)).action != "accept":
                    raise
            return await send()

    async def _pages(self, listing: Callable[..., Awaitable[Any]], field: str) -> list[Any]:
        found, cursor = list[Any](), None
        for _ in range(_PAGES):
            page = await self._asked(partial(listing, cursor=cursor))
            found += getattr(page, field)
            if (cursor := page.next_cursor) is None:
                break
        return found

    def _open_client(self) -> Client:
        if not self.alive or self._client is None:
            raise ConnectionError(self.reason or "it is not connected")
        return self._client

    def _check(self, tool: str, pin: str) -> None:
        name = f"{self.config.name}:{tool}"
        now = self.definitions.get(tool)
        if now is None:
            why = self.refused.get(tool)
            raise ToolError(
                f"the server no longer has the tool {name}" if why is None else f"{name} is not called: {why}"
            )
        if now.pin != pin:
            raise ToolError(
                f"{name} is not called: its definition has changed since it was approved. A person can "
                "look at the difference with "
                f"kestrel mcp check {self.config.name}, and allow it with kestrel mcp approve "
                f"{self.config.name}"
            )

    async def _own(self, ready: asyncio.Future[None]) -> None:
        """Open the connection and keep it open: anyio requires one task to enter and leave every context."""
        listener: asyncio.Task[None] | None = None
        try:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(await self._make_client(stack))
                repair_results(self._client.session, self._left_out.__setitem__)
                info = self._client.server_info
                self.who = "" if info is None else one_line(f"{info.name} {info.version}", 80)
                await self._list()
                listener = asyncio.create_task(self._listen(self._client))
                stack.push_async_callback(_cancel_and_wait, listener)
                ready.set_result(None)
                await self._hold()
        except asyncio.CancelledError:
            # Not `ready.cancel()`: awaiting it would cancel the caller of `open`, too.
            self.reason = self.reason or "it was closed before it was ready"
            if not ready.done():
                ready.set_exception(ConnectionError(self.reason))
                # The caller may be gone; asyncio would log an exception that nobody read.
                ready.exception()
        except Exception as error:  # boundary to the SDK and the server: the error becomes the reason  # noqa: BLE001
            self.reason = self.reason or _reason(error)
            if not ready.done():
                ready.set_exception(ConnectionError(self._with_last(self.reason)))
        finally:
            if not self.reason:
                self.reason = "it was closed"
            if self._log is not None:
                self._log.close()

    async def _make_client(self, stack: AsyncExitStack) -> Client:
        from mcp import Client
        from mcp_types import Implementation

        config = self.config
        if config.url:
            from mcp.client.streamable_http import streamable_http_client
            from mcp.shared._httpx_utils import create_mcp_http_client

            headers = config.filled_headers(self._ours)
            # A configured token is used as it is: no login is started for it.
            own = any(name.lower() == "authorization" for name in headers)
            login = None if own else await asyncio.to_thread(provider_of, config, self._ours, self._person)
            http = await stack.enter_async_context(
                create_mcp_http_client(headers=headers or None, auth=login)
            )
            transport: Any = streamable_http_client(config.url, http_client=http)
        else:
            self._log = ServerLog(self._log_path, Redactor.of(self._ours))
            environment = {**clean_environment(self._ours), **config.environment(self._ours)}
            launch, choice = await asyncio.to_thread(sandboxed_server, config, environment, self.sandbox)
            self.level = choice.level
            transport = open_pipe(launch, log=self._log, ended=self._ended)
        return Client(
            transport,
            read_timeout_seconds=max(config.timeout_s, config.start_timeout_s),
            message_handler=self._on_message,
            elicitation_callback=self._elicited,
            client_info=Implementation(name="kestrel_lab", version=__version__),
            cache=None,
        )

    async def _hold(self) -> None:
        """Wait until the connection ends; list the tools again after each announced change."""
        while not (self._stop.is_set() or self.reason):
            self._turn.clear()
            with suppress(ToolError, TimeoutError):  # the next call asks again
                await self._list()
            await self._turn.wait()

    async def _list(self) -> None:
        """List the tools if a change was announced since the last listing; concurrent callers share one
        listing.
        """
        async with self._listing:
            if self._listed == (wanted := self._wanted):
                return
            client = cast("Client", self._client)
            self._left_out.clear()
            found = [
                Definition(
                    name=tool.name, fields=tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                )
                for tool in await self._pages(client.list_tools, "tools")
            ]
            if client.server_capabilities.resources is not None and READ_RESOURCE.name not in {
                one.name for one in found
            }:
                # Some servers declare resources and answer the listing with an error.
                with suppress(ToolError):
                    some = (await self._asked(client.list_resources)).resources
                    found += (
                        [READ_RESOURCE]
                        if some or (await self._asked(client.list_resource_templates)).resource_templates
                        else []
                    )
            self.definitions, refused = check_definitions(found)
            self.refused = {one_line(name, 60): why for name, why in self._left_out.items()} | refused
            self._listed = wanted

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the tools, as protocol versions since 2026 require."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        with suppress(ListenNotSupportedError, SubscriptionLost, MCPError, TimeoutError):
            async with client.listen(tools_list_changed=True) as changes:
                async for _ in changes:
                    self._changed()

    async def _on_message(self, message: Any) -> None:
        if getattr(message, "method", "") == "notifications/tools/list_changed":
            self._changed()

    def _changed(self) -> None:
        self._wanted += 1
        self._turn.set()

    def _ended(self, reason: str) -> None:
        opened = self.alive
        self.reason = self.reason or reason
        self._turn.set()
        if opened:
            self._on_end(self.reason)

    async def _asked(self, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Return the server's answer; SDK errors become `ToolError`, `ConnectionError` or `TimeoutError`."""
        from mcp import MCPError

        try:
            return await ask()
        except MCPError as error:
            if error.code == _TIMED_OUT:
                raise TimeoutError(error.message) from error
            # The SDK's code for a connection that was closed.
            if self.reason or error.code == -32000:
                raise ConnectionError(self.reason or _reason(error)) from error
            raise ToolError(f"the server answered with an error: {one_line(error.message, 1000)}") from error
        except (ToolError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            # Errors of the transport mean that the connection is gone; by module, so that nothing need be
            # imported.
            if self.reason or type(error).__module__.partition(".")[0] in {"httpx2", "httpcore2", "anyio"}:
                raise ConnectionError(self.reason or _reason(error)) from error
            raise ToolError(f"the server's answer is malformed: {_reason(error)}") from error

    def _with_last(self, what: str) -> str:
        last = "" if self._log is None else self._log.last
        reason = f"{what}; it said last: {last}" if last and last not in what else what
        return reason + network_hint(self.config, self.level, reason)


async def _cancel_and_wait(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _progress_callback(progress: Progress) -> Any:
    """Return the SDK's progress callback; reports closer than `_BETWEEN_S` seconds are dropped."""
    last = 0.0

    async def report(done: float, total: float | None, message: str | None) -> None:
        nonlocal last
        if (now := time.monotonic()) - last < _BETWEEN_S:
            return
        last = now
        fraction = min(1.0, max(0.0, done / total)) if total and total > 0 else None
        progress(one_line(message or f"{done:g}" + (f" of {total:g}" if total else ""), 200), fraction)

    return report


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return one_line(str(error) or type(error).__name__, 300)
