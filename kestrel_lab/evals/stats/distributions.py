"""Student's t and the binomial distribution, from one function: the regularised incomplete beta function.

Every interval of a suite needs them. scipy, which has them too, would be 143 MB in each installation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

_TINY: Final = 1e-300


def t_below(t: float, df: int) -> float:
    """Return the chance of less than `t` under Student's t distribution with `df` degrees of freedom."""
    if math.isinf(t):
        return float(t > 0)
    tail = incomplete_beta(df / 2, 0.5, df / (df + t * t), t * t / (df + t * t)) / 2
    return tail if t < 0 else 1 - tail


# A suite asks for few probabilities and as many degrees of freedom as it has sizes.
@lru_cache(maxsize=1024)
def t_quantile(probability: float, df: int) -> float:
    """Return the quantile of Student's t distribution with `df` degrees of freedom."""
    if probability < 0.5:
        return -t_quantile(1 - probability, df)
    low, high = 0.0, 1.0
    while t_below(high, df) < probability:
        low, high = high, 2 * high
    while (middle := (low + high) / 2) not in (
        low,
        high,
    ):  # until they are neighbours
        low, high = (middle, high) if t_below(middle, df) < probability else (low, middle)
    return high


def at_most(k: int, n: int, p: float) -> float:
    """Return the chance of at most `k` successes in `n` tries that succeed with the chance `p` each."""
    if k < 0:
        return 0.0
    return 1.0 if k >= n else incomplete_beta(n - k, k + 1, 1 - p, p)


def incomplete_beta(a: float, b: float, x: float, y: float) -> float:
    """Return the regularised incomplete beta function Iₓ(a, b), for positive `a` and `b` and `x` from 0 to 1.

    `y` is 1 - x, which the caller knows to more digits. The result has some 12 digits, in the far tail too.
    """
    if x <= 0 or y <= 0:
        return float(y <= 0)
    # The fraction converges fast on the other side only.
    if x > (a + 1) / (a + b + 2):
        return 1 - incomplete_beta(b, a, y, x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    """Return the continued fraction of the incomplete beta function, by Lentz's method (DLMF 8.17.22)."""
    upper, lower = 1.0, 1.0 / _not_zero(1.0 - (a + b) * x / (a + 1))
    found = lower
    # The continued fraction needs some √max(a, b) terms.
    for m in range(1, 10_000):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            lower = 1.0 / _not_zero(1.0 + term * lower)
            upper = _not_zero(1.0 + term / upper)
            found *= upper * lower
        if abs(upper * lower - 1.0) < 1e-15:
            break
    return found


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
