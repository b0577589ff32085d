"""Tables of results: rows of trials as records and summaries, without pandas."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.evals.gate_bounds import SCORE, format_lower_bound
from kestrel_lab.evals.metrics import METRICS
from kestrel_lab.evals.stats.groups import counting_units, group_values
from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, Interval, proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.corrected_rates import with_corrected
from kestrel_lab.evals.summaries.streaming_summary import broken_bounds, reduce_rows, score_metrics

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors

_FIRST: Final = ("passed", "why", "scenario", "config", "epoch", "cost_estimate", "wall_time", "run", "score")
COLUMNS: Final = (
    *_FIRST,
    *("model", "model_kind", "family", "group", "outcome", "success", "guidance", "suite"),
    *(name for name in METRICS if name not in _FIRST),
    *("grading_cost", "reason", "attempts", "git_sha", "origin", "weight"),
)
"""The keys of a trial's record, in order: first what is read first."""

UNITS: Final = {
    **{name: metric.unit for name, metric in METRICS.items() if metric.unit in ("s", "USD")},
    "grading_cost": "USD",
}
"""Of columns with an amount."""
INTERVAL_UNITS: Final = {
    f"{name}{end}": unit for name, unit in UNITS.items() for end in ("", "_low", "_high")
}
"""And of the ends of their intervals, for frames that have those."""


def with_unit(metric: str) -> str:
    """The metric with the unit of its values, where its name is not the unit."""
    return f"{metric}, {UNITS[metric]}" if metric in UNITS else metric


def trial_record(row: EvalRow, count_errors: CountErrors) -> dict[str, Any]:
    """Return one trial as a flat record with the keys `COLUMNS`, `recall@k` and `score:NAME` where checks
    give them, the metadata of the scenario, `concerns:KIND` where the answer was reviewed, and the suite's
    own metrics.
    """
    result = row.result
    success = (
        math.nan
        if result["outcome"] == "error" and count_errors == "exclude"
        else float(result["outcome"] == "pass")
    )
    record: dict[str, Any] = {
        "passed": None if math.isnan(success) else bool(success),
        "why": row.why,
        "suite": row.suite,
        "scenario": row.scenario,
        "family": result["family"],
        "group": row.group,
        "config": row.config,
        "model": result["model"],
        "model_kind": result["model_kind"],
        "guidance": result.get("guidance", ""),
        "epoch": row.epoch,
        "outcome": result["outcome"],
        "success": success,
        **{name: row.metrics.get(name, math.nan) for name in METRICS},
        **score_metrics(result["scores"]),
        **{name: value for name, value in row.metrics.items() if name not in METRICS},
        "reason": row.reason,
        "attempts": 1 + len(result.get("attempts", ())),
        "run": result["run"],
        "git_sha": row.git_sha,
        "origin": result.get("origin", ""),
        "weight": result["weight"],
        **{name: result[name] for name in ("label", "label_probability") if name in result},
    }
    known = result.get("metadata", {})
    return record | {name if name not in record else f"metadata.{name}": known[name] for name in known}


def units_of_rows(rows: Sequence[EvalRow]) -> Sequence[str]:
    """Return what each trial counts with in an interval or a test."""
    return counting_units([row.scenario for row in rows], [row.group for row in rows])


