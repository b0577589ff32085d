"""Comparison of two commits: run a suite at each, as far as results are not stored, and return what
changed.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Final, Unpack

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.evals.commits.comparison import Comparison, Side
from kestrel_lab.evals.commits.interleaved_trials import Place, plan_commit, run_interleaved, suite_with_parts
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.reuse import reusable_rows
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.git import NoEarlierCommit, nearest_baseline, tree_of
from kestrel_lab.evals.options import CompareOptions
from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.evals.summaries.result_table import label_kind
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.session import Session

__all__ = ["AUTO", "Comparison", "compare_commits"]

AUTO: Final = "auto"
"""In place of a base: the nearest ancestor on the main branch that has results."""


@takes_options(CompareOptions)
async def compare_commits(
    session: Session,
    base: str,
    head: str,
    *,
    suite: str | Path,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Run the suite file against the code of two commits and compare what comes out; see
    `Evaluations.compare`.
    """
    reporter, margin = options.get("reporter"), options.get("margin", 0.05)
    own_suite, alone = options.get("own_suite", False), options.get("alone", False)
    place = suite_with_parts(
        session,
        suite,
        epochs=options.get("epochs"),
        cassette=options.get("cassette"),
        cassettes=options.get("cassettes"),
        configs=options.get("configs"),
        scenarios=options.get("scenarios"),
        families=options.get("families"),
        tags=options.get("tags"),
    )
    names = {base: base, head: head}
    if base == AUTO:
        try:
            names[AUTO] = await _baseline(session, place, head)
        except NoEarlierCommit as error:
            if not alone:
                raise
            return await _head_alone(session, place, head, str(error), reporter, margin=margin)
    works = [
        replace(await plan_commit(session, place, names[name], own_suite=own_suite), name=name)
        for name in (base, head)
    ]
    if works[0].sha == works[1].sha:
        raise UsageError(
            f"{base} and {head} are the same commit {works[0].sha[:10]}: there is nothing to compare"
        )
    for work in works:
        if work.broken:
            raise UsageError(f"{work.title}: {work.broken}")
    trees = [await tree_of(place.repository, work.sha) for work in works]
    if trees[0] == trees[1]:
        # Trials of the same files are trials of both commits, whichever they were made for.
        made = min(reversed(works), key=lambda work: len(work.todo))
        await run_interleaved(session, place, [made], reporter, strict=True)
        sides = [replace(made.side(), name=work.name, sha=work.sha) for work in works]
    else:
        await run_interleaved(session, place, works, reporter, strict=True)
        sides = [_without_unrecorded(works[0].side()), works[1].side()]
    missing = ""
    if alone and not sides[0].rows and works[0].rows:
        missing = f"the recordings of {sides[0].title} have nothing of what this suite asks"
    return Comparison(
        suite=place.suite,
        base=sides[0],
        head=sides[1],
        margin=margin,
        store=session.store,
        same_files=trees[0] == trees[1],
        no_base=missing,
    )


async def _head_alone(
    session: Session, place: Place, head: str, why: str, reporter: Reporter | None, *, margin: float
) -> Comparison:
    """Run the suite at `head`, which has nothing to be compared with."""
    work = await plan_commit(session, place, head)
    await run_interleaved(session, place, [work], reporter, strict=True)
    nothing = Side(name="no earlier commit", sha="", rows=())
    return Comparison(
        suite=place.suite, base=nothing, head=work.side(), margin=margin, store=session.store, no_base=why
    )


def _without_unrecorded(side: Side) -> Side:
    """Return the base of a comparison without trials that its recordings do not have: they say nothing of its
    code.
    """
    missed = [row for row in side.rows if row.unrecorded]
    told = {
        row.scenario: f"it is not in the recordings of this commit ({row.unrecorded[0]})"
        for row in reversed(missed)
    }
    return replace(
        side, rows=tuple(row for row in side.rows if not row.unrecorded), skipped={**side.skipped, **told}
    )


def compare_configs(result: EvalResult, base: str, head: str, *more: str, margin: float = 0.05) -> Comparison:
    """Compare configurations of one result with another one, scenario by scenario; see
    `Evaluations.compare_configs`.
    """
    known = {row.config: row.model_kind for row in result.rows}
    heads = (head, *more)
    for name in (base, *heads):
        if name not in known:
            raise UsageError(
                f"no trials of a configuration {name!r} are in this result; {did_you_mean(name, known)}"
            )
    if base in heads:
        raise UsageError(f"{base!r} is compared with other configurations, not with itself")
    sides = [
        tuple(
            replace(row, config=f"{base} → {head}")
            for head in heads
            for row in result.rows
            if row.config == (only or head)
        )
        for only in (base, "")
    ]
    titles = (label_kind(base, known[base]), ", ".join(label_kind(head, known[head]) for head in heads))
    before, after = (
        Side(name=name, sha="", rows=rows, reused=sum(row.id in result.stored for row in rows))
        for name, rows in zip(titles, sides, strict=True)
    )
    return Comparison(
        suite=result.suite,
        base=before,
        head=after,
        margin=margin,
        store=result.store,
        told=result.run_notes(),
    )


async def _baseline(session: Session, place: Place, head: str) -> str:
    """Return the hash of the commit that `auto` stands for."""
    tried = {row.git_sha for row in stored_trials(session.store, suite=place.suite.name)}

    def has_results(sha: str) -> bool:
        if sha not in tried:
            return False
        first_epoch = plan_trials(place.suite.select(epochs=1), code=sha, git_sha=sha)
        return len(reusable_rows(session.store, place.suite, first_epoch).rows) == len(first_epoch)

    commit, _ = await nearest_baseline(place.repository, head, has_results)
    return commit.sha
