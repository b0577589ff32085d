"""Comparisons that may be looked at while their trials are made: error rates hold over all looks together.

With a known maximum of trials, `GroupSequential`: the error is spent look by look (K. K. G. Lan and D. L.
DeMets, Discrete sequential boundaries for clinical trials, Biometrika 1983) with the spending functions that
resemble Pocock's and O'Brien and Fleming's designs. A difference is shown by sign flips: where both arms are
the same, the sign of a scenario's difference is a coin toss, whatever its repeats have in common, so the
paths that other tosses would have taken give the exact distribution. An interval holds at all looks, too (C.
Jennison and B. W. Turnbull, Interim analyses: the repeated confidence interval approach, JRSS B 1989), and
shows that a difference is smaller than matters.

Without a maximum, `AnytimeValid`: two bets against each value of the mean (I. Waudby-Smith and A. Ramdas,
Estimating means of bounded random variables by betting, JRSS B 2024), which nobody wins by stopping at will.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from statistics import NormalDist
from typing import Final, Literal

from kestrel_lab.evals.stats.difference import Verdict
from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, Interval
from kestrel_lab.evals.stats.noisy_bisect import Evidence

Spending = Literal["pocock", "obrien-fleming"]
"""`pocock` spends evenly and stops early most often; `obrien-fleming` keeps nearly all of it for the end."""

FLIPS: Final = 2000
"""Sign flips that are tried: the smallest error that a look can spend is one in so many."""
_GRID: Final = 161
"""Points at which the density of a Brownian path that has not crossed is kept; odd, for Simpson's rule.
Boundaries differ from the published ones in the fourth digit."""
_COARSE: Final = 48
"""Steps of the same for a plan, which is read to a point."""
_NORMAL: Final = NormalDist()

Differences = Mapping[str, float]
"""By scenario: the mean difference of its pairs so far, between -1 and 1."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is known after one look."""

    fraction: float
    """The share of the largest design that is done, by information; nan without a maximum."""
    pairs: int
    """Pairs of trials so far."""
    interval: Interval
    """Of the difference, head minus base; it holds at all looks together."""
    verdict: Verdict
    """`inconclusive` means that trials go on."""


def spent_error(fraction: float, spending: Spending, alpha: float = ALPHA) -> float:
    """Return how much of the error may be spent at this share of the information, from 0 to `alpha`."""
    if fraction >= 1:
        return alpha
    if fraction <= 0:
        return 0.0
    if spending == "pocock":
        return min(alpha, alpha * math.log1p((math.e - 1) * fraction))
    # Each side spends half of the error as in a one-sided design.
    return min(alpha, 4 * _NORMAL.cdf(_NORMAL.inv_cdf(alpha / 4) / math.sqrt(fraction)))


class Boundary:
    """Two-sided boundaries of a standardised path that spend an error by a function of the information.

    By the recursion of P. Armitage, C. K. McPherson and B. C. Rowe (JRSS A 1969): the density of paths that
    have not crossed is carried from look to look by numerical integration.
    """

    def __init__(self, spending: Spending = "pocock", alpha: float = ALPHA) -> None:
        self._spending: Spending = spending
        self._alpha = alpha
        self._at = 0.0
        self._used = 0.0
        self._density: list[tuple[float, float]] = [(0.0, 1.0)]
        """Where a path may be that has not crossed, each place with its share of all paths."""

    def next(self, fraction: float) -> float:
        """Return the boundary, in standard errors, of a look at this share of the information; `inf` where
        nothing is to be spent.
        """
        step = math.sqrt(fraction - self._at) if fraction > self._at else 0.0
        allowed = spent_error(fraction, self._spending, self._alpha) - self._used
        if not step or allowed <= 1e-12:
            return math.inf
        low, high = 0.0, 12.0 * math.sqrt(fraction)
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if self._crossing(middle, step) > allowed else (low, middle)
        self._used += self._crossing(high, step)
        self._advance(high, step)
        self._at = fraction
        return high / math.sqrt(fraction)

    def _crossing(self, bound: float, step: float) -> float:
        root = step * math.sqrt(2)
        return math.fsum(
            share * (math.erfc((bound - place) / root) + math.erfc((bound + place) / root)) / 2
            for place, share in self._density
        )

    def _advance(self, bound: float, step: float) -> None:
        width = 2 * bound / (_GRID - 1)
        scale = width / 3 / (step * math.sqrt(2 * math.pi))
        self._density = [
            (
                place := -bound + number * width,
                scale
                * (1 if number in (0, _GRID - 1) else 4 if number % 2 else 2)
                * math.fsum(
                    share * math.exp(-(((place - before) / step) ** 2) / 2) for before, share in self._density
                ),
            )
            for number in range(_GRID)
        ]


