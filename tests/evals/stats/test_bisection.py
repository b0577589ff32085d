"""The search for a first bad commit under noise: how often it is wrong, what it costs, what it leaves
open.
"""

import math
import random
from collections import Counter

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats.noisy_bisect import Bisection, Evidence
from kestrel_lab.evals.summaries.metric_values import find_metric


class OneLook(Evidence):
    """A deliberate bug: believes the first round."""

    def __init__(self, margin: float = 0.0) -> None:
        self.margin, self.n, self.total, self.squares = margin, 0, 0.0, 0.0

    def add(self, values):
        for value, _ in values:
            self.n, self.total, self.squares = (
                self.n + 1,
                self.total + value - self.margin,
                self.squares + (value - self.margin) ** 2,
            )

    @property
    def log_capital(self):
        return math.inf if self.total > 0 else -math.inf


class Peeking(OneLook):
    """A deliberate bug: a test made for one look, looked at after each round."""

    @property
    def log_capital(self):
        spread = self.squares - self.total**2 / self.n if self.n > 1 else 0.0
        if spread < 1e-9:
            return math.inf if self.n > 1 and self.total > 0 else -math.inf
        z = self.total / math.sqrt(self.n * spread / (self.n - 1))
        return -math.log(max(1e-300, 0.5 * math.erfc(z / math.sqrt(2))))


def ever_reaches(evidence, rates, *, seed, rounds=40, alpha=0.05):
    """Whether pairs of trials that do not differ ever look as if they did; scenarios have unequal rates."""
    rnd, kept = random.Random(seed), evidence()
    for _ in range(rounds):
        kept.add([(float(rnd.random() < rate) - float(rnd.random() < rate), 1.0) for rate in rates])
        if kept.log_capital >= math.log(1 / alpha):
            return True
    return False


def test_looking_often_raises_no_more_alarms_than_stated():
    """300 series of 40 looks without a difference: at most 5 % alarms (and chance); a test for one look
    alarms far more.
    """
    rates = (0.2, 0.5, 0.8, 0.95)
    honest = sum(ever_reaches(Evidence, rates, seed=seed) for seed in range(300)) / 300
    fooled = sum(ever_reaches(Peeking, rates, seed=seed) for seed in range(300)) / 300
    assert honest <= 0.05
    assert fooled > 0.15


def test_a_difference_within_the_margin_is_none():
    """Worse by exactly the margin is not evidence; worse by much more is, and weights of 0 say nothing."""
    rnd = random.Random(1)
    within, beyond, nothing = Evidence(0.2), Evidence(0.2), Evidence(0.2)
    for _ in range(100):
        within.add([(float(rnd.random() < 0.2), 1.0)])
        beyond.add([(float(rnd.random() < 0.6), 1.0)])
        nothing.add([(1.0, 0.0)])
    assert within.log_capital < math.log(20)
    assert beyond.log_capital > math.log(1000)
    assert nothing.log_capital == pytest.approx(0)


def search(
    seed,
    *,
    first_bad,
    before=0.8,
    after=0.5,
    last=16,
    scenarios=4,
    margin=0.0,
    evidence=Evidence,
    budget=3000,
    broken=(),
):
    """A whole search over made-up trials; `broken` commits cannot be tried.

    Gives it and how many trials it took.
    """
    rnd = random.Random(seed)
    rates = [before + rnd.uniform(-0.1, 0.1) for _ in range(scenarios)]
    found, made = (
        Bisection(last=last, worsening=lambda one, other: one - other, margin=margin, evidence=evidence),
        0,
    )
    while (order := found.wanted()) and made < budget:
        for commit, _ in order:
            if commit in broken:
                found.skip(commit, "does not start")
                continue
            drop = before - after if commit >= first_bad else 0.0
            found.add(
                commit, {str(place): float(rnd.random() < rate - drop) for place, rate in enumerate(rates)}
            )
            made += scenarios
        found.advance()
    return found, made


def wrong_rate(evidence, n, **how):
    """How often a search names a wrong commit."""
    names = [
        (search(seed, first_bad=1 + seed % 16, evidence=evidence, **how)[0], 1 + seed % 16)
        for seed in range(n)
    ]
    return sum(found.phase == "found" and found.bad != truth for found, truth in names) / n


def test_the_wrong_commit_is_named_in_at_most_five_per_cent():
    """A fall from 80 % to 50 % among 16 commits: the stated error holds, and neither one look nor peeking
    would keep it.
    """
    assert wrong_rate(Evidence, 100) <= 0.05
    assert wrong_rate(OneLook, 100) > 0.4
    assert wrong_rate(Peeking, 200, scenarios=3) > 0.05


def test_a_clear_fall_is_found_with_few_trials():
    """From 95 % to 45 % among 16 commits with four scenarios: found in at least 95 of 100 searches of at most
    600 trials.
    """
    done = [
        search(seed, first_bad=1 + seed % 16, before=0.9, after=0.4, margin=0.05, budget=600)
        for seed in range(100)
    ]
    assert (
        sum(found.phase == "found" and found.bad == 1 + seed % 16 for seed, (found, _) in enumerate(done))
        >= 95
    )
    assert sorted(made for _, made in done)[50] < 400


