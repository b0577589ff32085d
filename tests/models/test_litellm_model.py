"""Claims about models behind an API, checked over real HTTP against a local server."""

import asyncio
import gc
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from openai_server import OpenAIServer, Reply
from waits import PATIENCE_S

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ToolRequest, ToolSpec
from kestrel_lab.models.chat_format import messages_to_wire, tools_to_wire, wire_name
from kestrel_lab.models.litellm import library
from kestrel_lab.models.litellm.library import close_clients_with_loop
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.retry import with_retries

# Remarks about litellm's own code; they would become errors inside it.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Accessing the 'model_:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning"),
]

Serve = Callable[..., OpenAIServer]

GREP = ToolSpec(
    name="grep",
    description="Search text.",
    schema={"type": "object", "properties": {"pattern": {"type": "string"}}, "required": ["pattern"]},
)
CONVERSATION = (
    Message(role="system", text="Be brief."),
    Message(role="user", text="Where is “é”? 🦅"),
    Message(role="assistant", calls=(ToolRequest(id="c1", name="grep", args={"pattern": "é"}),)),
    Message(role="tool", call_id="c1", name="grep", text="a.txt:1: é"),
    Message(role="assistant", text="In a.txt.", calls=(ToolRequest(id="c2", name="grep", args={}),)),
    Message(role="tool", call_id="c2", name="grep", text=""),
    Message(role="user", text="Sure?"),
)


def ask(model: Any, request: ModelRequest | None = None) -> tuple[ModelAnswer, list[str]]:
    """One call and the pieces it streamed."""
    pieces: list[str] = []
    answer = asyncio.run(
        model(request or ModelRequest(messages=[Message(role="user", text="hi")]), pieces.append)
    )
    return answer, pieces


def at(server: OpenAIServer, name: str = "openai/fake", **more: Any) -> LiteLLMModel:
    """A model on that server."""
    return LiteLLMModel(name, api_base=server.api_base, api_key="k", **more)


def test_text_streams_and_is_counted(serve: Serve) -> None:
    """Text arrives piece by piece, the answer is their sum, tokens are the server's and an unknown price is
    said to be unknown.
    """
    answer, pieces = ask(at(serve(Reply(text="hello there"))))
    assert pieces == ["hell", "o th", "ere"]
    assert answer == ModelAnswer(
        text="hello there",
        usage=Usage(tokens_in=11, tokens_out=7, model_calls=1, unpriced=1),
        model="fake",
        finish="stop",
    )


