"""A run as static HTML: semantic elements that need no script, no style sheet and no kernel."""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter
from typing import Any

from kestrel_lab.core.drawing.svg import plan_svg
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.views.diffs import diff_lines
from kestrel_lab.views.evidence import STANDING
from kestrel_lab.views.formatting import first_and_last, format_count, format_duration
from kestrel_lab.views.html.elements import safe_markup, template_macros
from kestrel_lab.views.html.markdown import markdown_html, number_links, row_id
from kestrel_lab.views.rows import CallRow, Row, StageRow, TextRow
from kestrel_lab.views.run_text import MARKS, budget_line, left_out_line, steps_in_order
from kestrel_lab.views.run_view import RunView

SAVED_CHARS = 400_000
"""About how much of a run's rows is saved with a notebook; a page of its own (`Run.report`) has everything.
"""
_MOST_ROWS = 15
"""Rows before the answer that are shown; more are folded, so that a long run stays a page high."""
_LAST_ROWS = 8
"""Rows that are shown of a long run without an answer."""
TEXT_CHARS = 60_000
"""How much of one text is."""

_TONES = {
    "success": ("COMPLETE", "ok", "done", "good"),
    "info": ("EXECUTING", "PLANNING", "LOW", "running", "streaming", "scripted", "replay", "imported"),
    "warn": (
        *(
            "WAITING_APPROVAL",
            "INTERRUPTED",
            "UNKNOWN",
            "MEDIUM",
            "waiting",
            "CANCELLED",
            "stopped",
            "retrying",
            "warning",
        ),
        *STANDING.values(),
    ),
    "error": ("FAILED", "HIGH", "CRITICAL", "error", "denied", "failed", "bad"),
}
_TONE = {word: tone for tone, words in _TONES.items() for word in words}


def run_html(view: RunView, limit: int | None = SAVED_CHARS) -> str:
    """Return the run from its goal to its answer as one `<section>`.

    Of a long run the rows in the middle are left out, so that the rest has about `limit` characters; a line
    says how many they are and how to see them.
    """
    parts = template_macros(
        "run.html",
        tones=_TONE,
        marks=MARKS,
        diff_groups=_diff_groups,
        shortened=_shorten,
        markdown=_markdown,
        anchor=row_id,
    )

    def shown(row: Row) -> str:
        step = view.steps.get(row.step) if len(view.steps) > 1 and not isinstance(row, StageRow) else None
        return str(parts.row(row, step, row.id.removeprefix("c:") in view.asks, view.head.run))

    first, left_out, last = first_and_last([*view.rows.values()], shown, limit)
    missing = [parts.left_out(left_out_line(view, left_out))] if left_out else []
    took = (
        f" · {format_duration(view.head.ended - view.head.started)}"
        if view.head.ended > view.head.started > 0
        else ""
    )
    used = [view.head.usage + took if view.head.usage else "", budget_line(view.head)]
    return str(
        parts.run(
            view.head,
            plan=_plan(view, limit, parts),
            **_fold_rows(view, [*map(safe_markup, first), *missing, *map(safe_markup, last)], limit),
            claims=any(isinstance(row, TextRow) and row.claims for row in view.rows.values()),
            questions=[ask for ask in view.asks.values() if ask.kind == "question"],
            calls=[ask for ask in view.asks.values() if ask.kind != "question"],
            used=[line for line in used if line],
        )
    )


def _plan(view: RunView, limit: int | None, parts: Any) -> Any:
    """Return the drawing of the plan and its table of steps; nothing for a plan of one step."""
    if len(view.steps) < 2:
        return ""
    first, left_out, last = first_and_last(
        steps_in_order(view),
        lambda placed: str(parts.step_row(*placed)),
        None if limit is None else limit // 4,
    )
    missing = [parts.steps_left_out(left_out)] if left_out else []
    drawing = safe_markup(plan_svg(view.plan.layout(), stages=view.plan.marks()))
    return parts.plan(
        drawing, view.plan.graph.summary, [*map(safe_markup, first), *missing, *map(safe_markup, last)]
    )


def _fold_rows(view: RunView, rows: list[Any], limit: int | None) -> dict[str, Any]:
    """Return the rows of the page; of many rows, those before the answer fold into one `summary` line."""
    answer = next(
        (
            place
            for place, row in enumerate(reversed(view.rows.values()), 1)
            if isinstance(row, TextRow) and row.role == "answer"
        ),
        0,
    )
    shown = answer or _LAST_ROWS
    if limit is None or len(rows) - shown <= _MOST_ROWS:
        return {"earlier": [], "summary": "", "rows": rows}
    calls = sum(isinstance(row, CallRow) for row in view.rows.values())
    empty = sum(isinstance(row, TextRow) and not row.text for row in view.rows.values())
    failed = sum(isinstance(row, CallRow) and row.state in ("error", "denied") for row in view.rows.values())
    summary = " · ".join(
        [
            format_count(len(view.rows) - shown - empty, "earlier row"),
            format_count(calls, "call"),
            *([f"{failed} failed or denied"] if failed else []),
        ]
    )
    return {"earlier": rows[:-shown], "summary": summary, "rows": rows[-shown:]}


def _shorten(text: str) -> str:
    return head_tail(text, TEXT_CHARS)[0]


def _markdown(run: str, row: TextRow) -> Any:
    text = _shorten(row.text)
    claims = row.claims if text == row.text else []
    return safe_markup(markdown_html(text, styled=True, claims=claims, numbers=number_links(run, row)))


def _diff_groups(diff: str) -> list[tuple[str, str]]:
    """Return the lines of a diff, those of one kind that follow each other as one text."""
    return [
        (kind, "\n".join(line for _, line in lines))
        for kind, lines in groupby(diff_lines(diff), key=itemgetter(0))
    ]
