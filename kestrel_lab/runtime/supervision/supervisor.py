"""Watches what runs depend on: hears of real calls, probes, restarts, and says no while something is not in order.

Nothing runs in the background unless `start` (or `async with`) says so: without it health follows from
calls alone, and `ready` probes and restarts by itself.
"""

from __future__ import annotations

import asyncio
import logging
import random as _random
import time
from collections.abc import Callable
from typing import Self

from kestrel_lab.core.errors import DependencyError, UsageError, nearest
from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.runtime.supervision.concurrency import Throttle, ThrottlePolicy
from kestrel_lab.runtime.supervision.dependency import Dependency, Pace, Probe
from kestrel_lab.runtime.supervision.health import Clock, DependencyHealth, HealthPolicy, HealthTable

HealthListener = Callable[[HealthChanged], None]


class RuntimeSupervisor:
    """Health of model endpoints, servers of tools and whatever else is watched; safe to use from several threads.

        async with RuntimeSupervisor() as supervisor:
            supervisor.watch("notes", "mcp", probe=ping, restart=spawn)
            await supervisor.ready("notes", timeout=30)

    A restart is made on the event loop that notices the need: that of `start`, else that of `ready`.
    """

    def __init__(
        self,
        policy: HealthPolicy | None = None,
        *,
        interval_s: float = 15.0,
        probe_timeout_s: float = 5.0,
        restart_timeout_s: float = 60.0,
        patience_s: float = 60.0,
        clock: Clock = time.monotonic,
        random: Callable[[], float] = _random.random,
    ) -> None:
        """Watch nothing yet.

        Args:
            policy: Of dependencies that bring none of their own.
            interval_s: Seconds between two probes in the background; also how long good news counts in `ready`.
            probe_timeout_s: A probe without an answer for so long has failed.
            restart_timeout_s: A restart that takes longer has failed.
            patience_s: How long a run waits for a model that worked before; 0 for not at all.
            clock: Seconds that never run backwards.
            random: Numbers from 0 to 1, for jitter.
        """
        self.policy, self.patience_s = policy or HealthPolicy(), patience_s
        self._pace = Pace(interval_s=interval_s, probe_timeout_s=probe_timeout_s, restart_timeout_s=restart_timeout_s)
        self._clock, self._random = clock, random
        self._watched: dict[str, Dependency] = {}
        self._listeners: list[HealthListener] = []
        self._tasks: dict[str, asyncio.Task[None]] | None = None

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
        """Watch `name` from now on, with nothing known of it; one of that name that is watched already is forgotten.

        Once started, call it on the event loop of `start`.

        Args:
            name: What errors and tables call it.
            kind: What it is: `model`, `mcp`, …
            probe: Raises when it is not in order. It must be harmless and cost nothing.
            restart: Has it back, or raises. Then it is not used from the moment it is given up until a restart succeeded.
            policy: The supervisor's by default.
            advice: What a person is to do when it does not work, as a sentence.
        """
        health = DependencyHealth(policy or self.policy, self._clock, self._random, restartable=restart is not None)
        self.unwatch(name)
        throttle = Throttle(ThrottlePolicy(), self._clock, self._random)
        watched = Dependency(
            name, kind, health, self._pace, self._clock, self._changed, probe=probe, restart=restart, advice=advice, throttle=throttle
        )
        self._watched[name] = watched
        self._attend(watched)
        return watched

    def unwatch(self, name: str) -> None:
        """Watch `name` no more; a name that is not watched is fine."""
        self._watched.pop(name, None)
        if self._tasks is not None and (task := self._tasks.pop(name, None)) is not None:
            task.cancel()

    @property
    def watched(self) -> tuple[Dependency, ...]:
        """Everything watched."""
        return tuple(self._watched.values())

    def get(self, name: str) -> Dependency | None:
        """What is watched under that name."""
        return self._watched.get(name)

    async def start(self) -> Self:
        """Probe and restart in the background, on the running event loop, until `stop`; again does nothing."""
        if self._tasks is None:
            self._tasks = {}
            for watched in tuple(self._watched.values()):
                self._attend(watched)
        return self

    async def stop(self) -> None:
        """End the background work and wait until it has ended; a restart under way is cancelled."""
        tasks, self._tasks = [*(self._tasks or {}).values()], None
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def ready(self, *names: str, timeout: float) -> None:  # noqa: ASYNC109  # a gate's deadline is part of what it says
        """Return once all of `names` (everything watched, when there are none) are in order.

        Probes what was not heard of lately, and restarts within the budget what is down, unless that goes on
        in the background. What has neither a probe nor bad news counts as in order. Raises `DependencyError`
        for the first one that is not in order after `timeout` seconds, or cannot be any more.
        """
        wanted = [self._known(name) for name in names] or [*self._watched.values()]
        until, attended = time.monotonic() + timeout, self._tasks is not None
        for found in await asyncio.gather(*(one.gate(until, attended=attended) for one in wanted), return_exceptions=True):
            if found is not None:
                raise found

    async def look(self) -> HealthTable:
        """Probe once everything that can be probed, and return how all of it stands."""
        await asyncio.gather(*(watched.look() for watched in tuple(self._watched.values())))
        return self.states()

    def error(self, name: str) -> DependencyError:
        """What is wrong with `name` now and what to do, to be raised."""
        return self._known(name).error()

    def states(self) -> HealthTable:
        """Everything watched, as it stands."""
        return HealthTable(watched.row() for watched in tuple(self._watched.values()))

    def subscribe(self, listener: HealthListener) -> Callable[[], None]:
        """Tell `listener` of every change from now on, on the thread that notices it; returns what ends that."""
        self._listeners.append(listener)

        def end() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return end

    def __repr__(self) -> str:
        return repr(self.states())

    def _repr_html_(self) -> str:
        return self.states()._repr_html_()

    def _known(self, name: str) -> Dependency:
        if (watched := self._watched.get(name)) is None:
            msg = f"nothing is watched under the name {name!r}: {nearest(name, self._watched)}"
            raise UsageError(msg)
        return watched

    def _attend(self, watched: Dependency) -> None:
        if self._tasks is not None:
            self._tasks[watched.name] = asyncio.get_running_loop().create_task(watched.attend(), name=f"kestrel watches {watched.name}")

    def _changed(self, change: HealthChanged) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(change)
            except Exception:  # whoever looks on must not break what is watched
                self._listeners.remove(listener)
                logging.getLogger(__name__).exception("a listener of the supervisor failed and is told no more")
