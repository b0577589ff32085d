"""Which step of a failed run was decisive: a posterior over steps from forks that succeed with unknown rates.

A fork at step k makes that step and all after it anew. If step s was decisive, forks at steps up to s succeed
with a rate p and those after it with a smaller rate q. Neither is known, so both are integrated out: p and q
have a prior that is 0 where they differ by less than `LEAST_CONTRAST` and grows with the square of their
difference. There are three other hypotheses, and under none of them is a step accused. All forks succeed with
one rate, of which nothing is known: flat. Success falls bit by bit from one step to a later one: evenly,
first fast, or first slowly. Or it falls in two steps that lie apart.

What is said is right by construction on average over these priors: a set with probability .9 holds the
decisive step in 90 % of cases. The last step cannot be distinguished from chance, since no fork
begins after it: where forks at the last step succeed as often as those before, no single step is accused.

The next fork is made where, for what it costs, it is expected to leave least doubt about which steps are in
the set and whether any step was decisive; which step of the set it was counts half. For the search with known
rates see M. Horstein, Sequential transmission using noiseless feedback, IEEE Transactions on Information
Theory 9 (1963).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_CONTRAST: Final = 0.2
"""A smaller fall of the success rate decides nothing that a person could act on."""
LEAST_SPAN: Final = 4
"""Steps over which success falls bit by bit, and at least half of the run. A fall over fewer can hardly be
told from one in a single step, and a set of up to three steps is then no great mistake.
"""
_RATES: Final = tuple((place + 0.5) / 16 for place in range(16))
_PAIRS: Final = tuple((p, q, (p - q) ** 2) for p in _RATES for q in _RATES if p - q >= LEAST_CONTRAST)
_LEAST_FORKS: Final = 4
"""Before so many nothing is said: a prior alone convinces nobody."""
_BENDS: Final = (1.0, 2.5)
"""Powers of the share of the way at which success falls bit by bit: evenly, or first fast or slowly."""
_PLACES: Final = 24
"""At most so many steps at which a fall may begin or end."""


@dataclass(frozen=True, slots=True)
class _Falls:
    """The ways in which success may fall: of each fork, the share of the fall that lies before it."""

    shares: NDArray[Any]
    """A row for each way, those of single steps first; a column for each fork."""
    ends: NDArray[Any]
    """Of each way, the first and the last step that makes it worse."""


@lru_cache(maxsize=8)
def _falls(steps: int) -> _Falls:
    # 20 MB that a run without a blame does not need.
    import numpy as np

    forks = np.arange(1, steps + 1)
    shares = [(forks > step).astype(float) for step in range(1, steps)]
    ends = [(step, step) for step in range(1, steps)]
    for first, last in _spans(steps):
        way = np.clip((forks - first) / (last + 1 - first), 0, 1)
        shares += [way**bend for bend in _BENDS] + [1 - (1 - way) ** bend for bend in _BENDS[1:]]
        shares.append(((forks > first).astype(float) + (forks > last)) / 2)
        ends += [(first, last)] * 2 * len(_BENDS)
    return _Falls(np.array(shares).reshape(len(ends), steps), np.array(ends).reshape(len(ends), 2))


def _spans(steps: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last step of each fall that takes several."""
    stride = max(1, math.ceil(steps / _PLACES))
    least = max(LEAST_SPAN, math.ceil(steps / 2))
    for first in range(1, steps, stride):
        for last in range(first + least - 1, steps, stride):
            yield first, last


