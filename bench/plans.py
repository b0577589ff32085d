"""What a plan of many steps costs beside the steps: the scheduler alone, and a logged run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.job import EDGES, IDEAL_S, STEPS, asked, measure_plans, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from kestrel_lab.core.plan import Plan, Step

_SCHEDULER = "kestrel_lab, scheduler alone"
_RUN = "kestrel_lab, whole run"

BENCHMARK = Benchmark(
    name="plans",
    title=f"Plan of {STEPS:,} no-op steps with {EDGES:,} edges; plans of 12 steps in 4 chains of "
    f"{IDEAL_S * 1000:.0f} ms",
    measures=(
        Measure(key="step_ms", heading="per no-op step", unit="ms", digits=3),
        Measure(key="cpu_ms", heading="CPU per no-op step", unit="ms", digits=3),
        Measure(key="to_ideal", heading="equal steps, to the ideal"),
        Measure(key="uneven", heading="uneven steps, to the ideal"),
    ),
    probes=(
        Probe(rows=(Row(name=_SCHEDULER, ours=True),), command=("-m", "bench.plans", "scheduler")),
        Probe(rows=(Row(name=_RUN, ours=True),), command=("-m", "bench.plans", "run")),
        Probe(
            rows=(Row(name="LangGraph, nothing kept"),),
            command=("-m", "bench.peers.langgraph_plans", "none"),
            peer="langgraph",
        ),
        Probe(
            rows=(Row(name="LangGraph, SQLite"),),
            command=("-m", "bench.peers.langgraph_plans", "sqlite"),
            peer="langgraph",
        ),
    ),
    targets=(
        Target(row=_SCHEDULER, measure="step_ms", at_most=0.25, meaning="a no-op step"),
        Target(
            row=_SCHEDULER,
            measure="to_ideal",
            at_most=1.1,
            meaning="steps that take time, against the longest chain",
        ),
        Target(
            row=_SCHEDULER,
            measure="uneven",
            at_most=1.1,
            meaning="the same where long and short steps are mixed",
        ),
        Target(row=_RUN, measure="to_ideal", at_most=1.1, meaning="steps that take time, in a whole run"),
        Target(
            row=_RUN, measure="uneven", at_most=1.1, meaning="the same where long and short steps are mixed"
        ),
    ),
    rounds=5,
    notes=(
        "Building and checking the plan is counted. At most 8 steps run at once, as in every run.",
        "LangGraph goes on in lockstep: a layer of steps begins when the one before has ended, hence "
        "the price of uneven steps.",
        "A step of the whole run is a call of a pure tool with all layers around it; all events are on "
        "disk (fsync) when the run ends.",
    ),
)


def _plan(steps: Mapping[str, tuple[Sequence[str], float]]) -> Plan:
    """Calls of a tool that takes as long as it is told."""
    from kestrel_lab.core.plan import Plan, Step

    return Plan(
        steps=tuple(
            Step(id=name, tool="nap", args={"seconds": nap}, depends_on=tuple(needs))
            for name, (needs, nap) in steps.items()
        )
    )


async def _measure(carry_out: Callable[[Plan], Awaitable[int]], *, runs: int) -> dict[str, float]:
    """Time the plans; `carry_out` returns how many steps really ran."""
    return await measure_plans(lambda steps: carry_out(_plan(steps)), runs=runs)


async def _scheduler(plan: Plan) -> int:
    from kestrel_lab.core.run_types import Limits
    from kestrel_lab.runtime.execution.scheduler import StepScheduler

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
