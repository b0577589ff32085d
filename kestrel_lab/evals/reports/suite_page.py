"""The page that tells of a suite run: what was tried, how well it went, and what happened in each trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import png_uri
from kestrel_lab.core.sanitize import plain
from kestrel_lab.evals.reports.gates import GateReport
from kestrel_lab.evals.reports.plots import configs_figure, families_figure
from kestrel_lab.evals.reports.transcripts import Transcripts
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.result_table import labelled, not_real, percent, summary_table
from kestrel_lab.evals.summaries.retrieval_recall import MISSED_HEADINGS, Lacking, missed_table
from kestrel_lab.evals.summaries.streaming_summary import reduced
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.html.page import page
from kestrel_lab.views.html.run_page import table_html

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MISSED: Final = 100
"""Items that were not found and are told."""


def report_page(suite: Suite, rows: Sequence[EvalRow], store: SessionStore, gates: GateReport | None = None) -> str:
    """A self-contained HTML document; everything foreign in it is text."""
    lacking = Lacking()
    reducer = reduced(lacking.noting(rows), suite.count_errors)
    summaries = reducer.summaries()
    commits = sorted({row.git_sha for row in rows if row.git_sha})
    body = [
        f'<h1 style="overflow-wrap:anywhere">Suite {_text(suite.name)}</h1>',
        f'<p style="overflow-wrap:anywhere">{len(rows)} trials: {len(suite.scenarios)} scenarios × {len(suite.configs)} configurations × {suite.epochs} epochs. '
        f"Commit: {_text(', '.join(commits) or 'not in git')}. A trial that broke counts "
        f"{'as failed' if suite.count_errors == 'fail' else 'in no rate'}.</p>",
        _made_up(summaries),
        wide(table_html(*summary_table(summaries))),
        f"<h2>Gates: {gates.verdict}</h2>{wide(table_html(*gates.table()))}" if gates else "",
        image(configs_figure(summaries), "Success, cost and working time by configuration"),
        *_families(reducer.grouped("family")),
        *_missed(missed_table(suite, lacking, store)),
        "<h2>Scenarios</h2>",
        wide(_scenarios(reducer.grouped("scenario"), {row.scenario: str(row.result["family"]) for row in rows})),
        *_trials(rows, Transcripts(store)),
    ]
    return page(f"Suite {suite.name}", "\n".join(body))


def image(figure: Figure, told: str) -> str:
    """A figure on its own light ground, so that it can be read on dark pages, too."""
    return f'<p><img alt="{escape(told)}" src="{png_uri(figure)}" style="background:#fff;border-radius:6px"></p>'


def wide(table: str) -> str:
    """A table that scrolls by itself where the page is narrower."""
    return f'<div style="overflow-x:auto">{table}</div>'


def _made_up(summaries: Iterable[dict[str, Any]]) -> str:
    return "".join(f"<p><b>{_text(told)}</b></p>" for told in not_real(summaries))


def _families(records: Sequence[dict[str, Any]]) -> Iterable[str]:
    if len({record["family"] for record in records}) > 1:
        yield "<h2>Families</h2>"
        yield image(families_figure(records, "success_rate"), "Success rate by family of scenarios")
        for metric in (name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))):
            yield image(families_figure(records, metric), f"{metric} by family of scenarios")


def _missed(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """What checks wanted to be found and was not."""
    if rows:
        yield "<h2>What was not found</h2>"
        yield wide(table_html(MISSED_HEADINGS, rows[:_MISSED]))
        if len(rows) > _MISSED:
            yield f"<p>… and {len(rows) - _MISSED:,} more: <code>EvalResult.recall()</code>.</p>"


def _scenarios(records: Sequence[dict[str, Any]], families: dict[str, str]) -> str:
    configs = {record["config"]: labelled(record["config"], record["model_kind"]) for record in records}
    cells = {(record["scenario"], record["config"]): _rate(record) for record in records}
    rows = [[name, family, *(cells.get((name, config), "–") for config in configs)] for name, family in families.items()]
    return table_html(["scenario", "family", *configs.values()], rows)


def _rate(record: dict[str, Any]) -> str:
    interval = f" ({100 * record['success_rate_low']:.0f}–{100 * record['success_rate_high']:.0f})"
    broke = f", {record['errors']} broke" if record["errors"] else ""
    return f"{percent(record['success_rate'])}{interval} of {record['trials']}{broke}"


def _trials(rows: Sequence[EvalRow], transcripts: Transcripts) -> Iterable[str]:
    """Those that did not pass first: they are told even where not all have room."""
    failed = [row for row in rows if row.result["outcome"] != "pass"]
    yield "<h2>What did not pass</h2>"
    yield from map(transcripts.folded, failed)
    if not failed:
        yield "<p>Every trial passed.</p>"
    if passed := [row for row in rows if row.result["outcome"] == "pass"]:
        yield f"<h2>What passed</h2><details><summary>{len(passed)} trials</summary>"
        yield from map(transcripts.folded, passed)
        yield "</details>"


def _text(text: str) -> str:
    return escape(plain(text))
