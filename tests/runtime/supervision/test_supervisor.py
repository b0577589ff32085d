"""What is watched is probed, restarted and refused as promised; child processes are real."""

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from waits import FOREVER_S, PATIENCE_S

from kestrel_lab.core.errors import DependencyError, UsageError
from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.runtime.supervision.dependency import Dependency, Pace
from kestrel_lab.runtime.supervision.health import DependencyHealth, HealthPolicy, HealthState
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor

QUICK = HealthPolicy(failures=1, open_s=0.05, open_max_s=0.2, jitter=0.0)
ECHO = "import sys\nfor line in sys.stdin: print(line.strip() + ' pong', flush=True)"


@dataclass
class Child:
    """A server of tools in small: a child process that answers lines, can be killed and started again."""

    source: str = ECHO
    starts: int = 0
    process: asyncio.subprocess.Process | None = None
    started: list[asyncio.subprocess.Process] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def start(self) -> None:
        self.at_once += 1
        self.most_at_once = max(self.at_once, self.most_at_once)
        await self.end()
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", self.source, stdin=pipe, stdout=pipe
        )
        self.started.append(self.process)
        self.starts += 1
        self.at_once -= 1

    async def ask(self) -> None:
        """Raises when it does not answer."""
        assert self.process is not None
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self.asking:  # a probe and a test may ask at once
            self.process.stdin.write(b"ping\n")
            await self.process.stdin.drain()
            if await self.process.stdout.readline() != b"ping pong\n":
                msg = "the child has ended"
                raise BrokenPipeError(msg)

    async def end(self) -> None:
        for process in self.started:
            if process.returncode is None:
                process.kill()
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
            await asyncio.sleep(0)  # its transport closes a moment later


@dataclass
class Log:
    """Keeps the changes it is told."""

    changes: list[HealthChanged] = field(default_factory=list)

    def __call__(self, change: HealthChanged) -> None:
        self.changes.append(change)

    @property
    def path(self) -> list[str]:
        """The states gone to."""
        return [change.target for change in self.changes]


async def fine() -> None:
    """A probe that finds nothing wrong."""


def test_a_killed_child_is_restarted() -> None:
    """A child killed with SIGKILL is noticed by its probe, restarted once, and ready again, each state in its
    place.
    """

    async def scene() -> tuple[Child, Log]:
        child, log = Child(), Log()
        await child.start()
        supervisor = RuntimeSupervisor(
            QUICK, interval_s=0.0, probe_timeout_s=PATIENCE_S, restart_timeout_s=PATIENCE_S
        )
        supervisor.subscribe(log)
        supervisor.watch("notes", "mcp", probe=child.ask, restart=child.start)
        await supervisor.ready("notes", timeout=PATIENCE_S)
        assert child.process is not None
        child.process.kill()
        await child.process.wait()
        await supervisor.ready("notes", timeout=PATIENCE_S)
        await child.ask()
        await child.end()
        return child, log

    child, log = asyncio.run(scene())
    assert (child.starts, log.path) == (2, ["ready", "degraded", "recovering", "ready"])
    assert [change.dependency for change in log.changes] == ["notes"] * 4
    assert all(change.kind == "mcp" for change in log.changes)
    assert log.changes[2].reason != ""


def test_a_child_that_dies_each_time_is_given_up() -> None:
    """After three restarts in vain the state is failed; the error names it, its state, why, and that the
    budget is used up.
    """

    async def scene() -> tuple[DependencyError, Child, Log]:
        child, log = Child("import sys; sys.exit(1)"), Log()
        await child.start()
        supervisor = RuntimeSupervisor(
            QUICK, interval_s=0.05, probe_timeout_s=PATIENCE_S, restart_timeout_s=PATIENCE_S
        )
        supervisor.subscribe(log)
        supervisor.watch("notes", "mcp", probe=child.ask, restart=child.start, advice="Look at its own log.")
        with pytest.raises(DependencyError) as caught:
            await supervisor.ready("notes", timeout=FOREVER_S)
        await child.end()
        return caught.value, child, log

    error, child, log = asyncio.run(scene())
    assert (child.starts, log.path) == (4, ["degraded", "recovering", "failed"])
    assert (error.dependency, error.state, error.retry_in_s) == ("notes", "failed", None)
    assert str(error).startswith("mcp notes is failed: ")
    assert str(error).endswith("; its 3 restarts in 10 min 00 s are used up. Look at its own log.")


