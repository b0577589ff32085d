"""Figures that a notebook shows and a page can hold, light or dark."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from html import escape
from io import BytesIO
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import quote

from kestrel_lab.core.drawing.layout import HEADING, HEIGHT, Band, Box, Layout, Line, shorten_to_width
from kestrel_lab.core.drawing.svg import COLOURS, MARKS, QUIET, state_summary
from kestrel_lab.core.errors import MissingPackage, UsageError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#7b7b7b"
"""Readable on white (4.2 : 1) and on dark notebooks (4.4 : 1); a picture cannot know its background."""


@cache
def shown_figure() -> type[Figure]:
    """The figure class that a notebook shows as a value; pyplot's keeps figures and picks a screen."""
    # matplotlib is slow to load, so it is loaded only when something is drawn.
    from matplotlib.figure import Figure

    class ShownFigure(Figure):
        def _repr_png_(self) -> bytes:
            return _png(self)

        def __repr__(self) -> str:
            titles = [
                str(self.get_label()),
                self.get_suptitle(),
                *(axes.get_title() or axes.get_xlabel() for axes in self.axes),
            ]
            said = "; ".join(filter(None, titles)).replace(r"\$", "$")
            return f"Figure: {said or 'a drawing'}"

    return ShownFigure


def figure_uri(draw: Callable[..., Figure], *arguments: Any) -> str:
    """The figure that `draw` returns as a `data:` address for an `<img>`.

    Where the library that draws is not installed, it is a picture of the sentence that says what to install:
    a report in CI has its tables all the same.
    """
    try:
        figure = draw(*arguments)
    except MissingPackage as missing:
        text = f"no figure: {escape(str(missing))}"
        svg = (
            '<svg xmlns="http://www.w3.org/2000/svg" width="720" height="36"><text x="8" y="23" '
            f'font-family="sans-serif" font-size="14" fill="{INK}">{text}</text></svg>'
        )
        return f"data:image/svg+xml,{quote(svg)}"
    return f"data:image/png;base64,{base64.b64encode(_png(figure)).decode()}"


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write the figure in the format that the file's ending names; returns the path.

    Raises `UsageError` for an ending without one.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    known = figure.canvas.get_supported_filetypes()
    if target.suffix[1:].lower() not in known:
        msg = (
            f"{target} does not end in the name of a picture format; write one of "
            f"{', '.join('.' + kind for kind in sorted(known))}"
        )
        raise UsageError(msg)
    figure.savefig(target, dpi=150)
    return target


def escape_mathtext(text: str) -> str:
    """`text` without a meaning for matplotlib, which reads formulas between dollar signs."""
    return text.replace("$", r"\$")


def _png(figure: Figure) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    # Ticks and their labels are made by drawing.
    canvas.draw()  # type: ignore[no-untyped-call]
    content = BytesIO()
    with _for_any_ground(figure):
        figure.savefig(content, format="png", dpi=110, transparent=True)
    return content.getvalue()


@contextmanager
def _for_any_ground(figure: Figure) -> Iterator[None]:
    """Draw black as `INK`, and legends without a background, while the block runs; black on paper."""
    from matplotlib.colors import to_hex
    from matplotlib.legend import Legend
    from matplotlib.lines import Line2D
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    kinds = {Line2D: ("color", "markeredgecolor"), Spine: ("edgecolor",), Text: ("color",)}
    changed: list[tuple[Callable[[Any], object], Any]] = []
    for legend in figure.findobj(Legend):
        frame = legend.get_frame()
        changed.append((frame.set_alpha, frame.get_alpha()))
        frame.set_alpha(0.0)  # a sheet of white below grey words
    for kind, colours in kinds.items():
        for artist in figure.findobj(kind):
            for colour in colours:
                before = getattr(artist, f"get_{colour}")()
                if to_hex(before) == "#000000":
                    changed.append((getattr(artist, f"set_{colour}"), before))
                    changed[-1][0](INK)
    try:
        yield
    finally:
        for change, before in changed:
            change(before)


# A plan as a matplotlib figure: white boxes on no ground of their own.

_PER_INCH = 96
_WIDEST = 500
"""Inches, a little less than what the drawing library can make a picture of."""


