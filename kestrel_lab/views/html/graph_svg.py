"""The graph of notes and entities as an SVG: notes on the left, entities on the right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.views.html.elements import template_macros

_ROW, _TOP, _LEFT, _RIGHT, _WIDTH = 22.0, 24.0, 470.0, 700.0, 1_000.0
_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#b279a2", "#9d755d", "#d4a017")
"""Seen on light and on dark; what they mean is said in words too."""
_SWEEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphNode:
    """Something that is drawn."""

    id: str
    label: str
    kind: str
    """On the left shown by a colour, which the key explains; on the right written beside it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GraphLink:
    """A line between two of them; one between two on the left has a word."""

    source: str
    target: str
    label: str = ""


def web_svg(left: Sequence[GraphNode], right: Sequence[GraphNode], ties: Sequence[GraphLink]) -> str:
    """The drawing, the same each time for the same things; text only, no scripts and no references."""
    if not left:
        return ""
    ours, theirs = _order_columns(left, right, ties)
    places = {spot.id: (_LEFT, _TOP + _ROW * row) for row, spot in enumerate(ours)}
    lowest = _TOP - _ROW
    # Beside what names it, where there is room.
    for spot in theirs:
        tied = [places[tie.source][1] for tie in ties if tie.target == spot.id and tie.source in places]
        lowest = max(lowest + _ROW, sum(tied) / len(tied) if tied else 0.0)
        places[spot.id] = (_RIGHT, lowest)
    height = max(y for _, y in places.values()) + _ROW + 20
    colours = {
        kind: _COLOURS[at % len(_COLOURS)] for at, kind in enumerate(sorted({spot.kind for spot in left}))
    }
    lines = [
        (tie.label, *_curve(places[tie.source], places[tie.target]))
        for tie in ties
        if {tie.source, tie.target} <= places.keys()
    ]
    drawn = {
        "notes": [(spot, *places[spot.id]) for spot in ours],
        "things": [(spot, *places[spot.id]) for spot in theirs],
    }
    return str(
        template_macros("graph.html", one_line=one_line).graph(_WIDTH, height, colours, lines, **drawn)
    )


def _order_columns(
    left: Sequence[GraphNode], right: Sequence[GraphNode], ties: Sequence[GraphLink]
) -> tuple[list[GraphNode], list[GraphNode]]:
    """Order both columns for short lines: by the mean position of their neighbours; loose ones last."""
    ours, theirs = list(left), list(right)
    for _ in range(_SWEEPS):
        for column, other in ((theirs, ours), (ours, theirs)):
            rows = {spot.id: row for row, spot in enumerate(other)} | {
                spot.id: row for row, spot in enumerate(column)
            }
            near = {spot.id: [row for tie in ties for row in _tied_row(spot, tie, rows)] for spot in column}
            # Used at once.
            column.sort(
                key=lambda spot: (
                    sum(near[spot.id]) / len(near[spot.id]) if near[spot.id] else len(rows),
                    spot.id,
                )
            )
    return ours, theirs


def _tied_row(spot: GraphNode, tie: GraphLink, rows: Mapping[str, int]) -> list[int]:
    other = tie.target if tie.source == spot.id else tie.source if tie.target == spot.id else ""
    return [rows[other]] if other in rows else []


def _curve(start: tuple[float, float], end: tuple[float, float]) -> tuple[str, float, float | None]:
    """Return the path of a line and the place of its label; lines between two notes bend to the right."""
    (x, y), (u, v) = start, end
    if x != u:
        middle = (x + u) / 2
        return f"M{x:.1f} {y:.1f}C{middle:.1f} {y:.1f} {middle:.1f} {v:.1f} {u:.1f} {v:.1f}", 0.0, None
    out = x + 18 + min(90.0, abs(v - y) / 3)
    path = f"M{x + 8:.1f} {y:.1f}C{out:.1f} {y:.1f} {out:.1f} {v:.1f} {u + 8:.1f} {v:.1f}"
    return path, x + 14 + (out - x) * 0.55, (y + v) / 2 + 4
