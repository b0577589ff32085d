"""A small OpenAI-compatible server on 127.0.0.1 that takes its time: `python -m bench.server` prints its
address.

It asks for one tool call a turn until it sees `TURNS` of them in the conversation, then says it is done.
Stopped by closing its standard input.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

TURNS = 8
LATENCY_S = 0.05
_USAGE = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}


def _message(asked: dict[str, Any]) -> tuple[dict[str, Any], str]:
    turn = sum(message["role"] == "assistant" for message in asked["messages"])
    if turn >= TURNS:
        return {"role": "assistant", "content": "done"}, "stop"
    function = {"name": "look_up", "arguments": json.dumps({"topic": f"entry {turn}", "limit": 5})}
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": f"call_{turn}", "type": "function", "function": function}],
    }, "tool_calls"


def _whole(asked: dict[str, Any]) -> bytes:
    message, finish = _message(asked)
    answer = {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": asked["model"],
        "usage": _USAGE,
        "choices": [{"index": 0, "message": message, "finish_reason": finish}],
    }
    body = json.dumps(answer).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(body),
        body,
    )


def _streamed(asked: dict[str, Any]) -> bytes:
    message, finish = _message(asked)
    delta = {**message, "tool_calls": [{**call, "index": 0} for call in message.get("tool_calls", ())]}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": asked["model"]}
    events: list[dict[str, Any]] = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {**head, "choices": [], "usage": _USAGE},
    ]
    body = (
        b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    )
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: "
        b"chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (
            len(body),
            body,
        )
    )


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
            asked = json.loads(await reader.readexactly(length))
            await asyncio.sleep(LATENCY_S)
            writer.write(_streamed(asked) if asked.get("stream") else _whole(asked))
            await writer.drain()
    except (
        asyncio.IncompleteReadError,
        ConnectionError,
        asyncio.CancelledError,
    ):  # the client went away, or the server ends
        writer.close()


async def _main() -> None:
    server = await asyncio.start_server(_serve, "127.0.0.1", 0)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_main())
