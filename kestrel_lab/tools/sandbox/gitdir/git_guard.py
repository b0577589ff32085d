"""Guard of git folders: what a command changed below `.git` that git's plain work does not make is put back.

`git_grammar` says what passes. In bubblewrap a command cannot reach the folder of the workspace's own
repository, see `private_gitdir`; its objects, refs and logs, and all other repositories of a workspace, it
writes directly, as it does everything without bubblewrap. What is put back is kept in a folder of the
workspace, from which a person can take it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from kestrel_lab.tools.sandbox.gitdir.git_grammar import (
    MOST_BYTES,
    MOST_TEXT,
    GitFolder,
    is_object_name,
    refusal,
    state_of,
)
from kestrel_lab.tools.sandbox.gitdir.git_index import cleared_marks, hidden_entries
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import LIVE, PREFIX, is_carried_over
from kestrel_lab.tools.sandbox.gitdir.refused_files import RefusedFiles, is_below, read_bounded

BARE = frozenset({"HEAD", "objects", "refs"})
_TICK_NS = 50_000_000
_MAX_NAMED = 10
_FEW = 100
"""Files up to which looking at all of them takes about a millisecond."""
_LONG = re.compile(r"(?:.*/)?(?:index|sharedindex\.[0-9a-f]+|packed-refs|logs/.+)")
"""Files of which more than `MOST_TEXT` bytes are kept to be put back."""
_POINTS_HERE = re.compile(r"/(?:worktrees|modules)/")


@dataclass(frozen=True, slots=True)
class _File:
    """A file, link or pipe of a git folder."""

    kind: int
    """The type of file, as in its mode."""
    executable: bool
    content: bytes | None
    """`None` for what is not a regular file, is too long, or cannot be read."""
    size: int


@dataclass(frozen=True, slots=True)
class GitState:
    """The git folders of a workspace at one moment: files by their path in the folder, by folder."""

    folders: Mapping[str, Mapping[str, _File]]
    pointers: Mapping[str, _File]
    """Files and links named `.git`, by path."""


@dataclass(slots=True)
class GitGuard:
    """Reads the git folders below `root`, and puts back what a command may not change."""

    root: str
    _count: int = 0
    """Files of the last reading."""
    _contents: dict[str, tuple[tuple[int, ...], bytes | None]] = field(default_factory=dict)
    """By path, what the file was when it was read."""
    _objects: dict[str, tuple[tuple[int, int], tuple[str, ...], tuple[str, ...]]] = field(
        default_factory=dict
    )
    """By folder of objects: its stamp, its folders, and its entries that are no objects."""

    @property
    def quick(self) -> bool:
        """True if the next reading takes about a millisecond: few files, all read before."""
        return self._count <= _FEW

    def look(self, places: Collection[str], private: Collection[str] = ()) -> GitState:
        """Return the state of the git folders, links and files at `places`.

        Of those that are `private`, for which a command has a folder of its own, only what it writes
        directly.
        """
        folders: dict[str, dict[str, _File]] = {}
        pointers: dict[str, _File] = {}
        for place in places:
            if os.path.isdir(place) and not os.path.islink(place):
                for folder in git_folders([place]):
                    folders[folder] = dict(self._files(folder, direct_only=folder in private))
            elif (pointer := self._file(place)) is not None:
                pointers[place] = pointer
        self._count = sum(map(len, folders.values()))
        return GitState(folders, pointers)

    def put_back(self, before: GitState, after: GitState) -> list[str]:
        """Undo what differs and is not plain work of git; return notes about it."""
        refused: dict[str, str] = {}
        for folder, files in after.folders.items():
            old = before.folders.get(folder, {})
            for name, reason in self._refused(folder, old, files).items():
                refused[f"{folder}/{name}"] = reason
        for path in sorted({*before.pointers, *after.pointers}):
            if reason := self._pointer_refusal(path, before.pointers.get(path), after.pointers.get(path)):
                refused[path] = reason
        aside = RefusedFiles(self.root)
        for path in sorted(refused, key=lambda path: path.count("/")):
            aside.move(path, os.path.relpath(path, self.root))
        for path in refused:
            self._restore(path, _old_file(before, path))
        notes = [_note(self.root, refused, aside)] if refused else []
        for folder, files in after.folders.items():
            notes += self._without_hiding_marks(folder, before.folders.get(folder, {}), files)
        return notes

    def _refused(self, folder: str, old: Mapping[str, _File], new: Mapping[str, _File]) -> dict[str, str]:
        """Return the changes of a folder that do not pass, with reasons."""
        about = GitFolder(worktree=_worktree_of(folder))
        refused: dict[str, str] = {}
        for name in {*old, *new}:
            was, now = old.get(name), new.get(name)
            if was == now:
                continue
            if reason := self._file_refusal(folder, name, was, now, about):
                refused[name] = reason
        for state, reason in {
            state: why for name, why in refused.items() for state in state_of(name)
        }.items():
            below = [name for name in {*old, *new} if name.startswith(f"{state}/")]
            refused |= {name: refused.get(name, reason) for name in below}
        return refused

    def _file_refusal(
        self, folder: str, name: str, was: _File | None, now: _File | None, about: GitFolder
    ) -> str:
        if now is None:
            return refusal(name, b"" if was is None else was.content, None, about)
        if not stat.S_ISREG(now.kind):
            return _type_reason(f"{folder}/{name}")
        if is_object_name(name):
            return ""
        if now.content is None:
            return f"it cannot be read, or git does not write so much there: {now.size:,} bytes"
        if was is not None and was.content == now.content and was.executable == now.executable:
            return ""
        if name.startswith("worktrees/") and name.endswith("/gitdir"):
            target = now.content.decode("utf-8", "replace").rstrip("\n")
            if not is_below(os.path.join(folder, os.path.dirname(name), target), self.root):
                return "it names a worktree outside of the workspace"
        return refusal(name, None if was is None else was.content, now.content, about)

    def _pointer_refusal(self, path: str, was: _File | None, now: _File | None) -> str:
        if was == now or (now is None and (os.path.isdir(path) or path != f"{self.root}/.git")):
            return ""
        if now is not None and now.content is not None and now.content.startswith(b"gitdir: "):
            target = now.content[len(b"gitdir: ") :].decode("utf-8", "replace").rstrip("\n")
            named = os.path.realpath(os.path.join(os.path.dirname(path), target))
            if is_below(named, self.root) and _POINTS_HERE.search(named) and os.path.isdir(named):
                return ""
        return "it says where git finds settings and hooks"

    def _files(self, folder: str, *, direct_only: bool) -> Iterator[tuple[str, _File]]:
        """Yield the files of a git folder; of its objects those that are none."""
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            below = place[len(folder) + 1 :]
            try:
                entries = [*os.scandir(place)]
            except OSError:
                continue
            for entry in entries:
                name = f"{below}/{entry.name}" if below else entry.name
                if not below and (
                    entry.name.startswith(PREFIX)
                    or (direct_only and entry.name not in LIVE and not is_carried_over(entry.name))
                ):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if name == "objects":
                        yield from self._wrong_objects(folder)
                    elif name != "modules":
                        waiting.append(entry.path)
                elif (file := self._file(entry.path)) is not None:
                    yield name, file

    def _wrong_objects(self, folder: str) -> Iterator[tuple[str, _File]]:
        waiting = [f"{folder}/objects"]
        while waiting:
            place = waiting.pop()
            try:
                status = os.lstat(place)
                stamp = (status.st_ino, status.st_ctime_ns)
                seen = self._objects.get(place)
                if seen is None or seen[0] != stamp:
                    seen = (stamp, *_read_objects(place, folder))
                    if time.time_ns() - status.st_ctime_ns > _TICK_NS:
                        self._objects[place] = seen
            except OSError:
                continue
            waiting += seen[1]
            for path in seen[2]:
                if (file := self._file(path)) is not None:
                    yield path[len(folder) + 1 :], file

    def _file(self, path: str) -> _File | None:
        try:
            status = os.lstat(path)
        except OSError:
            return None
        kind, content = stat.S_IFMT(status.st_mode), None
        if stat.S_ISREG(status.st_mode):
            stamp = (status.st_ino, status.st_ctime_ns, status.st_size)
            seen = self._contents.get(path)
            if seen is not None and seen[0] == stamp:
                content = seen[1]
            else:
                content = read_bounded(path, MOST_BYTES if _LONG.fullmatch(path) else MOST_TEXT)
                if time.time_ns() - status.st_ctime_ns > _TICK_NS:
                    self._contents[path] = (stamp, content)
        return _File(kind, bool(status.st_mode & 0o111), content, status.st_size)

    def _restore(self, path: str, file: _File | None) -> None:
        """Write a file as it was; what cannot be written again is left out."""
        parent = os.path.dirname(path)
        if file is None or file.content is None:
            return
        with suppress(OSError):
            os.makedirs(parent, exist_ok=True)
            if os.path.realpath(parent) != os.path.join(
                os.path.realpath(os.path.dirname(parent)), os.path.basename(parent)
            ):
                return  # a link took the place of the folder
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o777 if file.executable else 0o666), "wb") as written:
                written.write(file.content)

    def _without_hiding_marks(
        self, folder: str, old: Mapping[str, _File], new: Mapping[str, _File]
    ) -> Iterator[str]:
        """Clear the marks in indexes by which git would no longer show changes of files."""
        for name, now in new.items():
            if (
                not re.fullmatch(r"(?:worktrees/[^/]+/)?(?:index|sharedindex\..+)", name)
                or now.content is None
            ):
                continue
            was = old.get(name)
            if was == now:
                continue
            before = {} if was is None or was.content is None else hidden_entries(was.content)
            top = _files_of(folder, name)
            hidden = {
                path: how
                for path, how in hidden_entries(now.content).items()
                if path not in before and (how == "assume-unchanged" or _is_file(f"{top}/{path}"))
            }
            if not hidden:
                continue
            shown = [
                f"{os.path.relpath(top, self.root)}/{path} ({how})".removeprefix("./")
                for path, how in hidden.items()
            ]
            listed = _named(shown)
            index = os.path.relpath(f"{folder}/{name}", self.root)
            content = None if name.startswith("sharedindex") else cleared_marks(now.content, hidden)
            if content is not None and _replace(f"{folder}/{name}", content):
                yield f"marks by which git shows no changes of files were cleared in {index}: {listed}"
            else:
                yield (
                    f"git shows no changes of files that the command marked in {index}: {listed}. To clear a "
                    "mark: git update-index --no-assume-unchanged --no-skip-worktree FILE"
                )


def _note(root: str, refused: Mapping[str, str], aside: RefusedFiles) -> str:
    shown = [f"{os.path.relpath(path, root)} ({reason})" for path, reason in sorted(refused.items())]
    return f"what git's own work does not make below .git was put back: {_named(shown)}{aside.note()}"


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def _old_file(before: GitState, path: str) -> _File | None:
    if path in before.pointers:
        return before.pointers[path]
    for folder, files in before.folders.items():
        if path.startswith(f"{folder}/") and (file := files.get(path[len(folder) + 1 :])) is not None:
            return file
    return None


def git_folders(places: Iterable[str]) -> Iterator[str]:
    """Yield the folders among `places`, and the git folders of their submodules."""
    for place in places:
        if os.path.isdir(place) and not os.path.islink(place):
            yield place
            yield from _submodule_folders(place)


def _submodule_folders(gitdir: str) -> Iterator[str]:
    """Yield the git folders of submodules, however deep they lie."""
    for folder, inner, files in os.walk(f"{gitdir}/modules"):
        if {*inner, *files} >= BARE:
            inner[:] = [name for name in inner if name == "modules"]
            yield folder


def _worktree_of(gitdir: str) -> str:
    """Return the relative path of a submodule's files, by the names of its folders; empty for others."""
    above, mark, name = gitdir.partition("/.git/modules/")
    if not mark:
        return ""
    path = f"{above}/{name.replace('/modules/', '/')}"
    return os.path.relpath(path, gitdir)


