"""What an answer from the tool cache costs beside the call itself: `python -m bench.toolcache [--redis URL]`.

The target is a hit of `read_file` in at most 0.3 ms, looking at the state of the file included. The cost of a call in a
run is not in any of the numbers: it is the same for both.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.engine.caching import ToolCaching
from kestrel_lab.engine.supervisor import RuntimeSupervisor
from kestrel_lab.middleware.compose import compose
from kestrel_lab.tools.native import native_tools
from kestrel_lab.tools.registry import ToolContext
from kestrel_lab.tools.workspace import Workspace
from kestrel_lab.views.text import table_text

TARGET_MS = 0.3
CALLS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read_file", {"path": "d0/f0.py"}),
    ("list_directory", {"path": "d0"}),
    ("glob", {"pattern": "*.py"}),
    ("tree", {}),
    ("grep", {"pattern": "def f7"}),
)


async def measure(root: Path, caching: ToolCaching, name: str, args: dict[str, Any], times: int) -> tuple[float, float]:
    """Milliseconds of a hit and of a call, medians of `times`."""
    tools = native_tools()
    tool, scope = tools.get(name), ToolContext(workspace=Workspace(root), run_id="bench")
    call = Call(id="1", kind="tool", target=name, args=tool.validate(args))

    async def run(_: Call) -> Result:
        return Result(value=await tool.run(call.args, scope))

    cached = compose(run, *caching.layers("use", tools, scope, lambda _: None))
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


def main() -> int:
    """Print a table; returns 1 when a hit of `read_file` on disk is dearer than the target."""
    parser = argparse.ArgumentParser(prog="python -m bench.toolcache", description="What a hit costs beside the call itself.")
    parser.add_argument("--redis", metavar="URL", help="measure a Redis server too, e.g. redis://localhost")
    parser.add_argument("--times", type=int, default=300, help="calls of each kind (default: %(default)s)")
    asked = parser.parse_args()
    rows, reading = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "work"
        for number in range(200):
            file = root / f"d{number % 10}" / f"f{number}.py"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(f"def f{number}() -> int:\n    return {number}\n" * 40)
        time.sleep(0.2)  # what has just changed is not cached
        for where, url in {"disk": None, **({"redis": asked.redis} if asked.redis else {})}.items():
            caching = ToolCaching(Path(folder) / "cache", "use", url, RuntimeSupervisor())
            for name, args in CALLS:
                hit, call = asyncio.run(measure(root, caching, name, args, asked.times if name != "grep" else max(asked.times // 10, 3)))
                reading = hit if (where, name) == ("disk", "read_file") else reading
                rows.append((where, name, f"{hit:.3f}", f"{call:.3f}"))
            caching.close()
    print(table_text(("shelf", "call", "hit, ms", "call, ms"), rows))
    print(f"target: a hit of read_file on disk in {TARGET_MS} ms: {'met' if reading <= TARGET_MS else 'missed'} ({reading:.3f} ms)")
    return int(reading > TARGET_MS)


if __name__ == "__main__":
    sys.exit(main())