class LookErrors:
    """The error of the interval at each look, so that the intervals of all looks hold together with `alpha`.

    With a maximum these are repeated confidence intervals (Jennison and Turnbull 1989); without one look
    number k has alpha / (k (k + 1)), and the sum over all looks is alpha.
    """

    def __init__(self, spending: Spending = "pocock", alpha: float = ALPHA) -> None:
        self._boundary = Boundary(spending, alpha)
        self._alpha = alpha
        self._looks = 0

    def next(self, fraction: float) -> float:
        """Return the error of a look at this share of the information, which is nan without a maximum."""
        self._looks += 1
        if math.isnan(fraction):
            return self._alpha / (self._looks * (self._looks + 1))
        # A look without anything to spend has an interval that excludes nothing worth naming.
        return max(1e-9, math.erfc(self._boundary.next(fraction) / math.sqrt(2)))


class GroupSequential:
    """A comparison with a known maximum of trials, in two-sided tests with the error `alpha` over all looks.

    `matters` is the smallest difference that anybody would act on: where the interval is within it, both arms
    are `stable`.
    """

    def __init__(
        self, *, matters: float, alpha: float = ALPHA, spending: Spending = "pocock", seed: int = 0
    ) -> None:
        self._matters = matters
        self._alpha = alpha
        self._spending: Spending = spending
        self._random = Random(seed)  # coins to toss again, no secrets  # noqa: S311
        self._boundary = Boundary(spending, alpha)
        self._signs: dict[str, int] = {}
        self._seen: dict[str, float] = {}
        self._sums = [0.0] * (FLIPS + 1)
        """What each path has added up to; the last one is what was seen."""
        self._alive = [True] * (FLIPS + 1)
        self._crossed = 0

    def look(self, differences: Differences, *, pairs: int, fraction: float) -> Look:
        """Look at all pairs so far; the last look, at which everything is spent, has a `fraction` of 1."""
        self._add(differences)
        self._cross(fraction)
        values, boundary = list(differences.values()), self._boundary.next(fraction)
        interval = repeated_interval(values, boundary)
        # That no scenario differed so far is no certainty that none will (D. G. Bonett and R. M. Price,
        # Adjusted Wald confidence interval for a difference of binomial proportions based on paired data,
        # 2012).
        careful = repeated_interval(values, boundary, unseen=1)
        # Rounding of sums aside, nothing moved.
        if interval.se < 1e-6:
            interval = careful
        verdict: Verdict = "inconclusive"
        # A path that crossed once has shown the difference; the interval may take a look longer.
        if not self._alive[-1] and interval.excludes(0.0):
            verdict = "improvement" if interval.mean > 0 else "regression"
        elif -self._matters <= careful.low and careful.high <= self._matters:
            verdict = "stable"
        return Look(fraction=fraction, pairs=pairs, interval=interval, verdict=verdict)

    def _add(self, differences: Differences) -> None:
        """Bring each path up to date: a scenario keeps its sign in it, however many repeats it gets."""
        for cluster, value in differences.items():
            step = value - self._seen.get(cluster, 0.0)
            if cluster not in self._signs:
                self._signs[cluster] = self._random.getrandbits(FLIPS)
            if not step:
                continue
            self._seen[cluster] = value
            bits = f"{self._signs[cluster]:0{FLIPS}b}0"
            self._sums = [
                path + step if bit == "0" else path - step for path, bit in zip(self._sums, bits, strict=True)
            ]

    def _cross(self, fraction: float) -> None:
        """Spend this look's error on the paths that are furthest out among those that have not crossed."""
        allowed = spent_error(fraction, self._spending, self._alpha) * (FLIPS + 1)
        room = math.floor(allowed + 1e-9) - self._crossed
        # Sums that differ by rounding are the same sum.
        far = [
            round(abs(path), 9) if alive else 0.0 for path, alive in zip(self._sums, self._alive, strict=True)
        ]
        # Paths that are as far out as the first one for which there is no room stay: ties never cross.
        bound = sorted(far, reverse=True)[min(room, FLIPS)]
        for place, value in enumerate(far):
            if value > bound:
                self._alive[place] = False
                self._crossed += 1


