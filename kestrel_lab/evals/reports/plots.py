"""Plots of configurations side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import (
    INK,
    escape_mathtext,
    label_points,
    needs_numbers,
    numbered_labels,
    shown_figure,
    wrap_label,
)
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.sanitize import one_line, sanitize_text
from kestrel_lab.evals.gate_bounds import is_share
from kestrel_lab.evals.git import Commit
from kestrel_lab.evals.stats.difference import Difference, Verdict
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stats.sequential import Look
from kestrel_lab.evals.summaries.metric_values import ObservedMetric
from kestrel_lab.evals.summaries.result_table import label_kind, with_unit
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from kestrel_lab.evals.reports.gate_decisions import Decision


def configs_figure(summaries: Sequence[dict[str, Any]], title: str = "") -> Figure:
    """Success rates with their intervals, and success against cost and against working time, as far as these
    are known.

    What no other configuration beats in both is filled and joined by a line. Configurations whose cost or
    time is not known are left out of that plot, which says how many; a plot that would be empty, or show that
    nothing was to be paid, is left out. Where names are long or many, their numbers are beside the points.
    """
    names = [label_kind(s["config"], s["model_kind"]) for s in summaries]
    priced = [s for s in summaries if s["cost_known"] and not math.isnan(s["cost_estimate"])]
    timed = [s for s in summaries if not math.isnan(s["working_time"])]
    measured = [
        (priced, "cost_estimate", "cost", "cost per trial, USD", "price"),
        (timed, "working_time", "time", "working time per trial, s", "time"),
    ]
    shown = [
        one for one in measured if any(not math.isnan(s["success_rate"]) and s[one[1]] > 0 for s in one[0])
    ]
    labels = numbered_labels(names)
    lines = sum(1 + label.count("\n") for label in labels)
    figure = shown_figure()(
        figsize=(
            4.4 + 4 * len(shown) + (1.2 if needs_numbers(names) else 0),
            2.2 + 0.2 * max(7, lines + len(labels)),
        ),
        layout="constrained",
    )
    missing = [
        f"no {'' if one[0] else 'known '}{one[4]}: {one[3].partition(',')[0]} is left out"
        for one in measured
        if one not in shown
    ]
    if title or missing:
        figure.suptitle(
            escape_mathtext(sanitize_text("; ".join(filter(None, (title, *missing))))), fontsize=11
        )
    rates, *others = figure.subplots(1, 1 + len(shown), squeeze=False)[0]
    _rates(rates, summaries, labels)
    for axes, (known, metric, what, label, word) in zip(others, shown, strict=True):
        left_out = len(summaries) - len(known)
        _scatter(
            axes,
            known,
            metric,
            f"Success and {what}",
            label + (f" ({left_out} without known {word})" if left_out else ""),
        )
    for axes, (known, metric, *_) in zip(others, shown, strict=True):
        places = {
            s["config"]: str(number) if needs_numbers(names) else names[number - 1]
            for number, s in enumerate(summaries, 1)
        }
        label_points(
            axes,
            [
                (s[metric], s["success_rate"], places[s["config"]])
                for s in known
                if not math.isnan(s["success_rate"])
            ],
        )
    return figure


def families_figure(records: Sequence[dict[str, Any]], metric: str, by: str = "family") -> Figure:
    """One metric by family, or whatever else `by` says that is, with intervals; `records` are those of
    `Reducer.grouped`.

    Configurations of which the metric is not known are left out, and the axis says how many. Raises
    `UsageError` for a metric that the records lack, and for one that is not known of any.
    """
    known = [key for key in (records[0] if records else {}) if f"{key}_low" in records[0]]
    if metric not in known:
        raise UsageError(
            f"there is no metric {metric!r} in these trials; "
            f"{did_you_mean(metric, known) if known else 'there are no trials'}"
        )
    families = list(dict.fromkeys(str(record["family"]) for record in records))
    every = {record["config"]: label_kind(record["config"], record["model_kind"]) for record in records}
    configs = {
        name: label
        for name, label in every.items()
        if any(r["config"] == name and not math.isnan(r[metric]) for r in records)
    }
    if not configs:
        raise UsageError(f"{metric} is unknown in all of these trials: there is nothing to draw")
    named = all(str(record["family"]) == record["config"] for record in records)
    apart = (
        1 if named else len(configs)
    )  # a row with one configuration needs no legend, and its point is in the middle
    figure = shown_figure()(
        figsize=(8, 1.6 + len(families) * max(0.45, 0.2 * apart) + (0 if named else 0.3 * len(configs))),
        layout="constrained",
    )
    axes = figure.subplots()
    for number, (config, label) in enumerate(configs.items()):
        mine = [record for record in records if record["config"] == config and not math.isnan(record[metric])]
        aside = 0.0 if named else (number - (len(configs) - 1) / 2) * 0.8 / len(configs)
        places = [families.index(str(record["family"])) + aside for record in mine]
        values = [Interval(mean=r[metric], low=r[f"{metric}_low"], high=r[f"{metric}_high"]) for r in mine]
        # There are ten colours.
        mark = "osD^v"[number // 10 % 5]
        _bars(
            axes,
            places,
            values,
            fmt=mark,
            markersize=5,
            capsize=3,
            color=f"C{number % 10}",
            label=escape_mathtext(sanitize_text(label)),
        )
    titles = [every[family] if named else family or "(no family)" for family in families]
    _rows(axes, [escape_mathtext(wrap_label(title)) for title in titles], fontsize=10)
    for border in range(1, len(families)):
        axes.axhline(border - 0.5, color=INK, alpha=0.4, linewidth=0.8, zorder=0)
    axes.set_title(escape_mathtext(f"{metric.replace('_', ' ').capitalize()} by {by}"), fontsize=10)
    left_out = (
        f" ({format_count(len(every) - len(configs), 'configuration')} of unknown "
        f"{metric.replace('_', ' ')} left out)"
        if len(configs) < len(every)
        else ""
    )
    axes.set_xlabel(escape_mathtext(f"{with_unit(metric)}, 95 % interval{left_out}"))
    if is_share(metric):
        axes.set_xlim(-0.02, 1.02)
    if not named:
        figure.legend(
            loc="outside lower center",
            ncols=1 if needs_numbers(list(configs.values())) else 3,
            fontsize=8,
            frameon=False,
        )
    return figure


def _bars(
    axes: Axes, places: Sequence[float], values: Sequence[Interval], *, upright: bool = False, **style: Any
) -> None:
    """Draw known means at these places, with error bars where the ends of their intervals are known."""
    known = [
        (place, value) for place, value in zip(places, values, strict=True) if not math.isnan(value.mean)
    ]
    at, means = [place for place, _ in known], [value.mean for _, value in known]
    # Matplotlib refuses error bars of negative length, which rounding can make.
    below = [0.0 if math.isnan(value.low) else max(0.0, value.mean - value.low) for _, value in known]
    above = [0.0 if math.isnan(value.high) else max(0.0, value.high - value.mean) for _, value in known]
    if upright:
        axes.errorbar(at, means, yerr=[below, above], **style)
    else:
        axes.errorbar(means, at, xerr=[below, above], **style)


def _rows(axes: Axes, labels: Sequence[str], fontsize: int = 9) -> None:
    """Name the rows of a plot, the first on top."""
    axes.set_yticks(range(len(labels)), labels, fontsize=fontsize)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.grid(axis="x", alpha=0.3)


def _name_colours(figure: Figure, axes: Axes, words: Mapping[Verdict, str]) -> None:
    marks = [
        axes.plot([], [], "o", color=_COLOURS[verdict], label=word)[0] for verdict, word in words.items()
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=len(marks), fontsize=8, frameon=False)


_COLOURS: Final[dict[Verdict, str]] = {
    "regression": "C3",
    "improvement": "C2",
    "stable": "C0",
    "inconclusive": "0.45",
}
_GATE_COLOURS: Final = defaultdict(lambda: "0.45", {"ok": "C2", "regression": "C3"})
EFFECT_WORDS: Final[dict[Verdict, str]] = {
    "improvement": "helps",
    "regression": "harms",
    "stable": "no difference",
    "inconclusive": "no difference shown",
}
"""What a verdict says of a part of a file: `no difference` where the whole interval is within the margin."""


def effects_figure(
    title: str, names: Sequence[str], found: Sequence[Difference], others: Mapping[str, Sequence[Interval]]
) -> Figure:
    """Effects of parts with their intervals, one below the other: on the success rate, coloured by verdict,
    and on `others` by their labels.
    """
    known = {
        label: effects
        for label, effects in others.items()
        if not all(math.isnan(effect.mean) for effect in effects)
    }
    labels = [escape_mathtext(wrap_label(sanitize_text(name))) for name in names]
    lines = sum(1 + label.count("\n") for label in labels)
    figure = shown_figure()(
        figsize=(7.5 + 3 * len(known), 1.9 + 0.19 * max(6, lines + len(labels))), layout="constrained"
    )
    rates, *rest = figure.subplots(
        1, 1 + len(known), sharey=True, squeeze=False, width_ratios=[2] + [1] * len(known)
    )[0]
    for place, one in enumerate(found):
        _bars(rates, [place], [one.interval.times(100)], fmt="o", capsize=3, color=_COLOURS[one.verdict])
    for axes, (label, effects) in zip(rest, known.items(), strict=True):
        _bars(axes, range(len(effects)), effects, fmt="o", capsize=3, color="0.45")
        axes.set_xlabel(label)
    rates.set_xlabel("effect on the success rate, points, 95 % interval")
    _rows(rates, labels)
    for axes in (rates, *rest):
        axes.axvline(0, color="0.6", linewidth=1, zorder=0)
        axes.grid(axis="x", alpha=0.3)
        axes.locator_params(axis="x", nbins=5)
    _name_colours(figure, rates, EFFECT_WORDS)
    figure.suptitle(escape_mathtext(sanitize_text(title)), fontsize=11)
    return figure


def sequence_figure(looks: Sequence[Look], *, matters: float, planned: int) -> Figure:
    """The difference after each look with the interval that holds at all looks together, over the pairs of
    trials so far; what is smaller than `matters` is shaded.
    """
    figure = shown_figure()(figsize=(7.5, 3.4), layout="constrained")
    axes = figure.subplots()
    axes.axhspan(-100 * matters, 100 * matters, color="0.9", zorder=0, label="smaller than matters")
    axes.axhline(0, color="0.6", linewidth=1, zorder=1)
    shown = [one for one in looks if not math.isnan(one.interval.mean)]
    for one in shown:
        mean, low, high = (
            100 * one_of for one_of in (one.interval.mean, one.interval.low, one.interval.high)
        )
        colour = _COLOURS[one.verdict]
        axes.errorbar(
            [one.pairs], [mean], yerr=[[mean - low], [high - mean]], fmt="o", capsize=4, color=colour
        )
    axes.plot([one.pairs for one in shown], [100 * one.interval.mean for one in shown], color="0.5", zorder=1)
    open_ended = any(math.isnan(one.fraction) for one in looks)
    axes.set_xlim(0, 1.03 * (max(one.pairs for one in looks) if open_ended else planned))
    axes.set_xlabel("pairs of trials")
    axes.set_ylabel("head − base, points")
    axes.set_title(
        f"verdict after {format_count(shown[-1].pairs, 'pair')}: {shown[-1].verdict}"
        if shown
        else "no look yet"
    )
    axes.grid(alpha=0.3)
    axes.legend(loc="best", fontsize=8)
    return figure


def gates_figure(looks: Sequence[tuple[int, Sequence[Decision]]]) -> Figure:
    """Draw the value of each gate after each look, with interval and bound, over the trials so far."""
    last = looks[-1][1]
    figure = shown_figure()(figsize=(7.5, 1.2 + 2.1 * len(last)), layout="constrained")
    for place, axes in enumerate(figure.subplots(len(last), 1, squeeze=False, sharex=True)[:, 0]):
        decisions = [(trials, decided[place]) for trials, decided in looks if place < len(decided)]
        for trials, one in decisions:
            known = one.interval.times(100 if is_share(one.metric) else 1)
            _bars(axes, [trials], [known], upright=True, fmt="o", capsize=4, color=_GATE_COLOURS[one.verdict])
        one = last[place]
        scale = 100 if is_share(one.metric) else 1
        axes.axhline(scale * one.bound, color="C1", linestyle="--", linewidth=1.2, label="the gate's bound")
        axes.set_title(escape_mathtext(f"{one.gate} [{one.config}]: {one.verdict}"), fontsize=10)
        axes.set_ylabel("%" if is_share(one.metric) else escape_mathtext(with_unit(one.metric)))
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize=8)
    axes.set_xlim(left=0)
    axes.set_xlabel("trials of each configuration")
    return figure


def _rates(axes: Axes, summaries: Sequence[dict[str, Any]], labels: Sequence[str]) -> None:
    rates = [Interval(mean=s["success_rate"], low=s["low"], high=s["high"]) for s in summaries]
    _bars(axes, range(len(rates)), rates, fmt="o", capsize=4, color="C0")
    _rows(axes, labels)
    axes.set_xlim(-0.02, 1.02)
    axes.set_title("Success", fontsize=10)
    axes.set_xlabel("success rate, 95 % interval")


def _scatter(axes: Axes, summaries: Sequence[dict[str, Any]], metric: str, title: str, label: str) -> None:
    points = [(s[metric], s["success_rate"]) for s in summaries if not math.isnan(s["success_rate"])]
    front = sorted(
        {(x, y) for x, y in points if not any(a <= x and b >= y and (a, b) != (x, y) for a, b in points)}
    )
    for x, y in points:
        axes.scatter([x], [y], s=50, edgecolors="C0", facecolors="C0" if (x, y) in front else "none")
    axes.plot([x for x, _ in front], [y for _, y in front], color="C0", alpha=0.4, zorder=0)
    axes.set_ylim(-0.05, 1.1)
    # An axis from 0 to 0 cannot be drawn.
    axes.set_xlim(0, 1.15 * max((x for x, _ in points), default=0) or 1)
    axes.locator_params(axis="x", nbins=5)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(label)
    axes.set_ylabel("success rate")
    axes.grid(alpha=0.3)


# The plot of a metric over commits.


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


def history_figure(
    title: str, metric: ObservedMetric, commits: Sequence[Commit], lines: Sequence[Line]
) -> Figure:
    """Points with their 95 % intervals for each commit, oldest left; a step is a dashed line between two
    means.
    """
    width = min(16.0, max(7.0, 3.5 + 0.32 * len(commits)))
    figure = shown_figure()(figsize=(width, 5.2), layout="constrained", facecolor="white")
    axes = figure.subplots()
    for number, line in enumerate(lines):
        _draw_history(
            axes,
            line,
            f"C{number % 10}",
            (number - (len(lines) - 1) / 2) * 0.12,
            len(commits),
            named=len(lines) > 1,
        )
    axes.set_title(escape_mathtext(title))
    axes.set_ylabel(f"{metric.title}, 95 % interval")
    axes.set_xlabel("commit, oldest first")
    # More names than these lie over each other; commits at which something steps are always named.
    every, last, stepped = (
        max(1, math.ceil(len(commits) / 40)),
        len(commits) - 1,
        {mark.at for line in lines for mark in line.marks},
    )
    named = [place for place in range(len(commits)) if (last - place) % every == 0 or place in stepped]
    axes.set_xticks(
        named,
        [_commit_label(commits[place]) for place in named],
        rotation=60,
        ha="right",
        rotation_mode="anchor",
        fontsize=7,
    )
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


def _commit_label(commit: Commit) -> str:
    return escape_mathtext(f"{commit.short[:7]}  {one_line(commit.subject, 28)}")


def _draw_history(axes: Axes, line: Line, colour: str, aside: float, commits: int, *, named: bool) -> None:
    places, values = [place + aside for place, _ in line.points], [value for _, value in line.points]
    _bars(
        axes,
        places,
        values,
        upright=True,
        fmt="o",
        markersize=4,
        capsize=2,
        elinewidth=1,
        color=colour,
        label=escape_mathtext(line.label),
    )
    ends = [*(mark.at for mark in line.marks[1:]), commits]
    starts = [0, *(mark.at for mark in line.marks)]
    for mark, start, end in zip(line.marks, starts, ends, strict=False):
        edge = mark.at - 0.5
        axes.hlines(mark.before, start - 0.5, edge, color=colour, alpha=0.6, linewidth=2)
        axes.hlines(mark.after, edge, end - 0.5, color=colour, alpha=0.6, linewidth=2)
        word = ("step, worse" if mark.worse else "step, better") + (
            f": {escape_mathtext(line.label)}" if named else ""
        )
        axes.axvline(edge, color="C3" if mark.worse else "C2", linestyle="--", linewidth=1.2, label=word)
