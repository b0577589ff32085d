"""The score that a check formed, and the base of checks that read the log alone."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, Final, Literal

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import stops_task

ADDED_LATER: Final = MappingProxyType({"added_later": True})
"""Metadata of a field that a check got after results were stored: with its default it is left out of the
check's definition, so these results still stand.
"""


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
    except BaseException as error:  # the value is of foreign code
        if stops_task(error):
            raise
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
    name: str = ""
    """The name that the suite gives it; scores of one name are one metric."""
    weight: float = 1.0
    """How much `value` counts in the score of the trial; a check of weight 0 decides nothing."""


def weighted_value(scores: Iterable[Score]) -> float:
    """Return the mean value of scores by their weights; 1 where nothing has weight."""
    weighed = [(score.value, score.weight) for score in scores]
    total = sum(weight for _, weight in weighed)
    return sum(value * weight for value, weight in weighed) / total if total else 1.0


class LogCheck:
    """Base of checks that need only a trial's goal, answer, records and expectation, so can rescore runs."""

    __slots__ = ()
    needs: ClassVar[str] = ""
    final: ClassVar[Literal["", "pass", "fail"]] = ""
    """The verdict that no later event of a run changes once it is reached; `value` goes that way only, too.
    """
