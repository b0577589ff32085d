"""What is changed behind the log's back is found, and the first event that is wrong is named."""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    ModelAnswered,
    Progress,
    Record,
    RunForked,
    RunStarted,
    StateTransition,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.seals import hash_chain
from kestrel_lab.eventlog.seals.hash_chain import START, Damage, chain_hash
from kestrel_lab.eventlog.store import SessionStore

FLIPS = 500
RUNS = {"r": 24, "f": 16, "old": 3}
"""The runs of the log, and how many events each is made of."""


def written(path: Path) -> None:
    """A log with a run of 24 events and a snapshot, a fork that shares 14 of them, and another run; all in
    one file.
    """
    store = SessionStore(path)
    store.create_run("r", RunStarted(goal="count", workspace="/w", model="m"), at=1.5)
    store.append("r", StateTransition(source="PLANNING", target="EXECUTING"), at=2.0)
    asked = ApprovalAsked(call="c", step="s", tool="t", args={"x": 1}, danger="HIGH", key="k", question="q")
    store.append("r", asked, at=3.0).result()
    store.decide("r", ApprovalGiven(call="c", granted=True, by="ann", how="click", question="q"))
    for number in range(20):
        store.append(
            "r",
            ModelAnswered(call=f"m{number}", step="s", model="m", text=f"turn {number} " + "x" * 150),
            at=4.0 + number,
        )
    store.flush()
    store.checkpoint("r", "cycles")
    store.fork_run("f", RunForked(parent="r", at=14, model="m"), RunStatus.EXECUTING)
    store.append("f", Progress(text="on"))
    store.create_run("old", RunStarted(goal="g", workspace="/w", model="m"))
    store.append("old", Progress(text="a"))
    store.append("old", Progress(text="b")).result()
    store.close()
    raw = apsw.Connection(str(path))
    raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    raw.close()


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, dict[str, list[Record]]]:
    """The file, and what is in it."""
    path = tmp_path_factory.mktemp("sound") / "k.db"
    written(path)
    store = SessionStore(path)
    records = {run_id: store.records(run_id) for run_id in RUNS}
    assert {run_id: len(found) for run_id, found in records.items()} == RUNS
    assert [store.damage(run_id) for run_id in RUNS] == [None] * 3
    store.close()
    return path.read_bytes(), records


def edited(path: Path, content: bytes, *statements: str) -> SessionStore:
    """The log with `content` after somebody took the rules away and changed it."""
    path.write_bytes(content)
    raw = apsw.Connection(str(path))
    for trigger in ("events_update", "events_delete", "runs_last_seq"):
        raw.execute(f"DROP TRIGGER {trigger}")
    for statement in statements:
        raw.execute(statement)
    raw.close()
    return SessionStore(path)


def seen(store: SessionStore, run_id: str, records: list[Record]) -> str:
    """`noticed`, `the same`, or `changed` when a run is told to be what was written and is not."""
    try:
        store.run(run_id)
        found = store.damage(run_id)
        if found is None:
            return "the same" if store.records(run_id) == records else "changed"
        return (
            "noticed" if store.records(run_id, until=found.seq - 1) == records[: found.seq - 1] else "changed"
        )
    except (StoreError, UsageError):
        return "noticed"


def flipped(
    path: Path,
    sound: tuple[bytes, dict[str, list[Record]]],
    look: Callable[[SessionStore, str, list[Record]], str],
) -> list[str]:
    """What `look` says of the runs, one after the other, of logs with any one bit turned over, each second
    where events are.
    """
    content, records = sound
    dice, verdicts = random.Random(11), []  # reproducible, not secret
    of_events = [
        at
        for at, byte in enumerate(content)
        if byte and b"turn " in content[at - at % 4096 : at - at % 4096 + 4096]
    ]
    for number in range(FLIPS):
        place = dice.choice(of_events) if number % 2 else dice.randrange(len(content))
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]
        )
        try:
            store = SessionStore(path)
        except StoreError:
            verdicts.append("noticed")
            continue
        verdicts += [look(store, run_id, expected) for run_id, expected in records.items()]
        store.close()
        for left in path.parent.glob("k.db-*"):
            left.unlink()
    return verdicts


