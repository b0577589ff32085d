"""A run and a table as plain text: what a saved notebook, a log and a terminal without colours show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import indent

from kestrel_lab.core.drawing.svg import MARKS as PLAN_MARKS
from kestrel_lab.core.text import one_line
from kestrel_lab.views.rows import CallRow, NoticeRow, Row, StageRow, StepPart, TextRow
from kestrel_lab.views.runview import RunView

MARKS = {**PLAN_MARKS, "error": "✗", "denied": "✗", "asked": "·", "done": "✓", "retrying": "↻"}
"""One character per state, shown beside the word, never instead of it."""


def run_text(view: RunView) -> str:
    """The run from its goal to its answer, readable without anything else."""
    head = view.head
    kind = f" ({head.model_kind})" if head.model_kind not in {"", "real"} else ""
    lines = [f"run {head.run or '?'} · {head.status or 'not started'} · {head.model}{kind}", f"goal: {head.goal}"]
    if head.health:
        lines.append(f"not in order: {head.health}")
    several = len(view.steps) > 1
    if several:
        lines += [f"{view.plan.graph.summary}:", *(_step(step, depth) for step, depth in in_order(view))]
    for row in view.rows.values():
        step = view.steps.get(row.step) if several and not isinstance(row, StageRow) else None
        lines += _row(row, f"{step.name}: " if step else "")
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


def in_order(view: RunView) -> list[tuple[StepPart, int]]:
    """The steps as written, each followed by what it grew; with each, how many steps up it comes from."""
    children: dict[str, list[StepPart]] = {}
    for step in view.steps.values():
        children.setdefault(step.parent if step.parent in view.steps else "", []).append(step)
    found: dict[str, tuple[StepPart, int]] = {}
    todo = [(step, 0) for step in reversed(children.get("", []))]
    while todo:
        step, depth = todo.pop()
        found[step.id] = step, depth
        todo += [(child, depth + 1) for child in reversed(children.get(step.id, [])) if child.id not in found]
    circling = [(step, 0) for step in view.steps.values() if step.id not in found]
    return [*found.values(), *circling]


def _step(step: StepPart, depth: int) -> str:
    why = f" ({step.reason})" if step.reason else ""
    facts = ", ".join(word for word in (step.state, step.stage and f"stage {step.stage}") if word)
    return f"  {'  ' * depth}{MARKS.get(step.state, '·')} {step.name} [{facts}]: {one_line(step.goal, 200)}{one_line(why, 300)}"


def _row(row: Row, step: str) -> list[str]:
    match row:
        case TextRow(text=""):
            return []
        case TextRow():
            label = "answer" if row.role == "answer" else f"{step}text"
            return [f"{label}:{'' if row.state == 'done' else f' ({row.state})'}", indent(row.text, "  ")]
        case NoticeRow():
            return [f"{row.level}: {step}{row.text}", *(indent(item, "    ") for item in row.items)]
        case StageRow():
            return [f"stage {row.stage}: {row.state}{f', attempt {row.attempt}' if row.attempt > 1 else ''}"]
        case CallRow():
            facts = " · ".join(word for word in (row.state, row.took, row.danger, row.note) if word)
            before = f"  {row.inside} › " if row.inside else ""
            lines = [f"{before}{MARKS.get(row.state, '·')} {step}{row.tool} {row.summary} [{facts}]"]
            return lines + ([f"    {row.preview}"] if row.preview else [])
