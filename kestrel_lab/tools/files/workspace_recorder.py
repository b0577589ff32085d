"""Workspace recorder: the snapshot of a workspace, kept up to date while runs work in it.

Nothing is written into the workspace, and git is not called: a repository, its index and its stash are read
as files. Left out are the home itself; folders that programs make again (`REMADE`); the objects of a git
folder, which a copy shares; its hooks and settings, which can start programs; and the contents of files
beyond `MOST_FILE` and `MOST_BYTES`, of which only size and times are stored.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from kestrel_lab.host.filesystem import private_folder
from kestrel_lab.host.log_files import LOG, is_open_here, refuse_open_log
from kestrel_lab.tools.files.directory_walk import closing_fd, stamp_of
from kestrel_lab.tools.files.fingerprints import is_fresh
from kestrel_lab.tools.files.inotify import ChangeWatch
from kestrel_lab.tools.files.safe_open import open_beneath
from kestrel_lab.tools.files.snapshots import Batch, Entry, Snapshot, SnapshotStore
from kestrel_lab.tools.sandbox.mounts import LinkedRepository, linked_repository

CACHES: Final = frozenset({"__pycache__", ".ipynb_checkpoints"})
DEPENDENCIES: Final = frozenset({".venv", "node_modules"})
REMADE: Final = CACHES | DEPENDENCIES | {".kestrel"}
"""Folders whose files are not stored: large, and recreated by programs."""
MOST_ENTRIES: Final = 50_000
"""No snapshot is made of a workspace with more."""
MOST_FILE: Final = 32_000_000
MOST_BYTES: Final = 256_000_000
"""Bytes of one file, and of all files together, that a snapshot keeps."""
_GIT_LEFT: Final = frozenset(
    {
        *("objects", "modules", "lfs", "hooks", "config", "config.worktree", "branches", "description"),
        *("worktrees", "commondir", "gitdir", "locked"),
    }
)
"""Parts of a git folder that are skipped: shared, able to start programs, or about worktrees."""
_OURS: Final = frozenset(
    {
        "results",
        "snapshots",
        "forks",
        "cache",
        "trials",
        "commits",
        "eval-runs",
        "logs",
        "mcp",
        "index",
        "kestrel-marks",
    }
)
"""Folders of a home, skipped if the workspace is the home."""
_TEMPORARY: Final = (".kestrel-", ".tmp")
"""Prefix and suffix of temporary names of file tools."""
_BATCH_BYTES: Final = 32_000_000
"""Contents in memory that are written together."""
_FEW: Final = 64
_FEW_BYTES: Final = 1_000_000
_FEW_LOOKS: Final = 12
"""Entries, bytes and refreshes up to which the whole workspace is scanned each time, without a watch. The
kernel takes 10 ms to end a watch, longer than all scans of a trial in a small folder together.
"""


class Recorder:
    """The snapshot of a workspace, kept up to date; safe to use from any thread.

    On Linux the kernel reports which entries changed, so a refresh takes microseconds whatever the size of
    the workspace. Without that, all entries are compared each time; so are those of a small workspace, until
    it was refreshed often.
    """

    def __init__(self, root: Path, store: SnapshotStore, *, watch: bool = True) -> None:
        self.root, self.store = root, store
        self.entries: Snapshot = {}
        self.problem = ""
        """Why there is no snapshot; empty if there is one."""
        self.runs = 0
        """Number of runs that use it."""
        self.journal: list[set[str]] = []
        """The paths that changed, for each time that something had."""
        self.listeners: list[Callable[[], object]] = []
        """Called when the journal has grown."""
        self._stamps: dict[str, tuple[tuple[int, ...], str]] = {}
        self._began = False
        self._watch: ChangeWatch | None = None
        self._unwatched = watch
        """True while there is no watch, and one may be started once that pays."""
        self._looks = 0
        self._home = _identity(store.home)
        self._linked: LinkedRepository | None = None
        self._bytes = 0
        self._batch: Batch = {}
        self._batch_bytes = 0
        self._fd = -1
        self.lock = threading.RLock()
        """Held while `entries` and `journal` are read or changed."""

    @property
    def poll(self) -> Callable[[int], object]:
        """Function to call with 0: false if nothing has changed; as cheap as possible."""
        return _always if self._watch is None or not self._watch.reliable else self._watch.poll

    @property
    def small(self) -> bool:
        """Whether a refresh takes so little that it needs no thread."""
        return self._unwatched and self._began

    @property
    def current(self) -> bool:
        """True if it is still valid: same folder, no problem."""
        if self.problem or not self._began or self._fd < 0:
            return not (self.problem or self._began)
        found = os.fstat(self._fd)
        return (found.st_dev, found.st_ino) == _identity(self.root)

    @property
    def quiet(self) -> bool:
        """Return true if surely nothing changed since the last `refresh`; changes are noted for the next."""
        if not self._began or self._watch is None or not self._watch.reliable:
            return False
        with self.lock:
            self._note(*self._watch.changed())
            return not self._dirty and not self._lost

    def refresh(self) -> None:
        """Bring `entries` up to date, and note in `journal` what changed."""
        with self.lock:
            if self.problem:
                return
            try:
                self._refresh()
            except OSError as error:
                self.problem = f"its files could not be kept: {error}"

    def close(self) -> threading.Thread | None:
        """End the watches; return the thread that waits for the kernel to do so, if there is one."""
        with self.lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
            return None if self._watch is None else self._watch.close()

    _dirty: dict[str, set[str]]
    _lost: bool

    def _note(self, changed: dict[str, set[str]], lost: bool) -> None:
        for folder, names in changed.items():
            if names := {name for name in names if not self._left_out(folder, name)}:
                self._dirty.setdefault(folder, set()).update(names)
        self._lost = self._lost or lost

    def _refresh(self) -> None:
        if not self._began:
            self._begin()
        elif self._watch is not None:
            self._note(*self._watch.changed())
        self._looks += 1
        if self._unwatched and self._looks > _FEW_LOOKS:
            self._watch_from_now_on()
        before, first = self.entries, not self._began
        if self._lost or self._watch is None or not self._watch.reliable:
            self._scan_all()
            changed = {
                path
                for path in before.keys() | self.entries.keys()
                if _differ(before.get(path), self.entries.get(path))
            }
        else:
            dirty, self._dirty = self._dirty, {}
            changed = self._update(dirty)
        self._keep_batch()
        self._began = True
        if len(self.entries) > MOST_ENTRIES:
            self.problem = f"the workspace has more than {MOST_ENTRIES:,} files and folders"
            self.close()
        elif first:
            # A few files are read again as fast as their stamps.
            if len(self._stamps) > _FEW:
                _keep_stamps(self.store, self.root, self._stamps)
        elif changed:
            self.journal.append(changed)
            for listener in self.listeners:
                listener()

    def _begin(self) -> None:
        self._dirty, self._lost = {}, True
        self._stamps = _known_stamps(self.store, self.root)
        self._fd = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._linked = linked_repository(self.root)

    def _watch_from_now_on(self) -> None:
        self._watch, self._unwatched, self._lost = ChangeWatch(), False, True

    def _scan_all(self) -> None:
        self.entries, self._dirty, self._lost = {}, {}, False
        self._bytes = 0
        self._scan("")
        if self._unwatched and (len(self.entries) > _FEW or self._bytes > _FEW_BYTES):
            self._watch_from_now_on()
            # Once more, now with the watch. Contents are not read again: their stamps are known.
            self._scan_all()

    def _update(self, dirty: Mapping[str, set[str]]) -> set[str]:
        changed: set[str] = set()
        for folder, names in sorted(dirty.items()):
            if folder and folder not in self.entries:
                # It is gone, or is scanned with the folder it was moved into.
                continue
            for name in sorted(filter(None, names)):
                path = f"{folder}/{name}" if folder else name
                before = {one: self.entries[one] for one in self._below(path)}
                for one, entry in before.items():
                    self._bytes -= entry.size if entry.content and entry.kind == "f" else 0
                    del self.entries[one]
                self._add(path)
                changed |= {
                    one
                    for one in {*before, *self._below(path)}
                    if _differ(before.get(one), self.entries.get(one))
                }
        return changed

    def _below(self, path: str) -> list[str]:
        known = self.entries.get(path)
        if known is None or known.kind != "d":
            return [] if known is None else [path]
        return [one for one in self.entries if one == path or one.startswith(f"{path}/")]

    def _scan(self, folder: str) -> None:
        """Record the entries of a folder, and watch it from now on."""
        try:
            fd = self._open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except OSError:  # closed to us, or gone
            if not folder:
                raise
            return
        with closing_fd(fd):
            # Before it is listed, so that no change falls between listing and watching.
            if self._watch is not None:
                self._watch.add(f"/proc/self/fd/{fd}/." if folder else str(self.root), folder)
            found: dict[str, os.stat_result] = {}
            with os.scandir(fd) as listed:
                for item in listed:
                    with suppress(FileNotFoundError):  # removed since it was listed
                        found[item.name] = item.stat(follow_symlinks=False)
        # The folder of another log, whose files must not be opened.
        if folder and LOG in found:
            return
        for name in sorted(found):
            # With one entry more than a small workspace has, the scan begins again with a watch.
            if len(self.entries) > (_FEW if self._unwatched else MOST_ENTRIES):
                return
            if not self._left_out(folder, name):
                self._take(f"{folder}/{name}" if folder else name, found[name])

    def _add(self, path: str) -> None:
        """Take in what is at a path now."""
        try:
            status = self._status(path)
        except OSError:
            self._add_linked(path)
        else:
            self._take(path, status)

    def _take(self, path: str, status: os.stat_result) -> None:
        """Take in one path, and what is below it."""
        if stat.S_ISDIR(status.st_mode):
            if (status.st_dev, status.st_ino) != self._home:
                self.entries[path] = Entry("d", stat.S_IMODE(status.st_mode))
                self._scan(path)
        elif stat.S_ISLNK(status.st_mode):
            with suppress(OSError):
                self.entries[path] = Entry("l", 0o777, self._target(path))
        elif path.rpartition("/")[2] == ".git":
            self._add_linked(path)
        elif stat.S_ISREG(status.st_mode):
            with suppress(FileNotFoundError):  # removed since
                self.entries[path] = self._file(path, status)

    def _add_linked(self, path: str) -> None:
        """Add the state of a worktree's repository, as if its git folder were in the workspace."""
        if path == ".git" and self._linked is not None:
            self.entries[path] = Entry("d", 0o755)
            self._scan(path)
            for name in ("refs", "packed-refs"):
                if f".git/{name}" not in self.entries:
                    self._add(f".git/{name}")

    def _file(self, path: str, status: os.stat_result) -> Entry:
        stamp = stamp_of(status)
        known = self._stamps.get(path)
        # A file that changed a moment ago may change again with the same time stamp, so it is read.
        if known is not None and known[0] == stamp and not is_fresh(stamp):
            content = known[1]
        elif (
            status.st_size > MOST_FILE
            or self._bytes + status.st_size > MOST_BYTES
            or is_open_here(status.st_dev, status.st_ino)
        ):
            content = ""
        else:
            try:
                fd = self._open(path, os.O_RDONLY)
                refuse_open_log(fd, path)
            except OSError:
                # Not readable, a log, or no longer a file.
                content = ""
            else:
                with os.fdopen(fd, "rb") as file:
                    content = self.store.keep(file.read(MOST_FILE), self._batch)
                    status = os.fstat(file.fileno())
        self._batch_bytes += status.st_size if content in self._batch else 0
        if self._batch_bytes > _BATCH_BYTES:
            self._keep_batch()
        self._bytes += status.st_size if content else 0
        self._stamps[path] = (stamp_of(status), content)
        return Entry(
            "f", stat.S_IMODE(status.st_mode), content, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        )

    def _keep_batch(self) -> None:
        self.store.keep_batch(self._batch)
        self._batch_bytes = 0

    def _left_out(self, folder: str, name: str) -> bool:
        if name in REMADE or (name.startswith(_TEMPORARY[0]) and name.endswith(_TEMPORARY[1])):
            return True
        if folder == ".git" or folder.endswith("/.git"):
            return name in _GIT_LEFT or name.endswith(".lock") or name.startswith("kestrel-")
        return not folder and (name.startswith(LOG) or (name in _OURS and self._at_home))

    @property
    def _at_home(self) -> bool:
        return _identity(self.root) == self._home

    # Reaching files: never through a symlink, so that nothing outside of the workspace is read.

    def _place(self, path: str) -> tuple[Path | None, str]:
        """Return the real location of a path: elsewhere for a worktree's repository."""
        if self._linked is None or not (path == ".git" or path.startswith(".git/")):
            return None, path
        inner = path.removeprefix(".git").removeprefix("/")
        shared = inner.partition("/")[0] in ("refs", "packed-refs", "info")
        return (self._linked.common if shared else self._linked.own), inner

    def _open(self, path: str, flags: int, *, parent: bool = False) -> int:
        other, inner = self._place(path)
        inner = (inner.rpartition("/")[0] if parent else inner) or "."
        if other is None:
            return open_beneath(self._fd, inner, flags, 0, follow=False)
        with closing_fd(os.open(other, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)) as base:
            return open_beneath(base, inner, flags, 0, follow=False)

    def _status(self, path: str) -> os.stat_result:
        if self._linked is not None and path == ".git":
            # The file `.git` of a worktree; `_add_linked` records the repository that it names instead.
            raise FileNotFoundError(path)
        with closing_fd(self._open(path, os.O_RDONLY | os.O_DIRECTORY, parent=True)) as fd:
            return os.stat(path.rpartition("/")[2], dir_fd=fd, follow_symlinks=False)

    def _target(self, path: str) -> str:
        with closing_fd(self._open(path, os.O_RDONLY | os.O_DIRECTORY, parent=True)) as fd:
            return os.readlink(path.rpartition("/")[2], dir_fd=fd)


