"""Early stopping: a trial ends inside its run as soon as its checks cannot pass any more.

Each check is asked by its own code, with every part of it that is still open taken to come out well. What
fails even then fails whatever follows, so the verdict is that of the whole trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from kestrel_lab.checks.composition import AnyOf, NamedCheck, Not
from kestrel_lab.checks.python_function import judge
from kestrel_lab.core.errors import CheckError
from kestrel_lab.core.events.union import Record, RunFinished
from kestrel_lab.core.protocols import Check, Trial
from kestrel_lab.core.run_types import EARLY_STOPPING
from kestrel_lab.core.scores import LogCheck, Score, weighted_value
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.evals.stored_trials import EvalRow, failed_text
from kestrel_lab.evals.suite import Scenario
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.formatting import format_count


@dataclass(frozen=True, kw_only=True, slots=True)
class _Open(LogCheck):
    """Stands for a check that later events may still turn: it comes out as `passed`."""

    label: str
    passed: bool

    async def __call__(self, trial: Trial) -> Score:
        return Score(check=self.label, passed=self.passed, value=float(self.passed))


def at_best(check: Check, *, passed: bool = True) -> Check:
    """Return `check` with `passed` as the verdict of each part that events to come may turn that way."""
    if isinstance(check, AnyOf):
        return replace(check, checks=tuple(at_best(one, passed=passed) for one in check.checks))
    if isinstance(check, NamedCheck):
        return replace(check, inner=at_best(check.inner, passed=passed))
    if isinstance(check, Not):
        return replace(check, inner=at_best(check.inner, passed=not passed))
    settled = isinstance(check, LogCheck) and check.final == ("fail" if passed else "pass")
    return check if settled else _Open(label=check.label, passed=passed)


def ended_early(records: Sequence[Record]) -> bool:
    """Return whether a run was ended because it could not succeed any more."""
    return any(
        isinstance(record.event, RunFinished) and record.event.limit == EARLY_STOPPING for record in records
    )


class EarlyStopping:
    """Says of a run at work why its scenario's checks cannot pass any more; see `Ports.early_stopping`."""

    def __init__(self, store: SessionStore, scenario: Scenario) -> None:
        self._store, self._least = store, scenario.at_least
        self._checks = [(check, at_best(check)) for check in scenario.checks]
        self._trial = Trial(goal=scenario.goal, answer="", records=(), workspace=Path("/nonexistent"))
        self._meter = UsageMeter()
        self._seen: list[Record] = []
        self._settled = 0
        """Events up to the last one at which no model was being asked: a call under way may turn out to have
        only waited, and so to have taken less time than it seems.
        """

    async def __call__(self, run: str) -> str:
        """Return why the trial fails whatever follows; empty while it may pass."""
        for record in self._store.records(run, after=self._seen[-1].seq if self._seen else 0):
            self._meter.take(record.event, record.at)
            self._seen.append(record)
            if not self._meter.asking:
                self._settled = len(self._seen)
        trial = replace(self._trial, records=tuple(self._seen[: self._settled]))
        try:
            scores = [await judge(best, trial, check.label) for check, best in self._checks]
        except CheckError:  # a check that cannot be judged breaks the trial, and that only its end shows
            return ""
        failed = [score for score in scores if not score.passed and score.weight]
        if not failed or (self._least is not None and weighted_value(scores) >= self._least - 1e-9):
            return ""
        return f"ended early, it cannot pass; {failed_text((one.check, one.reason) for one in failed)}"


def saved_text(rows: Iterable[EvalRow]) -> list[str]:
    """Return how many trials ended early, and how long they and the others were; nothing where none did."""
    sides: dict[bool, list[Mapping[str, float]]] = {True: [], False: []}
    for row in rows:
        if row.outcome != "error":
            sides[row.ended_early].append(row.metrics)
    if not (early := sides[True]):
        return []

    def turns(of: Sequence[Mapping[str, float]]) -> str:
        return f"{fmean(one['model_calls'] for one in of):.1f} model calls"

    beside = f", whole trials had {turns(sides[False])}" if sides[False] else ""
    return [
        f"{format_count(len(early), 'trial')} ended early, as their checks could not pass any more, after "
        f"{turns(early)} on average{beside}: cost, tokens, calls and times are of what was made of them"
    ]
