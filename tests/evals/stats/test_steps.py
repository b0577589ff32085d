"""Steps in made-up histories: how often one is seen where there is none, and where there is one."""

import math
import random
from statistics import NormalDist, fmean, variance

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.evals.stats.change_points import find_steps


def history(
    seed, *, commits=20, rounds=2, scenarios=10, before=0.8, after=0.8, start=10, end=10**9, hours=0.0
):
    """Rates of rounds of trials; from `start` to `end` at another level, with common noise `hours` of each
    round.
    """
    rnd = random.Random(seed)
    rates = [min(0.98, max(0.02, before + rnd.uniform(-0.2, 0.2))) for _ in range(scenarios)]
    found = []
    for commit in range(commits):
        drop = before - after if start <= commit < end else 0.0
        noise = [rnd.gauss(0, hours) for _ in range(rounds)]
        found.append(
            [sum(rnd.random() < rate - drop + shift for rate in rates) / scenarios for shift in noise]
        )
    return found


def naive_steps(values):
    """A deliberate bug: every place is tested at 5 % as if it were the only one."""
    found = []
    for at in range(1, len(values)):
        left, right = (
            [x for rounds in values[:at] for x in rounds],
            [x for rounds in values[at:] for x in rounds],
        )
        spread = math.sqrt(variance(left) / len(left) + variance(right) / len(right)) or 1e-9
        if abs(fmean(left) - fmean(right)) / spread > NormalDist().inv_cdf(0.975):
            found.append(at)
    return found


def test_a_history_without_change_shows_a_step_in_five_per_cent_at_most():
    """300 histories, half of them with noise common to each round: at most 5 % show any step; testing each
    place shows far more.
    """
    flat = [history(seed, commits=12, hours=0.1 * (seed % 2)) for seed in range(300)]
    honest = sum(bool(find_steps(values)) for values in flat) / len(flat)
    naive = sum(bool(naive_steps(values)) for values in flat[:100]) / 100
    assert honest <= 0.05
    assert naive > 0.25


def test_a_real_step_is_found_where_it_is():
    """From 80 % to 50 % in the middle of 20 commits, 20 trials each: seen in 95 of 100, within one commit in
    90, other steps in at most 8.
    """
    found = [find_steps(history(seed, after=0.5)) for seed in range(100)]
    assert sum(bool(steps) for steps in found) >= 95
    assert sum(any(abs(step.at - 10) <= 1 for step in steps) for steps in found) >= 90
    assert sum(len(steps) > 1 for steps in found) <= 8


def test_a_fall_that_was_fixed_is_two_steps():
    """From 80 % to 40 % for four commits and back: both ends are seen in 36 of 40, and which way each
    goes.
    """
    found = [find_steps(history(seed, after=0.4, start=8, end=12)) for seed in range(40)]
    assert sum([step.after < step.before for step in steps] == [True, False] for steps in found) >= 36


def test_the_newest_commit_can_be_a_step():
    """With three rounds at each commit a fall at the last one is no longer chance."""
    several = [find_steps(history(seed, rounds=3, after=0.3, start=19)) for seed in range(30)]
    assert sum([step.at for step in steps] == [19] for steps in several) >= 27


def test_a_certain_step_has_its_means_and_p():
    """Ten commits at 1, ten at 0, three rounds each: one step, its means exact."""
    (step,) = find_steps([[1.0] * 3] * 10 + [[0.0] * 3] * 10)
    assert (step.at, step.before, step.after, step.p) == (10, 1.0, 0.0, 0.001)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(st.floats(0, 1), min_size=1, max_size=3), max_size=8))
def test_any_history_can_be_searched(values):
    """Short, constant and empty histories have steps inside or none, in order, and always the same ones."""
    found = find_steps(values)
    assert [step.at for step in found] == sorted({step.at for step in found})
    assert all(0 < step.at < len(values) and 0 < step.p <= 0.05 for step in found)
    assert find_steps(values) == found
    assert find_steps([[0.5]] * len(values)) == []


@pytest.mark.parametrize(("alpha", "steps"), [(0.004, [6, 12]), (0.003, [6]), (0.0019, [])])
def test_the_parts_share_the_level_of_the_whole(alpha, steps):
    """Half of it goes to each question, and what is left to each part: 999 shuffles can show one in a
    thousand at best.
    """
    assert [
        step.at for step in find_steps([[1.0] * 3] * 6 + [[2.0] * 3] * 6 + [[3.0] * 3] * 6, alpha=alpha)
    ] == steps


def test_shuffles_that_differ_as_much_count_against_a_step():
    """Five commits at 0 and five at 1: two orders of 252 look like that, whichever way round."""
    (step,) = find_steps([[0.0]] * 5 + [[1.0]] * 5)
    assert step.at == 5
    assert abs(step.p - 2 / 252) < 0.005


def test_an_end_of_a_stretch_that_is_not_seen_by_itself_is_no_step():
    """The last commit may be lower by chance: the rise is told, the fall is not."""
    rise = [0.1, 0.3, 0.3, 0.1, 1.9, 1.2, 1.0, 1.2, 1.9, 1.1, 1.1, 0.1]
    assert [step.at for step in find_steps([[value] for value in rise])] == [4]


def test_a_step_is_where_the_means_differ_most():
    """Weighed by how many rounds there are on both sides, as in a t test."""
    places = 0
    for seed in range(12):
        rnd = random.Random(seed)
        start = rnd.randint(1, 13)
        values = [rnd.gauss(0, 1) + 2.5 * (place >= start) for place in range(14)]
        apart = {
            at: abs(fmean(values[:at]) - fmean(values[at:])) * math.sqrt(at * (14 - at))
            for at in range(1, 14)
        }
        steps = [step.at for step in find_steps([[value] for value in values])]
        if len(steps) == 1:
            places += 1
            assert steps == [max(apart, key=apart.__getitem__)]
    assert places >= 4
