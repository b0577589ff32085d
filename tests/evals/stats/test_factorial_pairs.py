"""Effects of parts from pairs of trials: intervals cover, what helps is found, what does nothing is left
alone, and few trials suffice.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from kestrel_lab.evals.stats.difference import compare_scenarios, detectable_mean
from kestrel_lab.evals.stats.distributions import t_quantile
from kestrel_lab.evals.stats.factorial_pairs import (
    Pair,
    assign_pairs,
    fewest_pairs,
    judged_effects,
    part_effects,
    random_subsets,
)
from kestrel_lab.evals.stats.intervals_and_tests import mean_interval, t_test


def other(parts: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return the parts of a pair's second trial."""
    return tuple(not one for one in parts)


class Agents:
    """Scenarios of unequal difficulty in which an agent passes by chance, and parts of a file that change
    this chance.
    """

    def __init__(
        self,
        chance: random.Random,
        scenarios: int,
        truth: Sequence[float],
        *,
        spread: float = 0.0,
        joint: float = 0.0,
    ) -> None:
        self._chance, self._truth, self._joint = chance, truth, joint
        self.names = [f"s{number}" for number in range(scenarios)]
        self._level = {name: chance.uniform(0.35, 0.65) for name in self.names}
        self.own = {name: [chance.gauss(effect, spread) for effect in truth] for name in self.names}

    def passes(self, name: str, parts: Sequence[bool]) -> float:
        """Return the outcome of a trial; with `joint` the first two parts do together what neither does
        alone.
        """
        halves = [inside - 0.5 for inside in parts]
        rate = self._level[name] + sum(
            effect * half for effect, half in zip(self.own[name], halves, strict=True)
        )
        rate += 4 * self._joint * halves[0] * halves[1] if len(parts) > 1 else 0.0
        return float(self._chance.random() < rate)

    def pairs(self, count: int, seed: str) -> list[Pair]:
        """Return pairs of trials."""
        dealt = assign_pairs(len(self._truth), self.names, count, seed=seed)
        return [
            Pair(
                group=name,
                parts=parts,
                first=self.passes(name, parts),
                second=self.passes(name, other(parts)),
            )
            for name, parts in dealt
        ]


SITUATIONS = {
    "a part helps": {"scenarios": 12, "count": 96, "truth": (0.3, 0, 0, 0, 0, 0)},
    "nothing matters": {"scenarios": 12, "count": 72, "truth": (0,) * 6},
    "few scenarios": {"scenarios": 4, "count": 48, "truth": (0.3, 0, 0, 0, 0, 0)},
    "scenarios disagree": {"scenarios": 12, "count": 72, "truth": (0.15, 0, 0), "spread": 0.1},
    "two parts work together": {"scenarios": 12, "count": 72, "truth": (0,) * 6, "joint": 0.25},
    "one pair a scenario": {"scenarios": 40, "count": 40, "truth": (-0.3, 0.2, 0, 0, 0)},
    "a part decides nearly everything": {"scenarios": 12, "count": 48, "truth": (0.68, 0, 0, 0)},
    "hardly enough": {"scenarios": 12, "count": 12, "truth": (0,) * 6},
}


@pytest.mark.long
@pytest.mark.parametrize("name", SITUATIONS)
def test_intervals_cover_and_verdicts_hold(name: str) -> None:
    """Of 95 % intervals at least 93 % cover in simulation, of every part on its own; a part without effect is
    called helpful or harmful in at most 5 % of studies (all its parts together, up to the noise of 800
    studies).
    """  # one claim
    situation = dict(SITUATIONS[name])
    count, studies = situation.pop("count"), 800
    chance = random.Random(name)
    truth = situation["truth"]
    covered, alarms, found = [0] * len(truth), 0, 0
    for study in range(studies):
        agents = Agents(chance, **situation)
        told = judged_effects(agents.pairs(count, f"{name}/{study}"), margin=0.05)
        # With few scenarios the question is about these, with more about scenarios like these.
        meant = (
            truth
            if len(agents.names) >= 6
            else [sum(own[part] for own in agents.own.values()) / 4 for part in range(len(truth))]
        )
        for part, effect in enumerate(told):
            covered[part] += effect.interval.low <= meant[part] <= effect.interval.high
        alarms += any(
            effect.verdict in ("improvement", "regression")
            for effect, true in zip(told, truth, strict=True)
            if true == 0
        )
        found += told[0].verdict == "improvement"
        assert not any(
            effect.verdict == "regression" for effect, true in zip(told, truth, strict=True) if true >= 0.3
        )
    assert min(covered) >= 0.93 * studies - 2 * math.sqrt(studies * 0.05 * 0.95), (covered, alarms, found)
    assert sum(covered) >= 0.93 * studies * len(truth)
    assert alarms <= 0.05 * studies + 2 * math.sqrt(studies * 0.05 * 0.95), (covered, alarms, found)
    if name == "a part helps":
        assert found >= 0.7 * studies


