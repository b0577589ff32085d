"""`Run`, the handle of one run, at work or from the log; and the runs of one log."""

from __future__ import annotations

import asyncio
import html
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Unpack, overload
from weakref import ref

from typing_extensions import TypeVar

from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import Damaged, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, Record, to_json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Listener
from kestrel_lab.core.run_types import RunReference, RunStatus, run_id_of
from kestrel_lab.core.sanitize import escape_surrogates, one_line
from kestrel_lab.eventlog.checkpoints import Checkpoint
from kestrel_lab.eventlog.notify import wait_until
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.eventlog.run_status import at_work, cancel_in_log, decided_runs, visible_status
from kestrel_lab.eventlog.store import RunRow, SessionStore
from kestrel_lab.runtime.approvals.decide import RunApprovals
from kestrel_lab.runtime.approvals.undo import undo_calls
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.conversation import conversation_runs
from kestrel_lab.runtime.diff import RunDiff, diff_runs
from kestrel_lab.runtime.execution.artifacts import plan_with_results
from kestrel_lab.runtime.forks.run_files import RunFiles
from kestrel_lab.runtime.options import RunOptions
from kestrel_lab.runtime.resume import damage_error
from kestrel_lab.runtime.review.run_progress import RunProgress, progress_of
from kestrel_lab.runtime.run_report import Answers, Report, records_of, value_of
from kestrel_lab.tools.kernel.live_kernel import kernel_of, live_shell
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import opening_line

if TYPE_CHECKING:
    import pandas as pd

    from kestrel_lab.answers.output_types import OutputForm
    from kestrel_lab.tools.kernel.undo import UndoResult

Value = TypeVar("Value", default=Any)
"""The type of the value of a run that follows."""

_UNITS = {
    "at": "UTC",
    "timestamp": "UTC",
    "seconds": "s",
    "queued": "s",
    "waited": "s",
    "cost_usd": "US dollars",
}
"""Of columns of frames."""
_FIRST = ("at", "type", "tool", "seconds", "text", "args", "answer", "outcome", "reason", "step", "target")
"""Columns of events that are read first; a table shows as many as there is room for."""


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
            going_on = self._worked_on  # before the log is read: the last events come before the work ends
            for record in records_of(run._store, run.id, run.damage, after=seq):
                seq = record.seq
                yield record.event
            if not going_on:
                return
            await wait_until(run._store.path, stirred)

    @property
    def _worked_on(self) -> bool:
        run = self._run
        if run.task is not None:
            return is_working(run)
        row = run._store.run(run.id)
        return not row.status.terminal and at_work(row.owner, run.id)


