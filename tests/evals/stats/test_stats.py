"""Known answers of the statistics, and how often they are wrong on made-up data whose truth is known."""

import math
import random
from fractions import Fraction
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.evals.stats.intervals_and_tests import (
    Interval,
    Moments,
    holm_adjust,
    mcnemar_exact,
    mean_interval,
    newcombe_interval,
    paired_difference,
    proportion_interval,
    proportion_of,
    sign_flip_test,
    stratified_permutation_test,
    t_quantile,
    wilson_interval,
    wilson_proportion,
)


def rejections(clusters: int, size: int, icc: float, rounds: int) -> tuple[float, float]:
    """How often a true difference of zero is rejected: trials taken as independent, and clustered."""
    rng = random.Random(1)
    naive = clustered = 0
    for _ in range(rounds):
        values, labels = [], []
        for label in range(clusters):
            shared = rng.gauss(0, math.sqrt(icc))
            values += [shared + rng.gauss(0, math.sqrt(1 - icc)) for _ in range(size)]
            labels += [label] * size
        zeros = [0.0] * len(values)
        naive += paired_difference(zeros, values).excludes(0)
        clustered += paired_difference(zeros, values, labels).excludes(0)
    return naive / rounds, clustered / rounds


@pytest.mark.parametrize(("clusters", "size", "icc", "wrong"), [(50, 10, 0.71, 0.469), (12, 5, 0.5, 0.262)])
def test_clustering_keeps_false_alarms_at_five_percent(clusters, size, icc, wrong):
    """Where trials of a scenario resemble each other, independence finds differences that are not there;
    clusters do not.
    """
    naive, clustered = rejections(clusters, size, icc, 600)
    assert naive == pytest.approx(wrong, abs=0.06)
    assert clustered == pytest.approx(0.05, abs=0.025)


def test_pairing_beats_two_samples():
    """On 100 binary outcomes with correlation .6, the paired standard error is .0436 where the unpaired is
    .0692.
    """
    rng = random.Random(2)
    paired, unpaired = [], []
    for _ in range(300):
        base = [float(rng.random() < 0.6) for _ in range(100)]
        head = [b if rng.random() < 0.6 else float(rng.random() < 0.6) for b in base]
        paired.append(paired_difference(base, head).se)
        unpaired.append(math.hypot(mean_interval(base).se, mean_interval(head).se))
    assert sum(paired) / 300 == pytest.approx(0.0436, abs=0.001)
    assert sum(unpaired) / 300 == pytest.approx(0.0692, abs=0.001)


def test_six_one_way_flips_are_needed():
    """McNemar's exact test, the sign-flip test and the interval of agreeing scenarios all need six of six."""
    assert [k for k in range(12) if mcnemar_exact(k, 0) < 0.05] == [6, 7, 8, 9, 10, 11]
    assert mcnemar_exact(0, 0) == 1.0
    assert mcnemar_exact(7, 1) == pytest.approx(0.0703125)
    for k in (5, 6):
        assert (sign_flip_test([-1.0] * k) < 0.05) == (k == 6)
        assert paired_difference([1.0] * k, [0.0] * k, bounded=True).excludes(0) == (k == 6)


@given(st.lists(st.integers(-3, 3), max_size=8))
def test_sign_flip_is_exact(steps):
    """It is the share of sign patterns whose sum is at least as far from zero."""
    moved = [s for s in steps if s]
    sums = [
        abs(sum(s * sign for s, sign in zip(moved, signs, strict=True)))
        for signs in product((-1, 1), repeat=len(moved))
    ]
    expected = Fraction(sum(s >= abs(sum(moved)) for s in sums), len(sums))
    assert sign_flip_test([s / 3 for s in steps]) == pytest.approx(float(expected))


def test_sign_flip_by_sample_is_near_the_exact_value():
    """With more differences than can be enumerated a fixed sample of patterns gives a steady, valid value."""
    values = [0.1 * k for k in range(1, 15)] + [-0.75, -0.35]
    assert sign_flip_test(values) == sign_flip_test(values)
    assert 0 < sign_flip_test(values) < 0.01


def test_permutation_within_scenarios():
    """Three scenarios that all turn from pass to fail in ten trials are told; equal ones are not."""
    assert stratified_permutation_test([([1.0] * 10, [0.0] * 10)] * 3) == pytest.approx(1e-4)
    assert stratified_permutation_test([([1.0, 0.0] * 5, [0.0, 1.0] * 5), ([1.0] * 10, [1.0] * 10)]) == 1.0
    assert stratified_permutation_test([([1.0], [0.0])]) == 1.0


def test_permutation_keeps_false_alarms_down():
    """Scenarios of very different difficulty, the same on both sides: at most 5 % are called different."""
    rng = random.Random(3)
    alarms = 0
    for _ in range(200):
        rates = [rng.random() for _ in range(4)]
        strata = [
            ([float(rng.random() < r) for _ in range(8)], [float(rng.random() < r) for _ in range(8)])
            for r in rates
        ]
        alarms += stratified_permutation_test(strata) < 0.05
    assert alarms / 200 <= 0.08


