"""Lookup of programs that this package starts, outside of the workspaces that agents can write to.

`PATH` often holds folders of the workspace: `.venv/bin`, `bin`, `node_modules/.bin`, `.`. What an agent
writes there as `git` or `bash` must not run outside of the sandbox because a check or a search looks for a
program of that name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable
from typing import Final

_workspaces: Final[set[str]] = set()
_found: Final[dict[tuple[str, str, frozenset[str]], str]] = {}
"""What was found, until there is another workspace."""


def exclude_folder(workspace: str | os.PathLike[str]) -> None:
    """Stop using programs and modules from this folder."""
    real = os.path.realpath(workspace)
    if real not in _workspaces:
        _workspaces.add(real)
        _found.clear()


def in_workspace(place: str, but: Collection[str] = ()) -> bool:
    """Whether the real path `place` is in a folder that agents of this process work in, or in `but`."""
    while place not in _workspaces and place not in but:
        above = os.path.dirname(place)
        if above == place:
            return False
        place = above
    return True


def find_program(
    name: str, *, outside: Iterable[str | os.PathLike[str]] = (), path: str | None = None
) -> str | None:
    """Return the absolute path of the program `name`, or `None` where none may be used.

    `path`, by default the variable `PATH`, is searched without relative folders, folders inside of a
    workspace or of `outside`, and folders that everybody may write. A link that leads into one of these is
    not followed either. What was found is kept, so a later change of a folder on the way changes nothing.
    """
    if os.path.basename(name) != name:
        raise ValueError(f"{name!r} is not a plain name of a program")
    path = os.environ.get("PATH", os.defpath) if path is None else path
    closed = frozenset(os.path.realpath(folder) for folder in outside)
    key = (name, path, closed)
    if key not in _found:
        for folder in path.split(os.pathsep):
            program = os.path.join(folder, name)
            if (
                _is_open_to_agents(folder, closed)
                or not os.path.isfile(program)
                or not os.access(program, os.X_OK)
            ):
                continue
            if not in_workspace(os.path.realpath(program), closed):
                _found[key] = program
                break
    return _found.get(key)


def _is_open_to_agents(folder: str, closed: frozenset[str]) -> bool:
    if not os.path.isabs(folder) or in_workspace(os.path.realpath(folder), closed):
        return True
    try:
        return bool(os.stat(folder).st_mode & 0o002)
    except OSError:
        # What cannot be looked at is taken to be open to everybody.
        return True


def beside_python(name: str, *, outside: Iterable[str | os.PathLike[str]] = ()) -> str | None:
    """Return the program that was installed with this Python's packages, or else the one on the `PATH`.

    An environment inside of the workspace comes last: a process that can change it can change this package
    too.
    """
    folder, closed = os.path.dirname(sys.executable), [os.path.realpath(place) for place in outside]
    beside = os.path.join(folder, name)
    there = os.access(beside, os.X_OK)
    if there and not in_workspace(os.path.realpath(folder), closed):
        return beside
    return find_program(name, outside=closed) or (beside if there else None)
