"""Summary of stored trials, which are read one by one; nothing is run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack, get_args

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.gate_bounds import SUCCESS, format_interval
from kestrel_lab.evals.metrics import PREFIX
from kestrel_lab.evals.options import SummaryOptions
from kestrel_lab.evals.reports.plots import families_figure
from kestrel_lab.evals.scanners.scanner import PREFIX as FOUND
from kestrel_lab.evals.stored.rescore import each_stored, is_selected, stored_commit
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.breakdowns import grouped_by_column
from kestrel_lab.evals.summaries.corrected_rates import corrected_text, with_annotations
from kestrel_lab.evals.summaries.result_table import (
    INTERVAL_UNITS,
    broke_text,
    format_percent,
    label_kind,
    with_unit,
)
from kestrel_lab.evals.summaries.retrieval_recall import MISSED_HEADINGS, MissedItems, missed_table
from kestrel_lab.evals.summaries.streaming_summary import Group, reduce_rows
from kestrel_lab.runtime.options import fill, takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import Part, PartsView, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MISSED: Final = 20
"""Items that were not found and are shown."""
SHOWN: Final = (SUCCESS, "working_time", "token_usage", "tool_calls", "cost_estimate")
"""Metrics that are shown when none are named; beside them `recall@k` and `concerns` where they are known, and
`concerns:KIND` of kinds that were found.
"""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class StoredSummary(PartsView):
    """Rates and metrics of the newest stored trial of each scenario, configuration and epoch of one
    commit.
    """

    suite: str
    commit: str
    by: str
    """`config`, or a column of trials."""
    records: tuple[dict[str, Any], ...]
    """One per configuration and group: `success_rate` and each metric, with `…_low` and `…_high`."""
    metrics: tuple[str, ...] = ()
    """The metrics to show; `SHOWN` when empty."""
    missed: tuple[tuple[str, ...], ...] = ()
    """What checks `recall_at` wanted and did not find: cells under `MISSED_HEADINGS`."""
    tries: tuple[dict[str, Any], ...] = ()
    """The chances of k tries, for every k, where they were asked for; see `Reducer.tries`."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per configuration and group, all metrics with their 95 % intervals, clustered by scenario.

        Where calls have no known price `cost_estimate` is missing, and `cost_at_least` is the mean of what is
        known.
        """
        return unit_frame(list(self.records), units=INTERVAL_UNITS)

    @property
    def headline(self) -> str:
        """The suite, the number of trials and the commit, in one line."""
        trials = sum(record["trials"] for record in self.records)
        return (
            f"suite {self.suite}: {format_count(trials, 'stored trial')} of {self.commit[:10] or 'no commit'}"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Headings, and a row of texts per configuration and group."""
        metrics = self.metrics or (*SHOWN, *filter(self._tells, self.known))
        labelled = any(record.get("labels") for record in self.records)
        headings = [
            "configuration",
            *([self.by] if self.by != "config" else []),
            "trials",
            "broke",
            *(["corrected by labels (95 %)"] if labelled else []),
            *(f"{with_unit(name)} (95 %)" for name in metrics),
        ]
        rows = [
            [
                label_kind(record["config"], record["model_kind"]),
                *([str(record[self.by])] if self.by != "config" else []),
                str(record["trials"]),
                broke_text(record),
                *([corrected_text(record)] if labelled else []),
                *(format_interval(record, name) for name in metrics),
            ]
            for record in self.records
        ]
        return headings, rows

    def plot(self, metric: str = SUCCESS) -> Figure:
        """Draw a metric by family (or whatever the trials are grouped by), with intervals."""
        return families_figure(
            [{"family": record.get(self.by, ""), **record} for record in self.records], metric, self.by
        )

    def parts(self) -> Iterable[Part]:
        """Return the table, the chances of k tries, and what was wanted and not found."""
        first: list[Part] = [Table(*self.table())]
        if self.tries:
            first += ["", "chances of k tries at a scenario (95 %)", Table(*_tries_table(self.tries))]
        if not self.missed:
            return first
        more = (
            f", the first {MISSED} of {len(self.missed)}; all: EvalResult.recall()"
            if len(self.missed) > MISSED
            else ""
        )
        return [
            *first,
            "",
            f"wanted and not found{more}",
            Table(MISSED_HEADINGS, self.missed[:MISSED]),
        ]

    def _tells(self, name: str) -> bool:
        """Return whether a metric that only some trials have is worth a column: recall, the number of
        concerns, and kinds of concerns that were found.
        """
        values = [record[name] for record in self.records if not math.isnan(record[name])]
        return bool(values) and (
            name.startswith("recall@")
            or name == "concerns"
            or (name.startswith((PREFIX, FOUND)) and any(values))
        )

    @property
    def known(self) -> list[str]:
        """Names of all metrics."""
        return [key for key in self.records[0] if f"{key}_low" in self.records[0]]


