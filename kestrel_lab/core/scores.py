"""The score that a check formed, and the base of checks that read the log alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kestrel_lab.core.calls import Usage


def plain_number(value: object) -> bool | float | None:
    """Return a number of any library as Python's own; `None` for what is no number.

    Numbers are also what has one element and says it by `item` (numpy, torch), and whatever has a
    `__float__`: Decimal, Fraction. Text is none, even where it could be read as one. Never raises.
    """
    try:
        item = None if isinstance(value, bool | int | float) else getattr(value, "item", None)
        single = item() if callable(item) else value
        if isinstance(single, bool):
            return single
        return float(single) if hasattr(type(single), "__float__") else None  # type: ignore[arg-type]  # it has one
    except Exception:  # the value is of foreign code  # noqa: BLE001
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """The score of one check for one run."""

    check: str
    """The check in words, e.g. `answer contains '42'`."""
    passed: bool
    value: float
    """1.0 for a full pass, 0.0 for none; between where the check can tell."""
    reason: str = ""
    """What was found instead, when it did not pass."""
    usage: Usage | None = None
    """What forming the opinion consumed, when a model was asked for it; in no number of the run itself."""
    judge: Mapping[str, str] | None = None
    """Of a verdict of a model: `model`, and the hashes of its `prompt` and of the `rubric`."""


class LogCheck:
    """Base of checks that need only a trial's goal, answer, records and expectation, so can rescore runs."""

    __slots__ = ()
    needs: ClassVar[str] = ""
