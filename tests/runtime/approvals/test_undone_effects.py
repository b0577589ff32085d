"""Undo of what calls did to a kernel and its notebook beside files: what needs which kernel, and what others
changed since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import ConflictError, UsageError
from kestrel_lab.core.events.union import CellsChanged, KernelChanged, KernelUndone, RunStarted, ToolAnswered
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.approvals import undo
from kestrel_lab.runtime.approvals.undo import effects_of, undo_calls
from kestrel_lab.tools.files.lock import version_of
from kestrel_lab.tools.kernel.documents import Swap, cell_of
from kestrel_lab.tools.kernel.undo import UndoResult

ONE, TWO, THREE = (cell_of(source, "code", "c1") for source in ("one", "two", "three"))


@dataclass
class Kernel:
    """A kernel that has the old variables of some calls, and a notebook of one cell."""

    done: list[tuple[str, str]] = field(default_factory=list)
    cell: Any = None
    asked: list[Any] = field(default_factory=list)

    @property
    def undo_stack(self) -> Any:
        """The calls whose variables it has."""
        return SimpleNamespace(calls=self.done)

    def undo(self, run: str, call: str, *, force: bool) -> UndoResult:
        """Undo that call and all that came after it."""
        self.asked.append((run, call, force))
        newest = self.done[self.done.index((run, call)) :][::-1]
        runs, calls = [run for run, _ in newest], [call for _, call in newest]
        return UndoResult(
            calls=calls, runs=runs, restored=["df"], missing={}, kernel="k", files=["x"], cells=["y"]
        )

    def read(self) -> list[Any]:
        """The cells of the notebook."""
        return [self.cell] if self.cell else []

    def swap(self, swap: Swap, *, force: bool) -> None:
        """Put a cell in the place of another."""
        if not force and self.cell != swap.before:
            raise ConflictError("it is another one")
        self.cell = swap.after


class Place:
    """A log with a run, its workspace, and a kernel that may be this process's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        self.store = SessionStore(folder / "k.db")
        self.store.create_run("r", RunStarted(goal="g", workspace=str(folder), model="m"))

    def kernel(self, *done: str, cell: Any = None, run: str = "r") -> Kernel:
        """The kernel of this process."""
        made = Kernel([(run, call) for call in done], cell)
        self.monkeypatch.setattr(undo, "live_shell", lambda: "shell")
        self.monkeypatch.setattr(undo, "kernel_of", lambda _: made)
        self.monkeypatch.setattr(undo, "document_of", lambda _: made)
        return made

    def variables(self, call: str, kernel: str = "k") -> None:
        """The call changed variables."""
        event = KernelChanged(
            call=call, step="s", how="executed", kernel=kernel, changes=[{"name": "df"}] if kernel else []
        )
        self.store.append("r", event).result(PATIENCE_S)

    def file(self, call: str, path: str, text: str) -> None:
        """The call wrote a new file."""
        (self.folder / path).write_text(text)
        before: dict[str, Any] = {path: {"existed": False, "blob": "", "after": version_of(text.encode())}}
        self.store.append("r", ToolAnswered(call=call, step="s", tool="t", text="x", before=before)).result(
            PATIENCE_S
        )

    def cells(self, call: str, *changes: tuple[Any, Any]) -> None:
        """The call put cells in the place of others."""
        told = [Swap(before, after).as_json() for before, after in changes]
        self.store.append("r", CellsChanged(call=call, step="s", how="page", changes=told)).result(PATIENCE_S)

    def undo(self, call: str = "", *, force: bool = False) -> UndoResult:
        """Undo calls of the run."""
        return undo_calls(self.store, "r", call, force=force)[0]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A place of its own, in no kernel."""
    made = Place(tmp_path, monkeypatch)
    yield made
    made.store.close()


def test_effects_are_by_call_and_end_with_their_undo(place: Place) -> None:
    """One that changed nothing has none; each has the id of its newest event."""
    place.variables("a")
    place.variables("quiet", kernel="")
    place.file("b", "b.txt", "b")
    place.cells("a", (None, ONE), (ONE, TWO))
    place.variables("gone")
    place.store.append("r", KernelUndone(calls=["gone", "never"], kernel="k")).result(PATIENCE_S)
    records = place.store.records("r")
    found = {one.call: one for one in effects_of(records)}
    assert list(found) == ["a", "b"]
    assert (
        found["a"].kernel,
        found["a"].files,
        len(found["a"].cells),
        found["b"].kernel,
        list(found["b"].files),
    ) == (
        "k",
        {},
        2,
        "",
        ["b.txt"],
    )
    assert found["a"].eid == next(one.eid for one in records if isinstance(one.event, CellsChanged))
    with pytest.raises(UsageError, match="nothing of call 'gone' of run r can be undone"):
        place.undo("gone")


def test_variables_are_restored_by_the_kernel_that_has_them(place: Place) -> None:
    """From the oldest of the calls on; where it is not here, or has not all of them, only in its notebook."""
    place.variables("a")
    place.variables("b")
    with pytest.raises(UsageError, match="only in the notebook whose kernel has them"):
        place.undo()
    place.kernel("a")
    with pytest.raises(UsageError, match="only in the notebook whose kernel has them"):
        place.undo()
    place.kernel("a", "b", run="another")
    with pytest.raises(UsageError, match="only in the notebook whose kernel has them"):
        place.undo()
    kernel = place.kernel("a", "b")
    undone = place.undo("a", force=True)
    assert (kernel.asked, undone.calls, undone.restored, undone.files, undone.cells) == (
        [("r", "a", True)],
        ["b", "a"],
        ["df"],
        [],
        [],
    )


def test_calls_of_other_runs_that_the_kernel_undoes_with_them_are_told_of(place: Place) -> None:
    """Each under its run: what came after in the same kernel cannot stay."""
    place.variables("a")
    kernel = place.kernel("a")
    kernel.done += [("q", "a"), ("r", "later")]
    undone, events = undo_calls(place.store, "r")
    assert list(zip(undone.runs, undone.calls, strict=True)) == [("r", "a"), ("r", "later"), ("q", "a")]
    assert {run: event.calls for run, event in events.items()} == {"r": ["a", "later"], "q": ["a"]}
    assert {event.kernel for event in events.values()} == {"k"}


def test_files_come_back_where_the_kernel_is_gone(place: Place) -> None:
    """The variables are named as missing."""
    place.variables("a")
    place.file("a", "a.txt", "new")
    undone = place.undo()
    assert (undone.files, undone.missing) == (["a.txt"], {"variables of a": "their kernel is gone"})
    assert not (place.folder / "a.txt").exists()


def test_a_call_without_variables_needs_no_kernel(place: Place) -> None:
    """Also in a notebook, whose kernel is not asked then."""
    place.file("a", "a.txt", "new")
    kernel = place.kernel()
    assert (place.undo().files, kernel.asked) == (["a.txt"], [])


def test_cells_come_back_as_they_were(place: Place) -> None:
    """Several changes of one cell in order, and only in a notebook; what is another one by now is named and
    stays.
    """
    place.cells("a", (None, ONE), (ONE, TWO))
    place.cells("b", (TWO, THREE))
    with pytest.raises(UsageError, match="only in their notebook"):
        place.undo()
    kernel = place.kernel(cell=TWO)
    with pytest.raises(UsageError, match="cell c1 changed since, by something else"):
        place.undo()
    assert kernel.cell == TWO
    kernel.cell = THREE
    undone = place.undo("a")
    assert (kernel.cell, undone.cells, undone.missing) == (None, ["c1"], {})
    kernel.cell = ONE
    undone = place.undo(force=True)
    assert (kernel.cell, undone.cells) == (TWO, ["c1"])


def test_a_cell_that_cannot_be_put_back_is_named(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing else could be restored that is an error, beside a file it is told."""
    place.cells("a", (ONE, TWO))
    kernel = place.kernel(cell=TWO)

    def refuse(*_: object, **__: object) -> None:
        raise ConflictError("the page is gone")

    monkeypatch.setattr(kernel, "swap", refuse)
    with pytest.raises(UsageError, match="nothing was undone: c1: the page is gone"):
        place.undo()
    place.file("a", "a.txt", "new")
    undone = place.undo()
    assert (undone.files, undone.cells, undone.missing) == (["a.txt"], [], {"c1": "the page is gone"})


def test_a_folder_in_the_place_of_a_file_stays(place: Place) -> None:
    """What cannot be read counts as changed, and what cannot be removed is named though it is forced."""
    place.file("a", "a.txt", "new")
    (place.folder / "a.txt").unlink()
    (place.folder / "a.txt").mkdir()
    with pytest.raises(UsageError, match=r"a\.txt changed since"):
        place.undo()
    with pytest.raises(UsageError, match=r"nothing was undone: a\.txt: "):
        place.undo(force=True)
    assert (place.folder / "a.txt").is_dir()
