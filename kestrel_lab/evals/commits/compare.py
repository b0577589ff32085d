"""Comparison of two commits: run a suite at each, as far as results are not stored, and return what
changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack, get_args

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.evals.commits.comparison import AUTO, Comparison, Side
from kestrel_lab.evals.commits.interleaved_trials import (
    CommitTrials,
    Place,
    WorkerPool,
    plan_commit,
    run_interleaved,
    suite_with_parts,
)
from kestrel_lab.evals.commits.sequential_compare import Design, Pair, PairRows, SequentialRun, run_in_turns
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.reuse import reusable_rows
from kestrel_lab.evals.execution.runner import TrialsToRun, plan_trials, run_suite, run_trials
from kestrel_lab.evals.gate_bounds import FailOn
from kestrel_lab.evals.git import NoEarlierCommit, base_branches, nearest_baseline, tree_of
from kestrel_lab.evals.options import CompareOptions
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.evals.summaries.result_table import label_kind
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services

__all__ = ["AUTO", "Comparison", "compare_commits"]


@takes_options(CompareOptions)
async def compare_commits(
    lab: Services,
    base: str,
    head: str,
    *,
    suite: str | Path,
    design: Design | None = None,
    **options: Unpack[CompareOptions],
) -> Comparison:
    """Run the suite file against the code of two commits and compare what comes out; see
    `Evaluations.compare`.
    """
    reporter, margin = options.get("reporter"), options.get("margin", 0.05)
    own_suite, alone = options.get("own_suite"), options.get("alone", False)
    fail_on = _checked_fail_on(options.get("fail_on", "worse"))
    recordings = options.get("cassette"), options.get("cassettes")
    if options.get("from_divergence"):
        if any(recordings):
            raise UsageError("from_divergence records answers in a place of its own: leave cassettes out")
        # The commit that comes first in an epoch asks the model. The other gets the same answers, up to where
        # it asks for something else.
        recordings = "record", lab.home.absolute() / "divergence" / Path(suite).stem
    place = suite_with_parts(
        lab,
        suite,
        epochs=options.get("epochs"),
        cassette=recordings[0],
        cassettes=recordings[1],
        configs=options.get("configs"),
        scenarios=options.get("scenarios"),
        families=options.get("families"),
        tags=options.get("tags"),
    )
    if design is not None:
        place = replace(place, suite=place.suite.select(epochs=design.epochs(place.suite)))
    names = {base: base, head: head}
    if base == AUTO:
        try:
            names[AUTO] = await _baseline(lab, place, head)
        except NoEarlierCommit as error:
            if not alone:
                raise
            return await _head_alone(lab, place, head, str(error), reporter, margin=margin)
    works = [
        replace(await plan_commit(lab, place, names[name], own_suite=own_suite), name=name)
        for name in (base, head)
    ]
    _check_works(works)
    trees = [await tree_of(place.repository, work.sha) for work in works]
    if design is not None and trees[0] != trees[1]:
        return await _commits_in_turns(lab, place, works, design, reporter)
    if trees[0] == trees[1]:
        # Trials of the same files are trials of both commits, whichever they were made for.
        made = min(reversed(works), key=lambda work: len(work.todo))
        await run_interleaved(lab, place, [made], reporter, strict=True)
        sides = [replace(made.side(), name=work.name, sha=work.sha) for work in works]
    else:
        await run_interleaved(lab, place, works, reporter, strict=True)
        sides = [_without_unrecorded(works[0].side()), works[1].side()]
    missing = ""
    if alone and not sides[0].rows and works[0].made:
        missing = f"the recordings of {sides[0].title} have nothing of what this suite asks"
    return Comparison(
        suite=place.suite,
        base=sides[0],
        head=sides[1],
        margin=margin,
        store=lab.store,
        same_files=trees[0] == trees[1],
        expected=frozenset(one.id for one in place.suite.scenarios) - works[0].new_scenarios,
        fail_on=fail_on,
        no_base=missing,
        run_notes=_shared(lab.store, sides) if options.get("from_divergence") else (),
    )


def _checked_fail_on(fail_on: FailOn) -> FailOn:
    """Return `fail_on`; raises `UsageError` for a word that it cannot be."""
    if fail_on not in get_args(FailOn):
        raise UsageError(f"fail_on is one of {', '.join(get_args(FailOn))}, not {fail_on!r}")
    return fail_on


def _shared(store: SessionStore, sides: Sequence[Side]) -> tuple[str, ...]:
    """Return how many answers of models the sides did not have to ask for."""
    store.flush()
    sql = (
        "SELECT count(*), count(iif(body ->> '$.replayed', 1, NULL)) FROM events "
        "WHERE type = 'model_answered' AND run_id IN (SELECT value FROM json_each(?))"
    )
    ((asked, shared),) = store.query(sql, (dumps([row.run for side in sides for row in side.rows]),))
    return (f"{shared:,} of {asked:,} answers of models were those of the other side, or of earlier trials.",)


def _check_works(works: Sequence[CommitTrials]) -> None:
    """Raise `UsageError` where two commits cannot be compared."""
    base, head = works
    if base.sha == head.sha:
        raise UsageError(
            f"{base.name} and {head.name} are the same commit {base.sha[:10]}: there is nothing to compare"
        )
    for work in works:
        if work.broken:
            raise UsageError(f"{work.title}: {work.broken}")


async def _commits_in_turns(
    lab: Services,
    place: Place,
    works: Sequence[CommitTrials],
    design: Design,
    reporter: Reporter | None,
) -> Comparison:
    """Run both commits in turns until their difference is decided."""
    if len(place.suite.configs) > 1:
        names = ", ".join(config.name for config in place.suite.configs)
        raise UsageError(f"commits are compared in turns with one configuration: choose one of {names}")
    progress = EvalProgress(reporter, 0, [row for work in works for row in work.found.rows.values()])
    turn = 0

    async def draw(pairs: Sequence[Pair]) -> dict[Pair, PairRows]:
        nonlocal turn
        # Which commit goes first changes from turn to turn, so that a slow drift falls on both.
        turn += 1
        wanted = set(pairs)
        for work in works if turn % 2 else reversed(works):
            asks = [ask for ask in work.todo if (ask.scenario.id, ask.epoch) in wanted]
            await crew.make(work, asks, progress.count)
        return _paired(pairs, *(work.all_rows for work in works))

    def preparing(text: str) -> None:
        progress.remark = text
        progress.tell()

    async with WorkerPool(lab, place, preparing) as crew:
        await crew.begin(works)
        sequence, rows = await run_in_turns(design, place.suite, draw, progress)
    lab.store.flush()
    base, head = (
        replace(work.side(), rows=tuple(pair[number] for pair in rows.values()))
        for number, work in enumerate(works)
    )
    return Comparison(
        suite=place.suite,
        base=base,
        head=head,
        margin=design.matters,
        store=lab.store,
        sequence=sequence,
        run_notes=(f"{sequence.headline}.",),
    )


def _paired(pairs: Sequence[Pair], base: Sequence[EvalRow], head: Sequence[EvalRow]) -> dict[Pair, PairRows]:
    """Return the rows of the pairs that both sides have; what the base's recordings lack is left out."""
    before = {(row.scenario, row.epoch): row for row in base if not row.unrecorded}
    after = {(row.scenario, row.epoch): row for row in head}
    return {pair: (before[pair], after[pair]) for pair in pairs if pair in before and pair in after}


