"""Statistics for repeated trials of the same scenarios: intervals, paired tests, and what a suite can detect.

Trials of one scenario resemble each other, and so do scenarios of one group (see `evals.scenario_groups`).
The group is the unit: standard errors are taken over groups (clusters), with t quantiles of one degree of
freedom less than there are groups. Treating trials as independent instead finds differences in up to half of
all comparisons where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from operator import add
from random import Random
from statistics import NormalDist, fmean
from typing import Final

from kestrel_lab.evals.stats.distributions import t_below, t_quantile
from kestrel_lab.evals.stats.groups import group_values

ALPHA: Final = 0.05
"""How often a difference may be reported where there is none."""
ENUMERATED: Final = 12
"""Up to this many differences, all patterns of signs are tried instead of a sample of them."""
SHUFFLES: Final = 9_999


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A mean and where the true one lies with 95 % confidence; `low` and `high` are NaN where nothing can be
    said.
    """

    mean: float
    low: float
    high: float
    se: float = math.nan
    """Standard error of the mean."""
    clusters: int = 0
    n: int = 0

    def excludes(self, value: float) -> bool:
        """Return whether `value` lies outside; an interval that says nothing excludes nothing."""
        return value < self.low or value > self.high

    def text(self, shown: Callable[[float], str], between: str = " to ") -> str:
        """Return the mean, with its interval where there is one; `shown` writes each number."""
        return shown(self.mean) + (
            "" if math.isnan(self.low) else f" ({shown(self.low)}{between}{shown(self.high)})"
        )

    def columns(self, name: str) -> dict[str, float]:
        """Return the mean and both ends under `name`, `name_low` and `name_high`."""
        return {name: self.mean, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Interval:
        """Return the interval in another unit."""
        return replace(
            self, mean=factor * self.mean, low=factor * self.low, high=factor * self.high, se=factor * self.se
        )


NOTHING: Final = Interval(mean=math.nan, low=math.nan, high=math.nan)


@dataclass(slots=True)
class Moments:
    """Of the values added so far: how many, their mean, and the sum of squared differences from it."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add a value, by Welford's update."""
        self.n += 1
        step = value - self.mean
        self.mean += step / self.n
        self.squares += step * (value - self.mean)

    def merge(self, other: Moments) -> None:
        """Add all values of `other`."""
        if not other.n:
            return
        n, step = self.n + other.n, other.mean - self.mean
        self.squares += other.squares + step * step * self.n * other.n / n
        self.mean += step * other.n / n
        self.n = n


Clusters = Collection[tuple[Moments, float]]
"""The values of each cluster, and how much one of them weighs."""


def group_by_cluster(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
) -> list[tuple[Moments, float]]:
    """Return the values by cluster; without `clusters` each is its own."""
    parts: dict[tuple[Hashable, float], Moments] = {}
    for index, value in enumerate(values):
        label = index if clusters is None else clusters[index]
        weight = 1.0 if weights is None else weights[index]
        parts.setdefault((label, weight), Moments()).add(value)
    return merge_clusters((label, moments, weight) for (label, weight), moments in parts.items())


def merge_clusters(parts: Iterable[tuple[Hashable, Moments, float]]) -> list[tuple[Moments, float]]:
    """Return the parts of each cluster as one, in the order in which the clusters come.

    A part is the name of its cluster, the values, and how much one of them weighs. A cluster of several parts
    has their weighted mean, and its values weigh their mean weight.
    """
    merged = []
    for members in group_values((label, (moments, weight)) for label, moments, weight in parts).values():
        if len(members) == 1:
            merged.append(members[0])
            continue
        n = sum(moments.n for moments, _ in members)
        total = math.fsum(weight * moments.n for moments, weight in members)
        if not n:
            merged.append((Moments(), members[0][1]))
            continue
        mean = math.fsum(weight * moments.n * moments.mean for moments, weight in members) / total
        squares = math.fsum(
            weight * (moments.squares + moments.n * (moments.mean - mean) ** 2) for moments, weight in members
        )
        merged.append((Moments(n=n, mean=mean, squares=squares * n / total), total / n))
    return merged


def mean_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    *,
    alpha: float = ALPHA,
) -> Interval:
    """Return `mean_of` for values in a list."""
    return mean_of(group_by_cluster(values, clusters, weights), alpha=alpha)


def proportion_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    *,
    alpha: float = ALPHA,
) -> Interval:
    """Return `proportion_of` for values in a list."""
    return proportion_of(group_by_cluster(values, clusters, weights), alpha=alpha)


