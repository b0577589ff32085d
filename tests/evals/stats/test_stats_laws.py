"""Laws of the statistics, each checked against its definition, against another library, or against what must
not matter.
"""

import itertools
import math
from fractions import Fraction
from statistics import fmean, pstdev, variance

import numpy as np
import pytest
import scipy  # its `stats` is loaded on use: half a second that each process would pay that collects tests
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.evals.stats.difference import POWER, detectable_drop, detectable_mean, mcnemar_power
from kestrel_lab.evals.stats.distributions import at_most, t_below, t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import (
    NOTHING,
    Interval,
    Moments,
    group_by_cluster,
    holm_adjust,
    mcnemar_exact,
    mean_interval,
    mean_of,
    newcombe_interval,
    paired_difference,
    proportion_of,
    share_of,
    sign_flip_test,
    stratified_permutation_test,
    t_test,
    wilson_interval,
)

numbers = st.integers(-50, 50).map(lambda n: n / 8)
samples = st.lists(numbers, min_size=2, max_size=12)


def moments(values):
    """The moments of these values, added one by one."""
    found = Moments()
    for value in values:
        found.add(value)
    return found


@given(st.lists(numbers, max_size=9), st.lists(numbers, max_size=9))
def test_moments_are_those_of_all_values_however_they_are_added(first, second):
    """Adding one by one and merging give the number, the mean and the squares of the whole."""
    merged = moments(first)
    merged.merge(moments(second))
    whole = first + second
    assert merged.n == len(whole)
    if whole:
        assert (merged.mean, merged.squares) == pytest.approx(
            (fmean(whole), pstdev(whole) ** 2 * len(whole)), abs=1e-9
        )


def test_values_are_put_into_clusters():
    """Without labels each value is its own cluster; a cluster has the weighted mean of its values, which weigh
    their mean weight.
    """
    assert [(found.n, found.mean, weight) for found, weight in group_by_cluster([3.0, 5.0])] == [
        (1, 3.0, 1.0),
        (1, 5.0, 1.0),
    ]
    found = group_by_cluster([1.0, 2.0, 5.0], ["a", "b", "a"], [2.0, 3.0, 6.0])
    assert [(one.n, one.mean, weight) for one, weight in found] == [(2, 4.0, 4.0), (1, 2.0, 3.0)]


@given(samples, st.sampled_from([0.01, 0.05, 0.3]))
def test_a_plain_interval_is_that_of_student(values, alpha):
    """Without clusters the interval, its standard error and the p value are those of the t test of another
    library.
    """
    found = mean_interval(values, alpha=alpha)
    assert (found.mean, found.se) == pytest.approx(
        (fmean(values), math.sqrt(variance(values) / len(values))), abs=1e-9
    )
    assert (found.clusters, found.n) == (len(values), len(values))
    if found.se > 1e-9:
        wanted = scipy.stats.ttest_1samp(values, 0.0)
        assert t_test(found) == pytest.approx(wanted.pvalue, abs=1e-9)
        assert (found.low, found.high) == pytest.approx(
            tuple(wanted.confidence_interval(1 - alpha)), abs=1e-9
        )
        if abs(wanted.pvalue - alpha) > 1e-9:
            assert found.excludes(0.0) == (t_test(found) < alpha)


@given(
    st.lists(st.tuples(numbers, st.integers(0, 3), st.sampled_from([1.0, 2.0, 5.0])), min_size=1, max_size=14)
)
def test_the_standard_error_over_clusters_is_the_sandwich(trials):
    """Weighted residuals are summed by cluster, squared, and corrected for the number of clusters; one
    cluster is a plain sample.
    """
    values, labels = [value for value, _, _ in trials], [label for _, label, _ in trials]
    first = {}
    weights = [first.setdefault(label, weight) for _, label, weight in trials]
    found = mean_interval(values, labels, weights)
    total = math.fsum(weights)
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    names = sorted(set(labels))
    groups = [
        math.fsum(
            w * (v - mean) for v, label, w in zip(values, labels, weights, strict=True) if label == name
        )
        for name in names
    ]
    count = len(names)
    if count == 1:
        groups, count = [w * (v - mean) for v, w in zip(values, weights, strict=True)], len(values)
    assert (found.mean, found.clusters, found.n) == (pytest.approx(mean, abs=1e-9), count, len(values))
    if count < 2:
        assert math.isnan(found.low) and math.isnan(found.high) and math.isnan(found.se)
        return
    se = math.sqrt(math.fsum(g * g for g in groups) * count / (count - 1)) / total
    assert found.se == pytest.approx(se, abs=1e-9)
    assert found.high - found.mean == pytest.approx(scipy.stats.t.ppf(0.975, count - 1) * se, abs=1e-8)


