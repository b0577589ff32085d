"""Runs the reference session again and again, each time in a fork that is killed at some point.

Reads one JSON order per line: `folder`, `mutant`, and where to die: `point` (the n-th moment of interest:
after an acknowledgement, before or after an effect) or `after_s`. Answers with the exit status of the fork.
With `freeze` the fork is stopped there instead of killed, the answer is its process id, and the next line
lets it go on and end; its exit status is then 3 if it was fenced off. Forking from a process that has
everything imported makes a crash cost milliseconds instead of a second.
"""

import asyncio
import gc
import hashlib
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import apsw
import reference
from msgspec.structs import replace

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import Fenced
from kestrel_lab.core.events.union import ApprovalGiven, Event, from_json, to_json
from kestrel_lab.core.json_types import dumps
from kestrel_lab.eventlog.connection import connect_log
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.eventlog.writer import Append, Execute, Writer
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start as start_module
from kestrel_lab.runtime.approvals.decide import RunApprovals


def fingerprint(event: Event) -> str:
    """Tells one event from another."""
    return hashlib.sha256(dumps([event.type, to_json(event)]).encode()).hexdigest()[:16]


def note(path: Path, line: str) -> None:
    """Add one line in one write, which survives the death of its writer."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


class Points:
    """Counts the moments of interest and does something at the chosen one: dies, or is frozen."""

    def __init__(self, last: int, act: Callable[[], object]) -> None:
        self._numbers = itertools.count(1)
        self._last, self._act = last, act
        self._lock = threading.Lock()

    def passed(self) -> None:
        """One more."""
        with self._lock:
            if next(self._numbers) == self._last:
                self._act()


class NotingStore(SessionStore):
    """Writes down every acknowledgement the moment it is given."""

    def __init__(self, path: Path, acks: Path, points: Points) -> None:
        super().__init__(path)
        self._acks, self._points = acks, points

    def _put(self, job: Append, *, urgent: bool) -> None:
        """Append, and note the acknowledgement; an event that nobody asks about gets a future too."""
        done = job.done or Future()

        def acknowledged(done: Future[int]) -> None:
            if done.exception() is None:
                note(
                    self._acks,
                    f"{job.run_id} {done.result()} {fingerprint(from_json(job.type, json.loads(job.body)))}",
                )
                self._points.passed()

        done.add_done_callback(acknowledged)
        super()._put(replace(job, done=done), urgent=urgent)


class HastyWriter(Writer):
    """A mutant: acknowledges events before the commit."""

    def _commit(self, connection: apsw.Connection, batch: list[Append | Execute]) -> None:
        last: dict[str, int] = {}
        for job in batch:
            if isinstance(job, Append):
                if job.run_id not in last:
                    row = connection.execute(
                        "SELECT last_seq FROM runs WHERE id = ?", (job.run_id,)
                    ).fetchone()
                    last[job.run_id] = int(row[0]) if row else 1
                last[job.run_id] += 1
                job.done.set_result(last[job.run_id])
        super()._commit(
            connection, [replace(job, done=Future()) if isinstance(job, Append) else job for job in batch]
        )


class RepeatingApprovals(RunApprovals):
    """A mutant: after a crash every call is simply made again."""

    async def decide(self, call: Call) -> ApprovalGiven | None:
        """Ask as ever the first time, and never after a crash."""
        return None if call.attempt > 1 else await super().decide(call)


class TearingWriter(Writer):
    """A mutant: writes a transition in one transaction and the run's new state in the next."""

    def __init__(self, path: Path, points: Points) -> None:
        super().__init__(lambda: connect_log(path))
        self._points = points
        raw = apsw.Connection(str(path))
        raw.execute(
            "BEGIN IMMEDIATE; DROP TRIGGER events_after; CREATE TRIGGER events_after AFTER INSERT ON events"
            " BEGIN UPDATE runs SET last_seq = NEW.seq WHERE id = NEW.run_id; END; COMMIT"
        )
        raw.close()

    def _commit(self, connection: apsw.Connection, batch: list[Append | Execute]) -> None:
        for job in batch:
            super()._commit(connection, [job])
            if isinstance(job, Append) and job.type == "state_transition" and job.done.exception() is None:
                self._points.passed()
                connection.execute(
                    "UPDATE runs SET status = ? WHERE id = ?", (json.loads(job.body)["target"], job.run_id)
                )


def work(folder: Path, mutant: str, point: int, how: int) -> None:
    """Start the session, or go on with it."""

    def act() -> None:
        os.kill(os.getpid(), how)
        time.sleep(0.2)  # a signal to stop takes a moment to reach every thread

    points = Points(point, act)
    effects = folder / "effects"

    around_effects = (
        points.passed if how == signal.SIGKILL else lambda: None
    )  # a writer frozen in a commit keeps everybody out

    def effect(line: str) -> None:
        around_effects()
        note(effects, line)
        around_effects()

    def happened(line: str) -> bool:
        return effects.exists() and line in effects.read_text().splitlines()

    if mutant == "repeat":
        vars(start_module)["RunApprovals"] = RepeatingApprovals
    session = Lab(folder / "home", env={}, tools=reference.tools(effect), checkpoint_every=2)
    session.store.close()
    session.store = NotingStore(folder / "home" / "kestrel.db", folder / "acks", points)
    if mutant == "hasty":
        session.store._writer = HastyWriter(lambda: connect_log(session.store.path))
    if mutant == "tear":
        session.store._writer = TearingWriter(session.store.path, points)
    known = session.store.runs()
    options: dict[str, Any] = {"model": reference.model(), "approver": reference.HonestPerson(happened)}
    if known:
        asyncio.run(session.resume(known[0].id, **options))
    else:
        asyncio.run(session.run(reference.GOAL, plan=reference.PLAN, workspace=folder, **options))
    session.close()


def fork(order: dict[str, Any]) -> int:
    """Carry out one order in a fork; its exit status, negative for the signal that ended it, or the id of a
    frozen one.
    """
    pid = os.fork()
    if pid == 0:
        try:
            work(
                Path(order["folder"]),
                order["mutant"],
                order["point"],
                signal.SIGSTOP if order.get("freeze") else signal.SIGKILL,
            )
        except Fenced:
            os._exit(3)
        except BaseException as error:  # whatever it is: said, and the fork ends here  # noqa: BLE001
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
        os._exit(0)
    if order["after_s"]:
        time.sleep(order["after_s"])
        os.kill(pid, signal.SIGKILL)
    if order.get("freeze") and os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1]):
        return pid
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def thaw(pid: int) -> int:
    """Let a frozen fork go on; its exit status."""
    os.kill(pid, signal.SIGCONT)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> None:
    """Serve orders until the input ends."""
    for tool in reference.tools(lambda _: None):
        tool.validate({"name": "x"})
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # one whole session loads what would otherwise be loaded in every fork
        work(Path(folder), "", 0, signal.SIGKILL)
    gc.freeze()  # a collection in a fork would copy every page of what was loaded here
    assert threading.active_count() == 1, "a fork of a process with threads may hang"
    for line in sys.stdin:
        order = json.loads(line)
        print(thaw(order["thaw"]) if "thaw" in order else fork(order), flush=True)


if __name__ == "__main__":
    main()
