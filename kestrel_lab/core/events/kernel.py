"""Facts about code and cells of a notebook: what code would do, what it did, which cells were changed, which
calls were undone.

The code of `run_python` is the argument of its call.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kestrel_lab.core.events import CallEvent, Event
from kestrel_lab.core.json_types import Json


class KernelPreviewed(CallEvent, frozen=True, kw_only=True):
    """Code was run in a copy of the kernel in which effects are denied; nothing of it is in the kernel."""

    type: ClassVar[str] = "kernel_previewed"
    seconds: float = 0.0
    problem: str = ""
    """Why there is no preview, or none to its end; empty where it is whole."""
    changes: list[dict[str, Json]] = field(default_factory=list)
    """What would be different: `{name, kind, text, rebound, lost, inside}`. `lost` says why the old value
    could not be restored, `inside` that the object was changed. The kind is `new`, `changed` or `deleted`,
    and `state` for what is no variable: an attribute, a setting, a file.
    """
    refused: list[str] = field(default_factory=list)
    """Effects that the code asked for and did not get, in words."""
    error: str = ""
    images: list[dict[str, Json]] = field(default_factory=list)
    """Figures: `{media, blob, bytes}`; the blob is kept beside the log."""
    danger: str = ""
    sandbox: str = ""
    """How dangerous the call is by what was found, and where its code would have its effect."""
    text: str = ""
    """All of this for the person who approves it, one fact per line."""
    adoptable: bool = False
    """Everything that came of it is plain data, which can be taken over without running the code again."""


class KernelChanged(CallEvent, frozen=True, kw_only=True):
    """Code had its effect in a kernel."""

    type: ClassVar[str] = "kernel_changed"
    how: str
    """`adopted`: values were taken over from the preview and the code was not run; `executed`: it was run."""
    kernel: str
    """Names the kernel; another name means that the variables are not there any more."""
    before: str = ""
    """A key of the variables that the code could reach, before it ran; equal keys mean equal variables."""
    changes: list[dict[str, Json]] = field(default_factory=list)
    """As in `kernel_previewed`."""
    images: list[dict[str, Json]] = field(default_factory=list)
    error: str = ""
    undoable: bool = True
    """Whether `undo` can bring everything back that the code changed."""
    code: str = ""
    """The code, where it is not the argument of the call: that of the cell that `run_cell` ran."""
    table: list[list[str]] = field(default_factory=list)
    """The beginning of the data frame that the code gave and printed nothing beside: headings, then rows."""


class CellsChanged(CallEvent, frozen=True, kw_only=True):
    """Cells of the notebook were inserted, edited or deleted, or have other outputs."""

    type: ClassVar[str] = "cells_changed"
    how: str
    """What carried it out: see `tools.kernel.documents`."""
    changes: list[dict[str, Json]] = field(default_factory=list)
    """`{before, after, below}`: the cell before and after (nbformat or `null`), the id of the cell above."""


class KernelUndone(Event, frozen=True, kw_only=True):
    """Effects of calls on variables, files and cells were undone, newest first; possibly after the run."""

    type: ClassVar[str] = "kernel_undone"
    calls: list[str]
    kernel: str
    """Names the kernel; empty where no variable was concerned."""
    restored: list[str] = field(default_factory=list)
    """Names of variables and of other state; each was compared with what it was."""
    missing: dict[str, Json] = field(default_factory=dict)
    """What could not be restored, with the reason."""
    files: list[str] = field(default_factory=list)
    """Paths of files that hold again what they held before."""
    cells: list[str] = field(default_factory=list)
    """Ids of cells that are again what they were before."""
