"""A run as a stream of messages read from the log.

The log is the buffer, so a slow reader delays nothing and misses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Final, Self

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events import union as e
from kestrel_lab.core.run_types import INTERRUPTED, RunStatus
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.eventlog.run_status import visible_status
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.run_report import Report
from kestrel_lab.server.protocol import (
    ApprovalWanted,
    Decided,
    Delta,
    Ended,
    Happened,
    JobProgress,
    Question,
    View,
)
from kestrel_lab.views.formatting import answer_options
from kestrel_lab.views.html.markdown import RenderedChanges
from kestrel_lab.views.rows import Change
from kestrel_lab.views.run_view import RunView

_GATHER_S: Final = 0.01
"""Seconds for which commits of this process are gathered before followers read them."""
_FIRST_POLL_S: Final = 0.02
_LONGEST_POLL_S: Final = 0.25
"""Seconds between two checks for commits of other processes while there is activity; a check costs 20 µs."""
_QUIET_S: Final = 1.0
"""Seconds without a commit after which the file system is asked to report the next one."""


class LogWatcher:
    """Watches a log for all followers of its runs: it reports that the log has grown, not by what.

    Commits of this process are notified by its store. Only those of other processes are polled for, less and
    less often as long as none comes, and not at all while nothing goes on.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._version = -1
        self._active_until = 0.0
        self._notified = False
        self._grown = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.count = 0
        """How many times the log has grown."""

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()

        def committed() -> None:
            if not self._notified:
                self._notified = True
                # The loop closed in this moment.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(loop.call_later, _GATHER_S, self._own_commit)

        self._unsubscribe = self._store.on_commit(committed)
        self._watching = asyncio.create_task(self._watch(), name="kestrel control tail")
        self._watching.add_done_callback(lambda _: self.poke())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._unsubscribe()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def poke(self) -> None:
        """Wake all followers as if the log had grown."""
        self.count += 1
        self._grown.set()
        self._grown = asyncio.Event()

    async def grown(self, count: int) -> None:
        """Wait until it has grown more than `count` times; raises `StoreError` if it is no longer watched."""
        while self.count <= count:
            await self._grown.wait()
        if self._watching is None or self._watching.done():
            raise StoreError(f"the log {self._store.path} is no longer watched")

    def _own_commit(self) -> None:
        self._notified = False
        if self._watching is not None and not self._watching.done():
            self._look(own=True)

    async def _watch(self) -> None:
        while True:
            await wait_until(
                self._store.path, lambda: self._poll() or time.monotonic() < self._active_until or None
            )
            pause = _FIRST_POLL_S
            while time.monotonic() < self._active_until:
                await asyncio.sleep(pause)
                pause = _FIRST_POLL_S if self._poll() else min(2 * pause, _LONGEST_POLL_S)

    def _poll(self) -> bool:
        # While a commit of this process is about to be reported, a poll would take it for another's, and poll
        # often again.
        return not self._notified and self._look()

    def _look(self, *, own: bool = False) -> bool:
        ((version,),) = self._store.query("PRAGMA data_version")
        if version == self._version and not own:
            return False
        self._version = version
        self._active_until = time.monotonic() + _QUIET_S
        self.poke()
        return True


DELTA_S: Final = 0.05
"""Seconds between two messages with streamed text."""
_MANY: Final = 200
"""Events above which a view is computed in a thread, so that the event loop is not delayed."""
_STREAMED: Final = 200_000
"""The most characters of one answer that are streamed; the event that follows contains all of it."""

RunMessage = Happened | Question | ApprovalWanted | Decided | JobProgress | Delta | View | Ended


def message_of(record: e.Record, patience_s: float | None = None) -> RunMessage:
    """Return the message of an event; `patience_s` is how long its question waits for an answer."""
    event = record.event
    common = {
        "run": record.run_id,
        "seq": record.seq,
        "at": record.at,
        "event": {"type": event.type, **e.to_json(event)},
    }
    match event:
        case e.ApprovalAsked():
            until = None if patience_s is None else record.at + patience_s
            asks = {**common, "question": event.question or event.call, "key": event.key, "expires_at": until}
            if event.why == "question":
                return Question.model_validate(
                    {**asks, "text": str(event.args.get("question", "")), "options": answer_options(event)}
                )
            wanted = {
                "tool": event.tool,
                "args": event.args,
                "danger": event.danger,
                "why": event.why,
                "diff": event.preview,
            }
            return ApprovalWanted.model_validate({**asks, **wanted, "sandbox": event.sandbox})
        case e.ApprovalGiven():
            how = {"granted": event.granted, "by": event.by, "reason": event.reason, "answer": event.answer}
            return Decided.model_validate({**common, "question": event.question or event.call, **how})
        case e.Progress():
            return JobProgress.model_validate({**common, "text": event.text, "fraction": event.fraction})
    return Happened.model_validate(common)


