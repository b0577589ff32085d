"""Medians, ranges and ratios of what the rounds gave, as numbers and as text."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from bench.rounds import Outcome, Samples
from bench.spec import Measure


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """A median with the least and the greatest value."""

    median: float
    low: float
    high: float

    def text(self, digits: int) -> str:
        """Median, and the range where there is one."""
        if self.low == self.high:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """A target and how it stands."""

    benchmark: str
    meaning: str
    wanted: str
    measured: str
    met: bool | None
    """`None` when nothing was measured."""


def spread(values: Sequence[float]) -> Spread | None:
    """The spread of some values; `None` of none."""
    return Spread(median=statistics.median(values), low=min(values), high=max(values)) if values else None


def of_measure(samples: Samples, measure: Measure) -> Spread | None:
    """How one measure of a row came out."""
    return spread([found[measure.key] for found in samples.rounds if measure.key in found])


def ratio(outcome: Outcome, peer: Samples, ours: Samples, key: str = "") -> Spread | None:
    """A measure of `peer`, the first if none is named, over that of `ours`, round by round."""
    key = key or outcome.benchmark.measures[0].key
    return spread(
        [
            theirs[key] / own[key]
            for theirs, own in zip(peer.rounds, ours.rounds, strict=False)
            if own.get(key) and key in theirs
        ]
    )


def verdicts(outcome: Outcome) -> list[Verdict]:
    """Every target of the benchmark, by the median."""
    measures = {measure.key: measure for measure in outcome.benchmark.measures}
    found = []
    for target in outcome.benchmark.targets:
        measure = measures[target.measure]
        got = of_measure(outcome.samples[target.row], measure)
        unit = f" {measure.unit}" if measure.unit else ""
        found.append(
            Verdict(
                benchmark=outcome.benchmark.name,
                meaning=f"{target.row}: {target.meaning}",
                wanted=f"≤ {target.at_most:g}{unit}",
                measured="–" if got is None else got.text(measure.digits) + unit,
                met=None if got is None else got.median <= target.at_most,
            )
        )
    return found
