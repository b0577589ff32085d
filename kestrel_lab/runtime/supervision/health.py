"""Health of a dependency: a state machine, a circuit breaker and a budget of restarts.

All of it is arithmetic on an injected clock; `supervisor` and `dependency` wait, probe and restart.

    starting → ready ⇄ degraded → recovering → ready or failed; failed → starting after a new success.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from kestrel_lab.views.formatting import format_duration
from kestrel_lab.views.html.table_view import TableView

Clock = Callable[[], float]
"""Seconds that never run backwards."""
BreakerState = Literal["closed", "open", "half-open"]


class HealthState(StrEnum):
    """The state of a dependency."""

    STARTING = "starting"
    """No call or probe has ended yet."""
    READY = "ready"
    DEGRADED = "degraded"
    """The last call or probe failed; it is still used."""
    RECOVERING = "recovering"
    """It failed too often: the breaker is open, or it is being restarted."""
    FAILED = "failed"
    """It did not recover within its budget."""


TRANSITIONS: dict[HealthState, frozenset[HealthState]] = {
    HealthState.STARTING: frozenset({HealthState.READY, HealthState.DEGRADED}),
    HealthState.READY: frozenset({HealthState.DEGRADED}),
    HealthState.DEGRADED: frozenset({HealthState.READY, HealthState.RECOVERING, HealthState.FAILED}),
    HealthState.RECOVERING: frozenset({HealthState.READY, HealthState.FAILED}),
    HealthState.FAILED: frozenset({HealthState.STARTING}),
}


class IllegalHealthError(RuntimeError):
    """A transition of health that is not allowed: a defect of this program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthPolicy:
    """When a dependency counts as broken, and how often a recovery is tried."""

    failures: int = 3
    """Failures in a row that open the breaker."""
    open_s: float = 5.0
    """Seconds the breaker stays open the first time; doubled each time the trial call after it fails."""
    open_max_s: float = 30.0
    jitter: float = 0.2
    """Up to this share of a window is added at random, so that many sessions do not retry at once."""
    restarts: int = 3
    """Recovery attempts within `restarts_per_s`: restarts, or trial calls where there is no restart."""
    restarts_per_s: float = 600.0

    def window(self, times: int, random: float) -> float:
        """Return the seconds of the `times`-th window in a row, from 1; `random` is from 0 to 1."""
        # The exponent is bounded, because a float overflows after a thousand windows.
        grown: float = min(self.open_s * 2 ** min(times - 1, 60), self.open_max_s)
        return grown * (1 + self.jitter * random)


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthChange:
    """One transition."""

    source: HealthState
    target: HealthState
    reason: str


class CircuitBreaker:
    """A circuit breaker: closed while calls succeed, open for a window after failures, then half-open for one
    trial call.

    A call enters with `admit` and reports with its permit. A permit is void after the next change of state,
    so that calls that began before it no longer count.
    """

    __slots__ = (
        "_clock",
        "_failures",
        "_opened",
        "_policy",
        "_random",
        "_until",
        "permit",
        "probing",
        "state",
    )

    def __init__(self, policy: HealthPolicy, clock: Clock, random: Callable[[], float]) -> None:
        """Begin closed; `random` gives numbers from 0 to 1."""
        self._policy, self._clock, self._random = policy, clock, random
        self.state: BreakerState = "closed"
        """`half-open` from the first call after a window until that call ended."""
        self.permit = 0
        """The permit that a closed breaker gives to every call."""
        self.probing = False
        """Whether the trial call of a half-open breaker is under way."""
        self._failures = self._opened = 0
        self._until = 0.0

    @property
    def retry_in(self) -> float:
        """The seconds left of the window."""
        return max(0.0, self._until - self._clock()) if self.state == "open" else 0.0

    def admit(self) -> int | None:
        """Return a permit for one call, or `None` when no call may be made."""
        if self.state == "open" and self._clock() >= self._until:
            self._turn("half-open")
        if self.state == "closed":
            return self.permit
        if self.state == "open" or self.probing:
            return None
        self.probing = True
        self.permit += 1
        return self.permit

    def success(self, permit: int) -> bool:
        """Record a successful call; returns whether it counts."""
        if permit != self.permit or self.state == "open":
            return False
        self.reset()
        return True

    def failure(self, permit: int) -> bool:
        """Record a failed call; returns whether it counts."""
        if permit != self.permit or self.state == "open":
            return False
        self._failures += 1
        if self.state == "half-open" or self._failures >= self._policy.failures:
            self._opened += 1
            self._until = self._clock() + self._policy.window(self._opened, self._random())
            self._turn("open")
        return True

    def release(self, permit: int) -> None:
        """Record a call that ended without evidence on the dependency."""
        if permit == self.permit and self.probing:
            self._turn("half-open")

    def reset(self) -> None:
        """Close the breaker: the dependency is known to work."""
        self._failures = self._opened = 0
        if self.state != "closed":
            self._turn("closed")

    def _turn(self, state: BreakerState) -> None:
        self.state = state
        self.probing = False
        self.permit += 1


