"""The rows of a run's view, made when they are first needed."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, cast

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import plain
from kestrel_lab.views.formatting import shown
from kestrel_lab.views.notices import task_list
from kestrel_lab.views.rows import CallRow, Change, NoticeRow, StageRow, TextRow

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
    """A model that is asked anew in a fork answers in a row of its own, behind the notice of the fork."""
    return f"t:{call}~{view.forks}" if view.forks else f"t:{call}"


def call_row(view: RunView, call: str, tool: str) -> CallRow:
    """The row of a tool call."""
    row = cast("CallRow", view.rows.setdefault(f"c:{call}", CallRow(id=f"c:{call}", inside=macro_around(view, call))))
    row.tool = plain(tool) or row.tool
    return row


def macro_around(view: RunView, call: str) -> str:
    """The macro whose call the id of `call` begins with."""
    found = [name for name in view.macros if call.startswith(name) and not call[len(name) : len(name) + 1].isalnum() and call != name]
    return view.macros[max(found, key=len)] if found else ""


def notice_row(view: RunView, level: str, text: str) -> Change:
    """A line of its own."""
    return added_row(view, NoticeRow(id="", level=level, text=shown(text, 500)))


def task_row(view: RunView, event: e.TaskChanged) -> Change:
    """The task list is one row."""
    view.tasks[event.task] = event
    row = view.rows.setdefault("tasks", NoticeRow(id="tasks"))
    return task_list(cast("NoticeRow", row), view.tasks.values()).whole()


def added_row(view: RunView, row: NoticeRow) -> Change:
    """A notice behind everything that is there."""
    row.id = f"n:{len(view.rows)}"
    view.rows[row.id] = row
    return row.whole()


def health_changed(view: RunView, event: e.HealthChanged) -> list[Change]:
    """Show that a dependency of the run is in another state."""
    name = plain(event.dependency)
    was = view.unwell.pop(name, None)
    if event.target not in _WELL:
        view.unwell[name] = f"{name} {plain(event.target)}"
    head = view.head.change(health=", ".join(view.unwell.values()))
    if event.kind == "model" and event.target in _WELL and was is None:  # a model that answers is no news
        return [head]
    reason = f": {event.reason}" if event.reason else ""
    notice = notice_row(view, "info" if event.target in _WELL else "warning", f"{event.kind} {event.dependency} is {event.target}{reason}")
    return [notice, head]


def close_rows(view: RunView, *, waits: bool = False) -> list[Change]:
    """Stop the rows that are under way, in a run that ended or only `waits` for a person."""
    calls = [row for row in view.rows.values() if isinstance(row, CallRow) and row.state in OPEN and not (waits and row.state == "waiting")]
    changes = [row.change(state="stopped", since=0.0) for row in calls] + stop_texts(view)
    changes += [row.change(state="stopped") for row in view.rows.values() if isinstance(row, NoticeRow) and row.state in OPEN]
    for call in [] if waits else list(view.asks):
        changes += withdraw(view, call)
    return changes + ([] if waits else view.plan.closed())


def stop_texts(view: RunView) -> list[Change]:
    """No model answers any more."""
    rows = [row for row in view.rows.values() if isinstance(row, TextRow) and row.state in OPEN]
    return [row.change(state="stopped") for row in rows]


def withdraw(view: RunView, call: str) -> list[Change]:
    """Remove the question about a call."""
    if view.asks.pop(call, None) is None:
        return []
    step = call_row(view, call, "").step
    others = any(call_row(view, other, "").step == step for other in view.asks)
    return [{"op": "asked", "id": call}, *([] if others else view.plan.waits(step, waits=False))]


_IMAGE = re.compile(r"image/(png|jpeg)")
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def figures_of(event: e.KernelPreviewed) -> list[str]:
    """Return the figures of a preview as `data:` addresses; what is no image by its type and letters is left out."""
    given = [(str(one.get("media")), str(one.get("data") or "")) for one in event.images]
    return [f"data:{media};base64,{data}" for media, data in given if _IMAGE.fullmatch(media) and _BASE64.fullmatch(data)]


def undone(event: e.KernelUndone) -> str:
    """Return in words what was restored."""
    parts = [*event.restored, *event.files, *(f"cell {cell}" for cell in event.cells)]
    lost = "".join(f"; {name} could not be restored: {why}" for name, why in event.missing.items())
    return f"undone {', '.join(event.calls)}: {', '.join(parts) or 'nothing'} restored{lost}"


def staged(view: RunView, event: e.StageStarted | e.StageFinished) -> list[Change]:
    """Show that a stage, which is one row, is in another state."""
    changes = view.plan.staged(event)
    name = f"g:{event.stage}:{event.attempt}"
    row = cast("StageRow", view.rows.setdefault(name, StageRow(id=name, stage=plain(event.stage), attempt=event.attempt)))
    row.change(state=view.plan.stage_state(event.stage))
    return [*changes, row.whole()]


def told_args(view: RunView, call: str, args: dict[str, Json]) -> dict[str, Json]:
    """The arguments without defaults that nobody named."""
    named = view.asked_args.get(call)
    return args if named is None else {name: value for name, value in args.items() if name in named}
