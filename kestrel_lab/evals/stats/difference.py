"""Difference of a metric between two sets of trials of the same scenarios, with interval, p value and
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from statistics import fmean, variance
from typing import Final, Literal

from kestrel_lab.evals.stats import intervals_and_tests as stats
from kestrel_lab.evals.stats.distributions import at_most, t_quantile
from kestrel_lab.evals.stats.groups import counting_units, group_values

POWER: Final = 0.8
"""How often a difference of the smallest detectable size is found."""
_ENOUGH_STEPS: Final = 20
"""Halvings until a rate is known to more digits than anybody reads."""


def detectable_mean(se: float, df: int, *, noise: float = 0.0, alpha: float = stats.ALPHA) -> float:
    """Return the smallest true mean difference that a t test with this standard error finds in 80 % of
    comparisons; `inf` without degrees of freedom.

    By the usual approximation, the sum of the two quantiles times the standard error. `noise` is the squared
    coefficient of variation of such a standard error. It counts twice: this one is an estimate, and the one
    that the test will use is another (S. A. Julious and R. J. Owen, Sample size calculations for clinical
    studies allowing for uncertainty about the variance, Pharmaceutical Statistics 5 (2006) 29-37).
    """
    if df < 1 or math.isnan(se):
        return math.inf
    # With a million degrees of freedom Student's distribution is the normal one.
    reject, find = t_quantile(1 - alpha / 2, df), t_quantile(POWER, df if not noise else 1_000_000)
    # The root of x = reject + find * sqrt(1 + 2 * noise * x²), which is a quadratic equation.
    rest = 1 - 2 * noise * find**2
    if rest <= 0:
        return math.inf
    return (reject + find * math.sqrt(rest + 2 * noise * reject**2)) / rest * se


def mcnemar_power(n: int, worse: float, better: float, *, alpha: float = stats.ALPHA) -> float:
    """Return how often McNemar's exact test finds that scenarios got worse, of `n` tried once on each side.

    `worse` and `better` are the chances that a scenario flips to fail and to pass. Exact: summed over all
    numbers of flips. Only the right answer counts, not "improved".
    """
    flips = min(1.0, worse + better)
    if flips <= 0:
        return 0.0
    power, few, below, share = 0.0, -1, 0.0, better / flips
    for count, most in enumerate(_most_against(n, alpha)):
        # `below` is the chance of at most `few` of `count` flips to pass. One flip more takes from it the
        # chance that all `few` were used up and the next one passes too.
        if few >= 0:
            below -= share * _chance(few, count - 1, share)
        while few < most:
            few += 1
            below += _chance(few, count, share)
        if few >= 0:
            power += _chance(count, n, flips) * below
    return power


def _chance(k: int, n: int, p: float) -> float:
    """Return the chance of exactly `k` successes in `n` tries."""
    if p <= 0 or p >= 1:
        return float(k == (n if p >= 1 else 0))
    ways = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(ways + k * math.log(p) + (n - k) * math.log1p(-p))


@lru_cache(maxsize=16)
def _most_against(n: int, alpha: float) -> tuple[int, ...]:
    """Return for each number of flips up to `n` how many may go the other way for the test to reject; -1
    where none may.
    """
    found, few = [], -1
    # A p value that is just `alpha` may be a rounding error above it.
    alpha *= 1 + 1e-12
    for count in range(n + 1):
        # The number never falls as flips are added.
        while 2 * at_most(few + 1, count, 0.5) <= alpha:
            few += 1
        found.append(few)
    return tuple(found)


# Many configurations have as many scenarios and flips.
@lru_cache(maxsize=256)
def detectable_drop(n: int, flips: float, *, adds: float = 0.0, alpha: float = stats.ALPHA) -> float:
    """Return the smallest true drop of a success rate that McNemar's exact test finds in 80 % of comparisons
    of `n` scenarios.

    `flips` is the share of scenarios that pass on one side only where nothing changed, and `adds` how much a
    drop adds to it for each point; where a drop is larger than that, so many flip. Above 1 where even a drop
    from all to none would not be found.
    """
    if mcnemar_power(n, 1.0, 0.0, alpha=alpha) < POWER:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(_ENOUGH_STEPS):
        middle = (low + high) / 2
        share = max(min(1.0, flips + adds * middle), middle)
        found = mcnemar_power(n, (share + middle) / 2, (share - middle) / 2, alpha=alpha)
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high


Verdict = Literal["regression", "improvement", "stable", "inconclusive"]
Trials = Mapping[str, Sequence[float]]
"""Values of a metric by scenario."""

SAME_FILES: Final = "same files"
SAME_CONVERSATIONS: Final = "same conversations"
BY_CONSTRUCTION: Final = (SAME_FILES, SAME_CONVERSATIONS)
"""In place of a test, where both sides are the same thing, so that no difference is possible."""

ENOUGH: Final = 6
"""Scenarios from which on a difference is said of scenarios like these; with fewer, of these alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One metric at two commits, head minus base."""

    base: float
    head: float
    interval: stats.Interval
    p: float
    """How often so large a difference is seen where there is none."""
    p_holm: float
    """The same, adjusted for the number of questions asked."""
    mde: float
    """The smallest true difference that would be found in 80 % of such comparisons, if all scenarios changed
    alike.
    """
    scenarios: int
    scope: str
    """What the interval and p speak of: `scenarios like these` or `these scenarios`."""
    verdict: Verdict = "inconclusive"
    test: str = ""
    """Where p is from: `McNemar`, `sign flips` of scenarios or `of groups`, `t test of groups`, `permutation`
    of trials, or one of them `and rounds`; or one of `BY_CONSTRUCTION`.
    """
    groups: int = 0
    """How many groups the scenarios are of."""
    mde_broken: float = math.nan
    """As `mde`, if some scenarios failed for good and the others did not change, which is what regressions
    look like; NaN for a metric that is no success rate.
    """
    lower: int = 0
    """Scenarios whose value is lower at head."""
    higher: int = 0
    note: str = ""
    """Why there can be no verdict, where there can be none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """The question that a difference answers: which way is better, and how large a change matters."""

    better: Literal["higher", "lower"]
    margin: float
    """How large a change still counts as none."""
    relative: bool
    """Whether `margin` is a share of the base; then a change within it is never called better or worse."""
    least: float = 0.0
    """The smallest change of a relative metric that anybody would care about, in its own unit."""
    weight: float = 1.0
    """Its share of the allowance for false alarms, among the questions asked together."""

    def tolerance(self, base: float) -> float:
        """Return how far the difference may be from zero and still count as none."""
        return max(self.least, self.margin * abs(base)) if self.relative else self.margin