def test_a_certain_fall_takes_two_or_three_rounds_a_commit():
    """From always to never with four scenarios: each question is answered after a few rounds, whichever
    commit it is.
    """
    for first_bad in range(1, 17):
        found, made = search(0, first_bad=first_bad, before=2.0, after=-2.0)
        assert (found.phase, found.good, found.bad) == ("found", first_bad - 1, first_bad)
        assert made <= 4 * 3 * (2 + 4)


def test_commits_that_cannot_be_tried_are_stepped_over():
    """With untestable commits around the fall, what is left is named, and no question is spent on them."""
    found, _ = search(3, first_bad=9, before=2.0, after=-2.0, broken=(7, 8, 9))
    assert (found.phase, found.good, found.bad, sorted(found.skipped)) == ("narrowed", 6, 10, [7, 8, 9])
    found, _ = search(3, first_bad=9, before=2.0, after=-2.0, broken=(8, 12))
    assert (found.phase, found.good, found.bad) == ("narrowed", 7, 9)
    found, _ = search(3, first_bad=5, before=2.0, after=-2.0, broken=(8, 12))
    assert (found.phase, found.good, found.bad) == ("found", 4, 5)


def test_no_fall_is_said_or_left_open():
    """Equal ends: shown to be no worse than the margin, or left open; a commit is never named."""
    phases = Counter(
        search(seed, first_bad=99, before=0.9, margin=0.15, budget=1500)[0].phase for seed in range(60)
    )
    assert phases["no fall"] >= 50
    assert set(phases) <= {"no fall", "ends"}


def test_a_fall_in_two_steps_names_one_of_them_or_leaves_it_open():
    """The metric falls at commits 4 and 11: what is named is one of them, since it is compared with the one
    before it.
    """
    named = Counter()
    for seed in range(30):
        rnd = random.Random(seed)
        found = Bisection(last=16, worsening=lambda one, other: one - other)
        made = 0
        while (order := found.wanted()) and made < 2500:
            for commit, _ in order:
                rate = 0.95 if commit < 4 else 0.6 if commit < 11 else 0.2
                found.add(commit, {str(place): float(rnd.random() < rate) for place in range(5)})
                made += 5
            found.advance()
        named[found.bad if found.phase == "found" else "open"] += 1
    assert named[4] + named[11] >= 28
    assert set(named) <= {4, 11, "open"}


def test_equal_costs_are_no_fall():
    """A metric that never changes is shown not to have fallen after a few rounds, and one that doubles to
    have.
    """
    cost = find_metric("token_usage")
    margin, even, factor = cost.worsening(0.05)
    for later, phase in ((100.0, "no fall"), (200.0, "found")):
        found = Bisection(
            last=1, worsening=lambda one, other: cost.worsened(one, other, factor), margin=margin, even=even
        )
        for _ in range(8):
            found.add(0, {str(n): 100.0 for n in range(4)})
            found.add(1, {str(n): later for n in range(4)})
            found.advance()
        assert found.phase == phase


def test_neighbours_need_one_question():
    """Where the bad commit comes right after the good one there is only that to show."""
    found = Bisection(last=1, worsening=lambda one, other: one - other)
    assert (found.questions, found.level, found.wanted()) == (1, 0.05, [(0, 1), (1, 1)])
    found.add(0, {str(n): 1.0 for n in range(9)})
    found.add(1, {str(n): 0.0 for n in range(9)})
    found.advance()
    assert (found.phase, found.bad, found.wanted()) == ("found", 1, [])


def test_which_way_is_worse():
    """Rates fall by their difference; what costs is worse when larger, by more than the margin; and turned
    around, the reverse.
    """
    assert find_metric("success_rate").worsened(1.0, 0.0, 0.0) == 1.0
    assert find_metric("error_rate").worsened(0.0, 1.0, 0.0) == 1.0
    cost = find_metric("cost_estimate")
    assert [cost.worsened(1.0, other, 0.1) for other in (1.05, 1.2, 0.8, 100.0)] == [0.0, 1.0, -1.0, 1.0]
    assert [cost.worsened(other, 1.0, 0.1) for other in (1.05, 1.2, 0.8, 100.0)] == [0.0, -1.0, 1.0, -1.0]
    with pytest.raises(UsageError, match="did you mean 'cost_estimate'"):
        find_metric("cost_estimat")


@pytest.mark.parametrize(
    ("last", "questions"), [(1, 1), (2, 3), (3, 4), (4, 4), (16, 6), (17, 7), (1000, 12)]
)
def test_the_level_is_shared_by_all_questions(last, questions):
    """The two ends, one for each halving, and the last one again; with two commits there is one question."""
    found = Bisection(last=last, worsening=lambda one, other: one - other, alpha=0.05)
    assert (found.questions, found.level) == (questions, pytest.approx(0.05 / questions))
