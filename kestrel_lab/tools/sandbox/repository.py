"""What of a git repository lies outside a workspace that is a worktree of it: what git needs there, and what a command must not write."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

WRITTEN = ("objects", "refs", "logs")
"""What a commit writes of the repository that all its worktrees share."""
OBEYED = ("commondir", "gitdir", "config.worktree")
"""What of a worktree's own folder tells git where its settings and hooks are."""
_MOST = 4_096


@dataclass(frozen=True, kw_only=True, slots=True)
class Linked:
    """Where the repository of a worktree is."""

    own: Path
    """The worktree's own folder in it."""
    common: Path


def linked_repository(workspace: Path) -> Linked | None:
    """The repository that `workspace` is a worktree of; `None` if it is none, or if only the workspace says so.

    What a workspace says of itself may have been written by anybody. The repository has to name the workspace
    as one of its worktrees.
    """
    try:
        word, _, named = _line(workspace / ".git").partition(": ")
        if word != "gitdir":
            return None
        own = (workspace / named).resolve(strict=True)
        common = own.parent.parent
        back = Path(_line(own / "gitdir"))
        parts = [common / name for name in ("objects", "refs")]
        if own.parent.name != "worktrees" or not all(part.is_dir() and not part.is_symlink() for part in parts):
            return None
        if (own / _line(own / "commondir")).resolve() != common or (own / back).resolve() != (workspace / ".git").resolve():
            return None
    except (OSError, ValueError):
        return None
    return Linked(own=own, common=common)


def _line(file: Path) -> str:
    """The one line of a small regular file."""
    fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(fd, encoding="utf-8") as opened:
        return opened.read(_MOST).rstrip("\n")
