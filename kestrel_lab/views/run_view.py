"""A run as it is shown: events go in one at a time, small patches come out, and the patches are all a screen
needs.

Panel, terminal, saved HTML and plain text show this same model, so they cannot disagree. Every text in it has
been through `core.sanitize.sanitize_text`; renderers only escape for their own syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from kestrel_lab.core.citations import citations_in
from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.actions import ActionLog
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.run_types import INTERRUPTED, TERMINAL, RunStatus
from kestrel_lab.core.sanitize import head_tail, one_line, overwrite_lines, sanitize_text
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.language.numbers import number_origins
from kestrel_lab.verification.evidence import CitedClaim
from kestrel_lab.views import formatting, notices, row_builders
from kestrel_lab.views.confidence_badge import badge_of
from kestrel_lab.views.diffs import diff_stat, sanitize_diff, split_diff
from kestrel_lab.views.evidence import cited_places, claim_ranges
from kestrel_lab.views.plan_view import PlanView
from kestrel_lab.views.row_builders import Budget, show_decision, show_question
from kestrel_lab.views.rows import CallRow, Change, NoticeRow, QuestionRow, Row, RunHead, StepPart, TextRow

_GIVEN = "given by hand"
ACTED = "acted"
"""Id of the row that says what the run did."""


ReadImage = Callable[[Mapping[str, Json]], str]


def _unread(_: Mapping[str, Json]) -> str:
    """Return no image; used where the store of a run is not available."""
    return ""


@dataclass(slots=True)
class RunView:
    """The view of one run so far."""

    head: RunHead = field(default_factory=RunHead)
    plan: PlanView = field(default_factory=PlanView)
    rows: dict[str, Row] = field(default_factory=dict)
    """In the order of their beginning."""
    asks: dict[str, QuestionRow] = field(default_factory=dict)
    """Calls that wait for a person, by call."""
    questions: dict[str, e.ApprovalAsked] = field(default_factory=dict)
    """Questions without a decision, by call; those of a run that was stopped wait for its resumption."""
    meter: UsageMeter = field(default_factory=UsageMeter)
    budget: Budget = field(default_factory=Budget)
    unwell: dict[str, str] = field(default_factory=dict)
    """State of each dependency that is not in order."""
    forks: int = 0
    """How often the run's history parted from another's."""
    tasks: dict[str, e.TaskChanged] = field(default_factory=dict)
    """The task list, by number."""
    asked_args: dict[str, set[str]] = field(default_factory=dict)
    """The arguments that a model named, by call; a row leaves out the others, which have their defaults."""
    macros: dict[str, str] = field(default_factory=dict)
    """Macros that were called, by call."""
    given: dict[str, str] = field(default_factory=dict)
    """What tools gave so far, by call, for the numbers of the answer."""
    figures: dict[str, list[str]] = field(default_factory=dict)
    """Images of previews, by call, as `data:` addresses."""
    previews: dict[str, e.KernelPreviewed] = field(default_factory=dict)
    """Previews that came while a question waited, by call: what a person then approves is what they show."""
    verdicts: list[e.VerifierFinished] = field(default_factory=list)
    """What verifiers said, for how sure the answer is."""
    actions: ActionLog = field(default_factory=ActionLog)
    """What the run did so far."""
    timed: bool = True
    """Whether the seconds of calls are known; those of an imported run need not be."""
    blamed: dict[str, str] = field(default_factory=dict)
    """What rows that a blame marks said before, by their ids."""
    left: str = ""
    """The state in which work on it was broken off; empty while somebody works on it."""
    read_image: ReadImage = _unread
    """Returns the `data:` address of an image that an event names; events hold no bytes."""

    @property
    def steps(self) -> dict[str, StepPart]:
        """The steps of the plan so far, by id."""
        return self.plan.steps

    @property
    def _answer(self) -> TextRow | None:
        return next(
            (
                row
                for row in reversed(self.rows.values())
                if isinstance(row, TextRow) and row.role == "answer"
            ),
            None,
        )

    @property
    def answer(self) -> str:
        """The run's answer; empty as long as there is none."""
        return "" if (row := self._answer) is None else row.text

    @property
    def cites(self) -> bool:
        """Return whether the answer points at something, so that there is evidence to `mark` it with."""
        return (row := self._answer) is not None and bool(citations_in(row.text))

    def mark(self, backed: Sequence[CitedClaim]) -> list[Change]:
        """Set the state of evidence of the answer's claims and citations; returns the changes."""
        if (row := self._answer) is None:
            return []
        cites, claims = cited_places(backed), claim_ranges(row.text, backed)
        if (cites, claims) == (row.cites, row.claims):
            return []
        return [row.change(cites=cast("Json", cites), claims=claims)]

    def interrupt(self, at: float) -> list[Change]:
        """Mark the run as interrupted since `at`; its open questions can still be decided."""
        waits = self.head.status == RunStatus.WAITING_APPROVAL and bool(self.asks)
        if self.done or self.head.status == INTERRUPTED or (self.left and waits):
            return []
        self.left = self.left or self.head.status
        head = self.head.change(status=self.left if waits else INTERRUPTED, ended=at, progress="")
        return [head, *row_builders.close_rows(self, waits=waits)]

    def stop(self, at: float) -> list[Change]:
        """Mark the run as stopped by somebody at `at`: it asks nobody any more, until it is resumed."""
        if self.done or self.head.status == INTERRUPTED:
            return []
        self.left = self.left or self.head.status
        head = self.head.change(status=INTERRUPTED, ended=at, progress="")
        undecided = [row for row in self.rows.values() if isinstance(row, CallRow) and row.state == "waiting"]
        notes = [row.change(note="not decided, not run") for row in undecided]
        return [head, *notes, *row_builders.close_rows(self)]

    @property
    def done(self) -> bool:
        """Return whether the run has ended."""
        return self.head.status in TERMINAL

    def apply(self, item: e.Record | e.Event, at: float = 0.0) -> list[Change]:
        """Apply one event, `at` seconds since 1970 (a record knows its own time); returns the changes."""
        event, at = (item.event, item.at) if isinstance(item, e.Record) else (item, at)
        changes = (
            [self.head.change(run=item.run_id)] if isinstance(item, e.Record) and not self.head.run else []
        )
        self.meter.take(event, at)
        changes += _apply(self, event, at)
        if self.budget.take(event):
            changes.append(self.head.change(**self.budget.shown(self.meter)))
        return changes

    def snapshot(self) -> list[Change]:
        """Return the patches that rebuild the whole view."""
        parts = (self.head, *self.steps.values(), self.plan.graph, *self.rows.values(), *self.asks.values())
        return [part.whole() for part in parts]


