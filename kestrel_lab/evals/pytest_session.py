"""What a session of pytest measures: scenarios of suites, runs that test functions begin, and the report.

Every process of a session (pytest-xdist has several) stores its trials in the one log, under the name of the
session; the report is made of what is stored there.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.checks.decorator import check as check_of
from kestrel_lab.checks.grounding import Faithful
from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.checks.python_function import judge, score_of
from kestrel_lab.core.errors import TrialBroke, UsageError
from kestrel_lab.core.events.union import Record, RunFinished, RunStarted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Check, Trial
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.commits.comparison import Comparison
from kestrel_lab.evals.commits.last_green import compare_with_last_green
from kestrel_lab.evals.execution.eval_run import EvalRun, eval_run_of
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.runner import TrialsToRun, run_suite, run_trials
from kestrel_lab.evals.execution.trial import outcome_of, score_json
from kestrel_lab.evals.gate_bounds import FailOn
from kestrel_lab.evals.reports.change_phrases import change_phrase
from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.junit import Case, case_groups
from kestrel_lab.evals.scenario_parts import InlineFiles
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored.site import suite_of_rows
from kestrel_lab.evals.stored_trials import EvalRow, store_trial, stored_trials
from kestrel_lab.evals.suite import Config, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite, repository_of
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.views.formatting import format_count

AGENT: Final = "agent"
"""The configuration of runs that test functions begin."""
_LISTED: Final = 8
"""Trials that changed sides, and reasons, that a summary names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionTrials:
    """Makes the trials of one session; all of them belong to its eval run."""

    lab: Services
    name: str
    """The id of the eval run."""
    cassette: str | None = None
    """The mode of recordings; as suites say by default."""

    def measure(
        self,
        suite: Suite,
        *,
        store: bool = True,
        pairs: Collection[tuple[str, str]] | None = None,
        **options: Any,
    ) -> EvalResult:
        """Run a suite, or the parts of it that the options select; returns its trials.

        Of scenarios and configurations `pairs` leaves those that it names.
        """

        async def make(work: TrialsToRun) -> list[EvalRow]:
            asks = [one for one in work.asks if pairs is None or (one.scenario.id, one.config.name) in pairs]
            owner = str(Owner.here(self.lab.store.session))
            eval_run = EvalRun(id=self.name, of=len(asks), by=owner)
            return await run_trials(replace(work, asks=asks, eval_run=eval_run, store=store))

        return run_blocking(run_suite(self.lab, suite, make=make, **{"cassette": self.cassette, **options}))

    def cases(
        self, suite: Suite, pairs: Collection[tuple[str, str]], epochs: int | None
    ) -> dict[tuple[str, str], Case]:
        """Run all epochs of scenarios with configurations, as many at once as the suite says; returns how
        each came out, as JUnit XML has it.
        """
        scenarios, configs = ([*dict.fromkeys(names)] for names in zip(*pairs, strict=True))
        found = self.measure(suite, pairs=pairs, scenarios=scenarios, configs=configs, epochs=epochs)
        rows = group_values(((row.scenario, row.config), row) for row in found.rows)
        return {pair: case_groups(suite, rows[pair])[0].cases[0] for pair in pairs}


@dataclass(frozen=True, slots=True)
class FunctionSource:
    """Stands for what a test function says of its runs: one whose code has changed is another task."""

    source: str
    label: str = "the run came to an end"

    def definition(self) -> dict[str, Json]:
        """Return what the outcome depends on."""
        return {"source": hashlib.sha256(self.source.encode()).hexdigest()[:16]}

    async def __call__(self, trial: Trial) -> Score:
        """Pass: whether a run came to an end is decided before checks are asked."""
        return score_of(self.label, True)


@dataclass(kw_only=True, slots=True, repr=False)
class MeasuredRun:
    """The trials of one goal in a test function."""

    result: EvalResult
    rows: list[EvalRow]
    """As they are stored when the test is over: with the scores of its checks."""
    lab: Services

    def __repr__(self) -> str:
        return f"<{self.result.headline}>"

    @property
    def runs(self) -> list[Run]:
        """The runs of all epochs."""
        return [self.lab.history.get(row.run) for row in self.rows]

    @property
    def answers(self) -> list[str]:
        """The answers of all epochs."""
        return [run.answer for run in self.runs]

    @property
    def answer(self) -> str:
        """The answer of the first epoch."""
        return self.answers[0]