def _files_of(gitdir: str, index: str) -> str:
    """Return the folder of the files that an index is about."""
    if index.startswith("worktrees/"):
        pointer = read_bounded(f"{gitdir}/{os.path.dirname(index)}/gitdir", MOST_TEXT) or b""
        return os.path.dirname(pointer.decode("utf-8", "replace").rstrip("\n"))
    if worktree := _worktree_of(gitdir):
        return os.path.normpath(f"{gitdir}/{worktree}")
    return os.path.dirname(gitdir)


def _read_objects(place: str, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the folders in a folder of objects, and the paths of entries that are no objects."""
    inner, wrong = [], []
    with os.scandir(place) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(entry.path)
            elif not entry.is_file(follow_symlinks=False) or not is_object_name(
                entry.path[len(folder) + 1 :]
            ):
                wrong.append(entry.path)
    return tuple(inner), tuple(wrong)


def _replace(path: str, content: bytes) -> bool:
    """Replace a file atomically under the lock that git uses; return false where somebody holds it."""
    lock = f"{path}.lock"
    try:
        with open(lock, "xb") as file:
            file.write(content)
        os.replace(lock, path)
    except OSError:
        return False
    return True


def _is_file(path: str) -> bool:
    """Return whether a file or link is there; folders of an index are left out by a sparse checkout."""
    return os.path.islink(path) or os.path.isfile(path)


def _type_reason(path: str) -> str:
    if os.path.islink(path):
        return f"git makes no links there, and would write to {os.readlink(path)}"
    return "git makes no pipes or devices there, and would wait for it"