class Overlapping(Dependency):
    """Mutant: probes and restarts overlap, and each takes the next restart for its own."""

    @asynccontextmanager
    async def _alone(self) -> AsyncIterator[None]:
        self.health._restart_at = 0.0
        yield


async def many_gates(kind: type[Dependency]) -> Child:
    """Twenty gates at once before a dead child."""
    child = Child()
    await child.start()
    clock = time.monotonic
    health = DependencyHealth(QUICK, clock, lambda: 0.0, restartable=True)
    pace = Pace(interval_s=15, probe_timeout_s=PATIENCE_S, restart_timeout_s=PATIENCE_S)
    notes = kind("notes", "mcp", health, pace, clock, Log(), probe=child.ask, restart=child.start, advice="")
    assert child.process is not None
    child.process.kill()
    await child.process.wait()
    gates = (notes.gate(time.monotonic() + PATIENCE_S) for _ in range(20))
    await asyncio.gather(*gates, return_exceptions=True)
    await child.end()
    return child


def test_one_restart_at_a_time() -> None:
    """Twenty gates at once restart a dead child once, never two at a time; a mutant that lets them overlap is
    caught.
    """
    child = asyncio.run(many_gates(Dependency))
    assert (child.starts, child.most_at_once) == (2, 1)
    mutant = asyncio.run(many_gates(Overlapping))
    assert (mutant.starts, mutant.most_at_once) != (2, 1)


def test_a_call_is_refused_while_it_is_restarted() -> None:
    """From the moment it is given up until a restart succeeded no call is let through, and the error says
    why.
    """

    async def scene() -> None:
        begun, go = asyncio.Event(), asyncio.Event()

        async def slow() -> None:
            begun.set()
            await go.wait()

        supervisor = RuntimeSupervisor(QUICK)
        notes = supervisor.watch("notes", "mcp", probe=fine, restart=slow)
        await supervisor.ready("notes", timeout=PATIENCE_S)
        notes.failure(BrokenPipeError("gone"), notes.admit())
        with pytest.raises(
            DependencyError,
            match=r"mcp notes is recovering: BrokenPipeError: gone; it may be tried again at once",
        ):
            notes.admit()
        gate = asyncio.create_task(supervisor.ready("notes", timeout=PATIENCE_S))
        await begun.wait()
        with pytest.raises(DependencyError, match="is being restarted right now"):
            notes.admit()
        go.set()
        await gate
        assert notes.success(notes.admit()) == []

    asyncio.run(scene())


def test_a_restart_that_hangs_has_failed() -> None:
    """It is stopped after its time, counts against the budget, and the gate's error says so."""

    async def scene() -> None:
        supervisor = RuntimeSupervisor(QUICK, restart_timeout_s=0.1)
        supervisor.watch("notes", "mcp", restart=lambda: asyncio.sleep(FOREVER_S)).failure("gone")
        with pytest.raises(
            DependencyError, match=r"is failed: its restart took longer than 0\.1 s; its 3 restarts"
        ):
            await supervisor.ready("notes", timeout=FOREVER_S)

    asyncio.run(scene())


def test_watching_makes_no_task() -> None:
    """Nothing is probed and no task is made until somebody asks."""
    probed: list[int] = []

    async def count() -> None:
        probed.append(1)

    async def scene() -> tuple[int, list[int]]:
        supervisor = RuntimeSupervisor(QUICK)
        before = len(asyncio.all_tasks())
        supervisor.watch("a", "model", probe=count)
        supervisor.watch("b", "model")
        await asyncio.sleep(0)
        made, early = len(asyncio.all_tasks()) - before, [*probed]
        await supervisor.ready("a", timeout=PATIENCE_S)
        return made, early

    assert asyncio.run(scene()) == (0, [])
    assert probed == [1]


