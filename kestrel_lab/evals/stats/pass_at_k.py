"""pass@k and pass^k: the chance that one of `k` tries at a scenario passes, and that all of them do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.options import least_passes
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


def pass_rates(records: Sequence[dict[str, Any]], k: int) -> dict[str, Any]:
    """Return `pass_at` and `pass_hat` over the scenarios of one configuration, each with its 95 % interval.

    `records` are those of `table.trial_record`; a trial without `success` is not counted. Scenarios are the
    clusters: each gives one estimate, and the interval is of their weighted mean. Raises `UsageError` where a
    scenario has fewer than `k` trials that count.
    """
    tries: dict[str, list[float]] = {}
    weights: dict[str, float] = {}
    for record in records:
        counted = tries.setdefault(record["scenario"], [])
        weights[record["scenario"]] = record["weight"]
        if not math.isnan(record["success"]):
            counted.append(record["success"])
    if short := [f"{name} has {len(found)}" for name, found in tries.items() if len(found) < k]:
        raise UsageError(
            f"{format_count(k, 'trial')} of each scenario are needed, and {', '.join(short[:5])}: "
            f"run the suite with "
            f"--epochs {k} or more"
        )
    counts = [(len(found), round(sum(found)), weights[name]) for name, found in tries.items()]
    return {
        **pass_rates_of_counts(counts, k),
        "trials": sum(n for n, _, _ in counts),
        "scenarios": len(counts),
    }


def pass_rates_of_counts(counts: Sequence[tuple[int, int, float]], k: int) -> dict[str, Any]:
    """Return the same from the trials, the passes and the weight of each scenario; not a number for a `k` of
    0.
    """
    record: dict[str, Any] = {"k": k}
    for name, estimate in (("pass_at", pass_at_k), ("pass_hat", pass_hat_k)):
        estimates = [estimate(n, c, k) for n, c, _ in counts] if k else []
        found = (
            share_of(group_by_cluster(estimates, weights=[weight for _, _, weight in counts]))
            if k
            else NOTHING
        )
        record |= found.columns(name)
    return record


def reduced_rate_of_counts(counts: Sequence[tuple[int, int, float]], how: str) -> Interval:
    """Return the weighted mean over scenarios of what `how` makes of their trials, with its 95 % interval,
    from the trials, passes and weight of each scenario.

    A scenario without a trial that counts is left out, and for `at_least_K` one with fewer than K: it could
    not have passed so often.
    """
    least = least_passes(how)
    kept = [(n, c, weight) for n, c, weight in counts if n >= least]
    values = [
        c / n
        if how == "mean"
        else float({"mode": 2 * c > n, "max": c > 0, "min": c == n}.get(how, c >= least))
        for n, c, _ in kept
    ]
    return share_of(group_by_cluster(values, weights=[weight for *_, weight in kept])) if kept else NOTHING


def _require(n: int, c: int, k: int) -> None:
    if not 1 <= k <= n or not 0 <= c <= n:
        raise UsageError(
            f"k is from 1 to the number of trials, and no more trials pass than there are: not k={k}, "
            f"{c} of {n} passed"
        )
