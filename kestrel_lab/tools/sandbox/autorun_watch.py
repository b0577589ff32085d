"""Files that programs run or obey unasked, such as `conftest.py`: which of them a command made or changed.

The approval of a change to such a file says so, and a command that changed one is reported. Mounts cannot
prevent it: a command may write a `conftest.py` or make a repository anywhere in the workspace.
`autorun_list.py` says which files these are.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from kestrel_lab.tools.files.workspace import SKIPPED
from kestrel_lab.tools.sandbox.autorun_git import files_git_runs
from kestrel_lab.tools.sandbox.autorun_list import (
    autorun_reason,
    is_program_folder,
    program_reason,
    shadowed_module,
    shadows,
    unchecked_bytecode,
)
from kestrel_lab.tools.sandbox.gitdir.git_guard import BARE

MOST_FOLDERS = 20_000
"""Most folders of a workspace that are watched."""
_TICK_NS = 50_000_000
"""A folder that changed this recently may change again with the same time stamp, so it is read again."""
_FEW = 500
"""Folders up to which reading all of them takes about a millisecond."""
_MAX_NAMED = 10
"""Files that a note names; of more it has the number."""

Marks = dict[str, tuple[str, int, int, int]]
"""Files by path, each with a clause on what runs or obeys it, and numbers that change with the file."""


def with_autorun_warning(path: str, preview: str) -> str:
    """Return the preview of a change to `path` with a last line on what will run it."""
    said = autorun_reason(path) if preview else ""
    return f"{preview.rstrip(chr(10))}\nNote: {said}." if said else preview


@dataclass(frozen=True, slots=True)
class _Folder:
    """Content of a folder when its entries last changed."""

    changed: tuple[int, int]
    inner: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    """Each with a clause on what runs or obeys it."""
    programs: tuple[tuple[str, str], ...]
    """Those that only matter while they are executable."""
    gitdirs: tuple[str, ...]


_Read = Callable[[str, str, tuple[int, int]], _Folder]


@dataclass(slots=True)
class AutorunWatch:
    """Watches files below `root` that some program runs or obeys unasked; reads only changed folders."""

    root: str
    full: bool = False
    """True if the workspace has more folders than are watched."""
    _known: dict[str, _Folder] = field(default_factory=dict)
    gitdirs: tuple[str, ...] = ()
    """The git folders, and files and links named `.git`, of the last reading."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def quick(self) -> bool:
        """True if the next reading takes about a millisecond: few folders, all known."""
        return 0 < len(self._known) <= _FEW

    def look(self) -> Marks:
        """Return the files as they are now; the note on a command compares two such readings."""
        # Commands of one run may end at the same time, and each reading replaces what is known.
        with self._lock:
            found: Marks = {}
            seen: dict[str, _Folder] = {}
            gitdirs: list[str] = []
            todo = [self.root]
            self.full = False
            while todo:
                if len(seen) >= MOST_FOLDERS:
                    self.full = True
                    break
                place = todo.pop()
                if (folder := self._folder(place, self._known, _read)) is None:
                    continue
                seen[place] = folder
                todo += folder.inner
                for file, who in folder.files:
                    _note(found, file, who)
                for file, who in folder.programs:
                    _note(found, file, who, executable=True)
                for gitdir in folder.gitdirs:
                    for file, who in files_git_runs(gitdir, self.root):
                        _note(found, file, who)
                gitdirs += folder.gitdirs
            self._known, self.gitdirs = seen, tuple(gitdirs)
            return found

    def changes(self, before: Marks, after: Marks) -> list[str]:
        """Return notes on what changed between two readings."""
        changed = sorted(path for path, mark in after.items() if before.get(path) != mark)
        names = [f"{os.path.relpath(path, self.root)} ({after[path][0]})" for path in changed[:_MAX_NAMED]]
        more = f" and {len(changed) - _MAX_NAMED} more" if len(changed) > _MAX_NAMED else ""
        changes = []
        if changed:
            changes.append(
                "files that run by themselves are new or changed, look at them before your next "
                f"command: {', '.join(names)}{more}"
            )
        if self.full:
            changes.append(
                f"the workspace has more than {MOST_FOLDERS:,} folders: files that run by themselves "
                "in the rest go unnoticed"
            )
        return changes

    def _folder(self, place: str, folders: Mapping[str, _Folder], read: _Read) -> _Folder | None:
        try:
            now = os.lstat(place)
            # The time of a folder changes with its entries, not with the contents of its files: those are
            # compared by the marks.
            changed = (now.st_ino, now.st_ctime_ns)
            known = folders.get(place)
            if known is not None and known.changed == changed:
                return known
            fresh = time.time_ns() - now.st_ctime_ns < _TICK_NS
            return read(place, self.root, (0, 0) if fresh else changed)
        except OSError:  # gone, or not ours to read
            return None


@lru_cache(maxsize=16)
def autorun_watch(root: str) -> AutorunWatch:
    """Return the watch of a workspace, which remembers folders from command to command."""
    return AutorunWatch(root)


def _note(found: Marks, file: str, who: str, *, executable: bool = False) -> None:
    try:
        mark = os.lstat(file)
    except OSError:
        return
    if executable and not (stat.S_ISLNK(mark.st_mode) or mark.st_mode & 0o111):
        return
    if not stat.S_ISDIR(mark.st_mode):
        # By ctime, which no command can set back.
        found[file] = (who, mark.st_ino, mark.st_ctime_ns, mark.st_size)


def _read(place: str, root: str, changed: tuple[int, int]) -> _Folder:
    inner, files, programs, gitdirs = [], [], [], []
    with os.scandir(place) as entries:
        found = list(entries)
    names = {entry.name for entry in found}
    # Files below `node_modules`, caches and the like come from installers, not from the agent's commands.
    own = SKIPPED.isdisjoint(os.path.relpath(place, root).split("/"))
    runs_programs = own and is_program_folder(place, root)
    # An interpreter or a package manager runs what is there by its name alone, also below `.venv`.
    installed_programs = not own and is_program_folder(place, root)
    runs_scripts = own and "__init__.py" not in names
    for entry in found:
        if entry.name.lower() == ".git":
            gitdirs.append(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            inner.append(entry.path)
        elif (
            who := autorun_reason(os.path.relpath(entry.path, root))
            or (_script_beside(entry.name) if runs_scripts else "")
        ) or (entry.name.endswith(".pyc") and (who := unchecked_bytecode(entry.path))):
            files.append((entry.path, who))
        elif installed_programs:
            programs.append((entry.path, "it is a program that an environment runs by its name"))
        elif runs_programs and (who := program_reason(place, entry.name)):
            programs.append((entry.path, who))
    # A bare repository: git takes a folder with these names for one, wherever it is.
    if names >= BARE:
        gitdirs.append(place)
    return _Folder(changed, tuple(inner), tuple(files), tuple(programs), tuple(gitdirs))


def _script_beside(name: str) -> str:
    """Return why a file next to scripts runs with them: they import it instead of a standard module."""
    module = shadowed_module(name, installed=False)
    return shadows(module) if module else ""
