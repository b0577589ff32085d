"""Corrections and agreement beside `truescore`, an independent implementation of the same methods."""

from random import Random

import pytest

from kestrel_lab.evals.labels.agreement import cohen_kappa, krippendorff_alpha
from kestrel_lab.evals.stats.label_correction import JudgedSample, corrected_rate


@pytest.fixture(scope="module")
def truescore():
    """The oracle; with SciPy it takes a second to import, which each worker that collects would spend."""
    return pytest.importorskip("truescore", reason="the oracle is not installed: make .venv/.dev")


def judged(trials, labelled, *, sensitivity, specificity, rate, seed):
    """Verdicts of a judge on trials, and labels of some."""
    random = Random(seed)
    truth = [random.random() < rate for _ in range(trials)]
    right = [random.random() < (sensitivity if one else specificity) for one in truth]
    verdicts = [float(one == kept) for one, kept in zip(truth, right, strict=True)]
    places = sorted(random.sample(range(trials), labelled))
    return verdicts, {place: float(truth[place]) for place in places}


@pytest.mark.parametrize(("sensitivity", "specificity"), [(0.9, 0.8), (0.6, 0.5), (0.2, 0.3)])
def test_corrected_rates_of_large_samples_are_those_of_truescore(truescore, sensitivity, specificity):
    """With 2,000 labels the pseudo-labels weigh nothing, and Student's t is normal: rate, interval and the
    trust in the judge are the same, whether the judge is good, a coin or mostly wrong.
    """
    verdicts, labels = judged(
        20_000, 2_000, sensitivity=sensitivity, specificity=specificity, rate=0.7, seed=3
    )
    mine = corrected_rate(
        JudgedSample(verdicts=verdicts, labels=[labels.get(place) for place in range(len(verdicts))])
    )
    theirs = truescore.ppi_estimate(verdicts, [*labels.values()], [*labels])
    assert mine.interval.mean == pytest.approx(theirs.point, abs=0.002)
    assert (mine.interval.low, mine.interval.high) == pytest.approx((theirs.low, theirs.high), abs=0.003)
    assert mine.trust == pytest.approx(min(1.0, max(0.0, theirs.lambda_)), abs=0.15)


def test_intervals_of_few_labels_are_wider_than_those_of_truescore(truescore):
    """Fifty labels: ours allow for what the normal approximation leaves out, at a similar rate."""
    verdicts, labels = judged(1_000, 50, sensitivity=0.9, specificity=0.8, rate=0.8, seed=5)
    mine = corrected_rate(
        JudgedSample(verdicts=verdicts, labels=[labels.get(place) for place in range(len(verdicts))])
    ).interval
    theirs = truescore.ppi_estimate(verdicts, [*labels.values()], [*labels])
    assert mine.high - mine.low > theirs.high - theirs.low
    assert mine.mean == pytest.approx(theirs.point, abs=0.05)


def test_agreement_is_that_of_truescore(truescore):
    """Alpha of three raters with gaps, and kappa of two: the same to rounding."""
    random = Random(7)
    truth = [random.random() < 0.6 for _ in range(80)]
    rated = [
        {who: int(one == (random.random() < 0.85)) for who in "abc" if random.random() < 0.8} for one in truth
    ]
    rows = [[given.get(who, float("nan")) for given in rated] for who in "abc"]
    units = {str(place): given for place, given in enumerate(rated)}
    assert krippendorff_alpha(units).mean == pytest.approx(truescore.krippendorff_alpha(rows))
    both = {
        place: {who: given[who] for who in "ab"} for place, given in units.items() if {"a", "b"} <= {*given}
    }
    one, other = ([given[who] for given in both.values()] for who in "ab")
    assert cohen_kappa(both).mean == pytest.approx(truescore.cohen_kappa(one, other))
