"""The log's writer thread: appends queue up and share a commit, and none is acknowledged before its commit.

A commit to disk costs a millisecond, an insert a hundredth of that. So the writer commits whatever is queued,
and leaves an append that nobody waits for in the queue for a few milliseconds, so that others can join it.
When one statement of a batch is refused the batch is rolled back and its parts are tried one by one, so a bad
append or a damaged index of texts harms nobody else; when the disk is full or the database cannot be reached,
all of them are refused. An event that could not be kept for such a reason closes its run for the session that
wrote it, as if it had ended there: else a later event, written when there is room again, would follow one
that is missing.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from itertools import chain
from typing import Any

import apsw
from msgspec import Struct

from kestrel_lab.core.errors import StoreError
from kestrel_lab.eventlog.connection import store_error
from kestrel_lab.eventlog.seals.hash_chain import chain_hash, last_hash
from kestrel_lab.eventlog.seals.marks import Mark, MarkFile

_EVERYBODYS = (apsw.FullError, apsw.BusyError, apsw.IOError, apsw.ReadOnlyError)
"""What is wrong with the database rather than with one statement. Damage may be of the text index alone."""
BATCH = 256
LINGER_S = 0.004

_MOST_ROWS = 12
"""Events of one statement: those of a turn with three calls whose files are watched. Each number of rows is
a statement of its own, and to compile one takes SQLite as long as to insert twenty rows.
"""
_INSERT = "INSERT INTO events(run_id, seq, eid, at, type, ref, body, epoch, hash) VALUES "
_ROW = "(?,?,?,?,?,?,?,?,?)"


class Append(Struct):
    """One event on its way into the log; its number and its hash are known when it gets there."""

    run_id: str
    eid: str
    at: float
    type: str
    ref: str | None
    body: str
    epoch: int | None
    """Of the run, when its session claimed it; `None` for a decision of another session."""
    done: Future[int] | None = None
    """Resolves to the event's number after the commit; `None` if unused, since a future is expensive."""
    refused: Callable[[Exception], object] | None = None
    """Called in the writer's thread with the reason if the event could not be stored."""


class Execute(Struct, frozen=True):
    """One other statement on its way, with the events that go in together with it."""

    sql: str
    """Empty for a job that only waits for those before it."""
    bindings: tuple[Any, ...]
    what: str
    done: Future[None]
    events: tuple[Append, ...] = ()
    rests_on: tuple[str, ...] = ()
    """Runs whose events must all have been kept: refused where one of this session was not."""


