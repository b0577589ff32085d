"""Claims about answers of servers that are odd in one place: the rest of the answer counts, and it counts the
same whether it came whole, as a stream or in a batch.
"""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolSpec
from kestrel_lab.models.litellm.batch import BatchEndpoint
from kestrel_lab.models.litellm.cost import ReportedUsage, read_usage
from kestrel_lab.models.litellm.model import LiteLLMModel, dialect_of

ADD = ToolSpec(
    name="add", description="Adds.", schema={"type": "object", "properties": {"a": {"type": "integer"}}}
)
REQUEST = ModelRequest(messages=(Message(role="user", text="go"),), tools=(ADD,))
USAGE: Json = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def completion(message: dict[str, Any], finish: Any = "stop", usage: Any = USAGE) -> dict[str, Any]:
    """A chat completion; a `finish` or `usage` of `...` is left out."""
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}
    body = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [choice],
        "usage": usage,
    }
    if finish is ...:
        del choice["finish_reason"]
    if usage is ...:
        del body["usage"]
    return body


def called(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "add", "arguments": arguments, **more}
    return {"content": None, "tool_calls": [{"id": "c1", "type": "function", "function": function}]}


@contextmanager
def answering(text: str, kind: str) -> Iterator[str]:
    """A server that answers each request with this; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            content = text.encode()
            self.send_response(200)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/v1"
    finally:
        server.shutdown()
        server.server_close()


def whole(body: dict[str, Any]) -> ModelAnswer:
    with answering(json.dumps(body), "application/json") as address:
        return ask(address, stream=False)


def streamed(body: dict[str, Any]) -> ModelAnswer:
    choices = [
        {**{"delta" if key == "message" else key: part for key, part in choice.items()}}
        for choice in body["choices"]
    ]
    chunk = json.dumps({**body, "object": "chat.completion.chunk", "choices": choices})
    with answering(f"data: {chunk}\n\ndata: [DONE]\n\n", "text/event-stream") as address:
        return ask(address, stream=True)


def in_a_batch(body: dict[str, Any]) -> ModelAnswer:
    endpoint = BatchEndpoint(LiteLLMModel("openai/m"))
    row = json.dumps({"custom_id": "k", "response": {"status_code": 200, "body": body}, "error": None})
    (answer,) = endpoint._read(row)
    assert answer.body is not None
    return endpoint.answer(REQUEST, answer.body, answer.cost_usd)


def ask(address: str, *, stream: bool) -> ModelAnswer:
    model = LiteLLMModel("openai/m", api_base=address)
    return asyncio.run(
        model(ModelRequest(messages=REQUEST.messages, tools=(ADD,), stream=stream), lambda _: None)
    )


WAYS = pytest.mark.parametrize("way", [whole, streamed, in_a_batch], ids=lambda way: way.__name__)
# The OpenAI client says so of each answer that is not as it expects; the package ignores that.
pytestmark = pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
DEEP = '{"a": ' + "[" * 3_000 + "]" * 3_000 + "}"


@WAYS
@pytest.mark.parametrize(
    ("message", "args", "problem"),
    [
        (called('{"a": 2}'), {"a": 2}, ""),
        (called({"a": 2}), {"a": 2}, ""),
        (called(""), {}, ""),
        (called('{"a": '), {}, "are not JSON"),
        (called('{"a": ' + "9" * 5_000 + "}"), {}, "are not JSON"),
        (called(DEEP), {}, "are not JSON"),
        (called("[1]"), {}, "must be a JSON object"),
        ({"content": None, "function_call": {"name": "add", "arguments": '{"a": 2}'}}, {"a": 2}, ""),
        ({"content": None, "tool_calls": ["odd", *called('{"a": 2}')["tool_calls"]]}, {"a": 2}, ""),
    ],
    ids=["text", "object", "none", "cut", "huge", "deep", "list", "legacy", "beside an odd one"],
)
def test_arguments_are_read_in_one_way(way: Any, message: Any, args: Any, problem: str) -> None:
    """Arguments that can be read are, and of others the model is told."""
    (call,) = way(completion(message, "tool_calls")).calls
    assert (call.name, call.args) == ("add", args)
    assert problem in call.problem
    assert bool(call.problem) == bool(problem)


@WAYS
@pytest.mark.parametrize(
    "message",
    [
        {"content": "four"},
        {"content": [{"type": "text", "text": "four"}]},
        {"content": [None, 7, {"type": "text", "text": "four"}]},
        {"content": "four", "tool_calls": None},
        {"content": "four", "tool_calls": []},
        {"content": "four", "refusal": None, "annotations": "odd"},
    ],
)
@pytest.mark.parametrize("finish", ["stop", None, ...])
def test_the_text_is_read_whatever_stands_beside_it(way: Any, message: Any, finish: Any) -> None:
    """Odd parts of a content and a missing finish reason cost nothing of the text."""
    answer = way(completion(message, finish))
    assert (answer.text, answer.finish) == ("four", "stop")


@WAYS
@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (USAGE, 7),
        ({"total_tokens": 7}, 7),
        ({"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}, 7),
        ({"input_tokens": 5, "output_tokens": 2}, 7),
        ({"prompt_tokens": 5, "completion_tokens": None, "total_tokens": 7}, 7),
    ],
)
def test_tokens_are_as_reported(way: Any, usage: Any, tokens: int) -> None:
    """The tokens of a call are those that the server reports, be it by their sum."""
    answer = way(completion({"content": "four"}, usage=usage))
    assert answer.usage.tokens == tokens
    assert answer.usage.unmetered == 0


@WAYS
@pytest.mark.parametrize(
    "usage",
    [
        ...,
        None,
        [1],
        "much",
        {},
        {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
        {"prompt_tokens": 1.5, "completion_tokens": 10**30, "total_tokens": 10**30},
    ],
    ids=str,
)
def test_tokens_that_are_not_reported_are_not_known(way: Any, usage: Any) -> None:
    """Where no usable number came, the answer counts, its tokens are marked as not known, and so is its
    price.
    """
    answer = way(completion({"content": "four"}, usage=usage))
    assert answer.text == "four"
    assert (answer.usage.unmetered, answer.usage.unpriced) == (1, 1)


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -1, 1.5, "5", True, None, [], 10**40])
def test_a_number_that_is_not_whole_is_not_known(number: Any) -> None:
    """What is no count of tokens is left out; the numbers beside it stay."""
    reported = read_usage({"prompt_tokens": number, "completion_tokens": 2, "total_tokens": 7})
    assert reported == ReportedUsage(tokens_in=None, tokens_out=2, total=7)
    assert reported.parts(0) == (5, 2)


@pytest.mark.parametrize("odd", ["NaN", "Infinity", "-Infinity", "1e999", "9" * 5_000])
def test_an_odd_number_in_a_stream_costs_that_number_only(odd: str) -> None:
    """A chunk with a number that is none is read like any other."""
    chunk = json.dumps(
        {**completion({}), "choices": [{"index": 0, "delta": {"content": "four"}, "finish_reason": "stop"}]}
    )
    text = chunk.replace('"created": 1', f'"created": 1, "score": {odd}')
    assert odd in text
    with answering(f"data: {text}\n\ndata: [DONE]\n\n", "text/event-stream") as address:
        assert ask(address, stream=True).text == "four"


@pytest.mark.parametrize(
    "body",
    [
        "bad request",
        ["x"],
        None,
        7,
        {"error": "no"},
        {"error": ["no"]},
        {"error": {"message": 7}},
        {},
        {"message": {}},
    ],
)
def test_an_error_of_any_form_refuses_its_row_only(body: Any) -> None:
    """A row of a batch that was refused says so, whatever the form of the error."""
    row = json.dumps({"custom_id": "k", "response": {"status_code": 400, "body": body}})
    (answer,) = BatchEndpoint(LiteLLMModel("openai/m"))._read(row)
    assert answer.refused.startswith("400: ")


@pytest.mark.parametrize(
    "row",
    ["", "{", "7", "null", "[]", '"x"', "{}", '{"custom_id": 1}', '{"custom_id": "k", "response": []}',
     '{"custom_id": "k", "response": {"status_code": "x"}}', '{"custom_id": "k", "response": {"status_code": 1e999}}',
     '{"custom_id": "k", "response": {"status_code": 200, "body": {"choices": 7}}}',
     '{"custom_id": "k", "response": {"status_code": 200, "body": {"choices": [null]}}}'],
)  # fmt: skip
def test_a_row_that_cannot_be_read_is_no_answer(row: str) -> None:
    """A row of any other JSON, or of none, costs that row only: its request is asked again."""
    assert list(BatchEndpoint(LiteLLMModel("openai/m"))._read(row)) == []


@pytest.mark.parametrize(
    ("name", "wants"),
    [
        ("moonshot/kimi-k2-thinking", True),
        ("openai/moonshot/kimi-k2-thinking", True),
        ("zai/glm-4.7", True),
        ("deepseek/deepseek-v4-flash", True),
        ("openai/gpt-5-mini", False),
        ("groq/qwen3", False),
        ("anthropic/claude-x", False),
    ],
)
def test_reasoning_goes_back_to_who_wants_it(name: str, wants: bool) -> None:
    """Providers whose models go on with their own reasoning get it, also behind an own server; others refuse a
    message that has it.
    """
    assert dialect_of(name).reasoning_text is wants
