"""Result of a bisection: the first bad commit, and how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.reports.plots import Line, Mark, history_figure
from kestrel_lab.evals.reports.result_view import ResultView
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stats.noisy_bisect import Phase
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.corrected_rates import with_corrected
from kestrel_lab.evals.summaries.metric_values import find_metric
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Verdict = Literal["found", "narrowed", "no fall", "inconclusive"]
_HEADINGS = (
    "commit",
    "value (95 %)",
    "trials",
    "p not worse than good",
    "p not better than bad",
    "verdict",
    "subject",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TriedCommit:
    """One commit that was tried."""

    place: int
    """Its number, from the good commit, which is 0."""
    rows: tuple[EvalRow, ...]
    decided: Literal["good", "bad", ""]
    skipped: str
    """Why it could not be tried."""
    worse_than_good: float
    """How often so much evidence is ever seen of a commit that is not worse than the good one."""
    better_than_bad: float
    """How often so much evidence is ever seen of a commit that is not better than the bad one."""


@dataclass(frozen=True, kw_only=True)
class BisectSearch:
    """What a bisection looks for, and how sure it has to be; raises `UsageError` for impossible bounds."""

    metric: str = "success_rate"
    configs: Sequence[str] | None = None
    """Only these configurations of the suite."""
    margin: float = 0.05
    """How much worse is still not bad."""
    max_trials: int = 500
    """Most trials made now."""
    alpha: float = 0.05
    """How often, at most, such a search names a wrong commit."""

    def __post_init__(self) -> None:
        if not (0 < self.alpha < 0.5 and 0 <= self.margin < 1 and self.max_trials >= 1):
            raise UsageError(
                "alpha is between 0 and 0.5, margin between 0 and 1, max_trials at least 1; not "
                f"{self.alpha}, {self.margin} and {self.max_trials}"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class BisectResult(ResultView, BisectSearch):
    """The verdict of a bisection, with everything that led to it."""

    suite: Suite
    commits: tuple[Commit, ...]
    """From the good to the bad one."""
    phase: Phase
    good: int
    """The last commit known to be good."""
    bad: int
    """The first commit known to be bad."""
    tried: tuple[TriedCommit, ...]
    made: int
    reused: int
    ended: str
    """What ended the search before it was over."""
    merged: tuple[str, str] | None = None
    """Where the first bad commit is a merge: the commit where the merged branch began, and its last."""

    @property
    def verdict(self) -> Verdict:
        """`found`; `narrowed`, to commits between which nothing can be tried; `no fall`, where the last is
        not worse; or `inconclusive`.
        """
        return (
            self.phase
            if self.phase == "found" or self.phase == "narrowed" or self.phase == "no fall"
            else "inconclusive"
        )

    @property
    def first_bad(self) -> Commit | None:
        """The first bad commit, if it was found."""
        return self.commits[self.bad] if self.phase == "found" else None

    @property
    def candidates(self) -> tuple[Commit, ...]:
        """The commits of which one is the first bad one, as far as is known; none where there is no fall."""
        return () if self.phase == "no fall" else self.commits[self.good + 1 : self.bad + 1]

    @property
    def frame(self) -> pd.DataFrame:
        """One row per commit that was looked at: `commit`, `subject`, mean `value` with `low` and `high`,
        `trials`, `p_worse_than_good` and `p_better_than_bad` (valid whenever one looks), `decided`, and
        `skipped`, why not tried.
        """  # the columns are the summary
        records = [
            {
                "commit": self.commits[tried.place].sha,
                "subject": self.commits[tried.place].subject,
                "value": interval.mean,
                "low": interval.low,
                "high": interval.high,
                "trials": len(tried.rows),
                "p_worse_than_good": tried.worse_than_good,
                "p_better_than_bad": tried.better_than_bad,
                "decided": self._said(tried),
                "skipped": tried.skipped,
            }
            for tried, interval in zip(self.tried, self._intervals, strict=True)
        ]
        return unit_frame(
            records, units=find_metric(self.metric, self.suite.metrics).units("value", "low", "high")
        )

    @property
    def exit_code(self) -> int:
        """0 when the commit was found, else 1."""
        return 0 if self.phase == "found" else 1

    @property
    def headline(self) -> str:
        """The verdict in one line."""
        if self.first_bad is not None:
            return f"FOUND: {_commit_label(self.first_bad)} is the first commit with worse {self.metric}"
        if self.phase == "no fall":
            return (
                f"NO FALL: {_commit_label(self.commits[-1])} is not worse than "
                f"{_commit_label(self.commits[0])} by more than {self._margin} in {self.metric}"
            )
        if self.phase == "ends":
            return (
                f"INCONCLUSIVE: {_commit_label(self.commits[-1])} could not be shown to be worse than "
                f"{_commit_label(self.commits[0])} in {self.metric}"
            )
        first, last = self.candidates[0], self.candidates[-1]
        where = (
            f"is {_commit_label(last)}"
            if first == last
            else f"is between {_commit_label(first)} and {_commit_label(last)} "
            f"({format_count(len(self.candidates), 'commit')})"
        )
        if self.phase == "narrowed":
            return (
                f"NARROWED: the first commit with worse {self.metric} {where}; what is between cannot "
                "be tried"
            )
        return f"INCONCLUSIVE: the first commit with worse {self.metric} {where}, as far as is known"

    def lines(self) -> list[str]:
        """Return what to read beside the table: error probability, trials, why it ended, what was skipped."""
        said = [
            f"{format_count(self.made, 'trial')} made, {self.reused} found stored; a wrong commit "
            f"is named with "
            f"probability {self.alpha:g} at most; "
            f"margin {self._margin}; it speaks of these {format_count(len(self.suite.scenarios), 'scenario')}"
        ]
        if self.ended:
            said.append(
                f"ended because {self.ended}; asked again with more trials (--max-trials) it goes on "
                "from here"
            )
        if self.phase == "confirm":
            said.append(
                f"{self.commits[self.bad].short} is worse than the good commit and "
                f"{self.commits[self.good].short} better than the bad one, "
                "but it is not shown that one is worse than the other: the metric may have fallen "
                "little by little"
            )
        if self.merged is not None:
            begun, last = self.merged
            said.append(
                f"it is a merge: kestrel eval bisect SUITE {begun[:10]} {last[:10]} looks for the "
                "commit of the merged branch"
            )
        said += [
            f"skipped {_commit_label(self.commits[t.place])}: {one_line(t.skipped, 300)}"
            for t in self.tried
            if t.skipped
        ]
        return said

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return headings, and a row of texts per commit that was tried."""
        text = find_metric(self.metric, self.suite.metrics).text
        cells = [
            [
                self.commits[tried.place].short,
                i.text(text),
                str(len(tried.rows)),
                f"{tried.worse_than_good:.2g}" if tried.place else "",
                f"{tried.better_than_bad:.2g}" if tried.place < len(self.commits) - 1 else "",
                self._said(tried),
                one_line(self.commits[tried.place].subject, 50),
            ]
            for tried, i in zip(self.tried, self._intervals, strict=True)
        ]
        columns = [
            find_metric(self.metric, self.suite.metrics).corrected(tried.rows, "exclude")
            for tried in self.tried
        ]
        return with_corrected(_HEADINGS, cells, columns, after=_HEADINGS[1])

    def plot(self) -> Figure:
        """Draw the metric at the commits that were tried, and where it fell."""
        points = [
            (tried.place, interval) for tried, interval in zip(self.tried, self._intervals, strict=True)
        ]
        marks = []
        if self.first_bad is not None:
            look = find_metric(self.metric, self.suite.metrics)
            sides = [
                [row for t in self.tried for row in t.rows if (t.place < self.bad) == before]
                for before in (True, False)
            ]
            # Trials that broke are left out here, as in the search, whatever the suite counts them as.
            before, after = (look.interval(rows, "exclude").mean for rows in sides)
            marks = [Mark(at=self.bad, before=before, after=after, worse=True)]
        title = (
            f"Suite {self.suite.name}: search for the first commit with worse {self.metric.replace('_', ' ')}"
        )
        return history_figure(
            title,
            find_metric(self.metric, self.suite.metrics),
            self.commits,
            [Line(label="commits tried", points=points, marks=marks)],
        )

    def __repr__(self) -> str:
        return f"<bisect: {self.headline}>"

    def _said(self, tried: TriedCommit) -> str:
        if tried.skipped:
            return "skipped"
        return {0: "good (given)", len(self.commits) - 1: "bad (given)"}.get(
            tried.place, tried.decided or "open"
        )

    @property
    def _margin(self) -> str:
        return (
            f"{100 * self.margin:g} points"
            if find_metric(self.metric, self.suite.metrics).share
            else f"{100 * self.margin:g} % within a pair of trials"
        )

    @cached_property
    def _intervals(self) -> list[Interval]:
        return [
            find_metric(self.metric, self.suite.metrics).interval(tried.rows, "exclude")
            for tried in self.tried
        ]


def _commit_label(commit: Commit) -> str:
    return f"{commit.short} “{one_line(commit.subject, 60)}”"
