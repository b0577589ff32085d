"""All benchmarks in one figure: bars for medians, whiskers from the least to the greatest round."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.machine import in_words
from bench.numbers import of_measure
from bench.rounds import Outcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_OURS, _PEER, _INK = "#1f6f8b", "#b8b8b8", "#333333"


def draw(path: Path, outcomes: Sequence[Outcome], machine: dict[str, str | int]) -> None:
    """Write the figure to `path`."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt

    heights = [1.2 + 0.45 * len(outcome.samples) for outcome in outcomes]
    figure, axes = plt.subplots(
        len(outcomes),
        1,
        figsize=(9, sum(heights) + 0.6),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, outcome in zip(axes[:, 0], outcomes, strict=True):
        _panel(axis, outcome)
    figure.suptitle("kestrel_lab beside other tools: less is better")
    figure.supxlabel(textwrap.fill(in_words(machine), 130), fontsize=7, color=_INK)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(axis: Axes, outcome: Outcome) -> None:
    measure = outcome.benchmark.measures[0]
    # A row that was measured, but not by this measure, has nothing to be drawn.
    drawn = [
        samples
        for samples in outcome.samples.values()
        if samples.missing or any(measure.key in found for found in samples.rounds)
    ]
    for place, samples in enumerate(reversed(drawn)):
        got = of_measure(samples, measure)
        if got is None:
            axis.text(
                0.01,
                place,
                samples.missing,
                transform=axis.get_yaxis_transform(),
                va="center",
                fontsize=8,
                color=_INK,
            )
            continue
        colour = _OURS if samples.row.ours else _PEER
        axis.barh(
            place,
            got.median,
            color=colour,
            xerr=[[got.median - got.low], [got.high - got.median]],
            ecolor=_INK,
            capsize=2,
        )
        axis.annotate(
            f"{got.median:.3g}",
            (got.high, place),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
            color=_INK,
        )
    names = [samples.label for samples in reversed(drawn)]
    axis.set_yticks(range(len(names)), names)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.1)
    if outcome.benchmark.log_scale:
        _log_scale(axis, [found[measure.key] for samples in drawn for found in samples.rounds])
    axis.set_title(outcome.benchmark.title, fontsize=10, loc="left")
    axis.set_xlabel(
        f"{measure.heading} [{measure.unit}]{', logarithmic' if outcome.benchmark.log_scale else ''}",
        fontsize=8,
    )
    axis.spines[["top", "right"]].set_visible(False)


def _log_scale(axis: Axes, values: Sequence[float]) -> None:
    """A logarithmic axis from a power of ten, so that several figures compare; plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(NullFormatter())
    if values:
        axis.set_xlim(10 ** math.floor(math.log10(min(values) / 1.5)), max(values) * 2)