@dataclass(slots=True)
class DecisiveStep:
    """What forks have shown of a run of `steps` steps, numbered from 1."""

    steps: int
    flat_before: float = 0.45
    """Prior probability that success does not fall."""
    gradual_before: float = 0.1
    """Prior probability that it falls in several steps or bit by bit; nothing in a run too short for that."""
    none_at_most: float = 0.035
    """Steps are accused where the probability that no single one was decisive is no larger."""
    sure: float = 0.91
    """Probability of the set, and of there being none, at which the search ends: a little above the 90 % that
    is promised, since the search ends in the first lucky moment and rates may differ from their prior.
    """
    largest: int = 3
    """Steps in a set: of more it is not said that one of them was decisive."""
    passed: list[int] = field(init=False)
    failed: list[int] = field(init=False)
    _flat: Any = field(init=False, repr=False)
    """Prior × likelihood of each rate, where success does not fall."""
    _falling: Any = field(init=False, repr=False)
    """Prior × likelihood of each way to fall, a row, and pair of rates."""

    def __post_init__(self) -> None:
        import numpy as np

        self.passed, self.failed = [0] * (self.steps + 1), [0] * (self.steps + 1)
        ways, single = len(_falls(self.steps).ends), self.steps - 1
        gradual = self.gradual_before if ways > single else 0.0
        prior = np.full(ways, (1 - self.flat_before - gradual) / max(1, single))
        prior[single:] = gradual / max(1, ways - single)
        pairs = np.array([weight for _, _, weight in _PAIRS])
        self._falling = np.outer(prior, pairs / pairs.sum())
        self._flat = np.full(len(_RATES), self.flat_before / len(_RATES))

    def add(self, step: int, *, passed: bool) -> None:
        """Add the outcome of a fork at `step`."""
        import numpy as np

        (self.passed if passed else self.failed)[step] += 1
        high, low, _ = np.array(_PAIRS).T
        rates = high - np.outer(_falls(self.steps).shares[:, step - 1], high - low)
        flat = np.array(_RATES)
        self._falling = self._falling * (rates if passed else 1 - rates)
        self._flat = self._flat * (flat if passed else 1 - flat)

    def posterior(self) -> list[float]:
        """Return the probability that no single step was decisive, then that of each step; of the last one it
        is 0.
        """
        flat, ways = self._flat.sum(), self._falling.sum(axis=1)
        single = self.steps - 1
        found = [flat + ways[single:].sum(), *ways[:single], 0.0]
        total = math.fsum(found)
        return [float(weight / total) for weight in found]

    def gradual(self) -> float:
        """Return the probability that success fell in several steps or bit by bit."""
        total = self._flat.sum() + self._falling.sum()
        return float(self._falling[self.steps - 1 :].sum() / total)

    def span(self) -> tuple[int, int]:
        """Return the first and the last step that made it worse, if several did."""
        ways = self._falling[self.steps - 1 :].sum(axis=1)
        ends = _falls(self.steps).ends[self.steps - 1 :]
        if not len(ends):
            return 1, self.steps
        first, last = (ways @ ends) / ways.sum()
        return round(float(first)), round(float(last))

    def curve(self) -> list[float]:
        """Return the success rate of forks at each step, if several steps made it worse; empty in a run
        that is too short for that.
        """
        import numpy as np

        falling = self._falling[self.steps - 1 :]
        if not len(falling):
            return []
        high, low, _ = np.array(_PAIRS).T
        shares = _falls(self.steps).shares[self.steps - 1 :]
        rates = (falling @ high).sum() - (falling @ (high - low)) @ shares
        return [float(rate) for rate in rates / falling.sum()]

    def accused(self) -> tuple[int, ...]:
        """Return the smallest set of steps that holds the decisive one with probability `sure`, the likeliest
        first; empty while there may be none, or where more than `largest` steps are needed.
        """
        none, *steps = self.posterior()
        if none > self.none_at_most:
            return ()
        order = sorted(range(len(steps)), key=lambda place: -steps[place])[: self.largest]
        total = 0.0
        for count, place in enumerate(order, start=1):
            total += steps[place]
            if total >= self.sure:
                return tuple(index + 1 for index in order[:count])
        return ()

    def over(self) -> bool:
        """Whether enough is known to end the search."""
        if sum(self.passed) + sum(self.failed) < _LEAST_FORKS:
            return False
        return bool(self.accused()) or self.posterior()[0] >= self.sure

    def next(self) -> int:
        """Return the step to fork at next: the one that is expected to tell most for its cost."""
        import numpy as np

        high, low, _ = np.array(_PAIRS).T
        ways = self._falling.sum(axis=1)
        # Of each way and fork: how likely the way is, and that the fork passes.
        passing = (self._falling @ high)[:, None] - (self._falling @ (high - low))[:, None] * _falls(
            self.steps
        ).shares
        flat, flat_passing = self._flat.sum(), self._flat @ np.array(_RATES)
        passes = self._classes(flat_passing, passing)
        fails = self._classes(flat - flat_passing, ways[:, None] - passing)
        chances = passes.sum(axis=0), fails.sum(axis=0)
        doubt = chances[0] * self._doubt(passes) + chances[1] * self._doubt(fails)
        known = self._doubt(self._classes(flat, ways[:, None]))
        cost = (self.steps - np.arange(self.steps)) / self.steps
        return int(np.argmax((known - doubt / (chances[0] + chances[1])) / cost)) + 1

    def _classes(self, flat: float, ways: NDArray[Any]) -> NDArray[Any]:
        """Return the weights of what is to be told apart, a row each: flat, bit by bit, and each step."""
        import numpy as np

        single = self.steps - 1
        columns = ways.shape[1]
        return np.vstack([np.full(columns, flat), ways[single:].sum(axis=0), ways[:single]])

    def _doubt(self, classes: NDArray[Any]) -> NDArray[Any]:
        """Return the entropy of the hypotheses by column, in which the steps of the likeliest set differ by
        half.
        """
        import numpy as np

        none, steps = classes[:2], -np.sort(-classes[2:], axis=0)
        likeliest = steps[: self.largest].sum(axis=0, keepdims=True)
        # The search may end without knowing which step of the set it was, though it is good to know.
        apart = _entropy(np.vstack([none, steps]))
        together = _entropy(np.vstack([none, likeliest, steps[self.largest :]]))
        doubt: NDArray[Any] = (apart + together) / 2
        return doubt


def _entropy(weights: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    shares = weights / weights.sum(axis=0)
    entropy: NDArray[Any] = -(shares * np.log(np.where(shares > 0, shares, 1.0))).sum(axis=0)
    return entropy
