"""Private git folder: a command in the sandbox can commit, but cannot change what git runs or obeys.

Git replaces its files by renaming, so the folder itself has to be writable, and in a writable folder anything
can be made: a `commondir` that leads to other settings, hooks where there were none. A command therefore gets
a private folder in the place of the repository's. Objects, refs and logs are the real ones, and so are the
folders of submodules and worktrees. Index, HEAD and the like are hard links, settings are copies; both are
carried over in both directions while the command works, if `git_grammar` says that git's plain work writes
them like that. Whatever else is there can only be read, and whatever else is made stays in the private folder
and is gone with it.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from kestrel_lab.tools.sandbox.gitdir.git_grammar import STATE_FOLDERS, refusal
from kestrel_lab.tools.sandbox.gitdir.refused_files import RefusedFiles, read_bounded

PREFIX = "kestrel-"
"""Prefix of private folders. They are in the repository's folder so that files can be linked and renamed."""
_GROWING = ("modules", "worktrees")
"""Folders that git makes with the first submodule and worktree."""
LIVE = ("objects", "refs", "logs", *_GROWING)
"""Folders that a command writes; `git_guard` looks at them afterwards."""
UNUSED = ("description",)
_COPIED = ("config", "config.worktree")
"""Files that are copied: a program could write through a link."""
_INFO = "info"
_KEPT = re.compile(
    r"index|sharedindex\.[0-9a-f]{40,64}|packed-refs|shallow|(?:[A-Z]+_)*HEAD|[A-Z]+_(?:EDIT)?MSG|MERGE_(?:MODE|RR|AUTOSTASH)|AUTO_MERGE|BISECT_[A-Z_]+",
    re.ASCII,
)
"""Files in the folder that record the state of the work."""
_PASSING = re.compile(
    r".*\.(?:lock|tmp|new|pid|log)|(?:index|next-index|tmp|gc)[-_.].*|\.tmp.*|kestrel-.*|[A-Z_]+\.patch",
    re.ASCII,
)
"""Files that git leaves there when it is killed, or needs for one command only."""
_MOST = 5_000
_PATIENCE_S = 1.0
"""Seconds to wait for a lock of git's after a command has ended; the lock may have been left behind."""
_LOCK = ".lock"
_NEW, _OLD = ".new", ".old"
"""Suffixes next to a private folder: of a replacement file, and of the replaced one."""

_Mark = tuple[int, int, int]


def mounted_names(gitdir: str) -> Iterator[str]:
    """Yield what of a repository's folder is mounted in the private one: `LIVE` as it is, all else to be
    read.

    What a mount would show nothing of is left out: each takes time.
    """
    for entry in os.scandir(gitdir):
        if is_carried_over(entry.name) or _is_copied(entry.name) or entry.name in UNUSED:
            continue
        if _PASSING.fullmatch(entry.name):
            continue
        folder, file = entry.is_dir(follow_symlinks=False), entry.is_file(follow_symlinks=False)
        if file or (
            folder
            and (entry.name in LIVE or any(not name.endswith(".sample") for name in os.listdir(entry.path)))
        ):
            yield entry.name


def is_carried_over(name: str) -> bool:
    """Return whether what has that name in a repository's folder is carried over, and not mounted."""
    return name in STATE_FOLDERS or _KEPT.fullmatch(name) is not None


def _is_copied(name: str) -> bool:
    return name in _COPIED or name == _INFO


