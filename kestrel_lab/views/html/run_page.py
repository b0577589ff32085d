"""A run and a table as static HTML: semantic elements that need no script, no style sheet and no kernel.

The inline style only uses inherited colours and, where it finds them, those of the surrounding
Jupyter theme: the same markup reads well on light and dark, and where a site removes style altogether.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby
from operator import itemgetter

from kestrel_lab.core.drawing.svg import plan_svg
from kestrel_lab.core.sanitize import AS_TEXT, head_tail, plain
from kestrel_lab.views.diffs import diff_lines
from kestrel_lab.views.evidence import STANDING
from kestrel_lab.views.formatting import duration, ends
from kestrel_lab.views.rows import Ask, CallRow, NoticeRow, Row, StageRow, StepPart, TextRow
from kestrel_lab.views.run_view import RunView
from kestrel_lab.views.text import MARKS, budget_line, in_order, left_out_line

SAVED_CHARS = 400_000
"""About how much of a run's rows is saved with a notebook; a page of its own (`Run.report`) has everything."""
TEXT_CHARS = 60_000
"""How much of one text is."""

_LINE = "rgba(127,127,127,.35)"
_BOX = f"border:1px solid {_LINE};border-radius:6px;padding:8px 12px;margin:4px 0;text-align:left"
_WRAP = "white-space:pre-wrap;overflow-wrap:anywhere"
_PRE = f"{_WRAP};font-family:var(--jp-code-font-family,monospace);max-height:24em;overflow:auto;margin:2px 0;padding:2px 8px;border-left:2px solid {_LINE}"
_DIFF = {"added": "background:rgba(46,160,67,.2)", "removed": "background:rgba(248,81,73,.2)", "place": "opacity:.65"}
_TONES = {
    "success": ("COMPLETE", "ok", "done", "good"),
    "info": ("EXECUTING", "PLANNING", "LOW", "running", "streaming", "scripted", "replay"),
    "warn": (
        "WAITING_APPROVAL",
        "INTERRUPTED",
        "UNKNOWN",
        "MEDIUM",
        "waiting",
        "CANCELLED",
        "stopped",
        "retrying",
        "warning",
        *STANDING.values(),
    ),
    "error": ("FAILED", "HIGH", "CRITICAL", "error", "denied", "failed", "bad"),
}
_PLAIN = {"good", "bad", ""}
"""Levels of notices that need no word before them."""
_TONE = {word: tone for tone, words in _TONES.items() for word in words}


def run_html(view: RunView, limit: int | None = SAVED_CHARS) -> str:
    """The run from its goal to its answer as one `<section>`.

    Of a long one the rows in the middle are left out, so that those that stay have about `limit` characters; it is said
    how many, and how to see them.
    """
    head, left_out, tail = ends([*view.rows.values()], lambda row: _row(view, row), limit)
    missing = f'<p style="{_BOX}">{_safe(left_out_line(view, left_out))}</p>' if left_out else ""
    parts = [_head(view), _plan(view, limit), *head, missing, *tail, _asks(view)]
    if view.head.reason:
        parts.append(f"<p><b>Reason:</b> {_safe(view.head.reason)}</p>")
    used = [_safe(line) + (_took(view) if line == view.head.usage else "") for line in (view.head.usage, budget_line(view.head)) if line]
    if used:
        parts.append(f'<div style="opacity:.75;margin-top:4px"><small>{"<br>".join(used)}</small></div>')
    return f'<section {AS_TEXT} style="{_BOX}" aria-label="kestrel run {_safe(view.head.run)}">{"".join(parts)}</section>'


def headline_html(text: str) -> str:
    """A `<p>` in bold that stands over a table."""
    return f"<p {AS_TEXT}><b>{_safe(text)}</b></p>"


def paragraph_html(text: str) -> str:
    """A `<p>` of plain text."""
    return f"<p {AS_TEXT}>{_safe(text)}</p>"


def pre_html(text: str) -> str:
    """A `<pre>` of text that is laid out by its own lines."""
    return f'<pre {AS_TEXT} style="{_WRAP}">{_safe(text)}</pre>'