class Follower:
    """Yields the messages of one run from behind event number `after` to its end."""

    def __init__(
        self,
        store: SessionStore,
        tail: LogWatcher,
        run: str,
        *,
        after: int = 0,
        view: bool = False,
        patience_s: float | None = None,
    ) -> None:
        """Raises `UsageError` when there is no such run, or none with so many events."""
        store.flush()
        ((last,),) = store.query("SELECT last_seq FROM runs WHERE id = ?", (store.run(run).id,))
        if after > last:
            raise UsageError(f"run {run} has no event {after}, its last is {last}: subscribe after 0")
        self.run = run
        self._store, self._tail, self._patience_s = store, tail, patience_s
        self._seen = after
        self._view = RunView() if view else None
        self._rendered = RenderedChanges(self._view or RunView())
        self._asks: dict[str, tuple[str, str, float | None]] = {}
        self._streaming: dict[tuple[str, bool], list[str]] = {}
        """Pieces that were not sent yet, by call and whether they are reasoning.

        Pieces of calls that the log does not contain yet wait for it.
        """
        self._length: dict[str, int] = {}
        self._open: set[str] = set()
        """Model calls that were sent and have no answer yet."""
        self._timer: asyncio.TimerHandle | None = None
        self.settled = asyncio.Event()
        """Set as soon as everything in the log has been sent."""

    def hear(self, delta: e.ModelDelta) -> None:
        """Take a piece of a streaming answer; call on the event loop.

        Pieces may be dropped: the event of the answer has the whole text.
        """
        length = self._length.get(delta.call, 0)
        if length > _STREAMED:
            return
        self._length[delta.call] = length + len(delta.text)
        self._streaming.setdefault((delta.call, delta.thinking), []).append(delta.text)
        # One timer for all pieces: a model may send hundreds a second, and a message each would be wasted.
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELTA_S, self._wake)

    def _wake(self) -> None:
        self._timer = None
        self._tail.poke()

    async def messages(self) -> AsyncIterator[RunMessage]:
        """Yield every event once, in order, as soon as the log has it; then `end` when the run has ended."""
        first = True
        # A view is built from the first event on, also for a client that has seen some of them.
        if self._view is not None and self._seen:
            for record in await asyncio.to_thread(self._store.records, self.run):
                if record.seq <= self._seen:
                    self._note(record)
                    self._view.apply(record)
            first = False
        while True:
            # Before the log is read: what is written meanwhile then ends the wait below at once.
            count = self._tail.count
            ended, records = await asyncio.to_thread(self._news)
            if self._view is None:
                for message in self._messages_of(records):
                    yield message
            elif (shown := await self._shown(self._view, records, whole=first)) is not None:
                yield shown
            first = False
            if ended:
                yield Ended(run=self.run, seq=self._seen)
                return
            self.settled.set()
            await self._tail.grown(count)

    def _news(self) -> tuple[bool, list[e.Record]]:
        # The status first: if the run has ended, the records read after that are all there will ever be.
        return self._store.run(self.run).status.terminal, self._store.records(self.run, after=self._seen)

    def _messages_of(self, records: list[e.Record]) -> Iterator[RunMessage]:
        for record in records:
            self._note(record)
            self._seen = record.seq
            yield message_of(record, self._patience_s)
        for piece in self._pieces():
            yield Delta(run=self.run, call=piece.call, text=piece.text, thinking=piece.thinking)

    async def _shown(self, view: RunView, records: list[e.Record], *, whole: bool) -> View | None:
        def apply() -> list[Change]:
            changes = [change for record in records for change in view.apply(record)]
            # If the decision came while no process worked on the run, it no longer waits for a person, but no
            # event says so.
            if view.head.status == RunStatus.WAITING_APPROVAL and not view.asks:
                row = self._store.run(self.run)
                if visible_status(self.run, row.status, row.owner, asks=False).word == INTERRUPTED:
                    changes += view.interrupt(time.time())
            if ends and view.cites:
                report = Report(self._store, self.run, self._store.state(self.run), None, working=False)
                changes += view.mark(report.evidence.claims)
            return changes

        for record in records:
            self._note(record)
            self._seen = record.seq
        ends = any(isinstance(record.event, e.RunFinished) for record in records)
        changes = await asyncio.to_thread(apply) if ends or len(records) > _MANY else apply()
        for piece in self._pieces():
            changes += view.apply(piece, time.time())
        if not changes and not whole:
            return None
        shown = view.snapshot() if whole else changes
        return View(
            run=self.run,
            seq=self._seen,
            at=time.time(),
            whole=whole,
            changes=self._rendered.of(shown),
            asks=dict(self._asks),
        )

    def _note(self, record: e.Record) -> None:
        match record.event:
            case e.ApprovalAsked() as asked:
                until = None if self._patience_s is None else record.at + self._patience_s
                self._asks[asked.call] = (asked.question or asked.call, asked.key, until)
            case e.ApprovalGiven() as given:
                self._asks.pop(given.call, None)
            case e.RunForked():
                # The fork asks its open questions again.
                self._asks.clear()
            case e.ModelCalled() as called:
                self._open.add(called.call)
            case e.ModelAnswered() as answered:
                self._open.discard(answered.call)
                # The event has the whole text: pieces that were not sent yet would repeat it.
                for thinking in (True, False):
                    self._streaming.pop((answered.call, thinking), None)
                self._length.pop(answered.call, None)

    def _pieces(self) -> list[e.ModelDelta]:
        """Return the pieces of answers that stream now, one per call, and of their reasoning before them."""
        ready = sorted((key for key in self._streaming if key[0] in self._open), key=lambda key: not key[1])
        return [
            e.ModelDelta(call=key[0], text="".join(self._streaming.pop(key)), thinking=key[1])
            for key in ready
        ]