@dataclass(slots=True)
class PrivateGit:
    """A private folder in the place of a repository's, from `make` to `end`."""

    real: str
    private: str
    shown: frozenset[str]
    lock: int = -1
    marks: dict[str, tuple[_Mark | None, _Mark | None]] = field(default_factory=dict)
    """Of each file both sides have: the private and the real one when they were last the same."""
    both: set[str] = field(default_factory=set)
    refused: dict[str, tuple[_Mark | None, str]] = field(default_factory=dict)
    """By name, what is not carried over, and why."""
    rest: str = ""
    """The path of the folder after `end`."""

    def make(self) -> None:
        """Make the folder; first carry over what commands left whose keepers were killed."""
        real = os.open(self.real, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            # The lock of the repository's folder: another command would take the new folder for an abandoned
            # one until that is locked itself.
            fcntl.flock(real, fcntl.LOCK_EX)
            for name in os.listdir(self.real):
                if name.startswith(PREFIX) and not name.endswith(_NEW):
                    _recover(self.real, f"{self.real}/{name}")
            os.mkdir(self.private, 0o700)
            self.lock = os.open(self.private, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        finally:
            os.close(real)
        try:
            os.chmod(self.private, stat.S_IMODE(os.stat(self.real).st_mode))
            for entry in os.scandir(self.real):
                # A git outside of the sandbox may remove a file, such as a lock, at any moment.
                with suppress(FileNotFoundError):
                    self._fill(entry)
        except OSError:
            remove_tree(self.private)
            raise

    def _fill(self, entry: os.DirEntry[str]) -> None:
        inside = f"{self.private}/{entry.name}"
        if entry.is_symlink():
            os.symlink(os.readlink(entry.path), inside)
        elif entry.name in STATE_FOLDERS and entry.is_dir():
            _link_tree(entry.path, inside)
        elif entry.name == _INFO and entry.is_dir():
            os.mkdir(inside)
            for name in os.listdir(entry.path):
                self._copy(f"{_INFO}/{name}")
        elif entry.name in _COPIED:
            self._copy(entry.name)
        elif is_carried_over(entry.name) and entry.is_file():
            outside = _mark(entry.path)
            _transfer(entry.path, inside)
            self.marks[entry.name] = (_mark(inside), outside)

    def _copy(self, name: str) -> None:
        if (outside := _mark(f"{self.real}/{name}")) is not None:
            shutil.copyfile(f"{self.real}/{name}", f"{self.private}/{name}", follow_symlinks=False)
            self.marks[name] = (_mark(f"{self.private}/{name}"), outside)

    def _is_refused(self, name: str, mine: _Mark | None) -> bool:
        """Return whether the command's change of a file is not carried over, and record why."""
        seen = self.refused.get(name)
        if seen is not None and seen[0] == mine and mine is not None:
            return True
        inside = f"{self.private}/{name}"
        if mine is None and os.path.lexists(inside):
            reason = "git makes only regular files there"
        else:
            reason = refusal(name, read_bounded(f"{self.real}/{name}"), read_bounded(inside))
        if reason:
            self.refused[name] = (mine, reason)
        else:
            self.refused.pop(name, None)
        return bool(reason)

    def carry(self, *, force: bool = False) -> bool:
        """Copy files that changed on one side to the other. Return whether all were copied; locks of git may
        prevent it, unless `force` ignores them.

        Files that changed on both sides are noted in `both`. Then the real one wins, except for the index: a
        commit of the command is already in the real objects, and an index that was merely refreshed outside
        would undo it.
        """
        done = True
        for name in {
            *self.marks,
            *_carried_names(self.private),
            *_carried_names(self.real),
        }:
            inside, outside = f"{self.private}/{name}", f"{self.real}/{name}"
            mine, theirs = _mark(inside), _mark(outside)
            before = self.marks.get(name, (None, None))
            # Unchanged, or still the same inode: hard links need no copying.
            if (mine, theirs) == before or (mine and theirs and mine[0] == theirs[0]):
                self.marks[name] = (mine, theirs)
                continue
            ours, others = mine != before[0], theirs != before[1]
            if ours and self._is_refused(name, mine):
                continue
            try:
                for path in (inside, outside):
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                if ours and (not others or name == "index"):
                    self.marks[name] = (
                        mine,
                        _put_in_place(
                            inside, mine, outside, theirs, self.private + _NEW if force else outside + _LOCK
                        ),
                    )
                else:
                    self.marks[name] = (_put_in_place(outside, theirs, inside, mine, inside + _LOCK), theirs)
                if ours and others:
                    self.both.add(name)
            except OSError:
                # One of the two changes it just now.
                done = False
        return done

    def end(self) -> list[str]:
        """Carry over the rest, move the folder out of the repository, and return notes for the caller.

        The caller removes `rest` afterwards.
        """
        notes = []
        try:
            until = time.monotonic() + _PATIENCE_S
            while not (done := self.carry()) and time.monotonic() < until:
                time.sleep(0.005)
            if not done:
                self.carry(force=True)
            if self.both:
                notes.append(
                    f"{', '.join(sorted(self.both))} of {self.real} was changed by the command and by "
                    "others at once: look at git status"
                )
            for name in STATE_FOLDERS:
                self._carry_state(name)
            for name in _GROWING:
                _carry_new(f"{self.private}/{name}", f"{self.real}/{name}")
            notes += self._lost()
        except RecursionError:
            notes.append(f"what the command made in {self.real} is nested too deeply and was not kept")
        finally:
            self.rest = _moved_away(self.private)
            os.close(self.lock)
        return notes

    def _carry_state(self, name: str) -> None:
        """Carry over the folder of an interrupted work if all its files are git's own."""
        inside = f"{self.private}/{name}"
        for place, _, files in os.walk(inside):
            for file in files:
                path = f"{place}/{file}"
                below = path[len(self.private) + 1 :]
                before, after = read_bounded(f"{self.real}/{below}"), read_bounded(path)
                if reason := refusal(below, before, b"\0" if after is None else after):
                    self.refused[name] = (None, f"{below}: {reason}")
                    return
        _carry_state(inside, f"{self.real}/{name}", self.private)

    def _lost(self) -> list[str]:
        """Return a note on what is not carried over; it is kept for a person where the workspace is known."""
        lost = sorted(name for name in os.listdir(self.private) if not self._expected(name))
        names = [*(f"{name} ({reason})" for name, (_, reason) in sorted(self.refused.items())), *lost][:10]
        if not names:
            return []
        kept = ""
        if self.refused and os.path.basename(self.real) == ".git":
            aside = RefusedFiles(os.path.dirname(self.real))
            for name in self.refused:
                aside.move(f"{self.private}/{name}", f".git/{name}")
            kept = aside.note()
        return [
            f"a command cannot change what git obeys: {', '.join(names)} of {self.real} was not kept{kept}"
        ]

    def _expected(self, name: str) -> bool:
        if (
            name in self.shown
            or name in self.refused
            or _is_copied(name)
            or name in LIVE
            or _PASSING.fullmatch(name)
            or name in UNUSED
        ):
            return True
        place = f"{self.private}/{name}"
        # Empty, so nothing is lost.
        if name == "hooks" and os.path.isdir(place) and not os.listdir(place):
            return True
        outside = f"{self.real}/{name}"
        return os.path.islink(outside) if os.path.islink(place) else is_carried_over(name)


def _carried_names(folder: str) -> Iterator[str]:
    """Yield the files of a git folder that are carried over one by one."""
    for name in os.listdir(folder):
        if name in _COPIED or _KEPT.fullmatch(name):
            yield name
    with suppress(OSError):
        yield from (f"{_INFO}/{name}" for name in os.listdir(f"{folder}/{_INFO}") if not name.endswith(_LOCK))


def _carry_new(inside: str, outside: str) -> None:
    """Move folders that the command made for its first submodule or worktree to the repository."""
    if not os.path.isdir(inside) or os.path.islink(inside) or os.path.ismount(inside):
        return
    os.makedirs(outside, exist_ok=True)
    for name in os.listdir(inside):
        if not os.path.lexists(f"{outside}/{name}"):
            os.rename(f"{inside}/{name}", f"{outside}/{name}")


def _mark(path: str) -> _Mark | None:
    """Return numbers that identify the content of a regular file; `None` for anything else, or no file."""
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_ino, found.st_mtime_ns, found.st_size) if stat.S_ISREG(found.st_mode) else None


def _put_in_place(
    source: str, there: _Mark | None, target: str, seen: _Mark | None, new: str
) -> _Mark | None:
    """Replace `target` by `source` atomically, through the file `new`; delete `target` if there is no source.
    Return the mark of the new file.

    If `new` is the lock file that git uses, no git changes `target` meanwhile. Raises `OSError` if somebody
    holds it, or if `target` changed since it was `seen`.
    """
    if there is None:
        os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC))
    else:
        _transfer(source, new)
    try:
        if _mark(target) != seen:
            raise BlockingIOError(f"{target} changed")
        put = _mark(new)
        if there is not None:
            os.replace(new, target)
            return put
        if seen is not None:
            os.unlink(target)
    except OSError:
        os.unlink(new)
        raise
    os.unlink(new)
    return None


