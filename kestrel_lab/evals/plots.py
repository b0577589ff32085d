"""Plots of configurations side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.drawing.figure import literal, shown_figure
from kestrel_lab.core.text import plain
from kestrel_lab.evals.table import labelled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def configs_figure(summaries: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Success rates with their intervals, and success against cost and against working time.

    What no other configuration beats in both is filled and joined by a line. A configuration whose cost is not known is left out of the middle plot, and its title says so.
    """
    figure = shown_figure()(figsize=(12, 2.2 + 0.35 * max(4, len(summaries))), layout="constrained")
    if title:
        figure.suptitle(literal(plain(title)), fontsize=11)
    rates, costs, times = figure.subplots(1, 3)
    _rates(rates, summaries)
    priced = [summary for summary in summaries if summary["cost_known"]]
    left_out = f" ({len(summaries) - len(priced)} without known price)" if len(priced) < len(summaries) else ""
    _scatter(costs, priced, "cost_estimate", "Success and cost", f"cost per trial, USD{left_out}")
    _scatter(times, summaries, "working_time", "Success and time", "working time per trial, s")
    return figure


def _rates(axes: Axes, summaries: Sequence[dict[str, Any]]) -> None:
    for place, summary in enumerate(summaries):
        rate, low, high = summary["success_rate"], summary["low"], summary["high"]
        if math.isnan(rate):
            continue
        reach = [[0.0], [0.0]] if math.isnan(low) else [[max(0.0, rate - low)], [max(0.0, high - rate)]]
        axes.errorbar([rate], [place], xerr=reach, fmt="o", capsize=4, color="C0")
    axes.set_yticks(range(len(summaries)), [literal(labelled(s["config"], s["model_kind"])) for s in summaries])
    axes.set_ylim(len(summaries) - 0.5, -0.5)
    axes.set_xlim(-0.02, 1.02)
    axes.set_title("Success", fontsize=10)
    axes.set_xlabel("success rate, 95 % interval")
    axes.grid(axis="x", alpha=0.3)


def _scatter(axes: Axes, summaries: Sequence[dict[str, Any]], metric: str, title: str, label: str) -> None:
    points = [
        (s[metric], s["success_rate"], labelled(s["config"], s["model_kind"])) for s in summaries if not math.isnan(s["success_rate"])
    ]
    front = sorted((x, y) for x, y, _ in points if not any(a <= x and b >= y and (a, b) != (x, y) for a, b, _ in points))
    for x, y, name in points:
        axes.scatter([x], [y], s=50, edgecolors="C0", facecolors="C0" if (x, y) in front else "none")
        # Labels of points in one place stand below each other.
        line = [other for other in points if other[:2] == (x, y)].index((x, y, name))
        axes.annotate(literal(name), (x, y), textcoords="offset points", xytext=(6, 4 - 10 * line), fontsize=8)
    axes.plot([x for x, _ in front], [y for _, y in front], color="C0", alpha=0.4, zorder=0)
    axes.set_ylim(-0.05, 1.1)
    axes.set_xlim(0, 1.3 * max((x for x, _, _ in points), default=0) or 1)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label)
    axes.set_ylabel("success rate")
    axes.grid(alpha=0.3)
