"""Lists for clients: eval runs in the log and the trials of one, and runs that are looked for."""

from __future__ import annotations

from typing import Any, Final

from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.options import check_names
from kestrel_lab.runtime.workspace.find import Hit, find_runs
from kestrel_lab.runtime.workspace.run_filters import FILTERS
from kestrel_lab.server import protocol
from kestrel_lab.views.formatting import opening_line

MOST_EVAL_RUNS: Final = 200
MOST_TRIALS: Final = 1_000
_REASON: Final = 300
"""Characters of a reason."""

# Trials that were made at commits, pulled or imported belong to no eval run; those of one commit are shown
# together.
_NAME: Final = "coalesce(result_json ->> '$.sitting.id', git_sha)"
_EVAL_RUNS: Final = f"""
    SELECT suite, {_NAME} AS name, max(git_sha), count(*), sum(result_json ->> '$.outcome' = 'pass'),
      sum(result_json ->> '$.outcome' = 'fail'), sum(result_json ->> '$.outcome' = 'error'),
      max(coalesce(result_json ->> '$.sitting.of', 0)), max(created_at)
    FROM eval_runs GROUP BY suite, name ORDER BY max(created_at) DESC, name LIMIT ?
"""  # made of constants
_TRIALS: Final = f"""
    SELECT id, scenario, config, epoch, result_json ->> '$.outcome', result_json ->> '$.reason', result_json \
->> '$.model_kind',
      coalesce((SELECT id FROM runs WHERE runs.id = result_json ->> '$.run'), ''), created_at
    FROM eval_runs WHERE suite = ? AND {_NAME} = ? ORDER BY result_json ->> '$.outcome' = 'pass', scenario, \
config, epoch, created_at LIMIT ?
"""  # as above


def list_trials(store: SessionStore, message: protocol.ListTrials) -> protocol.Trials:
    """Return the eval runs, newest first, and the trials of the named one, failed ones first."""
    store.flush()
    found = store.query(_EVAL_RUNS, (MOST_EVAL_RUNS,))
    trials = store.query(_TRIALS, (message.suite, message.eval_run, MOST_TRIALS)) if message.eval_run else []
    runs = [
        protocol.EvalRunSummary(
            suite=suite,
            eval_run=name,
            commit=sha,
            trials=count,
            passed=passed,
            failed=failed,
            broke=broke,
            of=max(of, count),
            at=at,
        )
        for suite, name, sha, count, passed, failed, broke, of, at in found
    ]
    return protocol.Trials(
        re=message.id,
        eval_runs=runs,
        suite=message.suite,
        eval_run=message.eval_run,
        trials=[*map(_trial, trials)],
    )


def _trial(row: tuple[str, str, str, int, str, str | None, str, str, float]) -> protocol.TrialSummary:
    known, scenario, config, epoch, outcome, reason, kind, run, at = row
    return protocol.TrialSummary(
        id=known,
        scenario=scenario,
        config=config,
        epoch=epoch,
        outcome=outcome,
        reason=one_line(reason or "", _REASON),
        model_kind=kind,
        run=run,
        at=at,
    )


def list_found(store: SessionStore, message: protocol.Find) -> protocol.Found:
    """Return a page of the runs that are looked for; raises `UsageError` for a wrong query or filter."""
    check_names("find", message.filters, FILTERS)  # no other parameter of `find_runs` is a client's
    filters: Any = message.filters
    page = find_runs(store, message.query, limit=message.limit, after=message.after, **filters)
    return protocol.Found(
        re=message.id,
        runs=[*map(_found, page)],
        after=page.after,
        notes=page.progress(),
        filters={name: known.help for name, known in FILTERS.items()},
    )


def _found(hit: Hit) -> protocol.FoundRun:
    return protocol.FoundRun(
        run=hit.row.id,
        task=opening_line(hit.row.scenario or hit.row.goal, _REASON),
        model=hit.row.model,
        began=hit.row.created_at,
        ended=hit.ended,
        where=hit.where,
        event=hit.piece.seq,
        parts=[(sanitize_text(text), marked) for text, marked in hit.parts()],
    )
