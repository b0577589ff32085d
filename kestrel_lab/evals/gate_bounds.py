"""A gate: a bound that a suite declares for one of its metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.metrics import METRICS

SUCCESS: Final = "success_rate"
AT_LEAST: Final = "cost_at_least"
"""The known part of a cost; only there where calls have no known price."""
SCORE: Final = "score"
"""The mean value of the checks of a trial by their weights; `score:NAME` that of checks of this name."""
NAMED_SHARE: Final = re.compile(r"recall@[1-9]\d*|concerns:[a-z]+|found:\w+|score(:.+)?")
"""Shares that only some trials have: what checks found, reviews questioned and scanners saw."""


FailOn = Literal["worse", "uncertain", "any"]
"""What ends with an exit code other than 0, beside bounds that do not hold: only what is shown to be worse,
also what is uncertain, or any change of a rate.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """Exactly one bound of the mean of a metric over trials."""

    metric: str
    """`success_rate`, one of `METRICS`, or `recall@10` and the like: what `recall_at` checks with that k
    found; `concerns:files` and the like; `found:loop` and the like, of scanners; `score`, or `score:NAME` of
    checks with a name.
    """
    at_least: float | None = None
    at_most: float | None = None
    config: str = ""
    """The configuration that it applies to; empty for each of them."""
    family: str = ""
    """The family of scenarios that it applies to; empty for all of them together."""
    undecided: Literal["fail", "pass"] = "fail"
    """What becomes of a bound that these trials neither show nor refute: `pass` only says so."""

    def __post_init__(self) -> None:
        known = [SUCCESS, *METRICS, SCORE, "recall@10", "concerns:files", "found:loop"]
        if self.metric not in known and not NAMED_SHARE.fullmatch(self.metric):
            raise UsageError(
                f"there is no metric {self.metric!r} to set a bound for; {did_you_mean(self.metric, known)}"
            )
        if (self.at_least is None) == (self.at_most is None):
            raise UsageError(
                "a gate has one bound, at_least or at_most, not "
                f"{'none' if self.at_least is None else 'both'}"
            )
        if not math.isfinite(self.bound):
            raise UsageError(f"a gate's bound is a number, not {self.bound}")
        if is_share(self.metric) and self.metric != SUCCESS and not 0 <= self.bound <= 1:
            raise UsageError(f"{self.metric} is a share from 0 to 1: its bound cannot be {self.bound:g}")
        if self.metric == SUCCESS and self.at_least is not None and not 0 < self.at_least < 1:
            raise UsageError(
                "a success rate can be shown to be at least a share between 0 and 1, not "
                f"{self.at_least}: no number of trials shows 1"
            )
        if self.metric == SUCCESS and self.at_most is not None and not 0 < self.at_most < 1:
            raise UsageError(
                "a success rate can be shown to be at most a share between 0 and 1, not "
                f"{self.at_most}: no number of trials shows 0"
            )

    @property
    def bound(self) -> float:
        """The number that must not be crossed."""
        found = self.at_least if self.at_least is not None else self.at_most
        return math.nan if found is None else found

    @property
    def text(self) -> str:
        """As a person reads it: `success_rate ≥ 80 % (family code)`."""
        sign = "≥" if self.at_least is not None else "≤"
        return f"{self.metric} {sign} {format_metric(self.metric, self.bound)}" + (
            f" (family {self.family})" if self.family else ""
        )

    def covers(self, config: str, family: str) -> bool:
        """Return whether it applies to this configuration's trials of this family."""
        return self.config in ("", config) and self.family in ("", family)


def is_share(metric: str) -> bool:
    """Return whether the metric's values are from 0 to 1."""
    return (
        metric == SUCCESS
        or bool(NAMED_SHARE.fullmatch(metric))
        or (metric in METRICS and METRICS[metric].unit == "share")
    )


def format_metric(metric: str, value: float) -> str:
    """Return a value of a metric as text; a dash for an unknown one."""
    if not math.isfinite(value):
        return "–"
    return f"{100 * value:.3g} %" if metric == SUCCESS or NAMED_SHARE.fullmatch(metric) else f"{value:.4g}"


def format_interval(record: Mapping[str, Any], metric: str, between: str = " to ") -> str:
    """Return a metric of a group of trials with its interval, as text; a cost that is only partly known says
    so.
    """
    if metric == "cost_estimate" and (least := record.get(AT_LEAST)) is not None:
        return format_lower_bound(format_metric(metric, least) if least else "")
    value, low, high = (record.get(f"{metric}{end}", math.nan) for end in ("", "_low", "_high"))
    return format_metric(metric, value) + (
        "" if math.isnan(low) else f" ({format_metric(metric, low)}{between}{format_metric(metric, high)})"
    )


def format_lower_bound(known: str) -> str:
    """Return the text of an amount that is only partly known; `known` is empty where nothing is."""
    return f"≥ {known} + unknown" if known else "unknown"
