"""Selected trials: those of a suite, by its file or its name in the log, or of runs by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.run_types import RunReference, RunStatus, run_id_of
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.options import StoredSelection, parts_of
from kestrel_lab.evals.stored.rescore import selected_rows
from kestrel_lab.evals.stored_trials import EvalRow, each_stored_trial, trials_of_run
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.runtime.services import Services


def selected_trials(
    lab: Services, what: str | Path | Suite | RunReference | Sequence[RunReference], which: StoredSelection
) -> tuple[str, list[EvalRow]]:
    """Return the name of a suite with its newest stored trials, or an empty name with those of runs.

    A suite whose file is not there, an imported one for instance, is found by its name. A run that is no
    trial is shown as one of its goal. Raises `UsageError` for what is none of these.
    """
    if isinstance(what, Suite):
        return what.name, selected_rows(lab, what, which)
    if isinstance(what, str | Path):
        names = [str(what)]
    else:
        names = [run_id_of(run) for run in (what if isinstance(what, Sequence) else [what])]
    if len(names) > 1 or lab.store.query("SELECT 1 FROM runs WHERE id = ?", names):
        return "", [_trial(lab.store, lab.store.run(name)) for name in names]
    name = names[0] if names else ""
    if not Path(name).exists() and (found := _by_name(lab.store, name, which.get("commit"))):
        kept = {key: set(value) for key, value in parts_of(which).items() if isinstance(value, Sequence)}
        return name, [
            row
            for row in found
            if row.config in kept.get("configs", {row.config})
            and row.scenario in kept.get("scenarios", {row.scenario})
            and row.family in kept.get("families", {row.family})
        ]
    suite = load_suite(name)
    return suite.name, selected_rows(lab, suite, which)


def _by_name(store: SessionStore, name: str, commit: str | None) -> list[EvalRow]:
    sql = "SELECT git_sha FROM eval_runs WHERE suite = ? ORDER BY created_at DESC, id LIMIT 1"
    newest = store.query(sql, (name,))
    if not newest:
        return []
    sha = commit if commit is not None else str(newest[0][0])
    found = list(each_stored_trial(store, suite=name, git_sha=sha, latest=True))
    if not found:
        raise UsageError(f"no trials of suite {name!r} at commit {commit!r} are stored")
    return found


def _trial(store: SessionStore, run: RunRow) -> EvalRow:
    """Return the newest trial of a run, or one that is made of a run which is none."""
    if found := trials_of_run(store, run.id):
        return found[-1]
    ended = {RunStatus.COMPLETE: "pass", RunStatus.FAILED: "fail"}.get(run.status, "error")
    result = {
        "family": "",
        "weight": 1.0,
        "model": run.model,
        "model_kind": run.model_kind,
        "outcome": ended,
        "reason": "" if ended == "pass" else str(run.status).lower(),
        "scores": [],
        "run": run.id,
    }
    return EvalRow(
        id=run.id,
        scenario=run.scenario or one_line(run.goal),
        result=result,
        metrics={},
        git_sha="",
        created_at=run.created_at,
        suite="",
        config=run.config or run.model,
        epoch=1,
        key="",
    )