def view_of(records: list[e.Record], read_image: ReadImage = _unread) -> RunView:
    """The view after all of `records`."""
    view = RunView(read_image=read_image)
    for record in records:
        view.apply(record)
    return view


def _apply(view: RunView, event: e.Event, at: float) -> list[Change]:  # one case per event  # noqa: C901
    match event:
        case e.RunStarted():
            return _started(view, event, at)
        case e.RunInterrupted():
            return view.stop(at)
        case e.RunResumed():
            return _resumed(view, event, at)
        case e.RunForked():
            return _forked(view, event, at)
        case e.StateTransition():
            return _changed_state(view, event, at)
        case e.PlanProposed() | e.PlanExtended():
            return view.plan.grown(event)
        case e.StepStarted():
            return view.plan.stepped(event)
        case e.StepFinished():
            report = (
                notices.quality_row(event, view.plan.operation(event.step))
                if isinstance(event.output, dict)
                else None
            )
            return [
                *view.plan.stepped(event),
                *([] if report is None else [row_builders.added_row(view, report)]),
            ]
        case e.StageStarted() | e.StageFinished():
            return row_builders.show_stage(view, event)
        case e.ModelCalled():
            name = row_builders.text_id(view, event.call)
            text = view.rows[name] = TextRow(id=name, step=event.step)
            return [text.whole()]
        case e.ModelDelta():
            return _streamed(view, event)
        case e.ModelAnswered():
            return _answered(view, event)
        case e.ToolCalled():
            return _called(view, event, at)
        case e.ToolDelta():
            return _written(view, event)
        case e.ToolAnswered():
            return _returned(view, event)
        case e.CacheHit():
            row = row_builders.call_row(view, event.call, event.tool)
            row.note = "cached"
            return [row.whole()]
        case e.KernelPreviewed():
            view.figures[event.call] = row_builders.preview_figures(event)
            return row_builders.fill_preview(view, event)
        case e.KernelChanged() if f"c:{event.call}" in view.rows:
            return [row_builders.show_kernel_change(view, event)]
        case e.CellsChanged(call=call, changes=changes) if changes and f"c:{call}" in view.rows:
            return [view.rows[f"c:{call}"].change(undo=call)]
        case e.KernelUndone():
            rows = [view.rows[f"c:{call}"] for call in event.calls if f"c:{call}" in view.rows]
            taken = [row.change(undo="", state="undone") for row in rows]
            return [*taken, row_builders.notice_row(view, "info", row_builders.undo_text(event))]
        case e.ApprovalAsked():
            view.questions[event.call] = event
            return show_question(view, event, at)
        case e.ApprovalGiven():
            view.questions.pop(event.call, None)
            return show_decision(view, event)
        case e.HealthChanged():
            return row_builders.health_changed(view, event)
        case e.Prompted():
            again = any(isinstance(row, TextRow) and row.step == event.step for row in view.rows.values())
            return [row_builders.added_row(view, notices.prompt_row(event, again=again))]
        case e.MacroStarted() | e.MacroFinished():
            return _macro(view, event)
        case e.VerifierStarted() | e.VerifierFinished():
            return _verified(view, event)
        case e.TaskChanged():
            return [row_builders.task_row(view, event)]
        case e.Progress():
            return _progressed(view, event)
        case e.RunFinished():
            return _finished(view, event, at)
        case e.RunScanned() if BLAME in event.scanners:
            return row_builders.show_blame(view, event)
        case _:
            notice = notices.notice_of(event)
            return [] if notice is None else [row_builders.added_row(view, notice)]