def _transfer(source: str, target: str) -> None:
    """Hard-link a regular file, or copy it if the file system has no links; raises `OSError` for others."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as reading, open(target, "xb") as writing:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise
            shutil.copyfileobj(reading, writing)
    # Checked after linking: the command may have replaced the source by a symbolic link or a device.
    if not stat.S_ISREG(os.lstat(target).st_mode):
        os.unlink(target)
        raise OSError(f"{source} is not a regular file")


def _link_tree(source: str, target: str) -> None:
    """Link or copy all regular files of a folder; links and the like are left out."""
    made = 0
    for folder, _, files in os.walk(source):
        inside = target + folder[len(source) :]
        os.mkdir(inside)
        for name in files:
            made += 1
            if made > _MOST:
                raise OSError(f"{source} has more than {_MOST} files")
            if _mark(f"{folder}/{name}") is not None:
                _transfer(f"{folder}/{name}", f"{inside}/{name}")


def _carry_state(inside: str, outside: str, private: str) -> None:
    """Bring the real folder into the state in which the command left the private one."""
    if os.path.islink(inside) or _tree(inside) == _tree(outside):
        return
    old, new = private + _OLD, private + _NEW
    try:
        if os.path.isdir(inside):
            _link_tree(inside, new)
        if os.path.isdir(outside):
            os.rename(outside, old)
        if os.path.isdir(new):
            os.rename(new, outside)
    except OSError:
        pass  # the real one stays as it is
    remove_tree(old, new)


def _tree(folder: str) -> dict[str, _Mark | None]:
    return {
        f"{place[len(folder) :]}/{name}": _mark(f"{place}/{name}")
        for place, _, files in os.walk(folder)
        for name in files
    }


def _recover(real: str, left: str) -> None:
    """Carry over changes of a command whose keeper was killed; skip folders in use."""
    try:
        fd = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name in filter(_KEPT.fullmatch, os.listdir(left)):
            if refusal(name, read_bounded(f"{real}/{name}"), read_bounded(f"{left}/{name}")):
                continue
            mine, theirs = _mark(f"{left}/{name}"), _mark(f"{real}/{name}")
            if mine is not None and (theirs is None or (mine[0] != theirs[0] and mine[1] > theirs[1])):
                _put_in_place(f"{left}/{name}", mine, f"{real}/{name}", theirs, left + _NEW)
        remove_tree(left, left + _OLD, left + _NEW)
    except OSError:
        # The lock is held: the command works on.
        pass
    finally:
        os.close(fd)


def _moved_away(folder: str) -> str:
    """Move a private folder to the temporary files, if they are on the same disk, and return its new path.

    Removing a folder takes some milliseconds on ext4, and this one contains a folder per mount. Renaming is
    immediate, and nobody waits while the temporary files are removed.
    """
    away = f"{tempfile.gettempdir()}/{os.path.basename(folder)}"
    try:
        os.rename(folder, away)
    except OSError:
        # Another disk, or a folder whose modes the command changed.
        remove_tree(folder)
        return folder
    return away


def remove_tree(*folders: str) -> None:
    """Remove folders that a command wrote to, however deep they are nested and whatever their modes."""
    for folder in folders:
        with suppress(OSError, RecursionError):
            shutil.rmtree(folder)
        if os.path.isdir(folder) and not os.path.islink(folder):
            for words in (["chmod", "-R", "u+rwx", "--", folder], ["rm", "-rf", "--", folder]):
                os.waitpid(os.posix_spawnp(words[0], words, os.environ), 0)
