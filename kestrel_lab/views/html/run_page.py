"""A run as static HTML: semantic elements that need no script, no style sheet and no kernel."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import Any

from kestrel_lab.core.drawing.svg import plan_svg
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.views.diffs import diff_lines
from kestrel_lab.views.evidence import STATUS_WORDS
from kestrel_lab.views.formatting import first_and_last, format_count
from kestrel_lab.views.html.elements import safe_markup, template_macros
from kestrel_lab.views.html.markdown import code_html, markdown_html, number_links, row_id
from kestrel_lab.views.rows import CallRow, NoticeRow, Row, StageRow, TextRow
from kestrel_lab.views.run_text import MARKS, budget_line, left_out_line, run_text, steps_in_order
from kestrel_lab.views.run_view import ACTED, RunView

SAVED_CHARS = 400_000
"""About how much of a run's rows is saved with a notebook; a page of its own (`Run.report`) has everything.
"""
_FIGURE_CHARS = 4_000_000
"""Characters of figures that are saved with a notebook."""
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
            "retrying",
            "warning",
        ),
        *STATUS_WORDS.values(),
    ),
    "error": ("FAILED", "HIGH", "CRITICAL", "error", "denied", "failed", "bad"),
}
_TONE = {word: tone for tone, words in _TONES.items() for word in words}


def run_html(view: RunView, limit: int | None = SAVED_CHARS) -> str:
    """Return the run as one `<section>`: of one that has answered its answer first, then what it did.

    Of a long run the rows in the middle are left out, so that the rest has about `limit` characters; a line
    says how many they are and how to see them.
    """
    # A run of few calls is read whole; of a longer one only the calls that failed are unfolded.
    few = sum(isinstance(row, CallRow) for row in view.rows.values()) <= 6
    parts = template_macros(
        "run.html",
        tones=_TONE,
        marks=MARKS,
        diff_groups=_diff_groups,
        shortened=_shorten,
        markdown=_markdown,
        anchor=row_id,
        code=lambda code: safe_markup(code_html(*code, styled=True)),
        figure=lambda row, place: f"{row.id}:{place}",
        opened=lambda row: row.state in ("error", "stopped") or (few and bool(row.code or row.figures)),
    )

    def shown(row: Row) -> str:
        step = view.steps.get(row.step) if len(view.steps) > 1 and not isinstance(row, StageRow) else None
        return str(parts.row(row, step, row.id.removeprefix("c:") in view.asks, view.head.run))

    work, answer, acted = _in_parts(view)
    first, left_out, last = first_and_last(work, shown, limit)
    missing = [parts.left_out(left_out_line(view, left_out))] if left_out else []
    html = parts.run(
        view.head,
        plan=_plan(view, limit, parts),
        # An answer with something wrong in it is no green one.
        doubtful=any(isinstance(row, NoticeRow) and row.level in ("warning", "bad") for row in answer),
        facts=_facts(view),
        answer=[safe_markup(shown(row)) for row in answer],
        did=_count_calls(work) if answer and work else "",
        acted=acted,
        **_fold_rows(
            work, [*map(safe_markup, first), *missing, *map(safe_markup, last)], limit, bool(answer)
        ),
        claims=any(isinstance(row, TextRow) and row.claims for row in view.rows.values()),
        questions=[ask for ask in view.asks.values() if ask.kind == "question"],
        calls=[ask for ask in view.asks.values() if ask.kind != "question"],
        used=[line for line in (view.head.usage, budget_line(view.head)) if line],
    )
    return _with_figures(str(html), view, _FIGURE_CHARS if limit is not None else None)


def run_bundle(view: RunView) -> dict[str, str]:
    """Return a run as HTML and text for a notebook; of a working run they name the command for the rest."""
    found = {"text/html": run_html(view), "text/plain": run_text(view)}
    if view.head.run and not view.head.ended:
        more = f"how it went on: %kestrel show {view.head.run}"
        found["text/html"] += f"<p><small>{escape(more)}</small></p>"
        found["text/plain"] += f"\n{more}"
    return found


def _in_parts(view: RunView) -> tuple[list[Row], list[Row], list[str]]:
    """Return the rows of the work, those of the answer and what is known of it, and lines of what was done;
    without an answer all rows are work.
    """
    rows = [row for row in view.rows.values() if row.id != ACTED]
    acted = view.rows.get(ACTED)
    lines = [] if not isinstance(acted, NoticeRow) else acted.items or [acted.text.partition(": ")[2]]
    place = next(
        (n for n, row in enumerate(rows) if isinstance(row, TextRow) and row.role == "answer"), len(rows)
    )
    answer = rows[place:]
    if answer and isinstance(row := answer[0], TextRow) and row.thinking:
        # What it thought before is work.
        work = [*rows[:place], replace(row, role="model", text="")]
        return work, [replace(row, thinking=""), *answer[1:]], lines
    return rows[:place], answer, lines


def _facts(view: RunView) -> list[str]:
    """Return how long the run took and what it cost."""
    usage = view.meter.usage
    cost = f"${usage.cost_usd:.4f}" if usage.cost_usd else ""
    return list(filter(None, [view.head.took_text, cost]))


def _count_calls(rows: list[Row]) -> str:
    """Return how many calls there are, and how many of them did not end well; empty without any."""
    states = [row.state for row in rows if isinstance(row, CallRow)]
    bad = {"error": "failed", "denied": "denied", "stopped": "stopped", "undone": "undone"}
    counted = [f"{states.count(state)} {word}" for state, word in bad.items() if state in states]
    return " · ".join([format_count(len(states), "call"), *counted]) if states else ""


def _with_figures(html: str, view: RunView, room: int | None) -> str:
    """Put the figures in their places; no text of the page, which is escaped, can look like a place."""
    for row in (one for one in view.rows.values() if isinstance(one, CallRow)):
        for place, address in enumerate(row.figures):
            style = f'style="max-width:100%;max-height:30em" src="{address}"'
            image = f'<img alt="Figure of {escape(row.tool)}" {style}>'
            if room is not None and (room := room - len(address)) < 0:
                image = "<small>too large to be kept here: it is in the log of the run</small>"
            html = html.replace(f'<img data-figure="{escape(row.id)}:{place}">', image, 1)
    return html


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


def _fold_rows(work: list[Row], rows: list[Any], limit: int | None, answered: bool) -> dict[str, Any]:
    """Return the rows of the page; of many rows, all but the last ones fold into one `summary` line."""
    shown = 0 if answered else 8
    # Rows before the answer are folded beyond these, so that a long run stays a page high.
    if limit is None or len(rows) - shown <= 15:
        return {"earlier": [], "summary": "", "rows": rows}
    calls = sum(isinstance(row, CallRow) for row in work)
    empty = sum(isinstance(row, TextRow) and not row.text for row in work)
    failed = sum(isinstance(row, CallRow) and row.state in ("error", "denied") for row in work)
    summary = " · ".join(
        [
            format_count(len(work) - shown - empty, "earlier row"),
            format_count(calls, "call"),
            *([f"{failed} failed or denied"] if failed else []),
        ]
    )
    cut = len(rows) - shown
    return {"earlier": rows[:cut], "summary": summary, "rows": rows[cut:]}


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
