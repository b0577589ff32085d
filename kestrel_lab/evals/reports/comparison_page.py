"""The page that tells of two commits: what changed, how sure that is, and what flipped, with both transcripts side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from kestrel_lab.core.sanitize import plain
from kestrel_lab.evals.reports.gates import GateReport
from kestrel_lab.evals.reports.plots import differences_figure
from kestrel_lab.evals.reports.suite_page import image, wide
from kestrel_lab.evals.reports.transcripts import SIDE_BY_SIDE, Transcripts, heading
from kestrel_lab.evals.stats.difference import Difference
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.views.html.page import page
from kestrel_lab.views.html.run_page import table_html


def comparison_page(
    headline: str,
    table: str,
    differences: Mapping[tuple[str, str], Difference],
    flips: Sequence[tuple[EvalRow, EvalRow]],
    rest: Sequence[EvalRow],
    notes: Iterable[str],
    gates: GateReport | None,
    transcripts: Transcripts,
) -> str:
    """A self-contained HTML document: `table` is safe HTML, all other text is foreign; `rest` are trials that did not flip."""
    body = [
        f'<h1 style="overflow-wrap:anywhere">{_text(headline)}</h1>',
        wide(table),
        "".join(f'<p style="overflow-wrap:anywhere">{_text(note)}</p>' for note in notes),
        f"<h2>Gates: {gates.verdict}</h2>{wide(table_html(*gates.table()))}" if gates else "",
        image(differences_figure(differences), "Differences with their 95 % intervals") if differences else "",
        f"<h2>Passed on one side only ({len(flips)})</h2>",
        *(_flip(base, head, transcripts) for base, head in flips),
        "" if flips else "<p>No trial flipped.</p>",
        f"<h2>The other trials</h2><details><summary>{len(rest)} trials</summary>",
        *(transcripts.folded(row, title=f"{row.git_sha[:10]} · {heading(row)}") for row in rest),
        "</details>",
    ]
    return page(headline, "\n".join(body))


def _flip(base: EvalRow, head: EvalRow, transcripts: Transcripts) -> str:
    kind = "pass → fail" if base.result["outcome"] == "pass" else "fail → pass"
    title = f"{kind}: {head.scenario} · {head.config} · epoch {head.epoch}"
    told = [transcripts.folded(row, title=f"{name}: {heading(row)}", opened=True) for name, row in _named(base, head)]
    sides = "".join(f'<div style="min-width:0;overflow-wrap:anywhere">{side}</div>' for side in told)
    return f"<details><summary><b>{_text(title)}</b></summary><div {SIDE_BY_SIDE}>{sides}</div></details>"


def _named(base: EvalRow, head: EvalRow) -> Sequence[tuple[str, EvalRow]]:
    return (f"base {base.git_sha[:10]}", base), (f"head {head.git_sha[:10]}", head)


def _text(text: str) -> str:
    return escape(plain(text))
