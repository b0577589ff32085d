"""pass@k and pass^k: the chance that one of `k` tries at a scenario passes, and that all of them do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import least_passes
from kestrel_lab.evals.stats.groups import counting_units, group_values
from kestrel_lab.evals.stats.intervals_and_tests import NOTHING, Interval, group_by_cluster, share_of
from kestrel_lab.views.formatting import format_count


def pass_at_k(n: int, c: int, k: int) -> float:
    """Return the chance that at least one of `k` trials passes, estimated without bias from `n` trials of
    which `c` passed.

    The estimator of Chen et al., "Evaluating Large Language Models Trained on Code" (2021, arXiv:2107.03374):
    the share of all choices of `k` out of the `n` trials that hold a pass.
    """
    _require(n, c, k)
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Return the chance that all of `k` trials pass, `pass^k`, estimated without bias from `n` trials of
    which `c` passed.

    The estimator of Yao et al., "τ-bench: A Benchmark for Tool-Agent-User Interaction in Real-World Domains"
    (2024, arXiv:2406.12045): the share of all choices of `k` out of the `n` trials that are all passes.
    """
    _require(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioCounts:
    """How often one scenario was tried by one configuration, and how often it passed."""

    scenario: str
    group: str
    trials: int
    """Those that count."""
    passes: int
    weight: float


def pass_rates(records: Sequence[dict[str, Any]], k: int) -> dict[str, Any]:
    """Return `pass_at` and `pass_hat` over the scenarios of one configuration, each with its 95 % interval.

    `records` are those of `table.trial_record`; a trial without `success` is not counted. Each scenario gives
    one estimate, groups are the clusters, and the interval is of the weighted mean. Raises `UsageError` where
    a scenario has fewer than `k` trials that count.
    """
    counts = []
    for scenario, trials in group_values((record["scenario"], record) for record in records).items():
        counted = [trial["success"] for trial in trials if not math.isnan(trial["success"])]
        counts.append(
            ScenarioCounts(
                scenario=scenario,
                group=trials[0]["group"],
                trials=len(counted),
                passes=round(sum(counted)),
                weight=trials[0]["weight"],
            )
        )
    if short := [f"{one.scenario} has {one.trials}" for one in counts if one.trials < k]:
        raise UsageError(
            f"{format_count(k, 'trial')} of each scenario are needed, and {', '.join(short[:5])}: "
            f"run the suite with "
            f"--epochs {k} or more"
        )
    return {
        **pass_rates_of_counts(counts, k),
        "trials": sum(scenario.trials for scenario in counts),
        "scenarios": len(counts),
    }


def pass_rates_of_counts(counts: Sequence[ScenarioCounts], k: int) -> dict[str, Any]:
    """Return the same from the counts of each scenario; not a number for a `k` of 0."""
    record: dict[str, Any] = {"k": k}
    for name, estimate in (("pass_at", pass_at_k), ("pass_hat", pass_hat_k)):
        interval = NOTHING
        if k:
            estimates = [estimate(scenario.trials, scenario.passes, k) for scenario in counts]
            interval = _mean_over_scenarios(counts, estimates)
        record |= interval.columns(name)
    return record


def reduced_rate_of_counts(counts: Sequence[ScenarioCounts], how: str) -> Interval:
    """Return the weighted mean over scenarios of what `how` makes of their trials, with its 95 % interval.

    A scenario without a trial that counts is left out, and for `at_least_K` one with fewer than K: it could
    not have passed so often.
    """
    least = least_passes(how)
    tried = [scenario for scenario in counts if scenario.trials >= least]
    return _mean_over_scenarios(tried, [_reduced(scenario, how, least) for scenario in tried])


def _reduced(scenario: ScenarioCounts, how: str, least: int) -> float:
    """Return the one result that `how` makes of the trials of a scenario."""
    match how:
        case "mean":
            return scenario.passes / scenario.trials
        case "mode":
            return float(2 * scenario.passes > scenario.trials)
        case "max":
            return float(scenario.passes > 0)
        case "min":
            return float(scenario.passes == scenario.trials)
    return float(scenario.passes >= least)


def _mean_over_scenarios(counts: Sequence[ScenarioCounts], values: Sequence[float]) -> Interval:
    """Return the weighted mean of one value of each scenario, clustered by group."""
    units = counting_units([one.scenario for one in counts], [one.group for one in counts])
    return share_of(group_by_cluster(values, units, [one.weight for one in counts]))


def _require(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n or not 0 <= c <= n:
        raise UsageError(
            f"k is from 1 to the number of trials, and no more trials pass than there are: not k={k}, "
            f"{c} of {n} passed"
        )
