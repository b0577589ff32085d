"""`Run`, the handle of one run: live while it works, and the same object from the log afterwards."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, Unpack, cast, overload

from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import Damaged, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, Record, to_json
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Listener
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import escape_surrogates, one_line
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import at_work, cancel_in_log
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.approvals.undo import undo_calls
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.context.run_options import RunChanges, RunOptions
from kestrel_lab.runtime.forks.run_files import RunFiles
from kestrel_lab.runtime.run_report import Answers, RunReport, records_of, value_of
from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.views.dataframes import unit_frame

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.tools.kernel.undo import UndoResult

_UNITS = {
    "at": "UTC",
    "timestamp": "UTC",
    "seconds": "s",
    "queued": "s",
    "waited": "s",
    "cost_usd": "US dollars",
}
"""Of columns of frames."""


class LiveRun:
    """The working parts of a run that a session of this process works on."""

    def __init__(self, ctx: RunContext, approvals: RunApprovals, task: asyncio.Task[None]) -> None:
        self.ctx, self.approvals, self.task = ctx, approvals, task
        self._loop = asyncio.get_running_loop()

    @property
    def working(self) -> bool:
        """Whether the run has not ended or been interrupted."""
        return not self.task.done()

    def cancel(self) -> None:
        """End the run CANCELLED; from any thread."""

        def end() -> None:
            self.ctx.cancelled = True
            self.task.cancel()

        self._loop.call_soon_threadsafe(end)

    def interrupt(self) -> None:
        """Stop working on the run; from any thread. Like Ctrl-C it leaves the run to be resumed."""
        if not self.task.done():
            self._loop.call_soon_threadsafe(self.task.cancel)

    def emit(self, event: Event) -> None:
        """Record what a person did; from any thread, at once on the run's own."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self.ctx.emit(event)
        else:
            self._loop.call_soon_threadsafe(self.ctx.emit, event)

    def answer(self, asked: ApprovalAsked, given: ApprovalGiven) -> None:
        """Give a decision to the call that waits; raises `UsageError` when edited arguments do not fit the
        tool.
        """
        self._loop.call_soon_threadsafe(self.approvals.answer, self.approvals.checked(asked, given))

    def completed(self, asked: ApprovalAsked, args: dict[str, Json]) -> dict[str, Json]:
        """Return edited arguments with defaults filled in; raises `UsageError` if they do not fit the
        tool.
        """
        given = ApprovalGiven(call=asked.call, granted=True, by="", how="", args=args)
        return cast("dict[str, Json]", self.approvals.checked(asked, given).args)


