"""Stored trials and their scores: rows of `eval_runs` and `eval_scores` in the file of the log."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Final

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import Event, RunFinished, RunStarted
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.eventlog.seals.row_seals import SEALED, check_heads, check_row, row_hash
from kestrel_lab.eventlog.store import SessionStore

_PAGE = 1_000
"""Trials read at once."""
_COLUMNS = ", ".join(SEALED["eval_runs"].columns)
_SEALED_COLUMNS = f"{_COLUMNS}, hash"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRow:
    """One finished trial of a suite."""

    id: str
    scenario: str
    result: dict[str, Any]
    """How it went, as JSON: the properties of a row and more, see `execution.trial`."""
    metrics: dict[str, float]
    git_sha: str
    created_at: float
    suite: str
    config: str
    epoch: int
    key: str
    """Hash of everything the trial's outcome depends on."""

    @property
    def outcome(self) -> str:
        """`pass`, `fail`, or `error` for a trial that broke."""
        return str(self.result["outcome"])

    @property
    def reason(self) -> str:
        """Why it did not pass, told as a failure; empty where it did."""
        reason = str(self.result["reason"])
        failed = failed_scores(self.scores) if self.outcome == "fail" else []
        names = "; ".join(str(score["check"]) for score in failed)
        # Logs of earlier versions have the bare names of checks, which read as if they held.
        if names and reason.removeprefix(_EARLY) == names:
            return reason.removesuffix(names) + failed_text((str(score["check"]), "") for score in failed)
        return reason

    @property
    def why(self) -> str:
        """Why it did not pass, in words: how its run ended, where that counts, and of each check that failed
        what was expected and what was found; empty where it passed.
        """
        if self.outcome != "fail":
            return "" if self.outcome == "pass" else self.reason
        failed = failed_scores(self.scores)
        # A reason ends with the failed checks, see `outcome_of`, that of an imported trial without what was
        # found. What comes before them is the run's end.
        ended = self.reason.removesuffix(failed_text((one["check"], one["reason"]) for one in failed))
        ended = ended.removesuffix(failed_text((one["check"], "") for one in failed))
        found = (
            f"expected: {one['check']}" + (f"; found: {one['reason']}" if one["reason"] else "")
            for one in failed
        )
        return "; ".join(filter(None, (ended.removesuffix("; "), *found)))

    @property
    def run(self) -> str:
        """The id of its run in the log."""
        return str(self.result["run"])

    @property
    def model_kind(self) -> str:
        """The kind of model that answered: `real`, `scripted`, `replay`, `imported`."""
        return str(self.result["model_kind"])

    @property
    def family(self) -> str:
        """The family of its scenario; empty for none."""
        return str(self.result["family"])

    @property
    def group(self) -> str:
        """What its scenario is drawn together with, see `evals.scenario_groups`; by itself where nothing is
        stored.
        """
        return str(self.result.get("group") or self.scenario)

    @property
    def unrecorded(self) -> list[str]:
        """What a replay asked for that no cassette has, a line each; empty for any other trial."""
        return list(self.result.get("unrecorded", ()))

    @property
    def ended_early(self) -> bool:
        """Whether its run was ended because its checks could not pass any more."""
        return bool(self.result.get("ended_early"))

    @property
    def conversation(self) -> str:
        """The digest of what its models were asked and answered; empty where a real model answered."""
        return str(self.result.get("conversation", ""))

    @property
    def served(self) -> list[str]:
        """The names that the endpoints of its models gave for what answered; empty where nobody asked one."""
        return list(self.result.get("served", ()))

    @property
    def scores(self) -> list[dict[str, Any]]:
        """What its checks said."""
        return list(self.result["scores"])


