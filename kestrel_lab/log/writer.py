"""One thread that writes for all: many appends share a commit, and none is acknowledged before it.

A commit to disk costs a millisecond, an insert a hundredth of that. So appends queue up and the
writer commits what it finds; an append that nobody waits for lingers a few milliseconds to find
company. When one statement of a batch is refused the batch is rolled back and its parts are tried one
by one, so a bad append harms nobody else; when the disk is full or the database cannot be reached, all of
them are refused.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import apsw

from kestrel_lab.core.errors import StoreError
from kestrel_lab.log.connection import translate

_EVERYBODYS = (apsw.FullError, apsw.BusyError, apsw.IOError, apsw.CorruptError, apsw.ReadOnlyError)
"""What is wrong with the database rather than with one statement."""
BATCH = 256
LINGER_S = 0.004


@dataclass(frozen=True, slots=True)
class Append:
    """One event on its way into the log."""

    run_id: str
    eid: str
    at: float
    type: str
    ref: str | None
    body: str
    epoch: int | None
    """Of the run, when its session claimed it; `None` for a decision of another session."""
    done: Future[int]
    """Resolves to the event's number after the commit."""


@dataclass(frozen=True, slots=True)
class Execute:
    """One other statement on its way."""

    sql: str
    bindings: tuple[Any, ...]
    what: str
    done: Future[None]


class Writer:
    """Takes jobs from any thread; resolves their futures after COMMIT, in order."""

    def __init__(self, connect: Callable[[], apsw.Connection]) -> None:
        self._connect = connect
        self._jobs: deque[Append | Execute] = deque()
        self._wake = threading.Condition()
        self._urgent = False
        self._closed = False
        self._thread: threading.Thread | None = None

    def put(self, job: Append | Execute, *, urgent: bool) -> None:
        """Queue `job`; with `urgent` somebody waits for it. Raises `StoreError` once closed.

        What is queued cannot be taken back: whoever stops waiting for the future does not stop the job.
        """
        with self._wake:
            if self._closed:
                msg = "the log is closed"
                raise StoreError(msg)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, args=(self._connect(),), name="kestrel-log-writer", daemon=True)
                self._thread.start()
            job.done.set_running_or_notify_cancel()
            self._jobs.append(job)
            first = len(self._jobs) == 1
            if (urgent and not self._urgent) or first or len(self._jobs) == BATCH:
                self._urgent = self._urgent or urgent
                self._wake.notify()

    def hurry(self) -> None:
        """Commit what is queued now: somebody has begun to wait for it."""
        with self._wake:
            if self._jobs:
                self._urgent = True
                self._wake.notify()

    def close(self) -> None:
        """Write what is queued, then stop."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _serve(self, connection: apsw.Connection) -> None:
        try:
            while batch := self._next_batch():
                self._commit(connection, batch)
        finally:
            connection.close()

    def _next_batch(self) -> list[Append | Execute]:
        with self._wake:
            self._wake.wait_for(lambda: self._jobs or self._closed)
            if not self._urgent and not self._closed:
                self._wake.wait_for(lambda: self._urgent or self._closed or len(self._jobs) >= BATCH, timeout=LINGER_S)
            batch = [self._jobs.popleft() for _ in range(min(BATCH, len(self._jobs)))]
            if not self._jobs:
                self._urgent = False
            return batch

    def _commit(self, connection: apsw.Connection, batch: list[Append | Execute]) -> None:
        try:
            numbers = _transact(connection, batch)
        except Exception as error:  # noqa: BLE001  # a writer that dies would leave everybody waiting: each waiter is told
            if len(batch) > 1 and not isinstance(error, _EVERYBODYS):
                for job in batch:
                    self._commit(connection, [job])
                return
            for job in batch:
                _refuse(job, error)
            return
        for job, number in zip(batch, numbers, strict=True):
            job.done.set_result(number)  # type: ignore[arg-type]  # an Append gets its number, an Execute None


def _refuse(job: Append | Execute, error: Exception) -> None:
    what = f"event {job.type!r} of run {job.run_id}" if isinstance(job, Append) else job.what
    job.done.set_exception(translate(error, what))


def _transact(connection: apsw.Connection, batch: list[Append | Execute]) -> list[int | None]:
    numbers: list[int | None] = []
    last: dict[str, int] = {}
    connection.execute("BEGIN IMMEDIATE")
    try:
        rows: list[tuple[Any, ...]] = []
        for job in batch:
            if isinstance(job, Append):
                if job.run_id not in last:
                    last[job.run_id] = _last_number(connection, job.run_id)
                last[job.run_id] += 1
                numbers.append(last[job.run_id])
                rows.append((job.run_id, last[job.run_id], job.eid, job.at, job.type, job.ref, job.body, job.epoch))
                continue
            _insert(connection, rows)
            rows = []
            connection.execute(job.sql, job.bindings)
            numbers.append(None)
        _insert(connection, rows)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
    return numbers


def _insert(connection: apsw.Connection, rows: list[tuple[Any, ...]]) -> None:
    if rows:
        connection.executemany("INSERT INTO events(run_id, seq, eid, at, type, ref, body, epoch) VALUES (?,?,?,?,?,?,?,?)", rows)


def _last_number(connection: apsw.Connection, run_id: str) -> int:
    row = connection.execute("SELECT last_seq FROM runs WHERE id = ?", (run_id,)).fetchone()
    return int(row[0]) if row else 0
