"""E-values: anytime-valid evidence against "no worse than the margin", updated trial by trial.

A test by betting: a gambler starts with 1 and stakes a share of the capital on each next value being above the
margin. Where the values do not average more than the margin, no way of staking is expected to win, so by Ville's
inequality the capital ever reaches `1 / alpha` with probability `alpha` at most, however often one looks and
whenever one stops. The stakes here are a uniform mixture over shares from small to all, so that neither a small
nor a large difference has to be known before.

Sources: J. Ville, Étude critique de la notion de collectif (1939); I. Waudby-Smith and A. Ramdas, Estimating means
of bounded random variables by betting, J. R. Statist. Soc. B 86 (2024) 1-27; A. Ramdas, P. Grünwald, V. Vovk and
G. Shafer, Game-theoretic statistics and safe anytime-valid inference, Statistical Science 38 (2023) 576-601.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from typing import Final

_SHARES: Final = tuple((k - 0.5) / 24 for k in range(1, 25))
"""The stakes of the bets, as parts of the largest stake that cannot lose all."""


class Evidence:
    """The capital of a bet that values between -1 and 1 average more than `margin`.

    Values of one round may have unequal means, as scenarios have: each share is staked on all of them alike, and a
    product of factors with unequal expectations is expected to be no larger than if all had their average. So what
    is tested is the average over scenarios, for these scenarios; trials have to be independent of each other.
    """

    def __init__(self, margin: float = 0.0) -> None:
        self._margin = margin
        self._stakes = tuple(share / (1 + margin) for share in _SHARES)
        self._logs = [0.0] * len(_SHARES)
        self._capital = 0.0

    def add(self, values: Iterable[tuple[float, float]]) -> None:
        """Bet on further values, each with its weight between 0 and 1."""
        for (value, weight), times in Counter(values).items():
            gain = weight * (value - self._margin)
            if gain:
                for place, stake in enumerate(self._stakes):
                    self._logs[place] += times * math.log1p(stake * gain)
        largest = max(self._logs)
        self._capital = largest + math.log(math.fsum(math.exp(log - largest) for log in self._logs) / len(self._logs))

    @property
    def log_capital(self) -> float:
        """The natural logarithm of the capital; `log(1 / alpha)` or more contradicts "no more than the margin"."""
        return self._capital