def mean_of(clusters: Clusters, *, alpha: float = ALPHA) -> Interval:
    """Return the weighted mean over the values of all clusters with a cluster-robust interval, which misses
    the true mean with probability `alpha`.

    One cluster alone is treated as a sample of independent values. A single value, or none, has no interval.
    """
    seen = [(moments, weight) for moments, weight in clusters if moments.n]
    if not seen:
        return NOTHING
    total = math.fsum(weight * moments.n for moments, weight in seen)
    mean = math.fsum(weight * moments.n * moments.mean for moments, weight in seen) / total
    n = sum(moments.n for moments, _ in seen)
    count = len(seen) if len(seen) > 1 else n
    if count < 2:
        return Interval(mean=mean, low=math.nan, high=math.nan, clusters=count, n=n)
    if len(seen) > 1:
        squares = math.fsum((weight * moments.n * (moments.mean - mean)) ** 2 for moments, weight in seen)
    else:
        squares = seen[0][1] ** 2 * seen[0][0].squares
    se = math.sqrt(squares * count / (count - 1)) / total
    reach = t_quantile(1 - alpha / 2, count - 1) * se
    return Interval(mean=mean, low=mean - reach, high=mean + reach, se=se, clusters=count, n=n)


def proportion_of(clusters: Clusters, *, alpha: float = ALPHA) -> Interval:
    """Return the interval of a success rate over values of 0 and 1: Wilson's, with as many observations as
    the clusters are worth, see `effective_proportion`.
    """
    estimate, size, quantile = effective_proportion(clusters, alpha=alpha)
    if not estimate.n:
        return estimate
    low, high = score_interval(estimate.mean, size, quantile)
    return replace(estimate, low=low, high=high, clusters=sum(moments.n > 0 for moments, _ in clusters))


def effective_proportion(
    clusters: Clusters, *, uneven: bool = False, alpha: float = ALPHA
) -> tuple[Interval, float, float]:
    """Return a success rate, how many independent trials it is worth, and the quantile of its interval.

    It is worth one for each trial where no cluster has more than one, or where there is one cluster alone,
    and one for each cluster where the rates of all clusters agree: no spread seen is no certainty. Else it
    follows from the variance seen (the design effect, L. Kish, Survey Sampling, 1965), with Student's
    quantile for so few clusters (E. L. Korn and B. I. Graubard, Confidence intervals for proportions with
    small expected number of positive counts estimated from survey data, Survey Methodology 24 (1998)
    193-201). Few clusters may agree by chance, so `_PRIOR_CLUSTERS` clusters of repeats that tell nothing new
    are added to the variance. `python -m bench coverage --only rates` measures it.

    `uneven` says that trials weigh by how likely they were to be drawn, so that they are worth fewer.
    """
    estimate = mean_of(clusters, alpha=alpha)
    weights = [moments.n * weight for moments, weight in clusters if moments.n]
    count, normal = len(weights), NormalDist().inv_cdf(1 - alpha / 2)
    if count == 1 or (count == estimate.n and not uneven):
        return estimate, estimate.n, normal
    if estimate.se < 1e-12:
        worth = math.fsum(weights) ** 2 / math.fsum(weight**2 for weight in weights) if uneven else count
        return estimate, worth, normal
    return estimate, _effective_trials(estimate, weights), t_quantile(1 - alpha / 2, max(1, count - 1))


_PRIOR_CLUSTERS: Final = 4


def _effective_trials(estimate: Interval, cluster_weights: Iterable[float]) -> float:
    """Return how many independent trials a clustered success rate is worth, at most those that were made."""
    weights = [weight for weight in cluster_weights if weight > 0]
    spread = estimate.mean * (1 - estimate.mean)
    # The variance of the rate if all trials of a cluster were the same trial.
    of_whole_clusters = spread * math.fsum(weight**2 for weight in weights) / math.fsum(weights) ** 2
    df = len(weights) - 1
    variance = (df * estimate.se**2 + _PRIOR_CLUSTERS * of_whole_clusters) / (df + _PRIOR_CLUSTERS)
    return min(estimate.n, spread / variance)


def share_of(clusters: Clusters, *, alpha: float = ALPHA) -> Interval:
    """Return `mean_of` for values between 0 and 1: within these bounds, and where all agree as wide as so few
    clusters require.
    """
    found = mean_of(clusters, alpha=alpha)
    count = sum(moments.n > 0 for moments, _ in clusters)
    if not count:
        return found
    if math.isnan(found.se) or found.se < 1e-12:
        low, high = wilson_interval(found.mean * count, count, alpha=alpha)
        return replace(found, low=low, high=high)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))


