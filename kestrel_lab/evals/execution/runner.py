"""Run a suite: every scenario with every configuration, as often as asked, several at once; each result
stored at once.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from kestrel_lab.adapters.adapter import is_adapter
from kestrel_lab.core.errors import RunError, UsageError, most_severe
from kestrel_lab.core.json_types import content_key
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.execution.batch_log import finish_eval_run, unfinished_eval_run
from kestrel_lab.evals.execution.early_stop import saved_text
from kestrel_lab.evals.execution.eval_run import (
    EarlierRun,
    EvalRun,
    eval_run_of,
    last_eval_run,
    resumed_trials,
)
from kestrel_lab.evals.execution.prepare import PreparedSuite, checks_out_of_reach, prepare_suite
from kestrel_lab.evals.execution.progress import EvalProgress, rate_limit_counts, slowdowns_since
from kestrel_lab.evals.execution.result import EvalResult
from kestrel_lab.evals.execution.reuse import Reuse, reusable_rows
from kestrel_lab.evals.execution.trial import (
    Identity,
    TrialRequest,
    run_trial,
    scenario_hash,
    with_earlier_attempts,
)
from kestrel_lab.evals.git import code_version
from kestrel_lab.evals.options import Configs, EvalOptions
from kestrel_lab.evals.reports.gate_needs import gates_out_of_reach
from kestrel_lab.evals.reports.scan_report import scan_for_gates
from kestrel_lab.evals.stored_trials import EvalRow, store_trial
from kestrel_lab.evals.suite import MOST_EPOCHS, Config, Scenario, Suite
from kestrel_lab.evals.suites.cassettes import with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.version import RELEASE
from kestrel_lab.models.wrapper import prepare_models
from kestrel_lab.runtime.options import takes_options
from kestrel_lab.runtime.services import Services
from kestrel_lab.runtime.supervision.model_guard import limit_concurrency
from kestrel_lab.views.formatting import format_count

# Finished trials on their way into the log: each is stored at once, and no one is reported before it is on
# disk.


class Keeper:
    """Stores finished trials in the background."""

    def __init__(
        self,
        store: SessionStore | None,
        on_row: Callable[[EvalRow], None],
        eval_run: EvalRun | None = None,
        *,
        most: int = 0,
    ) -> None:
        """Without a `store`, `on_row` is called and nothing is stored; it is called on the running event
        loop. While `most` trials are on their way to the disk, `room` waits; 0 is no bound.
        """
        self._most, self._room = most, asyncio.Event()
        self._store, self._on_row, self._eval_run = store, on_row, eval_run
        self._loop = asyncio.get_running_loop()
        self._storing: set[Future[None]] = set()
        self._ended: deque[tuple[Future[None], EvalRow]] = deque()
        self._failure: BaseException | None = None
        self.rows: list[EvalRow] = []

    def keep(self, row: EvalRow, *, rests_on: tuple[str, ...] = ()) -> None:
        """Queue `row`, see `store_trial`; raises the error of an earlier one."""
        if self._failure is not None:
            raise self._failure
        row = row if self._eval_run is None else self._eval_run.mark(row)
        self.rows.append(row)
        if self._store is None:
            self._on_row(row)
            return
        # Somebody is going to wait for the last one that there is room for.
        last = len(self._storing) + 1 == self._most
        done = store_trial(self._store, row, urgent=last, rests_on=rests_on)
        self._storing.add(done)
        done.add_done_callback(lambda stored: self._end(stored, row))

    async def room(self) -> None:
        """Wait until another trial may begin: one that ends is soon reported, however slow the disk is."""
        while self._store is not None and 0 < self._most <= len(self._storing):
            self._room.clear()
            await self._room.wait()

    async def finish(self, asks: Sequence[TrialRequest]) -> None:
        """Wait until all rows are on disk and `on_row` was called for each; raises the error of any, and
        `RunError` if a trial of `asks` has no row.
        """
        if self._store is not None and self._storing:
            self._store.on_disk()
            await asyncio.gather(*(asyncio.wrap_future(done) for done in tuple(self._storing)))
        if self._failure is not None:
            raise self._failure
        require_all_rows(asks, self.rows)

    def _end(self, done: Future[None], row: EvalRow) -> None:
        """Have the row taken by the event loop, to which `on_row` belongs; this is the thread that writes the
        log.
        """
        self._ended.append((done, row))
        if len(self._ended) == 1:  # else it is about to take an earlier row, and takes this one as well
            self._loop.call_soon_threadsafe(self._take_ended)

    def _take_ended(self) -> None:
        while self._ended:
            done, row = self._ended.popleft()
            self._storing.discard(done)
            try:
                done.result()
                self._on_row(row)
            except Exception as error:  # raised where the next row is kept, or at the end  # noqa: BLE001
                self._failure = self._failure or error
        self._room.set()


Turn = tuple[TrialRequest, tuple[EvalRow, ...]]
"""A trial to run, and the attempts at it that broke."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialsToRun:
    """Trials of a suite, and what is done with them."""

    lab: Services
    ready: PreparedSuite
    asks: Sequence[TrialRequest]
    on_row: Callable[[EvalRow], None]
    """Called with each when it is on disk."""
    keep_in: Path | None = None
    """Where their folders are left; nowhere if `None`."""
    store: bool = True
    eval_run: EvalRun | None = None
    progress: EvalProgress | None = None