@pytest.mark.long
def test_pairs_tell_more_than_leaving_out_one_part() -> None:
    """With as many trials, intervals are less than two thirds as wide as those of leave-one-out, compared by
    the paired statistics of suites.
    """
    chance = random.Random(1)
    truth, rounds = (0.2, 0, 0, 0, 0, 0), 16
    widths: dict[str, list[float]] = {"pairs": [], "one out": []}
    for study in range(60):
        agents = Agents(chance, 12, truth)
        arms = [tuple(place != left for place in range(6)) for left in range(-1, 6)]
        outcomes = [
            {name: [agents.passes(name, arm) for _ in range(rounds)] for name in agents.names} for arm in arms
        ]
        apart = [
            compare_scenarios(without, outcomes[0], weights={}, bounded=True) for without in outcomes[1:]
        ]
        together = judged_effects(agents.pairs(len(arms) * rounds * 12 // 2, f"{study}"), margin=0.05)
        for name, found in (("pairs", together), ("one out", apart)):
            widths[name] += [one.interval.high - one.interval.low for one in found]
    assert sum(widths["pairs"]) < 0.66 * sum(widths["one out"]), {
        name: sum(one) / len(one) for name, one in widths.items()
    }


@pytest.mark.parametrize("parts", [1, 2, 3, 8, 9, 31])
def test_the_design_is_balanced(parts: int) -> None:
    """In each block any two parts are together as often as apart, blocks differ, and a longer design begins
    with the shorter one.
    """
    size = 1 << max(parts - 1, 1).bit_length()
    rows = [parts for parts, _ in zip(random_subsets(parts, seed="s"), range(3 * size), strict=False)]
    for block in range(3):
        chosen = rows[block * size : (block + 1) * size]
        for one in range(parts):
            for two in range(one):
                assert sum(row[one] == row[two] for row in chosen) == size / 2
    assert parts < 3 or len({tuple(rows[block * size : (block + 1) * size]) for block in range(3)}) == 3
    names = ["a", "b", "c"]
    dealt = assign_pairs(parts, names, 3 * size, seed="s")
    assert [parts for _, parts in dealt] == rows
    assert assign_pairs(parts, names, 5, seed="s") == dealt[:5]
    assert {name for name, _ in dealt[:3]} == set(names)


def plain(values: Sequence[float], scenarios: int) -> list[Pair]:
    """Return pairs with one part whose differences are these values, scenario after scenario in turn."""
    return [
        Pair(
            group=f"s{n % scenarios}",
            parts=(n % 3 > 0,),
            first=max(0.0, v if n % 3 else -v),
            second=max(0.0, -v if n % 3 else v),
        )
        for n, v in enumerate(values)
    ]


VALUES = (1.0, 0.0, 1.0, 1.0, 0.0, -1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("scenarios", [1, 5, 6, 12])
@pytest.mark.parametrize("scale", [1.0, 50.0])
def test_one_part_is_a_paired_mean(scenarios: int, scale: float) -> None:
    """With a single part everything is that of a mean of differences: clustered by scenario from six
    scenarios on, of pairs with fewer.
    """
    values = [scale * value for value in VALUES]
    labels = [f"s{n % scenarios}" for n in range(12)] if scenarios >= 6 else None
    expected = mean_interval(values, labels)
    ((found, df),) = part_effects(plain(values, scenarios), bounded=scale == 1)
    assert (found.mean, found.low, found.high, found.se) == pytest.approx(
        (expected.mean, expected.low, expected.high, expected.se)
    )
    assert (found.clusters, found.n, df) == (expected.clusters, 24, expected.clusters - 1)


@pytest.mark.parametrize("scenarios", [5, 6])
def test_a_judged_effect_is_that_of_its_interval(scenarios: int) -> None:
    """Its p is Student's, its rates lie around the level of all trials, and its smallest detectable effect
    allows for the family.
    """
    pairs = plain(VALUES, scenarios)
    (found,) = judged_effects(pairs, margin=0.05)
    ((interval, df),) = part_effects(pairs, bounded=True)
    assert found.interval == interval
    assert (
        found.p
        == found.p_holm
        == pytest.approx(
            t_test(mean_interval(VALUES, [pair.group for pair in pairs] if scenarios == 6 else None))
        )
    )
    level = sum(pair.first + pair.second for pair in pairs) / 24
    assert (found.base, found.head) == pytest.approx((level - interval.mean / 2, level + interval.mean / 2))
    assert found.mde == pytest.approx(detectable_mean(interval.se, df, alpha=0.05))
    assert (found.scope, found.scenarios) == (
        "scenarios like these" if scenarios == 6 else "these scenarios",
        scenarios,
    )
    double = judged_effects(
        [Pair(**{**pair_of(pair), "parts": (*pair.parts, n % 2 == 0)}) for n, pair in enumerate(pairs)],
        margin=0.05,
    )
    assert double[0].mde > found.mde


def pair_of(pair: Pair) -> dict[str, Any]:
    """Return the fields of a pair."""
    return {name: getattr(pair, name) for name in ("group", "parts", "first", "second", "weight")}


def test_many_parts_are_least_squares() -> None:
    """Effects are those of a weighted regression of the differences on which trial has which part, solved
    here by another routine.
    """
    chance = random.Random(5)
    pairs = [
        Pair(
            group=name,
            parts=parts,
            first=chance.random(),
            second=chance.random(),
            weight=1.0 + (name == "s1"),
        )
        for name, parts in assign_pairs(4, [f"s{n}" for n in range(8)], 32, seed="s")
    ]

    def solved(some: Sequence[Pair]) -> Any:
        signs = np.array(
            [[math.sqrt(pair.weight) * (1 if one else -1) for one in pair.parts] for pair in some]
        )
        moved = np.array([math.sqrt(pair.weight) * (pair.first - pair.second) for pair in some])
        return np.linalg.lstsq(signs, moved, rcond=None)[0]

    whole = solved(pairs)
    without = np.array([solved([pair for pair in pairs if pair.group != f"s{n}"]) for n in range(8)])
    spread = np.sqrt(7 / 8 * np.sum((without - whole) ** 2, axis=0))
    found = part_effects(pairs, bounded=True)
    assert [one.mean for one, _ in found] == pytest.approx(list(whole))
    assert [one.se for one, _ in found] == pytest.approx(list(spread))
    assert [one.high - one.mean for one, _ in found] == pytest.approx(list(t_quantile(0.975, 7) * spread))
    told = judged_effects(pairs, margin=0.05)
    weights = sum(pair.weight for pair in pairs)
    assert told[0].base + told[0].head == pytest.approx(
        sum(pair.weight * (pair.first + pair.second) for pair in pairs) / weights
    )
    assert told[0].mde == pytest.approx(detectable_mean(float(spread[0]), 7, alpha=0.05 / 4))


def test_an_interval_of_a_rate_stays_within_its_bounds() -> None:
    """No effect on a success rate is above one, on tokens it may be."""
    wide = [Pair(group=f"s{n}", parts=(True,), first=float(n != 1), second=0.0) for n in range(6)]
    ((rate, _),), ((tokens, _),) = part_effects(wide, bounded=True), part_effects(wide, bounded=False)
    assert rate.high == 1.0 < tokens.high
    ((low, _),) = part_effects(
        [Pair(group=pair.group, parts=(False,), first=pair.first, second=0.0) for pair in wide],
        bounded=True,
    )
    assert (low.low, low.high) == (-1.0, -rate.low)
    ((same, df),) = part_effects(
        [Pair(group=f"s{n}", parts=(True,), first=90.0, second=0.0) for n in range(6)], bounded=False
    )
    assert (same.mean, same.low, same.high, df) == (90.0, 90.0, 90.0, 5)


def test_one_effect_by_hand() -> None:
    """An effect is the mean difference within pairs, turned by which trial had the part."""
    pairs = [
        Pair(group=f"s{n}", parts=(n % 2 == 0,), first=float(n % 2 == 0), second=float(n in (1, 3)))
        for n in range(8)
    ]
    ((found, df),) = part_effects(pairs, bounded=True)
    assert found.mean == pytest.approx((4 + 2) / 8)
    assert (df, found.clusters, found.n) == (7, 8, 16)
    assert found.low < 0.75 < found.high


def test_weights_count() -> None:
    """A scenario of double weight counts as two."""
    pairs = [
        Pair(group=f"s{n}", parts=(True,), first=float(n == 0), second=0.0, weight=2.0 if n == 0 else 1.0)
        for n in range(8)
    ]
    assert part_effects(pairs, bounded=True)[0][0].mean == pytest.approx(2 / 9)


def test_no_spread_is_no_certainty() -> None:
    """Where no pair differs, the interval is as wide as so few scenarios require, and nothing is called
    helpful, harmful or equal.
    """
    pairs = [
        Pair(group=name, parts=parts, first=1.0, second=1.0)
        for name, parts in assign_pairs(3, [f"s{n}" for n in range(8)], 16, seed="s")
    ]
    for found in judged_effects(pairs, margin=0.05):
        assert (found.interval.mean, found.interval.se, found.interval.n) == (0, 0, 32)
        assert found.interval.high == -found.interval.low == pytest.approx(1 - 0.025 ** (1 / 8))
        assert found.mde == pytest.approx(
            detectable_mean(found.interval.high / t_quantile(0.975, 7), 7, alpha=0.05 / 3)
        )
        assert (found.verdict, found.p_holm) == ("inconclusive", 1.0)


def test_a_part_that_decides_everything_is_found() -> None:
    """Where trials pass exactly when they have the first part there is no spread at all: it helps, and its
    interval is not a point.
    """
    dealt = assign_pairs(2, [f"s{n}" for n in range(8)], 16, seed="s")
    pairs = [
        Pair(group=name, parts=parts, first=float(parts[0]), second=float(not parts[0]))
        for name, parts in dealt
    ]
    one, two = judged_effects(pairs, margin=0.05)
    assert (one.verdict, one.interval.mean, one.interval.high) == ("improvement", 1.0, 1.0)
    assert one.p == 2 / 2**8
    assert one.interval.low == pytest.approx(0.025 ** (1 / 8) * 2 - 1)
    assert (one.base, one.head, one.mde) == pytest.approx((0.0, 1.0, two.mde))
    assert (two.verdict, two.interval.mean) == ("inconclusive", 0.0)


def test_too_few_pairs_tell_nothing() -> None:
    """Fewer pairs than parts, or none at all, give no interval and no verdict instead of an error."""
    dealt = assign_pairs(8, ["a", "b"], 6, seed="s")
    pairs = [Pair(group=name, parts=parts, first=1.0, second=0.0) for name, parts in dealt]
    found = judged_effects(pairs, margin=0.05)
    assert [one.verdict for one in found] == ["inconclusive"] * 8
    assert all(math.isnan(one.interval.low) for one in found)
    two = [Pair(group=name, parts=(True, name == "a"), first=1.0, second=0.0) for name in ("a", "b")]
    assert [(one.mean, math.isnan(one.low), df) for one, df in part_effects(two, bounded=True)] == [
        (1.0, True, 0),
        (pytest.approx(0.0), True, 0),
    ]
    assert math.isnan(part_effects(two[:1], bounded=True)[0][0].mean)
    assert judged_effects([], margin=0.05) == []
    assert fewest_pairs(8) == 16