def test_no_flipped_bit_changes_an_event_unnoticed(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """Of hundreds of logs with a bit turned over each run is as it was, or its damage is named, or the log is
    refused.
    """
    verdicts = flipped(tmp_path / "k.db", sound, seen)
    assert "changed" not in verdicts
    assert verdicts.count("noticed") > 100


def test_a_number_with_a_bit_turned_over_gives_no_event_twice(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """An event whose number became that of an earlier one is noticed, and what is before the damage is read
    as it was written.
    """
    content, records = sound
    place = content.index(b"r\x0a" + records["r"][9].eid.encode()) + 1
    for bit in range(8):
        path = tmp_path / f"{bit}.db"
        path.write_bytes(content[:place] + bytes([content[place] ^ 1 << bit]) + content[place + 1 :])
        store = SessionStore(path)
        assert [seen(store, run_id, records[run_id]) for run_id in "rf"] == ["noticed"] * 2
        store.close()


def test_a_fork_whose_row_names_a_later_place_has_lost_its_own_event(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """An event of the parent in the place of the fork's first is found, though the parent's chain is
    whole.
    """
    edited(tmp_path / "k.db", sound[0]).close()
    raw = apsw.Connection(str(tmp_path / "k.db"))
    for (name,) in raw.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'runs'"
    ).fetchall():
        raw.execute(f"DROP TRIGGER {name}")
    raw.execute("UPDATE runs SET forked_at = 15 WHERE id = 'f'")
    raw.close()
    store = SessionStore(tmp_path / "k.db")
    found = store.damage("f")
    assert found is not None
    assert (found.run_id, found.seq, store.damage("r")) == ("f", 15, None)
    assert store.records("f", until=14) == sound[1]["f"][:14]
    store.close()


def test_without_the_chain_flipped_bits_pass(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """The mutant: a reader that takes what it can read for what was written is told wrong things by the same
    logs.
    """

    def careless(store: SessionStore, run_id: str, records: list[Record]) -> str:
        try:
            return "the same" if store.records(run_id) == records else "changed"
        except StoreError:
            return "noticed"

    assert flipped(tmp_path / "k.db", sound, careless).count("changed") > 50


CHANGED = "it is not what was written, or does not follow the one before"
EDITS: dict[str, tuple[str, Damage]] = {
    "text": (
        "UPDATE events SET body = replace(body, 'turn 3', 'turn 4') WHERE run_id = 'r' AND seq = 8",
        Damage(run_id="r", seq=8, what=CHANGED),
    ),
    "time": (
        "UPDATE events SET at = at + 1 WHERE run_id = 'r' AND seq = 2",
        Damage(run_id="r", seq=2, what=CHANGED),
    ),
    "decision": (
        "UPDATE events SET body = replace(body, 'true', 'false') WHERE ref = 'q'",
        Damage(run_id="r", seq=4, what=CHANGED),
    ),
    "epoch": (
        "UPDATE events SET epoch = NULL WHERE run_id = 'r' AND seq = 9",
        Damage(run_id="r", seq=9, what=CHANGED),
    ),
    "question": (
        "UPDATE events SET ref = NULL WHERE run_id = 'r' AND seq = 3",
        Damage(run_id="r", seq=3, what=CHANGED),
    ),
    "blob": (
        "UPDATE events SET type = CAST(type AS BLOB) WHERE run_id = 'r' AND seq = 9",
        Damage(run_id="r", seq=9, what="it is not what was written"),
    ),
    "no text": (
        "UPDATE events SET eid = CAST(x'ff' AS TEXT) WHERE run_id = 'r' AND seq = 9",
        Damage(run_id="r", seq=9, what=CHANGED),
    ),
    "deleted": (
        "DELETE FROM events WHERE run_id = 'r' AND seq = 12",
        Damage(run_id="r", seq=12, what="it is missing"),
    ),
    "first": (
        "DELETE FROM events WHERE run_id = 'r' AND seq = 1",
        Damage(run_id="r", seq=1, what="it is missing"),
    ),
    "closed up": (
        "DELETE FROM events WHERE run_id = 'r' AND seq = 12; UPDATE events SET seq = seq - 1 WHERE "
        "run_id = 'r' AND seq > 12",
        Damage(run_id="r", seq=12, what=CHANGED),
    ),
    "swapped": (
        "UPDATE events SET seq = 99 WHERE run_id = 'r' AND seq = 9; UPDATE events SET seq = 9 WHERE "
        "run_id = 'r' AND seq = 10;"
        "UPDATE events SET seq = 10 WHERE run_id = 'r' AND seq = 99",
        Damage(run_id="r", seq=9, what=CHANGED),
    ),
    "copied": (
        "UPDATE events SET (body, hash) = (SELECT body, hash FROM events WHERE run_id = 'r' AND seq = "
        "9) WHERE run_id = 'r' AND seq = 10",
        Damage(run_id="r", seq=10, what=CHANGED),
    ),
    "hash gone": (
        "UPDATE events SET hash = NULL WHERE run_id = 'r' AND seq = 9",
        Damage(run_id="r", seq=9, what="its hash is gone"),
    ),
    "hashes gone": (
        "UPDATE events SET hash = NULL WHERE run_id = 'r' AND seq < 9",
        Damage(run_id="r", seq=9, what=CHANGED),
    ),
    "tail": (
        "DELETE FROM events WHERE run_id = 'r' AND seq > 20",
        Damage(run_id="r", seq=21, what="it is missing"),
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_is_found_and_named(
    name: str, sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """Each change of what is written names the first event that is wrong; what is before it and other runs
    can be read as ever.
    """
    statement, damage = EDITS[name]
    store = edited(tmp_path / "k.db", sound[0], statement)
    assert store.damage("r") == damage
    assert store.damage("old") is None
    assert store.damage("f") == (damage if damage.seq <= 14 else None)
    assert store.records("r", until=damage.seq - 1) == sound[1]["r"][: damage.seq - 1]
    store.close()


def test_a_snapshot_stands_for_no_event(sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path) -> None:
    """An event before the newest snapshot is looked at too.

    `runtime/resume/test_damaged.py` has the mutant that trusts the snapshot.
    """
    store = edited(tmp_path / "k.db", sound[0], EDITS["text"][0])
    assert [one.seq for one in store.checkpoints("r")] == [24]
    assert store.damage("r") == EDITS["text"][1]
    store.close()


def test_what_cannot_be_found_needs_the_hash_of_the_last_event(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """Events taken from the end together with their count are missed by nobody but who kept the hash; so is a
    chain written anew.
    """
    store = edited(tmp_path / "a.db", sound[0])
    head = store.head("r")
    assert len(head) == 64
    store.close()
    cut = edited(
        tmp_path / "b.db",
        sound[0],
        "DELETE FROM events WHERE run_id = 'r' AND seq > 20",
        "UPDATE runs SET last_seq = 20 WHERE id = 'r'",
    )
    assert (cut.damage("r"), cut.head("r") == head) == (None, False)
    cut.close()
    anew = edited(tmp_path / "c.db", sound[0], EDITS["text"][0])
    before, columns = START, "run_id, seq, eid, at, type, ref, body, epoch"
    raw = apsw.Connection(str(anew.path))
    for row in raw.execute(f"SELECT {columns} FROM events WHERE run_id = 'r' ORDER BY seq").fetchall():
        before = chain_hash(before, *row)
        raw.execute("UPDATE events SET hash = ? WHERE run_id = 'r' AND seq = ?", (before, row[1]))
    raw.close()
    assert (anew.damage("r"), anew.head("r") == head) == (None, False)
    anew.close()


def test_events_of_an_older_version_are_followed_by_a_chain(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """A run without hashes is taken as it is, and goes on with them; from there on changes are found."""
    store = edited(tmp_path / "k.db", sound[0], "UPDATE events SET hash = NULL WHERE run_id = 'old'")
    assert (store.damage("old"), store.head("old")) == (None, "")
    assert store.claim(store.run("old"))
    assert [store.append("old", Progress(text=text), urgent=True).result() for text in "cd"] == [4, 5]
    assert (store.damage("old"), len(store.head("old"))) == (None, 64)
    store.fork_run("young", RunForked(parent="old", at=2, model="m"), RunStatus.PLANNING)
    store.flush()
    assert store.damage("young") is None
    store.close()
    raw = apsw.Connection(str(tmp_path / "k.db"))
    raw.execute("UPDATE events SET hash = NULL WHERE run_id = 'old' AND seq = 5")
    store = SessionStore(tmp_path / "k.db")
    assert store.damage("old") == Damage(run_id="old", seq=5, what="its hash is gone")
    store.close()
    raw.close()


parts = st.tuples(
    st.text(max_size=4),
    st.integers(1, 99),
    st.text(max_size=4),
    st.floats(allow_nan=False),
    st.text(max_size=4),
    st.none() | st.text(max_size=4),
    st.text(max_size=4),
    st.none() | st.integers(0, 9),
)


@settings(max_examples=200)
@given(a=parts, b=parts, before=st.binary(max_size=3), other=st.binary(max_size=3))
def test_other_columns_have_another_hash(a: Any, b: Any, before: bytes, other: bytes) -> None:
    """The hash is of where each column ends as well; one that is empty is not one that is absent."""
    assert (chain_hash(before, *a) == chain_hash(other, *b)) is ((before, a) == (other, b))


def test_two_processes_write_one_chain(tmp_path: Path) -> None:
    """Decisions of another connection come between the events of a session and belong to the same chain."""
    mine, other = SessionStore(tmp_path / "k.db"), SessionStore(tmp_path / "k.db")
    mine.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    for number in range(20):
        asked = ApprovalAsked(
            call=str(number), step="s", tool="t", args={}, danger="HIGH", key="k", question=f"q{number}"
        )
        mine.append("r", asked).result()
        mine.append("r", Progress(text="meanwhile"))
        other.decide(
            "r", ApprovalGiven(call=str(number), granted=True, by="ann", how="click", question=f"q{number}")
        )
    mine.flush()
    assert (mine.damage("r"), len(mine.records("r"))) == (None, 61)
    mine.close()
    other.close()


ROW_COLUMNS = (
    "goal",
    "workspace",
    "model",
    "model_kind",
    "config",
    "scenario",
    "began",
    "status",
    "created_at",
    "last_seq",
    "epoch",
)
ROW_CHANGES = {
    "another": "CASE WHEN typeof({c}) = 'text' THEN {c} || 'x' ELSE {c} - 1 END",
    "blob": "CAST({c} AS BLOB)",
    "trailing": "CAST({c} || x'ff' AS TEXT)",
    "NUL": "CAST({c} AS TEXT) || char(0) || 'x'",
}


@pytest.mark.parametrize("change", ROW_CHANGES)
@pytest.mark.parametrize("column", ROW_COLUMNS)
@pytest.mark.parametrize("run_id", ["r", "f"])
def test_a_changed_row_is_found(
    run_id: str, column: str, change: str, sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """Each column of a run's row that says what its events say is held against them; its events can still be
    read.
    """
    path = tmp_path / "k.db"
    path.write_bytes(sound[0])
    raw = apsw.Connection(str(path))
    for (trigger,) in raw.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        raw.execute(f"DROP TRIGGER {trigger}")
    value = f"SELECT typeof({column}), {column} FROM runs WHERE id = '{run_id}'"
    before = raw.execute(value).fetchall()
    raw.execute(f"UPDATE runs SET {column} = {ROW_CHANGES[change].format(c=column)} WHERE id = '{run_id}'")
    same = (
        raw.execute(f"{value} AND hex({column}) NOT LIKE '%FF'").fetchall() == before
    )  # SQLite makes a number of it again
    raw.close()
    store = SessionStore(path)
    assert seen(store, run_id, sound[1][run_id]) == ("the same" if same else "noticed")
    assert same <= (change == "NUL")
    assert seen(store, "old", sound[1]["old"]) == "the same"
    assert [record for record in store.records("r") if run_id == "r"] == (
        sound[1]["r"] if run_id == "r" else []
    )
    store.close()


@pytest.mark.parametrize(
    ("name", "value"), [("status", "COMPLETE"), ("goal", "another"), ("workspace", "/etc")]
)
def test_a_row_that_says_something_else_is_named(
    name: str, value: str, sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """What a row says that its events do not is damage of the row, behind all events; the mutant that reads
    events alone sees none.
    """
    store = edited(
        tmp_path / "k.db",
        sound[0],
        "DROP TRIGGER runs_identity; DROP TRIGGER runs_status",
        f"UPDATE runs SET {name} = '{value}' WHERE id = 'r'",
    )
    found = store.damage("r")
    assert found is not None
    assert (found.run_id, found.seq, found.row) == ("r", 25, True)
    assert store.records("r") == sound[1]["r"]
    store.close()


def test_a_row_that_cannot_be_read_is_left_out_of_the_list(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """One damaged row keeps nobody from the other runs; it is named."""
    store = edited(
        tmp_path / "k.db",
        sound[0],
        "DROP TRIGGER runs_status",
        "UPDATE runs SET status = 'GONE' WHERE id = 'r'",
    )
    with pytest.warns(UserWarning, match="the row of run 'r' in the log is damaged"):
        assert {row.id for row in store.runs()} == {"f", "old"}
    with pytest.raises(StoreError, match="the row of run 'r'"):
        store.run("r")
    store.close()


def test_the_hash_of_an_event_is_that_of_its_columns_and_their_lengths() -> None:
    """As logs have it since they have hashes: whoever changes this finds every log of before damaged."""
    told = b"6:before1:r2:123:eid3:1.54:type-2:{}1:4"
    assert chain_hash(b"before", "r", 12, "eid", 1.5, "type", None, "{}", 4) == hashlib.sha256(told).digest()
    told = b"0:1:r1:11:e3:0.01:t3:ref2:\xc3\xa9-"
    assert chain_hash(START, "r", 1, "e", -0.0, "t", "ref", "é", None) == hashlib.sha256(told).digest()


def test_a_log_is_checked_page_by_page(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many events are read at once, and whether the last page is full: the sound one is sound, and
    what is wrong is found.
    """
    store = edited(
        tmp_path / "k.db", sound[0], "UPDATE events SET at = at + 1 WHERE run_id = 'r' AND seq = 24"
    )
    for size in (1, 3, 8, 24, 500):
        monkeypatch.setattr(hash_chain, "PAGE", size)
        assert (store.damage("f"), store.damage("old")) == (None, None)
        damage = store.damage("r")
        assert damage is not None and (damage.seq, damage.row) == (24, False)
    store.close()


def test_a_count_that_is_no_number_is_damage(
    sound: tuple[bytes, dict[str, list[Record]]], tmp_path: Path
) -> None:
    """Of the row, behind all events; without the number of its last event nobody knows that it has them
    all.
    """
    row = "its row is not what was written"
    for column, events, whole in (("epoch", row, True), ("last_seq", "it is missing", False)):
        store = edited(
            tmp_path / f"{column}.db",
            sound[0],
            "DROP TRIGGER runs_claim",
            f"UPDATE runs SET {column} = 'many' WHERE id = 'r'",
        )
        assert store.damage("r") == Damage(run_id="r", seq=25, what=events, row=whole)
        assert store.damage("f") == Damage(run_id="r", seq=17, what=row, row=True)
        store.close()


@given(
    before=st.one_of(st.just(START), st.binary(min_size=32, max_size=32)),
    texts=st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]))] * 4),
    seq=st.integers(1, 2**62),
    at=st.one_of(st.just(-0.0), st.integers(0, 2**40), st.floats(allow_nan=False)),
    epoch=st.integers(0, 2**31),
)
def test_the_fast_hash_of_a_usual_event_is_that_of_the_general_way(
    before: bytes, texts: tuple[str, str, str, str], seq: int, at: float, epoch: int
) -> None:
    """What the writer hashes as text in one format is what a reader hashes of the bytes in the file."""
    run_id, eid, kind, body = texts
    told = (eid.encode(), at, kind.encode(), None, body.encode(), epoch)
    assert chain_hash(before, run_id, seq, eid, at, kind, None, body, epoch) == chain_hash(
        before, run_id, seq, *told
    )
