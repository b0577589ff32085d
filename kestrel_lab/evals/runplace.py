"""The workspace of a finished run as a scenario can have it: files written out, or a folder of the repository."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

from kestrel_lab.core.jsontypes import Json
from kestrel_lab.core.text import one_line
from kestrel_lab.evals.suitefile import repository_of
from kestrel_lab.tools.listing import Entry
from kestrel_lab.tools.workspace import Workspace

MAX_FILES: Final = 20
"""Files that are written into a scenario."""
MAX_BYTES: Final = 40_000
"""Bytes of all of them."""
MAX_LOOKED_AT: Final = 5_000
"""Entries of a workspace that are looked at; one with more is no small one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunPlace:
    """A scenario's `workspace`, `None` for an empty one, and what a reader must know of it."""

    workspace: dict[str, Json] | None
    notes: tuple[str, ...] = ()


def place_of(workspace: str, began: float, beside: Path) -> RunPlace:
    """What a scenario file in the folder `beside` can say of the workspace of a run that began at `began`.

    Small text files are taken over as they are now; one that changed since is left out and noted, for what the
    run found there is not known any more. Hidden files, in which secrets are kept, and links are never
    taken. Otherwise the folder is named if it is in the repository that `beside` is in.
    """
    root = Path(workspace)
    if not root.is_dir():
        return RunPlace(workspace=None, notes=("EDIT: the run's workspace is gone; write the files it needs under workspace: {files: …}",))
    small = _small_files(Workspace(root), began)
    if small is not None:
        return small
    name = _name(root.resolve(), beside.resolve())
    if name is None:
        return RunPlace(workspace=None, notes=(
            f"EDIT: the run worked in {one_line(str(root), 200)}, which is too large to be written here and outside this repository:",
            "copy what the scenario needs into a folder beside the suite, and name it: workspace: {folder: …}",
        ))  # fmt: skip
    return RunPlace(
        workspace={"folder": name}, notes=("EDIT: the whole folder is copied for each trial, as it then is; name a smaller one if you can",)
    )


def _small_files(workspace: Workspace, began: float) -> RunPlace | None:
    """The files, if they are few, small and text."""
    found = list(islice(workspace.walk(), MAX_LOOKED_AT + 1))
    files = [entry for entry in found if entry.kind == "file" and not _hidden(entry)]
    if len(found) > MAX_LOOKED_AT or len(files) > MAX_FILES or sum(entry.size for entry in files) > MAX_BYTES:
        return None
    kept: dict[str, Json] = {}
    changed: list[str] = []
    for entry in files:
        if workspace.stat(entry.path).st_mtime >= began:
            changed.append(entry.path)
            continue
        try:
            kept[entry.path] = workspace.read_bytes(entry.path, MAX_BYTES).decode("utf-8")
        except UnicodeDecodeError:
            return None
    notes = []
    if changed:
        notes = [f"EDIT: left out, because they changed after the run began: {one_line(', '.join(changed), 300)}"]
        notes.append("if the run found them there, write them as they were before it")
    return RunPlace(workspace={"files": kept} if kept else None, notes=tuple(notes))


def _hidden(entry: Entry) -> bool:
    return any(part.startswith(".") for part in entry.path.split("/"))


def _name(root: Path, beside: Path) -> str | None:
    """How a suite beside or above the file calls the folder: from the top of its repository."""
    top = repository_of(beside) or beside
    return root.relative_to(top).as_posix() if root.is_relative_to(top) else None