def test_clusters_of_one_rate_are_no_certainty():
    """Two scenarios that both pass 2 of 3 times have the interval of two observations, not one of no width;
    also when added up.
    """
    found = proportion_interval([1, 1, 0] * 2, [0, 0, 0, 1, 1, 1])
    assert (found.low, found.high) == wilson_interval(2 / 3 * 2, 2)
    clusters = [(Moments(), 1.0), (Moments(), 1.0)]
    for moments, _ in clusters:
        for value in (1.0, 1.0, 0.0):
            moments.add(value)
    added = proportion_of(clusters)
    assert (added.low, added.high) == pytest.approx((found.low, found.high))


def test_wilson_reaches_exactly_the_edge():
    """None of n is an interval from 0, all of n one to 1: no rounding shows as 2.8e-15 %."""
    assert {wilson_interval(0, n)[0] for n in range(1, 60)} == {0.0}
    assert {wilson_interval(n, n)[1] for n in range(1, 60)} == {1.0}


def test_wilson_and_newcombe_are_the_published_values():
    """Newcombe 1998: 56/70 against 48/80 differ by .2 with the interval (.0524, .3339)."""
    assert wilson_interval(81, 263) == pytest.approx((0.2553, 0.3662), abs=1e-4)
    assert wilson_interval(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    found = newcombe_interval((48, 80), (56, 70))
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    assert (found.se, found.n) == (pytest.approx(math.sqrt(0.6 * 0.4 / 80 + 0.8 * 0.2 / 70)), 150)
    one = wilson_proportion(81, 263)
    assert (one.mean, one.low, one.high, one.n) == (81 / 263, *wilson_interval(81, 263), 263)


def test_an_interval_is_written_as_far_as_it_is_known():
    """With both of its ends, or the mean alone."""
    assert Interval(mean=0.5, low=0.25, high=0.75).text("{:.0%}".format) == "50% (25% to 75%)"
    assert Interval(mean=0.5, low=0.25, high=0.75).text(str, ", ") == "0.5 (0.25, 0.75)"
    assert Interval(mean=0.5, low=math.nan, high=math.nan).text(str) == "0.5"


def test_mean_interval_known_values():
    """A plain t interval without clusters; equal repeats in clusters add no certainty; weights weigh."""
    plain = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert (plain.mean, plain.se, plain.low, plain.high) == pytest.approx(
        (2.5, 0.645497, 0.445739, 4.554261), abs=1e-6
    )
    repeated = mean_interval([1.0, 2.0, 3.0, 4.0] * 5, list("abcd") * 5)
    assert (repeated.se, repeated.low, repeated.clusters, repeated.n) == (
        pytest.approx(plain.se),
        pytest.approx(plain.low),
        4,
        20,
    )
    assert mean_interval([0.0, 1.0], weights=[1.0, 3.0]).mean == 0.75
    assert t_quantile(0.975, 9) == pytest.approx(2.2621572)


def test_too_little_says_nothing():
    """No value or one value has no interval, and it excludes nothing."""
    for interval in (mean_interval([]), mean_interval([3.0]), paired_difference([1.0], [2.0])):
        assert (math.isnan(interval.low), interval.excludes(0.0)) == (True, False)


def test_proportions_stay_honest_at_the_edges():
    """All passes are not certainty: the interval is as wide as the number of scenarios allows, repeats or
    not.
    """
    once = proportion_interval([1.0] * 10, list(range(10)))
    often = proportion_interval([1.0] * 50, list(range(10)) * 5)
    assert (once.low, once.high) == (often.low, often.high) == (pytest.approx(0.7225, abs=1e-4), 1.0)
    alone = proportion_interval([1.0] * 4, ["a"] * 4)
    assert alone.low == pytest.approx(wilson_interval(4, 4)[0])
    mixed = proportion_interval([1, 1, 1, 0, 1, 1, 0, 0, 1, 1, 1, 1], [1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6])
    assert 0 < mixed.low < mixed.mean == 0.75 < mixed.high <= 1


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=1, max_size=30))
def test_proportion_interval_holds_its_mean(trials):
    """Whatever the trials, 0 <= low <= mean <= high <= 1."""
    interval = proportion_interval([float(v) for v, _ in trials], [c for _, c in trials])
    assert 0 <= interval.low <= interval.mean + 1e-12 <= interval.high + 2e-12 <= 1 + 3e-12


def test_holm_adjusts_stepwise():
    """Known values, in the order given, never below the raw p and never above 1."""
    assert holm_adjust([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm_adjust([0.6, 0.9]) == [1.0, 1.0]
    assert holm_adjust([]) == []


def test_interval_excludes():
    """Only values outside are excluded."""
    interval = Interval(mean=1.0, low=0.5, high=1.5)
    assert [interval.excludes(v) for v in (0.4, 0.5, 1.5, 1.6)] == [True, False, False, True]
