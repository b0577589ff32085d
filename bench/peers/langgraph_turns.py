"""Agent turns with LangGraph and SQLite checkpoints; the argument is its durability mode."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from bench.job import CALLS, ENTRY, GOAL, Count, asked, measure_turns, query, tell

DURABILITY = sys.argv[1]
FOLDER, QUICK = asked(sys.argv[1:])


class Script(BaseChatModel):
    """Asks for three tool calls a turn, then says it is done."""

    turns: int
    count: Any

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Script:
        """The script knows its tools."""
        return self

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.count.models += 1
        turn = (len(messages) - 1) // (1 + CALLS)
        calls = [
            {"name": "look_up", "args": query(turn, place), "id": f"{turn}.{place}"} for place in range(CALLS)
        ]
        said = AIMessage(content="done") if turn == self.turns else AIMessage(content="", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=said)])

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        return self._generate(messages)


def agent(turns: int, count: Count) -> Callable[[], Awaitable[str]]:
    """What does one run."""

    @tool
    async def look_up(topic: str, limit: int) -> str:
        """Find entries."""
        count.tools += 1
        return ENTRY

    threads = itertools.count()
    kept: dict[str, Any] = {}

    async def once() -> str:
        if not kept:
            saver = AsyncSqliteSaver.from_conn_string(str(FOLDER / f"{turns}.db"))
            kept["saver"] = saver
            kept["agent"] = create_agent(
                Script(turns=turns, count=count), tools=[look_up], checkpointer=await saver.__aenter__()
            )
        thread = next(threads)
        config = {"recursion_limit": 4 * turns + 10, "configurable": {"thread_id": str(thread)}}
        state = await kept["agent"].ainvoke(
            {"messages": [{"role": "user", "content": GOAL}]}, config, durability=DURABILITY
        )
        return str(state["messages"][-1].content)

    return once


if __name__ == "__main__":
    tell(measure_turns(agent, quick=QUICK))
