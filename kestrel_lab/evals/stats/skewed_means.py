"""Intervals of means of amounts, such as tokens, cost and time, whose tails are long.

Student's interval misses such means: with a log-normal spread of 1 to 2 it covers 62 to 88 % instead of 95.
Two intervals are united here. Hall's removes the skewness of Student's statistic by a monotone cubic
transformation: P. Hall, On the removal of skewness by transformation, Journal of the Royal Statistical
Society B 54 (1992) 221-228. Cox's interval for a log-normal mean, with Student's quantile, is used where
the logarithms may be normal: U. Olsson, Confidence intervals for the mean of a log-normal distribution,
Journal of Statistics Education 13 (2005). No method covers the mean of every distribution: R. R. Bahadur and
L. J. Savage, Annals of Mathematical Statistics 27 (1956) 1115-1122. `python -m bench coverage` repeats the
measurement.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Sequence
from dataclasses import replace
from typing import Final

from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import (
    ALPHA,
    Clusters,
    Interval,
    group_by_cluster,
    mean_of,
)

_FAR: Final = 2.0
"""How many times the upper end of Hall's interval a log-normal mean may be. Where it is more, values near
zero have made the spread of the logarithms as large as no amount is.
"""


def amount_interval(
    values: Sequence[float],
    clusters: Sequence[Hashable] | None = None,
    weights: Sequence[float] | None = None,
    *,
    alpha: float = ALPHA,
) -> Interval:
    """Return `amount_of` for values in a list."""
    return amount_of(group_by_cluster(values, clusters, weights), alpha=alpha)


def amount_of(clusters: Clusters, *, alpha: float = ALPHA) -> Interval:
    """Return `mean_of` with ends for long tails; clusters are the unit.

    Hall's interval, united with Cox's where the logarithms of the clusters' means may be normal. Without two
    clusters, without spread, or with a mean below zero the result is that of `mean_of`.
    """
    found = mean_of(clusters, alpha=alpha)
    seen = [(moments, weight) for moments, weight in clusters if moments.n]
    if len(seen) < 2 or not found.se > 0 or any(moments.mean < 0 for moments, _ in seen):
        return found
    total = math.fsum(weight * moments.n for moments, weight in seen)
    shares = [(moments, weight * moments.n / total) for moments, weight in seen]
    low, high = _skewness_removed(found, shares, alpha)
    if (logs := _log_normal_mean(shares, alpha)) is not None and logs.mean <= _FAR * high:
        low, high = min(low, logs.low), max(high, logs.high)
    return replace(found, low=max(0.0, low), high=high)


def _skewness_removed(found: Interval, shares: Clusters, alpha: float) -> tuple[float, float]:
    """Return Hall's interval of the mean."""
    count = len(shares)
    skewness = _skewness([share * count * (moments.mean - found.mean) for moments, share in shares])
    spread, quantile = found.se * math.sqrt(count), t_quantile(1 - alpha / 2, count - 1) / math.sqrt(count)

    def transformed_back(value: float) -> float:
        value -= skewness / (6 * count)
        if abs(skewness) < 1e-9:
            return value
        return (math.cbrt(1 + skewness * value) - 1) * 3 / skewness

    return found.mean - spread * transformed_back(quantile), found.mean - spread * transformed_back(-quantile)


def _log_normal_mean(shares: Clusters, alpha: float) -> Interval | None:
    """Return the mean of a log-normal distribution with Cox's interval; `None` where the clusters' means are
    not from one.
    """
    count = len(shares)
    if any(moments.mean <= 0 for moments, _ in shares):
        return None
    logs = [(math.log(moments.mean), share) for moments, share in shares]
    middle = math.fsum(share * log for log, share in logs)
    variance = math.fsum(share * (log - middle) ** 2 for log, share in logs) * count / (count - 1)
    skewness = _skewness([log - middle for log, _ in logs])
    # Beyond two standard errors of skewness logarithms are not taken for normal.
    if not abs(skewness) < 2.0 * math.sqrt(6 / count):
        return None
    # The number of clusters of equal weight that say as much.
    size = 1 / math.fsum(share**2 for _, share in logs)
    se = math.sqrt(variance / size + variance**2 / (2 * (count - 1)))
    reach, log_mean = t_quantile(1 - alpha / 2, count - 1) * se, middle + variance / 2
    # An amount whose logarithm no float holds is no amount.
    low, mean, high = (math.exp(min(700.0, log_mean + step)) for step in (-reach, 0.0, reach))
    return Interval(mean=mean, low=low, high=high, clusters=count)


def _skewness(deviations: Collection[float]) -> float:
    squares = math.fsum(value**2 for value in deviations) / len(deviations)
    cubes = math.fsum(value**3 for value in deviations) / len(deviations)
    return cubes / squares**1.5 if squares > 0 else 0.0
