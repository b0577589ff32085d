"""The worker of `crash_worker` with another session: one that runs macros."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import crash_worker
from crash_worker import NotingStore, Points, RepeatingApprovals, note
from reference import HonestPerson

sys.path.append(str(Path(__file__).parents[1] / "agent"))
from test_macro_runs import TURNS, with_deploy  # the path above has to be set first

from kestrel_lab.runtime import start as start_module
from kestrel_lab.testing import ScriptedModel


def work(folder: Path, mutant: str, point: int, how: int) -> None:
    """Start the session, or go on with it."""
    points = Points(point, lambda: os.kill(os.getpid(), how))
    effects = folder / "effects"

    def effect(line: str) -> None:
        points.passed()
        note(effects, line)
        points.passed()

    def happened(line: str) -> bool:
        return effects.exists() and line in effects.read_text().splitlines()

    if mutant == "repeat":
        vars(start_module)["RunApprovals"] = RepeatingApprovals
    session = with_deploy(folder / "home", folder, effect)
    session.store.close()
    session.store = NotingStore(folder / "home" / "kestrel.db", folder / "acks", points)
    known = session.store.runs()
    options: dict[str, Any] = {"model": ScriptedModel(TURNS), "approver": HonestPerson(happened)}
    if known:
        asyncio.run(session.resume(known[0].id, **options))
    else:
        asyncio.run(session.run("deploy", workspace=folder, **options))
    session.close()


if __name__ == "__main__":
    vars(crash_worker)["work"] = work
    crash_worker.main()
