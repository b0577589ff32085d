"""A trial as text: request and result as JSON, for processes that run trials for another one.

A worker process opens a `TrialBench` from the order it is sent, and runs the trials that are asked for by
scenario, configuration and epoch. There are two kinds of workers. One serves the commits of a repository: it
is started in a checkout as `python -m kestrel_lab.evals.execution.remote_trials`, reads an order and then
lists of trials from standard input, and writes one JSON message a line: `ready`, `refused`, `row` or `done`.
The other kind belongs to a Dask cluster, which calls `make_trial` with a text and gets a text back.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, TextIO

from kestrel_lab.core.errors import KestrelError, UsageError
from kestrel_lab.core.events.union import to_json
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.execution.prepare import PreparedSuite, prepare_suite
from kestrel_lab.evals.execution.runner import TrialsToRun, plan_trials, run_trials
from kestrel_lab.evals.execution.trial import TrialRequest, run_trial
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.suites.cassettes import with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.permissions.rulebook import rules_as_json, rules_from_json
from kestrel_lab.runtime.services import Services


def bench_order(lab: Services, suite: Suite, file: Path, sha: str) -> dict[str, Json]:
    """Return what a worker needs to know of a session and of the suite in `file`, whose code is at commit
    `sha`.

    Only limits that differ from the defaults are sent: an older commit need not know every limit that there
    is now.
    """
    usual = Limits().as_json()
    model = lab.options.get("model")
    return {
        "suite": str(file),
        "sha": sha,
        "configs": [config.name for config in suite.configs],
        "model": model if isinstance(model, str) else None,
        "provider": lab.options.get("provider"),
        "api_base": lab.options.get("api_base"),
        "limits": {name: value for name, value in lab.limits.as_json().items() if value != usual[name]},
        "sandbox": lab.sandbox.name,
        "network": lab.sandbox.network,
        "rules": [*rules_as_json(lab.rules)],
        "containment": lab.options["containment"],
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialBench:
    """A session and a prepared suite, as an order describes them, that run trials for another process."""

    lab: Services
    ready: PreparedSuite
    asks: Mapping[tuple[str, str], TrialRequest]
    """The trials of the first epoch, by scenario and configuration."""

    @classmethod
    def open(cls, order: Mapping[str, Any], home: str | Path, *, skip_missing: bool) -> TrialBench:
        """Open the suite and the session of an order from `bench_order`.

        The order may add `at`, beside which the suite finds what it names, `newer`, whether what is missing
        there is looked for beside the file itself, and `cassette`, `cassettes` and `early_stopping`, which
        replace the suite's own. The log is kept in `home`. Raises `UsageError` as `load_suite` and
        `prepare_suite` do.
        """
        loaded = load_suite(order["suite"], at=order.get("at"))
        if order.get("newer"):
            loaded = loaded.model_copy(update={"otherwise": load_suite(order["suite"])})
        suite = with_cassette(loaded, order.get("cassette"), order.get("cassettes"))
        suite = suite.select(configs=order["configs"], epochs=1)
        if (early := order.get("early_stopping")) is not None:
            suite = suite.model_copy(update={"early_stopping": early})
        lab = Services(
            home,
            order["model"],
            provider=order["provider"],
            api_base=order["api_base"],
            sandbox=order["sandbox"],
            network=order["network"],
            containment=order["containment"],
            limits=Limits(**order["limits"]),
            rules=rules_from_json(order.get("rules", [])),
        )
        try:
            ready = prepare_suite(lab, suite, skip_missing=skip_missing)
        except BaseException:
            lab.close()
            raise
        asks = plan_trials(suite, code=order["sha"], git_sha=order["sha"])
        return cls(lab=lab, ready=ready, asks={(ask.scenario.id, ask.config.name): ask for ask in asks})


# A worker of a Dask cluster.


def make_trial(request: str) -> str:
    """Run the trial that a JSON object names, and return its row and the events of its run as JSON.

    The request holds an order as `bench`, `scenario`, `config`, `epoch` and the `key` that the trial must
    have. The suite file is read on this machine. The answer is `{"row": …, "run": …}`, or `{"refused": why}`
    when the suite, its code's version or the package are not those of the request.
    """
    body: dict[str, Any] = json.loads(request)
    try:
        with _OPENING:
            bench = _bench(dumps(body["bench"]))
        ask = bench.asks.get((body["scenario"], body["config"]))
        ask = None if ask is None else ask.at(epoch=body["epoch"])
        if ask is None or ask.identity.key != body["key"]:
            raise UsageError(
                f"a worker has another version of the suite {body['bench']['suite']} or of kestrel_lab "
                "than this process"
            )
        return asyncio.run_coroutine_threadsafe(_row_and_run(bench, ask), _loop()).result()
    except KestrelError as error:
        return dumps({"refused": str(error)})


async def _row_and_run(bench: TrialBench, ask: TrialRequest) -> str:
    row = await run_trial(bench.lab, bench.ready, ask)
    store = bench.lab.store
    store.flush()
    records = [[record.at, record.event.type, to_json(record.event)] for record in store.records(row.run)]
    return json.dumps({"row": asdict(row), "run": records})


# Dask calls a function by its name in any of a worker's threads: what trials share can only be found by
# functions here.

_OPENING = threading.Lock()
"""Held while a bench is opened: `lru_cache` would let two threads open the same one."""


@lru_cache(maxsize=8)
def _bench(order: str) -> TrialBench:
    return TrialBench.open(
        json.loads(order), tempfile.mkdtemp(prefix="kestrel-", dir=_scratch().name), skip_missing=False
    )


@cache
def _scratch() -> tempfile.TemporaryDirectory[str]:
    """The folder of all logs of this process; it is removed when the process ends."""
    return tempfile.TemporaryDirectory(prefix="kestrel-worker-")


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all trials of this process: they share what is known of the endpoints they ask."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="kestrel trials", daemon=True).start()
    return loop


# A worker of a commit.

_Send = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serve the process at the other end of standard input and output until the input ends."""
    send = _own_output()
    try:
        asyncio.run(_serve(send))
    except KestrelError as error:
        send({"refused": str(error)})


async def _serve(send: _Send) -> None:
    order = json.loads(sys.stdin.readline())
    bench = TrialBench.open(order, order.get("home", ""), skip_missing=True)
    try:
        send({"ready": dict(bench.ready.skipped)})
        while line := await asyncio.to_thread(sys.stdin.readline):
            asks = [
                bench.asks[scenario, config].at(epoch=epoch) for scenario, config, epoch in json.loads(line)
            ]
            work = TrialsToRun(
                lab=bench.lab,
                ready=bench.ready,
                asks=asks,
                on_row=lambda row: send({"row": asdict(row)}),
                store=False,
            )
            await run_trials(work)
            send({"done": len(asks)})
    finally:
        bench.lab.close()


def _own_output() -> _Send:
    """Return a way to standard output that only messages take; what tools print goes to standard error
    instead.
    """
    output: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def send(message: dict[str, Any]) -> None:
        # The other end may have given up on this worker; then standard input ends, too, and with it the work.
        with suppress(BrokenPipeError):
            output.write(json.dumps(message) + "\n")
            output.flush()

    return send


if __name__ == "__main__":
    main()
