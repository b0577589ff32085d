"""Markdown for a pull request: rates with intervals, gates, flips, trials that did not pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.markdown import SHOWN, code, joined, linked, table
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.result_table import labelled, not_real, summarise, summary_table

DIFFERENCE_HEADINGS = ("difference (95 %)", "p", "verdict", "smallest detectable")
_TEXTS = frozenset({"configuration", "model"})


def result_markdown(suite: Suite, rows: Sequence[EvalRow], gates: GateReport | None, report: str) -> str:
    """Return the summary of one eval run; `report` is the address of its HTML report, empty for none."""
    summaries = summarise(rows, suite.count_errors)
    headings, found = summary_table(summaries)
    cells = [[code(cell) if heading in _TEXTS else str(cell) for heading, cell in zip(headings, row, strict=True)] for row in found]
    return joined(
        [
            f"### Suite {code(suite.name)}",
            linked(f"{len(rows)} trials of {len(suite.scenarios)} scenarios", report),
            " ".join(f"**{told}**" for told in not_real(summaries, code)),
            gates.markdown().rstrip("\n") if gates else "",
            table(headings, cells),
            *_not_passed(rows, report),
        ]
    )


def comparison_markdown(
    heading: tuple[str, str, str, str],
    differences: Iterable[Sequence[str]],
    flips: Sequence[Mapping[str, Any]],
    notes: Iterable[str],
    gates: GateReport | None,
    report: str,
) -> str:
    """Return the summary of two commits: `heading` is verdict, base, head and suite; `differences` are cells, foreign names first."""
    verdict, base, head, suite = heading
    rows = [[code(config), code(metric), *rest] for config, metric, *rest in differences]
    shown = [
        [
            linked(code(f["scenario"]), f"{report}#run-{f['head_run']}" if report else ""),
            code(f["config"]),
            str(f["epoch"]),
            f"{f['base']} → {f['head']}",
            code(f["reason"]),
        ]
        for f in flips[:SHOWN]
    ]
    return joined(
        [
            f"### {verdict.upper()}: {code(base)} → {code(head)}, suite {code(suite)}",
            linked("Report", report) if report else "",
            gates.markdown().rstrip("\n") if gates else "",
            table(["configuration", "metric", "base", "head", *DIFFERENCE_HEADINGS], rows),
            f"**Flipped: {len(flips)} trials passed on one side only**" if flips else "No trial flipped.",
            table(["scenario", "configuration", "epoch", "base → head", "reason"], shown) if flips else "",
            _more(len(flips)),
            "\n".join(f"- {code(note, 400)}" for note in notes),
        ]
    )


def _not_passed(rows: Sequence[EvalRow], report: str) -> Iterable[str]:
    failed = [row for row in rows if row.outcome != "pass"]
    if not failed:
        yield "Every trial passed."
        return
    yield f"**Did not pass: {len(failed)} of {len(rows)} trials**"
    cells = [
        [
            linked(code(row.scenario), f"{report}#run-{row.run}" if report else ""),
            code(labelled(row.config, row.model_kind)),
            str(row.epoch),
            row.outcome,
            code(row.reason),
        ]
        for row in failed[:SHOWN]
    ]
    yield table(["scenario", "configuration", "epoch", "outcome", "reason"], cells)
    yield _more(len(failed))


def _more(count: int) -> str:
    return f"… and {count - SHOWN} more" if count > SHOWN else ""
