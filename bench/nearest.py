"""How long the nearest of 100,000 notes are searched: exactly, as the memory does it, with sqlite-vec beside it where that is installed.

The vectors are random directions around a thousand centres, 256 numbers of 32 bits each. They are written into a log's
database; that is opened anew, and searched: the first search reads the vectors, those after it have them. What is found
is compared with brute force in 64 bits. Run as `python -m bench nearest`.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import apsw
import numpy as np

from bench.job import asked, peak_mb, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.vector_search import VectorIndex
from kestrel_lab.views.text import table_text

BOUND_MS = 50.0
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
        Measure(key="first_s", heading="the first, reads all", unit="s"),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(Probe(rows=(Row(name=_ROW, ours=True),), command=("-m", "bench.nearest")),),
    targets=(Target(row=_ROW, measure="nearest_ms", at_most=BOUND_MS, meaning=f"the ten nearest of {MANY:,} × {WIDTH}"),),
    rounds=1,
    notes=("The vectors are random: how well notes are found is measured by `memory`. Every answer is compared with brute force.",),
)

Search = Callable[[int], Sequence[int]]
"""From the number of a query to the nearest notes, best first."""


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
        notes = ((number, f"n{number}", _PLACE, number.to_bytes(4, "big"), str(number)) for number in range(1, len(vectors) + 1))
        connection.executemany(
            "INSERT INTO notes(number, id, workspace, same, kind, text, confidence, at) VALUES (?,?,?,?,'fact',?,0.7,0)", notes
        )
        rows = ((number, _NAME, vector.tobytes()) for number, vector in enumerate(vectors, 1))
        connection.executemany("INSERT INTO note_vectors VALUES (?,?,?)", rows)
    connection.close()


def beside(vectors: Any, queries: Any) -> Search | None:
    """The same search by sqlite-vec, which is no dependency; `None` where it is not installed."""
    try:
        extension = importlib.import_module("sqlite_vec")
    except ImportError:
        return None
    connection = apsw.Connection(":memory:")
    connection.enable_load_extension(True)
    connection.load_extension(extension.loadable_path())
    connection.execute(f"CREATE VIRTUAL TABLE vectors USING vec0(vector float[{vectors.shape[1]}])")
    with connection:
        connection.executemany(
            "INSERT INTO vectors(rowid, vector) VALUES (?,?)", ((at, row.tobytes()) for at, row in enumerate(vectors, 1))
        )
    sql = f"SELECT rowid FROM vectors WHERE vector MATCH ? AND k = {TOP} ORDER BY distance"
    return lambda number: [int(row[0]) for row in connection.execute(sql, (queries[number].tobytes(),))]


def timed(search: Search, many: int) -> tuple[list[float], float, list[Sequence[int]]]:
    """Milliseconds of each search, those of the processor for one in the mean, and what each found."""
    times, found = [], []
    busy = time.process_time()
    for number in range(many):
        began = time.perf_counter()
        found.append(search(number))
        times.append((time.perf_counter() - began) * 1000)
    return times, (time.process_time() - busy) * 1000 / many, found


def measure(count: int = MANY, width: int = WIDTH, searches: int = 100) -> dict[str, Any]:
    """Milliseconds of a cold search and of warm ones, and the share of searches that found what brute force finds."""
    vectors, queries = directions(count, width)
    queries = queries[:searches]
    exact = queries.astype("f8") @ vectors.astype("f8").T
    truth = [set((np.argsort(-row)[:TOP] + 1).tolist()) for row in exact]
    kept: dict[str, Any] = {"vectors": count, "width": width, "searches": len(queries)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notes.db"
        stored(path, vectors)
        store = SessionStore(path)
        try:
            index = VectorIndex(store, lambda: Prepared(queries))
            cold, cold_busy, _ = timed(lambda number: list(index.nearest(str(number), _PLACE, TOP)), 1)
            ways: dict[str, Search | None] = {
                "ours": lambda number: list(index.nearest(str(number), _PLACE, TOP)),
                "sqlite-vec": beside(vectors, queries),
            }
            for name, search in ways.items():
                if search is not None:
                    times, busy, found = timed(search, len(queries))
                    same = sum(set(one) == other for one, other in zip(found, truth, strict=True)) / len(truth)
                    median, high = np.quantile(times, (0.5, 0.9)).tolist()
                    kept[name] = {"median_ms": median, "p90_ms": high, "processor_ms": busy, "as_brute_force": same}
            kept["ours"] |= {"cold_ms": cold[0], "cold_processor_ms": cold_busy}
        finally:
            store.close()
    return kept


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; returns 1 if a warm search takes more than the bound or finds anything else than brute force."""
    parser = argparse.ArgumentParser(prog="python -m bench nearest", description="Measure exact search for the nearest vectors.")
    parser.add_argument("--count", type=int, default=MANY, help="vectors")
    parser.add_argument("--width", type=int, default=WIDTH, help="numbers in one")
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    given = parser.parse_args(arguments)
    kept = measure(given.count, given.width)
    rows = []
    for name in ("ours", "sqlite-vec"):
        if each := kept.get(name):
            first = f"{each['cold_ms']:.0f} ({each['cold_processor_ms']:.0f})" if "cold_ms" in each else ""
            warm = tuple(f"{each[key]:.1f}" for key in ("median_ms", "p90_ms", "processor_ms"))
            rows.append((name, *warm, first, f"{each['as_brute_force']:.2f}"))
    print(f"nearest {TOP} of {given.count:,} × {given.width}\n")
    print(table_text(("search", "median ms", "p90 ms", "of processors", "first ms (of processors)", "as brute force"), rows))
    if "sqlite-vec" in kept:
        print(f"\nsqlite-vec takes {kept['sqlite-vec']['median_ms'] / kept['ours']['median_ms']:.1f} times as long: so it is not used.")
    else:
        print("\nsqlite-vec is not installed; pip install sqlite-vec puts it beside ours.", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(kept["ours"]["median_ms"] > BOUND_MS or kept["ours"]["as_brute_force"] < 1)


def probe() -> None:
    """Measure for the table of all benches; arguments: `--quick`, folder."""
    _, quick = asked(sys.argv[1:])
    ours = measure(_QUICK if quick else MANY)["ours"]
    if ours["as_brute_force"] < 1:
        sys.exit(f"{1 - ours['as_brute_force']:.0%} of the searches did not find the nearest")
    tell({"nearest_ms": ours["median_ms"], "cpu_ms": ours["processor_ms"], "first_s": ours["cold_ms"] / 1000, "peak_mb": peak_mb()})


if __name__ == "__main__":
    probe()