def test_clusters_without_values_do_not_count():
    """They are neither scenarios nor trials, for a mean, a proportion and a share."""
    empty, full = (Moments(), 1.0), [(moments([1.0, 0.0, 1.0]), 1.0), (moments([0.0]), 1.0)]
    for of in (mean_of, proportion_of, share_of):
        assert of([*full, empty]) == of(full)
        assert of([empty]) == NOTHING or math.isnan(of([empty]).mean)


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 1)), min_size=1, max_size=6),
    st.sampled_from([0.01, 0.05, 0.2]),
)
def test_a_share_stays_a_share(cells, alpha):
    """Bounds lie within 0 and 1 and hold the mean; where all agree, or one is alone, it is as wide as that
    many tries would be.
    """
    clusters = [(moments([value] * n), 1.0) for n, value in cells]
    found = share_of(clusters, alpha=alpha)
    plain = mean_of(clusters, alpha=alpha)
    assert 0 <= found.low <= found.mean + 1e-12 <= found.high + 2e-12 <= 1 + 3e-12
    if math.isnan(plain.se) or plain.se < 1e-12:
        assert (found.low, found.high) == wilson_interval(
            found.mean * len(clusters), len(clusters), alpha=alpha
        )
    else:
        assert (found.low, found.high) == (max(0.0, plain.low), min(1.0, plain.high))


def test_a_proportion_counts_what_its_clusters_are_worth():
    """Wilson's interval, over trials where no scenario repeats or one is alone, and over scenarios where all
    agree; else over as many as the spread of the clusters is worth, always within 0 and 1.
    """
    single = [(moments([value]), 1.0) for value in (1.0, 0.0, 1.0, 1.0)]
    assert (proportion_of(single).low, proportion_of(single).high) == wilson_interval(3, 4)
    assert (proportion_of(single, alpha=0.2).low, proportion_of(single, alpha=0.2).high) == wilson_interval(
        3, 4, alpha=0.2
    )
    alone = [(moments([1.0, 0.0, 1.0, 1.0]), 1.0)]
    assert (proportion_of(alone).low, proportion_of(alone).high, proportion_of(alone).clusters) == (
        *wilson_interval(3, 4),
        1,
    )
    passing = [(moments([1.0] * 3), 1.0), (moments([1.0] * 2), 1.0)]
    assert (proportion_of(passing).low, proportion_of(passing).high, proportion_of(passing).clusters) == (
        *wilson_interval(2, 2),
        2,
    )
    failing = [(moments([0.0] * 3), 1.0), (moments([0.0] * 2), 1.0)]
    assert (proportion_of(failing).low, proportion_of(failing).high) == wilson_interval(0, 2)
    mixed = [(moments([1.0, 0.0]), 1.0), (moments([1.0, 1.0]), 1.0), (moments([0.0, 0.0]), 1.0)]
    plain = mean_of(mixed)
    assert plain.low < 0 and plain.high > 1
    found = proportion_of(mixed)
    assert 0.0 < found.low < 0.1 and 0.9 < found.high < 1.0 and found.clusters == 3
    # Trials that know nothing of their cluster are worth nearly as much as so many independent ones.
    half = [(moments([1.0, 0.0] * 3), 1.0), (moments([0.0, 1.0, 1.0, 0.0, 1.0, 0.0]), 1.0)] * 30
    assert proportion_of(half[:-1] + [(moments([1.0, 1.0, 0.0, 0.0, 1.0, 1.0]), 1.0)]).high == pytest.approx(
        wilson_interval(181, 360)[1], abs=0.02
    )


