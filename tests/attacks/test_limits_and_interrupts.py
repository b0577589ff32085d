"""Attacks on limits, cancellation and interrupts: what was tried to have a run go on for ever, lose its
place, or act twice.
"""

import asyncio
import itertools
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, ToolAnswered
from kestrel_lab.core.messages import ModelAnswer, ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.protocols import ModelKind, OnDelta
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start
from kestrel_lab.runtime.run import Run, interrupt_run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.macros import Macro, MacroRegistry

MANY = 1_500
EFFECTS: list[str] = []
"""What tools did in this process."""


@tool(danger_level="low")
async def send(name: str) -> str:
    """Send it, which takes a moment."""
    EFFECTS.append(name)
    await asyncio.sleep(0.005)
    return f"sent {name}"


@tool(danger_level="low")
async def send_slowly(name: str) -> str:
    """Send it, and be under way until the run is broken off: with a busy processor 5 ms were over before the
    third began.
    """
    EFFECTS.append(name)
    await asyncio.sleep(600)
    return f"sent {name}"


@tool(danger_level="safe", effect="pure")
def look() -> str:
    """Look."""
    return "nothing"


@tool(danger_level="safe", effect="pure")
async def stubborn() -> str:
    """Take no notice of being cancelled."""
    for _ in range(3):
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            continue
    return "still here"


@tool(danger_level="safe", effect="pure")
async def gives_up() -> str:
    """Cancel itself."""
    raise asyncio.CancelledError


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Lab]:
    """A session with these tools."""
    EFFECTS.clear()
    opened = Lab(
        tmp_path / "home",
        env={},
        tools=[send, send_slowly, look, stubborn, gives_up],
        approve="auto",
        verify="off",
    )
    yield opened
    opened.close()


def endless(*calls: str) -> ScriptedModel:
    """Asks for these calls again and again."""
    turns = itertools.count(1)

    def play(_: ModelRequest) -> Turn:
        return [(name, {}) for name in calls] if next(turns) < MANY else "never stopped"

    return ScriptedModel(play)


