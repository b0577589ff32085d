"""Files that programs run or obey unasked, such as `conftest.py`: the approval of a change to one says so, and a command that changes one is reported.

No mount can keep them out: a command may write a `conftest.py` or make a repository anywhere in the workspace.
"""

from __future__ import annotations

import os
import posixpath
import re
import stat
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

_BY_NAME = {
    "conftest.py": "pytest runs it whenever tests are run",
    "sitecustomize.py": "Python runs it whenever it starts here",
    "usercustomize.py": "Python runs it whenever it starts here",
    "setup.py": "installing the project runs it",
    "noxfile.py": "nox runs it",
    "manage.py": "Django's commands run it",
    "makefile": "make runs what is in it",
    "gnumakefile": "make runs what is in it",
    "justfile": "just runs what is in it",
    "package.json": "npm runs its scripts, some when it installs",
    ".envrc": "direnv runs it in this folder",
    ".npmrc": "npm obeys it",
    ".gitattributes": "git obeys it",
    ".gitmodules": "git obeys it",
    ".pre-commit-config.yaml": "every commit runs what it names",
    "pyproject.toml": "tools that work here obey it, and installing runs what it names",
    "tox.ini": "tox runs what it names",
    "dockerfile": "building the image runs it",
    ".mcp.json": "programs start the servers that it names",
    "kestrel.toml": "its settings hold for every run in this folder",
    **dict.fromkeys((".bashrc", ".bash_profile", ".profile", ".zshrc", ".zprofile", ".zshenv"), "every new shell runs it"),
}
_BY_END = {".pth": "Python runs its import lines whenever it starts", ".ipynb": "its cells are run by whoever runs the notebook"}
_BY_FOLDER = {
    ".github/workflows": "the forge runs it",
    ".vscode": "the editor obeys it",
    ".idea": "the editor obeys it",
    ".husky": "every commit runs it",
    ".ipython": "every kernel runs what is in it",
    ".jupyter": "Jupyter obeys it",
}
MOST_FOLDERS = 20_000
"""Folders that are watched beneath a workspace at most."""
_OBEYED = {
    "config": "git obeys it, and may run what it names",
    "config.worktree": "git obeys it, and may run what it names",
    "commondir": "it says where git finds settings and hooks",
    "gitdir": "it says where git finds a worktree",
    "info/attributes": "git obeys it",
    "objects/info/alternates": "git reads objects from where it says",
}
_POINTS = re.compile(r"^\s*(path|hookspath)\s*=\s*\"?([^\"\n#;]+)", re.IGNORECASE | re.MULTILINE)
"""Lines of a repository's settings that name another file of settings, or a folder of hooks."""
_TODO = "rebase-merge/git-rebase-todo"
_EXEC = re.compile(rb"(?m)^\s*(?:x|exec)\s")
"""A line of it that names a program; the others pick commits."""
_BARE = {"HEAD", "objects", "refs"}
_TICK_NS = 50_000_000
"""A folder that changed within this time may change again without a new time stamp, so it is read again next time."""
_FEW = 500
_MOST_TOLD = 10

Marks = dict[str, tuple[str, int, int, int]]
"""Files by path, each with a clause that says what runs or obeys it, and numbers that change when the file does."""


def autorun_reason(path: str) -> str:
    """Return what runs or obeys a file without being told to, as a clause; empty for a file that nobody knows of."""
    normal = posixpath.normpath(path).casefold()
    name = posixpath.basename(normal)
    if said := _BY_NAME.get(name) or _BY_END.get(posixpath.splitext(name)[1]):
        return said
    return next((said for folder, said in _BY_FOLDER.items() if f"/{folder}/" in f"/{normal}"), "")


def with_autorun_warning(path: str, preview: str) -> str:
    """Return a preview of a change to `path`, with a last line that says who will run it."""
    said = autorun_reason(path) if preview else ""
    return f"{preview.rstrip(chr(10))}\nNote: {said}." if said else preview


@dataclass(frozen=True, slots=True)
class _Folder:
    """What was found in a folder when its entries last changed."""

    changed: tuple[int, int]
    inner: tuple[str, ...]
    files: tuple[tuple[str, str], ...]
    """Each with a clause that says what runs or obeys it."""
    gitdirs: tuple[str, ...]


