"""A run as its user holds it: live while it works, the same object from the log afterwards."""

from __future__ import annotations

import asyncio
import html
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import Damaged, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, Record, RunFinished, StageFinished, to_json
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.protocols import Listener
from kestrel_lab.core.run_types import INTERRUPTED, Limits, RunStatus
from kestrel_lab.core.sanitize import encodable, one_line
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import Standing, cancel_in_log, standing
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.approvals.decide import ApprovalDesk
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.execution.stages import STAGE_COLUMNS, stage_row
from kestrel_lab.runtime.operations.quality import Quality, quality_of
from kestrel_lab.runtime.review.answer_review import proposed
from kestrel_lab.runtime.review.evidence_table import EvidenceTable, evidence_table, report_html
from kestrel_lab.runtime.review.retrieval_trace import RunRetrieval
from kestrel_lab.runtime.run_results import Answers
from kestrel_lab.verification.claims import Said, claims_of
from kestrel_lab.verification.workspace_files import Files
from kestrel_lab.views.confidence_badge import Badge, badge_of
from kestrel_lab.views.dataframes import shown_frame
from kestrel_lab.views.html.elements import page
from kestrel_lab.views.html.next_actions import Actions
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import RunView, view_of
from kestrel_lab.views.thought_tree import plot_thoughts, thoughts_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


# The files of a run's workspace as they are now: what citations of its answer are held against when it is shown.

_LARGEST: Final = 1_500_000
"""Bytes of a file that is looked into."""


def reader(workspace: str) -> Callable[[str], str | None] | None:
    """Reads a file of the folder by its path, each once; `None` as its text where there is none inside, or no text.

    Nothing at all where the folder itself is not there: then nothing is known of its files.
    """
    root = Path(workspace)
    if not workspace or not root.is_dir():
        return None
    root, known = root.resolve(), dict[str, str | None]()

    def read(path: str) -> str | None:
        if path not in known:
            known[path] = _text(root, path)
        return known[path]

    return read


def _text(root: Path, path: str) -> str | None:
    try:
        place = (root / path).resolve()
        if not place.is_relative_to(root) or not place.is_file() or place.stat().st_size > _LARGEST:
            return None
        return place.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # a name that cannot be one, or links in a circle
        return None


_UNITS = {"at": "UTC", "timestamp": "UTC", "seconds": "s", "queued": "s", "waited": "s", "cost_usd": "US dollars"}
"""Of columns of frames."""
RESUME = "go on with it: kestrel run --resume {run} (or: await lab.resume({run!r}))"


