"""How long the nearest of 100,000 vectors of 256 numbers take to find: notes of like meaning, asked again and again."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bench.job import asked, peak_mb, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target

if TYPE_CHECKING:
    from kestrel_lab.memory.vectors import Vectors

_ROW = "kestrel_lab, vectors of notes"
_MANY, _QUICK, _SIZE, _ASKED = 100_000, 5_000, 256, 30
_NOTES = """
WITH RECURSIVE each(number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM each WHERE number < ?)
INSERT INTO notes(id, workspace, same, kind, text, confidence, at)
  SELECT 'n' || number, 'w', CAST(number AS BLOB), 'fact', 'note ' || number, 0.7, 1.0 FROM each
"""

BENCHMARK = Benchmark(
    name="vectors",
    title=f"The ten nearest of {_MANY:,} vectors of {_SIZE} numbers",
    measures=(
        Measure(key="nearest_ms", heading="a question", unit="ms", digits=1),
        Measure(key="cpu_ms", heading="CPU", unit="ms", digits=1),
        Measure(key="first_s", heading="the first, reads all", unit="s"),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(Probe(rows=(Row(name=_ROW, ours=True),), command=("-m", "bench.vectors")),),
    targets=(Target(row=_ROW, measure="nearest_ms", at_most=50, meaning=f"the ten nearest of {_MANY:,} × {_SIZE}"),),
    rounds=1,
    notes=("The vectors are random: how well notes are found is measured by `memory`. Every answer is compared with a full sort.",),
)


class _Random:
    """Stands in for a model of meanings: a random direction for each text."""

    name = "random"

    def __call__(self, texts: Sequence[str]) -> Vectors:
        import numpy as np

        seeds = np.random.default_rng([len(texts), *texts[0].encode()])
        rows = seeds.standard_normal((len(texts), _SIZE), dtype=np.float32)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _measured(home: Path, many: int) -> dict[str, float]:
    import numpy as np

    from kestrel_lab.log.store import SessionStore
    from kestrel_lab.memory.vectors import VectorIndex

    store, embed = SessionStore(home / "notes.db"), _Random()
    store.execute(_NOTES, (many,), "notes").result()
    index = VectorIndex(store, lambda: embed)
    began = time.perf_counter()
    index.nearest("question 0", "w", 10)
    first = time.perf_counter() - began
    numbers, matrix = index._matrix("w")  # to compare with a full sort
    walls, cpus = [], []
    for number in range(_ASKED):
        cpu, wall = time.process_time(), time.perf_counter()
        found = index.nearest(f"question {number}", "w", 10)
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
        sure = np.argsort(-(matrix @ embed([f"question {number}"])[0]), kind="stable")[:10]
        if list(found) != [numbers[int(at)] for at in sure]:
            sys.exit(f"question {number}: {list(found)} are not the nearest")
    store.close()
    return {
        "nearest_ms": statistics.median(walls) * 1000,
        "cpu_ms": statistics.median(cpus) * 1000,
        "first_s": first,
        "peak_mb": peak_mb(),
    }


def main() -> None:
    """Measure; arguments: `--quick`, folder."""
    home, quick = asked(sys.argv[1:])
    tell(_measured(home, _QUICK if quick else _MANY))


if __name__ == "__main__":
    main()
