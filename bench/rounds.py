"""Start a benchmark's programs in turn, round by round, so that disturbances hit all alike."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.environments import ROOT, Environment, environment, version
from bench.job import reported
from bench.machine import load
from bench.spec import Benchmark, Probe, Row

_PROGRAM_S = 300
"""A program that takes longer is stopped and reported as failed."""

Say = Callable[[str], None]


@dataclass(kw_only=True, slots=True)
class Samples:
    """What the rounds gave for one row."""

    row: Row
    version: str = ""
    rounds: list[dict[str, float]] = field(default_factory=list)
    """Measures by key, one dictionary a round."""
    missing: str = ""
    """Why there is nothing, if there is not."""

    @property
    def label(self) -> str:
        """The row's name, with the version of a peer behind the peer's own."""
        tool, comma, rest = self.row.name.partition(",")
        return f"{tool} {self.version}{comma}{rest}" if self.version else self.row.name


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A benchmark with all its samples."""

    benchmark: Benchmark
    samples: Mapping[str, Samples]
    """By name of the row, ours first."""
    loads: tuple[float, ...]
    """Load per core before each round."""


def make_environments(benchmarks: list[Benchmark], say: Say) -> dict[str, Environment]:
    """The environments of all peers that the benchmarks need."""
    made = {}
    for peer in sorted({probe.peer for benchmark in benchmarks for probe in benchmark.probes if probe.peer}):
        say(f"environment of {peer} {version(peer)}")
        made[peer] = environment(peer)
        if made[peer].missing:
            say(f"{peer} is not installed: {made[peer].missing}")
    return made


def count_programs(benchmark: Benchmark, rounds: int | None, *, peers: bool) -> int:
    """How many programs `run_rounds` will start."""
    return len([probe for probe in benchmark.probes if peers or not probe.peer]) * (
        1 + (rounds or benchmark.rounds)
    )


def run_rounds(
    benchmark: Benchmark,
    environments: Mapping[str, Environment],
    *,
    rounds: int | None,
    quick: bool,
    work: Path,
    say: Say,
) -> Outcome:
    """Measure; peers without an environment in `environments` are left out.

    The first round is not counted: it compiles and warms what is read from disk. A program that fails is
    not started again, and its rows say why.
    """
    probes = [probe for probe in benchmark.probes if not probe.peer or probe.peer in environments]
    samples = {
        row.name: Samples(row=row) for row in benchmark.rows if any(row in probe.rows for probe in probes)
    }
    for probe in probes:
        for row in probe.rows:
            samples[row.name].version = version(probe.peer) if probe.peer else ""
            if probe.peer and environments[probe.peer].missing:
                samples[row.name].missing = f"not installed: {environments[probe.peer].missing}"
    loads = []
    total = rounds or benchmark.rounds
    for number in range(total + 1):
        loads.append(load())
        for probe in probes:
            say(
                f"{benchmark.name}, {f'round {number} of {total}' if number else 'warming up'}: "
                f"{probe.rows[0].name}"
            )
            if samples[probe.rows[0].name].missing:
                continue
            python = environments[probe.peer].python if probe.peer else Path(sys.executable)
            found = _measure(python, probe, quick=quick or number == 0, work=work)
            for place, row in enumerate(probe.rows):
                if isinstance(found, str):
                    samples[row.name].missing = f"failed: {found}"
                elif number:
                    samples[row.name].rounds.append(found[place])
    return Outcome(benchmark=benchmark, samples=samples, loads=tuple(loads[1:]))


def _measure(python: Path, probe: Probe, *, quick: bool, work: Path) -> list[dict[str, float]] | str:
    """What one program told of its rows, or why it told nothing."""
    with tempfile.TemporaryDirectory(dir=work, ignore_cleanup_errors=True) as folder:
        command = [str(python), *probe.command, *(["--quick"] if quick else []), folder]
        try:
            done = subprocess.run(
                command,
                cwd=folder,
                env=_environ(folder),
                capture_output=True,
                text=True,
                timeout=_PROGRAM_S,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired:
            return f"not done after {_PROGRAM_S} s"
    found = reported(done.stdout)
    if done.returncode == 0 and found is not None and len(found) == len(probe.rows):
        return found
    said = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return said[-1] if said else f"exit code {done.returncode}"


def _environ(home: str) -> dict[str, str]:
    """The environment of a program: no settings of ours or Python's, and a home of its own."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KESTREL_", "PYTHON", "LANG", "LITELLM_", "INSPECT_"))
    }
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "HOME": home,
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "LC_ALL": "C.UTF-8",
    }
