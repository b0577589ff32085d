"""The state of what file tools read: equal states, equal answers.

Of a file it is what no writer can put back: its number and the time of its last change of any kind. Names and kinds in
folders are compared themselves. What is so new that a second change might leave the same time has no state yet.
"""

from __future__ import annotations

import asyncio
import stat
import time
from itertools import islice

from kestrel_lab.core.jsontypes import Json, content_key
from kestrel_lab.tools.listing import stamp_of
from kestrel_lab.tools.registry import ToolContext
from kestrel_lab.tools.workspace import Workspace

CHANGING = ""
"""No stored answer may be used now."""
MOST_TREE_LINES = 400
_MOST_WATCHED = 2_000
"""Entries that are compared at most: looking at more costs about what the tool itself does."""
_FRESH_S = 0.05
_COARSE_FRESH_S = 2.5


def path_fingerprint(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """The state of the file or directory under `path`."""
    return _state(ctx.workspace, str(args.get("path", ".")))


def paths_fingerprint(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """The states of all `paths` together."""
    paths = args.get("paths")
    if not isinstance(paths, list):
        return None
    states = [_state(ctx.workspace, str(path)) for path in paths]
    if None in states:
        return None
    return CHANGING if CHANGING in states else content_key(states)


async def names_fingerprint(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """The names and kinds of everything under `path`."""
    return await asyncio.to_thread(_names, ctx.workspace, str(args.get("path", ".")), None, _MOST_WATCHED, whole=True)


async def tree_fingerprint(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """The names and kinds of what `tree` shows of `path`, to its `depth`."""
    depth = args.get("depth")
    if not isinstance(depth, int):
        return None
    return await asyncio.to_thread(_names, ctx.workspace, str(args.get("path", ".")), depth, MOST_TREE_LINES + 1, whole=False)


async def contents_fingerprint(args: dict[str, Json], ctx: ToolContext) -> str | None:
    """The state of `path`, or of every file under it if it is a directory."""
    return await asyncio.to_thread(_contents, ctx.workspace, str(args.get("path", ".")))


def _state(workspace: Workspace, path: str) -> str | None:
    try:
        stamp = stamp_of(workspace.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):
        return None
    return CHANGING if _fresh(stamp) else ":".join(map(str, stamp))


def _fresh(stamp: tuple[int, ...]) -> bool:
    changed_ns = stamp[-1]
    coarse = changed_ns % 1_000_000_000 == 0  # a file system that keeps whole seconds
    return time.time() - changed_ns / 1e9 < (_COARSE_FRESH_S if coarse else _FRESH_S)


def _names(workspace: Workspace, path: str, depth: int | None, most: int, *, whole: bool) -> str | None:
    """Up to `most` names; `None` if there are more and the `whole` counts."""
    try:
        found = [(entry.path, entry.kind) for entry in islice(workspace.walk(path, depth=depth), most + 1)]
    except (OSError, ValueError):
        return None
    return None if whole and len(found) > most else content_key(found)


def _contents(workspace: Workspace, path: str) -> str | None:
    try:
        if not stat.S_ISDIR(workspace.stat(path).st_mode):
            return _state(workspace, path)
        found = [(entry.path, entry.kind, entry.stamp) for entry in islice(workspace.walk(path), _MOST_WATCHED + 1)]
    except (OSError, ValueError):
        return None
    if len(found) > _MOST_WATCHED:
        return None
    return CHANGING if any(stamp and _fresh(stamp) for _, _, stamp in found) else content_key(found)
