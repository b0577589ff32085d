"""Dask cluster: its workers run trials; the log and the results stay here.

What is sent is the text of a JSON object, to the function `make_trial` of the kestrel_lab that is installed
on the worker, and the text of one comes back; it is read as JSON, and each run and trial is stored here like
any other. Dask itself serialises calls with pickle and cloudpickle: anybody who can talk to a scheduler can
have its workers, and clients that are connected to it, run anything. So a cluster is used only at an address
that the user gives, and should be one that only its users can reach (Dask's own TLS settings apply). Workers
need the suite and what it names at the same path, the same version of kestrel_lab, and the keys of the models
in their own environment.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from kestrel_lab.core.errors import UsageError, most_severe
from kestrel_lab.core.events.union import RunFinished, RunStarted, StateTransition, from_json
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.run_types import RunStatus, new_run_id, new_trial_id
from kestrel_lab.evals.execution.prepare import PreparedSuite
from kestrel_lab.evals.execution.progress import EvalProgress
from kestrel_lab.evals.execution.remote_trials import bench_order, make_trial
from kestrel_lab.evals.execution.runner import (
    Keeper,
    MakeTrials,
    TrialsToRun,
    Turn,
    count_running,
    plan_trials,
)
from kestrel_lab.evals.execution.trial import TrialRequest, with_earlier_attempts
from kestrel_lab.evals.stored_trials import EvalRow, store_run
from kestrel_lab.evals.suites.cassettes import with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.services import Services
from kestrel_lab.tools.builtin import native_tools

_AHEAD: Final = 2
"""Trials sent ahead for each thread of a worker, so that none has to wait for the next."""
_CONNECT_S: Final = 10
_LOOK_S: Final = 0.2
"""Seconds between two looks at which workers there are."""


def on_cluster(address: str) -> MakeTrials:
    """Return a function that runs trials on the workers of the Dask scheduler at `address`; `run_suite` takes
    it as `make`.

    As many are under way as the workers have threads; those of a worker that dies are made by others. Raises
    `UsageError` when nobody answers there, and for a suite that cannot be sent: it must be a file, with
    configurations of its own, and tools that it names itself.
    """

    async def make(work: TrialsToRun) -> list[EvalRow]:
        lab, ready, asks = work.lab, work.ready, work.asks
        suite = _order(lab, ready, asks, kept=work.keep_in is not None)
        keeper = Keeper(lab.store, work.on_row, work.eval_run)
        if asks:
            async with _dask_client(address) as client:
                await Dispatch(lab, ready, client, suite, keeper, work.progress).run(asks)
        await keeper.finish(asks)
        return keeper.rows

    return make


def _order(
    lab: Services, ready: PreparedSuite, asks: Sequence[TrialRequest], *, kept: bool
) -> dict[str, Json]:
    """Return the order for the workers; raises `UsageError` for what they could not find on their
    machines.
    """
    suite = ready.suite
    if suite.path is None or not suite.path.is_file():
        raise UsageError("a cluster needs the suite as a file that its workers can read, too")
    # Those with a group are the package's own, which workers have, too.
    own = sorted(
        {tool.name for tool in lab.registry.toolbox if not tool.group}
        - {tool.name for tool in native_tools()}
    )
    options, model = lab.options, lab.options.get("model")
    middleware, hooks = options["middleware"], options.get("hooks")
    if own or middleware or hooks or not (model is None or isinstance(model, str)):
        given = {f"the tools {', '.join(own)}": own, "middleware": middleware, "hooks": hooks}
        what = next(
            (name for name, value in given.items() if value),
            f"the model {getattr(model, 'name', '')!r}",
        )
        raise UsageError(
            f"{what} of this session cannot be sent to a cluster: name them in the suite file "
            "(tools_from, configs)"
        )
    if kept:
        raise UsageError("folders of trials cannot be kept on a cluster: they are on its workers")
    configs = [config.name for config in suite.configs]
    if suite.cassette.mode in ("record", "refresh"):
        raise UsageError(
            "workers of a cluster would write the same recordings at once: record without --cluster, "
            "then replay with it"
        )
    code = asks[0].git_sha if asks else ""
    folder = None if suite.cassette.folder is None else str(suite.cassette.folder)
    there = with_cassette(load_suite(suite.path), suite.cassette.mode, folder)
    there = there.model_copy(update={"early_stopping": suite.early_stopping})
    known = set(configs) <= {config.name for config in there.configs}
    plan = (
        plan_trials(there.select(configs=configs, epochs=suite.epochs), code=code, git_sha=code)
        if known
        else []
    )
    # Workers read the file: what it gives has to be the very trials that were asked for.
    if {ask.identity.key for ask in asks} - {ask.identity.key for ask in plan}:
        raise UsageError(
            "a cluster can only run what stands in the suite file: models and configurations given "
            "otherwise cannot be sent"
        )
    return {
        **bench_order(lab, suite, suite.path, code),
        "cassette": suite.cassette.mode,
        "cassettes": folder,
        "early_stopping": suite.early_stopping,
    }


@asynccontextmanager
async def _dask_client(address: str) -> AsyncIterator[Any]:
    # Dask would make something of nearly any text, a cluster of its own included.
    if not re.fullmatch(r"(tcp|tls|ws|wss)://[^/\s]+:\d+/?", address):
        msg = (
            f"{address!r} is not the address of a Dask scheduler: give the one that it prints when it "
            "starts, e.g. tcp://host:8786"
        )
        raise UsageError(msg)
    try:
        from distributed import Client  # an extra, and a second to load
    except ImportError as error:
        raise UsageError("running on a cluster needs Dask: pip install 'kestrel-lab[cluster]'") from error
    try:
        await _answers(address)
        client = await Client(  # type: ignore[no-untyped-call]
            address, asynchronous=True, set_as_default=False, timeout=_CONNECT_S
        )
    except (OSError, TimeoutError, ValueError) as error:
        msg = (
            f"no Dask scheduler answers at {address} ({error}): check that it is running and that the "
            "address is the one that it printed"
        )
        raise UsageError(msg) from error
    try:
        yield client
    finally:
        await client.close()


async def _answers(address: str) -> None:
    """Raise `OSError` or `TimeoutError` when nothing listens at the address: Dask itself would retry for
    long.
    """
    place = urlsplit(address)
    async with asyncio.timeout(_CONNECT_S):
        _, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.close()


class Dispatch:
    """Sends trials to the workers of one cluster."""

    def __init__(
        self,
        lab: Services,
        ready: PreparedSuite,
        client: Any,
        order: dict[str, Json],
        keeper: Keeper,
        progress: EvalProgress | None,
    ) -> None:
        self._lab, self._ready, self._client = lab, ready, client
        self._keeper, self._progress = keeper, progress
        self._waiting: deque[Turn] = deque()
        self._hands = 0
        self._name = secrets.token_hex(6)
        # Workers read the suite anew for each run of it: the order of no two runs is the same.
        self._bench: dict[str, Json] = {**order, "run": self._name}

    async def run(self, asks: Sequence[TrialRequest]) -> None:
        """Run all the trials; raises the first error that is not a trial's own."""
        self._waiting.extend((ask, ()) for ask in asks)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._keep_busy(group))
        except BaseExceptionGroup as errors:
            raise most_severe([errors]) from None

    def task(self, ask: TrialRequest, attempt: int) -> str:
        """Return the name of an attempt in the cluster: Dask takes calls of one name for one call."""
        return f"kestrel-{self._name}-{ask.identity.key}-{attempt}"

    async def _keep_busy(self, group: asyncio.TaskGroup) -> None:
        since = time.monotonic()
        while self._waiting:
            threads = sum((await self._client.nthreads()).values())
            if threads:
                since = time.monotonic()
            elif time.monotonic() - since > 3 * _CONNECT_S:
                raise UsageError(
                    f"the cluster at {self._client.scheduler.address} has no workers: start some (dask "
                    "worker ADDRESS)"
                )
            # A few more than the workers have threads, so that none waits for its next trial.
            while self._hands < min(threads * _AHEAD, self._hands + len(self._waiting)):
                self._hands += 1
                group.create_task(self._hand_out())
            await asyncio.sleep(_LOOK_S)

    async def _hand_out(self) -> None:
        while self._waiting:
            ask, earlier = self._waiting.popleft()
            with count_running(self._progress):
                row = await self._made(ask, len(earlier))
            if row.outcome == "error" and len(earlier) < self._ready.suite.retry_errors:
                self._waiting.append((ask, (*earlier, row)))
            else:
                self._keeper.keep(with_earlier_attempts(earlier, row))
        self._hands -= 1

    async def _made(self, ask: TrialRequest, attempt: int) -> EvalRow:
        from distributed import KilledWorker

        order = dumps(
            {
                "bench": self._bench,
                "scenario": ask.scenario.id,
                "config": ask.config.name,
                "epoch": ask.epoch,
                "key": ask.identity.key,
            }
        )
        try:
            answer: dict[str, Any] = json.loads(
                await self._client.submit(make_trial, order, key=self.task(ask, attempt), pure=False)
            )
        except KilledWorker as error:
            return _lost_trial(self._lab.store, self._ready, ask, str(error))
        if "refused" in answer:
            raise UsageError(answer["refused"])
        row = EvalRow(**answer["row"])
        store_run(self._lab.store, row.run, [(at, from_json(kind, body)) for at, kind, body in answer["run"]])
        return row


