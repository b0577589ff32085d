"""Runs the reference session on a disk that is full from some point on, then, with room again, goes on with
it.

Arguments: a folder and the points. Prints one line of JSON per point: which error ended the first run, in
which state that left it, and in which it is after the second. A limit on the size of files stands for the
disk.
"""

import asyncio
import json
import resource
import signal
import sys
from pathlib import Path
from typing import Any

import reference
from crash_worker import NotingStore, Points, note

from kestrel_lab.core.errors import StorageFull
from kestrel_lab.lab import Lab

PAGES = 32 * 1024
"""The log's index in shared memory, which is a file too and must not be what is refused."""


def work(folder: Path, point: int) -> dict[str, Any]:
    """One session, with no room from `point` until it has ended."""
    folder.mkdir()
    log, effects = folder / "home" / "kestrel.db", folder / "effects"

    def fill() -> None:
        size = max(PAGES, Path(f"{log}-wal").stat().st_size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

    points = Points(point, fill)

    def effect(line: str) -> None:
        points.passed()
        note(effects, line)
        points.passed()

    def happened(line: str) -> bool:
        return effects.exists() and line in effects.read_text().splitlines()

    session = Lab(folder / "home", env={}, tools=reference.tools(effect), checkpoint_every=2)
    session.store.close()
    session.store = NotingStore(log, folder / "acks", points)
    options: dict[str, Any] = {"model": reference.model(), "approver": reference.HonestPerson(happened)}
    told = ""
    try:
        asyncio.run(session.run(reference.GOAL, plan=reference.PLAN, workspace=folder, **options))
    except StorageFull as error:
        told = str(error)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    session.store.flush()
    (row,) = session.store.runs()
    run = asyncio.run(session.resume(row.id, **options))
    session.close()
    return {"point": point, "told": told, "left": str(row.status), "status": str(run.status)}


if __name__ == "__main__":
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    for number in map(int, sys.argv[2:]):
        print(json.dumps(work(Path(sys.argv[1]) / str(number), number)), flush=True)
