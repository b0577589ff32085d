"""A provider's batch endpoint on 127.0.0.1 in OpenAI's form: files, batches, their list, and single calls.

    with BatchServer(lambda body: "hello") as server:
        LiteLLMModel("openai/gpt-4o-mini", api_base=server.api_base, api_key="key")

A batch is answered when it is first looked at, unless `hold` is set; `fails` says which requests get no answer.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BatchServer(ThreadingHTTPServer):
    """Answers with what `say` returns for a request: a text, or calls as `[(name, args), ...]`."""

    daemon_threads = True

    def __init__(self, say: Callable[[dict[str, Any]], Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.say = say
        self.files: dict[str, str] = {}
        self.batches: dict[str, dict[str, Any]] = {}
        self.direct: list[dict[str, Any]] = []
        """Bodies of single calls."""
        self.hold = threading.Event()
        """While it is set, batches stay in progress."""
        self.fails: Callable[[dict[str, Any], int], str] = lambda body, batch: ""
        """Returns `expired` or a status with a message for requests without an answer, by body and batch."""
        self.created: Callable[[], None] = lambda: None
        """Called when a batch was created, before its sender is told."""
        self.refuses = 0
        """How many times it refuses to say how a batch is."""
        self.forgets_names = False
        """Whether the list has no metadata."""
        self._lock = threading.Lock()

    @property
    def api_base(self) -> str:
        """What a client is given as base address."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def requests(self) -> list[list[dict[str, Any]]]:
        """The bodies of all requests, by batch."""
        return [
            [json.loads(line)["body"] for line in self.files[batch["input_file_id"]].splitlines()]
            for batch in self.batches.values()
        ]

    def keep(self, text: str) -> str:
        """Keep a file and return its id."""
        with self._lock:
            name = f"file-{len(self.files)}"
            self.files[name] = text
        return name

    def create(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Create a batch."""
        with self._lock:
            name = f"batch_{len(self.batches)}"
            total = len(self.files[asked["input_file_id"]].splitlines())
            made = {
                "id": name,
                "object": "batch",
                "endpoint": asked["endpoint"],
                "input_file_id": asked["input_file_id"],
                "completion_window": "24h",
                "status": "in_progress",
                "created_at": len(self.batches),
                "metadata": asked.get("metadata"),
                "request_counts": {"total": total, "completed": 0, "failed": 0},
            }
            self.batches[name] = made
        self.created()
        return made

    def look(self, name: str) -> dict[str, Any]:
        """Return a batch, answered by now unless it is held."""
        batch = self.batches[name]
        if batch["status"] == "in_progress" and not self.hold.is_set():
            self._answer(batch)
        return batch

    def _answer(self, batch: dict[str, Any]) -> None:
        done, failed, expired = [], [], False
        for line in map(json.loads, self.files[batch["input_file_id"]].splitlines()):
            why = self.fails(line["body"], int(batch["id"].removeprefix("batch_")))
            said = {"id": f"r{len(done)}", "custom_id": line["custom_id"], "response": None, "error": None}
            if why == "expired":
                expired = True
                failed.append(said | {"error": {"code": "batch_expired", "message": "not in time"}})
            elif why:
                body = {"error": {"message": why[4:]}}
                failed.append(said | {"response": {"status_code": int(why[:3]), "body": body}})
            else:
                done.append(
                    said | {"response": {"status_code": 200, "body": completion(self.say(line["body"]))}}
                )
        for name, lines in (("output_file_id", done), ("error_file_id", failed)):
            batch[name] = self.keep("\n".join(map(json.dumps, lines))) if lines else None
        batch["request_counts"] |= {"completed": len(done), "failed": len(failed)}
        batch["status"] = "expired" if expired else "completed"

    def __enter__(self) -> BatchServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """Keep quiet: a client that dies is part of what is tested."""


def completion(said: Any) -> dict[str, Any]:
    """Return a chat completion of 1,000 tokens read and 100 written."""
    calls = [] if isinstance(said, str) else said
    message: dict[str, Any] = {"role": "assistant", "content": said if isinstance(said, str) else None}
    if calls:
        message["tool_calls"] = [
            {
                "id": f"c{place}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(args)},
            }
            for place, (name, args) in enumerate(calls)
        ]
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls" if calls else "stop"}],
        "usage": {"prompt_tokens": 1000, "completion_tokens": 100, "total_tokens": 1100},
    }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: BatchServer

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        """Return a batch, the list, or a file."""
        path = self.path.partition("?")[0]
        if found := re.fullmatch(r"/v1/files/(.+)/content", path):
            self._send(self.server.files[found[1]].encode(), "application/octet-stream")
        elif found := re.fullmatch(r"/v1/batches/(.+)", path):
            if self.server.refuses:
                self.server.refuses -= 1
                self._json({"error": {"message": "bad key"}}, 401)
            else:
                self._json(self.server.look(found[1]))
        elif path == "/v1/batches":
            all_of_them = [
                {**batch, "metadata": None} if self.server.forgets_names else batch
                for batch in reversed(self.server.batches.values())
            ]
            self._json({"object": "list", "data": all_of_them, "has_more": False})
        else:
            self._json({"data": [{"id": "any"}]})

    def do_POST(self) -> None:
        """Take a file, a batch, its end, or a single call."""
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.path == "/v1/files":
            text = re.search(rb'name="file".*?\r\n\r\n(.*?)\r\n--', body, re.DOTALL)
            assert text is not None
            name = self.server.keep(text[1].decode())
            self._json(
                {
                    "id": name,
                    "object": "file",
                    "bytes": 1,
                    "created_at": 0,
                    "filename": "f",
                    "purpose": "batch",
                }
                | {"status": "processed"}
            )
        elif self.path == "/v1/batches":
            self._json(self.server.create(json.loads(body)))
        elif found := re.fullmatch(r"/v1/batches/(.+)/cancel", self.path):
            self.server.batches[found[1]]["status"] = "cancelled"
            self._json(self.server.batches[found[1]])
        else:
            self.server.direct.append(json.loads(body))
            self._json(completion(self.server.say(self.server.direct[-1])))

    def _json(self, body: Any, status: int = 200) -> None:
        self._send(json.dumps(body).encode(), "application/json", status)

    def _send(self, body: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()
