"""How far a run may go."""

import math
from dataclasses import dataclass

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json

MAX_TOOL_CALLS_PER_TURN = 5
"""Tool calls of one model turn that are carried out; further ones are answered with an error."""

_COUNTED = ("cycles", "tokens", "messages", "calls_per_turn", "steps_at_once")
_ALWAYS = ("calls_per_turn", "steps_at_once")


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one run; reaching one ends it FAILED with the limit as reason and what it has so far.

    `None` means no bound. Raises `UsageError` for a bound that is not positive, or not whole where things are counted.
    """

    cycles: int | None = 20
    """Model turns, over all steps."""
    cost_usd: float | None = 1.0
    seconds: float | None = 300.0
    """Working time: waiting does not count, be it for a person, for a turn at a model's endpoint, or between attempts."""
    tokens: int | None = None
    """Tokens read and written."""
    calls_per_turn: int = MAX_TOOL_CALLS_PER_TURN
    steps_at_once: int = 8
    """Steps of a plan that are worked on together."""
    wall_seconds: float | None = None
    """All the time a session has the run open, waiting included."""
    messages: int | None = None
    """Messages of its conversations, over all steps: what is told to models, what they say, what tools answer."""

    def __post_init__(self) -> None:
        for name, value in self.as_json().items():
            kind, wanted = (int, "whole number") if name in _COUNTED else (int | float, "number")
            if value is None and name not in _ALWAYS:
                continue
            if isinstance(value, bool) or not isinstance(value, kind) or not 0 < value < math.inf:
                msg = f"limit {name!r} must be a positive {wanted}{' or None' if name != 'calls_per_turn' else ''}, not {value!r}"
                raise UsageError(msg)

    def as_json(self) -> dict[str, Json]:
        """The same as a JSON object."""
        return {name: getattr(self, name) for name in _NAMES}


_NAMES = tuple(Limits.__dataclass_fields__)