def test_the_gate_waits_for_what_comes_up() -> None:
    """Ready comes when all are in order; a probe that never answers counts as a failure; an unknown name is a
    usage error.
    """
    tries = 0

    async def third_time() -> None:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise ConnectionRefusedError

    async def scene() -> None:
        supervisor = RuntimeSupervisor(HealthPolicy(open_s=0.1), probe_timeout_s=0.1)
        supervisor.watch("db", "service", probe=third_time)
        supervisor.watch("hosted", "model")
        await supervisor.ready(timeout=PATIENCE_S)
        assert [row.state for row in supervisor.states()] == ["ready", "starting"]
        supervisor.watch("silent", "service", probe=lambda: asyncio.sleep(FOREVER_S))
        for timeout in (0.3, 3, 30):  # a busy machine may not have probed within the first
            with pytest.raises(DependencyError) as late:
                await supervisor.ready("db", "silent", timeout=timeout)
            if "is starting" not in str(late.value):
                break
        assert re.search(
            r"service silent is (degraded|recovering): no answer to a probe within 0\.1 s", str(late.value)
        )
        with pytest.raises(UsageError, match="did you mean 'hosted'"):
            await supervisor.ready("hostd", timeout=1)

    asyncio.run(scene())


def test_passive_health_and_the_table() -> None:
    """Reports move the state, the table shows it, listeners hear it, and one that fails is told no more and
    harms nobody.
    """
    now = 100.0
    supervisor = RuntimeSupervisor(clock=lambda: now, random=lambda: 0.0)
    log = Log()
    stop = supervisor.subscribe(log)

    def broken(_: HealthChanged) -> None:
        msg = "a bug of the listener"
        raise ValueError(msg)

    supervisor.subscribe(broken)
    assert repr(supervisor.states()) == "nothing is watched: models are from their first call on"
    watched = supervisor.watch("m", "model", advice="Start it.")
    watched.success()
    watched.failure("busy")
    watched.failure("busy")
    now += 7
    watched.failure("<b>down</b>")
    (row,) = supervisor.states()
    assert (row.dependency, row.kind, row.state, row.breaker, row.reason) == (
        "m",
        "model",
        HealthState.RECOVERING,
        "open",
        "<b>down</b>",
    )
    assert (row.retry_in_s, row.restarts_left) == (5.0, None)
    assert "&lt;b&gt;down&lt;/b&gt;" in supervisor._repr_html_()
    assert repr(supervisor.states()).splitlines()[1].split() == [
        "m",
        "model",
        "recovering",
        "0",
        "ms",
        "open",
        "5.0",
        "s",
        "<b>down</b>",
    ]
    assert (
        str(supervisor.error("m"))
        == "model m is recovering: <b>down</b>; it is tried again in 5.0 s. Start it."
    )
    stop()
    stop()
    supervisor.watch("m", "model").success()
    assert log.path == ["ready", "degraded", "recovering"]


def test_threads_share_it() -> None:
    """Eight threads that call at once through a half-open breaker: one is let through, seven are refused."""
    now = 0.0
    supervisor = RuntimeSupervisor(QUICK, clock=lambda: now)
    endpoint = supervisor.watch("m", "model")

    async def scene() -> list[bool]:
        def call() -> bool:
            try:
                endpoint.admit()
            except DependencyError:
                return False
            return True

        return await asyncio.gather(*(asyncio.to_thread(call) for _ in range(8)))

    for _ in range(50):
        endpoint.failure("down")
        now += 1
        assert sum(asyncio.run(scene())) == 1
        endpoint.success(endpoint.health.breaker.permit)
        assert endpoint.health.state is HealthState.READY
