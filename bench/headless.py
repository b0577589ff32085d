"""How long the smallest notebook with a run takes headless, repeatedly, and whether it stalls."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from statistics import median

from bench.job import asked, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

_ROW = "kestrel_lab, notebook of three cells"
_RUNS = 50
_STALL_S = 60.0
"""A notebook that takes longer than this stalls."""
_CELLS = (
    "%load_ext kestrel_lab\nfrom kestrel_lab import Lab\nfrom kestrel_lab.testing import ScriptedModel\n"
    'lab = Lab(model=ScriptedModel([[("write_file", {"path": "a.txt", "content": "x"})], "done"]))',
    '%kestrel run "write a file" --approve auto --as r',
    "assert r.answer == 'done'",
)

BENCHMARK = Benchmark(
    name="headless",
    title=f"Notebooks without anybody, {_RUNS} times",
    measures=(
        Measure(key="notebook_s", heading="median", unit="s"),
        Measure(key="longest_s", heading="longest", unit="s"),
        Measure(key="stalls", heading="stalls", digits=0),
    ),
    probes=(Probe(rows=(Row(name=_ROW, ours=True),), command=("-m", "bench.headless")),),
    targets=(Target(row=_ROW, measure="stalls", at_most=0, meaning=f"stalls in {_RUNS} notebooks"),),
    rounds=1,
    notes=(
        "A kernel of its own for each, started and shut down by nbclient: most of the time is Python "
        "and ipykernel being loaded.",
    ),
)


async def _executed(folder: Path) -> float:
    """Seconds to execute the notebook; infinite if it stalls."""
    import nbformat
    from nbclient import NotebookClient
    from nbclient.exceptions import CellTimeoutError

    cells = [nbformat.v4.new_code_cell(source) for source in _CELLS]
    client = NotebookClient(
        nbformat.v4.new_notebook(cells=cells),
        timeout=_STALL_S,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
    )
    began = time.perf_counter()
    try:
        await asyncio.wait_for(client.async_execute(), 2 * _STALL_S)
    except (TimeoutError, CellTimeoutError):
        return float("inf")
    return time.perf_counter() - began


async def _measured(folder: Path, runs: int) -> dict[str, float]:
    took = [await _executed(folder) for _ in range(runs)]
    ended = [seconds for seconds in took if seconds < float("inf")]
    return {"notebook_s": median(ended), "longest_s": max(ended), "stalls": len(took) - len(ended)}


if __name__ == "__main__":
    place, quick = asked(sys.argv[1:])
    tell(asyncio.run(_measured(place, 2 if quick else _RUNS)))
