"""Learned router: fitted on prompts that several models answered, and measured on prompts that it was not fitted on.

For each model a ridge regression predicts success from the features of `models.learned_router`; logistic calibration makes
probabilities of that. The penalty and the calibration are chosen by cross-validation inside the prompts of the fit, the
numbers that are shown come from prompts outside (nested cross-validation: Varma and Simon, "Bias in error estimation when using
cross-validation for model selection", 2006). Prompts that are nearly the same are always on one side.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from kestrel_lab.core.drawing.matplotlib_figure import literal, shown_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.evals.studies.near_duplicates import near_duplicates
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.models.learned_router import Embed, LearnedRouter, RouterChoice, Scaling, calibrated, read_router, shapes, word_counts
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, np.dtype[Any]]

FEWEST: Final = 40
"""Groups of prompts below which nothing is fitted."""
_FOLDS: Final = 5
_PENALTIES: Final = (1e5, 3e4, 1e4, 3e3, 1e3, 300.0, 100.0, 30.0)
"""From strong to weak; a strong one makes every prediction the model's mean."""
_KNOTS: Final = (0.1, 0.3, 0.5, 0.7, 0.9)
_RESAMPLES: Final = 2_000
_STEPS: Final = 40
"""Points of the cost–quality curve."""
LENGTH: Final = "length of the prompt alone"


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Answered:
    """Prompts with the score of each model."""

    models: tuple[str, ...]
    prompts: tuple[str, ...]
    scores: Array
    """A row per prompt and a column per model, from 0 to 1."""
    prices: tuple[float, ...]
    """The mean cost of a call of each model; empty where unknown."""
    unit: str
    left_out: int = 0
    """Prompts that not every model answered."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False, repr=False)
class FittedRouter(TableView):
    """A router and what it was measured to be worth. `choose(prompt)` picks a model, `curve` and `plot()` show quality against cost."""

    router: LearnedRouter
    held_out: Array | None = None
    """The predictions for each prompt by routers that were fitted without it: repetition × prompt × model. Not saved."""

    @property
    def single(self) -> str:
        """The model that is always chosen because no gain over it was clear; empty where the router chooses."""
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
        """Return the cost–quality curve on held-out prompts: `router`, `cost_weight`, `price` and `score` (means per prompt).

        With a rising weight of cost the price never rises. Raises `UsageError` where prices are unknown.
        """
        from kestrel_lab.views.dataframes import shown_frame

        rows = self.router.measured["curve"]
        if not rows:
            raise UsageError("no price of these models is known, so there is no curve: give prices, {MODEL: PRICE}")
        return shown_frame(rows)

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings, and a row of texts per way to choose."""
        told = self.router.measured
        rows: list[tuple[str, ...]] = [
            (
                str(row["name"]),
                f"{row['score']:.3f} ({row['low']:.3f}–{row['high']:.3f})",
                "" if row["price"] is None else f"{row['price']:.4g}",
                "" if row["gain"] is None else f"{row['gain']:+.3f} ({row['gain_low']:+.3f} to {row['gain_high']:+.3f})",
            )
            for row in told["rows"]
        ]
        return ("choice", "score (95 %)", str(told["unit"] or "price"), "value beside the single model (95 %)"), rows

    @property
    def headline(self) -> str:
        """The verdict in a sentence."""
        if self.single:
            return f"use the single model {self.single}: {self.router.reason}"
        return f"use the router of {len(self.router.models)} models: {self.router.reason}"

    def lines(self) -> list[str]:
        """How it was measured."""
        told = self.router.measured
        errors = ", ".join(f"{name} {error:.3f}" for name, error in told["calibration"].items())
        dropped = f"; {told['left_out']} that not every model answered are left out" if told["left_out"] else ""
        return [
            f"{told['prompts']} prompts in {told['groups']} groups of near-duplicates, {_FOLDS}-fold nested cross-validation, "
            f"{told['repeats']} times{dropped}; intervals by resampling groups",
            f"distance between predicted and true success: {errors}",
            f"features: length, shape, words{', word vectors ' + self.router.embedder if self.router.embedder else ''}; ridge penalty {told['penalty']:g}",
        ]

    def plot(self) -> Figure:
        """Draw quality against price on held-out prompts: router, length alone, single models and their mixtures, oracle."""
        frame = self.curve
        figure = shown_figure()(figsize=(7, 4.6), layout="constrained")
        axes = figure.subplots()
        styles = {"random mixture": {"linestyle": "--", "color": "0.5"}, "oracle": {"color": "0.7"}, LENGTH: {"color": "C1"}}
        for name, part in frame.groupby("router", sort=False):
            axes.plot(
                part["price"], part["score"], label=literal(str(name)), **cast("Any", styles.get(str(name), {"color": "C0", "marker": "."}))
            )
        for name, score in self.router.measured["means"].items():
            price = self.router.measured["prices"][self.router.models.index(name)]
            axes.plot([price], [score], "o", color="0.3")
            axes.annotate(literal(name), (price, score), xytext=(4, -10), textcoords="offset points", fontsize=7)
        axes.set(xlabel=self.router.measured["unit"], ylabel="mean score")
        axes.set_title("Cost and quality on held-out prompts")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        return figure


