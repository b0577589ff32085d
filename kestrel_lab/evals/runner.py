"""Run a suite: every scenario with every configuration, as often as asked, several at once; each result stored at once."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import content_key
from kestrel_lab.core.protocols import Model, Reporter
from kestrel_lab.engine.session import Session
from kestrel_lab.evals.git import code_version
from kestrel_lab.evals.prepare import Prepared, prepare
from kestrel_lab.evals.recordings import with_cassette
from kestrel_lab.evals.result import EvalResult
from kestrel_lab.evals.reuse import Reuse, look_up
from kestrel_lab.evals.suite import Config, Suite
from kestrel_lab.evals.suitefile import load_suite
from kestrel_lab.evals.trial import Ask, Identity, run_trial
from kestrel_lab.log.store import EvalRow

Configs = Sequence[str] | Mapping[str, Any]
"""Names of a suite's configurations, or models by new names: a model's name, a model, or a `Config`."""


async def run_suite(
    session: Session,
    suite: str | Path | Suite,
    *,
    configs: Configs | None = None,
    epochs: int | None = None,
    reporter: Reporter | None = None,
    concurrency: int | None = None,
    reuse: bool = False,
    keep: bool = False,
    scenarios: Sequence[str] | None = None,
    families: Sequence[str] | None = None,
    tags: Sequence[str] | None = None,
    cassette: str | None = None,
    cassettes: str | Path | None = None,
) -> EvalResult:
    """Try every scenario with every configuration and return one row per trial.

    Args:
        session: Where runs and results are logged.
        suite: A suite file, or a suite.
        configs: Some of the suite's configurations, or others in their place; all by default.
        epochs: How often each scenario is repeated; the suite's number by default.
        reporter: Told of each finished trial.
        concurrency: Trials at once, in place of the suite's number.
        reuse: Take trials that were made before with equal scenario, configuration and code instead of
            making them again; trials that broke are made again in any case.
        keep: Leave the trials' folders in `trials` under the session's home.
        scenarios: Only those of these ids; `*` and `?` stand for any signs and any sign.
        families: Only those of these families.
        tags: Only those with one of these tags.
        cassette: `record`, `replay`, `refresh` or `off`, in place of what the suite says of recordings.
        cassettes: The folder of the recordings, in place of the suite's.

    Raises `UsageError` before the first trial for anything the suite names that is not there.
    """
    loaded = suite if isinstance(suite, Suite) else load_suite(suite)
    chosen, models = choose_configs(loaded, configs)
    chosen = with_cassette(chosen, cassette, cassettes).select(epochs=epochs, scenarios=scenarios, families=families, tags=tags)
    if concurrency is not None:
        chosen = replace(chosen, concurrency=concurrency)
    ready = prepare(session, chosen, models=models)
    code = await code_version(chosen.root, but=session.home.absolute())
    asks = plan_trials(chosen, code=str(code), git_sha=str(code), models=models)
    found = look_up(session.store, chosen, asks) if reuse and not models else Reuse()
    rows = list(found.rows.values())
    todo = [ask for ask in asks if ask.identity.key not in found.rows]
    keep_in = session.home / "trials" if keep else None
    made = await run_trials(session, ready, todo, on_row=count_rows(reporter, len(asks), rows), keep_in=keep_in)
    return EvalResult(suite=chosen, rows=in_order(asks, [*rows, *made]), store=session.store, reused=len(rows), why=found.why)


def plan_trials(suite: Suite, *, code: str, git_sha: str, models: Mapping[str, Model] | None = None) -> list[Ask]:
    """Every trial of the suite: epoch by epoch, so that an interruption leaves all scenarios tried about as often."""
    package = version("kestrel-lab")
    whole = content_key(suite.definition())[:12]
    scenarios = {scenario.id: content_key(scenario.definition())[:12] for scenario in suite.scenarios}
    configs = {config.name: content_key(config.definition(), config.name in (models or {}))[:12] for config in suite.configs}
    return [
        Ask(
            scenario=scenario,
            config=config,
            epoch=epoch,
            git_sha=git_sha,
            identity=Identity(
                scenario=scenarios[scenario.id], config=configs[config.name], suite=whole, code=code, package=package, epoch=epoch
            ),
        )
        for epoch in range(1, suite.epochs + 1)
        for scenario in suite.scenarios
        for config in suite.configs
    ]


async def run_trials(
    session: Session,
    ready: Prepared,
    asks: Sequence[Ask],
    *,
    on_row: Callable[[EvalRow], None],
    keep_in: Path | None = None,
    store: bool = True,
) -> list[EvalRow]:
    """Make the trials, as many at once as the suite and each configuration allow; each is stored as it ends, if `store`.

    The first error that is not a trial's own stops the others and is raised.
    """
    waiting = {config.name: deque(ask for ask in asks if ask.config.name == config.name) for config in ready.suite.configs}
    free = asyncio.Semaphore(ready.suite.concurrency)
    made: list[EvalRow] = []
    storing = []

    async def work(queue: deque[Ask]) -> None:
        while queue:
            async with free:
                if not queue:
                    return
                row = await run_trial(session, ready, queue.popleft(), keep_in=keep_in)
            if store:
                storing.append(session.store.add_eval_run(row))
            made.append(row)
            on_row(row)

    try:
        async with asyncio.TaskGroup() as group:
            for config in ready.suite.configs:
                queue = waiting[config.name]
                for _ in range(min(len(queue), config.concurrency or ready.suite.concurrency, ready.suite.concurrency)):
                    group.create_task(work(queue), name=f"kestrel eval {config.name}")
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    if storing:
        session.store.hurry()
        await asyncio.gather(*(asyncio.wrap_future(done) for done in storing))
    return made


def choose_configs(suite: Suite, configs: Configs | None) -> tuple[Suite, dict[str, Model]]:
    """The suite with the configurations asked for, and those models among them that are objects."""
    if configs is None or not isinstance(configs, Mapping):
        return suite.select(configs=[configs] if isinstance(configs, str) else configs), {}
    chosen: list[Config] = []
    models: dict[str, Model] = {}
    for name, given in configs.items():
        if isinstance(given, Config):
            chosen.append(replace(given, name=name))
        elif isinstance(given, str):
            chosen.append(Config(name=name, model=given))
        elif isinstance(given, Model):
            chosen.append(Config(name=name, model=given.name))
            models[name] = given
        else:
            msg = f"configuration {name!r} is a model's name, a model or a Config, not {type(given).__name__}"
            raise UsageError(msg)
    return replace(suite, configs=tuple(chosen)), models


def in_order(asks: Sequence[Ask], rows: Iterable[EvalRow]) -> tuple[EvalRow, ...]:
    """`rows` in the order of scenario, configuration, epoch."""
    scenarios = {ask.scenario.id: place for place, ask in reversed(list(enumerate(asks)))}
    configs = {ask.config.name: place for place, ask in reversed(list(enumerate(asks)))}
    return tuple(sorted(rows, key=lambda row: (scenarios[row.scenario], configs[row.config], row.epoch)))


def count_rows(reporter: Reporter | None, total: int, reused: Sequence[EvalRow]) -> Callable[[EvalRow], None]:
    """A function that counts outcomes and tells the reporter of each."""
    counts = Counter(str(row.result["outcome"]) for row in reused)
    words = {"pass": "passed", "fail": "failed", "error": "broke"}

    def on_row(row: EvalRow) -> None:
        counts[str(row.result["outcome"])] += 1
        if reporter is not None:
            note = ", ".join(f"{counts[outcome]} {word}" for outcome, word in words.items() if counts[outcome])
            reporter(counts.total(), total, note)

    if reporter is not None:
        reporter(len(reused), total, f"{len(reused)} taken from earlier runs" if reused else "")
    return on_row
