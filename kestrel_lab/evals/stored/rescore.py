"""Rescoring: judge stored trials by the checks that a suite has now, without asking a model or calling a
tool.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Unpack, cast

from kestrel_lab.checks.composition import each_check, is_single, needs_of
from kestrel_lab.checks.python_function import PythonCheck, judge
from kestrel_lab.core.errors import CheckError, UsageError
from kestrel_lab.core.events.union import Record, RunFinished, RunStarted, ToolCalled
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.protocols import Check, Trial
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.commits.interleaved_trials import FIRST_OF_SEARCH
from kestrel_lab.evals.execution.early_stop import at_best, ended_early
from kestrel_lab.evals.execution.function_checks import load_judge
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.trial import Identity, outcome_of, scenario_hash, score_json
from kestrel_lab.evals.git import commit_of
from kestrel_lab.evals.metrics import own_metrics
from kestrel_lab.evals.options import Selection, StoredSelection, parts_of
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stored_trials import EvalRow, each_stored_trial, store_scores
from kestrel_lab.evals.suite import Environment, Opened, Scenario, Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.sync import run_blocking
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html

_SHOWN = 20
_NAMED = 5
_NEEDS = "cannot be re-scored: it needs {}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class RescoreResult:
    """Stored trials with their scores by the suite of now, and which outcomes changed."""

    result: EvalResult
    """The trials that were judged; `frame`, `summary`, `report` and `gates` are as for any result."""
    suite_hash: str
    """The key of the new scores: equal for equal checks and tasks."""
    changes: tuple[dict[str, Any], ...] = ()
    """Trials whose outcome changed: `scenario`, `config`, `epoch`, `before`, `after`, `reason`, `run`."""
    kept: Mapping[str, int] = field(default_factory=dict)
    """Checks that need more than the log, and why: their old scores are kept. With the number of trials."""
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Why trials were not judged again, with their number."""

    def __repr__(self) -> str:
        lines = [
            f"{c['scenario']} [{c['config']}] epoch {c['epoch']}: {c['before']} → {c['after']}  "
            f"{one_line(str(c['reason']), 160)}"
            for c in self.changes[:_SHOWN]
        ]
        if len(self.changes) > _SHOWN:
            lines.append(f"… and {len(self.changes) - _SHOWN} more")
        text = "\n  ".join([self.headline, *lines, *self._notes()])
        return sanitize_text(f"{text}\n{self.result}" if self.result.rows else text)

    def _repr_html_(self) -> str:
        cells = [
            [c[key] for key in ("scenario", "config", "epoch", "before", "after", "reason")]
            for c in self.changes[:_SHOWN]
        ]
        changed = (
            table_html(["scenario", "configuration", "epoch", "before", "after", "reason"], cells)
            if cells
            else ""
        )
        notes = "".join(paragraph_html(note) for note in self._notes())
        rows = self.result._repr_html_() if self.result.rows else ""
        return f"{headline_html(self.headline)}{changed}{notes}{rows}"

    def _notes(self) -> list[str]:
        kept = [f"{what} ({format_count(count, 'trial')})" for what, count in self.kept.items()]
        if len(kept) > _NAMED:
            kept[_NAMED:] = [
                f"… and {format_count(len(kept) - _NAMED, 'more check')} whose old scores stand; .kept of "
                "`lab.evals.rescore` names all"
            ]
        return [*kept, *(f"{what} ({format_count(count, 'trial')})" for what, count in self.left_out.items())]

    @property
    def headline(self) -> str:
        """How many were judged, and how many outcomes changed."""
        judged = (
            f"{format_count(len(self.result.rows), 'trial')} judged again by suite {self.result.suite.name} "
            f"({self.suite_hash})"
        )
        return f"{judged}: {format_count(len(self.changes), 'outcome')} changed"


