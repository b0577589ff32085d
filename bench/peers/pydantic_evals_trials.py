"""The trials with pydantic-evals over pydantic-ai."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage
from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import Evaluator, EvaluatorContext

from bench.job import (
    QUICK_TRIALS,
    TRIALS,
    Count,
    asked,
    sum_answer,
    sum_goal,
    summands,
    tell,
    trials_measures,
)

COUNT = Count()


async def play(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
    """Ask for the sum, then tell it."""
    last = messages[-1].parts[-1]
    said = (
        TextPart(f"The sum is {last.content}.")
        if isinstance(last, ToolReturnPart)
        else ToolCallPart("add", summands(str(last.content)))
    )
    return ModelResponse(parts=[said], usage=RequestUsage(input_tokens=20, output_tokens=5))


async def add(x: int, y: int) -> str:
    """Add two numbers.

    Args:
        x: The first.
        y: The second.
    """
    COUNT.tools += 1
    return str(x + y)


@dataclass
class Contains(Evaluator):
    """Whether the answer contains what is expected."""

    def evaluate(self, ctx: EvaluatorContext) -> bool:
        """Judge one answer."""
        return ctx.expected_output in ctx.output


def main() -> None:
    """Measure; arguments: `--quick`, folder."""
    trials = QUICK_TRIALS if asked(sys.argv[1:])[1] else TRIALS
    agent = Agent(FunctionModel(play), tools=[add])

    async def task(goal: str) -> str:
        return (await agent.run(goal)).output

    cases = [
        Case(name=str(number), inputs=sum_goal(number), expected_output=sum_answer(number))
        for number in range(trials)
    ]
    dataset = Dataset(name="bench", cases=cases, evaluators=[Contains()])
    cpu, wall = time.process_time(), time.perf_counter()
    report = dataset.evaluate_sync(task, progress=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    passed = sum(all(judged.value for judged in case.assertions.values()) for case in report.cases)
    tell(trials_measures(trials=trials, passed=passed, tools=COUNT.tools, wall=wall, cpu=cpu))


if __name__ == "__main__":
    main()
