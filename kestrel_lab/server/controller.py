"""The controller behind all transports: messages list, follow, decide, start and stop runs.

    async with Control(lab, can_start=True) as control:
        link = control.connect()
        await link.send({"type": "start", "goal": "Count the files"})
        async for message in link:
            …

It works on the log: runs of other processes are listed, followed and decided as those of its own are.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kestrel_lab.core.errors import ApprovalRequired, KestrelError, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    ApprovalGiven,
    Event,
    ModelAnswered,
    ModelDelta,
    RunInterrupted,
    RunResumed,
    StateTransition,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.run_types import TERMINAL, Limits
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.eventlog.run_status import at_work, visible_status
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.user import user_name
from kestrel_lab.host.version import __version__
from kestrel_lab.runtime.run import Run, interrupt_run, is_working
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.start import resume, start
from kestrel_lab.server import protocol
from kestrel_lab.server.actions import cancel_run, decide_question
from kestrel_lab.server.client import Link
from kestrel_lab.server.run_stream import Follower, LogWatcher
from kestrel_lab.server.trial_list import list_found, list_trials


class AttendingClients:
    """Counts the clients that can decide now."""

    def __init__(self, *, always: bool = False) -> None:
        """With `always` a client may connect at any time, as to a served page: `over` waits until `end`."""
        self._always = always
        self._count = 0
        self._nobody = asyncio.Event()
        if not always:
            self._nobody.set()

    def came(self) -> None:
        """Count a client that has connected."""
        self._count += 1
        self._nobody.clear()

    def left(self) -> None:
        """Count a client that has left."""
        self._count -= 1
        if not self._count and not self._always:
            self._nobody.set()

    def end(self) -> None:
        """Note that no further client will connect."""
        self._always = False
        self._nobody.set()

    async def over(self) -> None:
        """Return as soon as no client is connected."""
        await self._nobody.wait()


@dataclass
class ClientApprover:
    """The approver of a run that clients decide on.

    It only waits: the decisions themselves come through the log.
    """

    attendance: AttendingClients
    patience_s: float | None = None
    """Seconds after which a question without an answer is denied; `None` waits without a limit."""
    run: str = ""
    """The id of the run, once it has one."""

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Wait for the decision; raises `ApprovalRequired` if no client is connected: the run then waits."""
        try:
            async with asyncio.timeout(self.patience_s):
                await self.attendance.over()
        except TimeoutError:
            # Silence is a no: a call is made only if somebody allowed it.
            return ApprovalGiven(
                call=asked.call,
                granted=False,
                by="timeout",
                how="policy",
                reason=f"nobody answered within {self.patience_s:g} s",
            )
        raise ApprovalRequired(self.run, asked.tool, asked.args, question=asked.why == "question")