MakeTrials = Callable[[TrialsToRun], Awaitable[list[EvalRow]]]
"""Runs trials somewhere and stores each as it ends; `run_trials` does so in this process."""


@takes_options(EvalOptions)
async def run_suite(
    lab: Services, suite: str | Path | Suite, *, make: MakeTrials | None = None, **options: Any
) -> EvalResult:
    """Run every scenario of a suite file, or a suite, with every configuration, and return one row per trial.

    The options are those of `EvalOptions`. `make` runs the trials, `run_trials` in this process by default;
    `kestrel_lab.evals.execution.dask_cluster` has another. Runs and results are logged in the session.

    Raises `UsageError` before the first trial for anything the suite names that is not there.
    """
    asked = EvalOptions(**options)
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    chosen, models = choose_configs(loaded, asked.configs)
    chosen = with_cassette(chosen, asked.cassette, asked.cassettes).select(epochs=asked.epochs, **asked.parts)
    if chosen.epochs > MOST_EPOCHS:
        raise UsageError(
            f"{chosen.epochs:,} epochs are more than {MOST_EPOCHS:,}: add scenarios, they tell more "
            "than repeats do"
        )
    chosen = chosen.model_copy(
        update={
            "concurrency": chosen.concurrency if asked.concurrency is None else asked.concurrency,
            "retry_errors": chosen.retry_errors if asked.retry_errors is None else asked.retry_errors,
            "early_stopping": chosen.early_stopping if asked.early_stopping is None else asked.early_stopping,
        }
    )
    await start_servers(lab, chosen)
    ready = prepare_suite(lab, chosen, models=models)
    if make is None:  # what is there on other machines they say themselves
        agents = [name for name, model in ready.models.items() if is_adapter(model)]
        await ready.containers.prepare(lab.sandbox, agents=agents)
    code = await code_version(chosen.root, but=lab.home.absolute())
    asks = plan_trials(chosen, code=str(code), git_sha=str(code), models=models)
    # A model that is an object may be another one under the same name.
    reuse = asked.reuse and not models
    found, eval_run, notice = begin_eval_run(
        lab.store,
        chosen,
        asks,
        reuse=reuse,
        resume=asked.resume,
        outside_git=asked.outside_git,
        unfinished=unfinished_eval_run(lab.store, chosen.name) if asks_in_batches(asked) else "",
    )
    hopeless = [*gates_out_of_reach(chosen), *checks_out_of_reach(ready), *unwatched_costs(ready)]
    rows = list(found.rows.values())
    todo = [ask for ask in asks if ask.identity.key not in found.rows]
    # What other runs waited for until now is not this suite's.
    before = rate_limit_counts(lab.supervisor)
    shown = "; ".join(filter(None, [*hopeless, notice]))
    progress = EvalProgress(
        asked.reporter,
        len(asks),
        rows,
        notice=shown,
        count_errors=chosen.count_errors,
        supervisor=lab.supervisor,
    )
    if asks_in_batches(asked) and not todo:
        finish_eval_run(lab.store, eval_run.id)  # a process died after it had stored the last trial
    ready = with_batches(lab, ready, asked, eval_run, todo, progress, made_here=make is None)
    with eval_run.at_work(lab.store):
        async with progress.ticking(), ready.batches.at_work() if ready.batches else nullcontext():
            keep_in = lab.home / "trials" if asked.keep else None
            work = TrialsToRun(
                lab=lab,
                ready=ready,
                asks=todo,
                on_row=progress.count,
                keep_in=keep_in,
                eval_run=eval_run,
                progress=progress,
            )
            made = await (make or run_trials)(work)
    batch_notes = () if ready.batches is None else ready.batches.notes
    # Gates may be about what scanners find: runs are scanned before anything is decided.
    await scan_for_gates(lab.store, chosen, [*rows, *made])
    again = sum("attempts" in row.result for row in made)
    notes = [
        *hopeless,
        notice,
        *batch_notes,
        *ready.containers.notes,
        f"{format_count(again, 'trial')} broke and were made again: see column attempts" if again else "",
    ]
    notes += [*slowdowns_since(lab.supervisor, before), *saved_text([*rows, *made])]
    if rows and not str(code) and reuse:
        notes.append(
            "the suite is in no git commit: its stored trials count as they are, whatever the code was "
            "then; kestrel eval run makes new ones"
        )
    return EvalResult(
        suite=chosen,
        rows=sort_rows(asks, [*rows, *made]),
        store=lab.store,
        stored=frozenset(row.id for row in rows),
        why=found.why,
        notes=tuple(note for note in notes if note),
    )


