"""A run as plain text: what a saved notebook, a log and a terminal without colours show."""

from __future__ import annotations

from textwrap import indent
from typing import cast

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.drawing.svg import MARKS as PLAN_MARKS
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.views.formatting import first_and_last
from kestrel_lab.views.rows import CallRow, NoticeRow, QuestionRow, Row, RunHead, StageRow, StepPart, TextRow
from kestrel_lab.views.run_view import RunView
from kestrel_lab.views.text import table_lines

MARKS = {**PLAN_MARKS, "error": "✗", "denied": "✗", "asked": "·", "done": "✓", "retrying": "↻", "undone": "↶"}
"""One character per state, shown beside the word, never instead of it."""

_SAVED_CHARS = 80_000
"""Rows of a run are printed up to about this size in total."""


def run_text(view: RunView) -> str:
    """The run from its goal to its answer, readable without anything else."""
    head = view.head
    kind = f" ({head.model_kind})" if head.model_kind not in {"", "real"} else ""
    lines = [
        f"run {head.run or '?'} · {head.status or 'not started'} · {head.model}{kind}",
        f"goal: {head.goal}",
    ]
    if head.health:
        lines.append(f"not in order: {head.health}")
    several = len(view.steps) > 1
    if several:
        first, left_out, last = first_and_last(
            steps_in_order(view), lambda placed: _step(*placed), _SAVED_CHARS // 4
        )
        lines += [
            f"{view.plan.graph.summary}:",
            *first,
            *([f"  … {format_count(left_out, 'step')} left out …"] if left_out else []),
            *last,
        ]

    def row_text(row: Row) -> str:
        step = view.steps.get(row.step) if several and not isinstance(row, StageRow) else None
        return "\n".join(_row(row, f"{step.name}: " if step else ""))

    first, left_out, last = first_and_last([*view.rows.values()], row_text, _SAVED_CHARS)
    lines += [line for line in (*first, left_out_line(view, left_out) if left_out else "", *last) if line]
    for ask in view.asks.values():
        lines += _question_lines(ask)
    if head.reason:
        lines.append(f"reason: {head.reason}")
    lines += [line for line in (head.usage, "" if view.done else budget_line(head)) if line]
    return "\n".join(lines)


def steps_in_order(view: RunView) -> list[tuple[StepPart, int]]:
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


def left_out_line(view: RunView, number: int) -> str:
    """Return the line that replaces `number` rows."""
    return (
        f"… {format_count(number, 'row')} left out; all of them: %kestrel show "
        f"{view.head.run or 'RUN'} --html FILE …"
    )


def budget_line(head: RunHead) -> str:
    """Return what is used of the run's limits; nothing for a run without limits."""
    counted = [str(cast("list[Json]", part)[0]) for part in head.budget]
    if head.seconds:
        counted.append(f"{head.worked:.0f} of {head.seconds:g} s")
    return f"limits: {' · '.join(counted)}" if counted else ""


def _question_lines(ask: QuestionRow) -> list[str]:
    if ask.kind == "question":
        return [
            f"waits for an answer: {ask.text}",
            *(f"  {number}. {option}" for number, option in enumerate(ask.options, 1)),
        ]
    args = [
        line for name, text in ask.args for line in (f"  {name}:", indent(head_tail(text, 2_000)[0], "    "))
    ]
    whence = [f"  {place}: {one_line(words, 300)}" for place, words in ask.origins]
    row_text = [f"  {ask.why}"] if ask.why else []
    return [
        f"waits for approval: {ask.tool} ({ask.danger})",
        *row_text,
        *args,
        *(["  sources:"] if whence else []),
        *whence,
    ]


def _step(step: StepPart, depth: int) -> str:
    why = f" ({step.reason})" if step.reason else ""
    facts = ", ".join(word for word in (step.state, step.stage and f"stage {step.stage}") if word)
    return (
        f"  {'  ' * depth}{MARKS.get(step.state, '·')} {step.name} [{facts}]: "
        f"{one_line(step.goal, 200)}{one_line(why, 300)}"
    )


def _row(row: Row, step: str) -> list[str]:
    match row:
        case TextRow(text="", thinking=""):
            return []
        case TextRow():
            thought = [f"{step}thinking: {one_line(row.thinking, 200)}"] if row.thinking else []
            if not row.text:
                return thought
            label = "answer" if row.role == "answer" else f"{step}text"
            changed = [f"  cites {name}: {since}" for name, _, since in row.cites if since]
            return [
                *thought,
                f"{label}:{'' if row.state == 'done' else f' ({row.state})'}",
                indent(head_tail(row.text, 20_000)[0], "  "),
                *changed,
            ]
        case NoticeRow():
            below = (*row.items, *table_lines(row.table))
            return [
                f"{f'{row.level}: ' if row.level else ''}{step}{row.text}",
                *(indent(line, "    ") for line in below),
            ]
        case StageRow():
            return [f"stage {row.stage}: {row.state}{f', attempt {row.attempt}' if row.attempt > 1 else ''}"]
        case CallRow():
            facts = " · ".join(word for word in (row.state, row.took, row.danger, row.note) if word)
            before = f"  {row.inside} › " if row.inside else ""
            lines = [f"{before}{MARKS.get(row.state, '·')} {step}{row.tool} {row.summary} [{facts}]"]
            return lines + ([f"    {row.preview}"] if row.preview else [])
