"""Claims about which model is chosen."""

import json
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from threading import Thread

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Model
from kestrel_lab.models.litellm.model import LiteLLMModel
from kestrel_lab.models.local import LocalModel, local_extra_missing
from kestrel_lab.models.prompted_tools import TextToolModel
from kestrel_lab.models.providers import PROVIDERS
from kestrel_lab.models.resolve import available_models, choose_model
from kestrel_lab.models.retry import RetryingModel
from kestrel_lab.testing import load_script

NO_OLLAMA = {"OLLAMA_HOST": "127.0.0.1:9"}


def inner(model: Model) -> Model:
    """What is inside all wrappers."""
    while isinstance(model, RetryingModel | TextToolModel):
        model = model.model
    return model


def chosen(spec: str | None, env: Mapping[str, str], **more: str) -> str:
    """Name of the chosen model."""
    return choose_model(spec, env={**NO_OLLAMA, **env}, **more).name  # type: ignore[arg-type]  # strings only


@pytest.fixture
def ollama() -> Iterator[str]:
    """The address of an Ollama with a model that calls tools, one that does not and one that embeds."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.reply(
                {"models": [{"name": "nomic-embed-text:latest"}, {"name": "qwen3:8b"}, {"name": "tiny:1b"}]}
            )

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
            self.reply(
                {
                    "capabilities": ["completion", "tools"]
                    if asked["model"].startswith("qwen")
                    else ["completion"]
                }
            )

        def reply(self, body: object) -> None:
            raw = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


KEYS = {"OPENAI_API_KEY": "o", "ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g", "OPENROUTER_API_KEY": "r"}


@pytest.mark.parametrize(
    ("spec", "more", "env", "name"),
    [
        ("openai/gpt-5", {}, {}, "openai/gpt-5"),
        ("gpt-5", {}, {}, "openai/gpt-5"),
        ("claude-haiku-4-5", {}, {}, "anthropic/claude-haiku-4-5"),
        ("gemini-3.8-flash", {}, {}, "gemini/gemini-3.8-flash"),
        ("gpt-5", {}, {"MODEL_PROVIDER": "openrouter"}, "openrouter/gpt-5"),
        ("openai/gpt-5", {}, {"MODEL_PROVIDER": "openrouter"}, "openrouter/openai/gpt-5"),
        ("openai/gpt-5", {"provider": "openai"}, {"MODEL_PROVIDER": "openrouter"}, "openai/gpt-5"),
        ("tuned", {"provider": "anthropic"}, {"MODEL_PROVIDER": "openai"}, "anthropic/tuned"),
        ("tuned", {"api_base": "http://h/v1"}, {}, "openai/tuned"),
        ("org/tuned", {"api_base": "http://h/v1"}, {}, "openai/org/tuned"),
        (
            "hosted_vllm/tuned",
            {"provider": "hosted_vllm", "api_base": "http://h/v1"},
            {},
            "hosted_vllm/tuned",
        ),
        (None, {"provider": "anthropic"}, {}, "anthropic/claude-haiku-5-5"),
        (None, {}, {"MODEL_PROVIDER": "gemini"}, "gemini/gemini-3.8-flash"),
        ("local", {}, {"MODEL_PROVIDER": "openai"}, "local/smollm2-135m"),
        (None, {}, {"MODEL_PROVIDER": "local"}, "local/smollm2-135m"),
        ("ollama/x", {}, {}, "ollama_chat/x"),
    ],
)
def test_order_of_the_provider(
    spec: str | None, more: dict[str, str], env: dict[str, str], name: str
) -> None:
    """A provider that is named comes first, then `MODEL_PROVIDER`, then the name of the model."""
    assert chosen(spec, {**KEYS, **env}, **more) == name


def test_with_nothing_named_the_best_available_is_used(ollama: str) -> None:
    """Keys come before an Ollama, an Ollama before the local extra; an empty key is none."""
    here = {"OLLAMA_HOST": ollama}
    assert (
        chosen(None, {**here, "ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": ""}) == "anthropic/claude-haiku-5-5"
    )
    assert chosen(None, {**here, **KEYS}) == "openai/gpt-6-luna"
    assert chosen(None, here) == "ollama_chat/qwen3:8b"
    if not local_extra_missing():
        assert chosen(None, {}) == "local/smollm2-135m"


def test_the_list_says_what_is_missing(ollama: str) -> None:
    """Every choice says why it is available or what to do; the first available one is what is used."""
    env = {"OLLAMA_HOST": ollama, "GEMINI_API_KEY": "g"}
    notes = {choice.name: (choice.available, choice.note) for choice in available_models(env)}
    assert notes["openai/gpt-6-luna"] == (False, "set OPENAI_API_KEY")
    assert notes["gemini/gemini-3.8-flash"] == (True, "GEMINI_API_KEY is set")
    assert notes["ollama/qwen3:8b"] == (True, f"Ollama answers at http://{ollama}")
    assert notes["local/smollm2-135m"][0] == (not local_extra_missing())
    assert next(choice.name for choice in available_models(env) if choice.available) == chosen(None, env)


def test_models_come_ready_to_call_tools(ollama: str) -> None:
    """A model without tool calling comes with it in words, an API model comes with retries and its key."""
    hosted = choose_model("claude-haiku-4-5", env={**KEYS, **NO_OLLAMA})
    assert isinstance(hosted, RetryingModel)
    assert inner(hosted) == LiteLLMModel("anthropic/claude-haiku-4-5", api_key="a")
    plain = choose_model("ollama/tiny:1b", env={"OLLAMA_HOST": ollama})
    assert isinstance(plain, TextToolModel)
    assert inner(plain) == LiteLLMModel("ollama_chat/tiny:1b", api_base=f"http://{ollama}")
    assert inner(choose_model("ollama/qwen3:8b", env={"OLLAMA_HOST": ollama})) == LiteLLMModel(
        "ollama_chat/qwen3:8b", api_base=f"http://{ollama}"
    )
    assert "hidden" not in repr(choose_model("claude-haiku-4-5", env={"ANTHROPIC_API_KEY": "hidden"}))


def test_a_model_is_returned_as_it_is_and_factories_make_theirs() -> None:
    """A model object passes through; `word:rest` asks the factory for that word."""
    model = LocalModel()
    asked: list[str] = []

    def make(rest: str) -> Model:
        asked.append(rest)
        return model

    assert choose_model(model, env={}) is model
    assert (
        choose_model("scripted:a:b.yaml", env={"MODEL_PROVIDER": "openai"}, factories={"scripted": make})
        is model
    )
    assert asked == ["a:b.yaml"]


@pytest.mark.parametrize(
    ("spec", "more", "env", "words"),
    [
        ("opnai/gpt-5", {}, {}, "unknown model provider 'opnai' in 'opnai/gpt-5': did you mean 'openai'?"),
        ("gpt-5", {"provider": "antropic"}, {}, "did you mean 'anthropic'?"),
        ("wibble", {}, {}, "no provider is known for the model 'wibble': write provider/name"),
        ("gpt-5", {}, {"OPENAI_API_KEY": ""}, "the model openai/gpt-5 needs a key: set OPENAI_API_KEY"),
        ("anthropic/claude-x", {}, {"MODEL_PROVIDER": "openai"}, "leave one of them out"),
        (None, {"api_base": "http://h/v1"}, {}, "name one that it serves"),
        (None, {"provider": "ollama"}, {}, "no Ollama server with a model answers at http://127.0.0.1:9"),
        (
            None,
            {"provider": "openrouter"},
            {},
            "no default model is known for the provider 'openrouter': name one",
        ),
        (None, {"provider": "hosted_vllm"}, {}, "no default model is known for the provider 'hosted_vllm'"),
        ("local/llama", {}, {}, "the only one is local/smollm2-135m"),
        ("scripted", {}, {}, "no provider is known for the model 'scripted'"),
    ],
)
def test_what_cannot_be_used_says_what_to_do(
    spec: str | None, more: dict[str, str], env: dict[str, str], words: str
) -> None:
    """Nothing is made up: each dead end is a `UsageError` that names what was asked and the way out."""
    with pytest.raises(UsageError) as caught:
        chosen(spec, {**KEYS, **env}, **more)
    assert words in str(caught.value)


def test_a_scripted_model_without_its_file_says_what_it_is_for() -> None:
    """The bare word is not a misspelt model: what is to be typed is said."""
    with pytest.raises(UsageError, match=r"to try things out .* without a real model: write scripted:FILE"):
        choose_model("scripted", env={}, factories={"scripted": load_script})


def test_default_models_exist() -> None:
    """Every default model is in the installed price table, has a price and calls tools."""
    spec = find_spec("litellm")
    assert spec is not None
    assert spec.origin is not None
    table = json.loads(Path(spec.origin).with_name("model_prices_and_context_window_backup.json").read_text())
    for provider in PROVIDERS:
        if not provider.model:
            continue
        entry = table.get(provider.default) or table[provider.model]
        assert entry["mode"] == "chat", provider.default
        assert entry["output_cost_per_token"] > 0, provider.default
        assert entry["supports_function_calling"], provider.default


def test_the_default_is_never_the_dearest() -> None:
    """By the prices that the library knows, no default costs more than one of a provider behind it."""
    litellm = pytest.importorskip("litellm")
    defaults = [provider.default for provider in PROVIDERS if provider.model]
    prices = [
        litellm.model_cost.get(name, litellm.model_cost.get(name.partition("/")[2])) for name in defaults
    ]
    known = [price["output_cost_per_token"] for price in prices if price]
    assert (len(known) >= 6, known) == (True, sorted(known))
