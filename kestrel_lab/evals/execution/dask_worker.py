"""A trial as a worker of a cluster makes it: text in, text out."""

from __future__ import annotations

import asyncio
import json
import tempfile
import threading
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from typing import Any

from kestrel_lab.core.errors import KestrelError, UsageError
from kestrel_lab.core.events.union import to_json
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.execution.prepare import Prepared, prepare
from kestrel_lab.evals.execution.runner import plan_trials
from kestrel_lab.evals.execution.trial import Ask, run_trial
from kestrel_lab.evals.suites.cassettes import with_cassette
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.approvals.scope import rules_from_json
from kestrel_lab.runtime.session import Session


@dataclass(frozen=True, kw_only=True, slots=True)
class _Bench:
    """What a process needs for the trials of one order."""

    session: Session
    ready: Prepared
    asks: dict[tuple[str, str, int], Ask]


_ONE_AT_A_TIME = threading.Lock()


def make_trial(order: str) -> str:
    """Make the trial that the JSON object `order` names, and give it and its run's events as JSON.

    The suite file is read on this machine. Gives `{"row": …, "run": …}`, or `{"refused": why}` when the suite, its code's
    version or the package are not those of the order.
    """
    body: dict[str, Any] = json.loads(order)
    try:
        with _ONE_AT_A_TIME:
            bench = _bench(dumps(body["suite"]))
        ask = bench.asks.get((body["scenario"], body["config"], body["epoch"]))
        if ask is None or ask.identity.key != body["key"]:
            msg = f"a worker has another version of the suite {body['suite']['path']} or of kestrel_lab than this process"
            raise UsageError(msg)
        return asyncio.run_coroutine_threadsafe(_make(bench, ask), _loop()).result()
    except KestrelError as error:
        return dumps({"refused": str(error)})


async def _make(bench: _Bench, ask: Ask) -> str:
    row = await run_trial(bench.session, bench.ready, ask)
    store = bench.session.store
    store.flush()
    records = [[record.at, record.event.type, to_json(record.event)] for record in store.records(str(row.result["run"]))]
    return json.dumps({"row": asdict(row), "run": records})


@lru_cache(maxsize=8)
def _bench(suite: str) -> _Bench:
    """The suite as it is on this machine, with a log of its own that goes with the process."""
    order: dict[str, Any] = json.loads(suite)
    loaded = with_cassette(load_suite(order["path"]), order["cassette"], order["cassettes"]).select(
        configs=order["configs"], epochs=order["epochs"]
    )
    folder = tempfile.TemporaryDirectory(prefix="kestrel-")
    _FOLDERS.append(folder)
    session = Session(
        folder.name,
        order["model"],
        provider=order["provider"],
        api_base=order["api_base"],
        sandbox=order["sandbox"],
        network=order["network"],
        containment=order["containment"],
        limits=Limits(**order["limits"]),
        rules=rules_from_json(order.get("rules", [])),
    )
    asks = plan_trials(loaded, code=order["code"], git_sha=order["code"])
    return _Bench(
        session=session, ready=prepare(session, loaded), asks={(ask.scenario.id, ask.config.name, ask.epoch): ask for ask in asks}
    )


_FOLDERS: list[tempfile.TemporaryDirectory[str]] = []


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The event loop of all trials of this process, so that they share what is known of the endpoints they ask."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="kestrel trials", daemon=True).start()
    return loop
