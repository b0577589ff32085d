"""The rules of the log hold against SQL that tries to break them, through our connection and through any
other.
"""

import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import IllegalTransition
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Progress,
    RunForked,
    RunStarted,
    StateTransition,
)
from kestrel_lab.core.run_types import TRANSITIONS, RunStatus
from kestrel_lab.evals.execution.batch_log import write_fact
from kestrel_lab.evals.stored_trials import EvalRow, store_scores, store_trial
from kestrel_lab.eventlog.connection import connect_log
from kestrel_lab.eventlog.removal import plan_removal, remove_from_log
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.eventlog.schema import MIGRATIONS
from kestrel_lab.eventlog.seals.row_seals import SEALED, register_seals
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.eventlog.text_index import register_terms

# The prepared log: run "live" is EXECUTING with last number 5, question "q" decided, question "open" not; run
# "done" is COMPLETE; run "fork" shares the first 3 events of "live" and has a fourth; run "taken" is in epoch
# 1, with a question, "asked". Run "gone" was removed, but for the first 2 of its 3 events, which "kid"
# shares; "dust" was removed whole.
EVENT = "INSERT INTO events(hash, epoch, run_id, seq, eid, at, type, ref, body) VALUES"
RUN = "INSERT {} INTO runs(id, goal, workspace, model, model_kind, status, last_seq, created_at) VALUES"
FORK = (
    "INSERT INTO runs(id, goal, workspace, model, model_kind, began, status, parent, forked_at, "
    "last_seq, created_at) VALUES"
)
TRIAL = (
    "eval_runs(id, scenario, result_json, metrics_json, git_sha, created_at, suite, config, epoch, "
    "key, hash) VALUES"
)

