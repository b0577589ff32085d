"""A local HTTP server that replays prepared bodies, for providers of every family: whole JSON, server-sent
events or JSON lines.

    with ReplayServer([Body(whole={...}, stream=[...])]) as server:
        LiteLLMModel("anthropic/claude-sonnet-4-5", api_base=server.address, api_key="k")

Bodies are used in order, the last one again and again; `server.asked` holds path and JSON of every request.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Body:
    """What the server answers to one request, in both forms."""

    whole: dict[str, Any] = field(default_factory=dict)
    """The JSON of an answer that is not streamed."""
    stream: Sequence[dict[str, Any]] = ()
    """The JSON of each event of a stream."""
    form: Literal["openai", "anthropic", "gemini", "ollama"] = "openai"
    """How a stream is written: events closed by `[DONE]`, named events, plain events, or JSON lines."""
    hangs_s: float = 0.0
    """Seconds without a byte before the answer."""


class ReplayServer(ThreadingHTTPServer):
    """Answers every POST with the next body; a context manager that stops the server at the end."""

    daemon_threads = True

    def __init__(self, bodies: Sequence[Body]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bodies = list(bodies)
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()

    @property
    def address(self) -> str:
        """The address without a path."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def take(self, path: str, asked: dict[str, Any]) -> Body:
        """Note the request and return its body."""
        with self._lock:
            self.asked.append((path, asked))
            return self.bodies.pop(0) if len(self.bodies) > 1 else self.bodies[0]

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a client that goes away is part of what is tested."""

    def __enter__(self) -> ReplayServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: ReplayServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        """Answer one request."""
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])) or b"{}")
        body = self.server.take(self.path, asked)
        if body.hangs_s:
            self.server.closing.wait(body.hangs_s)
        # Gemini asks for a stream by its address, the others in the body.
        streamed = bool(asked.get("stream")) or "streamGenerateContent" in self.path
        self._send(
            _stream(body) if streamed else json.dumps(body.whole).encode(), streamed=streamed, form=body.form
        )

    def do_GET(self) -> None:
        """Say that the server is there."""
        self._send(b'{"data": []}', streamed=False, form="openai")

    def _send(self, content: bytes, *, streamed: bool, form: str) -> None:
        kind = (
            ("application/x-ndjson" if form == "ollama" else "text/event-stream")
            if streamed
            else "application/json"
        )
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _stream(body: Body) -> bytes:
    if body.form == "ollama":
        return b"".join(json.dumps(event).encode() + b"\n" for event in body.stream)
    lines = []
    for event in body.stream:
        named = f"event: {event['type']}\n" if body.form == "anthropic" else ""
        lines.append(f"{named}data: {json.dumps(event)}\n\n")
    if body.form == "openai":
        lines.append("data: [DONE]\n\n")
    return "".join(lines).encode()
