"""Deadlines, cancellation and listeners are heard although neither the model nor a tool ever suspends."""

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from waits import LoopClock

from kestrel_lab.core.errors import Fenced
from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.macros import Macro, MacroRegistry

MANY = 4_000
"""Turns after which a script that nothing stopped ends by itself."""
UNBOUND: dict[str, Json] = {"cycles": None, "cost_usd": None}


@tool(danger_level="safe", effect="pure")
def look(place: str = "") -> str:
    """Look."""
    return "nothing"


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Lab]:
    """A session with a tool that never suspends."""
    opened = Lab(tmp_path / "home", env={}, tools=[look], approve="auto", verify="off")
    yield opened
    opened.close()


def spinning(name: str = "look", args: Callable[[int], dict[str, Json]] = lambda _: {}) -> ScriptedModel:
    """A model that calls a tool again and again, at once."""
    turns = itertools.count(1)

    def play(_: ModelRequest) -> Turn:
        turn = next(turns)
        return [(name, args(turn))] if turn < MANY else "never stopped"

    return ScriptedModel(play)


def looks(run: Run) -> int:
    """How many looks were answered."""
    return sum(isinstance(event, ToolAnswered) for event in run.events())


def macro_of_many(session: Lab, root: Path) -> None:
    """A macro of fifty looks."""
    steps: list[Json] = [
        {"type": "tool", "name": "look", "args": {"place": str(number)}} for number in range(50)
    ]
    MacroRegistry(session.store, str(root)).save(
        Macro.from_json("survey", "Looks around.", {"type": "object"}, steps)
    )


def test_a_deadline_is_kept(session: Lab, tmp_path: Path) -> None:
    """Past `seconds` the run ends with that limit, whether the answers are made, cached or parts of a macro;
    what it had is kept.
    """
    macro_of_many(session, tmp_path)
    for model in (
        spinning(),
        spinning(args=lambda turn: {"place": str(turn)}),
        spinning("macro_run", lambda _: {"name": "survey"}),
    ):
        run = session.run_sync("go", model=model, workspace=tmp_path, limits=Limits(seconds=0.3, **UNBOUND))  # type: ignore[arg-type]
        assert (run.status, run.outcome, run.reason) == (
            RunStatus.FAILED,
            "limit",
            "the limit of 0.3 s of work is reached",
        )
        assert looks(run) < MANY


def test_a_deadline_is_kept_by_steps_that_grow(session: Lab, tmp_path: Path) -> None:
    """A workflow whose steps are tools that never suspend ends at the deadline too."""
    steps = tuple(Step(id=f"s{n}", tool="look", depends_on=(f"s{n - 1}",) if n else ()) for n in range(600))
    run = session.run_sync(
        "go", plan=Plan(steps=steps), model=ScriptedModel([]), workspace=tmp_path, limits=Limits(seconds=0.02)
    )
    assert (run.outcome, looks(run) < 600) == ("limit", True)


