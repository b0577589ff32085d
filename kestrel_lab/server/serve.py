"""The servers of `kestrel serve` and `kestrel mcp serve --http`: loopback only, with a token in a file."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.services import Services
from kestrel_lab.server.auth import Guard, new_token
from kestrel_lab.server.controller import Control
from kestrel_lab.server.http import HEARTBEAT_S, SLOW_S, make_app
from kestrel_lab.server.mcp_server import make_server
from kestrel_lab.server.protocol import MESSAGE_BYTES

_HOST: Final = "127.0.0.1"
_CONNECTIONS: Final = 200
"""Most connections at once; see `_Connection` for what becomes of idle ones."""
REQUEST_S: Final = 15.0
"""How long a client may take to send a request, from when it could begin."""
_SETTINGS: Final[dict[str, Any]] = {
    "ws": "none",
    "log_config": None,
    "access_log": False,  # addresses and headers of requests are private
    "server_header": False,
    "limit_concurrency": _CONNECTIONS,
    "timeout_graceful_shutdown": 3,  # streams would never end by themselves
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Address:
    """The address and the token of a server."""

    port: int
    token: str
    token_file: Path

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://{_HOST}:{self.port}/"

    @property
    def link(self) -> str:
        """Return the address with the token as its fragment, which browsers do not send.

        Show it to the user, once, and to nobody else.
        """
        return f"{self.url}#token={self.token}"


def listen_locally(port: int) -> socket.socket:
    """A socket on this machine's own address; 0 takes any free port.

    Raises `UsageError` when the port is taken.
    """
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        # A named port is used again right after a restart, while old connections are still in TIME_WAIT.
        if port:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind((_HOST, port))
    except OSError as error:
        found.close()
        msg = (
            f"port {port} is not available ({error.strerror}): stop the program that listens there, or "
            "leave --port out for a free port"
        )
        raise UsageError(msg) from error
    return found


def token_for(home: Path, port: int, *, keep: bool) -> tuple[str, Path]:
    """Return the token of a server on `port`, and its file of mode 0600 under `home`.

    With `keep`, for a fixed port, the token of the last time is used again, unless others could have read or
    written its file: open pages work on after a restart. Otherwise the token is new.
    """
    path = home / f"serve-{port}.token"
    if keep and (known := _stored_token(path)) is not None:
        return known, path
    token = new_token()
    # `O_EXCL` never opens a file or link that somebody else has put there.
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(token)
    return token, path


def _stored_token(path: Path) -> str | None:
    """A token that was stored before, unless its file could have been read or written by others."""
    try:
        # Not `stat`: a link in its place must not be followed to a file of somebody else.
        found = path.lstat()
    except FileNotFoundError:
        return None
    private = stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.getuid()
    text = path.read_text(encoding="ascii", errors="replace") if private else ""
    return text if len(text) == len(new_token()) else None


@asynccontextmanager
async def serve_control(
    control: Control,
    *,
    port: int = 0,
    slow_s: float = SLOW_S,
    heartbeat_s: float = HEARTBEAT_S,
    request_s: float = REQUEST_S,
) -> AsyncIterator[tuple[Address, asyncio.Task[None]]]:
    """Serve `control` while the block runs; gives the address, and a task that ends on a signal."""
    with listen_locally(port) as listening:
        bound = int(listening.getsockname()[1])
        token, path = token_for(control.lab.home, bound, keep=port != 0)
        try:
            app = make_app(control, token=token, port=bound, slow_s=slow_s, heartbeat_s=heartbeat_s)
            http = type("Connection", (_Connection,), {"request_s": request_s})
            config = uvicorn.Config(
                app,
                **_SETTINGS,
                http=http,
                lifespan="off",
                proxy_headers=False,
                h11_max_incomplete_event_size=MESSAGE_BYTES,
            )
            async with _run_server(_Server(config, control), listening) as work:
                yield Address(port=bound, token=token, token_file=path), work
        finally:
            if not port:
                path.unlink(missing_ok=True)


@asynccontextmanager
async def serve_app(
    made: Callable[[str, int], ASGIApp], home: Path, *, port: int = 0
) -> AsyncIterator[tuple[Address, asyncio.Task[None]]]:
    """Serve what `made` returns for a token and a port while the block runs; gives the address, and a task
    that ends on a signal. The application has to ask for the token itself, by a `Guard`.
    """
    with listen_locally(port) as listening:
        bound = int(listening.getsockname()[1])
        token, path = token_for(home, bound, keep=port != 0)
        try:
            config = uvicorn.Config(
                made(token, bound), **_SETTINGS, http=_Connection, lifespan="off", proxy_headers=False
            )
            async with _run_server(uvicorn.Server(config), listening) as work:
                yield Address(port=bound, token=token, token_file=path), work
        finally:
            if not port:
                path.unlink(missing_ok=True)


@asynccontextmanager
async def _run_server(server: uvicorn.Server, listening: socket.socket) -> AsyncIterator[asyncio.Task[None]]:
    """Run a server while the block runs; gives the task that ends when a signal stops it."""
    work = asyncio.create_task(server.serve(sockets=[listening]), name="kestrel serve")
    try:
        while not server.started and not work.done():  # uvicorn sets a flag, not an event  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        yield work
    finally:
        server.should_exit = True
        await work


class _Connection(H11Protocol):
    """A connection with a deadline: it is closed if no whole request comes in time, and idle connections make
    room for new ones.

    uvicorn alone has no deadline for a first request, and counts silent connections among those it serves.
    """

    request_s = REQUEST_S
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Make room for it, and give it time for a request."""
        # One below the limit: at the limit uvicorn answers every request with 503.
        if len(self.connections) >= _CONNECTIONS - 1:
            self._make_room()
        super().connection_made(transport)
        self._since = self.loop.time()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take what came."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Give it time for another request."""
        super().on_response_complete()
        self._since = self.loop.time()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self._stop_watching()
        super().connection_lost(exc)

    @property
    def _receiving(self) -> bool:
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def _streams(self) -> bool:
        """Whether the connection is an event stream of a token holder: such a stream is quiet, not idle."""
        return not self._receiving and bool(self.scope["state"].get("stream"))

    def _watch(self) -> None:
        if not self._receiving:
            self._stop_watching()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(self.request_s, self.transport.abort)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _make_room(self) -> None:
        """Close the connection that was idle longest; if all are busy, one that is not a stream."""
        others = [one for one in self.connections if isinstance(one, _Connection) and not one._streams]
        if others:
            last = min(others, key=lambda one: (not one._receiving, one._since))
            self.connections.discard(last)
            last.transport.abort()


