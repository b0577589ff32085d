"""Learned router: predicts from the prompt how likely each model succeeds, and chooses the best value.

Features are counts of the prompt, hashed words weighted by rarity and, with the extra `semantic`, word
vectors; no model is called. `evals.studies.router_fit` fits and measures it. A router is saved as JSON.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from zlib import crc32

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import loads
from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.models.router import Route, RoutedModel

if TYPE_CHECKING:
    from kestrel_lab.core.protocols import Model

Embed = Callable[[Sequence[str]], Any]
"""Returns a row of numbers per text; has a `name`."""
ROUTER: Final = "router"
"""`router:FILE` names a learned router wherever a model is named."""
FORMAT: Final = "kestrel-router/1"
BUCKETS: Final = 512
"""Hash buckets of words; more of them predict no better on public data."""
SHAPES: Final = 11
"""Counts of a prompt: see `prompt_shapes`."""
_READ: Final = 20_000
"""Characters of a prompt that are read."""
_SPREAD: Final = 8.0
"""Factor on rows of length 1, so that one ridge penalty fits them and standardised counts."""
_FARTHEST: Final = 3.0
"""Standard deviations from the mean beyond which a count is taken for that far: a line is not drawn on to
prompts unlike any of the fit.
"""
_WORD: Final = re.compile(r"\w+|[^\w\s]")
_NUMBER: Final = re.compile(r"\d+")
_SENTENCE: Final = re.compile(r"[.?!\n]")


def prompt_shapes(prompts: Sequence[str]) -> Any:
    """Return a row of `SHAPES` counts per prompt: lengths in characters, words and lines, shares of kinds of
    characters, and the like.

    The first column is the logarithm of the length in characters.
    """
    import numpy as np

    rows = []
    for prompt in prompts:
        text = prompt[:_READ]
        tokens = _WORD.findall(text)
        words = [token for token in tokens if token[0].isalnum()]
        size = max(1, len(text))
        rows.append(
            [
                math.log1p(len(prompt)),
                math.log1p(len(tokens)),
                math.log1p(text.count("\n")),
                sum(map(str.isdigit, text)) / size,
                sum(map(str.isupper, text)) / size,
                sum(not c.isalnum() and not c.isspace() for c in text) / size,
                sum(map(len, words)) / max(1, len(words)),
                len(set(tokens)) / max(1, len(tokens)),
                math.log1p(len(_NUMBER.findall(text))),
                math.log1p(sum(c in "=+-*/^\\{}()" for c in text)),
                math.sqrt(max(len(part.split()) for part in _SENTENCE.split(text))),
            ]
        )
    return np.array(rows, dtype=float).reshape(-1, SHAPES)


def word_counts(prompts: Sequence[str]) -> Any:
    """Return a row per prompt with the dampened counts of its words in `BUCKETS` signed hash buckets.

    Feature hashing: Weinberger et al., "Feature Hashing for Large Scale Multitask Learning", ICML (2009).
    """
    import numpy as np

    rows = np.zeros((len(prompts), BUCKETS))
    for row, prompt in zip(rows, prompts, strict=True):
        counts: dict[str, int] = {}
        for word in _WORD.findall(prompt[:_READ].lower()):
            counts[word] = counts.get(word, 0) + 1
        for word, count in counts.items():
            place = crc32(word.encode("utf-8", "surrogatepass"))
            row[place % BUCKETS] += (1 + math.log(count)) * (1 if place >> 20 & 1 else -1)
    return rows


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scaling:
    """Converts raw features to columns of a linear model; learned from training prompts only."""

    mean: Any
    scale: Any
    knots: Any
    """A row per quantile: from there on each count has a slope of its own."""
    idf: Any
    """The weight of each bucket of words by its rarity; empty to use counts alone."""

    def columns(self, counts: Any, words: Any, vectors: Any) -> Any:
        """Return a row per prompt, the last column of ones."""
        import numpy as np

        standard = np.clip((counts - self.mean) / self.scale, -_FARTHEST, _FARTHEST)
        parts = [standard, *(np.maximum(0.0, standard - knot) for knot in self.knots)]
        if len(self.idf):
            weighted = words * self.idf
            length = np.linalg.norm(weighted, axis=1, keepdims=True)
            parts.append(_SPREAD * weighted / np.maximum(length, 1e-9))
        if vectors is not None:
            parts.append(_SPREAD * vectors)
        return np.hstack([*parts, np.ones((len(counts), 1))])


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterChoice:
    """The model for a prompt, why, and what was predicted."""

    model: str
    why: str
    predicted: dict[str, float]
    """The probability of success by model."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LearnedRouter:
    """A fitted router, plain numbers only.

    `choose` picks the model with the highest success − cost_weight · price.
    """

    models: tuple[str, ...]
    prices: tuple[float, ...]
    """Average cost of a call per model, in the unit of the data; empty if unknown."""
    cost_weight: float
    """Success that one unit of price is worth; 0 if only success counts."""
    single: str
    """Model that is always chosen, as no gain over it was clear; empty if the router chooses."""
    reason: str
    """The measured gain over the best single model, in words."""
    scaling: Scaling
    weights: Any
    """A column per model."""
    platt: Any
    """Intercept and slope of the logistic calibration, a row per model."""
    embedder: str = ""
    """The name of the word vectors that it was fitted with."""
    measured: dict[str, Any] = field(default_factory=dict)
    """Measurements on held-out prompts, as plain data; see `evals.studies.router_fit`."""
    embed: Embed | None = None

    def predict(self, prompts: Sequence[str]) -> Any:
        """Return the calibrated probability of success, a row per prompt and a column per model."""
        vectors = None if self.embed is None else self.embed(list(prompts))
        columns = self.scaling.columns(prompt_shapes(prompts), word_counts(prompts), vectors)
        return calibrate(columns @ self.weights, self.platt)

    def choose(self, prompt: str) -> RouterChoice:
        """Return the model for a prompt: the best value, or `single` if set."""
        found = [float(p) for p in self.predict([prompt])[0]]
        predicted = dict(zip(self.models, found, strict=True))
        if self.single:
            return RouterChoice(
                model=self.single, why=f"the single model: {self.reason}", predicted=predicted
            )
        prices = self.prices or (0.0,) * len(found)
        order = sorted(range(len(found)), key=lambda n: self.cost_weight * prices[n] - found[n])
        said = ", ".join(f"{self.models[n]} {found[n]:.2f}" for n in order[:3])
        cost = f", {self.cost_weight:g} of it for one unit of price" if self.cost_weight else ""
        return RouterChoice(
            model=self.models[order[0]], why=f"expected success {said}{cost}", predicted=predicted
        )

    def save(self, path: str | Path) -> Path:
        """Write the router as JSON to `path` and return it."""
        stored = {
            "format": FORMAT,
            **{name: getattr(self, name) for name in _PLAIN},
            **{name: getattr(self.scaling, name).tolist() for name in _SCALING},
            **{name: getattr(self, name).tolist() for name in _NUMBERS},
        }
        file = Path(path)
        file.write_text(json.dumps(stored, allow_nan=False) + "\n", encoding="utf-8")
        return file


