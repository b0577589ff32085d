"""Files of a run at one of its events: what a fork from there begins with.

What was kept round calls (`files_kept`) gives the files exactly. Where nothing was kept by then, as in logs
of earlier versions, the files are those of now, in which the later changes of file tools are undone; the
notes say what may differ.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final, cast

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import FilesKept, Record, RunForked, RunStarted, ToolAnswered, ToolCalled
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.approvals.undo import effects_of
from kestrel_lab.tools.files.snapshots import Entry, Snapshot, SnapshotStore, entries_from_json
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.files.workspace_recorder import MOST_FILE, read_snapshot

_NAMED: Final = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class FilesThen:
    """The files of a workspace at an event of a run."""

    entries: Snapshot
    source: str
    """What they are made of."""
    notes: tuple[str, ...] = ()
    """What is not known for certain; none where the files are exactly those of the event."""


def files_at(store: SessionStore, snapshots: SnapshotStore, run_id: str, at: int, folder: Path) -> FilesThen:
    """Return the files that run `run_id` had at its event `at`; `folder` is where it works, which may be
    gone.

    Raises `UsageError` where nothing is known of them.
    """
    origin = store.origin(run_id, at)
    records = store.records(origin)
    if (then := _kept_then(records, at, snapshots)) is not None:
        return then
    later = records[at:]
    known = next(
        (
            place
            for place, record in enumerate(later)
            if isinstance(record.event, FilesKept) and record.event.whole
        ),
        None,
    )
    if (
        known is not None
        and (entries := snapshots.index(cast("FilesKept", later[known].event).whole)) is not None
    ):
        source, later = f"what was kept before event {later[known].seq}", later[:known]
    else:
        if not folder.is_dir():
            raise UsageError(
                f"the files of run {run_id} at event {at} are not known: nothing was kept of them, and "
                f"{folder} is gone"
            )
        try:
            entries = read_snapshot(folder, snapshots)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"no copy of {folder} can be made for a fork: {full_stop(error)} Fork in the "
                f"folder itself with "
                "in_place=True (--in-place)"
            ) from error
        source = "the files as they are now"
    undone, notes = _undone(entries, later, store, snapshots, folder)
    if undone:
        source += f", with later changes undone in {names_of(undone)}"
    began = records[at - 1].at * 1e9
    if changed := [
        path
        for path, one in entries.items()
        if one.kind == "f" and one.ctime > began and path not in undone and not in_git(path)
    ]:
        notes.append(f"changed since by something else, so not certainly as they were: {names_of(changed)}")
    return FilesThen(entries=entries, source=source, notes=tuple(notes))


def _kept_then(records: Sequence[Record], at: int, snapshots: SnapshotStore) -> FilesThen | None:
    """Return the files as kept up to event `at`; `None` if nothing was kept or it is gone."""
    entries: Snapshot | None = None
    last = 0
    for record in records[:at]:
        event = record.event
        if isinstance(event, FilesKept):
            last = record.seq
            if event.whole:
                entries = snapshots.index(event.whole)
            elif event.problem:
                entries = None
            elif entries is not None:
                _apply(entries, event.changed, event.gone)
        elif isinstance(event, RunStarted | RunForked) and event.private_copy:
            entries, last = snapshots.index(str(event.private_copy["whole"])), record.seq
    if entries is None:
        return None
    following = next((record.event for record in records[at:] if isinstance(record.event, FilesKept)), None)
    # Changed by something else, maybe before `at` already.
    if following is not None and following.when == "before" and following.changed:
        began = records[at - 1].at * 1e9
        others = {
            path: one
            for path, one in entries_from_json(following.changed).items()
            if one.kind == "f" and one.ctime <= began
        }
        entries |= others
    return FilesThen(entries=entries, source=f"what was kept at event {last}")


def _apply(entries: Snapshot, changed: Mapping[str, Json], gone: Sequence[str]) -> None:
    for path in gone:
        entries.pop(path, None)
    entries |= entries_from_json(changed)


def _undone(
    entries: Snapshot, later: Sequence[Record], store: SessionStore, snapshots: SnapshotStore, folder: Path
) -> tuple[list[str], list[str]]:
    """Undo file tools' `later` changes in `entries`; returns paths, and what could not be undone."""
    undone, notes = dict[str, None](), list[str]()
    for effect in reversed(effects_of(later)):
        for path, before in effect.files.items():
            try:
                content = _content_before(before, store, folder)
            except (OSError, StoreError):
                # What was kept may have been dropped for want of room since.
                notes.append(
                    f"what {path} held before {effect.call} is not kept any more: it is as it was left later"
                )
                continue
            undone[path] = None
            if content is None:
                entries.pop(path, None)
            else:
                mode = entries[path].mode if path in entries else 0o644
                entries[path] = Entry("f", mode, snapshots.keep(content), len(content), time.time_ns())
                for parent in PurePosixPath(path).parents:
                    if parent.name:
                        entries.setdefault(str(parent), Entry("d", 0o755))
    answered = {record.event.call: record.event for record in later if isinstance(record.event, ToolAnswered)}
    unknown = {
        record.event.tool: None
        for record in later
        if isinstance(record.event, ToolCalled)
        and record.event.effect == "opaque"
        and record.event.danger != "SAFE"
        and not (record.event.call in answered and answered[record.event.call].before)
    }
    if unknown:
        notes.append(
            f"what calls of {names_of([*unknown])} changed since is not undone: nothing was kept before them"
        )
    return [*undone], notes


def _content_before(before: Mapping[str, Any], store: SessionStore, folder: Path) -> bytes | None:
    if "trash" in before:
        return Workspace(folder).read_bytes(str(before["trash"]), MOST_FILE)
    if not before["existed"]:
        return None
    if not before["blob"]:
        return b""
    if (place := store.results.path(str(before["blob"]))) is None:
        raise FileNotFoundError(errno.ENOENT, "not kept")
    return place.read_bytes()


def in_git(path: str) -> bool:
    """Return whether a path lies in a git folder."""
    return ".git" in path.split("/")


def names_of(paths: Sequence[str]) -> str:
    """Return the first paths as words, with the number of those left out."""
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return ", ".join(paths[:_NAMED]) + more
