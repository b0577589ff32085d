"""Measure kestrel_lab and its peers: `python -m bench --out FOLDER --data FOLDER --repositories FOLDER`.

One bench of finding alone: `python -m bench retrieval|memory|tools|faithfulness|routing|answers …`; the
nearest vectors beside exact search: `python -m bench nearest`; recorded attacks: `python -m bench containment
RUNS`; recorded judges of public pairs: `python -m bench judges CLONE`; the shipped scanners: `python -m bench
scanners RUNS`; whether the statistics keep what they state: `python -m bench coverage`,
`python -m bench sequential`, `python -m bench blame`; one of the others: `python -m bench
kernel`.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import (
    blame,
    containment,
    coverage,
    finding,
    headless,
    imports,
    judges,
    kernel,
    loop_overhead,
    nearest,
    panel,
    plans,
    readme,
    report,
    sandbox,
    scanners,
    sequential,
    summaries,
    toolcache,
    trials,
    turns,
)
from bench.figure import draw
from bench.machine import BUSY, facts, load
from bench.rounds import Say, count_programs, make_environments, run_rounds

BENCHMARKS = {
    module.BENCHMARK.name: module.BENCHMARK
    for module in (
        imports,
        turns,
        trials,
        summaries,
        plans,
        loop_overhead,
        panel,
        headless,
        kernel,
        nearest,
        sandbox,
        toolcache,
    )
}
NAMES = (*BENCHMARKS, *finding.BENCHES)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="Measure kestrel_lab beside other tools. Takes up to an hour with all data.",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("out/bench"),
        help="folder for results.json, results.md and results.png (default: %(default)s)",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=NAMES,
        metavar="NAME",
        help=f"one of {', '.join(NAMES)}; may be repeated",
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder with the public data in scifact/, localisation/, memory/, tool_search/, "
        "faithfulness/, routing/ and answers/",
    )
    parser.add_argument(
        "--repositories",
        type=Path,
        help="folder with the git repositories of localisation/, called owner+name",
    )
    parser.add_argument(
        "--rounds", type=int, help="rounds of every benchmark, in place of each one's own number"
    )
    parser.add_argument(
        "--no-peers", action="store_true", help="measure kestrel_lab alone and install nothing"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one round of small jobs, none on public data: whether everything works, not how fast it is",
    )
    parser.add_argument(
        "--readme",
        action="store_true",
        help="write the table of speeds into README.md and docs/comparison.md, when all of it was measured",
    )
    asked = parser.parse_args()
    if asked.rounds is not None and asked.rounds < 1:
        parser.error("--rounds is at least 1")
    if asked.readme and (asked.quick or asked.no_peers):
        parser.error("--readme needs whole jobs and the peers: leave --quick and --no-peers out")
    if asked.quick and asked.rounds is None:
        asked.rounds = 1
    return asked


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Say]:
    """Shows what is being done: a bar in a terminal, else a line for each step."""
    if not console.is_terminal:
        yield lambda text: console.print(text, highlight=False)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task("", total=total, completed=-1)
        yield lambda text: progress.update(bar, description=text, advance=1)


def main() -> int:
    """Run the benchmarks; returns 1 when a measurement of our own failed.

    A missed target is told, not punished.
    """
    if sys.argv[1:2] and sys.argv[1] in finding.BENCHES:
        return finding.BENCHES[sys.argv[1]].main(sys.argv[2:])
    if sys.argv[1:2] == ["judges"]:
        return judges.main(sys.argv[2:])
    if sys.argv[1:2] == ["scanners"]:
        return scanners.main(sys.argv[2:])
    if sys.argv[1:2] == ["containment"]:
        return containment.main(sys.argv[2:])
    if sys.argv[1:2] == ["coverage"]:
        return coverage.main(sys.argv[2:])
    if sys.argv[1:2] == ["blame"]:
        return blame.main(sys.argv[2:])
    if sys.argv[1:2] == ["sequential"]:
        return sequential.main(sys.argv[2:])
    if sys.argv[1:2] == ["nearest"]:
        return nearest.main(sys.argv[2:])
    if sys.argv[1:2] and sys.argv[1] in BENCHMARKS:
        sys.argv.insert(1, "--only")
    asked = _arguments()
    console = Console()
    if not console.is_terminal:
        # Else tables are squeezed into 80 columns in files and logs.
        console = Console(width=160)
    names = asked.only or NAMES
    chosen = [BENCHMARKS[name] for name in names if name in BENCHMARKS]
    asked.out.mkdir(parents=True, exist_ok=True)
    if load() > BUSY:
        console.print(
            f"Other programs are at work here (load per core {load():.1f}): times by the clock will be "
            "too high.",
            style="yellow",
        )
    peers = (
        set()
        if asked.no_peers
        else {probe.peer for benchmark in chosen for probe in benchmark.probes if probe.peer}
    )
    total = len(peers) + sum(
        count_programs(benchmark, asked.rounds, peers=bool(peers)) for benchmark in chosen
    )
    # On the disk that the results are on: a log in memory would wait for nothing.
    with (
        tempfile.TemporaryDirectory(dir=asked.out.resolve(), prefix="work-") as work,
        _progress(console, total) as say,
    ):
        environments = make_environments(chosen, say) if peers else {}
        outcomes = [
            run_rounds(one, environments, rounds=asked.rounds, quick=asked.quick, work=Path(work), say=say)
            for one in chosen
        ]
    found = (
        []
        if asked.quick
        else finding.run(
            [name for name in names if name in finding.BENCHES],
            asked.data,
            asked.repositories,
            asked.out,
            print,
        )
    )
    machine = facts()
    report.write(asked.out, outcomes, machine, found)
    if outcomes:
        draw(asked.out / "results.png", outcomes, machine)
    report.show(console, outcomes, machine, found)
    kept = ("results.json", "results.md", *(("results.png",) if outcomes else ()))
    console.print(f"written: {', '.join(str(asked.out / name) for name in kept)}")
    if asked.readme:
        try:
            readme.write(readme.PAGES, outcomes, machine, readme.commit())
        except readme.Unmeasured as error:
            console.print(f"README.md and docs/comparison.md stay as they are: {error}", style="red")
            return 1
    failed = any(
        samples.missing for outcome in outcomes for samples in outcome.samples.values() if samples.row.ours
    )
    return int(failed or any(verdict.measured.startswith(finding.BROKE) for verdict in found))


if __name__ == "__main__":
    sys.exit(main())