@takes_options(StoredSelection)
async def rescore_trials(
    lab: Services, suite: str | Path | Suite, **which: Unpack[StoredSelection]
) -> RescoreResult:
    """Judge the newest stored trial of each scenario, configuration and epoch again; see
    `Evaluations.rescore`.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    chosen = loaded.select(**parts_of(which))
    rows = [*filter(is_selected(loaded, which), stored_rows(lab, chosen, which.get("commit")))]
    known = {scenario.id: scenario for scenario in chosen.scenarios}
    judge = Judge(lab, chosen, whole=loaded)
    made: list[EvalRow] = []
    changes: list[dict[str, Any]] = []
    kept: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for row in rows:
        scenario = known.get(row.scenario)
        records = lab.store.records(row.run)
        if scenario is None or (why := _no_longer(row, scenario, records)):
            left_out[
                "left out: the suite has no such scenario any more"
                if scenario is None
                else f"left out: {why}"
            ] += 1
            continue
        new, needing = await judge.judged(row, scenario, records)
        kept.update(needing)
        store_scores(lab.store, new, row.id, judge.suite_hash)
        made.append(new)
        if new.outcome != row.outcome:
            about = {
                "scenario": row.scenario,
                "config": row.config,
                "epoch": row.epoch,
                "before": row.outcome,
                "after": new.outcome,
            }
            changes.append({**about, "reason": new.reason or row.reason, "run": row.run})
    lab.store.flush()
    result = EvalResult(
        # As many epochs as are stored, whatever number the suite has now.
        suite=chosen.model_copy(update={"epochs": max((row.epoch for row in made), default=1)}),
        rows=tuple(made),
        store=lab.store,
    )
    return RescoreResult(
        result=result,
        suite_hash=judge.suite_hash,
        changes=tuple(changes),
        kept=dict(kept),
        left_out=dict(left_out),
    )


def stored_rows(lab: Services, suite: Suite, commit: str | None) -> list[EvalRow]:
    """Return the newest trial of each scenario, configuration and epoch of a commit, in the suite's order
    where it knows them.
    """
    rows = each_stored(lab, suite, stored_commit(lab, suite, commit))
    scenarios = {scenario.id: place for place, scenario in enumerate(suite.scenarios)}
    configs = {config.name: place for place, config in enumerate(suite.configs)}

    def place(row: EvalRow) -> tuple[int, str, int, str, int]:
        return (
            scenarios.get(row.scenario, len(scenarios)),
            row.scenario,
            configs.get(row.config, len(configs)),
            row.config,
            row.epoch,
        )

    return sorted(rows, key=place)


def selected_rows(lab: Services, suite: Suite, which: StoredSelection) -> list[EvalRow]:
    """Return the stored trials of a suite that are meant, as `stored_rows` does."""
    return [*filter(is_selected(suite, which), stored_rows(lab, suite, which.get("commit")))]


def is_selected(suite: Suite, parts: Selection) -> Callable[[EvalRow], bool]:
    """Return whether a stored trial is of the parts of a suite that were asked for; trials that the suite
    does not know are, where none were.
    """
    chosen = suite.select(**parts_of(parts))
    names = None if parts.get("configs") is None else {config.name for config in chosen.configs}
    asked = [parts.get(what) for what in ("scenarios", "families", "tags")]
    ids = {scenario.id for scenario in chosen.scenarios} if any(one is not None for one in asked) else None
    return lambda row: (names is None or row.config in names) and (ids is None or row.scenario in ids)


def each_stored(lab: Services, suite: Suite, sha: str) -> Iterator[EvalRow]:
    """Yield the newest trial of each scenario, configuration and epoch of a commit, without those of a
    bisection.
    """
    rows = each_stored_trial(lab.store, suite=suite.name, git_sha=sha, latest=True)
    return with_groups((row for row in rows if row.epoch < FIRST_OF_SEARCH), suite)


def stored_commit(lab: Services, suite: Suite, commit: str | None) -> str:
    """Return the full hash of the commit whose trials of the suite are stored; that of the newest trial where
    none is named.

    A commit is named by its hash, the beginning of it, or whatever git understands in the suite's repository.
    """
    sql = (
        "SELECT git_sha, max(created_at) FROM eval_runs WHERE suite = ? AND epoch < ? GROUP BY git_sha "
        "ORDER BY 2 DESC"
    )
    found = lab.store.query(sql, (suite.name, FIRST_OF_SEARCH))
    known = [str(sha) for sha, _ in found]
    if not known:
        raise UsageError(
            f"no trials of suite {suite.name!r} are stored in {lab.home}: run it first (kestrel eval run)"
        )
    # The beginning of a stored hash counts before names that only git knows.
    fits = [sha for sha in known if commit is None or (commit and sha.startswith(commit))]
    if not fits and commit and suite.root is not None:
        # What git does not know is reported below.
        with suppress(UsageError):
            meant = run_blocking(commit_of(suite.root, commit))
            # Trials of the commit itself before those of uncommitted changes on top of it.
            fits = [sha for sha in known if sha == meant] or [sha for sha in known if sha.startswith(meant)]
    if not fits:
        names = ", ".join(sha[:10] or "(no commit)" for sha in known[:5])
        raise UsageError(
            f"no trials of suite {suite.name!r} at commit {commit!r} are stored; there are some of {names}"
        )
    return fits[0]


def _functions(suite: Suite) -> Callable[[str], Callable[..., Any]]:
    folder = suite.path.parent if suite.path else None
    checks = (check for scenario in suite.scenarios for check in each_check(scenario.checks))
    names = {check.function for check in checks if isinstance(check, PythonCheck)}
    return {name: load_judge(name, folder, suite.root) for name in names}.__getitem__


def _no_longer(row: EvalRow, scenario: Scenario, records: Sequence[Record]) -> str:
    """Return why the stored run says nothing of the scenario as it is now, or nothing at all."""
    if not records:
        return "the log of the run is not in this store"
    task = row.result.get("task")
    # Trials of earlier versions have no hash of their task.
    if task is None:
        started = records[0].event
        return (
            ""
            if isinstance(started, RunStarted) and started.goal == scenario.goal
            else "its goal changed: run it again"
        )
    return (
        ""
        if task == content_key(scenario.task())
        else "its task changed (goal, workspace, tools, limits or approval): run it again"
    )


class Judge:
    """Judges runs in the log by the checks of a suite."""

    def __init__(self, lab: Services, suite: Suite, *, whole: Suite | None = None) -> None:
        """Judge by `suite`, which may be a part of the `whole`: scores of a part are found under the name of
        the whole.
        """
        named = whole or suite
        self.suite = suite
        self.suite_hash = content_key(named.definition(), [[s.id, s.definition()] for s in named.scenarios])[
            :12
        ]
        """The key of the scores: equal for equal checks and tasks."""
        self._lab = lab
        self._function = _functions(suite)
        self._by_id = {scenario.id: scenario for scenario in suite.scenarios}
        self._by_goal = {scenario.goal: scenario for scenario in suite.scenarios}

    def scenario(self, name: str, goal: str) -> Scenario | None:
        """Return the scenario with this goal, that of this name before others; `None` where no scenario asks
        for this.
        """
        named = self._by_id.get(name)
        return named if named is not None and named.goal == goal else self._by_goal.get(goal)

    async def judged(
        self, row: EvalRow, scenario: Scenario, records: Sequence[Record]
    ) -> tuple[EvalRow, list[str]]:
        """Return the row with new scores, and which checks kept their old ones, and why.

        Where the scenario has an environment, the run's calls are made in a new one first, in their order, so
        that it is judged as the run left it.
        """
        end = next(
            (record.event for record in reversed(records) if isinstance(record.event, RunFinished)), None
        )
        folder = _kept_folder(self._lab, records)
        trial = Trial(
            goal=scenario.goal,
            answer=end.answer if end else "",
            records=tuple(records),
            # Checks that read files are not run where the folder was not kept, see `_missing_needs`.
            workspace=folder or Path("/nonexistent"),
            expected=scenario.expected,
            function=self._function,
            resolve=self.suite.resolve,
            sandbox=self._lab.sandbox,
            environment=None
            if scenario.environment is None
            else await replay_environment(scenario.environment, records),
        )
        old = {str(score["check"]): score for score in row.scores}
        scores: list[dict[str, Any]] = []
        needing, missing = [], []
        early = ended_early(records)
        for check in map(at_best, scenario.checks) if early else scenario.checks:
            needs = _missing_needs(check, self._function, folder)
            if not needs:
                try:
                    scores.append(score_json(await judge(check, trial)))
                except CheckError as error:
                    missing.append(str(error))
                continue
            needed = f"{check.label} {_NEEDS.format(needs)}"
            if (before := _old_score(check, old)) is None:
                missing.append(f"{needed}, and there is no earlier score of it: run it again")
            else:
                needing.append(f"{needed}; its old score stands")
                scores.append({**before, "kept": True})
        outcome, reason = _outcome(row, records, scores, missing, scenario.at_least)
        scores = [score for score in scores if not (early and score["passed"])]
        result: dict[str, Any] = {**row.result, "outcome": outcome, "reason": reason, "scores": scores}
        result["rescored"] = {"suite": self.suite_hash, "from": row.id, "at": time.time(), "kept": needing}
        own, unusable = own_metrics(records, self.suite.metrics)
        if unusable:
            result |= {"outcome": "error", "reason": "; ".join(filter(None, [str(reason), *unusable]))}
        return replace(
            row,
            result=result,
            metrics=row.metrics | own,
            # Without a key `reuse` never takes it: some of its scores are old.
            key="" if needing or missing else _key(row, scenario),
        ), needing


async def replay_environment(environment: Environment, records: Sequence[Record]) -> Opened:
    """Return a new environment in which the calls of a run were made again; what failed then may fail now."""
    opened = environment.open()
    tools = {tool.name: tool for tool in opened.tools}
    context = ToolContext(workspace=Workspace(Path.cwd(), read_only=True))
    for record in records:
        if isinstance(record.event, ToolCalled) and (tool := tools.get(record.event.tool)) is not None:
            # The model was answered with the error, which changes nothing more.
            with suppress(Exception):
                await tool.run(tool.validate(record.event.args), context)
    return opened


def _outcome(
    row: EvalRow,
    records: Sequence[Record],
    scores: Sequence[dict[str, Any]],
    missing: Sequence[str],
    at_least: float | None,
) -> tuple[str, str]:
    """Return outcome and reason by the rules of a trial: how the run ended comes before what checks say."""
    before = row.reason
    end = next((record.event for record in reversed(records) if isinstance(record.event, RunFinished)), None)
    if end is not None and end.outcome in ("error", "cancelled"):
        return "error", before
    if missing:
        return "error", "; ".join(missing)
    if end is None:
        return ("error" if row.outcome == "error" else "fail"), before
    return outcome_of(records, end, scores, at_least)


def _missing_needs(check: Check, function: Callable[[str], Any], folder: Path | None) -> str:
    """Return what the check needs beside the log and the trial's folder, if that was kept; empty for
    nothing.
    """
    needs = needs_of(
        one
        for one in each_check((check,))
        if is_single(one)
        and not (isinstance(one, PythonCheck) and getattr(function(one.function), "from_log", False))
    )
    return "" if not needs or (needs == "the workspace" and folder is not None) else needs


def _old_score(check: Check, old: Mapping[str, dict[str, Any]]) -> dict[str, Any] | None:
    """Return the check's earlier score; one by a model is found by its rubric, for its label names the
    grader.
    """
    if check.label in old:
        return old[check.label]
    rubric = check.label.partition(": ")[2] if check.label.startswith("graded by ") else ""
    graded = (
        score
        for label, score in old.items()
        if label.startswith("graded by ") and label.endswith(f": {rubric}")
    )
    return next(graded, None) if rubric else None


def _kept_folder(lab: Services, records: Sequence[Record]) -> Path | None:
    started = records[0].event
    folder = Path(started.workspace) if isinstance(started, RunStarted) else None
    kept = (lab.home / "trials").resolve()
    return (
        folder if folder is not None and folder.is_dir() and folder.resolve().is_relative_to(kept) else None
    )


def _key(row: EvalRow, scenario: Scenario) -> str:
    """Return the key under which `--reuse` finds the trial for the scenario as it is now; empty for rows
    without an identity.
    """
    parts = row.result.get("identity")
    if (
        not isinstance(parts, dict)
        or set(parts) != set(Identity.__dataclass_fields__)
        or row.result.get("task") is None
    ):
        return ""
    given = cast("dict[str, Any]", {**parts, "scenario": scenario_hash(scenario)})
    return Identity(**given).key
