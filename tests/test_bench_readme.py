"""The table of speeds in README.md is written by the benchmarks, from one run, or stays as it is."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from bench import readme
from bench.__main__ import BENCHMARKS
from bench.readme import BEGIN, END, LINES, Unmeasured
from bench.rounds import Outcome, Samples

MACHINE: dict[str, str | int] = {"cores": 2, "Python": "3.11.7", "date": "2030-12-31 10:00 UTC"}
ROOT = Path(__file__).parent.parent


def outcomes(**missing: str) -> list[Outcome]:
    """What every benchmark of the table gave: 2 for us and 5 for others, all measures, three rounds;
    `missing` says why a benchmark's rows have none.
    """
    found = []
    for name in dict.fromkeys(line.benchmark for line in LINES):
        benchmark = BENCHMARKS[name]
        rounds = [
            {measure.key: 2.0 for measure in benchmark.measures},
            {measure.key: 5.0 for measure in benchmark.measures},
        ]
        samples = {
            row.name: Samples(row=row, missing=missing[name])
            if name in missing
            else Samples(row=row, rounds=[rounds[not row.ours]] * 3)
            for row in benchmark.rows
        }
        found.append(Outcome(benchmark=benchmark, samples=samples, loads=(0.1,)))
    return found


def test_every_line_has_its_number_and_the_ratios() -> None:
    """A line for each question with our median and how many times as much a peer needs; commit, date and
    machine stand above.
    """
    table = readme.table(outcomes(), MACHINE, "`abc`")
    assert table.startswith("Commit `abc`, 2030-12-31 10:00 UTC, 2 cores, Python 3.11.7: medians of 3 rounds")
    lines = table.splitlines()[-len(LINES) :]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines] == [line.text for line in LINES]
    assert lines[0].endswith(
        "| 2.000 s | import inspect_ai 5.000 s (2.5 ×) · import pydantic_evals 5.000 s (2.5 ×) |"
    )
    assert lines[1].endswith("| 2.000 s |  |")
    assert all(re.search(r"\| .*2\.?0* ?(s|ms|MB)? ", line) for line in lines)


def test_what_was_not_measured_leaves_the_file_alone(tmp_path: Path) -> None:
    """A benchmark that broke or did not run is named, and nothing is written."""
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n", encoding="utf-8")
    with pytest.raises(
        Unmeasured, match=r"'agent turn, three tool calls' was not measured: .*: failed: boom"
    ):
        readme.write([file], outcomes(turns="failed: boom"), MACHINE, "c")
    with pytest.raises(Unmeasured, match="the benchmark panel did not run"):
        readme.write([file], [one for one in outcomes() if one.benchmark.name != "panel"], MACHINE, "c")
    assert "old" in file.read_text(encoding="utf-8")
    readme.write([file], outcomes(), MACHINE, "c")
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{BEGIN}\nCommit c, ")
    assert text.endswith(f"|\n{END}\nafter\n")


@pytest.mark.parametrize("text", ["", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"])
def test_markers_are_needed(text: str) -> None:
    """A file without the two lines is refused, not written over."""
    with pytest.raises(ValueError, match="needs the lines"):
        readme.written(text, "table")


def test_both_pages_have_the_same_table() -> None:
    """README.md and the comparison cannot tell of different commits, and all else in them stays when the
    table is written again.
    """
    tables = set()
    for page in readme.PAGES:
        text = page.read_text(encoding="utf-8")
        again = readme.written(text, "new")
        assert again.partition(BEGIN)[0] == text.partition(BEGIN)[0]
        assert again.partition(END)[2] == text.partition(END)[2]
        tables.add(text.partition(BEGIN)[2].partition(END)[0])
    assert len(tables) == 1


def test_the_commit_is_named_and_what_differs_from_it(tmp_path: Path) -> None:
    """A table of code that nobody committed says so."""

    def run(*words: str) -> None:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    run("init", "-q")
    (tmp_path / "a").write_text("1", encoding="utf-8")
    run("add", "a")
    run("commit", "-qm", "one")
    assert re.fullmatch(r"`[0-9a-f]{10}`", readme.commit(tmp_path))
    (tmp_path / "a").write_text("2", encoding="utf-8")
    assert readme.commit(tmp_path).endswith(" with changes that are not committed")