class AnytimeValid:
    """A comparison without a maximum of trials: stop whenever you like, the error is `alpha` all the same.

    `differences` of each look are one more round: a pair of each scenario. The interval speaks of these
    scenarios.
    """

    def __init__(self, *, matters: float, alpha: float = ALPHA) -> None:
        self._matters = matters
        self._alpha = alpha
        self._rounds: list[tuple[float, float]] = []

    def look(self, differences: Differences, *, pairs: int, fraction: float = math.nan) -> Look:
        """Look at one more round of pairs."""
        self._rounds.extend((value, 1.0) for value in differences.values())
        values = [value for value, _ in self._rounds]
        low = self._lower_bound(values)
        high = -self._lower_bound([-value for value in values])
        interval = Interval(
            mean=math.fsum(values) / len(values), low=low, high=high, clusters=len(differences), n=len(values)
        )
        verdict: Verdict = "inconclusive"
        if interval.excludes(0.0):
            verdict = "improvement" if low > 0 else "regression"
        elif -self._matters <= low and high <= self._matters:
            verdict = "stable"
        return Look(fraction=fraction, pairs=pairs, interval=interval, verdict=verdict)

    def _lower_bound(self, values: Sequence[float]) -> float:
        """Return the largest mean that the bets contradict: they were won against it and all smaller ones."""
        enough = math.log(2 / self._alpha)
        low, high = -1.0, 1.0
        # Fourteen halvings find the boundary to a ten-thousandth.
        for _ in range(14):
            middle = (low + high) / 2
            bet = Evidence(middle)
            bet.add((value, 1.0) for value in values)
            low, high = (middle, high) if bet.log_capital >= enough else (low, middle)
        return low


SequentialTest = GroupSequential | AnytimeValid
"""A comparison that is looked at while it runs; `fraction` may depend on costs and counts, never on who was
better.
"""


def repeated_interval(values: Sequence[float], boundary: float, *, unseen: int = 0) -> Interval:
    """Return the mean of values between -1 and 1 with an interval of `boundary` standard errors, as wide as
    Student's t makes it for so few.

    `unseen` values of 1 and as many of -1 are added to the reckoning of the interval.
    """
    count = len(values)
    if count < 2 or math.isinf(boundary):
        mean = math.fsum(values) / count if count else math.nan
        return Interval(mean=mean, low=-1.0, high=1.0, clusters=count, n=count)
    size = count + 2 * unseen
    mean = math.fsum(values) / size
    spread = (math.fsum(value * value for value in values) + 2 * unseen) / size - mean * mean
    se = math.sqrt(max(0.0, spread) / (size - 1))
    reach = t_quantile(1 - _NORMAL.cdf(-boundary), count - 1) * se
    return Interval(
        mean=math.fsum(values) / count,
        low=max(-1.0, mean - reach),
        high=min(1.0, mean + reach),
        se=se,
        clusters=count,
        n=count,
    )


RATE: Final = 0.6
"""The success rate that a plan is reckoned with, before there are trials."""
ICC: Final = 0.75
"""Correlation of the successes of one scenario's repeats: .72 to .78 in 5,251 recorded runs of agents."""
SHARED: Final = 0.68
"""Correlation of the successes of two arms in one scenario: .66 to .70 in the same runs."""


