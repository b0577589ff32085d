"""The two jobs that every tool is given, and how a program under measurement tells what it found.

Only the standard library is used here: these lines run in the environments of the peers, too.
"""

from __future__ import annotations

import asyncio
import gc
import json
import random
import resource
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLS = 3
"""Tool calls of a turn."""
GOAL = "Gather the entries, then say done."
ENTRY = ("an entry of no importance; " * 8)[:200]
"""What the tool of the first job returns."""
TRIALS = 500
"""Trials of the second job."""
QUICK_TRIALS = 100


STEPS, EDGES = 1_000, 3_000
"""Of the plan whose steps do nothing."""
IDEAL_S = 0.15
"""The longest chain of the plans whose steps take time."""


def wide() -> dict[str, list[str]]:
    """What each of many steps waits for: random earlier ones, the same each time."""
    draw, edges = random.Random(7), set[tuple[int, int]]()
    while len(edges) < EDGES:
        before, after = sorted(draw.sample(range(STEPS), 2))
        edges.add((before, after))
    needs: dict[str, list[str]] = {f"s{n}": [] for n in range(STEPS)}
    for before, after in sorted(edges):
        needs[f"s{after}"].append(f"s{before}")
    return needs


def naps(*, uneven: bool) -> dict[str, tuple[list[str], float]]:
    """Four chains of three steps: what each waits for, and its seconds; equal, or long and short."""
    equal = (0.05, 0.05, 0.05)
    chains = (
        ((0.01, 0.05, 0.09), (0.09, 0.01, 0.05), (0.05, 0.09, 0.01), (0.09, 0.05, 0.01))
        if uneven
        else (equal,) * 4
    )
    return {
        f"n{chain}.{place}": ([f"n{chain}.{place - 1}"] if place else [], seconds)
        for chain, naps in enumerate(chains)
        for place, seconds in enumerate(naps)
    }


def query(turn: int, place: int) -> dict[str, Any]:
    """Arguments of a tool call of the first job."""
    return {"topic": f"entry {turn}.{place}", "limit": 5}


def sum_goal(number: int) -> str:
    """Task of one trial of the second job."""
    return f"{number}+{number + 1}"


def sum_answer(number: int) -> str:
    """What its answer must contain."""
    return f"sum is {2 * number + 1}."


def summands(goal: str) -> dict[str, int]:
    """Arguments of its tool call."""
    left, right = goal.split("+")
    return {"x": int(left), "y": int(right)}


@dataclass(slots=True)
class Count:
    """What really happened, to be compared with what had to happen."""

    tools: int = 0
    models: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Timed:
    """Seconds of several runs of one thing, by the clock and of the processor."""

    walls: Sequence[float]
    cpus: Sequence[float]

    @property
    def wall(self) -> float:
        """The median by the clock."""
        return statistics.median(self.walls)

    @property
    def cpu(self) -> float:
        """The median of the processor, all threads together."""
        return statistics.median(self.cpus)


async def timed(once: Callable[[], Awaitable[object]], *, runs: int, warm: int = 1) -> Timed:
    """Time `once`, after it was done `warm` times unmeasured."""
    walls, cpus = [], []
    for number in range(warm + runs):
        gc.collect()
        cpu, wall = time.process_time(), time.perf_counter()
        await once()
        took = time.perf_counter() - wall, time.process_time() - cpu
        if number >= warm:
            walls.append(took[0])
            cpus.append(took[1])
    return Timed(walls=walls, cpus=cpus)


def measure_turns(
    agent: Callable[[int, Count], Callable[[], Awaitable[str]]], *, quick: bool
) -> dict[str, float]:
    """The first job: runs of 20 and 100 turns; `agent(turns, count)` returns a one-run function."""

    async def both() -> dict[str, float]:
        short = await _turns(agent, 20, runs=3 if quick else 10)
        long = await _turns(agent, 100, runs=1 if quick else 3)
        return {
            "turn_ms": short.wall * 1000 / 20,
            "cpu_ms": short.cpu * 1000 / 20,
            "long_turn_ms": long.wall * 1000 / 100,
            "growth": (long.wall / 100) / (short.wall / 20),
        }

    return asyncio.run(both())


async def _turns(
    agent: Callable[[int, Count], Callable[[], Awaitable[str]]], turns: int, *, runs: int
) -> Timed:
    count = Count()
    run = agent(turns, count)
    done = 0

    async def once() -> None:
        nonlocal done
        answer = await run()
        done += 1
        if "done" not in answer:
            sys.exit(f"the run ended with {answer!r}")

    result = await timed(once, runs=runs)
    wanted = Count(tools=turns * CALLS * done, models=(turns + 1) * done)
    if count != wanted:
        sys.exit(f"the job was not done as it should be: {count}, wanted {wanted}")
    return result


def trials_measures(*, trials: int, passed: int, tools: int, wall: float, cpu: float) -> dict[str, float]:
    """What is told of the second job; ends the program when not all of it was done."""
    if (passed, tools) != (trials, trials):
        sys.exit(f"of {trials} trials {passed} passed, with {tools} tool calls")
    return {"trial_ms": wall * 1000 / trials, "cpu_ms": cpu * 1000 / trials, "peak_mb": peak_mb()}


def peak_mb() -> float:
    """Most memory this process has held, in MB of 1024 KB."""
    # Linux: `ru_maxrss` would begin with what the parent process held when it started this one.
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak / 1024**2 if sys.platform == "darwin" else peak / 1024


def tell(*rows: dict[str, float]) -> None:
    """Tell the measuring program what was found: one dictionary for each row the probe announced."""
    print("MEASURED " + json.dumps(rows), flush=True)


def reported(output: str) -> list[dict[str, float]] | None:
    """What a program told, or `None` if it told nothing."""
    lines = [line for line in output.splitlines() if line.startswith("MEASURED ")]
    return json.loads(lines[-1].removeprefix("MEASURED ")) if lines else None


def asked(arguments: Sequence[str]) -> tuple[Path, bool]:
    """The folder to work in and whether to be quick, as `bench.rounds` passes them."""
    return Path(arguments[-1]), "--quick" in arguments


async def measure_plans(
    carry_out: Callable[[dict[str, tuple[list[str], float]]], Awaitable[int]], *, runs: int
) -> dict[str, float]:
    """Time the three plans; `carry_out` gets dependencies and seconds, returns how many ran."""

    async def once(steps: dict[str, tuple[list[str], float]]) -> None:
        ran = await carry_out(steps)
        if ran != len(steps):
            sys.exit(f"{ran} steps ran, not {len(steps)}")

    idle = {name: (needs, 0.0) for name, needs in wide().items()}
    many = await timed(lambda: once(idle), runs=runs)
    even = await timed(lambda: once(naps(uneven=False)), runs=runs)
    uneven = await timed(lambda: once(naps(uneven=True)), runs=runs)
    return {
        "step_ms": many.wall * 1000 / STEPS,
        "cpu_ms": many.cpu * 1000 / STEPS,
        "to_ideal": even.wall / IDEAL_S,
        "uneven": uneven.wall / IDEAL_S,
    }
