"""Cost of a model call: tokens as reported or else counted, priced by litellm's table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kestrel_lab.core.calls import Usage

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelRequest


def batch_prices(litellm: Any, model: str, reported: Any) -> tuple[float | None, float | None]:
    """Return what an answer costs in a batch, and what it would have cost if asked for by itself, by
    litellm's table; `None` for what the table does not have.
    """
    from litellm.cost_calculator import batch_cost_calculator

    try:
        info = litellm.get_model_info(model)
    except Exception:  # litellm raises a bare Exception for a model that it does not know  # noqa: BLE001
        return None, None
    full = sum(litellm.cost_per_token(model=model, usage_object=reported))
    # Without a price of its own litellm would assume half of the usual one.
    if info.get("input_cost_per_token_batches") is None:
        return None, full
    return sum(batch_cost_calculator(usage=reported, model=model, model_info=info)), full


def usage_of(litellm: Any, model: str, request: ModelRequest, answer: str, reported: Any) -> Usage:
    """Return the usage of a call, `reported` by the provider or counted; without a price it counts as
    unpriced.
    """
    if reported is None:
        read, written = (
            _tokens(litellm, "\n".join(message.text for message in request.messages)),
            _tokens(litellm, answer),
        )
        priced: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written}
    else:
        read, written = reported.prompt_tokens or 0, reported.completion_tokens or 0
        priced = {"usage_object": reported}
    usage = Usage(tokens_in=read, tokens_out=written, model_calls=1, **_details(reported))
    try:
        paid = litellm.cost_per_token(model=model, **priced)
    # No price, or an unknown provider.
    except (
        litellm.ModelNotMappedError,
        litellm.NotFoundError,
        litellm.BadRequestError,
    ):
        return usage + Usage(unpriced=1)
    return usage + Usage(cost_usd=sum(paid))


def _details(reported: Any) -> dict[str, int]:
    """Return the tokens read from and written to the provider's cache, and of reasoning, if reported."""
    read, written = (
        getattr(reported, "prompt_tokens_details", None),
        getattr(reported, "completion_tokens_details", None),
    )
    found = {
        "tokens_cached": getattr(read, "cached_tokens", None)
        or getattr(reported, "prompt_cache_hit_tokens", None),
        "tokens_cache_written": getattr(read, "cache_creation_tokens", None)
        or getattr(reported, "cache_creation_input_tokens", None),
        "tokens_reasoning": getattr(written, "reasoning_tokens", None),
    }
    return {name: int(count) for name, count in found.items() if count}


def _tokens(litellm: Any, text: str) -> int:
    # A fixed model name: its tokenizer comes with litellm, others would be downloaded.
    return int(litellm.token_counter(model="gpt-4o", text=text)) if text else 0
