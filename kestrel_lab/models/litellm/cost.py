"""Cost of a model call: tokens as reported or else counted, priced by litellm's table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.calls import Usage

if TYPE_CHECKING:
    from kestrel_lab.core.messages import ModelRequest

_MOST_TOKENS: Final = 10**12
"""Of one call: a larger number is none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportedUsage:
    """The numbers that a provider reported of a call, as far as they are whole."""

    tokens_in: int | None
    tokens_out: int | None
    total: int | None
    cached: int = 0
    cache_written: int = 0
    reasoning: int = 0
    sent: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """All that the provider reported, in its names."""

    def parts(self, written: int) -> tuple[int, int]:
        """Return the tokens read and written. Where only the sum is known, `written` are assumed to be
        written.
        """
        if self.tokens_in is not None and self.tokens_out is not None:
            return self.tokens_in, self.tokens_out
        total = self.total or 0
        if self.tokens_in is not None:
            return self.tokens_in, max(total - self.tokens_in, 0) if total else written
        assumed = min(written, total) if self.tokens_out is None else self.tokens_out
        return max(total - assumed, 0), assumed

    @property
    def whole(self) -> bool:
        """True if the tokens read and written are known, each or by their sum."""
        return sum(part is not None for part in (self.tokens_in, self.tokens_out, self.total)) >= 2


def read_usage(usage: Any) -> ReportedUsage | None:
    """Return what a provider reported, in the names of OpenAI or of Anthropic; `None` if that is nothing.

    A number that is not finite, negative, a fraction, a text or a truth value is not known.
    """
    values = usage if isinstance(usage, Mapping) else _as_mapping(usage)
    reported = ReportedUsage(
        tokens_in=_first_number(values, "prompt_tokens", "input_tokens"),
        tokens_out=_first_number(values, "completion_tokens", "output_tokens"),
        total=_first_number(values, "total_tokens"),
        cached=_first_number(_as_mapping(values.get("prompt_tokens_details")), "cached_tokens")
        or _first_number(values, "prompt_cache_hit_tokens")
        or 0,
        cache_written=_first_number(_as_mapping(values.get("prompt_tokens_details")), "cache_creation_tokens")
        or _first_number(values, "cache_creation_input_tokens")
        or 0,
        reasoning=_first_number(_as_mapping(values.get("completion_tokens_details")), "reasoning_tokens")
        or 0,
        sent=values,
    )
    # All zero means that the server sent none.
    return reported if reported.tokens_in or reported.tokens_out or reported.total else None


def _as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    return dump() if callable(dump) else {}


def _first_number(values: Mapping[str, Any], *names: str) -> int | None:
    """Return the first number among these that is not zero, which litellm puts where there is none."""
    numbers = [_whole_number(values.get(name)) for name in names]
    return next((number for number in numbers if number), None)


def _whole_number(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value)


def batch_prices(litellm: Any, model: str, reported: ReportedUsage) -> tuple[float | None, float | None]:
    """Return what an answer costs in a batch, and what it would have cost if asked for by itself, by
    litellm's table; `None` for what the table does not have.
    """
    from litellm.cost_calculator import batch_cost_calculator

    try:
        info = litellm.get_model_info(model)
    except Exception:  # litellm raises a bare Exception for a model that it does not know  # noqa: BLE001
        return None, None
    if not reported.whole:
        return None, None
    usage = _priced_usage(litellm, reported, 0)
    full = sum(litellm.cost_per_token(model=model, usage_object=usage))
    # Without a price of its own litellm would assume half of the usual one.
    if info.get("input_cost_per_token_batches") is None:
        return None, full
    return sum(batch_cost_calculator(usage=usage, model=model, model_info=info)), full


def usage_of(
    litellm: Any, model: str, request: ModelRequest, answer: str, reported: ReportedUsage | None
) -> Usage:
    """Return the usage of a call. What the provider did not report is counted, and marked as not known, as is
    its price.
    """
    if reported is None or not reported.whole:
        counted = _tokens(litellm, answer)
        if reported is None:
            read = _tokens(litellm, "\n".join(message.text for message in request.messages))
            return Usage(tokens_in=read, tokens_out=counted, model_calls=1, unmetered=1, unpriced=1)
        read, written = reported.parts(counted)
        unmetered = int(reported.total is None)
        return Usage(tokens_in=read, tokens_out=written, model_calls=1, unmetered=unmetered, unpriced=1)
    read, written = reported.parts(0)
    usage = Usage(
        tokens_in=read,
        tokens_out=written,
        model_calls=1,
        tokens_cached=reported.cached,
        tokens_cache_written=reported.cache_written,
        tokens_reasoning=reported.reasoning,
    )
    paid = price_of(litellm, model, _priced_usage(litellm, reported, 0))
    if paid is not None and _has_other_numbers(reported.sent):
        paid = max(paid, _price_as_sent(litellm, model, reported.sent))
    return usage + (Usage(unpriced=1) if paid is None else Usage(cost_usd=paid))


def price_of(litellm: Any, model: str, usage: Any) -> float | None:
    """Return what `usage`, as litellm has it, costs by litellm's table; `None` where it has no price."""
    try:
        paid = sum(litellm.cost_per_token(model=model, usage_object=usage))
    # No price, or an unknown provider.
    except (
        litellm.ModelNotMappedError,
        litellm.NotFoundError,
        litellm.BadRequestError,
    ):
        return None
    return paid if math.isfinite(paid) and paid >= 0 else None


_NORMALISED: Final = frozenset(
    {
        *("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens"),
        *("cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens", "text_tokens"),
        *("cache_creation_tokens", "cache_creation_input_tokens", "reasoning_tokens"),
    }
)
"""The numbers that `ReportedUsage` has, or that follow from them."""


def _has_other_numbers(sent: Mapping[str, Any]) -> bool:
    """Return whether a provider reported numbers that may have a price of their own."""
    for name, value in sent.items():
        part = value if isinstance(value, Mapping) else _as_mapping(value)
        if part:
            if _has_other_numbers(part):
                return True
        elif name not in _NORMALISED and isinstance(value, int | float) and value:
            return True
    return False


def _price_as_sent(litellm: Any, model: str, sent: Mapping[str, Any]) -> float:
    """Return what litellm asks for all that a provider reported, tokens of audio and calls of the provider's
    tools included; 0 where it cannot tell.
    """
    answer = litellm.ModelResponse(model=model, choices=[])
    try:
        answer.usage = litellm.Usage(**sent)
        paid = float(litellm.completion_cost(completion_response=answer, model=model))
    # Litellm raises whatever odd numbers lead to; the price of the whole ones stands.
    except Exception:  # noqa: BLE001
        return 0.0
    return paid if math.isfinite(paid) else 0.0


def _priced_usage(litellm: Any, reported: ReportedUsage, written: int) -> Any:
    """Return the numbers as litellm prices them."""
    read, written = reported.parts(written)
    return litellm.Usage(
        prompt_tokens=read,
        completion_tokens=written,
        total_tokens=read + written,
        prompt_tokens_details={
            "cached_tokens": reported.cached,
            "cache_creation_tokens": reported.cache_written,
        },
        completion_tokens_details={"reasoning_tokens": reported.reasoning},
        **({"cache_creation_input_tokens": reported.cache_written} if reported.cache_written else {}),
        **({"cache_read_input_tokens": reported.cached} if reported.cached else {}),
    )


def _tokens(litellm: Any, text: str) -> int:
    # A fixed model name: its tokenizer comes with litellm, others would be downloaded.
    return int(litellm.token_counter(model="gpt-4o", text=text)) if text else 0