CHANGES = (
    # what is written stays as it was
    "DELETE FROM events",
    "DELETE FROM events WHERE run_id = 'live' AND seq = 5",
    "DELETE FROM runs WHERE id = 'live'",
    "DELETE FROM eval_runs",
    "DELETE FROM transitions",
    "UPDATE events SET body = '{}'",
    "UPDATE events SET seq = seq + 1 WHERE seq = 5",
    "UPDATE events SET at = 0",
    "UPDATE events SET run_id = 'done' WHERE seq = 5",
    "UPDATE OR REPLACE events SET seq = 1 WHERE seq = 2",
    "UPDATE OR IGNORE events SET type = 'progress'",
    "UPDATE eval_runs SET result_json = '{\"passed\": true}'",
    "UPDATE eval_runs SET git_sha = 'other'",
    "DELETE FROM eval_scores",
    "UPDATE eval_scores SET result_json = '{\"passed\": true}'",
    "INSERT OR REPLACE INTO eval_scores(rowid, trial, suite_hash, result_json, key, created_at, hash) SELECT "
    "rowid, trial, 'h', '{}', '', 0, hash FROM eval_scores",
    "INSERT INTO eval_scores(trial, suite_hash, result_json, key, created_at, hash) VALUES('none', 'h', "
    "'{}', '', 0, zeroblob(32))",
    "DELETE FROM batch_events",
    "UPDATE batch_events SET body = '{}'",
    "INSERT OR REPLACE INTO batch_events(number, batch, at, type, body, hash) VALUES(1, 'b', 0, 'closed', "
    "'{}', zeroblob(32))",
    # each result carries its hash, and each evaluation its head
    "INSERT INTO eval_runs(id, scenario, result_json, metrics_json, git_sha, created_at, suite, config, "
    "epoch, key) VALUES('new', 's', '{}', '{}', 'a', 0, 'u', 'c', 1, 'k')",
    "INSERT INTO eval_scores(trial, suite_hash, result_json, key, created_at) VALUES('t', 'h', '{}', '', 0)",
    "INSERT INTO batch_events(batch, at, type, body) VALUES('b', 0, 'closed', '{}')",
    "DELETE FROM heads",
    "UPDATE heads SET sealed = 0",
    "UPDATE heads SET hash = zeroblob(32)",
    "UPDATE heads SET config = 'other'",
    "INSERT OR REPLACE INTO heads(source, name, git_sha, config) SELECT source, name, git_sha, config FROM heads",
    "INSERT INTO heads(source, name, git_sha, config, sealed) VALUES('eval_runs', 'other', '', '', 7)",
    "UPDATE transitions SET target = 'COMPLETE' WHERE source = 'PLANNING' AND target = 'EXECUTING'",
    "UPDATE runs SET goal = 'another'",
    "UPDATE runs SET model = 'better', model_kind = 'real'",
    "UPDATE runs SET id = 'other' WHERE id = 'live'",
    "UPDATE OR REPLACE runs SET id = 'done' WHERE id = 'live'",
    "UPDATE runs SET created_at = 0",
    "UPDATE runs SET parent = 'done', forked_at = 1",
    # and nothing takes its place
    RUN.format("OR REPLACE") + "('live', 'g', 'w', 'm', 'real', 'PLANNING', 0, 0)",
    "REPLACE INTO runs(id, goal, workspace, model, model_kind, created_at) VALUES('live', 'g', 'w', "
    "'m', 'real', 0)",
    RUN.format("")
    + "('live', 'g', 'w', 'm', 'real', 'PLANNING', 0, 0) ON CONFLICT DO UPDATE SET goal = 'another'",
    "INSERT OR REPLACE INTO events(run_id, seq, eid, at, type, body, epoch, hash) VALUES('live', 5, "
    "'e', 0, 'progress', '{}', 0, zeroblob(32))",
    "INSERT OR REPLACE INTO events(run_id, seq, eid, at, type, body, epoch, hash) SELECT run_id, seq, "
    "eid, at, type, '{}', epoch, hash FROM events",
    EVENT
    + "(zeroblob(32), 0, 'live', 5, 'e', 0, 'progress', NULL, '{}') ON CONFLICT DO UPDATE SET body = '{}'",
    "INSERT OR REPLACE INTO " + TRIAL + "('t', 's', '{}', '{}', 'a', 0, 'u', 'c', 1, 'k', zeroblob(32))",
    "INSERT INTO "
    + TRIAL
    + "('t', 's', '{}', '{}', 'a', 0, 'u', 'c', 1, 'k', zeroblob(32)) ON CONFLICT DO UPDATE SET result_json = '{}'",
    "INSERT OR REPLACE INTO transitions VALUES('PLANNING', 'EXECUTING')",
    # the map of legal transitions is fixed
    "INSERT INTO transitions VALUES('PLANNING', 'COMPLETE')",
    "INSERT OR IGNORE INTO transitions VALUES('COMPLETE', 'EXECUTING')",
    # a state changes by its event only
    "UPDATE runs SET status = 'COMPLETE' WHERE id = 'live'",
    "UPDATE runs SET status = 'WAITING_APPROVAL' WHERE id = 'live'",
    "UPDATE runs SET status = 'PLANNING' WHERE id = 'live'",
    "UPDATE runs SET status = 'EXECUTING' WHERE id = 'done'",
    "UPDATE OR REPLACE runs SET status = 'FAILED'",
    "UPDATE runs SET status = 'PAUSED'",
    "UPDATE runs SET status = NULL",
    RUN.format("") + "('new', 'g', 'w', 'm', 'real', 'COMPLETE', 0, 0)",
    EVENT
    + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"EXECUTING","target":"PLANNING"}')""",
    EVENT
    + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"PLANNING","target":"EXECUTING"}')""",
    EVENT + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"EXECUTING"}')""",
    EVENT + "(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{}')",
    EVENT
    + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"EXECUTING","target":"FAILED","target":"COMPLETE"}')""",
    EVENT
    + r"""(zeroblob(32), 0, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"EXECUTING","target":"FAILED","t\u0061rget":"COMPLETE"}')""",
    # numbers have no gap
    "UPDATE runs SET last_seq = 99",
    "UPDATE runs SET last_seq = 4 WHERE id = 'live'",
    "UPDATE runs SET last_seq = NULL WHERE id = 'live'",
    RUN.format("") + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 7, 0)",
    EVENT + "(zeroblob(32), 0, 'live', 7, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'live', 5, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'live', 0, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'live', NULL, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'live', 6.5, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'nowhere', 1, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'live', 6, 'e', 0, 'progress', NULL, 'no json')",
    # an ended run is ended
    EVENT + "(zeroblob(32), 0, 'done', 4, 'e', 0, 'progress', NULL, '{}')",
    EVENT
    + """(zeroblob(32), 0, 'done', 4, 'e', 0, 'state_transition', NULL, '{"source":"COMPLETE","target":"EXECUTING"}')""",
    # a fork begins behind an event of its parent, where the parent was then
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'live', 6, 6, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', 'live', 0, 0, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'live', 2.5, 2.5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'nowhere', 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'fork', 3, 3, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', 'new', 1, 1, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', 'live', NULL, 0, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', NULL, 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'live', 5, 4, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'live', 5, 0, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', 'live', 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', 'live', 1, 1, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'PLANNING', 'fork', 4, 4, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'COMPLETE', 'live', 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'PLANNING', 'EXECUTING', 'live', 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'EXECUTING', 'EXECUTING', NULL, NULL, 0, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', NULL, NULL, 'live', 5, 5, 0)",
    FORK + "('new', 'g', 'w', 'm', 'real', 'COMPLETE', 'COMPLETE', 'done', 3, 3, 0)",
    "UPDATE runs SET began = 'PLANNING' WHERE id = 'fork'",
    "UPDATE runs SET forked_at = 2 WHERE id = 'fork'",
    "UPDATE runs SET parent = NULL, forked_at = NULL WHERE id = 'fork'",
    "UPDATE runs SET last_seq = 3 WHERE id = 'fork'",
    "UPDATE runs SET status = 'COMPLETE' WHERE id = 'fork'",
    EVENT + "(zeroblob(32), 0, 'fork', 3, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'fork', 4, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 0, 'fork', 6, 'e', 0, 'progress', NULL, '{}')",
    EVENT
    + """(zeroblob(32), 0, 'fork', 5, 'e', 0, 'state_transition', NULL, '{"source":"PLANNING","target":"EXECUTING"}')""",
    EVENT + """(zeroblob(32), 0, 'fork', 5, 'e', 0, 'approval_given', 'q', '{"granted":true}')""",
    EVENT + """(zeroblob(32), 0, 'fork', 5, 'e', 0, 'approval_given', 'open', '{"granted":true}')""",
    # a question is decided once, and only if it was asked
    EVENT + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'approval_given', 'q', '{"granted":true}')""",
    EVENT + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'approval_given', 'never', '{"granted":true}')""",
    EVENT + """(zeroblob(32), 0, 'live', 6, 'e', 0, 'approval_given', NULL, '{"granted":true}')""",
    "INSERT OR IGNORE INTO events VALUES('live', 6, 'e', 0, 'approval_given', 'q', '{}', 0, zeroblob(32))",
    "INSERT OR REPLACE INTO events VALUES('live', 6, 'e', 0, 'approval_given', 'q', '{}', 0, zeroblob(32))",
    EVENT + """(zeroblob(32), NULL, 'live', 6, 'e', 0, 'approval_given', 'q', '{"granted":true}')""",
    # a run is claimed by raising its epoch by one, never back, and given back without
    "UPDATE runs SET owner = 'me' WHERE id = 'live'",
    "UPDATE runs SET owner = 'me', epoch = 0 WHERE id = 'taken'",
    "UPDATE runs SET owner = 'me', epoch = 3 WHERE id = 'taken'",
    "UPDATE runs SET epoch = 0 WHERE id = 'taken'",
    "UPDATE runs SET epoch = 2, owner = '' WHERE id = 'taken'",
    "UPDATE runs SET epoch = NULL, owner = 'me' WHERE id = 'taken'",
    "UPDATE runs SET epoch = 'x', owner = 'me' WHERE id = 'taken'",
    "UPDATE runs SET epoch = 1.5, owner = 'me' WHERE id = 'taken'",
    "UPDATE runs SET owner = NULL WHERE id = 'taken'",
    "UPDATE OR REPLACE runs SET owner = 'me'",
    "INSERT INTO runs(id, goal, workspace, model, model_kind, created_at, epoch) VALUES('new', 'g', "
    "'w', 'm', 'real', 0, 1)",
    "INSERT INTO runs(id, goal, workspace, model, model_kind, created_at, epoch) VALUES('new', 'g', "
    "'w', 'm', 'real', 0, -1)",
    "INSERT INTO runs(id, goal, workspace, model, model_kind, created_at, epoch) VALUES('new', 'g', "
    "'w', 'm', 'real', 0, 'x')",
    # a checkpoint is of an event of its run, and stays as it is
    "UPDATE checkpoints SET seq = 99",
    "UPDATE checkpoints SET state = x'00'",
    "INSERT INTO checkpoints VALUES('live', 6, 'cycles', 'f', x'00', 0)",
    "INSERT INTO checkpoints VALUES('live', 0, 'cycles', 'f', x'00', 0)",
    "INSERT INTO checkpoints VALUES('fork', 3, 'cycles', 'f', x'00', 0)",
    "INSERT OR REPLACE INTO checkpoints VALUES('nowhere', 1, 'cycles', 'f', x'00', 0)",
    # and each event is chained to the one before
    EVENT + "(NULL, 0, 'live', 6, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(x'00', 0, 'live', 6, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "('thirty-two letters are no hash !', 0, 'live', 6, 'e', 0, 'progress', NULL, '{}')",
    "UPDATE events SET hash = NULL",
    # and only whoever claimed it last adds to it; a decision without an epoch is anybody's
    EVENT + "(zeroblob(32), 0, 'taken', 3, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 2, 'taken', 3, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), NULL, 'taken', 3, 'e', 0, 'progress', NULL, '{}')",
    EVENT + "(zeroblob(32), 'x', 'taken', 3, 'e', 0, 'progress', NULL, '{}')",
    EVENT + """(zeroblob(32), 0, 'taken', 3, 'e', 0, 'approval_given', 'asked', '{"granted":true}')""",
    EVENT + "(zeroblob(32), NULL, 'live', 6, 'e', 0, 'progress', NULL, '{}')",
    "INSERT INTO events(run_id, seq, eid, at, type, body, hash) VALUES('live', 6, 'e', 0, 'progress', "
    "'{}', zeroblob(32))",
    "INSERT INTO events(run_id, seq, eid, at, type, body, hash) VALUES('live', 6, 'e', 0, "
    "'approval_asked', '{}', zeroblob(32))",
    EVENT
    + """(zeroblob(32), NULL, 'live', 6, 'e', 0, 'state_transition', NULL, '{"source":"EXECUTING","target":"FAILED"}')""",
    EVENT
    + """(zeroblob(32), 0, 'taken', 3, 'e', 0, 'state_transition', NULL, '{"source":"PLANNING","target":"FAILED"}')""",
    "INSERT OR REPLACE INTO events VALUES('taken', 2, 'e', 0, 'progress', NULL, '{}', 0, zeroblob(32))",
    "INSERT OR IGNORE INTO events VALUES('taken', 3, 'e', 0, 'progress', NULL, '{}', 0, zeroblob(32))",
    # a run is removed as a whole, but for what its forks share, and does not come back
    "INSERT INTO removals VALUES('nowhere', 0, 0)",
    "INSERT INTO removals VALUES('live', 2, 0)",
    "INSERT INTO removals VALUES('done', NULL, 0)",
    "INSERT INTO removals VALUES('done', -1, 0)",
    "INSERT INTO removals VALUES('done', 0.5, 0)",
    "INSERT OR REPLACE INTO removals VALUES('gone', 9, 0)",
    "INSERT OR REPLACE INTO removals VALUES('gone', 1, 0)",
    "UPDATE removals SET keep = 1 WHERE run_id = 'gone'",
    "UPDATE removals SET keep = 9 WHERE run_id = 'gone'",
    "UPDATE removals SET run_id = 'live'",
    "UPDATE removals SET at = 1",
    "DELETE FROM removals",
    "DELETE FROM events WHERE run_id = 'gone'",
    "DELETE FROM events WHERE run_id = 'kid'",
    "DELETE FROM runs WHERE id = 'gone'",
    EVENT + "(zeroblob(32), 0, 'gone', 4, 'e', 0, 'progress', NULL, '{}')",
    RUN.format("") + "('dust', 'g', 'w', 'm', 'real', 'PLANNING', 0, 0)",
)
"""Statements that only change rows: the database itself refuses them, whoever sends them."""

