"""Bisection: find the first commit at which a metric is worse, with trials at the commits where they decide
most.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.commits.bisect_result import BisectResult, BisectSearch, TriedCommit
from kestrel_lab.evals.commits.interleaved_trials import (
    FIRST_OF_SEARCH,
    CommitTrials,
    Place,
    WorkerPool,
    suite_with_parts,
)
from kestrel_lab.evals.commits.sequential_compare import refuse_judged
from kestrel_lab.evals.execution.reuse import Reuse
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.git import Commit, line_between, merged_branch
from kestrel_lab.evals.stats.noisy_bisect import Bisection, Values
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.summaries.corrected_rates import with_annotations
from kestrel_lab.evals.summaries.metric_values import ObservedMetric, find_metric
from kestrel_lab.runtime.options import check_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count

MAX_ROUNDS: Final = 200
"""The most rounds of trials at one commit; what they cannot decide is left open."""


_USUAL: Final = BisectSearch()


@check_options
async def find_first_bad(
    lab: Services,
    suite: str | Path,
    good: str,
    bad: str,
    asked: BisectSearch = _USUAL,
    *,
    reporter: Reporter | None = None,
) -> BisectResult:
    """Find the first commit at which the metric is worse; see `Evaluations.bisect`."""
    place = suite_with_parts(lab, suite, configs=asked.configs, epochs=1)
    look = find_metric(asked.metric, place.suite.metrics)
    if asked.metric == "success_rate" or asked.metric.startswith("score"):
        refuse_judged(
            place.suite,
            "a bisection",
            "Compare commits two by two (kestrel eval compare), where labels correct the verdicts, or "
            "bisect by a metric that no model decides (--metric)",
        )
    line = await line_between(place.repository, good, bad)
    absolute, even, factor = look.worsening(asked.margin)
    heaviest = max(scenario.weight for scenario in place.suite.scenarios)
    search = Bisection(
        last=len(line) - 1,
        worsening=lambda before, after: look.worsened(before, after, factor),
        margin=absolute,
        even=even,
        alpha=asked.alpha,
        weights={
            _key(s.id, c.name): s.weight / heaviest
            for s in place.suite.scenarios
            for c in place.suite.configs
        },
    )
    trials = _Trials(
        lab=lab,
        place=place,
        line=line,
        look=look,
        search=search,
        budget=asked.max_trials,
        reporter=reporter,
    )
    async with WorkerPool(lab, place, trials.note, epochs=FIRST_OF_SEARCH + MAX_ROUNDS) as crew:
        ended = await trials.run(crew)
    found = line[search.bad].sha if search.phase == "found" else ""
    return BisectResult(
        **asdict(asked),
        suite=place.suite,
        commits=tuple(line),
        phase=search.phase,
        good=search.good,
        bad=search.bad,
        tried=tuple(
            replace(one, rows=tuple(with_annotations(one.rows, lab.store))) for one in trials.tried()
        ),
        made=trials.made,
        reused=trials.reused,
        ended=ended,
        merged=await merged_branch(place.repository, found) if found else None,
    )


@dataclass(kw_only=True, slots=True)
class _Trials:
    """The trials of a bisection, run or found in the store round by round."""

    lab: Services
    place: Place
    line: list[Commit]
    look: ObservedMetric
    search: Bisection
    budget: int
    reporter: Reporter | None
    made: int = 0
    reused: int = 0
    _planned: list[TrialRequest] = field(default_factory=list)
    _works: dict[int, CommitTrials] = field(default_factory=dict)
    _stored: dict[str, EvalRow] = field(default_factory=dict)

    async def run(self, crew: WorkerPool) -> str:
        """Add rounds until the search is over; otherwise returns what ended it."""
        stored = stored_trials(self.lab.store, suite=self.place.suite.name)
        self._stored = {row.key: row for row in stored if row.outcome != "error"}
        self.note("")
        while order := self.search.wanted():
            missing = sum(
                len(self._asks(commit, number)) - len(self._there(commit, number)) for commit, number in order
            )
            if self.made + missing > self.budget:
                return (
                    f"{self.made} of {format_count(self.budget, 'trial')} made, and the next "
                    f"round needs {missing}"
                )
            if order[0][1] > MAX_ROUNDS:
                return f"{MAX_ROUNDS} rounds did not decide"
            await crew.begin(
                [self._work(commit) for commit, number in order if not self._there(commit, number)]
            )
            # Which commit goes first changes from round to round, so that a slow drift falls on all of them.
            for commit, number in order if order[0][1] % 2 else reversed(order):
                ended = await self._round(crew, commit, number)
                if ended:
                    return ended
            self.search.advance()
        self.lab.store.flush()
        return ""

    def note(self, text: str) -> None:
        """Report the progress of the search."""
        if self.reporter is not None:
            self.reporter(min(self.made, self.budget), self.budget, one_line(text or self._state(), 200))

    def tried(self) -> list[TriedCommit]:
        """Return the commits that were tried, in order."""
        return [
            TriedCommit(
                place=commit,
                rows=tuple(self._works[commit].made) if commit in self._works else (),
                decided=self.search.decided.get(commit, ""),
                skipped=self.search.skipped.get(commit, ""),
                worse_than_good=self.search.seen(0, commit) if commit else 1.0,
                better_than_bad=self.search.seen(commit, self.search.last)
                if commit < self.search.last
                else 1.0,
            )
            for commit in sorted(self._works.keys() | self.search.skipped.keys())
        ]

    def _state(self) -> str:
        search = self.search
        if search.phase == "ends":
            return "is the last commit worse than the first?"
        if search.phase == "confirm":
            return f"is {self.line[search.bad].short} worse than the one before it?"
        return (
            f"{format_count(search.bad - search.good, 'commit')} left, trying {self.line[search.at].short} "
            f"{self.line[search.at].subject}"
        )

    async def _round(self, crew: WorkerPool, commit: int, number: int) -> str:
        """Run or find one round of a commit; returns why the search has to end, if it has to."""
        work = self._work(commit)
        asks, there = self._asks(commit, number), self._there(commit, number)
        work.asks = missing = [ask for ask in asks if ask.identity.key not in self._stored]
        before, why = len(work.made), ""
        try:
            await crew.make(work, missing, self._count)
        except UsageError as error:
            why = str(error).removeprefix(f"{work.title}: ")
        rows = [*there, *work.made[before:]]
        work.made.extend(there)
        self.reused += len(there)
        every = {_key(row.scenario, row.config): self.look.value(row, "exclude") for row in rows}
        values: Values = {key: value for key, value in every.items() if not math.isnan(value)}
        if not values and not why:
            broken = next((row.reason for row in rows if row.outcome == "error"), "")
            left_out = next(iter(work.skipped.values()), "")
            why = (
                f"every trial broke: {broken}"
                if broken
                else f"nothing of the suite can be tried: {left_out or 'the metric has no value'}"
            )
        if why:
            return self._leave_out(commit, why)
        self.search.add(commit, values)
        return ""

    def _leave_out(self, commit: int, why: str) -> str:
        if commit in (0, self.search.last):
            what = "good" if commit == 0 else "bad"
            raise UsageError(
                f"the {what} commit {self.line[commit].short} cannot be measured, so there is nothing "
                f"to compare with: {why}"
            )
        if commit in (self.search.good, self.search.bad):
            return f"{self.line[commit].short} could be run before, but not any more: {one_line(why, 300)}"
        self.search.skip(commit, why)
        return ""

    def _count(self, _row: EvalRow) -> None:
        self.made += 1
        self.note("")

    def _work(self, commit: int) -> CommitTrials:
        if commit not in self._works:
            found = self.line[commit]
            self._works[commit] = CommitTrials(
                name=one_line(found.subject, 40),
                sha=found.sha,
                suite=self.place.suite,
                asks=[],
                found=Reuse(),
            )
        return self._works[commit]

    def _there(self, commit: int, number: int) -> list[EvalRow]:
        return [
            self._stored[ask.identity.key]
            for ask in self._asks(commit, number)
            if ask.identity.key in self._stored
        ]

    def _asks(self, commit: int, number: int) -> list[TrialRequest]:
        if not self._planned:
            self._planned = plan_trials(self.place.suite, code="", git_sha="")
        return [
            ask.at(epoch=FIRST_OF_SEARCH + number - 1, sha=self.line[commit].sha) for ask in self._planned
        ]


def _key(scenario: str, config: str) -> str:
    return f"{config}\0{scenario}"
