"""The plans as graphs of LangGraph; the argument is what is kept: `none`, or `sqlite` for its checkpoints."""

from __future__ import annotations

import asyncio
import itertools
import operator
import sys
from contextlib import AsyncExitStack
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.job import asked, measure_plans, tell

KEPT = sys.argv[1]
FOLDER, QUICK = asked(sys.argv[1:])
Steps = dict[str, tuple[list[str], float]]


class Done(TypedDict):
    """What the steps leave."""

    done: Annotated[list[str], operator.add]


def graph(steps: Steps) -> Any:
    """The plan, one node a step."""
    made = StateGraph(Done)
    needed = {need for needs, _ in steps.values() for need in needs}
    for name, (_, seconds) in steps.items():

        async def nap(_: Done, name: str = name, seconds: float = seconds) -> Done:
            if seconds:
                await asyncio.sleep(seconds)
            return {"done": [name]}

        made.add_node(name, nap)
    for name, (needs, _) in steps.items():
        if len(needs) > 1:
            made.add_edge(needs, name)
        else:
            made.add_edge(needs[0] if needs else START, name)
        if name not in needed:
            made.add_edge(name, END)
    return made


async def main() -> dict[str, float]:
    """Measure; graphs are built and compiled for each run, as plans are."""
    threads = itertools.count()
    async with AsyncExitStack() as stack:
        saver = (
            await stack.enter_async_context(AsyncSqliteSaver.from_conn_string(str(FOLDER / "graph.db")))
            if KEPT == "sqlite"
            else None
        )

        async def carry_out(steps: Steps) -> int:
            app = graph(steps).compile(checkpointer=saver)
            config = {"recursion_limit": len(steps) + 10, "configurable": {"thread_id": str(next(threads))}}
            return len((await app.ainvoke({"done": []}, config))["done"])

        return await measure_plans(carry_out, runs=1 if QUICK else 5)


if __name__ == "__main__":
    tell(asyncio.run(main()))
