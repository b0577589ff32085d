"""A log that lost what was acknowledged is noticed, by marks beside it and by SQLite's own check."""

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from cut_log_worker import ACKNOWLEDGED, RUNS, main
from forked import forked
from waits import until

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog.connection import check_integrity, connect_log
from kestrel_lab.eventlog.removal import plan_removal, remove_from_log
from kestrel_lab.eventlog.seals.marks import Mark, marks_folder
from kestrel_lab.eventlog.store import SessionStore


def killed_log(folder: Path, *words: str) -> Path:
    """A log whose process was killed, with everything in its write-ahead log; `words` choose a mutant."""
    path = folder / "home" / "kestrel.db"
    told = folder / "told"
    folder.mkdir(exist_ok=True)
    told.touch()
    process = forked(main, str(path), *words, out=told, errors=folder / "errors")
    until(lambda: "done" in told.read_text() or not process.is_alive())
    assert "done" in told.read_text(), (folder / "errors").read_text()
    process.kill()
    process.join()
    return path


def cut_frames(path: Path, frames: int) -> None:
    """Cut the last pages off a write-ahead log."""
    log = Path(f"{path}-wal")
    os.truncate(log, log.stat().st_size - frames * (4_096 + 24))


def copied_log(path: Path, name: str) -> Path:
    """A copy of a whole home."""
    shutil.copytree(path.parent, path.parent.with_name(name))
    return path.parent.with_name(name) / path.name


def test_what_was_killed_and_not_cut_has_lost_nothing(tmp_path: Path) -> None:
    """All marked events are there; a session that goes on takes the mark over."""
    path = killed_log(tmp_path)
    store = SessionStore(path)
    assert (store.lost, len(store.runs())) == ([], RUNS)
    store.create_run("next", RunStarted(goal="g", workspace="/w", model="m"))
    store.close()
    assert [file.name for file in marks_folder(path).iterdir()] == ["0"]
    again = SessionStore(path)
    assert again.lost == []
    again.close()


@pytest.mark.parametrize("frames", [1, 2, 7, 40])
def test_a_log_cut_in_its_write_ahead_log_is_noticed(
    tmp_path: Path, frames: int, caplog: pytest.LogCaptureFixture
) -> None:
    """However little is cut: opening says what is missing, the run counts as damaged, and the mark stays for
    the next session, though this one goes on writing.
    """
    path = killed_log(tmp_path)
    cut_frames(path, frames)
    for _ in range(2):
        caplog.clear()
        store = SessionStore(path)
        (lost,) = store.lost
        assert (lost.run_id, lost.last) == (f"r{RUNS - 1}", ACKNOWLEDGED)
        assert str(lost) in caplog.text and "are missing: the log was cut, or is an older copy" in caplog.text
        if lost.first > 1:
            damage = store.damage(lost.run_id)
            assert damage is not None and damage.seq == lost.first
        assert store.damage("r0") is None
        store.create_run(f"new{len(store.runs())}", RunStarted(goal="g", workspace="/w", model="m"))
        store.close()
    lost.file.unlink()
    store = SessionStore(path)
    assert store.lost == []
    store.close()


def test_without_marks_a_cut_log_is_in_order(tmp_path: Path) -> None:
    """The mutant, which marks nothing."""
    path = killed_log(tmp_path, "unmarked")
    cut_frames(path, 7)
    store = SessionStore(path)
    assert store.lost == []
    assert all(store.damage(row.id) is None for row in store.runs())
    store.close()


def test_a_mark_that_runs_ahead_raises_a_false_alarm(tmp_path: Path) -> None:
    """The mutant, which marks before it commits, reports a loss where a commit failed and nobody was told."""
    assert SessionStore(killed_log(tmp_path / "right", "refused")).lost == []
    assert SessionStore(killed_log(tmp_path / "early", "refused", "early")).lost


def make_empty(path: Path) -> None:
    """Leave nothing of a log but its name."""
    os.truncate(path, 0)
    Path(f"{path}-wal").unlink()


