"""The HTML page of a comparison: what changed between two commits, how sure that is, and both transcripts of what flipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kestrel_lab.core.drawing.matplotlib_figure import png_uri
from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.plots import differences_figure
from kestrel_lab.evals.reports.transcripts import TEMPLATES, Transcripts, heading
from kestrel_lab.evals.stats.difference import Difference
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.views.html.elements import environment, safe


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
    """Return a self-contained HTML document: `table` is safe HTML, all other text is foreign; `rest` are trials that did not flip."""
    flipped = []
    for base, head in flips:
        kind = "pass → fail" if base.result["outcome"] == "pass" else "fail → pass"
        named = ((f"base {base.git_sha[:10]}", base), (f"head {head.git_sha[:10]}", head))
        sides = [transcripts.folded(row, title=f"{name}: {heading(row)}", opened=True) for name, row in named]
        flipped.append((f"{kind}: {head.scenario} · {head.config} · epoch {head.epoch}", sides))
    return (
        environment(TEMPLATES)
        .get_template("comparison.html")
        .render(
            title=headline,
            table=safe(table),
            notes=notes,
            gates=gates,
            differences_figure=png_uri(differences_figure(differences)) if differences else "",
            flips=flipped,
            rest=[transcripts.folded(row, title=f"{row.git_sha[:10]} · {heading(row)}") for row in rest],
        )
    )
