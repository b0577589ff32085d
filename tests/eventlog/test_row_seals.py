"""Results that are changed or lost behind the log's back are noticed, and what older versions wrote is not
accused.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import apsw
import pytest

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import RunStarted, TrialLabelled
from kestrel_lab.evals.execution.batch_log import finish_eval_run, stored_batches, write_fact
from kestrel_lab.evals.labels.stored_labels import record_label, stored_labels
from kestrel_lab.evals.stored_trials import (
    EvalRow,
    each_stored_trial,
    later_scores,
    store_scores,
    store_trial,
    stored_scores,
    stored_trials,
    trials_by_ids,
    trials_of_run,
)
from kestrel_lab.eventlog.removal import plan_removal, remove_from_log
from kestrel_lab.eventlog.seals.row_seals import (
    SEALED,
    checked_rows,
    count_unsealed,
    head_problems,
    register_seals,
)
from kestrel_lab.eventlog.store import SessionStore

TRIAL = EvalRow(
    id="t0",
    scenario="s",
    result={"run": "r0", "outcome": "fail", "scores": []},
    metrics={"cost": 0.5},
    git_sha="abc",
    created_at=3,
    suite="demo",
    config="small",
    epoch=1,
    key="k",
)
PLAN = {"suite": "demo", "eval_run": "e", "model": "m", "api_base": None, "keys": {}}
READERS: dict[str, Callable[[SessionStore], object]] = {
    "by suite": lambda store: stored_trials(store, suite="demo"),
    "by commit": lambda store: stored_trials(store, suite="demo", git_sha="abc"),
    "all": lambda store: stored_trials(store),
    "each": lambda store: list(each_stored_trial(store, suite="demo", latest=True)),
    "by id": lambda store: trials_by_ids(store, ["t0", "t1"]),
    "by run": lambda store: trials_of_run(store, "r0"),
    "scores by suite": lambda store: stored_scores(store, suite="demo"),
    "scores by id": lambda store: later_scores(store, ["t0"]),
    "batches": stored_batches,
    "labels": lambda store: stored_labels(store, "demo"),
}
"""Every door by which results are read."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """A log with three trials of a suite, one judged again and labelled, and a batch."""
    store = SessionStore(tmp_path / "kestrel.db")
    for number in range(3):
        store.create_run(f"r{number}", RunStarted(goal="g", workspace="/w", model="m"))
        result = {**TRIAL.result, "run": f"r{number}"}
        store_trial(store, replace(TRIAL, id=f"t{number}", result=result)).result()
    store_scores(store, TRIAL, "t0", "h").result()
    label = TrialLabelled(suite="demo", value=1, who="ann", rubric="It is right.", rubric_hash="")
    record_label(store, "r0", label)
    record_label(store, "r0", replace(label, who="bob"))
    write_fact(store, "b", "planned", PLAN).result()
    write_fact(store, "b", "answered", {"key": "x"}).result()
    yield store
    store.close()


def by_hand(store: SessionStore, *statements: str) -> None:
    """Change rows as another program would that takes the rules away and puts them back."""
    raw = apsw.Connection(str(store.path))
    register_seals(raw)
    rules = raw.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    for name, _ in rules:
        raw.execute(f"DROP TRIGGER {name}")
    for statement in statements:
        raw.execute(statement)
    for _, sql in rules:
        raw.execute(sql)
    raw.close()


def noticed(store: SessionStore) -> set[str]:
    """The readers that refuse what is there."""
    refusing = set()
    for name, read in READERS.items():
        try:
            read(store)
        except StoreError:
            refusing.add(name)
    return refusing


def problems(store: SessionStore) -> list[str]:
    """What `kestrel doctor` says of results."""
    lines: list[str] = []
    for table in SEALED:
        lines += [*head_problems(store.query, table), *filter(None, checked_rows(store.query, table))]
    return lines


def test_what_was_written_is_read_by_every_door(store: SessionStore) -> None:
    """Without damage each door reads, and nothing is said of any row."""
    assert noticed(store) == set()
    assert problems(store) == []
    assert count_unsealed(store.query) == 0


@pytest.mark.parametrize(
    ("table", "column"), [(table, column) for table, sealed in SEALED.items() for column in sealed.columns]
)
def test_any_changed_column_is_noticed(store: SessionStore, table: str, column: str) -> None:
    """Whatever column of a result is changed by hand, reading it refuses and doctor names it."""
    value = f"{column} || 'x'"
    if column in {"result_json", "metrics_json", "body"}:
        value = f"json_set({column}, '$.x', 1)"
    if column in {"created_at", "at", "epoch"}:
        value = f"{column} + 1"
    by_hand(store, f"UPDATE {table} SET {column} = {value}")
    assert problems(store)
    doors = {"eval_runs": "all", "eval_scores": "scores by id", "batch_events": "batches"}
    if column not in {"trial", "type"}:
        assert doors[table] in noticed(store)


def test_a_failure_that_is_turned_into_a_pass_is_refused_by_every_door(store: SessionStore) -> None:
    """Rows whose outcome is set to `pass` by hand are read by no door, and doctor counts all of them."""
    by_hand(store, "UPDATE eval_runs SET result_json = json_set(result_json, '$.outcome', 'pass')")
    assert noticed(store) == {"by suite", "by commit", "all", "each", "by id", "by run", "scores by suite"}
    assert len(problems(store)) == 3


@pytest.mark.parametrize(("lost", "left"), [("id = 't0'", 2), ("id = 't2'", 2), ("1", 0)])
def test_lost_trials_are_missed(store: SessionStore, lost: str, left: int) -> None:
    """One trial that is gone, the last, or all of them are missed by who reads the suite."""
    by_hand(store, f"DELETE FROM eval_runs WHERE {lost}")
    assert {"by suite", "by commit", "all", "each"} <= noticed(store)
    expected = f"demo at commit abc, configuration small, has {left} of 3 trials that were written"
    assert problems(store)[0] == expected


def test_lost_scores_and_facts_are_missed(store: SessionStore) -> None:
    """A later score and a fact of a batch that are gone are missed."""
    by_hand(store, "DELETE FROM eval_scores", "DELETE FROM batch_events WHERE type = 'answered'")
    assert noticed(store) == {"scores by suite", "batches"}


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE heads SET sealed = 2, hash = zeroblob(32)",
        "DELETE FROM heads",
        "UPDATE eval_runs SET hash = NULL",
        "UPDATE eval_runs SET hash = 'x'",
        "UPDATE eval_runs SET hash = zeroblob(32)",
    ],
)
def test_a_damaged_seal_is_noticed(store: SessionStore, statement: str) -> None:
    """A head or a hash that is gone or wrong is noticed like a row."""
    by_hand(store, statement)
    assert "by suite" in noticed(store)
    assert problems(store)


def test_a_row_in_place_of_another_is_noticed(store: SessionStore, tmp_path: Path) -> None:
    """A whole row of another log in place of one that is gone has a right hash, and the head misses the
    other.
    """
    other = SessionStore(tmp_path / "other" / "kestrel.db")
    store_trial(other, replace(TRIAL, id="stranger")).result()
    other.close()
    by_hand(
        store,
        f"ATTACH '{other.path}' AS other",
        "DELETE FROM eval_runs WHERE id = 't2'",
        "INSERT INTO eval_runs SELECT * FROM other.eval_runs",
    )
    assert "other trials than those that were written" in problems(store)[0]


def test_labels_are_noticed_by_their_chain(store: SessionStore) -> None:
    """A label that is changed, one that is gone between others and the last that is gone are noticed where
    labels are read.
    """
    by_hand(store, "UPDATE events SET body = json_set(body, '$.value', 0) WHERE type = 'trial_labelled'")
    assert noticed(store) == {"labels"}


@pytest.mark.parametrize("seq", [2, 3])
def test_a_lost_label_is_missed(store: SessionStore, seq: int) -> None:
    """A label that is gone is missed, the first as well as the last."""
    by_hand(store, f"DELETE FROM events WHERE run_id = 'r0' AND seq = {seq}")
    assert noticed(store) == {"labels"}


def test_a_removal_writes_a_new_head(store: SessionStore) -> None:
    """What is removed as it should be is missed by nobody: the head counts it as gone."""
    assert remove_from_log(store, plan_removal(store, ["r0"]))
    finish_eval_run(store, "e")
    assert noticed(store) == set()
    assert problems(store) == []
    heads = store.query("SELECT source, sealed, removed FROM heads ORDER BY source, name")
    assert heads == [
        ("batch_events", 1, 1),
        ("batch_events", 1, 0),
        ("eval_runs", 2, 1),
        ("eval_scores", 0, 1),
    ]


def test_what_is_left_of_a_damaged_evaluation_can_be_removed(store: SessionStore) -> None:
    """Where a trial is gone, the evaluation is usable again once the others are removed, too."""
    by_hand(store, "DELETE FROM eval_runs WHERE id = 't1'")
    assert remove_from_log(store, plan_removal(store, ["r0", "r1", "r2"]))
    assert problems(store) == []
    store_trial(store, replace(TRIAL, id="new", result={**TRIAL.result, "run": "r9"})).result()
    assert [row.id for row in stored_trials(store, suite="demo")] == ["new"]


def test_rows_of_an_earlier_version_are_not_sealed_and_never_accused(store: SessionStore) -> None:
    """Rows without a hash that no head counts are read, whatever was done to them, and are counted as not
    sealed.
    """
    by_hand(
        store,
        *(f"UPDATE {table} SET hash = NULL" for table in SEALED),
        "DELETE FROM heads",
        "UPDATE eval_runs SET epoch = 9",
    )
    assert noticed(store) == set()
    assert problems(store) == []
    assert count_unsealed(store.query) == 6
    store_trial(store, replace(TRIAL, id="new")).result()
    assert len(stored_trials(store, suite="demo")) == 4
