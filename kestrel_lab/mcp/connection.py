"""Connections to MCP servers through the official SDK: open, list tools, call, ping, close.

Everything here runs on one event loop (see `host.background_loop`); one task per connection enters and leaves the SDK's contexts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.version import __version__
from kestrel_lab.mcp.approvals import Definition, vetted
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.registry.installed_servers import check_seal
from kestrel_lab.mcp.results import text_of
from kestrel_lab.mcp.sandboxing import network_hint, sandboxed_server
from kestrel_lab.mcp.stdio_transport import ServerLog, open_pipe
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment

if TYPE_CHECKING:
    from mcp import Client  # loaded on use: half a second

Progress = Callable[[str, float | None], None]
_PAGES = 50
_PING_S = 4.0
_BETWEEN_S = 0.1
"""Least seconds between two reports of progress."""
_TIMED_OUT = -32001


class Connection:
    """The connection to a server that was started or reached, until either side ends it."""

    def __init__(
        self, config: ServerConfig, ours: Mapping[str, str], log: Path, ended: Callable[[str], None], sandbox: Sandbox | None = None
    ) -> None:
        """Connect nothing yet; `ended` is called with the reason when an open connection ends by itself."""
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
        self._ours, self._log_path, self._on_end = ours, log, ended
        self._log: ServerLog | None = None
        self._client: Client | None = None
        self._owner: asyncio.Task[None] | None = None
        self._opened = False
        self._stop, self._turn = asyncio.Event(), asyncio.Event()
        self._wanted, self._listed = 1, 0  # changes of its tools announced by the server, and those listed since
        self._listing = asyncio.Lock()

    @property
    def alive(self) -> bool:
        """Whether tools can be called."""
        return self._client is not None and not self.reason and self._owner is not None and not self._owner.done()

    async def open(self) -> None:
        """Connect and list the tools, once; raises `ConnectionError` with the reason."""
        await asyncio.to_thread(import_module, "mcp")  # loading takes half a second, which must not count as the server's time
        if self._stop.is_set():
            raise ConnectionError("it was closed before it was started")
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready), name=f"kestrel mcp {self.config.name}")
        seconds = self.config.start_timeout_s
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(ready)
            self._opened = True
        except TimeoutError:
            await self.close()
            raise ConnectionError(self._with_last(f"it was not ready within {seconds:g} s")) from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """End the connection and every process of the server; a second call does nothing. A pending `open` raises `ConnectionError`."""
        owner, self._owner = self._owner, None
        self._stop.set()
        self._turn.set()
        if owner is None:
            return
        if not self._opened:
            owner.cancel()
        await asyncio.wait([owner])

    async def call(self, tool: str, pin: str, args: dict[str, Json], progress: Progress) -> str:
        """Call `tool`, provided that its definition still has the hash `pin`, and return the text of the result.

        Raises `ToolError` for an error of the tool, `ConnectionError` when the server is gone, `TimeoutError` when it does
        not answer in time.
        """
        client = self._open_client()
        await self._list()
        self._check(tool, pin)
        seconds = self.config.timeout_s
        result = await self._asked(
            lambda: client.call_tool(
                tool, cast("dict[str, Any]", args), read_timeout_seconds=seconds, progress_callback=_progress_callback(progress)
            )
        )
        text = text_of(result)
        if result.is_error:
            raise ToolError((text or "the tool failed and does not say why") + network_hint(self.config, self.level, text))
        return text

    async def ping(self) -> None:
        """Return once the server has answered a ping; raises `ConnectionError` or `TimeoutError`."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        session = self._open_client().session
        version = session.protocol_version or ""
        with suppress(ToolError):  # an error is an answer
            async with asyncio.timeout(_PING_S):
                modern = version in MODERN_PROTOCOL_VERSIONS
                await self._asked(lambda: session.send_discover(version) if modern else session.send_ping())

    def _open_client(self) -> Client:
        if not self.alive or self._client is None:
            raise ConnectionError(self.reason or "it is not connected")
        return self._client

    def _check(self, tool: str, pin: str) -> None:
        name = f"{self.config.name}:{tool}"
        now = self.definitions.get(tool)
        if now is None:
            why = self.refused.get(tool)
            raise ToolError(f"the server no longer has the tool {name}" if why is None else f"{name} is not called: {why}")
        if now.pin != pin:
            raise ToolError(
                f"{name} is not called: its definition has changed since it was approved. A person can look at the difference with "
                f"kestrel mcp check {self.config.name}, and allow it with kestrel mcp approve {self.config.name}"
            )

    async def _own(self, ready: asyncio.Future[None]) -> None:
        """Open the connection and keep it open; every context of the SDK is entered and left in this task, as anyio requires."""
        listener: asyncio.Task[None] | None = None
        try:
            async with AsyncExitStack() as stack:
                self._client = await stack.enter_async_context(await self._make_client(stack))
                info = self._client.server_info
                self.who = "" if info is None else one_line(f"{info.name} {info.version}", 80)
                await self._list()
                listener = asyncio.create_task(self._listen(self._client))
                stack.push_async_callback(_cancelled, listener)
                ready.set_result(None)
                await self._hold()
        except asyncio.CancelledError:
            # Not `ready.cancel()`: that would cancel whoever opens it, which nobody asked for.
            self.reason = self.reason or "it was closed before it was ready"
            if not ready.done():
                ready.set_exception(ConnectionError(self.reason))
                ready.exception()  # whoever opens it may have gone
        except Exception as error:  # noqa: BLE001  # boundary to the SDK and the server: the error becomes the reason
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
            http = await stack.enter_async_context(create_mcp_http_client(headers=headers or None))
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
            client_info=Implementation(name="kestrel_lab", version=__version__),
            cache=None,
        )

    async def _hold(self) -> None:
        """Wait until the connection is closed or ends; list the tools again whenever the server announces a change."""
        while not (self._stop.is_set() or self.reason):
            self._turn.clear()
            with suppress(ToolError, TimeoutError):  # the next call asks again
                await self._list()
            await self._turn.wait()

    async def _list(self) -> None:
        """List the tools if a change was announced since the last listing; concurrent callers wait for the same listing."""
        async with self._listing:
            if self._listed == (wanted := self._wanted):
                return
            client, found, cursor = cast("Client", self._client), [], None
            for _ in range(_PAGES):
                page = await self._asked(partial(client.list_tools, cursor=cursor))
                for tool in page.tools:
                    fields = tool.model_dump(mode="json", by_alias=True, exclude_none=True)
                    found.append(Definition(name=tool.name, fields=fields))
                if (cursor := page.next_cursor) is None:
                    break
            self.definitions, self.refused = vetted(found)
            self._listed = wanted

    async def _listen(self, client: Client) -> None:
        """Subscribe to changes of the tools, as protocol versions since 2026 require."""
        from mcp import MCPError
        from mcp.client.subscriptions import ListenNotSupportedError, SubscriptionLost

        told = client.server_capabilities.tools
        if told is None or not told.list_changed:
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
        """Return the answer of the server; errors of the SDK become `ToolError`, `ConnectionError` or `TimeoutError`."""
        from mcp import MCPError

        try:
            return await ask()
        except MCPError as error:
            if error.code == _TIMED_OUT:
                raise TimeoutError(error.message) from error
            if self.reason or error.code == -32000:
                raise ConnectionError(self.reason or _reason(error)) from error
            raise ToolError(f"the server answered with an error: {one_line(error.message, 1000)}") from error
        except (ToolError, ConnectionError, TimeoutError):
            raise
        except Exception as error:
            if self.reason or type(error).__module__.partition(".")[0] in {"httpx2", "httpcore2", "anyio"}:
                raise ConnectionError(self.reason or _reason(error)) from error
            raise ToolError(f"the server's answer is malformed: {_reason(error)}") from error

    def _with_last(self, what: str) -> str:
        last = "" if self._log is None else self._log.last
        told = f"{what}; it said last: {last}" if last and last not in what else what
        return told + network_hint(self.config, self.level, told)


