"""Differences between two sets of trials: how often they are false, when real ones are found, what is
said.
"""

import math
import random

import pytest

from kestrel_lab.evals.stats.difference import (
    Difference,
    compare_scenarios,
    detectable_mean,
    judge_alike,
    overall_verdict,
)
from kestrel_lab.evals.stats.distributions import at_most, t_quantile
from kestrel_lab.evals.stats.intervals_and_tests import Interval, newcombe_interval


def trials(rates, epochs, rng):
    """Passes and fails of scenarios with these true rates."""
    return {f"s{n}": [float(rng.random() < rate) for _ in range(epochs)] for n, rate in enumerate(rates)}


def verdict(base, head, *, bounded=True, better="higher", margin=0.05):
    """The verdict of one comparison."""
    found = judge_alike(
        [compare_scenarios(base, head, weights={}, bounded=bounded)],
        better=[better],
        margin=margin,
        relative=not bounded,
    )
    return found[0].verdict


@pytest.mark.parametrize(
    ("scenarios", "epochs", "rounds"), [(40, 1, 400), (12, 5, 300), (4, 8, 150), (3, 1, 100)]
)
def test_the_same_code_is_hardly_ever_called_different(scenarios, epochs, rounds):
    """A/A: scenarios of any difficulty, both sides alike; at most 5 % are called better or worse, but for
    chance.
    """
    rng = random.Random(scenarios)
    alarms = 0
    for _ in range(rounds):
        rates = [rng.choice((rng.random(), 0.95, 0.05)) for _ in range(scenarios)]
        alarms += verdict(trials(rates, epochs, rng), trials(rates, epochs, rng)) in (
            "regression",
            "improvement",
        )
    assert alarms / rounds <= 0.05 + 2 * math.sqrt(0.05 * 0.95 / rounds)


def test_a_drop_of_the_detectable_size_is_found():
    """50 scenarios, 20 % of which flip downwards: found in most comparisons; power is what the table says."""
    rng = random.Random(5)
    found = 0
    for _ in range(150):
        base = {f"s{n}": [float(rng.random() < 0.9)] for n in range(50)}
        head = {name: [0.0 if rng.random() < 0.2 else values[0]] for name, values in base.items()}
        found += verdict(base, head) == "regression"
    assert found / 150 > 0.8


def test_few_scenarios_speak_of_themselves():
    """Three scenarios that go from ten passes to ten fails are a regression of these scenarios; tried once
    they are nothing.
    """
    base, head = {f"s{n}": [1.0] * 10 for n in range(3)}, {f"s{n}": [0.0] * 10 for n in range(3)}
    found = compare_scenarios(base, head, weights={}, bounded=True)
    assert (found.scope, found.base, found.head, found.p) == (
        "these scenarios",
        1.0,
        0.0,
        pytest.approx(1e-4),
    )
    assert verdict(base, head) == "regression"
    assert (
        verdict(
            {name: values[:1] for name, values in base.items()},
            {name: values[:1] for name, values in head.items()},
        )
        == "inconclusive"
    )


def test_stable_needs_evidence():
    """No flip among ten scenarios is not yet stability within five points; among a hundred it is."""
    for count, said in ((10, "inconclusive"), (100, "stable")):
        same = {f"s{n}": [1.0] for n in range(count)}
        assert verdict(same, same) == said


def test_times_need_a_change_worth_telling():
    """A metric that is sure to have changed, but by less than the margin, is stable; by more, worse or
    better.
    """
    base = {f"s{n}": [10.0 + n] for n in range(10)}

    def times(factor):
        return {name: [values[0] * factor] for name, values in base.items()}

    assert verdict(base, times(1.01), bounded=False, better="lower") == "stable"
    assert verdict(base, times(1.5), bounded=False, better="lower") == "regression"
    assert verdict(base, times(0.5), bounded=False, better="lower") == "improvement"


def test_only_scenarios_of_both_sides_are_compared():
    """What one side lacks changes nothing; with nothing in common nothing is said."""
    base = {f"s{n}": [1.0] for n in range(8)}
    found = compare_scenarios(
        base | {"only": [0.0]}, base | {"other": [0.0], "empty": []}, weights={}, bounded=True
    )
    assert (found.scenarios, found.base, found.head) == (8, 1.0, 1.0)
    nothing = compare_scenarios({"a": [1.0]}, {"b": [1.0]}, weights={}, bounded=True)
    assert (nothing.scenarios, nothing.p, math.isnan(nothing.base)) == (0, 1.0, True)
    assert verdict({"a": [1.0]}, {"b": [1.0]}) == "inconclusive"


def test_weights_weigh():
    """A scenario of weight three counts like three."""
    base, head = {"a": [1.0], "b": [1.0]}, {"a": [0.0], "b": [1.0]}
    found = compare_scenarios(base, head, weights={"a": 3.0}, bounded=True)
    assert (found.base, found.head) == (1.0, 0.25)