def _started(view: RunView, event: e.RunStarted, at: float) -> list[Change]:
    view.timed = event.imported.get("times", "each") == "each"
    head = view.head.change(
        goal=sanitize_text(event.said or event.goal),
        given=sanitize_text(event.goal) if event.said else "",
        status=view.head.status or RunStatus.PLANNING.value,
        model=sanitize_text(event.model),
        model_kind=event.model_kind,
        usage=formatting.usage_line(view.meter.usage),
    )
    guidance = formatting.guidance_lines(event.guidance) if event.guidance else []
    given = [row_builders.notice_row(view, "info", line) for line in guidance]
    return [
        head,
        *([row_builders.added_row(view, notices.imported_from(event))] if event.imported else []),
        *([row_builders.added_row(view, notices.chosen_model(event))] if event.model_why else []),
        *given,
    ]


def _resumed(view: RunView, event: e.RunResumed, at: float) -> list[Change]:
    # Without `by`, which names a machine and a process: notebooks with this view are passed on.
    notice = row_builders.notice_row(view, "info", "resumed")
    back = [view.head.change(status=view.left, ended=0.0)] if view.left else []
    view.left = ""
    again = [
        change
        for call, asked in view.questions.items()
        if call not in view.asks
        for change in show_question(view, asked, at)
    ]
    joined = _joined_by(view, event.model, event.model_kind)
    return [*back, joined, *row_builders.end_streams(view), notice, *again]


def _forked(view: RunView, event: e.RunForked, at: float) -> list[Change]:
    head = [_joined_by(view, event.model, event.model_kind)]
    view.questions.clear()
    withdrawn = [change for call in list(view.asks) for change in row_builders.withdraw_question(view, call)]
    given = (
        f" with {'an' if event.given == 'answer' else 'a'} {event.given} given by hand" if event.given else ""
    )
    stopped = row_builders.end_streams(view)
    view.forks, view.timed = view.forks + 1, True
    parted = f"forked from {event.parent} at {event.at}"
    if event.stage:
        parted = (
            f"goes on with {event.parent}, which had ended, behind its last completed stage "
            f"{event.stage!r} (event {event.at})"
        )
    notice = row_builders.notice_row(view, "info", f"{parted}{given}")
    copied = (
        []
        if event.stage or not event.private_copy
        else [row_builders.added_row(view, notices.copy_row(event.private_copy))]
    )
    return [*head, *stopped, *withdrawn, notice, *copied]


def _joined_by(view: RunView, model: str, kind: str) -> Change:
    # If any part of the run was scripted or replayed, the whole run stays labelled so.
    kept = view.head.model_kind if kind == "real" and view.head.model_kind else kind
    return view.head.change(model=sanitize_text(model) or view.head.model, model_kind=kept)


def _changed_state(view: RunView, event: e.StateTransition, at: float) -> list[Change]:
    changes = [view.head.change(status=event.target)]
    if event.target in TERMINAL:
        reason = view.head.reason or formatting.sanitize_short(event.reason, 1_000)
        changes += [
            view.head.change(ended=view.head.ended or at, reason=reason),
            *row_builders.close_rows(view),
        ]
    return changes


def _macro(view: RunView, event: e.MacroStarted | e.MacroFinished) -> list[Change]:
    row = row_builders.call_row(view, event.call, "macro_run")
    row.step = event.step
    if isinstance(event, e.MacroStarted):
        view.macros[event.call] = sanitize_text(event.macro)
        line = one_line(f"{event.macro} {formatting.args_line(event.args)}", 100)
        row.change(summary=line, note=f"macro, version {event.version}", state="running")
    else:
        row.change(state="ok" if event.ok else "error")
        if not event.ok:
            row.change(note=formatting.sanitize_short(f"macro {event.macro} failed: {event.reason}", 500))
    return [row.whole()]


