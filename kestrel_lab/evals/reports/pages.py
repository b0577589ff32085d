"""Static HTML pages of studies, and transcripts of a size that a browser opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import label_kind
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.html.elements import safe_markup, template_environment, template_macros
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import view_of

PAGE_CHARS: Final = 8_000_000
"""Of all transcripts of one page together; further trials are listed with their reason."""
RUN_CHARS: Final = 200_000
"""Of one transcript; of a longer run the beginning is shown."""
_FEWEST: Final = 8
"""Events below which a transcript is not cut any further."""
TEMPLATES: Final = Path(__file__).parent / "templates"


def render_page(template: str, **values: Any) -> str:
    """Return a self-contained HTML page; what is not marked as safe is text in it."""
    return str(template_environment(TEMPLATES).get_template(template).render(**values))


class Transcripts:
    """What happened in trials, as HTML in which everything foreign is text; each run is told once, in the
    order asked for.
    """

    def __init__(self, *stores: SessionStore, chars: int = PAGE_CHARS, run_chars: int = RUN_CHARS) -> None:
        self._stores = stores
        self._left = chars
        self._longest = run_chars
        self._told: set[str] = set()

    def folded(self, row: EvalRow, *, title: str = "", opened: bool = False) -> Any:
        """Return the trial as a `<details>` with the anchor `run-…`, as `Markup`.

        It is a line alone where the page has no room left, and a link where the run is told above.
        """
        head = title or trial_heading(row)
        run = row.run
        parts = template_macros("parts.html", TEMPLATES, one_line=one_line)
        if run in self._told:
            return parts.told_above(run, head)
        self._told.add(run)
        if self._left <= 0:
            return parts.without_transcript(run, head)
        inside = parts.score_list([{"kept": False, **score} for score in row.scores]) + self._transcript(
            run, parts
        )
        self._left -= len(inside)
        return parts.trial(run, head, opened, inside)

    def _transcript(self, run: str, parts: Any) -> Any:
        records = next((found for store in self._stores if (found := store.records(run))), [])
        if not records:
            return parts.not_stored()
        kept, html = len(records), run_html(view_of(records))
        while len(html) > self._longest and kept > _FEWEST:
            kept //= 2
            html = run_html(view_of(records[:kept]))
        if len(html) > self._longest:
            return parts.too_long(run)
        return safe_markup(html) + (parts.cut_short(run, len(records) - kept) if kept < len(records) else "")


def trial_heading(row: EvalRow) -> str:
    """A trial in one line: scenario, configuration, epoch, outcome and why."""
    label = label_kind(row.config, row.model_kind)
    why = f": {one_line(row.reason, 300)}" if row.reason else ""
    return f"{row.scenario} · {label} · epoch {row.epoch} · {row.outcome}{why}"
