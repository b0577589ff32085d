"""File history of a run: before and after each call that may change files, what they hold is kept, so that a fork has the files of its time."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kestrel_lab.core.events.union import Event, FilesKept
from kestrel_lab.tools.files.snapshots import Recorder, SnapshotStore, entries_as_json
from kestrel_lab.tools.files.workspace import Workspace

_MOST_NAMED = 500
"""Changed paths that one event names; of more a whole index is kept."""


class Recorders:
    """The recorders of a session, one for each workspace that a run works in; safe to use from any thread."""

    def __init__(self, home: Path) -> None:
        self.store = SnapshotStore(home)
        self._open: dict[Path, Recorder] = {}
        self._lock = threading.Lock()

    def open(self, root: Path) -> Recorder:
        """Return the recorder of a workspace; whoever opened it closes it."""
        with self._lock:
            recorder = self._open.get(root)
            if recorder is None:
                recorder = self._open[root] = Recorder(root, self.store)
            recorder.runs += 1
            return recorder

    def close(self, recorder: Recorder) -> None:
        """Close a recorder that was opened."""
        with self._lock:
            recorder.runs -= 1
            if not recorder.runs:
                del self._open[recorder.root]
                recorder.close()


class FileHistory:
    """Records what the calls of one run change; nothing is read before the first of them."""

    def __init__(self, recorders: Recorders, workspace: Workspace) -> None:
        self._recorders, self._workspace = recorders, workspace
        self._recorder: Recorder | None = None
        self._place = -1
        """How much of the recorder's journal the log has; -1 for nothing."""
        self._failed = False
        self._found: deque[FilesKept] = deque()
        """What is not recorded yet."""
        self._turn = asyncio.Lock()
        self._lock = threading.Lock()

    async def note(self, call: str, when: str, emit: Callable[[Event], Any]) -> None:
        """Record what has changed, or at first all that is there."""
        if self._workspace.read_only or self._failed or self._nothing_new:
            return
        async with self._turn:  # calls of one turn go on in their order
            if not self._nothing_new:
                await asyncio.to_thread(self._look, call, when)
                self._tell(emit)

    def note_now(self, call: str, when: str, emit: Callable[[Event], Any]) -> None:
        """The same without waiting, for a call that was cancelled."""
        if self._recorder is not None and not self._failed and not self._nothing_new:
            self._look(call, when)
        with self._lock:  # a thread that nobody waits for any more may be looking
            self._tell(emit)

    def close(self) -> None:
        """Record nothing more."""
        with self._lock:
            self._failed = True
            if self._recorder is not None:
                self._recorders.close(self._recorder)
                self._recorder = None

    def _tell(self, emit: Callable[[Event], Any]) -> None:
        while self._found:
            emit(self._found.popleft())

    def _look(self, call: str, when: str) -> None:
        with self._lock:
            if not self._failed and (event := self._take(call, when)) is not None:
                self._found.append(event)

    @property
    def _nothing_new(self) -> bool:
        recorder = self._recorder
        return recorder is not None and not self._found and self._place == len(recorder.journal) and recorder.quiet

    def _take(self, call: str, when: str) -> FilesKept | None:
        """Return the event of what changed; `None` for nothing."""
        if self._recorder is None:
            self._recorder = self._recorders.open(self._workspace.root)
        recorder, first = self._recorder, self._place < 0
        with recorder.lock:
            recorder.refresh()
            changed = set[str]() if first else set[str]().union(*recorder.journal[self._place :])
            self._place = len(recorder.journal)
            there = {path: recorder.entries[path] for path in sorted(changed) if path in recorder.entries}
            problem, whole = recorder.problem, ""
            if not problem and (first or len(changed) > _MOST_NAMED):
                try:
                    whole = recorder.store.keep_index(recorder.entries)
                except OSError as error:
                    problem = f"its files could not be kept: {error}"
        if problem:
            self._failed = True
            return FilesKept(call=call, when=when, problem=problem)
        if whole:
            return FilesKept(call=call, when=when, whole=whole)
        gone = sorted(changed - there.keys())
        return FilesKept(call=call, when=when, changed=entries_as_json(there), gone=gone) if changed else None