def test_the_mutant_that_does_not_yield_passes_every_deadline(
    session: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a turn neither lets the loop turn over nor looks at the clock, the same run goes on to the end of
    its script.
    """

    async def stay(_: RunContext, **_options: object) -> None:
        return

    monkeypatch.setattr(RunContext, "yield_control", stay)
    monkeypatch.setattr(RunContext, "_check_going", lambda _: None)
    monkeypatch.setitem(globals(), "MANY", 1_000)
    run = session.run_sync("go", model=spinning(), workspace=tmp_path, limits=Limits(seconds=0.05, **UNBOUND))  # type: ignore[arg-type]
    assert looks(run) == 999


def test_a_model_that_blocks_is_stopped_when_its_call_returns(session: Lab, tmp_path: Path) -> None:
    """A model that holds up the thread past the deadline makes no other turn, and none of the calls it asks
    for begins.
    """
    asked: list[int] = []

    def play(_: ModelRequest) -> Turn:
        asked.append(1)
        LoopClock().skip(61)
        return [("look", {})]

    run = session.run_sync("go", model=ScriptedModel(play), workspace=tmp_path, limits=Limits(seconds=60))
    assert (run.outcome, len(asked), looks(run)) == ("limit", 1, 0)


@pytest.mark.parametrize("how", ["task", "timeout", "wait_for", "cancel", "thread", "listener"])
def test_cancellation_is_heard(how: str, session: Lab, tmp_path: Path) -> None:
    """A cancelled task, a timeout around the run, and `Run.cancel` from a task, a thread or a listener stop
    it long before its end.
    """

    async def scene() -> Run:
        run = session.start(
            "go", model=spinning(), workspace=tmp_path, limits=Limits(seconds=None, **UNBOUND)
        )  # type: ignore[arg-type]
        if how == "timeout":
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await run.wait()
        elif how == "wait_for":
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(run.wait(), 0.2)
        else:
            waiting = asyncio.create_task(run.wait())
            stop = {
                "task": waiting.cancel,
                "thread": lambda: threading.Thread(target=run.cancel).start(),
            }.get(how, run.cancel)
            if how == "listener":
                run.subscribe(lambda event: run.cancel() if isinstance(event, ToolAnswered) else None)
            else:
                asyncio.get_running_loop().call_later(0.05, stop)
            with pytest.raises(asyncio.CancelledError):
                await waiting
        return run

    run = asyncio.run(scene())
    decided = how in ("cancel", "thread", "listener")
    assert (run.status is RunStatus.CANCELLED, run.report.interrupted) == (decided, not decided)
    assert looks(run) < MANY - 1


SPINS = """
import sys
sys.path[:0] = sys.argv[3:]
from test_never_suspending import UNBOUND, look, spinning
from kestrel_lab.core.errors import Fenced
from kestrel_lab.core.run_types import Limits
from kestrel_lab.lab import Lab
session = Lab(sys.argv[1], env={}, tools=[look])
print("begins", flush=True)
try:
    print(session.run_sync("go", model=spinning(), workspace=sys.argv[2], limits=Limits(seconds=None, \
**UNBOUND), verify="off").status)
except Fenced:
    print("Fenced")
"""


def test_a_run_of_another_process_is_cancelled(session: Lab, tmp_path: Path) -> None:
    """`Run.cancel` of a run that another process works on ends it in the log, and the other process stops at
    its next turn.
    """
    command = [
        sys.executable,
        "-c",
        SPINS,
        str(session.home),
        str(tmp_path),
        str(Path(__file__).parent),
        str(Path(__file__).parents[1]),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "begins\n"
        while not (rows := session.store.runs()):
            time.sleep(0.005)
        run = session.get(rows[0].id)
        run.cancel()
        assert other.stdout.read() == f"{Fenced.__name__}\n"
    assert (run.status, session.get(run.id).status) == (RunStatus.CANCELLED, RunStatus.CANCELLED)


def test_the_log_does_not_lag_behind(session: Lab, tmp_path: Path) -> None:
    """A run waits for the log where more is queued than is written in a moment: stopping it never has to wait
    for much.
    """
    most: list[int] = []
    session.change(listeners=(lambda _run, _event: most.append(session.store.backlog),))
    run = session.run_sync("go", model=spinning(), workspace=tmp_path, limits=Limits(seconds=1, **UNBOUND))  # type: ignore[arg-type]
    assert run.outcome == "limit"
    assert max(most) < 1_200


def test_everything_else_on_the_loop_goes_on(session: Lab, tmp_path: Path) -> None:
    """Somebody else's task on the same loop gets as many turns as the model has, also while snapshots are
    made.
    """

    async def scene() -> tuple[int, Any]:
        turns, done = 0, False

        async def other() -> None:
            nonlocal turns
            while not done:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        run = await session.run(
            "go", model=spinning(), workspace=tmp_path, limits=Limits(cycles=200, cost_usd=None)
        )
        done = True
        await beside
        return turns, run

    turns, run = asyncio.run(scene())
    assert (run.outcome, turns >= 200) == ("limit", True)


def test_ctrl_c_stops_run_sync_inside_a_running_loop(session: Lab, tmp_path: Path) -> None:
    """In a notebook `run_sync` holds up the loop; Ctrl-C interrupts its run, waits until that is noted, and
    is raised.
    """

    def play(request: ModelRequest) -> Turn:
        if len(request.messages) == 12:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return [("look", {})]

    async def cell() -> None:
        session.run_sync(
            "go", model=ScriptedModel(play), workspace=tmp_path, limits=Limits(seconds=None, **UNBOUND)
        )  # type: ignore[arg-type]

    loop = asyncio.new_event_loop()  # `asyncio.run` would take Ctrl-C for itself
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(cell())
    finally:
        loop.close()
    assert session.get(session.store.runs()[0].id).report.interrupted
