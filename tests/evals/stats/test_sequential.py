"""Comparisons that are looked at while they run keep their error over all looks together."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.sequential import looks_of, simulated_pairs
from kestrel_lab.evals.stats import sequential
from kestrel_lab.evals.stats.intervals_and_tests import wilson_interval
from kestrel_lab.evals.stats.sequential import (
    AnytimeValid,
    Boundary,
    GroupSequential,
    detectable_by,
    difference_variance,
    information_fractions,
    repeated_interval,
    spent_error,
)

SPENDINGS = ("pocock", "obrien-fleming")


@pytest.mark.parametrize(
    ("spending", "published"),
    [
        ("pocock", [2.438, 2.427, 2.410, 2.397, 2.386]),
        ("obrien-fleming", [4.877, 3.357, 2.680, 2.290, 2.031]),
    ],
)
def test_boundaries_are_the_published_ones(spending, published):
    """Five equal looks have the boundaries of Lan and DeMets' designs that the tables give."""
    boundary = Boundary(spending)
    assert [boundary.next(number / 5) for number in range(1, 6)] == pytest.approx(published, abs=2e-3)


def test_one_look_is_the_usual_test():
    """A design of a single look has the quantile of a fixed design."""
    for spending in SPENDINGS:
        assert Boundary(spending).next(1.0) == pytest.approx(1.96, abs=1e-3)


@given(fractions=st.lists(st.floats(0.01, 1.0), min_size=2, max_size=8).map(sorted))
@settings(max_examples=25, deadline=None)
def test_error_is_spent_in_order_and_never_more_than_all(fractions):
    """What is spent rises with the information, from nothing to the whole error."""
    for spending in SPENDINGS:
        spent = [spent_error(one, spending) for one in fractions]
        assert all(0 <= before <= after <= 0.05 for before, after in pairwise(spent))
        assert spent_error(1.0, spending) == 0.05
        assert spent_error(0.0, spending) == 0.0


@given(values=st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=6, max_size=40))
@settings(max_examples=25, deadline=None)
def test_the_sides_are_alike(values):
    """Swapping base and head swaps better and worse, and mirrors the interval."""
    for test in (GroupSequential, AnytimeValid):
        one = test(matters=0.05).look(dict(enumerate_names(values)), pairs=len(values), fraction=1.0)
        other = test(matters=0.05).look(
            dict(enumerate_names([-value for value in values])), pairs=len(values), fraction=1.0
        )
        swapped = {"regression": "improvement", "improvement": "regression"}
        assert other.verdict == swapped.get(one.verdict, one.verdict)
        assert other.interval.low == pytest.approx(-one.interval.high, abs=2e-4)


def enumerate_names(values):
    """Values by made-up names of scenarios."""
    return ((f"s{place}", value) for place, value in enumerate(values))


def test_scenarios_that_never_differed_are_no_certainty():
    """Where no scenario of a few differed, the interval has a width, and equality is not claimed."""
    few = GroupSequential(matters=0.05).look({f"s{n}": 0.0 for n in range(30)}, pairs=30, fraction=1.0)
    assert few.verdict == "inconclusive"
    assert few.interval.low < -0.05
    many = GroupSequential(matters=0.05).look({f"s{n}": 0.0 for n in range(400)}, pairs=400, fraction=1.0)
    assert many.verdict == "stable"


def test_one_scenario_shows_nothing():
    """A single scenario never decides, whatever it says."""
    look = GroupSequential(matters=0.05).look({"s": -1.0}, pairs=1, fraction=1.0)
    assert (look.verdict, look.interval.low, look.interval.high) == ("inconclusive", -1.0, 1.0)
    assert math.isnan(repeated_interval([], 2.0).mean)


def test_repeats_tell_less_than_scenarios():
    """As many pairs find a smaller drop as more scenarios than as more epochs; a plan of few finds none."""
    found = [detectable_by(n, 180 // n, power=0.8, looks=[(1.0, 1.96)]) for n in (180, 90, 60, 18)]
    assert found == sorted(found)
    assert detectable_by(4, 10, power=0.8, looks=[(1.0, 1.96)]) == math.inf
    assert detectable_by(1, 10, power=0.8, looks=[(1.0, 1.96)]) == math.inf
    # The usual formula, from the variance at that drop.
    se = math.sqrt(difference_variance(found[2], 3) / 60)
    assert found[2] == pytest.approx((2.0010 + 0.8478) * se, rel=2e-3)


def test_the_variance_is_that_of_simulated_trials():
    """What a plan reckons with is what the simulation of agents has: at no difference and at one."""
    for worse_by, epochs in ((0.0, 1), (0.1, 1), (0.1, 3)):
        pairs = simulated_pairs(Random(5), 6000, epochs, worse_by)
        means = [sum(row) / epochs for row in pairs]
        mean = sum(means) / len(means)
        assert mean == pytest.approx(-worse_by, abs=0.02)
        variance = sum((one - mean) ** 2 for one in means) / len(means)
        assert variance == pytest.approx(difference_variance(worse_by, epochs), rel=0.07)


def test_information_is_all_at_the_end():
    """Shares of information rise to 1, and first pairs bring more of it than repeats."""
    shares = information_fractions([30, 60, 120, 180], 60)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert shares[1] > 60 / 180


def false_verdicts(make, comparisons, scenarios=120, looks=12):
    """How often a comparison of the same arm with itself is told to differ."""
    random, told = Random(7), 0
    counts = [scenarios * number // looks for number in range(1, looks + 1)]
    fractions = information_fractions(counts, scenarios)
    for number in range(comparisons):
        test = make(number)
        pairs = simulated_pairs(random, scenarios, 1, 0.0)
        for look, count, fraction in zip(looks_of(pairs, counts), counts, fractions, strict=True):
            verdict = test.look(look, pairs=count, fraction=fraction).verdict
            if verdict != "inconclusive":
                told += verdict != "stable"
                break
    return told


class SpendsAllAtEachLook(GroupSequential):
    """The mutant: each look has the whole error for itself, as somebody who peeks has."""

    def look(self, differences, *, pairs, fraction):
        """Begin anew."""
        del fraction
        anew = GroupSequential(matters=self._matters, seed=pairs)
        return anew.look(differences, pairs=pairs, fraction=1.0)


@pytest.mark.long
def test_twelve_looks_keep_the_error_and_a_peeking_mutant_does_not(monkeypatch):
    """Of 300 comparisons without a difference at most as many are told one as 5 % allow; the mutant tells
    one in significantly more.
    """
    monkeypatch.setattr(sequential, "FLIPS", 200)  # a look spends half a percent, which is enough here
    told = false_verdicts(lambda seed: GroupSequential(matters=0.02, seed=seed), 300)
    assert wilson_interval(told, 300)[0] <= 0.05
    peeking = false_verdicts(lambda _seed: SpendsAllAtEachLook(matters=0.02), 300)
    assert wilson_interval(peeking, 300)[0] > 0.05


def test_a_large_difference_ends_early():
    """Where head fails every scenario that base passes, an early look decides, and bets do so soon."""
    test, counts = GroupSequential(matters=0.05), [10, 20, 30, 40, 50, 60]
    pairs = [[-1]] * 60
    looks = zip(looks_of(pairs, counts), counts, information_fractions(counts, 60), strict=True)
    verdicts = [test.look(look, pairs=count, fraction=share).verdict for look, count, share in looks]
    assert verdicts.index("regression") <= 1
    bets = AnytimeValid(matters=0.05)
    assert bets.look({f"s{n}": -1.0 for n in range(20)}, pairs=20).verdict == "regression"