def unwatched_costs(ready: PreparedSuite) -> list[str]:
    """Return a sentence on the agents whose spending no limit can stop; none where all report what they
    spend.
    """
    silent = [
        name for name, model in ready.models.items() if is_adapter(model) and not model.capabilities.cost
    ]
    if not silent:
        return []
    return [f"what the agents of {', '.join(silent)} spend is not known: a limit of money cannot stop them"]


def asks_in_batches(asked: EvalOptions) -> bool:
    """Return whether models may be asked in batches."""
    return asked.batch or asked.batch_above is not None


def with_batches(
    lab: Services,
    ready: PreparedSuite,
    asked: EvalOptions,
    eval_run: EvalRun,
    todo: Sequence[TrialRequest],
    progress: EvalProgress,
    *,
    made_here: bool,
) -> PreparedSuite:
    """Return the suite with what gathers model calls into batches, if that was asked for and there are enough
    trials.

    Raises `UsageError` where a model of a provider has no batch endpoint, and where there is none at all.
    """
    above = 0 if asked.batch or asked.batch_above is None else asked.batch_above
    if not asks_in_batches(asked) or len(todo) <= above:
        return ready
    from kestrel_lab.evals.execution.batches import AT_ONCE, Batches  # only where batches are asked for
    from kestrel_lab.models.batch_model import provider_models
    from kestrel_lab.models.litellm.batch import BatchEndpoint

    if not made_here or ready.recordings is not None:
        other = "recordings" if made_here else "a cluster"
        raise UsageError(f"batches and {other} do not go together: leave one of the two out")
    models = (*ready.models.values(), *ready.graders.values())
    endpoints = [BatchEndpoint(leaf) for model in models for leaf in provider_models(model)]
    if missing := [one.missing for one in endpoints if one.missing]:
        raise UsageError(f"{'; '.join(dict.fromkeys(missing))}; or run the suite without --batch")
    if not endpoints:
        raise UsageError("no model of this suite is asked at a provider, so nothing can go into a batch")

    def say(text: str) -> None:
        progress.remark = text

    at_once = asked.concurrency or AT_ONCE
    own = {"concurrency": at_once, "configs": tuple(_unbounded(one) for one in ready.suite.configs)}
    return replace(
        ready,
        suite=ready.suite.model_copy(update=own),
        batches=Batches(
            store=lab.store,
            eval_run=eval_run.id,
            suite=ready.suite.name,
            env=lab.env,
            known=models,
            rest=asked.batch_rest,
            left=len(todo),
            at_once=at_once,
            say=say,
        ),
    )


def _unbounded(config: Config) -> Config:
    """Return a configuration without a bound of its own on calls at once: a batch is one call."""
    return config.model_copy(update={"concurrency": None})


