"""Streaming summaries: trials are added one by one and not kept, so that any number of them takes little
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kestrel_lab.evals.gate_bounds import AT_LEAST, is_share
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stats.intervals_and_tests import (
    NOTHING,
    Interval,
    Moments,
    mean_of,
    proportion_of,
    share_of,
)
from kestrel_lab.evals.stats.pass_at_k import pass_rates_of_counts
from kestrel_lab.evals.stored_trials import EvalRow

if TYPE_CHECKING:  # loads pydantic
    from kestrel_lab.evals.suite import CountErrors

Group = Literal["config", "family", "scenario"]
MEANS: Final = (
    "wall_time",
    "working_time",
    "token_usage",
    "model_calls",
    "tool_calls",
    "cost_estimate",
    "unpriced_calls",
    "cache_hits",
)
"""Metrics whose means a summary shows."""
_SUMMARISED: Final = (*MEANS, "grading_cost")

MOST_TRIES: Final = 10
"""The most tries that a summary gives the chances of."""


@dataclass(slots=True)
class Cell:
    """Counts and moments of the trials of one scenario with one configuration."""

    family: str
    weight: float
    model: str
    model_kind: str
    trials: int = 0
    errors: int = 0
    success: Moments = field(default_factory=Moments)
    """Of the trials that count: 1 for a pass."""
    measured: dict[str, Moments] = field(default_factory=dict)
    """By metric: of the trials that it is known of, broken ones among them."""


class Reducer:
    """Adds up trials by configuration and scenario; its memory does not grow with the number of repeats."""

    def __init__(self, count_errors: CountErrors, *, grouping: bool = True) -> None:
        """Without `grouping` only what `summaries` shows is added up, a third of the metrics."""
        self._count_errors, self._grouping = count_errors, grouping
        self._cells: dict[tuple[str, str], Cell] = {}

    def add(self, row: EvalRow) -> None:
        """Add a trial."""
        result = row.result
        counts = result["outcome"] != "error" or self._count_errors == "fail"
        success = float(result["outcome"] == "pass") if counts else math.nan
        numbers = row.metrics | score_metrics(result["scores"])
        if not self._grouping:
            numbers = {name: numbers[name] for name in _SUMMARISED if name in numbers}
        self._add(row.config, row.scenario, result, success, numbers)

    def add_record(self, record: dict[str, Any]) -> None:
        """Add a trial from a row of a frame; one without `success` is in no rate."""
        numbers = {name: record[name] for name in _SUMMARISED}
        self._add(record["config"], record["scenario"], record, record["success"], numbers)

    def _add(
        self, config: str, scenario: str, told: dict[str, Any], success: float, numbers: dict[str, float]
    ) -> None:
        cell = self._cells.get((config, scenario))
        if cell is None:
            cell = self._cells[config, scenario] = Cell(
                told["family"], told["weight"], told["model"], told["model_kind"]
            )
        cell.trials += 1
        cell.errors += told["outcome"] == "error"
        if success == success:  # not a number is the one thing that differs from itself
            cell.success.add(success)
        for name, value in numbers.items():
            moments = cell.measured.get(name)
            if moments is None:
                moments = cell.measured[name] = Moments()
            if value == value:
                moments.add(value)

    def summaries(self) -> list[dict[str, Any]]:
        """One record per configuration: rate with interval, counts, means of `MEANS`, chances of several
        tries, Pareto front.
        """
        found = [
            self._summary(config, [cell for (name, _), cell in self._cells.items() if name == config])
            for config in dict.fromkeys(config for config, _ in self._cells)
        ]
        for summary in found:
            summary["pareto"] = not any(dominates(other, summary) for other in found)
        return found

    def grouped(self, by: Group) -> list[dict[str, Any]]:
        """One record per configuration and family (or scenario): rate and every metric with its interval, as
        `…_low`, `…_high`.
        """
        groups: dict[tuple[str, str], list[Cell]] = {}
        for (config, scenario), cell in self._cells.items():
            name = {"config": "", "family": cell.family, "scenario": scenario}[by]
            groups.setdefault((config, name), []).append(cell)
        metrics = [
            *METRICS,
            *sorted({name for cell in self._cells.values() for name in cell.measured if name not in METRICS}),
        ]
        return [_detail(config, by, name, cells, metrics) for (config, name), cells in groups.items()]

    def cell_rates(self) -> dict[tuple[str, str], Interval]:
        """Return the success rate of each configuration and scenario that has trials which count, with its
        interval.
        """
        return {
            place: proportion_of([(cell.success, cell.weight)])
            for place, cell in self._cells.items()
            if cell.success.n
        }

    def _summary(self, config: str, cells: Sequence[Cell]) -> dict[str, Any]:
        rate = proportion_of([(cell.success, cell.weight) for cell in cells])
        means = {name: _plain_mean(name, cells) for name in (*MEANS, "grading_cost")}
        k = min(MOST_TRIES, *(cell.success.n for cell in cells))
        return {
            "config": config,
            "model": cells[0].model,
            "model_kind": cells[0].model_kind,
            "success_rate": rate.mean,
            "low": rate.low,
            "high": rate.high,
            **pass_rates_of_counts(
                [(cell.success.n, round(cell.success.n * cell.success.mean), cell.weight) for cell in cells],
                k,
            ),
            "trials": sum(cell.trials for cell in cells),
            "scenarios": len(cells),
            "errors": sum(cell.errors for cell in cells),
            **means,
            "cost_known": means["unpriced_calls"] == 0,
        }


def reduce_rows(rows: Iterable[EvalRow], count_errors: CountErrors, *, grouping: bool = True) -> Reducer:
    """Return a reducer with all of `rows`, which are read once and not kept."""
    found = Reducer(count_errors, grouping=grouping)
    for row in rows:
        found.add(row)
    return found


def score_metrics(scores: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the numbers that checks give beside their verdict: `grading_cost`, and `recall@k` (the mean,
    where several checks ask).
    """
    cost, recalls = 0.0, dict[str, list[float]]()
    for score in scores:
        if usage := score.get("usage"):
            cost = math.nan if usage["unpriced"] else cost + usage["cost_usd"]
        if score["check"].startswith("recall@"):
            recalls.setdefault(score["check"].partition(":")[0].split()[0], []).append(score["value"])
    return {
        "grading_cost": float(cost),
        **{name: sum(values) / len(values) for name, values in recalls.items()},
    }


