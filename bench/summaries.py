"""The cost of summarising many trials: comparing two runs, and adding up stored ones, in memory."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from bench.job import asked, peak_mb, tell
from bench.spec import Benchmark, Measure, Probe, Row, Target
from kestrel_lab.evals.stored_trials import EvalRow, each_stored_trial, store_trial

_COMPARE = "kestrel_lab, compare two runs of 500 × 5"
_STORED = "kestrel_lab, 10,000 stored trials"
_MANY = "kestrel_lab, 100,000 stored trials"
_SCENARIOS, _EPOCHS, _CONFIG = 500, 5, "one"

BENCHMARK = Benchmark(
    name="summaries",
    title="Summaries of many trials",
    measures=(
        Measure(key="wall_s", heading="time", unit="s", digits=3),
        Measure(key="cpu_s", heading="CPU", unit="s", digits=3),
        Measure(key="peak_mb", heading="peak memory", unit="MB", digits=0),
    ),
    probes=(
        Probe(rows=(Row(name=_COMPARE, ours=True),), command=("-m", "bench.summaries", "compare")),
        Probe(rows=(Row(name=_STORED, ours=True),), command=("-m", "bench.summaries", "10000")),
        Probe(rows=(Row(name=_MANY, ours=True),), command=("-m", "bench.summaries", "100000")),
    ),
    targets=(
        Target(
            row=_COMPARE,
            measure="wall_s",
            at_most=0.5,
            meaning="from two lists of trials to the frame with intervals, pandas loaded",
        ),
        Target(
            row=_STORED, measure="wall_s", at_most=1.0, meaning="from the log to rates, means and intervals"
        ),
        Target(
            row=_MANY,
            measure="peak_mb",
            at_most=120,
            meaning="memory of a process that adds up 100,000 stored trials",
        ),
    ),
    rounds=3,
    notes=(
        "Trials are made up, with six checked metrics and answers of 1,000 characters; no peer offers "
        "the same: no clustered intervals, no paired tests.",
        "The log is written by another process, so that its memory does not count. What is imported is "
        "imported before the clock; pandas for the comparison only.",
    ),
)


def _rows(count: int, seed: int) -> Iterator[EvalRow]:
    from kestrel_lab.evals.metrics import METRICS

    chance = random.Random(seed)
    hard = [chance.random() for _ in range(_SCENARIOS)]
    for number in range(count):
        scenario, epoch = number % _SCENARIOS, number // _SCENARIOS + 1
        passed = chance.random() > hard[scenario]
        tokens = float(chance.randrange(500, 5000))
        result: dict[str, Any] = {
            "family": f"f{scenario % 8}",
            "weight": 1.0,
            "model": "m",
            "model_kind": "scripted",
            "outcome": "pass" if passed else "fail",
            "reason": "" if passed else "no",
            "status": "COMPLETE",
            "answer": "x" * 1000,
            "run": f"r{number}",
            "scores": [
                {"check": "answer contains 'x'", "passed": passed, "value": float(passed), "reason": ""}
            ],
        }
        metrics: dict[str, Any] = dict.fromkeys(METRICS, 0.0)
        metrics |= {
            "working_time": chance.lognormvariate(2, 0.5),
            "token_usage": tokens,
            "cost_estimate": tokens * 1e-6,
            "tool_calls": 3.0,
        }
        # Both sides of an epoch one after the other, in turns: times can be compared.
        yield EvalRow(
            id=f"t{seed}-{number:06}",
            scenario=f"s{scenario}",
            result=result,
            metrics=metrics,
            git_sha=str(seed) * 40,
            created_at=float(2 * epoch + (seed + epoch) % 2),
            suite="bench",
            config=_CONFIG,
            epoch=epoch,
            key=f"{seed}-{number}",
        )


def _warm() -> None:
    """Load what the clock is not about."""
    from kestrel_lab.evals.stats.intervals_and_tests import Moments, mean_of

    one, two = Moments(), Moments()
    one.add(1.0)
    two.add(2.0)
    mean_of([(one, 1.0), (two, 1.0)])


def _compare(*, quick: bool) -> None:
    from kestrel_lab.checks.answer import AnswerContains
    from kestrel_lab.evals.commits.comparison import Comparison, Side
    from kestrel_lab.evals.suite import Config, Scenario, Suite

    import_module("pandas")
    _warm()
    count = _SCENARIOS * (1 if quick else _EPOCHS)
    check = AnswerContains(texts=("x",))
    scenarios = tuple(Scenario(id=f"s{n}", goal="g", checks=(check,)) for n in range(_SCENARIOS))
    suite = Suite(name="bench", scenarios=scenarios, configs=(Config(name=_CONFIG),))
    base, head = (
        Side(name=name, sha=name * 40, rows=tuple(_rows(count, seed))) for seed, name in ((0, "a"), (1, "b"))
    )
    comparison = Comparison(suite=suite, base=base, head=head)
    wall, cpu = time.perf_counter(), time.process_time()
    frame = comparison.frame
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    if len(frame) != 6 or frame["scenarios"].min() != _SCENARIOS:
        sys.exit(f"the comparison has {len(frame)} rows")
    tell({"wall_s": wall, "cpu_s": cpu, "peak_mb": peak_mb()})


def _summarise(home: Path, count: int) -> None:
    import subprocess

    from kestrel_lab.evals.summaries.streaming_summary import reduce_rows
    from kestrel_lab.eventlog.store import SessionStore

    subprocess.run([sys.executable, "-m", "bench.summaries", "fill", str(count), str(home)], check=True)
    _warm()
    store = SessionStore(home / "kestrel.db")
    wall, cpu = time.perf_counter(), time.process_time()
    (summary,) = reduce_rows(each_stored_trial(store, suite="bench", latest=True), "fail").summaries()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    store.close()
    if summary["trials"] != count or not summary["low"] < summary["success_rate"] < summary["high"]:
        sys.exit(f"{summary['trials']} trials were added up, not {count}")
    tell({"wall_s": wall, "cpu_s": cpu, "peak_mb": peak_mb()})


def _fill(home: Path, count: int) -> None:
    from kestrel_lab.eventlog.store import SessionStore

    home.mkdir(parents=True, exist_ok=True)
    store = SessionStore(home / "kestrel.db")
    for number, row in enumerate(_rows(count, 0), 1):
        done = store_trial(store, row)
        if number % 1000 == 0:
            # So that what waits to be written stays small.
            done.result()
    store.close()


def main() -> None:
    """Measure; arguments: `compare` or a number of trials, `--quick`, folder."""
    what = sys.argv[1]
    if what == "fill":
        _fill(Path(sys.argv[3]), int(sys.argv[2]))
        return
    home, quick = asked(sys.argv[1:])
    if what == "compare":
        _compare(quick=quick)
    else:
        _summarise(home, min(int(what), 2_000) if quick else int(what))


if __name__ == "__main__":
    main()
