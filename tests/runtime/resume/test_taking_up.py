"""Snapshots of runs: kept every so many turns, when a run waits, is stopped or fails; runs are taken up from
them.
"""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import (
    CheckpointSaved,
    Event,
    ModelAnswered,
    RunFinished,
    RunStarted,
    StateTransition,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool


@tool(danger_level="safe", effect="pure")
async def look(name: str) -> str:
    """Look."""
    return f"{name} looks fine"


@tool(danger_level="safe", effect="opaque")
async def touch(name: str) -> str:
    """Look by hand: what came before is on disk when it begins."""
    return f"{name} feels fine"


@tool(danger_level="high")
async def launch() -> str:
    """Launch it."""
    return "launched"


def saved(run: Run) -> list[tuple[int, str]]:
    """The snapshots that a run's events tell of."""
    return [(event.seq, event.reason) for event in run.events() if isinstance(event, CheckpointSaved)]


def looking(turns: int, by: str = "look") -> list[Turn]:
    """So many turns with a call each."""
    return [[(by, {"name": str(number)})] for number in range(turns)]


def at_leisure(session: Lab, turns: list[Turn]) -> Callable[[ModelRequest], Turn]:
    """The same turns from a model that takes its time: all events before an answer are on disk when it
    comes.
    """

    def play(request: ModelRequest) -> Turn:
        session.store.flush()
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return play


def go(home: Path, turns: list[Turn], *, leisure: bool = False, **options: Any) -> tuple[Lab, Run]:
    """A run of these turns, in a session of its own."""
    session = Lab(
        home,
        env={},
        tools=[look, touch, launch],
        checkpoint_every=options.pop("every", 10),
        limits=Limits(cycles=60),
    )
    return session, asyncio.run(
        session.run(
            "go",
            model=ScriptedModel(at_leisure(session, turns) if leisure else turns),
            workspace=home,
            **options,
        )
    )


def test_a_snapshot_every_few_turns(tmp_path: Path) -> None:
    """Each n-th model turn leaves a snapshot and an event that tells of it; the frame lists the newest; the
    state is as without.
    """
    session, run = go(tmp_path / "a", [*looking(34), "done"], leisure=True, every=4)
    assert run.status is RunStatus.COMPLETE
    told = saved(run)
    assert [reason for _, reason in told] == ["cycles"] * 8
    places = [record.seq for record in run.records() if isinstance(record.event, CheckpointSaved)]
    turns = [record.seq for record in run.records() if isinstance(record.event, ModelAnswered)]
    assert places == [seq + 1 for seq in turns[3::4]]  # right behind the fourth, the eighth … answer
    assert all(
        seq < place for place, (seq, _) in zip(places, told, strict=True)
    )  # of what was on disk by then
    frame = session.history.checkpoints(run.id)
    assert list(zip(frame.index, frame["reason"], strict=True)) == told[:-4:-1]
    assert (frame.index.name, list(frame.columns)) == ("seq", ["reason", "bytes", "created", "run", "usable"])
    assert set(frame["usable"]) == {"yes"}
    assert session.get(run.id)._state == run._state == fold(run.records())
    with pytest.raises(UsageError, match="no run"):
        session.history.checkpoints("nowhere")
    session.close()
    _, without = go(tmp_path / "b", [*looking(34), "done"], every=None)
    assert saved(without) == []


def test_a_long_run_is_kept_less_often(tmp_path: Path) -> None:
    """Past twenty times the number of turns, snapshots come after a twentieth more turns: their cost grows as
    the run does, not as its square.
    """
    session, run = go(tmp_path, [*looking(200, by="touch"), "done"], every=2, limits=Limits(cycles=300))
    turns, kept = 0, [0]
    for event in run.events():
        turns += isinstance(event, ModelAnswered)
        if isinstance(event, CheckpointSaved):
            kept.append(turns)
    gaps = [(b, b - a) for a, b in itertools.pairwise(kept)]
    assert [gap for turn, gap in gaps if turn <= 40] == [2] * 20
    assert all(gap == max(2, turn // 20) for turn, gap in gaps)
    assert len(kept) < 60
    session.close()


def test_a_snapshot_when_a_run_waits_for_approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that nobody can be asked about leaves a snapshot of everything so far, and goes on from it."""
    session = Lab(tmp_path, env={}, tools=[look, launch])
    script = ScriptedModel([*looking(2), [("launch", {})], "up"])
    with pytest.raises(ApprovalRequired) as caught:
        asyncio.run(session.run("go", model=script, workspace=tmp_path))
    run = session.get(caught.value.run_id)
    ((seq, reason),) = saved(run)
    assert reason == "interrupt"
    assert fold(run.records()[:seq]).status is RunStatus.WAITING_APPROVAL
    folded: list[Event] = []
    fold_one = RunState.apply
    monkeypatch.setattr(
        RunState, "apply", lambda state, event, at: (folded.append(event), fold_one(state, event, at))[1]
    )
    run = asyncio.run(session.resume(run.id, model=script, approve="auto"))
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "up")
    assert not any(
        isinstance(event, RunStarted) for event in folded
    )  # whatever is in the snapshot is not folded again
    session.close()


def test_a_snapshot_before_a_run_fails(tmp_path: Path) -> None:
    """A run that fails, by an error or a limit, leaves a snapshot behind its last turn, from which a fork
    goes on.
    """
    session, run = go(tmp_path / "a", [*looking(3), RuntimeError("the model broke")])
    assert run.status is RunStatus.FAILED
    ((seq, reason),) = saved(run)
    end = next(record.seq for record in run.records() if isinstance(record.event, RunFinished))
    assert (reason, seq) == (
        "error",
        end - 2,
    )  # everything up to there; then the event that tells of it, and the end
    state = fold(run.records()[:seq])
    assert (state.status, state.usage.tool_calls) == (RunStatus.EXECUTING, 3)
    fork = asyncio.run(session.fork(run.id, at=seq, model=ScriptedModel([*looking(3), "better"])))
    assert (fork.status, fork.answer) == (RunStatus.COMPLETE, "better")
    assert session.store.state(fork.id) == fold(fork.records())
    session.close()
    session, run = go(tmp_path / "b", [*looking(9), "never"], limits=Limits(cycles=5))
    assert [reason for _, reason in saved(run)] == ["error"]
    session.close()


def test_a_snapshot_when_a_run_is_stopped(tmp_path: Path) -> None:
    """A run that is cancelled leaves one too; its last event is still its last transition."""

    async def scene(session: Lab) -> Run:
        run = session.start("go", model=ScriptedModel([*looking(3), "done"]), workspace=tmp_path)
        run.subscribe(lambda event: run.cancel() if isinstance(event, ModelAnswered) else None)
        await asyncio.gather(run.wait(), return_exceptions=True)
        return run

    session = Lab(tmp_path, env={}, tools=[look])
    run = asyncio.run(scene(session))
    assert run.status is RunStatus.CANCELLED
    assert [reason for _, reason in saved(run)] == ["interrupt"]
    assert isinstance(run.events()[-1], StateTransition)
    assert session.get(run.id)._state == run._state
    session.close()


def test_the_setting_reaches_the_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`checkpoint_every` in a settings file or the environment is what a lab's runs follow."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kestrel.toml").write_text("checkpoint_every = 2\n")
    lab = Lab(tools=[look], env={})
    # A checkpoint is left out where the disk is too slow for it, which a disk may be now and then.
    runs = (
        asyncio.run(lab.run("go", model=ScriptedModel(at_leisure(lab, [*looking(4), "done"]))))
        for _ in range(5)
    )
    assert any(len(saved(run)) == 2 for run in runs)
    lab.close()
    assert Lab(env={"KESTREL_CHECKPOINT_EVERY": "none"}).options["checkpoint_every"] is None
