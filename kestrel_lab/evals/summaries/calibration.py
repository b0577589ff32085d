"""Whether stated confidence is right as often as it says: reliability diagram, expected calibration error, and what a confidence is worth.

Sources: M. Naeini, G. Cooper and M. Hauskrecht, Obtaining well calibrated probabilities using Bayesian binning, AAAI
(2015) for the expected calibration error; A. Kumar, P. Liang and T. Ma, Verified uncertainty calibration, NeurIPS
(2019) for its bias in small samples; B. Zadrozny and C. Elkan, Transforming classifier scores into accurate
multiclass probability estimates, KDD (2002) for isotonic calibration.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

from kestrel_lab.core.drawing.matplotlib_figure import literal, shown_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.views.html.elements import headline_html, table_html
from kestrel_lab.views.text import table_text

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BINS: Final = 10
FEWEST: Final = 20
"""Trials below which nothing is said of calibration."""
_PER_BIN: Final = 8
_DRAWS: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """One trial: how sure its answer was said to be, and whether it was right."""

    confidence: float
    passed: bool
    scenario: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Bin:
    """Trials of similar confidence."""

    confidence: float
    """Their mean."""
    passed: float
    """The share that passed."""
    low: float
    high: float
    trials: int


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Calibration:
    """How well the confidence of one configuration's answers tells whether they are right."""

    config: str
    bins: tuple[Bin, ...]
    """Of about equally many trials each, the least sure first; equal confidences are in one."""
    error: float
    """Expected calibration error: the mean distance between confidence and share passed, weighted by trials."""
    error_low: float
    error_high: float
    """95 % of the errors of samples of the scenarios, drawn with replacement."""
    by_chance: float
    """The mean error that perfectly calibrated confidences would show with so few trials; no error below it means anything."""
    brier: float
    """Mean squared distance between confidence and outcome; 0 is perfect, the base rate alone gives `brier_base`."""
    brier_base: float
    auroc: float
    """The chance that of a passed and a failed trial the passed one was the surer; NaN where all passed or all failed."""
    trials: int
    scenarios: int
    steps: tuple[tuple[float, float], ...]
    """From which confidence on which share passes, by isotonic regression: non-decreasing in both."""

    def share(self, confidence: float) -> float:
        """The share of trials with about this confidence that passed, by isotonic regression over all of them."""
        found = self.steps[0][1]
        for at, value in self.steps:
            if at > confidence:
                break
            found = value
        return found

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Headings, and a row of texts per bin."""
        rows: list[tuple[str, ...]] = [
            (f"{b.confidence:.0%}", f"{b.passed:.0%} ({b.low:.0%}–{b.high:.0%})", str(b.trials)) for b in self.bins
        ]
        return ("confidence", "passed (95 %)", "trials"), rows

    @property
    def headline(self) -> str:
        """The error, in a sentence."""
        return (
            f"{self.config}: expected calibration error {self.error:.1%} ({self.error_low:.1%}–{self.error_high:.1%}; perfectly calibrated "
            f"confidences would show {self.by_chance:.1%} with {self.trials} trials), Brier {self.brier:.3f} (base rate {self.brier_base:.3f})"
        )

    def __repr__(self) -> str:
        return "\n".join((self.headline, table_text(*self.table())))

    def _repr_html_(self) -> str:
        return headline_html(self.headline) + table_html(*self.table())

    def plot(self) -> Figure:
        """Draw the reliability diagram: on the diagonal, confidence is right."""
        figure = shown_figure()(figsize=(5.4, 4.6), layout="constrained")
        self.draw(figure.subplots())
        return figure

    def draw(self, axes: Axes) -> None:
        """The reliability diagram: share passed against confidence, with intervals."""
        axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle="--", label="perfectly calibrated")
        xs, ys = [b.confidence for b in self.bins], [b.passed for b in self.bins]
        reach = [[max(0.0, b.passed - b.low) for b in self.bins], [max(0.0, b.high - b.passed) for b in self.bins]]
        axes.errorbar(xs, ys, yerr=reach, fmt="o", capsize=3, color="C0", label="trials of similar confidence, 95 %")
        axes.step(
            [at for at, _ in self.steps] + [1.0], [v for _, v in self.steps] + [self.steps[-1][1]], where="post", color="C0", alpha=0.35
        )
        axes.set_xlim(-0.02, 1.02)
        axes.set_ylim(-0.02, 1.02)
        axes.set_title(literal(f"Calibration of {self.config}: error {self.error:.1%}, {self.trials} trials"), fontsize=10)
        axes.set_xlabel("stated confidence")
        axes.set_ylabel("share passed")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8, loc="upper left")


def calibration(judged: Iterable[Judged], config: str = "confidence", *, seed: int = 0) -> Calibration:
    """How well confidences and outcomes agree; intervals sample scenarios, so trials of one scenario count as alike.

    Raises `UsageError` for fewer than `FEWEST` trials and for a confidence that is none.
    """
    import numpy as np

    trials = list(judged)
    if len(trials) < FEWEST:
        msg = f"{config}: {len(trials)} trials say how sure they are; calibration needs {FEWEST} at least, from verified answers (`verify: judge` of a configuration)"
        raise UsageError(msg)
    if wrong := [each.confidence for each in trials if not 0 <= each.confidence <= 1]:
        msg = f"{config}: a confidence is from 0 to 1, not {wrong[0]!r}"
        raise UsageError(msg)
    sure, right = np.array([each.confidence for each in trials]), np.array([float(each.passed) for each in trials])
    names = {name: number for number, name in enumerate(dict.fromkeys(each.scenario for each in trials))}
    members = [np.flatnonzero(np.array([names[each.scenario] for each in trials]) == number) for number in range(len(names))]
    dice = np.random.default_rng(seed)
    errors = []
    for _ in range(_DRAWS):
        drawn = np.concatenate([members[number] for number in dice.integers(0, len(members), len(members))])
        errors.append(_error(sure[drawn], right[drawn]))
    low, high = np.quantile(errors, (0.025, 0.975))
    chance = float(np.mean([_error(sure, (dice.random(len(sure)) < sure).astype(float)) for _ in range(_DRAWS)]))
    base = float(right.mean())
    return Calibration(
        config=config,
        bins=tuple(_bin([trials[number] for number in group]) for group in _groups(sure)),
        error=_error(sure, right),
        error_low=float(low),
        error_high=float(high),
        by_chance=chance,
        brier=float(np.mean((sure - right) ** 2)),
        brier_base=base * (1 - base),
        auroc=_auroc(sure, right),
        trials=len(trials),
        scenarios=len(names),
        steps=_steps(sure, right),
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


def _groups(sure: np.ndarray) -> list[np.ndarray]:
    """Places of about equally many trials each, by rising confidence; equal ones stay together."""
    import numpy as np

    order = np.argsort(sure, kind="stable")
    number = max(1, min(BINS, len(sure) // _PER_BIN))
    cuts = {round(len(sure) * k / number) for k in range(1, number)}
    moved = sorted({int(np.searchsorted(sure[order], sure[order[cut]], side="left")) for cut in cuts} - {0})
    return [group for group in np.split(order, moved) if len(group)]


def _error(sure: np.ndarray, right: np.ndarray) -> float:
    groups = _groups(sure)
    return math.fsum(abs(float(sure[group].mean() - right[group].mean())) * len(group) for group in groups) / len(sure)


def _bin(trials: Sequence[Judged]) -> Bin:
    found = proportion_interval([float(each.passed) for each in trials], [each.scenario for each in trials])
    return Bin(
        confidence=math.fsum(each.confidence for each in trials) / len(trials),
        passed=found.mean,
        low=0.0 if math.isnan(found.low) else found.low,
        high=1.0 if math.isnan(found.high) else found.high,
        trials=len(trials),
    )


def _auroc(sure: np.ndarray, right: np.ndarray) -> float:
    from scipy.stats import rankdata

    positive = int(right.sum())
    if positive in {0, len(right)}:
        return math.nan
    ranks = rankdata(sure)
    return (float(ranks[right == 1].sum()) - positive * (positive + 1) / 2) / (positive * (len(right) - positive))


def _steps(sure: np.ndarray, right: np.ndarray) -> tuple[tuple[float, float], ...]:
    import numpy as np
    from scipy.optimize import isotonic_regression

    values, inverse, counts = np.unique(sure, return_inverse=True, return_counts=True)
    means = np.bincount(inverse, weights=right) / counts
    fitted = isotonic_regression(means, weights=counts).x
    kept = [0, *(place for place in range(1, len(values)) if fitted[place] != fitted[place - 1])]
    return tuple((float(values[place]), float(fitted[place])) for place in kept)
