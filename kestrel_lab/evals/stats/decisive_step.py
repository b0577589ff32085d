"""Which step of a failed run was decisive: a posterior over steps from forks that succeed with unknown rates.

A fork at step k makes that step and all after it anew. If step s was decisive, forks at steps up to s succeed
with a rate p and those after it with a smaller rate q. Neither is known, so both are integrated out: p and q
have a prior that is 0 where they differ by less than `LEAST_CONTRAST` and grows with the square of their
difference. The other hypothesis is that no single step was decisive: all forks succeed with one rate, of
which nothing is known.

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
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

LEAST_CONTRAST: Final = 0.2
"""A smaller fall of the success rate decides nothing that a person could act on."""
_RATES: Final = tuple((place + 0.5) / 16 for place in range(16))
_PAIRS: Final = tuple((p, q, (p - q) ** 2) for p in _RATES for q in _RATES if p - q >= LEAST_CONTRAST)
_PAIRS_WEIGHT: Final = math.fsum(weight for _, _, weight in _PAIRS)
_LEAST_FORKS: Final = 4
"""Before so many nothing is said: a prior alone convinces nobody."""


@lru_cache(maxsize=1 << 16)
def _two_rates(passed: int, failed: int, passed_after: int, failed_after: int) -> float:
    """Return the chance of these forks, in this order, before and after a decisive step."""
    terms = (
        weight * p**passed * (1 - p) ** failed * q**passed_after * (1 - q) ** failed_after
        for p, q, weight in _PAIRS
    )
    return math.fsum(terms) / _PAIRS_WEIGHT


@lru_cache(maxsize=1 << 14)
def _one_rate(passed: int, failed: int) -> float:
    return math.fsum(p**passed * (1 - p) ** failed for p in _RATES) / len(_RATES)


@dataclass(slots=True)
class DecisiveStep:
    """What forks have shown of a run of `steps` steps, numbered from 1."""

    steps: int
    none_before: float = 0.5
    """Prior probability that no single step was decisive."""
    none_at_most: float = 0.035
    """Steps are accused where the probability that none was decisive is no larger."""
    sure: float = 0.91
    """Probability of the set, and of there being none, at which the search ends: a little above the 90 % that
    is promised, since the search ends in the first lucky moment and rates may differ from their prior.
    """
    largest: int = 3
    """Steps in a set at which the search ends."""
    passed: list[int] = field(init=False)
    failed: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.passed, self.failed = [0] * (self.steps + 1), [0] * (self.steps + 1)

    def add(self, step: int, *, passed: bool) -> None:
        """Add the outcome of a fork at `step`."""
        (self.passed if passed else self.failed)[step] += 1

    def posterior(self) -> list[float]:
        """Return the probability that no single step was decisive, then that of each step; of the last one it
        is 0.
        """
        found = [*self._joint(self.passed, self.failed), 0.0]
        whole = math.fsum(found)
        return [one / whole for one in found]

    def accused(self) -> tuple[int, ...]:
        """Return the smallest set of steps that holds the decisive one with probability `sure`, the likeliest
        first; empty while there may be none.
        """
        none, *steps = self.posterior()
        if none > self.none_at_most:
            return ()
        order = sorted(range(len(steps)), key=lambda place: -steps[place])
        found = 0.0
        for count, place in enumerate(order, start=1):
            found += steps[place]
            if found >= self.sure:
                return tuple(one + 1 for one in order[:count])
        return ()

    def over(self) -> bool:
        """Whether enough is known to end the search."""
        if sum(self.passed) + sum(self.failed) < _LEAST_FORKS:
            return False
        return 0 < len(self.accused()) <= self.largest or self.posterior()[0] >= self.sure

    def next(self) -> int:
        """Return the step to fork at next: the one that is expected to tell most for its cost."""
        known = self._doubt(self._joint(self.passed, self.failed))

        def worth(step: int) -> float:
            outcomes = [self._with(step, passed=passed) for passed in (True, False)]
            chances = [math.fsum(one) for one in outcomes]
            left = sum(
                chance * self._doubt(one) for chance, one in zip(chances, outcomes, strict=True)
            ) / math.fsum(chances)
            return (known - left) / ((self.steps - step + 1) / self.steps)

        return max(range(1, self.steps + 1), key=worth)

    def _with(self, step: int, *, passed: bool) -> list[float]:
        more = [count + (place == step) for place, count in enumerate(self.passed if passed else self.failed)]
        return self._joint(more, self.failed) if passed else self._joint(self.passed, more)

    def _joint(self, passed: Sequence[int], failed: Sequence[int]) -> list[float]:
        """Return prior × likelihood of no decisive step, and of each but the last."""
        successes, failures = sum(passed), sum(failed)
        found = [self.none_before * _one_rate(successes, failures)]
        before, lost = 0, 0
        each = (1 - self.none_before) / max(1, self.steps - 1)
        for step in range(1, self.steps):
            before, lost = before + passed[step], lost + failed[step]
            found.append(each * _two_rates(before, lost, successes - before, failures - lost))
        return found

    def _doubt(self, joint: Sequence[float]) -> float:
        """Return the entropy of the hypotheses, in which the steps of the likeliest set differ by half."""
        none, *steps = joint
        steps.sort(reverse=True)
        largest = steps[: self.largest]
        # The search may end without knowing which step of the set it was, though it is good to know.
        apart = _entropy([none, *steps])
        together = _entropy([none, math.fsum(largest), *steps[self.largest :]])
        return (apart + together) / 2


def _entropy(weights: Sequence[float]) -> float:
    whole = math.fsum(weights)
    return -math.fsum(one / whole * math.log(one / whole) for one in weights if one > 0)
