"""Plots of configurations side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import literal, shown_figure
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.core.sanitize import plain
from kestrel_lab.evals.gate_bounds import SUCCESS, is_share
from kestrel_lab.evals.stats.difference import Difference
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.summaries.metric_values import Observed
from kestrel_lab.evals.summaries.result_table import labelled, with_unit

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


def families_figure(records: Sequence[dict[str, Any]], metric: str, by: str = "family") -> Figure:
    """One metric by family, or whatever else `by` says that is, with intervals; `records` are those of `Reducer.grouped`. Raises `UsageError` for a metric they lack."""
    known = [key for key in (records[0] if records else {}) if f"{key}_low" in records[0]]
    if metric not in known:
        msg = f"there is no metric {metric!r} in these trials; {nearest(metric, known) if known else 'there are no trials'}"
        raise UsageError(msg)
    families = list(dict.fromkeys(str(record["family"]) for record in records))
    configs = {record["config"]: labelled(record["config"], record["model_kind"]) for record in records}
    figure = shown_figure()(figsize=(8, 1.4 + 0.3 * len(families) * max(2, len(configs))), layout="constrained")
    axes = figure.subplots()
    for number, (config, label) in enumerate(configs.items()):
        mine = [record for record in records if record["config"] == config and not math.isnan(record[metric])]
        places = [families.index(str(record["family"])) + (number - (len(configs) - 1) / 2) * 0.7 / len(configs) for record in mine]
        values, lows, highs = ([record[metric + end] for record in mine] for end in ("", "_low", "_high"))
        reach = [
            [0.0 if math.isnan(low) else max(0.0, value - low) for value, low in zip(values, lows, strict=True)],
            [0.0 if math.isnan(high) else max(0.0, high - value) for value, high in zip(values, highs, strict=True)],
        ]
        axes.errorbar(values, places, xerr=reach, fmt="o", capsize=3, label=literal(label))
    axes.set_yticks(range(len(families)), [literal(family or "(no family)") for family in families])
    axes.set_ylim(len(families) - 0.5, -0.5)
    axes.set_title(literal(f"{metric.replace('_', ' ').capitalize()} by {by}"), fontsize=10)
    axes.set_xlabel(literal(f"{with_unit(metric)}, 95 % interval"))
    if is_share(metric):
        axes.set_xlim(-0.02, 1.02)
    axes.grid(axis="x", alpha=0.3)
    axes.legend(fontsize=8)
    return figure


_COLOURS: Final = {"regression": "C3", "improvement": "C2", "stable": "C0", "inconclusive": "0.45"}


def differences_figure(differences: Mapping[tuple[str, str], Difference]) -> Figure:
    """Differences with their intervals, coloured by verdict: success rates in points, other metrics as a share of the base."""
    rates = {key: d for key, d in differences.items() if key[1] == SUCCESS}
    others = {key: d for key, d in differences.items() if key[1] != SUCCESS and d.base}
    figure = shown_figure()(figsize=(12, 1.4 + 0.3 * max(3, len(rates), len(others))), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 3))
    _differences(left, rates, dict.fromkeys(rates, 1.0), "change of the success rate, points")
    _differences(right, others, {key: abs(d.base) for key, d in others.items()}, "change, % of the base")
    marks = [left.plot([], [], "o", color=colour, label=verdict)[0] for verdict, colour in _COLOURS.items()]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)
    return figure


def _differences(axes: Axes, found: Mapping[tuple[str, str], Difference], units: Mapping[tuple[str, str], float], title: str) -> None:
    for place, (key, d) in enumerate(found.items()):
        mean, low, high = (100 * value / units[key] for value in (d.interval.mean, d.interval.low, d.interval.high))
        if math.isnan(mean):
            continue
        reach = [[0.0], [0.0]] if math.isnan(low) else [[max(0.0, mean - low)], [max(0.0, high - mean)]]
        axes.errorbar([mean], [place], xerr=reach, fmt="o", capsize=3, color=_COLOURS[d.verdict])
    several = len({config for config, _ in found}) > 1
    names = [f"{config} {metric}" if several or metric == SUCCESS else metric for config, metric in found]
    axes.set_yticks(range(len(found)), [literal(name) for name in names])
    axes.set_ylim(len(found) - 0.5, -0.5)
    axes.axvline(0, color="0.6", linewidth=1, zorder=0)
    axes.set_xlabel(title)
    axes.grid(axis="x", alpha=0.3)


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


# The plot of a metric over commits.

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
