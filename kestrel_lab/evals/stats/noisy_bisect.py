"""Noisy bisection: which trials to run next to find the first bad commit, and when to stop.

Binary search whose every question is a sequential paired test (`evidence`): is this commit worse than the
good one, or better than the bad one? Rounds of trials are added until one is shown. What is found last is
asked again directly: is this commit worse than the one before it?

How often it is wrong. Where one commit made the metric worse, the commits that a search without mistakes
looks at are settled beforehand, so the chance that any of its questions is answered wrongly is at most the
sum over these questions. Each is asked at `alpha` divided by their greatest number, `ceil(log2 n) + 2` for
`n` commits. So the wrong commit is named with probability `alpha` at most over the whole search, also when
trials serve several questions, when the search is interrupted and taken up again, and wherever the budget
ends.

Where the metric fell in several steps, a commit between two of them is both worse than the good one and
better than the bad one, and a search may end on level ground. The last question shows it: while it is open
the commit before is compared with the good one too, and once that is worse, the search goes on to the left
with it as the bad one. What is named was shown to be worse than the commit before it, whatever the history is
like.

Answers under noise cannot be repeated away one commit at a time without such a division: see R. M. Karp and
R. Kleinberg, Noisy binary search and its applications, SODA 2007. Their methods and posteriors over commits
need the rates of wrong answers, which are not known here; the tests used need not know anything.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

_SHARES: Final = tuple((k - 0.5) / 24 for k in range(1, 25))
"""The stakes of the bets, as parts of the largest stake that cannot lose all."""


class Evidence:
    """The capital of a bet that values between -1 and 1 average more than `margin`.

    Values of one round may have unequal means, as scenarios have: each share is staked on all of them alike,
    and a product of factors with unequal expectations is expected to be no larger than if all had their
    average. So what is tested is the average over scenarios, for these scenarios; trials have to be
    independent of each other.
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
        # The logarithm of a mean of exponentials: the capital itself would overflow.
        largest = max(self._logs)
        self._capital = largest + math.log(
            math.fsum(math.exp(log - largest) for log in self._logs) / len(self._logs)
        )

    @property
    def log_capital(self) -> float:
        """The natural logarithm of the capital; `log(1 / alpha)` or more contradicts "no more than the
        margin".
        """
        return self._capital


Values = Mapping[str, float]
"""A commit's metric in one round, by what was tried; what broke is left out."""
Phase = Literal["ends", "search", "confirm", "found", "narrowed", "no fall"]
"""`narrowed`: what is left between cannot be tried; `no fall`: shown that the last is not worse than the
first by more than the margin.
"""


@dataclass(slots=True)
class _Pair:
    worse: Evidence
    alike: Evidence
    rounds: int = 0


