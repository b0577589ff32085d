"""Pareto front of quality against cost or time: the configurations that no other beats in both, with
intervals.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import (
    escape_mathtext,
    label_points,
    needs_numbers,
    shown_figure,
)
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.evals.stats.groups import counting_units
from kestrel_lab.evals.stats.intervals_and_tests import Interval, mean_interval, proportion_interval
from kestrel_lab.evals.stats.skewed_means import amount_interval
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import paragraph_html, table_html

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_UNITS: Final = {"cost_estimate": "USD", "wall_time": "s", "working_time": "s", "token_usage": "tokens"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """A configuration's quality and price, both per trial."""

    name: str
    quality: Interval
    price: Interval
    trials: int
    front: bool = False
    """No other configuration is at least as good and as cheap, and better in one of both."""


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Configurations by quality and price. `frame` has the numbers, `plot()` draws them."""

    points: tuple[Point, ...]
    quality: str
    price: str
    left_out: tuple[str, ...] = ()
    """Configurations without a price or a quality."""

    @property
    def frame(self) -> pd.DataFrame:
        """One row per configuration, cheapest first: quality and price with their 95 % intervals, `trials`,
        and whether it is on the front.
        """
        return unit_frame(
            {
                "config": point.name,
                **point.quality.columns(self.quality),
                **point.price.columns(self.price),
                "trials": point.trials,
                "front": point.front,
            }
            for point in self.points
        )

    def plot(self) -> Figure:
        """Every configuration with its intervals; the front is filled and joined by a line.

        Raises `UsageError` where no price is known.
        """
        if not self.points:
            raise UsageError(
                f"no configuration has a known {_column_label(self.price)}: there is nothing to draw "
                f"(left out: {', '.join(self.left_out) or 'none'})"
            )
        figure = shown_figure()(
            figsize=(
                7.5,
                4.8 + (0.18 * len(self.points) if needs_numbers([one.name for one in self.points]) else 0),
            ),
            layout="constrained",
        )
        axes = figure.subplots()
        for point in self.points:
            reach = {"xerr": _error_bars(point.price), "yerr": _error_bars(point.quality)}
            look: dict[str, Any] = {
                "alpha": 1.0 if point.front else 0.5,
                "markerfacecolor": "C0" if point.front else "none",
            }
            axes.errorbar(
                [point.price.mean],
                [point.quality.mean],
                fmt="o",
                color="C0",
                capsize=3,
                elinewidth=0.8,
                **reach,
                **look,
            )
        front = [point for point in self.points if point.front]
        axes.plot(
            [p.price.mean for p in front],
            [p.quality.mean for p in front],
            color="C0",
            alpha=0.4,
            drawstyle="steps-post",
            zorder=0,
        )
        axes.set_title("Pareto front (filled) with 95 % intervals")
        unknown = f" ({len(self.left_out)} without a known one left out)" if self.left_out else ""
        axes.set_xlabel(
            f"{_column_label(self.price)} per trial"
            + (f", {_UNITS[self.price]}" if self.price in _UNITS else "")
            + unknown
        )
        axes.set_ylabel(_column_label(self.quality))
        axes.grid(alpha=0.3)
        names = [point.name for point in self.points]
        if needs_numbers(names):
            from matplotlib.lines import Line2D

            keys = [
                Line2D([], [], linestyle="none", label=f"{n}  {escape_mathtext(name)}")
                for n, name in enumerate(names, 1)
            ]
            figure.legend(
                handles=keys,
                loc="outside lower center",
                fontsize=8,
                frameon=False,
                handlelength=0,
                handletextpad=0,
            )
            names = list(map(str, range(1, 1 + len(names))))
        label_points(
            axes,
            [
                (point.price.mean, point.quality.mean, name)
                for point, name in zip(self.points, names, strict=True)
            ],
        )
        return figure

    def __repr__(self) -> str:
        """The front in one line."""
        names = ", ".join(point.name for point in self.points if point.front)
        return (
            f"<front of {_column_label(self.quality)} against {_column_label(self.price)}: {names} of "
            f"{format_count(len(self.points), 'configuration')}>"
        )

    def _repr_html_(self) -> str:
        price = f"{_column_label(self.price)} ({_UNITS.get(self.price, 'per trial')})"
        heads = ("configuration", _column_label(self.quality), price, "trials", "front")
        more = paragraph_html(f"left out, price unknown: {', '.join(self.left_out)}") if self.left_out else ""
        return f"{table_html(heads, map(_cells, self.points))}{more}"


def _frame_units(frame: pd.DataFrame) -> list[str] | None:
    """Return what each trial of a frame counts with; `None` where nothing says which are alike."""
    if "scenario" not in frame:
        return None
    scenarios = frame["scenario"].tolist()
    return list(counting_units(scenarios, frame["group"].tolist() if "group" in frame else scenarios))


def pareto_frontier(
    frame: pd.DataFrame, *, quality: str = "success", price: str = "cost_estimate", by: str = "config"
) -> Frontier:
    """The frontier of a tidy frame with one row per trial, such as `EvalResult.frame` or `read_routing(FILE)`
    with a column of prices.

    Trials of one `group`, or else of one `scenario`, are one cluster where the frame has such a column.
    Raises `UsageError` for a column that is not there.
    """
    for column in (quality, price, by):
        if column not in frame.columns:
            raise UsageError(
                f"the frame has no column {column!r}; {did_you_mean(column, list(map(str, frame.columns)))}"
            )
    points, left_out = [], []
    for name, part in frame.groupby(by, sort=False):
        part = part[part[quality].notna()]  # what does not count is not looked at  # noqa: PLW2901
        unpriced = price == "cost_estimate" and "unpriced_calls" in part and part["unpriced_calls"].any()
        if not len(part) or part[price].isna().any() or unpriced:
            left_out.append(str(name))
            continue
        marks, prices = part[quality].astype(float).tolist(), part[price].astype(float).tolist()
        clusters = _frame_units(part)
        all_or_nothing = set(marks) <= {0.0, 1.0}
        rate = (
            proportion_interval(marks, clusters)
            if all_or_nothing and clusters is not None
            else mean_interval(marks, clusters)
        )
        points.append(
            Point(name=str(name), quality=rate, price=amount_interval(prices, clusters), trials=len(part))
        )
    places = [(-point.quality.mean, point.price.mean) for point in points]
    marked = [
        replace(
            point,
            front=not any(
                loss <= mine[0] and cost <= mine[1] and (loss, cost) != mine for loss, cost in places
            ),
        )
        for point, mine in zip(points, places, strict=True)
    ]
    ordered = sorted(marked, key=lambda point: (point.price.mean, -point.quality.mean))
    return Frontier(points=tuple(ordered), quality=quality, price=price, left_out=tuple(left_out))


def _error_bars(interval: Interval) -> Any:
    if math.isnan(interval.low):
        return None
    return [[max(0.0, interval.mean - interval.low)], [max(0.0, interval.high - interval.mean)]]


def _column_label(column: str) -> str:
    return {"success": "success rate", "cost_estimate": "cost"}.get(column, column.replace("_", " "))


def _cells(point: Point) -> list[str]:
    quality, price = (interval.text("{:.4g}".format) for interval in (point.quality, point.price))
    return [point.name, quality, price, str(point.trials), "yes" if point.front else ""]
