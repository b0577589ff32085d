"""Watch over a command: files that run by themselves are named, and git folders keep what only git writes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kestrel_lab.tools.sandbox.autorun_watch import AutorunWatch, Marks, autorun_watch
from kestrel_lab.tools.sandbox.gitdir.git_guard import GitGuard, GitState
from kestrel_lab.tools.sandbox.mounts import linked_repository


@dataclass(frozen=True, slots=True)
class WorkspaceState:
    """A workspace before a command."""

    marks: Marks
    git: GitState


@dataclass(frozen=True, slots=True)
class CommandWatch:
    """Compares a workspace before and after a command; reading may be too slow for an event loop."""

    autorun: AutorunWatch
    guard: GitGuard
    private: frozenset[str] = frozenset()
    """Git folders of which a command writes objects, refs and the like only, or has a private one."""
    outside: tuple[str, ...] = ()
    """Git folders outside of the workspace, which is a worktree of their repository."""

    @classmethod
    def of(cls, root: str, private: Collection[str] = ()) -> CommandWatch:
        """Return the watch of a workspace; what it has read is remembered from command to command."""
        linked = linked_repository(Path(root))
        if linked is None:
            return cls(autorun_watch(root), git_guard(root), frozenset(private))
        outside = (str(linked.common), str(linked.own))
        return cls(autorun_watch(root), git_guard(root), frozenset((*private, outside[0])), outside)

    @property
    def quick(self) -> bool:
        """True if the next reading takes about a millisecond."""
        return self.autorun.quick and self.guard.quick

    def look(self) -> WorkspaceState:
        """Return the state of the workspace now."""
        marks = self.autorun.look()
        places = (*self.autorun.gitdirs, *self.outside)
        return WorkspaceState(marks, self.guard.look(places, self.private))

    def settle(self, before: WorkspaceState) -> list[str]:
        """Put back what a command may not change in git folders; return notes on that, and on new files
        that run by themselves.
        """
        marks = self.autorun.look()
        after = self.guard.look(
            {*self.autorun.gitdirs, *before.git.folders, *before.git.pointers}, self.private
        )
        return [*self.guard.put_back(before.git, after), *self.autorun.changes(before.marks, marks)]


@lru_cache(maxsize=16)
def git_guard(root: str) -> GitGuard:
    """Return the guard of a workspace's git folders."""
    return GitGuard(root)
