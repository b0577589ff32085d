"""What a fork changed in its private copy, and taking that over into the workspace.

A path is taken over only where the workspace still has what the fork began with. Otherwise nothing at all is
written. Each file is replaced in one step; where one cannot be, those before it are put back. An apply that
was killed is finished by another one.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import secrets
import stat
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import FilesApplied
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import full_stop, sanitize_text
from kestrel_lab.core.text_files import decode_text
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.forks.past_files import in_git, names_of
from kestrel_lab.tools.files.directory_walk import closing_fd
from kestrel_lab.tools.files.edit import unified_diff
from kestrel_lab.tools.files.lock import lock_directory, stat_entry, version_of
from kestrel_lab.tools.files.snapshots import Entry, Snapshot, SnapshotStore, entries_from_json
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.files.workspace_recorder import read_snapshot
from kestrel_lab.views.html.table_view import TextView

_MOST_SHOWN: Final = 200_000
"""Characters of differences that are shown."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FileChange:
    """One path that a fork changed."""

    path: str
    before: Entry | None
    """As the fork began; `None` for what it made."""
    after: Entry | None
    """`None` for what it deleted."""
    live: Entry | None = None
    """As the workspace has it now."""
    conflict: str = ""
    """Why it is taken over by force only: something else has changed it in the workspace."""
    refused: str = ""
    """Why it cannot be taken over."""

    @property
    def word(self) -> str:
        """`new`, `deleted` or `changed`."""
        return "new" if self.before is None else "deleted" if self.after is None else "changed"


@dataclass(frozen=True, kw_only=True, repr=False, slots=True)
class ForkChanges(TextView):
    """What a fork changed in its private copy since it began, or since that was applied last."""

    run: str
    workspace: Path
    copy: Path
    changes: tuple[FileChange, ...]
    diff: str
    """The changes of text files in unified format."""
    applied: bool = False

    @property
    def conflicts(self) -> tuple[str, ...]:
        """The paths that cannot be taken over as they are, with the reasons."""
        return tuple(
            f"{one.path}: {one.refused or one.conflict}"
            for one in self.changes
            if one.refused or one.conflict
        )

    def __len__(self) -> int:
        return len(self.changes)

    def __repr__(self) -> str:
        count = f"{format_count(len(self.changes), 'path')}"
        if not self.changes:
            head = f"run {self.run} has changed no file of its copy that {self.workspace} does not have"
        elif self.applied:
            head = f"applied to {self.workspace}: {count}"
        else:
            head = (
                f"run {self.run} changed {count} in its private copy; kestrel apply {self.run} brings "
                f"that into {self.workspace}"
            )
        lines = [f"{one.word:8} {one.path}{_reason(one)}" for one in self.changes]
        return "\n".join(map(sanitize_text, [head, *lines, *([self.diff] if self.diff else [])]))


def _reason(change: FileChange) -> str:
    return (
        f"  (refused: {change.refused})"
        if change.refused
        else f"  (conflict: {change.conflict})"
        if change.conflict
        else ""
    )


def changes_of(store: SessionStore, run_id: str, state: RunState, runs: Sequence[str]) -> ForkChanges:
    """Return what a fork changed in its copy; `runs` are those of its conversation, which work in the same
    copy.

    Raises `UsageError` for a run without a copy, and where the copy or what it was made of is gone.
    """
    if not state.private_copy or state.started is None:
        raise UsageError(f"run {run_id} works in the workspace itself: there is nothing to apply")
    snapshots = SnapshotStore(store.path.parent, writes=False)
    copy, workspace = Path(state.folder), Path(state.started.workspace)
    if not copy.is_dir():
        raise UsageError(f"the private copy of run {run_id} is gone: {copy} was removed")
    if not workspace.is_dir():
        raise UsageError(f"the workspace {workspace} is gone: what the run made is in {copy}")
    if (base := snapshots.index(str(state.private_copy["whole"]))) is None:
        raise UsageError(
            f"what the copy of run {run_id} began with is not kept any more: compare {copy} with "
            f"{workspace} by hand"
        )
    base = _with_applied(base, store, runs)
    try:
        now = read_snapshot(copy, snapshots)
    except (OSError, ValueError) as error:
        raise UsageError(f"the private copy of run {run_id} cannot be read: {error}") from error
    place, found = Workspace(workspace), list[FileChange]()
    for path in sorted(path for path in base.keys() | now.keys() if not in_git(path)):
        if not _same(base.get(path), now.get(path)):
            old, new = (_led_back(one.get(path), copy, workspace) for one in (base, now))
            # Else it is there already.
            if not _same(live := _entry_at(place, path), new, workspace / path):
                conflict = "" if _same(live, old, workspace / path) else _conflict(live, old)
                refused = _refused(place, path, new, copy / path)
                found.append(
                    FileChange(
                        path=path, before=old, after=new, live=live, conflict=conflict, refused=refused
                    )
                )
    return ForkChanges(
        run=run_id, workspace=workspace, copy=copy, changes=tuple(found), diff=_diff(found, copy, workspace)
    )


