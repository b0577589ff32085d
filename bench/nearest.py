"""How long the ten nearest of 100,000 notes take: the memory's search, candidates from a `vec0` table
re-scored, and exact search by numpy beside it.

The vectors are random directions around a thousand centres, 256 numbers of 32 bits each. They are written
into a log's database; that is opened anew, and searched: the first search indexes the vectors, those after it
find the index. Both searches take turns on the same queries. Recall is the share of the ten that brute force
in 64 bits finds. Run as `python -m bench nearest`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from bench.job import asked, peak_mb, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.vector_search import VectorIndex
from kestrel_lab.views.text import table_text

BOUND_MS, LEAST_RECALL = 20.0, 0.99
TOP = 10
MANY, WIDTH = 100_000, 256
_QUICK = 5_000
_ROW = "kestrel_lab, vectors of notes"
_PLACE = "/bench"
_NAME = "numbers"

BENCHMARK = Benchmark(
    name="nearest",
    title=f"The ten nearest of {MANY:,} vectors of {WIDTH} numbers",
    measures=(
        Measure(key="nearest_ms", heading="a question", unit="ms", digits=1),
        Measure(key="cpu_ms", heading="CPU", unit="ms", digits=1),
        Measure(key="first_s", heading="the first, indexes all", unit="s"),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(Probe(rows=(Row(name=_ROW, ours=True),), command=("-m", "bench.nearest")),),
    targets=(
        Target(
            row=_ROW, measure="nearest_ms", at_most=BOUND_MS, meaning=f"the ten nearest of {MANY:,} × {WIDTH}"
        ),
    ),
    rounds=1,
    notes=(
        "Random vectors: how well notes are found is measured by `memory`. Recall of what brute force "
        f"finds is at least {LEAST_RECALL}.",
    ),
)


class Prepared:
    """An embedder whose texts are the numbers of prepared vectors."""

    name = _NAME

    def __init__(self, vectors: Any) -> None:
        self._vectors = vectors

    def __call__(self, texts: Sequence[str]) -> Any:
        return self._vectors[[int(text) for text in texts]]


def directions(count: int, width: int, seed: int = 0) -> tuple[Any, Any]:
    """Vectors of length 1 to search in, and a hundred to search for."""
    random = np.random.default_rng(seed)
    centres = random.normal(size=(1_000, width))

    def some(many: int) -> Any:
        found = centres[random.integers(0, len(centres), many)] + random.normal(size=(many, width))
        return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype("f4")

    return some(count), some(100)


def stored(path: Path, vectors: Any) -> None:
    """A log's database with a note per vector, numbered from 1."""
    SessionStore(path).close()
    connection = apsw.Connection(str(path))
    with connection:
        notes = (
            (number, f"n{number}", _PLACE, number.to_bytes(4, "big"), str(number))
            for number in range(1, len(vectors) + 1)
        )
        connection.executemany(
            "INSERT INTO notes(number, id, workspace, same, kind, text, confidence, at) VALUES "
            "(?,?,?,?,'fact',?,0.7,0)",
            notes,
        )
        rows = ((number, _NAME, vector.tobytes()) for number, vector in enumerate(vectors, 1))
        connection.executemany("INSERT INTO note_vectors VALUES (?,?,?)", rows)
    connection.close()


def measure(count: int = MANY, width: int = WIDTH, searches: int = 100) -> dict[str, Any]:
    """Milliseconds and recall of both searches, and the milliseconds of the first search by the memory."""
    vectors, queries = directions(count, width)
    queries = queries[:searches]
    exact = queries.astype("f8") @ vectors.astype("f8").T
    truth = [set((np.argsort(-row)[:TOP] + 1).tolist()) for row in exact]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.db"
        stored(path, vectors)
        store = SessionStore(path)
        try:
            index = VectorIndex(store, lambda: Prepared(queries), filling_s=3600)

            def ours(number: int) -> list[int]:
                return list(index.nearest(str(number), _PLACE, TOP))

            def by_numpy(number: int) -> list[int]:
                scores = vectors @ queries[number]
                best = np.argpartition(-scores, TOP - 1)[:TOP]
                return (best[np.argsort(-scores[best])] + 1).tolist()

            began = time.perf_counter()
            ours(0)
            first_ms = (time.perf_counter() - began) * 1000
            ways = {"ours": ours, "numpy": by_numpy}
            times: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
            for number, wanted in enumerate(truth):
                for name, search in ways.items():
                    began, busy = time.perf_counter(), time.process_time()
                    found = search(number)
                    took, cpu = time.perf_counter() - began, time.process_time() - busy
                    times[name].append((took * 1000, cpu * 1000, len(wanted & set(found)) / TOP))
        finally:
            store.close()
    kept: dict[str, Any] = {"vectors": count, "width": width, "searches": len(queries)}
    for name, rows in times.items():
        took, cpu, shares = map(list, zip(*rows, strict=True))
        median, high = np.quantile(took, (0.5, 0.9)).tolist()
        kept[name] = {
            "median_ms": median,
            "p90_ms": high,
            "processor_ms": float(np.median(cpu)),
            "recall": float(np.mean(shares)),
        }
    kept["ours"]["first_ms"] = first_ms
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a search takes more than the bound or finds too few of the nearest."""
    parser = argparse.ArgumentParser(
        prog="python -m bench nearest", description="Measure the search for the nearest vectors."
    )
    parser.add_argument("--count", type=int, default=MANY, help="vectors")
    parser.add_argument("--width", type=int, default=WIDTH, help="numbers in one")
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    given = parser.parse_args(arguments)
    kept = measure(given.count, given.width)
    rows = []
    for name, shown in (("ours", "kestrel_lab (vec0, re-scored)"), ("numpy", "numpy (exact)")):
        each = kept[name]
        times = tuple(f"{each[key]:.1f}" for key in ("median_ms", "p90_ms", "processor_ms"))
        rows.append(
            (shown, *times, f"{each['first_ms']:.0f}" if "first_ms" in each else "", f"{each['recall']:.3f}")
        )
    print(f"nearest {TOP} of {given.count:,} × {given.width}\n")
    print(table_text(("search", "median ms", "p90 ms", "of processors", "first ms", f"recall@{TOP}"), rows))
    if given.out:
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(kept["ours"]["median_ms"] > BOUND_MS or kept["ours"]["recall"] < LEAST_RECALL)


def probe() -> None:
    """Measure for the table of all benches; arguments: `--quick`, folder."""
    _, quick = asked(sys.argv[1:])
    ours = measure(_QUICK if quick else MANY)["ours"]
    if ours["recall"] < LEAST_RECALL:
        sys.exit(f"recall@{TOP} is {ours['recall']:.3f}, less than {LEAST_RECALL}")
    tell(
        {
            "nearest_ms": ours["median_ms"],
            "cpu_ms": ours["processor_ms"],
            "first_s": ours["first_ms"] / 1000,
            "peak_mb": peak_mb(),
        }
    )


if __name__ == "__main__":
    probe()
