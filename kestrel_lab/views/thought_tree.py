"""A search over candidates as a table and as a drawing of its tree."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.drawing.matplotlib_figure import INK, escape_mathtext, shown_figure
from kestrel_lab.core.events.union import BranchScored, Event
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.views.dataframes import unit_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_SOLUTION, _OTHER, _SHOWN_NAMES = "#2e7d32", "#9e9e9e", 40


def thoughts_of(events: Iterable[Event]) -> pd.DataFrame:
    """One row per candidate, in the order they were scored: `candidate`, `parent`, `depth` (from 1), `score`,
    `text`, `chosen`.

    `chosen` are those that make up the solution, from the first thought to the one that solves the goal.
    """
    # A run that was interrupted while it scored a candidate records the score again; the last one counts.
    scored = {event.candidate: event for event in events if isinstance(event, BranchScored)}
    depth: dict[str, int] = {}
    for name, event in scored.items():
        depth[name] = depth.get(event.parent, 0) + 1
    chosen: set[str] = set()
    solutions = [event for event in scored.values() if event.done]
    at = max(solutions, key=lambda event: event.score).candidate if solutions else ""
    while at:
        chosen.add(at)
        at = scored[at].parent
    rows = [
        (name, event.parent, depth[name], event.score, event.text, name in chosen)
        for name, event in scored.items()
    ]
    return unit_frame(rows, columns=["candidate", "parent", "depth", "score", "text", "chosen"])


def plot_thoughts(frame: pd.DataFrame) -> Figure:
    """Draw the tree of `thoughts_of`: deeper candidates further right, the solution in green, the score as
    size and number.

    Texts are shown for up to 40 candidates.
    """
    rows: dict[str, dict[Any, Any]] = {str(row["candidate"]): row for row in frame.to_dict("records")}
    children: dict[str, list[str]] = {}
    for name, row in rows.items():
        children.setdefault(row["parent"], []).append(name)
    height, depth = _heights(children), max((row["depth"] for row in rows.values()), default=1)
    figure = shown_figure()(figsize=(2.5 + 2.2 * depth, max(1.8, 0.32 * len(rows))), layout="constrained")
    axes = figure.subplots()
    for name, row in rows.items():
        colour, x = _SOLUTION if row["chosen"] else _OTHER, row["depth"]
        axes.plot(
            (x - 1, x),
            (height[row["parent"]], height[name]),
            color=colour,
            linewidth=2 if row["chosen"] else 1,
            zorder=1,
        )
        axes.scatter(x, height[name], s=20 + 80 * row["score"], color=colour, zorder=2)
        if len(rows) <= _SHOWN_NAMES:
            text = f"{row['score']:.2f} {one_line(sanitize_text(row['text']), 24)}"
            # Lines lead on from it, so its label is above them.
            inner = name in children
            side: dict[str, Any] = (
                {"xytext": (0, 8), "ha": "center"}
                if inner
                else {"xytext": (8, 0), "ha": "left", "va": "center"}
            )
            axes.annotate(
                escape_mathtext(text), (x, height[name]), textcoords="offset points", fontsize=8, **side
            )
    axes.scatter(0, height[""], s=30, color=INK, zorder=2)
    axes.set_title(
        f"Search over {format_count(len(rows), 'candidate')}, with scores; green: the solution",
        fontsize=10,
        pad=16,
    )
    axes.set_xlabel("thoughts one after the other")
    axes.set_yticks([])
    axes.margins(y=0.15)
    axes.set_xticks(range(depth + 1))
    axes.set_xlim(-0.2, depth + 0.9)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _heights(children: dict[str, list[str]]) -> dict[str, float]:
    """Return the height of each candidate: leaves in a column, others in the middle of their children."""
    found: dict[str, float] = {}
    line = 0
    todo: list[tuple[str, bool]] = [("", False)]
    while todo:
        name, after = todo.pop()
        below = children.get(name, [])
        if after:
            found[name] = sum(found[child] for child in below) / len(below)
        elif below:
            todo.append((name, True))
            todo += [(child, False) for child in reversed(below)]
        else:
            found[name], line = -float(line), line + 1
    return found
