"""Claims about the price of a call, by what its provider reported."""

import asyncio
from typing import Any

import pytest
from openai_server import OpenAIServer, Reply

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.models.litellm.cost import read_usage, usage_of
from kestrel_lab.models.litellm.library import litellm_library
from kestrel_lab.models.litellm.model import LiteLLMModel

pytestmark = pytest.mark.filterwarnings(
    "ignore:Item '.*' on TypedDict class '.*' is using the `ReadOnly` qualifier"
)
MESSAGES = [Message(role="user", text="hi")]
CLAUDE = "anthropic/claude-sonnet-4-5"
BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "audio": (
        "openai/gpt-4o-audio-preview-2024-12-17",
        {
            "prompt_tokens": 1_000,
            "completion_tokens": 500,
            "total_tokens": 1_500,
            "prompt_tokens_details": {"audio_tokens": 800, "text_tokens": 200},
            "completion_tokens_details": {"audio_tokens": 400, "text_tokens": 100},
        },
    ),
    "cache of an hour": (
        CLAUDE,
        {
            "prompt_tokens": 10_000,
            "completion_tokens": 500,
            "total_tokens": 10_500,
            "cache_creation_input_tokens": 8_000,
            "prompt_tokens_details": {
                "cache_creation_tokens": 8_000,
                "cache_creation_token_details": {"ephemeral_1h_input_tokens": 8_000},
            },
        },
    ),
    "tools of the provider": (
        CLAUDE,
        {
            "prompt_tokens": 1_000,
            "completion_tokens": 500,
            "total_tokens": 1_500,
            "server_tool_use": {"web_search_requests": 5},
        },
    ),
}


def usage(server: OpenAIServer, *, stream: bool) -> Usage:
    """The usage of one call of a model that has a price."""
    model = LiteLLMModel("openai/gpt-4o", api_base=server.api_base, api_key="k")
    request = ModelRequest(messages=MESSAGES, stream=stream)
    return asyncio.run(model(request, lambda text: None)).usage


@pytest.mark.parametrize("stream", [True, False])
def test_a_sum_alone_has_no_price(*, stream: bool) -> None:
    """Tokens read and written cost differently: of their sum nobody knows the price, streamed or whole."""
    with OpenAIServer([Reply(text="hello", sent_usage={"total_tokens": 700})]) as server:
        counted = usage(server, stream=stream)
    assert (counted.tokens, counted.unpriced, counted.cost_usd) == (700, 1, 0.0)
    assert counted.tokens_out > 0


@pytest.mark.parametrize("stream", [True, False])
def test_whole_numbers_have_their_price(*, stream: bool) -> None:
    """Streamed and whole answers cost the same."""
    with OpenAIServer([Reply(text="hello", usage=(1_000, 100))]) as server:
        counted = usage(server, stream=stream)
    litellm = litellm_library()
    price = sum(litellm.cost_per_token(model="openai/gpt-4o", prompt_tokens=1_000, completion_tokens=100))
    assert (counted.unpriced, counted.cost_usd) == (0, pytest.approx(price))


@pytest.mark.parametrize("kind", BESIDE)
def test_what_has_a_price_beside_the_tokens_is_in_the_price(kind: str) -> None:
    """A call costs what litellm asks for all that the provider reported, and more than its plain tokens."""
    model, sent = BESIDE[kind]
    litellm = litellm_library()
    answer = litellm.ModelResponse(model=model, choices=[])
    answer.usage = litellm.Usage(**sent)
    price = litellm.completion_cost(completion_response=answer, model=model)
    counts = {name: number for name, number in sent.items() if isinstance(number, int)}
    request = ModelRequest(messages=MESSAGES)
    costs = [
        usage_of(litellm, model, request, "x", read_usage(reported)).cost_usd for reported in (sent, counts)
    ]
    assert costs[0] == pytest.approx(price)
    assert costs[0] > costs[1]


def test_odd_numbers_beside_the_tokens_take_no_price_away() -> None:
    """What litellm cannot price beside whole tokens leaves the price of the tokens."""
    plain = {"prompt_tokens": 1_000, "completion_tokens": 100, "total_tokens": 1_100}
    odd = {
        **plain,
        "server_tool_use": {"web_search_requests": float("nan")},
        "prompt_tokens_details": {"x": 3},
    }
    request, litellm = ModelRequest(messages=MESSAGES), litellm_library()
    costs = [usage_of(litellm, CLAUDE, request, "x", read_usage(sent)).cost_usd for sent in (plain, odd)]
    assert costs[1] >= costs[0] > 0