def record_units(records: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """Return what each of the records of `trial_record` counts with in an interval."""
    return counting_units([record["scenario"] for record in records], [record["group"] for record in records])


def success_interval(records: Sequence[dict[str, Any]], *, alpha: float = ALPHA) -> Interval:
    """Return the success rate of trials that count, clustered by group; no interval where none counts."""
    counted = [record for record in records if not math.isnan(record["success"])]
    return proportion_interval(
        [record["success"] for record in counted],
        record_units(counted),
        [record["weight"] for record in counted],
        alpha=alpha,
    )


def summarise_configurations(
    rows: Iterable[EvalRow], count_errors: CountErrors, reducer: str = "mean"
) -> list[dict[str, Any]]:
    """Return one record per configuration, as `Reducer.summaries` does, with what another `reducer` than the
    mean makes of it; the rows are read once and not kept.
    """
    found = reduce_rows(rows, count_errors, grouping=False)
    if reducer == "mean":
        return found.summaries()
    pairs = zip(found.summaries(), found.reduced(reducer), strict=True)
    return [summary | reduced for summary, reduced in pairs]


def label_kind(name: str, kind: str) -> str:
    """Return `name` with the kind of model, unless a real one answered: a scripted result is never shown
    without it.
    """
    return name if kind == "real" else f"{name} ({kind})"


def not_real(summaries: Iterable[Mapping[str, Any]], shown: Callable[[str], str] = str) -> list[str]:
    """Return sentences that name the configurations in which no real model answered, and what that means for
    their numbers.
    """
    kinds = group_values(
        (summary["model_kind"], shown(label_kind(summary["config"], summary["model_kind"])))
        for summary in summaries
    )
    replayed = kinds.pop("replay", [])
    kinds.pop("real", None)
    # Their models answered elsewhere, as the label says.
    kinds.pop("imported", None)
    made_up = [name for names in kinds.values() for name in names]
    lines = [f"No real model answered for: {', '.join(made_up)}."] if made_up else []
    if replayed:
        lines.append(
            f"Replayed from recordings: {', '.join(replayed)}. Tokens and cost are those of the "
            "recording, times those of the replay."
        )
    return lines


def format_percent(value: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return `0.873` as `87 %`, with an interval as `87 % (60–98)`; a dash for a rate that is not known."""
    if math.isnan(value):
        return "–"
    return f"{100 * value:.0f} %" + ("" if math.isnan(low) else f" ({100 * low:.0f}–{100 * high:.0f})")


def rate_text(summary: Mapping[str, Any]) -> str:
    """Return the success rate of a summary with its interval: `90 % (60–98)`."""
    return format_percent(summary["success_rate"], summary["low"], summary["high"])


def broke_text(summary: Mapping[str, Any]) -> str:
    """Return how many trials of a summary broke, and the rates there would be if all of them had failed or
    passed: `3 (rate 80–90 %)`.
    """
    return f"{summary['errors']}" + (
        f" (rate {100 * summary['if_broken_failed']:.0f}–{100 * summary['if_broken_passed']:.0f} %)"
        if summary["errors"]
        else ""
    )


def broke_in(rows: Iterable[EvalRow]) -> str:
    """Return `broke_text` for rows."""
    rows = list(rows)
    failed, passed = broken_bounds((row.outcome, 1, row.result["weight"]) for row in rows)
    errors = sum(row.outcome == "error" for row in rows)
    return broke_text({"errors": errors, "if_broken_failed": failed, "if_broken_passed": passed})


def format_mean(value: float, spec: str) -> str:
    """Return a mean as text; `unknown` where it is not known of every trial."""
    return "unknown" if math.isnan(value) else f"{value:{spec}}"


def cost_text(summary: Mapping[str, Any]) -> str:
    """Return the mean cost; where calls of unknown price are left out of it, the text says so."""
    text = f"${summary['cost_estimate']:.4f}"
    return text if summary["cost_known"] else format_lower_bound(text if summary["cost_estimate"] > 0 else "")


def frame_record(row: EvalRow, count_errors: CountErrors) -> dict[str, Any]:
    """Return a trial's record for a frame: its cost is missing where nothing is known of it, and a lower
    bound where calls are unpriced.
    """
    record = trial_record(row, count_errors)
    unknown = record["unpriced_calls"] > 0 and not record["cost_estimate"]
    return {**record, "cost_estimate": math.nan} if unknown else record


def summary_table(summaries: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return headings and texts; where scenarios were tried more than once, with the chances that one and
    that all of k tries pass.
    """
    headings = [
        *("configuration", "model", "success (95 %)", "trials", "broke", "wall s", "tokens"),
        *("tool calls", "cache hits", "cost per trial", "Pareto front"),
    ]
    rows = [
        [
            label_kind(summary["config"], summary["model_kind"]),
            label_kind(summary["model"], summary["model_kind"]),
            rate_text(summary),
            str(summary["trials"]),
            broke_text(summary),
            format_mean(summary["wall_time"], ".2f"),
            format_mean(summary["token_usage"], ".0f"),
            format_mean(summary["tool_calls"], ".1f"),
            format_mean(summary["cache_hits"], ".1f"),
            cost_text(summary),
            "yes" if summary["pareto"] else "",
        ]
        for summary in summaries
    ]
    headings, rows = with_corrected(headings, rows, summaries, after="success (95 %)")
    # The mean score has a column of its own only where whole percents show a difference from the success
    # rate.
    if any(abs(summary[SCORE] - summary["success_rate"]) > 0.005 for summary in summaries):
        headings.insert(3, "mean score")
        for summary, row in zip(summaries, rows, strict=True):
            row.insert(3, format_percent(summary[SCORE]))
    if reducers := dict.fromkeys(summary["reducer"] for summary in summaries if "reducer" in summary):
        headings.insert(3, ", ".join(reducers))
        for summary, row in zip(summaries, rows, strict=True):
            row.insert(3, format_percent(*(summary[f"reduced{end}"] for end in ("", "_low", "_high"))))
    tries = {summary["k"] for summary in summaries}
    if max(tries, default=0) > 1:
        k = str(*tries) if len(tries) == 1 else "k"
        headings[3:3] = [f"pass@{k}", f"pass^{k}"]
        for summary, row in zip(summaries, rows, strict=True):
            row[3:3] = [_chance_text(summary, name, with_k=k == "k") for name in ("pass_at", "pass_hat")]
    return headings, rows


def _chance_text(summary: dict[str, Any], name: str, *, with_k: bool) -> str:
    if summary["k"] < 2:
        return "–"
    text = format_percent(summary[name], summary[f"{name}_low"], summary[f"{name}_high"])
    return f"{text}, k = {summary['k']}" if with_k else text
