"""The protocol over HTTP: one address takes messages, server-sent events carry those of the server, and a
page uses both.

- `POST /v1/messages`: a message of the protocol; the response is the reply
- `POST /v1/runs`: the same for `start`, whose `type` may be left out
- `GET /v1/runs`: the newest runs, as the message `runs`
- `GET /v1/events`: `watch`, and with `?run=RUN` what the next one sends too, for a page, which may not open
  many streams
- `GET /v1/runs/RUN/events`: `subscribe` with `?after=N` or `Last-Event-ID`, and `?view=1` for what a screen
  shows
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from kestrel_lab.core.json_types import dumps, loads
from kestrel_lab.server import protocol
from kestrel_lab.server.auth import Guard, refusal_response
from kestrel_lab.server.client import Link
from kestrel_lab.server.controller import Control

HEARTBEAT_S: Final = 15.0
SLOW_S: Final = 20.0
"""A client that reads nothing for so long is disconnected; when it reconnects, it continues where it was."""
_STREAMS: Final = 64
"""Most streams at once: each holds a connection for as long as its page is open."""
_SWALLOWED: Final = 16 * protocol.MESSAGE_BYTES
"""Bytes of an oversized message that are read and dropped: many clients read no reply before they have sent
everything.
"""

_STATUS: Final[dict[protocol.ErrorCode, int]] = {
    "bad_message": 400,
    "too_large": 413,
    "unknown_run": 404,
    "unknown_question": 404,
    "already_decided": 409,
    "changed": 409,
    "ended": 409,
    "at_work_elsewhere": 409,
    "bad_arguments": 422,
    "not_allowed": 403,
    "refused": 409,
    "too_many": 429,
}
_WEB: Final = Path(__file__).parent / "web"
_PANEL: Final = Path(__file__).parent.parent / "notebook"
"""The notebook's panel draws runs here too."""
FILES: Final = {
    "/": (_WEB / "page.html", "text/html; charset=utf-8"),
    "/page.js": (_WEB / "page.js", "text/javascript; charset=utf-8"),
    "/page.css": (_WEB / "page.css", "text/css; charset=utf-8"),
    "/panel.js": (_PANEL / "panel.js", "text/javascript; charset=utf-8"),
    "/panel.css": (_PANEL / "panel.css", "text/css; charset=utf-8"),
}


def make_app(
    control: Control, *, token: str, port: int, slow_s: float = SLOW_S, heartbeat_s: float = HEARTBEAT_S
) -> ASGIApp:
    """The application, for a server that listens on `port` of this machine only."""
    site = _Site(control, slow_s, heartbeat_s)
    routes = [Route(path, _file(path), methods=["GET"]) for path in FILES]
    routes += [
        Route("/v1/messages", site.message, methods=["POST"]),
        Route("/v1/runs", site.runs, methods=["GET"]),
        Route("/v1/runs", site.start, methods=["POST"]),
        Route("/v1/events", site.watch, methods=["GET"]),
        Route("/v1/runs/{run}/events", site.follow, methods=["GET"]),
    ]
    return Guard(
        Starlette(routes=routes, exception_handlers={HTTPException: _wrong_address}),
        token=token,
        port=port,
        public=frozenset(FILES),
    )


def _file(path: str) -> Any:
    source, media_type = FILES[path]
    # Read once: the files of the package do not change, and a request needs no disk.
    content = source.read_bytes()

    async def serve(_: Request) -> Response:
        return Response(content, media_type=media_type)

    return serve


async def _wrong_address(_: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException) and error.status_code == 405:
        return refusal_response(
            405,
            "wrong_method",
            "this address does not accept that method: requests that change something are POST",
            **dict(error.headers or {}),
        )
    return refusal_response(
        404,
        "not_found",
        "there is nothing at this address",
        "POST /v1/messages takes messages, GET /v1/events streams events",
    )


