"""HTML pages of results: those of a suite run, how sure they are, and transcripts of a size that a browser
opens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.drawing.matplotlib_figure import figure_uri
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.reports.gate_decisions import GateReport
from kestrel_lab.evals.reports.plots import configs_figure, families_figure
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.summaries.result_table import format_percent, label_kind, not_real, summary_table
from kestrel_lab.evals.summaries.retrieval_recall import MISSED_HEADINGS, MissedItems, missed_table
from kestrel_lab.evals.summaries.streaming_summary import reduce_rows
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.elements import safe_markup, template_environment, template_macros
from kestrel_lab.views.html.run_page import run_html
from kestrel_lab.views.run_view import view_of

if TYPE_CHECKING:  # loads pydantic
    from kestrel_lab.evals.suite import Suite

PAGE_CHARS: Final = 8_000_000
"""Of all transcripts of one page together; further trials are listed with their reason."""
RUN_CHARS: Final = 200_000
"""Of one transcript; of a longer run the beginning is shown."""
_FEWEST: Final = 8
"""Events below which a transcript is not cut any further."""
TEMPLATES: Final = Path(__file__).parent / "templates"


def render_page(template: str, **values: Any) -> str:
    """Return a self-contained HTML page; what is not marked as safe is text in it."""
    return str(template_environment(TEMPLATES).get_template(template).render(**values))


class Transcripts:
    """What happened in trials, as HTML in which everything foreign is text; each run is told once, in the
    order asked for.
    """

    def __init__(self, *stores: SessionStore, chars: int = PAGE_CHARS, run_chars: int = RUN_CHARS) -> None:
        self._stores = stores
        self._left = chars
        self._longest = run_chars
        self._told: set[str] = set()

    def folded(self, row: EvalRow, *, title: str = "", opened: bool = False) -> Any:
        """Return the trial as a `<details>` with the anchor `run-…`, as `Markup`.

        It is a line alone where the page has no room left, and a link where the run is told above.
        """
        head = title or trial_heading(row)
        run = row.run
        parts = template_macros("parts.html", TEMPLATES, one_line=one_line)
        if run in self._told:
            return parts.told_above(run, head)
        self._told.add(run)
        if self._left <= 0:
            return parts.without_transcript(run, head)
        inside = parts.score_list([{"kept": False, **score} for score in row.scores]) + self._transcript(
            run, parts
        )
        self._left -= len(inside)
        return parts.trial(run, head, opened, inside)

    def _transcript(self, run: str, parts: Any) -> Any:
        records = next((found for store in self._stores if (found := store.records(run))), [])
        if not records:
            return parts.not_stored()
        kept, html = len(records), run_html(view_of(records))
        while len(html) > self._longest and kept > _FEWEST:
            kept //= 2
            html = run_html(view_of(records[:kept]))
        if len(html) > self._longest:
            return parts.too_long(run)
        return safe_markup(html) + (parts.cut_short(run, len(records) - kept) if kept < len(records) else "")


def trial_heading(row: EvalRow) -> str:
    """A trial in one line: scenario, configuration, epoch, outcome and why."""
    label = label_kind(row.config, row.model_kind)
    why = f": {one_line(row.reason, 300)}" if row.reason else ""
    return f"{row.scenario} · {label} · epoch {row.epoch} · {row.outcome}{why}"


_MISSED: Final = 100
"""How many of the items that were not found are listed."""


def report_page(
    suite: Suite, rows: Sequence[EvalRow], store: SessionStore, gates: GateReport | None = None
) -> str:
    """Return a self-contained HTML document; everything foreign in it is text."""
    lacking = MissedItems()
    reducer = reduce_rows(lacking.noting(rows), suite.count_errors)
    summaries = reducer.summaries()
    transcripts = Transcripts(store)
    sizes = [
        format_count(len(suite.scenarios), "scenario"),
        format_count(len(suite.configs), "configuration"),
        format_count(suite.epochs, "epoch"),
    ]
    # Those that did not pass come first: they are shown even where not all have room.
    failed = [transcripts.folded(row) for row in rows if row.outcome != "pass"]
    return render_page(
        "suite.html",
        title=f"Suite {suite.name}",
        suite=suite,
        sizes=f"{format_count(len(rows), 'trial')}: {' × '.join(sizes)}",
        commits=sorted({row.git_sha for row in rows if row.git_sha}),
        made_up=not_real(summaries),
        summary=summary_table(summaries),
        gates=gates,
        configs_figure=figure_uri(configs_figure, summaries),
        family_figures=list(_family_figures(reducer.grouped("family"))),
        missed=missed_table(suite, lacking, store),
        missed_headings=MISSED_HEADINGS,
        most_missed=_MISSED,
        scenarios=_scenarios(reducer.grouped("scenario"), {row.scenario: row.family for row in rows}),
        failed=failed,
        passed=[transcripts.folded(row) for row in rows if row.outcome == "pass"],
    )


def _family_figures(records: Sequence[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield address and description of each figure, where there are several families."""
    if len({record["family"] for record in records}) > 1:
        yield figure_uri(families_figure, records, "success_rate"), "Success rate by family of scenarios"
        for metric in (
            name for name in records[0] if name.startswith("recall@") and not name.endswith(("_low", "_high"))
        ):
            yield figure_uri(families_figure, records, metric), f"{metric} by family of scenarios"


def _scenarios(
    records: Sequence[dict[str, Any]], families: dict[str, str]
) -> tuple[list[str], list[list[str]]]:
    configs = {record["config"]: label_kind(record["config"], record["model_kind"]) for record in records}
    cells = {(record["scenario"], record["config"]): _rate(record) for record in records}
    grouped = any(families.values())
    rows = [
        [name, *([family] if grouped else []), *(cells.get((name, config), "–") for config in configs)]
        for name, family in families.items()
    ]
    return ["scenario", *(["family"] if grouped else []), *configs.values()], rows


def _rate(record: dict[str, Any]) -> str:
    interval = f" ({100 * record['success_rate_low']:.0f}–{100 * record['success_rate_high']:.0f})"
    broke = f", {record['errors']} broke" if record["errors"] else ""
    return f"{format_percent(record['success_rate'])}{interval} of {record['trials']}{broke}"