def _plain_mean(name: str, cells: Sequence[Cell]) -> float:
    """Return the mean over trials, scenarios weighing by their trials; not a number where it is not known of
    every trial.
    """
    moments, trials = Moments(), 0
    for cell in cells:
        trials += cell.trials
        moments.merge(cell.measured.get(name, Moments()))
    return moments.mean if moments.n == trials else math.nan


def _detail(
    config: str, by: Group, name: str, cells: Sequence[Cell], metrics: Sequence[str]
) -> dict[str, Any]:
    rate = proportion_of([(cell.success, cell.weight) for cell in cells])
    found: dict[str, Any] = {
        "config": config,
        **({by: name} if by != "config" else {}),
        "model_kind": cells[0].model_kind,
    }
    found |= {
        "trials": sum(cell.trials for cell in cells),
        "scenarios": len(cells),
        "errors": sum(cell.errors for cell in cells),
    }
    found |= rate.columns("success_rate")
    for metric in metrics:
        interval = (share_of if is_share(metric) else mean_of)(
            [(cell.measured.get(metric, Moments()), cell.weight) for cell in cells]
        )
        found |= interval.columns(metric)
    if found.get("unpriced_calls", 0) > 0:
        found[AT_LEAST] = found["cost_estimate"]
        found |= NOTHING.columns("cost_estimate")
    return found


def dominates(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether `one` is at least as good as `other` in success, cost and working time, and better in
    one of them.
    """
    mine, others = _loss(one), _loss(other)
    return all(a <= b for a, b in zip(mine, others, strict=True)) and mine != others


def _loss(summary: dict[str, Any]) -> tuple[float, float, float]:
    """Return what is better when smaller; an unknown cost or time is worse than any known one."""
    rate = 0.0 if math.isnan(summary["success_rate"]) else summary["success_rate"]
    time = summary["working_time"]
    return (
        -rate,
        summary["cost_estimate"] if summary["cost_known"] else math.inf,
        math.inf if math.isnan(time) else time,
    )
