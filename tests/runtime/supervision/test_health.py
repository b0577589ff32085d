"""Health as arithmetic: thousands of random lives against the rules in their plainest words, and a mutant for
each rule.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import pytest

from kestrel_lab.runtime.supervision.health import (
    TRANSITIONS,
    CircuitBreaker,
    DependencyHealth,
    HealthPolicy,
    HealthState,
    IllegalHealthError,
    RestartBudget,
)

LIVES = 5_000
"""The rarest transition is first seen in life 4,071; the mutant that is hardest to find is seen in one life
of fifty.
"""
RESTARTS = 2_000
"""Mutants of the budget are seen in seven of eight lives."""
POLICY = HealthPolicy(failures=3, open_s=5, open_max_s=30, jitter=0.5, restarts=3, restarts_per_s=600)
LEGAL = {
    ("starting", "ready"),
    ("starting", "degraded"),
    ("ready", "degraded"),
    ("degraded", "ready"),
    ("degraded", "recovering"),
    ("degraded", "failed"),
    ("recovering", "ready"),
    ("recovering", "failed"),
    ("failed", "starting"),
}


@dataclass
class Reference:
    """The rules for something that is not restarted, written down once more and differently: nothing is kept
    but lists.
    """

    lucky: Iterator[float]
    state: str = "starting"
    streak: list[str] = field(default_factory=list)
    windows: list[float] = field(default_factory=list)
    """Lengths of the windows since it was last closed."""
    until: float = 0.0
    tries: list[float] = field(default_factory=list)
    probe: object | None = None
    era: object = field(default_factory=object)

    def admit(self, now: float) -> object | None:
        if not self.windows:
            return self.era
        if now < self.until or self.probe is not None:
            return None
        self.probe = object()
        return self.probe

    def report(self, now: float, permit: object | None, outcome: str) -> None:
        if permit is None and self.windows:
            return  # a probe in the background changes nothing while the breaker is not closed
        if permit is not None and permit is not (self.probe if self.windows else self.era):
            return
        single = bool(self.windows)
        if outcome == "released":
            self.probe = None
        elif outcome == "good":
            if single:
                self.era = object()
            self.state, self.streak, self.windows, self.probe = "ready", [], [], None
        else:
            self.streak.append(outcome)
            if single and sum(now - at < 600 for at in self.tries) < 3:
                self.tries.append(now)
            self.state = "degraded" if self.state in ("starting", "ready") else self.state
            if single or len(self.streak) == 3:
                self.windows.append(min(5 * 2 ** len(self.windows), 30) * (1 + 0.5 * next(self.lucky)))
                self.until, self.probe, self.era = now + self.windows[-1], None, object()
                if sum(now - at < 600 for at in self.tries) >= 3:
                    self.state = "failed"
                elif self.state == "degraded":
                    self.state = "recovering"


Make = Callable[[Callable[[], float], Callable[[], float]], DependencyHealth]


def sound(clock: Callable[[], float], chance: Callable[[], float]) -> DependencyHealth:
    """Health as it is."""
    return DependencyHealth(POLICY, clock, chance)


def live(make: Make, seed: int) -> set[tuple[str, str]]:
    """One random life, compared with the reference after each step; returns the transitions it saw."""
    dice = random.Random(seed)
    now = 0.0
    chances = [dice.random() for _ in range(60)]
    mine, others = iter(chances), iter(chances)
    health, reference = make(lambda: now, lambda: next(mine)), Reference(others)
    calls: list[tuple[int, object]] = []
    single: list[object] = []
    """Calls that were let through alone and have not ended."""
    path = ["starting"]
    wrong = dice.choice((0.2, 0.6, 0.95))
    for _ in range(dice.randint(5, 40)):
        step = dice.random()
        if step < 0.3:
            now += dice.choice((0.5, 3, 8, 20, 45, 300))
        elif step < 0.65:
            closed = not reference.windows
            wanted, permit = reference.admit(now), health.admit()
            assert (permit is None) == (wanted is None), "let through against the rules, or kept out"
            if permit is not None:
                if not closed:
                    single.append(wanted)
                    assert len(single) == 1, "two calls at once through a half-open breaker"
                calls.append((permit, wanted))
        elif step < 0.9 and calls:
            permit, wanted = dice.choice(calls)
            if dice.random() < 0.9:  # else it reports twice
                calls.remove((permit, wanted))
            single = [one for one in single if one is not wanted]
            outcome = dice.choices(
                ("bad", "good", "released"), (wrong, 0.9 - wrong if wrong < 0.9 else 0.05, 0.1)
            )[0]
            reference.report(now, wanted, outcome)
            {
                "bad": lambda: health.failed("no", permit),
                "good": lambda: health.succeeded(permit),
                "released": lambda: health.released(permit),
            }[outcome]()
        else:
            outcome = "bad" if dice.random() < wrong else "good"
            reference.report(now, None, outcome)
            health.failed("no") if outcome == "bad" else health.succeeded()
        for change in health.drain():
            assert change.source.value == path[-1], "a transition from a state it was not in"
            assert (change.source.value, change.target.value) in LEGAL, "an illegal transition"
            path.append(change.target.value)
        assert health.state.value == path[-1], "a change that nobody was told"
        assert health.state.value == reference.state
        assert health.breaker.retry_in == pytest.approx(
            max(0.0, reference.until - now) if reference.windows else 0.0
        )
    return set(pairwise(path))


def test_thousands_of_lives() -> None:
    """No illegal or silent transition, no call in an open window, never two in a half-open breaker, states as
    the rules say.
    """
    seen: set[tuple[str, str]] = set()
    for seed in range(LIVES):
        seen |= live(sound, seed)
    assert seen == LEGAL, "the lives do not see everything"


class Forgetful(CircuitBreaker):
    """Mutant: the window is over at once."""

    def admit(self) -> int | None:
        self._until = 0.0
        return super().admit()


class Eager(CircuitBreaker):
    """Mutant: a half-open breaker lets everybody through."""

    def admit(self) -> int | None:
        self.probing = False
        return super().admit()


class Gullible(CircuitBreaker):
    """Mutant: what a call from before the last change says still counts."""

    def success(self, permit: int) -> bool:
        return super().success(self.permit)


class Impatient(CircuitBreaker):
    """Mutant: the window does not grow."""

    def failure(self, permit: int) -> bool:
        self._opened = 0
        return super().failure(permit)


class Bypass(DependencyHealth):
    """Mutant: gives up at the first failure, past the table."""

    def failed(self, reason: str, permit: int | None = None) -> None:
        super().failed(reason, permit)
        if self._state is HealthState.DEGRADED:
            self._state = HealthState.FAILED


def with_breaker(kind: type[CircuitBreaker]) -> Make:
    """Health with another breaker."""

    def make(clock: Callable[[], float], chance: Callable[[], float]) -> DependencyHealth:
        health = sound(clock, chance)
        health.breaker = kind(POLICY, clock, chance)
        return health

    return make


@pytest.mark.parametrize(
    "make",
    [
        *map(with_breaker, (Forgetful, Eager, Gullible, Impatient)),
        lambda clock, chance: Bypass(POLICY, clock, chance),
    ],
    ids=["window", "two probes", "late news", "no growth", "bypass"],
)
def test_mutants_are_caught(make: Make) -> None:
    """Each deliberate bug is found within the first thousand lives."""
    with pytest.raises(AssertionError):
        for seed in range(1_000):
            live(make, seed)


def restarts(budget: Callable[[Callable[[], float]], RestartBudget], seed: int) -> None:
    """A random life of something that is restarted: no ten minutes see more than three restarts, and none is
    skipped.
    """
    dice = random.Random(seed)
    now = 0.0
    health = DependencyHealth(POLICY, lambda: now, lambda: 0.0, restartable=True)
    health.budget = budget(lambda: now)
    begun: list[float] = []
    path = ["starting"]
    for _ in range(60):
        now += dice.choice((0.0, 1, 6, 30, 100, 400))
        permit = health.admit()
        given_up = path[-1] in ("recovering", "failed")
        assert (permit is None) >= given_up, "used although given up"
        if path[-1] == "recovering" and health.restart_begins():
            begun.append(now)
            health.restart_ended("" if dice.random() < 0.5 else "it does not come up")
        elif permit is not None:
            health.failed("gone", permit) if dice.random() < 0.8 else health.succeeded(permit)
        for change in health.drain():
            assert (change.source.value, change.target.value) in LEGAL
            path.append(change.target.value)
        room = sum(now - at < 600 for at in begun) < 3
        assert path[-1] != "recovering" or room, "out of restarts and still hoping"
        if path[-1] == "failed":
            assert not health.restart_begins()
            health.succeeded()  # a person brought it back
            path += [change.target.value for change in health.drain()]
            assert path[-2:] == ["starting", "ready"]
    for at in begun:
        assert sum(at <= other < at + 600 for other in begun) <= 3, "more restarts than allowed"


def test_the_restart_budget_is_never_exceeded() -> None:
    """In thousands of random lives no window of ten minutes sees more than three restarts; used up means
    failed.
    """
    for seed in range(RESTARTS):
        restarts(lambda clock: RestartBudget(POLICY, clock), seed)


class Generous(RestartBudget):
    """Mutant: forgets twice as fast."""

    @property
    def left(self) -> int:
        while self._taken and self._taken[0] <= self._clock() - 300:
            self._taken.popleft()
        return self._policy.restarts - len(self._taken)


class Endless(RestartBudget):
    """Mutant: takes nothing off."""

    def take(self) -> bool:
        return True


@pytest.mark.parametrize("kind", [Generous, Endless])
def test_mutant_budgets_are_caught(kind: type[RestartBudget]) -> None:
    """A budget that forgets too fast, or counts nothing, is found."""
    with pytest.raises(AssertionError):
        for seed in range(1_000):
            restarts(lambda clock: kind(POLICY, clock), seed)


def test_the_table_is_closed_and_an_illegal_step_is_a_defect() -> None:
    """The table is what it says here; any other step raises an error that is none of ours, and changes
    nothing.
    """
    assert {
        (source.value, target.value) for source, targets in TRANSITIONS.items() for target in targets
    } == LEGAL
    for source in HealthState:
        for target in HealthState:
            health = sound(lambda: 0.0, lambda: 0.0)
            health._state = source
            if (source.value, target.value) in LEGAL:
                health._go(target)
                assert health.state is target
            else:
                with pytest.raises(IllegalHealthError, match=f"from {source} to {target}"):
                    health._go(target)
                assert (health.state, health.drain()) == (source, [])
    with pytest.raises(AttributeError):
        health.state = HealthState.READY  # type: ignore[misc]


def test_windows_double_up_to_the_cap() -> None:
    """5, 10, 20, 30, 30 … seconds, and up to the given share more at random."""
    assert [POLICY.window(times, 0.0) for times in range(1, 6)] == [5, 10, 20, 30, 30]
    assert [POLICY.window(times, 1.0) for times in (1, 9, 10_000)] == [7.5, 45, 45]
