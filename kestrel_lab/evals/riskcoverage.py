"""What it buys to answer only when sure: of the answers that are kept, how many are wrong, from every threshold of confidence on.

Sources: R. El-Yaniv and Y. Wiener, On the foundations of noise-free selective classification, JMLR 11 (2010) for risk and
coverage; Y. Geifman, G. Uziel and R. El-Yaniv, Bias-reduced uncertainty estimation for deep neural classifiers, ICLR (2019)
for the area under the curve; A. Angelopoulos, S. Bates, E. Candès, M. Jordan and L. Lei, Learn then test: calibrating predictive
algorithms to achieve risk control, Annals of Applied Statistics 19 (2025) for choosing a threshold by tests that hold together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.drawing.figure import literal
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats import ALPHA, proportion_interval
from kestrel_lab.log.store import EvalRow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

CURVE_COLUMNS: Final = ("config", "threshold", "coverage", "risk", "low", "high", "trials")
MOST_POINTS: Final = 100
_TRIED: Final = 10
"""Thresholds that are tried for a stated risk at most."""
_FIRST: Final = 1 / 4
"""The share of trials that the first of them keeps, where that is enough: with fewer one failure would end the search."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One trial: how sure its answer was said to be, and whether it was right."""

    confidence: float
    passed: bool
    scenario: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """What keeping the answers from a confidence on would give."""

    threshold: float
    coverage: float
    """The share of trials that is kept."""
    risk: float
    """The share of these that failed."""
    low: float
    high: float
    """Its 95 % interval, clustered by scenario."""
    trials: int
    """How many are kept."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A threshold for a stated risk, or why there is none."""

    risk: float
    threshold: float | None
    """`None` where no threshold can be shown to keep the risk."""
    coverage: float = 0.0
    bound: float = 1.0
    """Upper bound of the risk at the threshold (Clopper and Pearson, one-sided); where there is none, at the first that was tried."""
    scenarios: int = 0
    why: str = ""

    def __str__(self) -> str:
        if self.threshold is None:
            return f"no threshold for a risk of {self.risk:.3g}: {self.why}"
        return (
            f"threshold {self.threshold:.3g} keeps the risk at {self.risk:.3g} or below, with {1 - ALPHA:.0%} confidence, for goals like these: "
            f"upper bound {self.bound:.3f}, {self.coverage:.0%} of answers kept; {self.why}"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RiskCoverage:
    """Risk and coverage of one configuration."""

    config: str
    points: tuple[Point, ...]
    """The surest first; at most `MOST_POINTS`."""
    area: float
    """Area under the curve (AURC): the mean risk over all coverages, equal confidences in the order of chance."""
    area_by_chance: float
    """That of confidences that tell nothing: the share of all trials that failed."""
    area_of_oracle: float
    """That of confidences that put every right answer before every wrong one: with these failures none is below it."""
    trials: int
    single: tuple[Judged, ...]
    """The first trial of each scenario: those are independent, repeats are not."""

    @property
    def headline(self) -> str:
        """The area, in a sentence."""
        return (
            f"{self.config}: area under risk and coverage {self.area:.3f} (confidences that tell nothing {self.area_by_chance:.3f}, "
            f"perfect ones {self.area_of_oracle:.3f})"
        )

    def rows(self) -> list[dict[str, Any]]:
        """A record per point, with the keys `CURVE_COLUMNS`."""
        return [{"config": self.config, **{name: getattr(point, name) for name in Point.__dataclass_fields__}} for point in self.points]

    def table(self, most: int = 8) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts for at most `most` points, from the surest to all."""
        last = len(self.points) - 1
        chosen = sorted({round(last * place / max(1, most - 1)) for place in range(most)})
        rows: list[tuple[str, ...]] = [
            (f"≥ {p.threshold:.3g}", f"{p.coverage:.0%}", f"{p.risk:.0%} ({p.low:.0%}–{p.high:.0%})", str(p.trials))
            for p in (self.points[place] for place in chosen)
        ]
        return ("confidence", "kept", "of these wrong (95 %)", "trials"), rows

    def choose(self, risk: float) -> Choice:
        """A threshold, as low as can be shown with 95 % confidence, from which on the risk is `risk` or below.

        The trials are a sample of those to come: one of each scenario is looked at. Thresholds that the confidences alone
        fix are tested one after the other, the surest first, up to the first whose upper bound is above the risk: tests in a
        fixed order need no correction and no trials held out (learn then test). Of other kinds of goals, other models and
        another way of verifying nothing is said. Raises `UsageError` for a risk that is none.
        """
        if not 0 < risk < 1:
            msg = f"a risk is a share between 0 and 1, not {risk:g}"
            raise UsageError(msg)
        ordered = sorted(self.single, key=lambda one: -one.confidence)
        count, least = len(ordered), math.ceil(math.log(ALPHA) / math.log1p(-risk))
        if count < least:
            why = f"{count} scenarios say how sure they are; at least {least} are needed even if all of them pass"
            return Choice(risk=risk, threshold=None, scenarios=count, why=why)
        first = max(least, round(count * _FIRST))
        sizes = sorted({_whole(ordered, round(first + (count - first) * place / (_TRIED - 1))) for place in range(_TRIED)})
        bounded = [(size, wrong, _at_most(wrong, size)) for size in sizes for wrong in [sum(not one.passed for one in ordered[:size])]]
        passed = list(takewhile(lambda one: one[2] <= risk, bounded))
        size, wrong, bound = passed[-1] if passed else bounded[0]
        why = f"{wrong} failed of the surest {size} of {count} scenarios"
        if not passed:
            return Choice(risk=risk, threshold=None, bound=bound, scenarios=count, why=f"{why}: its upper bound is {bound:.3f}")
        return Choice(risk=risk, threshold=ordered[size - 1].confidence, coverage=size / count, bound=bound, scenarios=count, why=why)

    def draw(self, axes: Axes) -> None:
        """The curve with its intervals, between confidences that tell nothing and perfect ones."""
        xs, ys = [p.coverage for p in self.points], [p.risk for p in self.points]
        axes.axhline(
            self.area_by_chance, color="0.6", linewidth=1, linestyle="--", label=f"confidences tell nothing ({self.area_by_chance:.3f})"
        )
        right = 1 - self.area_by_chance
        kept = [place / 100 for place in range(1, 101)]
        axes.plot(
            kept,
            [max(0.0, 1 - right / each) for each in kept],
            color="0.6",
            linewidth=1,
            linestyle=":",
            label=f"perfect ({self.area_of_oracle:.3f})",
        )
        axes.plot(xs, ys, marker="o" if len(xs) <= 20 else "", markersize=4, color="C0", label=f"measured, 95 % (area {self.area:.3f})")
        if len(xs) > 1:
            axes.fill_between(xs, [p.low for p in self.points], [p.high for p in self.points], color="C0", alpha=0.15, linewidth=0)
        else:
            (only,) = self.points
            axes.errorbar(xs, ys, yerr=[[only.risk - only.low], [only.high - only.risk]], color="C0", capsize=3)
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_title(literal(f"Risk and coverage of {self.config}"), fontsize=10)
        axes.set_xlabel("share of answers kept, the surest first")
        axes.set_ylabel("share of these that failed")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")


def risk_coverage(judged: Iterable[Judged], config: str = "confidence") -> RiskCoverage:
    """Risk and coverage of trials, at each confidence that was stated; raises `UsageError` where there are none."""
    trials = sorted(judged, key=lambda one: -one.confidence)
    if not trials:
        msg = f"{config}: no trial says how sure it is"
        raise UsageError(msg)
    ends = sorted({_whole(trials, size) for size in range(1, len(trials) + 1)})
    if len(ends) > MOST_POINTS:
        ends = sorted({ends[round((len(ends) - 1) * place / (MOST_POINTS - 1))] for place in range(MOST_POINTS)})
    failed = sum(not one.passed for one in trials)
    first: dict[str, Judged] = {}
    for one in judged if isinstance(judged, Sequence) else trials:
        first.setdefault(one.scenario, one)
    return RiskCoverage(
        config=config,
        points=tuple(_point(trials[:size], len(trials)) for size in ends),
        area=_area(trials),
        area_by_chance=failed / len(trials),
        area_of_oracle=math.fsum(max(0, size - len(trials) + failed) / size for size in range(1, len(trials) + 1)) / len(trials),
        trials=len(trials),
        single=tuple(first.values()),
    )


def judged_of(rows: Iterable[EvalRow]) -> dict[str, list[Judged]]:
    """By configuration, the trials that say how sure they are and did not break."""
    judged: dict[str, list[Judged]] = {}
    for row in rows:
        sure = cast("dict[str, float]", row.metrics).get("confidence", math.nan)
        if not math.isnan(sure) and row.result["outcome"] != "error":
            trial = Judged(confidence=sure, passed=row.result["outcome"] == "pass", scenario=row.scenario)
            judged.setdefault(row.config, []).append(trial)
    return judged


def _at_most(wrong: int, trials: int) -> float:
    """Upper bound of a rate after Clopper and Pearson, one-sided."""
    from scipy.special import betaincinv  # the quantile of the beta distribution, ready sooner than `scipy.stats`

    return float(betaincinv(wrong + 1, trials - wrong, 1 - ALPHA)) if wrong < trials else 1.0


def _whole(ordered: Sequence[Judged], size: int) -> int:
    """`size`, lengthened until none is left that is as sure as the last: a threshold cannot tell them apart."""
    while size < len(ordered) and ordered[size].confidence == ordered[size - 1].confidence:
        size += 1
    return size


def _point(kept: Sequence[Judged], trials: int) -> Point:
    found = proportion_interval([float(not one.passed) for one in kept], [one.scenario for one in kept])
    return Point(
        threshold=kept[-1].confidence,
        coverage=len(kept) / trials,
        risk=found.mean,
        low=0.0 if math.isnan(found.low) else found.low,
        high=1.0 if math.isnan(found.high) else found.high,
        trials=len(kept),
    )


def _area(trials: Sequence[Judged]) -> float:
    """The mean over all sizes of the share that failed; among equally sure ones the failures are spread evenly."""
    total, before, start = 0.0, 0.0, 0
    while start < len(trials):
        end = _whole(trials, start + 1)
        rate = sum(not one.passed for one in trials[start:end]) / (end - start)
        total += math.fsum((before + rate * (size - start)) / size for size in range(start + 1, end + 1))
        before, start = before + rate * (end - start), end
    return total / len(trials)
