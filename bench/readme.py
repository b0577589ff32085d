"""The speed table of README.md and the comparison page, written between two markers."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.environments import ROOT
from bench.numbers import of_measure, ratio
from bench.report import doubts, markdown_table
from bench.rounds import Outcome, Samples
from bench.spec import Measure

BEGIN, END = "<!-- speed table: `make bench` writes it -->", "<!-- end of the speed table -->"
PAGES = (ROOT / "README.md", ROOT / "docs" / "comparison.md")
"""They have the same table."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the table."""

    text: str
    benchmark: str
    measure: str
    rows: tuple[str, ...] = ()
    """Our rows that it shows; all of them if empty."""
    alone: bool = False
    """Whether no peer does the same."""


LINES = (
    Line(
        text="`from kestrel_lab import Lab, tool`",
        benchmark="imports",
        measure="import_s",
        rows=("from kestrel_lab import Lab, tool",),
    ),
    Line(
        text="`kestrel --help`, processor time",
        benchmark="imports",
        measure="cpu_s",
        rows=("kestrel --help",),
        alone=True,
    ),
    Line(text="agent turn, three tool calls", benchmark="turns", measure="turn_ms"),
    Line(text="the same in a run of 100 turns, against 20", benchmark="turns", measure="growth"),
    Line(text="trial of a suite: agent loop, tool call, log, score", benchmark="trials", measure="trial_ms"),
    Line(text="memory of the process that makes the trials", benchmark="trials", measure="peak_mb"),
    Line(text="plan of 1,000 no-op steps, 3,000 edges, per step", benchmark="plans", measure="step_ms"),
    Line(
        text="12 steps in 4 chains, long and short ones mixed, against the longest chain",
        benchmark="plans",
        measure="uneven",
    ),
    Line(text="model call through litellm, server of 50 ms", benchmark="loop_overhead", measure="call_ms"),
    Line(
        text="click on Approve → call goes on",
        benchmark="panel",
        measure="click_ms",
        rows=("kestrel_lab, click on Approve",),
    ),
)


class Unmeasured(Exception):
    """A line of the table was not measured in this run."""


def commit(folder: Path = ROOT) -> str:
    """Return the commit whose code runs, and whether the folder differs from it."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=folder, capture_output=True, text=True, check=True
        ).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no")
    return f"`{git('rev-parse', '--short=10', 'HEAD')}`" + (
        " with changes that are not committed" if changed else ""
    )


def table(outcomes: Sequence[Outcome], machine: Mapping[str, str | int], commit: str) -> str:
    """Return the paragraph and the table; raises `Unmeasured` when one of our numbers is missing."""
    known = {outcome.benchmark.name: outcome for outcome in outcomes}
    rows = [_cells(line, known) for line in LINES]
    rounds = sorted(
        {
            len(samples.rounds)
            for outcome in outcomes
            for samples in outcome.samples.values()
            if samples.rounds
        }
    )
    number = f"{rounds[0]} to {rounds[-1]}" if len(rounds) > 1 else str(rounds[0])
    said = (
        f"Commit {commit}, {machine['date']}, {machine['cores']} cores, Python {machine['Python']}: "
        f"medians of {number} rounds in fresh "
        "processes, all side by side in one run; in brackets how many times as much as kestrel_lab's "
        "first number."
    )
    return "\n\n".join(
        part for part in (said, doubts(outcomes), markdown_table(["", "kestrel_lab", "others"], rows)) if part
    )


def written(text: str, table: str) -> str:
    """Return a page with `table` between the markers; raises `ValueError` unless each occurs once."""
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        msg = (
            f"the page needs the lines {BEGIN} and {END}, once and in this order: the table goes between them"
        )
        raise ValueError(msg)
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{table}\n{END}{rest.partition(END)[2]}"


def write(
    pages: Sequence[Path], outcomes: Sequence[Outcome], machine: Mapping[str, str | int], commit: str
) -> None:
    """Write the table into the files of `pages`, which stay as they are when something was not measured."""
    new = table(outcomes, machine, commit)
    texts = [written(page.read_text(encoding="utf-8"), new) for page in pages]
    for page, text in zip(pages, texts, strict=True):
        page.write_text(text, encoding="utf-8")


def _cells(line: Line, known: Mapping[str, Outcome]) -> list[str]:
    if (outcome := known.get(line.benchmark)) is None:
        msg = f"{line.text!r} was not measured: the benchmark {line.benchmark} did not run"
        raise Unmeasured(msg)
    measure = next(one for one in outcome.benchmark.measures if one.key == line.measure)
    samples = list(outcome.samples.values())
    ours = [one for one in samples if one.row.ours and (not line.rows or one.row.name in line.rows)]
    for one in ours:
        if of_measure(one, measure) is None:
            msg = f"{line.text!r} was not measured: {one.label}: {one.missing or 'it told nothing'}"
            raise Unmeasured(msg)
    if not ours:
        msg = f"{line.text!r} was not measured: {line.benchmark} has no row {' or '.join(line.rows)}"
        raise Unmeasured(msg)
    others = [_other(outcome, one, ours[0], measure) for one in samples if not (one.row.ours or line.alone)]
    return [
        line.text,
        " · ".join(_own(one, measure, named=len(ours) > 1) for one in ours),
        " · ".join(text for text in others if text),
    ]


def _own(samples: Samples, measure: Measure, *, named: bool) -> str:
    name = f"{samples.row.name.removeprefix('kestrel_lab, ')} " if named else ""
    return f"{name}{_value(samples, measure)}"


def _other(outcome: Outcome, samples: Samples, ours: Samples, measure: Measure) -> str:
    if samples.missing:
        return f"{samples.label}: {samples.missing}"
    if of_measure(samples, measure) is None:
        return ""
    times = ratio(outcome, samples, ours, measure.key)
    return f"{samples.label} {_value(samples, measure)}" + (
        "" if times is None else f" ({times.median:.1f} ×)"
    )


def _value(samples: Samples, measure: Measure) -> str:
    found = of_measure(samples, measure)
    assert found is not None
    return f"{found.median:.{measure.digits}f}" + (f" {measure.unit}" if measure.unit else "")