def _verified(view: RunView, event: e.VerifierStarted | e.VerifierFinished) -> list[Change]:
    """A verification is one row, from its question to its verdict."""
    rows = [
        row
        for row in view.rows.values()
        if isinstance(row, NoticeRow) and row.id.startswith(f"v:{event.step}#")
    ]
    if not rows or rows[-1].state != "running":
        rows.append(NoticeRow(id=f"v:{event.step}#{len(rows)}", step=event.step))
        view.rows[rows[-1].id] = rows[-1]
    view.verdicts += [event] if isinstance(event, e.VerifierFinished) else []
    return [notices.update_verdict(rows[-1], event).whole()]


def _streamed(view: RunView, event: e.ModelDelta) -> list[Change]:
    piece = sanitize_text(event.text)
    if not piece:
        return []
    known = row_builders.text_id(view, event.call) in view.rows
    row = row_builders.text_row(view, event.call)
    if row.state not in row_builders.OPEN:
        return []
    if event.thinking:
        # A model that thinks without end must not fill the page.
        change = row.think(piece) if len(row.thinking) < 200_000 else None
        return [row.whole()] if not known else [change] if change else []
    if row.state == "streaming":
        return [row.append(piece)]
    row.change(state="streaming", text=piece)
    return [row.whole()]


def _answered(view: RunView, event: e.ModelAnswered) -> list[Change]:
    known = row_builders.text_id(view, event.call) in view.rows
    row = row_builders.text_row(view, event.call)
    if not known:
        row.step = event.step
    text = sanitize_text(event.text)
    cancelled = event.error is not None and event.error.get("kind") == "cancelled"
    if cancelled:
        # What it had said when it was stopped.
        text = text or row.text
    elif event.error:
        text = "\n".join(
            part
            for part in (
                text,
                formatting.sanitize_short(str(event.error.get("message", "the model call failed"))),
            )
            if part
        )
    changed: dict[str, Json] = {} if text == row.text else {"text": text}
    took = (
        "cached"
        if event.cached
        else "replayed"
        if event.replayed
        else formatting.format_duration(event.seconds)
        if view.timed
        else ""
    )
    model = (
        f"{sanitize_text(event.model)} ({sanitize_text(event.routed)})"
        if event.routed
        else sanitize_text(event.model)
    )
    cost = f" · ${event.cost_usd:.4f}" if event.cost_usd else ""
    tokens = (
        f" · {event.tokens_in + event.tokens_out:,} tokens{formatting.cache_text(event)}"
        if event.metered
        else ""
    )
    note = _GIVEN if event.given else f"{model}{tokens}{cost}{took and f' · {took}'}"
    if event.thinking:
        changed["thinking"] = formatting.thinking_text(event)
    state = "stopped" if cancelled else "error" if event.error else "done"
    settled = row.change(**changed, state=state, note=note)
    replayed = [_joined_by(view, "", "replay")] if event.replayed and view.head.model_kind != "replay" else []
    asked = [_requested(view, event.step, call) for call in event.calls]
    return [settled if known else row.whole(), view.head.change(usage=_usage_text(view)), *replayed, *asked]


def _requested(view: RunView, step: str, call: dict[str, Json]) -> Change:
    row = row_builders.call_row(view, str(call.get("id")), str(call.get("name")))
    args = cast("dict[str, Json]", call.get("args") or {})
    view.asked_args[str(call.get("id"))] = set(args)
    row.change(step=step, **formatting.shown_args(args))
    return row.whole()


def _called(view: RunView, event: e.ToolCalled, at: float) -> list[Change]:
    view.actions.take(event)
    view.given[event.call] = ""
    row = row_builders.call_row(view, event.call, event.tool)
    note = f"attempt {event.attempt}" if event.attempt > 1 else row.note
    # A person's yes is in the note already.
    if not row.note and event.leave and not event.leave.startswith("policy "):
        note = " · ".join(
            part for part in (note, f"allowed by {formatting.sanitize_short(event.leave, 200)}") if part
        )
    # The call began as one without a preview, and was approved with the one that came.
    approved = view.previews.get(event.call, event)
    note = " · ".join(part for part in (note, formatting.sandbox_words(approved.sandbox)) if part)
    args = row_builders.shown_arguments(view, event.call, event.args)
    row.change(step=event.step, danger=approved.danger, **formatting.shown_args(args))
    row.change(state="running", since=at, note=note, result="")
    return [row.whole()]