def read_fitted(path: str | Path) -> FittedRouter:
    """Read a router and its measurements; raises `UsageError` like `read_router`."""
    return FittedRouter(router=read_router(path, default_embedder()))


def fit_router(
    data: pd.DataFrame | str | Path,
    *,
    prices: Mapping[str, float] | None = None,
    cost_weight: float = 0.0,
    repeats: int = 2,
    seed: int = 0,
    embed: Embed | None = None,
    vectors: bool = True,
) -> FittedRouter:
    """Fit a router on prompts that several models answered, and measure it on held-out prompts.

    `data` is a tidy frame with a row per prompt and model (`scenario`, `prompt`, `config`, `success` from 0 to 1, and perhaps
    `cost_estimate`) or a file for `read_routing`. Prices are the mean costs in the data unless `prices` gives them. `cost_weight`
    is how much success one unit of price is worth: the choice is the model with the highest success − cost_weight · price.
    `embed` makes vectors of prompts, by default those of the extra `semantic` where it is installed; `vectors=False` does without.

    Where the value of the router's choices is not above that of the best single model with a 95 % interval clear of zero, that
    model is always chosen. Raises `UsageError` for data that is not enough or not in order.
    """
    import numpy as np

    answered = _answered(read_routing(data) if isinstance(data, str | Path) else data, prices)
    if not (math.isfinite(cost_weight) and cost_weight >= 0):
        raise UsageError(f"cost_weight is a number from 0 on, not {cost_weight!r}")
    if cost_weight and not answered.prices:
        raise UsageError("cost_weight needs prices, and no price of these models is known: give prices, {MODEL: PRICE}")
    groups = near_duplicates(answered.prompts)
    count = int(groups.max()) + 1
    if count < FEWEST:
        raise UsageError(f"a router needs {FEWEST} different prompts at least that every model answered, not {count}")
    if embed is None and vectors and (load := default_embedder()) is not None:
        embed = load()
    raw = _Raw(
        counts=shapes(answered.prompts),
        words=word_counts(answered.prompts),
        vectors=None if embed is None else np.asarray(embed(list(answered.prompts)), dtype=float),
    )
    held, by_length = _held_out(raw, answered.scores, groups, repeats, seed)
    scaling, fit = _fit(raw, answered.scores, groups, np.random.default_rng([seed, repeats]))
    measured = _measured(answered, groups, held, by_length, cost_weight, seed) | {"repeats": repeats, "penalty": fit.penalty}
    single, reason = measured.pop("single"), measured.pop("reason")
    router = LearnedRouter(
        models=answered.models,
        prices=answered.prices,
        cost_weight=cost_weight,
        single=single,
        reason=reason,
        scaling=scaling,
        weights=fit.weights,
        platt=fit.platt,
        embedder="" if embed is None else str(embed.name),  # type: ignore[attr-defined]
        measured=measured,
        embed=embed,
    )
    return FittedRouter(router=router, held_out=held)