MEANS = (
    "DROP TRIGGER events_update",
    "DROP TRIGGER runs_status",
    "DROP TABLE events",
    "DROP INDEX questions",
    "ALTER TABLE events RENAME TO old",
    "ALTER TABLE runs ADD COLUMN note",
    "ALTER TABLE runs DROP COLUMN owner",
    "CREATE TABLE evil(x)",
    "CREATE TEMP TABLE evil(x)",
    "CREATE TRIGGER evil AFTER INSERT ON events BEGIN SELECT 1; END",
    "CREATE TEMP TRIGGER evil AFTER INSERT ON events BEGIN SELECT 1; END",
    "CREATE TEMP VIEW runs AS SELECT 1",
    "CREATE VIEW evil AS SELECT 1",
    "CREATE INDEX evil ON runs(goal)",
    "CREATE VIRTUAL TABLE evil USING fts5(x)",
    "PRAGMA writable_schema = ON",
    "PRAGMA ignore_check_constraints = ON",
    "PRAGMA recursive_triggers = OFF",
    "PRAGMA user_version = 0",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA synchronous = OFF",
    "PRAGMA trusted_schema = ON",
    "ATTACH ':memory:' AS other",
    "DETACH main",
    "VACUUM",
    "VACUUM INTO '{copy}'",
    "ANALYZE",
    "REINDEX",
    "DELETE FROM sqlite_master WHERE type = 'trigger'",
    "UPDATE sqlite_master SET sql = '' WHERE type = 'trigger'",
    "UPDATE sqlite_schema SET sql = NULL",
    "INSERT INTO sqlite_master VALUES('table', 'x', 'x', 0, 'x')",
)
"""Statements that would take the rules away first: our connection does not run them."""