@takes_options(SummaryOptions)
def summarise_stored(
    lab: Services, suite: str | Path | Suite, **options: Unpack[SummaryOptions]
) -> StoredSummary:
    """Summarise the stored trials of a suite at a commit, those of a bisection left out; see
    `Evaluations.stored`.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    shown = fill(SummaryOptions, options)
    by, metrics, tries = shown["by"], shown["metrics"], shown["tries"]
    group = next((known for known in get_args(Group) if known == by), None)
    sha = stored_commit(lab, loaded, options.get("commit"))
    lacking = MissedItems()
    found = filter(is_selected(loaded, options), each_stored(lab, loaded, sha))
    rows = with_annotations(lacking.noting(found), lab.store)
    chances: Sequence[dict[str, Any]] = ()
    if group is not None:
        reducer = reduce_rows(rows, loaded.count_errors)
        records = sorted(reducer.grouped(group), key=_place(loaded, group))
        chances = reducer.tries() if tries and records else ()
    else:
        every = list(rows)
        records = grouped_by_column(every, loaded.count_errors, by, by)
        chances = reduce_rows(every, loaded.count_errors, grouping=False).tries() if tries and every else ()
    if not records:
        raise UsageError(
            f"no trials of what was asked for are stored at {sha[:10] or 'no commit'}: ask for more of "
            "the suite, or run it first"
        )
    missed = map(tuple, missed_table(loaded, lacking, lab.store))
    summary = StoredSummary(
        suite=loaded.name,
        commit=sha,
        by=by,
        records=tuple(records),
        metrics=tuple(metrics),
        missed=tuple(missed),
        tries=tuple(chances),
    )
    for name in metrics:
        if name not in summary.known:
            raise UsageError(
                f"there is no metric {name!r} in these trials; {did_you_mean(name, summary.known)}"
            )
    return summary


def _tries_table(tries: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    rows = [
        [
            one["config"],
            str(one["k"]),
            *(
                format_percent(*(one[f"{name}{end}"] for end in ("", "_low", "_high")))
                for name in ("pass_at", "pass_hat")
            ),
        ]
        for one in tries
    ]
    return ["configuration", "k", "one passes: pass@k", "all pass: pass^k"], rows


def _place(suite: Suite, by: Group) -> Callable[[dict[str, Any]], tuple[int, int]]:
    """Return the sort key of a record: groups and in them configurations in the suite's order, unknown ones
    last.
    """
    named = {
        "config": [],
        "family": [s.family for s in suite.scenarios],
        "scenario": [s.id for s in suite.scenarios],
    }[by]
    groups = {name: place for place, name in reversed(list(enumerate(named)))}
    configs = {config.name: place for place, config in enumerate(suite.configs)}
    return lambda record: (
        groups.get(str(record.get(by)), len(named)) if by != "config" else 0,
        configs.get(record["config"], len(configs)),
    )
