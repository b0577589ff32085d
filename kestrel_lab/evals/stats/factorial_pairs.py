"""Effects of parts from pairs of trials: a folded-over two-level factorial design, with a regression and
jackknife intervals.

A pair is two trials of one scenario: one has some of the parts, the other all the rest. In every pair each
part is thus in one trial and not in the other, so that every trial tells of every part: `N` trials give each
effect a variance of about `4 / N` times that of a trial, however many parts there are. Leaving out one part
at a time gives `2 (K + 1) / N` with `K` parts.

Which parts are together comes from Hadamard matrices (R. L. Plackett, J. P. Burman, The design of optimum
multifactorial experiments, Biometrika 1946) whose columns are drawn and turned at random in each block.
Scenarios differ in how hard they are, and two parts may reinforce or replace each other: both cancel within a
pair, which is what folding over is for (G. E. P. Box, K. B. Wilson, 1951).

An effect is the change of the metric that a part makes, on average over the scenarios and over all choices of
the other parts. Intervals are from leaving out one scenario after the other (the cluster jackknife, CV3; J.
G. MacKinnon, M. Ø. Nielsen, M. D. Webb, Cluster-robust inference, Journal of Econometrics 2023) with t
quantiles. With few scenarios pairs are left out instead, which speaks of these scenarios alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice

from kestrel_lab.evals.stats.difference import ENOUGH, Difference, detectable_mean, judge_alike
from kestrel_lab.evals.stats.distributions import t_below, t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, Interval, mcnemar_exact

Subset = tuple[bool, ...]
"""For each part whether it is in."""


def random_subsets(parts: int, *, seed: str) -> Iterator[Subset]:
    """Yield the parts of the first trial of each pair, without end and always the same for a seed; the second
    trial has the others.
    """
    size = 1 << max(parts - 1, 1).bit_length()
    for block in count():
        chance = random.Random(f"{seed}/{block}")  # a design, not a secret  # noqa: S311
        columns = chance.sample(range(size), parts)
        turned = [chance.random() < 0.5 for _ in columns]
        rows = chance.sample(range(size), size)
        for row in rows:
            yield tuple(
                bool((row & column).bit_count() % 2) != turn
                for column, turn in zip(columns, turned, strict=True)
            )


def assign_pairs(parts: int, scenarios: Sequence[str], pairs: int, *, seed: str) -> list[tuple[str, Subset]]:
    """Return the scenario and the parts of each pair; a larger number of pairs begins with those of a smaller
    one.

    Each round goes through all scenarios in an order of its own.
    """

    def places() -> Iterator[str]:
        for number in count():
            yield from random.Random(f"{seed}/round {number}").sample(scenarios, len(scenarios))  # as above  # noqa: S311

    return list(islice(zip(places(), random_subsets(parts, seed=seed), strict=False), pairs))


def fewest_pairs(parts: int) -> int:
    """Return the number of pairs from which on effects of so many parts can be distinguished, however
    uncertain they are.
    """
    return max(8, 2 * parts)


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """Two trials of one scenario that were both judged."""

    group: str
    """What the scenario is drawn together with."""
    parts: Subset
    first: float
    """The value of the trial that has `parts`."""
    second: float
    """The value of the trial that has the others."""
    weight: float = 1.0


def part_effects(pairs: Sequence[Pair], *, bounded: bool) -> list[tuple[Interval, int]]:
    """Return for each part how much larger values are with it than without it, and the degrees of freedom of
    its interval.

    The ends of an interval are NaN where the pairs do not suffice to tell the parts apart. `bounded` says
    that values are between 0 and 1.
    """
    # 20 MB that a run without an ablation does not need.
    import numpy as np

    parts = len(pairs[0].parts) if pairs else 0
    signs = np.array([[1.0 if one else -1.0 for one in pair.parts] for pair in pairs]).reshape(
        len(pairs), parts
    )
    moved = np.array([pair.first - pair.second for pair in pairs])
    weights = np.array([pair.weight for pair in pairs])
    groups = {pair.group for pair in pairs}
    labels: list[Hashable] = [
        pair.group if len(groups) >= ENOUGH else index for index, pair in enumerate(pairs)
    ]
    normal, right = (signs.T * weights) @ signs, (signs.T * weights) @ moved
    clusters = [np.array([label == one for label in labels]) for one in dict.fromkeys(labels)]
    unknown = Interval(mean=math.nan, low=math.nan, high=math.nan, clusters=len(clusters), n=len(pairs))
    if len(clusters) < 2 or np.linalg.matrix_rank(normal, hermitian=True) < parts:
        return [(unknown, 0)] * parts
    whole = np.linalg.solve(normal, right)
    without = []
    for mask in clusters:
        left = signs[~mask].T * weights[~mask]
        if np.linalg.matrix_rank(left @ signs[~mask], hermitian=True) < parts:
            return [(replace(unknown, mean=float(mean)), 0) for mean in whole]
        without.append(np.linalg.solve(left @ signs[~mask], left @ moved[~mask]))
    spread = np.sqrt((len(clusters) - 1) / len(clusters) * np.sum((np.array(without) - whole) ** 2, axis=0))
    df = len(clusters) - 1 if len(groups) >= ENOUGH else len(pairs) - parts
    return [
        (_interval(float(mean), float(se), df, len(clusters), len(pairs), bounded=bounded), df)
        for mean, se in zip(whole, spread, strict=True)
    ]


def _interval(mean: float, se: float, df: int, clusters: int, pairs: int, *, bounded: bool) -> Interval:
    reach, middle = t_quantile(1 - ALPHA / 2, df) * se, mean
    # A standard error so small is rounding: all differences are equal.
    if bounded and se < 1e-9:
        # As `paired_difference`: where all clusters agree, as many as were not seen may not.
        reach, mean, se = 1 - (ALPHA / 2) ** (1 / clusters), round(mean, 12), 0.0
        middle = (1 - reach) * mean
    low, high = middle - reach, middle + reach
    if bounded:
        low, high = max(-1.0, low), min(1.0, high)
    return Interval(mean=mean, low=low, high=high, se=se, clusters=clusters, n=2 * pairs)


def judged_effects(pairs: Sequence[Pair], *, margin: float) -> list[Difference]:
    """Return the effect of each part on a success rate with its verdict, all asked together.

    By Holm's method a part without an effect is called helpful or harmful in at most one family of twenty.
    """
    found = part_effects(pairs, bounded=True)
    level = (
        sum(pair.weight * (pair.first + pair.second) / 2 for pair in pairs)
        / sum(pair.weight for pair in pairs)
        if pairs
        else math.nan
    )
    groups = len({pair.group for pair in pairs})
    scope = "scenarios like these" if groups >= ENOUGH else "these scenarios"
    differences = []
    for interval, df in found:
        p = _p(interval, df)
        se = (
            max(interval.se, (interval.high - interval.low) / 2 / t_quantile(1 - ALPHA / 2, df))
            if df
            else math.nan
        )
        base, head, mde = (
            level - interval.mean / 2,
            level + interval.mean / 2,
            detectable_mean(se, df, alpha=ALPHA / len(found)),
        )
        differences.append(
            Difference(
                base=base,
                head=head,
                interval=interval,
                p=p,
                p_holm=p,
                mde=mde,
                scenarios=groups,
                groups=groups,
                scope=scope,
                test="regression",
            )
        )
    return judge_alike(differences, better=["higher"] * len(found), margin=margin, relative=False)


def _p(interval: Interval, df: int) -> float:
    """Return the p value of an effect, by Student's t, and by the signs of the clusters where all agree; 1
    where nothing can be said.
    """
    if not df or not interval.mean:
        return 1.0
    return (
        2 * t_below(-abs(interval.mean) / interval.se, df)
        if interval.se
        else mcnemar_exact(0, interval.clusters)
    )