def lose_wal(path: Path) -> None:
    """Lose the write-ahead log, in which everything is."""
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize("damage", [make_empty, lose_wal])
def test_an_empty_log_that_was_not_is_refused(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """It is not made anew: a copy of it may be there. Without the file a new log begins, and says so."""
    path = killed_log(tmp_path)
    kept = copied_log(path, "kept")
    damage(path)
    with pytest.raises(StoreError, match="is empty, and events of runs had been stored in it: put a copy"):
        SessionStore(path)
    shutil.copy(kept, path)
    shutil.copy(f"{kept}-wal", f"{path}-wal")
    store = SessionStore(path)
    assert (store.lost, len(store.runs())) == ([], RUNS)
    store.close()


def test_a_log_that_is_gone_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever removed it gets a new one, which does not miss the old events."""
    path = killed_log(tmp_path)
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink()
    caplog.set_level(logging.WARNING)
    for said in (True, False):
        caplog.clear()
        store = SessionStore(path)
        assert (store.lost, store.runs()) == ([], [])
        assert ("is gone; a new one begins" in caplog.text) == said
        store.close()


def test_an_older_copy_is_noticed(tmp_path: Path) -> None:
    """A log that was put back from before the last events, while the marks stayed."""
    path = tmp_path / "home" / "kestrel.db"
    store = SessionStore(path)
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.close()
    old = path.read_bytes()
    store = SessionStore(path)
    assert store.claim(store.run("r"))
    store.append("r", Progress(text="later"))
    store.close()
    path.write_bytes(old)
    store = SessionStore(path)
    assert [(lost.first, lost.last) for lost in store.lost] == [(2, 2)]
    store.close()


def test_runs_that_were_removed_are_not_missed(tmp_path: Path) -> None:
    """The last run of the log is removed for good: nothing is lost."""
    store = SessionStore(tmp_path / "kestrel.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    assert remove_from_log(store, plan_removal(store, ["r"]))
    store.close()
    again = SessionStore(tmp_path / "kestrel.db")
    assert again.lost == []
    again.close()


def test_sessions_at_a_time_have_a_mark_each(tmp_path: Path) -> None:
    """Two sessions that write at once mark their own events; later ones use the files again."""
    path = tmp_path / "kestrel.db"
    for _ in range(3):
        stores = [SessionStore(path) for _ in range(2)]
        for number, store in enumerate(stores):
            store.create_run(f"{store.session}{number}", RunStarted(goal="g", workspace="/w", model="m"))
            store.flush()
        for store in stores:
            store.close()
    marks = [Mark.from_bytes(file.read_bytes()) for file in sorted(marks_folder(path).iterdir())]
    assert [mark.run_id for mark in marks if mark] == [
        f"{store.session}{n}" for n, store in enumerate(stores)
    ]


@pytest.mark.parametrize("content", [b"", b"\0" * 256, b"r 1 ff 00", b"r one ff 00 11", b"\xff" * 256])
def test_what_is_no_mark_says_nothing(content: bytes, tmp_path: Path) -> None:
    """A mark that a power cut left torn is passed over."""
    marks_folder(tmp_path / "kestrel.db").mkdir()
    (marks_folder(tmp_path / "kestrel.db") / "0").write_bytes(content)
    store = SessionStore(tmp_path / "kestrel.db")
    assert store.lost == []
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.close()
    assert Mark.from_bytes((marks_folder(tmp_path / "kestrel.db") / "0").read_bytes()) is not None


def filled_log(folder: Path) -> Path:
    """A log with questions, which have an index, in order and closed."""
    store = SessionStore(folder / "kestrel.db")
    for number in range(60):
        store.create_run(f"r{number}", RunStarted(goal=f"goal {number}", workspace="/w", model="m"))
    store.close()
    return folder / "kestrel.db"


def index_page(path: Path) -> int:
    """Where the pages of an index of runs begin."""
    connection = apsw.Connection(str(path))
    ((page,),) = connection.execute(
        "SELECT rootpage FROM sqlite_schema WHERE name = 'runs_by_time'"
    ).fetchall()
    connection.close()
    return (int(page) - 1) * 4_096


def damage_index(path: Path) -> None:
    """Change an entry of an index."""
    start = index_page(path)
    content = bytearray(path.read_bytes())
    content[start + 4_096 - 3] ^= 0x01
    path.write_bytes(content)


def drop_rule(path: Path) -> None:
    """Take a rule of the log away."""
    connection = sqlite3.connect(path)
    connection.execute("DROP TRIGGER runs_insert")
    connection.commit()
    connection.close()


def drop_index(path: Path) -> None:
    """Take an index of the log away."""
    connection = sqlite3.connect(path)
    connection.execute("DROP INDEX runs_by_time")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("damage", [damage_index, drop_rule, drop_index])
def test_a_damaged_index_or_schema_is_found(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    """SQLite reads on with either, and no hash of an event says anything."""
    path = filled_log(tmp_path)
    assert check_integrity(path, 60) == ("", True)
    damage(path)
    problem, checked = check_integrity(path, 60)
    assert problem and checked


def test_a_log_of_an_earlier_version_has_the_schema_of_this_one(tmp_path: Path) -> None:
    """Once it was opened, and so migrated."""
    shutil.copy(Path(__file__).parents[1] / "earlier" / "kestrel.db", tmp_path / "kestrel.db")
    connect_log(tmp_path / "kestrel.db").close()
    assert check_integrity(tmp_path / "kestrel.db", 60) == ("", True)


def test_a_check_ends_in_time(tmp_path: Path) -> None:
    """A log that takes longer is said to be checked in part."""
    path = filled_log(tmp_path)
    store = SessionStore(path)
    for number in range(60):
        store.append("r0", Progress(text="x" * 20_000 + str(number)))
    store.close()
    assert check_integrity(path, -1) in {("", False), ("", True)}