async def compare_configs_in_turns(
    lab: Services, suite: str | Path | Suite, base: str, head: str, *, design: Design, **options: Any
) -> Comparison:
    """Run two configurations of a suite in turns until their difference is decided; see
    `Evaluations.compare_in_turns`.
    """
    if base == head:
        raise UsageError(f"{base!r} is compared with another configuration, not with itself")
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    chosen = loaded.select(**{key: options.get(key) for key in ("scenarios", "families", "tags")})
    sequence = SequentialRun(design=design, planned=0)
    rows: dict[Pair, PairRows] = {}

    async def make(work: TrialsToRun) -> list[EvalRow]:
        nonlocal sequence, rows
        assert work.progress is not None
        progress = work.progress
        todo = {(ask.scenario.id, ask.epoch, ask.config.name): ask for ask in work.asks}
        made = list(progress.stored)

        async def draw(pairs: Sequence[Pair]) -> dict[Pair, PairRows]:
            wanted = [todo[*pair, name] for pair in pairs for name in (base, head) if (*pair, name) in todo]
            if wanted:
                made.extend(await run_trials(replace(work, asks=wanted)))
            return _paired(pairs, *([row for row in made if row.config == name] for name in (base, head)))

        sequence, rows = await run_in_turns(design, work.ready.suite, draw, progress)
        return made[len(progress.stored) :]

    found = await run_suite(
        lab,
        suite,
        epochs=design.epochs(chosen),
        reuse=True,
        outside_git=True,
        make=make,
        **{"configs": [base, head], **options},
    )
    used = replace(found, rows=tuple(row for pair in rows.values() for row in pair))
    return replace(
        compare_configs(used, base, head, margin=design.matters),
        sequence=sequence,
        run_notes=(*found.run_notes(), f"{sequence.headline}."),
    )


async def _head_alone(
    lab: Services, place: Place, head: str, why: str, reporter: Reporter | None, *, margin: float
) -> Comparison:
    """Run the suite at `head`, which has nothing to be compared with."""
    work = await plan_commit(lab, place, head)
    await run_interleaved(lab, place, [work], reporter, strict=True)
    nothing = Side(name="no earlier commit", sha="", rows=())
    return Comparison(
        suite=place.suite, base=nothing, head=work.side(), margin=margin, store=lab.store, no_base=why
    )


def _without_unrecorded(side: Side) -> Side:
    """Return the base of a comparison without trials that its recordings do not have: they say nothing of its
    code.
    """
    missed = [row for row in side.rows if row.unrecorded]
    why = {
        row.scenario: f"it is not in the recordings of this commit ({row.unrecorded[0]})"
        for row in reversed(missed)
    }
    return replace(
        side, rows=tuple(row for row in side.rows if not row.unrecorded), skipped={**side.skipped, **why}
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
        expected=frozenset(row.scenario for row in result.rows),
        margin=margin,
        store=result.store,
        run_notes=result.run_notes(),
    )


async def _baseline(lab: Services, place: Place, head: str) -> str:
    """Return the hash of the commit that `auto` means."""
    tried = {row.git_sha for row in stored_trials(lab.store, suite=place.suite.name)}

    def has_results(sha: str) -> bool:
        if sha not in tried:
            return False
        first_epoch = plan_trials(place.suite.select(epochs=1), code=sha, git_sha=sha)
        return len(reusable_rows(lab.store, place.suite, first_epoch).rows) == len(first_epoch)

    commit, _ = await nearest_baseline(place.repository, head, has_results, base_branches(lab.env))
    return commit.sha