def test_only_a_missing_price_makes_a_call_unpriced(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The type of litellm's error says that there is no price; a fault of another type is raised, whatever
    words it has.
    """
    import litellm

    errors = [litellm.ModelNotMappedError("no price"), TypeError("a list was mapped to a number")]

    def cost_per_token(**_: Any) -> tuple[float, float]:
        raise errors.pop(0)

    monkeypatch.setattr(litellm, "cost_per_token", cost_per_token)
    assert ask(at(serve(Reply(text="hello"))))[0].usage.unpriced == 1
    with pytest.raises(TypeError, match="was mapped"):
        ask(at(serve(Reply(text="hello"))))


def test_tool_calls_are_put_together_from_pieces(serve: Serve) -> None:
    """Two calls whose arguments come interleaved in pieces are both read; arguments that are no JSON state
    their problem.
    """
    server = serve(Reply(calls=(("grep", '{"pattern": "a b c"}'), ("grep", '{"pattern": ')), piece=3))
    answer, pieces = ask(at(server), ModelRequest(messages=CONVERSATION, tools=(GREP,)))
    good, bad = answer.calls
    assert (pieces, answer.finish) == ([], "tool_calls")
    assert good == ToolRequest(id="call_0", name="grep", args={"pattern": "a b c"})
    assert (bad.id, bad.name, bad.args) == ("call_1", "grep", {})
    assert bad.problem.startswith("the arguments of 'grep' are not JSON")


def test_a_whole_answer_says_the_same_as_a_streamed_one(serve: Serve) -> None:
    """A request that nobody watches is not streamed; text, calls and usage are those of the stream.

    The name of what answered is the server's own here; litellm loses it in a stream.
    """
    reply = Reply(text="hello there", calls=(("grep", '{"pattern": "a"}'),))
    server = serve(reply)
    watched = ModelRequest(messages=CONVERSATION, tools=(GREP,))
    streamed, _ = ask(at(server), watched)
    whole, pieces = ask(at(server), replace(watched, stream=False))
    first, second = server.requests()
    assert replace(whole, model=streamed.model) == streamed
    assert whole.model == "fake-served"
    assert pieces == ["hello there"]
    assert first == {**second, "stream": True, "stream_options": {"include_usage": True}}


@pytest.mark.parametrize("name", ["openai/fake", "hosted_vllm/fake"])
def test_the_short_cut_sends_the_same_body(serve: Serve, name: str) -> None:
    """Handing the conversation over in `extra_body` puts the same JSON on the wire as litellm's own way
    does.
    """
    import litellm

    request = ModelRequest(
        messages=CONVERSATION,
        tools=(GREP,),
        temperature=0.5,
        max_tokens=9,
        seed=3,
        schema={"type": "object", "properties": {}, "additionalProperties": False},
    )
    server = serve(Reply(text="x"))

    async def plain() -> None:
        stream = await litellm.acompletion(
            model=name,
            api_base=server.api_base,
            api_key="k",
            messages=messages_to_wire(CONVERSATION),
            tools=tools_to_wire((GREP,)),
            temperature=0.5,
            max_tokens=9,
            seed=3,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.schema, "strict": True},
            },
            stream=True,
            stream_options={"include_usage": True},
            _skip_mcp_handler=True,
        )
        async for _ in stream:
            pass
        await close_clients_with_loop()

    ask(at(server, name), request)
    asyncio.run(plain())
    ours, theirs = server.requests()
    assert ours == theirs
    assert json.dumps(ours["messages"]) == json.dumps(theirs["messages"])


def test_known_prices_are_charged(serve: Serve) -> None:
    """A model in the price table costs what the table says."""
    answer, _ = ask(at(serve(Reply(text="x", usage=(1000, 100))), "openai/gpt-5-mini"))
    assert answer.usage.cost_usd == pytest.approx(1000 * 0.25e-6 + 100 * 2e-6)
    assert replace(answer.usage, cost_usd=0) == Usage(tokens_in=1000, tokens_out=100, model_calls=1)


def test_tokens_are_counted_here_where_the_server_gives_none(serve: Serve) -> None:
    """Without usage from the server the tokens of the real conversation are counted, roughly."""
    answer, _ = ask(
        at(serve(Reply(text="four words are here", usage=None))),
        ModelRequest(messages=[Message(role="user", text="word " * 100)]),
    )
    assert 90 <= answer.usage.tokens_in <= 110
    assert 3 <= answer.usage.tokens_out <= 6


def test_a_passing_failure_is_tried_again(serve: Serve) -> None:
    """Two rate limits and then an answer make an answer; the provider's own pause is kept."""
    busy = Reply(status=429, error="slow down", headers={"retry-after": "0.2"})
    server = serve(busy, busy, Reply(text="at last"))
    answer, pieces = ask(with_retries(at(server)))
    assert (answer.text, "".join(pieces), len(server.bodies)) == ("at last", "at last", 3)


@pytest.mark.parametrize(
    ("reply", "transient", "words"),
    [
        (Reply(status=429, error="slow down"), True, "slow down. Too many requests"),
        (Reply(status=500, error="oops"), True, "500"),
        (Reply(status=503, error="busy"), True, "busy"),
        (Reply(status=401, error="bad key"), False, "bad key. Check the key in OPENAI_API_KEY"),
        (Reply(status=401, error="Bad key."), False, "Bad key. Check the key in OPENAI_API_KEY"),
        (Reply(status=404, error="no such model"), False, "Is the name of the model right"),
        (Reply(status=400, error="nonsense"), False, "nonsense"),
    ],
    ids=lambda value: str(value.status) if isinstance(value, Reply) else "",
)
def test_failures_say_what_to_do(serve: Serve, reply: Reply, transient: bool, words: str) -> None:
    """Each kind of refusal becomes one `ModelError` after one request, marked as passing or not, in words for
    its reader.
    """
    server = serve(reply)
    with pytest.raises(ModelError) as caught:
        ask(at(server))
    assert caught.value.transient is transient
    assert words in str(caught.value)
    assert "litellm" not in str(caught.value).lower()
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "name", ["openai/fake", "hosted_vllm/fake", "ollama_chat/fake", "anthropic/claude-haiku-4-5"]
)
def test_a_server_that_is_not_there(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused connection names the address and may pass, whatever the protocol."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    with pytest.raises(
        ModelError, match=r"no connection to http://127\.0\.0\.1:9/v1 \(Connection refused\)\."
    ) as caught:
        ask(LiteLLMModel(name, api_base="http://127.0.0.1:9/v1"))
    assert caught.value.transient


