"""Result of an eval run: one tidy row per trial, a summary with intervals, reports."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.gate_bounds import SUCCESS
from kestrel_lab.evals.labels.labelled_result import LabelledResult
from kestrel_lab.evals.metrics import CONCERN_COLUMNS, concern_rates
from kestrel_lab.evals.reports.gate_decisions import (
    EXIT_CODES,
    GateReport,
    decide_gates,
    missed_recordings,
    record_again,
)
from kestrel_lab.evals.reports.gate_needs import gates_out_of_reach
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.reports.scan_report import ScannedResult
from kestrel_lab.evals.scenario_groups import count_groups, with_groups
from kestrel_lab.evals.stats.pass_at_k import pass_rates
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries import result_table
from kestrel_lab.evals.summaries.corrected_rates import with_annotations
from kestrel_lab.evals.summaries.streaming_summary import grading_cost, reduce_rows
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from kestrel_lab.evals.summaries.pareto import Frontier

_REASON: Final = 240
"""Characters of a reason that are shown."""
_REASONS: Final = 3
"""Reasons that are shown."""
_QUIET: Final = {
    "broke": ("0",),
    "tool calls": ("0.0",),
    "cache hits": ("0.0", "unknown"),
    "Pareto front": ("",),
}
"""Columns of the table that are left out where all configurations have these words."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EvalResult(LabelledResult, ScannedResult, ResultView):
    """Trials of a suite, scenario × configuration × epoch."""

    suite: Suite
    rows: tuple[EvalRow, ...]
    store: SessionStore
    """The log of the runs behind the rows."""
    stored: frozenset[str] = frozenset()
    """Ids of the rows that earlier eval runs stored."""
    why: dict[str, int] = field(default_factory=dict)
    """Why the other trials could not be reused, when that was asked for: numbers of trials by reason."""
    notes: tuple[str, ...] = ()
    """How the trials were run: what was cut off before, repeated, or slowed down."""
    decided: GateReport | None = None
    """The gates, where trials were made in turns until these were decided."""
    _summaries: dict[Hashable, list[dict[str, Any]]] = field(default_factory=dict, init=False, compare=False)
    """By the labels that they are corrected by: trials may be labelled at any time."""

    def __post_init__(self) -> None:
        """Count the trials by the groups of the present suite."""
        object.__setattr__(self, "rows", tuple(with_groups(self.rows, self.suite)))

    @property
    def reused(self) -> int:
        """How many rows earlier eval runs stored."""
        return len(self.stored)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial: `passed` and `why` not, who and what, `run`, `outcome` (`pass`, `fail`,
        `error`), metrics, `reason`, `git_sha`.

        `why` says of each check that failed what was expected and what was found. `passed` is true or false,
        `success` 1 or 0; both are missing for a trial that broke when the suite excludes those; `score` is
        the mean value of its checks; times are in seconds; `recall@k` is there where checks ask for it.
        `cost_estimate` is missing where no price is known, and what is known of it where `unpriced_calls` is
        not 0. `label` and `label_probability` are there where people labelled trials, `found:NAME` (1 or 0)
        where a scanner looked through the run. `origin` is user and
        machine that a pulled trial was made by, empty for one that was made here.
        """
        records = [result_table.frame_record(row, self.suite.count_errors) for row in self._labelled()]
        more = sorted({name for record in records for name in record} - set(result_table.COLUMNS))
        frame = unit_frame(records, columns=[*result_table.COLUMNS, *more], units=result_table.UNITS)
        return frame.astype({"passed": "boolean"})  # one with room for missing values

    @property
    def scores(self) -> pd.DataFrame:
        """One row per trial and check: `scenario`, `config`, `epoch`, `check`, `passed`, `value`, `reason`,
        `grading_cost`.

        `grading_cost` is what asking a grader cost in US dollars: 0 where none was asked, missing where its
        price is not known.
        """
        rows = []
        for row in self.rows:
            head = {"scenario": row.scenario, "config": row.config, "epoch": row.epoch}
            rows += [{**head, **score, "grading_cost": grading_cost([score])} for score in row.scores]
        columns = ["scenario", "config", "epoch", "check", "passed", "value", "reason", "grading_cost"]
        return unit_frame(rows, columns=columns, units=result_table.UNITS)

    def summary(self) -> pd.DataFrame:
        """One row per configuration.

        `success_rate` with its 95 % interval `low` and `high`, clustered by scenario; `pass_at` and
        `pass_hat`, the chances that one and that all of `k` tries pass, with intervals, `k` being the fewest
        tries of a scenario; numbers of `trials`, `scenarios` and `errors` (trials that broke); means per
        trial of times, tokens, calls and cost, and apart from it `grading_cost`, of asking graders (missing
        where unknown); `cost_known`, false where calls have no known price; `pareto`, whether no other
        configuration is at least as good in success, cost and working time and better in one of them.
        """
        return unit_frame(self.summaries(), units=result_table.UNITS).set_index("config")

    def by(self, group: str) -> pd.DataFrame:
        """Return one row per configuration and `family`, `scenario`, `check`, kind of `concern`, or value of
        any other column of `frame`, metadata of scenarios among them.

        By family and scenario: `success_rate` and every metric, `recall@k` among them where checks ask for
        it, each with `…_low` and `…_high`. By check: how often it passed in the trials that were judged,
        `success_rate` with `low` and `high`. By concern: the `share` of trials whose answer has a concern of
        that kind (`files`, `names`, `numbers` …), with `low` and `high`; raises `UsageError` where no answer
        was reviewed, which `verify: warn` of a configuration, or more, asks for. Intervals are of 95 %,
        clustered by scenario.
        """
        from kestrel_lab.evals.summaries.breakdowns import check_rates, grouped_by_column

        match group:
            case "check":
                columns = ["config", "check", "success_rate", "low", "high", "trials"]
                return unit_frame(check_rates(self.rows), columns=columns).set_index(["config", "check"])
            case "concern":
                rates = concern_rates(
                    self.rows, reduce_rows(self.rows, self.suite.count_errors).grouped("config")
                )
                return unit_frame(rates, columns=list(CONCERN_COLUMNS)).set_index(["config", "kind"])
            case "config" | "family" | "scenario":
                return unit_frame(
                    reduce_rows(self._labelled(), self.suite.count_errors).grouped(group),
                    units=result_table.INTERVAL_UNITS,
                )
        records = grouped_by_column(self._labelled(), self.suite.count_errors, group, group)
        return unit_frame(records, units=result_table.INTERVAL_UNITS)

    def frontier(self, price: str = "cost_estimate") -> Frontier:
        """Return the Pareto front of success rate against `price`, a cost or a time: the configurations that
        no other beats in both.
        """
        from kestrel_lab.evals.summaries.pareto import pareto_frontier

        return pareto_frontier(self.frame, price=price)

    def recall(self) -> pd.DataFrame:
        """One row per trial and item that a check `recall_at` wants: what was found, and where the rest was
        lost.

        `found`, `place` among the results that the agent was shown, `state` (`found`, `behind`, `dropped`,
        `chosen`, `unmatched` or `not looked for`), the `step` of the search that dropped it last, and `why`,
        as the trial's log has it. The means are `recall@k` of `by("family")` and `by("scenario")`, with
        intervals. Empty for suites without such checks.
        """
        from kestrel_lab.evals.summaries.retrieval_recall import RECALL_COLUMNS, recall_rows

        return unit_frame(list(recall_rows(self.suite, self.rows, self.store)), columns=list(RECALL_COLUMNS))

    def pass_at(self, k: int | None = None) -> pd.DataFrame:
        """One row per configuration: what to expect of `k` tries at a scenario, averaged over scenarios; with
        no `k` a row for each up to the fewest trials of a scenario.

        `pass_at` is the chance that at least one try passes (pass@k), `pass_hat` that all do (pass^k), each
        an unbiased estimate with its 95 % interval `…_low` and `…_high`, clustered by scenario;
        `evals.stats.pass_at_k` names the sources. Raises `UsageError` unless every scenario has `k` trials
        that count.
        """
        if k is None:
            tries = reduce_rows(self.rows, self.suite.count_errors, grouping=False).tries()
            return unit_frame(tries).set_index(["config", "k"])
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault(row.config, []).append(result_table.trial_record(row, self.suite.count_errors))
        return unit_frame(
            [{"config": name, **pass_rates(records, k)} for name, records in groups.items()]
        ).set_index("config")

    def reduced(self, how: str = "") -> pd.DataFrame:
        """One row per configuration: the share of scenarios that pass once their trials are reduced to one.

        `how` is `mean`, `mode` (more than half passed), `max` (one passed), `min` (all passed) or
        `at_least_K`; by default the suite's `reducer`.
        """
        records = reduce_rows(self.rows, self.suite.count_errors, grouping=False)
        return unit_frame(records.reduced(how or self.suite.reducer)).set_index("config")

    def plot(self, metric: str = "", by: str = "") -> Figure:
        """Draw success rates with intervals, and success against cost and working time with the Pareto front;
        or `metric` by a column of `frame`.

        `by` is `scenario`, `family`, `configuration`, `commit`, or any other column of few values; `family`
        where only a metric is named, and the metric is the success rate where only `by` is. Raises
        `UsageError` for a metric or a column that is not there, and for one of too many values.
        """
        from kestrel_lab.evals.reports.plots import configs_figure, families_figure
        from kestrel_lab.evals.summaries.breakdowns import grouped_by_column

        if not (metric or by):
            return configs_figure(self.summaries(), self.headline)
        by = by or "family"
        return families_figure(
            grouped_by_column(self.rows, self.suite.count_errors, by), metric or SUCCESS, by
        )

    def report(self, path: str | Path) -> Path:
        """Write the page of the suite: a verdict, a matrix of scenarios and configurations, each trial with
        its checks and transcript; returns its path.

        It is one HTML file that needs neither network nor server; above 20 MB the trials lie in the folder
        `NAME_trials` beside it.
        """
        from kestrel_lab.evals.reports.suite_page import write_suite_page

        gates = self.gates() if self.suite.gates else None
        return write_suite_page(path, self.suite, self._labelled(), self.store, gates=gates)

    def gates(self) -> GateReport:
        """Decide the suite's gates; the verdict is `broken` when it declares none."""
        # Looks at the trials were decided by wider intervals, which must not be judged again by usual ones.
        if self.decided is not None:
            return self.decided
        of_gates = gates_out_of_reach(self.suite)  # the decisions say so of each
        notes = tuple(line for line in self.lines() if line not in of_gates)
        return GateReport(
            suite=self.suite.name, decisions=decide_gates(self.suite, self._labelled()), notes=notes
        )

    def junit(self, path: str | Path) -> Path:
        """Write JUnit XML: a test case per configuration and scenario, its epochs together, and one per gate;
        returns its path.

        A case fails when fewer of its epochs passed than a gate for the success rate asks for, all where
        there is none.
        """
        from kestrel_lab.evals.reports.junit import case_groups, write_junit

        more = [self.gates().group()] if self.suite.gates else []
        return write_junit(path, self.suite.name, [*case_groups(self.suite, self.rows), *more])

    def markdown(self, report: str = "") -> str:
        """Return a summary for a pull request; `report`, the address of the HTML report, makes links to
        transcripts.
        """
        from kestrel_lab.evals.reports.markdown import result_markdown

        return result_markdown(
            self.suite, self._labelled(), self.gates() if self.suite.gates else None, report
        )

    @property
    def exit_code(self) -> int:
        """3 where a replay lacked a recording, 1 where every trial broke, else 0: how many have to pass is
        for gates.
        """
        if any(row.unrecorded for row in self.rows):
            return EXIT_CODES["unrecorded"]
        return int(bool(self.rows) and all(row.outcome == "error" for row in self.rows))

    def __repr__(self) -> str:
        counts = Counter(row.outcome for row in self.rows)
        return f"<{self.headline}: {counts['pass']} passed, {counts['fail']} failed, {counts['error']} broke>"

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {note}" for note in self.lines())]
        for s in self.summaries():
            broke = f", broke: {result_table.broke_text(s)}" if s["errors"] else ""
            name = result_table.label_kind(s["config"], s["model_kind"])
            lines.append(
                f"  {name}: {result_table.rate_text(s)} of {format_count(s['trials'], 'trial')}{broke}, "
                f"{result_table.format_mean(s['working_time'], '.2f')} s, "
                f"{result_table.format_mean(s['token_usage'], '.0f')} tokens, "
                f"{'' if s['cost_known'] else 'cost '}{result_table.cost_text(s)}"
            )
        return "\n".join(lines)

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Return headings, and a row of texts per configuration: the columns that say something here."""
        headings, rows = result_table.summary_table(self.summaries())
        said = [
            place
            for place, name in enumerate(headings)
            if name not in _QUIET or any(row[place] not in _QUIET[name] for row in rows)
        ]
        return [headings[place] for place in said], [[row[place] for place in said] for row in rows]

    @property
    def headline(self) -> str:
        """What was run, in one line."""
        taken = f", {self.reused} taken from earlier runs" if self.reused else ""
        return (
            f"suite {self.suite.name}: {format_count(len(self.rows), 'trial')} of "
            f"{count_groups(self.suite.groups, self.suite.groups.values())}{taken}"
        )

    def lines(self) -> list[str]:
        """Return what to read beside `summary`: `run_notes`, why trials broke, which answers were
        replayed.
        """
        missed = [row for row in self.rows if row.unrecorded]
        return [
            *self.run_notes(),
            *self._broke(),
            *([f"{missed_recordings(missed)}. {record_again(self.suite)}"] if missed else []),
            *result_table.not_real(
                summary for summary in self.summaries() if summary["model_kind"] == "replay"
            ),
        ]

    def run_notes(self) -> tuple[str, ...]:
        """Return how the trials were made: `notes`, and why stored ones could not be reused."""
        made = [
            f"{format_count(count, 'trial')} not taken from earlier runs: {why}"
            for why, count in self.why.items()
            if why != "not run before"
        ]
        if any("the code changed" in why for why in self.why):
            made.append(
                "files that git does not track count as code, reports too: name their folder in .gitignore"
            )
        return (*self.notes, *made)

    def _broke(self) -> list[str]:
        """Return why trials broke, the most frequent reasons first."""
        reasons = Counter(one_line(row.reason, _REASON) for row in self.rows if row.outcome == "error")
        more = (
            [f"and {len(reasons) - _REASONS} other reasons: column reason of the frame, or --csv"]
            if len(reasons) > _REASONS
            else []
        )
        return [
            *(
                f"{format_count(count, 'trial')} broke: {why or 'no reason given'}"
                for why, count in reasons.most_common(_REASONS)
            ),
            *more,
        ]

    def summaries(self) -> list[dict[str, Any]]:
        """Return the rows of `summary` as records."""
        # Kept, since each display asks twice and a reduction of 12,000 rows takes .4 s.
        rows = self._labelled()
        # The key of what is kept: another label is another summary.
        labels = tuple((row.id, row.result["label"]) for row in rows if "label" in row.result)
        if labels not in self._summaries:
            self._summaries[labels] = result_table.summarise_configurations(
                rows, self.suite.count_errors, self.suite.reducer
            )
        return [dict(summary) for summary in self._summaries[labels]]

    def _labelled(self) -> list[EvalRow]:
        """Return the rows with what people have said of them, and scanners found in them, so far."""
        return list(with_annotations(self.rows, self.store))
