"""A session as an MCP server over streamable HTTP, on this machine's own address. What it offers: `mcp_server`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import uvicorn
from starlette.types import Receive, Scope, Send

from kestrel_lab.runtime.session import Session
from kestrel_lab.server.auth import Guard, new_token
from kestrel_lab.server.mcp_server import make_server
from kestrel_lab.server.serve import listen, token_for

_SESSIONS: Final = 64
"""Of clients that speak a revision before 2026-07-28, which has none."""
_CONNECTIONS: Final = 256
_GRACE_S: Final = 2


@asynccontextmanager
async def serving_http(
    session: Session,
    *,
    port: int = 0,
    token: bool = True,
    approve: str = "deny",
    workspace: str = ".",
    tools: Sequence[str] | None = None,
) -> AsyncIterator[tuple[int, Path | None, asyncio.Task[None]]]:
    """Serve over streamable HTTP at `http://127.0.0.1:PORT/mcp` while the block runs.

    Gives the port, the file of mode 0600 with the token that requests need as `Authorization: Bearer`, and a task that ends when a
    signal stops the server. Without `token` every program of this machine may call the tools; pages of other sites may not.
    Raises `UsageError` for an unknown tool and a port that is taken.
    """
    app = make_server(session, approve=approve, workspace=workspace, tools=tools).streamable_http_app(max_sessions=_SESSIONS)
    with listen(port) as listening:
        bound = int(listening.getsockname()[1])
        secret, path = token_for(session.home, bound, keep=port != 0) if token else (new_token(), None)
        guard = Guard(app, token=secret, port=bound, public=frozenset() if token else frozenset({"/mcp"}))

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            # The guard refuses whatever is no request; the server of the SDK has to be begun and ended.
            await (app if scope["type"] == "lifespan" else guard)(scope, receive, send)

        config = uvicorn.Config(
            guarded,
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,  # addresses and headers of requests are nobody's business
            server_header=False,
            limit_concurrency=_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,  # streams would never end by themselves
        )
        server = uvicorn.Server(config)
        work = asyncio.create_task(server.serve(sockets=[listening]), name="kestrel mcp serve")
        try:
            while not server.started and not work.done():  # noqa: ASYNC110  # uvicorn sets a flag, not an event
                await asyncio.sleep(0.005)
            yield bound, path, work
        finally:
            server.should_exit = True
            await work
            if path is not None and not port:
                path.unlink(missing_ok=True)