def _with_applied(base: Snapshot, store: SessionStore, runs: Sequence[str]) -> Snapshot:
    """Return what the copy began with, as it is since its changes were applied last."""
    for event in (record.event for run in runs for record in store.records(run, types=(FilesApplied.type,))):
        if isinstance(event, FilesApplied):
            there = {path: entry for path, entry in event.changed.items() if entry is not None}
            base = {
                path: entry for path, entry in base.items() if path not in event.changed
            } | entries_from_json(there)
    return base


def apply_changes(
    changes: ForkChanges, by: str, only: Collection[str] = (), *, force: bool = False
) -> tuple[ForkChanges, FilesApplied]:
    """Take changes of a fork over into the workspace, all or those of the paths `only`; returns what was done
    and its event.

    Raises `UsageError`, with nothing written, where the workspace has not what the fork began with, unless
    `force`.
    """
    chosen = [
        one
        for one in changes.changes
        if not only or one.path in only or any(one.path.startswith(f"{path}/") for path in only)
    ]
    known = {one.path for one in chosen}
    if unknown := [
        path for path in only if path not in known and not any(one.startswith(f"{path}/") for one in known)
    ]:
        raise UsageError(
            f"run {changes.run} did not change {names_of(unknown)}: it changed "
            f"{names_of([one.path for one in changes.changes])}"
        )
    if refused := [f"{one.path}: {one.refused}" for one in chosen if one.refused]:
        raise UsageError(
            f"nothing was applied: {full_stop('; '.join(refused))} Take over the rest by naming its paths"
        )
    if not force and (conflicts := [f"{one.path}: {one.conflict}" for one in chosen if one.conflict]):
        ways = (
            "Take over the rest by naming its paths, or apply with force (--force) if what is there "
            "may be lost"
        )
        raise UsageError(f"nothing was applied: {full_stop('; '.join(conflicts))} {ways}")
    chosen = [replace(one, before=one.live, conflict="") if one.conflict else one for one in chosen]
    diff = _diff(chosen, changes.copy, changes.workspace)
    _Application(Workspace(changes.workspace), changes.copy)(chosen)
    made: dict[str, Json] = {one.path: None if one.after is None else [*one.after] for one in chosen}
    before: dict[str, Json] = {one.path: None if one.before is None else [*one.before] for one in chosen}
    event = FilesApplied(by=by, folder=str(changes.workspace), changed=made, before=before)
    return replace(changes, changes=tuple(chosen), diff=diff, applied=True), event


def _same(a: Entry | None, b: Entry | None, place: Path | None = None) -> bool:
    if a is None or b is None or a.kind != b.kind:
        return a is b
    if a.kind == "d":
        return True
    if a.kind == "l" and place is not None:
        return os.path.normpath(place.parent / a.content) == os.path.normpath(place.parent / b.content)
    if a.kind == "f" and not (a.content and b.content):
        return (a.size, a.mtime) == (b.size, b.mtime)
    return a.same == b.same


def _led_back(entry: Entry | None, copy: Path, workspace: Path) -> Entry | None:
    """Return an entry of the copy as it is meant in the workspace: a link into the copy leads there."""
    if entry is None or entry.kind != "l" or not entry.content.startswith(f"{copy}/"):
        return entry
    return entry._replace(content=str(workspace) + entry.content.removeprefix(str(copy)))


def _conflict(live: Entry | None, old: Entry | None) -> str:
    if live is None:
        return "it was deleted in the workspace since the fork began"
    return (
        "it was made in the workspace since the fork began"
        if old is None
        else "it was changed in the workspace since the fork began"
    )


def _refused(place: Workspace, path: str, new: Entry | None, source: Path) -> str:
    """Return why a path may not be written, or its new content is not there; empty where it may."""
    try:
        place.check_writable(path)
        if new is not None and new.kind == "f":
            if not new.content:
                return "it is too large to be taken over: copy it by hand"
            place.check_settings(path, source.read_bytes())
    except OSError as error:
        return str(error)
    return ""


def _entry_at(place: Workspace, path: str) -> Entry | None:
    """Return what the workspace has at a path now; nothing behind a symlink counts."""
    try:
        with place.directory(posixpath.dirname(path), make=False) as folder:
            return _entry(folder, posixpath.basename(path))
    except OSError:
        return None


