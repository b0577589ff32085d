"""Agreement of people, or of judges, who judged the same trials.

Sources: K. Krippendorff, Content Analysis (2004), chapter 11, for alpha with nominal values and gaps;
J. Cohen, A coefficient of agreement for nominal scales, Educational and Psychological Measurement 20 (1960).
Intervals are of 95 %: a bootstrap over clusters, with the same draws always; for raw agreement the interval
of a proportion by cluster.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import combinations
from random import Random
from typing import Final

from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, proportion_interval

_RESAMPLES: Final = 1_000
_OF_MANY: Final = 200
"""Resamples where there are so many clusters: the ends of the interval are steady then."""
_FEWEST: Final = 5
"""Clusters below which a bootstrap says nothing."""

Ratings = Mapping[str, Mapping[str, Hashable]]
"""For each unit the values by rater; raters without a value are left out."""


def raw_agreement(ratings: Ratings, clusters: Mapping[str, str] | None = None) -> Interval:
    """Return the share of pairs of raters, over units, that gave the same value."""
    values, labels = list[float](), list[str]()
    for unit, given in ratings.items():
        for one, other in combinations(given.values(), 2):
            values.append(float(one == other))
            labels.append((clusters or {}).get(unit, unit))
    return proportion_interval(values, labels) if values else NOTHING


def krippendorff_alpha(ratings: Ratings, clusters: Mapping[str, str] | None = None) -> Interval:
    """Return alpha for nominal values: 1 for agreement, 0 for chance; NaN where fewer than two units have two
    raters, or all values are the same.
    """
    return _resampled(ratings, clusters, _alpha)


def cohen_kappa(ratings: Ratings, clusters: Mapping[str, str] | None = None) -> Interval:
    """Return kappa of the two raters that rated most units together: agreement beyond what their rates alone
    would give; NaN where one value alone was given.
    """
    pairs = Counter(pair for given in ratings.values() for pair in combinations(sorted(given), 2))
    if not pairs:
        return NOTHING
    one, other = pairs.most_common(1)[0][0]
    both = {
        unit: {one: given[one], other: given[other]}
        for unit, given in ratings.items()
        if one in given and other in given
    }
    return _resampled(both, clusters, lambda units: _kappa(units, one, other))


def _alpha(units: Sequence[Mapping[str, Hashable]]) -> float:
    """Return 1 - D_observed / D_expected over units with two values or more."""
    rated = [Counter(given.values()) for given in units if len(given) > 1]
    totals = Counter[Hashable]()
    differing = 0.0
    for counts in rated:
        size = counts.total()
        totals.update(counts)
        differing += (size * size - sum(n * n for n in counts.values())) / (size - 1)
    n = totals.total()
    expected = (n * n - sum(count * count for count in totals.values())) / (n - 1) if n > 1 else 0.0
    return 1 - differing / expected if expected else math.nan


def _kappa(units: Sequence[Mapping[str, Hashable]], one: str, other: str) -> float:
    n = len(units)
    first, second = Counter(u[one] for u in units), Counter(u[other] for u in units)
    chance = sum(first[value] * second[value] for value in first) / (n * n)
    seen = sum(u[one] == u[other] for u in units) / n
    return (seen - chance) / (1 - chance) if chance < 1 else math.nan


def _resampled(
    ratings: Ratings,
    clusters: Mapping[str, str] | None,
    statistic: Callable[[Sequence[Mapping[str, Hashable]]], float],
) -> Interval:
    groups = group_values(
        ((clusters or {}).get(unit, unit), given) for unit, given in ratings.items() if len(given) > 1
    )
    units = [given for group in groups.values() for given in group]
    if not units:
        return NOTHING
    mean, found = statistic(units), list(groups.values())
    low = high = math.nan
    if len(found) >= _FEWEST and not math.isnan(mean):
        random = Random(0)  # noqa: S311  # no secret
        times = _RESAMPLES if len(found) < _OF_MANY else _OF_MANY
        drawn = (
            statistic([given for group in random.choices(found, k=len(found)) for given in group])
            for _ in range(times)
        )
        # A resample of one value alone has no alpha: agreement by chance and in truth are the same there.
        values = sorted(value for value in drawn if not math.isnan(value))
        if len(values) > times / 2:
            low, high = values[int(0.025 * len(values))], values[math.ceil(0.975 * len(values)) - 1]
    return Interval(mean=mean, low=low, high=high, clusters=len(found), n=len(units))