def plan_figure(layout: Layout) -> Figure:
    """The layout as a figure that a notebook shows and `savefig` stores, also as SVG or PDF."""
    scale = min(1.0, _WIDEST * _PER_INCH / max(layout.width, layout.height, 1))
    figure = shown_figure()(
        figsize=(layout.width * scale / _PER_INCH, layout.height * scale / _PER_INCH), facecolor="white"
    )
    figure.set_label(state_summary(box.node.state for box in layout.boxes))
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

    shape = FancyBboxPatch(
        (band.x, 2), band.width, height - 4, boxstyle="round,pad=0,rounding_size=6", fc="#f0f0f0", ec="none"
    )
    axes.add_patch(shape)
    title = shorten_to_width(", ".join(band.stages), band.width // 7)
    axes.text(
        band.x + 8,
        HEADING - 5,
        escape_mathtext(title),
        fontsize=8 * scale,
        fontweight="bold",
        color="#555",
        va="baseline",
    )


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
    arrow = FancyArrowPatch(
        path=Path(points, codes), arrowstyle="-|>", mutation_scale=8 * scale, color="#888", linewidth=scale
    )
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
    axes.text(
        middle,
        name_at,
        escape_mathtext(box.label),
        ha="center",
        va="center",
        fontsize=8.5 * scale,
        fontweight="bold",
        color=ink,
    )
    if node.state:
        state = escape_mathtext(f"{MARKS.get(node.state, '')} {shorten_to_width(node.state, 16)}")
        axes.text(middle, box.y + 27, state, ha="center", va="center", fontsize=7.5 * scale, color=colour)


WIDTH: Final = 36
"""Characters of a line of a label."""
_BESIDE_POINTS: Final = 24
"""Names that are longer, or more than six of them, stand in a list, and their numbers beside the points."""
_SIZE: Final = 8
_REACHES: Final = (7, 14, 24, 36)
"""Points from a mark to its label; the farther ones have a line to it."""
_SIDES: Final = ((1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6), (0, 1), (0, -1))


def wrap_label(text: str) -> str:
    """Return a label in at most three lines; cuts the middle, since names often differ at their end."""
    lines = wrap(text, WIDTH, break_on_hyphens=True) or [""]
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"…{text[-WIDTH + 1 :].lstrip()}"])


def needs_numbers(names: Sequence[str]) -> bool:
    """Return whether names are too long or too many to stand beside points, so that their numbers do."""
    return len(names) > 6 or any(len(name) > _BESIDE_POINTS for name in names)


def numbered_labels(names: Sequence[str]) -> list[str]:
    """Return labels for a list of names; numbered if the points show numbers instead of names."""
    many = needs_numbers(names)
    return [
        escape_mathtext(wrap_label(f"{place}  {name}" if many else name))
        for place, name in enumerate(names, 1)
    ]


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write each text beside its point; those of points in one place are written together.

    To be called when all else is drawn and the limits are set, for the places are looked for on the finished
    drawing. Labels take no part in its layout: long ones cannot squeeze the axes.
    """
    figure = cast("Figure", axes.figure)
    figure.draw_without_rendering()
    together: dict[tuple[int, int], list[str]] = {}
    at: dict[tuple[int, int], tuple[float, float]] = {}
    for x, y, text in points:
        px, py = axes.transData.transform((x, y))
        key = (round(px / 4), round(py / 4))
        together.setdefault(key, []).append(text)
        at.setdefault(key, (x, y))
    dot = figure.dpi / 72
    inside = axes.bbox
    taken = [
        (px - 5 * dot, py - 5 * dot, px + 5 * dot, py + 5 * dot)
        for px, py in (axes.transData.transform(place) for place in at.values())
    ]
    for key, texts in together.items():
        text = ", ".join(texts)
        px, py = axes.transData.transform(at[key])
        wide, high = 0.62 * _SIZE * len(text) * dot, 1.3 * _SIZE * dot
        best, fewest = (_REACHES[0], _SIDES[0]), len(taken) + 2
        for reach, side in ((reach, side) for reach in _REACHES for side in _SIDES):
            x, y = px + side[0] * reach * dot, py + side[1] * reach * dot
            left = x - (wide if side[0] < 0 else wide / 2 if side[0] == 0 else 0.0)
            box = (left, y - high / 2, left + wide, y + high / 2)
            outside = box[0] < inside.x0 or box[2] > inside.x1 or box[1] < inside.y0 or box[3] > inside.y1
            hits = outside + sum(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken
            )
            if hits < fewest:
                best, fewest, chosen = (reach, side), hits, box
            if not hits:
                break
        reach, side = best
        taken.append(chosen)
        axes.annotate(
            escape_mathtext(text),
            at[key],
            textcoords="offset points",
            xytext=(side[0] * reach, side[1] * reach),
            fontsize=_SIZE,
            va="center",
            ha="right" if side[0] < 0 else "left" if side[0] > 0 else "center",
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkB": 4}
            if reach > _REACHES[1]
            else None,
        ).set_in_layout(False)
