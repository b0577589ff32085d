"""What a sandbox adds to each command: `python -m bench.sandbox`. All ways take turns, so that a busy machine is busy for all."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from kestrel_lab.tools.environment import clean_environment
from kestrel_lab.tools.process import run_launched, run_process
from kestrel_lab.tools.sandbox.choose import verdict
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.recipes import bwrap_path, launch_for

COMMAND = ["bash", "--noprofile", "--norc", "-c", "true"]
TARGET_MS = 10.0


def quiet(_: bytes) -> bool:
    """Wants all output and does nothing with it."""
    return True


async def plain(folder: Path) -> None:
    """A child of this process in a group of its own."""
    await run_process(COMMAND, cwd=str(folder), env=clean_environment(), stdout=quiet, stderr=quiet, timeout_s=60)


async def bare(folder: Path) -> None:
    """Bubblewrap with the mounts that everybody needs, started by this process: what no recipe can be faster than."""
    argv = [bwrap_path() or "bwrap", "--unshare-all", "--die-with-parent", "--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev"]
    await run_process([*argv, *COMMAND], cwd=str(folder), env=clean_environment(), stdout=quiet, stderr=quiet, timeout_s=60)


def at(level: Level) -> Callable[[Path], Awaitable[None]]:
    """As the tool `bash` runs commands at that level."""

    async def way(folder: Path) -> None:
        launch = launch_for(level, COMMAND, workspace=folder, env=clean_environment(), sandbox=Sandbox())
        await run_launched(launch, stdout=quiet, stderr=quiet, timeout_s=60)

    return way


async def measure(rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each way, sorted."""
    held = [level for level in Level if not verdict(level, Sandbox())]
    ways: dict[str, Callable[[Path], Awaitable[None]]] = {"plain": plain} | {level.name: at(level) for level in held}
    if bwrap_path():
        ways["bwrap, bare"] = bare
    found: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        for _ in range(rounds):
            for way, run in ways.items():
                began = time.perf_counter()
                await run(folder)
                found[way].append((time.perf_counter() - began) * 1e3)
                await asyncio.sleep(0.05)  # the kernel clears up the namespaces before; an agent's commands come seconds apart
    return {way: sorted(times) for way, times in found.items()}


def main() -> None:
    """Print the milliseconds of each way and what it adds to the plain one."""
    parser = argparse.ArgumentParser(prog="python -m bench.sandbox", description=__doc__)
    parser.add_argument("--rounds", type=int, default=50)
    found = asyncio.run(measure(parser.parse_args().rounds))
    floor, middle = found["plain"][0], statistics.median(found["plain"])
    print(f"{'':12} {'fastest':>8} {'added':>7} {'median':>7} {'added':>7}   milliseconds; target: at most {TARGET_MS:g} added")
    for way, times in found.items():
        median = statistics.median(times)
        print(f"{way:12} {times[0]:8.1f} {times[0] - floor:7.1f} {median:7.1f} {median - middle:7.1f}")


if __name__ == "__main__":
    main()
