"""The private copy of a workspace in which a fork works, under the home: `forks/RUN/NAME`.

Nothing in it is the user's own file: contents come from snapshots, or are copied. Git folders get settings of
ours and share the objects of the repository for reading. Folders of dependencies are copied as they are now
where that is cheap, and are absent otherwise; the notes of the copy say which.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import FilesTainted
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.filesystem import private_folder
from kestrel_lab.host.git import Repository, private_settings
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.forks.past_files import FilesThen, files_at, in_git, names_of
from kestrel_lab.tools.files.snapshots import Entry, Snapshot, SnapshotStore
from kestrel_lab.tools.files.workspace_recorder import DEPENDENCIES
from kestrel_lab.tools.kernel.live_kernel import live_shell
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import remove_tree

FOLDER: Final = "forks"
"""Under the home: a folder for each fork that has a copy, named after the run."""
_DEPENDENCY_BYTES: Final = 100_000_000
"""Limit for one dependency folder that is copied bytewise; shared blocks have no limit."""
_KEPT_BYTES: Final = 500_000_000
"""The same for single files that no snapshot keeps."""
_CLONE: Final = 0x40049409
"""The request FICLONE of Linux: a file that shares its blocks with another one until either is written."""


def copies_folder(home: Path, run_id: str) -> Path:
    """Return the folder under `home` that has the private copy of a fork."""
    return home.resolve() / FOLDER / run_id


def runs_with_copies(home: Path) -> list[str]:
    """Return the runs with a private copy under `home`; one unknown to the log was left half made."""
    with suppress(FileNotFoundError):
        # No fork has worked here yet.
        return sorted(folder.name for folder in (home.resolve() / FOLDER).iterdir())
    return []


def remove_copy(home: Path, run_id: str) -> bool:
    """Remove the private copy of a fork with all that it changed there; returns whether there was one."""
    if "/" in run_id or run_id in ("", ".", ".."):
        raise UsageError(f"{run_id!r} is no id of a run")
    folder = copies_folder(home, run_id)
    if not folder.is_dir():
        return False
    # A folder that is closed to us cannot be emptied.
    for place, _, _ in os.walk(folder):
        with suppress(OSError):
            Path(place).chmod(0o700)
    remove_tree(str(folder))
    return True


_NO_VARIABLES: Final = (
    "variables: none; the kernel of a fork is empty, whatever the shared calls had made in theirs"
)
_VARIABLES_OF_NOW: Final = (
    "variables: those of the notebook as they are now; there is no copy of them, and code of the fork "
    "changes them"
)


def copy_for_fork(
    store: SessionStore,
    snapshots: SnapshotStore,
    fork_id: str,
    run_id: str,
    state: RunState,
    at: int,
    files: Path | None = None,
) -> dict[str, Json]:
    """Make the private copy for a fork of `run_id` at event `at`, behind which that was in `state`; returns
    `RunForked.private_copy`.

    `files` is a folder as the run began with it, for one whose own is gone. Raises `UsageError` where nothing
    is known of the files, or the copy cannot be made.
    """
    live = files or Path(state.folder)
    then = files_at(store, snapshots, run_id, at, live)
    copy = make_copy(then, Path(state.project), live, fork_id, snapshots)
    if state.kernels:
        variables = _NO_VARIABLES if live_shell() is None else _VARIABLES_OF_NOW
        copy["notes"] = [*cast("list[Json]", copy["notes"]), variables]
    return copy


def carry_taint(ctx: RunContext, live: str) -> None:
    """Record which files of a fork's copy hold words of others because those of the folder `live` do."""
    files, place = ctx.services.files, ctx.given.workspace
    if files is None:
        return
    there = (entry.path for entry in place.walk(skip=(".git",)) if entry.kind == "file")
    for number, (path, source, name) in enumerate(files.carried(live, place.root, there)):
        tainted = FilesTainted(
            call=f"fork.{number}",
            step="",
            began=time.time(),
            ended=True,
            source=source,
            files=[files.described(place, path, name=name)],
        )
        files.take(ctx.run_id, str(place.root), tainted)
        ctx.emit(tainted)