def _lost_trial(store: SessionStore, ready: PreparedSuite, ask: TrialRequest, why: str) -> EvalRow:
    """Return the row of a trial that killed its workers, one after the other, and store a run that says
    so.
    """
    run_id, now, model = new_run_id(), time.time(), ready.models[ask.config.name]
    reason = f"the workers that made it died: {why}"
    store_run(
        store,
        run_id,
        [
            (
                now,
                RunStarted(
                    goal=ask.scenario.goal,
                    workspace="",
                    model=model.name,
                    model_kind=model.kind,
                    scenario=ask.scenario.id,
                    config=ask.config.name,
                ),
            ),
            (now, RunFinished(outcome="error", reason=reason)),
            (now, StateTransition(source=RunStatus.PLANNING, target=RunStatus.FAILED, reason=reason)),
        ],
    )
    result: dict[str, Json] = {
        "family": ask.scenario.family,
        "group": ready.suite.groups[ask.scenario.id],
        "weight": ask.scenario.weight,
        "model": ask.config.model or model.name,
        "model_kind": model.kind,
        "outcome": "error",
        "reason": reason,
        "scores": [],
        "status": str(RunStatus.FAILED),
        "answer": "",
        "run": run_id,
        "identity": ask.identity.as_json(),
    }
    return EvalRow(
        id=new_trial_id(),
        scenario=ask.scenario.id,
        result=result,
        metrics={},
        git_sha=ask.git_sha,
        created_at=now,
        suite=ready.suite.name,
        config=ask.config.name,
        epoch=ask.epoch,
        key=ask.identity.key,
    )