def failed_scores(scores: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the stored scores that did not pass and count: a check of weight 0 is only measured."""
    return [score for score in scores if not score["passed"] and score.get("weight", 1)]


def failed_text(checks: Iterable[tuple[str, str]]) -> str:
    """Return checks that failed, each with what was found, as a reason has them.

    The name of a check says what should hold, so that alone it would read as if it did.
    """
    return "; ".join(f"{label}: {found}" if found else f"not held: {label}" for label, found in checks)


_EARLY: Final = "ended early, it cannot pass; "


@dataclass(frozen=True, kw_only=True, slots=True)
class LaterScores:
    """Scores that a stored trial was given later, by checks that had changed."""

    trial: str
    suite_hash: str
    """Of the suite whose checks they are from."""
    result: dict[str, Json]
    """The trial's result with these scores."""
    key: str
    created_at: float


_NAMES = tuple(EvalRow.__dataclass_fields__)


def store_trial(
    store: SessionStore, row: EvalRow, *, urgent: bool = False, rests_on: tuple[str, ...] = ()
) -> Future[None]:
    """Queue one finished trial; the future resolves once it is on disk.

    It is refused where an event was of one of the runs that it `rests_on`.
    """
    sql = f"INSERT INTO eval_runs({_SEALED_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)"
    return store.execute(sql, _values(row), f"trial {row.id}", urgent=urgent, rests_on=rests_on)


def merge_trial(store: SessionStore, row: EvalRow) -> Future[None]:
    """Queue a trial that was made elsewhere, unless one with its id is stored."""
    sql = (
        f"INSERT INTO eval_runs({_SEALED_COLUMNS}) SELECT ?1,?2,?3,?4,?5,?6,?7,?8,?9,?10,?11 WHERE NOT "
        "EXISTS (SELECT 1 FROM eval_runs WHERE id = ?1)"
        " AND NOT EXISTS (SELECT 1 FROM removals WHERE run_id = ?3 ->> '$.run')"
    )
    return store.execute(sql, _values(row), f"trial {row.id}", urgent=False)


def trials_by_ids(store: SessionStore, ids: Sequence[str]) -> list[EvalRow]:
    """Return the stored trials with these ids, oldest first.

    Raises `StoreError` for one that is not what was written, as all that read trials do.
    """
    sql = (
        f"SELECT {_SEALED_COLUMNS} FROM eval_runs WHERE id IN (SELECT value FROM json_each(?)) ORDER BY "
        "created_at, id"
    )
    return [_row(row) for row in store.query(sql, (dumps(list(ids)),))]


def stored_trials(
    store: SessionStore, *, suite: str | None = None, git_sha: str | None = None
) -> list[EvalRow]:
    """Return stored trials, oldest first.

    Raises `StoreError` where one is missing or is not what was written.
    """
    check_heads(store.query, "eval_runs", suite, git_sha)
    rows = store.query(
        f"SELECT {_SEALED_COLUMNS} FROM eval_runs WHERE (?1 IS NULL OR suite = ?1) AND (?2 IS NULL OR "
        "git_sha = ?2) ORDER BY created_at, id",
        (suite, git_sha),
    )
    return [_row(row) for row in rows]


def each_stored_trial(
    store: SessionStore, *, suite: str, git_sha: str | None = None, latest: bool = False
) -> Iterator[EvalRow]:
    """Yield stored trials, oldest first, read in pages: any number takes little memory, that of their ids.

    With `latest`, of each scenario, configuration and epoch the newest alone. Raises as `stored_trials`.
    """
    check_heads(store.query, "eval_runs", suite, git_sha)
    # Of a group with one maximum SQLite takes the other columns from the row that has it.
    columns, group = (
        ("id, max(created_at) AS at", "GROUP BY scenario, config, epoch")
        if latest
        else ("id, created_at AS at", "")
    )
    sql = (
        f"SELECT {columns} FROM eval_runs WHERE suite = ?1 AND (?2 IS NULL OR git_sha = ?2) {group} "
        "ORDER BY at, id"
    )
    ids = [row[0] for row in store.query(sql, (suite, git_sha))]
    for start in range(0, len(ids), _PAGE):
        yield from trials_by_ids(store, ids[start : start + _PAGE])


def trials_of_run(store: SessionStore, run_id: str) -> list[EvalRow]:
    """Return the stored trials whose run this is, oldest first."""
    sql = f"SELECT {_SEALED_COLUMNS} FROM eval_runs WHERE result_json ->> '$.run' = ? ORDER BY created_at, id"
    return [_row(row) for row in store.query(sql, (run_id,))]


def store_run(store: SessionStore, run_id: str, events: Sequence[tuple[float, Event]]) -> bool:
    """Store a run that was worked on elsewhere, event by event; returns whether the log did not have all of
    it before.

    What an earlier call left out because its process died is added. Raises `StoreError` for a run without a
    beginning.
    """
    (began, started), *rest = events
    if not isinstance(started, RunStarted):
        raise StoreError(f"run {run_id} cannot be read: its first event is missing")
    if store.query("SELECT 1 FROM removals WHERE run_id = ?", (run_id,)):
        # Somebody deleted it here: it does not come back from a server.
        return False
    if store.query("SELECT 1 FROM runs WHERE id = ?", (run_id,)):
        rest = rest[len(store.records(run_id)) - 1 :]
        if not rest or not store.claim(store.run(run_id)):
            return False
    else:
        store.create_run(run_id, started, at=began)
    for at, event in rest:
        store.append(run_id, event, at=at)
    if not any(isinstance(event, RunFinished) for _, event in rest):
        store.release(run_id)
    return True


def store_scores(store: SessionStore, row: EvalRow, trial: str, suite_hash: str) -> Future[None]:
    """Queue new scores of a stored trial, beside those it has: the result and key of `row`, judged by the
    suite with that hash.
    """
    return merge_scores(
        store,
        LaterScores(
            trial=trial, suite_hash=suite_hash, result=row.result, key=row.key, created_at=time.time()
        ),
    )


def merge_scores(store: SessionStore, scores: LaterScores) -> Future[None]:
    """Queue scores of a stored trial that were given elsewhere, unless they are stored."""
    values = (
        scores.trial,
        scores.suite_hash,
        dumps(scores.result),
        scores.key,
        float(scores.created_at) + 0.0,
    )
    sql = (
        "INSERT INTO eval_scores(trial, suite_hash, result_json, key, created_at, hash) SELECT "
        "?1,?2,?3,?4,?5,?6 WHERE NOT EXISTS"
        " (SELECT 1 FROM eval_scores WHERE trial = ?1 AND suite_hash = ?2 AND created_at = ?5)"
    )
    return store.execute(sql, (*values, row_hash(values)), f"scores of trial {scores.trial}", urgent=False)


def later_scores(store: SessionStore, ids: Sequence[str]) -> list[LaterScores]:
    """Return the scores that these trials were given later, oldest first."""
    sql = (
        "SELECT trial, suite_hash, result_json, key, created_at, hash FROM eval_scores WHERE trial IN "
        "(SELECT value FROM json_each(?))"
        " ORDER BY created_at, rowid"
    )
    scores = []
    for *values, digest in store.query(sql, (dumps(list(ids)),)):
        scores.append(_later_scores(values, digest))
    return scores


def stored_scores(store: SessionStore, *, suite: str, suite_hash: str | None = None) -> list[EvalRow]:
    """Return trials with the scores they were given later, oldest scores first; only those by the suite with
    that hash, if one is named. Raises as `stored_trials`.
    """
    check_heads(store.query, "eval_scores", suite)
    trial_columns = ", ".join(f"r.{column}" for column in _SEALED_COLUMNS.split(", "))
    score_columns = "s.trial, s.suite_hash, s.result_json, s.key, s.created_at, s.hash"
    sql = (
        f"SELECT {trial_columns}, {score_columns} FROM eval_scores AS s JOIN eval_runs AS r ON r.id = s.trial"
        " WHERE suite = ?1 AND (?2 IS NULL OR suite_hash = ?2) ORDER BY s.created_at, s.rowid"
    )
    rows = []
    for columns in store.query(sql, (suite, suite_hash)):
        trial, values, digest = _row(columns[: len(_NAMES) + 1]), columns[len(_NAMES) + 1 : -1], columns[-1]
        scores = _later_scores(values, digest)
        rows.append(replace(trial, result=dict(scores.result), key=scores.key))
    return rows


def _later_scores(values: Sequence[Any], digest: bytes | None) -> LaterScores:
    trial, suite_hash, result, key, at = values
    check_row(values, digest, f"a later score of trial {trial}")
    return LaterScores(trial=trial, suite_hash=suite_hash, result=json.loads(result), key=key, created_at=at)


def _values(row: EvalRow) -> tuple[object, ...]:
    """Return the columns of a trial, and its hash as the last."""
    values = (
        *(row.id, row.scenario, dumps(row.result), dumps(row.metrics), row.git_sha),
        *(float(row.created_at) + 0.0, row.suite, row.config, row.epoch, row.key),
    )
    return (*values, row_hash(values))


def _row(columns: tuple[Any, ...]) -> EvalRow:
    *row, digest = columns
    check_row(row, digest, f"trial {row[0]}")
    values: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    return EvalRow(
        **values | {"result": json.loads(values["result"]), "metrics": json.loads(values["metrics"])}
    )
