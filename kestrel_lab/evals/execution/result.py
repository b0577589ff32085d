"""What a suite run gave: one tidy row per trial, a summary with intervals, a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, get_args

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.metrics import CONCERN_COLUMNS, concern_rates
from kestrel_lab.evals.reports.gates import GateReport, decide
from kestrel_lab.evals.reports.junit import write_junit
from kestrel_lab.evals.reports.plots import configs_figure, families_figure
from kestrel_lab.evals.reports.pull_request import result_markdown
from kestrel_lab.evals.reports.suite_page import report_page
from kestrel_lab.evals.reports.test_cases import groups
from kestrel_lab.evals.stats.pass_at_k import chances
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.abstention import abstentions
from kestrel_lab.evals.summaries.breakdowns import check_rates
from kestrel_lab.evals.summaries.calibration import FEWEST, Calibration, calibration, judged_of
from kestrel_lab.evals.summaries.pareto import Frontier, frontier
from kestrel_lab.evals.summaries.result_table import (
    COLUMNS,
    INTERVAL_UNITS,
    UNITS,
    cost_text,
    frame_record,
    grading_cost,
    labelled,
    not_real,
    rate_text,
    summarise,
    summary_table,
    trial_record,
)
from kestrel_lab.evals.summaries.retrieval_recall import RECALL_COLUMNS, recall_rows
from kestrel_lab.evals.summaries.streaming_summary import Group, reduced
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.dataframes import shown_frame
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_REASON: Final = 240
"""Characters of a reason that are told."""
_REASONS: Final = 3
"""Reasons that are told."""


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class EvalResult:
    """Trials of a suite, scenario × configuration × epoch."""

    suite: Suite
    rows: tuple[EvalRow, ...]
    store: SessionStore
    """Where the runs behind the rows are."""
    reused: int = 0
    """How many rows are of earlier runs."""
    why: dict[str, int] = field(default_factory=dict)
    """Why the others could not be reused, when reuse was asked for: trials by reason."""
    notes: tuple[str, ...] = ()
    """What a reader should know of how the trials were made: what was cut off before, made again, or slowed down."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per trial: who and what, `outcome` (`pass`, `fail`, `error`), metrics, `reason`, `run`, `git_sha`.

        `success` is 1 or 0, and missing for a trial that broke when the suite excludes those; `score` is the
        mean value of its checks; times are in seconds; `recall@k` is there where checks ask for it. `cost_estimate`
        is missing where no price is known, and what is known of it where `unpriced_calls` is not 0.
        """
        records = [frame_record(trial_record(row, self.suite.count_errors)) for row in self.rows]
        more = sorted({name for record in records for name in record} - set(COLUMNS))
        return shown_frame(records, columns=[*COLUMNS, *more], units=UNITS)

    @property
    def scores(self) -> pd.DataFrame:
        """One row per trial and check: `scenario`, `config`, `epoch`, `check`, `passed`, `value`, `reason`, `grading_cost`.

        `grading_cost` is what asking a grader cost in US dollars: 0 where none was asked, missing where its price
        is not known.
        """
        rows = [
            {"scenario": row.scenario, "config": row.config, "epoch": row.epoch, **score, "grading_cost": grading_cost([score])}
            for row in self.rows
            for score in cast("list[dict[str, Any]]", row.result["scores"])
        ]
        columns = ["scenario", "config", "epoch", "check", "passed", "value", "reason", "grading_cost"]
        return shown_frame(rows, columns=columns, units=UNITS)

    def summary(self) -> pd.DataFrame:
        """One row per configuration.

        `success_rate` with its 95 % interval `low` and `high`, clustered by scenario; `pass_at` and `pass_hat`, the
        chances that one and that all of `k` tries pass, with intervals, `k` being the fewest tries of a scenario;
        numbers of `trials`,
        `scenarios` and `errors` (trials that broke); means per trial of times, tokens, calls and cost, and
        apart from it `grading_cost`, of asking graders (missing where unknown); `cost_known`, false where calls have no known price; `pareto`, whether no other configuration is at
        least as good in success, cost and working time and better in one of them.
        """
        return shown_frame(self._summaries(), units=UNITS).set_index("config")

    def by(self, group: Group) -> pd.DataFrame:
        """One row per configuration and `family` or `scenario`: `success_rate` and every metric, each with `…_low` and `…_high`.

        `recall@k` is among them where checks ask for it. Intervals are of 95 %, clustered by scenario.
        """
        if group not in get_args(Group):
            msg = f"trials are grouped by {', '.join(get_args(Group))}, not by {group!r}"
            raise UsageError(msg)
        return shown_frame(reduced(self.rows, self.suite.count_errors).grouped(group), units=INTERVAL_UNITS)

    def plot_families(self, metric: str = "success_rate") -> Figure:
        """A metric by family of scenarios, with intervals, one mark per configuration."""
        return families_figure(reduced(self.rows, self.suite.count_errors).grouped("family"), metric)

    def frontier(self, price: str = "cost_estimate") -> Frontier:
        """Success rate against `price`, cost or a time: which configurations no other beats in both. Has `.frame` and `.plot()`."""
        return frontier(self.frame, price=price)

    def abstention(self) -> pd.DataFrame:
        """One row per configuration: how often it said that it does not know, where that was right and where it was not.

        Right it is in scenarios with a check `answer_abstains`: `abstained` of them, with its interval. Of the others,
        `abstained_wrongly` and, of those that were answered, the share that passed, `right_when_answered`. Trials
        that broke are in none. Missing where there are no such trials.
        """
        return shown_frame(abstentions(self.suite, self.rows)).set_index("config")

    def recall(self) -> pd.DataFrame:
        """One row per trial and item that a check `recall_at` wants: what was found, and where the rest was lost.

        `found`, `place` among the results that the agent was shown, `state` (`found`, `behind`, `dropped`, `chosen`, `unmatched` or
        `not looked for`), the `step` of the search that dropped it last, and `why`, as the trial's log has it. The means
        are `recall@k` of `by("family")` and `by("scenario")`, with intervals. Empty for suites without such checks.
        """
        return shown_frame(list(recall_rows(self.suite, self.rows, self.store)), columns=list(RECALL_COLUMNS))

    def concerns(self) -> pd.DataFrame:
        """One row per configuration and kind: the `share` of its trials in whose answers a look found something of that kind, `low`, `high`.

        Kinds: `files`, `names`, `numbers`, … as `evals.concerns` says. Raises `UsageError` where no answer was looked at:
        that is done with `verify: warn` of a configuration, or more.
        """
        rates = concern_rates(self.rows, reduced(self.rows, self.suite.count_errors).grouped("config"))
        return shown_frame(rates, columns=list(CONCERN_COLUMNS)).set_index(["config", "kind"])

    def calibration(self) -> dict[str, Calibration]:
        """By configuration, how well the `confidence` of its verified answers tells whether they pass; each has `.plot()`.

        Raises `UsageError` where no configuration has enough trials with a confidence; others are left out.
        """
        judged = judged_of(self.rows)
        enough = {config: trials for config, trials in judged.items() if len(trials) >= FEWEST}
        return {config: calibration(trials, config) for config, trials in (enough or judged or {self.suite.name: []}).items()}

    def by_check(self) -> pd.DataFrame:
        """One row per configuration and check: how often it passed in the trials that were judged, `success_rate` with `low` and `high`."""
        columns = ["config", "check", "success_rate", "low", "high", "trials"]
        return shown_frame(check_rates(self.rows), columns=columns).set_index(["config", "check"])

    def pass_at(self, k: int) -> pd.DataFrame:
        """One row per configuration: what to expect of `k` tries at a scenario, averaged over scenarios.

        `pass_at` is the chance that at least one try passes (pass@k), `pass_hat` that all do (pass^k), each an
        unbiased estimate with its 95 % interval `…_low` and `…_high`, clustered by scenario; `evals.attempts`
        names the sources. Raises `UsageError` unless every scenario has `k` trials that count.
        """
        groups: dict[str, list[dict[str, Any]]] = {}
        for row in self.rows:
            groups.setdefault(row.config, []).append(trial_record(row, self.suite.count_errors))
        return shown_frame([{"config": name, **chances(records, k)} for name, records in groups.items()]).set_index("config")

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """`summary` as a person reads it: headings, and a row of texts per configuration."""
        headings, rows = summary_table(self._summaries())
        return headings, [[str(cell) for cell in row] for row in rows]

    def plot(self) -> Figure:
        """Success rate with intervals, and success against cost and working time with the Pareto front."""
        return configs_figure(self._summaries(), self.headline)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page with tables, plots and the transcript of each trial, as far as there is room; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(report_page(self.suite, self.rows, self.store, self.gates() if self.suite.gates else None), encoding="utf-8")
        return target

    def gates(self) -> GateReport:
        """The suite's gates, decided; `broken` when it declares none."""
        return GateReport(suite=self.suite.name, decisions=decide(self.suite, self.rows), notes=tuple(self.told()))

    def junit(self, path: str | Path) -> Path:
        """Write JUnit XML: a test case per configuration and scenario, its epochs together, and one per gate; returns its path.

        A case fails when fewer of its epochs passed than a gate for the success rate asks for, all where there is none.
        """
        more = [self.gates().group()] if self.suite.gates else []
        return write_junit(path, self.suite.name, [*groups(self.suite, self.rows), *more])

    def markdown(self, report: str = "") -> str:
        """A summary for a pull request; `report`, where the HTML report will be found, makes links to transcripts."""
        return result_markdown(self.suite, self.rows, self.gates() if self.suite.gates else None, report)

    def __repr__(self) -> str:
        # Cheap on purpose: `asyncio.run` makes the repr of a finished task's result, and intervals load scipy.
        counts = Counter(str(row.result["outcome"]) for row in self.rows)
        return f"<{self.headline}: {counts['pass']} passed, {counts['fail']} failed, {counts['error']} broke>"

    def __str__(self) -> str:
        lines = [self.headline, *(f"  {note}" for note in self.told())]
        for s in self._summaries():
            broke = f", {s['errors']} broke" if s["errors"] else ""
            name = labelled(s["config"], s["model_kind"])
            lines.append(
                f"  {name}: {rate_text(s)} of {s['trials']} trials{broke}, {s['working_time']:.2f} s, {s['token_usage']:.0f} tokens, {cost_text(s)}"
            )
        return "\n".join(lines)

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython shows in a terminal."""
        printer.text(str(self))

    def _repr_html_(self) -> str:
        notes = "".join(paragraph_html(note) for note in self.told())
        return f"{headline_html(self.headline)}{notes}{table_html(*summary_table(self._summaries()))}"

    @property
    def headline(self) -> str:
        """What was run, in one line."""
        taken = f", {self.reused} taken from earlier runs" if self.reused else ""
        return f"suite {self.suite.name}: {len(self.rows)} trials of {len(self.suite.scenarios)} scenarios{taken}"

    def told(self) -> list[str]:
        """What a reader of `summary` has to know: `notes`, why trials were not reused, why trials broke, which answers were replayed."""
        made = [f"{count:,} trials were not taken from earlier runs: {why}" for why, count in self.why.items() if why != "not run before"]
        if any("the code changed" in why for why in self.why):
            made.append("files that git does not track count as code, reports too: name their folder in .gitignore")
        return [
            *self.notes,
            *made,
            *self._broke(),
            *not_real(summary for summary in self._summaries() if summary["model_kind"] == "replay"),
        ]

    def _broke(self) -> list[str]:
        """Why trials broke, the most frequent reasons first."""
        reasons = Counter(one_line(str(row.result["reason"]), _REASON) for row in self.rows if row.result["outcome"] == "error")
        more = [f"and {len(reasons) - _REASONS} other reasons: column reason of the frame, or --csv"] if len(reasons) > _REASONS else []
        return [*(f"{count:,} trials broke: {why or 'no reason given'}" for why, count in reasons.most_common(_REASONS)), *more]

    def _summaries(self) -> list[dict[str, Any]]:
        return summarise(self.rows, self.suite.count_errors)