class Run:
    """One run. Everything it says of itself comes from its events."""

    def __init__(self, store: SessionStore, run_id: str, state: RunState | None = None, damage: Damaged | None = None) -> None:
        self.id = run_id
        self.damage = damage
        """Set when its events, from number `damage.seq` on, are not those that were written: only what came before is shown."""
        self._store = store
        self._state = state if state is not None else store.state(run_id)
        self._live: _Live | None = None

    @property
    def goal(self) -> str:
        """What it was asked to do."""
        return "" if self._state.started is None else self._state.started.goal

    @property
    def status(self) -> RunStatus:
        """Where it stands, one of the states of the transition map."""
        return self._state.status

    @property
    def standing(self) -> Standing:
        """`status`, unless the log takes the run for one that goes on and nobody works on it: then `INTERRUPTED`, and what to do."""
        if self.status.terminal or self.working:
            return Standing(self.status)
        self._store.flush()
        row = self._store.run(self.id)
        return standing(self.id, row.status, row.owner)

    @property
    def answer(self) -> str:
        """The answer; what there is of one when a limit ended the run; empty before that."""
        return self._state.answer

    @property
    def reason(self) -> str:
        """Why it ended as it did, when it did not simply complete."""
        return "" if self._state.finished is None else self._state.finished.reason

    @property
    def outcome(self) -> str:
        """`complete`, `limit`, `unmet`, `error` or `cancelled`; empty while it goes on."""
        return "" if self._state.finished is None else self._state.finished.outcome

    @property
    def working(self) -> bool:
        """Whether a session in this process works on it."""
        return self._live is not None and not self._live.task.done()

    @property
    def limits(self) -> Limits:
        """How far it may go."""
        return Limits() if self._state.started is None else Limits(**cast("dict[str, Any]", self._state.started.limits))

    @property
    def usage(self) -> Usage:
        """Tokens, cost in USD and calls so far."""
        return self._state.usage

    @property
    def model(self) -> str:
        """The model's name, with `(scripted)` or `(replay)` when not everything in the run was answered by a real model."""
        started = self._state.started
        if started is None:
            return ""
        kind = self._state.model_kind
        return started.model if kind == "real" else f"{started.model} ({kind})"

    @property
    def questions(self) -> tuple[ApprovalAsked, ...]:
        """Calls that wait for a decision; none once the run has ended."""
        return () if self.status.terminal else tuple(self._state.questions.values())

    @property
    def plan(self) -> Plan:
        """The steps it follows; one of an agent when no plan was given."""
        return self._state.planned

    def plot_plan(self) -> Figure:
        """The plan as a drawing that says how far each step is; a notebook shows it, `savefig` stores it."""
        return self.plan.plot({step.id: step.state for step in self.view().steps.values()})

    def thoughts(self) -> pd.DataFrame:
        """The candidates of a search (operation `thoughts`), a row each: candidate, parent, depth, score, text, chosen."""
        return thoughts_of(self.events())

    def plot_thoughts(self) -> Figure:
        """The search as a tree, the solution in green; a notebook shows it, `savefig` stores it."""
        return plot_thoughts(self.thoughts())

    def records(self) -> list[Record]:
        """The run's events as the log keeps them, with number and time."""
        self._store.flush()
        return self._store.records(self.id) if self.damage is None else self._store.records(self.id, until=self.damage.seq - 1)

    @property
    def head(self) -> str:
        """The hash of its last event, which stands for all of them: who keeps it can tell whether any was changed or removed."""
        self._store.flush()
        return self._store.head(self.id)

    def events(self) -> list[Event]:
        """The run's events, in order."""
        return [record.event for record in self.records()]

    @property
    def results(self) -> Answers:
        """What each tool call was answered, whole: `run.results["c1"]`; shown as a table of the calls."""
        return Answers(self.records(), self._store.results)

    @property
    def retrieval(self) -> RunRetrieval:
        """What was looked up in its workspace, step by step; `explain(path)` says why a file was or was not found."""
        workspace = "." if self._state.started is None else self._state.started.workspace
        return RunRetrieval(self.events(), Path(workspace), self._store.path.parent)

    def view(self) -> RunView:
        """The run as it is shown, what its answer cites held against the workspace as it is now."""
        records = self.records()
        view = view_of(records)
        view.mark(self.read_now())
        stands = self.standing
        if stands.word == INTERRUPTED:  # also where its process was killed and could not say so
            view.interrupt(records[-1].at)
        if hint := stands.note or self.way_on:
            view.head.change(status=stands.word, reason=f"{view.head.reason}; {hint}" if view.head.reason else hint)
        return view

    @property
    def interrupted(self) -> bool:
        """Whether it could go on and nobody works on it: its work was broken off, or its process is gone. See `resume`."""
        return self.standing.word == INTERRUPTED

    @property
    def way_on(self) -> str:
        """What to type to go on with a run that was interrupted or cancelled; empty for any other."""
        if self.status is RunStatus.CANCELLED:
            ended = next(record.seq for record in self.records() if isinstance(record.event, RunFinished))
            return f"a new run goes on from there: kestrel fork {self.id} --at {ended - 1}"
        return RESUME.format(run=self.id) if self.interrupted else ""

    def read_now(self) -> Callable[[str], str | None] | None:
        """Reads files of its workspace as they are when they are first asked for; `None` where it is not there."""
        return reader("" if self._state.started is None else self._state.started.workspace)

    def to_frame(self) -> pd.DataFrame:
        """One row per event: `seq`, `at` (UTC), `type`, and the event's fields; absent ones are missing values."""
        import pandas as pd

        rows = [{"seq": record.seq, "at": record.at, "type": record.event.type, **to_json(record.event)} for record in self.records()]
        cells = [{key: encodable(value) if isinstance(value, str) else value for key, value in row.items()} for row in rows]
        frame = shown_frame(cells, units=_UNITS)
        frame["at"] = pd.to_datetime(frame["at"], unit="s", utc=True).dt.as_unit("us")
        return frame.set_index("seq")

    def stages(self) -> pd.DataFrame:
        """The checkpoints of the run's stages, one row each time a step of a stage ended or is tried again.

        Columns: `run_id`, `task_id` (the step), `stage`, `status` (`done`, `skipped`, `retrying`, `failed`), `attempt`,
        `inputs_hash`, `outputs_ref` (the step or call whose answer it is), `error_class` (`transient`, `dependency`,
        `logic`, `budget`), `error_message`, `timestamp` (UTC). The view `stage_checkpoints` of the log has the same columns;
        there the rows that a fork shares with its parent are the parent's only, here they are among the fork's.
        """
        import pandas as pd

        rows = [stage_row(record) for record in self.records() if isinstance(record.event, StageFinished)]
        frame = shown_frame(rows, columns=list(STAGE_COLUMNS), units=_UNITS)
        frame["timestamp"] = pd.to_datetime(frame["timestamp"], unit="s", utc=True).dt.as_unit("ms")
        return frame

    @property
    def evidence(self) -> EvidenceTable:
        """The claims of the answer with the spans that hold each up; citations are looked up in the workspace as it is now."""
        workspace = "" if self._state.started is None else self._state.started.workspace
        return evidence_table(self.records(), answer=self.answer, goal=self.goal, workspace=workspace)

    @property
    def claims(self) -> tuple[Said, ...]:
        """What the answer says, in pieces: sentences, items, rows of tables, blocks of code."""
        return claims_of(self.answer)

    @property
    def concerns(self) -> list[dict[str, Json]]:
        """What a look at the answer found questionable when it was given: `severity`, `place`, `what`, `fix`, `check` each."""
        return [] if self._state.finished is None else self._state.finished.concerns

    @property
    def quality(self) -> Quality:
        """The last report on the quality of its answer, as a table; without a step that reports it says how to get one."""
        return quality_of(self._state)

    @property
    def confidence(self) -> Badge:
        """How sure the run is of its answer, with the reason, and what such a confidence was worth in trials where that is known."""
        return badge_of(self.events())

    @property
    def next_actions(self) -> Actions:
        """What can be done next in the workspace as it is now: tests of what was changed, commands of the answer, files it names."""
        workspace = Path("" if self._state.started is None else self._state.started.workspace)
        found = proposed(self._state, Files(workspace), self.answer) if workspace.is_absolute() and workspace.is_dir() else ()
        return Actions(found)

    def report(self, path: str | Path) -> Path:
        """Write a self-contained HTML page of the run, which needs neither network nor scripts; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        head = f"<p><small>hash of the last event: <code>{self.head}</code></small></p>" if self.damage is None else ""
        body = f"{self._damage_html()}{run_html(self.view(), limit=None)}{self._claims_html()}{head}"
        target.write_text(page(f"Run {self.id}: {one_line(self.goal, 60)}", body), encoding="utf-8")
        return target

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Tell `listener` of every event, those so far first; the returned function ends that."""
        for event in self._events_so_far():
            listener(event)
        if self._live is None:
            return lambda: None
        listeners = self._live.ctx.listeners
        listeners.append(listener)
        return lambda: listeners.remove(listener) if listener in listeners else None

    async def wait(self) -> Run:
        """Wait until the run ends or can go no further.

        Raises `ApprovalRequired` when a call needs a person and none is here. Cancelling the wait
        interrupts the run, which can be resumed.
        """
        if self._live is not None:
            await self._live.task
        return self

    def cancel(self) -> None:
        """End the run CANCELLED; from any thread. That is for good, though a fork can go on from there.

        A run of another process is taken from it: it writes nothing more and ends with `Fenced` when it notices, at the
        latest before its next model turn and its next effect. A run that has ended stays as it is.
        """
        if self._live is not None and self.working:
            live = self._live

            def end() -> None:
                live.ctx.cancelled = True
                live.task.cancel()

            live.loop.call_soon_threadsafe(end)
        elif self.damage is None and not self.status.terminal:
            cancel_in_log(self._store, self.id)
            self._state = self._store.state(self.id)

    def interrupt(self) -> None:
        """Stop working on the run; from any thread. Like Ctrl-C it leaves the run to be resumed; see `cancel`."""
        if self._live is not None and self.working:
            self._live.loop.call_soon_threadsafe(self._live.task.cancel)

    def decide(self, given: ApprovalGiven) -> None:
        """Answer a waiting call; from any thread.

        Raises `UsageError` when no call of that name waits, or when edited arguments do not fit the tool. A
        decision that no session here waits for is stored and used when the run is resumed; of a damaged run it raises `Damaged`.
        """
        if self.damage is not None:
            raise self.damage
        question = given.question or given.call
        open_questions = {asked.question or asked.call: asked for asked in self.questions}
        if question not in open_questions:
            waiting = ", ".join(open_questions) or "nothing waits"
            msg = f"run {self.id} does not wait for a decision on {question!r}; waiting: {waiting}"
            raise UsageError(msg)
        live = self._live
        if live is None or not self.working:
            self._store.decide(self.id, given)
            self._state = self._store.state(self.id)
        else:
            given = live.desk.checked(open_questions[question], given)
            live.loop.call_soon_threadsafe(live.desk.answer, given)

    def completed(self, asked: ApprovalAsked, args: dict[str, Json]) -> dict[str, Json]:
        """Edited arguments for what was `asked`, with defaults filled in; raises `UsageError` if they do not fit the tool.

        Only of a run that a session in this process works on: the tools of others are not known.
        """
        if self._live is None:
            msg = f"no session of this process works on run {self.id}: edited arguments cannot be checked here"
            raise UsageError(msg)
        given = ApprovalGiven(call=asked.call, granted=True, by="", how="", args=args)
        return cast("dict[str, Json]", self._live.desk.checked(asked, given).args)

    def attach(self, ctx: RunContext, desk: ApprovalDesk, task: asyncio.Task[None]) -> None:
        """Make this the handle of a run in progress; the session calls it."""
        self._live = _Live(ctx, desk, task)

    def _claims_html(self) -> str:
        workspace = "" if self._state.started is None else self._state.started.workspace
        return report_html(self.records(), answer=self.answer, goal=self.goal, workspace=workspace)

    def _events_so_far(self) -> list[Event]:
        return self.events() if self._state.events else []

    def _damage_html(self) -> str:
        return "" if self.damage is None else f'<p role="alert"><b>DAMAGED:</b> {html.escape(str(self.damage))}</p>'

    def __repr__(self) -> str:
        return run_text(self.view()) + ("" if self.damage is None else f"\nDAMAGED: {self.damage}")

    def _repr_html_(self) -> str:
        return self._damage_html() + run_html(self.view())

    def _repr_markdown_(self) -> None:
        """No Markdown form: it would be rendered with remote images."""

    def __str__(self) -> str:
        return f"run {self.id}: {self.standing}" + (f", {html.unescape(one_line(self.reason))}" if self.reason else "")


class _Live:
    """The working parts of a run in progress."""

    def __init__(self, ctx: RunContext, desk: ApprovalDesk, task: asyncio.Task[None]) -> None:
        self.ctx = ctx
        self.desk = desk
        self.task = task
        self.loop = asyncio.get_running_loop()
