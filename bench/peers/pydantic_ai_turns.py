"""The agent turns with pydantic-ai, which keeps nothing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from pydantic_ai import Agent, ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.usage import RequestUsage, UsageLimits

from bench.job import CALLS, ENTRY, GOAL, Count, asked, measure_turns, query, tell


def agent(turns: int, count: Count) -> Callable[[], Awaitable[str]]:
    """What does one run."""

    async def look_up(topic: str, limit: int) -> str:
        """Find entries.

        Args:
            topic: What about.
            limit: How many at most.
        """
        count.tools += 1
        return ENTRY

    async def play(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        count.models += 1
        turn = (len(messages) - 1) // 2
        # Told, because the library would count the words of the whole conversation otherwise.
        usage = RequestUsage(input_tokens=20, output_tokens=5)
        if turn == turns:
            return ModelResponse(parts=[TextPart("done")], usage=usage)
        calls = [
            ToolCallPart("look_up", query(turn, place), tool_call_id=f"{turn}.{place}")
            for place in range(CALLS)
        ]
        return ModelResponse(parts=calls, usage=usage)

    runner = Agent(FunctionModel(play), tools=[look_up])
    limits = UsageLimits(request_limit=None)

    async def once() -> str:
        return str((await runner.run(GOAL, usage_limits=limits)).output)

    return once


if __name__ == "__main__":
    tell(measure_turns(agent, quick=asked(sys.argv[1:])[1]))
