"""What a whole trial costs beside model and tool: loop with one tool call, log, score, row."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.job import QUICK_TRIALS, TRIALS, asked, sum_answer, sum_goal, summands, tell, trials_measures
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from kestrel_lab.core.calls import Effect

_PURE = "kestrel_lab, pure tool"
_OPAQUE = "kestrel_lab, opaque tool"


def _ours(name: str, effect: Effect) -> Probe:
    return Probe(rows=(Row(name=name, ours=True),), command=("-m", "bench.trials", effect))


BENCHMARK = Benchmark(
    name="trials",
    title=f"Whole trial of a suite, {TRIALS} trials with one tool call each",
    measures=(
        Measure(key="trial_ms", heading="per trial", unit="ms"),
        Measure(key="cpu_ms", heading="CPU per trial", unit="ms"),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(
        _ours(_PURE, "pure"),
        Probe(
            rows=(Row(name="pydantic-evals"),),
            command=("-m", "bench.peers.pydantic_evals_trials"),
            peer="pydantic-evals",
        ),
        _ours(_OPAQUE, "opaque"),
        Probe(
            rows=(Row(name="Inspect AI"),), command=("-m", "bench.peers.inspect_ai_trials"), peer="inspect-ai"
        ),
    ),
    targets=(
        Target(row=_PURE, measure="trial_ms", at_most=2.0, meaning="a trial with a pure tool"),
        Target(row=_OPAQUE, measure="trial_ms", at_most=2.0, meaning="a trial with an opaque tool"),
        Target(row=_PURE, measure="peak_mb", at_most=90, meaning="memory"),
        Target(row=_OPAQUE, measure="peak_mb", at_most=90, meaning="memory"),
    ),
    rounds=3,
    notes=(
        "Each tool with its own default number of trials at once: kestrel_lab 4, Inspect AI 10, "
        "pydantic-evals all.",
        "kestrel_lab and Inspect AI keep a log of every trial; pydantic-evals keeps nothing.",
    ),
)


async def _suite(effect: Effect, home: Path, trials: int) -> dict[str, float]:
    from kestrel_lab import Lab, tool
    from kestrel_lab.checks.answer import AnswerContains
    from kestrel_lab.core.messages import ModelRequest

    # `Lab.eval` would load it at its first use; the peers are loaded before the clock, too.
    from kestrel_lab.evals.execution.runner import (
        run_suite,  # noqa: F401
    )
    from kestrel_lab.evals.suite import Scenario, Suite
    from kestrel_lab.testing import ScriptedModel, Turn

    tools = 0

    @tool(effect=effect)
    async def add(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: The first.
            y: The second.
        """
        nonlocal tools
        tools += 1
        return str(x + y)

    def play(request: ModelRequest) -> Turn:
        last = request.messages[-1]
        return [("add", {**summands(last.text)})] if last.role == "user" else f"The sum is {last.text}."

    scenarios = tuple(
        Scenario(
            id=str(number),
            goal=sum_goal(number),
            checks=(AnswerContains(texts=(sum_answer(number),)),),
            tools=("add",),
        )
        for number in range(trials)
    )
    lab = Lab(home / "log", tools=[add], env={})
    cpu, wall = time.process_time(), time.perf_counter()
    result = await lab.eval(Suite(name="bench", scenarios=scenarios), configs={"script": ScriptedModel(play)})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    lab.close()
    passed = sum(row.result["outcome"] == "pass" for row in result.rows)
    return trials_measures(trials=trials, passed=passed, tools=tools, wall=wall, cpu=cpu)


def main() -> None:
    """Measure kestrel_lab; arguments: effect of the tool, `--quick`, folder."""
    home, quick = asked(sys.argv[1:])
    tell(asyncio.run(_suite(cast("Effect", sys.argv[1]), home, QUICK_TRIALS if quick else TRIALS)))


if __name__ == "__main__":
    main()