def _entry(folder: int, name: str) -> Entry | None:
    status = stat_entry(name, folder)
    if status is None:
        return None
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISDIR(status.st_mode):
        return Entry("d", mode)
    if stat.S_ISLNK(status.st_mode):
        return Entry("l", 0o777, os.readlink(name, dir_fd=folder))
    if not stat.S_ISREG(status.st_mode):
        return Entry("other")
    fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(fd, "rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return Entry("f", mode, content, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _diff(changes: Sequence[FileChange], copy: Path, workspace: Path) -> str:
    parts, length = list[str](), 0
    for one in changes:
        before, after = _text(one.before, workspace / one.path), _text(one.after, copy / one.path)
        if before is None or after is None or before == after:
            continue
        parts.append(unified_diff(before, after, one.path))
        length += len(parts[-1])
        if length > _MOST_SHOWN:
            parts.append("(more differences are not shown)")
            break
    return "\n".join(parts)


def _text(entry: Entry | None, place: Path) -> str | None:
    """Return the text at a place that has an entry, empty for none; `None` for what is no text."""
    if entry is None:
        return ""
    with suppress(OSError, ValueError):
        if entry.kind == "f" and entry.content and not place.is_symlink():
            return decode_text(place.read_bytes(), place.name).text
    return None


@dataclass(slots=True)
class _Application:
    """Writes changes into a workspace, all or none."""

    place: Workspace
    copy: Path
    _held: dict[str, bytes] = field(default_factory=dict)
    """By path, what was replaced."""

    def __call__(self, changes: Sequence[FileChange]) -> None:
        """Write them; raises `UsageError` when what was written was put back."""
        folders = [
            one
            for one in changes
            if _kind(one.after) == "d" or (_kind(one.before) == "d" and one.after is None)
        ]
        rest = [one for one in changes if one not in folders]
        removed = [one for one in rest if one.after is None]
        made = [one for one in rest if one.after is not None]
        order = [
            *removed,
            *sorted((one for one in folders if one.after is None), key=lambda one: one.path, reverse=True),
            *sorted((one for one in folders if one.after is not None), key=lambda one: one.path),
            *made,
        ]
        done: list[FileChange] = []
        try:
            for one in order:
                self._write(one.path, one.before, one.after)
                done.append(one)
        except OSError as error:
            # All or nothing: what was written already is put back.
            for written in reversed(done):
                with suppress(OSError):
                    self._write(written.path, written.after, written.before, back=True)
            raise UsageError(f"nothing was applied, {one.path} could not be written: {error}") from error

    def _write(self, path: str, before: Entry | None, after: Entry | None, *, back: bool = False) -> None:
        """Replace `before` by `after`, or put it `back`; raises `OSError` if something else is there."""
        parent, name = posixpath.split(path)
        with self.place.directory(parent) as folder, lock_directory(folder, path):
            if not _same(_entry(folder, name), before, self.place.root / path):
                raise FileExistsError("it was changed just now")
            if before is not None and before.kind == "f" and not back:
                self._held[path] = self.place.read_bytes(path, sys.maxsize)
            if before is not None and _kind(before) == "d" and _kind(after) != "d":
                with suppress(FileNotFoundError):
                    # The person may have removed the folder since.
                    os.rmdir(name, dir_fd=folder)
            if after is None:
                if before is not None and before.kind != "d":
                    os.unlink(name, dir_fd=folder)
            elif after.kind == "d":
                if before is not None:
                    os.unlink(name, dir_fd=folder)
                os.mkdir(name, after.mode & 0o777 or 0o755, dir_fd=folder)
            else:
                content = (
                    b"" if after.kind == "l" else self._held[path] if back else self._content(path, after)
                )
                self._put(folder, name, after, content)

    def _content(self, path: str, entry: Entry) -> bytes:
        content = (self.copy / path).read_bytes()
        if version_of(content) != entry.content:
            raise FileExistsError("it was changed in the copy just now")
        return content

    def _put(self, folder: int, name: str, entry: Entry, content: bytes) -> None:
        temporary = f".kestrel-{secrets.token_hex(8)}.tmp"
        try:
            if entry.kind == "l":
                os.symlink(entry.content, temporary, dir_fd=folder)
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                with closing_fd(os.open(temporary, flags, 0o600, dir_fd=folder)) as fd:
                    view = memoryview(content)
                    while view:
                        view = view[os.write(fd, view) :]
                    os.fchmod(fd, entry.mode & 0o777)
                    # Synced before the rename: after a power cut the name must not stand for an empty file.
                    os.fsync(fd)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            with suppress(OSError):
                # The first error is the one that counts.
                os.unlink(temporary, dir_fd=folder)
            raise


def _kind(entry: Entry | None) -> str:
    return "" if entry is None else entry.kind
