"""Patch stream: changes of a view, numbered, merged and sent in bundles, so that a thousand small ones stay
cheap.

A front end may miss messages (it may not listen yet, or be reloaded) and a server may drop some when there
are very many. Bundles are numbered; a front end that sees a gap asks again and gets the whole view.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable

from kestrel_lab.core.events.union import Event, ToolDelta
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import escape_surrogates
from kestrel_lab.views.html.markdown import RenderedChanges
from kestrel_lab.views.rows import Change
from kestrel_lab.views.run_view import RunView

INTERVAL_S = 0.05
"""Seconds between two bundles, except for what a person waits for."""
SPARE = 5
"""Bundles that may be sent early when calls start in quick succession; later ones wait longer."""

Send = Callable[[dict[str, Json]], None]


class PatchStream:
    """Keeps the view of one run and sends its changes to one page."""

    def __init__(self, view: RunView, send: Send) -> None:
        self.view = view
        self._send = send
        self._rendered = RenderedChanges(view)
        self._buffer: list[Change] = []
        self._number = 0
        self._timer: asyncio.TimerHandle | None = None
        self._spare = float(SPARE)
        self._flushed_at = time.monotonic()
        # Events come on the run's loop, requests for the whole view on a kernel thread.
        self._lock = threading.RLock()

    def name(self, run_id: str) -> None:
        """Add the id of the run, which events do not carry."""
        with self._lock:
            self._buffer.append(self.view.head.change(run=run_id))

    def take(self, event: Event) -> None:
        """Apply `event` to the view and send the changes soon, or at once if a person waits for them."""
        with self._lock:
            changes = self.view.apply(event, time.time())
            for change in changes:
                _merge(self._buffer, change)
        # A tool that writes may block the event loop meanwhile; it reports ten times a second at most.
        at_once = isinstance(event, ToolDelta) or any(map(_is_awaited, changes))
        if at_once or (any(map(_begins_call, changes)) and self._has_spare()):
            self.flush()
        elif changes and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(INTERVAL_S, self.flush)

    def flush(self) -> None:
        """Send the changes collected so far."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._buffer:
                self._has_spare()
                self._spare -= 1
                bundle, self._buffer = self._buffer, []
                self._number += 1
                self._send(self._message("patch", self._rendered.of(bundle)))

    def _has_spare(self) -> bool:
        """Whether a bundle may go before its time: one is earned with each interval."""
        now = time.monotonic()
        self._spare = min(float(SPARE), self._spare + (now - self._flushed_at) / INTERVAL_S)
        self._flushed_at = now
        return self._spare >= 1

    def whole(self) -> None:
        """Send the whole view, which includes the changes collected so far."""
        with self._lock:
            self._buffer = []
            self._send(self.picture())

    def picture(self) -> dict[str, Json]:
        """The message that carries the whole view."""
        # A page that has the whole view knows nothing of what was complete before.
        self._rendered = RenderedChanges(self.view)
        return self._message("snap", self._rendered.of(self.view.snapshot()))

    def _message(self, kind: str, changes: list[Change]) -> dict[str, Json]:
        return {
            "k": kind,
            "seq": self._number,
            "now": time.time(),
            "changes": [_sendable(change) for change in changes],
        }


def _sendable(value: Json) -> Json:
    """`value` with every text encodable: one id that a kernel cannot send would end the stream."""
    match value:
        case str():
            return escape_surrogates(value)
        case list():
            return [_sendable(item) for item in value]
        case dict():
            return {escape_surrogates(name): _sendable(item) for name, item in value.items()}
    return value


def _is_awaited(change: Change) -> bool:
    return change["op"] in {"ask", "asked"} or (change["op"] == "head" and "status" in change)


def _begins_call(change: Change) -> bool:
    """Whether the change is the start of a call, whose tool may block the event loop until it ends."""
    return change["op"] == "row" and change.get("state") == "running"


def _merge(buffer: list[Change], change: Change) -> None:
    """Append `change`; joins pieces of one text, and keeps only the newest value of the head."""
    if (
        change["op"] == "head"
        and (known := next((place for place, one in enumerate(buffer) if one["op"] == "head"), None))
        is not None
    ):
        buffer[known] = {**buffer[known], **change}
        return
    last = buffer[-1] if buffer else {}
    if change["op"] == "text" and (last.get("op"), last.get("id"), last.keys()) == (
        "text",
        change["id"],
        change.keys(),
    ):
        buffer[-1] = {
            **last,
            **{
                name: f"{last[name]}{piece}"
                for name, piece in change.items()
                if name in ("append", "thought")
            },
        }
    else:
        buffer.append(change)
