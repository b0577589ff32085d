"""Possible effects of a call: by its record, tool, command or code, and sandbox.

A claimed effect is excused only by a call that can have had it. Unknown effects count as possible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from kestrel_lab.core.calls import HELD
from kestrel_lab.core.events.actions import Action
from kestrel_lab.core.events.tool_kinds import names_no
from kestrel_lab.shell_syntax.effects import ANY, LineEffect, code_effects, line_effects

_HIDDEN: Final = re.compile(
    r"(?:^|/)(?:\.git|\.venv|node_modules|__pycache__|\.kestrel|\.ipynb_checkpoints)(?:/|$)"
)
"""Paths that are not compared when a call touches files."""
_NEEDS_NO_NETWORK: Final = re.compile(r"push|publish|deploy|schedul", re.IGNORECASE)
"""Verbs of sending that may work without network: to a local repository, or by a local scheduler."""
_CELL_TOOL: Final = re.compile(r"cell|notebook", re.IGNORECASE)


def may_change_file(action: Action, path: str) -> bool:
    """Return whether a call can have changed, made or removed the file."""
    if action.files:
        return is_among(path, action.files)
    if action.touched is not None and not path.startswith(("/", "~", "../")) and not _HIDDEN.search(path):
        return is_among(path, action.touched)
    if action.kind == "command":
        return "files" in line_effects(_command(action))
    # Unless it is a file of another place, such as a drive.
    if action.reaches in ("nothing", "address", "others"):
        return action.reaches != "nothing" and names_file(action, path)
    if names_no("file", action.tool) and not names_file(action, path):
        return False
    code = code_of(action)
    return code is None or "files" in code_effects(code)


def may_change_anything(action: Action) -> bool:
    """Return true if a call can have changed anything lasting: file, variable, cell, or something remote."""
    if action.files or action.variables or action.cells:
        return True
    if action.kind == "command":
        return bool(action.touched) or bool(
            _effects(action) - ({"files"} if action.touched is not None else set())
        )
    return action.reaches != "nothing"


def may_run_tests(action: Action) -> bool:
    """Return whether a call can have run tests."""
    return not (action.files or names_no("program", action.tool)) and "code" in _effects(action)


def may_delete(action: Action) -> bool:
    """Return whether a call can have deleted or removed something that is no file."""
    return may_change_anything(action) and not names_no("delete", action.tool)


def may_send(action: Action, verb: str) -> bool:
    """Return true if a call can have sent something in the sense of `verb`."""
    if action.files or (action.reaches in ("nothing", "workspace") and action.kind != "command"):
        return False
    if action.kind == "other" and names_no("send", action.tool):
        return False
    held = action.sandbox in HELD and not _NEEDS_NO_NETWORK.match(verb)
    return not held and bool(_effects(action) & {"send", "code"})


def may_change_variable(action: Action, name: str) -> bool:
    """Return true if a call can have changed a kernel variable: its code names it, or it was seen changed."""
    # A command runs in another process.
    if action.files or action.kind == "command":
        return False
    if name in (action.variables or ()):
        return True
    code = code_of(action)
    if action.variables is None and code is None:
        return not _CELL_TOOL.search(action.tool) and action.reaches not in ("nothing", "address", "others")
    return (
        code is None
        or re.search(rf"(?<!\w){re.escape(name)}(?!\w)|\b(?:exec|eval|globals|locals|run)\b|%", code)
        is not None
    )


def may_change_cell(action: Action) -> bool:
    """Return whether a call can have changed a cell of the notebook."""
    return changes_cells(action) or is_unknown(action)


def changes_cells(action: Action) -> bool:
    """Return whether a call is one that changes cells, whatever became of it."""
    return action.cells or _CELL_TOOL.search(action.tool) is not None


def is_unknown(action: Action) -> bool:
    """Return true if a call's effects are unknown: its tool does not declare them."""
    known = (
        action.reaches in ("nothing", "workspace", "address", "others")
        or code_of(action) is not None
        or changes_cells(action)
    )
    return action.kind == "other" and not known


def names_file(action: Action, path: str) -> bool:
    """Return whether a call was made with the file, or changed it."""
    last = path.removeprefix("./")
    return is_among(path, (*action.files, *(action.touched or ()))) or any(
        isinstance(value, str) and last.rpartition("/")[2] in value for value in action.args.values()
    )


def is_among(path: str, known: Iterable[str]) -> bool:
    """Return whether a path, or the end of one, is among those that are known."""
    last = path.removeprefix("./").rstrip("/")
    return any(one == last or one.endswith(f"/{last}") or last.endswith(f"/{one}") for one in known)


def _effects(action: Action) -> frozenset[LineEffect]:
    if action.kind == "command":
        return line_effects(_command(action))
    if action.reaches == "nothing":
        return frozenset()
    code = code_of(action)
    return ANY if code is None else code_effects(code)


def _command(action: Action) -> str:
    return str(action.args.get("command", ""))


def code_of(action: Action) -> str | None:
    """Return the code that a call runs; `None` if there is none or it is unknown."""
    code = action.args.get("code")
    return code if isinstance(code, str) else None