@given(st.integers(1, 80).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_is_where_the_score_test_turns(counts):
    """At each bound the distance of the rate from it is exactly the quantile times the standard error there;
    failures mirror passes.
    """
    passed, n = counts
    low, high = wilson_interval(passed, n)
    z = 1.959963984540054
    for bound in (low, high):
        if 0 < bound < 1:
            assert abs(passed / n - bound) == pytest.approx(z * math.sqrt(bound * (1 - bound) / n), rel=1e-9)
    assert wilson_interval(n - passed, n) == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(*[st.integers(1, 40).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))] * 2)
def test_a_difference_of_proportions_has_a_mirror(base, head):
    """Exchanging the sides turns it round; its square-and-add bounds come from those of the two sides."""
    found, mirror = newcombe_interval(base, head), newcombe_interval(head, base)
    assert (found.mean, found.low, found.high) == pytest.approx(
        (-mirror.mean, -mirror.high, -mirror.low), abs=1e-12
    )
    p, q = base[0] / base[1], head[0] / head[1]
    assert found.se == pytest.approx(math.sqrt(p * (1 - p) / base[1] + q * (1 - q) / head[1]))
    assert (found.clusters, found.n) == (1, base[1] + head[1])
    assert (q - found.low - p) ** 2 == pytest.approx(
        (q - wilson_interval(*head)[0]) ** 2 + (wilson_interval(*base)[1] - p) ** 2, abs=1e-9
    )


@given(st.integers(1, 12), st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]))
def test_agreement_of_so_many_leaves_so_much_unseen(count, step):
    """Bounded differences that all agree reach over what `count` of `count` leave unseen, within -1 and 1;
    unbounded ones have no width.
    """
    before, after = [0.5 - step / 2] * count, [0.5 + step / 2] * count
    found = paired_difference(before, after, bounded=True)
    unseen = 1 - 0.025 ** (1 / count)
    assert (found.mean, found.se, found.clusters, found.n) == (step, 0.0, count, count)
    assert found.low == pytest.approx(max(-1.0, (1 - unseen) * step - unseen))
    assert found.high == pytest.approx(min(1.0, (1 - unseen) * step + unseen))
    plain = paired_difference(before, after)
    assert plain.low == plain.high == step if count > 1 else math.isnan(plain.low)
    with pytest.raises(ValueError, match="zip"):
        paired_difference(before, [*after, 1.0])


def test_one_scenario_repeated_says_little_of_others():
    """Bounded differences of one cluster alone are as wide as one scenario allows, whatever they spread; of
    two that differ as usual.
    """
    found = paired_difference([1.0, 0.0, 1.0], [0.0, 0.0, 1.0], ["a"] * 3, bounded=True)
    assert found.clusters == 3
    one = paired_difference([0.5], [1.0], bounded=True)
    assert (one.low, one.high) == pytest.approx((0.025 * 0.5 - 0.975, 0.025 * 0.5 + 0.975))
    two = paired_difference([0.0, 0.0], [1.0, 0.5], bounded=True)
    assert two == paired_difference([0.0, 0.0], [1.0, 0.5])
    assert paired_difference([], [], bounded=True) == NOTHING or math.isnan(
        paired_difference([], [], bounded=True).mean
    )


@given(st.integers(0, 30), st.integers(0, 30))
def test_mcnemar_is_the_sign_test(worse, better):
    """Its p value is that of a fair coin, both ways alike."""
    wanted = scipy.stats.binomtest(worse, worse + better, 0.5).pvalue if worse + better else 1.0
    assert mcnemar_exact(worse, better) == pytest.approx(wanted)
    assert mcnemar_exact(better, worse) == mcnemar_exact(worse, better)


def all_signs(values):
    """The share of all sign patterns whose sum is at least as far from zero."""
    signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(values))))
    return float(np.mean(np.abs(signs @ np.array(values)) >= abs(sum(values)) - 1e-9))


@settings(max_examples=12)
@given(st.lists(st.integers(1, 40).map(float), min_size=11, max_size=14), st.randoms(use_true_random=False))
def test_sign_flips_by_enumeration_and_by_sample_agree(sizes, random):
    """Up to twelve differences p is exact, beyond it is near; the sign of all, their unit, and zeros between
    them do not matter.
    """
    values = [random.choice((-1, 1)) * size for size in sizes]
    p, exact = sign_flip_test(values), all_signs(values)
    assert p == pytest.approx(exact, abs=1e-12 if len(values) <= 12 or len(set(sizes)) == 1 else 0.06)
    assert sign_flip_test([-value for value in values]) == p
    assert sign_flip_test([value / 7 for value in values]) == pytest.approx(p, abs=1e-12)
    assert sign_flip_test([0.0, *values, 0.0]) == p


