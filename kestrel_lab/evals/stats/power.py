"""Power of comparisons: how often a true difference of some size is found, and the smallest that is found in 80 % of them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.evals.stats.intervals_and_tests import ALPHA, t_quantile

if TYPE_CHECKING:
    import numpy as np

POWER: Final = 0.8
"""How often a difference of the smallest detectable size is found."""
_ENOUGH_STEPS: Final = 20
"""Halvings until a rate is known to more digits than anybody reads."""


def detectable_mean(se: float, df: int, *, alpha: float = ALPHA) -> float:
    """Return the smallest true mean difference that a t test with this standard error finds in 80 % of comparisons.

    By the usual approximation, the sum of the two quantiles times the standard error; `inf` without degrees of freedom.
    """
    if df < 1 or math.isnan(se):
        return math.inf
    return (t_quantile(1 - alpha / 2, df) + t_quantile(POWER, df)) * se


def mcnemar_power(n: int, worse: float, better: float, *, alpha: float = ALPHA) -> float:
    """Return how often McNemar's exact test finds that scenarios got worse, of `n` tried once on each side.

    `worse` and `better` are the chances that a scenario flips to fail and to pass. Exact: summed over all numbers of
    flips. Only the right answer counts, not "improved".
    """
    import numpy as np  # 20 MB that a run without a comparison does not need
    from scipy.special import bdtr, gammaln, xlogy  # type: ignore[import-untyped,unused-ignore]  # as in `stats`

    flips = min(1.0, worse + better)
    if flips <= 0:
        return 0.0
    counts = np.arange(n + 1)
    few = _most_against(n, alpha)
    told = np.where(few >= 0, bdtr(np.maximum(few, 0), counts, better / flips), 0.0)
    log_chance = gammaln(n + 1) - gammaln(counts + 1) - gammaln(n - counts + 1) + xlogy(counts, flips) + xlogy(n - counts, 1 - flips)
    return float(np.sum(np.exp(log_chance) * told))


@lru_cache(maxsize=16)
def _most_against(n: int, alpha: float) -> np.ndarray[Any, Any]:
    """Return for each number of flips up to `n` how many may go the other way for the test to reject; -1 where none may."""
    import numpy as np
    from scipy.special import bdtr  # as in `stats`

    found, few = np.full(n + 1, -1), -1
    for count in range(n + 1):
        while 2 * bdtr(few + 1, count, 0.5) <= alpha:
            few += 1
        while few >= 0 and 2 * bdtr(few, count, 0.5) > alpha:
            few -= 1
        found[count] = few
    return found


def detectable_drop(n: int, flips: float, *, alpha: float = ALPHA) -> float:
    """Return the smallest true drop of a success rate that McNemar's exact test finds in 80 % of comparisons of `n` scenarios.

    `flips` is the share of scenarios that pass on one side only; where a drop must be larger than that to be found, so
    many more flip. Above 1 where even a drop from all to none would not be found.
    """
    if mcnemar_power(n, 1.0, 0.0, alpha=alpha) < POWER:
        return math.inf
    low, high = 0.0, 1.0
    for _ in range(_ENOUGH_STEPS):
        middle = (low + high) / 2
        share = max(flips, middle)
        found = mcnemar_power(n, (share + middle) / 2, (share - middle) / 2, alpha=alpha)
        low, high = (low, middle) if found >= POWER else (middle, high)
    return high
