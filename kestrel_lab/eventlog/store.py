"""The log as the rest of the program sees it: append, read back, list."""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.core.errors import (
    AlreadyDecided,
    IllegalTransition,
    StorageFull,
    StoreError,
    UsageError,
    candidates,
)
from kestrel_lab.core.events.union import (
    Annotation,
    ApprovalAsked,
    ApprovalGiven,
    CheckpointSaved,
    Event,
    FilesApplied,
    KernelUndone,
    Record,
    RunForked,
    RunStarted,
    StateTransition,
    decode_event,
    encode_event,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.eventlog import shared_conversation
from kestrel_lab.eventlog.checkpoints import (
    KEPT,
    SAVE,
    Checkpoint,
    Image,
    encode_state,
    newest_state,
    pack_snapshot,
    read_snapshots,
    snapshot_format,
)
from kestrel_lab.eventlog.connection import ANSWERED_BEFORE, connect_log, connect_without_room, store_error
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.seals.hash_chain import Damage, damage_of, last_hash
from kestrel_lab.eventlog.seals.marks import LostEvents, MarkFile, lost_events
from kestrel_lab.eventlog.text_index import TextIndex
from kestrel_lab.eventlog.writer import Append, Execute, Writer
from kestrel_lab.host.filesystem import check_local, kind_of_filesystem
from kestrel_lab.host.log_files import OpenDatabase


@dataclass(frozen=True, kw_only=True, slots=True)
class RunRow:
    """What the list of runs says of one."""

    id: str
    goal: str
    workspace: str
    model: str
    model_kind: str
    config: str
    scenario: str
    status: RunStatus
    parent: str | None
    forked_at: int | None
    """Up to which number the events of `parent` are this run's too."""
    created_at: float
    owner: str
    """The session that works on it, or did last; empty when it was given back."""
    epoch: int
    """How often it was claimed anew."""


Given = ApprovalGiven | KernelUndone | FilesApplied | Annotation
"""What may be added to a run from outside, and after its end."""

_NOTES = logging.getLogger(__name__)
_MOST_READERS = 4
"""Connections that are kept open for reading."""
_LAST = 2**63 - 1
"""No event has a greater number."""
_DECIDED = (ApprovalAsked, ApprovalGiven)
_EVENT_COLUMNS = "seq, eid, at, type, body"
_PRESENT = "runs WHERE id NOT IN (SELECT run_id FROM removals)"
_RUN_COLUMNS = (
    "id, goal, workspace, model, model_kind, config, scenario, status, parent, forked_at, created_at, "
    "owner, epoch"
)


class SessionStore:
    """One SQLite file. Appends from any thread; an append's future resolves once it is on disk.

    A run belongs to the store that created or forked it until another one claims it: then every append of the
    first is refused with `Fenced`, decisions by `decide` excepted, which anybody may record.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        network: bool = False,
        filesystem: Callable[[Path], str] = kind_of_filesystem,
    ) -> None:
        """Open the file, which is made if need be.

        Args:
            path: Where it is.
            network: Whether it may lie on a network file system.
            filesystem: Says on which kind a path lies.

        Raises:
            UsageError: It lies on a network file system.
            StoreError: It is not a log, was written by a newer version, or cannot be opened.
        """
        self.path = Path(path)
        if not network:
            check_local(self.path, filesystem(self.path))
        self._readers: list[apsw.Connection] = []
        """Connections that nobody reads with at the moment."""
        self.lost: list[LostEvents] = []
        """Events that were acknowledged and are not in the log any more."""
        try:
            reader = connect_log(self.path)
        except StorageFull:
            # What is there can be read all the same; writing says that there is no room.
            reader = connect_without_room(self.path)
            self.lost = lost_events(self.path, reader)
            reader.close()
        else:
            self.lost = lost_events(self.path, reader)
            self._readers.append(reader)
        for events in self.lost:
            _NOTES.warning("kestrel: %s", events)
        self._files = OpenDatabase(self.path)
        self.closed = False
        """Whether nothing can be read or written any more."""
        self._lock = threading.Lock()
        self._writer = Writer(partial(connect_log, self.path), partial(MarkFile, self.path))
        # No part of the store: the thread of a store that nobody closes would keep it, and itself, for ever.
        weakref.finalize(self, _let_go, self._writer, self._readers, self._files).atexit = False
        self.session = secrets.token_hex(6)
        """Names this store in the log: unique for ever."""
        self._epochs: dict[str, int] = {}
        """Of the runs that belong to this store, or did."""
        self._begun: set[str] = set()
        """Those that this store created: they share no events of another run."""
        self._conversations = shared_conversation.ConversationCache(self.query)
        self.kept: dict[str, list[Record]] = {}
        """By run that was created with `keep`, its records as `records` gives them once on disk; until
        somebody takes them.
        """
        self._tails: dict[str, str] = {}
        """The id of the last event that this store appended to a run."""
        self.results = ResultStore(self.path.parent / "results")
        """Whole texts of answers that were too long to show."""
        self.texts = TextIndex(self.query, self.execute)
        """Finds runs by their words."""
        # Not a generator: those may not be entered by two threads.
        self._numbers = itertools.count(1)

    def create_run(
        self, run_id: str, started: RunStarted, *, at: float | None = None, keep: bool = False
    ) -> float:
        """Queue a run in state PLANNING with `started` as its first event, in one transaction.

        Returns the event's time: `at`, if it was begun elsewhere. With `keep` its events stay in memory too,
        see `kept`.
        """
        if keep:
            self.kept[run_id] = []
        now = time.time() if at is None else at
        columns = (
            started.goal,
            started.workspace,
            started.model,
            started.model_kind,
            started.config,
            started.scenario,
        )
        row = (run_id, *_encodable(*columns), self._owner, now)
        sql = (
            "INSERT INTO runs(id, goal, workspace, model, model_kind, config, scenario, owner, "
            "created_at) VALUES (?,?,?,?,?,?,?,?,?)"
        )
        self._epochs[run_id] = 0
        self._begun.add(run_id)
        if started.follows and (lineage := self._lineage(started.follows)):
            base = self._conversations.get(since := lineage[0][0])
            self._conversations.put(run_id, started.earlier)
            started = replace(
                started,
                earlier=shared_conversation.conversation_reference(self.query, since, base, started.earlier),
            )
        self._writer.put(
            Execute(sql, row, f"run {run_id}", Future(), (self._job(run_id, started, 0, now),)), urgent=False
        )
        self.texts.run_began()
        return now

    def fork_run(
        self,
        run_id: str,
        forked: RunForked,
        status: RunStatus,
        given: Event | None = None,
        *,
        scenario: str = "",
    ) -> float:
        """Queue a run that shares the events of `forked.parent` up to `forked.at`, where that was in
        `status`. With a `scenario` it counts as a run of a suite, which lists leave out unless asked.

        `forked`, and `given` if there is one, become its first own events, in the same transaction. The
        event must be the parent's own: see `origin`. Returns the events' time.
        """
        now = time.time()
        row = (
            run_id,
            *_encodable(forked.model),
            forked.model_kind,
            status,
            status,
            forked.at,
            forked.at,
            self._owner,
            now,
            scenario,
            forked.parent,
        )
        sql = (
            "INSERT INTO runs(id, goal, workspace, model, model_kind, began, status, parent, "
            "forked_at, last_seq, owner, created_at, scenario)"
            " SELECT ?, goal, workspace, ?, ?, ?, ?, id, ?, ?, ?, ?, ? FROM runs WHERE id = ?"
        )
        events = tuple(self._job(run_id, event, 0, now) for event in (forked, given) if event is not None)
        self._epochs[run_id] = 0
        self._writer.put(Execute(sql, row, f"run {run_id}", Future(), events), urgent=False)
        self.texts.run_began()
        return now

    def origin(self, run_id: str, seq: int) -> str:
        """The run that recorded an event of `run_id`: itself, or the one it was forked from."""
        return next(ancestor for ancestor, last in self._lineage(run_id) if seq <= last)

    def append(
        self, run_id: str, event: Event, *, at: float | None = None, urgent: bool = False
    ) -> Future[int]:
        """Queue `event`; the future gives its number once it is on disk, or raises what refused it.

        With `urgent` the commit is not delayed to find company: say so when you are going to wait. Refused
        with `Fenced` when the run belongs to another store. After one that could not be kept, for want of
        room for example, all that follow are refused for the same reason, until the run is claimed anew.
        """
        done: Future[int] = Future()
        self._put(
            self._job(run_id, event, self._epochs.get(run_id), time.time() if at is None else at, done),
            urgent=urgent,
        )
        return done

    def record(
        self,
        run_id: str,
        event: Event,
        at: float,
        refused: Callable[[Exception], object],
        *,
        urgent: bool = False,
    ) -> None:
        """Queue `event` like `append`, for a caller that needs no number and waits with `on_disk`; cheaper,
        because no future is made.

        `refused` is called in the writer's thread with the error of an event that could not be kept.
        """
        self._put(self._job(run_id, event, self._epochs.get(run_id), at, None, refused), urgent=urgent)

    def _put(self, job: Append, *, urgent: bool) -> None:
        self._writer.put(job, urgent=urgent)
        self._tails[job.run_id] = job.eid

    def _job(
        self,
        run_id: str,
        event: Event,
        epoch: int | None,
        at: float,
        done: Future[int] | None = None,
        refused: Callable[[Exception], object] | None = None,
    ) -> Append:
        ref = event.question or event.call if isinstance(event, _DECIDED) else None
        eid = f"{self.session}-{next(self._numbers)}"
        if (kept := self.kept.get(run_id)) is not None:
            kept.append(Record(run_id=run_id, seq=len(kept) + 1, eid=eid, at=at, event=event))
        return Append(
            run_id,
            eid,
            at,
            event.type,
            ref,
            encode_event(event),
            epoch,
            done,
            refused,
        )

    def transition(
        self, run_id: str, target: RunStatus, *, reason: str = "", source: RunStatus | None = None
    ) -> Future[int]:
        """Queue a change of the run's status; the future raises `IllegalTransition` if it is not allowed."""
        start = source if source is not None else self.run(run_id).status
        return self.append(run_id, StateTransition(source=start, target=target, reason=reason), urgent=True)

    def decide(self, run_id: str, given: Given, *, at: float | None = None) -> str:
        """Record what a person or a judge said or did about a run, now or `at` seconds since 1970, and wait
        until it is on disk; returns the id of the event.

        It does not matter which process works on the run, or whether one does. Raises `AlreadyDecided` if
        somebody was faster and `StoreError` if nothing was asked.
        """
        if isinstance(given, ApprovalGiven):
            given = replace(given, question=given.question or given.call)
        done: Future[int] = Future()
        job = self._job(run_id, given, None, time.time() if at is None else at, done)
        self._put(job, urgent=True)
        try:
            done.result()
        except IllegalTransition as error:  # the run may have ended with the answer that came first
            if isinstance(given, ApprovalGiven) and self.decision(run_id, given.question) is not None:
                raise AlreadyDecided(ANSWERED_BEFORE) from error
            raise
        return job.eid

    def claim(self, seen: RunRow) -> bool:
        """Make the run this store's, unless somebody has claimed it since it was `seen`; returns whether it
        is now.

        Whatever its owner appends from here on is refused. What was committed before can be read at once.
        """
        sql = "UPDATE runs SET owner = ?, epoch = epoch + 1 WHERE id = ? AND owner = ? AND epoch = ?"
        self.execute(sql, (self._owner, seen.id, seen.owner, seen.epoch), f"claim of run {seen.id}").result()
        now = self.run(seen.id)
        if now.epoch != seen.epoch + 1 or Owner.parse(now.owner).session != self.session:
            return False
        self._epochs[seen.id] = now.epoch
        return True

    def release(self, run_id: str) -> Future[None]:
        """Queue the note that nobody works on the run, unless another store has claimed it."""
        return self.execute(
            "UPDATE runs SET owner = '' WHERE id = ? AND epoch = ?",
            (run_id, self._epochs.get(run_id)),
            f"run {run_id}",
        )

    @cached_property
    def _owner(self) -> str:
        return str(Owner.here(self.session))

    def decision(self, run_id: str, question: str) -> Record | None:
        """How a question was answered, by whichever process, or `None` while it is open."""
        rows = self.query(
            f"SELECT {_EVENT_COLUMNS} FROM events WHERE run_id = ? AND ref = ? AND type = 'approval_given'",
            (run_id, question),
        )
        return _record(run_id, rows[0]) if rows else None

    def records(
        self, run_id: str, *, after: int = 0, until: int = _LAST, types: Collection[str] = ()
    ) -> list[Record]:
        """The events of a run in order, those behind number `after` up to `until`; what is still queued is
        not among them.

        With `types` only events of these types are read.

        Those that a forked run shares with its parent come first, as records of this run: with its id, and
        with the `eid` they have in the parent.
        """
        only = f" AND type IN ({', '.join('?' * len(types))})" if types else ""
        sql = (
            f"SELECT {_EVENT_COLUMNS} FROM events WHERE run_id = ? AND seq > ? AND seq <= ?{only} "
            "ORDER BY seq"
        )
        lineage = [(run_id, _LAST)] if run_id in self._begun else self._lineage(run_id)
        found: list[Record] = []
        for ancestor, last in lineage:
            for row in self.query(sql, (ancestor, after, min(last, until), *types)):
                # A damaged file may give others, and out of their order.
                if isinstance(row[0], int) and after < row[0] <= until:
                    found.append(_record(run_id, row))
                    after = row[0]
        if (
            found
            and found[0].seq == 1
            and isinstance(started := found[0].event, RunStarted)
            and started.follows
        ):
            found[0] = replace(
                found[0], event=replace(started, earlier=self._conversations.get(lineage[0][0]))
            )
        return found

    def state(self, run_id: str) -> RunState:
        """What the run's events make it: the newest usable snapshot, and the events behind it.

        The same as `fold(records(run_id))`, sooner. A damaged snapshot is passed over with a warning.
        """
        state = newest_state(read_snapshots(self.query, self._lineage(run_id)))
        for record in self.records(run_id, after=state.events):
            state.apply(record.event, record.at)
        return state

    def image(self, run_id: str, state: RunState) -> Image | None:
        """What a snapshot of `state` is made of, for `checkpoint`, which may then run in another thread while
        the state goes on.

        `state` is that behind the last event that this store appended to the run, made of its events in the
        order of the log. `None` when this store has appended none.
        """
        eid = self._tails.get(run_id)
        return None if eid is None else Image(seq=state.events, eid=eid, body=encode_state(state))

    def checkpoint(self, run_id: str, reason: str, image: Image | None = None) -> CheckpointSaved | None:
        """Queue a snapshot of the run; the oldest beyond `KEPT` go.

        Without an `image` the run is folded as it is on disk now, which costs as much as reading it. Returns
        the event that tells of the snapshot, for the caller to append; `None` when no event of the run's own
        is on disk.
        """
        if image is None:
            state = self.state(run_id)
            found = self.query("SELECT eid FROM events WHERE run_id = ? AND seq = ?", (run_id, state.events))
            if not found:
                return None
            image = Image(seq=state.events, eid=found[0][0], body=encode_state(state))
        content = pack_snapshot(image.body, run=run_id, seq=image.seq, eid=image.eid)
        row = (run_id, image.seq, reason, snapshot_format(), content, time.time(), image.eid)
        self._writer.put(
            Execute(SAVE, (*row, run_id, KEPT), f"checkpoint of run {run_id}", Future()), urgent=False
        )
        return CheckpointSaved(seq=image.seq, reason=reason, bytes=len(content))

    def damage(self, run_id: str, *, anew: bool = True) -> Damage | None:
        """Where the events on disk that make the run stop being those that were written; `None` when they do
        not.

        Reads and hashes them all, about a hundred thousand a second, and the first event of each run whose
        conversation it goes on with; unless `anew`, of those only what this process has not checked and kept
        in memory.
        """
        lineage = self._lineage(run_id)
        if (damage := damage_of(self.query, lineage)) is not None or not lineage:
            return damage
        for events in self.lost:
            for ancestor, last in lineage:
                if events.run_id == ancestor and events.first <= last:
                    return Damage(run_id=ancestor, seq=events.first, what=str(events))
        first = lineage[0][0]
        if not (other := self._conversations.changed(first, anew=anew)):
            return None
        return Damage(
            run_id=first,
            seq=1,
            what=f"the conversation that it goes on with is not what was written in run {other}",
        )

    def head(self, run_id: str) -> str:
        """The hash of the run's last event, hexadecimal; who keeps it can detect a truncated log."""
        return last_hash(self.query, run_id)[1].hex()

    def checkpoints(self, run_id: str) -> list[Checkpoint]:
        """The snapshots that the run can be taken up from, newest first."""
        return list(read_snapshots(self.query, self._lineage(run_id)))

    def _lineage(self, run_id: str) -> list[tuple[str, int]]:
        """The runs whose events a run includes, oldest first, each with its last included number."""
        sql = f"""
            WITH RECURSIVE line(id, parent, forked_at, last) AS (
                SELECT id, parent, forked_at, {_LAST} FROM runs WHERE id = ?
                UNION ALL SELECT runs.id, runs.parent, runs.forked_at, line.forked_at FROM line JOIN runs ON \
runs.id = line.parent)
            SELECT id, last FROM line ORDER BY last
        """
        return [(str(ancestor), int(last)) for ancestor, last in self.query(sql, (run_id,))]

    def run(self, run_id: str) -> RunRow:
        """The row of a run; raises `UsageError` if there is none (with the nearest id) or it was removed."""
        rows = self.query(f"SELECT {_RUN_COLUMNS} FROM {_PRESENT} AND id = ?", (run_id,))
        if not rows and (
            gone := self.query("SELECT date(at, 'unixepoch') FROM removals WHERE run_id = ?", (run_id,))
        ):
            raise UsageError(f"run {run_id} was removed on {gone[0][0]}")
        if not rows:
            known = [row.id for row in self.runs(limit=200)]
            raise UsageError(
                f"no run {run_id!r} in {self.path}: "
                f"{candidates(run_id, known) if known else 'it has no runs yet'}"
            )
        return _run_row(rows[0])

    def runs(self, *, limit: int = 100, trials: bool = True) -> list[RunRow]:
        """The newest runs first; without those that a suite started unless `trials`."""
        where = "" if trials else "AND scenario = ''"
        found = []
        for row in self.query(
            f"SELECT {_RUN_COLUMNS} FROM {_PRESENT} {where} ORDER BY created_at DESC LIMIT ?", (limit,)
        ):
            try:
                found.append(_run_row(row))
            except StoreError as error:
                # One row that cannot be read must not hide the others.
                warnings.warn(f"{error}; it is left out", stacklevel=2)
        return found

    def query(self, sql: str, bindings: Iterable[object] = ()) -> list[tuple[Any, ...]]:
        """Return rows of what is on disk."""
        with self._lock:
            if self.closed:
                raise StoreError(f"the log {self.path} is closed")
            reader = self._readers.pop() if self._readers else None
        kept = True
        if reader is None:
            # Another connection for each thread that reads at the same time: a long read must not hold up a
            # short one on the event loop.
            try:
                reader = connect_log(self.path)
            except StorageFull:
                # It keeps all others out, so that it is closed at once.
                reader, kept = connect_without_room(self.path), False
        try:
            return reader.execute(sql, tuple(bindings)).fetchall()
        except (apsw.Error, UnicodeDecodeError) as error:
            raise store_error(error, "a query") from error
        finally:
            with self._lock:
                # Readers are kept for reuse, a few of them: opening one costs more than most queries.
                if self.closed or not kept or len(self._readers) >= _MOST_READERS:
                    reader.close()
                else:
                    self._readers.append(reader)

    def execute(
        self,
        sql: str,
        bindings: tuple[object, ...],
        what: str,
        *,
        urgent: bool = True,
        rests_on: tuple[str, ...] = (),
    ) -> Future[None]:
        """Queue one statement about `what`; the future resolves once it is on disk.

        It is refused where an event was that this store queued before, of one of the runs that it rests on.
        """
        done: Future[None] = Future()
        self._writer.put(Execute(sql, bindings, what, done, rests_on=rests_on), urgent=urgent)
        return done

    def on_disk(self) -> Future[None]:
        """A future that resolves once everything queued is on disk or refused; does not delay the commit."""
        return self.execute("", (), "a flush")

    def on_commit(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Call `listener` in the writer's thread after each commit; the returned function unsubscribes."""
        self._writer.listeners += (listener,)

        def end() -> None:
            self._writer.listeners = tuple(one for one in self._writer.listeners if one is not listener)

        return end

    @property
    def backlog(self) -> int:
        """How much is queued that is not on disk yet."""
        return self._writer.backlog

    def flush(self) -> None:
        """Wait until everything queued so far is on disk."""
        self.on_disk().result()

    def close(self) -> None:
        """Write what is queued and close the file."""
        if not self.closed:
            self.texts.settle()
        self._writer.close()
        with self._lock:
            self.closed = True
            while self._readers:
                self._readers.pop().close()
        self._files.close()


def _let_go(writer: Writer, readers: list[apsw.Connection], files: OpenDatabase) -> None:
    """End what a store has open that was thrown away unclosed: its queue is written, and nobody waits."""
    while readers:
        readers.pop().close()
    writer.abandon(files.close)


def _encodable(*texts: str) -> list[str]:
    """`texts` for columns: what is no Unicode, as in an odd path, replaced; the event keeps it as it is."""
    return [text.encode("utf-8", "replace").decode() for text in texts]


def _record(run_id: str, row: tuple[Any, ...]) -> Record:
    seq, eid, at, kind, body = row
    try:
        return Record(run_id=run_id, seq=seq, eid=eid, at=at, event=decode_event(kind, body))
    except (ValueError, TypeError, AttributeError) as error:  # the body of a damaged row may be of any type
        raise StoreError(
            f"event {seq} of run {run_id} cannot be read: {full_stop(error)} See: kestrel doctor"
        ) from error


def _run_row(row: tuple[Any, ...]) -> RunRow:
    values: dict[str, Any] = dict(zip(_RUN_COLUMNS.split(", "), row, strict=True))
    numbers = (values["created_at"], values["epoch"])
    texts = [
        value for name, value in values.items() if name not in ("parent", "forked_at", "created_at", "epoch")
    ]
    if (
        not all(isinstance(one, str) for one in texts)
        or not all(isinstance(one, int | float) for one in numbers)
        or values["status"] not in frozenset(RunStatus)
    ):
        raise StoreError(f"the row of run {values['id']!r} in the log is damaged. See: kestrel doctor")
    return RunRow(**values | {"status": RunStatus(values["status"])})
