"""A suite along a line of commits: run where results are missing, or as stored."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.evals.commits.history import CommitRows, History
from kestrel_lab.evals.commits.interleaved_trials import (
    FIRST_OF_SEARCH,
    CommitTrials,
    plan_commit,
    run_interleaved,
    suite_with_parts,
)
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.git import commits_in, first_parents, sample_commits
from kestrel_lab.evals.options import HistoryOptions
from kestrel_lab.evals.scenario_groups import with_groups
from kestrel_lab.evals.stats.groups import group_values
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.summaries.corrected_rates import with_annotations
from kestrel_lab.evals.summaries.metric_values import find_metric
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.views.formatting import format_count


@takes_options(HistoryOptions)
async def run_commits(
    lab: Services,
    suite: str | Path,
    commits: str,
    *,
    epochs: int | None = None,
    reporter: Reporter | None = None,
    own_suite: bool = False,
    **options: Any,
) -> History:
    """Run a suite at several commits, which take turns epoch by epoch, and return the history of `metric`;
    see `Evaluations.eval_commits`.
    """
    asked = HistoryOptions(**options)
    place = suite_with_parts(lab, suite, configs=asked.configs, epochs=epochs)
    name = find_metric(asked.metric, place.suite.metrics).name
    chosen = await commits_in(place.repository, commits, every=asked.every, last=asked.last)
    works = [
        replace(await plan_commit(lab, place, c.sha, own_suite=own_suite), name=c.subject[:40] or c.short)
        for c in chosen
    ]
    await run_interleaved(lab, place, works, reporter, strict=False)
    if all(work.broken for work in works):
        raise UsageError(
            f"none of the {format_count(len(works), 'commit')} can be run; {works[-1].title}: "
            f"{_skip_reasons(works[-1]).removeprefix('cannot be run: ')}"
        )
    found = [
        CommitRows(
            commit=c,
            rows=tuple(with_groups(with_annotations(work.all_rows, lab.store), place.suite)),
            why=_skip_reasons(work),
        )
        for c, work in zip(chosen, works, strict=True)
    ]
    reused = sum(len(work.found.rows) for work in works)
    notes = (f"of these trials stored before: {reused}",) if reused else ()
    return History(suite=place.suite, metric=name, commits=tuple(found), notes=notes)


@takes_options(HistoryOptions)
async def stored_history(
    lab: Services,
    suite: str | Path,
    *,
    commits: str = "",
    any_version: bool = False,
    **options: Any,
) -> History:
    """Return the stored trials of a suite along commits; see `Evaluations.history`."""
    asked = HistoryOptions(**options)
    place = suite_with_parts(lab, suite, configs=asked.configs, epochs=None)
    observed = find_metric(asked.metric, place.suite.metrics)
    stored = [*with_groups(stored_trials(lab.store, suite=place.suite.name), place.suite)]
    rows, notes = _comparable(stored, place.suite, any_version=any_version)
    if observed.clock and len({row.result.get("origin", "") for of in rows.values() for row in of}) > 1:
        notes = (
            *notes,
            "measured on different machines: a change of times between commits may be one of machines",
        )
    if commits:
        chosen = await commits_in(place.repository, commits, every=asked.every, last=asked.last)
    else:
        line = [commit for commit in await first_parents(place.repository) if commit.sha in rows]
        chosen = sample_commits(line[::-1], asked.every, asked.last)
    found = tuple(
        CommitRows(commit=commit, rows=tuple(with_annotations(rows.get(commit.sha, ()), lab.store)))
        for commit in chosen
    )
    if not any(c.rows for c in found):
        msg = (
            f"no results of suite {place.suite.name!r} are stored for these commits; kestrel eval run "
            f"{suite} --commits A..B makes them"
        )
        raise UsageError("; ".join([msg, *notes]))
    commits_tried = tuple(commit for commit in found if commit.rows)
    return History(suite=place.suite, metric=observed.name, commits=commits_tried, notes=notes)


def _comparable(
    stored: list[EvalRow], suite: Suite, *, any_version: bool
) -> tuple[dict[str, list[EvalRow]], tuple[str, ...]]:
    """Return, by commit, the newest row of each trial that is comparable with the suite as it is now, and
    notes on the others.
    """
    now = {
        (a.scenario.id, a.config.name): a.identity
        for a in plan_trials(suite.select(epochs=1), code="", git_sha="")
    }
    kept: dict[tuple[str, str, str, int], EvalRow] = {}
    others = uncommitted = searched = 0
    packages = set()
    for row in stored:
        identity = now.get((row.scenario, row.config))
        before = row.result["identity"]
        parts = before if isinstance(before, dict) else {}
        if "-dirty." in row.git_sha or not row.git_sha:
            uncommitted += 1
        elif row.epoch >= FIRST_OF_SEARCH:
            searched += 1
        elif identity is None or not (
            any_version
            or all(parts.get(part) == getattr(identity, part) for part in ("scenario", "config", "suite"))
        ):
            others += 1
        else:
            packages.add(str(parts.get("package")))
            key = (row.git_sha, row.scenario, row.config, row.epoch)
            if row.outcome != "error" or key not in kept or kept[key].outcome == "error":
                kept[key] = row
    notes = (
        *(
            [
                f"{format_count(others, 'stored trial')} of other scenarios, configurations or "
                f"versions of them are left out"
            ]
            if others
            else []
        ),
        *(
            [f"{format_count(uncommitted, 'stored trial')} of code that was not committed are left out"]
            if uncommitted
            else []
        ),
        *(
            [f"{format_count(searched, 'stored trial')} of searches for a bad commit are left out"]
            if searched
            else []
        ),
        *(
            [f"made with several versions of kestrel_lab: {', '.join(sorted(packages))}"]
            if len(packages) > 1
            else []
        ),
    )
    rows = group_values((row.git_sha, row) for row in kept.values())
    return rows, notes


def _skip_reasons(work: CommitTrials) -> str:
    if work.broken:
        return f"cannot be run: {work.broken.removeprefix(f'{work.title}: ')}"
    return "; ".join(f"scenario {scenario} is left out: {why}" for scenario, why in work.skipped.items())
