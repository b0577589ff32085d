"""Runs as ATIF trajectories: valid by the published models, the same again after an import, and honest about what is
not known.
"""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest
from atif import Trajectory

from kestrel_lab import Lab
from kestrel_lab.core.events.union import (
    Event,
    ModelAnswered,
    Prompted,
    Record,
    RunFinished,
    RunStarted,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kestrel_lab.telemetry.atif import difference, patched, trajectory_of, write_trajectory
from kestrel_lab.testing import ScriptedModel

START = RunStarted(goal="Sum", workspace="/w", model="m", system="Be brief.", tools=[{"name": "add"}])
STEP = StepStarted(step="s", goal="Sum")


def answered(call: str, step: str = "s", *, calls: tuple[str, ...] = (), **more: Any) -> ModelAnswered:
    """An answer that asks for these calls of the tool `add`."""
    asked: list[Any] = [{"id": one, "name": "add", "args": {"x": 1}} for one in calls]
    return ModelAnswered(call=call, step=step, model="m", text=f"text {call}", calls=asked, **more)


def trajectory(*events: Event) -> dict[str, Any]:
    """The trajectory of a run of these events, one a second; checked by the published models."""
    records = [
        Record(run_id="r", seq=n, eid=str(n), at=float(n) + 0.25, event=event)
        for n, event in enumerate(events, 1)
    ]
    found = trajectory_of("r", records)
    Trajectory.model_validate(found)
    return found


def exported(lab: Lab, run: str, path: Path) -> dict[str, Any]:
    """A run of the log as ATIF, checked by the published models."""
    lab.evals.export_atif(run, path)
    found: dict[str, Any] = json.loads(path.read_text())
    Trajectory.model_validate(found)
    return found


def imported(lab: Lab, path: Path) -> str:
    """The run that a file becomes; nothing in it is broken."""
    found = lab.evals.import_runs_sync(path)
    assert found.broken == ()
    return found.runs[0]


def test_a_run_is_a_trajectory(tmp_path: Path) -> None:
    """What was asked, said, called and answered, with tokens; imported it has the same actions, and exported again
    it is the same file. A fork of it goes on from there.
    """
    model = ScriptedModel(
        [[("bash", {"command": "echo 7 > seven.txt"}), ("glob", {"pattern": "*"})], "Done."]
    )
    (tmp_path / "work").mkdir()

    async def work() -> tuple[dict[str, Any], dict[str, Any]]:
        async with Lab(model=model, home=tmp_path / "home", env={}) as lab:
            ours = await lab.start("Write 7", workspace=tmp_path / "work", approve="auto").wait()
            first = exported(lab, ours.id, tmp_path / "a.json")
            known = (await lab.evals.import_runs(tmp_path / "a.json")).runs[0]
            again = lab.get(known)
            assert [str(one) for one in again.report.actions] == [str(one) for one in ours.report.actions]
            assert (again.answer, again.usage.tokens_in) == (ours.answer, ours.usage.tokens_in)
            return first, exported(lab, known, tmp_path / "b.json")

    first, second = asyncio.run(work())
    assert first == second
    agent = [step for step in first["steps"] if step["source"] == "agent"]
    assert [call["function_name"] for call in agent[0]["tool_calls"]] == ["bash", "glob"]
    assert (
        agent[0]["tool_calls"][1]["extra"] == {"effect": "pure"} and "extra" not in agent[0]["tool_calls"][0]
    )
    assert agent[0]["metrics"] == {"prompt_tokens": 20, "completion_tokens": 5, "cost_usd": 0.0}
    assert first["final_metrics"]["total_prompt_tokens"] == 40 and first["extra"] == {"outcome": "complete"}


def test_sub_agents_and_steps_of_a_plan_are_trajectories_inside() -> None:
    """The call that delegated refers to the sub-agent's; of a plan, each step that asked a model is one."""
    sub = StepStarted(step="s.sub", goal="Count", parent="s", call="s.1.1")
    delegate = answered("s.m1", calls=("s.1.1",))
    told = ToolAnswered(call="s.1.1", step="s", tool="add", text="1")
    found = trajectory(START, STEP, delegate, sub, answered("x", "s.sub"), told, answered("s.m2"))
    (result,) = found["steps"][2]["observation"]["results"]
    assert result["subagent_trajectory_ref"] == [{"trajectory_id": "r/s.sub"}] and result["content"] == "1"
    (inner,) = found["subagent_trajectories"]
    assert [step["message"] for step in inner["steps"]] == ["Be brief.", "Count", "text x"]
    planned = trajectory(
        START,
        STEP,
        answered("s.m1"),
        StepStarted(step="t"),
        ToolCalled(call="t.1", step="t", tool="add", args={"x": 1}),
        ToolAnswered(call="t.1", step="t", tool="add", text="2"),
        RunFinished(outcome="complete", answer="2"),
    )
    assert [step["message"] for step in planned["steps"]] == ["Sum", "step s", "", "2"]
    assert planned["steps"][2]["observation"]["results"][0]["content"] == "2"


def test_what_is_not_known_is_left_out() -> None:
    """Tokens and a price that nobody counted have no number and no sum; a failed call says why."""
    error = {"kind": "failed", "message": "no", "transient": False}
    found = trajectory(
        START,
        STEP,
        answered("a", calls=("1",), metered=False),
        ToolAnswered(call="1", step="s", tool="add", text="", error=error),
        answered("b", tokens_in=3, tokens_out=2, cost_usd=0.5),
    )
    first, last = found["steps"][2], found["steps"][3]
    assert "metrics" not in first and last["metrics"]["cost_usd"] == 0.5
    assert found["final_metrics"] == {"total_steps": 4}
    assert first["observation"]["results"][0]["extra"]["error"] == error


def _random_run(dice: random.Random) -> list[Event]:
    """The events of a run that may have been."""
    events: list[Event] = [START, STEP]
    steps = ["s"]
    for turn in range(dice.randrange(1, 6)):
        step = dice.choice(steps)
        calls = tuple(f"{step}.{turn}.{n}" for n in range(dice.randrange(3)))
        events.append(
            answered(
                f"m{turn}",
                step,
                calls=calls,
                metered=dice.random() < 0.7,
                tokens_in=dice.randrange(9),
                tokens_cached=dice.randrange(2),
                tokens_reasoning=dice.randrange(2),
                cost_usd=dice.choice([None, 0.1]),
                thinking=[{"text": "hm"}] if dice.random() < 0.3 else [],
            )
        )
        for call in calls:
            if dice.random() < 0.2:
                steps.append(f"sub{turn}")
                events += [
                    StepStarted(step=steps[-1], goal="Part", parent=step, call=call),
                    answered(f"x{turn}", steps[-1]),
                ]
            effect = dice.choice(["pure", "opaque"])
            error = {"kind": "failed", "message": "no", "transient": False} if dice.random() < 0.3 else None
            changed = ["a.py"] if dice.random() < 0.2 else []
            events += [
                ToolCalled(call=call, step=step, tool="add", args={"x": turn}, effect=effect),
                ToolAnswered(
                    call=call,
                    step=step,
                    tool="add",
                    text=dice.choice(["", "é\n"]),
                    error=error,
                    changed=changed,
                ),
            ]
        if dice.random() < 0.3:
            events.append(Prompted(step=step, text="And then?"))
    return [*events, RunFinished(outcome=dice.choice(["complete", "error"]), answer="x", reason="why")]


def test_every_run_comes_back(tmp_path: Path) -> None:
    """Random runs, with sub-agents, failures and unknown numbers: exported, imported and exported again they are the
    same file, and the calls and results are carried by the events themselves.
    """
    lab = Lab(home=tmp_path / "home", env={})
    for seed in range(20):
        records = [
            Record(run_id="r", seq=n, eid=str(n), at=1e9 + n / 7, event=event)
            for n, event in enumerate(_random_run(random.Random(seed)), 1)
        ]
        first = tmp_path / f"{seed}.json"
        write_trajectory("r", records, first)
        run = imported(lab, first)
        assert exported(lab, run, tmp_path / "again.json") == json.loads(first.read_text())
        document = json.loads(first.read_text())
        called = [call for step in document["steps"] for call in step.get("tool_calls") or ()]
        events = lab.get(run).events()
        made = [event for event in events if isinstance(event, ToolCalled)]
        assert [(call["function_name"], call["arguments"]) for call in called] == [
            (one.tool, one.args) for one in made
        ]
        assert [one.effect for one in made] == [
            (call.get("extra") or {"effect": "opaque"})["effect"] for call in called
        ]
        texts = [
            one.get("content", "")
            for step in document["steps"]
            for one in (step.get("observation") or {"results": []})["results"]
        ]
        told = [event for event in events if isinstance(event, ToolAnswered)]
        assert len(told) == len(texts)
        assert all(
            one.text == (text or ("no" if one.error else "")) for one, text in zip(told, texts, strict=True)
        )


@pytest.mark.parametrize("times", [True, False])
def test_every_file_comes_back(tmp_path: Path, times: bool) -> None:
    """A file with what runs have no place for (log probabilities, images, notes, a sub-agent) is the same file again;
    its sub-agent is a run of its own. Without times, none are made up.
    """
    given: dict[str, Any] = {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "helper", "version": "2", "extra": {"a": [1, 2.5, None]}},
        "notes": "n",
        "steps": [
            {
                "step_id": 1,
                "source": "user",
                "message": "Go",
                **({"timestamp": "2026-11-01T10:00:00Z"} if times else {}),
            },
            {
                "step_id": 2,
                "source": "agent",
                "message": [{"type": "image", "source": {"media_type": "image/png", "path": "a.png"}}],
                "tool_calls": [{"tool_call_id": "1", "function_name": "act", "arguments": {}}],
                "observation": {"results": [{"content": "ok"}]},
                "metrics": {"logprobs": [-0.5], "prompt_tokens": 3, "completion_tokens": 1},
                "reasoning_effort": "high",
            },
            {"step_id": 3, "source": "system", "message": "shortened", "observation": {"results": []}},
            {"step_id": 4, "source": "agent", "message": "Done", "is_copied_context": False},
        ],
        "subagent_trajectories": [
            {
                "schema_version": "ATIF-v1.8",
                "trajectory_id": "sub",
                "agent": {"name": "helper", "version": "2"},
                "steps": [{"step_id": 1, "source": "user", "message": "Count"}],
            }
        ],
    }
    path = tmp_path / "t.json"
    path.write_text(json.dumps(given))
    lab = Lab(home=tmp_path / "home", env={})
    found = lab.evals.import_runs_sync(path)
    assert (len(found.runs), found.broken) == (2, ())
    assert exported(lab, found.runs[0], tmp_path / "again.json") == given
    assert lab.get(found.runs[1]).goal == "Count"
    timed = lab.get(found.runs[0]).events()[0].imported["times"]  # type: ignore[union-attr]
    assert timed == ("each" if times else "unknown")


def test_a_difference_makes_one_value_of_the_other() -> None:
    """Of any two JSON values, whatever their types."""
    dice = random.Random(3)

    def value(depth: int = 0) -> Any:
        match dice.randrange(4 if depth < 3 else 2):
            case 0:
                return dice.choice([None, True, 0, 1, 1.0, "", "a"])
            case 1:
                return dice.choice([{}, [], "x"])
            case 2:
                return [value(depth + 1) for _ in range(dice.randrange(4))]
            case _:
                return {dice.choice("abis"): value(depth + 1) for _ in range(dice.randrange(4))}

    for _ in range(2_000):
        ours, theirs = value(), value()
        change = json.loads(json.dumps(difference(ours, theirs)))
        assert json.dumps(ours if change is None else patched(ours, change), sort_keys=True) == json.dumps(
            theirs, sort_keys=True
        )