def compare_scenarios(
    base: Trials,
    head: Trials,
    *,
    weights: Mapping[str, float],
    bounded: bool,
    groups: Mapping[str, str] | None = None,
    alpha: float = stats.ALPHA,
) -> Difference:
    """Compare scenario by scenario, over the scenarios that have trials on both sides.

    From `ENOUGH` scenarios on, the group is the unit, by default each scenario: a paired, clustered interval
    and a sign-flip test (McNemar's exact test when each scenario was tried once and is a group of its own).
    With fewer scenarios, trials within each scenario are the unit: an interval from their spread and a
    permutation test. `bounded` says that values lie between 0 and 1; `alpha` is the chance of a false alarm
    that the smallest detectable difference is reckoned with.
    """
    both = [name for name in base if base[name] and head.get(name)]
    if not both:
        return no_difference()
    before, after = [fmean(base[name]) for name in both], [fmean(head[name]) for name in both]
    weight = [weights.get(name, 1.0) for name in both]
    group_of = groups or {}
    groups_compared = [group_of.get(name, name) for name in both]
    group_count = len(set(groups_compared))
    units = counting_units(both, groups_compared)
    mde_broken = math.nan
    if len(both) >= ENOUGH:
        interval, p, test = _test_units(before, after, weight, units, bounded=bounded)
        once = (
            bounded
            and {*before, *after} <= {0.0, 1.0}
            and len(set(weight)) == 1
            and len(set(units)) == len(both)
            and all(len(base[name]) == len(head[name]) == 1 for name in both)
        )
        scope = "scenarios like these" if group_count > 1 else "these scenarios"
        test = "McNemar" if once else test
        levels = _Levels.of(before, after, weight, fmean(1 / len(head[name]) for name in both))
        size = max(min(len(base[name]), len(head[name])) for name in both)
        mde = _detectable(interval, levels, len(both) * size, bounded=bounded, once=once, alpha=alpha)
        if bounded:
            mde_broken = mde if once else _detectable_break(interval, levels, len(both) * size, alpha=alpha)
    else:
        interval, df = _within_scenarios(base, head, both, bounded=bounded)
        p, scope, test = (
            stats.stratified_permutation_test([(base[name], head[name]) for name in both]),
            "these scenarios",
            "permutation",
        )
        # Where all trials of a side agree the standard error is zero, and only the interval tells how little
        # that says.
        reach = (
            max(interval.high - interval.mean, interval.mean - interval.low)
            / t_quantile(1 - stats.ALPHA / 2, df)
            if df
            else math.nan
        )
        mde = detectable_mean(
            max(interval.se, reach) if bounded else interval.se or math.nan, df, alpha=alpha
        )
    return Difference(
        base=_weighted_mean(before, weight),
        head=_weighted_mean(after, weight),
        interval=interval,
        p=p,
        p_holm=p,
        mde=mde,
        scenarios=len(both),
        scope=scope,
        test=test,
        groups=group_count,
        mde_broken=mde_broken,
        lower=sum(b < a for a, b in zip(before, after, strict=True)),
        higher=sum(b > a for a, b in zip(before, after, strict=True)),
    )