@dataclass(slots=True, eq=False)
class Server:
    """A configured server and its connection. Its coroutines run on the loop of MCP connections."""

    config: ServerConfig
    ours: Mapping[str, str]
    log: Path
    ended: Callable[[str], None]
    sandbox: Callable[[], Sandbox]
    connection: Connection | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: int = 0

    async def open(self, *, replacing: Connection | None = None) -> None:
        """Return once there is a living connection other than `replacing`, which is closed if it still is the current one.

        Callers that find the same connection wanting replace it once, not one after the other. Raises `ConnectionError`, also
        when the server is closed meanwhile.
        """
        async with self._opening:
            closed, current = self._closed, self.connection
            if current is not None:
                if current.alive and current is not replacing:
                    return
                await current.close()
            if self.config.seal is not None:
                await asyncio.to_thread(check_seal, self.config.seal)
            if self._closed != closed:
                raise ConnectionError("it was closed before it was started")
            self.connection = Connection(self.config, self.ours, self.log, self.ended, self.sandbox())
            await self.connection.open()

    @property
    def outdated(self) -> bool:
        """Whether the connection was started with another sandbox level than it would be now."""
        own = bool(self.config.url) or self.config.sandbox is not None
        return not own and self.connection is not None and self.connection.sandbox.level != self.sandbox().level

    @property
    def connected(self) -> Connection:
        """The connection; raises `ConnectionError` where there is none yet."""
        if self.connection is None:
            raise ConnectionError("it is not connected")
        return self.connection

    async def close(self) -> None:
        """End the connection and whatever opens one."""
        self._closed += 1
        if self.connection is not None:
            await self.connection.close()


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])


def _progress_callback(progress: Progress) -> Any:
    """Return the SDK's progress callback, which drops reports that come faster than every `_BETWEEN_S` seconds."""
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
