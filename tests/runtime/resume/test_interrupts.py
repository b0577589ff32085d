"""Ctrl-C, a kernel's interrupt and a cancelled task break a run off; only a person's decision ends it."""

import asyncio
import itertools
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from interrupt_worker import EFFECTS, LOOKS, MOMENTS, launch, launch_and_block, look
from waits import PATIENCE_S

from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import (
    ApprovalAsked,
    CheckpointSaved,
    RunFinished,
    RunInterrupted,
    RunResumed,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run, interrupt_run
from kestrel_lab.testing import ScriptedApprover, ScriptedModel


class Worker:
    """The process that forks; a fork that was interrupted is waited for before the next one begins."""

    def __init__(self) -> None:
        command = [sys.executable, str(Path(__file__).with_name("interrupt_worker.py"))]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout

    def start(self, work: Path, *words: str) -> tuple[int, IO[str]]:
        """Begin; returns the id of the fork and what it says."""
        os.mkfifo(out := work.parent / "out")
        self._orders.write(json.dumps({"words": words, "folder": str(work), "out": str(out)}) + "\n")
        return int(self._answers.readline()), out.open()

    def ended(self, within_s: float) -> bool:
        """Whether the fork ends in that time."""
        poller = select.poll()  # `select.select` takes no number over 1,023
        poller.register(self._answers, select.POLLIN | select.POLLHUP)
        return bool(poller.poll(within_s * 1000))

    def wait(self) -> int:
        """The exit status of the fork."""
        return int(self._answers.readline())

    def close(self) -> None:
        """End it."""
        self._process.communicate(timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One for all tests here."""
    started = Worker()
    yield started
    started.close()


def interrupted(worker: Worker, folder: Path, moment: str, *mutant: str) -> tuple[Lab, Run]:
    """The run of a process that got Ctrl-C at that moment, until it ended."""
    (work := folder / "work").mkdir()
    process, said = worker.start(work, str(folder / "home"), ".", moment, *mutant)
    with said:
        assert said.readline() == "there\n"
        os.kill(process, signal.SIGINT)
        if moment == "blocking model":  # the first is heard when the call returns; a second breaks into it
            pauses = itertools.chain(
                (0.2,), itertools.repeat(10.0)
            )  # a third would break into its winding up
            while not worker.ended(next(pauses)):
                os.kill(process, signal.SIGINT)
        assert said.read() == ""
    assert worker.wait() == 130 or moment == "blocking model"
    session = Lab(folder / "home", env={}, tools=[launch, launch_and_block, look])
    (row,) = session.store.runs()
    return session, session.get(row.id)


@pytest.mark.parametrize("moment", MOMENTS)
def test_after_ctrl_c_a_run_goes_on_by_its_id(
    worker: Worker, moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever Ctrl-C reaches a process, its run is left unended and nobody's, says how to resume it, and is
    done when it is.

    A call that was in the middle of an effect is asked about and not made again by itself.
    """
    session, run = interrupted(worker, tmp_path, moment)
    status = RunStatus.WAITING_APPROVAL if moment == "approval" else RunStatus.EXECUTING
    assert (run.status, run.report.interrupted) == (status, True)
    assert session.store.run(run.id).owner == ""
    assert list(session.history.runs()["status"]) == ["INTERRUPTED"]
    assert "INTERRUPTED · scripted (scripted)" in repr(run.report)
    assert f"kestrel run --resume {run.id}" in repr(run.report)
    assert [event.type for event in run.events()[-2:]] == [CheckpointSaved.type, RunInterrupted.type]
    monkeypatch.chdir(tmp_path / "work")
    begun = [event for event in fold(run.records()).begun.values()]
    assert [event.tool for event in begun] == {
        "effect": ["launch"],
        "blocking effect": ["launch_and_block"],
    }.get(moment, [])

    scripts: dict[str, list[Any]] = {
        "effect": ["", "done"],
        "approval": ["", "done"],
        "blocking effect": ["", "done"],
    }
    model = ScriptedModel(
        scripts.get(moment, LOOKS) if moment not in ("spinning", "verification") else lambda _: "done"
    )
    if begun:
        with pytest.raises(ApprovalRequired):
            asyncio.run(session.resume(run.id, model=model))
    person = ScriptedApprover([False])
    again = asyncio.run(session.resume(run.id, model=model, approver=person))
    assert (again.id, again.status, again.report.interrupted) == (run.id, RunStatus.COMPLETE, False)
    assert [asked.why for asked in person.asked] == (
        ["unknown_outcome"] if begun else ["danger"] if moment == "approval" else []
    )
    assert (tmp_path / "work" / EFFECTS).exists() == bool(begun)
    assert not begun or (tmp_path / "work" / EFFECTS).read_text() == "launched\n"
    assert fold(again.records()) == session.store.state(run.id)
    session.close()


def test_the_mutant_that_takes_every_cancellation_for_a_decision_is_seen(
    worker: Worker, tmp_path: Path
) -> None:
    """Where an interrupt ends the run, the same Ctrl-C leaves it CANCELLED, and resuming gives it back as it
    is.
    """
    session, run = interrupted(worker, tmp_path, "model", "mutant")
    assert (run.status, run.report.interrupted) == (RunStatus.CANCELLED, False)
    assert asyncio.run(session.resume(run.id, model=ScriptedModel(LOOKS))).status is RunStatus.CANCELLED
    session.close()


@pytest.fixture
def session(tmp_path: Path) -> Any:
    """A session with tools."""
    opened = Lab(tmp_path / "home", env={}, tools=[launch, look], approve="auto")
    yield opened
    opened.close()


def test_a_decision_ends_a_run_and_says_how_to_fork_it(session: Lab, tmp_path: Path) -> None:
    """`Run.cancel` ends an interrupted run for good, also from another session; it says which fork goes on,
    and that one does.
    """

    async def stopped() -> str:
        model = ScriptedModel([[("look", {})], "done"])
        task = asyncio.create_task(session.run("go", model=model, workspace=tmp_path))
        session.change(listeners=(lambda _, event: task.cancel() if isinstance(event, ToolCalled) else None,))  # type: ignore[assignment]
        with pytest.raises(asyncio.CancelledError):
            await task
        session.change(listeners=())
        return session.store.runs()[0].id

    name = asyncio.run(stopped())
    other = Lab(tmp_path / "home", env={}, tools=[launch, look])
    run = other.get(name)
    assert run.report.interrupted
    run.cancel()
    run.cancel()
    assert (run.status, run.report.interrupted, run.outcome) == (RunStatus.CANCELLED, False, "cancelled")
    end = next(record.seq for record in run.records() if isinstance(record.event, RunFinished)) - 1
    assert f"kestrel fork {name} --at {end}" in repr(session.get(name).report)
    with pytest.raises(UsageError, match="CANCELLED and waits for no approval"):
        other.history.decide(name, granted=True, by="p", how="click")
    fork = asyncio.run(session.fork(name, at=end, model=ScriptedModel([[], "done"])))
    assert (fork.status, fork.answer) == (RunStatus.COMPLETE, "done")
    assert [event.text for event in fork.events() if isinstance(event, ToolAnswered)] == ["nothing"]
    other.close()


def test_a_log_in_which_an_interrupt_wrote_cancelled_names_the_fork(session: Lab, tmp_path: Path) -> None:
    """A run that an earlier version ended at Ctrl-C stays CANCELLED, and what is shown of it says how to go
    on.
    """
    old = session.start  # what earlier versions wrote is what a decision writes today

    async def scene() -> Run:
        run = old("go", model=ScriptedModel(LOOKS), workspace=tmp_path)
        run.subscribe(lambda event: run.cancel() if isinstance(event, ToolAnswered) else None)
        await asyncio.gather(run.wait(), return_exceptions=True)
        return run

    run = asyncio.run(scene())
    assert "a new run goes on from there: kestrel fork" in repr(session.get(run.id).report)


def test_limits_of_a_resumed_run_are_kept_when_it_is_interrupted_again(session: Lab, tmp_path: Path) -> None:
    """Limits given to `resume` are the run's from then on: interrupted once more and resumed without any,
    they hold.
    """

    async def part(turns: int, **options: Any) -> str:
        model = ScriptedModel(lambda _: [("look", {})])
        seen = 0

        def count(run: Run, event: Any) -> None:
            nonlocal seen
            seen += isinstance(event, ToolAnswered)
            if seen == turns:
                interrupt_run(run)

        session.change(listeners=(count,))
        begin = session.resume if (known := session.store.runs()) else session.run
        with pytest.raises(asyncio.CancelledError):
            await begin(known[0].id if known else "go", model=model, **options)
        session.change(listeners=())
        return session.store.runs()[0].id

    name = asyncio.run(part(2, limits=Limits(cycles=4), workspace=tmp_path))
    asyncio.run(part(4, limits=Limits(cycles=9)))
    run = asyncio.run(session.resume(name, model=ScriptedModel(lambda _: [("look", {})])))
    assert (run.reason, run.report.limits.cycles) == ("the limit of 9 model turns is reached", 9)
    assert sum(isinstance(event, RunResumed) for event in run.events()) == 2
    assert not any(isinstance(event, ApprovalAsked) for event in run.events())
