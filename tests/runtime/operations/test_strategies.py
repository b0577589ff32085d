"""The shipped plans `pev` and `tree_of_thoughts`: whole runs by name, and after a crash at any event."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from reference import put_prefix

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    BranchScored,
    ModelAnswered,
    StepStarted,
    ToolCalled,
    VerifierFinished,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool


def tools(effect: Callable[[str], None]) -> list[Tool]:
    """One with an effect that must happen once, and one that scores."""

    @tool(effect="idempotent")
    def build(what: str) -> str:
        """Build something."""
        effect(what)
        return f"built {what}"

    @tool(danger_level="safe", effect="pure")
    def worth(where: list[str]) -> dict[str, Any]:
        """Score a way: the first one that looks good is not."""
        score = {"hill": 0.9, "river": 0.5, "hill cliff": 0.05, "river bridge": 1.0}.get(" ".join(where), 0.2)
        return {"score": score, "done": score == 1}

    return [build, worth]


def says(request: ModelRequest) -> Turn:
    """Plans two steps, builds a house without a roof, judges by what was built, and adds the roof when
    told.
    """
    text = next(message.text for message in request.messages if message.role == "user")
    played = sum(message.role == "assistant" for message in request.messages)
    if text.startswith("Make a plan"):
        steps = [
            {"id": "walls", "goal": "build walls", "produces": ["walls"]},
            {"id": "report", "goal": "report it", "consumes": ["walls"]},
        ]
        return json.dumps({"steps": steps, "acceptance_criteria": ["there are walls", "there is a roof"]})
    if text.startswith("Judge an answer"):
        calls = {what: call for call, what in re.findall(r"'call (\S+) of build' \w+ ---\nbuilt (\w+)", text)}
        judged = [
            {
                "criterion": number,
                "met": what in calls,
                "why": f"{what} built: {what in calls}",
                "evidence": [calls[what]] if what in calls else [],
            }
            for number, what in enumerate(("walls", "roof"), 1)
        ]
        return json.dumps({"criteria": judged, "confidence": 1})
    if text.startswith("Put an answer"):
        return (
            "a house with walls and a roof"
            if played
            else [("build", {"what": "roof" if "roof built: False" in text else "moat"})]
        )
    if text.startswith("Think of ways"):
        path = re.findall(r"--- begin artifact 'thought \d+' \w+ ---\n(.*?)\n---", text)
        return json.dumps(
            {"candidates": {"": ["hill", "river"], "hill": ["cliff"], "river": ["bridge"]}[" ".join(path)]}
        )
    if "walls" in text.split("\n")[0]:
        return "walls stand" if played else [("build", {"what": "walls"})]
    return "over the bridge" if "\nriver\nbridge\n" in text else "a house"


def carry_out(session: Lab, workspace: Path, plan: str, effects: list[str], **inputs: Any) -> Run:
    """A run of a shipped plan."""
    limits = Limits(cycles=60)
    work = session.run(
        "a house",
        plan=plan,
        inputs=inputs,
        model=ScriptedModel(says),
        tools=tools(effects.append),
        workspace=workspace,
        limits=limits,
    )
    return asyncio.run(work)


def test_pev_plans_executes_verifies_and_refines(session: Lab, workspace: Path) -> None:
    """What the criteria miss is repaired, once, and the repaired answer is the run's."""
    effects: list[str] = []
    run = carry_out(session, workspace, "pev", effects)
    assert (run.status, run.answer, effects) == (
        RunStatus.COMPLETE,
        "a house with walls and a roof",
        ["walls", "roof"],
    )
    assert [event.step for event in run.events() if isinstance(event, StepStarted)] == [
        *("plan", "plan/walls", "plan/report", "verify", "verify/repair#1", "verify#2")
    ]
    verdicts = [
        event.issues
        for event in run.events()
        if isinstance(event, VerifierFinished) and event.verifier == "model"
    ]
    assert verdicts == [["not met: there is a roof: roof built: False"], []]


def test_pev_stops_at_its_limit(session: Lab, workspace: Path) -> None:
    """With no repair left the run fails and says which criterion is not met."""
    run = carry_out(session, workspace, "pev", [], rounds=0)
    assert (run.status, run.outcome) == (RunStatus.FAILED, "unmet")
    assert run.reason == (
        "step 'verify' failed: the answer does not meet its criteria after 0 repairs: not met: there "
        "is a roof: roof built: False"
    )
    run = carry_out(session, workspace, "pev", [], criteria=["it floats"], rounds=1)
    assert (
        "could not be used after 3 attempts: there are 3 criteria, each must be judged exactly once: check 3"
        in run.reason
    )