async def start_servers(lab: Services, suite: Suite) -> None:
    """Start the MCP servers whose tools the suite names; raises the error of one that does not start."""
    with suppress(UsageError):  # `prepare_suite` reports an unknown name, with its place
        lists = [*(one.tools for one in suite.scenarios), *(one.tools for one in suite.configs)]
        named = [name for names in lists for name in names or ()]
        for error in (await lab.mcp.start_first(lab.mcp.unstarted(named))).values():
            raise error


def begin_eval_run(
    store: SessionStore,
    suite: Suite,
    asks: Sequence[TrialRequest],
    *,
    reuse: bool,
    resume: bool,
    outside_git: bool = False,
    unfinished: str = "",
) -> tuple[Reuse, EvalRun, str]:
    """Return the trials that need not be run, the eval run that the others belong to, and a notice for the
    user. `unfinished` is an eval run with batches, which is resumed whether it has stored a trial or not.
    """
    found = reusable_rows(store, suite, asks, outside_git=outside_git) if reuse else Reuse()
    earlier = last_eval_run(store, suite)
    if unfinished and (earlier is None or unfinished not in earlier.all):
        begun = replace(EvalRun.new(store, len(asks)), id=unfinished)
        earlier = EarlierRun(eval_run=begun, stored=0)
    if not (resume or unfinished) or earlier is None:
        made = sum(ask.identity.key not in found.rows for ask in asks)
        notice = "" if earlier is None or found.rows else earlier.notice
        return found, EvalRun.new(store, made), notice
    taken = resumed_trials(store, suite, earlier, asks)
    rows = found.rows | taken
    left = len(asks) - len(rows)
    own = sum(eval_run_of(row) == earlier.eval_run.id for row in taken.values())
    eval_run = replace(
        EvalRun.new(store, own + left), id=earlier.eval_run.id, also=earlier.all[1:], seen=earlier.stored
    )
    note = f"going on with the last run: {format_count(len(taken), 'trial')} of it there, {left:,} left"
    return Reuse(rows=rows, why=found.why), eval_run, note


def plan_trials(
    suite: Suite, *, code: str, git_sha: str, models: Mapping[str, Model] | None = None
) -> list[TrialRequest]:
    """Return every trial of the suite, epoch by epoch: after an interruption all scenarios were tried about
    as often.
    """
    every = product(range(1, suite.epochs + 1), suite.scenarios, suite.configs)
    return asks_for(
        suite,
        [(scenario, config, epoch) for epoch, scenario, config in every],
        code=code,
        git_sha=git_sha,
        models=models,
    )


def asks_for(
    suite: Suite,
    trials: Iterable[tuple[Scenario, Config, int]],
    *,
    code: str,
    git_sha: str,
    models: Mapping[str, Model] | None = None,
) -> list[TrialRequest]:
    """Return trials of the suite, each given by its scenario, configuration and epoch, with all that
    identifies them.
    """
    whole = content_key(suite.definition())[:12]
    scenarios = {scenario.id: scenario_hash(scenario) for scenario in suite.scenarios}
    configs = {
        config.name: content_key(config.name, config.definition(), config.name in (models or {}))[:12]
        for config in suite.configs
    }
    return [
        TrialRequest(
            scenario=scenario,
            config=config,
            epoch=epoch,
            git_sha=git_sha,
            identity=Identity(
                scenario=scenarios[scenario.id],
                config=configs[config.name],
                suite=whole,
                code=code,
                package=RELEASE,
                epoch=epoch,
            ),
        )
        for scenario, config, epoch in trials
    ]