def drift_found(looks: Sequence[tuple[float, float]], power: float) -> float:
    """Return how many standard errors of the last look a difference has to be to cross at one of the `looks`
    with this power; each look has its share of the information and its boundary in standard errors.
    """

    def crossed(drift: float) -> float:
        found, at, density = 0.0, 0.0, [(0.0, 1.0)]
        for fraction, boundary in looks:
            if math.isinf(boundary):
                continue
            step, bound = math.sqrt(fraction - at), boundary * math.sqrt(fraction)
            moved = [(place + drift * (fraction - at), share) for place, share in density]
            found += math.fsum(share * _NORMAL.cdf((place - bound) / step) for place, share in moved)
            width = 2 * bound / _COARSE
            density = [
                (
                    place := -bound + (number + 0.5) * width,
                    width / step * math.fsum(s * _NORMAL.pdf((place - before) / step) for before, s in moved),
                )
                for number in range(_COARSE)
            ]
            at = fraction
        return found

    low, high = 0.0, 12.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (low, middle) if crossed(middle) >= power else (middle, high)
    return high


def detectable_by(
    scenarios: int, epochs: int, *, power: float, looks: Sequence[tuple[float, float]]
) -> float:
    """Return the drop of the success rate that so many scenarios and epochs find with this power at one of
    their `looks`, see `drift_found`; `inf` where none is large enough.

    Assumes `RATE`, `ICC` and `SHARED`, and that a drop is not the same in all scenarios: those that are
    neither easy nor hard take the most of it. Repeats help less than as many scenarios would: what a
    scenario is like does not average out over its repeats.
    """
    if scenarios < 2:
        return math.inf
    # So few scenarios know their spread as badly as Student's t says.
    quantiles = _NORMAL.cdf(looks[-1][1]), power
    wider = sum(t_quantile(one, scenarios - 1) for one in quantiles) / sum(map(_NORMAL.inv_cdf, quantiles))
    needed = drift_found(looks, power) * wider
    low, high = 0.0, RATE
    if needed * math.sqrt(difference_variance(high, epochs) / scenarios) > high:
        return math.inf
    for _ in range(20):
        middle = (low + high) / 2
        found = middle >= needed * math.sqrt(difference_variance(middle, epochs) / scenarios)
        low, high = (low, middle) if found else (middle, high)
    return high


def difference_variance(drop: float, epochs: int) -> float:
    """Return the variance, over scenarios, of the mean difference of so many pairs of trials.

    Successes are those of a normal variable that is below a bound: its correlation is nearly the sine of the
    successes' own one, a right angle for 1.
    """
    base, head = _NORMAL.inv_cdf(RATE), _NORMAL.inv_cdf(RATE - drop) if drop < RATE else -8.0
    icc, shared = (math.sin(one * math.pi / 2) for one in (ICC, SHARED))
    twice = _both_below(base, base, icc), _both_below(head, head, icc)
    between = sum(twice) - 2 * _both_below(base, head, shared) - drop * drop
    return between + (2 * RATE - drop - sum(twice)) / epochs


@lru_cache(maxsize=4096)
def _both_below(one: float, other: float, correlation: float) -> float:
    """Return the chance that two standard normal variables are below two bounds.

    By Sheppard's integral over the angle of the correlation (Z. Drezner and G. O. Wesolowsky, 1990), with
    Simpson's rule.
    """
    top = math.asin(correlation)
    heights = [
        math.exp(
            -(one * one + other * other - 2 * one * other * math.sin(angle)) / (2 * math.cos(angle) ** 2)
        )
        for angle in (top * place / 64 for place in range(65))
    ]
    area = heights[0] + heights[-1] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return _NORMAL.cdf(one) * _NORMAL.cdf(other) + area * top / 64 / 3 / (2 * math.pi)


def rate_variance(epochs: int) -> float:
    """Return the variance, over scenarios, of the share of so many trials that passes, for a spread of 1."""
    return ICC + (1 - ICC) / epochs


def no_difference_variance(epochs: int) -> float:
    """Return `difference_variance` where both arms are the same."""
    return difference_variance(0.0, epochs)


def information_fractions(
    counts: Sequence[int], scenarios: int, variance: Callable[[int], float] = no_difference_variance
) -> list[float]:
    """Return the share of all information that there is after so many pairs, or trials, of which the last
    count is all, where every scenario gets its first one before any gets its second.

    `variance` is that of a scenario's mean over so many epochs.
    """

    def information(pairs: int) -> float:
        whole, rest = divmod(pairs, scenarios)
        more = rest / variance(whole + 1)
        return more + ((scenarios - rest) / variance(whole) if whole else 0.0)

    most = information(counts[-1])
    return [min(1.0, information(count) / most) for count in counts]
