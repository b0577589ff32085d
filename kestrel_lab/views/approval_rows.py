"""Approvals as they are shown: calls that wait for a decision, and what was decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kestrel_lab.core.errors import START_STEP
from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import plain
from kestrel_lab.views import formatting
from kestrel_lab.views.diffs import shown_diff, tells_all
from kestrel_lab.views.row_builders import call_row, told_args, withdraw
from kestrel_lab.views.rows import Ask, Change

if TYPE_CHECKING:
    from kestrel_lab.views.run_view import RunView


def asked(view: RunView, event: e.ApprovalAsked) -> list[Change]:
    """Show that a call waits for a decision."""
    view.deeds.take(event)
    row = call_row(view, event.call, event.tool)
    args = told_args(view, event.call, event.args)
    row.change(step=event.step, danger=event.danger, summary=formatting.args_line(args), args=cast("Json", formatting.args_pairs(args)))
    row.change(state="waiting", since=0.0)
    question = event.why == "question"
    ask = view.asks[event.call] = Ask(
        id=event.call,
        kind="question" if question else "approval",
        text=plain(str(event.args.get("question", ""))) if question else "",
        options=formatting.options_of(event) if question else [],
        tool=plain(event.tool),
        danger=event.danger,
        why=" · ".join(
            part
            for part in (
                _WHY.get(event.why, plain(event.why)),
                formatting.contained_words(event),
                formatting.sandbox_words(event.sandbox),
                f"after loading {', '.join(map(plain, event.skills))}" if event.skills else "",
            )
            if part
        ),
        diff=shown_diff(event.preview),
        folded=tells_all(event.preview),
        images=view.figures.get(event.call, []),
        args=formatting.args_pairs(event.args, limit=None),
        origins=formatting.origin_pairs(event),
        json=formatting.visible_json(event.args),
        offer=plain(event.offer),
        contained=bool(event.contained),
    )
    return [row.whole(), ask.whole(), *view.plan.waits(event.step, waits=True)]


_WHY = {
    "danger": "",
    "contained": "",
    "question": "",
    "unknown_outcome": "The last session ended while this call ran: whether it took effect is unknown.",
}


_SCOPES = {"run": " for the whole run", "same": " for equal calls of the run", "like": " for commands like it in the run"}


def decided(view: RunView, event: e.ApprovalGiven) -> list[Change]:
    """Show who decided on a call, and how."""
    view.deeds.take(event)
    if event.args is not None:  # what a person changed is shown whole
        view.asked_args.pop(event.call, None)
    row = call_row(view, event.call, "")
    word = "denied" if not event.granted else "approved" if event.answer is None else "answered"
    edited = " with edited arguments" if event.granted and event.args is not None else ""
    said = event.answer or event.reason
    reason = f": {formatting.shown(said, 500)}" if said else ""
    note = f"{word}{edited} by {plain(event.by)}{_SCOPES.get(event.scope, '')}{reason}"
    granted = (
        "ok" if row.tool == START_STEP or "?" in event.call else "asked"
    )  # the beginning of a step, or what a tool does: no tool answers that
    row.change(note=note, state=granted if event.granted else "denied")
    return [row.whole(), *withdraw(view, event.call)]