def _answered(frame: pd.DataFrame, prices: Mapping[str, float] | None) -> Answered:
    import numpy as np

    if missing := {"scenario", "prompt", "config", "success"} - set(frame.columns):
        raise UsageError(f"the data of a router has no column {', '.join(sorted(missing))}")
    wide = frame.pivot_table(index="scenario", columns="config", values="success", aggfunc="mean", sort=False)
    whole = wide.dropna()
    if len(wide.columns) < 2 or not len(whole):
        raise UsageError(
            f"a router needs prompts that two models or more answered; the models are {', '.join(map(str, wide.columns)) or 'none'}"
        )
    scores = whole.to_numpy(dtype=float)
    if not ((scores >= 0) & (scores <= 1)).all():
        raise UsageError("the scores of a router's data are from 0 to 1: rescale them")
    models = tuple(map(str, wide.columns))
    prompts = frame.drop_duplicates("scenario").set_index("scenario")["prompt"].reindex(whole.index)
    found: tuple[float, ...] = ()
    unit = "US dollars per prompt"
    if prices is not None:
        if set(prices) != set(models) or not all(math.isfinite(price) and price >= 0 for price in prices.values()):
            raise UsageError(f"prices are a number from 0 on for each of {', '.join(models)}")
        found, unit = tuple(float(prices[name]) for name in models), "price per prompt"
    elif "cost_estimate" in frame and not frame["cost_estimate"].isna().any():
        costs = frame.groupby("config", sort=False)["cost_estimate"].mean()
        found = tuple(float(costs[name]) for name in wide.columns)
    elif len(models) == 2:
        better = int(np.argmax(scores.mean(axis=0)))
        found, unit = tuple(float(n == better) for n in range(2)), f"share of prompts at {models[better]}"
    return Answered(
        models=models,
        prompts=tuple(map(str, prompts)),
        scores=scores,
        prices=found,
        unit=unit if found else "",
        left_out=len(wide) - len(whole),
    )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Raw:
    """Features before anything is learned from them."""

    counts: Array
    words: Array
    vectors: Array | None

    def of(self, rows: Array) -> _Raw:
        return _Raw(counts=self.counts[rows], words=self.words[rows], vectors=None if self.vectors is None else self.vectors[rows])

    @property
    def length(self) -> _Raw:
        """The length of the prompts alone."""
        return _Raw(counts=self.counts[:, :1], words=self.words[:, :0], vectors=None)

    def scaling(self) -> Scaling:
        import numpy as np

        mean, scale = self.counts.mean(axis=0), self.counts.std(axis=0)
        scale[scale < 1e-9] = 1.0  # a count that is the same everywhere says nothing
        seen = (self.words != 0).sum(axis=0)
        knots = np.quantile((self.counts - mean) / scale, _KNOTS, axis=0)
        return Scaling(mean=mean, scale=scale, knots=knots, idf=np.log((1 + len(self.words)) / (1 + seen)) + 1)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Fit:
    weights: Array
    platt: Array
    penalty: float


