"""A watched dependency: it records the results of calls, probes and restarts the dependency, and explains its
errors.

May be used from several threads and event loops at once, as a session may.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from kestrel_lab.core.errors import DependencyError, KestrelError
from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.runtime.supervision.health import Clock, DependencyHealth, HealthRow, HealthState
from kestrel_lab.runtime.supervision.rate_limits import Gate, Throttle, ThrottlePolicy
from kestrel_lab.views.formatting import format_duration

Probe = Callable[[], Awaitable[None]]
"""Raises when the dependency does not work."""
LOOK_S = 0.05
"""Seconds between two checks while another caller probes or restarts the dependency."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Intervals and timeouts of probes and restarts."""

    interval_s: float
    """Seconds that a success counts."""
    probe_timeout_s: float
    restart_timeout_s: float


class Dependency:
    """A watched dependency; `changed` is called with each health change, on the noticing thread."""

    def __init__(
        self,
        name: str,
        kind: str,
        health: DependencyHealth,
        pace: Pace,
        clock: Clock,
        changed: Callable[[HealthChanged], None],
        *,
        probe: Probe | None,
        restart: Probe | None,
        advice: str,
        throttle: Throttle | None = None,
    ) -> None:
        self.turns = Gate(throttle or Throttle(ThrottlePolicy(), clock, lambda: 0.0))
        """The queue of its calls."""
        self.name, self.kind, self.health = name, kind, health
        self._pace, self._clock, self._changed = pace, clock, changed
        self._probe, self._restart, self._advice = probe, restart, advice
        self._heard: float | None = None  # the time of the last success
        # The end of the last probe, and whether it succeeded.
        self._probed = (-math.inf, False)
        self._busy = self._restarting = False
        self._lock = threading.Lock()

    @property
    def now(self) -> float:
        """The time on its clock."""
        return self._clock()

    @property
    def slowed(self) -> str:
        """How it is throttled, for a person; empty where it is not."""
        throttle = self.turns.throttle
        if not throttle.episodes or (throttle.width >= throttle.bound and not throttle.retry_in):
            return ""
        times = "once" if throttle.episodes == 1 else f"{throttle.episodes} times"
        pause = f", next in {format_duration(throttle.retry_in)}" if throttle.retry_in else ""
        return f"it asked to slow down {times}, {throttle.width} calls at once{pause}"

    def admit(self) -> int:
        """Return a permit for one call; raises `DependencyError` when none may be made now."""
        with self._lock:
            # Runs of several event loops and threads share a dependency.
            permit = self.health.admit()
        if permit is None:
            raise self.error()
        return permit

    def success(self, permit: int | None = None) -> list[HealthChanged]:
        """Record the success of a call or, without a permit, of a probe; returns the changes of health."""
        with self._lock:
            self.health.succeeded(permit)
            self._heard = self._clock()
            # The usual case: nothing has changed.
            if not self.health.changed:
                return []
        return self._report_changes()

    def failure(self, error: BaseException | str, permit: int | None = None) -> list[HealthChanged]:
        """Record the failure of a call or, without a permit, of a probe; returns the changes of health."""
        with self._lock:
            self.health.failed(_reason(error), permit)
            self._heard = None
        return self._report_changes()

    def release(self, permit: int) -> None:
        """Record an admitted call that ended without evidence on the dependency."""
        with self._lock:
            self.health.released(permit)

    def row(self) -> HealthRow:
        """Return its health as a row."""
        health = self.health
        with self._lock:
            return HealthRow(
                dependency=self.name,
                kind=self.kind,
                state=health.state,
                seconds=self._clock() - health.since,
                breaker=health.breaker.state,
                retry_in_s=health.restart_in if health.given_up else health.breaker.retry_in,
                restarts_left=health.budget.left if health.restartable else None,
                reason=health.reason or self.slowed,
            )

    def error(self) -> DependencyError:
        """Return its error, which says what is wrong and what to do."""
        row, policy = self.row(), self.health.policy
        again: float | None = row.retry_in_s or LOOK_S
        if row.state is HealthState.FAILED and self.health.restartable:
            when, again = (
                f"its {policy.restarts} restarts in {format_duration(policy.restarts_per_s)} are used up",
                None,
            )
        elif self._restarting:
            when = "it is being restarted right now"
        elif row.breaker == "half-open":
            when = "it is being tried right now"
        elif row.retry_in_s:
            when = f"it is tried again in {format_duration(row.retry_in_s)}"
        else:
            when, again = "it may be tried again at once", 0.0
        what = f"{self.kind} {self.name} is {row.state}" + (
            f": {row.reason.rstrip('.; ')}" if row.reason else ""
        )
        return DependencyError(
            self.name, row.state.value, f"{what}; {when}. {self._advice}".rstrip(), retry_in_s=again
        )

    async def gate(self, until: float) -> None:
        """Return once it works, restarted if needed; raises `DependencyError` at `until` (monotonic)."""
        pause = LOOK_S
        try:
            async with asyncio.timeout(until - time.monotonic()):
                while not await self._in_order():
                    if self.health.state is HealthState.FAILED and self.health.restartable:
                        raise self.error()
                    # From short to a second: a quick start is seen at once, a slow one costs few looks.
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, 1.0)
        except TimeoutError:
            raise self.error() from None

    async def _in_order(self) -> bool:
        """Probe or restart it once, and return whether it works."""
        health = self.health
        if self._restart is not None and health.state is HealthState.RECOVERING:
            await self._recover(self._restart)
            return self.health.state is HealthState.READY
        fresh = self._heard is not None and self._clock() - self._heard < self._pace.interval_s
        if (
            self._probe is not None
            and not (fresh and health.state is HealthState.READY)
            and not await self.look()
        ):
            return False
        return health.usable

    async def look(self) -> bool:
        """Probe it once, if it has a probe, and return whether it works.

        Concurrent callers share one probe.
        """
        if self._probe is None:
            return True
        asked = self._clock()
        async with self._alone():
            at, found = self._probed
            if at < asked:
                found = await self._probe_once(self._probe)
                self._probed = (self._clock(), found)
            return found

    async def _probe_once(self, probe: Probe) -> bool:
        try:
            async with asyncio.timeout(self._pace.probe_timeout_s):
                await probe()
        except TimeoutError as error:
            self.failure(
                str(error) or f"no answer to a probe within {format_duration(self._pace.probe_timeout_s)}"
            )
            return False
        except Exception as error:  # whatever a probe raises is its result  # noqa: BLE001
            self.failure(error)
            return False
        self.success()
        return True

    async def _recover(self, restart: Probe) -> None:
        """Restart and probe it, if it still needs a restart and the budget allows one."""
        async with self._alone():
            with self._lock:
                begins = self._restarting = self.health.restart_begins()
            self._report_changes()
            if not begins:
                return
            problem = "its restart was cancelled"
            try:
                async with asyncio.timeout(self._pace.restart_timeout_s):
                    await restart()
                    if self._probe is not None:
                        await self._probe()
                problem = ""
            except TimeoutError as error:
                problem = (
                    str(error)
                    or f"its restart took longer than {format_duration(self._pace.restart_timeout_s)}"
                )
            except Exception as error:  # any error means that the restart failed  # noqa: BLE001
                problem = _reason(error)
            finally:
                with self._lock:
                    self._restarting = False
                    self.health.restart_ended(problem)
                    self._heard = None if problem else self._clock()
                self._report_changes()

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        """Keep probes and restarts from overlapping across event loops, which a lock of asyncio cannot do."""
        while True:
            with self._lock:
                taken, self._busy = self._busy, True
            if not taken:
                break
            # Polled: nothing can be awaited across event loops.
            await asyncio.sleep(LOOK_S)
        try:
            yield
        finally:
            self._busy = False

    def _report_changes(self) -> list[HealthChanged]:
        with self._lock:
            drained = self.health.drain()
        changes = [
            HealthChanged(
                dependency=self.name,
                kind=self.kind,
                source=c.source.value,
                target=c.target.value,
                reason=c.reason,
            )
            for c in drained
        ]
        for change in changes:
            self._changed(change)
        return changes


def _reason(error: BaseException | str) -> str:
    if isinstance(error, str | KestrelError):
        return one_line(str(error), 300)
    return one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__, 300)
