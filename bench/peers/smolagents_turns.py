"""The agent turns with smolagents, which calls its tools in threads and keeps nothing."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

from smolagents import LogLevel, Model, ToolCallingAgent, tool
from smolagents.models import ChatMessage, ChatMessageToolCall, ChatMessageToolCallFunction, MessageRole
from smolagents.monitoring import TokenUsage

from bench.job import CALLS, ENTRY, GOAL, Count, asked, measure_turns, query, tell


class Script(Model):
    """Asks for three tool calls a turn, then ends as this library does: with a call of `final_answer`."""

    def __init__(self, turns: int, count: Count) -> None:
        super().__init__(model_id="script")
        self.turns = turns
        self.count = count
        self.turn = 0

    def generate(self, messages: list[ChatMessage], **_: object) -> ChatMessage:
        """The next turn."""
        self.count.models += 1
        wanted = (
            [("look_up", query(self.turn, place)) for place in range(CALLS)]
            if self.turn < self.turns
            else [("final_answer", {"answer": "done"})]
        )
        calls = [
            ChatMessageToolCall(
                id=f"{self.turn}.{place}",
                type="function",
                function=ChatMessageToolCallFunction(name=name, arguments=arguments),
            )
            for place, (name, arguments) in enumerate(wanted)
        ]
        self.turn += 1
        return ChatMessage(
            role=MessageRole.ASSISTANT, content="", tool_calls=calls, token_usage=TokenUsage(20, 5)
        )


def agent(turns: int, count: Count) -> Callable[[], Awaitable[str]]:
    """What does one run."""

    @tool
    def look_up(topic: str, limit: int) -> str:
        """Find entries.

        Args:
            topic: What about.
            limit: How many at most.
        """
        count.tools += 1
        return ENTRY

    script = Script(turns, count)
    runner = ToolCallingAgent(
        tools=[look_up], model=script, verbosity_level=LogLevel.OFF, max_steps=turns + 2
    )

    async def once() -> str:
        script.turn = 0
        return str(runner.run(GOAL))

    return once


if __name__ == "__main__":
    tell(measure_turns(agent, quick=asked(sys.argv[1:])[1]))