@dataclass(slots=True)
class AutorunWatch:
    """The files beneath `root` that some program runs or obeys unasked; only changed folders are read again."""

    root: str
    full: bool = False
    """Whether the workspace has more folders than are watched."""
    _known: dict[str, _Folder] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def quick(self) -> bool:
        """Whether the next reading takes about a millisecond, because the folders are known and few."""
        return 0 < len(self._known) <= _FEW

    def look(self) -> Marks:
        """Return the files as they are now; the note on a command compares two such readings."""
        with self._lock:
            found: Marks = {}
            seen: dict[str, _Folder] = {}
            todo = [self.root]
            self.full = False
            while todo:
                if len(seen) >= MOST_FOLDERS:
                    self.full = True
                    break
                place = todo.pop()
                if (folder := self._folder(place)) is None:
                    continue
                seen[place] = folder
                todo += folder.inner
                for file, who in folder.files:
                    _note(found, file, who)
                for gitdir in folder.gitdirs:
                    for file, who in _files_git_runs(gitdir, self.root):
                        _note(found, file, who)
            self._known = seen
            return found

    def told(self, before: Marks, after: Marks) -> list[str]:
        """Return notes on what changed between two readings."""
        changed = sorted(path for path, mark in after.items() if before.get(path) != mark)
        names = [f"{os.path.relpath(path, self.root)} ({after[path][0]})" for path in changed[:_MOST_TOLD]]
        more = f" and {len(changed) - _MOST_TOLD} more" if len(changed) > _MOST_TOLD else ""
        told = []
        if changed:
            told.append(f"files that run by themselves are new or changed, look at them before your next command: {', '.join(names)}{more}")
        if self.full:
            told.append(f"the workspace has more than {MOST_FOLDERS:,} folders: files that run by themselves in the rest go unnoticed")
        return told

    def _folder(self, place: str) -> _Folder | None:
        try:
            now = os.lstat(place)
            changed = (now.st_ino, now.st_ctime_ns)
            known = self._known.get(place)
            if known is not None and known.changed == changed:
                return known
            fresh = time.time_ns() - now.st_ctime_ns < _TICK_NS
            return _read(place, self.root, (0, 0) if fresh else changed)
        except OSError:  # gone, or not ours to read
            return None


@lru_cache(maxsize=16)
def autorun_watch(root: str) -> AutorunWatch:
    """Return the watch of a workspace, which remembers folders from command to command."""
    return AutorunWatch(root)


def _note(found: Marks, file: str, who: str) -> None:
    try:
        mark = os.lstat(file)
    except OSError:
        return
    if file.endswith(_TODO):  # carried over by links, which changes its times
        found[file] = (who, mark.st_ino, mark.st_mtime_ns, mark.st_size)
    elif not stat.S_ISDIR(mark.st_mode):  # by ctime, which no command can set back
        found[file] = (who, mark.st_ino, mark.st_ctime_ns, mark.st_size)


def _read(place: str, root: str, changed: tuple[int, int]) -> _Folder:
    inner, files, gitdirs, names = [], [], [], set()
    with os.scandir(place) as entries:
        for entry in entries:
            names.add(entry.name)
            if entry.name.lower() == ".git":
                gitdirs.append(entry.path)
            elif entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            elif who := autorun_reason(os.path.relpath(entry.path, root)):
                files.append((entry.path, who))
    if names >= _BARE:
        gitdirs.append(place)
    return _Folder(changed, tuple(inner), tuple(files), tuple(gitdirs))


def _files_git_runs(place: str, root: str) -> Iterator[tuple[str, str]]:
    """Yield what git runs or obeys because of what is at `place`, a repository's folder or a file or link that leads to one, and why."""
    if not os.path.isdir(place) or os.path.islink(place):
        yield place, "it says where git finds settings and hooks"
    if not os.path.isdir(place):
        return
    yield from ((f"{place}/{name}", who) for name, who in _OBEYED.items())
    if _names_program(f"{place}/{_TODO}"):
        yield f"{place}/{_TODO}", "git runs the programs that it names"
    yield from _hooks(f"{place}/hooks")
    for settings in ("config", "config.worktree"):
        for hook_folder, target in _configured_places(f"{place}/{settings}", place):
            if target.startswith(f"{os.path.realpath(root)}/"):
                yield from _hooks(target) if hook_folder else [(target, "the settings of a repository include it")]
    for name in _entries(f"{place}/worktrees"):
        yield from ((f"{place}/worktrees/{name}/{file}", _OBEYED[file]) for file in ("commondir", "gitdir", "config.worktree"))
    for folder, inner, files in os.walk(f"{place}/modules"):  # each in a folder like the submodule's own, however deep
        if {*inner, *files} >= _BARE:
            inner.clear()
            yield from _files_git_runs(folder, root)


def _hooks(folder: str) -> Iterator[tuple[str, str]]:
    return ((f"{folder}/{name}", "git runs it") for name in _entries(folder) if not name.endswith(".sample"))


def _configured_places(settings: str, gitdir: str) -> Iterator[tuple[bool, str]]:
    """Yield the places that a repository's settings name, and whether each is a folder of hooks."""
    try:
        fd = os.open(settings, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, encoding="utf-8", errors="replace") as file:
            text = file.read(1_000_000)
    except OSError:
        return
    for key, value in _POINTS.findall(text):
        hook_folder = key.lower() != "path"
        base = os.path.dirname(gitdir) if hook_folder else gitdir
        yield hook_folder, os.path.realpath(os.path.join(base, os.path.expanduser(value.strip())))


def _entries(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


def _names_program(todo: str) -> bool:
    try:
        fd = os.open(todo, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            return _EXEC.search(file.read(1_000_000)) is not None
    except OSError:
        return False
