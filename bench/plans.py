"""What a plan of many steps costs beside the steps, by the scheduler alone and as a whole run that is kept in the log."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

from bench.job import Timed, asked, tell, timed
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from kestrel_lab.core.plan import Plan, Step

_SCHEDULER = "kestrel_lab, scheduler alone"
_RUN = "kestrel_lab, whole run"
_STEPS, _EDGES = 1_000, 3_000
_NAPS, _CHAIN, _NAP_S = 12, 3, 0.05

BENCHMARK = Benchmark(
    name="plans",
    title=f"Plan of {_STEPS:,} no-op steps with {_EDGES:,} edges; plan of {_NAPS} steps of {_NAP_S * 1000:.0f} ms",
    measures=(
        Measure(key="step_ms", heading="per no-op step", unit="ms", digits=3),
        Measure(key="cpu_ms", heading="CPU per no-op step", unit="ms", digits=3),
        Measure(key="to_ideal", heading=f"{_NAPS} steps, to {_CHAIN} × {_NAP_S * 1000:.0f} ms"),
    ),
    probes=(
        Probe(rows=(Row(name=_SCHEDULER, ours=True),), command=("-m", "bench.plans", "scheduler")),
        Probe(rows=(Row(name=_RUN, ours=True),), command=("-m", "bench.plans", "run")),
    ),
    targets=(
        Target(row=_SCHEDULER, measure="step_ms", at_most=0.25, meaning="a no-op step"),
        Target(row=_SCHEDULER, measure="to_ideal", at_most=1.1, meaning="steps that take time, against the longest chain"),
        Target(row=_RUN, measure="to_ideal", at_most=1.1, meaning="the same in a whole run"),
    ),
    rounds=5,
    notes=(
        "Building and checking the plan is counted. At most 8 steps run at once, as in every run.",
        "A step of the whole run is a call of a pure tool with all layers around it; all events are on disk (fsync) when the run ends.",
    ),
)


def _wide(call: Callable[..., Step]) -> Plan:
    """Random edges from earlier to later steps, the same each time."""
    from kestrel_lab.core.plan import Plan

    draw, edges = random.Random(7), set[tuple[int, int]]()
    while len(edges) < _EDGES:
        before, after = sorted(draw.sample(range(_STEPS), 2))
        edges.add((before, after))
    needs: dict[int, list[str]] = {n: [] for n in range(_STEPS)}
    for before, after in sorted(edges):
        needs[after].append(f"s{before}")
    return Plan(steps=tuple(call(id=f"s{n}", args={"seconds": 0.0}, depends_on=tuple(needs[n])) for n in range(_STEPS)))


def _naps(call: Callable[..., Step]) -> Plan:
    """Chains of equal length beside each other."""
    from kestrel_lab.core.plan import Plan

    beside = _NAPS // _CHAIN
    steps = (call(id=f"n{n}", args={"seconds": _NAP_S}, depends_on=(f"n{n - beside}",) if n >= beside else ()) for n in range(_NAPS))
    return Plan(steps=tuple(steps))


async def _measure(carry_out: Callable[[Plan], Awaitable[int]], *, runs: int) -> dict[str, float]:
    """Time both plans; `carry_out` returns how many steps really ran."""
    from functools import partial

    from kestrel_lab.core.plan import Step

    async def once(make: Callable[[Callable[..., Step]], Plan], steps: int) -> None:
        ran = await carry_out(make(partial(Step, tool="nap")))
        if ran != steps:
            sys.exit(f"{ran} steps ran, not {steps}")

    wide: Timed = await timed(lambda: once(_wide, _STEPS), runs=runs)
    naps = await timed(lambda: once(_naps, _NAPS), runs=runs)
    return {
        "step_ms": wide.wall * 1000 / _STEPS,
        "cpu_ms": wide.cpu * 1000 / _STEPS,
        "to_ideal": naps.wall / (_CHAIN * _NAP_S),
    }


async def _scheduler(plan: Plan) -> int:
    from kestrel_lab.core.limits import Limits
    from kestrel_lab.engine.scheduler import StepScheduler

    ran = 0

    async def nap(step: Step) -> None:
        nonlocal ran
        seconds = step.args["seconds"]
        if isinstance(seconds, float) and seconds:
            await asyncio.sleep(seconds)
        ran += 1

    await StepScheduler(plan, nap).run_parallel(Limits().steps_at_once)
    return ran


def _runs(home: Path) -> Callable[[Plan], Awaitable[int]]:
    from kestrel_lab import Lab, Limits, tool
    from kestrel_lab.testing import ScriptedModel

    ran = 0

    @tool(danger_level="safe", effect="pure")
    async def nap(seconds: float) -> str:
        """Take time."""
        nonlocal ran
        if seconds:
            await asyncio.sleep(seconds)
        ran += 1
        return "rested"

    lab = Lab(home, ScriptedModel([]), "auto", tools=[nap], env={})

    async def carry_out(plan: Plan) -> int:
        nonlocal ran
        ran = 0
        run = await lab.run("rest", plan=plan, limits=Limits(seconds=None), workspace=home)
        if run.outcome != "complete":
            sys.exit(f"the run ended {run.status}: {run.reason}")
        return ran

    return carry_out


def main() -> None:
    """Measure kestrel_lab; arguments: `scheduler` or `run`, `--quick`, folder."""
    home, quick = asked(sys.argv[1:])
    carry_out = _scheduler if sys.argv[1] == "scheduler" else _runs(home)
    tell(asyncio.run(_measure(carry_out, runs=1 if quick else 5)))


if __name__ == "__main__":
    main()
