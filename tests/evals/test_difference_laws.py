"""Laws of the difference between two sets of trials: what must not matter, and what must turn round."""

import math
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.evals.stats.difference import compare_scenarios

passes = st.lists(st.sampled_from([0.0, 1.0]), min_size=1, max_size=3)
amounts = st.lists(st.integers(1, 40).map(float), min_size=1, max_size=3)


@st.composite
def sides(draw, values):
    """Trials of the same scenarios on two sides, and their weights."""
    names = [f"s{n}" for n in range(draw(st.integers(1, 8)))]
    weights = {name: draw(st.sampled_from([1.0, 1.0, 2.0])) for name in names}
    return {name: draw(values) for name in names}, {name: draw(values) for name in names}, weights


def same(one, other):
    """Whether two numbers are alike, or both are nothing."""
    return (math.isnan(one) and math.isnan(other)) or one == pytest.approx(other, abs=1e-9)


@settings(max_examples=40)
@given(
    st.one_of(sides(passes).map(lambda made: (*made, True)), sides(amounts).map(lambda made: (*made, False)))
)
def test_exchanging_the_sides_turns_the_difference_round(made):
    """Levels, ends and counts change places; how sure it is and what it speaks of stay. What could be
    detected is a drop from the base, so of shares it is another one from the other side.
    """
    base, head, weights, bounded = made
    found = compare_scenarios(base, head, weights=weights, bounded=bounded)
    turned = compare_scenarios(head, base, weights=weights, bounded=bounded)
    assert (found.base, found.head, found.lower, found.higher) == (
        turned.head,
        turned.base,
        turned.higher,
        turned.lower,
    )
    assert same(found.interval.mean, -turned.interval.mean)
    assert same(found.interval.low, -turned.interval.high)
    assert bounded or same(found.mde, turned.mde)
    assert (found.scenarios, found.scope, found.test, found.p_holm) == (
        turned.scenarios,
        turned.scope,
        turned.test,
        found.p,
    )
    if found.scope == "scenarios like these":  # with fewer, p is sampled
        assert same(found.p, turned.p)


@settings(max_examples=40)
@given(sides(passes))
def test_levels_are_means_of_scenarios_and_counts_are_of_scenarios(made):
    """Each scenario counts by its weight, however often it was tried, and as lower, higher or neither."""
    base, head, weights = made
    found = compare_scenarios(base, head, weights=weights, bounded=True)
    total = sum(weights.values())
    for told, side in ((found.base, base), (found.head, head)):
        assert told == pytest.approx(sum(weights[name] * fmean(side[name]) for name in side) / total)
    moved = [fmean(head[name]) - fmean(base[name]) for name in base]
    assert (found.scenarios, found.lower, found.higher) == (
        len(moved),
        sum(x < 0 for x in moved),
        sum(x > 0 for x in moved),
    )
    assert found.scope == ("scenarios like these" if len(moved) >= 6 else "these scenarios")
    once = len(set(weights.values())) == 1 and all(
        len(side[name]) == 1 for side in (base, head) for name in side
    )
    assert found.test == ("permutation" if len(moved) < 6 else "McNemar" if once else "sign flips")
    assert found.interval.low <= found.interval.mean <= found.interval.high
    assert found.mde > 0 or math.isnan(found.mde)
