"""Opening a log: what is not a log of ours is refused, and a full disk is told apart."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import apsw
import pytest
from waits import PATIENCE_S, until

from kestrel_lab.core.errors import AlreadyDecided, Fenced, IllegalTransition, StorageFull, StoreError
from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog import connection as connection_module
from kestrel_lab.eventlog.connection import (
    connect_log,
    may_damage,
    process_name,
    rewrite_database,
    store_error,
)
from kestrel_lab.eventlog.schema import MIGRATIONS
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.eventlog.writer import Append, Execute, Writer


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    """A text file in the log's place is named, with what to do, and left as it is."""
    path = tmp_path / "kestrel.db"
    path.write_text("dear diary, " * 500)
    with pytest.raises(StoreError, match=r"kestrel\.db cannot be used as the log.*move it away"):
        connect_log(path)
    assert path.read_text() == "dear diary, " * 500


def test_another_programs_database_is_refused(tmp_path: Path) -> None:
    """A database with tables of somebody else's gets none of ours."""
    path = tmp_path / "kestrel.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE songs(title)")
    with pytest.raises(StoreError, match="another program"):
        connect_log(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("songs",)]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    """A log of a later version is not touched; the message says to upgrade."""
    path = tmp_path / "kestrel.db"
    connect_log(path).close()
    raw = apsw.Connection(str(path))
    raw.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    raw.close()
    with pytest.raises(StoreError, match=r"newer kestrel_lab.*upgrade"):
        connect_log(path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    """A home whose parent is a file, or a folder in the log's place, is a `StoreError` that names the way
    out, not a bare OS error.
    """
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        StoreError, match=r"choose another home folder, with KESTREL_HOME=FOLDER or Lab\(home=FOLDER\)"
    ):
        connect_log(tmp_path / "file" / "home" / "kestrel.db")
    (tmp_path / "kestrel.db").mkdir()
    with pytest.raises(StoreError, match="choose another home folder"):
        connect_log(tmp_path / "kestrel.db")


def test_opening_twice_migrates_once(tmp_path: Path) -> None:
    """A second connection finds the schema as the first one made it, with the durable settings on."""
    first, second = connect_log(tmp_path / "k.db"), connect_log(tmp_path / "k.db")
    assert (
        first.execute("SELECT count(*) FROM runs").fetchall()
        == second.execute("SELECT count(*) FROM runs").fetchall()
        == [(0,)]
    )
    second.authorizer = None
    assert (second.pragma("user_version"), second.pragma("journal_mode"), second.pragma("synchronous")) == (
        len(MIGRATIONS),
        "wal",
        2,
    )


_FILL = """
import json, resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
from kestrel_lab.core.errors import StorageFull
from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog.store import SessionStore
store = SessionStore(sys.argv[1])
store.create_run("r", RunStarted(goal="fill", workspace="/w", model="m"))
store.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, resource.RLIM_INFINITY))
acknowledged, refused = [], []
for number in range(3000):
    done = store.append("r", Progress(text=f"{number} " + "x" * 1000), urgent=True)
    try:
        acknowledged.append([number, done.result()])
    except StorageFull as error:
        refused.append(str(error))
        if len(refused) == 3:
            break
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
try:
    store.append("r", Progress(text="behind what is missing"), urgent=True).result()
except StorageFull as error:
    refused.append(str(error))
assert store.claim(store.run("r"))
after = store.append("r", Progress(text="room again"), urgent=True).result()
store.close()
print(json.dumps({"acknowledged": acknowledged, "refused": refused, "after": after}))
"""