def prepare(path: Path) -> None:
    """A log with a run in progress, an ended run, a decided and an open question, a fork, and a trial."""
    store = SessionStore(path)
    started = RunStarted(goal="g", workspace="/w", model="m")
    store.create_run("live", started)
    store.append("live", StateTransition(source="PLANNING", target="EXECUTING"))
    for name in ("q", "open"):
        store.append(
            "live",
            ApprovalAsked(call=name, step="s", tool="t", args={}, danger="HIGH", key="k", question=name),
        )
    store.append("live", ApprovalGiven(call="q", granted=False, by="ann", how="click", question="q"))
    store.create_run("done", started)
    store.append("done", StateTransition(source="PLANNING", target="EXECUTING"))
    store.append("done", StateTransition(source="EXECUTING", target="COMPLETE"))
    store.fork_run("fork", RunForked(parent="live", at=3, model="m"), RunStatus.EXECUTING)
    store.create_run("taken", started)
    store.append(
        "taken",
        ApprovalAsked(call="asked", step="s", tool="t", args={}, danger="HIGH", key="k", question="asked"),
    ).result()
    assert store.claim(store.run("taken"))
    store.create_run("gone", started)
    for target in (Progress(text="a"), Progress(text="b")):
        store.append("gone", target)
    store.fork_run("kid", RunForked(parent="gone", at=2, model="m"), RunStatus.PLANNING)
    store.create_run("dust", started)
    assert remove_from_log(store, plan_removal(store, ["gone", "dust"]))
    store.checkpoint("live", "cycles")
    row = EvalRow(
        id="t",
        scenario="s",
        result={},
        metrics={},
        git_sha="a",
        created_at=0,
        suite="u",
        config="c",
        epoch=1,
        key="k",
    )
    store_trial(store, row).result()
    store_scores(store, row, "t", "h").result()
    write_fact(store, "b", "planned", {"eval_run": "e"}).result()
    store.close()