def no_difference() -> Difference:
    """Return what can be said where there is nothing to compare."""
    nan = math.nan
    return Difference(
        base=nan,
        head=nan,
        interval=stats.NOTHING,
        p=1.0,
        p_holm=1.0,
        mde=nan,
        scenarios=0,
        scope="these scenarios",
    )


def confirm_by_rounds(found: Difference, moved: Sequence[float], *, alpha: float = stats.ALPHA) -> Difference:
    """Return `found` as far as rounds confirm it: `moved` is the mean difference in each round of trials that
    were run side by side.

    What disturbs one side of a round, another program for example, moves all its scenarios together; only
    rounds tell that from a change. So p is the larger of the two, the interval the wider, the smallest
    detectable the larger.
    """
    rounds = stats.mean_interval(moved)
    if math.isnan(rounds.se):
        return replace(found, note="times are compared over two rounds or more")
    reach = (rounds.high - rounds.low) / 2
    middle = found.interval.mean
    wide = math.isnan(found.interval.low) or reach > (found.interval.high - found.interval.low) / 2
    interval = (
        replace(found.interval, low=middle - reach, high=middle + reach, se=rounds.se)
        if wide
        else found.interval
    )
    return replace(
        found,
        interval=interval,
        p=max(found.p, stats.t_test(rounds)),
        mde=max(found.mde, detectable_mean(rounds.se, len(moved) - 1, alpha=alpha)),
        test=f"{found.test} and rounds",
    )


def judge_alike(
    differences: Sequence[Difference],
    *,
    better: Sequence[Literal["higher", "lower"]],
    margin: float,
    relative: bool,
) -> list[Difference]:
    """`judge_all` for questions of one kind and weight."""
    return judge_all(differences, [Question(better=way, margin=margin, relative=relative) for way in better])


def judge_all(differences: Sequence[Difference], questions: Sequence[Question]) -> list[Difference]:
    """Give each difference its verdict, as questions asked together.

    `regression` and `improvement` need an adjusted p below 5 % and an interval without zero, and, for a
    relative question, a change of more than its tolerance; `stable` needs an interval within the tolerance.
    Anything else is `inconclusive`, and so is what has a note that says why there can be no verdict: that is
    not a question at all.
    """
    asked = [place for place, d in enumerate(differences) if not d.note]
    adjusted = dict(
        zip(
            asked,
            stats.holm_adjust([differences[i].p for i in asked], [questions[i].weight for i in asked]),
            strict=True,
        )
    )
    return [
        d
        if d.note
        else replace(
            d,
            p_holm=adjusted[i],
            verdict=_verdict(d, adjusted[i], questions[i]),
            mde=_beyond_tolerance(d, questions[i]),
        )
        for i, d in enumerate(differences)
    ]


def _beyond_tolerance(d: Difference, question: Question) -> float:
    """Return the smallest detectable difference of a question whose changes within its tolerance are never
    called better or worse: what is seen of it has to be beyond the tolerance in 80 % of comparisons, too.
    """
    if not question.relative or not d.interval.se > 0 or math.isnan(d.mde):
        return d.mde
    spread = t_quantile(POWER, max(1, d.interval.clusters - 1)) * d.interval.se
    return max(d.mde, question.tolerance(d.base) + spread)


