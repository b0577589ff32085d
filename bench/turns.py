"""What one turn of an agent with three tool calls costs, every event of it durable.

The model answers at once and the tool does nothing, so that all the time is the runtime's own.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, cast

from bench.job import CALLS, ENTRY, GOAL, Count, asked, measure_turns, query, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from kestrel_lab.core.calls import Effect

_PURE = "kestrel_lab, pure tools"
_OPAQUE = "kestrel_lab, opaque tools"
_GROWTH = 1.15
"""What counts as no dearer: medians of two runs on a shared machine differ by as much."""


def _ours(name: str, effect: Effect) -> Probe:
    return Probe(rows=(Row(name=name, ours=True),), command=("-m", "bench.turns", effect))


def _peer(name: str, peer: str, *command: str) -> Probe:
    return Probe(rows=(Row(name=name),), command=("-m", *command), peer=peer)


BENCHMARK = Benchmark(
    name="turns",
    title=f"Agent turn with {CALLS} no-op tool calls",
    measures=(
        Measure(key="turn_ms", heading="per turn, 20 turns", unit="ms"),
        Measure(key="cpu_ms", heading="CPU per turn", unit="ms"),
        Measure(key="long_turn_ms", heading="per turn, 100 turns", unit="ms"),
        Measure(key="growth", heading="100 turns to 20"),
    ),
    probes=(
        _ours(_PURE, "pure"),
        _peer("smolagents, nothing kept", "smolagents", "bench.peers.smolagents_turns"),
        _ours(_OPAQUE, "opaque"),
        _peer("pydantic-ai, nothing kept", "pydantic-ai", "bench.peers.pydantic_ai_turns"),
        _peer("LangGraph, SQLite", "langgraph", "bench.peers.langgraph_turns", "async"),
        _peer("LangGraph, SQLite, durability sync", "langgraph", "bench.peers.langgraph_turns", "sync"),
    ),
    targets=(
        Target(row=_PURE, measure="turn_ms", at_most=1.2, meaning="a turn with pure tools"),
        Target(
            row=_PURE, measure="growth", at_most=_GROWTH, meaning="turns of a run of 100 against a run of 20"
        ),
        Target(row=_OPAQUE, measure="growth", at_most=_GROWTH, meaning="the same with opaque tools"),
    ),
    rounds=5,
    notes=(
        "kestrel_lab: all events are on disk (fsync) when a run ends; before an opaque tool begins, "
        "the disk has its intent.",
        "LangGraph keeps checkpoints in SQLite: by default (async) while the next step goes on, with "
        "sync before it.",
        "smolagents and pydantic-ai keep nothing: a crash loses the run.",
    ),
)


def _agent(effect: Effect, home: Path) -> Callable[[int, Count], Callable[[], Awaitable[str]]]:
    from kestrel_lab import Lab, Limits, tool
    from kestrel_lab.core.messages import ModelRequest
    from kestrel_lab.testing import ScriptedModel, Turn

    def agent(turns: int, count: Count) -> Callable[[], Awaitable[str]]:
        @tool(effect=effect)
        async def look_up(topic: str, limit: int) -> str:
            """Find entries.

            Args:
                topic: What about.
                limit: How many at most.
            """
            count.tools += 1
            return ENTRY

        def play(request: ModelRequest) -> Turn:
            count.models += 1
            turn = (len(request.messages) - 2) // (1 + CALLS)
            return "done" if turn == turns else [("look_up", query(turn, place)) for place in range(CALLS)]

        limits = Limits(cycles=None, seconds=None)
        lab = Lab(home / str(turns), ScriptedModel(play), "auto", env={})

        async def once() -> str:
            run = await lab.run(GOAL, tools=[look_up], limits=limits, workspace=home)
            return run.answer

        return once

    return agent


def _check_log(home: Path) -> None:
    """Read the log anew, as after a crash: an event less than there must be ends the program."""
    from kestrel_lab.eventlog.store import SessionStore

    for turns in (20, 100):
        store = SessionStore(home / str(turns) / "kestrel.db")
        for row in store.runs():
            found = len(store.records(row.id))
            if found < turns * (2 + 2 * CALLS):
                sys.exit(f"run {row.id} of {turns} turns has only {found} events in the log")
        store.close()


def main() -> None:
    """Measure kestrel_lab; arguments: effect of the tool, `--quick`, folder."""
    home, quick = asked(sys.argv[1:])
    measured = measure_turns(_agent(cast("Effect", sys.argv[1]), home), quick=quick)
    _check_log(home)
    tell(measured)


if __name__ == "__main__":
    main()
