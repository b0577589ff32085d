"""The trials with Inspect AI and its own mock model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

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
MODEL = "mockllm/model"


@tool
def add() -> Callable[..., Any]:
    """The tool."""

    async def execute(x: int, y: int) -> str:
        """Add two numbers.

        Args:
            x: The first.
            y: The second.
        """
        COUNT.tools += 1
        return str(x + y)

    return execute


def play(messages: list[Any], *_: Any) -> ModelOutput:
    """Ask for the sum, then tell it."""
    last = messages[-1]
    if isinstance(last, ChatMessageTool):
        said = ModelOutput.from_content(MODEL, f"The sum is {last.text}.")
    else:
        said = ModelOutput.for_tool_call(MODEL, "add", summands(last.text))
    # Told, because the mock model would load a tokenizer from the network otherwise.
    said.usage = ModelUsage(input_tokens=20, output_tokens=5, total_tokens=25)
    return said


def main() -> None:
    """Measure; arguments: `--quick`, folder."""
    folder, quick = asked(sys.argv[1:])
    trials = QUICK_TRIALS if quick else TRIALS
    samples = [
        Sample(id=number, input=sum_goal(number), target=sum_answer(number)) for number in range(trials)
    ]
    task = Task(
        dataset=MemoryDataset(samples), solver=[use_tools(add()), generate()], scorer=includes(), name="bench"
    )
    model = get_model(MODEL, custom_outputs=play, memoize=False)
    cpu, wall = time.process_time(), time.perf_counter()
    (log,) = evaluate(task, model=model, display="none", log_dir=str(folder), score_display=False)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if log.results is None:
        sys.exit(f"the evaluation ended with status {log.status}: {log.error}")
    accuracy = log.results.scores[0].metrics["accuracy"].value
    passed = round(accuracy * log.results.completed_samples)
    tell(trials_measures(trials=trials, passed=passed, tools=COUNT.tools, wall=wall, cpu=cpu))


if __name__ == "__main__":
    main()
