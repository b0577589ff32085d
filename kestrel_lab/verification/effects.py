"""Effects that a call of a run can have had, at most: by what was recorded of it, by its tool, by its command
or code, by its sandbox.

An effect that an answer claims is excused only by a call that can have had it. What nobody knows of a call
counts as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kestrel_lab.core.calls import HELD
from kestrel_lab.core.events.deeds import Deed
from kestrel_lab.shell_syntax.effects import ANY, LineEffect, code_effects, line_effects

_HIDDEN: Final = re.compile(
    r"(?:^|/)(?:\.git|\.venv|node_modules|__pycache__|\.kestrel|\.ipynb_checkpoints)(?:/|$)"
)
"""Paths that are not compared when a call touches files."""
_NEEDS_NO_NETWORK: Final = re.compile(r"push|publish|deploy|schedul", re.IGNORECASE)
"""Words for sending that may be done on this machine: to a repository beside this one, or by its own
scheduler.
"""
_CELL_TOOL: Final = re.compile(r"cell|notebook", re.IGNORECASE)


def may_change_file(deed: Deed, path: str) -> bool:
    """Return whether a call can have changed, made or removed the file."""
    if deed.files:
        return is_among(path, deed.files)
    if deed.touched is not None and not path.startswith(("/", "~", "../")) and not _HIDDEN.search(path):
        return is_among(path, deed.touched)
    if deed.kind == "command":
        return "files" in line_effects(_command(deed))
    if deed.reaches in (
        "nothing",
        "address",
        "others",
    ):  # unless it is a file of another place, such as a drive
        return deed.reaches != "nothing" and names_file(deed, path)
    code = code_of(deed)
    return code is None or "files" in code_effects(code)


def may_change_anything(deed: Deed) -> bool:
    """Return whether a call can have had an effect on anything that lasts: a file, a variable, a cell,
    something elsewhere.
    """
    if deed.files or deed.variables or deed.cells:
        return True
    if deed.kind == "command":
        return bool(deed.touched) or bool(_effects(deed) - ({"files"} if deed.touched is not None else set()))
    return deed.reaches != "nothing"


def may_run_tests(deed: Deed) -> bool:
    """Return whether a call can have run tests."""
    return not deed.files and "code" in _effects(deed)


def may_send(deed: Deed, verb: str) -> bool:
    """Return whether a call can have sent something, as `verb` says."""
    if deed.files or (deed.reaches in ("nothing", "workspace") and deed.kind != "command"):
        return False
    held = deed.sandbox in HELD and not _NEEDS_NO_NETWORK.match(verb)
    return not held and bool(_effects(deed) & {"send", "code"})


def may_change_variable(deed: Deed, name: str) -> bool:
    """Return whether a call can have changed a variable of the kernel: its code names it, or the comparison
    found it changed.
    """
    if deed.files or deed.kind == "command":  # another process
        return False
    if name in (deed.variables or ()):
        return True
    code = code_of(deed)
    if deed.variables is None and code is None:
        return not _CELL_TOOL.search(deed.tool) and deed.reaches not in ("nothing", "address", "others")
    return (
        code is None
        or re.search(rf"(?<!\w){re.escape(name)}(?!\w)|\b(?:exec|eval|globals|locals|run)\b|%", code)
        is not None
    )


def may_change_cell(deed: Deed) -> bool:
    """Return whether a call can have changed a cell of the notebook."""
    return changes_cells(deed) or is_unknown(deed)


def changes_cells(deed: Deed) -> bool:
    """Return whether a call is one that changes cells, whatever became of it."""
    return deed.cells or _CELL_TOOL.search(deed.tool) is not None


def is_unknown(deed: Deed) -> bool:
    """Return whether nobody knows what a call can have had as effects: its tool says nothing of them."""
    known = (
        deed.reaches in ("nothing", "workspace", "address", "others")
        or code_of(deed) is not None
        or changes_cells(deed)
    )
    return deed.kind == "other" and not known


def names_file(deed: Deed, path: str) -> bool:
    """Return whether a call was made with the file, or changed it."""
    last = path.removeprefix("./")
    return is_among(path, (*deed.files, *(deed.touched or ()))) or any(
        isinstance(value, str) and last.rpartition("/")[2] in value for value in deed.args.values()
    )


def is_among(path: str, known: Iterable[str]) -> bool:
    """Return whether a path, or the end of one, is among those that are known."""
    last = path.removeprefix("./").rstrip("/")
    return any(one == last or one.endswith(f"/{last}") or last.endswith(f"/{one}") for one in known)


def _effects(deed: Deed) -> frozenset[LineEffect]:
    if deed.kind == "command":
        return line_effects(_command(deed))
    if deed.reaches == "nothing":
        return frozenset()
    code = code_of(deed)
    return ANY if code is None else code_effects(code)


def _command(deed: Deed) -> str:
    return str(deed.args.get("command", ""))


def code_of(deed: Deed) -> str | None:
    """The code that a call runs; `None` where it runs none, or it is not known."""
    code = deed.args.get("code")
    return code if isinstance(code, str) else None
