"""Labels of points and axes in figures: short enough to read, and placed so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Final, cast

from kestrel_lab.core.drawing.matplotlib_figure import literal

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH: Final = 36
"""Characters of a line of a label."""
_BESIDE_POINTS: Final = 24
"""Names that are longer, or more than six of them, stand in a list, and their numbers beside the points."""
_SIZE: Final = 8
_REACHES: Final = (7, 14, 24, 36)
"""Points from a mark to its label; the farther ones have a line to it."""
_SIDES: Final = ((1, 0.6), (1, -0.6), (-1, 0.6), (-1, -0.6), (0, 1), (0, -1))


def folded(text: str) -> str:
    """Return a label in at most three lines; of a longer one the middle is left out, for names often differ at their end."""
    lines = wrap(text, WIDTH, break_on_hyphens=True) or [""]
    return "\n".join(lines if len(lines) <= 3 else [*lines[:2], f"…{text[-WIDTH + 1 :].lstrip()}"])


def numbered(names: Sequence[str]) -> bool:
    """Return whether names are too long or too many to stand beside points, so that their numbers do."""
    return len(names) > 6 or any(len(name) > _BESIDE_POINTS for name in names)


def listed(names: Sequence[str]) -> list[str]:
    """Return the labels of a list of names, with the numbers that stand for them beside points where they do."""
    many = numbered(names)
    return [literal(folded(f"{place}  {name}" if many else name)) for place, name in enumerate(names, 1)]


def label_points(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write each text beside its point; those of points in one place are written together.

    To be called when all else is drawn and the limits are set, for the places are looked for on the finished drawing. Labels take
    no part in its layout: long ones cannot squeeze the axes.
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
        (px - 5 * dot, py - 5 * dot, px + 5 * dot, py + 5 * dot) for px, py in (axes.transData.transform(place) for place in at.values())
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
            hits = outside + sum(box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken)
            if hits < fewest:
                best, fewest, chosen = (reach, side), hits, box
            if not hits:
                break
        reach, side = best
        taken.append(chosen)
        axes.annotate(
            literal(text), at[key], textcoords="offset points", xytext=(side[0] * reach, side[1] * reach), fontsize=_SIZE, va="center",
            ha="right" if side[0] < 0 else "left" if side[0] > 0 else "center",
            arrowprops={"arrowstyle": "-", "color": "0.6", "linewidth": 0.6, "shrinkB": 4} if reach > _REACHES[1] else None,
        ).set_in_layout(False)  # fmt: skip