_PLAIN = ("models", "prices", "cost_weight", "single", "reason", "embedder", "measured")
_SCALING = ("mean", "scale", "knots", "idf")
_NUMBERS = ("weights", "platt")


def calibrate(raw: Any, platt: Any) -> Any:
    """Return probabilities for raw predictions (Platt scaling, 1999)."""
    import numpy as np

    return 1 / (1 + np.exp(-np.clip(platt[:, 0] + platt[:, 1] * raw, -30, 30)))


def read_router(path: str | Path, embedder: Callable[[], Any] | None = None) -> LearnedRouter:
    """Read a router saved by `save`; `embedder` loads word vectors with the extra `semantic`.

    Raises `UsageError` for an invalid file, and if required word vectors are missing.
    """
    file = Path(path)
    if not file.is_file():
        raise UsageError(f"there is no file of a learned router {str(path)!r}: kestrel router fit makes one")
    try:
        router = _router(loads(file.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        msg = (
            f"{shown_path(file)}: not a learned router ({one_line(str(error), 200)}); kestrel router "
            "fit makes one"
        )
        raise UsageError(msg) from error
    if not router.embedder:
        return router
    embed = None if embedder is None else embedder()
    if embed is None or embed.name != router.embedder:
        raise UsageError(
            f"{shown_path(file)}: the router needs the word vectors {router.embedder}: pip install "
            "'kestrel-lab[semantic]'"
        )
    return replace(router, embed=embed)


def _router(stored: Any) -> LearnedRouter:
    import numpy as np

    if stored["format"] != FORMAT:
        raise ValueError(f"its format is {stored['format']!r}, not {FORMAT!r}")
    numbers = {name: np.array(stored[name], dtype=float) for name in (*_SCALING, *_NUMBERS)}
    models, prices = tuple(map(str, stored["models"])), tuple(map(float, stored["prices"]))
    router = LearnedRouter(
        models=models,
        prices=prices,
        cost_weight=float(stored["cost_weight"]),
        single=str(stored["single"]),
        reason=str(stored["reason"]),
        embedder=str(stored["embedder"]),
        measured=dict(stored["measured"]),
        scaling=Scaling(**{name: numbers[name] for name in _SCALING}),
        weights=numbers["weights"],
        platt=numbers["platt"],
    )
    rows = SHAPES * (1 + len(numbers["knots"])) + len(numbers["idf"]) + 1
    shaped = (
        numbers["weights"].shape[1:] == (len(models),)
        and numbers["platt"].shape == (len(models), 2)
        and len(numbers["idf"]) == BUCKETS
    )
    fits = len(numbers["weights"]) > rows if router.embedder else len(numbers["weights"]) == rows
    if not (shaped and fits and len(set(models)) == len(models) >= 2 and len(prices) in (0, len(models))):
        raise ValueError("its numbers do not fit its models")
    if router.single and router.single not in models:
        raise ValueError(f"its single model {router.single!r} is none of its models")
    return router


def learned_model(
    path: str | Path, choose: Callable[[str], Model], embedder: Callable[[], Any] | None = None
) -> RoutedModel:
    """Return a model that chooses among a learned router's models; `choose` finds them by name.

    A conversation stays with the model chosen for its first question. If the router always takes one model,
    the others are not needed.
    """
    router = read_router(path, embedder)

    def learned(goal: str) -> tuple[str, str]:
        found = router.choose(goal)
        return found.model, found.why

    names = (router.single,) if router.single else router.models
    routes = tuple(Route(kind=name, model=choose(name)) for name in names)
    return RoutedModel(
        name=f"{ROUTER}:{path}", routes=routes[:-1], otherwise=routes[-1].model, learned=learned
    )