class Control:
    """Carries out the messages of clients. Enter it on the event loop of its runs."""

    def __init__(
        self,
        lab: Services,
        *,
        user: str | None = None,
        can_start: bool = False,
        workspace: str | Path = ".",
        patience_s: float | None = None,
        always: bool = False,
    ) -> None:
        """The caller closes `lab`.

        Args:
            lab: Its log, models and tools are used.
            user: The user name stored with decisions; the login name by default.
            can_start: Whether clients may start and resume runs.
            workspace: The folder of the runs that they start.
            patience_s: Seconds after which an unanswered question of such a run is denied.
            always: Whether a client may connect at any time, as to a served page. Otherwise a run that asks
                while no client is connected is left waiting in the log.
        """
        self.lab = lab
        self.user = user or user_name()
        self.can_start = can_start
        self.workspace = Path(workspace)
        self.patience_s = patience_s
        self.tail = LogWatcher(lab.store)
        self.list = RunList(lab.store)
        self.attendance = AttendingClients(always=always)
        self.links: set[Link] = set()
        self.followers: set[Follower] = set()
        self._own: dict[str, asyncio.Task[None]] = {}
        """The runs that were started here and have not ended."""
        self.jobs: dict[str, protocol.JobProgress] = {}
        """The newest progress of each running job, for clients that connect later."""

    async def __aenter__(self) -> Self:
        await self.tail.__aenter__()
        self._listener = self._hear
        self.lab.change(listeners=(*self.lab.options["listeners"], self._listener))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Disconnect all clients.

        Runs that wait for a decision stay waiting in the log; other runs that were started here are
        interrupted.
        """
        self.lab.change(
            listeners=tuple(one for one in self.lab.options["listeners"] if one is not self._listener)
        )
        self.attendance.end()
        for link in list(self.links):
            await link.close()
        # After the links are closed, no decision can come in any more.
        working = self.lab.history.live
        waiting = [task for run, task in self._own.items() if run in working and working[run].questions]
        # Runs that wait for a decision end by themselves now that nobody can decide; five seconds are ample.
        await asyncio.wait(waiting, timeout=5) if waiting else None
        for run in self._own.keys() & working.keys():
            interrupt_run(working[run])
        await asyncio.gather(*self._own.values(), return_exceptions=True)
        await self.tail.__aexit__(kind, error, trace)

    def connect(self, *, how: str = "command", person: bool = True) -> Link:
        """Return the link of a new client: pass its messages to `send`, and read the replies.

        `how` is recorded with its decisions (`click`, `prompt` or `command`). `person` says whether the
        client can decide.
        """
        return Link(self, how=how, person=person)

    def hello(self) -> protocol.Hello:
        """Return the first message to a client."""
        return protocol.Hello(server=__version__, user=self.user, can_start=self.can_start)

    def approver(self) -> ClientApprover:
        """Return the approver for a run that clients decide on; give it the run's id."""
        return ClientApprover(self.attendance, self.patience_s)

    def reporter(self, job: str) -> Reporter:
        """Return a `Reporter` that sends the progress of `job` to watching clients, from any thread."""
        loop = asyncio.get_running_loop()

        def send(message: protocol.JobProgress) -> None:
            self.jobs[job] = message
            if message.done == message.total:
                del self.jobs[job]
            for link in self.links:
                link.report(message)

        def report(done: int, total: int, note: str) -> None:
            message = protocol.JobProgress(
                job=job,
                at=time.time(),
                text=note,
                done=done,
                total=total,
                fraction=done / total if total else None,
            )
            # Jobs report from threads, but links belong to the event loop.
            loop.call_soon_threadsafe(send, message)

        return report

    def follow(self, run: str, *, after: int = 0, view: bool = False) -> Follower:
        """Return a follower of the run; raises `UsageError` when there is no such run or event."""
        patience = self.patience_s if run in self._own else None
        return Follower(self.lab.store, self.tail, run, after=after, view=view, patience_s=patience)

    async def handle(
        self,
        message: protocol.Command,
        *,
        how: str = "command",
    ) -> protocol.Reply:
        """Carry out a message and return the reply, which says why if it was refused."""
        try:
            if isinstance(message, protocol.Start | protocol.Resume):
                return self._begin(message)
            if isinstance(message, protocol.ListTrials):
                return await asyncio.to_thread(list_trials, self.lab.store, message)
            if isinstance(message, protocol.Find):
                return await asyncio.to_thread(list_found, self.lab.store, message)
            if isinstance(message, protocol.Cancel):
                return await cancel_run(self.lab, message, by=self.user)
            return await asyncio.to_thread(decide_question, self.lab, message, by=self.user, how=how)
        except UsageError as error:
            return message.refused("refused", str(error))
        except KestrelError as error:
            return message.refused("refused", str(error), todo="try again")

    def adopt(self, run: Run, approver: ClientApprover) -> None:
        """Register a run that was started with `approver` as one that was started here."""
        approver.run = run.id
        self._own[run.id] = task = asyncio.create_task(self._await(run), name=f"kestrel control {run.id}")
        # An ended run is followed like one of any other process.
        task.add_done_callback(lambda _: self._own.pop(run.id, None))

    def _begin(self, message: protocol.Start | protocol.Resume) -> protocol.Reply:
        if not self.can_start:
            return message.refused(
                "not_allowed",
                "this server starts no runs",
                todo="start the server with --allow-start, or start the run with: kestrel run",
            )
        approver = self.approver()
        if isinstance(message, protocol.Resume):
            run = resume(self.lab, message.run, approver=approver)
            if not is_working(run):
                return message.refused(
                    "ended", f"run {run.id} is {run.status}: there is nothing to go on with"
                )
        else:
            limits = Limits(**{**self.lab.limits.as_json(), **message.limits.model_dump(exclude_none=True)})
            own: Any = {"limits": limits, "workspace": self.workspace, "approver": approver}
            run = start(self.lab, message.goal, **message.options, **own)
        self.adopt(run, approver)
        return protocol.Accepted(re=message.id, run=run.id)

    async def _await(self, run: Run) -> None:
        """Wait for the end of a run and send clients the error, if any, that its log does not contain."""
        ends: tuple[Run | BaseException] = await asyncio.gather(run.wait(), return_exceptions=True)
        found = ends[0]
        if isinstance(found, Exception) and not isinstance(found, ApprovalRequired):
            for link in self.links:
                link.report(protocol.JobProgress(run=run.id, job=run.id, at=time.time(), text=str(found)))

    def _hear(self, run: Run, event: Event) -> None:
        if isinstance(event, ModelDelta):
            # Deltas are in no log: only the process that asks the model has them.
            for follower in self.followers:
                if follower.run == run.id:
                    follower.hear(event)