def _fit(raw: _Raw, scores: Array, groups: Array, generator: np.random.Generator) -> tuple[Scaling, _Fit]:
    """Fit weights and calibration; the penalty is that with the least error of differences between models on inner folds."""
    import numpy as np

    scaling = raw.scaling()
    columns = scaling.columns(raw.counts, raw.words, raw.vectors)
    turn = None
    if len(columns) < columns.shape[1]:  # weights lie in the space of the rows, and turning it changes no penalty
        turn = np.linalg.svd(columns[:, :-1], full_matrices=False)[2]
        columns = np.column_stack([columns[:, :-1] @ turn.T, columns[:, -1]])
    folds = _folds(groups, generator)
    parts = [folds == fold for fold in range(_FOLDS)]
    grams = [columns[part].T @ columns[part] for part in parts]
    sides = [columns[part].T @ scores[part] for part in parts]
    whole, side = sum(grams), sum(sides)
    best: tuple[float, float, Array] | None = None
    for penalty in _PENALTIES:
        found = np.empty_like(scores)
        for part, gram, own in zip(parts, grams, sides, strict=True):
            found[part] = columns[part] @ _ridge(whole - gram, side - own, penalty)
        miss = found - scores
        error = float(((miss - miss.mean(axis=1, keepdims=True)) ** 2).mean())
        if best is None or error < best[0]:
            best = error, penalty, found
    assert best is not None
    _, penalty, found = best
    platt = np.array([_platt(found[:, n], scores[:, n]) for n in range(scores.shape[1])])
    weights = _ridge(cast("Array", whole), cast("Array", side), penalty)
    if turn is not None:
        weights = np.vstack([turn.T @ weights[:-1], weights[-1:]])
    return scaling, _Fit(weights=weights, platt=platt, penalty=penalty)


def _ridge(gram: Array, side: Array, penalty: float) -> Array:
    import numpy as np
    from scipy.linalg import solve

    added = np.full(len(gram), penalty)
    added[-1] = 1e-6  # the mean is not shrunk
    return cast("Array", solve(gram + np.diag(added), side, assume_a="pos"))


def _platt(raw: Array, score: Array) -> tuple[float, float]:
    """Intercept and slope of the logistic regression of scores on predictions, by Newton's method with a weak penalty."""
    import numpy as np

    design = np.column_stack([np.ones(len(raw)), raw])
    found = np.zeros(2)
    for _ in range(50):
        p = calibrated(raw[:, None], found[None, :])[:, 0]
        slope = design.T @ (p - score) + 1e-3 * found
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-3 * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        found -= step
        if np.abs(step).max() < 1e-9:
            break
    return float(found[0]), max(0.0, float(found[1]))


def _folds(groups: Array, generator: np.random.Generator) -> Array:
    """Return a fold for each prompt: groups are drawn in random order and never parted."""
    import numpy as np

    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = generator.permutation(len(names))
    before = np.empty(len(names))
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    return cast("Array", (before * _FOLDS // len(groups)).astype(int)[place])


def _held_out(raw: _Raw, scores: Array, groups: Array, repeats: int, seed: int) -> tuple[Array, Array]:
    """Return the predictions for prompts that were not fitted on, with all features and with the length alone."""
    import numpy as np

    held, by_length = np.empty((2, repeats, *scores.shape))
    for repeat in range(repeats):
        generator = np.random.default_rng([seed, repeat])
        folds = _folds(groups, generator)
        for fold in range(_FOLDS):
            out = folds == fold
            for source, found in ((raw, held), (raw.length, by_length)):
                scaling, fit = _fit(source.of(~out), scores[~out], groups[~out], generator)
                part = source.of(out)
                found[repeat, out] = calibrated(scaling.columns(part.counts, part.words, part.vectors) @ fit.weights, fit.platt)
    return held, by_length


def _measured(answered: Answered, groups: Array, held: Array, by_length: Array, cost_weight: float, seed: int) -> dict[str, Any]:
    import numpy as np

    prices = np.array(answered.prices or [0.0] * len(answered.models))
    scores = answered.scores
    values = scores - cost_weight * prices
    best = int(np.argmax(values.mean(axis=0)))
    _, place = np.unique(groups, return_inverse=True)
    sizes = np.bincount(place)
    drawn = np.random.default_rng(seed).multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), size=_RESAMPLES)
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
        return np.take_along_axis(scores[None], picks[..., None], axis=2)[..., 0].mean(axis=0), prices[picks].mean(axis=0)

    rows = [
        row("router", *chosen(held)),
        row(LENGTH, *chosen(by_length)),
        row(f"single model {answered.models[best]}", scores[:, best], np.full(len(scores), prices[best]), reference=True),
        row("random model", scores.mean(axis=1), np.full(len(scores), prices.mean())),
        row("oracle", *chosen(scores[None])),
    ]
    gain, low, high = (rows[0][name] for name in ("gain", "gain_low", "gain_high"))
    told = f"on held-out prompts it is worth {gain:+.3f} ({low:+.3f} to {high:+.3f}) beside {answered.models[best]}"
    return {
        "rows": rows,
        "unit": answered.unit,
        "prices": list(answered.prices),
        "means": dict(zip(answered.models, map(float, scores.mean(axis=0)), strict=True)),
        "prompts": len(scores),
        "groups": len(sizes),
        "left_out": answered.left_out,
        "calibration": {name: _calibration_error(held[..., n], scores[:, n]) for n, name in enumerate(answered.models)},
        "curve": _curves({"router": held, LENGTH: by_length, "oracle": scores[None]}, scores, prices) if answered.prices else [],
        "single": "" if low > 0 else answered.models[best],
        "reason": told if low > 0 else f"no gain of choosing is clear; {told.replace('it is', 'a router is')}",
    }


