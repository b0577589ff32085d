"""File history of a run: before and after each call that may change files, what they hold is kept, so that a
fork has the files of its time.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from kestrel_lab.core.events.union import Event, FilesKept
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.tools.files.snapshots import SnapshotStore, entries_as_json
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.files.workspace_recorder import Recorder

_MOST_NAMED = 500
"""Changed paths that one event names; of more a whole index is kept."""


_MOST_IDLE = 4
"""Recorders that are kept between runs: each costs as many watches as its workspace has folders."""


class Recorders:
    """The recorders of a session, one for each workspace that a run works in; safe to use from any thread."""

    def __init__(self, home: Path, redactor: Redactor) -> None:
        self.store = SnapshotStore(home, lambda text: redactor.text(text) != text)
        self._open: dict[Path, Recorder] = {}
        self._lock = threading.Lock()
        self._ending: list[threading.Thread] = []
        """Threads that wait for the kernel to end watches."""

    def open(self, root: Path) -> Recorder:
        """Return the recorder of a workspace; its opener closes it."""
        with self._lock:
            recorder = self._open.pop(root, None)
            if recorder is None or not recorder.current:
                if recorder is not None and not recorder.runs:
                    self._end(recorder)
                recorder = Recorder(root, self.store)
            self._open[root] = recorder
            recorder.runs += 1
            return recorder

    def release(self, recorder: Recorder) -> None:
        """Give back a recorder that was opened; the last few are kept open for the next run."""
        with self._lock:
            recorder.runs -= 1
            if not recorder.runs and self._open.get(recorder.root) is not recorder:
                self._end(recorder)
            idle = [one for one in self._open.values() if not one.runs]
            for one in idle[: max(len(idle) - _MOST_IDLE, 0)]:
                del self._open[one.root]
                self._end(one)

    def close(self) -> None:
        """Close them all, and wait until their watches have ended: no thread outlives the session."""
        with self._lock:
            while self._open:
                self._end(self._open.popitem()[1])
            for thread in self._ending:
                thread.join()
            self._ending.clear()

    def _end(self, recorder: Recorder) -> None:
        self._ending = [thread for thread in self._ending if thread.is_alive()]
        if (thread := recorder.close()) is not None:
            self._ending.append(thread)


def _always(_: int) -> bool:
    return True


class FileHistory(Struct, eq=False):
    """Records what the calls of one run change; nothing is read before the first of them."""

    recorders: Recorders
    workspace: Workspace
    changed: Callable[[int], object] = _always
    """Called with 0: whether there may be something to `note`.

    Each call asks twice, so it is a function written in C.
    """
    _recorder: Recorder | None = None
    _place: int = -1
    """How much of the recorder's journal the log has; -1 for nothing."""
    _failed: bool = False
    _found: deque[FilesKept] = field(default_factory=deque)
    """What is not recorded yet."""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    async def note(self, call: str, when: str, emit: Callable[[Event], Any]) -> None:
        """Record what has changed, or at first all that is there."""
        if self.workspace.read_only or self._failed or self._nothing_new:
            return
        async with self._turn:  # calls of one turn go on in their order
            if not self._nothing_new:
                if self._recorder is not None and self._recorder.small:
                    self._look(call, when)
                else:
                    await asyncio.to_thread(self._look, call, when)
                self._tell(emit)
                if self._recorder is not None and self._place == len(self._recorder.journal):
                    self.changed = self._recorder.poll

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
                self._recorder.listeners.remove(self._wake)
                self.recorders.release(self._recorder)
                self._recorder = None

    def _wake(self) -> None:
        """Treat all files as changed: another run has consumed the kernel's notifications."""
        self.changed = _always

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
        return (
            recorder is not None
            and not self._found
            and self._place == len(recorder.journal)
            and recorder.quiet
        )

    def _take(self, call: str, when: str) -> FilesKept | None:
        """Return the event of what changed; `None` for nothing."""
        if self._recorder is None:
            self._recorder = self.recorders.open(self.workspace.root)
            self._recorder.listeners.append(self._wake)
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
