"""Wherever the home lies, inside the workspace, beside it, or reached by a link, what reads files damages no
log.
"""

import subprocess
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import apsw
import pytest
from forked import forked
from layout_worker import main
from waits import until

from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.log_files import OpenDatabase, is_log, leave_out_logs, open_no_log

WORKER = Path(__file__).with_name("layout_worker.py")
LAYOUTS = {
    "outside": ["home"],
    "inside": ["work/.kestrel"],
    "inside, by another name": ["work/lab"],
    "the workspace itself": ["work"],
    "two homes": ["work/.kestrel", "work/other"],
    "through a link": ["link/.kestrel"],
    "through a link in the workspace": ["work/to/kept"],
}
PROCESSES, ACKNOWLEDGED, KILLS = 3, 25, 3


def start(folder: Path, home: str, run: str) -> tuple[ForkServerProcess, Path]:
    """A process that writes the run, and the file in which the numbers of its acknowledged events are."""
    (told := folder / f"{run}.told").touch()
    errors = folder / f"{run}.errors"
    return forked(main, str(folder / home), str(folder / "work"), run, out=told, errors=errors), told


def acknowledged(told: Path) -> list[int]:
    """The numbers that a process has printed whole."""
    return [int(line) for line in told.read_text().splitlines(keepends=True) if line.endswith("\n")]


@pytest.mark.once
@pytest.mark.slow
@pytest.mark.parametrize("homes", LAYOUTS.values(), ids=LAYOUTS)
def test_processes_that_are_killed_lose_nothing_in_any_layout(tmp_path: Path, homes: list[str]) -> None:
    """Several processes write and are killed while each reads all files: the log is whole, and has what was
    acknowledged.
    """
    (work := tmp_path / "work").mkdir()
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(work)
    (work / "to").symlink_to(tmp_path)
    (work / "note.md").write_text("a file of the user's own")
    workers = {}
    try:
        for number in range(PROCESSES + KILLS):
            run = f"r{number}"
            workers[run] = (homes[number % len(homes)], *start(tmp_path, homes[number % len(homes)], run))
            if number + 1 < PROCESSES:
                continue
            for _, process, told in workers.values():
                if process.is_alive():
                    seen = len(acknowledged(told))
                    until(lambda: len(acknowledged(told)) > seen + ACKNOWLEDGED or not process.is_alive())
                    assert process.is_alive(), (tmp_path / f"{told.stem}.errors").read_text()
            next(process for _, process, _ in workers.values() if process.is_alive()).kill()
            until(lambda: sum(process.is_alive() for _, process, _ in workers.values()) == PROCESSES - 1)
    finally:
        for _, process, _ in workers.values():
            process.kill()
            process.join()
    for home in homes:
        store = SessionStore(tmp_path / home / "kestrel.db")
        assert integrity(tmp_path / home / "kestrel.db") == "ok"
        for run, (where, _, told) in workers.items():
            if where == home:
                assert store.damage(run) is None
                assert {*acknowledged(told)} <= {record.seq for record in store.records(run)}
        store.close()


def integrity(path: Path) -> str:
    """What SQLite says of the file."""
    connection = apsw.Connection(str(path))
    ((found,),) = connection.execute("PRAGMA integrity_check").fetchall()
    connection.close()
    return str(found)


HOLDER = f"""
import sys
sys.path.insert(0, {str(WORKER.parent)!r})
from layout_worker import go_over
from pathlib import Path
import apsw
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.tools.files.workspace import Workspace
store = SessionStore(Path(sys.argv[1]) / "kestrel.db")
held = apsw.Connection(str(store.path))
held.execute("BEGIN IMMEDIATE")
go_over(FileTaint(lambda: store), Workspace(Path(sys.argv[2])))
print("read", flush=True)
sys.stdin.read()
"""


def writable_beside(folder: Path, *words: str) -> bool:
    """Whether another process can write the log while one that has read all files is in a transaction."""
    (work := folder / "work").mkdir()
    SessionStore(work / "kestrel.db").close()
    opened = SessionStore(work / "kestrel.db")  # so that SQLite's other files are there
    for name in ("kestrel.db", "kestrel.db-shm"):
        (work / name.replace("kestrel", "other")).hardlink_to(work / name)
        (work / f"link to {name}").symlink_to(name)
    opened.close()
    argv = [sys.executable, "-c", HOLDER, str(work), str(work), *words]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "read\n"
        connection = apsw.Connection(str(work / "kestrel.db"))
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        else:
            connection.execute("ROLLBACK")
            return True
        finally:
            connection.close()
            holder.communicate()


def test_reading_every_file_keeps_the_locks_of_the_log(tmp_path: Path) -> None:
    """No other process can write meanwhile, with the log in the workspace itself, hard links to its files,
    and links.
    """
    assert not writable_beside(tmp_path)


def test_without_the_predicate_the_locks_are_gone(tmp_path: Path) -> None:
    """The mutant, in which nothing knows what belongs to a log: the first file that is hashed lets another
    process write.
    """
    assert writable_beside(tmp_path, "blind")


def test_a_log_is_known_by_name_by_inode_and_by_header(tmp_path: Path) -> None:
    """And it is not opened while it is open here as a database; what only looks like one is a file like any
    other.
    """
    store = SessionStore(tmp_path / "home" / "any.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    for name in ("any.db", "any.db-wal", "any.db-shm"):
        assert is_log(tmp_path / "home" / name)
        with pytest.raises(PermissionError, match="belongs to a log of kestrel"):
            open_no_log(tmp_path / "home" / name)
    store.close()
    (copy := tmp_path / "notes.txt").write_bytes((tmp_path / "home" / "any.db").read_bytes())
    (tmp_path / "named").mkdir()
    (named := tmp_path / "named" / "Kestrel.DB-wal").touch()
    (other := tmp_path / "other.db").touch()
    connection = apsw.Connection(str(other))
    connection.execute("CREATE TABLE t(x)")
    connection.close()
    (tmp_path / "empty").touch()
    assert [
        is_log(path) for path in (copy, named, other, tmp_path / "empty", tmp_path / "gone", tmp_path)
    ] == [
        True,
        True,
        False,
        False,
        False,
        False,
    ]
    mine = OpenDatabase(other)
    assert is_log(other)
    mine.close()
    assert not is_log(other)
    assert leave_out_logs("*.txt")(str(tmp_path), ["notes.txt", "other.db", "named"]) == {"notes.txt"}
