"""Markdown for a pull request's comment, in which foreign text stays text: rates with intervals, gates,
flips, trials that did not pass.

Foreign text is in code spans: there GitHub and its like render no HTML, image or link and notify nobody.
What could end a span or a table's cell is replaced by a character that looks alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import (
    label_kind,
    not_real,
    summarise_configurations,
    summary_table,
)
from kestrel_lab.views.formatting import format_count

if TYPE_CHECKING:
    from kestrel_lab.evals.reports.gate_decisions import GateReport
    from kestrel_lab.evals.suite import Suite

SHOWN: Final = 20
"""Rows of a list in a comment; how many more there are is said."""
DIFFERENCE_HEADINGS: Final = ("difference (95 %)", "p", "verdict", "smallest detectable")
_TEXTS: Final = frozenset({"configuration", "model"})
_NAMED: Final = 5
"""Scenarios that the first lines of a comment name."""
_NAME: Final = 60
_NO_COST: Final = frozenset({"0", "–", "unknown"})
_SIGNS: Final = re.compile(r"[\\`*_{}\[\]<>#|&@~!$]|(?<=:)/(?=/)|^[-+]|(?<=\d)\.(?=\s)")


def code_span(text: object, limit: int = 120) -> str:
    """Return foreign text on one line as a code span; a dash for none."""
    line = one_line(str(text), limit).replace("`", "ˋ").replace("|", "¦")
    return f"`{line}`" if line else "–"


def plain_prose(text: object, limit: int = 400) -> str:
    """Return a sentence on one line, in which nothing is Markdown, HTML, a link or a mention."""
    return _SIGNS.sub(lambda sign: f"&#{ord(sign[0])};", one_line(str(text), limit))


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table of cells that are Markdown already: made here, or by `code_span`."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def markdown_link(text: str, address: str) -> str:
    """Return `text`, which is Markdown already, as a link; without an address the text alone.

    Raises `UsageError` for an address that is neither a path nor begins with http or https.
    """
    if not address:
        return text
    try:
        scheme = urlsplit(address).scheme
    except ValueError:
        # `urlsplit` raises for brackets that hold no address.
        scheme = "none"
    if scheme not in ("", "http", "https"):
        raise UsageError(
            f"a link to a report begins with http:// or https://, or is a path, not {one_line(address)!r}"
        )
    return f"[{text}]({quote(address, safe='/:?#@!$&=+,;%~-._', errors='replace')})"


def join_blocks(parts: Iterable[str]) -> str:
    """Join paragraphs, tables and headings to one document."""
    return "\n\n".join(part for part in parts if part) + "\n"


def result_markdown(suite: Suite, rows: Sequence[EvalRow], gates: GateReport | None, report: str) -> str:
    """Return the summary of one eval run; `report` is the address of its HTML report, empty for none."""
    summaries = summarise_configurations(rows, suite.count_errors)
    headings, found = summary_table(summaries)
    cells = [
        [
            code_span(cell) if heading in _TEXTS else str(cell)
            for heading, cell in zip(headings, row, strict=True)
        ]
        for row in found
    ]
    return join_blocks(
        [
            f"### Suite {code_span(suite.name)}",
            markdown_link(
                f"{format_count(len(rows), 'trial')} of {format_count(len(suite.scenarios), 'scenario')}",
                report,
            ),
            " ".join(f"**{note}**" for note in not_real(summaries, code_span)),
            gates.markdown().rstrip("\n") if gates else "",
            markdown_table(headings, cells),
            *_not_passed(rows, report),
        ]
    )


def comparison_markdown(
    heading: tuple[str, str],
    changes: Iterable[str],
    sides: tuple[str, str],
    differences: Iterable[Sequence[str]],
    flips: Sequence[Mapping[str, Any]],
    notes: Iterable[str],
    gates: GateReport | None,
    report: str,
) -> str:
    """Return the summary of two commits, which is read in five seconds: verdict, change, what changed sides
    and cost; the rest is folded.

    `heading` is the verdict in words and the suite, `changes` are lines of Markdown, `sides` the names of
    base and head, `differences` cells, foreign names first.
    """
    verdict, suite = heading
    cells = [[code_span(config), code_span(metric), *rest] for config, metric, *rest in differences]
    shown = [
        [
            _trial(f["scenario"], f["head_run"], report),
            code_span(f["config"]),
            str(f["epoch"]),
            f"{f['base']} → {f['head']}",
            code_span(f["reason"]),
        ]
        for f in flips[:SHOWN]
    ]
    return join_blocks(
        [
            f"### {verdict}: suite {code_span(suite)}",
            "\n".join(
                f"- {line}"
                for line in (
                    *changes,
                    *_sides_changed(flips),
                    *_costs(cells),
                    *(gates.concerns() if gates else ()),
                )
            ),
            markdown_link("Report", report) if report else "",
            "<details><summary>Gates, metrics and trials</summary>",
            " → ".join(map(code_span, sides)),
            gates.markdown().rstrip("\n") if gates else "",
            markdown_table(["configuration", "metric", "base", "head", *DIFFERENCE_HEADINGS], cells)
            if cells
            else "",
            markdown_table(["scenario", "configuration", "epoch", "base → head", "reason"], shown)
            if flips
            else "",
            _more_line(len(flips)),
            "\n".join(f"- {plain_prose(note)}" for note in notes),
            "</details>",
        ]
    )


def _sides_changed(flips: Sequence[Mapping[str, Any]]) -> Iterable[str]:
    """Yield how many trials passed on one side only, and their scenarios."""
    if not flips:
        yield "No trial changed sides."
        return
    lost = sum(flip["base"] == "pass" for flip in flips)
    names = list(dict.fromkeys(code_span(flip["scenario"], _NAME) for flip in flips))
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    yield (
        f"**{format_count(len(flips), 'trial')} changed sides**, {lost} to fail and {len(flips) - lost} to "
        f"pass: {', '.join(names[:_NAMED])}{more}"
    )


def _costs(cells: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield what a trial costs on both sides, where that is known."""
    for config, metric, base, head, _, _, verdict, *_ in cells:
        if metric == code_span("cost_estimate") and {base, head} - _NO_COST:
            decided = verdict in ("regression", "improvement") and not {base, head} & _NO_COST
            change = f"{100 * (float(head) / float(base) - 1):+.0f} %" if decided else verdict
            yield f"{config} costs ${base} → ${head} per trial ({change})"


def _not_passed(rows: Sequence[EvalRow], report: str) -> Iterable[str]:
    failed = [row for row in rows if row.outcome != "pass"]
    if not failed:
        yield "Every trial passed."
        return
    yield f"**Did not pass: {len(failed)} of {format_count(len(rows), 'trial')}**"
    cells = []
    for row in failed[:SHOWN]:
        config = code_span(label_kind(row.config, row.model_kind))
        cells.append(
            [
                _trial(row.scenario, row.run, report),
                config,
                str(row.epoch),
                row.outcome,
                code_span(row.reason),
            ]
        )
    yield markdown_table(["scenario", "configuration", "epoch", "outcome", "reason"], cells)
    yield _more_line(len(failed))


def _trial(scenario: str, run: str, report: str) -> str:
    """Return the name of a trial's scenario, as a link to its transcript where there is a report."""
    return markdown_link(code_span(scenario), f"{report}#run-{run}" if report else "")


def _more_line(count: int) -> str:
    return f"… and {count - SHOWN} more" if count > SHOWN else ""