class _Server(uvicorn.Server):
    """Ends its streams before it stops: they would never end by themselves."""

    def __init__(self, config: uvicorn.Config, control: Control) -> None:
        super().__init__(config)
        self._control = control

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Let signals stop the server only. uvicorn would raise them again afterwards, and so end the process
        before the caller has cleaned up.
        """
        # Python allows signal handlers on the main thread alone.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {one: signal.signal(one, self.handle_exit) for one in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for one, handler in before.items():
                signal.signal(one, handler)

    async def main_loop(self) -> None:
        """Serve until `should_exit` is set, then close the open control connections."""
        await super().main_loop()
        for link in list(self._control.links):
            await link.close()


_SESSIONS: Final = 64
"""Most sessions of MCP clients at once; the protocol has none from revision 2026-07-28 on."""


@asynccontextmanager
async def serving_http(
    lab: Services,
    *,
    port: int = 0,
    token: bool = True,
    approve: str = "deny",
    workspace: str = ".",
    tools: Sequence[str] | None = None,
) -> AsyncIterator[tuple[int, Path | None, asyncio.Task[None]]]:
    """Serve over streamable HTTP at `http://127.0.0.1:PORT/mcp` while the block runs.

    Gives the port, the file of mode 0600 with the token that requests need as `Authorization: Bearer`, and a
    task that ends when a signal stops the server. Without `token` every program of this machine may call the
    tools; pages of other sites may not. Raises `UsageError` for an unknown tool and a port that is taken.
    """
    app = make_server(lab, approve=approve, workspace=workspace, tools=tools).streamable_http_app(
        max_sessions=_SESSIONS
    )
    with listen_locally(port) as listening:
        bound = int(listening.getsockname()[1])
        secret, path = token_for(lab.home, bound, keep=port != 0) if token else (new_token(), None)
        guard = Guard(app, token=secret, port=bound, public=frozenset() if token else frozenset({"/mcp"}))

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            # The guard refuses everything but requests; the SDK's server needs the start and end of the
            # application as well.
            await (app if scope["type"] == "lifespan" else guard)(scope, receive, send)

        try:
            async with _run_server(
                uvicorn.Server(uvicorn.Config(guarded, **_SETTINGS, lifespan="on")), listening
            ) as work:
                yield bound, path, work
        finally:
            if path is not None and not port:
                path.unlink(missing_ok=True)
