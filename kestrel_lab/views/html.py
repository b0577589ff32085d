"""A run and a table as static HTML: semantic elements that need no script, no style sheet and no kernel.

The inline style only uses inherited colours and, where it finds them, those of the surrounding
Jupyter theme: the same markup reads well on light and dark, and where a site removes style altogether.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from kestrel_lab.core.text import plain
from kestrel_lab.views.rows import Ask, CallRow, NoticeRow, Row, StepPart, TextRow
from kestrel_lab.views.runview import RunView
from kestrel_lab.views.text import MARKS
from kestrel_lab.views.wording import duration

AS_TEXT = 'class="mathjax_ignore tex2jax_ignore"'
"""On everything with foreign text in it: notebooks set what stands between dollar signs as formulas, with links of its own."""

_LINE = "rgba(127,127,127,.35)"
_BOX = f"border:1px solid {_LINE};border-radius:6px;padding:8px 12px;margin:4px 0;text-align:left"
_WRAP = "white-space:pre-wrap;overflow-wrap:anywhere"
_PRE = f"{_WRAP};max-height:24em;overflow:auto;margin:2px 0;padding:2px 8px;border-left:2px solid {_LINE}"
_TONES = {
    "success": ("COMPLETE", "ok"),
    "info": ("EXECUTING", "PLANNING", "LOW", "running", "streaming", "scripted", "replay"),
    "warn": ("WAITING_APPROVAL", "MEDIUM", "waiting", "CANCELLED", "stopped"),
    "error": ("FAILED", "HIGH", "CRITICAL", "error", "denied", "failed"),
}
_TONE = {word: tone for tone, words in _TONES.items() for word in words}


def run_html(view: RunView) -> str:
    """The run from its goal to its answer as one `<section>`."""
    parts = [_head(view), _plan(view), *(_row(row) for row in view.rows.values()), *(_ask(ask) for ask in view.asks.values())]
    if view.head.reason:
        parts.append(f"<p><b>Reason:</b> {_safe(view.head.reason)}</p>")
    if view.head.usage:
        parts.append(f'<div style="opacity:.75;margin-top:4px"><small>{_safe(view.head.usage)}{_took(view)}</small></div>')
    return f'<section {AS_TEXT} style="{_BOX}" aria-label="kestrel run {_safe(view.head.run)}">{"".join(parts)}</section>'


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
    return f'<div>{facts}</div><div style="margin:4px 0;{_WRAP}"><b>{_safe(head.goal)}</b></div>'


def _took(view: RunView) -> str:
    head = view.head
    return f" · {duration(head.ended - head.started)}" if head.ended > head.started > 0 else ""


def _plan(view: RunView) -> str:
    if len(view.steps) < 2:
        return ""
    rows = "".join(_step(step) for step in view.steps.values())
    heads = "".join(f'<th scope="col" style="text-align:left">{word}</th>' for word in ("step", "state", "goal", "after"))
    return f"<table><caption>Plan</caption><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"


def _step(step: StepPart) -> str:
    state = f"{MARKS.get(step.state, '·')} {step.state}"
    return f"<tr>{''.join(_cell(text) for text in (step.id, state, step.goal, ', '.join(step.needs)))}</tr>"


def _row(row: Row) -> str:
    match row:
        case TextRow(text=""):
            return ""
        case TextRow():
            title = _joined("<b>Answer</b>" if row.role == "answer" else "", "" if row.state == "done" else _badge(row.state))
            note = f'<small style="opacity:.65">{_safe(row.note)}</small>' if row.note else ""
            text = f'<div style="{_WRAP}">{_safe(row.text)}</div>'
            return f'<div style="margin:6px 0">{title}{text}{note}</div>'
        case NoticeRow():
            return f'<div style="margin:4px 0"><b>{_safe(row.level.capitalize())}:</b> {_safe(row.text)}</div>'
        case CallRow():
            return _call(row)


def _call(row: CallRow) -> str:
    opened = " open" if row.state in {"error", "waiting"} else ""
    mark = f"{MARKS.get(row.state, '·')} {row.state}"
    facts = _joined(_badge(row.danger), _safe(row.took), f"<small>{_safe(row.note)}</small>" if row.note else "")
    title = f"{mark} <b>{_safe(row.tool)}</b> <code>{_safe(row.summary)}</code> {facts}"
    result = f"<div>Result</div>{_pre(row.result)}" if row.result else ""
    return f'<details{opened} style="margin:3px 0"><summary style="cursor:pointer">{title}</summary>{_args(row.args)}{result}</details>'


def _args(pairs: list[list[str]]) -> str:
    return "".join(f"<div>{_safe(name)}</div>{_pre(text)}" for name, text in pairs)


def _ask(ask: Ask) -> str:
    why = f"<p>{_safe(ask.why)}</p>" if ask.why else ""
    return f'<div style="{_BOX}"><b>Waits for approval:</b> {_safe(ask.tool)} {_badge(ask.danger)}{why}{_args(ask.args)}</div>'