def content(path: Path) -> list[tuple[Any, ...]]:
    """Everything the database holds, its rules included."""
    raw = apsw.Connection(str(path))
    rows: list[tuple[Any, ...]] = list(raw.execute("SELECT type, name, sql FROM sqlite_master ORDER BY name"))
    for (table,) in raw.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name"
    ).fetchall():
        rows += [(table, *row) for row in raw.execute(f"SELECT * FROM {table}")]
    rows.append((raw.pragma("user_version"), raw.pragma("journal_mode"), raw.pragma("integrity_check")))
    raw.close()
    return rows


Statement = Callable[[str], object]


def escapes(path: Path, run: Statement, statements: Iterable[str]) -> Iterator[str]:
    """The statements that are not refused, or that change something although they are."""
    before = content(path)
    for statement in statements:
        try:
            run(statement)
        except apsw.Error:
            if content(path) == before:
                continue
        yield statement
        before = content(path)


def escaped(path: Path, run: Statement, statements: Iterable[str]) -> list[str]:
    """All of them."""
    return list(escapes(path, run, statements))


def test_our_connection_refuses_every_hostile_statement(tmp_path: Path) -> None:
    """Nothing that rewrites history or removes a rule gets through the guarded connection, and nothing
    changes.
    """
    prepare(tmp_path / "k.db")
    guarded = connect_log(tmp_path / "k.db")
    statements = [statement.replace("{copy}", str(tmp_path / "copy.db")) for statement in (*CHANGES, *MEANS)]

    assert len(statements) >= 140
    assert escaped(tmp_path / "k.db", guarded.execute, statements) == []
    assert not (tmp_path / "copy.db").exists()


