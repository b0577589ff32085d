"""Welford's moments: number, mean and spread of values that are read once and not kept; moments can be merged."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace

from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, NOTHING, Interval, t_quantile, wilson


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


def mean_of(clusters: Collection[tuple[Moments, float]], *, alpha: float = ALPHA) -> Interval:
    """Return what `mean_interval` returns for the values behind the moments, each with its cluster's weight."""
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


def proportion_of(clusters: Collection[tuple[Moments, float]], *, alpha: float = ALPHA) -> Interval:
    """Return what `proportion_interval` returns for the values, 0 or 1, behind the moments."""
    found = mean_of(clusters, alpha=alpha)
    count = sum(moments.n > 0 for moments, _ in clusters)
    if not count:
        return found
    agree = all(moments.mean in (0.0, found.mean) and found.mean in (0.0, 1.0) for moments, _ in clusters if moments.n)
    agree |= count > 1 and found.se < 1e-12
    if count in (1, found.n) or agree:
        size = count if agree and count > 1 else found.n
        low, high = wilson(found.mean * size, size, alpha=alpha)
        return replace(found, low=low, high=high, clusters=count)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high), clusters=count)


def share_of(clusters: Collection[tuple[Moments, float]], *, alpha: float = ALPHA) -> Interval:
    """Return `mean_of` for values between 0 and 1: within these bounds, and where all agree as wide as so few clusters require."""
    found = mean_of(clusters, alpha=alpha)
    count = sum(moments.n > 0 for moments, _ in clusters)
    if not count:
        return found
    if math.isnan(found.se) or found.se < 1e-12:
        low, high = wilson(found.mean * count, count, alpha=alpha)
        return replace(found, low=low, high=high)
    return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))
