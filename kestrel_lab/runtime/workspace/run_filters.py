"""Filters of runs: what `lab.find`, `kestrel find`, the page and the tool of MCP clients choose runs by."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


class Filter(NamedTuple):
    """One thing that is known of runs, and by which they are chosen."""

    help: str
    kind: type = str
    sql: str = ""
    """Condition on `runs`, with one place for the value; empty for one that is checked with the run's events.
    """
    trial: str = ""
    """Condition on a row `e` of `eval_runs` instead."""
    fact: str = ""
    """The fact of the index that narrows the search."""
    metavar: str = "TEXT"


SCORES: Final = (
    "json_each(coalesce((SELECT s.result_json FROM eval_scores AS s WHERE s.trial = e.id "
    "ORDER BY s.created_at DESC LIMIT 1), e.result_json), '$.scores') AS score"
)
_CHECK: Final = f"""EXISTS (SELECT 1 FROM {SCORES} WHERE score.value ->> '$.check' GLOB ? ->> 0
 AND (? ->> 1 IS NULL OR (score.value ->> '$.passed') = (? ->> 1)))"""
_IMPORTED: Final = (
    "coalesce((SELECT body ->> '$.imported.format' FROM events WHERE run_id = runs.id AND seq = 1 AND "
    "json_valid(body)), '') GLOB ?"
)

FILTERS: Final[Mapping[str, Filter]] = {
    "tool": Filter("A tool that was called; * and ? as in file names.", fact="tool"),
    "check": Filter(
        "A check of the trial: failed, passed, its name, or NAME=failed and NAME=passed.", trial=_CHECK
    ),
    "model": Filter("The model, such as gpt-5*.", sql="runs.model GLOB ?", fact="model"),
    "outcome": Filter(
        "How the trial ended: pass, fail or error.", trial="e.result_json ->> '$.outcome' GLOB ?"
    ),
    "status": Filter(
        "The status of the run: complete, failed, cancelled, executing …", sql="runs.status GLOB upper(?)"
    ),
    "suite": Filter("The suite of the trial.", trial="e.suite GLOB ?"),
    "scenario": Filter("The scenario.", sql="runs.scenario GLOB ?", fact="scenario"),
    "config": Filter("The configuration.", sql="runs.config GLOB ?", fact="config"),
    "epoch": Filter("The epoch of the trial.", kind=int, trial="e.epoch = ?", metavar="N"),
    "workspace": Filter("The folder that the run worked in.", sql="runs.workspace GLOB ?", fact="workspace"),
    "imported": Filter(
        "yes, no, or the format that a run was imported from, such as agentdojo.",
        sql=_IMPORTED,
        fact="imported",
    ),
    "since": Filter(
        "Begun then or later: an age such as 2w, 3d or 12h, or a date.",
        sql="runs.created_at >= ?",
        metavar="WHEN",
    ),
    "until": Filter("Begun before: an age or a date.", sql="runs.created_at < ?", metavar="WHEN"),
    "min_cost": Filter("Money in USD that it took at least.", kind=float, metavar="USD"),
    "max_cost": Filter("Money in USD that it took at most.", kind=float, metavar="USD"),
    "min_tokens": Filter("Tokens that it took at least.", kind=int, metavar="N"),
    "max_tokens": Filter("Tokens that it took at most.", kind=int, metavar="N"),
}
"""What runs can be chosen by: options of the command, of `lab.find`, of the page and of the tool alike."""


def filter_parameters() -> list[inspect.Parameter]:
    """Return the filters as keyword parameters of a function, `None` for those that are not given."""
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=known.kind | None)
        for name, known in FILTERS.items()
    ]


def takes_filters(call: T) -> T:
    """Show the filters that a function takes as `**filters` to `help` and completion."""
    signature = inspect.signature(call)
    own = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    call.__signature__ = signature.replace(parameters=[*own, *filter_parameters()])  # type: ignore[attr-defined]  # `inspect` reads it
    return call