def overall_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Return one verdict for several configurations: any regression wins, then a doubt, then an
    improvement.
    """
    for word in ("regression", "inconclusive", "improvement"):
        if word in verdicts:
            return word
    return "stable" if verdicts else "inconclusive"


def _verdict(d: Difference, p: float, question: Question) -> Verdict:
    moved, tolerance = d.head - d.base, question.tolerance(d.base)
    if p < stats.ALPHA and d.interval.excludes(0.0) and not (question.relative and abs(moved) <= tolerance):
        return "improvement" if (moved > 0) == (question.better == "higher") else "regression"
    if -tolerance <= d.interval.low and d.interval.high <= tolerance:
        return "stable"
    return "inconclusive"


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return math.fsum(w * x for w, x in zip(weights, values, strict=True)) / math.fsum(weights)


def _test_units(
    before: Sequence[float],
    after: Sequence[float],
    weights: Sequence[float],
    units: Sequence[Hashable],
    *,
    bounded: bool,
) -> tuple[stats.Interval, float, str]:
    """Return the paired interval over units, the p value and what it is from.

    Signs of units are flipped from `ENOUGH` units on. With fewer, no pattern of signs is rare enough, and the
    t test of the units' means serves, whose level holds however unequal their spreads are: R. Ibragimov and
    U. K. Müller, t-statistic based correlation and heterogeneity robust inference, Journal of Business &
    Economic Statistics 28 (2010) 453-468.
    """
    members = group_values(
        (unit, one) for unit, one in zip(units, zip(before, after, weights, strict=True), strict=True)
    )
    groups = [list(zip(*group, strict=True)) for group in members.values()]
    sums = [math.fsum(weight) for _, _, weight in groups]
    base, head = ([_weighted_mean(group[side], group[2]) for group in groups] for side in (0, 1))
    interval = stats.paired_difference(base, head, weights=sums, bounded=bounded)
    interval = replace(interval, n=len(units))
    of_groups = " of groups" if len(members) < len(units) else ""
    if len(members) < ENOUGH:
        return interval, stats.t_test(interval), f"t test{of_groups}"
    moved = [w * (b - a) for w, a, b in zip(sums, base, head, strict=True)]
    return interval, stats.sign_flip_test(moved), f"sign flips{of_groups}"


@dataclass(frozen=True, kw_only=True, slots=True)
class _Levels:
    """How high the success rates of scenarios are, both sides taken together."""

    mean: float
    square: float
    """The mean square of a scenario's true rate, from the products of both sides: their noise is independent.
    """
    scenarios: float
    """Scenarios of equal weight that say as much."""
    per_trial: float
    """The part of a trial's variance that is left in the mean of one scenario."""

    @classmethod
    def of(
        cls, before: Sequence[float], after: Sequence[float], weights: Sequence[float], per_trial: float
    ) -> _Levels:
        """Return the levels of success rates; below one half those of failures, which have more room."""
        mean = (_weighted_mean(before, weights) + _weighted_mean(after, weights)) / 2
        square = _weighted_mean([a * b for a, b in zip(before, after, strict=True)], weights)
        if mean < 0.5:
            mean, square = 1 - mean, 1 - 2 * mean + square
        scenarios = math.fsum(weights) ** 2 / math.fsum(w * w for w in weights)
        return cls(mean=mean, square=square, scenarios=scenarios, per_trial=per_trial)

    @property
    def passing(self) -> float:
        """The share of scenarios that ever pass, as `moved` takes them: the others never do."""
        return self.mean / min(1.0, max(self.mean, self.square / self.mean))

    def moved(self, lost: float, units: int) -> float:
        """Return the chance that a unit moves where scenarios lose this share of their passes.

        Taken as scenarios of two kinds with this mean and square: some never pass, the others alike often.
        """
        often = min(1.0, max(self.mean, self.square / self.mean))
        one: float = self.mean / often * (1 - (1 - lost * often) ** (1 / self.per_trial))
        return 1 - math.pow(1 - one, max(1.0, self.scenarios / units))


