"""The report of a run in lines: what was asked, done, denied, claimed and found, and what that took."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kestrel_lab.core.events.actions import Action, action_lines
from kestrel_lab.core.events.union import RunFinished
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.views.confidence_badge import Badge
from kestrel_lab.views.notices import claims_row, concerns_row
from kestrel_lab.views.run_text import budget_line
from kestrel_lab.views.run_view import RunView

_TEXT: Final = 600
"""Characters of the goal and of the answer; the run has all of them."""
_MOST: Final = 20
"""Lines about one thing."""


def report_rows(
    view: RunView, end: RunFinished | None, actions: Sequence[Action], badge: Badge
) -> Iterator[tuple[str, list[str]]]:
    """Yield a name and its lines, from what was asked to what it took; nothing is said of what was not."""
    head = view.head
    kind = f" ({head.model_kind})" if head.model_kind not in ("", "real") else ""
    yield "run", [f"{head.status or 'not started'} · {head.run} · {head.model}{kind}"]
    if head.reason:
        yield "reason", [one_line(head.reason, _TEXT)]
    yield "asked", [one_line(head.goal, _TEXT)]
    done = [action for action in actions if action.outcome == "done"]
    yield "did", _first(action_lines(done)) or ["nothing was changed, run or sent"]
    yield from _lines("denied", (action.what for action in actions if action.outcome == "denied"))
    others = (str(action) for action in actions if action.outcome not in ("done", "denied"))
    yield from _lines("not done", others)
    if end is None:
        yield "answered", ["not yet"]
    else:
        yield "answered", [one_line(end.answer, _TEXT) or "nothing"]
        yield from _found(end, badge)
    took = " · ".join(filter(None, [head.took_text, head.usage]))
    yield "took", [took, *filter(None, [budget_line(head)])]


def _found(end: RunFinished, badge: Badge) -> Iterator[tuple[str, list[str]]]:
    """Yield what the answer claims, with the evidence, and what the checks found about it."""
    if claims := claims_row(end.claims):
        yield "claimed", [claims.text, *_first(map(str, claims.items))]
    concerns = concerns_row(end)
    checked = [] if badge.word == "unchecked" else [f"{badge}: {badge.why}"]
    yield from _lines("found", [*checked, *(map(str, concerns.items) if concerns else ())])


def _lines(name: str, lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    if found := _first(lines):
        yield name, found


def _first(lines: Iterable[str]) -> list[str]:
    found = list(lines)
    return found[:_MOST] + ([f"and {len(found) - _MOST:,} more"] if len(found) > _MOST else [])
