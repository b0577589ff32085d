"""Breakdowns of results: rates by family of scenarios and by check, and the scenarios that were failed."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.gate_bounds import format_interval
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stats.intervals_and_tests import proportion_interval
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import (
    format_percent,
    frame_record,
    label_kind,
    rate_text,
    units_of_rows,
)
from kestrel_lab.evals.summaries.streaming_summary import reduce_rows

# The suite's models load pydantic, which takes longer than the rest of this module.
if TYPE_CHECKING:
    from kestrel_lab.evals.suite import CountErrors

_PASSED = "success_rate"


_COLUMN_NAMES: Final = {
    "configuration": "config",
    "commit": "git_sha",
    "cost": "cost_estimate",
    "time": "wall_time",
}
"""Columns by the words that people use for them."""
_MOST_GROUPS: Final = 100
"""Values of a column above which a drawing by it cannot be read."""
_RANGES: Final = 5


def grouped_by_column(
    rows: Iterable[EvalRow], count_errors: CountErrors, by: str, key: str = "family"
) -> list[dict[str, Any]]:
    """Return a record per configuration and value of a column of the trials, as `Reducer.grouped` gives them;
    `key` holds the value.

    Of numbers that are many, such as times, the value is one of `_RANGES` ranges with equally many trials.
    Raises `UsageError` for a column that no trial has, and for texts with more than `_MOST_GROUPS` values.
    """
    column = _COLUMN_NAMES.get(by, by)
    rows = list(rows)
    records = [frame_record(row, count_errors) for row in rows]
    if records and not any(column in record for record in records):
        known = dict.fromkeys([*_COLUMN_NAMES, *(name for record in records for name in record)])
        raise UsageError(f"there is no column {by!r} to group by; {did_you_mean(by, [*known])}")
    values = _group_names([record.get(column) for record in records])
    if column == "git_sha":
        values = [name[:10] for name in values]
    groups = group_values((name, row) for name, row in zip(values, rows, strict=True))
    if len(groups) > _MOST_GROUPS:
        raise UsageError(
            f"{by} has {len(groups):,} values, and there is room for {_MOST_GROUPS}: choose a "
            "column of fewer, or some trials"
        )
    found = [
        {"config": record["config"], key: value, **record}
        for value, some in groups.items()
        for record in reduce_rows(some, count_errors).grouped("config")
    ]
    # A metric that only some groups have is unknown in the others.
    names = dict.fromkeys(name for record in found for name in record)
    return [{**dict.fromkeys(names, math.nan), **record} for record in found]


def _group_names(values: Sequence[Any]) -> list[str]:
    """Return the group of each value: the value in words, or of many numbers the range that it is in."""
    missing = [value is None or value != value for value in values]
    known = sorted(value for value, lacks in zip(values, missing, strict=True) if not lacks)
    # Many different numbers, such as times, are drawn as ranges.
    if len(set(known)) <= 12 or not all(isinstance(value, int | float) for value in known):
        return ["unknown" if lacks else str(value) for value, lacks in zip(values, missing, strict=True)]
    # Quantiles are equal where one number is frequent, and no range may be empty.
    edges = sorted({known[len(known) * part // _RANGES] for part in range(1, _RANGES)} - {known[0]})
    names = [f"{low:.3g} to {high:.3g}" for low, high in pairwise([known[0], *edges, known[-1]])]
    return [
        "unknown" if lacks else names[bisect_right(edges, value)]
        for value, lacks in zip(values, missing, strict=True)
    ]


def family_table(
    rows: Iterable[EvalRow], count_errors: CountErrors, metrics: Sequence[str] = ()
) -> tuple[list[str], list[list[str]]]:
    """Return headings, and for each family a row with its success rate, one for each `recall@k` and each of
    `metrics`, with 95 % intervals.

    No rows for one family. Where there are `metrics` the first rows are those of all families together.
    """
    reducer = reduce_rows(rows, count_errors)
    overall = reducer.grouped("config")
    wanted = (name for name in metrics if name != _PASSED and not name.startswith("recall@"))
    metrics = list(dict.fromkeys(name for name in wanted if any(name in one for one in overall)))
    records = [record | {"family": "all"} for record in overall] if metrics else []
    several = reducer.grouped("family")
    records += several if len({record["family"] for record in several}) > 1 else []
    if not records:
        return [], []
    configs = {record["config"]: label_kind(record["config"], record["model_kind"]) for record in records}
    cells = {(record["family"], record["config"]): record for record in records}
    recalls = sorted(
        (name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))),
        key=lambda name: -int(name.removeprefix("recall@")),
    )
    table = []
    for family in dict.fromkeys(record["family"] for record in records):
        for metric in (_PASSED, *recalls, *metrics):
            first = family or "no family" if metric == _PASSED else ""
            what = "passed" if metric == _PASSED else metric
            table.append(
                [first, what, *(_rate_cell(cells.get((family, config)), metric) for config in configs)]
            )
    return ["family", "(95 %)", *configs.values()], table


def _rate_cell(record: dict[str, Any] | None, metric: str) -> str:
    if record is None:
        return "–"
    if metric != _PASSED and not metric.startswith("recall@"):
        return format_interval(record, metric, "–")
    return format_percent(record[metric], record[f"{metric}_low"], record[f"{metric}_high"])


# How often each check passed, where the scenarios of a suite have the same ones: success and safety apart,
# say.

CHECK_HEADINGS: Final = ("configuration", "check", "passed (95 %)", "trials")


def check_rates(rows: Iterable[EvalRow]) -> list[dict[str, Any]]:
    """Return one record per configuration and check: its rate over the trials that were judged, with an
    interval clustered by group.
    """
    verdicts = group_values(
        ((row.config, row.model_kind, score["check"]), (float(score["passed"]), row))
        for row in rows
        for score in row.scores
    )
    records = []
    for (config, kind, check), judged in verdicts.items():
        rate = proportion_interval(
            [passed for passed, _ in judged],
            units_of_rows([row for _, row in judged]),
            [row.result["weight"] for _, row in judged],
        )
        measures = {"success_rate": rate.mean, "low": rate.low, "high": rate.high, "trials": len(judged)}
        records.append({"config": config, "model_kind": kind, "check": check, **measures})
    return records


def shared_checks(rows: Iterable[EvalRow]) -> list[list[str]]:
    """Return `check_rates` as cells under `CHECK_HEADINGS`, if all judged trials have the same checks and
    there are several; else nothing.
    """
    rows = list(rows)
    kinds = {tuple(score["check"] for score in row.scores) for row in rows if row.scores}
    if len(kinds) != 1 or len(next(iter(kinds))) < 2:
        return []
    return [
        [label_kind(one["config"], one["model_kind"]), one["check"], rate_text(one), str(one["trials"])]
        for one in check_rates(rows)
    ]


# Which scenarios were failed, by whom and why: the first thing to know after a rate below one.

FAILED_HEADINGS: Final = ("did not pass", "with", "why")
_MOST: Final = 8


def failed_table(rows: Iterable[EvalRow]) -> list[list[str]]:
    """Return cells under `FAILED_HEADINGS`: a row per scenario that was failed, those that the best
    configurations failed first.

    Where a scenario was tried more than once, how often it passed is shown beside the configuration. The
    reason, what was expected and found, is that of the best configuration that failed it. Trials that broke
    are not among them. Of many the last row says how many more there are.
    """
    rows = list(rows)
    passed = Counter(row.config for row in rows if row.outcome == "pass")
    found = group_values(
        (row.scenario, row)
        for row in sorted(rows, key=lambda row: -passed[row.config])
        if row.outcome == "fail"
    )
    first = sorted(found.items(), key=lambda item: -passed[item[1][0].config])
    tried = Counter((row.scenario, row.config) for row in rows)
    right = Counter((row.scenario, row.config) for row in rows if row.outcome == "pass")

    def with_count(scenario: str, config: str) -> str:
        number = tried[scenario, config]
        return config if number == 1 else f"{config} ({right[scenario, config]} of {number})"

    cells = [
        [
            scenario,
            ", ".join(with_count(scenario, config) for config in dict.fromkeys(row.config for row in failed)),
            one_line(failed[0].why, 200),
        ]
        for scenario, failed in first[:_MOST]
    ]
    return cells + (
        [[f"and {len(first) - _MOST:,} more", "", "all of them: --csv FILE, --report FILE.html"]]
        if len(first) > _MOST
        else []
    )