def test_a_sampled_p_value_is_exact_where_it_matters_and_never_zero():
    """Near the threshold all patterns of the sample are used; with none as extreme it is one of so many and
    one.
    """
    values = [float(n) for n in range(1, 31)]
    assert sign_flip_test(values) == 1 / 10_000
    values[20:26] = [-value for value in values[20:26]]
    p = sign_flip_test(values)
    assert (p * 10_000) == pytest.approx(round(p * 10_000), abs=1e-9) and 0.03 < p < 0.2
    assert 0.5 < sign_flip_test([(-1) ** n * (20.0 + n) for n in range(24)]) <= 1.0
    many = [
        1.0 + n / 200 for n in range(200)
    ]  # in several blocks of patterns: all where p is small, those of the first where it is not
    small, large = (
        sign_flip_test([*many[:82], *(-value for value in many[82:110]), *many[110:], *many[:20]]),
        sign_flip_test([*many, *(-v for v in many)]),
    )
    assert small == 1 / 10_000 and large == 1.0
    unsure = sign_flip_test([-value if n % 2 == 0 and n < 176 else value for n, value in enumerate(many)])
    assert unsure * 10_000 == pytest.approx(round(unsure * 10_000), abs=1e-6) and 1e-4 < unsure < 0.2
    assert sign_flip_test([2.0] * 14 + [-2.0] * 6 + [0.0]) == mcnemar_exact(
        6, 14
    )  # of one size: no sample is needed


@settings(max_examples=15)
@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=3),
            st.lists(st.integers(0, 1), min_size=1, max_size=3),
        ),
        min_size=1,
        max_size=2,
    )
)
def test_permutation_within_strata_is_near_all_permutations(strata):
    """The p value is the share of assignments within each stratum that differ as much, but for the sample of
    them.
    """
    seen = sum(
        (Fraction(sum(head), len(head)) - Fraction(sum(base), len(base)) for base, head in strata),
        Fraction(0),
    )
    ways = []
    for base, head in strata:
        pooled = base + head
        ways.append(
            [
                Fraction(sum(pooled[i] for i in range(len(pooled)) if i not in taken), len(head))
                - Fraction(sum(pooled[i] for i in taken), len(base))
                for taken in itertools.combinations(range(len(pooled)), len(base))
            ]
        )
    sums = [abs(sum(parts)) for parts in itertools.product(*ways)]
    exact = sum(value >= abs(seen) for value in sums) / len(sums)
    assert stratified_permutation_test(strata) == pytest.approx(exact, abs=0.03)


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from([0.5, 1.0, 2.0])), min_size=1, max_size=5))
def test_holm_is_the_closure_of_weighted_bonferroni(asked):
    """A question is answered if every set of questions with it is, each by Bonferroni with the weights of
    that set.
    """
    p_values, weights = [p for p, _ in asked], [w for _, w in asked]

    def of_set(places):
        total = math.fsum(weights[i] for i in places)
        return min(1.0, min(total / weights[i] * p_values[i] for i in places))

    sets = [
        places
        for size in range(1, len(asked) + 1)
        for places in itertools.combinations(range(len(asked)), size)
    ]
    wanted = [max(of_set(places) for places in sets if i in places) for i in range(len(asked))]
    assert holm_adjust(p_values, weights) == pytest.approx(wanted)
    if len(set(weights)) == 1:
        assert holm_adjust(p_values) == pytest.approx(wanted)


def test_a_t_test_says_nothing_where_nothing_is_known():
    """One value says nothing; values that all agree contradict zero for certain, unless they are zero."""
    assert t_test(NOTHING) == t_test(mean_interval([3.0])) == 1.0
    assert (t_test(mean_interval([2.0, 2.0])), t_test(mean_interval([0.0, 0.0]))) == (0.0, 1.0)
    assert t_test(Interval(mean=1.0, low=0.0, high=2.0, se=0.5, clusters=1)) == 1.0
    two = mean_interval([1.0, 2.0])
    assert two.clusters == 2 and 0 < t_test(two) < 1


