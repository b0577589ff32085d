"""Run reports: tables, drawings, evidence and pages of one run, computed from its log on demand."""

from __future__ import annotations

import html
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kestrel_lab.answers.output_types import OutputType, T
from kestrel_lab.core.errors import Damaged, RunFailed, StoreError, UsageError, did_you_mean
from kestrel_lab.core.events.actions import Action, actions_of
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.events.union import (
    Event,
    Record,
    RunFinished,
    RunScanned,
    StageFinished,
    ToolAnswered,
    decode_event,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import EARLY_STOPPING, INTERRUPTED, Limits, RunStatus
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.eventlog.run_state import RunState
from kestrel_lab.eventlog.run_status import VisibleStatus, visible_status
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.context.images import image_reader, images_html
from kestrel_lab.runtime.execution.artifacts import answer_value, answering_steps
from kestrel_lab.runtime.execution.stages import STAGE_COLUMNS, stage_row
from kestrel_lab.runtime.operations.quality import Quality, quality_of
from kestrel_lab.runtime.resume import resume_point
from kestrel_lab.runtime.review.answer_review import propose_actions
from kestrel_lab.runtime.review.evidence_table import EvidenceTable, claims_in, evidence_table
from kestrel_lab.runtime.review.retrieval_trace import RunRetrieval
from kestrel_lab.verification.claims import Statement, claims_of
from kestrel_lab.verification.workspace_files import Files
from kestrel_lab.views.confidence_badge import Badge, badge_of
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.html.elements import html_page, table_html
from kestrel_lab.views.html.fact_tables import facts_text
from kestrel_lab.views.html.next_actions import Actions
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.html.table_view import TableView
from kestrel_lab.views.report_rows import report_rows
from kestrel_lab.views.run_text import run_text
from kestrel_lab.views.run_view import RunView, view_of
from kestrel_lab.views.thought_tree import plot_thoughts, thoughts_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from kestrel_lab.runtime.recomputation import RecomputeResult
    from kestrel_lab.tools.kernel.live_kernel import LiveKernel

RESUME = "go on with it: kestrel run --resume {run} (or: await lab.resume({run!r}))"
_OPTIONS = {"cycles": "--cycles", "cost_usd": "--cost", "seconds": "--seconds", "tokens": "--tokens"}
"""Options of `kestrel run` by the limits that they set."""


def newest_blame(store: SessionStore, run_id: str) -> RunScanned | None:
    """Return what the newest blame of a run marks, if there was one."""
    # The words of the index `scans`, as `stored_scans` has them.
    sql = "SELECT body FROM events WHERE type = 'run_scanned' AND run_id = ? ORDER BY seq DESC"
    # What is shown outlives the lab that made it.
    for (body,) in () if store.closed else store.query(sql, (run_id,)):
        event = decode_event(RunScanned.type, body)
        if isinstance(event, RunScanned) and BLAME in event.scanners:
            return event
    return None


class Report:
    """Everything that can be derived from the log of one run. `run.report(path)` writes it as a page.

    Shown and printed it is a summary: what was asked, done, denied, claimed and found, and what that took.
    Its `repr` is the text of the whole run.
    """

    def __init__(
        self, store: SessionStore, run_id: str, state: RunState, damage: Damaged | None, *, working: bool
    ) -> None:
        """`damage` is the first damaged event; `working`, whether this process works on the run."""
        self._store, self._id, self._state, self._damage, self._working = (
            store,
            run_id,
            state,
            damage,
            working,
        )

    def __call__(self, path: str | Path) -> Path:
        """Write a self-contained HTML page of the run, without network or scripts; returns its path."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        head = (
            f"<p><small>hash of the last event: <code>{self.head}</code></small></p>"
            if self._damage is None
            else ""
        )
        evidence = self.evidence
        claims = evidence.page_html() if claims_in(self._state) or any(one.cited for one in evidence) else ""
        images = images_html(self._events(), self._store, sys.maxsize)
        body = f"{self._damage_html()}{run_html(self.view(), limit=None)}{images}{claims}{head}"
        target.write_text(html_page(f"Run {self._id}: {one_line(self._goal, 60)}", body), encoding="utf-8")
        return target

    @property
    def model(self) -> str:
        """The model's name, with `(scripted)` or `(replay)` unless all answers came from a real model."""
        started = self._state.started
        if started is None:
            return ""
        kind = self._state.model_kind
        return started.model if kind == "real" else f"{started.model} ({kind})"

    @property
    def status(self) -> VisibleStatus:
        """The run's status, or `INTERRUPTED` with advice if no process works on an unfinished run."""
        status = self._state.status
        if status.terminal or self._working:
            return VisibleStatus(status)
        self._store.flush()
        row = self._store.run(self._id)
        return visible_status(self._id, row.status, row.owner, asks=bool(self._state.questions))

    @property
    def interrupted(self) -> bool:
        """Whether the run could go on and no process works on it: it was stopped, or its process is gone.

        See `resume`.
        """
        return self.status.word == INTERRUPTED

    @property
    def way_on(self) -> str:
        """The command that continues an interrupted, cancelled or failed run; empty for any other."""
        if self._state.status in (RunStatus.CANCELLED, RunStatus.FAILED):
            ended = next(record for record in self._records() if isinstance(record.event, RunFinished))
            if self._state.status is RunStatus.CANCELLED:
                return (
                    f"a new run goes on from there: kestrel fork {self._id} --at {ended.seq - 1} --in-place"
                )
            return self._way_on_after(cast("RunFinished", ended.event))
        return RESUME.format(run=self._id) if self.interrupted else ""

    def _way_on_after(self, end: RunFinished) -> str:
        if end.outcome not in ("limit", "error") or resume_point(list(self._records())) is None:
            return ""
        if end.limit in ("", EARLY_STOPPING):
            return RESUME.format(run=self._id)
        option = _OPTIONS.get(end.limit, "")
        typed = f"kestrel run --resume {self._id} {option} N, or: " if option else ""
        return (
            f"go on with a higher limit: {typed}await lab.resume({self._id!r}, limits=Limits({end.limit}=N))"
        )

    @property
    def limits(self) -> Limits:
        """The limits of the run."""
        return (
            Limits()
            if self._state.started is None
            else Limits(**cast("dict[str, Any]", self._state.started.limits))
        )

    @property
    def head(self) -> str:
        """The hash of the last event, which covers all: keep it to detect changes or removals later."""
        self._store.flush()
        return self._store.head(self._id)

    def plot_plan(self) -> Figure:
        """Draw the plan with the state of each step; a notebook shows it, `savefig` stores it."""
        return self._state.planned.plot(
            {step.id: step.state for step in view_of(self._records()).steps.values()}
        )

    def view(self, *, at: int | None = None) -> RunView:
        """The run as it is shown, with the claims of its answer marked by their evidence in the workspace as
        it is now.

        With `at`, the run as it was when its event of that number had happened. Raises `UsageError` where it
        has no event so early.
        """
        records = self._records()
        if at is not None and at < records[-1].seq:
            if not (before := [record for record in records if record.seq <= at]):
                raise UsageError(
                    f"run {self._id} has no event {at}: its first is {records[0].seq}, its last "
                    f"{records[-1].seq}"
                )
            return view_of(before, image_reader(self._store.results))
        view = view_of(records, image_reader(self._store.results))
        if view.cites:
            view.mark(self.evidence.claims)
        shown = self.status
        # Also where its process was killed and could not say so.
        if shown.word == INTERRUPTED:
            view.interrupt(records[-1].at)
        if shown.word != RunStatus.COMPLETE and (hint := shown.note or self.way_on):
            view.head.change(
                status=shown.word, reason=f"{view.head.reason}; {hint}" if view.head.reason else hint
            )
        return view

    async def recompute(self, *, workspace: str | Path | None = None, copy: bool = False) -> RecomputeResult:
        """Run the Python code of the run and of the conversation before it again, without a model, and say
        whether each output still holds.

        The code runs in a sandboxed kernel, which reads the run's workspace, or the folder `workspace`, and
        changes nothing there; with `copy` it works in a throw-away copy of that folder. Raises `UsageError`
        for a run that has not ended, for one without code, and where code cannot be sandboxed.
        """
        from kestrel_lab.runtime.recomputation import recompute_run

        return await recompute_run(self._store, self._id, workspace=workspace, copy=copy)

    def thoughts(self) -> pd.DataFrame:
        """The candidates of an operation `thoughts`: candidate, parent, depth, score, text, chosen."""
        return thoughts_of(self._events())

    def plot_thoughts(self) -> Figure:
        """Draw the search as a tree, the solution in green; a notebook shows it, `savefig` stores it."""
        return plot_thoughts(self.thoughts())

    def stages(self) -> pd.DataFrame:
        """The checkpoints of the run's stages, one row each time a step of a stage ended or is tried again.

        Columns: `run_id`, `task_id` (the step), `stage`, `status` (`done`, `skipped`, `retrying`, `failed`),
        `attempt`, `inputs_hash`, `outputs_ref` (the step or call whose answer it is), `error_class`
        (`transient`, `dependency`, `logic`, `budget`), `error_message`, `timestamp` (UTC). The view
        `stage_checkpoints` of the log has the same columns; there the rows that a fork shares with its parent
        are the parent's only, here they are among the fork's.
        """
        import pandas as pd

        rows = [stage_row(record) for record in self._records() if isinstance(record.event, StageFinished)]
        frame = unit_frame(rows, columns=list(STAGE_COLUMNS), units={"timestamp": "UTC"})
        frame["timestamp"] = pd.to_datetime(frame["timestamp"], unit="s", utc=True).dt.as_unit("ms")
        return frame

    @property
    def retrieval(self) -> RunRetrieval:
        """What was searched in the workspace; `explain(path)` says why a file was or was not found."""
        return RunRetrieval(self._events(), Path(self._workspace or "."), self._store.path.parent)

    @property
    def evidence(self) -> EvidenceTable:
        """The answer's claims with citations, and whether these hold in the workspace as it is now."""
        return evidence_table(
            self._records(),
            answer=self._state.answer,
            goal=self._goal,
            workspace=self._workspace,
            claims=claims_in(self._state),
        )

    @property
    def claims(self) -> tuple[Statement, ...]:
        """The answer in pieces: sentences, items, rows of tables, blocks of code."""
        return claims_of(self._state.answer)

    @property
    def actions(self) -> tuple[Action, ...]:
        """The run's actions in order, failed and denied ones too: files, commands, other calls."""
        return actions_of(self._events())

    @property
    def concerns(self) -> list[dict[str, Json]]:
        """Issues found by the review of the answer: `severity`, `place`, `what`, `fix`, `check` each."""
        return [] if self._state.finished is None else self._state.finished.concerns

    @property
    def quality(self) -> Quality:
        """The last quality report as a table; without a step that reports, it says how to get one."""
        return quality_of(self._state)

    @property
    def confidence(self) -> Badge:
        """The answer's stated confidence and its reason, and how often it was right in trials, if known."""
        return badge_of(self._events())

    @property
    def next_actions(self) -> Actions:
        """Next actions in the workspace as it is now: tests, commands and files that the answer names."""
        folder = Path(self._workspace)
        return Actions(
            propose_actions(self._state, Files(folder), self._state.answer)
            if folder.is_absolute() and folder.is_dir()
            else ()
        )

    def __repr__(self) -> str:
        return run_text(self.view()) + ("" if self._damage is None else f"\nDAMAGED: {self._damage}")

    def _rows(self) -> list[tuple[str, str]]:
        """Return the summary: a name for what a line is about, and the line; further lines have no name."""
        view = self.view()
        found = report_rows(view, self._state.finished, self.actions, self.confidence)
        damage = [] if self._damage is None else [("DAMAGED", [str(self._damage)])]
        return [
            ("" if number else name, line)
            for name, lines in (*damage, *found)
            for number, line in enumerate(lines)
        ]

    def __str__(self) -> str:
        return facts_text(self._rows())

    def _repr_html_(self) -> str:
        return table_html(("", ""), self._rows())

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython shows."""
        printer.text(str(self))

    def _whole_html(self) -> str:
        """Return the whole run as HTML, as `Run` is shown."""
        return self._damage_html() + run_html(self.view()) + images_html(self._events(), self._store)

    @property
    def _goal(self) -> str:
        return "" if self._state.started is None else self._state.started.goal

    @property
    def _workspace(self) -> str:
        return self._state.folder

    def _records(self) -> list[Record]:
        return records_of(self._store, self._id, self._damage)

    def _events(self) -> list[Event]:
        return [record.event for record in self._records()]

    def _damage_html(self) -> str:
        return (
            ""
            if self._damage is None
            else f'<p role="alert"><b>DAMAGED:</b> {html.escape(str(self._damage))}</p>'
        )


def records_of(store: SessionStore, run_id: str, damage: Damaged | None, *, after: int = 0) -> list[Record]:
    """Return a run's events with number and time, after number `after`; only the undamaged ones."""
    store.flush()
    return (
        store.records(run_id, after=after)
        if damage is None
        else store.records(run_id, after=after, until=damage.seq - 1)
    )


_GONE = "is no longer kept whole: there was no room for it"


class Answers(TableView, Mapping[str, str]):
    """The whole result of each tool call of a run, by call: `run.results["c1"]`."""

    def __init__(self, records: list[Record], store: ResultStore) -> None:
        self._store = store
        self.read_image = image_reader(store)
        """Returns the `data:` address of an image that an event of the run names; empty for one that is gone.
        """
        self._answers = {
            record.event.call: record.event for record in records if isinstance(record.event, ToolAnswered)
        }

    def __getitem__(self, call: str) -> str:
        """The whole text; raises `UsageError` for an unknown call, and for a text that was removed."""
        found = self._answers.get(call)
        if found is None:
            raise UsageError(f"no call {call!r} of the run was answered; {did_you_mean(call, self._answers)}")
        if not found.whole:
            return found.text
        path = self.path(call)
        if path is None:
            raise UsageError(
                f"the answer to call {call!r} {_GONE}; its beginning and end are in run.events()"
            )
        return path.read_text(encoding="utf-8", errors="replace")

    def path(self, call: str) -> Path | None:
        """The file of a text that is kept whole, for those too long to hold; `None` for any other."""
        found = self._answers.get(call)
        return None if found is None else self._store.path(found.whole)

    def __contains__(self, call: object) -> bool:
        return call in self._answers

    def __iter__(self) -> Iterator[str]:
        return iter(self._answers)

    def __len__(self) -> int:
        return len(self._answers)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and a row of texts per call."""
        rows: list[tuple[str, ...]] = [
            (call, one.tool, f"{one.chars or len(one.text):,}", self._kept(one))
            for call, one in self._answers.items()
        ]
        return ("call", "tool", "characters", "kept"), rows

    def _kept(self, answer: ToolAnswered) -> str:
        if not answer.whole:
            return "beginning and end" if answer.truncated else "in the log"
        try:
            return "no longer" if self._store.path(answer.whole) is None else "whole"
        except StoreError:
            return "changed since"


def value_of(run_id: str, state: RunState, kind: OutputType[T] | None, live: LiveKernel | None = None) -> T:
    """Return the typed answer of a run, or what its code ended with in the kernel `live`; `kind` is its type,
    where that is known.

    Raises as `Run.value` says.
    """
    asked = (state.started.output if state.started else {}) or next(
        (one.schema for one in answering_steps(state.planned) if one.schema), {}
    )
    if kind is None and not asked:
        if live is not None and live.given[0] == run_id:
            return cast("T", live.given[1])
        raise UsageError(
            f"run {run_id} was not asked for a value: begin it with output=…, or read run.answer"
        )
    if not state.status.terminal:
        raise UsageError(f"run {run_id} has no value yet: it is {state.status}")
    if state.finished is None or state.finished.outcome != "complete":
        reason = "" if state.finished is None else f": {one_line(state.finished.reason, 500)}"
        raise RunFailed(f"run {run_id} has no value, it ended {state.status}{reason}")
    if kind is not None and asked and kind.schema != asked:
        raise UsageError(
            f"run {run_id} was begun with another output: the schema of the type given now is not the "
            "one in the log"
        )
    return (kind or OutputType(asked)).value(answer_value(state))