def test_silence_ends_a_call(serve: Serve) -> None:
    """A server that says nothing for the timeout has failed, in a way that may pass."""
    with pytest.raises(ModelError) as caught:
        ask(at(serve(Reply(text="late"), latency_s=2.0), timeout_s=0.2))
    assert caught.value.transient


def test_a_broken_stream_is_not_repeated(serve: Serve) -> None:
    """Once text was streamed a failure is passed on at once, so nobody sees a piece twice."""
    server = serve(Reply(text="one two three four", drop_after=3))
    pieces: list[str] = []
    with pytest.raises(ModelError) as caught:
        asyncio.run(with_retries(at(server))(ModelRequest(messages=CONVERSATION), pieces.append))
    assert caught.value.transient
    assert (pieces, len(server.bodies)) == (["one ", "two "], 1)


def test_a_cancelled_call_hangs_up(serve: Serve) -> None:
    """Cancelling a streaming call closes its connection: the server stops producing."""
    server = serve(Reply(text="long " * 400, pause_s=0.02))

    async def start_and_cancel() -> None:
        first = asyncio.Event()
        task = asyncio.create_task(at(server)(ModelRequest(messages=CONVERSATION), lambda piece: first.set()))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(start_and_cancel())
    assert server.dropped.wait(PATIENCE_S)


def test_other_providers_get_their_own_protocol(serve: Serve) -> None:
    """A model of another provider is asked in that provider's form, tools included, and its key is the one
    that is named.
    """
    server = serve(Reply(status=401, error="bad key"))
    model = LiteLLMModel(
        "anthropic/claude-sonnet-5-5", api_base=server.api_base.removesuffix("/v1"), api_key="k"
    )
    with pytest.raises(ModelError, match="ANTHROPIC_API_KEY"):
        ask(model, ModelRequest(messages=CONVERSATION, tools=(GREP,)))
    (body,) = server.requests()
    assert [tool["name"] for tool in body["tools"]] == ["grep"]
    assert body["messages"][1]["content"][0] == {
        "type": "tool_use",
        "id": "c1",
        "name": "grep",
        "input": {"pattern": "é"},
    }


@pytest.mark.parametrize(
    ("name", "reply"),
    [("openai/fake", Reply(text="x")), ("anthropic/fake", Reply(status=401, error="bad key"))],
)
def test_a_process_sees_nothing_but_the_answer(serve: Serve, tmp_path: Path, name: str, reply: Reply) -> None:
    """Making a model loads no litellm; calling it prints nothing, leaves no socket open, and takes no
    settings from a `.env` file nearby.
    """
    (tmp_path / ".env").write_text("KESTREL_TEST_PLANTED=1\n")
    code = (
        "import asyncio, contextlib, os, sys\n"
        "from kestrel_lab.core.errors import ModelError\n"
        "from kestrel_lab.core.messages import Message, ModelRequest\n"
        "from kestrel_lab.models.litellm.model import LiteLLMModel\n"
        "model = LiteLLMModel(sys.argv[1], api_base=sys.argv[2], api_key='k')\n"
        "assert not {'litellm', 'openai', 'httpx', 'stamina'} & set(sys.modules)\n"
        "for turn in range(2):\n"
        "    with contextlib.suppress(ModelError):\n"
        "        asyncio.run(model(ModelRequest(messages=[Message(role='user', text='x')]), lambda "
        "piece: None))\n"
        "assert 'KESTREL_TEST_PLANTED' not in os.environ\n"
    )
    server = serve(reply)
    command = [sys.executable, "-W", "always::ResourceWarning", "-c", code, name, server.api_base]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(server.requests()) == 2


