"""A run and a table as plain text: what a saved notebook, a log and a terminal without colours show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import indent

from kestrel_lab.core.text import one_line
from kestrel_lab.views.rows import CallRow, NoticeRow, Row, TextRow
from kestrel_lab.views.runview import RunView

MARKS = {"ok": "✓", "failed": "✗", "error": "✗", "denied": "✗", "running": "…", "waiting": "?", "asked": "·", "stopped": "-"}
"""One character per state, shown beside the word, never instead of it."""


def run_text(view: RunView) -> str:
    """The run from its goal to its answer, readable without anything else."""
    head = view.head
    kind = f" ({head.model_kind})" if head.model_kind not in {"", "real"} else ""
    lines = [f"run {head.run or '?'} · {head.status or 'not started'} · {head.model}{kind}", f"goal: {head.goal}"]
    if head.health:
        lines.append(f"not in order: {head.health}")
    if len(view.steps) > 1:
        lines += ["plan:", *(f"  {MARKS.get(step.state, '·')} {step.id} ({step.state}): {step.goal}" for step in view.steps.values())]
    for row in view.rows.values():
        lines += _row(row)
    for ask in view.asks.values():
        lines.append(f"waits for approval: {ask.tool} ({ask.danger})")
    if head.reason:
        lines.append(f"reason: {head.reason}")
    if head.usage:
        lines.append(head.usage)
    return "\n".join(lines)


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their headings, each cell on one line."""
    cells = [[one_line(str(cell), 60) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)


def _row(row: Row) -> list[str]:
    match row:
        case TextRow(text=""):
            return []
        case TextRow():
            label = "answer" if row.role == "answer" else "text"
            return [f"{label}:{'' if row.state == 'done' else f' ({row.state})'}", indent(row.text, "  ")]
        case NoticeRow():
            return [f"{row.level}: {row.text}"]
        case CallRow():
            facts = " · ".join(word for word in (row.state, row.took, row.danger, row.note) if word)
            lines = [f"{MARKS.get(row.state, '·')} {row.tool} {row.summary} [{facts}]"]
            return lines + ([f"    {row.preview}"] if row.preview else [])