class RestartBudget:
    """A limit of attempts in any window of seconds."""

    __slots__ = ("_clock", "_policy", "_taken")

    def __init__(self, policy: HealthPolicy, clock: Clock) -> None:
        """Begin with all attempts left."""
        self._policy, self._clock = policy, clock
        self._taken: deque[float] = deque()

    @property
    def left(self) -> int:
        """The attempts that may be made now."""
        since = self._clock() - self._policy.restarts_per_s
        while self._taken and self._taken[0] <= since:
            self._taken.popleft()
        return self._policy.restarts - len(self._taken)

    def take(self) -> bool:
        """Use one attempt up; returns whether there was one."""
        if self.left <= 0:
            return False
        self._taken.append(self._clock())
        return True


class DependencyHealth:
    """State, breaker and budget of one dependency; `drain` returns the transitions that reports caused.

    A restartable dependency admits no call between its failure and a successful restart. For others each
    window ends with a trial call, whose failure uses up one attempt of the budget; the breaker goes on trying
    in the state `failed`.
    """

    __slots__ = (
        "_changes",
        "_clock",
        "_random",
        "_restart_at",
        "_state",
        "breaker",
        "budget",
        "policy",
        "reason",
        "restartable",
        "since",
        "was_ready",
    )

    def __init__(
        self, policy: HealthPolicy, clock: Clock, random: Callable[[], float], *, restartable: bool = False
    ) -> None:
        """Begin `starting`."""
        self.policy, self.restartable = policy, restartable
        self._clock, self._random = clock, random
        self.breaker, self.budget = CircuitBreaker(policy, clock, random), RestartBudget(policy, clock)
        self._state = HealthState.STARTING
        self._changes: list[HealthChange] = []
        self._restart_at = clock()
        self.reason = ""
        self.since = clock()
        self.was_ready = False

    @property
    def state(self) -> HealthState:
        """The state, which only reports change."""
        return self._state

    @property
    def restart_in(self) -> float:
        """The seconds until the next restart may begin."""
        return max(0.0, self._restart_at - self._clock())

    @property
    def given_up(self) -> bool:
        """Whether it needs a successful restart before its next call."""
        return self.restartable and self._state in {HealthState.RECOVERING, HealthState.FAILED}

    @property
    def usable(self) -> bool:
        """Whether a call would be admitted."""
        return not (self.given_up or self.breaker.probing or self.breaker.retry_in > 0)

    @property
    def changed(self) -> bool:
        """Whether `drain` would return a transition."""
        return bool(self._changes)

    def drain(self) -> list[HealthChange]:
        """Return the transitions since the last call, in order."""
        changes, self._changes = self._changes, []
        return changes

    def admit(self) -> int | None:
        """Return a permit for one call, or `None` when no call may be made."""
        return None if self.given_up else self.breaker.admit()

    def succeeded(self, permit: int | None = None) -> None:
        """Record a successful call or, without a permit, probe."""
        # A probe that succeeds proves more than our own restarts could.
        if permit is None and self.given_up and self._state is HealthState.FAILED:
            # It was restarted by somebody else.
            self.breaker.reset()
        elif self.given_up or not self._counts(permit, self.breaker.success):
            return
        if self._state is HealthState.FAILED:
            self._go(HealthState.STARTING)
        if self._state is not HealthState.READY:
            self._go(HealthState.READY)

    def failed(self, reason: str, permit: int | None = None) -> None:
        """Record a failed call or, without a permit, probe."""
        tried = self.breaker.state == "half-open"
        if self.given_up or not self._counts(permit, self.breaker.failure):
            return
        self.reason = reason
        if tried:
            # Only trial calls use up attempts: the failures that opened the breaker are counted by it.
            self.budget.take()
        if self._state in {HealthState.STARTING, HealthState.READY}:
            self._go(HealthState.DEGRADED, reason)
        if self.breaker.state != "open":
            return
        if self.budget.left <= 0:
            self._give_up(reason)
        elif self._state is HealthState.DEGRADED:
            self._go(HealthState.RECOVERING, reason)

    def released(self, permit: int) -> None:
        """Record a call that ended without evidence on the dependency."""
        self.breaker.release(permit)

    def restart_begins(self) -> bool:
        """Use up one restart; returns whether it may be made.

        The pause before the next one grows with each.
        """
        if not self.restartable or self._state is not HealthState.RECOVERING or self.restart_in > 0:
            return False
        if self.budget.take():
            # Set before the outcome is known: a restart that hangs must not be repeated at once.
            used = self.policy.restarts - self.budget.left
            self._restart_at = self._clock() + self.policy.window(used, self._random())
            return True
        self._give_up(self.reason)
        return False

    def restart_ended(self, problem: str = "") -> None:
        """Record the end of a restart: success, unless there is a `problem`."""
        if self._state is not HealthState.RECOVERING:
            return
        if not problem:
            self.breaker.reset()
            self._go(HealthState.READY)
            return
        self.reason = problem
        if self.budget.left <= 0:
            self._give_up(problem)

    def _give_up(self, reason: str) -> None:
        if self._state is not HealthState.FAILED:
            self._go(HealthState.FAILED, reason)

    def _counts(self, permit: int | None, report: Callable[[int], bool]) -> bool:
        if permit is None:
            return self.breaker.state == "closed" and report(self.breaker.permit)
        return report(permit)

    def _go(self, target: HealthState, reason: str = "") -> None:
        if target not in TRANSITIONS[self._state]:
            raise IllegalHealthError(f"health cannot go from {self._state} to {target}")
        self._changes.append(HealthChange(source=self._state, target=target, reason=reason))
        self._state = target
        self.since = self._clock()
        if target is HealthState.READY:
            self.was_ready, self.reason = True, ""


_COLUMNS = ("dependency", "kind", "state", "for", "breaker", "tried again in", "restarts left", "reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthRow:
    """The health of one dependency."""

    dependency: str
    kind: str
    state: HealthState
    seconds: float
    """Seconds since the last change of state."""
    breaker: BreakerState
    retry_in_s: float
    """Seconds until the next attempt; 0 when it may be used."""
    restarts_left: int | None
    """`None` where it cannot be restarted."""
    reason: str


class HealthTable(TableView, tuple[HealthRow, ...]):
    """Rows that render as a table."""

    __slots__ = ()
    nothing = "nothing is watched: models are from their first call on"

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and a row of texts per dependency."""
        return _COLUMNS, [_cells(row) for row in self]


def _cells(row: HealthRow) -> tuple[str, ...]:
    again = format_duration(row.retry_in_s) if row.retry_in_s else ""
    left = "" if row.restarts_left is None else str(row.restarts_left)
    return (
        row.dependency,
        row.kind,
        row.state,
        format_duration(row.seconds),
        row.breaker,
        again,
        left,
        row.reason,
    )