class Kestrel:
    """What the fixture `kestrel` gives to a test function: runs, checks of them, and whole suites."""

    def __init__(self, session: SessionTrials, suite: str, test: str, path: Path, source: str) -> None:
        """`suite` is the test file, as results name it, and `test` the function."""
        self.session = session
        self._suite, self._test, self._path, self._source = suite, test, path, source
        self._tested: list[MeasuredRun] = []

    @property
    def lab(self) -> Any:
        """The lab of this session, for everything else."""
        return self.session.lab

    def run(
        self,
        goal: str,
        *,
        epochs: int = 1,
        files: Mapping[str, str] | None = None,
        checks: Iterable[Check] = (),
        **options: Any,
    ) -> MeasuredRun:
        """Let an agent work on a goal, in a fresh folder with `files`, as often as `epochs` says.

        `checks` judge each trial at once, models among them; `check` judges afterwards. Other options are
        those of a scenario (`tools`, `limits`, `turns`, `expected` …) and of a configuration (`model`,
        `plan`, `temperature` …). Recorded answers of models are in `cassettes` beside the test. Raises
        `TrialBroke` where a trial broke.
        """
        # A failure is shown where the test called.
        __tracebackhide__ = True
        number = len(self._tested)
        ours = (set(Config.model_fields) - {"tools"}) & set(options)
        config = Config(**{"name": AGENT, **{name: options.pop(name) for name in ours}})
        scenario = Scenario(
            id=self._test + (f" {number + 1}" if number else ""),
            goal=goal,
            checks=(FunctionSource(self._source), *checks),
            **{"place": InlineFiles(files=dict(files or {})), **options},
        )
        suite = Suite(
            name=self._suite,
            scenarios=(scenario,),
            configs=(config,),
            epochs=epochs,
            path=self._path,
            root=repository_of(self._path.parent),
        )
        found = self.session.measure(suite, store=False, keep=True)
        tested = MeasuredRun(result=found, rows=list(found.rows), lab=self.lab)
        self._tested.append(tested)
        if broke := [row for row in tested.rows if row.outcome == "error"]:
            reasons = "\n".join(f"epoch {row.epoch}: {row.reason}" for row in broke)
            reasons += "\nwith pytest: --kestrel-record" if any(row.unrecorded for row in broke) else ""
            raise TrialBroke(f"{len(broke)} of {format_count(len(tested.rows), 'trial')} broke\n{reasons}")
        return tested

    def check(
        self,
        run: MeasuredRun,
        function: Callable[[Trial], Any] | Check | None = None,
        /,
        *,
        at_least: float = 1.0,
        **shipped: Any,
    ) -> None:
        """Assert that the trials of a run pass: `kestrel.check(run, answer_contains="42", tool_used="bash")`.

        Checks are those of suites by their names, or a function that takes the trial. `at_least` is the share
        of epochs that has to pass. Raises `AssertionError` that says what was expected and found, and
        `TrialBroke` where a check itself broke.
        """
        __tracebackhide__ = True
        made: list[Any] = (
            [] if function is None else [function if hasattr(function, "label") else check_of(function)]
        )
        made += [check_of(**{name: value}) for name, value in shipped.items()]
        if not made:
            raise UsageError("name a check: kestrel.check(run, answer_contains='42')")
        # The cassette of the run is closed by now: such a check would ask the model at each replay.
        if any(isinstance(one, ModelGraded | Faithful) for one in made):
            raise UsageError(
                "a check that asks a model is recorded with the run: kestrel.run(…, "
                "checks=[check(graded='…')])"
            )
        run.rows[:] = [run_blocking(_judged(self.session.lab, row, made)) for row in run.rows]
        passed = sum(row.outcome == "pass" for row in run.rows)
        if passed < at_least * len(run.rows):
            said = "\n".join(f"epoch {row.epoch}: {row.why}" for row in run.rows if row.outcome != "pass")
            asked = f", {100 * at_least:.0f} % have to" if at_least < 1 else ""
            raise AssertionError(
                f"{passed} of {format_count(len(run.rows), 'trial')} passed{asked}\n{sanitize_text(said)}"
            )

    def eval(self, suite: str | Path | Suite, **options: Any) -> EvalResult:
        """Run a whole suite, as `Lab.eval` does; its trials are in the report of the session."""
        return self.session.measure(suite if isinstance(suite, Suite) else load_suite(suite), **options)

    def store(self, failure: str) -> bool:
        """Store the trials of the test, which is over; `failure` says why it failed, and is empty where it
        passed. Returns whether there are any.
        """
        for tested in self._tested:
            for row in tested.rows:
                # A trial that failed by its own checks keeps its reason; the test's is only of those that
                # passed.
                kept = row.outcome != "pass" or not failure
                result = row.result if kept else {**row.result, "outcome": "fail", "reason": failure}
                result = {**result, "test": "failed" if failure else "passed"}
                lab = self.session.lab
                store_trial(lab.store, replace(row, result=result))
                folder = Path(_started(lab.store.records(row.run)).workspace)
                if folder.is_relative_to((lab.home / "trials").resolve()):
                    # It was kept for `check`.
                    shutil.rmtree(folder, ignore_errors=True)
        return bool(self._tested)


def _started(records: Sequence[Record]) -> RunStarted:
    started = records[0].event
    assert isinstance(started, RunStarted)
    return started


