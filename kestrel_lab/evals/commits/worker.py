"""Run trials for another process, in the checkout and environment this one was started in.

The first line of standard input says what to run, each further one which trials to make now; each line of
standard output is one JSON message: `ready`, `refused`, `row` or `done`. Started by
`kestrel_lab.evals.commits.worker_pool`, as `python -m kestrel_lab.evals.commits.worker`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TextIO

from kestrel_lab.core.errors import KestrelError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.evals.execution.prepare import Prepared, prepare
from kestrel_lab.evals.execution.runner import plan_trials, run_trials
from kestrel_lab.evals.execution.trial import Ask
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.runtime.approvals.scope import rules_from_json
from kestrel_lab.runtime.session import Session

Tell = Callable[[dict[str, Any]], None]


def main() -> None:
    """Serve until standard input ends."""
    tell = _own_output()
    try:
        asyncio.run(_serve(tell))
    except KestrelError as error:
        tell({"refused": str(error)})


async def _serve(tell: Tell) -> None:
    order = json.loads(sys.stdin.readline())
    suite = load_suite(order["suite"], at=order["at"]).select(configs=order["configs"], epochs=1)
    session = Session(
        order["home"],
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
        ready = prepare(session, suite, skip_missing=True)
        asks = {(a.scenario.id, a.config.name): a for a in plan_trials(suite, code=order["sha"], git_sha=order["sha"])}
        tell({"ready": dict(ready.skipped)})
        while line := await asyncio.to_thread(sys.stdin.readline):
            wanted = json.loads(line)
            await _make(session, ready, [asks[scenario, config].at(epoch=epoch) for scenario, config, epoch in wanted], tell)
    finally:
        session.close()


async def _make(session: Session, ready: Prepared, asks: list[Ask], tell: Tell) -> None:
    await run_trials(session, ready, asks, on_row=lambda row: tell({"row": asdict(row)}), store=False)
    tell({"done": len(asks)})


def _own_output() -> Tell:
    """A way to standard output that only messages take; what tools print goes to standard error instead."""
    output: TextIO = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(message: dict[str, Any]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    return tell


if __name__ == "__main__":
    main()
