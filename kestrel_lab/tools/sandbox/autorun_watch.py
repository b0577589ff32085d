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
from kestrel_lab.tools.sandbox.autorun_git import BARE, LINKS, files_git_runs, hidden_changes, is_state
from kestrel_lab.tools.sandbox.autorun_list import (
    autorun_reason,
    is_program_folder,
    names_in,
    program_reason,
    shadowed_module,
    shadows,
)

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
    _linked: dict[str, _Folder] = field(default_factory=dict)
    """The same of folders of repositories in which only links are looked for."""
    _indexes: dict[str, tuple[tuple[int, ...], dict[str, str]]] = field(default_factory=dict)
    """By path of an index, what it was when it was read, and the files that it hides."""
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
            linked: dict[str, _Folder] = {}
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
                    self._look_at_links(gitdir, found, linked)
                    self._look_at_index(gitdir, found)
            self._known, self._linked = seen, linked
            return found

    def _look_at_links(self, gitdir: str, found: Marks, linked: dict[str, _Folder]) -> None:
        """Record links in git folders where git makes none: git would write where they lead."""
        todo = [f"{gitdir}/{name}" for name in LINKS if not os.path.islink(f"{gitdir}/{name}")]
        while todo and len(linked) < MOST_FOLDERS:
            place = todo.pop()
            if (folder := self._folder(place, self._linked, _read_links)) is not None:
                linked[place] = folder
                todo += folder.inner
                for file, who in folder.files:
                    _note(found, file, who)

    def _look_at_index(self, gitdir: str, found: Marks) -> None:
        """Record files whose changes the index hides from git."""
        for name in ("index", *(one for one in names_in(gitdir) if one.startswith("sharedindex."))):
            place = f"{gitdir}/{name}"
            try:
                status = os.lstat(place)
            except OSError:
                continue
            stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
            if self._indexes.get(place, ((), {}))[0] != stamp:
                self._indexes[place] = (stamp, hidden_changes(place))
            for file, who in self._indexes[place][1].items():
                found[f"{os.path.dirname(gitdir)}/{file}, marked in {os.path.relpath(place, self.root)}"] = (
                    who,
                    0,
                    0,
                    0,
                )

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
    # A file of git's state is carried over from the private folder by a hard link, which changes its ctime.
    if is_state(file):
        found[file] = (who, mark.st_ino, mark.st_mtime_ns, mark.st_size)
    elif not stat.S_ISDIR(mark.st_mode):
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
    runs_scripts = own and "__init__.py" not in names
    for entry in found:
        if entry.name.lower() == ".git":
            gitdirs.append(entry.path)
        elif entry.is_dir(follow_symlinks=False):
            inner.append(entry.path)
        elif who := autorun_reason(os.path.relpath(entry.path, root)) or (
            _script_beside(entry.name) if runs_scripts else ""
        ):
            files.append((entry.path, who))
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


def _read_links(place: str, root: str, changed: tuple[int, int]) -> _Folder:
    """Read a folder of objects, refs or logs: links, and refs that replace objects."""
    inner, files = [], []
    replaces = place.endswith("/refs/replace")
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_symlink():
                files.append((entry.path, f"what git writes there is written to {os.readlink(entry.path)}"))
            elif entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            elif replaces:
                files.append((entry.path, "git reads another object in place of the one that it names"))
    return _Folder(changed, tuple(inner), tuple(files), (), ())