class _Site:
    def __init__(self, control: Control, slow_s: float, heartbeat_s: float) -> None:
        self._control, self._slow_s, self._heartbeat_s = control, slow_s, heartbeat_s
        self._streams = 0

    async def message(self, request: Request) -> Response:
        body = await _body(request)
        return body if isinstance(body, Response) else await self._obey(body)

    async def start(self, request: Request) -> Response:
        body = await _body(request)
        if isinstance(body, Response):
            return body
        try:
            value = loads(body.decode())
        except ValueError:
            # Not JSON: the reader of messages refuses it with the reason.
            return await self._obey(body)
        if isinstance(value, dict):
            value.setdefault("type", "start")
            if value["type"] != "start":
                return _reply(
                    protocol.Refused(
                        code="bad_message",
                        message="this address takes `start` only",
                        todo="POST /v1/messages takes the rest",
                    )
                )
        return await self._obey(dumps(value).encode())

    async def _obey(self, body: bytes) -> Response:
        message = protocol.read_message(body)
        if isinstance(message, protocol.Watch | protocol.Subscribe | protocol.Unsubscribe):
            return _reply(
                message.refused(
                    "bad_message",
                    "a stream is opened by a GET",
                    todo="GET /v1/events for the list, GET /v1/runs/RUN/events for a run",
                )
            )
        return _reply(
            message
            if isinstance(message, protocol.Refused)
            else await self._control.handle(message, how="click")
        )

    async def runs(self, request: Request) -> Response:
        try:
            watch = protocol.Watch(limit=int(request.query_params.get("limit", "50")))
        except ValueError as error:
            return _reply(_bad_query(error))
        return _reply(protocol.Runs(runs=await asyncio.to_thread(self._control.list.newest, watch.limit)))

    async def watch(self, request: Request) -> Response:
        run = request.query_params.get("run", "")
        return (
            await self._follow(request, run, protocol.Watch())
            if run
            else await self._stream(request, protocol.Watch())
        )

    async def follow(self, request: Request) -> Response:
        return await self._follow(request, request.path_params["run"])

    async def _follow(self, request: Request, run: str, *more: protocol.Watch) -> Response:
        query = request.query_params
        after = request.headers.get("last-event-id") or query.get("after", "0")
        try:
            message = protocol.Subscribe(run=run, after=int(after), view=query.get("view", "0") == "1")
        except ValueError as error:  # pydantic's are of that kind
            return _reply(_bad_query(error))
        return await self._stream(request, message, *more)

    async def _stream(
        self, request: Request, first: protocol.Watch | protocol.Subscribe, *more: protocol.Watch
    ) -> Response:
        """A stream of what `first` asks for, if that can be had, and `more`."""
        if self._streams >= _STREAMS:
            return _reply(
                protocol.Refused(
                    code="too_many", message=f"{_STREAMS} streams are open already", todo="close a page"
                )
            )
        link = self._control.connect(how="click", person=False)
        await link.send(first)
        # Skip the greeting; the stream begins with one. The reply decides the status of the response, which
        # cannot change once the stream has begun.
        await link.receive()
        reply = await link.receive()
        if isinstance(reply, protocol.Refused):
            await link.close()
            return _reply(reply)
        self._streams += 1
        # Shows `serve._Connection` that this connection is quiet, but not idle.
        request.state.stream = True

        def over() -> None:
            self._streams -= 1

        stream = EventStream(
            self._control.hello(), link, more, over, ends=isinstance(first, protocol.Subscribe) and not more
        )
        stream.slow_s, stream.heartbeat_s = self._slow_s, self._heartbeat_s
        return stream


async def _body(request: Request) -> bytes | Response:
    """The JSON text of a request, no longer than allowed."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        return refusal_response(
            415, "not_json", "messages are application/json", "send Content-Type: application/json"
        )
    length = request.headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _SWALLOWED:
        return _too_large()
    body, size = b"", 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > _SWALLOWED:
                return _too_large()
            body = body + chunk if size <= protocol.MESSAGE_BYTES else b""
    except ClientDisconnect:
        return refusal_response(400, "cut_off", "the message was cut off and ignored")
    return body if size <= protocol.MESSAGE_BYTES else _too_large()


def _too_large() -> Response:
    return refusal_response(
        413, "too_large", f"a message has at most {protocol.MESSAGE_BYTES:,} bytes", Connection="close"
    )


def _bad_query(error: ValueError) -> protocol.Refused:
    if isinstance(error, ValidationError):
        return protocol.bad_message(error)
    return protocol.Refused(code="bad_message", message="`after` and `limit` are numbers")


def _reply(message: protocol.ServerMessage) -> Response:
    status = _STATUS.get(message.code, 400) if isinstance(message, protocol.Refused) else 200
    return Response(message.line(), status, media_type="application/json")


class EventStream(Response):
    """Messages of a link as server-sent events; the id of one about a run is the number of its event."""

    media_type = "text/event-stream"

    def __init__(
        self,
        hello: protocol.ServerMessage,
        link: Link,
        more: Sequence[protocol.Watch],
        over: Callable[[], None],
        *,
        ends: bool,
    ) -> None:
        """`more` is sent to the link once the stream is open, `over` is called at its end; with `ends` it
        ends with the run.
        """
        # Without the header, proxies such as nginx hold back small pieces.
        super().__init__(headers={"X-Accel-Buffering": "no"})
        self.slow_s, self.heartbeat_s = SLOW_S, HEARTBEAT_S
        self._hello, self._link, self._more, self._over, self._ends = hello, link, more, over, ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the run has ended, the client is gone or does not read, or the server stops."""
        headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        gone = asyncio.create_task(_wait_for_disconnect(receive))
        sending = asyncio.create_task(self._stream(send, headers))
        asking = asyncio.create_task(self._ask())
        try:
            await asyncio.wait({gone, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (gone, sending, asking):
                task.cancel()
            await asyncio.gather(gone, sending, asking, return_exceptions=True)
            await self._link.close()
            self._over()

    async def _ask(self) -> None:
        for message in self._more:
            await self._link.send(message)

    async def _stream(self, send: Send, headers: list[tuple[bytes, bytes]]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        async for chunk in self._chunks():
            # A client that does not read would otherwise hold its messages in memory for ever.
            async with asyncio.timeout(self.slow_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _chunks(self) -> AsyncIterator[bytes]:
        yield b"retry: 1000\n" + _chunk(self._hello)
        waiting = asyncio.create_task(self._link.receive())
        try:
            while True:
                # `wait` does not cancel the task at the timeout: no message is lost.
                done, _ = await asyncio.wait({waiting}, timeout=self.heartbeat_s)
                # A comment line: it shows both sides that the connection lives.
                if not done:
                    yield b": alive\n\n"
                    continue
                try:
                    message = waiting.result()
                except EOFError:
                    return
                if not isinstance(message, protocol.Accepted):
                    yield _chunk(message)
                if isinstance(message, protocol.Ended) and self._ends:
                    return
                waiting = asyncio.create_task(self._link.receive())
        finally:
            waiting.cancel()


def _chunk(message: protocol.ServerMessage) -> bytes:
    number = getattr(message, "seq", None)
    seen = "" if number is None else f"id: {number}\n"
    return f"event: {message.type}\n{seen}data: {message.line()}\n\n".encode("ascii")


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