async def _blame_without_lab(run_id: str, **_options: Any) -> Any:
    raise UsageError(f"run {run_id} was read without a lab: lab.blame({run_id!r})")


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
        run: Callable[..., Awaitable[Run]] | None = None,
        *,
        output: OutputType[T] | None = None,
        blame: Callable[..., Awaitable[Any]] | None = None,
    ) -> None:
        """`run` runs further goals, for `ask`, and `blame` finds out why it failed; `output` is the type of
        the run's value, where this process knows it.
        """
        self.id = run_id
        self.damage = damage
        """Set when its events, from number `damage.seq` on, are not those that were written: only what came
        before is shown.
        """
        self.ctx: RunContext | None = None
        self.approvals: RunApprovals | None = None
        self.task: asyncio.Task[None] | None = None
        """What works on the run. All three are set by the session of this process that does, if one does."""
        self.files = RunFiles(ref(self), run_id, store)
        """Where it has its files, and what a fork changed in its private copy: `run.files.changes`."""
        self.apply = self.files.apply
        """Takes what a fork changed over into the workspace, see `RunFiles.apply`."""
        self.blame = partial(blame or _blame_without_lab, run_id)
        """Finds the turn that made it fail, by re-running forks of it: see `Evaluations.blame`."""
        self._store, self._run = store, run
        self._state = state if state is not None else store.state(run_id)
        self._output = output

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
        """The steps it follows, one of an agent when no plan was given, with the `artifacts` that they have
        made so far and the `acceptance_criteria` that were given or proposed.
        """
        return plan_with_results(self._state)

    @property
    def report(self) -> Report:
        """Evidence, quality, confidence, stages, next actions and more; called with a path,
        `run.report("run.html")`, it writes a page.
        """
        return Report(self._store, self.id, self._state, self.damage, working=is_working(self))

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

        A notebook shows the columns that hold something for these events, those that are read first before
        the others.
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
        first = [name for name in _FIRST if name in frame]
        return frame.set_index("seq")[[*first, *(name for name in frame if name not in ("seq", *first))]]

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener` with every event, those so far first; the returned function ends that."""
        for event in self.events() if self._state.events else ():
            listener(event)
        if self.ctx is None:
            return lambda: None
        listeners = self.ctx.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def wait(self) -> Run[T]:
        """Wait until the run ends or can go no further.

        Raises `ApprovalRequired` when a call needs a person and none is here. Cancelling the wait
        interrupts the run, which can be resumed.
        """
        if self.task is not None:
            await self.task
        return self

    async def ask(
        self,
        goal: str,
        *,
        output: type[Value] | OutputForm | None = None,
        **changes: Unpack[RunOptions],
    ) -> Run[Value]:
        """Go on with the conversation: run `goal` as a new run that follows this one, and wait for its end.

        Takes the options of `Lab.run`; model and its `params`, tools, workspace and rules are those of this
        run unless they are given. Raises what `Lab.run` raises, and `UsageError` while this run has not
        ended.
        """
        if self._run is None:
            raise UsageError(
                f"run {self.id} was read without a session: lab.run({goal[:40]!r}, follow={self.id!r})"
            )
        if self._state.started is not None and self._state.started.params:
            changes.setdefault("params", self._state.started.params)
        return await self._run(goal, output=output, **{**changes, "follow": self})

    def cancel(self) -> None:
        """End the run CANCELLED; from any thread. That is final, though a fork can go on from there.

        A run of another process is taken from it: it writes nothing more and ends with `Fenced` when it
        notices, at the latest before its next model turn and its next effect. A run that has ended stays as
        it is.
        """
        if self.task is not None and is_working(self):
            self.task.get_loop().call_soon_threadsafe(self._cancel, self.task)
        elif self.damage is None and not self.status.terminal:
            cancel_in_log(self._store, self.id)
            self._state = self._store.state(self.id)

    def _cancel(self, task: asyncio.Task[None]) -> None:
        if self.ctx is not None:
            self.ctx.cancelled = True  # the task records by it, as it ends, that the run cannot be resumed
        task.cancel()

    def undo(self, call: str = "", *, force: bool = False) -> UndoResult:
        """Undo what the newest call of the run changed, or that call and all after it: variables and cells of
        this notebook, and files.

        What commands and Python code changed in files is not concerned. The undo is an event of the run, also
        after its end. Raises `UsageError` where nothing can be undone, and where something else has changed
        since what would be restored, unless `force` says that this may be lost.
        """
        undone, events = undo_calls(self._store, self.id, call, force=force)
        for run, event in events.items():
            if run == self.id and is_working(self):
                self._emit(event)
            else:
                self._store.decide(run, event)
        if not is_working(self):
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
        if self.approvals is not None and self.task is not None and is_working(self):
            checked = self.approvals.checked(open_questions[question], given)
            self.task.get_loop().call_soon_threadsafe(self.approvals.answer, checked)
        else:
            self._store.decide(self.id, given)
            self._state = self._store.state(self.id)

    def _emit(self, event: Event) -> None:
        """Record what a person did in a run at work; from any thread, at once on the run's own."""
        assert self.ctx is not None and self.task is not None  # noqa: PT018
        loop = self.task.get_loop()
        try:
            here = asyncio.get_running_loop() is loop
        except RuntimeError:  # no loop runs in this thread
            here = False
        if here:
            self.ctx.emit(event)
        else:
            loop.call_soon_threadsafe(self.ctx.emit, event)

    def __repr__(self) -> str:
        return (
            f"Run({self.id!r}, {self.status}, "
            f"goal={opening_line(self.goal, 60)!r}{', DAMAGED' if self.damage else ''})"
        )

    def _repr_html_(self) -> str:
        return self.report._whole_html()

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""

    def __str__(self) -> str:
        return f"run {self.id}: {self.report.status}" + (
            f", {html.unescape(one_line(self.reason))}" if self.reason else ""
        )


def is_working(run: Run) -> bool:
    """Return whether a session of this process works on the run: it has not ended or been interrupted."""
    return run.task is not None and not run.task.done()


def interrupt_run(run: Run) -> None:
    """Stop working on the run, if this process does; from any thread. Like Ctrl-C it leaves the run to be
    resumed. A run that is being stopped already is left to record that.
    """
    task = run.task
    if task is None or task.done():
        return

    def cancel_once() -> None:
        if not task.cancelling():
            task.cancel()

    task.get_loop().call_soon_threadsafe(cancel_once)


def runs_frame(rows: Iterable[RunRow], decided: Collection[str]) -> pd.DataFrame:
    """One row per run, indexed by id; `status` says what can be done about a run that was interrupted, or
    whose questions are `decided`.
    """
    found = [
        {
            "run": row.id,
            "status": visible_status(row.id, row.status, row.owner, asks=row.id not in decided).word,
            "goal": opening_line(row.goal, 60),
            "model": row.model if row.model_kind == "real" else f"{row.model} ({row.model_kind})",
            "started": row.created_at,
        }
        for row in rows
    ]
    return _frame(found, ["run", "status", "goal", "model", "started"])


def checkpoints_frame(checkpoints: Iterable[Checkpoint]) -> pd.DataFrame:
    """One row per snapshot, indexed by the number of the last event in it."""
    found = [
        {
            "seq": one.seq,
            "reason": one.reason,
            "bytes": len(one.state),
            "created": one.created_at,
            "run": one.run_id,
            "usable": one.usable,
        }
        for one in checkpoints
    ]
    return _frame(found, ["seq", "reason", "bytes", "created", "run", "usable"])


def _frame(rows: list[dict[str, object]], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    frame = unit_frame(rows, columns=columns, units={"started": "UTC", "created": "UTC"})
    for name in {"started", "created"} & set(columns):
        frame[name] = pd.to_datetime(frame[name], unit="s", utc=True).dt.as_unit("ms")
    return frame.set_index(columns[0])


class RunHistory:
    """The runs of one log, those that work now included."""

    def __init__(self, store: SessionStore) -> None:
        self.live: dict[str, Run] = {}
        """The runs that the session of this history works on, by id."""
        self.run: Callable[..., Awaitable[Run]] | None = None
        """Runs a goal in the session, for `Run.ask`."""
        self.blame: Callable[..., Awaitable[Any]] | None = None
        """Finds the turn that made a run fail, for `Run.blame`: that is measuring, which is above this."""
        self._store = store

    def get(self, run: RunReference, *, output: type[T] | OutputForm | None = None) -> Run[T]:
        """Return a run of this log as it is now; raises `UsageError` with the nearest id when there is none.

        Of a damaged run, see `Run.damage`, the events before the damage. Reads and hashes every event of the
        run. `output` is the type that the run was begun with, for `Run.value`: the log has only its schema.
        """
        run_id, kind = run_id_of(run), OutputType.of(output)
        live_run = self.live.get(run_id)
        if live_run is not None and is_working(live_run):
            return live_run
        self._store.flush()
        self._store.run(run_id)
        damage = self._store.damage(run_id)
        if damage is None:
            return Run(self._store, run_id, run=self.run, output=kind, blame=self.blame)
        state = fold(self._store.records(run_id, until=damage.seq - 1))
        return Run(self._store, run_id, state, damage_error(run_id, damage), output=kind)

    def conversation(self, run: RunReference) -> list[Run]:
        """Return the runs whose conversation a run goes on with, the first one first, and the run itself at
        the end.

        A parent that is no longer in the log ends the list. Raises `UsageError` for a run that does not
        exist.
        """
        return [self.get(one) for one in conversation_runs(self._store, run_id_of(run))]

    def decide(
        self,
        run: RunReference,
        *,
        granted: bool,
        by: str,
        how: str,
        reason: str = "",
        scope: str = "once",
        answers: Sequence[str] = (),
    ) -> list[str]:
        """Decide on everything a run waits for; returns the tools that were decided on.

        With `answers` only what the agent asked in words is answered, one each in the order it was asked; a
        yes without them only allows calls, a no is for both.

        Raises `UsageError` when nothing of the kind waits, or when there is not one answer for each question.
        A session that waits for the answer goes on at once, also in another process; otherwise the answer is
        used when the run is resumed.
        """
        waiting = self.get(run)
        asked = [
            question
            for question in waiting.questions
            if not granted or (question.why == "question") == bool(answers)
        ]
        if not asked or (answers and len(answers) != len(asked)):
            raise UsageError(_nothing_to_decide(waiting, answers))
        words: Sequence[str | None] = answers or [None] * len(asked)
        for question, answer in zip(asked, words, strict=True):
            given = ApprovalGiven(
                call=question.call, granted=granted, by=by, how=how, reason=reason, scope=scope, answer=answer
            )
            waiting.decide(replace(given, question=question.question))
        return [question.tool for question in asked]

    def progress(self, run: RunReference) -> RunProgress:
        """Return how far a run is, as `text` and `percentage`; a listener, `Lab(listeners=…)`, may ask."""
        return progress_of(self.get(run)._state)

    def stages(self, run: RunReference) -> pd.DataFrame:
        """Return the checkpoints of a run's stages, see `Report.stages`; raises `UsageError` when there is
        no such run.
        """
        return self.get(run).report.stages()

    def runs(self, *, limit: int = 100, trials: bool = False) -> pd.DataFrame:
        """The newest runs first, one row each, indexed by id; with those of suites if `trials`."""
        self._store.flush()
        return runs_frame(self._store.runs(limit=limit, trials=trials), decided_runs(self._store))

    def count(self) -> int:
        """Return how many runs the log has, without those of suites."""
        return int(
            self._store.query(
                "SELECT count(*) FROM runs WHERE scenario = '' AND id NOT IN (SELECT run_id FROM removals)"
            )[0][0]
        )

    def checkpoints(self, run: RunReference) -> pd.DataFrame:
        """Snapshots that a run is taken up from, newest first, indexed by the last event in each; also the
        parent's, in a fork.

        `fork(run, at=…)` goes on from any event, `resume` from the last. One that is not `usable`, because
        it is damaged or of another version, is passed over. Raises `UsageError` when there is no such run.
        """
        run_id = run_id_of(run)
        self._store.flush()
        self._store.run(run_id)
        return checkpoints_frame(self._store.checkpoints(run_id))

    def diff(self, a: RunReference, b: RunReference) -> RunDiff:
        """Return where two runs of this log differ first, forks of each other or not; raises `UsageError` for
        an unknown id.
        """
        return diff_runs(self.get(a), self.get(b))


def _nothing_to_decide(run: Run, answers: Sequence[str]) -> str:
    """Return the error text for a decision that does not fit what `run` waits for."""
    if not run.questions:
        return f"run {run.id} is {run.status} and waits for no approval"
    asked = [question for question in run.questions if question.why == "question"]
    if not asked:
        return (
            f"run {run.id} asks no question, it waits for leave to call {run.questions[0].tool}: "
            "approve or deny it without an answer"
        )
    wanted = "; ".join(repr(one_line(str(question.args.get("question", "")), 200)) for question in asked)
    needed = "an answer" if len(asked) == 1 else f"{len(asked)} answers, in this order"
    given = f", not {len(answers)}" if answers else ""
    return (
        f"run {run.id} waits for {needed}{given} ({wanted}): kestrel approve "
        f"{run.id}{' --answer TEXT' * len(asked)}"
    )
