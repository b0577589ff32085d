"""Who may look into the folder of the log: its owner and nobody else."""

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.filesystem import private_file, private_folder
from kestrel_lab.lab import Lab
from kestrel_lab.middleware.disk_cache import open_cache
from kestrel_lab.testing import ScriptedModel


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    """A umask that the person has set."""
    before = os.umask(request.param)
    yield
    os.umask(before)


def loose(home: Path) -> dict[str, str]:
    """Whatever under a folder, and the folder itself, somebody else may look into."""
    found = {}
    for path in (home, *home.rglob("*")):
        mode = path.lstat().st_mode
        kept = (
            "trash" in path.parts and path.is_file() and path.name != ".gitignore"
        )  # with the mode that it gets back when it is restored
        if not stat.S_ISLNK(mode) and mode & 0o077 and not kept:
            found[str(path.relative_to(home.parent))] = oct(mode & 0o777)
    return found


def used(home: Path, workspace: Path) -> Lab:
    """A session that has written whatever it writes: a log, long answers, a cache, an index, deleted
    files.
    """
    session = Lab(home, env={}, sandbox="S0", containment="off", approve="auto", cache="use")
    (workspace / "a.txt").write_text("a")
    session.store.results.keep("long")
    open_cache(home / "cache").close()
    calls = [[("read_file", {"path": "a.txt"})], [("delete_file", {"path": "a.txt"})], "done"]
    asyncio.run(session.run("go", model=ScriptedModel(calls), workspace=workspace))
    return session


@pytest.mark.usefixtures("umask")
def test_a_new_home_is_its_owners_alone(tmp_path: Path) -> None:
    """Whatever the umask, the folder has mode 0700 and each file in it, those that SQLite adds too, no bit
    for others.
    """
    workspace = tmp_path / "work"
    workspace.mkdir()
    workspace.chmod(0o755)
    home = workspace / ".kestrel"
    with closing(used(home, workspace)):
        names = {path.name for path in home.rglob("*")}
        assert names >= {"kestrel.db", "kestrel.db-wal", "results", "trash", "cache"}
        assert loose(home) == {}
        assert (home / "kestrel.db").stat().st_mode & 0o777 == 0o600


def test_a_mutant_that_leaves_modes_to_the_umask_is_caught(tmp_path: Path) -> None:
    """The mutant: a folder and a file made as most programs do can be read by others."""
    home = tmp_path / "home"
    before = os.umask(0o022)
    home.mkdir()
    (home / "kestrel.db").write_bytes(b"")
    os.umask(before)
    assert loose(home) == {"home": "0o755", "home/kestrel.db": "0o644"}


def test_an_existing_home_is_tightened_and_that_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A home of an earlier version is closed to others when it is opened, with what lies in it; links lead
    nowhere.
    """
    home, other = tmp_path / "home", tmp_path / "other"
    SessionStore(home / "kestrel.db").close()
    (home / "results").mkdir()
    (home / "results/x").write_text("x")
    (home / "program").write_text("#!/bin/sh\n")
    other.write_text("not ours")
    (home / "link").symlink_to(other)
    for path in (home, home / "kestrel.db", home / "results", home / "results/x", home / "program", other):
        path.chmod(0o755 if path.is_dir() or path.name == "program" else 0o644)
    store = SessionStore(home / "kestrel.db")
    assert [record.message for record in caplog.records] == [
        f"kestrel: others could read {home}; it is for its owner only now (mode 0700)"
    ]
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.close()
    assert loose(home) == {}
    assert [path.stat().st_mode & 0o777 for path in (home / "program", other)] == [0o700, 0o644]
    SessionStore(home / "kestrel.db").close()
    assert len(caplog.records) == 1


def folder_with_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the person works in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def folder_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder like /tmp."""
    tmp_path.chmod(0o1777)
    return tmp_path


def folder_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The person's own folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("make", [folder_with_the_work, folder_of_all, folder_of_the_home])
def test_a_folder_that_is_not_ours_alone_is_left_open(
    make: Callable[[Path, pytest.MonkeyPatch], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log in such a folder closes its own files, and not the folder."""
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(0o755)
    folder = make(place, monkeypatch)
    mode = folder.stat().st_mode
    SessionStore(folder / "kestrel.db").close()
    assert (folder.stat().st_mode, (folder / "kestrel.db").stat().st_mode & 0o777) == (mode, 0o600)


def test_files_and_folders_of_ours(tmp_path: Path) -> None:
    """A file that is there keeps its content; a path that is a file is not a folder."""
    file = tmp_path / "a"
    file.write_text("kept")
    file.chmod(0o666)
    private_file(file)
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("kept", 0o600)
    assert not private_folder(file)
