"""Streams that are not as the format says: the server's words are not lost, and what can be understood is."""

import asyncio
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolSpec
from kestrel_lab.models.chat_format import CallPieces
from kestrel_lab.models.litellm.model import LiteLLMModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]
USAGE = {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}
READ = ToolSpec(
    name="read_file",
    description="Read.",
    schema={"type": "object", "properties": {"path": {"type": "string"}}},
)
LIST = ToolSpec(name="list", description="List.", schema={"type": "object", "properties": {}})
SSE = "text/event-stream"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    kind = SSE
    body = b""


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        """Send what there is, with status 200."""
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", self.server.kind)
        self.end_headers()
        self.wfile.write(self.server.body)


@pytest.fixture(scope="module")
def server() -> Iterator[_Server]:
    """A server that says anything."""
    with _Server(("127.0.0.1", 0), _Handler) as made:
        threading.Thread(target=made.serve_forever, daemon=True).start()
        yield made
        made.shutdown()


MODELS = pytest.mark.parametrize("name", ["openai/m", "hosted_vllm/m", "deepseek/m", "openrouter/m"])


def ask(server: _Server, name: str, kind: str, body: str | bytes) -> tuple[ModelAnswer, str]:
    """The answer of a model that is asked for a stream, and the text that was shown meanwhile."""
    server.kind, server.body = kind, body.encode() if isinstance(body, str) else body
    shown: list[str] = []
    model = LiteLLMModel(name, api_base=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="k")
    request = ModelRequest(messages=(Message(role="user", text="go"),), tools=(READ, LIST), stream=True)
    return asyncio.run(model(request, lambda text: shown.append(str(text)))), "".join(shown)


def event(data: object) -> str:
    """An event of a stream."""
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


def chunk(delta: object = None, end: str | None = None, **more: Any) -> str:
    """An event with a chunk."""
    choice = {"index": 0, "delta": {} if delta is None else delta, "finish_reason": end}
    return event(
        {
            "id": "c",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": "m",
            "choices": [choice],
            **more,
        }
    )


def call(args: object = None, name: str | None = None, **more: Any) -> str:
    """An event with a piece of a tool's call."""
    function = {**({} if args is None else {"arguments": args}), **({} if name is None else {"name": name})}
    return chunk({"tool_calls": [{"function": function, **more}]})


DONE = event("[DONE]")
END = chunk({}, "tool_calls") + DONE
FOUR = chunk({"content": "four"}, "stop") + DONE
WHOLE: dict[str, Any] = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "usage": USAGE,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "four"}, "finish_reason": "stop"}],
}