def test_asking_more_asks_for_more_evidence():
    """Six flips of six suffice for one configuration, not for ten at once."""
    base, head = {f"s{n}": [1.0] for n in range(6)}, {f"s{n}": [0.0] for n in range(6)}
    one = compare_scenarios(base, head, weights={}, bounded=True)
    same = compare_scenarios(base, base, weights={}, bounded=True)
    judged = judge_alike([one, *[same] * 9], better=["higher"] * 10, margin=0.05, relative=False)
    assert (judged[0].p_holm, judged[0].verdict) == (pytest.approx(0.3125), "inconclusive")
    assert judge_alike([one], better=["higher"], margin=0.05, relative=False)[0].verdict == "regression"


def test_overall():
    """One regression is one; doubt outweighs what is fine; nothing compared is doubt."""
    assert overall_verdict(["stable", "regression", "inconclusive"]) == "regression"
    assert overall_verdict(["improvement", "inconclusive"]) == "inconclusive"
    assert overall_verdict(["improvement", "stable"]) == "improvement"
    assert (overall_verdict(["stable"]), overall_verdict([])) == ("stable", "inconclusive")


def test_few_scenarios_that_agree_can_detect_little():
    """All passes on both sides, or none on one: no spread is seen, and that is not a promise to see any
    change at all.
    """
    ones, zeros = {f"s{n}": [1.0] * 3 for n in range(4)}, {f"s{n}": [0.0] * 3 for n in range(4)}
    for head in (ones, zeros):
        assert compare_scenarios(ones, head, weights={}, bounded=True).mde > 0.25
    assert compare_scenarios({"a": [1.0]}, {"a": [1.0]}, weights={}, bounded=True).mde == math.inf
    assert compare_scenarios(ones, ones, weights={}, bounded=False).mde == math.inf


def test_detectable_difference_is_stated():
    """Tried once and with no flip seen, a drop after which most comparisons have six flips; with repeats, one
    after which most have six scenarios that lost a trial.
    """
    same = {f"s{n}": [1.0] for n in range(50)}
    assert compare_scenarios(same, same, weights={}, bounded=True).mde == pytest.approx(0.1535, abs=1e-4)
    often = {name: values * 5 for name, values in same.items()}
    drop = compare_scenarios(often, often, weights={}, bounded=True).mde
    assert 6 / 250 < drop == pytest.approx(0.0369, abs=0.001)
    assert 1 - at_most(5, 50, 1 - (1 - drop) ** 5) == pytest.approx(0.83, abs=0.05)
    assert isinstance(compare_scenarios(same, same, weights={}, bounded=True), Difference)
    assert compare_scenarios(same, same, weights={}, bounded=True).interval == Interval(
        mean=0.0,
        low=pytest.approx(-0.0711, abs=1e-4),
        high=pytest.approx(0.0711, abs=1e-4),
        se=0.0,
        clusters=50,
        n=50,
    )


def test_the_test_is_named_by_how_often_scenarios_were_tried():
    """McNemar's where each has one trial on both sides and the same weight, and values are 0 or 1; counts are
    of those that moved.
    """
    base = {f"s{n}": [float(n < 6)] for n in range(8)}
    head = {f"s{n}": [float(n < 4 or n == 7)] for n in range(8)}
    found = compare_scenarios(base, head, weights={}, bounded=True)
    assert (found.test, found.lower, found.higher, found.scenarios) == ("McNemar", 2, 1, 8)
    twice = {**head, "s0": [1.0, 1.0]}
    for other in (
        compare_scenarios(base, twice, weights={}, bounded=True),
        compare_scenarios(base, head, weights={"s0": 2.0}, bounded=True),
        compare_scenarios(base, head, weights={}, bounded=False),
    ):
        assert other.test == "sign flips"


@pytest.mark.parametrize(("before", "after"), [(1.0, 1.0), (0.0, 1.0), (1.0, 0.0)])
def test_few_scenarios_that_agree_can_detect_what_their_interval_spans(before, after):
    """Their spread is none, so the smallest detectable difference is that of a standard error as wide as the
    interval.
    """
    trials_of = {
        side: {name: [value] * 3 for name in "ab"} for side, value in (("base", before), ("head", after))
    }
    found = compare_scenarios(trials_of["base"], trials_of["head"], weights={}, bounded=True)
    wanted = newcombe_interval((6 * before, 6), (6 * after, 6))
    reach = max(wanted.high - wanted.mean, wanted.mean - wanted.low)
    assert found.mde == pytest.approx(detectable_mean(reach / t_quantile(0.975, 8), 8))
    assert 0.3 < reach < 0.6


def test_a_drop_that_too_few_scenarios_can_show_is_none():
    """Six signs must agree: where two of seven scenarios never pass, no drop is found; of forty such it is."""
    sides = [{str(n): [float(n % 7 > 1)] * 4 for n in range(size)} for size in (7, 42)]
    few, many = (compare_scenarios(one, one, weights={}, bounded=True).mde for one in sides)
    assert few == math.inf
    assert 0 < many < 0.3
