"""The rows of a run's view, built on first use: texts, calls, notices, approvals; and its budget."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from kestrel_lab.core.calls import IN_KERNEL, PREVIEWED, PREVIEWING, format_count
from kestrel_lab.core.errors import START_STEP
from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.labels import BLAME
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.core.usage import UsageMeter
from kestrel_lab.host.user import user_name
from kestrel_lab.views import formatting
from kestrel_lab.views.diffs import is_complete_diff, sanitize_diff
from kestrel_lab.views.notices import task_list
from kestrel_lab.views.rows import CallRow, Change, NoticeRow, QuestionRow, StageRow, TextRow

if TYPE_CHECKING:
    from kestrel_lab.views.run_view import RunView


_WELL = {"starting", "ready"}
OPEN = {"asked", "waiting", "running", "thinking", "streaming"}
"""States of rows that are not settled."""


def text_row(view: RunView, call: str) -> TextRow:
    """The row of what a model answers in a call."""
    name = text_id(view, call)
    return cast("TextRow", view.rows.setdefault(name, TextRow(id=name)))


def text_id(view: RunView, call: str) -> str:
    """Return the id of an answer's row.

    A fork may ask for a call again: that answer gets a row of its own, below the notice of the fork.
    """
    return f"t:{call}~{view.forks}" if view.forks else f"t:{call}"


def call_row(view: RunView, call: str, tool: str) -> CallRow:
    """The row of a tool call."""
    row = cast(
        "CallRow",
        view.rows.setdefault(f"c:{call}", CallRow(id=f"c:{call}", inside=_macro_around(view, call))),
    )
    row.tool = sanitize_text(tool) or row.tool
    return row


def _macro_around(view: RunView, call: str) -> str:
    # Ids of a macro's calls begin with the id of its own call; of nested macros the innermost counts.
    found = [
        name
        for name in view.macros
        if call.startswith(name) and not call[len(name) : len(name) + 1].isalnum() and call != name
    ]
    return view.macros[max(found, key=len)] if found else ""


def notice_row(view: RunView, level: str, text: str) -> Change:
    """A line of its own."""
    return added_row(view, NoticeRow(id="", level=level, text=formatting.sanitize_short(text, 500)))


def show_blame(view: RunView, event: e.RunScanned) -> list[Change]:
    """Mark the turns that a blame names, in the place of those that an earlier one named."""
    changes = [view.rows[name].change(note=note) for name, note in view.blamed.items()]
    view.blamed.clear()
    found = [one for one in event.findings if one.get("scanner") == BLAME]
    for one in found:
        mark = f"▶ decisive ({100 * float(cast('float', one.get('value', 0))):.0f} %)"
        for call in cast("list[str]", one.get("calls") or []):
            for name in (text_id(view, call), f"c:{call}"):
                if isinstance(row := view.rows.get(name), TextRow | CallRow):
                    view.blamed[name] = row.note
                    changes.append(row.change(note=" · ".join(filter(None, (mark, row.note)))))
    said = [formatting.sanitize_short(str(one.get("text", "")), 500) for one in found]
    row = NoticeRow(id=BLAME, level="", text="Re-runs blame", items=said)
    if not said and BLAME not in view.rows:
        return changes
    if not said:
        row.text = "Re-runs blame no step any more"
    view.rows[BLAME] = row
    return [*changes, row.whole()]


def task_row(view: RunView, event: e.TaskChanged) -> Change:
    """The task list is one row."""
    view.tasks[event.task] = event
    row = view.rows.setdefault("tasks", NoticeRow(id="tasks"))
    return task_list(cast("NoticeRow", row), view.tasks.values()).whole()


def added_row(view: RunView, row: NoticeRow) -> Change:
    """Add a notice as the last row."""
    row.id = f"n:{len(view.rows)}"
    view.rows[row.id] = row
    return row.whole()


def health_changed(view: RunView, event: e.HealthChanged) -> list[Change]:
    """Show that a dependency of the run is in another state."""
    name = sanitize_text(event.dependency)
    was = view.unwell.pop(name, None)
    if event.target not in _WELL:
        view.unwell[name] = f"{name} {sanitize_text(event.target)}"
    head = view.head.change(health=", ".join(view.unwell.values()))
    # Every run has a model that works; only one that had failed before is worth a line.
    if event.kind == "model" and event.target in _WELL and was is None:
        return [head]
    reason = f": {event.reason}" if event.reason else ""
    notice = notice_row(
        view,
        "info" if event.target in _WELL else "warning",
        f"{event.kind} {event.dependency} is {event.target}{reason}",
    )
    return [notice, head]


def close_rows(view: RunView, *, waits: bool = False) -> list[Change]:
    """Stop the rows that are in progress: the run has ended, or only `waits` for a person."""
    calls = [
        row
        for row in view.rows.values()
        if isinstance(row, CallRow) and row.state in OPEN and not (waits and row.state == "waiting")
    ]
    changes = [row.change(state="stopped", since=0.0) for row in calls] + end_streams(view)
    changes += [
        row.change(state="stopped")
        for row in view.rows.values()
        if isinstance(row, NoticeRow) and row.state in OPEN
    ]
    for call in [] if waits else list(view.asks):
        changes += withdraw_question(view, call)
    return changes + ([] if waits else view.plan.closed())


def end_streams(view: RunView) -> list[Change]:
    """Stop the rows of answers that are still streaming."""
    rows = [row for row in view.rows.values() if isinstance(row, TextRow) and row.state in OPEN]
    return [row.change(state="stopped") for row in rows]


def withdraw_question(view: RunView, call: str) -> list[Change]:
    """Remove the question about a call."""
    if view.asks.pop(call, None) is None:
        return []
    step = call_row(view, call, "").step
    others = any(call_row(view, other, "").step == step for other in view.asks)
    return [{"op": "asked", "id": call}, *([] if others else view.plan.waits(step, waits=False))]


def preview_figures(event: e.KernelPreviewed) -> list[str]:
    """Return the figures of a preview as `data:` addresses; leaves out what is not an image."""
    given = [(str(one.get("media")), str(one.get("data") or "")) for one in event.images]
    return [
        f"data:{media};base64,{data}"
        for media, data in given
        if re.fullmatch(r"image/(png|jpeg)", media) and re.fullmatch(r"[A-Za-z0-9+/]+={0,2}", data)
    ]


def undo_text(event: e.KernelUndone) -> str:
    """Return in words what was restored."""
    parts = [*event.restored, *event.files, *(f"cell {cell}" for cell in event.cells)]
    lost = "".join(f"; {name} could not be restored: {why}" for name, why in event.missing.items())
    return f"undone {', '.join(event.calls)}: {', '.join(parts) or 'nothing'} restored{lost}"


def show_stage(view: RunView, event: e.StageStarted | e.StageFinished) -> list[Change]:
    """Show that a stage, which is one row, is in another state."""
    changes = view.plan.staged(event)
    name = f"g:{event.stage}:{event.attempt}"
    row = cast(
        "StageRow",
        view.rows.setdefault(
            name, StageRow(id=name, stage=sanitize_text(event.stage), attempt=event.attempt)
        ),
    )
    row.change(state=view.plan.stage_state(event.stage))
    return [*changes, row.whole()]


def shown_arguments(view: RunView, call: str, args: dict[str, Json]) -> dict[str, Json]:
    """The arguments without defaults that nobody named."""
    named = view.asked_args.get(call)
    return args if named is None else {name: value for name, value in args.items() if name in named}


def fill_preview(view: RunView, event: e.KernelPreviewed) -> list[Change]:
    """Show a preview that came after the question of its call."""
    ask = view.asks.get(event.call)
    if ask is None or not ask.previewing:
        return []
    row = call_row(view, event.call, "")
    view.previews[event.call] = event
    return [
        row.change(danger=event.danger),
        ask.change(
            previewing=0.0,
            danger=event.danger,
            why=formatting.sandbox_words(event.sandbox),
            diff=sanitize_diff(event.text),
            images=cast("Json", view.figures[event.call]),
        ),
    ]


def show_kernel_change(view: RunView, event: e.KernelChanged) -> Change:
    """Show what code did in a kernel; where it ran although its preview was to be taken over, say that."""
    row = call_row(view, event.call, "")
    changed: dict[str, Json] = {"undo": event.call if event.changes else ""}
    changed["table"] = cast("Json", [[sanitize_text(cell) for cell in cells] for cells in event.table])
    preview = view.previews.pop(event.call, None)
    if preview is not None and preview.sandbox == PREVIEWED and event.how == "executed":
        meant, ran = formatting.sandbox_words(PREVIEWED), formatting.sandbox_words(IN_KERNEL)
        changed |= {"danger": "HIGH", "note": row.note.replace(meant, ran)}
    return row.change(**changed)


def show_question(view: RunView, event: e.ApprovalAsked, at: float = 0.0) -> list[Change]:
    """Show that a call waits for a decision."""
    view.actions.take(event)
    row = call_row(view, event.call, event.tool)
    args = shown_arguments(view, event.call, event.args)
    row.change(step=event.step, danger=event.danger, **formatting.shown_args(args))
    row.change(state="waiting", since=0.0, note="")
    question = event.why == "question"
    skills = f"after loading {', '.join(map(sanitize_text, event.skills))}" if event.skills else ""
    why = (
        _WHY.get(event.why, sanitize_text(event.why)),
        formatting.containment_text(event),
        formatting.sandbox_words(event.sandbox),
        skills,
    )
    ask = view.asks[event.call] = QuestionRow(
        id=event.call,
        kind="question" if question else "approval",
        text=sanitize_text(str(event.args.get("question", ""))) if question else "",
        options=formatting.answer_options(event) if question else [],
        tool=sanitize_text(event.tool),
        danger=event.danger,
        why=" · ".join(filter(None, why)),
        previewing=at if event.preview == PREVIEWING else 0.0,
        diff=sanitize_diff(event.preview),
        folded=is_complete_diff(event.preview),
        images=view.figures.get(event.call, []),
        args=formatting.args_pairs(event.args, limit=None),
        origins=formatting.origin_pairs(event),
        json=formatting.visible_json(event.args),
        offer=sanitize_text(event.offer),
        contained=bool(event.contained),
    )
    return [row.whole(), ask.whole(), *view.plan.waits(event.step, waits=True)]


_WHY = {
    "danger": "",
    "contained": "",
    "question": "",
    "unknown_outcome": "The last session ended while this call ran: whether it took effect is unknown.",
}
_SCOPES = {
    "run": " for the whole run",
    "same": " for equal calls of the run",
    "like": " for commands like it in the run",
}


def show_decision(view: RunView, event: e.ApprovalGiven) -> list[Change]:
    """Show who decided on a call, and how."""
    view.actions.take(event)
    # Edited arguments are shown whole: which of them have defaults is only known of the model's own.
    if event.args is not None:
        view.asked_args.pop(event.call, None)
        # A preview is of the model's arguments.
        view.previews.pop(event.call, None)
    row = call_row(view, event.call, "")
    word = "denied" if not event.granted else "approved" if event.answer is None else "answered"
    edited = " with edited arguments" if event.granted and event.args is not None else ""
    said = event.answer or event.reason
    reason = f": {formatting.sanitize_short(said, 500)}" if said else ""
    # The reader knows who clicked here, and the name of an account such as root says nothing.
    here = event.how in ("click", "prompt") and event.by in ("prompt", user_name())
    who = "" if here else f" by {sanitize_text(event.by)}"
    # With a sandbox the decision is the preview's own; the row then says where the values come from instead.
    note = "" if event.sandbox else f"{word}{edited}{who}{_SCOPES.get(event.scope, '')}{reason}"
    # The start of a step, and a question within a call, have no tool answer that would close the row.
    granted = "ok" if row.tool == START_STEP or "?" in event.call else "asked"
    row.change(note=note, state=granted if event.granted else "denied")
    return [row.whole(), *withdraw_question(view, event.call)]


@dataclass(slots=True)
class Budget:
    """The limits that the events of a run name, beside what it has used."""

    limits: dict[str, Json] = field(default_factory=dict)

    def take(self, event: e.Event) -> bool:
        """Take in an event; return whether it may change the fields that `shown` returns."""
        if isinstance(event, e.RunStarted):
            self.limits = event.limits
        elif isinstance(event, e.RunResumed | e.RunForked):
            self.limits = event.limits or self.limits
        return isinstance(
            event,
            (
                e.RunStarted,
                e.RunForked,
                e.RunResumed,
                e.StateTransition,
                e.ModelCalled,
                e.ModelAnswered,
                e.RunFinished,
                e.RunInterrupted,
            ),
        )

    def shown(self, meter: UsageMeter) -> dict[str, Json]:
        """Return fields of a `RunHead`: what is counted, with the fraction used, and the times."""
        limits = {
            name: limit for name, limit in self.limits.items() if isinstance(limit, int | float) and limit > 0
        }
        counted: list[Json] = []
        used = meter.usage
        if turns := limits.get("cycles"):
            counted.append([f"{meter.turns:,} of {format_count(int(turns), 'turn')}", meter.turns / turns])
        # A price that nobody knows is no news.
        if (usd := limits.get("cost_usd")) and (used.cost_usd or not used.unpriced):
            unknown = " + unknown cost" if used.unpriced else ""
            counted.append([f"${used.cost_usd:.4f}{unknown} of ${usd:g}", used.cost_usd / usd])
        if tokens := limits.get("tokens"):
            counted.append([f"{used.tokens:,} of {tokens:,} tokens", used.tokens / tokens])
        return {
            "budget": counted,
            "took": meter.took_s,
            "worked": meter.working_s,
            "working": meter.counting_since,
            "seconds": limits.get("seconds"),
        }