def test_a_tree_of_thoughts_goes_back_for_a_better_way(session: Lab, workspace: Path) -> None:
    """The way that looked best ends at a cliff; the other one is found, and an agent is given it."""
    run = carry_out(
        session, workspace, "tree_of_thoughts", [], score={"tool": "worth", "path": "where"}, enough=1
    )
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "over the bridge")
    frame = run.report.thoughts()
    assert frame.to_dict("list") == {
        "candidate": ["search/c1", "search/c2", "search/c3", "search/c4"],
        "parent": ["", "", "search/c1", "search/c2"],
        "depth": [1, 1, 2, 2],
        "score": [0.9, 0.5, 0.05, 1.0],
        "text": ["hill", "river", "cliff", "bridge"],
        "chosen": [False, True, False, True],
    }


@pytest.mark.parametrize(
    ("plan", "args", "answer"),
    [
        ("pev", "{}", "a house with walls and a roof"),
        ("tree_of_thoughts", "{score: {tool: worth, path: where}, enough: 1}", "over the bridge"),
    ],
)
def test_a_strategy_is_a_node_of_a_workflow(
    session: Lab, workspace: Path, tmp_path: Path, plan: str, args: str, answer: str
) -> None:
    """What it grows belongs to it, criteria and scores are found, and the step after it is given its
    answer.
    """
    path = tmp_path / "flow.yaml"
    path.write_text(
        f"kind: sequential\nsteps:\n  - {{id: house, workflow: {plan}, args: {args}}}\n  - {{id: tell, "
        f"goal: tell it}}\n"
    )

    def tells(request: ModelRequest) -> Turn:
        text = next(message.text for message in request.messages if message.role == "user")
        return f"told {answer in text}" if text.startswith("tell it") else says(request)

    work = session.run(
        "a house",
        plan=path,
        model=ScriptedModel(tells),
        tools=tools([].append),
        workspace=workspace,
        limits=Limits(cycles=60),
    )
    run = asyncio.run(work)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "told True"), run.reason
    assert {step.scope for step in run.plan.steps if step.parent} == {"house"}


def test_inputs_are_checked(session: Lab, workspace: Path) -> None:
    """An input that a shipped plan does not have is named with the nearest one."""
    with pytest.raises(UsageError, match=r"has no input 'bream'; did you mean 'beam'\?"):
        carry_out(session, workspace, "tree_of_thoughts", [], bream=2)


@pytest.mark.parametrize(
    ("plan", "inputs"),
    [("pev", {}), ("tree_of_thoughts", {"score": {"tool": "worth", "path": "where"}, "enough": 1})],
)
def test_any_prefix_is_completed(
    session: Lab, workspace: Path, tmp_path: Path, plan: str, inputs: dict[str, Any]
) -> None:
    """Cut after any event and resumed, a strategy ends alike: same answer, same steps, same scores, no model
    asked and no effect had twice.
    """
    effects: list[str] = []
    whole = carry_out(session, workspace, plan, effects, **inputs)
    records = whole.records()
    again: list[str] = []
    other = Lab(tmp_path / "other", env={}, tools=tools(again.append))
    for cut in range(1, len(records)):
        again.clear()
        run = asyncio.run(other.resume(put_prefix(other, records, cut), model=ScriptedModel(says)))
        assert (cut, run.status, run.answer, told(run)) == (
            cut,
            RunStatus.COMPLETE,
            whole.answer,
            told(whole),
        )
        before = [record.event for record in records[:cut]]
        begun = {
            event.args["what"] for event in before if isinstance(event, ToolCalled) and event.tool == "build"
        }
        answered = {event.call for event in before if event.type == "tool_answered"}
        unknown = {
            event.args["what"]
            for event in before
            if isinstance(event, ToolCalled) and event.call not in answered and event.tool == "build"
        }
        assert (cut, sorted(again)) == (cut, sorted(unknown | (set(effects) - begun)))
    other.close()


def told(run: Run) -> tuple[list[str], Counter[str], dict[str, float]]:
    """The steps of a run, how often a model answered in each, and the scores."""
    events = run.events()
    return (
        sorted(step.id for step in run.plan.steps),
        Counter(event.step for event in events if isinstance(event, ModelAnswered)),
        {event.candidate: event.score for event in events if isinstance(event, BranchScored)},
    )