def _progressed(view: RunView, event: e.Progress) -> list[Change]:
    """Show how far a step is; what is of use later as a row of its own, too."""
    text = formatting.sanitize_short(event.text, 200)
    changes = [view.head.change(progress=text, fraction=event.fraction)]
    return [*changes, row_builders.notice_row(view, "info", event.text)] if event.lasting else changes


def _written(view: RunView, event: e.ToolDelta) -> list[Change]:
    """Show the last lines of what a tool wrote so far in the place of its answer."""
    row = view.rows.get(f"c:{event.call}")
    if not isinstance(row, CallRow) or row.state != "running":
        return []
    # Before it is made harmless: that shows a carriage return as a sign.
    written = sanitize_text(overwrite_lines(event.text, row.result))[-formatting.WRITTEN_SHOWN :]
    return [row.change(result=written, preview=one_line(written.rstrip().rpartition("\n")[2], 160))]


def _returned(view: RunView, event: e.ToolAnswered) -> list[Change]:
    view.actions.take(event)
    if event.error is None:
        view.given[event.call] = event.text
    row = row_builders.call_row(view, event.call, event.tool)
    kind = str(event.error.get("kind")) if event.error else ""
    state = {"": "ok", "denied": "denied", "cancelled": "stopped"}.get(kind, "error")
    note = _GIVEN if event.given else "cached" if event.cached else row.note
    text, diff = split_diff(event.text)
    preview = " · ".join(
        part for part in (formatting.opening_line(text), diff_stat(diff) if diff else "") if part
    )
    if event.whole:
        note = " · ".join(
            part
            for part in (
                note,
                f'whole text: {event.chars:,} characters, run.results["{sanitize_text(event.call)}"]',
            )
            if part
        )
    took = formatting.format_duration(event.seconds) if view.timed and state != "denied" else ""
    shortened = sanitize_diff(head_tail(diff, formatting.RESULT_SHOWN)[0])
    row.change(
        state=state,
        result=formatting.sanitize_short(text),
        diff=shortened,
        preview=preview,
        note=note,
        took=took,
        since=0.0,
        figures=[address for image in event.images if (address := view.read_image(image))],
    )
    row.undo = event.call if event.before else row.undo
    return [
        row.whole(),
        *row_builders.withdraw_question(view, event.call),
        view.head.change(usage=_usage_text(view)),
    ]


def _usage_text(view: RunView) -> str:
    meter = view.meter
    hits = f" · {meter.hits} of {meter.lookups} from the cache" if meter.hits else ""
    return formatting.usage_line(meter.usage) + hits


def _finished(view: RunView, event: e.RunFinished, at: float) -> list[Change]:
    changes = row_builders.close_rows(view)
    answer = sanitize_text(event.answer)
    if answer:
        texts = [row for row in view.rows.values() if isinstance(row, TextRow)]
        numbers = _numbers(answer, view.given) if view.given else {}
        if texts and texts[-1].text.strip() == answer.strip():
            changes.append(texts[-1].change(role="answer", numbers=numbers))
        else:
            row = view.rows["answer"] = TextRow(
                id="answer", role="answer", state="done", text=answer, numbers=numbers
            )
            changes.append(row.whole())
    acted = notices.actions_done(view.actions.actions) if answer and view.given else None
    if acted is not None:
        acted.id, view.rows[ACTED] = ACTED, acted
        changes.append(acted.whole())
    # Of most answers there is nothing to say.
    if view.verdicts or event.claims or event.concerns or event.actions or event.checked != 0:
        sure = badge_of([*view.verdicts, event]) if answer and event.outcome == "complete" else None
        changes += [
            row_builders.added_row(view, notice)
            for notice in (
                None if sure is None else notices.confidence_row(sure),
                notices.claims_row(event.claims),
                notices.concerns_row(event),
                notices.next_steps(event),
            )
            if notice is not None
        ]
    reason = formatting.sanitize_short(event.reason, 1_000)
    return [
        *changes,
        view.head.change(outcome=event.outcome, reason=reason, ended=at, progress="", fraction=None),
    ]


def _numbers(answer: str, given: Mapping[str, str]) -> dict[str, Json]:
    """Return the answer's numbers that occur in call results, with the last such row; not short ones."""
    calls = [*given]
    found = number_origins(answer, [*given.values()])
    # A number of one or two digits is in too many outputs to be traced to a call.
    return {
        said: f"c:{calls[places[-1]]}" for said, places in found.items() if sum(map(str.isdigit, said)) >= 3
    }
