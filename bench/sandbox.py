"""What a sandbox adds to each command: `python -m bench --only sandbox`.

All ways take turns, so that a busy machine is busy for all.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from bench.job import asked, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target
from kestrel_lab.tools.sandbox.command_lines import bwrap_path, launch_for
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.select import level_problem
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.process import run_launched, run_process

COMMAND = ["bash", "--noprofile", "--norc", "-c", "true"]
_PLAIN, _BARE = "a child process", "bubblewrap, bare"
_LEVELS = {f"kestrel_lab, {level.name}": level for level in (Level.S1, Level.S2, Level.S3)}

BENCHMARK = Benchmark(
    name="sandbox",
    title="A command that does nothing, by how it is held in",
    measures=(
        Measure(key="ms", heading="median", unit="ms", digits=1),
        Measure(key="added_ms", heading="added to a child process", unit="ms", digits=1),
        Measure(key="fastest_ms", heading="fastest", unit="ms", digits=1),
    ),
    probes=(
        Probe(
            rows=(*(Row(name=name, ours=True) for name in _LEVELS), Row(name=_PLAIN), Row(name=_BARE)),
            command=("-m", "bench.sandbox"),
        ),
    ),
    targets=tuple(
        Target(row=name, measure="added_ms", at_most=10, meaning="added to each command") for name in _LEVELS
    ),
    rounds=1,
    notes=(
        "Levels that do not pass their test on this machine are left out.",
        "Bubblewrap with the fewest mounts is what no level can be faster than.",
    ),
    log_scale=False,
)


def quiet(_: bytes) -> bool:
    """Wants all output and does nothing with it."""
    return True


async def plain(folder: Path) -> None:
    """A child of this process in a group of its own."""
    await run_process(
        COMMAND, cwd=str(folder), env=clean_environment(), stdout=quiet, stderr=quiet, timeout_s=60
    )


async def bare(folder: Path) -> None:
    """Bubblewrap with the mounts everybody needs: the lower bound for any recipe's time."""
    argv = [
        bwrap_path() or "bwrap",
        "--unshare-all",
        "--die-with-parent",
        "--ro-bind",
        "/",
        "/",
        "--proc",
        "/proc",
        "--dev",
        "/dev",
    ]
    await run_process(
        [*argv, *COMMAND], cwd=str(folder), env=clean_environment(), stdout=quiet, stderr=quiet, timeout_s=60
    )


def at(level: Level) -> Callable[[Path], Awaitable[None]]:
    """As the tool `bash` runs commands at that level."""

    async def way(folder: Path) -> None:
        launch = launch_for(level, COMMAND, workspace=folder, env=clean_environment(), sandbox=Sandbox())
        await run_launched(launch, stdout=quiet, stderr=quiet, timeout_s=60)

    return way


async def measure(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way that there is here, sorted."""
    ways: dict[str, Callable[[Path], Awaitable[None]]] = {_PLAIN: plain}
    ways |= {name: at(level) for name, level in _LEVELS.items() if not level_problem(level, Sandbox())}
    if bwrap_path():
        ways[_BARE] = bare
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for way, run in ways.items():
            began = time.perf_counter()
            await run(folder)
            found[way].append((time.perf_counter() - began) * 1e3)
            # The kernel clears up the namespaces before; an agent's commands come seconds apart.
            await asyncio.sleep(0.05)
    return {way: sorted(times) for way, times in found.items()}


def main() -> None:
    """Measure; arguments: `--quick`, folder."""
    folder, quick = asked(sys.argv[1:])
    found = asyncio.run(measure(folder.resolve(), 5 if quick else 50))
    middle = {way: statistics.median(times) for way, times in found.items()}
    reported = {
        way: {"ms": middle[way], "added_ms": middle[way] - middle[_PLAIN], "fastest_ms": times[0]}
        for way, times in found.items()
    }
    tell(*(reported.get(row.name, {}) for row in BENCHMARK.probes[0].rows))


if __name__ == "__main__":
    main()
