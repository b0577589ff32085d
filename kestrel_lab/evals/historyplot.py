"""The plot of a metric over commits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel_lab.core.drawing.figure import literal, shown_figure
from kestrel_lab.evals.observed import Observed
from kestrel_lab.evals.stats import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LABELS = 40
"""Commits that are named below the plot, evenly chosen; those at which something steps always are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A step: from the commit `at` on, the mean is another."""

    at: int
    before: float
    after: float
    worse: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One configuration's values."""

    label: str
    points: Sequence[tuple[int, Interval]]
    marks: Sequence[Mark]


def history_figure(title: str, metric: Observed, commits: Sequence[str], lines: Sequence[Line]) -> Figure:
    """Points with their 95 % intervals for each commit, oldest left; a step is a dashed line between two means."""
    width = min(16.0, max(7.0, 3.5 + 0.32 * len(commits)))
    figure = shown_figure()(figsize=(width, 5.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for number, line in enumerate(lines):
        _draw(axes, line, f"C{number % 10}", (number - (len(lines) - 1) / 2) * 0.12, len(commits), named=len(lines) > 1)
    axes.set_title(literal(title))
    axes.set_ylabel(f"{metric.title}, 95 % interval")
    axes.set_xlabel("commit, oldest first")
    _name_commits(axes, commits, {mark.at for line in lines for mark in line.marks})
    axes.set_xlim(-0.6, len(commits) - 0.4)
    if metric.share:
        axes.set_ylim(-0.03, 1.03)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    else:
        axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    if len(lines) > 1 or any(line.marks for line in lines):
        axes.legend(fontsize=8)
    return figure


def _draw(axes: Axes, line: Line, colour: str, aside: float, commits: int, *, named: bool) -> None:
    known = [(place, interval) for place, interval in line.points if not math.isnan(interval.mean)]
    places = [place + aside for place, _ in known]
    means = [interval.mean for _, interval in known]
    reach = [
        [0.0 if math.isnan(i.low) else max(0.0, i.mean - i.low) for _, i in known],
        [0.0 if math.isnan(i.high) else max(0.0, i.high - i.mean) for _, i in known],
    ]
    axes.errorbar(places, means, yerr=reach, fmt="o", markersize=4, capsize=2, elinewidth=1, color=colour, label=literal(line.label))
    ends = [*(mark.at for mark in line.marks[1:]), commits]
    starts = [0, *(mark.at for mark in line.marks)]
    for mark, start, end in zip(line.marks, starts, ends, strict=False):
        edge = mark.at - 0.5
        axes.hlines(mark.before, start - 0.5, edge, color=colour, alpha=0.6, linewidth=2)
        axes.hlines(mark.after, edge, end - 0.5, color=colour, alpha=0.6, linewidth=2)
        word = ("step, worse" if mark.worse else "step, better") + (f": {literal(line.label)}" if named else "")
        axes.axvline(edge, color="C3" if mark.worse else "C2", linestyle="--", linewidth=1.2, label=word)


def _name_commits(axes: Axes, commits: Sequence[str], always: set[int]) -> None:
    every = max(1, math.ceil(len(commits) / _LABELS))
    last = len(commits) - 1
    named = [place for place in range(len(commits)) if (last - place) % every == 0 or place in always]
    axes.set_xticks(named, [literal(commits[place]) for place in named], rotation=60, ha="right", rotation_mode="anchor", fontsize=7)
