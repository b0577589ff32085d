"""Code index of a folder: built once, in the background on demand, and updated before each search."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.host.log_files import OpenDatabase
from kestrel_lab.retrieval.indexing import git_history as history
from kestrel_lab.retrieval.indexing.chunks import cut_chunks
from kestrel_lab.retrieval.indexing.file_list import Stamp, file_stamp, files_of, read_text, skip_reason
from kestrel_lab.retrieval.indexing.table import (
    OLD,
    UNUSABLE,
    WriteTransaction,
    indexed_files,
    open_index,
    remove_files,
    store_file,
    update_stamp,
)

T = TypeVar("T")
_BATCH = 40
"""Files per transaction: a killed build loses at most these."""
_SETTLED_NS = 50_000_000
"""A file that changed so shortly before it was read may change again with the same time stamp."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UpdateResult:
    """The result of an update."""

    files: int
    changed: int = 0
    """Number of files read again, including new ones."""
    removed: int = 0
    seconds: float = 0.0
    note: str = ""
    """A message for the user, for example that the index was damaged and is new."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BuildProgress:
    """The progress of a build."""

    done: int = 0
    total: int = 0
    finished: bool = False
    note: str = ""
    """A message for the user."""
    error: Exception | None = None
    """Why it failed."""


FEW_FILES: Final = 500
"""Files that are indexed in a second or two."""
_FEW_S: Final = 300.0
"""How much longer they are waited for, on a machine that has no time for them."""


class _Build(threading.Thread):
    """Updates an index; `ended` is the result afterwards."""

    def __init__(self, work: Callable[[Reporter | None], BuildProgress], reporter: Reporter | None) -> None:
        super().__init__(name="kestrel-index", daemon=True)
        self._work, self._reporter = work, reporter
        self.ended: BuildProgress | None = None

    def run(self) -> None:
        self.ended = self._work(self._reporter)


class CodeIndex:
    """The index of the files below one folder, in a database of its own.

    Processes and threads may share it.
    """

    def __init__(self, workspace: str | Path, home: str | Path) -> None:
        """Prepare without reading or writing; the database is created under `home` on first use."""
        self.workspace = Path(workspace).resolve()
        # A hash, because a path may be too long for a file name, or not UTF-8.
        name = hashlib.sha256(os.fsencode(self.workspace)).hexdigest()[:20]
        self.path = Path(home).resolve() / "index" / f"{name}.db"
        self.building = BuildProgress()
        # One connection for each thread: two must not use a connection of SQLite at once.
        self._held = threading.local()
        self._thread: _Build | None = None
        self._starting = threading.Lock()
        self._stop = threading.Event()
        self._note = ""
        self._files: OpenDatabase | None = None

    @property
    def exists(self) -> bool:
        """True if the database exists, complete or not."""
        return self.path.is_file()

    @property
    def complete(self) -> bool:
        """True if it has every file of the last refresh by any process."""
        return self.exists and self.rows("SELECT value FROM facts WHERE name = 'complete'") == [("1",)]

    @contextmanager
    def reading(self) -> Iterator[apsw.Connection]:
        """A connection whose reads all see one state of the index."""
        connection = self._connection()
        connection.execute("BEGIN")
        try:
            yield connection
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def read(self, work: Callable[[apsw.Connection], T]) -> T:
        """Return `work` for one state of the index; a damaged index is rebuilt first and `work` repeated."""
        try:
            with self.reading() as connection:
                return work(connection)
        except UNUSABLE as error:
            self._discard(_rebuilt_notice(error))
        self.refresh()
        with self.reading() as connection:
            return work(connection)

    def rows(self, sql: str, bindings: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        return list(self._connection().execute(sql, tuple(bindings)))

    def refresh(self, reporter: Reporter | None = None) -> UpdateResult:
        """Update the index from the folder and return what changed.

        An unchanged folder costs one listing with file stamps. A killed build continues where it stopped. A
        damaged index is rebuilt, with a note. Raises `UsageError` without the folder, `StoreError` if no
        index can be written.
        """
        began = time.perf_counter()
        for attempt in (1, 2):
            try:
                found = self._refresh(reporter, began)
                self._note = ""
            except UNUSABLE as error:
                # A second damage at once is the disk's, and rebuilding would go on forever.
                if attempt == 2:
                    msg = (
                        f"the index {self.path} is damaged again after it was rebuilt ({error}): check "
                        "the disk"
                    )
                    raise StoreError(msg) from error
                self._discard(_rebuilt_notice(error))
            except apsw.BusyError as error:
                msg = (
                    f"another process keeps writing to the index {self.path} for a long time: try "
                    "again when it has finished"
                )
                raise StoreError(msg) from error
            except apsw.FullError as error:
                raise StoreError(f"no room on the disk for the index {self.path}: free some space") from error
            else:
                return found
        raise AssertionError

    def start(self, reporter: Reporter | None = None) -> _Build:
        """Start `refresh` in a thread, unless one runs, and return it; `building` has its progress.

        What is indexed so far can be searched.
        """
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return self._thread
            self._stop.clear()
            self.building = BuildProgress()
            thread = _Build(self._work, reporter)
            thread.start()
            self._thread = thread
            return thread

    def up_to_date(self, patience_s: float, reporter: Reporter | None = None) -> str:
        """Update the index, in the background if that takes longer and there are more than `FEW_FILES`;
        return a note for the searcher, or nothing.

        Raises the errors of `refresh` if they happen in time.
        """
        until = time.monotonic() + patience_s
        with self._starting:
            before = self._thread
        # A build in progress may have listed the files before the edit that the searcher means.
        if before is not None:
            before.join(patience_s)
        thread = self.start(reporter)
        thread.join(max(0.0, until - time.monotonic()))
        # What a replay asks must not depend on how busy the machine is: a few files are always waited for.
        while thread.is_alive() and self.building.total <= FEW_FILES and time.monotonic() < until + _FEW_S:
            thread.join(0.1)
        now = thread.ended or self.building
        if now.error is not None:
            raise now.error
        if not now.finished:
            return (
                f"the index is still being built, {now.done:,} of {now.total:,} files are done: other "
                "files are not found yet"
            )
        return now.note

    def wait(self, seconds: float | None = None) -> BuildProgress:
        """Wait for the thread, at most so long, and return how far it is."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.building

    def forget(self) -> None:
        """Delete the index; the next refresh rebuilds it."""
        self._stop.set()
        self.wait()
        self._discard("")
        self._stop.clear()

    def close(self) -> None:
        """Stop a build after the files it is reading, and close this thread's connection."""
        self._stop.set()
        self.wait()
        self._let_go()

    def _work(self, reporter: Reporter | None) -> BuildProgress:
        try:
            note = self.refresh(reporter).note
            self.building = replace(self.building, finished=not self._stop.is_set(), note=note)
        except Exception as error:  # the end of a thread: the waiting caller gets it  # noqa: BLE001
            self.building = BuildProgress(error=error)
        finally:
            self._let_go()
        return self.building

    def _refresh(self, reporter: Reporter | None, began: float) -> UpdateResult:
        connection = self._connection()
        # Before the listing: a file that changes from here on is read again by the next update.
        looked = time.time_ns()
        listed = {path: file_stamp(self.workspace, path) for path in files_of(self.workspace)}
        before = indexed_files(connection)
        present = {path: found for path, found in listed.items() if found != "gone"}
        gone = [path for path in before if path not in present]
        if gone:
            with WriteTransaction(connection):
                remove_files(connection, gone)
        todo = [
            (path, found) for path, found in present.items() if not _is_unchanged(before.get(path), found)
        ]
        self.building = BuildProgress(total=len(todo))
        changed = 0
        for start in range(0, len(todo), _BATCH):
            # What is done is committed: the next refresh continues from there.
            if self._stop.is_set():
                break
            changed += self._take(connection, todo[start : start + _BATCH], before, looked)
            done = min(start + _BATCH, len(todo))
            self.building = BuildProgress(done=done, total=len(todo))
            if reporter is not None:
                reporter(done, len(todo), todo[done - 1][0])
        self._remember(connection, complete=not self._stop.is_set())
        seconds = time.perf_counter() - began
        return UpdateResult(
            files=len(present), changed=changed, removed=len(gone), seconds=seconds, note=self._note
        )

    def _remember(self, connection: apsw.Connection, *, complete: bool) -> None:
        """Record the commits since the last update, and whether the index has all files."""
        head = history.head_of(self.workspace)
        if complete and not list(connection.execute("SELECT 1 FROM facts WHERE name = 'complete'")):
            connection.execute("INSERT OR REPLACE INTO facts VALUES ('complete', '1')")
        if list(connection.execute("SELECT value FROM facts WHERE name = 'head'")) != [(head,)]:
            with WriteTransaction(connection):
                history.update_history(connection, self.workspace, head)

    def _take(
        self,
        connection: apsw.Connection,
        batch: Sequence[tuple[str, Stamp | str]],
        before: dict[str, Any],
        looked: int,
    ) -> int:
        """Read and index some files in one transaction; return how many had changed."""
        changed = 0
        read = []
        for path, found in batch:
            place = found if isinstance(found, Stamp) else Stamp(0, 0, 0, 0)
            why = found if isinstance(found, str) else skip_reason(path, found.size)
            text = why or read_text(self.workspace, path)
            if isinstance(text, str):
                read.append((path, place, b"", text, ""))
                continue
            content = hashlib.sha256(text[1]).digest()
            held = before.get(path)
            same = held is not None and held[3] == content and not held[4]
            read.append((path, place, content, None if same else cut_chunks(path, text[0]), text[0]))  # type: ignore[arg-type]
        # Files are read and cut before the transaction, so that other processes wait for the writing alone.
        with WriteTransaction(connection):
            for path, place, content, parsed, text in read:
                # Another process may have indexed the same content meanwhile.
                row = connection.execute("SELECT hash, skipped FROM files WHERE path = ?", (path,)).fetchone()
                if (
                    row is not None
                    and row[0] == content
                    and row[1] == (parsed if isinstance(parsed, str) else "")
                ):
                    update_stamp(connection, path, place, looked)
                else:
                    store_file(
                        connection,
                        path,
                        place,
                        looked,
                        content,
                        cut_chunks(path, text) if parsed is None else parsed,
                        text,
                    )
                    changed += 1
        return changed

    def _connection(self) -> apsw.Connection:
        """This thread's connection, to the database that is there now."""
        held: tuple[apsw.Connection, int] | None = getattr(self._held, "one", None)
        with suppress(OSError):
            # Another process may have replaced a damaged index; this connection would go on with the deleted
            # file.
            if held is not None and self.path.stat().st_ino == held[1]:
                return held[0]
        self._let_go()
        try:
            connection = open_index(self.path)
        except UNUSABLE as error:
            self._discard(_rebuilt_notice(error))
            connection = open_index(self.path)
        self._held.one = (connection, self.path.stat().st_ino)
        if self._files is None:
            # Until this object is dropped: other threads may still have connections.
            self._files = OpenDatabase(self.path)
        self._files.look_again()
        return connection

    def _let_go(self) -> None:
        held = getattr(self._held, "one", None)
        self._held.one = None
        if held is not None:
            held[0].close()

    def _discard(self, note: str) -> None:
        self._let_go()
        self._note = note
        for ending in ("", "-wal", "-shm"):
            Path(f"{self.path}{ending}").unlink(missing_ok=True)


def _rebuilt_notice(error: Exception) -> str:
    return (
        f"{error} was built anew"
        if str(error) == OLD
        else f"the index was damaged ({error}) and was built anew"
    )


def _is_unchanged(before: tuple[int, Stamp, int, bytes, str] | None, now: Stamp | str) -> bool:
    """Return true if a file is unchanged since it was read.

    A file changed just before it was read counts as changed.
    """
    if before is None:
        return False
    _, held, looked, _, skipped = before
    if isinstance(now, str):
        return skipped == now
    return held == now and max(now.mtime, now.ctime) < looked - _SETTLED_NS
