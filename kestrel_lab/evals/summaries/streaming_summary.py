"""Streaming summaries: trials are added one by one and not kept, so that any number of them takes little
memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.gate_bounds import AT_LEAST, SCORE, is_share
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stats.groups import counting_units, group_values
from kestrel_lab.evals.stats.intervals_and_tests import (
    NOTHING,
    Clusters,
    Interval,
    Moments,
    merge_clusters,
    proportion_of,
    share_of,
)
from kestrel_lab.evals.stats.label_correction import JudgedSample
from kestrel_lab.evals.stats.pass_at_k import ScenarioCounts, pass_rates_of_counts, reduced_rate_of_counts
from kestrel_lab.evals.stats.skewed_means import amount_of
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_rates import Judged, corrected_columns, sample_of

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
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
_SUMMARISED: Final = (*MEANS, "grading_cost", SCORE)


@dataclass(slots=True)
class Cell:
    """Counts and moments of the trials of one scenario with one configuration."""

    scenario: str
    group: str
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
    labels: list[tuple[float, float, float]] = field(default_factory=list)
    """Of the trials that count and that people labelled: verdict, label and the probability of its draw."""

    @property
    def counts(self) -> ScenarioCounts:
        """The trials that count, and those of them that passed."""
        return ScenarioCounts(
            scenario=self.scenario,
            group=self.group,
            trials=self.success.n,
            passes=round(self.success.n * self.success.mean),
            weight=self.weight,
        )


class Reducer:
    """Adds up trials by configuration and scenario; its memory does not grow with the number of repeats."""

    def __init__(self, count_errors: CountErrors, *, grouping: bool = True) -> None:
        """Without `grouping` only what `summaries` shows is added up, a third of the metrics."""
        self._count_errors, self._grouping = count_errors, grouping
        self._cells: dict[tuple[str, str], Cell] = {}
        self._means: dict[str, dict[str, Moments]] = {}
        """By configuration, without `grouping`: thousands of cells with moments of their own would take half
        the time of a display."""

    def add(self, row: EvalRow) -> None:
        """Add a trial."""
        result = row.result
        counts = result["outcome"] != "error" or self._count_errors == "fail"
        success = float(result["outcome"] == "pass") if counts else math.nan
        if self._grouping:
            numbers = row.metrics | score_metrics(result["scores"])
        else:
            numbers = {name: row.metrics[name] for name in MEANS if name in row.metrics}
            numbers["grading_cost"] = grading_cost(result["scores"])
            numbers[SCORE] = mean_score(result["scores"])
        # What its other checks would have said is not known.
        if row.ended_early:
            numbers[SCORE] = math.nan
        self._add((row.config, row.scenario), row.group, result, success, numbers)

    def add_record(self, record: dict[str, Any]) -> None:
        """Add a trial from a row of a frame; one without `success` is in no rate."""
        numbers = {name: record[name] for name in _SUMMARISED}
        key = record["config"], record["scenario"]
        self._add(key, record.get("group") or record["scenario"], record, record["success"], numbers)

    def _add(
        self,
        key: tuple[str, str],
        group: str,
        trial: dict[str, Any],
        success: float,
        numbers: dict[str, float],
    ) -> None:
        config, scenario = key
        cell = self._cells.get(key)
        if cell is None:
            cell = self._cells[key] = Cell(
                scenario,
                group,
                trial["family"],
                trial["weight"],
                trial["model"],
                trial["model_kind"],
            )
        cell.trials += 1
        cell.errors += trial["outcome"] == "error"
        # Not a number is the one thing that differs from itself.
        if success == success:
            cell.success.add(success)
            if "label" in trial:
                cell.labels.append((success, trial["label"], trial["label_probability"]))
        measured = cell.measured if self._grouping else self._means.setdefault(config, {})
        # `Moments.add` written out: a result of 12,000 trials has 100,000 values, and is shown in .1 s.
        for name, value in numbers.items():
            moments = measured.get(name)
            if moments is None:
                moments = measured[name] = Moments()
            if value == value:
                moments.n = n = moments.n + 1
                step = value - moments.mean
                moments.mean = mean = moments.mean + step / n
                moments.squares += step * (value - mean)

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

    def tries(self) -> list[dict[str, Any]]:
        """One record per configuration and k, from 1 to the fewest trials of a scenario: the chances that one
        and that all of k tries pass, with intervals.
        """
        return [
            {"config": config, **pass_rates_of_counts(counts, k)}
            for config, counts in self._counts().items()
            for k in range(1, min(scenario.trials for scenario in counts) + 1)
        ]

    def reduced(self, how: str) -> list[dict[str, Any]]:
        """One record per configuration: the share of scenarios that pass once their trials are reduced to
        one, with its interval; see `stats.pass_at_k.REDUCERS`.
        """
        return [
            {"config": config, "reducer": how, **reduced_rate_of_counts(counts, how).columns("reduced")}
            for config, counts in self._counts().items()
        ]

    def _counts(self) -> dict[str, list[ScenarioCounts]]:
        """Return by configuration the counts of each scenario."""
        return group_values((config, cell.counts) for (config, _), cell in self._cells.items())

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
        rate = proportion_of(_clusters(cells, [cell.success for cell in cells]))
        trials = sum(cell.trials for cell in cells)
        measured = [cell.measured for cell in cells] if self._grouping else [self._means[config]]
        means = {name: _plain_mean(name, measured, trials) for name in _SUMMARISED}
        # The chances are those of as many tries as every scenario has, ten at most.
        k = min(10, *(cell.success.n for cell in cells))
        return {
            "config": config,
            "model": cells[0].model,
            "model_kind": cells[0].model_kind,
            "success_rate": rate.mean,
            "low": rate.low,
            "high": rate.high,
            **pass_rates_of_counts(
                [cell.counts for cell in cells],
                k,
            ),
            "trials": trials,
            "scenarios": len(cells),
            "groups": len({cell.group for cell in cells}),
            "errors": sum(cell.errors for cell in cells),
            **_if_broken(cells),
            **corrected_columns(_sample(cells)),
            **means,
            "cost_known": means["unpriced_calls"] == 0,
        }


def _units(cells: Sequence[Cell]) -> Sequence[str]:
    """Return what each cell counts with."""
    return counting_units([cell.scenario for cell in cells], [cell.group for cell in cells])


def _clusters(cells: Sequence[Cell], measured: Sequence[Moments]) -> Clusters:
    """Return what was measured in each cell, by what the cells count with."""
    weights = [cell.weight for cell in cells]
    return merge_clusters(zip(_units(cells), measured, weights, strict=True))


def _sample(cells: Sequence[Cell]) -> JudgedSample:
    """Return the trials of scenarios with their labels; without any an empty sample."""
    if not any(cell.labels for cell in cells):
        return sample_of([])
    return sample_of(
        [trial for unit, cell in zip(_units(cells), cells, strict=True) for trial in _judged(unit, cell)]
    )


def _judged(unit: str, cell: Cell) -> Iterable[Judged]:
    """Yield the trials of a scenario that count: those with a label, and then as many passes and failures as
    there are others.
    """
    passed = cell.counts.passes - sum(verdict > 0 for verdict, _, _ in cell.labels)
    for verdict, label, probability in cell.labels:
        yield unit, cell.weight, verdict, label, probability
    for index in range(cell.success.n - len(cell.labels)):
        yield unit, cell.weight, float(index < passed), None, None


def reduce_rows(rows: Iterable[EvalRow], count_errors: CountErrors, *, grouping: bool = True) -> Reducer:
    """Return a reducer with all of `rows`, which are read once and not kept."""
    found = Reducer(count_errors, grouping=grouping)
    for row in rows:
        found.add(row)
    return found


def known_cost(rows: Iterable[EvalRow]) -> float:
    """Return the US dollars that trials cost, with what graders cost.

    Raises `UsageError` where a price is not known: no budget of money can be kept then.
    """
    every = list(rows)
    if any(row.metrics.get("unpriced_calls", 0) > 0 for row in every):
        raise UsageError(
            "the price of the model is not known, so a cost cannot be kept: give a budget of trials"
        )
    return sum(row.metrics.get("cost_estimate", 0.0) + grading_cost(row.scores) for row in every)


def grading_cost(scores: Iterable[dict[str, Any]]) -> float:
    """Return the US dollars that graders cost; not a number where a price is not known."""
    cost = 0.0
    for score in scores:
        if usage := score.get("usage"):
            cost = math.nan if usage["unpriced"] else cost + usage["cost_usd"]
    return cost


def score_metrics(scores: Iterable[dict[str, Any]]) -> dict[str, float]:
    """Return the numbers that checks give beside their verdict: `grading_cost`, `score` and `score:NAME`, and
    `recall@k` (the mean, where several checks ask or have one name).
    """
    scores, named = list(scores), dict[str, list[float]]()
    for score in scores:
        if score["check"].startswith("recall@"):
            named.setdefault(score["check"].partition(":")[0].split()[0], []).append(score["value"])
        if name := score.get("name"):
            named.setdefault(f"{SCORE}:{name}", []).append(score["value"])
    return {
        "grading_cost": grading_cost(scores),
        SCORE: mean_score(scores),
        **{name: sum(values) / len(values) for name, values in named.items()},
    }


def mean_score(scores: Iterable[dict[str, Any]]) -> float:
    """Return the mean value of stored scores by their weights: the credit that a trial gets where a pass is
    all or nothing. Not a number where nothing was judged.
    """
    value = weight = 0.0
    for score in scores:
        own = score.get("weight", 1.0)
        value, weight = value + own * score["value"], weight + own
    return value / weight if weight else math.nan


def _plain_mean(name: str, measured: Iterable[dict[str, Moments]], trials: int) -> float:
    """Return the mean over trials, scenarios weighing by their trials; not a number where it is not known of
    every trial.
    """
    moments = Moments()
    for values in measured:
        moments.merge(values.get(name, Moments()))
    # A mean over some of the trials would compare configurations by different trials.
    return moments.mean if moments.n == trials else math.nan


def _detail(
    config: str, by: Group, name: str, cells: Sequence[Cell], metrics: Sequence[str]
) -> dict[str, Any]:
    rate = proportion_of(_clusters(cells, [cell.success for cell in cells]))
    found: dict[str, Any] = {
        "config": config,
        **({by: name} if by != "config" else {}),
        "model_kind": cells[0].model_kind,
    }
    found |= {
        "trials": sum(cell.trials for cell in cells),
        "scenarios": len(cells),
        "groups": len({cell.group for cell in cells}),
        "errors": sum(cell.errors for cell in cells),
        **_if_broken(cells),
        **corrected_columns(_sample(cells)),
    }
    found |= rate.columns("success_rate")
    for metric in metrics:
        interval = (share_of if is_share(metric) else amount_of)(
            _clusters(cells, [cell.measured.get(metric, Moments()) for cell in cells])
        )
        found |= interval.columns(metric)
    # A mean without the calls that have no price is a lower bound, and is named as one.
    if found.get("unpriced_calls", 0) > 0:
        found[AT_LEAST] = found["cost_estimate"]
        found |= NOTHING.columns("cost_estimate")
    return found


def broken_bounds(outcomes: Iterable[tuple[str, int, float]]) -> tuple[float, float]:
    """Return the success rates that trials would have if all that broke had failed, and if all had passed.

    `outcomes` are `pass`, `fail` or `error`, each with how many trials ended so and the weight of one. These
    are Manski's bounds, which suppose nothing of what broke (C. F. Manski, Nonparametric bounds on treatment
    effects, American Economic Review 80 (1990) 319-323).
    """
    weights = {"pass": 0.0, "fail": 0.0, "error": 0.0}
    for outcome, count, weight in outcomes:
        weights[outcome] += count * weight
    # Without any trial the rate is unknown, and not 0.
    total = math.fsum(weights.values()) or math.nan
    return weights["pass"] / total, (weights["pass"] + weights["error"]) / total


def _if_broken(cells: Sequence[Cell]) -> dict[str, float]:
    """Return the bounds of the rate as columns."""
    passes = [round(cell.success.n * cell.success.mean) for cell in cells]
    failed, passed = broken_bounds(
        one
        for cell, passed in zip(cells, passes, strict=True)
        for one in (
            ("pass", passed, cell.weight),
            ("error", cell.errors, cell.weight),
            ("fail", cell.trials - cell.errors - passed, cell.weight),
        )
    )
    return {"if_broken_failed": failed, "if_broken_passed": passed}


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
