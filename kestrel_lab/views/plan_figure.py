"""A plan as a drawing: steps from left to right, each after those it needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kestrel_lab.core.plan import Plan
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.views.figure import literal, shown_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_COLOURS = {"ok": "#2e7d32", "failed": "#c62828", "running": "#1565c0"}
_PENDING = "#757575"


def plot_plan(plan: Plan, states: Mapping[str, str] | None = None) -> Figure:
    """The plan as a figure that a notebook shows; save it with `savefig`, also as SVG.

    `states` says how far each step is, `pending`, `running`, `ok` or `failed`; it is written under the step
    and colours its frame. Exclusive steps have a dashed frame.
    """
    places = _places(plan)
    columns = 1 + max(x for x, _ in places.values())
    height = 1 + max(y for _, y in places.values())
    figure = shown_figure()(figsize=(max(3.0, 2.2 * columns), max(1.5, 0.9 * height)), layout="constrained")
    axes = figure.subplots()
    for name, needs in plan.needs().items():
        for need in needs:
            arrow = {"arrowstyle": "-|>", "color": _PENDING, "shrinkA": 32, "shrinkB": 32}
            axes.annotate("", xy=places[name], xytext=places[need], arrowprops=arrow)
    for step in plan.steps:
        state = (states or {}).get(step.id, "")
        frame = {
            "boxstyle": "round,pad=0.4",
            "facecolor": "white",
            "edgecolor": _COLOURS.get(state, _PENDING),
            "linestyle": "--" if step.exclusive else "-",
        }
        text = "\n".join(part for part in (one_line(plain(step.id), 24), state) if part)
        axes.text(*places[step.id], literal(text), ha="center", va="center", fontsize=9, bbox=frame)
    axes.set_xlim(-0.6, columns - 0.4)
    axes.set_ylim(height - 0.4, -0.6)
    axes.axis("off")
    return figure


def _places(plan: Plan) -> dict[str, tuple[float, float]]:
    """Column and line of each step: as far right as its longest chain of needs, columns centred."""
    needs = plan.needs()
    column: dict[str, int] = {}
    for step in plan.order():
        column[step.id] = 1 + max((column[need] for need in needs[step.id]), default=-1)
    members: dict[int, list[str]] = {}
    for step in plan.steps:
        members.setdefault(column[step.id], []).append(step.id)
    tallest = max(map(len, members.values()))
    return {name: (float(x), line + (tallest - len(names)) / 2) for x, names in members.items() for line, name in enumerate(names)}
