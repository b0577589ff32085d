"""Report of a learned router: its worth on held-out prompts beside simpler ways to choose, calibration, and
the cost–quality curve.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
import pandas as pd

from kestrel_lab.core.drawing.matplotlib_figure import escape_mathtext, shown_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.studies.router_data import AnsweredPrompts, Array
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.models.learned_router import LearnedRouter, RouterChoice, read_router
from kestrel_lab.views.dataframes import unit_frame
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FOLDS: Final = 5
_RESAMPLES: Final = 2_000
_STEPS: Final = 40
"""Points of the cost–quality curve."""
LENGTH: Final = "length of the prompt alone"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class FittedRouter(TableView):
    """A router and what it was measured to be worth.

    `choose(prompt)` picks a model, `curve` and `plot()` show quality against cost.
    """

    router: LearnedRouter
    held_out: Array | None = None
    """The predictions for each prompt by routers that were fitted without it: repetition × prompt × model.

    Not saved.
    """

    @property
    def single(self) -> str:
        """The model that is always chosen because no gain over it was clear; empty where the router
        chooses.
        """
        return self.router.single

    def choose(self, prompt: str) -> RouterChoice:
        """Return the model for a prompt; see `LearnedRouter.choose`."""
        return self.router.choose(prompt)

    def predict(self, prompts: Sequence[str]) -> Array:
        """Return the probability of success, a row per prompt and a column per model of `router.models`."""
        return cast("Array", self.router.predict(prompts))

    def save(self, path: str | Path) -> Path:
        """Write the router and its measurements as JSON."""
        return self.router.save(path)

    @property
    def curve(self) -> pd.DataFrame:
        """Return the cost–quality curve on held-out prompts: `router`, `cost_weight`, `price` and `score`
        (means per prompt).

        With a rising weight of cost the price never rises. Raises `UsageError` where prices are unknown.
        """
        rows = self.router.measured["curve"]
        if not rows:
            raise UsageError(
                "no price of these models is known, so there is no curve: give prices, {MODEL: PRICE}"
            )
        return unit_frame(rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings, and a row of texts per way to choose."""
        measured = self.router.measured
        rows: list[tuple[str, ...]] = [
            (
                str(row["name"]),
                f"{row['score']:.3f} ({row['low']:.3f}–{row['high']:.3f})",
                "" if row["price"] is None else f"{row['price']:.4g}",
                ""
                if row["gain"] is None
                else f"{row['gain']:+.3f} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})",
            )
            for row in measured["rows"]
        ]
        return (
            "choice",
            "score (95 %)",
            str(measured["unit"] or "price"),
            "value beside the single model (95 %)",
        ), rows

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        if self.single:
            return f"use the single model {self.single}: {self.router.reason}"
        return f"use the router of {format_count(len(self.router.models), 'model')}: {self.router.reason}"

    def lines(self) -> list[str]:
        """How it was measured."""
        measured = self.router.measured
        errors = ", ".join(f"{name} {error:.3f}" for name, error in measured["calibration"].items())
        dropped = (
            f"; {measured['left_out']} that not every model answered are left out"
            if measured["left_out"]
            else ""
        )
        return [
            f"{measured['prompts']} prompts in {measured['groups']} groups of near-duplicates, {FOLDS}-fold "
            "nested cross-validation, "
            f"{measured['repeats']} times{dropped}; intervals by resampling groups",
            "all of this holds for prompts like these; on kinds of tasks that it was not fitted on a "
            "router can be worse than the single model",
            f"distance between predicted and true success: {errors}",
            "features: length, shape, "
            f"words{', word vectors ' + self.router.embedder if self.router.embedder else ''}; ridge "
            f"penalty {measured['penalty']:g}",
        ]

    def plot(self) -> Figure:
        """Draw quality against price on held-out prompts: router, length alone, single models and their
        mixtures, oracle.
        """
        frame = self.curve
        figure = shown_figure()(figsize=(7, 4.6), layout="constrained")
        axes = figure.subplots()
        styles = {
            "random mixture": {"linestyle": "--", "color": "0.5"},
            "oracle": {"color": "0.7"},
            LENGTH: {"color": "C1"},
        }
        for name, part in frame.groupby("router", sort=False):
            axes.plot(
                part["price"],
                part["score"],
                label=escape_mathtext(str(name)),
                **cast("Any", styles.get(str(name), {"color": "C0", "marker": "."})),
            )
        for name, score in self.router.measured["means"].items():
            price = self.router.measured["prices"][self.router.models.index(name)]
            axes.plot([price], [score], "o", color="0.3")
            axes.annotate(
                escape_mathtext(name), (price, score), xytext=(4, -10), textcoords="offset points", fontsize=7
            )
        axes.set(xlabel=self.router.measured["unit"], ylabel="mean score")
        axes.set_title("Cost and quality on held-out prompts")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        return figure


def read_fitted(path: str | Path) -> FittedRouter:
    """Read a router and its measurements; raises `UsageError` like `read_router`."""
    return FittedRouter(router=read_router(path, default_embedder()))