@dataclass(kw_only=True)
class Bisection:
    """The state of a search over commits numbered from 0, which is good, to `last`, which is bad."""

    last: int
    worsening: Callable[[float, float], float]
    """How much worse the second value is than the first: between -1 and 1, and turned around its negative."""
    margin: float = 0.0
    """How much worse is still not worse."""
    even: float | None = None
    """How much worse on average still counts as no fall, where that is shown; `margin` if not given."""
    alpha: float = 0.05
    weights: Mapping[str, float] = field(default_factory=dict)
    """Of what is tried; 1 where none is given."""
    evidence: Callable[[float], Evidence] = Evidence

    def __post_init__(self) -> None:
        self.good, self.bad, self.at = 0, self.last, self.last
        self.end = self.last
        """The commit that others are to be better than."""
        self.phase: Phase = "ends"
        self.skipped: dict[int, str] = {}
        """Commits that cannot be tried, and why."""
        self.decided: dict[int, Literal["good", "bad"]] = {}
        self._rounds: dict[int, list[Values]] = {}
        self._pairs: dict[tuple[int, int], _Pair] = {}

    @property
    def questions(self) -> int:
        """Return the greatest number of questions that the search asks."""
        return 1 if self.last == 1 else math.ceil(math.log2(self.last)) + 2

    @property
    def level(self) -> float:
        """The error probability of each question."""
        return self.alpha / self.questions

    @property
    def over(self) -> bool:
        """Whether there is nothing left to ask."""
        return self.phase in ("found", "narrowed", "no fall")

    def wanted(self) -> list[tuple[int, int]]:
        """The commits to try next, each with the number of its round, from 1; empty when the search is
        over.
        """
        if self.over:
            return []
        # The first commit is always among them: what the others are compared with goes on as they do.
        involved = {0, self.good, self.bad} if self.phase == "confirm" else {0, self.at, self.end}
        number = 1 + min(self.rounds(commit) for commit in involved)
        return [(commit, number) for commit in sorted(involved) if self.rounds(commit) < number]

    def rounds(self, commit: int) -> int:
        """Return how often `commit` was tried."""
        return len(self._rounds.get(commit, ()))

    def add(self, commit: int, values: Values) -> None:
        """Add the next round of `commit`; `advance` draws conclusions."""
        self._rounds.setdefault(commit, []).append(values)

    def skip(self, commit: int, why: str) -> None:
        """Leave out a commit that cannot be tried; not the first or last."""
        self.skipped[commit] = why
        if self.at == commit:
            self._choose()

    def advance(self) -> None:
        """Answer as many questions as the rounds so far allow."""
        while not self.over and self._answer():
            self._choose()

    def seen(self, one: int, other: int) -> float:
        """Return the evidence that `other` is worse than `one`, as the probability of so much evidence where
        it is not.
        """
        return min(1.0, math.exp(-self._pair(one, other).worse.log_capital))

    def _answer(self) -> bool:
        """Answer the current question if that is possible, and return whether it was."""
        enough = math.log(1 / self.level)
        if self.phase == "ends":
            pair = self._pair(0, self.last)
            if pair.worse.log_capital >= enough:
                self.phase = "search"
                return True
            if pair.alike.log_capital >= enough:
                self.phase = "no fall"
            return False
        if self.phase == "confirm":
            if self._pair(self.good, self.bad).worse.log_capital >= enough:
                self.phase = "found" if self.bad - self.good == 1 else "narrowed"
                return True
            if self.good == 0 or self._pair(0, self.good).worse.log_capital < enough:
                return False
            self.decided[self.good] = "bad"
            self.good, self.bad, self.end, self.phase = 0, self.good, self.good, "search"
            return True
        worse = self._pair(0, self.at).worse.log_capital
        better = self._pair(self.at, self.end).worse.log_capital
        if max(worse, better) < enough:
            return False
        if worse >= better:
            self.bad, self.decided[self.at] = self.at, "bad"
        else:
            self.good, self.decided[self.at] = self.at, "good"
        return True

    def _choose(self) -> None:
        """Choose the next question: the middle one of the commits that can be tried, so that skipped ones
        cost no questions.
        """
        if self.phase != "search":
            return
        left = [commit for commit in range(self.good + 1, self.bad) if commit not in self.skipped]
        if left:
            self.at = left[len(left) // 2]
        else:
            self.phase = "confirm"

    def _pair(self, one: int, other: int) -> _Pair:
        """Return the evidence about two commits with all rounds so far; evidence that sufficed once is
        final.
        """
        pair = self._pairs.get((one, other))
        if pair is None:
            pair = self._pairs[one, other] = _Pair(
                worse=self.evidence(self.margin),
                alike=self.evidence(-(self.margin if self.even is None else self.even)),
            )
        enough = math.log(1 / self.level)
        for number in range(pair.rounds, min(self.rounds(one), self.rounds(other))):
            first, second = self._rounds[one][number], self._rounds[other][number]
            moved = [
                (self.worsening(first[key], second[key]), self.weights.get(key, 1.0))
                for key in first
                if key in second
            ]
            # What sufficed once stays: further rounds must not take a decision back.
            if pair.worse.log_capital < enough:
                pair.worse.add(moved)
            if pair.alike.log_capital < enough:
                pair.alike.add((-value, weight) for value, weight in moved)
            pair.rounds = number + 1
        return pair
