"""A model's endpoint on 127.0.0.1 that hangs in one of several ways: real sockets, no answer that ends."""

from __future__ import annotations

import asyncio
import json
import threading
from types import TracebackType
from typing import Literal

Way = Literal["silent", "headers", "token", "drip"]
"""Accept and say nothing; send the head of an answer; send a token; send a token again and again."""
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
_WHOLE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100000\r\n\r\n"


class HangingServer:
    """Answers `answered` requests with a call of `list_dir`, each after `latency_s`, and hangs in the rest;
    counts requests.
    """

    def __init__(self, way: Way, *, answered: int = 0, latency_s: float = 0.0) -> None:
        self.way, self.answered, self.latency_s = way, answered, latency_s
        self.requests = 0
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self.port = 0

    @property
    def api_base(self) -> str:
        """What a client is given as base address."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> HangingServer:
        self._thread.start()
        self._ready.wait()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    def _serve(self) -> None:
        self._loop.run_until_complete(self._main())
        self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        clients: set[asyncio.Task[None]] = set()

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            clients.add(task := asyncio.ensure_future(self._answer(reader, writer)))
            try:
                await asyncio.wait([task])
            finally:
                writer.close()

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for task in clients:
            task.cancel()
        await asyncio.gather(*clients, return_exceptions=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            lengths = [
                line.partition(b":")[2]
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length:")
            ]
            body = await reader.readexactly(int(lengths[0])) if lengths else b""
            if not body:
                writer.write(
                    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: "
                    b'11\r\n\r\n{"data":[]}'
                )
                continue
            self.requests += 1
            streamed = bool(json.loads(body).get("stream"))
            if self.requests <= self.answered:
                await asyncio.sleep(self.latency_s)
                await self._call(writer)
                continue
            await self._hang(writer, streamed=streamed)

    async def _call(self, writer: asyncio.StreamWriter) -> None:
        call = {"id": "c", "type": "function", "function": {"name": "list_dir", "arguments": "{}"}}
        body = json.dumps(
            {
                "id": "x",
                "object": "chat.completion",
                "created": 0,
                "model": "any",
                "choices": [
                    {
                        "index": 0,
                        "finish_reason": "tool_calls",
                        "message": {"role": "assistant", "content": None, "tool_calls": [call]},
                    }
                ],
                "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
            }
        ).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
            + body
        )
        await writer.drain()

    async def _hang(self, writer: asyncio.StreamWriter, *, streamed: bool) -> None:
        if self.way != "silent":
            writer.write(_HEAD if streamed else _WHOLE_HEAD)
        while self.way in ("token", "drip"):
            delta = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "any"}
            event = (
                b"data: "
                + json.dumps({**delta, "choices": [{"index": 0, "delta": {"content": "a "}}]}).encode()
                + b"\n\n"
            )
            writer.write(b"%x\r\n%b\r\n" % (len(event), event) if streamed else b" ")
            await writer.drain()
            if self.way == "token":
                break
            await asyncio.sleep(0.05)
        await asyncio.Event().wait()
