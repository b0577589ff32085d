"""Learned router: fitted on prompts that several models answered, and measured on prompts that it was not
fitted on.

For each model a ridge regression predicts success from the features of `models.learned_router`; logistic
calibration makes probabilities of that. The penalty and the calibration are chosen by cross-validation inside
the prompts of the fit, the numbers that are shown come from prompts outside (nested cross-validation: Varma
and Simon, "Bias in error estimation when using cross-validation for model selection", 2006). Prompts that are
nearly the same are always on one side.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast
from zlib import crc32

import numpy as np
import pandas as pd

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.importers.routing_data import read_routing
from kestrel_lab.evals.studies.router_data import Array, answered_prompts
from kestrel_lab.evals.studies.router_report import FOLDS, FittedRouter, measure_router
from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.models.learned_router import (
    Embed,
    LearnedRouter,
    Scaling,
    calibrate,
    prompt_shapes,
    word_counts,
)

FEWEST: Final = 40
"""Groups of prompts below which nothing is fitted."""
_PENALTIES: Final = (1e5, 1e4, 3e3, 1e3, 300.0, 100.0)
"""From strong to weak; a strong one makes every prediction the model's mean."""
_WORD: Final = re.compile(r"\w+")
_ROWS, _BANDS = 4, 8
_PRIME: Final = (1 << 31) - 1


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

    `data` is a tidy frame with a row per prompt and model (`scenario`, `prompt`, `config`, `success` from 0
    to 1, and perhaps `cost_estimate`) or a file for `read_routing`. Prices are the mean costs in the data
    unless `prices` gives them. `cost_weight` is how much success one unit of price is worth: the choice is
    the model with the highest success − cost_weight · price. `embed` makes vectors of prompts, by default
    those of the extra `semantic` where it is installed; `vectors=False` does without.

    Where the value of the router's choices is not above that of the best single model with a 95 % interval
    clear of zero, that model is always chosen. Raises `UsageError` for data that is not enough or not in
    order.
    """
    given = answered_prompts(read_routing(data) if isinstance(data, str | Path) else data, prices)
    if not (math.isfinite(cost_weight) and cost_weight >= 0):
        raise UsageError(f"cost_weight is a number from 0 on, not {cost_weight!r}")
    if cost_weight and not given.prices:
        raise UsageError(
            "cost_weight needs prices, and no price of these models is known: give prices, {MODEL: PRICE}"
        )
    groups = near_duplicates(given.prompts)
    count = int(groups.max()) + 1
    if count < FEWEST:
        raise UsageError(
            f"a router needs {FEWEST} different prompts at least that every model answered, not {count}"
        )
    if embed is None and vectors and (load := default_embedder()) is not None:
        embed = load()
    raw = _Raw(
        counts=prompt_shapes(given.prompts),
        words=word_counts(given.prompts),
        vectors=None if embed is None else np.asarray(embed(list(given.prompts)), dtype=float),
    )
    held, by_length = _held_out(raw, given.scores, groups, repeats, seed)
    scaling, weights, platt, penalty = _fit_weights(
        raw, given.scores, groups, np.random.default_rng([seed, repeats])
    )
    measured = measure_router(given, groups, held, by_length, cost_weight, seed) | {
        "repeats": repeats,
        "penalty": penalty,
    }
    single, reason = measured.pop("single"), measured.pop("reason")
    router = LearnedRouter(
        models=given.models,
        prices=given.prices,
        cost_weight=cost_weight,
        single=single,
        reason=reason,
        scaling=scaling,
        weights=weights,
        platt=platt,
        embedder="" if embed is None else str(embed.name),  # type: ignore[attr-defined]
        measured=measured,
        embed=embed,
    )
    return FittedRouter(router=router, held_out=held)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Raw:
    """Features before anything is learned from them."""

    counts: Array
    words: Array
    vectors: Array | None

    def of(self, rows: Array) -> _Raw:
        return _Raw(
            counts=self.counts[rows],
            words=self.words[rows],
            vectors=None if self.vectors is None else self.vectors[rows],
        )

    @property
    def length(self) -> _Raw:
        """The length of the prompts alone."""
        return _Raw(counts=self.counts[:, :1], words=self.words[:, :0], vectors=None)

    def scaling(self) -> Scaling:
        mean, scale = self.counts.mean(axis=0), self.counts.std(axis=0)
        # A count that is the same everywhere says nothing.
        scale[scale < 1e-9] = 1.0
        seen = (self.words != 0).sum(axis=0)
        knots = np.quantile((self.counts - mean) / scale, (0.1, 0.3, 0.5, 0.7, 0.9), axis=0)
        return Scaling(
            mean=mean, scale=scale, knots=knots, idf=np.log((1 + len(self.words)) / (1 + seen)) + 1
        )


def _fit_weights(
    raw: _Raw, scores: Array, groups: Array, generator: np.random.Generator
) -> tuple[Scaling, Array, Array, float]:
    """Return the scaling, the weights, their calibration and the penalty: that with the least error of
    differences between models on inner folds.
    """
    scaling = raw.scaling()
    columns = scaling.columns(raw.counts, raw.words, raw.vectors)
    turn = None
    if (
        len(columns) < columns.shape[1]
    ):  # weights lie in the space of the rows, and turning it changes no penalty
        turn = np.linalg.svd(columns[:, :-1], full_matrices=False)[2]
        columns = np.column_stack([columns[:, :-1] @ turn.T, columns[:, -1]])
    folds = _folds(groups, generator)
    parts = [folds == fold for fold in range(FOLDS)]
    grams = [columns[part].T @ columns[part] for part in parts]
    sides = [columns[part].T @ scores[part] for part in parts]
    whole, side = sum(grams), sum(sides)
    best: tuple[float, float, Array] | None = None
    for penalty in _PENALTIES:
        found = np.empty_like(scores)
        for part, gram, own in zip(parts, grams, sides, strict=True):
            found[part] = columns[part] @ _ridge(whole - gram, side - own, penalty)
        # Only differences between models decide a choice: what all share of the error is no error.
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
    return scaling, weights, platt, penalty


def _ridge(gram: Array, side: Array, penalty: float) -> Array:
    from scipy.linalg import solve

    added = np.full(len(gram), penalty)
    # The mean is not shrunk.
    added[-1] = 1e-6
    return cast("Array", solve(gram + np.diag(added), side, assume_a="pos"))


def _platt(raw: Array, score: Array) -> tuple[float, float]:
    """Intercept and slope of the logistic regression of scores on predictions, by Newton's method with a weak
    penalty.
    """
    design = np.column_stack([np.ones(len(raw)), raw])
    found = np.zeros(2)
    for _ in range(50):
        p = calibrate(raw[:, None], found[None, :])[:, 0]
        slope = design.T @ (p - score) + 1e-3 * found
        curvature = (design * (p * (1 - p))[:, None]).T @ design + 1e-3 * np.eye(2)
        step = np.linalg.solve(curvature, slope)
        found -= step
        if np.abs(step).max() < 1e-9:
            break
    # A negative slope would turn the order of the models around.
    return float(found[0]), max(0.0, float(found[1]))


def _folds(groups: Array, generator: np.random.Generator) -> Array:
    """Return a fold for each prompt: groups are drawn in random order and never parted."""
    names, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    order = generator.permutation(len(names))
    before = np.empty(len(names))
    before[order] = np.cumsum(sizes[order]) - sizes[order]
    return cast("Array", (before * FOLDS // len(groups)).astype(int)[place])


def _held_out(raw: _Raw, scores: Array, groups: Array, repeats: int, seed: int) -> tuple[Array, Array]:
    """Return the predictions for prompts that were not fitted on, with all features and with the length
    alone.
    """
    held, by_length = np.empty((2, repeats, *scores.shape))
    for repeat in range(repeats):
        # A seed of its own for each repeat, so that more repeats change none of the earlier ones.
        generator = np.random.default_rng([seed, repeat])
        folds = _folds(groups, generator)
        for fold in range(FOLDS):
            out = folds == fold
            for source, found in ((raw, held), (raw.length, by_length)):
                scaling, weights, platt, _ = _fit_weights(
                    source.of(~out), scores[~out], groups[~out], generator
                )
                part = source.of(out)
                found[repeat, out] = calibrate(
                    scaling.columns(part.counts, part.words, part.vectors) @ weights, platt
                )
    return held, by_length


def near_duplicates(texts: Sequence[str]) -> Any:
    """Return for each text the number of its group, from 0 on: texts that share most of their wording are in
    one.

    MinHash with banding: A. Broder, "On the resemblance and containment of documents" (1997). Prompts whose
    sets of three-word sequences overlap by 80 % are grouped with 98 % certainty, by 50 % with 40 %; chains of
    such prompts are one group. Sequences that more than 20 prompts share are the form of a task, not the
    wording of one prompt, and count only where there is nothing else.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    generator = np.random.default_rng(0)
    factor = generator.integers(1, _PRIME, (_ROWS * _BANDS, 1))
    offset = generator.integers(0, _PRIME, (_ROWS * _BANDS, 1))
    first: dict[tuple[int, bytes], int] = {}
    pairs: list[tuple[int, int]] = []
    sequences = [_sequences(text) for text in texts]
    shared = Counter(one for found in sequences for one in found)
    for number, found in enumerate(sequences):
        hashes = np.array([one for one in found if shared[one] <= 20] or [*found])
        signature = ((factor * hashes + offset) % _PRIME).min(axis=1).reshape(_BANDS, _ROWS)
        pairs += [
            (number, first.setdefault((band, row.tobytes()), number)) for band, row in enumerate(signature)
        ]
    rows, columns = np.array(pairs or [(0, 0)]).T
    graph = coo_array((np.ones(len(rows)), (rows, columns)), shape=(max(1, len(texts)),) * 2)
    return connected_components(graph, directed=False)[1]


def _sequences(text: str) -> set[int]:
    """Return the hashes of all sequences of three words; of all words where there are fewer."""
    words = _WORD.findall(text.lower())
    return {
        crc32(" ".join(words[n : n + 3]).encode("utf-8", "surrogatepass")) % _PRIME
        for n in range(max(1, len(words) - 2))
    }
