"""How many trials a gate needs before it can hold, and what would decide one that is undecided."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

from kestrel_lab.evals.gate_bounds import SUCCESS, Gate, is_share
from kestrel_lab.evals.stats.difference import ENOUGH, Difference
from kestrel_lab.evals.stats.groups import counting_units
from kestrel_lab.evals.stats.intervals_and_tests import (
    ALPHA,
    Interval,
    group_by_cluster,
    proportion_of,
    share_of,
)
from kestrel_lab.evals.suite import Suite
from kestrel_lab.views.formatting import format_count

_Z: Final = NormalDist().inv_cdf(1 - ALPHA / 2)
_MOST: Final = 1_000_000
"""Trials above which no number is worth writing down."""


def gates_out_of_reach(suite: Suite) -> list[str]:
    """Return a sentence for each gate that cannot hold in this suite, however well its trials go."""
    found = []
    for gate in suite.gates:
        covered = [one for one in suite.scenarios if gate.family in ("", one.family)]
        units = counting_units([one.id for one in covered], [suite.groups[one.id] for one in covered])
        trials = [suite.epochs * count for count in Counter(units).values()]
        if covered and (why := out_of_reach(gate, trials)):
            where = f" [{gate.config}]" if gate.config else ""
            found.append(f"the gate {gate.text}{where} cannot hold: {why}")
    return found


def out_of_reach(gate: Gate, epochs: Sequence[int]) -> str:
    """Return why the gate cannot hold, where even perfect trials would not show it; empty where they would.

    `epochs` has the number of trials of each scenario, or of each group where scenarios count in groups.
    """
    trials = sum(epochs)
    if not is_share(gate.metric):
        # A mean gets its interval from the spread of values, and one value has none.
        return "" if trials > 1 else "one trial has no interval; it takes two or more"
    best = 1.0 if gate.at_least is not None else 0.0
    labels = [scenario for scenario, count in enumerate(epochs) for _ in range(count)]
    clusters = group_by_cluster([best] * trials, labels)
    interval = (proportion_of if gate.metric == SUCCESS else share_of)(clusters)
    if not trials or (
        interval.low >= gate.bound if gate.at_least is not None else interval.high <= gate.bound
    ):
        return ""
    good = (
        ("every trial passes" if best else "no trial passes")
        if gate.metric == SUCCESS
        else f"every value is {best:g}"
    )
    shape = f"{format_count(trials, 'trial')} of {format_count(len(epochs), 'scenario')}"
    short = f"if {good}, {shape} still leave {100 * interval.low:.3g} to {100 * interval.high:.3g} %"
    needed = perfect_trials(gate)
    if needed > _MOST:
        return f"{short}, and no number of trials is enough"
    if len(epochs) == 1 and gate.metric == SUCCESS:
        return (
            f"{short}; it takes {needed} such trials (epochs: {needed}), or "
            f"{format_count(int(needed), 'scenario')}"
        )
    # Repeats of a scenario that all agree say nothing of other scenarios, so they do not narrow the interval.
    return f"{short}; it takes {needed} such scenarios, and repeating the same ones does not help"


def perfect_trials(gate: Gate) -> float:
    """Return how many trials a bound of a share takes if none misses it, by Wilson's interval; infinite where
    none are enough.
    """
    near = gate.bound if gate.at_least is not None else 1 - gate.bound
    # The bound of n trials that agree is n / (n + z²). A little is taken off against rounding.
    return math.inf if near >= 1 else max(1, math.ceil(_Z * _Z * near / (1 - near) - 1e-9))


def undecided_reason(gate: Gate, interval: Interval, epochs: Sequence[int]) -> str:
    """Return what it would take to decide a gate whose interval holds the bound."""
    if never := out_of_reach(gate, epochs):
        return never
    ahead = interval.mean - gate.bound if gate.at_least is not None else gate.bound - interval.mean
    reach = interval.mean - interval.low if gate.at_least is not None else interval.high - interval.mean
    if ahead <= 0 or math.isnan(reach):
        return (
            "the value is on the wrong side of the bound, by no more than chance explains"
            if ahead < 0
            else "the value is at the bound"
        )
    # The width of an interval falls with the root of the number of scenarios, or of trials where there is one
    # scenario.
    one = len(epochs) == 1
    there = sum(epochs) if one else len(epochs)
    needed = max(there + 1, math.ceil(there * (reach / ahead) ** 2))
    what = "trials" if one else "scenarios"
    return (
        f"at this value it takes about {needed:,} {what}" if needed <= _MOST else "the value is at the bound"
    )


def undecided_change(found: Difference, margin: float) -> str:
    """Return what it would take to decide a change of the success rate that is undecided, and whether
    anything got worse.
    """
    if found.lower or found.higher or found.base != found.head:
        scenarios = format_count(found.scenarios, "scenario")
        reach = f"cannot tell: {scenarios} show a change of {_points(found.mde)} or more"
        if not math.isfinite(found.mde):
            reach = f"cannot tell: {scenarios} are too few to show any change"
        if not found.lower:
            return f"{reach}; nothing got worse here"
        worse = format_count(found.lower, "scenario")
        return f"{reach}; {worse} passed less often here, which may be chance"
    if not 0 < margin < 1:
        return "no scenario changed, and no number of trials shows that two rates are equal"
    # Of C scenarios that agree, up to 1 - 0.025 ** (1 / C) of all scenarios may not, see `paired_difference`.
    needed = max(ENOUGH, math.ceil(math.log(ALPHA / 2) / math.log(1 - margin)))
    return (
        f"no scenario changed, and it takes {needed} that do not to rule out a change of "
        f"{_points(margin)} (--margin)"
    )


def _points(share: float) -> str:
    return f"{100 * share:.3g} points" if math.isfinite(share) else "more than 100 points"