def test_no_room_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """Where files may grow no further, appends raise `StorageFull`, what was acknowledged stays, and with
    room it goes on.

    Not at once: what follows an event that is missing is refused too, until the run is claimed anew.
    """
    path = tmp_path / "k.db"
    done = subprocess.run(
        [sys.executable, "-c", _FILL, str(path)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)

    assert len(told["refused"]) == 4
    assert "nothing acknowledged was lost" in told["refused"][0]
    assert len(told["acknowledged"]) > 20
    store = SessionStore(path)
    stored = [
        [int(r.event.text.split()[0]), r.seq]
        for r in store.records("r")
        if isinstance(r.event, Progress) and r.event.text[0].isdigit()
    ]
    assert stored == told["acknowledged"]
    assert [record.seq for record in store.records("r")] == list(range(1, told["after"] + 1))
    store.close()


class ForgettingWriter(Writer):
    """A mutant: writes what follows an event that could not be kept, if there is room for that one."""

    def _follows_missing(self, job: Append | Execute) -> bool:
        return False


def fill(path: Path, kind: type[Writer]) -> tuple[list[Append], Append, SessionStore]:
    """Appends to a database with no page left, the second of them large; then one that is small."""
    store = SessionStore(path)
    store.create_run("r", RunStarted(goal="fill", workspace="/w", model="m"))
    store.flush()

    def connect_full() -> apsw.Connection:
        connection = connect_log(path)
        connection.authorizer = None
        connection.execute(f"PRAGMA max_page_count = {connection.pragma('page_count')}")
        return connection

    writer = kind(connect_full)
    bodies = [json.dumps({"text": "x" * (100_000 if number == 1 else 1)}) for number in range(4)]
    *jobs, last = [
        Append("r", f"e{number}", 0.0, "progress", None, body, 0, Future())
        for number, body in enumerate(bodies)
    ]
    for job in jobs:
        writer.put(job, urgent=False)
    wait([job.done for job in jobs])
    writer.put(last, urgent=True)
    writer.close()
    return jobs, last, store


def test_a_full_database_refuses_the_whole_batch_and_what_follows(tmp_path: Path) -> None:
    """When SQLite has no page left every append of the batch raises `StorageFull`, and so does what follows,
    though it would fit.
    """
    jobs, last, store = fill(tmp_path / "k.db", Writer)
    assert [type(job.done.exception()) for job in (*jobs, last)] == [StorageFull] * 4
    assert [record.seq for record in store.records("r")] == [1]
    assert store.append("r", Progress(text="room again"), urgent=True).result() == 2
    store.close()


def test_an_event_behind_a_missing_one_would_be_seen(tmp_path: Path) -> None:
    """The test above can fail: a writer that takes each append by itself keeps the last one without those
    before it.
    """
    jobs, last, store = fill(tmp_path / "k.db", ForgettingWriter)
    assert [type(job.done.exception()) for job in jobs] == [StorageFull] * 3
    assert last.done.result() == 2
    store.close()


def test_a_process_is_named_by_host_and_number() -> None:
    """The name ends with this process's id."""
    assert process_name().endswith(f":{os.getpid()}")


class BusyAtFirst(apsw.Connection):
    """Refuses to clean the first time, without a wait: as SQLite does where two clean at once."""

    refused = 0

    def execute(self, sql: str, *more: Any, **options: Any) -> apsw.Cursor:
        """Run `sql`, unless it is the first cleaning."""
        if sql == "VACUUM" and not type(self).refused:
            type(self).refused += 1
            msg = "database is locked"
            raise apsw.BusyError(msg)
        return super().execute(sql, *more, **options)


def test_a_cleaning_that_is_refused_at_once_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SQLite refuses one of two cleanings without the wait it was told of: that one waits here, and then
    cleans.
    """
    store = SessionStore(tmp_path / "log.db")
    for sql in ("INSERT INTO notes_forgotten VALUES ('swordfish', 1)", "DELETE FROM notes_forgotten"):
        store.execute(sql, (), "a row").result()
    monkeypatch.setattr(apsw, "Connection", BusyAtFirst)
    rewrite_database(store.path)
    store.close()
    assert BusyAtFirst.refused == 1
    assert not any(b"swordfish" in file.read_bytes() for file in tmp_path.iterdir())


@pytest.mark.parametrize(
    ("sqlite", "damages"),
    [
        ("3.51.3", False),
        ("3.51.2", True),
        ("3.51.0", True),
        ("3.52.0", False),
        ("4.0.0", False),
        ("3.50.7", False),
        ("3.50.8", False),
        ("3.50.6", True),
        ("3.44.6", False),
        ("3.44.5", True),
        ("3.45.9", True),
        ("3.49.9", True),
        ("3.43.9", True),
    ],
)
def test_a_version_that_may_damage_a_log_is_not_used(sqlite: str, damages: bool, tmp_path: Path) -> None:
    """Those before the fix and those that it was not brought back to; the log is not even made."""
    assert may_damage(sqlite) == damages
    if damages:
        with pytest.raises(
            StoreError, match=f"SQLite {sqlite} has a fault that can damage a log.*pip install --upgrade apsw"
        ):
            connect_log(tmp_path / "k.db", sqlite)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("error", "kind", "told"),
    [
        (apsw.FullError("full"), StorageFull, "no room on the disk for the log .*: free some space"),
        (apsw.CantOpenError("no"), StoreError, "nothing can be written in .*: choose another home folder"),
        (apsw.ReadOnlyError("no"), StoreError, "nothing can be written in .*: choose another home folder"),
        (OSError("no"), StoreError, "nothing can be written in .*: choose another home folder"),
        (apsw.CorruptError("bad"), StoreError, "move it away, or choose another home folder"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_what_is_wrong_with_a_place_is_told_apart(
    error: Exception, kind: type[StoreError], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk wants room, a place that cannot be written another one, and a broken file to be out of the
    way.
    """

    def refuse(_: str, **_options: object) -> None:
        raise error

    monkeypatch.setattr(apsw, "Connection", refuse)
    with pytest.raises(StoreError, match=told) as raised:
        connect_log(tmp_path / "k.db")
    assert type(raised.value) is kind


def test_each_refusal_of_the_database_has_its_error() -> None:
    """Whoever waits can tell a full disk, a second answer, a run that was taken and a rule that was broken
    apart.
    """
    unwritten = apsw.IOError("disk I/O error")
    unwritten.extendedresult = apsw.SQLITE_IOERR_WRITE
    unread = apsw.IOError("disk I/O error")
    unread.extendedresult = apsw.SQLITE_IOERR_READ
    for error, kind, told in (
        (
            apsw.FullError("full"),
            StorageFull,
            "no room on the disk for it; free some space, then resume: nothing acknowledged was lost",
        ),
        (
            unwritten,
            StorageFull,
            "no room on the disk for it; free some space, then resume: nothing acknowledged was lost",
        ),
        (unread, StoreError, "the log refused it: disk I/O error"),
        (
            apsw.ConstraintError("E_DECIDED"),
            AlreadyDecided,
            "this question was answered before; the first answer stands",
        ),
        (
            apsw.ConstraintError("E_FENCED"),
            Fenced,
            "it was not written: the run belongs to another session now, and nothing more of this one "
            "will be",
        ),
        (apsw.ConstraintError("E_NOT_ASKED"), StoreError, "this question was never asked: nothing to decide"),
        (apsw.ConstraintError("E_RUN_TERMINAL"), IllegalTransition, "the log refused it: E_RUN_TERMINAL"),
        (
            apsw.ConstraintError("E_ILLEGAL_TRANSITION: x"),
            IllegalTransition,
            "the log refused it: E_ILLEGAL_TRANSITION: x",
        ),
        (
            apsw.BusyError("locked"),
            StoreError,
            "the log refused it: another process is in the middle of writing to it; if that one is "
            "stopped, end it",
        ),
        (apsw.ConstraintError("E_SEQ_GAP"), StoreError, "the log refused it: E_SEQ_GAP"),
    ):
        found = store_error(error, "it")
        assert (type(found), str(found)) == (kind, told)


def test_several_that_open_a_new_log_at_once_find_it_whole(tmp_path: Path) -> None:
    """Whoever comes second finds the tables that the first one made, and goes on."""
    at_once = threading.Barrier(8)
    problems: list[Exception] = []

    def open_log() -> None:
        at_once.wait()
        try:
            connect_log(tmp_path / "k.db").close()
        except Exception as error:  # shown by the test  # noqa: BLE001
            problems.append(error)

    threads = [threading.Thread(target=open_log) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_reader_may_ask_whether_others_have_written(tmp_path: Path) -> None:
    """Full-text search does so; no other setting can be read or changed, and no table of SQLite itself."""
    connect_log(tmp_path / "k.db").close()
    raw = apsw.Connection(str(tmp_path / "k.db"))
    raw.execute("ANALYZE")
    raw.close()
    connection = connect_log(tmp_path / "k.db")
    assert isinstance(connection.execute("PRAGMA data_version").fetchall()[0][0], int)
    for refused in (
        "PRAGMA user_version",
        "PRAGMA synchronous",
        "DELETE FROM sqlite_stat1",
        "CREATE TABLE x(y)",
    ):
        with pytest.raises(apsw.AuthError):
            connection.execute(refused)
    connection.close()


def test_whoever_waits_for_another_process_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line, before the wait is over; what is written in the end is written once. A short wait has none."""
    monkeypatch.setattr(connection_module, "_SILENT_S", 0.0)
    connect_log(tmp_path / "k.db").close()
    held, waiting = apsw.Connection(str(tmp_path / "k.db")), connect_log(tmp_path / "k.db")
    held.execute("BEGIN IMMEDIATE")
    told: Future[None] = Future()

    def write() -> None:
        waiting.execute("BEGIN IMMEDIATE")
        waiting.execute("COMMIT")
        told.set_result(None)

    thread = threading.Thread(target=write)
    thread.start()
    until(lambda: "waiting for another process that writes to" in caplog.text)
    held.execute("COMMIT")
    told.result(PATIENCE_S)
    thread.join()
    assert caplog.text.count("waiting for another process") == 1
    waiting.close()
    held.close()
