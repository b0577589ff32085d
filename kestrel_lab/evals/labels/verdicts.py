"""Verdicts: what model judges say of the trials of a suite, each with the judge, its prompt and its rubric.

A judge is a model with a prompt and a rubric. Where one of them is another it is another judge: its verdicts
are kept apart, and nothing that was measured of the one before holds for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import NamedTuple

from kestrel_lab.checks.llm_judge import clean_rubric, grade_answer, hash_prompt, hash_rubric, judge_name
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import RunFinished, RunStarted, TrialJudged
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.labels.stored_labels import said_of_suite
from kestrel_lab.evals.options import JudgeOptions
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.formatting import format_count


class JudgeVersion(NamedTuple):
    """What makes a judge another one."""

    judge: str
    prompt_hash: str
    rubric_hash: str

    @property
    def short(self) -> str:
        """The judge with the beginnings of both hashes, for a table."""
        return f"{self.judge} {self.prompt_hash[:6]}/{self.rubric_hash[:6]}"

    def __str__(self) -> str:
        return f"{self.judge} (prompt {self.prompt_hash[:6]}, rubric {self.rubric_hash[:6]})"


Verdicts = Mapping[str, Sequence[TrialJudged]]
"""By run, the verdicts of one judge on the trial, its first one first."""


@dataclass(kw_only=True, slots=True)
class JudgedTrials:
    """What came of asking judges."""

    asked: int = 0
    """Calls that gave a verdict; what is in the log already is not asked for again."""
    there: int = 0
    """Verdicts that were in the log."""
    refused: dict[str, str] = field(default_factory=dict)
    """By run, why there is no verdict."""


def version_of(said: TrialJudged) -> JudgeVersion:
    """Return the judge that gave a verdict."""
    return JudgeVersion(said.judge, said.prompt_hash, said.rubric_hash)


def stored_verdicts(
    store: SessionStore, suite: str, rows: Iterable[EvalRow] = ()
) -> dict[JudgeVersion, Verdicts]:
    """Return the verdicts on the trials of a suite, by judge: those that were asked for, and those that
    `graded` checks of the `rows` gave while the suite ran. The judge asked last is the last.
    """
    found: dict[JudgeVersion, dict[str, list[TrialJudged]]] = {}
    for run, said in [*_graded(rows), *_asked(store, suite)]:
        version = version_of(said)
        mine = found.pop(version, {})
        given = mine.setdefault(run, [])
        # The first verdict of a round counts; a check may have been the same judge as one that was asked.
        if all((one.round, one.swapped) != (said.round, said.swapped) for one in given):
            given.append(said)
        found[version] = mine
    return dict(found)


def verdicts_of(
    store: SessionStore, suite: str, rows: Iterable[EvalRow] = (), *, judge: str = ""
) -> dict[str, TrialJudged]:
    """Return the first verdict of one judge on each trial, by run: of the judge that was asked last, or of
    the last version of the one that is named. Empty where there is none.
    """
    found = [
        verdicts
        for version, verdicts in stored_verdicts(store, suite, rows).items()
        if judge in ("", version.judge)
    ]
    return {run: given[0] for run, given in found[-1].items()} if found else {}


def unsure_of(verdicts: Mapping[JudgeVersion, Verdicts]) -> dict[str, float]:
    """Return how unsure judges are of each trial, from 0 to 1: the standard deviation of a value that is 1
    with the probability of their mean score, over its largest.
    """
    scores: dict[str, list[float]] = {}
    for given in verdicts.values():
        for run, said in given.items():
            scores.setdefault(run, []).extend(one.score for one in said)
    return {run: 2 * (fmean(all_) * (1 - fmean(all_))) ** 0.5 for run, all_ in scores.items()}


async def judge_trials(
    store: SessionStore,
    suite: str,
    rows: Sequence[EvalRow],
    graders: Sequence[Model],
    how: JudgeOptions,
    *,
    at_least: float = 0.5,
    reporter: Reporter | None = None,
) -> JudgedTrials:
    """Ask each judge about each trial that did not break, as often as `how` says, and store each verdict as
    it comes.

    What is in the log is not asked for again. A judge that gives no score that can be read loses that verdict
    and no other: `refused` says why. Raises `CheckError` where a judge gives none at all, after the others
    were asked, and `UsageError` for fewer rounds than one, no trials, and no judge.
    """
    if how.rounds < 1:
        raise UsageError(f"a judge is asked once at least, not {how.rounds} times")
    if not graders:
        raise UsageError("name the judge: model=, or --model")
    usable = [row for row in rows if row.outcome != "error"]
    if not usable:
        raise UsageError(f"no trial of suite {suite!r} can be judged: run it first (kestrel eval run)")
    work = _Work(store, suite, clean_rubric(how.rubric), at_least, stored_verdicts(store, suite, rows))
    turns = [*((number, False) for number in range(how.rounds)), *([(0, True)] if how.swap else [])]
    calls = [(grader, row, turn) for grader in graders for turn in turns for row in usable]
    # Providers refuse a judge that asks about all trials at once.
    gate = asyncio.Semaphore(4)

    async def ask(grader: Model, row: EvalRow, turn: tuple[int, bool]) -> None:
        async with gate:
            await work.ask(grader, row, *turn)
        work.ended += 1
        if reporter is not None:
            reporter(work.ended, len(calls), judge_name(grader))

    await asyncio.gather(*(ask(*call) for call in calls))
    each = len(turns) * len(usable)
    for name, problems in work.problems.items():
        if len(problems) == each:
            raise CheckError(
                f"the judge {name} gave no verdict on any of "
                f"{format_count(len(usable), 'trial')}: {problems[0]}. "
                f"{format_count(work.done.asked, 'verdict')} of other judges are stored"
            )
    return work.done


class _Work:
    """Verdicts that are asked for, and stored as they come."""

    def __init__(
        self,
        store: SessionStore,
        suite: str,
        rubric: str,
        at_least: float,
        known: Mapping[JudgeVersion, Verdicts],
    ) -> None:
        self.done, self.ended = JudgedTrials(), 0
        self.problems: dict[str, list[str]] = {}
        """By judge, why there was no verdict."""
        self._store, self._suite, self._rubric, self._at_least = store, suite, rubric, at_least
        self._known = known

    async def ask(self, grader: Model, row: EvalRow, number: int, swapped: bool) -> None:
        name = judge_name(grader)
        version = JudgeVersion(name, hash_prompt(), hash_rubric(self._rubric))
        given = self._known.get(version, {}).get(row.run, ())
        if any((one.round, one.swapped) == (number, swapped) for one in given):
            self.done.there += 1
            return
        goal, answer = await asyncio.to_thread(_material, self._store, row)
        try:
            score, why, _ = await grade_answer(
                grader, self._rubric, goal=goal, answer=answer, swapped=swapped
            )
        except CheckError as error:
            self.problems.setdefault(name, []).append(str(error))
            self.done.refused[row.run] = str(error)
            return
        said = TrialJudged(
            suite=self._suite,
            judge=name,
            prompt_hash=version.prompt_hash,
            rubric=self._rubric,
            rubric_hash=version.rubric_hash,
            value=int(score >= self._at_least),
            score=score,
            at_least=self._at_least,
            why=one_line(why, 500),
            round=number,
            swapped=swapped,
        )
        await asyncio.to_thread(self._store.decide, row.run, said)
        self.done.asked += 1


def _material(store: SessionStore, row: EvalRow) -> tuple[str, str]:
    records = store.records(row.run, types=(RunStarted.type, RunFinished.type))
    goal = next((r.event.goal for r in records if isinstance(r.event, RunStarted)), "")
    answer = next((r.event.answer for r in reversed(records) if isinstance(r.event, RunFinished)), "")
    return goal, answer or str(row.result.get("answer", ""))


def _asked(store: SessionStore, suite: str) -> Iterable[tuple[str, TrialJudged]]:
    return (
        (run, event) for run, _, _, event in said_of_suite(store, suite) if isinstance(event, TrialJudged)
    )


def _graded(rows: Iterable[EvalRow]) -> Iterable[tuple[str, TrialJudged]]:
    """Yield the scores of `graded` checks as verdicts; those of earlier versions do not say who judged."""
    for row in rows:
        for score in row.scores:
            if row.outcome != "error" and (judge := score.get("judge")):
                yield (
                    row.run,
                    TrialJudged(
                        suite=row.suite,
                        judge=str(judge["model"]),
                        prompt_hash=str(judge["prompt"]),
                        rubric="",
                        rubric_hash=str(judge["rubric"]),
                        value=int(score["passed"]),
                        score=float(score["value"]),
                        why=str(score["reason"]),
                    ),
                )