async def run_trials(given: TrialsToRun) -> list[EvalRow]:
    """Run the trials, as many at once as the suite and each configuration allow.

    One that broke is made again at the end of the line, as often
    as the suite says. The first error that is not a trial's own stops the others and is raised.
    """
    lab, ready = given.lab, given.ready
    waiting: dict[str, deque[Turn]] = {
        config.name: deque((ask, ()) for ask in given.asks if ask.config.name == config.name)
        for config in ready.suite.configs
    }
    free = asyncio.Semaphore(ready.suite.concurrency)
    await prepare_models(ready.models.values())  # what a process loads once is no trial's time
    # As many as run at once may be on their way to the disk meanwhile, and as many again share a commit.
    most = 2 * ready.suite.concurrency
    keeper = Keeper(lab.store if given.store else None, given.on_row, given.eval_run, most=most)

    async def work(queue: deque[Turn]) -> None:
        while queue:
            async with free:
                # Another worker may have taken the last trial while this one waited for its turn.
                if not queue:
                    return
                ask, earlier = queue.popleft()
                with count_running(given.progress):
                    row = await run_trial(
                        lab,
                        ready,
                        ask,
                        keep_in=given.keep_in,
                        attempt=len(earlier) + 1,
                        stored_behind=given.store,
                    )
            if row.outcome == "error" and len(earlier) < ready.suite.retry_errors:
                queue.append((ask, (*earlier, row)))
            else:
                row = with_earlier_attempts(earlier, row)
                keeper.keep(row, rests_on=(*(one.run for one in earlier), row.run))
                await keeper.room()

    try:
        with ExitStack() as bounds:
            for config in ready.suite.configs:
                most = min(config.concurrency or ready.suite.concurrency, ready.suite.concurrency)
                bounds.enter_context(limit_concurrency(ready.models[config.name], lab.supervisor, most))
            async with asyncio.TaskGroup() as group:
                for config in ready.suite.configs:
                    queue = waiting[config.name]
                    for _ in range(
                        min(
                            len(queue), config.concurrency or ready.suite.concurrency, ready.suite.concurrency
                        )
                    ):
                        group.create_task(work(queue), name=f"kestrel eval {config.name}")
    except BaseExceptionGroup as errors:
        raise most_severe([errors]) from None
    await keeper.finish(given.asks)
    return keeper.rows


def require_all_rows(asks: Sequence[TrialRequest], rows: Sequence[EvalRow]) -> None:
    """Raise `RunError` unless each trial that was asked for has its row: a rate over the others would look
    like that of the suite.
    """
    made = Counter((row.scenario, row.config, row.epoch) for row in rows)
    lacking = Counter((ask.scenario.id, ask.config.name, ask.epoch) for ask in asks) - made
    if lacking:
        names = ", ".join(f"{scenario} × {config}, epoch {epoch}" for scenario, config, epoch in lacking)
        raise RunError(
            f"{format_count(lacking.total(), 'trial')} of {len(asks):,} ended without a result: "
            f"{one_line(names, 300)}. The others are stored: kestrel eval run goes on with those that lack"
        )


def choose_configs(suite: Suite, configs: Configs | None) -> tuple[Suite, dict[str, Model]]:
    """Return the suite with the configurations asked for, and those models among them that are objects."""
    if configs is None or not isinstance(configs, Mapping):
        return suite.select(configs=[configs] if isinstance(configs, str) else configs), {}
    chosen: list[Config] = []
    models: dict[str, Model] = {}
    for name, given in configs.items():
        if isinstance(given, Config):
            chosen.append(given.model_copy(update={"name": name}))
        elif isinstance(given, str):
            chosen.append(Config(name=name, model=given))
        elif isinstance(given, Model):
            chosen.append(Config(name=name, model=given.name))
            models[name] = given
        else:
            raise UsageError(
                f"configuration {name!r} is a model's name, a model or a Config, not {type(given).__name__}"
            )
    return suite.model_copy(update={"configs": tuple(chosen)}), models


def sort_rows(asks: Sequence[TrialRequest], rows: Iterable[EvalRow]) -> tuple[EvalRow, ...]:
    """Return `rows` in the order of scenario, configuration, epoch."""
    # Reversed, so that the first place of each name is kept.
    scenarios = {ask.scenario.id: place for place, ask in reversed(list(enumerate(asks)))}
    configs = {ask.config.name: place for place, ask in reversed(list(enumerate(asks)))}
    return tuple(sorted(rows, key=lambda row: (scenarios[row.scenario], configs[row.config], row.epoch)))


@contextmanager
def count_running(progress: EvalProgress | None) -> Iterator[None]:
    """Count a trial as running."""
    if progress is None:
        yield
        return
    progress.running += 1
    try:
        yield
    finally:
        progress.running -= 1
