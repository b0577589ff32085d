"""The last green commit of a branch: the newest one at which everything passed that is tried again now."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.interleaved_trials import FIRST_OF_SEARCH
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.git import Commit, first_parents
from kestrel_lab.evals.reports.junit import case_groups
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Suite


async def compare_with_last_green(
    result: EvalResult, root: Path | None, *, margin: float = 0.05
) -> Comparison | None:
    """Compare a result with the stored trials of the last green commit of the branch; nothing is run.

    A commit is green where each scenario reached the rate that `junit.case_groups` asks of it, and each test
    function passed. Without uncommitted changes the commit of the result itself is not looked at. `None`
    where there is no such commit, or no repository at `root`.
    """
    found = None if root is None else await _last_green(result, root)
    if found is None:
        return None
    commit, before = found
    return Comparison(
        suite=result.suite,
        base=Side(name=commit.sha[:8], sha=commit.sha, rows=tuple(before), reused=len(before)),
        head=Side(name="now", sha="", rows=result.rows),
        margin=margin,
        store=result.store,
    )


async def _last_green(result: EvalResult, root: Path) -> tuple[Commit, list[EvalRow]] | None:
    try:
        line = await first_parents(root)
    except UsageError:  # no commit yet
        return None
    known = _comparable(stored_trials(result.store, suite=result.suite.name), result.rows)
    mine = {row.git_sha for row in result.rows}
    for commit in line:
        rows = known.get(commit.sha, [])
        # A commit that is measured now cannot be its own earlier state.
        if rows and commit.sha not in mine and is_green(result.suite, rows):
            return commit, rows
    return None


def is_green(suite: Suite, rows: Sequence[EvalRow]) -> bool:
    """Return whether every scenario of these trials passed as often as it has to."""
    # Trials of test functions: the test has the last word, whatever its runs did.
    if any("test" in row.result for row in rows):
        return all(row.result.get("test") == "passed" for row in rows)
    return all(case.outcome == "passed" for group in case_groups(suite, rows) for case in group.cases)


def _comparable(stored: Sequence[EvalRow], now: Sequence[EvalRow]) -> dict[str, list[EvalRow]]:
    """Return by commit the newest stored trial of each scenario, configuration and epoch that is tried now in
    the same form.
    """
    asked = {(row.scenario, row.config): _parts(row) for row in now}
    kept: dict[tuple[str, str, str, int], EvalRow] = {}
    for row in stored:
        if row.epoch < FIRST_OF_SEARCH and asked.get((row.scenario, row.config)) == _parts(row):
            kept[row.git_sha, row.scenario, row.config, row.epoch] = row
    return group_values((row.git_sha, row) for row in kept.values())


def _parts(row: EvalRow) -> list[Any]:
    identity = row.result.get("identity")
    parts = identity if isinstance(identity, dict) else {}
    # Another task or configuration is no earlier try of the same.
    return [parts.get(part) for part in ("scenario", "config", "suite")]