def wilson_interval(successes: float, n: float, *, alpha: float = ALPHA) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion, 95 % unless `alpha` says otherwise."""
    return score_interval(successes / n, n, NormalDist().inv_cdf(1 - alpha / 2))


def score_interval(rate: float, n: float, quantile: float) -> tuple[float, float]:
    """Return Wilson's interval of a rate over `n` observations, with this quantile of a standard error."""
    z = quantile
    centre = (rate + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    # At the edges the exact bounds are 0 and 1; rounding would leave 3e-17.
    return 0.0 if rate <= 0 else max(0.0, centre - reach), 1.0 if rate >= 1 else min(1.0, centre + reach)


def wilson_proportion(successes: int, n: int) -> Interval:
    """Return a proportion of independent trials with Wilson's interval."""
    low, high = wilson_interval(successes, n)
    return Interval(mean=successes / n, low=low, high=high, n=n)


def newcombe_interval(base: tuple[float, float], head: tuple[float, float]) -> Interval:
    """Return the difference of two independent proportions, each given as (successes, trials), head minus
    base.
    """
    p, q = base[0] / base[1], head[0] / head[1]
    (p_low, p_high), (q_low, q_high) = wilson_interval(*base), wilson_interval(*head)
    return Interval(
        mean=q - p,
        low=q - p - math.hypot(q - q_low, p_high - p),
        high=q - p + math.hypot(q_high - q, p - p_low),
        se=math.sqrt(p * (1 - p) / base[1] + q * (1 - q) / head[1]),
        clusters=1,
        n=int(base[1] + head[1]),
    )


def paired_difference(
    base: Sequence[float],
    head: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    *,
    bounded: bool = False,
) -> Interval:
    """Return how much larger `head` is than `base`, item by item, with a cluster-robust interval.

    Where all items agree, the spread seen is zero and the usual interval would claim certainty. With
    `bounded`, for values between 0 and 1, it is then as wide as unseen clusters allow: `C` clusters out of
    `C` that agree leave up to `1 - 0.025 ** (1 / C)` of all clusters that may not.
    """
    differences = [after - before for before, after in zip(base, head, strict=True)]
    interval = mean_interval(differences, clusters, weights)
    if bounded and interval.clusters and (interval.clusters == 1 or interval.se < 1e-12):
        unseen = 1 - (ALPHA / 2) ** (1 / interval.clusters)
        centre = (1 - unseen) * interval.mean
        low, high = max(-1.0, centre - unseen), min(1.0, centre + unseen)
        return Interval(
            mean=interval.mean, low=low, high=high, se=0.0, clusters=interval.clusters, n=interval.n
        )
    return interval


def mcnemar_exact(worse: int, better: int) -> float:
    """Return the p value of so unequal numbers of flips when both ways are equally likely; at least 6 one way
    give p < .05.
    """
    flips = worse + better
    if flips == 0:
        return 1.0
    tail = sum(math.comb(flips, k) for k in range(min(worse, better) + 1))
    return min(1.0, 2.0 * tail / float(2**flips))


def sign_flip_test(differences: Sequence[float]) -> float:
    """Return the p value of the mean of paired differences under random signs (two-sided).

    Exact for up to `ENUMERATED` differences that are not zero, and for differences of one size, where it is
    McNemar's exact test; otherwise from `SHUFFLES` random patterns, always the same ones.
    """
    moved = [d for d in differences if abs(d) > 1e-12]
    if not moved:
        return 1.0
    if max(map(abs, moved)) - min(map(abs, moved)) < 1e-9:
        return mcnemar_exact(sum(d < 0 for d in moved), sum(d > 0 for d in moved))
    sizes = [abs(d) for d in moved]
    total, seen = math.fsum(sizes), abs(math.fsum(moved)) - 1e-9
    low, high = (total - seen) / 2, (total + seen) / 2
    if len(sizes) <= ENUMERATED:
        # A pattern and its opposite are as extreme: of each pair the one without the first number is made.
        sums = _all_sums(sizes[1:])
        return _outside(sums, low, high) / len(sums)
    sums = _sums_of_some(sizes)
    return (_outside(sums, low, high) + 1) / (len(sums) + 1)


def _outside(sums: Sequence[float], low: float, high: float) -> int:
    return len([one for one in sums if not low < one < high])


def _sums_of_some(sizes: Sequence[float]) -> list[float]:
    """Return the sums of `SHUFFLES` random choices of some of `sizes`."""
    sums = [0.0] * SHUFFLES
    # A byte chooses among eight numbers: the sums of all its choices are made beforehand.
    for place, start in enumerate(range(0, len(sizes), 8)):
        table = _all_sums(sizes[start : start + 8])
        # Of a last byte that chooses among fewer than eight only some bits count.
        every_byte = table * (256 // len(table))
        sums = [one + every_byte[byte] for one, byte in zip(sums, _random_bytes(place), strict=True)]
    return sums


def _all_sums(sizes: Sequence[float]) -> list[float]:
    """Return the sum of each choice of some of `sizes`."""
    sums = [0.0]
    for size in sizes:
        sums += [size + one for one in sums]
    return sums


@lru_cache(maxsize=64)
def _random_bytes(place: int) -> bytes:
    """Return `SHUFFLES` random bytes for the numbers from `8 * place` on, the same for all metrics."""
    return Random(place).randbytes(SHUFFLES)  # noqa: S311  # no secret


def stratified_permutation_test(strata: Iterable[tuple[Sequence[float], Sequence[float]]]) -> float:
    """Return the p value of the difference between two sides under permutations within each stratum.

    It asks about these strata only, and is exact whatever the differences between them; two-sided, from
    `SHUFFLES` random assignments, always the same ones.
    """
    random = Random(0)  # noqa: S311  # no secret
    seen, shuffled = 0.0, [0.0] * SHUFFLES
    for base, head in strata:
        seen += fmean(head) - fmean(base)
        shuffled = list(map(add, shuffled, _shuffled_differences(base, head, random)))
    return (sum(abs(one) >= abs(seen) - 1e-9 for one in shuffled) + 1) / (SHUFFLES + 1)


def _shuffled_differences(base: Sequence[float], head: Sequence[float], random: Random) -> Iterable[float]:
    """Return `SHUFFLES` differences of the means of two sides to which the trials were dealt at random."""
    pooled, count = [*base, *head], len(head)
    total, low, high = math.fsum(pooled), min(pooled), max(pooled)

    def difference(dealt: Sequence[float]) -> float:
        part = math.fsum(dealt)
        return part / count - (total - part) / len(base)

    # Few cases have few orders: all are made once, and one of them is drawn.
    if math.comb(len(pooled), count) <= SHUFFLES:
        ways = [difference(dealt) for dealt in combinations(pooled, count)]
        return random.choices(ways, k=SHUFFLES)
    if (larger := pooled.count(high)) + pooled.count(low) == len(pooled):
        # Passed or not: how many that passed are dealt to one side is hypergeometric.
        smaller = len(pooled) - larger
        numbers = range(max(0, count - smaller), min(count, larger) + 1)
        weights = [math.comb(larger, n) * math.comb(smaller, count - n) for n in numbers]
        ways = [difference([high] * n + [low] * (count - n)) for n in numbers]
        return random.choices(ways, [one / max(weights) for one in weights], k=SHUFFLES)
    return [difference(random.sample(pooled, count)) for _ in range(SHUFFLES)]


def holm_adjust(p_values: Sequence[float], weights: Sequence[float] | None = None) -> list[float]:
    """Return Holm's adjusted p values: rejecting below `ALPHA` keeps the family-wise error rate at `ALPHA`.

    `weights` say how the allowance is shared: a question with twice the weight needs half the evidence. What
    is spent on questions that are answered goes to the others (Holm 1979, "A simple sequentially rejective
    multiple test procedure").
    """
    shares = list(weights) if weights is not None else [1.0] * len(p_values)
    order = sorted(range(len(p_values)), key=lambda i: p_values[i] / shares[i])
    adjusted = [1.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        left = math.fsum(shares[j] for j in order[rank:])
        largest = max(largest, min(1.0, left / shares[i] * p_values[i]))
        adjusted[i] = largest
    return adjusted


def t_test(interval: Interval) -> float:
    """Return the p value of the mean of `interval` under a true mean of zero, by Student's t; 1 where nothing
    can be said.
    """
    if math.isnan(interval.se) or interval.clusters < 2:
        return 1.0
    if interval.se == 0:
        return 0.0 if interval.mean else 1.0
    return 2 * t_below(-abs(interval.mean) / interval.se, interval.clusters - 1)
