"""Which trials of two sides were run side by side, so that their times can be compared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored_trials import EvalRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """The epochs in which both sides took turns."""

    epochs: frozenset[int] = frozenset()
    note: str = ""
    """Why there are none."""


def side_by_side(base: Sequence[EvalRow], head: Sequence[EvalRow]) -> Rounds:
    """Return the epochs over which times of one configuration can be compared, or why they cannot.

    An epoch counts when nothing was measured between its trials of one side and those of the other. The first
    that counts is a warm-up: imports, connections and caches of all kinds are cold then, for whoever goes
    first most. What is left must be two epochs or more, and neither side may have gone first in all of them:
    else a machine that gets slower, or faster, would be taken for a change.
    """
    if len({row.result.get("origin", "") for row in (*base, *head)}) > 1:
        return Rounds(note="not compared: the trials were made on different machines")
    blocks = [
        (at, epoch, side) for side, rows in enumerate((base, head)) for epoch, at in _times(rows).items()
    ]
    blocks.sort()
    pairs = [(one[1], one[2]) for one, other in pairwise(blocks) if one[1] == other[1]]
    counted = pairs[1:]
    if len(pairs) < 2 and len(blocks) > 2:
        return Rounds(
            note="not compared: the trials of both sides were not made side by side (stored before, or one "
            "side after the other)"
        )
    if len(counted) < 2 or len({first for _, first in counted}) < 2:
        return Rounds(
            note="not compared: it takes three or more rounds made side by side, of which the first is a "
            "warm-up; ask for more epochs"
        )
    return Rounds(epochs=frozenset(epoch for epoch, _ in counted))


def mean_difference_by_round(
    base: Mapping[tuple[str, int], float], head: Mapping[tuple[str, int], float], weights: Mapping[str, float]
) -> Sequence[float]:
    """Return the weighted mean difference over scenarios in each epoch; values are by scenario and epoch."""
    found = group_values(
        (epoch, (weights.get(scenario, 1.0), value - base[scenario, epoch]))
        for (scenario, epoch), value in head.items()
        if (scenario, epoch) in base
    )
    return [sum(w * d for w, d in pairs) / sum(w for w, _ in pairs) for pairs in found.values()]


def by_scenario(values: Mapping[tuple[str, int], float]) -> dict[str, list[float]]:
    """Return values by scenario and epoch as lists by scenario."""
    return group_values((scenario, value) for (scenario, _), value in values.items())


def _times(rows: Iterable[EvalRow]) -> dict[int, float]:
    found = group_values((row.epoch, row.created_at) for row in rows)
    return {epoch: median(times) for epoch, times in found.items()}
