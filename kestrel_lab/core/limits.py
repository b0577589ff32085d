"""How far a run may go."""

from dataclasses import asdict, dataclass

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json

MAX_TOOL_CALLS_PER_TURN = 5
"""Tool calls of one model turn that are carried out; further ones are answered with an error."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one run; reaching one ends it FAILED with the limit as reason and what it has so far.

    `None` means no bound. Raises `UsageError` for a bound that is not positive.
    """

    cycles: int | None = 20
    """Model turns."""
    cost_usd: float | None = 1.0
    seconds: float | None = 300.0
    """Working time: waiting for a person does not count."""
    tokens: int | None = None
    """Tokens read and written."""
    calls_per_turn: int = MAX_TOOL_CALLS_PER_TURN

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                msg = f"limit {name!r} must be a positive number or None, not {value!r}"
                raise UsageError(msg)

    def as_json(self) -> dict[str, Json]:
        """The same as a JSON object."""
        return asdict(self)
