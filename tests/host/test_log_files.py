"""Files of open databases are protected as long as they exist, and no file that was made after them is."""

import asyncio
import gc
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import apsw
import pytest
from waits import until

from kestrel_lab import Lab
from kestrel_lab.host import log_files
from kestrel_lab.host.log_files import OpenDatabase, is_open_here, open_folders, open_no_log
from kestrel_lab.middleware.disk_cache import DiskStore
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.testing import ScriptedModel


def opened_database(folder: Path) -> tuple[apsw.Connection, OpenDatabase]:
    """A database in WAL mode with a row, and what protects its files."""
    connection = apsw.Connection(str(folder / "any.db"))
    connection.execute("PRAGMA journal_mode = WAL").fetchall()
    connection.execute("CREATE TABLE t(x)")
    return connection, OpenDatabase(folder / "any.db")


def refused_files(folder: Path) -> list[str]:
    """Make files of the user's own, and return those that are refused."""
    refused = []
    for index in range(64):
        path = folder / f"own{index}.txt"
        path.write_text("mine")
        try:
            os.close(open_no_log(path))
        except PermissionError:
            refused.append(path.name)
    return refused


def numbers_given_away(database: OpenDatabase) -> set[tuple[int, int]]:
    """The protected numbers that the system may give to a new file: no descriptor here holds their files."""
    held = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own is closed by now
            status = os.fstat(int(descriptor.name))
            held.add((status.st_dev, status.st_ino))
    return set(database._held) - held


class _Number:
    """A pin that holds nothing: the mutant, which remembers a number."""

    named = True


def remember_number(path: str) -> tuple[tuple[int, int], _Number]:
    """`_pin_file` of the mutant."""
    status = os.stat(path)
    pin = _Number()
    log_files._pins[status.st_dev, status.st_ino] = pin  # type: ignore[assignment]
    return (status.st_dev, status.st_ino), pin


def test_files_made_after_a_database_was_deleted_are_nobody_elses(disk: Path) -> None:
    """SQLite's files are gone, and who protects them was not told: each file of the user's own can be read,
    since no protected number can be given to it.
    """
    connection, database = opened_database(disk)
    connection.close()  # deletes the files beside the database
    (disk / "any.db").unlink()
    assert database._held
    assert numbers_given_away(database) == set()
    assert refused_files(disk) == []
    database.close()


def test_a_number_alone_can_be_given_away(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant, which holds no descriptor, protects numbers that the next file may get: whether it gets one
    depends on the file system (ext4 gives it at once, tmpfs never), so the descriptors are looked at.
    """
    monkeypatch.setattr(log_files, "_pin_file", remember_number)
    connection, database = opened_database(disk)
    connection.close()
    (disk / "any.db").unlink()
    assert numbers_given_away(database)
    database.close()


def test_a_file_stays_protected_by_all_its_names(tmp_path: Path) -> None:
    """While one of two databases holds it, and after it was renamed; not once both let it go."""
    connection, first = opened_database(tmp_path)
    second = OpenDatabase(tmp_path / "any.db")
    (tmp_path / "any.db-wal").rename(tmp_path / "renamed")
    first.look_again()
    second.close()
    with pytest.raises(PermissionError, match="belongs to a log"):
        open_no_log(tmp_path / "renamed")
    first.close()
    assert refused_files(tmp_path) == []
    os.close(open_no_log(tmp_path / "renamed"))
    connection.close()


def test_deleted_files_are_let_go(tmp_path: Path) -> None:
    """Whoever looks again holds the write-ahead log that is there now, and no deleted one."""
    connection, database = opened_database(tmp_path)
    connection.close()
    again, other = opened_database_again(tmp_path)
    database.look_again()
    assert not [
        name for name in open_names() if name.startswith(str(tmp_path)) and name.endswith("(deleted)")
    ]
    status = (tmp_path / "any.db-wal").stat()
    assert is_open_here(status.st_dev, status.st_ino)
    other.close()
    again.close()


def opened_database_again(folder: Path) -> tuple[apsw.Connection, OpenDatabase]:
    """The same database once more, whose write-ahead log is made anew."""
    connection = apsw.Connection(str(folder / "any.db"))
    connection.execute("INSERT INTO t VALUES (1)")
    return connection, OpenDatabase(folder / "any.db")


def open_names() -> list[str]:
    """The files that this process has open."""
    names = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder's own is closed by now
            names.append(os.readlink(descriptor))
    return names


def use_cache(home: Path) -> None:
    """Keep something in a cache of tools."""
    asyncio.run(DiskStore(home / "cache").set("k", "v", None))


def use_index(home: Path) -> None:
    """Index a folder."""
    (home / "work").mkdir()
    (home / "work" / "a.py").write_text("def f(): ...\n")
    CodeIndex(home / "work", home).refresh()


def use_lab(home: Path) -> None:
    """Run an agent whose tool call goes through the cache."""
    (home / "work").mkdir()
    (home / "work" / "a.txt").write_text("text")
    lab = Lab(home, ScriptedModel([[("read_file", {"path": "a.txt"})], "done"]), env={})
    lab.run_sync("go", workspace=home / "work")


@pytest.mark.parametrize("use", [use_cache, use_index, use_lab])
def test_what_nobody_closed_lets_its_files_go(use: Callable[[Path], None], tmp_path: Path) -> None:
    """Cache, index and lab that are dropped: no folder is held, and no file of theirs is open."""
    use(tmp_path)
    gc.collect()
    # The thread that writes a log ends by itself.
    until(lambda: not [folder for folder in open_folders() if folder.startswith(str(tmp_path))])
    until(lambda: not [name for name in open_names() if name.startswith(str(tmp_path))])