@given(st.floats(0.01, 10), st.integers(1, 40), st.sampled_from([0.01, 0.05, 0.1]))
def test_the_detectable_mean_is_the_sum_of_two_quantiles(se, df, alpha):
    """Times the standard error; without degrees of freedom or a standard error nothing can be detected."""
    assert detectable_mean(se, df, alpha=alpha) == pytest.approx(
        (scipy.stats.t.ppf(1 - alpha / 2, df) + scipy.stats.t.ppf(POWER, df)) * se
    )
    assert detectable_mean(se, 0) == detectable_mean(math.nan, df) == math.inf


@settings(max_examples=20)
@given(st.integers(1, 16), st.floats(0, 0.6), st.floats(0, 0.4), st.sampled_from([0.01, 0.05, 0.0625, 0.2]))
def test_the_power_of_mcnemar_is_the_sum_over_all_outcomes(n, worse, better, alpha):
    """Of all numbers of flips each way, the chance of those for which the test says that it got worse."""
    wanted = math.fsum(
        math.comb(n, w) * math.comb(n - w, b) * worse**w * better**b * (1 - worse - better) ** (n - w - b)
        for w in range(n + 1)
        for b in range(n - w + 1)
        if w > b and mcnemar_exact(w, b) <= alpha
    )
    assert mcnemar_power(n, worse, better, alpha=alpha) == pytest.approx(wanted, abs=1e-9)
    assert (
        mcnemar_power(5, 1.0, 0.0, alpha=0.0625),
        mcnemar_power(5, 1.0, 0.0, alpha=0.0624),
    ) == pytest.approx((1.0, 0.0))


@settings(max_examples=20)
@given(st.integers(1, 60), st.floats(0, 1), st.sampled_from([0.01, 0.05, 0.2]))
def test_the_detectable_drop_is_just_detectable(n, flips, alpha):
    """At it the power is reached and a little below it is not; where not even a fall from all to none is
    found it is infinite.
    """
    found = detectable_drop(n, flips, alpha=alpha)

    def power(drop):
        share = max(flips, drop)
        return mcnemar_power(n, (share + drop) / 2, (share - drop) / 2, alpha=alpha)

    if mcnemar_exact(n, 0) > alpha:
        assert found == math.inf
    else:
        assert power(found) >= POWER > power(found - 1e-5)


@given(numbers, samples, st.sampled_from([0.001, 60.0, 1000.0]))
def test_an_interval_in_another_unit_is_that_of_the_values_in_it(shift, values, factor):
    """Seconds or milliseconds: mean, ends and standard error are those of the values times the factor; one of
    nothing stays so.
    """
    values = [value + shift for value in values]
    found, wanted = mean_interval(values).times(factor), mean_interval([factor * value for value in values])
    assert (found.mean, found.low, found.high, found.se) == pytest.approx(
        (wanted.mean, wanted.low, wanted.high, wanted.se), abs=1e-9
    )
    assert (found.n, found.clusters) == (wanted.n, wanted.clusters)
    assert math.isnan(NOTHING.times(factor).mean) and math.isnan(NOTHING.times(factor).high)


@given(st.floats(-30, 30), st.sampled_from([1, 2, 3, 7, 30, 400, 20_000]), st.floats(0.001, 0.999))
def test_the_distribution_of_student_is_that_of_another_library(t, df, probability):
    """Chances to twelve digits of their own, in the tails too, and quantiles as well."""
    assert t_below(t, df) == pytest.approx(scipy.special.stdtr(df, t), rel=1e-9, abs=1e-300)
    assert t_quantile(probability, df) == pytest.approx(scipy.special.stdtrit(df, probability), abs=1e-9)
    assert (t_below(math.inf, df), t_below(-math.inf, df), t_below(0.0, df)) == (1.0, 0.0, 0.5)


@given(st.integers(0, 600).flatmap(lambda n: st.tuples(st.integers(-1, n), st.just(n))), st.floats(0, 1))
def test_the_binomial_distribution_is_that_of_another_library(tries, p):
    """At most so many successes; none fewer than zero, and never more than there are tries."""
    k, n = tries
    wanted = 0.0 if k < 0 else scipy.special.bdtr(k, n, p)
    assert at_most(k, n, p) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
