"""The recorder of a workspace: it knows of every change, whether the kernel tells it or it looks by itself."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from kestrel_lab.tools.files.snapshots import SnapshotStore
from kestrel_lab.tools.files.workspace_recorder import Recorder, read_snapshot


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A workspace beside the home."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def _changes(recorder: Recorder) -> set[str]:
    before = len(recorder.journal)
    recorder.refresh()
    return set().union(*recorder.journal[before:])


def test_a_small_workspace_is_looked_at_and_watched_once_it_was_asked_often(
    tmp_path: Path, place: Path
) -> None:
    """A watch takes 10 ms to end, so a trial has none; a long run has one, and no change is lost between."""
    recorder = Recorder(place, SnapshotStore(tmp_path / "home"))
    recorder.refresh()
    assert recorder.small
    for number in range(30):
        (place / "a.txt").write_text(str(number))
        (place / f"n{number}").mkdir()
        assert _changes(recorder) == {"a.txt", f"n{number}"}
        assert recorder.entries == read_snapshot(place, recorder.store)
    assert not recorder.small
    assert recorder.quiet or not sys.platform.startswith("linux")
    recorder.close()


def test_a_workspace_that_is_or_grows_large_is_watched(tmp_path: Path, place: Path) -> None:
    """By the number of its entries and by their bytes."""
    store = SnapshotStore(tmp_path / "home")
    for number in range(50):
        (place / f"{number}.txt").write_text(str(number))
    recorder = Recorder(place, store)
    recorder.refresh()
    assert recorder.small
    for number in range(50, 100):
        (place / f"{number}.txt").write_text(str(number))
    assert _changes(recorder) == {f"{number}.txt" for number in range(50, 100)}
    assert not recorder.small
    assert recorder.entries == read_snapshot(place, store)
    other = Recorder(place, store)
    other.refresh()
    assert not other.small
    assert other.entries == recorder.entries
    for name in ("0.txt", "99.txt"):
        (place / name).unlink()
    assert _changes(recorder) == _changes(other) == {"0.txt", "99.txt"}
    heavy = tmp_path / "heavy"
    heavy.mkdir()
    (heavy / "one").write_bytes(bytes(2_000_000))
    recorder_of_heavy = Recorder(heavy, store)
    recorder_of_heavy.refresh()
    assert not recorder_of_heavy.small
    for one in (recorder, other, recorder_of_heavy):
        one.close()


def test_ending_a_watch_holds_nobody_up(tmp_path: Path, place: Path) -> None:
    """The kernel needs milliseconds to end one: a thread waits for it."""
    for number in range(100):
        (place / f"{number}.txt").write_text(str(number))
    took = []
    for _ in range(5):
        recorder = Recorder(place, SnapshotStore(tmp_path / "home"))
        recorder.refresh()
        began = time.perf_counter()
        recorder.close()
        took.append(time.perf_counter() - began)
        assert not recorder.quiet
    assert min(took) < 0.005


def test_a_small_workspace_leaves_one_index_and_no_note_in_the_home(tmp_path: Path) -> None:
    """Thousands of trials in throw-away folders of equal files leave as many files as one of them."""
    store = SnapshotStore(tmp_path / "home")
    names = set()
    for number in range(10):
        folder = tmp_path / f"trial{number}"
        folder.mkdir()
        recorder = Recorder(folder, store)
        recorder.refresh()
        names.add(store.keep_index(recorder.entries))
        recorder.close()
    assert len(names) == 1
    assert [file.name for file in store.contents.folder.iterdir()] == [f"{names.pop()}.txt"]