class Writer:
    """Takes jobs from any thread; resolves their futures after COMMIT, in order."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        mark: Callable[[apsw.Connection], MarkFile] | None = None,
    ) -> None:
        """With a `mark` it says beside the log which event was committed last."""
        self._connect = connect
        self._open_mark = mark
        self._mark: MarkFile | None = None
        self._jobs: deque[Append | Execute] = deque()
        self._lock = threading.Lock()
        self._bell = threading.Lock()
        """Free while a call is unheard: a plain lock wakes a thread at a tenth of a condition's cost."""
        self._bell.acquire()
        self._asleep = True
        """Whether the writer waits for the first job; after a commit it looks once more by itself."""
        self._urgent = False
        self._closed = False
        self._ended: Callable[[], object] = bool
        self._thread: threading.Thread | None = None
        self.listeners: tuple[Callable[[], object], ...] = ()
        """Each is called in the writer's thread after a commit; it must return at once and not raise."""
        self._missing: dict[tuple[str, int | None], Exception] = {}
        """Why the run in that epoch lacks an event."""
        self._incomplete: dict[str, Exception] = {}
        """Why a run lacks an event of this session, also where only that one was refused."""
        self._not_begun: set[str] = set()
        """Runs of which not even the first event could be kept: there are none of that name."""

    def put(self, job: Append | Execute, *, urgent: bool) -> None:
        """Queue `job`; with `urgent` somebody waits for it. Raises `StoreError` once closed.

        A queued job cannot be taken back: cancelling the future does not stop it.
        """
        with self._lock:
            if self._closed:
                raise StoreError("the log is closed")
            if self._thread is None:
                if isinstance(job, Execute) and not job.sql:
                    job.done.set_result(None)  # nothing was queued before it
                    return
                self._thread = threading.Thread(
                    target=self._serve, args=(self._connect(),), name="kestrel-log-writer", daemon=True
                )
                self._thread.start()
            if job.done is not None:
                job.done.set_running_or_notify_cancel()
            self._jobs.append(job)
            if self._asleep or (urgent and not self._urgent) or len(self._jobs) == BATCH:
                self._urgent = self._urgent or urgent
                self._wake()

    @property
    def backlog(self) -> int:
        """How many jobs are queued."""
        return len(self._jobs)

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._lock:
            self._closed = True
            self._wake()
        if self._thread is not None:
            self._thread.join()

    def abandon(self, ended: Callable[[], object]) -> None:
        """Write what is queued, then stop and call `ended`, in the writer's thread; waits for nothing.

        The user of the writer is gone. It may be the garbage collector that calls this, in any thread, also
        in that of the writer while it holds the lock: so none is taken here.
        """
        self._ended = ended
        self._closed = True
        if self._thread is None:
            ended()
        else:
            with suppress(RuntimeError):  # somebody rang at the same time
                self._bell.release()

    def _serve(self, connection: apsw.Connection) -> None:
        try:
            if self._open_mark is not None:
                self._mark = self._open_mark(connection)
            while batch := self._next_batch():
                self._commit(connection, batch)
                del batch  # what its events call back would live as long as the thread waits for more
        finally:
            if self._mark is not None:
                self._mark.close()
            connection.close()
            self._ended()

    def _wake(self) -> None:
        """Wake the writer's thread; with the lock."""
        self._asleep = False
        if self._bell.locked():
            self._bell.release()

    def _next_batch(self) -> list[Append | Execute]:
        lingered = False
        while True:
            with self._lock:
                if self._urgent or self._closed or len(self._jobs) >= BATCH or (lingered and self._jobs):
                    batch = [self._jobs.popleft() for _ in range(min(BATCH, len(self._jobs)))]
                    if not self._jobs:
                        self._urgent = False
                    return batch
                self._asleep = lingered
            lingered = not self._bell.acquire(timeout=-1 if lingered else LINGER_S)

    def _commit(self, connection: apsw.Connection, batch: list[Append | Execute]) -> None:
        if self._incomplete:
            batch = [job for job in batch if not self._follows_missing(job)]
        if not batch:
            return
        try:
            numbers = _transact(connection, batch, self._mark)
        except Exception as error:  # a dead writer would leave all callers waiting: each gets the error  # noqa: BLE001
            if len(batch) > 1 and not isinstance(error, _EVERYBODYS):
                for job in batch:
                    self._commit(connection, [job])
                return
            for job in batch:
                self._refuse(job, error)
            return
        for job, number in zip(batch, numbers, strict=True):
            if job.done is not None:
                job.done.set_result(number)  # type: ignore[arg-type]  # an Append gets its number, an Execute None
        for listener in self.listeners:
            listener()

    def _follows_missing(self, job: Append | Execute) -> bool:
        if isinstance(job, Execute):
            error = next((self._incomplete[run] for run in job.rests_on if run in self._incomplete), None)
        else:
            error = self._missing.get((job.run_id, job.epoch)) if job.epoch is not None else None
        if error is not None:
            self._refuse(job, error)
        return error is not None

    def _refusal(self, job: Append | Execute, error: Exception) -> StoreError:
        """The error that says what could not be written, and what to do once it can."""
        events = job.events if isinstance(job, Execute) else (job,)
        for event in events:
            if event.run_id in self._not_begun:
                return store_error(error, f"run {event.run_id}, which has not begun", "start it again")
        what = job.what if isinstance(job, Execute) else f"event {job.type!r} of run {job.run_id}"
        return store_error(error, what)

    def _refuse(self, job: Append | Execute, error: Exception) -> None:
        if isinstance(job, Execute) and not isinstance(error, apsw.ConstraintError):
            self._not_begun.update(event.run_id for event in job.events)
        for event in (job,) if isinstance(job, Append) else job.events:
            if event.epoch is not None:
                self._incomplete.setdefault(event.run_id, error)
            if not isinstance(error, apsw.ConstraintError):
                self._missing[event.run_id, event.epoch] = error
        refusal = self._refusal(job, error)
        refusal.__cause__ = error
        if job.done is not None:
            job.done.set_exception(refusal)
        if isinstance(job, Append) and job.refused is not None:
            job.refused(refusal)


def _transact(
    connection: apsw.Connection, batch: list[Append | Execute], mark_file: MarkFile | None
) -> list[int | None]:
    """Commit a batch, then mark its last event; returns the number of each event, `None` for other jobs."""
    numbers: list[int | None] = []
    connection.execute("BEGIN IMMEDIATE")
    try:
        pages = _Pages(connection)
        for job in batch:
            if isinstance(job, Append):
                numbers.append(pages.add(job))
                continue
            numbers.append(None)
            if not job.sql:
                continue
            pages.insert()
            connection.execute(job.sql, job.bindings)
            for event in job.events:
                pages.add(event)
        pages.insert()
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    if mark_file is not None and (mark := pages.mark) is not None:
        mark_file.advance(mark)
    return numbers


class _Pages:
    """The events of one transaction, numbered and chained: nobody else writes meanwhile."""

    def __init__(self, connection: apsw.Connection) -> None:
        self._connection = connection
        self._rows: list[tuple[Any, ...]] = []
        self._tips: dict[str, tuple[int, bytes]] = {}
        self._last_run = ""

    def add(self, event: Append) -> int:
        """Put `event` behind the last one of its run; returns its number."""
        run_id = event.run_id
        if run_id not in self._tips:
            self._tips[run_id] = last_hash(
                lambda sql, bindings: self._connection.execute(sql, tuple(bindings)).fetchall(), run_id
            )
        last, before = self._tips[run_id]
        columns = (run_id, last + 1, event.eid, event.at, event.type, event.ref, event.body, event.epoch)
        digest = chain_hash(before, *columns)
        self._tips[run_id] = (last + 1, digest)
        self._rows.append((*columns, digest))
        self._last_run = run_id
        return last + 1

    @property
    def mark(self) -> Mark | None:
        """The event that was added last; `None` without one."""
        if not self._last_run:
            return None
        seq, digest = self._tips[self._last_run]
        return Mark(run_id=self._last_run, seq=seq, digest=digest)

    def insert(self) -> None:
        """Hand what was added to the database, in as few statements as can be."""
        for start in range(0, len(self._rows), _MOST_ROWS):
            rows = self._rows[start : start + _MOST_ROWS]
            self._connection.execute(_INSERT + ",".join([_ROW] * len(rows)), [*chain.from_iterable(rows)])
        self._rows = []
