"""The draw is random with the probabilities it records, whatever the judge is sure of."""

import random
from collections import Counter
from statistics import fmean

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.labels.draw import draw_trials, inclusion_probabilities, with_repeats

RUNS = [f"run{n}" for n in range(200)]


def test_the_same_seed_gives_the_same_draw_and_a_larger_one_contains_it():
    """So a restart changes nothing, and more labels go on from those that are there."""
    few, many = (draw_trials(RUNS, number, seed=3) for number in (20, 50))
    assert few == draw_trials(list(reversed(RUNS)), 20, seed=3)
    assert {one.run for one in few} < {one.run for one in many}
    assert {one.run for one in few} != {one.run for one in draw_trials(RUNS, 20, seed=4)}
    assert [one.probability for one in few] == pytest.approx([0.1] * 20)


def test_probabilities_follow_the_uncertainty_and_none_is_zero():
    """They sum to what is drawn, a sure trial has half of the equal probability at least, none is above 1."""
    unsure = {run: float(n % 10 == 0) for n, run in enumerate(RUNS)}
    found = inclusion_probabilities(RUNS, 30, unsure)
    assert sum(found.values()) == pytest.approx(30)
    assert min(found.values()) >= 0.5 * 30 / 200
    assert max(found.values()) > 5 * min(found.values())
    certain = inclusion_probabilities(RUNS[:20], 18, unsure)
    assert sum(certain.values()) == pytest.approx(18)
    assert max(certain.values()) == 1


@pytest.mark.parametrize("active", [False, True])
def test_recorded_probabilities_are_the_true_ones(active):
    """Over many seeds each trial is drawn as often as its probability says, and comes at any place."""
    runs, unsure = RUNS[:40], {run: n / 40 for n, run in enumerate(RUNS[:40])} if active else None
    drawn, places, said = Counter(), {run: [] for run in runs}, {}
    for seed in range(500):
        for place, one in enumerate(draw_trials(runs, 10, seed=seed, unsure=unsure)):
            drawn[one.run] += 1
            places[one.run].append(place)
            said[one.run] = one.probability
    # Sequential Poisson sampling keeps the probabilities within a hundredth at this size; 4.5 standard errors.
    assert all(
        abs(drawn[run] / 500 - said[run]) < 0.012 + 4.5 * (said[run] * (1 - said[run]) / 500) ** 0.5
        for run in runs
    )
    assert all(3.6 < fmean(found) < 5.4 for found in places.values())


def test_weighting_undoes_what_a_judge_is_unsure_of():
    """A judge is unsure where it is wrong: the least sure trials alone say 10 points too much of its errors,
    those that are drawn and weighted say the truth.
    """
    rng, runs = random.Random(1), RUNS[:100]
    unsure = {run: rng.random() for run in runs}
    wrong = {run: float(rng.random() < unsure[run] / 2) for run in runs}
    truth = fmean(wrong.values())
    least_sure = fmean(wrong[run] for run in sorted(runs, key=unsure.__getitem__)[-30:])
    weighted = []
    for seed in range(250):
        drawn = draw_trials(runs, 30, seed=seed, unsure=unsure)
        weights = [1 / one.probability for one in drawn]
        hits = sum(w * wrong[one.run] for w, one in zip(weights, drawn, strict=True))
        weighted.append(hits / sum(weights))
    assert least_sure - truth > 0.1
    assert abs(fmean(weighted) - truth) < 0.015  # three standard errors


def test_a_tenth_comes_back_later():
    """Not at once, and with the probability of the first time."""
    drawn = with_repeats(draw_trials(RUNS, 50, seed=1), 1)
    places = {}
    for place, one in enumerate(drawn):
        places.setdefault(one.run, []).append((place, one.repeat))
    again = [found for found in places.values() if len(found) == 2]
    assert len(again) == 5
    assert all(second - first > 5 and repeated for (first, _), (second, repeated) in again)
    assert len(with_repeats(draw_trials(RUNS[:2], 2, seed=1), 1)) == 2


def test_nothing_is_no_draw():
    """A draw of no trials is refused."""
    with pytest.raises(UsageError, match="at least one trial"):
        draw_trials(RUNS, 0, seed=1)
