"""The supervisor of dependencies: health from calls and probes, restarts, and a gate for runs.

Nothing runs in the background: health follows from calls, and `ready` probes and restarts.
"""

from __future__ import annotations

import asyncio
import logging
import random as _random
import time
from collections.abc import Callable, Iterable

from kestrel_lab.core.errors import DependencyError, UsageError, did_you_mean, stops_task
from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.runtime.supervision.dependency import Dependency, Pace, Probe
from kestrel_lab.runtime.supervision.health import Clock, DependencyHealth, HealthPolicy, HealthTable
from kestrel_lab.runtime.supervision.rate_limits import Throttle, ThrottlePolicy
from kestrel_lab.views.html.table_view import Part, PartsView

HealthListener = Callable[[HealthChanged], None]


class RuntimeSupervisor(PartsView):
    """Health of model endpoints, MCP servers and other dependencies; safe to use from several threads.

        supervisor = RuntimeSupervisor()
        supervisor.watch("notes", "mcp", probe=ping, restart=spawn)
        await supervisor.ready("notes", timeout=30)

    A restart is made on the event loop of `ready`.
    """

    def __init__(
        self,
        policy: HealthPolicy | None = None,
        *,
        interval_s: float = 15.0,
        probe_timeout_s: float = 5.0,
        restart_timeout_s: float = 60.0,
        patience_s: float | None = None,
        clock: Clock = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """Create a supervisor that watches nothing yet.

        Args:
            policy: The policy of dependencies without their own.
            interval_s: Seconds that a success counts in `ready`.
            probe_timeout_s: A probe without an answer for so long has failed.
            restart_timeout_s: A restart that takes longer has failed.
            patience_s: How long a run waits for a model at most, where its own limits allow more; 0 for not
                at all.
            clock: Seconds that never run backwards.
            random: Numbers from 0 to 1, for jitter.
        """
        self.policy, self.patience_s = policy or HealthPolicy(), patience_s
        self._pace = Pace(
            interval_s=interval_s, probe_timeout_s=probe_timeout_s, restart_timeout_s=restart_timeout_s
        )
        self._clock, self._random = clock, random
        self._watched: dict[str, Dependency] = {}
        self._listeners: list[HealthListener] = []

    def watch(
        self,
        name: str,
        kind: str,
        probe: Probe | None = None,
        restart: Probe | None = None,
        *,
        policy: HealthPolicy | None = None,
        advice: str = "",
    ) -> Dependency:
        """Watch `name` from now on; it replaces a watched dependency of that name.

        Args:
            name: Its name in errors and tables.
            kind: Its kind: `model`, `mcp`, …
            probe: Raises when it does not work. It must be harmless and cost nothing.
            restart: Restarts it, or raises. With it, the dependency is not used between its failure and a
                successful restart.
            policy: The supervisor's by default.
            advice: A sentence that says what a person can do when it does not work.
        """
        health = DependencyHealth(
            policy or self.policy, self._clock, self._random, restartable=restart is not None
        )
        throttle = Throttle(ThrottlePolicy(), self._clock, self._random)
        watched = Dependency(
            name,
            kind,
            health,
            self._pace,
            self._clock,
            self._changed,
            probe=probe,
            restart=restart,
            advice=advice,
            throttle=throttle,
        )
        self._watched[name] = watched
        return watched

    def unwatch(self, name: str) -> None:
        """Stop watching `name`; an unknown name does nothing."""
        self._watched.pop(name, None)

    @property
    def watched(self) -> tuple[Dependency, ...]:
        """All watched dependencies."""
        return tuple(self._watched.values())

    def get(self, name: str) -> Dependency | None:
        """Return the dependency of that name."""
        return self._watched.get(name)

    async def ready(self, *names: str, timeout: float) -> None:  # a gate's deadline is part of what it says  # noqa: ASYNC109
        """Return once all of `names` (by default everything watched) work.

        Probes dependencies without a recent success, and restarts within the budget those that are down. A
        dependency without a probe and without failures counts as working. Raises `DependencyError` for the
        first one that does not work after `timeout` seconds, or whose restarts are used up.
        """
        wanted = [self._known(name) for name in names] or [*self._watched.values()]
        until = time.monotonic() + timeout
        for found in await asyncio.gather(*(one.gate(until) for one in wanted), return_exceptions=True):
            if found is not None:
                raise found

    async def look(self) -> HealthTable:
        """Probe everything that has a probe once, and return the health table."""
        await asyncio.gather(*(watched.look() for watched in tuple(self._watched.values())))
        return self.states()

    def error(self, name: str) -> DependencyError:
        """Return the error of `name`, which says what is wrong and what to do."""
        return self._known(name).error()

    def states(self) -> HealthTable:
        """Return the health of everything watched."""
        return HealthTable(watched.row() for watched in tuple(self._watched.values()))

    def subscribe(self, listener: HealthListener) -> Callable[[], None]:
        """Call `listener` with every later change, on the noticing thread; returns the unsubscriber."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def parts(self) -> Iterable[Part]:
        """Return the health of everything watched."""
        return self.states().parts()

    def _known(self, name: str) -> Dependency:
        if (watched := self._watched.get(name)) is None:
            raise UsageError(
                f"no dependency is watched under the name {name!r}: {did_you_mean(name, self._watched)}"
            )
        return watched

    def _changed(self, change: HealthChanged) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except BaseException as error:  # a listener must not break what it listens to
                if stops_task(error):
                    raise
                self._listeners.remove(listener)
                logging.getLogger(__name__).exception("a listener of the supervisor failed and was removed")