def _calibration_error(predicted: Array, scores: Array) -> float:
    """Return the mean distance between predicted and true success over ten bins of equally many predictions."""
    import numpy as np

    miss = (np.broadcast_to(scores, predicted.shape) - predicted).ravel()[np.argsort(predicted.ravel(), kind="stable")]
    return float(sum(abs(part.sum()) for part in np.array_split(miss, 10)) / len(miss))


def _curves(predictions: Mapping[str, Array], scores: Array, prices: Array) -> list[dict[str, Any]]:
    """Return the price and score of each router for rising weights of cost, and the best mixtures of single models."""
    import numpy as np

    rows: list[dict[str, Any]] = []
    for name, predicted in predictions.items():
        for weight in _cost_weights(predicted, prices):
            picks = np.argmax(predicted - weight * prices, axis=2)
            score = float(np.take_along_axis(scores[None], picks[..., None], axis=2).mean())
            rows.append({"router": name, "cost_weight": weight, "price": float(prices[picks].mean()), "score": score})
    means = scores.mean(axis=0)
    hull: list[int] = []
    for n in sorted(range(len(prices)), key=lambda n: (prices[n], -means[n])):
        if hull and means[n] <= means[hull[-1]]:
            continue
        while len(hull) > 1 and _below(hull[-2], hull[-1], n, prices, means):
            hull.pop()
        hull.append(n)
    rows += [{"router": "random mixture", "cost_weight": None, "price": float(prices[n]), "score": float(means[n])} for n in hull]
    return rows


def _cost_weights(predicted: Array, prices: Array) -> list[float]:
    """Return weights of cost from 0 to where every prompt goes to the cheapest model, evenly over the choices that change."""
    import numpy as np

    turns = [
        ((predicted[..., a] - predicted[..., b]) / (prices[a] - prices[b])).ravel()
        for a in range(len(prices))
        for b in range(len(prices))
        if prices[a] > prices[b]
    ]
    found = np.concatenate(turns) if turns else np.zeros(0)
    found = found[found > 0]
    points = np.quantile(found, np.linspace(0, 1, _STEPS)) if len(found) else np.zeros(0)
    return [0.0, *sorted({float(point) for point in points}), *([float(points[-1]) * 1.01] if len(points) else [])]


def _below(first: int, middle: int, last: int, prices: Array, means: Array) -> bool:
    """Return whether a mixture of the first and last model is as good as the middle one at its price."""
    rise = (means[last] - means[first]) * (prices[middle] - prices[first])
    return bool((means[middle] - means[first]) * (prices[last] - prices[first]) <= rise)