def measure_router(
    answered: AnsweredPrompts, groups: Array, held: Array, by_length: Array, cost_weight: float, seed: int
) -> dict[str, Any]:
    """Return what held-out predictions are worth, as plain data: `rows`, `curve`, `calibration` and the
    verdict in `single` and `reason`.
    """
    prices = np.array(answered.prices or [0.0] * len(answered.models))
    scores = answered.scores
    values = scores - cost_weight * prices
    best = int(np.argmax(values.mean(axis=0)))
    _, place = np.unique(groups, return_inverse=True)
    sizes = np.bincount(place)
    drawn = np.random.default_rng(seed).multinomial(
        len(sizes), np.full(len(sizes), 1 / len(sizes)), size=_RESAMPLES
    )
    weight = drawn @ sizes

    def interval(per_prompt: Array) -> tuple[float, float, float]:
        means = drawn @ np.bincount(place, weights=per_prompt) / weight
        low, high = np.quantile(means, [0.025, 0.975])
        return float(per_prompt.mean()), float(low), float(high)

    def row(name: str, score: Array, price: Array, *, reference: bool = False) -> dict[str, Any]:
        mean, low, high = interval(score)
        gain = (None, None, None) if reference else interval(score - cost_weight * price - values[:, best])
        return {
            "name": name,
            "score": mean,
            "low": low,
            "high": high,
            "price": float(price.mean()) if answered.prices else None,
            **dict(zip(("gain", "gain_low", "gain_high"), gain, strict=True)),
        }

    def chosen(predicted: Array) -> tuple[Array, Array]:
        picks = np.argmax(predicted - cost_weight * prices, axis=2)
        return np.take_along_axis(scores[None], picks[..., None], axis=2)[..., 0].mean(axis=0), prices[
            picks
        ].mean(axis=0)

    rows = [
        row("router", *chosen(held)),
        row(LENGTH, *chosen(by_length)),
        row(
            f"single model {answered.models[best]}",
            scores[:, best],
            np.full(len(scores), prices[best]),
            reference=True,
        ),
        row("random model", scores.mean(axis=1), np.full(len(scores), prices.mean())),
        row("oracle", *chosen(scores[None])),
    ]
    gain, low, high = (rows[0][name] for name in ("gain", "gain_low", "gain_high"))
    reason = (
        f"on held-out prompts it is worth {gain:+.3f} ({low:+.3f} to {high:+.3f}) beside "
        f"{answered.models[best]}"
    )
    return {
        "rows": rows,
        "unit": answered.unit,
        "prices": list(answered.prices),
        "means": dict(zip(answered.models, map(float, scores.mean(axis=0)), strict=True)),
        "prompts": len(scores),
        "groups": len(sizes),
        "left_out": answered.left_out,
        "calibration": {
            name: _calibration_error(held[..., n], scores[:, n]) for n, name in enumerate(answered.models)
        },
        "curve": _curves({"router": held, LENGTH: by_length, "oracle": scores[None]}, scores, prices)
        if answered.prices
        else [],
        "single": "" if low > 0 else answered.models[best],
        "reason": reason
        if low > 0
        else f"no gain of choosing is clear; {reason.replace('it is', 'a router is')}",
    }


def _calibration_error(predicted: Array, scores: Array) -> float:
    """Return the mean distance between predicted and true success over ten bins of equally many
    predictions.
    """
    miss = (np.broadcast_to(scores, predicted.shape) - predicted).ravel()[
        np.argsort(predicted.ravel(), kind="stable")
    ]
    return float(sum(abs(part.sum()) for part in np.array_split(miss, 10)) / len(miss))


def _curves(predictions: Mapping[str, Array], scores: Array, prices: Array) -> list[dict[str, Any]]:
    """Return the price and score of each router for rising weights of cost, and the best mixtures of single
    models.
    """
    rows: list[dict[str, Any]] = []
    for name, predicted in predictions.items():
        for weight in _cost_weights(predicted, prices):
            picks = np.argmax(predicted - weight * prices, axis=2)
            score = float(np.take_along_axis(scores[None], picks[..., None], axis=2).mean())
            rows.append(
                {"router": name, "cost_weight": weight, "price": float(prices[picks].mean()), "score": score}
            )
    means = scores.mean(axis=0)
    hull: list[int] = []
    for n in sorted(range(len(prices)), key=lambda n: (prices[n], -means[n])):
        if hull and means[n] <= means[hull[-1]]:
            continue
        while len(hull) > 1 and _is_dominated(hull[-2], hull[-1], n, prices, means):
            hull.pop()
        hull.append(n)
    rows += [
        {"router": "random mixture", "cost_weight": None, "price": float(prices[n]), "score": float(means[n])}
        for n in hull
    ]
    return rows


def _cost_weights(predicted: Array, prices: Array) -> list[float]:
    """Return weights of cost from 0 to where every prompt goes to the cheapest model, evenly over the choices
    that change.
    """
    turns = [
        ((predicted[..., a] - predicted[..., b]) / (prices[a] - prices[b])).ravel()
        for a in range(len(prices))
        for b in range(len(prices))
        if prices[a] > prices[b]
    ]
    found = np.concatenate(turns) if turns else np.zeros(0)
    found = found[found > 0]
    points = np.quantile(found, np.linspace(0, 1, _STEPS)) if len(found) else np.zeros(0)
    return [
        0.0,
        *sorted({float(point) for point in points}),
        *([float(points[-1]) * 1.01] if len(points) else []),
    ]


def _is_dominated(first: int, middle: int, last: int, prices: Array, means: Array) -> bool:
    """Return whether a mixture of the first and last model is as good as the middle one at its price."""
    rise = (means[last] - means[first]) * (prices[middle] - prices[first])
    return bool((means[middle] - means[first]) * (prices[last] - prices[first]) <= rise)