def _always(_: int) -> bool:
    return True


def _differ(a: Entry | None, b: Entry | None) -> bool:
    return (a and a.same) != (b and b.same)


def _identity(folder: Path) -> tuple[int, int]:
    try:
        found = folder.stat()
    except OSError:
        return (0, 0)
    return found.st_dev, found.st_ino


def read_snapshot(root: Path, store: SnapshotStore) -> Snapshot:
    """Return the content of a workspace; raises `OSError` on failure, `ValueError` if it is too large."""
    recorder = Recorder(root, store, watch=False)
    try:
        recorder._refresh()
    finally:
        recorder.close()
    if recorder.problem:
        raise ValueError(recorder.problem)
    return recorder.entries


# Stamps of files from earlier processes, so that not every process reads all files again.


def _stamps_file(store: SnapshotStore, root: Path) -> Path:
    return store.contents.folder / f"{hashlib.sha256(os.fsencode(root)).hexdigest()[:32]}.stamps"


def _known_stamps(store: SnapshotStore, root: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    with suppress(OSError, ValueError, TypeError):
        kept = json.loads(_stamps_file(store, root).read_bytes())
        return {
            path: (tuple(stamp), name) for path, (stamp, name) in kept.items() if not name or store.has(name)
        }
    return {}


def _keep_stamps(store: SnapshotStore, root: Path, stamps: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
    # Without them the next process reads the files again, which is slower and as right.
    with suppress(OSError):
        private_folder(store.contents.folder)
        temporary = store.contents.folder / f".{secrets.token_hex(8)}.part"
        temporary.write_bytes(json.dumps(stamps, separators=(",", ":")).encode())
        temporary.chmod(0o600)
        temporary.replace(_stamps_file(store, root))
