"""How good a router is: what share of the gap between a weak and a strong model it closes, for each share of
calls to the strong one.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kestrel_lab.core.drawing.matplotlib_figure import escape_mathtext, shown_figure
from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.views.dataframes import unit_frame

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_RESAMPLES: Final = 400


@dataclass(frozen=True, kw_only=True, slots=True)
class RouterCurve:
    """A router's quality by the share of prompts sent to the strong model, in 1 % steps."""

    name: str
    quality: tuple[float, ...]
    """Mean score with 0 %, 1 %, …, 100 % of the prompts at the strong model; the first and last are the
    models alone.
    """
    apgr: Interval
    """Average performance gap recovered: the area under the recovered share of the gap. .5 is what chance
    reaches; with a 95 % bootstrap interval.
    """
    prompts: int

    @property
    def frame(self) -> pd.DataFrame:
        """One row per share: `strong_share`, `quality`, `gap_recovered`."""
        low, high = self.quality[0], self.quality[-1]
        rows = [
            {"strong_share": n / 100, "quality": q, "gap_recovered": (q - low) / (high - low)}
            for n, q in enumerate(self.quality)
        ]
        return unit_frame(rows)

    def share_for(self, recovered: float) -> float:
        """The least share of calls to the strong model (%) that recovers this gap; NaN if none does."""
        low, high = self.quality[0], self.quality[-1]
        return next(
            (n / 100 for n, q in enumerate(self.quality) if (q - low) / (high - low) >= recovered - 1e-12),
            math.nan,
        )

    def __repr__(self) -> str:
        """The router in one line."""
        return (
            f"<router {self.name}: APGR {self.apgr.mean:.3f} ({self.apgr.low:.3f}–{self.apgr.high:.3f}), "
            f"half of the gap with {self.share_for(0.5):.0%} of {self.prompts} prompts at the strong model>"
        )


def router_curve(
    name: str, score: Sequence[float], strong: Sequence[float], weak: Sequence[float], *, seed: int = 0
) -> RouterCurve:
    """The curve of a router that sends prompts with the highest `score` to the strong model first.

    `strong` and `weak` are both models' marks for the same prompts. Prompts of equal score count as if sent
    in random order. The measure is that of Ong et al., "RouteLLM" (2024, arXiv:2406.18665), with the exact
    area in place of one over ten shares. Raises `UsageError` for different lengths, or where the strong model
    is not better.
    """
    import numpy as np  # takes a tenth of a second

    if not len(score) == len(strong) == len(weak) or not len(score):
        msg = (
            f"a router needs a score and two marks for each prompt, not {len(score)}, {len(strong)} "
            f"and {len(weak)}"
        )
        raise UsageError(msg)
    if not all(map(math.isfinite, (*score, *strong, *weak))):
        msg = "a router's scores and the models' marks must be finite numbers"
        raise UsageError(msg)
    points, base, gain = (
        np.asarray(score, float),
        float(np.mean(weak)),
        np.asarray(strong, float) - np.asarray(weak, float),
    )
    if gain.mean() <= 0:
        msg = (
            f"the strong model is not better ({np.mean(strong):.3f}) than the weak one ({base:.3f}): "
            "there is no gap to recover"
        )
        raise UsageError(msg)
    # Prompts of equal score are one step of the curve, straight from end to end: the expectation over random
    # orders.
    _, step_of = np.unique(-points, return_inverse=True)
    steps = int(step_of.max()) + 1

    def curve(chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = np.cumsum(np.bincount(step_of[chosen], minlength=steps)) / len(chosen)
        gains = np.cumsum(np.bincount(step_of[chosen], weights=gain[chosen], minlength=steps)) / len(chosen)
        return np.concatenate([[0.0], shares]), np.concatenate([[0.0], gains])

    def area(chosen: np.ndarray) -> float:
        shares, gains = curve(chosen)
        return float(np.trapezoid(gains / gains[-1], shares)) if gains[-1] > 0 else math.nan

    generator = np.random.default_rng(seed)
    count, everything = len(gain), np.arange(len(gain))
    areas = [area(generator.integers(0, count, count)) for _ in range(_RESAMPLES)]
    low, high = np.nanquantile(areas, [0.025, 0.975])
    quality = base + np.interp(np.linspace(0, 1, 101), *curve(everything))
    return RouterCurve(
        name=name,
        quality=tuple(map(float, quality)),
        apgr=Interval(
            mean=area(everything),
            low=float(low),
            high=float(high),
            se=float(np.nanstd(areas)),
            n=count,
            clusters=count,
        ),
        prompts=count,
    )


def chance_router(count: int, *, seed: int = 0) -> list[float]:
    """Scores without meaning, for a baseline."""
    generator = random.Random(seed)  # no secret
    return [generator.random() for _ in range(count)]


def routers_figure(curves: Sequence[RouterCurve]) -> Figure:
    """Quality over the share of calls to the strong model; the dashed line is what chance reaches."""
    figure = shown_figure()(figsize=(7, 4.5), layout="constrained")
    axes = figure.subplots()
    shares = list(range(101))
    for curve in curves:
        axes.plot(shares, curve.quality, label=escape_mathtext(f"{curve.name} (APGR {curve.apgr.mean:.3f})"))
    if curves:
        axes.plot(
            [0, 100],
            [curves[0].quality[0], curves[0].quality[-1]],
            linestyle="--",
            color="0.5",
            label="chance (APGR 0.500)",
        )
    axes.set_title(f"Routers over {curves[0].prompts:,} prompts" if curves else "No routers")
    axes.set_xlabel("prompts sent to the strong model, %")
    axes.set_ylabel("mean score")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    return figure