def make_copy(
    then: FilesThen, workspace: Path, live: Path, run_id: str, snapshots: SnapshotStore
) -> dict[str, Json]:
    """Make a private copy of the files `then`, for a fork named `run_id`; returns `RunForked.private_copy`.

    `workspace` is what the run was begun in, `live` where its files are now. Raises `UsageError` where the
    copy cannot be made; then nothing is left of it.
    """
    private_folder(snapshots.home / FOLDER)
    place = copies_folder(snapshots.home, run_id) / (workspace.name or "workspace")
    try:
        place.mkdir(parents=True, mode=0o700)
        made = _Copy(then, live, place, snapshots)
        made.make()
        whole = snapshots.keep_index(made.entries)
    except OSError as error:
        remove_copy(snapshots.home, run_id)
        raise UsageError(
            f"no private copy of {live} could be made for the fork: {full_stop(error)} Make room, "
            f"or fork with "
            "in_place=True"
        ) from error
    return {
        "folder": str(place),
        "whole": whole,
        "source": then.source,
        "exact": not then.notes and not made.inexact,
        "notes": [*then.notes, *made.inexact, *made.notes],
        "objects": [*made.objects],
    }


@dataclass(slots=True)
class _Copy:
    """A copy in the making."""

    then: FilesThen
    live: Path
    place: Path
    snapshots: SnapshotStore
    entries: Snapshot = field(default_factory=dict)
    """What is in the copy."""
    inexact: list[str] = field(default_factory=list)
    """Files that may not be those of the event."""
    notes: list[str] = field(default_factory=list)
    """What else is not as in the workspace."""
    objects: list[str] = field(default_factory=list)
    _left: int = _KEPT_BYTES
    _leading_out: list[str] = field(default_factory=list)

    def make(self) -> None:
        """Make all of it."""
        lost = [path for path, entry in sorted(self.then.entries.items()) if not self._entry(path, entry)]
        if lost:
            self.inexact.append(f"absent, because what they held is not kept: {names_of(lost)}")
        if self._leading_out:
            self.notes.append(
                f"links that lead out of the workspace lead there still: {names_of(self._leading_out)}"
            )
        for path in [path for path in self.entries if path == ".git" or path.endswith("/.git")]:
            self._repository(path)
        self._dependencies()
        # A folder after what is in it: it may be closed to writing.
        for path, entry in sorted(self.entries.items(), reverse=True):
            if entry.kind == "d" and entry.mode & 0o777 != 0o700:
                (self.place / path).chmod(entry.mode & 0o777)

    def _entry(self, path: str, entry: Entry) -> bool:
        """Make one path of the copy; returns whether it could be."""
        target = self.place / path
        # No index of ours has one.
        if path.startswith("/") or ".." in path.split("/"):
            return False
        if entry.kind == "d":
            target.mkdir(mode=0o700, parents=True, exist_ok=True)
        else:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if entry.kind == "l":
                entry = self._link(path, entry)
            elif not self._file(path, entry, target):
                return False
        self.entries[path] = entry
        return True

    def _file(self, path: str, entry: Entry, target: Path) -> bool:
        content = self.snapshots.read(entry.content) if entry.content else None
        if content is not None:
            target.write_bytes(content)
        elif not self._copy_live(path, entry, target):
            return False
        target.chmod(entry.mode & 0o777)
        os.utime(target, ns=(entry.mtime, entry.mtime))
        return True

    def _copy_live(self, path: str, entry: Entry, target: Path) -> bool:
        """Copy a file that no snapshot has, if it is the same file still."""
        if self.live == self.place:
            return False
        try:
            source = self.live / path
            found = source.lstat()
            if (found.st_size, found.st_mtime_ns) != (entry.size, entry.mtime) or source.resolve() != source:
                return False
            if _clone(source, target):
                return True
            if found.st_size > self._left:
                return False
            self._left -= found.st_size
            shutil.copyfile(source, target, follow_symlinks=False)
        except OSError as error:
            # A full disk ends the copy; a file that is gone or unreadable is only left out.
            if error.errno == errno.ENOSPC:
                raise
            return False
        return True

    def _link(self, path: str, entry: Entry) -> Entry:
        """Make a symlink that leads to the same place, or within the copy to what is there."""
        leads = os.path.normpath((self.live / path).parent / entry.content)
        target = entry.content
        if leads == str(self.live) or leads.startswith(f"{self.live}/"):
            if target.startswith("/"):
                target = str(self.place) + leads.removeprefix(str(self.live))
        else:
            self._leading_out.append(path)
            target = leads
        (self.place / path).symlink_to(target)
        return entry._replace(content=target)

    def _repository(self, path: str) -> None:
        """Complete a git folder: shares the repository's objects, leaves out hooks and program settings."""
        folder = self.place / path
        repository = Repository.around(self.live / PurePosixPath(path).parent)
        mine = (
            repository is not None
            and repository.top is not None
            and repository.top == (self.live / PurePosixPath(path).parent).resolve()
        )
        for name in ("objects/info", "objects/pack", "refs", "info"):
            (folder / name).mkdir(mode=0o755, parents=True, exist_ok=True)
        if repository is None or not mine:
            self.notes.append(f"{path}: its objects are gone, so git does not work there")
            return
        objects = repository.common / "objects"
        if objects.is_symlink() or not objects.is_dir() or "\n" in str(objects):
            self.notes.append(f"{path}: its objects are not shared, so git does not work there")
            return
        (folder / "config").write_text(private_settings(repository), encoding="utf-8")
        (folder / "objects" / "info" / "alternates").write_bytes(os.fsencode(objects) + b"\n")
        self.objects.append(str(objects))
        if path == ".git":
            self.notes.append(
                "git: objects are shared for reading; hooks, remotes and other settings of the "
                "repository are left out"
            )

    def _dependencies(self) -> None:
        """Copy folders of dependencies as they are now, where that is cheap."""
        copied = []
        for path in [
            "",
            *(path for path, entry in self.entries.items() if entry.kind == "d" and not in_git(path)),
        ]:
            for name in sorted(DEPENDENCIES):
                source = self.live / path / name
                if not source.is_dir() or source.is_symlink() or self.live == self.place:
                    continue
                shown = f"{path}/{name}".lstrip("/")
                size = sum(_sizes(source))
                if not self._clones and size > _DEPENDENCY_BYTES:
                    self.notes.append(
                        f"absent: {shown} ({size / 1e6:,.0f} MB); install it in the fork, or fork in place"
                    )
                    continue
                # What cannot be read is left out.
                with suppress(shutil.Error):
                    shutil.copytree(
                        source, self.place / path / name, symlinks=True, copy_function=_copy_with_times
                    )
                copied.append(shown)
        if copied:
            self.notes.append(f"copied as they are now: {names_of(copied)}")

    @property
    def _clones(self) -> bool:
        """Whether the file system of the copy can share blocks with that of the workspace."""
        source, target = self.live / f".kestrel-{os.getpid()}.tmp", self.place / ".kestrel-clone.tmp"
        probe = next(
            (
                self.live / path
                for path, one in self.entries.items()
                if one.kind == "f" and one.size and not in_git(path)
            ),
            source,
        )
        try:
            return _clone(probe, target)
        except OSError:
            # Not every file system can share blocks; the plain copy is always possible.
            return False
        finally:
            target.unlink(missing_ok=True)


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                # Counted while others work: a file may be gone by now.
                yield (Path(place) / name).lstat().st_size


def _copy_with_times(source: str, target: str) -> None:
    if not _clone(Path(source), Path(target)):
        shutil.copyfile(source, target, follow_symlinks=False)
    shutil.copystat(source, target, follow_symlinks=False)


_NO_CLONES: set[tuple[int, int]] = set()
"""Pairs of devices between which no blocks are shared."""


def _clone(source: Path, target: Path) -> bool:
    """Make `target` a file that shares its blocks with `source`; returns whether the file system can."""
    import fcntl  # not on every system

    with source.open("rb") as reading:
        pair = (os.fstat(reading.fileno()).st_dev, target.parent.stat().st_dev)
        if pair in _NO_CLONES:
            return False
        with target.open("xb") as writing:
            try:
                fcntl.ioctl(writing.fileno(), _CLONE, reading.fileno())
            except OSError:
                # Remembered: every further file between these devices would fail alike.
                _NO_CLONES.add(pair)
            else:
                return True
    target.unlink()
    return False