async def _judged(lab: Services, row: EvalRow, checks: Sequence[Check]) -> EvalRow:
    """Return a trial with the scores of further checks."""
    records = tuple(lab.store.records(row.run))
    end = next((one.event for one in reversed(records) if isinstance(one.event, RunFinished)), None)
    trial = Trial(
        goal=_started(records).goal,
        answer=end.answer if end is not None else "",
        records=records,
        workspace=Path(_started(records).workspace),
        sandbox=lab.sandbox,
    )
    scores = [await judge(check, trial) for check in checks]
    every = [*row.scores, *map(score_json, scores)]
    result = {**row.result, "scores": every}
    if end is not None:
        result["outcome"], result["reason"] = outcome_of(records, end, every)
    return replace(row, result=result)


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteReport:
    """What a session says of one suite at its end."""

    result: EvalResult
    change: Comparison | None
    """Against the last green commit of the branch; `None` where nothing of one is stored."""
    gates: GateReport | None
    """`None` where the suite has none, or only a part of it ran."""
    left_out: int
    """Scenarios and configurations of the suite that did not run."""

    def fails(self, fail_on: FailOn) -> bool:
        """Return whether the session fails: a gate is violated, something is worse than it was, or what
        `fail_on` adds, bounds that are not shown among it.
        """
        decided = () if self.gates is None else self.gates.decisions
        changes = [] if self.change is None else [*self.change.changes.values()]
        verdicts: set[str] = {decision.verdict for decision in decided}
        verdicts.update(change.verdict for change in changes)
        if verdicts & {"regression", "unrecorded"}:
            return True
        if fail_on == "any" and any(change.base != change.head for change in changes):
            return True
        return fail_on != "worse" and bool(verdicts & {"inconclusive", "uncertain"})

    def lines(self) -> list[str]:
        """Return what a terminal shows, the first line is the heading."""
        rows = self.result.rows
        counts = {name: sum(row.outcome == name for row in rows) for name in ("pass", "fail", "error")}
        counted = f"{counts['pass']} passed, {counts['fail']} failed, {counts['error']} broke"
        said = [f"{self.result.headline}: {counted}"]
        if self.change is None:
            said.append("  no earlier green commit is stored here, so there is nothing to compare with")
        else:
            base = self.change.base.name
            said += [f"  {name}: {change_phrase(d, base)}" for name, d in self.change.changes.items()]
            flips = self.change.flipped
            said += [
                f"  changed sides: {one_line(head.scenario)} [{one_line(head.config)}] epoch {head.epoch}, "
                f"{base_row.outcome} → {head.outcome}"
                for base_row, head in flips[:_LISTED]
            ]
            said += [f"  … and {len(flips) - _LISTED} more"] if len(flips) > _LISTED else []
        if self.gates is not None:
            said += [
                f"  gate {d.gate} [{d.config}]: {_GATE_WORDS.get(d.verdict, d.verdict)}, {d.cells()[2]}"
                + (f"; {one_line(d.why, 200)}" if d.why else "")
                for d in self.gates.decisions
            ]
        elif self.result.suite.gates:
            said.append(f"  gates are not decided: of scenarios × configurations {self.left_out} did not run")
        return [sanitize_text(line) for line in said]

    def write(self, folder: Path) -> Path:
        """Write the page of the suite, as `kestrel eval run --report` does; returns its path."""
        name = "".join(one if one.isalnum() or one in "-_." else "-" for one in self.result.suite.name)
        path = folder / f"{name.strip('.-') or 'suite'}.html"
        return self.result.report(path) if self.change is None else self.change.report(path)


_GATE_WORDS: Final = {
    "ok": "holds",
    "regression": "violated",
    "inconclusive": "not certain",
    "uncertain": "not certain, which may pass",
}


def session_reports(
    lab: Services, name: str, suites: Mapping[str, Path | None], root: Path
) -> list[SuiteReport]:
    """Return a report for each suite of a session in the folder `root`, from the log.

    `suites` are their names with their files, which suites of test functions do not have.
    """
    lab.store.flush()
    made = [run_blocking(_report(lab, name, suite, path, root)) for suite, path in suites.items()]
    return [one for one in made if one is not None]


async def _report(
    lab: Services, name: str, suite: str, path: Path | None, folder: Path
) -> SuiteReport | None:
    newest = {
        (row.scenario, row.config, row.epoch): row
        for row in stored_trials(lab.store, suite=suite)
        if eval_run_of(row) == name
    }
    rows = tuple(newest.values())
    # Nothing could be begun, which the test items say.
    if not rows:
        return None
    ran = {(row.scenario, row.config) for row in rows}
    whole = load_suite(path) if path is not None else suite_of_rows(lab.store, suite, rows)
    left_out = len(whole.scenarios) * len(whole.configs) - len(ran)
    chosen = _part_of(whole, {one for one, _ in ran}, {one for _, one in ran})
    result = EvalResult(suite=chosen, rows=rows, store=lab.store)
    root = whole.root or repository_of(folder)
    return SuiteReport(
        result=result,
        change=await compare_with_last_green(result, root),
        # A part of a suite decides no gate of the whole.
        gates=result.gates() if whole.gates and not left_out else None,
        left_out=left_out,
    )


def _part_of(suite: Suite, scenarios: Collection[str], configs: Collection[str]) -> Suite:
    return suite.model_copy(
        update={
            "scenarios": tuple(one for one in suite.scenarios if one.id in scenarios),
            "configs": tuple(one for one in suite.configs if one.name in configs),
        }
    )
