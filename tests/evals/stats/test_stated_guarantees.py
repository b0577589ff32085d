"""What the statistics state, by simulations whose truth is known; each has its mutant, which breaks the bound.

`python -m bench coverage` has more settings and more repeats.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import coverage
from kestrel_lab.evals.stats.intervals_and_tests import mean_interval
from kestrel_lab.evals.stats.skewed_means import amount_interval

amounts = st.lists(st.floats(0, 1e6), min_size=1, max_size=12)


@given(amounts, st.floats(0.01, 1e3))
def test_an_interval_of_an_amount_holds_its_mean_and_follows_the_unit(values, factor):
    """In cents it is a hundred times that in dollars; no end is below zero; a single value has none."""
    found, scaled = amount_interval(values), amount_interval([factor * one for one in values])
    assert found.mean == pytest.approx(mean_interval(values).mean)
    if len(values) < 2:
        assert math.isnan(found.low)
        return
    assert -1e-9 <= found.low <= found.mean * (1 + 1e-9) + 1e-9
    assert found.high >= found.mean * (1 - 1e-9)
    assert scaled.high == pytest.approx(factor * found.high, rel=1e-4, abs=1e-9 * factor)


def test_means_of_long_tails_are_covered():
    """Log-normal amounts of 30 tasks: at least 93 % of the intervals hold the true mean; the mutant, Student's
    interval, misses one in five.
    """
    chance, repeats, truth = np.random.default_rng(6), 300, math.exp(1.5**2 / 2)
    drawn = [chance.lognormal(0, 1.5, 30).tolist() for _ in range(repeats)]
    assert sum(not amount_interval(values).excludes(truth) for values in drawn) / repeats >= 0.93
    assert sum(not mean_interval(values).excludes(truth) for values in drawn) / repeats < 0.85


def test_amounts_that_say_little_keep_the_interval_of_their_mean():
    """One cluster, equal amounts, and numbers below zero."""
    for values, clusters in (([1.0, 2.0, 9.0], ["a"] * 3), ([2.0] * 4, None), ([-1.0, 2.0, 9.0], None)):
        assert amount_interval(values, clusters) == mean_interval(values, clusters)


def test_trials_that_share_their_beginning_give_the_verdicts_of_whole_runs():
    """As `--from-divergence` makes them: equal code is rarely called different, and changes are found no less
    often.
    """
    found = list(coverage.divergence(np.random.default_rng(31), 40))
    assert [one.what for one in found] == ["A/A alarms"] * 2 + ["change found"] * 3
    assert all(one.at_least <= one.measured <= one.at_most for one in found)
    assert min(one.measured for one in found if one.what == "change found") > 0.75


@pytest.mark.long
def test_a_coin_for_each_task_is_no_difference():
    """Two agents between which a coin decides, task by task: at most 5 % alarms; the mutant, by scenario, has
    more than 8.
    """
    for one in coverage.alarms(np.random.default_rng(31), 250):
        assert one.measured <= one.at_most + 0.02, one.setting
        assert float(one.beside.split()[2]) > 8


@pytest.mark.long
def test_a_disturbance_of_the_moment_is_met_by_trials_side_by_side():
    """Equal code whose trials share what disturbs a family: at most 5 % alarms, by scenario."""
    for one in coverage.shocks(np.random.default_rng(31), 250):
        assert one.measured <= one.at_most, one.setting


@pytest.mark.long
def test_an_interval_of_a_rate_covers_tasks_like_these():
    """By group in more than 92 % of draws; by scenario, the mutant, in fewer than 70."""
    for one in coverage.grouped_rates(np.random.default_rng(31), 250):
        assert one.measured > 0.91, one.setting
        assert float(one.beside.split()[2]) < 70


@pytest.mark.long
def test_the_stated_difference_is_found_as_often_as_stated():
    """In 80 % of comparisons, within what 200 of them and unknown spreads allow."""
    chance = np.random.default_rng(31)
    for one in (*coverage.power(chance, 200), *coverage.broken(chance, 800)):
        assert one.at_least - 0.04 <= one.measured <= one.at_most + 0.04, one.setting
