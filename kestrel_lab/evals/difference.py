"""Two sets of trials of the same scenarios: how much one metric differs, how sure that is, what it means."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, variance
from typing import Final, Literal

from kestrel_lab.evals.stats import (
    ALPHA,
    NOTHING,
    Interval,
    holm,
    minimum_detectable_difference,
    newcombe,
    paired_difference,
    sign_flip_test,
    stratified_permutation_test,
    t_quantile,
)

Verdict = Literal["regression", "improvement", "stable", "inconclusive"]
Trials = Mapping[str, Sequence[float]]
"""Values of a metric by scenario."""

ENOUGH: Final = 6
"""Scenarios from which on a difference is said of scenarios like these; with fewer, of these alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One metric at two commits, head minus base."""

    base: float
    head: float
    interval: Interval
    p: float
    """How often so large a difference is seen where there is none."""
    p_holm: float
    """The same, adjusted for the number of questions asked."""
    mde: float
    """The smallest true difference that would be seen in 80 % of such comparisons."""
    scenarios: int
    scope: str
    """What the interval and p speak of: `scenarios like these` or `these scenarios`."""
    verdict: Verdict = "inconclusive"


def difference(base: Trials, head: Trials, *, weights: Mapping[str, float], bounded: bool) -> Difference:
    """Compare scenario by scenario, over the scenarios that have trials on both sides.

    From `ENOUGH` scenarios on, the scenario is the unit: a paired, clustered interval and a sign-flip test
    (McNemar's exact test when each scenario was tried once). With fewer, trials within each scenario are: an
    interval from their spread and a permutation test. `bounded` says that values are 0 or 1.
    """
    both = [name for name in base if base[name] and head.get(name)]
    if not both:
        return Difference(
            base=math.nan, head=math.nan, interval=NOTHING, p=1.0, p_holm=1.0, mde=math.nan, scenarios=0, scope="these scenarios"
        )
    before, after = [fmean(base[name]) for name in both], [fmean(head[name]) for name in both]
    weight = [weights.get(name, 1.0) for name in both]
    size = max(min(len(base[name]), len(head[name])) for name in both)
    if len(both) >= ENOUGH:
        interval = paired_difference(before, after, weights=weight, bounded=bounded)
        moved = [w * (b - a) for w, a, b in zip(weight, before, after, strict=True)]
        p, scope = sign_flip_test(moved), "scenarios like these"
        mde = minimum_detectable_difference(len(both), interval.se**2 * len(both))
        mde = max(mde, ENOUGH / (len(both) * size)) if bounded else mde
    else:
        interval = _within(base, head, both, bounded=bounded)
        p, scope = stratified_permutation_test([(base[name], head[name]) for name in both]), "these scenarios"
        normal = NormalDist()
        mde = (normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(0.8)) * interval.se
    total = math.fsum(weight)
    return Difference(
        base=math.fsum(w * x for w, x in zip(weight, before, strict=True)) / total,
        head=math.fsum(w * x for w, x in zip(weight, after, strict=True)) / total,
        interval=interval,
        p=p,
        p_holm=p,
        mde=mde,
        scenarios=len(both),
        scope=scope,
    )


def judge(
    differences: Sequence[Difference], *, better: Sequence[Literal["higher", "lower"]], margin: float, relative: bool
) -> list[Difference]:
    """Give each difference its verdict, as questions asked together.

    `regression` and `improvement` need an adjusted p below 5 % and an interval without zero, and, when
    `relative`, a change of more than `margin` times the base; `stable` needs an interval within the margin.
    Anything else is `inconclusive`.
    """
    adjusted = holm([d.p for d in differences])
    return [
        replace(d, p_holm=p, verdict=_verdict(d, p, way, margin * abs(d.base) if relative else margin, relative))
        for d, p, way in zip(differences, adjusted, better, strict=True)
    ]


def overall(verdicts: Sequence[Verdict]) -> Verdict:
    """One word for several configurations: any regression is one; a lasting doubt outweighs what is fine."""
    for word in ("regression", "inconclusive", "improvement"):
        if word in verdicts:
            return word
    return "stable" if verdicts else "inconclusive"


def _verdict(d: Difference, p: float, better: str, margin: float, relative: bool) -> Verdict:
    moved = d.head - d.base
    if p < ALPHA and d.interval.excludes(0.0) and not (relative and abs(moved) <= margin):
        return "improvement" if (moved > 0) == (better == "higher") else "regression"
    if -margin <= d.interval.low and d.interval.high <= margin:
        return "stable"
    return "inconclusive"


def _within(base: Trials, head: Trials, names: Sequence[str], *, bounded: bool) -> Interval:
    """The mean difference over exactly these scenarios, from the spread of trials within each."""
    differences = [fmean(head[name]) - fmean(base[name]) for name in names]
    mean = fmean(differences)
    trials = [values for name in names for values in (base[name], head[name])]
    if bounded:
        found = newcombe(_pooled(base, names), _pooled(head, names))
        return replace(found, clusters=len(names))
    df = sum(len(values) - 1 for values in trials)
    if min(len(values) for values in trials) < 2:
        return Interval(mean=mean, low=math.nan, high=math.nan, clusters=len(names), n=df + len(trials))
    se = math.sqrt(sum(variance(values) / len(values) for values in trials)) / len(names)
    reach = t_quantile(1 - ALPHA / 2, df) * se
    return Interval(mean=mean, low=mean - reach, high=mean + reach, se=se, clusters=len(names), n=df + len(trials))


def _pooled(trials: Trials, names: Sequence[str]) -> tuple[float, float]:
    """Successes and trials, each scenario weighing the same."""
    n = sum(len(trials[name]) for name in names)
    return fmean(fmean(trials[name]) for name in names) * n, n