def bare(**more: Any) -> str:
    """An event with a chunk without choices."""
    return event({"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **more})


@MODELS
@pytest.mark.parametrize(
    ("kind", "body", "words", "transient"),
    [
        (
            "application/json",
            '{"error": {"message": "Upstream says no", "code": 400}}',
            "400 from .*Upstream says no",
            False,
        ),
        (
            SSE,
            '{"error": {"message": "Upstream says no", "code": "429"}}',
            "429 from .*Upstream says no",
            True,
        ),
        (
            "application/json",
            json.dumps({"error": {"message": "Upstream says no", "type": "rate_limit_error"}}, indent=2),
            "429 .*says no",
            True,
        ),
        ("application/json", '{"error": "Upstream says no"}', "Upstream says no", False),
        ("application/json", '{"detail": "Upstream says no"}', "no stream.*Upstream says no", False),
        (
            "application/json",
            '[{"error": {"message": "Upstream says no", "status": "RESOURCE", "code": 503}}]',
            "503 .*Upstream says no",
            True,
        ),
        (
            "text/html",
            "<!doctype html>\n<html>\n<body>Bad gateway</body></html>",
            "no stream.*Bad gateway",
            False,
        ),
        ("text/plain", "Upstream says: no", "no stream.*Upstream says: no", False),
        ("application/octet-stream", b"\x00\xff\xfe", "no stream", False),
        (SSE, "", "ended without an answer", True),
        (SSE, DONE, "ended without an answer", True),
        (SSE, ": ping\n\n: ping\n\n", "ended without an answer", True),
        (
            SSE,
            event({"error": {"message": "Upstream says no", "type": "overloaded_error"}}),
            "529 from .*Upstream says no",
            True,
        ),
        (
            SSE,
            chunk({"content": "fo"}) + event({"error": {"message": "Upstream says no", "code": 500}}),
            "500 from .*Upstream says no",
            True,
        ),
        (
            SSE,
            chunk({"content": "fo"}) + "event: error\n" + event({"message": "Upstream says no"}),
            "Upstream says no",
            False,
        ),
        (
            SSE,
            chunk({"content": "fo"}) + "event: error\n" + event("Upstream says no"),
            "Upstream says no",
            False,
        ),
        (
            SSE,
            chunk({"content": "fo"}) + '{"error": {"message": "Upstream says no"}}',
            "Upstream says no",
            False,
        ),
    ],
)
def test_what_is_no_stream_is_an_error_with_the_servers_words(
    server: _Server, name: str, kind: str, body: str | bytes, words: str, transient: bool
) -> None:
    """A status of 200 makes no answer of an error: its words, its status and whether it may pass are told,
    and nothing is billed.
    """
    with pytest.raises(ModelError, match=words) as caught:
        ask(server, name, kind, body)
    assert caught.value.transient is transient
    assert "litellm" not in str(caught.value)


@MODELS
@pytest.mark.parametrize(
    "body",
    [
        json.dumps(WHOLE),
        json.dumps(WHOLE, indent=2),
        "\ufeff" + json.dumps(WHOLE),
        event(WHOLE),
        chunk({"content": "fo"}, usage=USAGE) + chunk({"content": "ur"}) + chunk({}, "stop") + DONE,
        chunk({"content": "fo"}, usage={**USAGE, "completion_tokens": 1})
        + chunk({"content": "ur"}, "stop", usage=USAGE)
        + DONE,
        chunk({"content": "four"}, "stop") + bare(choices=[], usage=USAGE) + DONE,
        chunk({"content": "four"}, "stop") + bare(choices=None, usage=USAGE),
        chunk({"content": "four"}, "stop") + bare(usage=USAGE) + DONE,
    ],
)
def test_an_answer_is_read_with_its_usage(server: _Server, name: str, body: str) -> None:
    """Whole instead of streamed, or with usage at any place: text and tokens are the server's."""
    answer, shown = ask(server, name, "application/json", body)
    assert (answer.text, shown, answer.finish) == ("four", "four", "stop")
    assert (answer.usage.tokens_in, answer.usage.tokens_out) == (5, 3)


@MODELS
@pytest.mark.parametrize(
    "body",
    [
        chunk({"content": "four"}, "stop"),
        chunk({"content": "four"}),
        chunk({"content": "four"}) + chunk({}, "stop") + chunk({}, "stop") + DONE,
        chunk({"content": "fo"}, "stop") + chunk({"content": "ur"}, "stop") + DONE,
        *(
            bare(**part) + FOUR
            for part in ({}, {"choices": []}, {"choices": None}, {"choices": [None]}, {"choices": {}})
        ),
        *(
            bare(choices=[{"index": 0, **part}]) + FOUR
            for part in ({}, {"delta": None}, {"delta": [], "finish_reason": None})
        ),
        bare(choices=[{"message": {"content": "four"}, "finish_reason": "stop"}]) + DONE,
        event({"choices": [{"delta": {"content": "four"}, "finish_reason": "stop"}]}) + DONE,
        chunk({"content": "four", "tool_calls": None}, "stop") + DONE,
        chunk({"content": "four", "tool_calls": []}, "stop") + DONE,
        event("hello") + FOUR,
        event("null") + event("7") + FOUR,
        ": ping\n\nretry: 7\nid: 3\n\n" + FOUR,
        "event: message\n" + FOUR,
        FOUR.replace("\n\n", "\n"),
        FOUR.replace("\n", "\r\n"),
        FOUR.replace("\n", "\r"),
        FOUR.replace("data: ", "data:"),
        FOUR.replace('"choices"', '\ndata: "choices"'),
        "\ufeff" + FOUR,
        FOUR.replace("data: ", "").replace("[DONE]", ""),
    ],
)
def test_a_text_in_an_odd_stream_is_read(server: _Server, name: str, body: str) -> None:
    """What the format says that each chunk has may be missing, and lines may end in any way."""
    answer, shown = ask(server, name, SSE, body)
    assert (answer.text, shown, answer.finish) == ("four", "four", "stop")


ARGS = '{"path": "a.txt"}'
PARTS = ('{"pa', 'th": "a', '.txt"}')
B = '{"path": "b"}'


@MODELS
@pytest.mark.parametrize(
    ("body", "paths"),
    [
        (
            "".join(
                call(part, "read_file", index=0, **more)
                for part, more in zip(PARTS, ({"id": "x"}, {}, {}), strict=True)
            ),
            ["a.txt"],
        ),
        ("".join(call(part, "read_file", index=0) for part in PARTS), ["a.txt"]),
        ("".join(call(part, "read_file", index=0, id="x", type="function") for part in PARTS), ["a.txt"]),
        (
            "".join(
                call(part, "read_file" if n == 0 else None, index=0, id=f"x{n}")
                for n, part in enumerate(PARTS)
            ),
            ["a.txt"],
        ),
        (
            "".join(
                call(part, "read_file" if n == 0 else "", index=0, id="x" if n == 0 else "")
                for n, part in enumerate(PARTS)
            ),
            ["a.txt"],
        ),
        ("".join(call(part, "read_file" if n == 0 else None) for n, part in enumerate(PARTS)), ["a.txt"]),
        (
            "".join(call(part, "read_file" if n == 0 else None, index=None) for n, part in enumerate(PARTS)),
            ["a.txt"],
        ),
        (call(None, "read_", index=0, id="x") + call(None, "file", index=0) + call(ARGS, index=0), ["a.txt"]),
        (call({"path": "a.txt"}, "read_file", index=0, id="x"), ["a.txt"]),
        (call({"path": "a.txt"}, "read_file"), ["a.txt"]),
        (call(ARGS, "read_file", id="x") + call(B, "read_file", id="y"), ["a.txt", "b"]),
        (call(ARGS, "read_file") + call(B, "read_file"), ["a.txt", "b"]),
        (call(ARGS, "read_file", index=0, id="x") + call(B, "read_file", index=0, id="y"), ["a.txt", "b"]),
        (
            call(PARTS[0], "read_file", index=0, id="x")
            + call(B, "read_file", index=1, id="y")
            + call(PARTS[1] + PARTS[2], index=0),
            ["a.txt", "b"],
        ),
        (
            chunk(
                {"tool_calls": [{"function": {"name": "read_file", "arguments": one}} for one in (ARGS, B)]}
            ),
            ["a.txt", "b"],
        ),
        (
            chunk({"tool_calls": {"index": 0, "function": {"name": "read_file", "arguments": ARGS}}}),
            ["a.txt"],
        ),
        (
            call(ARGS, "read_file", index=0, id="x")
            + chunk({"tool_calls": [{"index": 0, "function": None}]}),
            ["a.txt"],
        ),
        (
            chunk({"function_call": {"name": "read_file", "arguments": ARGS}}) + chunk({}, "function_call"),
            ["a.txt"],
        ),
        (chunk({}, "tool_calls") + call(ARGS, "read_file", index=0, id="x"), ["a.txt"]),
        (
            bare(
                choices=[
                    {
                        "message": {
                            "tool_calls": [
                                {"function": {"name": "read_file", "arguments": one}} for one in (ARGS, B)
                            ]
                        }
                    }
                ]
            ),
            ["a.txt", "b"],
        ),
    ],
)
def test_calls_in_pieces_are_put_together(server: _Server, name: str, body: str, paths: list[str]) -> None:
    """Names, ids and indexes may be repeated, missing or new in each piece, and arguments may be an
    object.
    """
    answer, _ = ask(server, name, SSE, body + END)
    assert [(one.name, one.args, one.problem) for one in answer.calls] == [
        ("read_file", {"path": path}, "") for path in paths
    ]
    assert len({one.id for one in answer.calls}) == len(paths)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        ([(0, "x", "list", ""), (0, "y", "list", "")], [("list", {}), ("list", {})]),
        ([(0, "x", "list", "{}"), (0, "y", "read", ARGS)], [("list", {}), ("read", {"path": "a.txt"})]),
        ([(0, None, "list", "{}"), (0, None, "read", ARGS)], [("list", {}), ("read", {"path": "a.txt"})]),
        (
            [(0, "x", "w", '{"code": "{}'), (0, "x", "w", "{}"), (0, "x", "w", '"}')],
            [("w", {"code": "{}{}"})],
        ),
        (
            [(0, None, "w", '{"code": {}'), (0, None, "w", "}"), (0, None, "w", '{"code": 1}')],
            [("w", {"code": {}}), ("w", {"code": 1})],
        ),
    ],
)
def test_a_call_ends_where_its_arguments_are_complete(pieces: list[Any], calls: list[Any]) -> None:
    """On a server that numbers every call 0, braces within arguments end nothing."""
    found = CallPieces()
    for piece in pieces:
        found.add(*piece)
    assert [(one.name, one.args) for one in found.requests()] == calls
