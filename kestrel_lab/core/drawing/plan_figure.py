"""A plan as a matplotlib figure: white boxes on no ground of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kestrel_lab.core.drawing.figure import literal, shown_figure
from kestrel_lab.core.drawing.layout import HEADING, HEIGHT, Band, Box, Layout, Line, short
from kestrel_lab.core.drawing.svg import COLOURS, MARKS, QUIET, summary

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PER_INCH = 96
_WIDEST = 500
"""Inches, a little less than what the drawing library can make a picture of."""


def plan_figure(layout: Layout) -> Figure:
    """The layout as a figure that a notebook shows and `savefig` stores, also as SVG or PDF."""
    scale = min(1.0, _WIDEST * _PER_INCH / max(layout.width, layout.height, 1))
    figure = shown_figure()(figsize=(layout.width * scale / _PER_INCH, layout.height * scale / _PER_INCH), facecolor="white")
    figure.set_label(summary(box.node.state for box in layout.boxes))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    for band in layout.bands:
        _band(axes, band, layout.height, scale)
    for line in layout.lines:
        _line(axes, line, scale)
    for box in layout.boxes:
        _box(axes, box, scale)
    return figure


def _band(axes: Axes, band: Band, height: int, scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    shape = FancyBboxPatch((band.x, 2), band.width, height - 4, boxstyle="round,pad=0,rounding_size=6", fc="#f0f0f0", ec="none")
    axes.add_patch(shape)
    title = short(", ".join(band.stages), band.width // 7)
    axes.text(band.x + 8, HEADING - 5, literal(title), fontsize=8 * scale, fontweight="bold", color="#555", va="baseline")


def _line(axes: Axes, line: Line, scale: float) -> None:
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    (x, y), *rest = line.points
    points, codes = [(float(x), float(y))], [Path.MOVETO]
    for place, (to_x, to_y) in enumerate(rest):
        if place % 2 or y == to_y:
            points.append((to_x, to_y))
            codes.append(Path.LINETO)
        else:
            middle = (x + to_x) / 2
            points += [(middle, y), (middle, to_y), (to_x, to_y)]
            codes += [Path.CURVE4] * 3
        x, y = to_x, to_y
    arrow = FancyArrowPatch(path=Path(points, codes), arrowstyle="-|>", mutation_scale=8 * scale, color="#888", linewidth=scale)
    axes.add_patch(arrow)


def _box(axes: Axes, box: Box, scale: float) -> None:
    from matplotlib.patches import FancyBboxPatch

    node, colour = box.node, COLOURS.get(box.node.state, QUIET)
    for shift in (3, 0) if node.folded else (0,):
        shape = FancyBboxPatch(
            (box.x + shift, box.y + shift),
            box.width,
            HEIGHT,
            boxstyle="round,pad=0,rounding_size=7",
            facecolor="white",
            edgecolor=colour,
            linewidth=1.3 * scale,
            linestyle=(0, (4, 2)) if node.exclusive else "-",
        )
        axes.add_patch(shape)
    middle = box.x + box.width / 2
    ink = "#777" if node.state == "skipped" else "#1f2328"
    name_at = box.y + (12 if node.state else HEIGHT / 2)
    axes.text(middle, name_at, literal(box.label), ha="center", va="center", fontsize=8.5 * scale, fontweight="bold", color=ink)
    if node.state:
        state = literal(f"{MARKS.get(node.state, '')} {short(node.state, 16)}")
        axes.text(middle, box.y + 27, state, ha="center", va="center", fontsize=7.5 * scale, color=colour)
