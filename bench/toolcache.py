"""What an answer from the tool cache costs beside the call itself: `python -m bench --only toolcache`; with a
server `python -m bench.toolcache --server URL FOLDER`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from bench.job import tell
from bench.spec import Benchmark, Measure, Probe, Row, Target
from kestrel_lab.core.calls import Call, Result
from kestrel_lab.middleware.layers import compose_layers
from kestrel_lab.runtime.context.tool_cache import ToolCaching
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.tool import ToolContext

CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read_file", {"path": "d0/f0.py"}),
    ("list_directory", {"path": "d0"}),
    ("glob", {"pattern": "*.py"}),
    ("tree", {}),
    ("grep", {"pattern": "def f7"}),
)

_NAMES = {name: f"kestrel_lab, {name}" for name, _ in CALLS}

BENCHMARK = Benchmark(
    name="toolcache",
    title="A stored answer beside the call itself",
    measures=(
        Measure(key="hit_ms", heading="stored", unit="ms"),
        Measure(key="call_ms", heading="called", unit="ms"),
    ),
    probes=(
        Probe(
            rows=tuple(Row(name=name, ours=True) for name in _NAMES.values()),
            command=("-m", "bench.toolcache"),
        ),
    ),
    targets=(
        Target(
            row=_NAMES["read_file"],
            measure="hit_ms",
            at_most=0.3,
            meaning="a stored answer, the file looked at included",
        ),
    ),
    rounds=1,
    notes=("What a call costs in a run beside the tool is in neither number: it is the same for both.",),
)


async def measure(
    root: Path, caching: ToolCaching, name: str, args: dict[str, Any], times: int
) -> tuple[float, float]:
    """Milliseconds of a hit and of a call, medians of `times`."""
    tools = native_tools()
    tool, scope = tools.get(name), ToolContext(workspace=Workspace(root), run_id="bench")
    call = Call(id="1", kind="tool", target=name, args=tool.validate(args))

    async def run(_: Call) -> Result:
        return Result(value=await tool.run(call.args, scope))

    cached = compose_layers(run, *caching.layers("use", tools, scope, lambda _: None))
    await cached(call)

    async def median(handler: Any, *, hits: bool) -> float:
        spent = []
        for _ in range(times):
            began = time.perf_counter()
            result = await handler(call)
            spent.append((time.perf_counter() - began) * 1_000)
            assert result.cached == hits
        return statistics.median(spent)

    return await median(cached, hits=True), await median(run, hits=False)


def main() -> None:
    """Measure the store on disk, or with `--server` one of Redis or PostgreSQL."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.toolcache", description="What a stored answer costs beside the call itself."
    )
    parser.add_argument("folder", type=Path, help="folder to work in")
    parser.add_argument(
        "--server",
        metavar="URL",
        help="measure a server, e.g. redis://localhost or postgresql://localhost/postgres",
    )
    parser.add_argument("--quick", action="store_true", help="few calls of each kind")
    asked = parser.parse_args()
    root, times = asked.folder / "work", 30 if asked.quick else 300
    for number in range(200):
        file = root / f"d{number % 10}" / f"f{number}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def f{number}() -> int:\n    return {number}\n" * 40)
    time.sleep(0.2)  # what has just changed is not cached
    caching = ToolCaching(asked.folder / "cache", "use", asked.server, RuntimeSupervisor())
    reported = []
    for name, args in CALLS:
        hit, call = asyncio.run(measure(root, caching, name, args, times if name != "grep" else times // 10))
        reported.append({"hit_ms": hit, "call_ms": call})
    caching.close()
    tell(*reported)


if __name__ == "__main__":
    main()
