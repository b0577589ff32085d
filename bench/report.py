"""What was found, as tables for the terminal and as `results.md` and `results.json`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.machine import BUSY, in_words
from bench.numbers import Verdict, of_measure, ratio, verdicts
from bench.rounds import Outcome

_STANDING = {True: "met", False: "missed", None: "not measured"}


def cells(outcome: Outcome) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of a benchmark's table; ratios to each of our rows follow the measures."""
    measures = outcome.benchmark.measures
    others = any(not samples.row.ours for samples in outcome.samples.values())
    ours = [samples for samples in outcome.samples.values() if samples.row.ours and others]
    headings = [
        "",
        *(f"{measure.heading}{f', {measure.unit}' if measure.unit else ''}" for measure in measures),
    ]
    headings += [f"× {samples.row.name.removeprefix('kestrel_lab, ')}" for samples in ours]
    rows = []
    for samples in outcome.samples.values():
        if samples.missing:
            rows.append([samples.label, samples.missing, *[""] * (len(headings) - 2)])
            continue
        found = [of_measure(samples, measure) for measure in measures]
        texts = [
            "–" if spread is None else spread.text(measure.digits)
            for spread, measure in zip(found, measures, strict=True)
        ]
        ratios = [None if samples.row.ours else ratio(outcome, samples, own) for own in ours]
        rows.append(
            [
                samples.label,
                *texts,
                *("" if spread is None else spread.text(2 if spread.median < 3 else 1) for spread in ratios),
            ]
        )
    return headings, rows


def doubts(outcomes: Sequence[Outcome]) -> str:
    """A warning when other programs were at work, or nothing."""
    loads = [load for outcome in outcomes for load in outcome.loads]
    if not loads or max(loads) < BUSY:
        return ""
    return (
        f"The machine was busy: the load per core was up to {max(loads):.1f} before a round (the "
        "benchmarks themselves cause less than 1). "
        "Times by the clock are too high for all; trust CPU times and ratios more."
    )


def show(
    console: Console,
    outcomes: Sequence[Outcome],
    machine: dict[str, str | int],
    found: Sequence[Verdict] = (),
) -> None:
    """Print everything; at the end all targets in one table, with those of `bench.finding`."""
    for outcome in outcomes:
        headings, rows = cells(outcome)
        table = Table(
            title=outcome.benchmark.title,
            caption="\n".join(outcome.benchmark.notes),
            caption_justify="left",
            title_justify="left",
        )
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left", overflow="fold")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)
        console.print()
    table = Table(title="Targets", title_justify="left")
    for heading in ("", "target", "measured", ""):
        table.add_column(heading)
    verdicts = [*_all_verdicts(outcomes), *found]
    for verdict in verdicts:
        table.add_row(
            *map(
                escape,
                (
                    f"{verdict.benchmark}: {verdict.meaning}",
                    verdict.wanted,
                    verdict.measured,
                    _STANDING[verdict.met],
                ),
            )
        )
    console.print(table)
    standings = Counter(_STANDING[verdict.met] for verdict in verdicts)
    console.print(", ".join(f"{number} {standing}" for standing, number in standings.items()))
    console.print(in_words(machine), style="dim")
    if warning := doubts(outcomes):
        console.print(warning, style="yellow")


def markdown(
    outcomes: Sequence[Outcome], machine: dict[str, str | int], found: Sequence[Verdict] = ()
) -> str:
    """The same as Markdown."""
    parts = [
        "# Benchmarks of kestrel_lab",
        f"Medians over rounds in fresh processes (least–greatest). {in_words(machine)}",
    ]
    if warning := doubts(outcomes):
        parts.append(f"**{warning}**")
    if outcomes:
        parts.append("![Medians and ranges](results.png)")
    for outcome in outcomes:
        headings, rows = cells(outcome)
        parts += [
            f"## {outcome.benchmark.title}",
            markdown_table(headings, rows),
            "\n".join(f"- {note}" for note in outcome.benchmark.notes),
        ]
    judged = [
        [f"{v.benchmark}: {v.meaning}", v.wanted, v.measured, _STANDING[v.met]]
        for v in (*_all_verdicts(outcomes), *found)
    ]
    return "\n\n".join([*parts, "## Targets", markdown_table(["", "target", "measured", ""], judged)]) + "\n"


def as_json(
    outcomes: Sequence[Outcome], machine: dict[str, str | int], found: Sequence[Verdict] = ()
) -> dict[str, Any]:
    """Everything measured, round by round."""
    return {
        "machine": machine,
        "benchmarks": {
            outcome.benchmark.name: {
                "title": outcome.benchmark.title,
                "measures": {
                    measure.key: {"heading": measure.heading, "unit": measure.unit}
                    for measure in outcome.benchmark.measures
                },
                "load_per_core": [round(load, 2) for load in outcome.loads],
                "rows": [
                    {
                        "name": s.row.name,
                        "ours": s.row.ours,
                        "version": s.version,
                        "missing": s.missing,
                        "rounds": s.rounds,
                    }
                    for s in outcome.samples.values()
                ],
                "targets": [_target(verdict) for verdict in verdicts(outcome)],
            }
            for outcome in outcomes
        },
        "finding": [{"benchmark": verdict.benchmark, **_target(verdict)} for verdict in found],
    }


def _target(verdict: Verdict) -> dict[str, str]:
    return {
        "meaning": verdict.meaning,
        "wanted": verdict.wanted,
        "measured": verdict.measured,
        "standing": _STANDING[verdict.met],
    }


def write(
    folder: Path, outcomes: Sequence[Outcome], machine: dict[str, str | int], found: Sequence[Verdict] = ()
) -> None:
    """Write `results.json` and `results.md` into `folder`."""
    (folder / "results.json").write_text(
        json.dumps(as_json(outcomes, machine, found), indent=1) + "\n", encoding="utf-8"
    )
    (folder / "results.md").write_text(markdown(outcomes, machine, found), encoding="utf-8")


def _all_verdicts(outcomes: Sequence[Outcome]) -> list[Verdict]:
    return [verdict for outcome in outcomes for verdict in verdicts(outcome)]


def markdown_table(headings: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)
