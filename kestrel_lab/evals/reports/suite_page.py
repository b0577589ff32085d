"""The HTML page of a suite run: what was tried, how well it went, and what happened in each trial."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import png_uri
from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.plots import configs_figure, families_figure
from kestrel_lab.evals.reports.transcripts import TEMPLATES, Transcripts
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.result_table import labelled, not_real, percent, summary_table
from kestrel_lab.evals.summaries.retrieval_recall import MISSED_HEADINGS, Lacking, missed_table
from kestrel_lab.evals.summaries.streaming_summary import reduced
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.html.elements import environment

_MISSED: Final = 100
"""How many of the items that were not found are listed."""


def report_page(suite: Suite, rows: Sequence[EvalRow], store: SessionStore, gates: GateReport | None = None) -> str:
    """Return a self-contained HTML document; everything foreign in it is text."""
    lacking = Lacking()
    reducer = reduced(lacking.noting(rows), suite.count_errors)
    summaries = reducer.summaries()
    transcripts = Transcripts(store)
    # Those that did not pass come first: they are shown even where not all have room.
    failed = [transcripts.folded(row) for row in rows if row.result["outcome"] != "pass"]
    return (
        environment(TEMPLATES)
        .get_template("suite.html")
        .render(
            title=f"Suite {suite.name}",
            suite=suite,
            trials=len(rows),
            commits=sorted({row.git_sha for row in rows if row.git_sha}),
            made_up=not_real(summaries),
            summary=summary_table(summaries),
            gates=gates,
            configs_figure=png_uri(configs_figure(summaries)),
            family_figures=list(_family_figures(reducer.grouped("family"))),
            missed=missed_table(suite, lacking, store),
            missed_headings=MISSED_HEADINGS,
            most_missed=_MISSED,
            scenarios=_scenarios(reducer.grouped("scenario"), {row.scenario: str(row.result["family"]) for row in rows}),
            failed=failed,
            passed=[transcripts.folded(row) for row in rows if row.result["outcome"] == "pass"],
        )
    )


def _family_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield address and description of each figure, where there are several families."""
    if len({record["family"] for record in records}) > 1:
        yield png_uri(families_figure(records, "success_rate")), "Success rate by family of scenarios"
        for metric in (name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))):
            yield png_uri(families_figure(records, metric)), f"{metric} by family of scenarios"


def _scenarios(records: Sequence[dict[str, Any]], families: dict[str, str]) -> tuple[list[str], list[list[str]]]:
    configs = {record["config"]: labelled(record["config"], record["model_kind"]) for record in records}
    cells = {(record["scenario"], record["config"]): _rate(record) for record in records}
    rows = [[name, family, *(cells.get((name, config), "–") for config in configs)] for name, family in families.items()]
    return ["scenario", "family", *configs.values()], rows


def _rate(record: dict[str, Any]) -> str:
    interval = f" ({100 * record['success_rate_low']:.0f}–{100 * record['success_rate_high']:.0f})"
    broke = f", {record['errors']} broke" if record["errors"] else ""
    return f"{percent(record['success_rate'])}{interval} of {record['trials']}{broke}"
