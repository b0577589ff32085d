"""A metric over commits: one row per trial, intervals per commit, and the commits where it steps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.drawing.matplotlib_figure import figure_uri
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.commits.row_differences import MARGIN, compare_rows
from kestrel_lab.evals.gate_bounds import SUCCESS
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.reports.plots import Line, Mark, history_figure
from kestrel_lab.evals.reports.result_view import ResultView, write_text
from kestrel_lab.evals.stats.change_points import ALPHA, Step, find_steps
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stats.label_correction import ENOUGH_LABELS
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.corrected_rates import is_judged, with_corrected
from kestrel_lab.evals.summaries.metric_values import ObservedMetric, find_metric
from kestrel_lab.evals.summaries.result_table import COLUMNS, UNITS, broke_in, frame_record, label_kind
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import (
    headline_html,
    html_page,
    paragraph_html,
    table_html,
    template_macros,
)

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SHOWN: Final = 40
"""Commits that a text shows; the frame has all."""
_HEADINGS: Final = ("commit", "made", "configuration", "value (95 %)", "trials", "broke", "change", "subject")


@dataclass(frozen=True, kw_only=True, slots=True)
class CommitRows:
    """The trials of one commit."""

    commit: Commit
    rows: tuple[EvalRow, ...]
    why: str = ""
    """Why the commit could not be run, or what of it was left out."""


@dataclass(frozen=True, kw_only=True, repr=False)
class History(ResultView):
    """Trials of one suite at several commits, oldest commit first, with one metric shown."""

    suite: Suite
    metric: str
    commits: tuple[CommitRows, ...]
    notes: tuple[str, ...] = ()

    def of(self, metric: str) -> History:
        """Return the same trials with another metric; raises `UsageError` for one that does not exist."""
        return replace(self, metric=find_metric(metric, self.suite.metrics).name)

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial: `commit` (whole hash), `subject`, `committed_at`, and the columns of a result's
        frame.
        """
        records = [
            {**_commit_record(c.commit), **frame_record(row, self.suite.count_errors)}
            for c in self.commits
            for row in c.rows
        ]
        return unit_frame(
            records,
            columns=["commit", "subject", "committed_at", *COLUMNS],
            units={**UNITS, "committed_at": "UTC"},
        ).astype({"passed": "boolean"})

    def summary(self) -> pd.DataFrame:
        """One row per commit and configuration: `commit`, `subject`, `committed_at`, `config`, the metric's
        mean `value` with its 95 % interval `low` and `high` (clustered by scenario), numbers of `trials`,
        `scenarios` and `errors`, and `step`: by how much the metric changed from this commit on, missing
        where it did not step. Where people labelled trials, `corrected_rate` with its ends and `labels`.
        """  # the columns are the summary
        records = [
            {
                **_commit_record(self.commits[place].commit),
                "config": config,
                "value": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "trials": len(rows),
                "scenarios": len({row.scenario for row in rows}),
                "errors": sum(row.outcome == "error" for row in rows),
                "step": step.after - step.before if (step := self._step_at(config, place)) else math.nan,
                **self._observed.corrected(rows, self.suite.count_errors),
            }
            for config, place, rows, interval in self.points
        ]
        return unit_frame(
            records, units={**self._observed.units("value", "low", "high", "step"), "committed_at": "UTC"}
        )

    @property
    def steps(self) -> pd.DataFrame:
        """One row per step: `config`, `commit`, `subject`, means `before` and `after`, `p`, and `change`:
        `better` or `worse`.

        A history without any change shows a step in at most 5 % of cases, over all configurations together.
        A history of two commits is a comparison, with its verdict and p.
        """
        columns = ["config", "commit", "subject", "before", "after", "p", "change"]
        records = [
            (config, commit.sha, commit.subject, step.before, step.after, step.p, self._way(step))
            for config, step, commit in self._stepped
        ]
        return unit_frame(records, columns=columns, units=self._observed.units("before", "after"))

    def plot(self) -> Figure:
        """Draw the metric at each commit with its interval, and the steps with the means on both sides."""
        lines = [
            Line(
                label=label_kind(config, self._kinds[config]),
                points=[(place, interval) for name, place, _, interval in self.points if name == config],
                marks=[
                    Mark(at=step.at, before=step.before, after=step.after, worse=self._way(step) == "worse")
                    for step in steps
                ],
            )
            for config, steps in self._steps.items()
        ]
        title = f"Suite {self.suite.name}: {self._observed.name.replace('_', ' ')} by commit"
        return history_figure(title, self._observed, [c.commit for c in self.commits], lines)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page; returns its path."""
        title = f"Suite {self.suite.name}: {self.metric} by commit"
        parts = template_macros("elements.html")
        head = (
            f"{parts.heading(title)}{parts.image(figure_uri(self.plot), title)}{headline_html(self.headline)}"
        )
        notes = "".join(map(paragraph_html, self.lines()))
        return write_text(path, html_page(title, f"{head}{table_html(*self._table)}{notes}"))

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return headings, and a row of texts per commit and configuration, newest last."""
        headings, cells = self._table
        return headings, cells[-_SHOWN:]

    @property
    def headline(self) -> str:
        """The metric, the commits and the trials, in one line."""
        trials, tried = sum(len(c.rows) for c in self.commits), sum(bool(c.rows) for c in self.commits)
        where = f"{tried}" if tried == len(self.commits) else f"{tried} of {len(self.commits)}"
        return (
            f"suite {self.suite.name}: {self.metric} at {where} "
            f"commit{'s' * (len(self.commits) != 1)}, {format_count(trials, 'trial')}"
        )

    def lines(self) -> list[str]:
        """Return what to read beside the table: steps, and what was left out."""
        said = [
            f"step at {commit.short} {one_line(commit.subject, 60)} [{config}]: "
            f"{self._observed.text(step.before)} → "
            f"{self._observed.text(step.after)} ({self._way(step)}), p {step.p:.3f}"
            for config, step, commit in self._stepped
        ]
        left = [
            f"{c.commit.short} {one_line(c.commit.subject, 40)}: {one_line(c.why, 300)}"
            for c in self.commits
            if c.why
        ]
        if all(math.isnan(interval.mean) for _, _, _, interval in self.points):
            said = [f"no trial says anything of {self.metric}"]
        judged = [f"no steps are searched [{config}]: {note}" for config, note in self._uncorrected.items()]
        nothing = [] if judged else ["no step can be told from chance"]
        return [*(said or nothing), *judged, *left, *self.notes]

    @cached_property
    def _table(self) -> tuple[list[str], list[list[str]]]:
        cells, count_errors = [], self.suite.count_errors
        for config, place, rows, interval in self.points:
            commit, step = self.commits[place].commit, self._step_at(config, place)
            cells.append(
                [
                    commit.short,
                    f"{_date(commit):%Y-%m-%d}",
                    label_kind(config, self._kinds[config]),
                    interval.text(self._observed.text),
                    str(len(rows)),
                    broke_in(rows),
                    f"step, {self._way(step)}" if step else "",
                    one_line(commit.subject, 50),
                ]
            )
        columns = [self._observed.corrected(rows, count_errors) for _, _, rows, _ in self.points]
        return with_corrected(_HEADINGS, cells, columns, after="value (95 %)")

    @property
    def _stepped(self) -> list[tuple[str, Step, Commit]]:
        return [
            (config, step, self.commits[step.at].commit)
            for config, steps in self._steps.items()
            for step in steps
        ]

    def _way(self, step: Step) -> str:
        return "better" if (step.after > step.before) == (self._observed.better == "higher") else "worse"

    def _step_at(self, config: str, place: int) -> Step | None:
        return next((step for step in self._steps[config] if step.at == place), None)

    @property
    def _observed(self) -> ObservedMetric:
        return find_metric(self.metric, self.suite.metrics)

    @property
    def labels(self) -> dict[str, str]:
        """How each configuration is shown: with the kind of model."""
        return {config: label_kind(config, kind) for config, kind in self._kinds.items()}

    @cached_property
    def _kinds(self) -> dict[str, str]:
        return {row.config: row.model_kind for c in self.commits for row in c.rows}

    @cached_property
    def points(self) -> list[tuple[str, int, list[EvalRow], Interval]]:
        """Configuration, place in `commits`, trials and value with its interval, for each that has trials."""
        return [
            (config, place, rows, self._observed.interval(rows, self.suite.count_errors))
            for place, c in enumerate(self.commits)
            for config in self._kinds
            if (rows := [row for row in c.rows if row.config == config])
        ]

    @cached_property
    def _uncorrected(self) -> dict[str, str]:
        """Why a model judge's verdicts show no step, by configuration, where it has a say in the metric."""
        if self.metric != SUCCESS:
            return {}
        judged = dict.fromkeys(row.config for c in self.commits for row in c.rows if is_judged(row))
        note = (
            "a model judge has a say in these rates, and may change its mind; compare two commits, where "
            f"{ENOUGH_LABELS} labels of people on each side correct it (kestrel eval label SUITE)"
        )
        return dict.fromkeys(judged, note)

    @cached_property
    def _steps(self) -> dict[str, list[Step]]:
        """Steps by configuration; `at` counts commits of this history."""
        compared = self._compared_steps()
        if compared is not None:
            return compared
        found: dict[str, list[Step]] = {config: [] for config in self._uncorrected}
        for config in self._kinds:
            if config in self._uncorrected:
                continue
            rounds = self._rounds(config)
            places = [place for place, values in enumerate(rounds) if values]
            # Each configuration has a share of the error, so that all of them together keep it.
            steps = find_steps([rounds[place] for place in places], alpha=ALPHA / len(self._kinds))
            found[config] = [replace(step, at=places[step.at]) for step in steps]
        return found

    def _compared_steps(self) -> dict[str, list[Step]] | None:
        """Return the steps of a history of two commits, which is a comparison: with the same verdict on the
        same trials. `None` for more commits, and for a metric that comparisons leave out.
        """
        tried = [place for place, commit in enumerate(self.commits) if commit.rows]
        if len(tried) != 2:
            return None
        base, head = (self.commits[place].rows for place in tried)
        differences = compare_rows(
            self.suite,
            ([row for row in base if not row.unrecorded], head),
            margin=MARGIN,
            expected={scenario.id for scenario in self.suite.scenarios},
        )
        if not any(metric == self.metric for _, metric in differences):
            return None
        steps: dict[str, list[Step]] = {config: [] for config in self._kinds}
        for (config, metric), difference in differences.items():
            if metric == self.metric and difference.verdict in ("regression", "improvement"):
                step = Step(at=tried[1], before=difference.base, after=difference.head, p=difference.p_holm)
                steps[config].append(step)
        return steps

    def _rounds(self, config: str) -> list[list[float]]:
        """Return for each commit the mean of each of its rounds.

        Each scenario counts by how far it is from its own mean over the history, so that a commit that lacks
        an easy scenario does not look worse.
        """
        values: dict[str, dict[tuple[int, int], float]] = {}
        weights: dict[str, float] = {}
        for place, c in enumerate(self.commits):
            for row in c.rows:
                value = self._observed.value(row, self.suite.count_errors)
                if row.config == config and not math.isnan(value):
                    values.setdefault(row.scenario, {})[place, row.epoch] = value
                    weights[row.scenario] = row.result["weight"]
        # Scenarios are compared with themselves: a commit may lack an easy or a hard one.
        usual = {scenario: fmean(found.values()) for scenario, found in values.items()}
        level = _weighted_mean((usual[scenario], weights[scenario]) for scenario in usual)
        rounds: list[list[float]] = [[] for _ in self.commits]
        for place, epoch in sorted({key for found in values.values() for key in found}):
            moved = (
                (found[place, epoch] - usual[s], weights[s])
                for s, found in values.items()
                if (place, epoch) in found
            )
            rounds[place].append(level + _weighted_mean(moved))
        return rounds


def _weighted_mean(values: Iterable[tuple[float, float]]) -> float:
    listed = list(values)
    total = math.fsum(weight for _, weight in listed)
    return math.fsum(value * weight for value, weight in listed) / total if total else 0.0


def _commit_record(commit: Commit) -> dict[str, object]:
    return {"commit": commit.sha, "subject": commit.subject, "committed_at": _date(commit)}


def _date(commit: Commit) -> datetime:
    return datetime.fromtimestamp(commit.at, tz=UTC)
