"""`kestrel eval push` and `kestrel eval pull`: stored trials of a log to the results of a team, and theirs
into the log.
"""

from __future__ import annotations

import asyncio
import platform
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.errors import StoreError, UsageError, did_you_mean
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.protocols import Reporter
from kestrel_lab.core.redaction import shown_url
from kestrel_lab.core.run_types import TERMINAL
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.stored_trials import (
    EvalRow,
    later_scores,
    merge_scores,
    merge_trial,
    store_run,
    trials_by_ids,
)
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.user import user_name
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.sync import blocking_twin
from kestrel_lab.views.formatting import format_count
from kestrel_lab.views.html.table_view import TableView

if TYPE_CHECKING:
    from kestrel_lab.core.events.union import Event
    from kestrel_lab.evals.shared.database import ResultsDatabase

_PAGE = 200
"""Trials of one transaction."""
_SHOWN = 5
"""Refused trials that are shown."""


@dataclass(kw_only=True, slots=True)
class SuiteTransfer:
    """What was transferred of one suite."""

    suite: str
    trials: int = 0
    """That were not there before."""
    there: int = 0
    scores: int = 0
    """Given later to trials, by `kestrel eval rescore`, and not there before."""
    runs: int = 0
    """Logs of runs that were not there before."""


@dataclass(frozen=True, slots=True)
class RefusedTrial:
    """A trial that was left out; those beside it were transferred."""

    suite: str
    why: str

    def __str__(self) -> str:
        return f"refused: {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Transfer(TableView):
    """What a push or a pull did, or would do."""

    way: str
    """`push` or `pull`."""
    where: str
    """The address without user and password."""
    suites: tuple[SuiteTransfer, ...]
    refused: tuple[RefusedTrial, ...] = ()
    dry_run: bool = False
    runs: bool = False
    """Whether logs of runs were asked for."""

    @property
    def trials(self) -> int:
        """Trials that were transferred, of all suites."""
        return sum(one.trials for one in self.suites)

    @property
    def headline(self) -> str:
        """What was done, in one line."""
        done = {"push": "pushed to", "pull": "pulled from"}[self.way]
        return (
            f"{format_count(self.trials, 'trial')} {'would be ' if self.dry_run else ''}{done} {self.where}"
        )

    @property
    def nothing(self) -> str:
        """What is said where there is no suite."""
        return "there are no trials"

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return headings, and a row of texts per suite."""
        rows = [
            [one.suite, *(f"{number:,}" for number in (one.trials, one.there, one.scores, one.runs))]
            for one in self.suites
        ]
        headings = ("suite", "trials", "there before", "later scores", "runs")
        return (headings, rows) if self.runs else (headings[:-1], [row[:-1] for row in rows])

    def lines(self) -> list[str]:
        """Return the first trials that were refused, and why."""
        more = (
            [f"and {len(self.refused) - _SHOWN:,} more: .refused of the result"]
            if len(self.refused) > _SHOWN
            else []
        )
        return [*map(str, self.refused[:_SHOWN]), *more]

    @property
    def exit_code(self) -> int:
        """1 where trials were refused."""
        return int(bool(self.refused))


class SharedResults:
    """Pushes stored trials to the results of a team, and pulls theirs.

    Both add what is not there, and change nothing.
    """

    def __init__(self, lab: Services) -> None:
        self._lab = lab

    async def push(
        self,
        url: str,
        *suites: str | Path,
        runs: bool = False,
        dry_run: bool = False,
        reporter: Reporter | None = None,
    ) -> Transfer:
        """Push the stored trials of these suites, named by name or file, to a PostgreSQL server; of all
        suites where none is named.

        What is there already is left alone, so a push that was interrupted is simply made again. Texts leave
        this machine without the secrets that the log knows. With `runs` the logs of their runs are pushed,
        too, as far as those have ended. `dry_run` only counts. A trial that cannot be pushed, because there
        is another of its id or others could not read it, is in `refused`; no other is harmed.

        Raises `UsageError` for an unknown suite and a server that cannot be used, `StoreError` when it fails
        meanwhile.
        """
        from kestrel_lab.evals.shared.database import opened_results

        store = self._lab.store
        store.flush()
        stored = dict(store.query("SELECT suite, count(*) FROM eval_runs GROUP BY suite ORDER BY suite"))
        work = _Work(
            self._lab,
            url,
            _suite_names(suites, stored, f"in {self._lab.home}"),
            stored,
            reporter,
            runs,
            dry_run,
        )
        async with opened_results(url) as results:
            if not dry_run and work.names:
                await results.make()
            for suite in work.names:
                ids = [
                    str(name)
                    for (name,) in store.query(
                        "SELECT id FROM eval_runs WHERE suite = ? ORDER BY created_at, id", (suite,)
                    )
                ]
                for page in work.pages(suite, ids):
                    await work.push(results, page)
        return work.transfer("push")

    async def pull(
        self,
        url: str,
        *suites: str | Path,
        runs: bool = False,
        dry_run: bool = False,
        reporter: Reporter | None = None,
    ) -> Transfer:
        """Pull the trials of these suites, named by name or file, from a PostgreSQL server; of all suites
        there where none is named.

        They are stored beside those made here, and count like them in summaries, comparisons and histories;
        `origin` in frames says where they were made. With `runs` the logs of their runs come, too, marked as
        imported. What is there is checked row by row: a trial that is not in order, or is another than the
        one of its id here, is in `refused`. The options are those of `push`; raises as it does.
        """
        from kestrel_lab.evals.shared.database import opened_results

        async with opened_results(url) as results:
            there = {} if results.empty else await results.suites()
            names = _suite_names(suites, there, f"on {shown_url(url)}")
            work = _Work(self._lab, url, names, there, reporter, runs, dry_run)
            with _scratch(runs and not dry_run) as scratch:
                for suite in names:
                    for page in work.pages(suite, await results.ids(suite)):
                        await work.pull(results, page, scratch)
        return work.transfer("pull")

    push_sync = blocking_twin(push)
    pull_sync = blocking_twin(pull)


@dataclass(slots=True)
class _Work:
    lab: Services
    url: str
    names: Sequence[str]
    sizes: dict[str, int]
    reporter: Reporter | None
    runs: bool
    dry_run: bool
    suites: dict[str, SuiteTransfer] = field(default_factory=dict)
    refused: list[RefusedTrial] = field(default_factory=list)
    now: SuiteTransfer = field(init=False)
    """What is transferred of the suite whose turn it is."""
    origin: str = field(default_factory=lambda: f"{user_name()}@{platform.node()}")

    def pages(self, suite: str, ids: Sequence[str]) -> Iterator[Sequence[str]]:
        """Yield the ids of trials of a suite in pages, and show how far all of it is."""
        total, before = (
            sum(self.sizes[name] for name in self.names),
            sum(self.sizes[name] for name in self.suites),
        )
        self.now = self.suites[suite] = SuiteTransfer(suite=suite)
        for start in range(0, len(ids), _PAGE):
            yield ids[start : start + _PAGE]
            if self.reporter is not None:
                self.reporter(
                    before + min(start + _PAGE, len(ids)), max(total, 1), f"trials · {one_line(suite)}"
                )

    def transfer(self, way: str) -> Transfer:
        """Return what was done, a push or a pull."""
        return Transfer(
            way=way,
            where=shown_url(self.url),
            suites=tuple(self.suites.values()),
            refused=tuple(self.refused),
            dry_run=self.dry_run,
            runs=self.runs,
        )

    async def push(self, results: ResultsDatabase, ids: Sequence[str]) -> None:
        """Push one page."""
        from kestrel_lab.evals.shared.shared_trials import redact_scores, scores_digest

        here = self._outgoing(trials_by_ids(self.lab.store, ids))
        there = {} if results.empty else await results.digests(list(here))
        new = [row for row in here.values() if row.id not in there]
        here = self._same(here, there)
        scores = list(
            self._in_order(redact_scores, later_scores(self.lab.store, list(here)), self.lab.redactor)
        )
        judged = await results.scored(list(here)) if there else set()
        scores = [one for one in scores if (one.trial, scores_digest(one)) not in judged]
        logged = await results.with_runs(list(here)) if there and self.runs else set()
        runs = self._events_of([row for row in here.values() if row.id not in logged]) if self.runs else {}
        self.now.there += len(here) - len(new)
        if self.dry_run:
            self._count(len(new), len(scores), len(runs))
            return
        added, more_scores, more_runs = await results.add(new, scores, runs)
        self._count(len(added), more_scores, more_runs)
        # Somebody else pushed these meanwhile.
        if late := [row.id for row in new if row.id not in added]:
            self.now.there += len(
                self._same({name: here[name] for name in late}, await results.digests(late))
            )

    async def pull(self, results: ResultsDatabase, ids: Sequence[str], scratch: SessionStore | None) -> None:
        """Pull one page."""
        from kestrel_lab.evals.shared.shared_trials import checked_scores, checked_trial, scores_digest

        store = self.lab.store
        mine = trials_by_ids(store, ids)
        stored = {row.id for row in mine}
        here = self._outgoing(mine)
        known = self._same(here, await results.digests(list(here)))
        missing = [name for name in ids if name not in stored]
        digests = await results.digests(missing)
        new = self._unchanged(self._in_order(checked_trial, await results.trials(missing)), digests)
        usable = [*known, *(row.id for row in new)]
        judged = {(one.trial, one.suite_hash, one.created_at) for one in later_scores(store, list(known))}
        pushed = await results.scored(usable)
        found = []
        for later in self._in_order(checked_scores, await results.scores(usable)):
            if (later.trial, scores_digest(later)) in pushed:
                found.append(later)
            else:
                self._refuse(f"later scores of trial {later.trial} are not what was pushed")
        scores = [one for one in found if (one.trial, one.suite_hash, one.created_at) not in judged]
        self.now.there += len(known)
        if self.dry_run:
            self._count(len(new), len(scores), len(await results.with_runs(usable)) if self.runs else 0)
            return
        runs = 0
        if scratch is not None:
            for row in (*known.values(), *new):
                runs += await self._pull_run(results, row, scratch)
        # A trial after its run and before its scores: whenever this is interrupted, what is stored is whole.
        done: list[Future[None]] = [merge_trial(store, row) for row in new]
        done += [merge_scores(store, one) for one in scores]
        for one in done:
            await asyncio.wrap_future(one)
        self._count(len(new), len(scores), runs)

    def _outgoing(self, rows: Iterable[EvalRow]) -> dict[str, EvalRow]:
        from kestrel_lab.evals.shared.shared_trials import redact_trial

        return {row.id: row for row in self._in_order(redact_trial, rows, self.lab.redactor, self.origin)}

    def _in_order(self, read: Callable[..., Any], found: Iterable[Any], *more: Any) -> Iterator[Any]:
        """Yield what can be read; what cannot is refused."""
        for one in found:
            try:
                yield read(one, *more)
            except UsageError as error:
                self.refused.append(RefusedTrial(self.now.suite, str(error)))

    def _unchanged(self, rows: Iterable[EvalRow], digests: dict[str, str]) -> list[EvalRow]:
        """Return the trials of the server that are what was pushed, by their digests; refuse the others."""
        from kestrel_lab.evals.shared.shared_trials import trial_digest

        unchanged = []
        for row in rows:
            if trial_digest(row) == digests.get(row.id):
                unchanged.append(row)
            else:
                self._refuse(f"trial {row.id} is not what was pushed")
        return unchanged

    def _refuse(self, problem: str) -> None:
        self.refused.append(
            RefusedTrial(self.now.suite, f"{problem}: it was changed on {shown_url(self.url)}")
        )

    def _same(self, here: dict[str, EvalRow], there: dict[str, str]) -> dict[str, EvalRow]:
        """Return the trials that are there as they are here, and those that are not there; refuse the
        others.
        """
        from kestrel_lab.evals.shared.shared_trials import trial_digest

        other = {name for name, row in here.items() if there.get(name, digest := trial_digest(row)) != digest}
        where = shown_url(self.url)
        self.refused += [
            RefusedTrial(
                self.now.suite, f"trial {name} is another one here than on {where}; neither is changed"
            )
            for name in sorted(other)
        ]
        return {name: row for name, row in here.items() if name not in other}

    def _events_of(self, rows: Iterable[EvalRow]) -> dict[str, str]:
        from kestrel_lab.evals.shared.shared_trials import MOST_EVENTS, events_text

        texts = {row.id: events_text(self.lab.store.records(row.run), self.lab.redactor) for row in rows}
        return {name: text for name, text in texts.items() if 0 < len(text) <= MOST_EVENTS}

    async def _pull_run(self, results: ResultsDatabase, row: EvalRow, scratch: SessionStore) -> bool:
        """Store the log of a trial's run, unless a run of that name is here; returns whether that was
        done.
        """
        from kestrel_lab.evals.shared.shared_trials import SOURCE, checked_events

        store, run = self.lab.store, row.run
        known = store.records(run, until=1)
        if known and not (
            isinstance(began := known[0].event, RunStarted) and began.imported.get("format") == SOURCE
        ):
            # A trial that was made here or imported takes nothing from others.
            return False
        if known and store.run(run).status in TERMINAL:
            return False
        if (text := await results.events(row.id)) is None:
            return False
        try:
            events = checked_events(run, text, str(row.result["origin"]))
            _rehearse(scratch, run, events)
        except (UsageError, StoreError) as error:
            self.refused.append(RefusedTrial(self.now.suite, f"the log of trial {row.id}: {error}"))
            return False
        store_run(store, run, events)
        await asyncio.wrap_future(store.on_disk())
        return True

    def _count(self, trials: int, scores: int, runs: int) -> None:
        self.now.trials += trials
        self.now.scores += scores
        self.now.runs += runs


def _rehearse(scratch: SessionStore, run: str, events: list[tuple[float, Event]]) -> None:
    """Store a run where it does no harm; raises `StoreError` for one that the log would refuse in the
    middle.
    """
    store_run(scratch, run, events)
    scratch.flush()
    state = scratch.state(run)
    if state.events != len(events) or scratch.run(run).status not in TERMINAL:
        raise StoreError(
            f"its events are not those of a run: event {state.events + 1} cannot follow those before it"
        )


@contextmanager
def _scratch(wanted: bool) -> Iterator[SessionStore | None]:
    """Give a log that is thrown away, if one is wanted."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kestrel-pull-") as folder:
        store = SessionStore(Path(folder) / "log.db", network=True)
        try:
            yield store
        finally:
            store.close()


def _suite_names(suites: Sequence[str | Path], known: dict[str, int], where: str) -> list[str]:
    """Return the names of suites that are named by name or file; all that are known where none is."""
    from kestrel_lab.evals.suites.loader import load_suite

    names = [
        load_suite(one).name if str(one).endswith((".yaml", ".yml", ".py")) else str(one) for one in suites
    ]
    for name in names:
        if name not in known:
            raise UsageError(
                f"there are no trials of suite {name!r} {where}; "
                f"{did_you_mean(name, known) if known else 'there are none at all'}"
            )
    return list(dict.fromkeys(names)) or list(known)
