"""A run says how far it is, in words and as a percentage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kestrel_lab import Lab, Limits, Plan, Step
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.runtime.review.run_progress import RunProgress
from kestrel_lab.testing import ScriptedModel, Turn


def reported(tmp_path: Path, model: ScriptedModel, **options: Any) -> list[RunProgress]:
    """Carry out a run; return each progress that a listener is told, once."""
    told: list[RunProgress] = []

    def listen(run: Any, _: object) -> None:
        progress = lab.history.progress(run)
        if not told or told[-1] != progress:
            told.append(progress)

    with Lab(tmp_path / "home", model=model, listeners=[listen]) as lab:
        run = lab.run_sync("go", workspace=tmp_path, **options)
        assert lab.history.progress(run.id) == RunProgress("complete", 100.0)
    return told


def test_a_plan_is_as_far_as_its_steps(tmp_path: Path) -> None:
    """The share of its steps that are done, with those at work; only the end is 100 %."""
    steps = (Step(id="a", goal="a"), Step(id="b", goal="b", depends_on=("a",)))
    told = reported(tmp_path, ScriptedModel(lambda _: "done"), plan=Plan(steps=steps))
    assert RunProgress("0 of 2 steps done, at work on: a", 0.0) in told
    assert RunProgress("1 of 2 steps done, at work on: b", 50.0) in told
    assert [one.percentage for one in told] == sorted(one.percentage for one in told)
    assert told[-1] == RunProgress("complete", 100.0)
    assert all(one.percentage <= 99 for one in told[:-1])


@pytest.mark.parametrize(("cycles", "second"), [(4, 50.0), (2, 99.0)])
def test_an_agent_is_as_far_as_its_turns(tmp_path: Path, cycles: int, second: float) -> None:
    """The share of the turns that it may take, below 100 % until it ends."""

    def turn(request: ModelRequest) -> Turn:
        calls = [("glob", {"pattern": "*"})]
        return "done" if any(message.role == "tool" for message in request.messages) else calls

    told = reported(tmp_path, ScriptedModel(turn), limits=Limits(cycles=cycles))
    assert RunProgress(f"turn 1 of at most {cycles}", 100.0 / cycles) in told
    assert RunProgress(f"turn 2 of at most {cycles}", second) in told


def test_without_a_limit_only_the_turns_are_told(tmp_path: Path) -> None:
    """Nothing is made up where no total is known."""
    told = reported(tmp_path, ScriptedModel(["done"]), limits=Limits(cycles=None))
    assert RunProgress("turn 1", 0.0) in told