def test_tools_of_servers_have_names_that_every_provider_takes(serve: Serve) -> None:
    """`time:now` is `time__now` on the wire, there and in the conversation, and comes back as `time:now`;
    what still does not fit gets a hash.
    """
    tools = [replace(GREP, name="time:now"), GREP]
    server = serve(Reply(calls=(("time__now", "{}"), ("grep", "{}"), ("other__tool", "{}"))))
    conversation = (
        Message(role="user", text="?"),
        Message(role="assistant", calls=(ToolRequest(id="c1", name="time:now", args={}),)),
        Message(role="tool", call_id="c1", name="time:now", text="12"),
    )
    answer, _ = ask(at(server), ModelRequest(messages=conversation, tools=tools))
    sent = server.requests()[0]
    assert [tool["function"]["name"] for tool in sent["tools"]] == ["time__now", "grep"]
    assert sent["messages"][1]["tool_calls"][0]["function"]["name"] == "time__now"
    assert [one.name for one in answer.calls] == ["time:now", "grep", "other__tool"]
    long = [wire_name(f"server:{'x' * 90}{end}") for end in "ab"]
    assert [len(name) <= 64 and name.isascii() for name in long] == [True, True]
    assert long[0] != long[1] and wire_name("a:b.c") != wire_name("a:b-c") != wire_name("a:b_c")


def test_arguments_come_back_as_the_model_wrote_them() -> None:
    """Letters of any language are not escaped in earlier calls: a model imitates what it sees, and a server's
    cache compares texts.
    """
    said = Message(
        role="assistant", calls=(ToolRequest(id="1", name="grep", args={"pattern": "größe 東京"}),)
    )
    (wire,) = cast("list[dict[str, Any]]", messages_to_wire([said]))
    assert wire["tool_calls"][0]["function"]["arguments"] == '{"pattern":"größe 東京"}'


def test_loading_litellm_leaves_the_collector_as_it_was() -> None:
    """The garbage collector waits longer only while litellm is imported: the process it is imported into is
    somebody else's.
    """
    before = gc.get_threshold()
    library._import_quietly.__wrapped__()
    assert gc.get_threshold() == before


RUN_COLD = """
import atexit, gc, sys
from kestrel_lab.cli.overview import main
atexit.register(lambda: print(f"collections={gc.get_stats()[0]['collections']}"))
sys.argv = ["kestrel", "run", "say hi", "--model", "openai/any"]
main()
"""


@pytest.mark.long
def test_a_wrong_key_is_said_within_five_seconds(serve: Callable[..., OpenAIServer], tmp_path: Path) -> None:
    """From a cold start, measured in processor time, which other programs do not lengthen.

    Mutants: without the threshold of the garbage collector in `overview.main` there are 390 collections
    instead of 20; a wrong key that is tried again is asked about twice.
    """
    server = serve(Reply(status=401, error="Incorrect API key provided: sk-bad"))
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {
        "OPENAI_API_KEY": "sk-bad",
        "KESTREL_API_BASE": server.api_base,
        "KESTREL_HOME": str(tmp_path / "home"),
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", RUN_COLD],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    said, _, collections = done.stdout.rpartition("collections=")
    assert (done.returncode, "Check the key in OPENAI_API_KEY" in said) == (1, True), done
    assert len(server.bodies) == 1
    assert int(collections) < 100
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 5