class Deaf:
    """A model that takes no notice of being cancelled, and then asks for a tool."""

    name = "deaf"
    kind: ModelKind = "scripted"

    def __init__(self) -> None:
        self.asked = 0

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer some time."""
        self.asked += 1
        return await ScriptedModel(lambda _: [("stubborn", {})] if self.asked < 40 else "never stopped")(
            request, on_delta
        )


async def yes(asked: ApprovalAsked) -> ApprovalGiven:
    """Look whether what may have happened did, and say no to that and yes to the rest."""
    again = asked.why == "unknown_outcome" and (asked.tool == "launch" or asked.args["name"] in EFFECTS)
    return ApprovalGiven(
        call=asked.call, granted=not again, by="p", how="click", reason="it was sent" if again else ""
    )


@pytest.mark.parametrize("how", ["limit", "cancel", "task"])
def test_tools_and_models_that_swallow_their_cancellation(how: str, session: Lab, tmp_path: Path) -> None:
    """What takes no notice of a cancellation is the last thing that its run does."""

    async def scene() -> tuple[Run, Deaf]:
        model = Deaf()
        run = session.start(
            "go",
            model=model,
            workspace=tmp_path,
            limits=Limits(cycles=100, seconds=0.1 if how == "limit" else None),
        )
        waiting = asyncio.create_task(run.wait())
        if how != "limit":
            asyncio.get_running_loop().call_later(0.06, run.cancel if how == "cancel" else waiting.cancel)
        await asyncio.wait([waiting], timeout=PATIENCE_S)
        assert waiting.done()
        return run, model

    run, model = asyncio.run(scene())
    assert model.asked < 5
    assert {
        "limit": run.outcome == "limit",
        "cancel": run.outcome == "cancelled",
        "task": run.report.interrupted,
    }[how]


def test_a_tool_that_cancels_itself(session: Lab, tmp_path: Path) -> None:
    """A tool that raises `CancelledError`, where nobody cancelled the run, has failed: the model reads so and
    the run goes on.
    """
    model = ScriptedModel([[("gives_up", {})], "done"])
    run = asyncio.run(session.run("go", model=model, workspace=tmp_path))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done")
    (answer,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert answer.error is not None and "CancelledError" in str(answer.error["message"])


def test_ctrl_c_twice_at_once(tmp_path: Path) -> None:
    """Two interrupts in a row, the second while the first is being written down, leave a log that goes on."""
    worker = Path(__file__).parents[1] / "runtime" / "resume" / "interrupt_worker.py"
    (work := tmp_path / "work").mkdir()
    command = [sys.executable, str(worker), str(tmp_path / "home"), ".", "effect"]
    with subprocess.Popen(
        command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        process.wait()
    other = Lab(tmp_path / "home", env={}, tools=[launch, launch_and_block, look])
    run = other.get(other.store.runs()[0].id)
    assert run.report.interrupted and run.damage is None
    done = asyncio.run(other.resume(run.id, model=ScriptedModel(["", "done"]), approver=yes))
    assert (done.status, (work / "effects").read_text()) == (RunStatus.COMPLETE, "launched\n")
    other.close()


@tool(danger_level="medium")
async def launch_and_block() -> str:
    """Launch it."""
    raise AssertionError


@tool(danger_level="medium")
async def launch() -> str:
    """Launch it."""
    EFFECTS.append("launched")
    return "landed"


def test_interrupted_at_every_event_it_still_acts_once(session: Lab, tmp_path: Path) -> None:
    """A run that is interrupted at its first event, resumed, interrupted at the next, and so on to its end
    sends each parcel once.
    """
    script: list[Turn] = [
        [("send", {"name": "a"}), ("look", {})],
        [("send", {"name": "b"}), ("send", {"name": "c"})],
        "done",
    ]
    options: dict[str, Any] = {"model": ScriptedModel(script), "approver": yes}

    async def part(known: str | None, after: int) -> Run:
        run = (
            start.resume(session, known, **options, limits=Limits(cycles=None))
            if known
            else session.start("go", workspace=tmp_path, **options)
        )
        count = itertools.count(1)
        run.subscribe(lambda _: interrupt_run(run) if next(count) >= after else None)
        await asyncio.gather(run.wait(), return_exceptions=True)
        return run

    run = asyncio.run(part(None, 1))
    for further in itertools.count(1):
        if run.status.terminal:
            break
        assert run.report.interrupted or run.status is RunStatus.WAITING_APPROVAL
        assert fold(run.records()) == session.store.state(run.id)
        run = asyncio.run(part(run.id, len(run.records()) + further))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "done")
    assert sorted(EFFECTS) == ["a", "b", "c"]


def test_steps_in_parallel_are_each_asked_about(session: Lab, tmp_path: Path) -> None:
    """Three effects under way at once when the run is broken off: a person is asked about each, none is
    repeated unasked.
    """
    plan = Plan(steps=tuple(Step(id=name, tool="send_slowly", args={"name": name}) for name in "abc"))

    async def scene() -> str:
        run = session.start("go", plan=plan, model=ScriptedModel([]), workspace=tmp_path)
        run.subscribe(lambda _: interrupt_run(run) if len(EFFECTS) == 3 else None)
        while len(EFFECTS) < 3:
            await asyncio.sleep(0)
        interrupt_run(run)
        await asyncio.gather(run.wait(), return_exceptions=True)
        return run.id

    name = asyncio.run(scene())
    begun = sorted(event.step for event in fold(session.get(name).records()).begun.values())
    assert begun == ["a", "b", "c"]
    with pytest.raises(ApprovalRequired):
        asyncio.run(session.resume(name, model=ScriptedModel([])))
    assert sorted(asked.step for asked in session.get(name).questions) == begun
    assert sorted(EFFECTS) == ["a", "b", "c"]


def test_a_macro_goes_on_behind_the_call_that_was_done(session: Lab, tmp_path: Path) -> None:
    """A macro broken off in its second call does not make the first again; it is asked about the second, and
    makes the third.
    """
    steps: list[Any] = [{"type": "tool", "name": "send", "args": {"name": name}} for name in "abc"]
    MacroRegistry(session.store, str(tmp_path)).save(
        Macro.from_json("parcels", "Sends three.", {"type": "object"}, steps)
    )
    script = ScriptedModel([[("macro_run", {"name": "parcels"})], "done"])

    async def scene() -> str:
        run = session.start("go", model=script, workspace=tmp_path)
        run.subscribe(
            lambda event: interrupt_run(run) if event.type == "tool_called" and EFFECTS == ["a"] else None
        )
        await asyncio.gather(run.wait(), return_exceptions=True)
        return run.id

    name = asyncio.run(scene())
    assert session.get(name).report.interrupted
    asked: list[ApprovalAsked] = []

    async def granted(question: ApprovalAsked) -> ApprovalGiven:
        asked.append(question)
        return ApprovalGiven(call=question.call, granted=True, by="p", how="click")

    before = list(EFFECTS)
    run = asyncio.run(session.resume(name, model=script, approver=granted))
    assert (run.status, [question.args["name"] for question in asked]) == (RunStatus.COMPLETE, ["b"])
    assert (before.count("a"), EFFECTS[len(before) :]) == (1, ["b", "c"])


def test_many_steps_that_never_suspend_beside_each_other(session: Lab, tmp_path: Path) -> None:
    """Eight agents that spin at once hold neither a limit nor a timeout up."""
    plan = Plan(steps=tuple(Step(id=f"s{n}", goal="spin") for n in range(8)))

    async def scene() -> Run:
        run = session.start(
            "go",
            plan=plan,
            model=endless("look", "look"),
            workspace=tmp_path,
            limits=Limits(cycles=None, seconds=None, wall_seconds=0.3),
        )
        return await asyncio.wait_for(run.wait(), PATIENCE_S)

    run = asyncio.run(scene())
    assert (run.outcome, run.reason) == ("limit", "the limit of 0.3 s since it began is reached")


def test_a_question_is_answered_while_nobody_works_on_the_run(session: Lab, tmp_path: Path) -> None:
    """A question that was open at an interrupt can be decided in the log, also by another session, and is not
    asked again.
    """

    async def thinks(asked: ApprovalAsked) -> ApprovalGiven:
        await asyncio.sleep(100)
        raise AssertionError

    def waits(run: Run, event: Event) -> None:
        if isinstance(event, ApprovalAsked):
            asyncio.get_running_loop().call_later(0.01, interrupt_run, run)

    session.change(listeners=(waits,))
    script = ScriptedModel([[("send", {"name": "x"})], "done"])
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(
            session.run(
                "go",
                model=script,
                approve="ask",
                rules=[{"tool": "send", "verdict": "ask"}],
                workspace=tmp_path,
                approver=thinks,
            )
        )
    session.change(listeners=())
    name = session.store.runs()[0].id
    assert session.get(name).status is RunStatus.WAITING_APPROVAL
    other = Lab(tmp_path / "home", env={}, tools=[send, look, stubborn, gives_up])
    other.history.decide(name, granted=True, by="ann", how="command")
    run = asyncio.run(session.resume(name, model=script))
    assert (run.status, EFFECTS) == (RunStatus.COMPLETE, ["x"])
    assert sum(isinstance(event, ApprovalAsked) for event in run.events()) == 1
    other.close()


def test_a_run_whose_process_was_killed_can_be_cancelled_and_is_shown_as_interrupted(tmp_path: Path) -> None:
    """After `kill -9` nobody could say that the run stands still: it is shown all the same, and can be ended
    for good.
    """
    worker = Path(__file__).parents[1] / "runtime" / "resume" / "interrupt_worker.py"
    (work := tmp_path / "work").mkdir()
    with subprocess.Popen(
        [sys.executable, str(worker), str(tmp_path / "home"), ".", "effect"],
        cwd=work,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        other = Lab(tmp_path / "home", env={}, tools=[launch])
        name = other.store.runs()[0].id
        assert list(other.history.runs()["status"]) == ["EXECUTING"]
        process.kill()
        process.wait()
    assert list(other.history.runs()["status"]) == ["INTERRUPTED"]
    assert f"kestrel run --resume {name}" in repr(other.get(name).report)
    run = other.get(name)
    run.cancel()
    assert (run.status, list(other.history.runs()["status"])) == (RunStatus.CANCELLED, ["CANCELLED"])
    assert not any(isinstance(event, ToolAnswered) for event in run.events())
    other.close()
