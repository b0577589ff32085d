"""Recall of retrieval, trial by trial: where each item that `recall_at` wants was found, or at which step it
was lost and why.

Everything is read from the logs of the trials; their workspaces are gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from kestrel_lab.checks.composition import each_check
from kestrel_lab.checks.retrieval import RecallAt, retrieved_results
from kestrel_lab.core.events.union import Record, RetrievalStep, ToolAnswered
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.result_table import label_kind
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.retrieval.hits import Retrieval
from kestrel_lab.retrieval.trace_events import retrievals_in
from kestrel_lab.views.formatting import format_count

RECALL_COLUMNS: Final = (
    "scenario",
    "family",
    "config",
    "epoch",
    "item",
    "k",
    "found",
    "place",
    "state",
    "step",
    "why",
    "run",
)
MISSED_HEADINGS: Final = ("scenario", "configuration", "not found", "in trials", "lost at step", "why")


def recall_rows(
    suite: Suite, rows: Iterable[EvalRow], store: SessionStore, *, missed: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield a record per trial and wanted item, with the keys `RECALL_COLUMNS`; with `missed` only of items
    that were not found.
    """
    wanted = {
        scenario.id: [check for check in each_check(scenario.checks) if isinstance(check, RecallAt)]
        for scenario in suite.scenarios
    }
    for row in rows:
        checks = wanted.get(row.scenario, [])
        if not checks or (missed and not _has_missing(row)):
            continue
        records = store.records(row.run)
        head = {"scenario": row.scenario, "family": row.family, "config": row.config, "epoch": row.epoch}
        for check in checks:
            for item in check.items:
                record = _item_record(check, item, records)
                if not (missed and record["found"]):
                    yield {**head, "item": item, "k": check.k, **record, "run": row.run}


class MissedItems:
    """Collects the trials that did not find everything that checks of recall want, and counts all trials."""

    def __init__(self) -> None:
        self.rows: list[EvalRow] = []
        self.trials: Counter[tuple[str, str]] = Counter()

    def noting(self, rows: Iterable[EvalRow]) -> Iterator[EvalRow]:
        """Yield the rows unchanged, and keep those that lack something."""
        for row in rows:
            self.trials[row.scenario, row.config] += 1
            self.rows += [row] if _has_missing(row) else []
            yield row


def missed_table(suite: Suite, lacking: MissedItems, store: SessionStore) -> list[list[str]]:
    """Return cells under `MISSED_HEADINGS`: what was not found, once for each scenario and configuration,
    with the reason of the last epoch.
    """
    rows = sorted(lacking.rows, key=lambda row: (row.scenario, row.config, row.epoch))
    kinds = {row.config: row.model_kind for row in rows}
    found = group_values(
        ((one["scenario"], one["config"], one["item"], one["k"]), one)
        for one in recall_rows(suite, rows, store, missed=True)
    )
    return [
        [
            scenario,
            label_kind(config, kinds[config]),
            f"{item} (first {k})",
            f"{len({one['epoch'] for one in misses})} of {lacking.trials[scenario, config]}",
            misses[-1]["step"],
            misses[-1]["why"],
        ]
        for (scenario, config, item, k), misses in found.items()
    ]


def _has_missing(row: EvalRow) -> bool:
    return any(score["check"].startswith("recall@") and score["value"] < 1 for score in row.scores)


def _item_record(check: RecallAt, item: str, records: Sequence[Record]) -> dict[str, Any]:
    """Return what happened to an item: `found`, `place` among the results, `state`, `step` and `why`."""
    shown = list(dict.fromkeys(retrieved_results(records, check.tool)))
    place = next((number for number, text in enumerate(shown, 1) if check.names(text, item)), None)
    if place is not None and place <= check.k:
        return {"found": True, "place": place, "state": "found", "step": "", "why": ""}
    asked = retrievals_in(record.event for record in records if isinstance(record.event, RetrievalStep))
    if place is not None:
        why = f"result {place} of {len(shown)}, and the first {check.k} count"
        return {"found": False, "place": place, "state": "behind", "step": "", "why": why}
    state, step, why = next(
        filter(None, (_where_lost(check, item, one) for one in reversed(asked))), None
    ) or _why_never_named(check, asked, records, shown)
    return {"found": False, "place": None, "state": state, "step": step, "why": why}


def _where_lost(check: RecallAt, item: str, asked: Retrieval) -> tuple[str, str, str] | None:
    """Return the last step of a search that names the item, and its reason; `None` where none does."""
    for number, step in reversed(list(enumerate(asked.steps, 1))):
        name = f"{number} {step.retriever}"
        for path, why in step.dropped.items():
            if check.names(path, item):
                reason = str(why)
                return ("behind" if reason.startswith("ranked ") else "dropped"), name, reason
        if any(check.names(path, item) for path in step.chosen):
            return "chosen", name, "this step chose it, and no result that the agent was shown names it"
    return None


def _why_never_named(
    check: RecallAt, asked: Sequence[Retrieval], records: Sequence[Record], shown: Sequence[object]
) -> tuple[str, str, str]:
    """Return why nothing names an item, as far as the log shows."""
    if asked:
        steps = [step for one in asked for step in one.steps]
        untold = any(step.found > len(step.chosen) + len(step.dropped) for step in steps)
        why = (
            f"no search names it; "
            f"{format_count(max((step.found for step in steps), default=0), 'file')} matched at most"
        )
        return (
            ("behind" if untold else "unmatched"),
            "",
            f"{why}, and the log has the first of them" if untold else why,
        )
    tools = sorted({record.event.tool for record in records if isinstance(record.event, ToolAnswered)})
    if not shown:
        lacking = f"the agent never called {check.tool}" if check.tool else "the agent was shown no results"
        return "not looked for", "", f"{lacking}; it called {', '.join(tools) or 'no tool'}"
    return (
        "unmatched",
        "",
        f"none of {format_count(len(shown), 'result')} of {check.tool or ', '.join(tools)} names it",
    )