def test_any_connection_is_refused_what_changes_history(tmp_path: Path) -> None:
    """A connection of another program, with none of our settings, is refused every change of what is
    written.
    """
    prepare(tmp_path / "k.db")
    foreign = apsw.Connection(str(tmp_path / "k.db"))
    assert foreign.pragma("recursive_triggers") == 0
    assert escaped(tmp_path / "k.db", foreign.execute, CHANGES) == []


def test_the_rules_still_let_a_run_work(tmp_path: Path) -> None:
    """After all the refusals the open question is answered and the run ends, as if nothing had been tried."""
    path = tmp_path / "k.db"
    prepare(path)
    escaped(path, connect_log(path).execute, CHANGES)
    store = SessionStore(path)
    store.decide("live", ApprovalGiven(call="open", granted=True, by="ann", how="click"))
    assert store.claim(store.run("live"))
    store.transition("live", RunStatus.COMPLETE).result()

    assert store.run("live").status is RunStatus.COMPLETE
    assert [record.seq for record in store.records("live")] == [1, 2, 3, 4, 5, 6, 7]
    store.close()


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log that `prepare` makes, in one file."""
    path = tmp_path_factory.mktemp("prepared") / "k.db"
    prepare(path)
    with closing(apsw.Connection(str(path))) as raw:
        raw.pragma("wal_checkpoint(TRUNCATE)")
    return path


_ACT = {
    "events_after",
    "events_tainted",
    "removals_begin",
    "removals_go_on",
    "runs_text",
    "run_texts_update",
    "run_texts_delete",
    *(f"{table}_{what}" for table in SEALED for what in ("sealed", "removed")),
}
"""Those that refuse nothing, and do what goes with a statement."""


def rules_taken_away() -> Iterator[Any]:
    """Statements that take one rule out of the database: a trigger, or one of the cases of a trigger."""
    empty = apsw.Connection(":memory:")
    register_terms(empty)
    for script in MIGRATIONS:
        empty.execute(script)
    created = dict(empty.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall())
    for name, sql in created.items():
        if name in _ACT:
            continue
        yield pytest.param(f"DROP TRIGGER {name}", id=name)
        head, *cases = re.split(
            r"(?=^    WHEN )", sql.replace("\n  END FROM", "\n    WHEN 0 THEN 0 END FROM"), flags=re.MULTILINE
        )
        for case in cases[:-1]:
            others = "".join(one for one in cases if one is not case)
            refusal = re.findall("E_[A-Z_]+", case)[0]
            if refusal != "E_NO_RUN":  # it says why; without it the number would be refused
                yield pytest.param(f"DROP TRIGGER {name};{head}{others}", id=f"{name} {refusal}")


RULES = list(rules_taken_away())


@pytest.mark.parametrize("taken", RULES)
def test_without_any_one_rule_something_escapes(taken: str, prepared: Path, tmp_path: Path) -> None:
    """Each rule is needed: without it one of the same statements finds a way, so the tests above can fail."""
    shutil.copyfile(prepared, tmp_path / "k.db")
    raw = apsw.Connection(str(tmp_path / "k.db"))
    register_terms(raw)  # else each removal fails: it takes words out of the index
    register_seals(raw)  # else each new result is refused: it has to be added to a head
    raw.execute(taken)
    assert next(escapes(tmp_path / "k.db", raw.execute, CHANGES), None) is not None


def test_each_refusal_of_an_event_is_taken_away_once() -> None:
    """The cases of the trigger of events are each a rule of the test above."""
    assert {one.id.partition(" ")[2] for one in RULES if str(one.id).startswith("events_insert ")} == {
        "E_REMOVED",
        "E_SEQ_GAP",
        "E_RUN_TERMINAL",
        "E_HASH",
    }


def test_without_the_authorizer_the_means_escape(tmp_path: Path) -> None:
    """The statements that would take the rules away work on a bare connection, so refusing them means
    something.
    """
    prepare(tmp_path / "k.db")
    bare = connect_log(tmp_path / "k.db")
    bare.authorizer = None
    harmful = ["DROP TRIGGER events_update", "CREATE TABLE evil(x)", "PRAGMA user_version = 0", "ANALYZE"]
    assert escaped(tmp_path / "k.db", bare.execute, harmful) == harmful


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(list(RunStatus)), st.sampled_from(list(RunStatus)), st.integers(0, 5)),
        max_size=12,
    )
)
def test_the_database_follows_the_map_of_transitions(
    steps: list[tuple[RunStatus, RunStatus, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever transitions are tried, the log accepts exactly those that start where the run is and that the
    map allows.
    """
    store = SessionStore(tmp_path_factory.mktemp("map") / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    status, count = RunStatus.PLANNING, 1
    for source, target, honest in steps:
        tried = StateTransition(source=status if honest else source, target=target)
        done = store.append("r", tried, urgent=True)
        if tried.source == status and target in TRANSITIONS[status]:
            status, count = target, count + 1
            assert done.result() == count
        else:
            assert isinstance(done.exception(), IllegalTransition)
        assert store.run("r").status is status
    if not status.terminal:
        count = store.append("r", Progress(text="still going"), urgent=True).result()
    else:
        assert isinstance(
            store.append("r", Progress(text="late"), urgent=True).exception(), IllegalTransition
        )

    records = store.records("r")
    assert [record.seq for record in records] == list(range(1, count + 1))
    assert fold(records).status is status
    store.close()


@settings(max_examples=60)
@given(
    steps=st.lists(st.sampled_from(list(RunStatus)), max_size=5),
    at=st.integers(0, 9),
    claimed=st.sampled_from(list(RunStatus)),
)
def test_a_fork_begins_where_its_parent_was(
    steps: list[RunStatus], at: int, claimed: RunStatus, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The log accepts a fork exactly if the parent has that event, had not ended, and was in the state
    claimed; also a fork of a fork.
    """
    store = SessionStore(tmp_path_factory.mktemp("fork") / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    states = [RunStatus.PLANNING]
    for target in steps:
        if target in TRANSITIONS[states[-1]]:
            store.transition("r", target, source=states[-1]).result()
            states.append(target)
    right = 1 <= at <= len(states) and states[at - 1] is claimed and not claimed.terminal
    store.fork_run("f", RunForked(parent="r", at=at, model="m"), claimed)
    more = store.append("f", Progress(text="on"), urgent=True)
    if right:
        assert more.result() == at + 2
        assert store.run("f").status is claimed is fold(store.records("f")).status
        assert [record.seq for record in store.records("f")] == list(range(1, at + 3))
        store.fork_run("ff", RunForked(parent="f", at=at + 1, model="m"), claimed)
        assert store.append("ff", Progress(text="on"), urgent=True).result() == at + 3
        assert [store.origin("ff", seq) for seq in (at, at + 1, at + 2)] == ["r", "f", "ff"]
    else:
        assert more.exception() is not None
        assert [row.id for row in store.runs()] == ["r"]
    store.close()
