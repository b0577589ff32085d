"""A small OpenAI-compatible server on 127.0.0.1 for tests and benchmarks: scripted replies, real HTTP, real
streaming.

    with OpenAIServer([Reply(text="hello")], latency_s=0.05) as server:
        LiteLLMModel("openai/any", api_base=server.api_base, api_key="key")

Replies are used in order; the last one is repeated. `server.bodies` holds the raw bytes of every request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """What the server says to one request."""

    text: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    """Tool calls as `(name, arguments text)`; arguments are streamed in pieces of `piece` characters."""
    usage: tuple[int, int] | None = (11, 7)
    """Prompt and completion tokens; `None` sends no usage."""
    sent_usage: dict[str, Any] | None = None
    """The usage as it is sent, in place of these numbers."""
    finish: str = ""
    piece: int = 4
    status: int = 200
    error: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    pause_s: float = 0.0
    """Seconds between two pieces of a stream."""
    drop_after: int | None = None
    """Cut the connection after this many events of a stream."""


class OpenAIServer(ThreadingHTTPServer):
    """Answers `POST …/chat/completions`; a context manager that stops the server at the end."""

    daemon_threads = True

    def __init__(self, replies: Sequence[Reply], *, latency_s: float = 0.0, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.replies = list(replies)
        self.latency_s = latency_s
        self.bodies: list[bytes] = []
        self.headers_seen: list[dict[str, str]] = []
        self.dropped = threading.Event()
        """Set when a client went away in the middle of a stream."""
        self._lock = threading.Lock()

    @property
    def api_base(self) -> str:
        """What a client is given as base address."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def requests(self) -> list[dict[str, Any]]:
        """The bodies as JSON."""
        return [json.loads(body) for body in self.bodies]

    def take(self, body: bytes, headers: dict[str, str]) -> Reply:
        """Note the request and give the next reply."""
        with self._lock:
            self.bodies.append(body)
            self.headers_seen.append(headers)
            return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a client that goes away is part of what is tested."""

    def __enter__(self) -> OpenAIServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: OpenAIServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """List the models, as the next reply would be answered with its status."""
        reply = self.server.replies[0]
        body = (
            {"data": [{"id": "any"}]}
            if self.path.endswith("/models")
            else {"models": [{"name": "any:latest"}]}
        )
        self._send(reply, json.dumps(body).encode())

    def do_POST(self) -> None:
        """Answer one chat completion."""
        body = self.rfile.read(int(self.headers["content-length"]))
        reply = self.server.take(body, {key.lower(): value for key, value in self.headers.items()})
        time.sleep(self.server.latency_s)
        asked = json.loads(body)
        if reply.status != 200:
            self._send(
                reply,
                json.dumps(
                    {"error": {"message": reply.error, "type": "test", "code": reply.status}}
                ).encode(),
            )
        elif asked.get("stream"):
            self._stream(reply, asked)
        else:
            self._send(reply, json.dumps(_whole(reply, asked)).encode())

    def _send(self, reply: Reply, body: bytes) -> None:
        self.send_response(reply.status)
        for key, value in {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **reply.headers,
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()

    def _stream(self, reply: Reply, asked: dict[str, Any]) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        try:
            for number, event in enumerate(_events(reply, asked)):
                if number == reply.drop_after:
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                self._chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
                if reply.pause_s:
                    self.wfile.flush()
                    time.sleep(reply.pause_s)
            self._chunk(b"data: [DONE]\n\n")
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()
        except OSError:
            self.server.dropped.set()
            self.close_connection = True

    def _chunk(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")


def _finish(reply: Reply) -> str:
    return reply.finish or ("tool_calls" if reply.calls else "stop")


def _usage(reply: Reply) -> dict[str, Any]:
    if reply.sent_usage is not None:
        return reply.sent_usage
    read, written = reply.usage or (0, 0)
    return {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}


def _whole(reply: Reply, asked: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.calls:
        message["tool_calls"] = [
            {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": args}}
            for number, (name, args) in enumerate(reply.calls)
        ]
    answer = {
        **_head(asked, "chat.completion"),
        "choices": [{"index": 0, "message": message, "finish_reason": _finish(reply)}],
    }
    return {**answer, "usage": _usage(reply)} if reply.usage else answer


def _head(asked: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": f"{asked['model']}-served"}


def _events(reply: Reply, asked: dict[str, Any]) -> list[dict[str, Any]]:
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [
        {"content": reply.text[at : at + reply.piece]} for at in range(0, len(reply.text), reply.piece)
    ]
    pieces: list[list[dict[str, Any]]] = []
    for index, (name, args) in enumerate(reply.calls):
        first = {
            "index": index,
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": name, "arguments": ""},
        }
        rest = [
            {"index": index, "function": {"arguments": args[at : at + reply.piece]}}
            for at in range(0, len(args), reply.piece)
        ]
        pieces.append([first, *rest])
    # Calls are sent interleaved, as some servers do: a client must go by index, not by order.
    for at in range(max(map(len, pieces), default=0)):
        deltas += [{"tool_calls": [one[at]]} for one in pieces if at < len(one)]
    head = _head(asked, "chat.completion.chunk")
    events = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    events.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(reply)}]})
    if reply.usage and (asked.get("stream_options") or {}).get("include_usage"):
        events.append({**head, "choices": [], "usage": _usage(reply)})
    return events


class ServerProcess:
    """The server as a process of its own, which can be killed and started again at the same address."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    @property
    def api_base(self) -> str:
        """What a client is given as base address."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self, *replies: dict[str, Any]) -> None:
        """Start with these replies, as keyword arguments of `Reply`; returns when it listens."""
        command = [sys.executable, __file__, str(self.port), json.dumps(replies)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n"

    def kill(self) -> None:
        """End it with SIGKILL: every connection is cut."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


if __name__ == "__main__":
    with OpenAIServer([Reply(**reply) for reply in json.loads(sys.argv[2])], port=int(sys.argv[1])):
        print("listening", flush=True)
        threading.Event().wait()
