"""Transcripts of trials for a page that stays of a size which a browser opens."""

from __future__ import annotations

from html import escape
from typing import Final

from kestrel_lab.core.sanitize import one_line, plain
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import labelled
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import view_of

PAGE_CHARS: Final = 8_000_000
"""Of all transcripts of one page together; further trials are listed with their reason."""
RUN_CHARS: Final = 200_000
"""Of one transcript; of a longer run the beginning is shown."""
_FEWEST: Final = 8
"""Events below which a transcript is not cut any further."""
SIDE_BY_SIDE: Final = (
    'style="display:grid;grid-template-columns:repeat(auto-fit,minmax(min(26rem,100%),1fr));gap:.5rem 1rem;align-items:start"'
)


class Transcripts:
    """What happened in trials, as HTML in which everything foreign is text; each run is told once, in the order asked for."""

    def __init__(self, *stores: SessionStore, chars: int = PAGE_CHARS, run_chars: int = RUN_CHARS) -> None:
        self._stores = stores
        self._left = chars
        self._longest = run_chars
        self._told: set[str] = set()

    def folded(self, row: EvalRow, *, title: str = "", opened: bool = False) -> str:
        """The trial as a `<details>` with the anchor `run-…`; a line alone where the page has no room left, or a link where it is told above."""
        head = title or heading(row)
        run = str(row.result["run"])
        if run in self._told:
            return f'<p><a href="#run-{escape(run)}">{_text(head)}</a>: told above.</p>'
        self._told.add(run)
        if self._left <= 0:
            return f'<p id="run-{escape(run)}">{_text(head)} <small>(no room for more transcripts: <code>kestrel show {_text(run)}</code>)</small></p>'
        inside = self._scores(row) + self._transcript(run)
        self._left -= len(inside)
        return f'<details id="run-{escape(run)}"{" open" if opened else ""}><summary style="overflow-wrap:anywhere">{_text(head)}</summary>{inside}</details>'

    def _transcript(self, run: str) -> str:
        records = next((found for store in self._stores if (found := store.records(run))), [])
        if not records:
            return "<p>The log of this run is not in this store.</p>"
        count, html = len(records), run_html(view_of(records))
        while len(html) > self._longest and count > _FEWEST:
            count //= 2
            html = run_html(view_of(records[:count]))
        if len(html) > self._longest:
            return f"<p>The transcript is too long for this page: <code>kestrel show {_text(run)}</code>.</p>"
        cut = f"<p>… and {len(records) - count:,} more events: <code>kestrel show {_text(run)}</code>.</p>"
        return html + (cut if count < len(records) else "")

    @staticmethod
    def _scores(row: EvalRow) -> str:
        """What each check said."""
        scores = row.result["scores"]
        items = [
            f"<li>{'✓' if score['passed'] else '✗'} {_text(str(score['check']))}"
            + (f": {_text(one_line(str(score['reason']), 400))}" if score["reason"] else "")
            + (" <small>(old score, kept)</small>" if score.get("kept") else "")
            + "</li>"
            for score in (scores if isinstance(scores, list) else [])
            if isinstance(score, dict)
        ]
        return f'<ul style="list-style:none;padding-left:.5rem;overflow-wrap:anywhere">{"".join(items)}</ul>' if items else ""


def heading(row: EvalRow) -> str:
    """A trial in one line: scenario, configuration, epoch, outcome and why."""
    label = labelled(row.config, str(row.result["model_kind"]))
    why = f": {one_line(str(row.result['reason']), 300)}" if row.result["reason"] else ""
    return f"{row.scenario} · {label} · epoch {row.epoch} · {row.result['outcome']}{why}"


def _text(text: str) -> str:
    return escape(plain(text))
