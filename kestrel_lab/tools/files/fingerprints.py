"""Fingerprints of what file tools read: with equal fingerprints an answer can be reused.

Of a file it is what no writer can put back: its number and the time of its last change of any kind. Names and
kinds in folders are compared themselves. What is so new that a second change might leave the same time has no
state yet.
"""

from __future__ import annotations

import asyncio
import stat
import time
from collections.abc import Awaitable
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.tools.files.directory_walk import stamp_of
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import Fingerprint, ToolContext

CHANGING = ""
"""No stored answer may be used now."""
MOST_TREE_LINES = 400
_MOST_WATCHED = 2_000
"""Entries that are compared at most: looking at more costs about what the tool itself does."""
_FRESH_S = 0.05
_COARSE_FRESH_S = 2.5


@dataclass(frozen=True, slots=True)
class PathFingerprint:
    """The state of what the paths in some arguments name: every spelling of a path is the same path."""

    names: tuple[str, ...]
    """The arguments that hold a path, or a list of paths."""
    state: Fingerprint

    def __call__(self, args: dict[str, Json], ctx: ToolContext) -> str | Awaitable[str | None] | None:
        """Return the state."""
        return self.state(args, ctx)

    def spelled(self, args: dict[str, Json], workspace: Workspace) -> dict[str, Json]:
        """`args` with every path as seen from the workspace; one that leads out of it is left as it is."""
        return {
            name: self._path(value, workspace) if name in self.names else value
            for name, value in args.items()
        }

    def _path(self, value: Json, workspace: Workspace) -> Json:
        if isinstance(value, list):
            return [self._path(item, workspace) for item in value]
        with suppress(OSError, ValueError):
            return workspace.relative(value) if isinstance(value, str) else value
        return value


def _of_paths(args: dict[str, Json], ctx: ToolContext) -> str | None:
    paths = args.get("paths")
    if not isinstance(paths, list):
        return None
    states = [_state(ctx.workspace, str(path)) for path in paths]
    if None in states:
        return None
    return CHANGING if CHANGING in states else content_key(states)


async def _of_tree(args: dict[str, Json], ctx: ToolContext) -> str | None:
    depth = args.get("depth")
    if not isinstance(depth, int):
        return None
    return await asyncio.to_thread(_names, ctx.workspace, _path(args), depth, MOST_TREE_LINES, whole=False)


def _path(args: dict[str, Json]) -> str:
    return str(args.get("path", "."))


path_fingerprint = PathFingerprint(("path",), lambda args, ctx: _state(ctx.workspace, _path(args)))
"""The state of the file or directory under `path`."""
paths_fingerprint = PathFingerprint(("paths",), _of_paths)
"""The states of all `paths` together."""
names_fingerprint = PathFingerprint(
    ("path",),
    lambda args, ctx: asyncio.to_thread(_names, ctx.workspace, _path(args), None, _MOST_WATCHED, whole=True),
)
"""The names and kinds of everything under `path`."""
tree_fingerprint = PathFingerprint(("path",), _of_tree)
"""The names and kinds of what `tree` shows of `path`, to its `depth`."""
contents_fingerprint = PathFingerprint(
    ("path",), lambda args, ctx: asyncio.to_thread(_contents, ctx.workspace, _path(args))
)
"""The state of `path`, or of every file under it if it is a directory."""


def _state(workspace: Workspace, path: str) -> str | None:
    try:
        stamp = stamp_of(workspace.stat(path))
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except (OSError, ValueError):
        return None
    return CHANGING if is_fresh(stamp) else ":".join(map(str, stamp))


def is_fresh(stamp: tuple[int, ...]) -> bool:
    """Return true if another change might leave this stamp of a file the same, see `Entry.stamp`."""
    changed_ns = stamp[-1]
    # A file system that keeps whole seconds.
    coarse = changed_ns % 1_000_000_000 == 0
    return time.time() - changed_ns / 1e9 < (_COARSE_FRESH_S if coarse else _FRESH_S)


def _names(workspace: Workspace, path: str, depth: int | None, most: int, *, whole: bool) -> str | None:
    """The first names, one more than `most`; `None` if there are as many and the `whole` counts."""
    try:
        found = [(entry.path, entry.kind) for entry in islice(workspace.walk(path, depth=depth), most + 1)]
    except (OSError, ValueError):
        return None
    return None if whole and len(found) > most else content_key(found)


def _contents(workspace: Workspace, path: str) -> str | None:
    try:
        if not stat.S_ISDIR(workspace.stat(path).st_mode):
            return _state(workspace, path)
        found = [
            (entry.path, entry.kind, entry.stamp) for entry in islice(workspace.walk(path), _MOST_WATCHED + 1)
        ]
    except (OSError, ValueError):
        return None
    if len(found) > _MOST_WATCHED:
        return None
    return CHANGING if any(stamp and is_fresh(stamp) for _, _, stamp in found) else content_key(found)
