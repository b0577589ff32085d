"""Rows of trials become records and summaries: plain functions that need no pandas."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stats import Interval, proportion_interval
from kestrel_lab.evals.suite import CountErrors
from kestrel_lab.log.store import EvalRow

COLUMNS: Final = (
    *("suite", "scenario", "family", "config", "model", "model_kind", "epoch", "outcome", "success", "score"),
    *METRICS,
    *("grading_cost", "reason", "run", "git_sha", "weight"),
)
"""What a trial's record holds, in order."""
MEANS: Final = ("wall_time", "working_time", "token_usage", "model_calls", "tool_calls", "cost_estimate", "unpriced_calls", "cache_hits")
"""Metrics whose means a summary shows."""


def trial_record(row: EvalRow, count_errors: CountErrors) -> dict[str, Any]:
    """One trial as a flat record with the keys `COLUMNS`."""
    result = cast("dict[str, Any]", row.result)
    values = [score["value"] for score in result["scores"]]
    success = math.nan if result["outcome"] == "error" and count_errors == "exclude" else float(result["outcome"] == "pass")
    return {
        "suite": row.suite,
        "scenario": row.scenario,
        "family": result["family"],
        "config": row.config,
        "model": result["model"],
        "model_kind": result["model_kind"],
        "epoch": row.epoch,
        "outcome": result["outcome"],
        "success": success,
        "score": sum(values) / len(values) if values else math.nan,
        **{name: row.metrics.get(name, math.nan) for name in METRICS},
        "grading_cost": grading_cost(result["scores"]),
        "reason": result["reason"],
        "run": result["run"],
        "git_sha": row.git_sha,
        "weight": result["weight"],
    }


def grading_cost(scores: Iterable[dict[str, Any]]) -> float:
    """US dollars that asking graders for `scores` cost; not a number where a price is not known."""
    used = [score["usage"] for score in scores if score.get("usage")]
    return math.nan if any(usage["unpriced"] for usage in used) else float(sum(usage["cost_usd"] for usage in used))


def success_interval(records: Sequence[dict[str, Any]]) -> Interval:
    """The success rate of trials that count, clustered by scenario; no interval where none counts."""
    counted = [record for record in records if not math.isnan(record["success"])]
    return proportion_interval(
        [record["success"] for record in counted],
        [record["scenario"] for record in counted],
        [record["weight"] for record in counted],
    )


def summarise(rows: Iterable[EvalRow], count_errors: CountErrors) -> list[dict[str, Any]]:
    """One record per configuration: rate with interval, counts, means of `MEANS`, and whether it is on the Pareto front."""
    return summarise_records(trial_record(row, count_errors) for row in rows)


def summarise_records(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """`summarise` of trials that are records already, with the keys `COLUMNS`."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(record["config"], []).append(record)
    summaries = [_summary(config, records) for config, records in groups.items()]
    for summary in summaries:
        summary["pareto"] = not any(_dominates(other, summary) for other in summaries)
    return summaries


def _summary(config: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    rate = success_interval(records)
    means = {name: sum(record[name] for record in records) / len(records) for name in (*MEANS, "grading_cost")}
    return {
        "config": config,
        "model": records[0]["model"],
        "model_kind": records[0]["model_kind"],
        "success_rate": rate.mean,
        "low": rate.low,
        "high": rate.high,
        "trials": len(records),
        "scenarios": len({record["scenario"] for record in records}),
        "errors": sum(record["outcome"] == "error" for record in records),
        **means,
        "cost_known": means["unpriced_calls"] == 0,
    }


def _dominates(one: dict[str, Any], other: dict[str, Any]) -> bool:
    mine, others = _loss(one), _loss(other)
    return all(a <= b for a, b in zip(mine, others, strict=True)) and mine != others


def _loss(summary: dict[str, Any]) -> tuple[float, float, float]:
    """What is better when smaller; an unknown cost is worse than any known one."""
    rate = 0.0 if math.isnan(summary["success_rate"]) else summary["success_rate"]
    return -rate, summary["cost_estimate"] if summary["cost_known"] else math.inf, summary["working_time"]


def labelled(name: str, kind: str) -> str:
    """`name`, with what it is when no real model answered: a made-up result is never shown without it."""
    return name if kind == "real" else f"{name} ({kind})"


def percent(value: float) -> str:
    """`0.873` as `87 %`; an unknown rate as a dash."""
    return "–" if math.isnan(value) else f"{100 * value:.0f} %"


def rate_text(summary: dict[str, Any]) -> str:
    """The rate with its interval: `90 % (60–98)`."""
    if math.isnan(summary["low"]):
        return percent(summary["success_rate"])
    return f"{percent(summary['success_rate'])} ({100 * summary['low']:.0f}–{100 * summary['high']:.0f})"


def cost_text(summary: dict[str, Any]) -> str:
    """The mean cost, and that it leaves out calls of unknown price where it does."""
    text = f"${summary['cost_estimate']:.4f}"
    return text if summary["cost_known"] else ("price not known" if not summary["cost_estimate"] else f"{text} + calls of unknown price")


def summary_cells(summary: dict[str, Any]) -> list[object]:
    """A summary as the cells of a table with the headings `SUMMARY_HEADINGS`."""
    return [
        labelled(summary["config"], summary["model_kind"]),
        labelled(summary["model"], summary["model_kind"]),
        rate_text(summary),
        summary["trials"],
        summary["errors"],
        f"{summary['wall_time']:.2f}",
        f"{summary['token_usage']:.0f}",
        f"{summary['tool_calls']:.1f}",
        f"{summary['cache_hits']:.1f}",
        cost_text(summary),
        "yes" if summary["pareto"] else "",
    ]


SUMMARY_HEADINGS: Final = (
    *("configuration", "model", "success (95 %)", "trials", "broke", "wall s", "tokens"),
    *("tool calls", "cache hits", "cost per trial", "Pareto front"),
)