def _detectable(
    interval: stats.Interval, levels: _Levels, trials: int, *, bounded: bool, once: bool, alpha: float
) -> float:
    """Return the smallest detectable difference over scenarios; exact where McNemar's test is used.

    A change of a success rate adds to the spread that trials without one have: it is taken to turn the same
    share of the passes of each scenario into failures. `trials` are those of one side.
    """
    df = interval.clusters - 1
    if once:
        flips = 2 * (levels.mean - levels.square)
        return detectable_drop(
            interval.clusters, flips, adds=max(0.0, 2 * levels.square / levels.mean - 1), alpha=alpha
        )
    if not bounded:
        # Nothing moved at all: that says nothing of how much it might.
        return detectable_mean(interval.se, df, alpha=alpha) if interval.se > 0 else math.nan
    least = math.ceil(1 - math.log2(alpha))

    def is_found(middle: float) -> bool:
        lost = middle / levels.mean
        between = lost**2 * max(0.0, levels.square - levels.mean**2)
        within = lost * ((2 - lost) * levels.square - levels.mean) * levels.per_trial
        variance = interval.se**2 + (between + within) / levels.scenarios
        se = math.sqrt(max(0.0, variance))
        # Losses are rare and all of one sign: such skewness moves the mean of Student's t towards zero.
        skewness = middle * levels.per_trial**2 / (2 * levels.scenarios**2 * se**2) if se else 0.0
        if middle < detectable_mean(se, df, noise=1 / (2 * df), alpha=alpha) + skewness:
            return False
        # With fewer units moved no pattern of signs is rare enough, however far they move.
        moved = levels.moved(lost, interval.clusters)
        return interval.clusters < ENOUGH or at_most(least - 1, interval.clusters, moved) <= 1 - POWER

    # Where hardly a scenario moved its spread promises too much: so many must move by a trial for the test to
    # tell at all.
    return max(_smallest(is_found, levels.mean), least / trials)


def _detectable_break(interval: stats.Interval, levels: _Levels, trials: int, *, alpha: float) -> float:
    """Return the smallest drop of a success rate that is found where some units fail for good and the others
    do not change.

    Few large losses are harder to find than the same loss spread over all: they add more to the spread, and a
    test of signs counts how many units moved.
    """
    df = interval.clusters - 1
    least = math.ceil(1 - math.log2(alpha))

    def is_found(drop: float) -> bool:
        broken = drop / levels.mean
        between = broken * levels.square - drop**2
        # Trials of a scenario that always fails have no spread of their own.
        quiet = broken * (levels.mean - levels.square) * levels.per_trial / levels.scenarios
        spread = math.sqrt(max(0.0, interval.se**2 + between / interval.clusters - quiet))
        if drop < detectable_mean(spread, df, alpha=alpha):
            return False
        moved = min(1.0, broken * levels.passing)
        return interval.clusters < ENOUGH or at_most(least - 1, interval.clusters, moved) <= 1 - POWER

    return max(_smallest(is_found, levels.mean), least / trials)


def _smallest(is_found: Callable[[float], bool], most: float) -> float:
    """Return the smallest drop, up to `most`, that is found; infinite where none is."""
    if not is_found(most):
        return math.inf
    low, high = 0.0, most
    for _ in range(_ENOUGH_STEPS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_found(middle) else (middle, high)
    return high


def _within_scenarios(
    base: Trials, head: Trials, names: Sequence[str], *, bounded: bool
) -> tuple[stats.Interval, int]:
    """Return the mean difference over exactly these scenarios, from the spread of trials within each, and its
    degrees of freedom.
    """
    differences = [fmean(head[name]) - fmean(base[name]) for name in names]
    mean = fmean(differences)
    trials = [values for name in names for values in (base[name], head[name])]
    df = sum(len(values) - 1 for values in trials)
    if bounded:
        found = stats.newcombe_interval(_pool_trials(base, names), _pool_trials(head, names))
        return replace(found, clusters=len(names)), df
    unknown = stats.Interval(mean=mean, low=math.nan, high=math.nan, clusters=len(names), n=df + len(trials))
    if min(len(values) for values in trials) < 2:
        return unknown, df
    se = math.sqrt(sum(variance(values) / len(values) for values in trials)) / len(names)
    reach = t_quantile(1 - stats.ALPHA / 2, df) * se
    return replace(unknown, low=mean - reach, high=mean + reach, se=se), df


def _pool_trials(trials: Trials, names: Sequence[str]) -> tuple[float, float]:
    n = sum(len(trials[name]) for name in names)
    return fmean(fmean(trials[name]) for name in names) * n, n