def table_html(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A `<table>` with a heading row; every cell is shown as text, numbers to the right."""
    head = "".join(f'<th scope="col" style="text-align:left">{_safe(column)}</th>' for column in columns)
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    return f"<table {AS_TEXT}><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _safe(text: str) -> str:
    return escape(plain(text))


def _cell(value: object) -> str:
    align = "right" if isinstance(value, int | float) and not isinstance(value, bool) else "left"
    return f'<td style="text-align:{align}">{_safe(str(value))}</td>'


def _badge(text: str) -> str:
    if not text:
        return ""
    colour = f"var(--jp-{_TONE[text]}-color1,currentColor)" if text in _TONE else _LINE
    return f'<span style="border:1px solid {colour};border-radius:9px;padding:0 7px;font-size:85%;white-space:nowrap">{_safe(text)}</span>'


def _pre(text: str) -> str:
    return f'<pre style="{_PRE}">{_safe(text)}</pre>'


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _head(view: RunView) -> str:
    head = view.head
    kind = "" if head.model_kind == "real" else head.model_kind
    status = f"<b>{_badge(head.status or 'not started')}</b>"
    facts = _joined(status, f"<code>{_safe(head.run)}</code>", _safe(head.model), _badge(kind))
    health = f"<div><b>Not in order:</b> {_safe(head.health)}</div>" if head.health else ""
    return f'<div>{facts}</div>{health}<div style="margin:4px 0;{_WRAP}"><b>{_safe(head.goal)}</b></div>'


def _took(view: RunView) -> str:
    head = view.head
    return f" · {duration(head.ended - head.started)}" if head.ended > head.started > 0 else ""


def _plan(view: RunView, limit: int | None) -> str:
    """The drawing, and the same as a table, which also says what each step is for."""
    if len(view.steps) < 2:
        return ""
    head, left_out, tail = ends(in_order(view), lambda placed: _step(*placed), None if limit is None else limit // 4)
    missing = f'<tr><td colspan="5">… {left_out:,} steps left out …</td></tr>' if left_out else ""
    rows = "".join([*head, missing, *tail])
    heads = "".join(f'<th scope="col" style="text-align:left">{word}</th>' for word in ("step", "state", "stage", "goal", "after"))
    drawing = f'<div style="overflow-x:auto;margin:4px 0">{plan_svg(view.plan.layout(), stages=view.plan.marks())}</div>'
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    summary = f'<summary style="cursor:pointer">{_safe(view.plan.graph.summary)}</summary>'
    return f'{drawing}<details style="margin:4px 0">{summary}{table}</details>'


def _step(step: StepPart, depth: int) -> str:
    state = f"{MARKS.get(step.state, '·')} {step.state}" + (f": {step.reason}" if step.reason else "")
    cells = ("\u2003" * depth + step.name, state, step.stage, step.goal, ", ".join(step.needs))
    return f"<tr>{''.join(_cell(text) for text in cells)}</tr>"


def _step_of(view: RunView, row: Row) -> str:
    """Which step a row belongs to, where there are several."""
    step = view.steps.get(row.step) if len(view.steps) > 1 and not isinstance(row, StageRow) else None
    return f'<small style="opacity:.65">{_safe(step.name)}</small>' if step else ""


def _row(view: RunView, row: Row) -> str:
    step = _step_of(view, row)
    match row:
        case TextRow(text=""):
            return ""
        case TextRow():
            title = _joined("<b>Answer</b>" if row.role == "answer" else "", step, "" if row.state == "done" else _badge(row.state))
            note = f'<small style="opacity:.65">{_safe(row.note)}</small>' if row.note else ""
            text = f'<div style="{_WRAP}">{_safe(head_tail(row.text, TEXT_CHARS)[0])}</div>'
            cites = "".join(
                f'<details><summary style="cursor:pointer"><code>{_safe(name)}</code> {_badge(since)}</summary>{_pre(said)}</details>'
                for name, said, since in row.cites
            )
            return f'<div style="margin:6px 0">{title}{text}{cites}{note}</div>'
        case NoticeRow():
            items = "".join(f'<div style="{_WRAP};margin-left:1em">{_safe(item)}</div>' for item in row.items)
            said = f"<b>{_safe(row.text)}</b>" if row.level in _PLAIN else f"<b>{_safe(row.level.capitalize())}:</b> {_safe(row.text)}"
            table = f'<div style="overflow-x:auto">{table_html(row.table[0], row.table[1:])}</div>' if row.table else ""
            return f'<div style="margin:4px 0">{_joined(step, said)}{items}{table}</div>'
        case StageRow():
            again = f" · attempt {row.attempt}" if row.attempt > 1 else ""
            return f'<div style="margin:8px 0 2px"><b>Stage {_safe(row.stage)}</b>{again} {_badge(row.state)}</div>'
        case CallRow():
            return _call(row, step, asked=row.id.removeprefix("c:") in view.asks)


def _call(row: CallRow, step: str, *, asked: bool) -> str:
    opened = " open" if row.state == "error" or (row.state == "waiting" and not asked) else ""
    mark = f"{MARKS.get(row.state, '·')} {row.state}"
    inside = f"<small>{_safe(row.inside)} ›</small>" if row.inside else ""
    facts = _joined(_badge(row.danger), _safe(row.took), f"<small>{_safe(row.note)}</small>" if row.note else "", step)
    title = f"{_joined(mark, inside)} <b>{_safe(row.tool)}</b> <code>{_safe(row.summary)}</code> {facts}"
    result = (f"<div>Result</div>{_pre(row.result)}" if row.result else "") + _diff(row.diff)
    style = f"margin:3px 0 3px {'1.5em' if row.inside else '0'}"
    return f'<details{opened} style="{style}"><summary style="cursor:pointer">{title}</summary>{"" if asked else _args(row.args)}{result}</details>'


def _args(pairs: list[list[str]]) -> str:
    return "".join(f"<div>{_safe(name)}</div>{_pre(text)}" for name, text in pairs)


def _diff(diff: str) -> str:
    """A diff with its lines coloured; the signs at their beginnings say the same without colour."""
    if not diff:
        return ""
    pieces = []
    for kind, lines in groupby(diff_lines(diff), key=itemgetter(0)):
        text = _safe("\n".join(line for _, line in lines))
        pieces.append(f'<span style="{_DIFF[kind]}">{text}</span>' if kind in _DIFF else text)
    return f'<pre style="{_PRE}">{chr(10).join(pieces)}</pre>'


def _asks(view: RunView) -> str:
    """What waits for a person: the questions, then the calls that came together in one box."""
    questions = [_question(ask) for ask in view.asks.values() if ask.kind == "question"]
    calls = [_ask(ask) for ask in view.asks.values() if ask.kind != "question"]
    if len(calls) > 1:
        calls = [f'<div style="{_BOX}"><b>{len(calls)} calls wait for approval</b>{"".join(calls)}</div>']
    return "".join(questions + calls)


def _question(ask: Ask) -> str:
    options = "".join(f"<li>{_safe(option)}</li>" for option in ask.options)
    return f'<div style="{_BOX}"><b>Waits for an answer:</b><div style="{_WRAP}">{_safe(ask.text)}</div>{f"<ul>{options}</ul>" if options else ""}</div>'


def _ask(ask: Ask) -> str:
    why = f"<p>{_safe(ask.why)}</p>" if ask.why else ""
    title = f"<b>Waits for approval:</b> {_safe(ask.tool)} {_badge(ask.danger)}"
    opened = "" if ask.folded else " open"
    args = f'<details{opened}><summary style="cursor:pointer">Arguments</summary>{_args(ask.args)}</details>' if ask.args else ""
    origins = (
        f'<details{opened}><summary style="cursor:pointer">Where they come from</summary>{_args(ask.origins)}</details>'
        if ask.origins
        else ""
    )
    return f'<div style="{_BOX}">{title}{why}{_diff(ask.diff)}{args}{origins}</div>'
