"""What a preview, its adoption and an undo cost beside data of 80 MB: `python -m bench kernel`."""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from pathlib import Path
from typing import Any

from bench.job import tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

ROWS, QUICK_ROWS = 1_000_000, 100_000
"""Of a frame with ten columns of numbers."""
_STEPS = {
    "drop missing values": "df = df.dropna()",
    "a new column": "df['k'] = df['a'] * 2",
    "group and mean": "means = df.groupby((df['b'] * 10).astype(int))['c'].mean()",
    "only a number": "m = df['a'].mean()",
}
_NAMES = {step: f"kestrel_lab, {step}" for step in _STEPS}

BENCHMARK = Benchmark(
    name="kernel",
    title="Code in the live kernel, beside a frame of 1,000,000 × 10",
    measures=(
        Measure(key="plain_s", heading="the code alone", unit="s", digits=3),
        Measure(key="preview_s", heading="preview", unit="s", digits=3),
        Measure(key="execute_s", heading="executed, with its old state kept", unit="s", digits=3),
        Measure(key="undo_s", heading="undo", unit="s", digits=3),
        Measure(key="idle_ms", heading="CPU of one idle second", unit="ms", digits=1),
        Measure(key="threads", heading="threads added", digits=0),
    ),
    probes=(
        Probe(
            rows=tuple(Row(name=name, ours=True) for name in _NAMES.values()), command=("-m", "bench.kernel")
        ),
    ),
    targets=(
        Target(
            row=_NAMES["drop missing values"],
            measure="preview_s",
            at_most=0.5,
            meaning="preview of a step on 1,000,000 × 10",
        ),
        Target(
            row=_NAMES["a new column"],
            measure="preview_s",
            at_most=0.5,
            meaning="preview of a change inside of the frame",
        ),
        Target(
            row=_NAMES["drop missing values"],
            measure="undo_s",
            at_most=0.2,
            meaning="undo where the old frame was kept",
        ),
        Target(
            row=_NAMES["a new column"],
            measure="undo_s",
            at_most=0.2,
            meaning="undo by the paused copy, 80 MB handed over",
        ),
        Target(
            row=_NAMES["drop missing values"],
            measure="idle_ms",
            at_most=2,
            meaning="a kernel with old states costs nothing",
        ),
        Target(row=_NAMES["drop missing values"], measure="threads", at_most=0, meaning="no thread is kept"),
    ),
    rounds=2,
    notes=(
        "Least of five. The preview has the fork, two looks at the frame, the code and what is handed over.",
        "Undo counts the comparison that nobody else has changed the variables since.",
    ),
)


def measure(kernel: Any, code: str, folder: str, times: int) -> dict[str, float]:
    """Seconds of each part, the least of some."""
    namespace, threads = kernel.shell.user_ns, threading.active_count()
    found: dict[str, list[float]] = {"plain_s": [], "preview_s": [], "execute_s": [], "undo_s": []}

    def timed(key: str, work: Any) -> None:
        began = time.perf_counter()
        work()
        found[key].append(time.perf_counter() - began)

    for _ in range(times):
        copy = {"df": namespace["df"].copy()}
        timed("plain_s", lambda copy=copy: exec(code, copy))
        del copy
        timed("preview_s", lambda: asyncio.run(kernel.preview(code, folder)))
        timed("execute_s", lambda: asyncio.run(kernel.execute(code, folder, "r", "c")))
        timed("undo_s", kernel.undo)
    asyncio.run(kernel.execute(code, folder, "r", "c"))
    used = time.process_time()
    time.sleep(1)
    idle = (time.process_time() - used) * 1_000
    kernel.undo()
    return {
        **{key: min(values) for key, values in found.items()},
        "idle_ms": idle,
        "threads": threading.active_count() - threads,
    }


def main() -> None:
    """Measure in one shell."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.kernel", description="What a preview, its adoption and an undo cost."
    )
    parser.add_argument("folder", type=Path, help="folder to work in")
    parser.add_argument("--quick", action="store_true", help="a smaller frame, once")
    asked = parser.parse_args()
    from IPython.core.interactiveshell import InteractiveShell

    from kestrel_lab.tools.kernel.live_kernel import LiveKernel

    work = asked.folder / "work"
    work.mkdir(exist_ok=True)
    shell: Any = InteractiveShell()
    shell.history_manager.enabled = False
    rows = QUICK_ROWS if asked.quick else ROWS
    shell.run_cell(
        "import numpy as np, pandas as pd\nrng = np.random.default_rng(0)\n"
        f"df = pd.DataFrame(rng.random(({rows}, 10)), columns=list('abcdefghij'))\ndf.loc[:11, 'a'] = np.nan"
    )
    kernel = LiveKernel(shell)
    tell(*(measure(kernel, code, str(work), 1 if asked.quick else 5) for code in _STEPS.values()))


if __name__ == "__main__":
    main()
