"""What the agent loop adds to a model behind a network: the same conversation through `Lab.run` and through
litellm alone.

Both ways are taken in turns within one process, on one server, so that they see the same machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.job import ENTRY, GOAL, asked, tell, timed
from bench.server import LATENCY_S, TURNS
from bench.spec import Benchmark, Measure, Probe, Row, Target

_OURS = "kestrel_lab"
_PLAIN = "litellm.acompletion"
_STREAMED = "litellm.acompletion, streamed"
_MODEL = "openai/bench"

BENCHMARK = Benchmark(
    name="loop_overhead",
    title=f"Model call over a local server that takes {LATENCY_S * 1000:.0f} ms, in a run of {TURNS + 1} "
    "calls",
    measures=(
        Measure(key="call_ms", heading="per call", unit="ms"),
        Measure(key="over_plain", heading="over litellm", unit="%", digits=1),
        Measure(key="over_streamed", heading="over litellm, streamed", unit="%", digits=1),
    ),
    probes=(
        Probe(
            rows=(Row(name=_OURS, ours=True), Row(name=_PLAIN), Row(name=_STREAMED)),
            command=("-m", "bench.loop_overhead"),
        ),
    ),
    targets=(
        Target(row=_OURS, measure="over_plain", at_most=5, meaning="over litellm called directly"),
        Target(
            row=_OURS, measure="over_streamed", at_most=5, meaning="over litellm called directly, streamed"
        ),
    ),
    rounds=5,
    notes=(
        "Same server, system message, tools and conversation. kestrel_lab carries out the tools and "
        "logs the run; it does not stream where nobody watches.",
        "The direct calls are a loop by hand: no tool is run, nothing is checked or kept.",
        "A negative number is possible: kestrel_lab hands the conversation to litellm in a form that "
        "it does not walk through.",
    ),
    log_scale=False,
)


@contextmanager
def _server() -> Iterator[str]:
    server = subprocess.Popen(
        [sys.executable, "-m", "bench.server"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    assert server.stdin is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(10)
        server.stdout.close()


async def _measure(home: Path, address: str, runs: int) -> list[dict[str, float]]:
    from kestrel_lab import Lab, tool
    from kestrel_lab.models.chat_format import tools_to_wire
    from kestrel_lab.models.litellm.model import LiteLLMModel

    @tool(effect="pure")
    async def look_up(topic: str, limit: int) -> str:
        """Find entries.

        Args:
            topic: What about.
            limit: How many at most.
        """
        return ENTRY

    lab = Lab(home, LiteLLMModel(_MODEL, api_base=address, api_key="none"), "auto", env={})

    async def ours() -> None:
        run = await lab.run(GOAL, tools=[look_up], workspace=home)
        if run.answer != "done" or run.usage.model_calls != TURNS + 1:
            sys.exit(
                f"the run ended {run.status} with {run.answer!r} after {run.usage.model_calls} calls: "
                f"{run.reason}"
            )

    await ours()
    began = lab.store.records(lab.store.runs()[0].id)[0].event
    common = {
        "model": _MODEL,
        "api_base": address,
        "api_key": "none",
        "tools": tools_to_wire(lab.registry.resolve_tools([look_up]).specs()),
        # Without it litellm asks for a package of its gateway whenever tools are offered.
        "_skip_mcp_handler": True,
    }
    system = str(getattr(began, "system", ""))
    walls: dict[str, list[float]] = {_OURS: [], _PLAIN: [], _STREAMED: []}
    for _ in range(runs):
        for name, way in (
            (_OURS, ours),
            (_PLAIN, lambda: _direct(system, common, stream=False)),
            (_STREAMED, lambda: _direct(system, common, stream=True)),
        ):
            walls[name] += (await timed(way, runs=1, warm=0 if walls[name] else 1)).walls
    lab.close()
    ms = {name: statistics.median(took) * 1000 / (TURNS + 1) for name, took in walls.items()}
    over = {
        key: (ms[_OURS] / ms[name] - 1) * 100
        for key, name in (("over_plain", _PLAIN), ("over_streamed", _STREAMED))
    }
    return [{"call_ms": ms[_OURS], **over}, {"call_ms": ms[_PLAIN]}, {"call_ms": ms[_STREAMED]}]


async def _direct(system: str, common: dict[str, Any], *, stream: bool) -> None:
    """The conversation with litellm alone."""
    import litellm

    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": GOAL},
    ]
    for turn in range(TURNS + 1):
        if stream:
            options = {"stream": True, "stream_options": {"include_usage": True}}
            pieces = [
                piece async for piece in await litellm.acompletion(messages=messages, **common, **options)
            ]
            calls = [
                call for piece in pieces for choice in piece.choices for call in choice.delta.tool_calls or ()
            ]
        else:
            answer = await litellm.acompletion(messages=messages, **common)
            calls = answer.choices[0].message.tool_calls or []
        if len(calls) != (turn < TURNS):
            sys.exit(f"turn {turn} of the direct calls has {len(calls)} tool calls")
        for call in calls:
            json.loads(call.function.arguments)
            wire = {
                "id": call.id,
                "type": "function",
                "function": {"name": call.function.name, "arguments": call.function.arguments},
            }
            messages += [
                {"role": "assistant", "content": None, "tool_calls": [wire]},
                {"role": "tool", "tool_call_id": call.id, "content": ENTRY},
            ]


def main() -> None:
    """Measure both; arguments: `--quick`, folder."""
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
    home, quick = asked(sys.argv[1:])
    with _server() as address:
        tell(*asyncio.run(_measure(home, address, 2 if quick else 6)))


if __name__ == "__main__":
    main()
