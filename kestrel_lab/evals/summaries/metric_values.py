"""One metric of trials, for histories and bisections: its values, its unit, which way it is better."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.gate_bounds import NAMED_SHARE, is_share
from kestrel_lab.evals.metrics import METRICS, Better, Metric
from kestrel_lab.evals.metrics import PREFIX as CONCERN
from kestrel_lab.evals.scanners.scanner import PREFIX as FOUND
from kestrel_lab.evals.stats.intervals_and_tests import Interval, group_by_cluster, proportion_of, share_of
from kestrel_lab.evals.stats.skewed_means import amount_of
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_rates import corrected_columns, sample_of_records
from kestrel_lab.evals.summaries.result_table import trial_record, units_of_rows

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors


@dataclass(frozen=True, kw_only=True, slots=True)
class ObservedMetric:
    """A metric by its name."""

    name: str
    unit: str
    better: Better
    least: float = 0.0
    """The smallest difference that anybody would care about, in its unit."""
    clock: bool = False
    """Whether it depends on how fast the machine and the provider were at that time."""

    @property
    def share(self) -> bool:
        """Whether it is between 0 and 1; differences are then absolute, otherwise relative."""
        return self.unit == "share"

    @property
    def title(self) -> str:
        """The name with its unit, for an axis."""
        return self.name.replace("_", " ") + ("" if self.share else f", {self.unit}")

    def units(self, *columns: str) -> dict[str, str]:
        """Return the metric's unit for each of these columns of a frame."""
        return dict.fromkeys(columns, self.unit)

    def value(self, row: EvalRow, count_errors: CountErrors) -> float:
        """Return the metric of one trial; NaN where the trial has no value of it."""
        if self.name == "error_rate":
            return float(row.outcome == "error")
        record = trial_record(row, count_errors)
        if self.name == "success_rate":
            return float(record["success"])
        # A cost without the calls of unknown price would look like a saving.
        unknown = self.name == "cost_estimate" and record["unpriced_calls"] > 0
        known = record["outcome"] != "error" and not unknown
        return float(record.get(self.name, math.nan)) if known else math.nan

    def interval(self, rows: Sequence[EvalRow], count_errors: CountErrors) -> Interval:
        """Return the mean over trials with its 95 % interval, clustered by group: that of a summary and a
        gate.
        """
        values = [(self.value(row, count_errors), row) for row in rows]
        known = [(value, row) for value, row in values if not math.isnan(value)]
        clusters = group_by_cluster(
            [value for value, _ in known],
            units_of_rows([row for _, row in known]),
            [row.result["weight"] for _, row in known],
        )
        if self.name in ("success_rate", "error_rate"):
            return proportion_of(clusters)
        return share_of(clusters) if is_share(self.name) else amount_of(clusters)

    def corrected(self, rows: Sequence[EvalRow], count_errors: CountErrors) -> dict[str, float]:
        """Return `corrected_columns` of a success rate; nothing for other metrics, and without labels."""
        if self.name != "success_rate":
            return {}
        return corrected_columns(sample_of_records(trial_record(row, count_errors) for row in rows))

    def text(self, value: float) -> str:
        """Return a value as text for people; a dash for an unknown one."""
        if math.isnan(value):
            return "unknown" if self.name == "cost_estimate" else "–"
        return f"{100 * value:.0f} %" if self.share else f"{value:.4g}"

    def worsening(self, margin: float) -> tuple[float, float, float]:
        """Return `margin` as `Bisection` takes it, the margin for "even", and the factor by which values must
        differ; see `worsened`.

        Where pairs are counted they are even if those that are worse outnumber those that are better by less
        than 20 in 100.
        """
        return (margin, margin, 0.0) if self.share else (0.0, 0.2, margin)

    def worsened(self, before: float, after: float, factor: float) -> float:
        """Return how much worse `after` is than `before`, between -1 and 1.

        For shares it is the difference. Other values have no bound, and a few large ones would decide a mean:
        it is 1 where `after` is worse by more than `factor` times the better of the two, -1 where it is as
        much better, else 0.
        """
        sign = 1.0 if self.better == "lower" else -1.0
        difference = sign * (after - before)
        if self.share:
            return min(1.0, max(-1.0, difference))
        return (
            math.copysign(1.0, difference) if abs(difference) > factor * min(abs(before), abs(after)) else 0.0
        )


_RATES: Final = {
    "success_rate": ObservedMetric(name="success_rate", unit="share", better="higher"),
    "error_rate": ObservedMetric(name="error_rate", unit="share", better="lower"),
    "score": ObservedMetric(name="score", unit="share", better="higher"),
}


def find_metric(name: str, own: Iterable[Metric] = ()) -> ObservedMetric:
    """Return the metric called `name`, one of those that a summary and a gate have: `success_rate`,
    `error_rate` (trials that broke), `score` (mean of checks), `score:NAME` and `recall@K` of checks,
    `concerns:KIND` of reviews, `found:NAME` of a scanner, one of `METRICS`, or one of a suite's `own`.

    Raises `UsageError` for any other name.
    """
    if name in _RATES:
        return _RATES[name]
    if NAMED_SHARE.fullmatch(name):
        better: Better = "lower" if name.startswith((FOUND, CONCERN)) else "higher"
        return ObservedMetric(name=name, unit="share", better=better)
    measured = METRICS | {metric.name: metric for metric in own}
    if name not in measured:
        names = [*_RATES, *measured, "recall@10", "score:NAME"]
        raise UsageError(f"there is no metric {name!r}; {did_you_mean(name, names)}")
    metric = measured[name]
    return ObservedMetric(
        name=name, unit=metric.unit, better=metric.better, least=metric.least, clock=metric.clock
    )