class RunEvents(Sequence[Event]):
    """The events of a run: a sequence of those in the log when it was made, and an asynchronous iterable that
    follows the log.

    Both give the same events in the same order; iterating asynchronously begins with the first and ends when
    the run has ended, or when nobody works on it any more, which a question without anybody to answer it is,
    too. Any number of iterations are independent of each other and of the run, whichever process works on it;
    one that is left early costs nothing more. Streamed pieces of texts, which no log has, are for
    `Run.subscribe`.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._events = [record.event for record in run.records()]

    @overload
    def __getitem__(self, place: int) -> Event: ...

    @overload
    def __getitem__(self, place: slice) -> list[Event]: ...

    def __getitem__(self, place: int | slice) -> Event | list[Event]:
        return self._events[place]

    def __len__(self) -> int:
        return len(self._events)

    def __eq__(self, other: object) -> bool:
        return self._events == (other._events if isinstance(other, RunEvents) else other)

    __hash__ = None  # type: ignore[assignment]  # as a list

    def __repr__(self) -> str:
        return repr(self._events)

    async def __aiter__(self) -> AsyncIterator[Event]:
        run, seq = self._run, 0

        def stirred() -> bool | None:
            return (
                bool(run._store.query("SELECT 1 FROM events WHERE run_id = ? AND seq > ?", (run.id, seq)))
                or not self._worked_on
                or None
            )

        while True:
            going_on = (
                self._worked_on
            )  # asked before the log is read, so that the last events are read after the work ended
            for record in records_of(run._store, run.id, run.damage, after=seq):
                seq = record.seq
                yield record.event
            if not going_on:
                return
            await wait_until(run._store.path, stirred)

    @property
    def _worked_on(self) -> bool:
        run = self._run
        if run.live is not None:
            return run._working
        row = run._store.run(run.id)
        return not row.status.terminal and at_work(row.owner, run.id)


class Run(Generic[T]):
    """The handle of one run.

    Everything it says comes from the run's events; `report` has tables, drawings and evidence.
    """

    def __init__(
        self,
        store: SessionStore,
        run_id: str,
        state: RunState | None = None,
        damage: Damaged | None = None,
        run: Callable[[str, RunOptions], Awaitable[Run]] | None = None,
        *,
        output: OutputType[T] | None = None,
    ) -> None:
        """`run` runs further goals, for `ask`; `output` is the type of the run's value, where this process
        knows it.
        """
        self.id = run_id
        self.damage = damage
        """Set when its events, from number `damage.seq` on, are not those that were written: only what came
        before is shown.
        """
        self.live: LiveRun | None = None
        """Set by the session that works on the run."""
        self.files = RunFiles(self)
        """Where it has its files, and what a fork changed in its private copy: `run.files.changes`."""
        self.apply = self.files.apply
        """Takes what a fork changed over into the workspace, see `RunFiles.apply`."""
        self._store, self._run = store, run
        self._state = state if state is not None else store.state(run_id)
        self._output = output

    if not TYPE_CHECKING:  # type checkers lead to the report

        def __getattr__(self, name: str) -> Any:
            """Reach the public names of `report` from the run itself, as scripts written before there was a
            report do.
            """
            if not name.startswith("_") and hasattr(RunReport, name):
                return getattr(self.report, name)
            if name == "working":
                return self._working
            if name in ("interrupt", "completed") and self.live is not None:
                return getattr(self.live, name)
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}"
            )  # as Python words it

    @property
    def goal(self) -> str:
        """What it was asked to do."""
        return "" if self._state.started is None else self._state.started.goal

    @property
    def status(self) -> RunStatus:
        """The state of the run."""
        return self._state.status

    @property
    def answer(self) -> str:
        """The answer; the part that exists when a limit ended the run; empty before that."""
        return self._state.answer

    @property
    def value(self) -> T:
        """The answer as a value of the type that was asked for by `output=…`, computed from the log.

        Where none was asked for, it is what the code ended with that the run has executed last in this
        notebook's kernel, as long as no other run's code gave a value there.

        Of a run from the log that is plain JSON, unless the type is given again: `lab.get(run, output=Type)`.
        Raises `RunFailed` where the run ended without such a value, and `UsageError` where none was asked
        for, where there is none yet, or where it does not fit.
        """
        shell = live_shell()
        return value_of(self.id, self._state, self._output, None if shell is None else kernel_of(shell))

    @property
    def reason(self) -> str:
        """Why the run ended, unless it simply completed."""
        return "" if self._state.finished is None else self._state.finished.reason

    @property
    def outcome(self) -> str:
        """`complete`, `limit`, `unmet`, `error` or `cancelled`; empty while it goes on."""
        return "" if self._state.finished is None else self._state.finished.outcome

    @property
    def usage(self) -> Usage:
        """Tokens, cost in USD and calls so far."""
        return self._state.usage

    @property
    def questions(self) -> tuple[ApprovalAsked, ...]:
        """Calls that wait for a decision; none once the run has ended."""
        return () if self.status.terminal else tuple(self._state.questions.values())

    @property
    def plan(self) -> Plan:
        """The steps it follows; one of an agent when no plan was given."""
        return self._state.planned

    @property
    def report(self) -> RunReport:
        """Evidence, quality, confidence, stages, next actions and more; called with a path,
        `run.report("run.html")`, it writes a page.
        """
        return RunReport(self._store, self.id, self._state, self.damage, working=self._working)

    @property
    def results(self) -> Answers:
        """The whole result of each tool call: `run.results["c1"]`; shown as a table of the calls."""
        return Answers(self.records(), self._store.results)

    def records(self) -> list[Record]:
        """Return the run's events as the log keeps them, with number and time."""
        return records_of(self._store, self.id, self.damage)

    def events(self) -> RunEvents:
        """Return the run's events so far, in order; `async for event in run.events()` goes on with those to
        come until the run stops.
        """
        return RunEvents(self)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per event: `seq`, `at` (UTC), `type`, and the event's fields; absent ones are
        missing values.
        """
        import pandas as pd

        rows = [
            {"seq": record.seq, "at": record.at, "type": record.event.type, **to_json(record.event)}
            for record in self.records()
        ]
        cells = [
            {key: escape_surrogates(value) if isinstance(value, str) else value for key, value in row.items()}
            for row in rows
        ]
        frame = unit_frame(cells, units=_UNITS)
        frame["at"] = pd.to_datetime(frame["at"], unit="s", utc=True).dt.as_unit("us")
        return frame.set_index("seq")

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, those so far first; the returned function ends that."""
        for event in self.events() if self._state.events else ():
            listener(event)
        if self.live is None:
            return lambda: None
        listeners = self.live.ctx.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def wait(self) -> Run[T]:
        """Wait until the run ends or can go no further.

        Raises `ApprovalRequired` when a call needs a person and none is here. Cancelling the wait
        interrupts the run, which can be resumed.
        """
        if self.live is not None:
            await self.live.task
        return self

    async def ask(self, goal: str, **changes: Unpack[RunChanges]) -> Run:
        """Go on with the conversation: run `goal` as a new run that follows this one, and wait for its end.

        Takes the options of `Session.start`; model, tools, workspace and rules are those of this run unless
        they are given. Raises what `Session.run` raises, and `UsageError` while this run has not ended.
        """
        if self._run is None:
            raise UsageError(
                f"run {self.id} was read without a session: lab.run({goal[:40]!r}, follow={self.id!r})"
            )
        return await self._run(goal, replace(RunOptions(**changes), follow=self))

    def cancel(self) -> None:
        """End the run CANCELLED; from any thread. That is final, though a fork can go on from there.

        A run of another process is taken from it: it writes nothing more and ends with `Fenced` when it
        notices, at the latest before its next model turn and its next effect. A run that has ended stays as
        it is.
        """
        if self.live is not None and self._working:
            self.live.cancel()
        elif self.damage is None and not self.status.terminal:
            cancel_in_log(self._store, self.id)
            self._state = self._store.state(self.id)

    def undo(self, call: str = "", *, force: bool = False) -> UndoResult:
        """Undo what the newest call of the run changed, or that call and all after it: variables and cells of
        this notebook, and files.

        What commands and Python code changed in files is not concerned. The undo is an event of the run, also
        after its end. Raises `UsageError` where nothing can be undone, and where something else has changed
        since what would be restored, unless `force` says that this may be lost.
        """
        undone, events = undo_calls(self._store, self.id, call, force=force)
        for run, event in events.items():
            if run == self.id and self.live is not None and self._working:
                self.live.emit(event)
            else:
                self._store.decide(run, event)
        if not self._working:
            self._state = self._store.state(self.id)
        return undone

    def decide(self, given: ApprovalGiven) -> None:
        """Answer a waiting call; from any thread.

        Raises `UsageError` when no call of that name waits, or when edited arguments do not fit the tool. A
        decision that no session here waits for is stored and used when the run is resumed; of a damaged run
        it raises `Damaged`.
        """
        if self.damage is not None:
            raise self.damage
        question = given.question or given.call
        open_questions = {asked.question or asked.call: asked for asked in self.questions}
        if question not in open_questions:
            waiting = ", ".join(open_questions) or "nothing waits"
            raise UsageError(
                f"run {self.id} does not wait for a decision on {question!r}; waiting: {waiting}"
            )
        if self.live is not None and self._working:
            self.live.answer(open_questions[question], given)
        else:
            self._store.decide(self.id, given)
            self._state = self._store.state(self.id)

    @property
    def _working(self) -> bool:
        return self.live is not None and self.live.working

    def __repr__(self) -> str:
        return (
            f"Run({self.id!r}, {self.status}, "
            f"goal={one_line(self.goal, 60)!r}{', DAMAGED' if self.damage else ''})"
        )

    def _repr_html_(self) -> str:
        return self.report._repr_html_()

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""

    def __str__(self) -> str:
        return f"run {self.id}: {self.report.status}" + (
            f", {html.unescape(one_line(self.reason))}" if self.reason else ""
        )
