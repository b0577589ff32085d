"""Undo of executed calls: variables of the notebook's kernel, files of the workspace, and cells of the
notebook are restored.

What undoes a change of a file or a cell is in the log; old variables are only in the kernel. Each restoration
compares first: what is not as the call left it was changed since by something else, and is restored only by
force.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import RunError, StoreError, UsageError
from kestrel_lab.core.events.union import CellsChanged, KernelChanged, KernelUndone, Record, ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.tools.files.lock import MISSING, version_of
from kestrel_lab.tools.files.trash import restore_from_trash
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.kernel.documents import Swap, document_of
from kestrel_lab.tools.kernel.live_kernel import LiveKernel, kernel_of, live_shell
from kestrel_lab.tools.kernel.undo import UndoResult

_LOST = "what it held is not kept any more"
_TYPES = tuple(kind.type for kind in (KernelChanged, CellsChanged, ToolAnswered, KernelUndone))
_RUNS = 50
"""Runs that are looked through for the newest call."""
_FORCE = "undo with force (--force) if that may be lost"


@dataclass(slots=True)
class Effect:
    """Changes of one call and how to undo them."""

    call: str
    kernel: str = ""
    """Id of the kernel whose variables changed; empty for none."""
    files: dict[str, Any] = field(default_factory=dict)
    """By path, as in `tool_answered`."""
    cells: list[Swap] = field(default_factory=list)
    eid: str = ""
    """Id of its newest event, which begins with the session that wrote it."""


def effects_of(records: Iterable[Record]) -> list[Effect]:
    """Return what the calls of a run changed that can be undone and was not, the oldest call first."""
    found: dict[str, Effect] = {}
    for record in records:
        match record.event:
            case KernelChanged(call=call, kernel=kernel, changes=changes) if changes:
                found.setdefault(call, Effect(call)).kernel = kernel
            case CellsChanged(call=call, changes=changes):
                found.setdefault(call, Effect(call)).cells += [Swap.from_json(change) for change in changes]
            case ToolAnswered(call=call, before=before) if before:
                found.setdefault(call, Effect(call)).files |= before
            case KernelUndone(calls=calls):
                for call in calls:
                    found.pop(call, None)
                continue
            case _:
                continue
        found[call].eid = record.eid
    return list(found.values())


def undo_calls(
    store: SessionStore, run: str, call: str = "", *, force: bool = False
) -> tuple[UndoResult, dict[str, KernelUndone]]:
    """Undo the newest call of a run, or a call and all later ones; return lines of text and events by run.

    Raises `UsageError` if there is nothing to undo, or, without `force`, if something else changed the same
    things since.
    """
    store.flush()
    effects = _own_effects(store, run)
    place = next(
        (place for place, one in enumerate(effects) if one.call == call), len(effects) if call else -1
    )
    if not (chosen := effects[place:]):
        raise UsageError(
            f"nothing of call {call!r} of run {run} can be undone"
            if call
            else f"no call of run {run} can be undone"
        )
    undone = _Undo(run, Path(store.state(run).folder), store.results)(chosen, force=force)
    said = {name: getattr(undone, name) for name in KernelUndone.__struct_fields__}
    of = {
        name: [one for run, one in zip(undone.runs, undone.calls, strict=True) if run == name]
        for name in undone.runs
    }
    return undone, {name: KernelUndone(**{**said, "calls": calls}) for name, calls in of.items()}


def newest_run(store: SessionStore) -> str:
    """Return the newest run of this session with a call that can be undone; empty if there is none."""
    store.flush()
    mine = f"{store.session}-"
    rows = store.runs(limit=_RUNS, trials=False)
    return next(
        (row.id for row in rows if any(one.eid.startswith(mine) for one in _own_effects(store, row.id)[-1:])),
        "",
    )


def _own_effects(store: SessionStore, run: str) -> list[Effect]:
    """Return the effects of a run, without those that a fork shares with its parent."""
    return effects_of(store.records(run, after=store.run(run).forked_at or 0, types=_TYPES))


@dataclass(frozen=True, slots=True)
class _Undo:
    """Undoes the newest calls of one run."""

    run: str
    workspace: Path
    results: ResultStore

    def __call__(self, effects: Sequence[Effect], *, force: bool) -> UndoResult:
        """Undo these calls, oldest first in the list.

        Raises `UsageError` before any change if something else changed the same things since, unless `force`.
        """
        newest = list(reversed(effects))
        live = self._live(newest)
        if not force and (changed := [*self._changed_files(newest), *self._changed_cells(newest)]):
            raise UsageError(f"{', '.join(changed)} changed since, by something else: {_FORCE}")
        missing: dict[str, Json] = {
            f"variables of {one.call}": "their kernel is gone"
            for one in newest
            if one.kernel and live is None
        }
        if missing and not any(one.files or one.cells for one in newest):
            raise UsageError(
                "variables can be restored only in the notebook whose kernel has them: use %kestrel "
                "undo there"
            )
        calls = [one.call for one in newest]
        undone = UndoResult(calls=calls, runs=[self.run] * len(calls), kernel="", missing=missing)
        if live is not None:
            of_kernel = live.undo(self.run, next(one.call for one in effects if one.kernel), force=force)
            both = zip(of_kernel.runs, of_kernel.calls, strict=True)
            others = [(run, call) for run, call in both if run != self.run or call not in calls]
            undone = replace(
                of_kernel,
                calls=[*calls, *(call for _, call in others)],
                runs=[*undone.runs, *(run for run, _ in others)],
                files=[],
                cells=[],
            )
        for one in newest:
            for path, before in one.files.items():
                self._note(undone, undone.files, path, self._restore_file(path, before, force=force))
            for swap in reversed(one.cells):
                self._note(undone, undone.cells, swap.cell, _restore_cell(swap, force=force))
        if live is None and not undone.files and not undone.cells:
            raise UsageError(
                "nothing was undone: " + "; ".join(f"{what}: {why}" for what, why in undone.missing.items())
            )
        return undone

    def _live(self, newest: Iterable[Effect]) -> LiveKernel | None:
        """Return the kernel that has the old variables; `None` if none changed or the kernel is gone."""
        shell = live_shell()
        wanted = {one.kernel for one in newest if one.kernel}
        live = kernel_of(shell) if shell is not None and wanted else None
        known = set() if live is None else {call for run, call in live.undo_stack.calls if run == self.run}
        return live if live is not None and all(one.call in known for one in newest if one.kernel) else None

    @staticmethod
    def _note(undone: UndoResult, restored: list[str], what: str, problem: str) -> None:
        """Note what became of one restoration; the last one of the same thing counts."""
        undone.missing.pop(what, None)
        if problem:
            undone.missing[what] = problem
        if not problem and what not in restored:
            restored.append(what)
        elif problem and what in restored:
            restored.remove(what)

    # Files.

    def _changed_files(self, newest: Iterable[Effect]) -> list[str]:
        """Return the files that are not as these calls left them, also in between."""
        versions, found = dict[str, str | None](), dict[str, None]()
        workspace = Workspace(self.workspace)
        for one in newest:
            for path, before in one.files.items():
                if path not in versions:
                    versions[path] = _version(workspace, path)
                if versions[path] not in (None, before["after"]):
                    found[path] = None
                # What is in the trash has no version in the log: the deletion compared when it was made.
                versions[path] = (
                    None
                    if "trash" in before
                    else str(before["blob"]) or _EMPTY
                    if before["existed"]
                    else MISSING
                )
        return list(found)

    def _restore_file(self, path: str, before: dict[str, Any], *, force: bool) -> str:
        """Put back what a file held; returns why that is not possible, empty once it is done."""
        workspace = Workspace(self.workspace)
        try:
            if "trash" in before:
                restore_from_trash(workspace, path, str(before["trash"]))
                return ""
            content = self._kept(before)
            if content is None and before["existed"]:
                return _LOST
            with workspace.locked(path, make=True) as file:
                if version_of(file.read_bytes()) != before["after"] and not force:
                    return "it was changed just now"
                if content is not None:
                    file.write_bytes(content)
                elif file.status() is not None:
                    # Pathlib knows no descriptors of folders.
                    os.unlink(file.name, dir_fd=file.directory)
        except (OSError, ValueError, StoreError) as error:
            return str(error)
        return ""

    def _kept(self, before: dict[str, Any]) -> bytes | None:
        if not before["blob"]:
            return b"" if before["existed"] else None
        place = self.results.path(str(before["blob"]))
        return None if place is None else place.read_bytes()

    # Cells.

    @staticmethod
    def _changed_cells(newest: Iterable[Effect]) -> list[str]:
        """Return the cells that are not as these calls left them."""
        swaps = [swap for one in newest for swap in reversed(one.cells)]
        if not swaps:
            return []
        cells: dict[str, dict[str, Any] | None] = {
            str(cell["id"]): cell for cell in document_of(live_kernel()).read()
        }
        found = dict[str, None]()
        for swap in swaps:
            if not swap.left(cells.get(swap.cell)):
                found[f"cell {swap.cell}"] = None
            cells[swap.cell] = swap.before
        return list(found)


_EMPTY = version_of(b"")


def live_kernel() -> LiveKernel:
    """Return the kernel of this notebook; raises `UsageError` anywhere else."""
    shell = live_shell()
    if shell is None:
        raise UsageError("cells can be restored only in their notebook: use %kestrel undo there")
    return kernel_of(shell)


def _version(workspace: Workspace, path: str) -> str | None:
    try:
        return version_of(workspace.read_bytes(path))
    except FileNotFoundError:
        return MISSING
    except (OSError, ValueError):
        return "?"


def _restore_cell(swap: Swap, *, force: bool) -> str:
    try:
        document_of(live_kernel()).swap(swap.undone(), force=force)
    except RunError as error:
        return str(error)
    return ""