_RUNS = "id, goal, workspace, model, model_kind, status, parent, created_at, owner, last_seq"
_NEWS = """
    SELECT type, at, ref, body ->> 'cost_usd', body ->> 'tokens_in', body ->> 'tokens_out', body ->> \
'error', body ->> 'target',
        body ->> 'cached' OR body ->> 'given'
    FROM events WHERE run_id = ? AND seq > ? AND seq <= ?
    AND type IN ('model_answered', 'approval_asked', 'approval_given', 'state_transition', 'run_interrupted',
        'run_resumed') ORDER BY seq
"""


@dataclass(slots=True)
class _Sums:
    seq: int = 0
    meter: UsageMeter = field(default_factory=UsageMeter)
    ended_at: float | None = None
    stopped: bool = False
    """Whether somebody stopped the work: its questions wait until it is resumed."""

    def take(self, row: tuple[Any, ...]) -> None:
        """Take in one event; the row has only those columns that change the sums."""
        # The events are made up again, without texts, so that `UsageMeter` is the only place that counts.
        kind, at, ref, cost, read, written, error, target, free = row
        event: Event
        if kind in ("run_interrupted", "run_resumed"):
            self.stopped = kind == "run_interrupted"
            event = RunInterrupted() if self.stopped else RunResumed()
        elif kind == "approval_asked":
            event = ApprovalAsked(call=ref, step="", tool="", args={}, danger="", key="")
        elif kind == "approval_given":
            event = ApprovalGiven(call=ref, granted=True, by="", how="")
        elif kind == "state_transition":
            event = StateTransition(source="", target=target)
            self.ended_at = at if target in TERMINAL else None
        else:
            failed: dict[str, Json] | None = {} if error is not None else None
            used = {"tokens_in": read or 0, "tokens_out": written or 0, "cost_usd": cost}
            event = ModelAnswered(call=ref, step="", model="", error=failed, cached=bool(free), **used)
        self.meter.take(event, at)


class RunList:
    """Keeps the sums of the runs it was asked about."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._sums: dict[str, _Sums] = {}

    def newest(self, limit: int, *, trials: bool = False) -> list[protocol.RunSummary]:
        """The newest runs first; reads the log."""
        where = "WHERE id NOT IN (SELECT run_id FROM removals)" + ("" if trials else " AND scenario = ''")
        rows = self._store.query(
            f"SELECT {_RUNS} FROM runs {where} ORDER BY created_at DESC, id DESC LIMIT ?", (limit,)
        )
        # Sums are recomputed from the log when needed, so the cache may be emptied at any time.
        if len(self._sums) > 4 * limit + 1_000:
            self._sums.clear()
        return [self._summary(row) for row in rows]

    def _summary(self, row: tuple[Any, ...]) -> protocol.RunSummary:
        run_id, status, owner, last = row[0], row[5], row[8], row[9]
        sums = self._sums.setdefault(run_id, _Sums(meter=UsageMeter(last_at=row[7])))
        # Only events since the last look are read: a list of long runs is refreshed often.
        if sums.seq < last:
            for news in self._store.query(_NEWS, (run_id, sums.seq, last)):
                sums.take(news)
            sums.seq = last
        ended = status in TERMINAL
        asked = 0 if ended or sums.stopped else len(sums.meter.questions)
        return protocol.RunSummary(
            **dict(zip(_RUNS.split(", ")[:8], row, strict=False)),
            ended_at=sums.ended_at,
            took_s=sums.meter.took_s,
            counting_since=0.0 if sums.stopped else sums.meter.counting_since,
            seq=last,
            tokens=sums.meter.usage.tokens,
            cost_usd=sums.meter.usage.cost_usd,
            unpriced=sums.meter.usage.unpriced,
            waiting=asked,
            visible_status=visible_status(run_id, status, owner, asks=asked > 0).word,
            worked_on=not ended and at_work(owner, run_id),
        )
