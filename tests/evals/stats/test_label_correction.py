"""Corrected rates: laws that hold for every sample, and coverage by simulation, each with its mutant."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import coverage
from kestrel_lab.evals.stats import label_correction
from kestrel_lab.evals.stats.intervals_and_tests import Interval, proportion_interval
from kestrel_lab.evals.stats.label_correction import JudgedSample, corrected_difference, corrected_rate

bits = st.sampled_from([0.0, 1.0])
trials = st.lists(
    st.tuples(bits, st.one_of(st.none(), bits), st.sampled_from("abcde"), st.floats(0.05, 1.0)),
    min_size=1,
    max_size=30,
)


def sample(rows):
    """The sample with these verdicts, labels, clusters and probabilities."""
    verdicts, labels, clusters, probabilities = zip(*rows, strict=True)
    return JudgedSample(verdicts=verdicts, labels=labels, clusters=clusters, probabilities=probabilities)


def ends(interval: Interval):
    """What is compared of an interval."""
    return pytest.approx((interval.mean, interval.low, interval.high), nan_ok=True, abs=1e-9)


@given(st.lists(st.tuples(bits, bits, st.sampled_from("abcde")), min_size=1, max_size=30))
def test_with_every_trial_labelled_it_is_the_rate_of_the_labels(rows):
    """Whatever the judge said, mean and interval are those of the labels as a plain rate."""
    verdicts, labels, clusters = zip(*rows, strict=True)
    found = corrected_rate(JudgedSample(verdicts=verdicts, labels=labels, clusters=clusters)).interval
    assert (found.mean, found.low, found.high) == ends(proportion_interval(labels, clusters))


@given(trials)
def test_passes_and_failures_exchanged_mirror_the_rate(rows):
    """The rate of failures is one less the rate of passes, and so are its ends; trust and worth stay."""
    there, other = (
        corrected_rate(sample(each))
        for each in (rows, [(1 - v, None if y is None else 1 - y, c, p) for v, y, c, p in rows])
    )
    turned = replace(
        other.interval, mean=1 - other.interval.mean, low=1 - other.interval.high, high=1 - other.interval.low
    )
    assert (turned.mean, turned.low, turned.high) == ends(there.interval)
    assert there.trust == pytest.approx(other.trust, abs=1e-9)


@given(trials, st.floats(0.1, 10), st.randoms())
def test_neither_order_nor_the_scale_of_probabilities_matters(rows, factor, random):
    """Trials may come in any order, and probabilities may be any multiple of the true ones."""
    mixed = [(v, y, c, factor * p) for v, y, c, p in rows]
    random.shuffle(mixed)
    one, other = corrected_rate(sample(rows)).interval, corrected_rate(sample(mixed)).interval
    assert (other.mean, other.low, other.high) == ends(one)


def test_a_difference_is_turned_round_with_its_sides_and_pairs_count():
    """Sides exchanged mirror it; the same trials on both sides leave only what pseudo-labels add."""
    chance = np.random.default_rng(2)
    base, head = coverage.lenient_suite(chance, 120, 40)
    there, back = corrected_difference(base, head), corrected_difference(head, base)
    assert (-back.mean, -back.high, -back.low) == ends(there)
    apart = replace(head, clusters=[f"other {one}" for one in head.clusters])
    assert corrected_difference(base, apart).se > 1.05 * there.se
    assert corrected_difference(base, base).se < 0.5 * corrected_rate(base).interval.se


def test_without_labels_of_two_clusters_nothing_is_said():
    """No interval, and how many labels there are."""
    for labels in ([None] * 4, [1.0, 0.0, None, None]):
        found = corrected_rate(JudgedSample(verdicts=[1.0] * 4, labels=labels, clusters=["a", "a", "b", "c"]))
        assert found.interval.low != found.interval.low
        assert found.interval.n == sum(label is not None for label in labels)
        assert found.sentence(4) == ""


def test_what_the_judge_is_worth():
    """An 85/85 judge on 1,000 trials makes 50 labels worth about 80; one that guesses adds next to nothing."""
    chance = np.random.default_rng(1)
    good = [corrected_rate(coverage.drawn_sample(chance, 0.7, 50, trials=1000)) for _ in range(40)]
    assert np.median([one.worth for one in good]) == pytest.approx(80, abs=6)
    assert good[0].sentence(1000).startswith("1,000 verdicts make 50 labels worth ")
    guessed = replace(
        coverage.drawn_sample(chance, 0.7, 50, trials=1000),
        verdicts=chance.integers(0, 2, 1000).astype(float).tolist(),
    )
    assert corrected_rate(guessed).worth < 60


@given(trials)
def test_a_judge_never_makes_labels_worth_less(rows):
    """Worth at least as many labels as there are; where the judge is of no use it is the rate of the labels."""
    found = corrected_rate(sample(rows))
    if found.interval.low == found.interval.low:
        assert found.worth >= found.interval.n - 1e-9
        assert 0 <= found.trust <= 1


def widths(rate, labels, sensitivity, specificity, repeats=150):
    """The mean width of corrected intervals as a share of that of the labels alone, and how often they hold
    the rate.
    """
    chance = np.random.default_rng(5)
    own, alone, covered = 0.0, 0.0, 0
    for _ in range(repeats):
        right = (chance.random(300) < rate).astype(float)
        verdicts = coverage.judged(chance, right, sensitivity, specificity)
        drawn = coverage.sample_of(verdicts, right, np.arange(300) < labels, np.arange(300))
        found, plain = corrected_rate(drawn).interval, coverage.labels_alone(drawn)
        own, alone = own + found.high - found.low, alone + plain.high - plain.low
        covered += not found.excludes(rate)
    return own / alone, covered / repeats


JUDGES = ((0.98, 0.98), (0.85, 0.85), (0.98, 0.3), (0.5, 0.5), (0.2, 0.3))
"""Sensitivity and specificity: nearly perfect, good, lenient, guessing, worse than that."""


@pytest.mark.parametrize(("rate", "labels"), [(0.5, 30), (0.9, 30), (0.98, 30), (0.9, 100)])
def test_intervals_are_no_wider_than_those_of_the_labels_alone(rate, labels):
    """By no more than 2 % on average, whatever the judge; a good one makes them narrower."""
    found = [widths(rate, labels, *judge)[0] for judge in JUDGES]
    assert max(found) <= 1.02
    assert found[0] < (0.85 if rate < 0.98 else 0.99)


def test_a_few_failures_do_not_make_a_judge_look_perfect(monkeypatch):
    """Mutant: without pseudo-labels a good judge at a rate of .95 leaves intervals that miss the truth."""
    assert widths(0.95, 30, 0.98, 0.98)[1] >= 0.92
    monkeypatch.setattr(label_correction, "_CELLS", ())
    assert widths(0.95, 30, 0.98, 0.98)[1] <= 0.9


def covers(rate, labels, repeats, **more):
    """How often the interval holds the truth."""
    chance = np.random.default_rng(31)
    found = [corrected_rate(coverage.drawn_sample(chance, rate, labels, **more)) for _ in range(repeats)]
    return sum(not one.interval.excludes(rate) for one in found) / repeats


@pytest.mark.long
@pytest.mark.parametrize("labels", [30, 100])
@pytest.mark.parametrize("more", [{}, {"epochs": 10}, {"unsure": True}], ids=str)
def test_corrected_rates_are_covered(labels, more):
    """Of 300 intervals at least 94 % hold the truth, less what chance allows, at rates of .5 and .95."""
    for rate in (0.5, 0.95):
        assert covers(rate, labels, 300, **more) >= 0.92


@pytest.mark.long
def test_each_part_of_the_method_is_needed():
    """Mutants: without clusters the truth is missed far too often, and without the probabilities of drawing the
    rate is biased.
    """
    chance, alone, errors = np.random.default_rng(31), 0, []
    for _ in range(200):
        clustered = replace(coverage.drawn_sample(chance, 0.7, 100, epochs=10), clusters=None)
        alone += corrected_rate(clustered).interval.excludes(0.7)
        unequal = coverage.drawn_sample(chance, 0.7, 100, unsure=True)
        both = (unequal, replace(unequal, probabilities=()))
        errors.append([corrected_rate(one).interval.mean - 0.7 for one in both])
    weighted, unweighted = abs(np.mean(errors, axis=0))
    assert alone / 200 > 0.15
    assert weighted < 0.015 < 0.02 < unweighted


@pytest.mark.long
def test_a_judge_that_likes_the_worse_one_does_not_decide():
    """With B ten points worse the verdicts alone call it better in one suite of six or more; corrected, at
    most in one of a hundred.
    """
    found = coverage.lenient(np.random.default_rng(31), 200)
    assert found["verdicts alone"][0] > 0.14
    assert all(
        better <= 0.01 and covered > 0.92
        for name, (better, _, covered) in found.items()
        if name != "verdicts alone"
    )
