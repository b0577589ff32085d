"""The page that tells of a suite run: what was tried, how well it went, and what happened where it did not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, Final

from kestrel_lab.core.drawing.figure import png_uri
from kestrel_lab.core.text import one_line, plain
from kestrel_lab.evals.plots import configs_figure
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.table import SUMMARY_HEADINGS, labelled, not_real, percent, success_interval, summarise, summary_cells, trial_record
from kestrel_lab.log.store import EvalRow, SessionStore
from kestrel_lab.views.html import run_html, table_html
from kestrel_lab.views.page import page
from kestrel_lab.views.runview import view_of

MAX_TRANSCRIPTS: Final = 50
"""Transcripts in one page; further trials that did not pass are listed with their reason."""


def report_page(suite: Suite, rows: Sequence[EvalRow], store: SessionStore) -> str:
    """A self-contained HTML document; everything foreign in it is text."""
    summaries = summarise(rows, suite.count_errors)
    commits = sorted({row.git_sha for row in rows if row.git_sha})
    body = [
        f"<h1>Suite {_text(suite.name)}</h1>",
        f"<p>{len(rows)} trials: {len(suite.scenarios)} scenarios × {len(suite.configs)} configurations × {suite.epochs} epochs. "
        f"Commit: {_text(', '.join(commits) or 'not in git')}. A trial that broke counts "
        f"{'as failed' if suite.count_errors == 'fail' else 'in no rate'}.</p>",
        _made_up(summaries),
        table_html(SUMMARY_HEADINGS, map(summary_cells, summaries)),
        f'<p><img alt="Success, cost and working time by configuration" src="{png_uri(configs_figure(summaries))}"></p>',
        "<h2>Scenarios</h2>",
        _scenarios(suite, rows),
        "<h2>What did not pass</h2>",
        *_failures(rows, store),
    ]
    return page(f"Suite {suite.name}", "\n".join(body))


def _made_up(summaries: Iterable[dict[str, Any]]) -> str:
    return "".join(f"<p><b>{_text(told)}</b></p>" for told in not_real(summaries))


def _scenarios(suite: Suite, rows: Sequence[EvalRow]) -> str:
    kinds = {row.config: str(row.result["model_kind"]) for row in rows}
    families = {scenario.id: scenario.family for scenario in suite.scenarios}
    cells = []
    for scenario in dict.fromkeys(row.scenario for row in rows):
        found = []
        for config in kinds:
            records = [trial_record(row, suite.count_errors) for row in rows if (row.scenario, row.config) == (scenario, config)]
            broke = sum(record["outcome"] == "error" for record in records)
            found.append(percent(success_interval(records).mean) + (f" ({broke} broke)" if broke else "") if records else "–")
        cells.append([scenario, families.get(scenario, ""), *found])
    return table_html(["scenario", "family", *(labelled(config, kind) for config, kind in kinds.items())], cells)


def _failures(rows: Sequence[EvalRow], store: SessionStore) -> Iterable[str]:
    failed = [row for row in rows if row.result["outcome"] != "pass"]
    if not failed:
        yield "<p>Every trial passed.</p>"
    for number, row in enumerate(failed):
        label = labelled(row.config, str(row.result["model_kind"]))
        head = f"{row.scenario} · {label} · epoch {row.epoch} · {row.result['outcome']}: {one_line(str(row.result['reason']), 300)}"
        if number >= MAX_TRANSCRIPTS:
            yield f"<p>{_text(head)}</p>"
            continue
        records = store.records(str(row.result["run"]))
        inside = run_html(view_of(records)) if records else "<p>The log of this run is not in this store.</p>"
        yield f'<details id="run-{escape(str(row.result["run"]))}">' + f"<summary>{_text(head)}</summary>{inside}</details>"


def _text(text: str) -> str:
    return escape(plain(text))
