"""Nothing that a provider sends is lost, streamed and whole, over real HTTP; the bodies are written after
documentation, see `provider_bodies`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import provider_bodies as bodies
import pytest
from replay_server import Body, ReplayServer

from kestrel_lab.core.messages import (
    ImagePart,
    Message,
    ModelAnswer,
    ModelRequest,
    ThinkingDelta,
    ThinkingPart,
    ToolRequest,
    ToolSpec,
)
from kestrel_lab.models.litellm.library import litellm_library
from kestrel_lab.models.litellm.model import LiteLLMModel

pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
    pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning"),
]

GREP = ToolSpec(
    name="grep",
    description="Search text.",
    schema={"type": "object", "properties": {"pattern": {"type": "string"}}},
)
HI = (Message(role="system", text="Be brief."), Message(role="user", text="hi"))
NAMES = {
    "openai": "openai/gpt-5-mini",
    "own": "hosted_vllm/own",
    "anthropic": "anthropic/claude-sonnet-4-5",
    "gemini": "gemini/gemini-2.5-pro",
    "deepseek": "deepseek/deepseek-reasoner",
    "mistral": "mistral/magistral-medium-latest",
    "ollama": "ollama_chat/qwen3",
}
THOUGHT = ThinkingPart(text=bodies.THOUGHT)
CALL = ToolRequest(id="", name="grep", args={"pattern": "a"})


@pytest.fixture
def serve() -> Iterator[Any]:
    """Starts a server with these bodies."""
    with ExitStack() as stack:
        yield lambda *found: stack.enter_context(ReplayServer(found))


def model_at(server: ReplayServer, family: str) -> LiteLLMModel:
    """The model of the family behind the server."""
    speaks_openai = family in ("openai", "own", "deepseek", "mistral")
    return LiteLLMModel(
        NAMES[family], api_base=f"{server.address}/v1" if speaks_openai else server.address, api_key="k"
    )


@pytest.fixture(scope="module", autouse=True)
def one_loop() -> Iterator[None]:
    """One event loop for all calls: litellm drops the connections of a loop that has ended in the next
    one.
    """
    global _runner
    litellm = litellm_library()
    gc.collect()
    gc.freeze()  # else each collection below walks through all that litellm holds, half a second long
    with asyncio.Runner() as _runner:
        yield
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            _runner.run(litellm.close_litellm_async_clients())
            litellm.in_memory_llm_clients_cache.flush_cache()
            _runner.run(asyncio.sleep(0.01))
            gc.collect()
    _first.clear()


_runner: asyncio.Runner
_first: set[str] = set()


def ask(
    model: LiteLLMModel,
    *,
    stream: bool,
    request: ModelRequest | None = None,
    thoughts: list[str] | None = None,
) -> tuple[ModelAnswer, str]:
    """The answer and what was streamed of it; what was streamed of its reasoning is added to `thoughts`."""
    pieces: list[str] = []
    wanted = replace(request or ModelRequest(messages=HI, tools=(GREP,)), stream=stream)

    async def asked() -> ModelAnswer:
        return await model(wanted, pieces.append)

    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", ResourceWarning
        )  # of connections of earlier tests that litellm drops unclosed, which no test is about
        answer = _runner.run(asked())
        if model.name not in _first:
            _first.add(model.name)
            gc.collect()
    if thoughts is not None:
        thoughts += [piece for piece in pieces if isinstance(piece, ThinkingDelta)]
    return answer, "".join(piece for piece in pieces if not isinstance(piece, ThinkingDelta))


def bare(calls: tuple[ToolRequest, ...]) -> tuple[ToolRequest, ...]:
    """The calls without ids, which some servers make up."""
    return tuple(replace(call, id="") for call in calls)


SIGNED = (ThinkingPart(text=bodies.THOUGHT, signature="c2lnbmVk"), ThinkingPart(redacted="cmVkYWN0ZWQ="))
CASES = [
    ("openai", bodies.openai_call(), "I look.", (CALL,), (), "tool_calls"),
    ("anthropic", bodies.anthropic_call(), "I look.", (CALL,), SIGNED, "tool_calls"),
    (
        "gemini",
        bodies.gemini_call(),
        "I look.",
        (replace(CALL, signature="Z2VtaW5p"),),
        (THOUGHT,),
        "tool_calls",
    ),
    ("deepseek", bodies.deepseek_call(), "", (CALL,), (THOUGHT,), "tool_calls"),
    ("mistral", bodies.thinking_blocks(), "Hello", (), (THOUGHT,), "stop"),
    ("own", bodies.thinking_blocks(), "Hello", (), (THOUGHT,), "stop"),
    ("own", bodies.text_blocks(), "Hello", (), (), "stop"),
    ("ollama", bodies.qwen_call(), "I look.", (CALL,), (THOUGHT,), "tool_calls"),
    ("openai", bodies.openai_refusal(), "I cannot help.", (), (), "refusal"),
    ("own", bodies.openai_refusal(), "I cannot help.", (), (), "refusal"),
    (
        "own",
        bodies.chat({"content": "I"}, finish="content_filter", content="I"),
        "I",
        (),
        (),
        "content_filter",
    ),
    ("own", bodies.chat({"content": "I"}, finish="length", content="I"), "I", (), (), "length"),
    ("anthropic", bodies.anthropic({"type": "text", "text": "I"}, stop="max_tokens"), "I", (), (), "length"),
    ("anthropic", bodies.anthropic(stop="refusal"), "", (), (), "content_filter"),
    ("gemini", bodies.gemini({"text": "I"}, finish="MAX_TOKENS"), "I", (), (), "length"),
    ("gemini", bodies.gemini({"text": ""}, finish="SAFETY"), "", (), (), "content_filter"),
    ("ollama", bodies.ollama("I", thinking="", done_reason="length"), "I", (), (), "length"),
    (
        "own",
        bodies.chat(
            {"content": "<thi"},
            {"content": "nk>let me think</think>\n\nHello"},
            content="<think>let me think</think>\n\nHello",
        ),
        "Hello",
        (),
        (THOUGHT,),
        "stop",
    ),
    (
        "anthropic",
        bodies.anthropic({"type": "text", "text": "<thinking>let me think</thinking>\nHello"}),
        "Hello",
        (),
        (THOUGHT,),
        "stop",
    ),
]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("family", "body", "text", "calls", "thinking", "finish"),
    CASES,
    ids=[f"{case[0]}-{n}" for n, case in enumerate(CASES)],
)
def test_all_of_an_answer_is_kept(
    serve: Any, family: str, body: Body, text: str, calls: Any, thinking: Any, finish: str, *, stream: bool
) -> None:
    """Text, calls, thinking with its signatures and the reason of the end are those that the provider
    sent.
    """
    thoughts: list[str] = []
    answer, streamed = ask(model_at(serve(body), family), stream=stream, thoughts=thoughts)
    assert (answer.text, bare(answer.calls), answer.thinking, answer.finish) == (
        text,
        calls,
        thinking,
        finish,
    )
    assert streamed.lstrip().startswith(
        text
    )  # a call that is written as text is streamed before it is understood
    assert bodies.THOUGHT not in streamed
    assert "".join(thoughts).strip() == "".join(part.text for part in thinking)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize(
    ("family", "body", "written"),
    [
        ("openai", bodies.openai_call(), 0),
        ("anthropic", bodies.anthropic_call(), 100),
        ("gemini", bodies.gemini_call(), 0),
        ("deepseek", bodies.deepseek(), 0),
        ("mistral", bodies.thinking_blocks(), 0),
        ("own", bodies.text_blocks(), 0),
    ],
    ids=["openai", "anthropic", "gemini", "deepseek", "mistral", "own"],
)
def test_tokens_of_cache_and_reasoning_are_counted(
    serve: Any, family: str, body: Body, written: int, *, stream: bool
) -> None:
    """Tokens read from the cache and written to it, and those of reasoning, are in the usage; a price table
    charges them as such.
    """
    usage = ask(model_at(serve(body), family), stream=stream)[0].usage
    assert (usage.tokens_in, usage.tokens_out, usage.tokens_cached, usage.tokens_cache_written) == (
        1010,
        50,
        900,
        written,
    )
    assert usage.tokens_reasoning > 0
    if family != "own":
        from kestrel_lab.models.litellm.library import litellm_library

        price = litellm_library().get_model_info(NAMES[family])
        fresh = (110 - written) * price["input_cost_per_token"] + 50 * price["output_cost_per_token"]
        cached = 900 * (price.get("cache_read_input_token_cost") or price["input_cost_per_token"])
        assert usage.cost_usd == pytest.approx(
            fresh + cached + written * (price.get("cache_creation_input_token_cost") or 0.0)
        )
    else:
        assert usage.unpriced == 1


def second_turn(server: ReplayServer, family: str, images: tuple[ImagePart, ...] = ()) -> dict[str, Any]:
    """Ask twice, the second time with the first answer and a result; the body of the second request."""
    model = model_at(server, family)
    first, _ = ask(model, stream=False)
    said = Message(role="assistant", text=first.text, calls=first.calls, thinking=first.thinking)
    result = Message(role="tool", text="found", call_id=first.calls[0].id, name="grep", images=images)
    ask(model, stream=False, request=ModelRequest(messages=(*HI, said, result), tools=(GREP,)))
    return server.asked[1][1]


def test_anthropic_gets_its_signed_thinking_back(serve: Any) -> None:
    """The second turn begins with the blocks of the first, as they came; the prompt has marks for the
    cache.
    """
    server = serve(bodies.anthropic_call(), bodies.anthropic({"type": "text", "text": "Done."}))
    asked = second_turn(server, "anthropic")
    said = asked["messages"][1]["content"]
    assert said[:2] == [
        {"type": "thinking", "thinking": bodies.THOUGHT, "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
    ]
    assert [block["type"] for block in said] == ["thinking", "redacted_thinking", "text", "tool_use"]
    marks = json.dumps(asked).count('"cache_control"')
    assert marks == 4  # the most that there may be: tools, system message, and the ends of two requests
    assert "cache_control" in asked["system"][-1]
    assert "cache_control" in asked["tools"][-1]


def test_a_question_without_tools_is_not_marked_for_the_cache(serve: Any) -> None:
    """A prompt that is sent once is not written to the cache, which costs more than reading it."""
    server = serve(bodies.anthropic({"type": "text", "text": "Done."}))
    ask(model_at(server, "anthropic"), stream=False, request=ModelRequest(messages=HI))
    assert "cache_control" not in json.dumps(server.asked)


@pytest.mark.parametrize(
    ("family", "body"), [("gemini", bodies.gemini_call()), ("deepseek", bodies.deepseek_call())]
)
def test_others_get_back_what_they_want(serve: Any, family: str, body: Body) -> None:
    """Gemini gets the signature of its call, DeepSeek its reasoning; nothing signed goes to OpenAI."""
    again = bodies.gemini({"text": "Done."}) if family == "gemini" else bodies.deepseek("Done.")
    asked = json.dumps(second_turn(serve(body, again), family))
    assert ("Z2VtaW5p" if family == "gemini" else '"reasoning_content": "let me think"') in asked


def test_an_own_server_is_sent_no_thinking(serve: Any) -> None:
    """A server that is not known to want reasoning back gets text and calls only."""
    thought = bodies.deepseek_call()
    asked = json.dumps(second_turn(serve(thought, bodies.text_blocks()), "own"))
    assert bodies.THOUGHT not in asked
    assert "cache_control" not in asked


PNG = ImagePart.of(b"\x89PNG bytes", "image/png")


def test_images_are_sent_where_models_see(serve: Any) -> None:
    """A tool's image stands in the tool's result for Anthropic, and in a message after the results for
    OpenAI.
    """
    claude = second_turn(
        serve(bodies.anthropic_call(), bodies.anthropic({"type": "text", "text": "Done."})),
        "anthropic",
        (PNG,),
    )
    result = claude["messages"][2]["content"][0]
    assert result["type"] == "tool_result"
    assert result["content"][1]["source"] == {"type": "base64", "media_type": "image/png", "data": PNG.data}
    openai = second_turn(serve(bodies.openai_call(), bodies.text_blocks()), "openai", (PNG,))
    assert [message["role"] for message in openai["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "user",
    ]
    assert openai["messages"][4]["content"][1] == {
        "type": "image_url",
        "image_url": {"url": f"data:image/png;base64,{PNG.data}"},
    }


def test_an_image_for_a_model_that_may_not_see_is_named(serve: Any) -> None:
    """An own server of which nothing is known gets the name of a tool's image, and the image of a user, who
    knows the model.
    """
    asked = second_turn(serve(bodies.deepseek_call(), bodies.text_blocks()), "own", (PNG,))
    assert (
        asked["messages"][3]["content"]
        == "found\n[not shown, as this model is not known to see images: image/png]"
    )
    server = serve(bodies.text_blocks())
    ask(
        model_at(server, "own"),
        stream=False,
        request=ModelRequest(messages=[Message(role="user", text="What is it?", images=(PNG,))]),
    )
    assert server.asked[0][1]["messages"][0]["content"][1]["type"] == "image_url"


def test_parameters_are_sent(serve: Any) -> None:
    """Each parameter reaches a server that knows it."""
    server = serve(bodies.text_blocks())
    request = ModelRequest(
        messages=HI,
        top_p=0.5,
        stop=("END",),
        reasoning_effort="low",
        response_format={"type": "json_object"},
        seed=3,
        max_tokens=9,
    )
    ask(model_at(server, "own"), stream=False, request=request)
    asked = server.asked[0][1]
    assert {
        name: asked[name]
        for name in ("top_p", "stop", "reasoning_effort", "response_format", "seed", "max_tokens")
    } == {
        "top_p": 0.5,
        "stop": ["END"],
        "reasoning_effort": "low",
        "response_format": {"type": "json_object"},
        "seed": 3,
        "max_tokens": 9,
    }


def test_an_effort_reaches_anthropic_without_a_temperature(serve: Any) -> None:
    """Anthropic takes no temperature with thinking: the effort goes before it."""
    server = serve(bodies.anthropic({"type": "text", "text": "Done."}))
    request = ModelRequest(messages=HI, reasoning_effort="low", temperature=0.0)
    ask(model_at(server, "anthropic"), stream=False, request=request)
    assert server.asked[0][1]["thinking"]["type"] == "enabled"
    assert "temperature" not in server.asked[0][1]
