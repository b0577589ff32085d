"""Steps that are carried out one at a time: nothing goes on behind one that failed, which is put right within
its budget or fails the run.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.events.union import StageFinished, StepFinished
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations import plan as planning
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import Tool


@tool(danger_level="safe", effect="pure")
def measure(what: str) -> str:
    """Measure something."""
    if what != "roof":
        raise ValueError(f"there is no {what}")
    return "7 m"


STEPS: list[dict[str, Any]] = [
    {"id": "look", "goal": "Look around."},
    {"id": "height", "tool": "measure", "args": {"what": "roff"}, "produces": ["height"]},
    {"id": "paint", "goal": "Paint it."},
    {"id": "tell", "goal": "Tell the height.", "consumes": ["height"]},
]


def proposal(steps: list[dict[str, Any]]) -> str:
    """What a planner says."""
    return json.dumps({"steps": steps, "acceptance_criteria": ["it names the height"]})


class Mind:
    """Plans, works, repairs as told."""

    def __init__(self, *repairs: Turn | Exception, steps: list[dict[str, Any]] = STEPS) -> None:
        self.asked: list[str] = []
        self.seen: list[str] = []
        self._repairs, self._steps = list(repairs), steps

    def __call__(self, request: ModelRequest) -> Turn:
        """The next turn."""
        first = next(message.text for message in request.messages if message.role == "user")
        self.asked.append(" ".join(first.split()[:2]))
        self.seen.append(first)
        if first.startswith("Make a plan"):
            return proposal(self._steps)
        if first.startswith("Put a step"):
            said = self._repairs.pop(0)
            if isinstance(said, Exception):
                raise said
            return said
        if first.startswith(("Tell", "Give")):
            return "It is 7 m high." if "7 m" in first else "Who knows?"
        return {"Look": "I saw a roof.", "Paint": "I painted it."}[first.split()[0]]


def carry_out(
    session: Lab,
    workspace: Path,
    mind: Mind,
    repairs: int,
    tools: tuple[Tool, ...] = (measure,),
    **options: Any,
) -> Run:
    """A plan one step at a time."""
    args: Any = {
        "goal": "How high is the roof?",
        "one_at_a_time": True,
        "repairs": repairs,
        "stage": "execute",
    }
    plan = Plan(steps=(Step(id="plan", operation="plan", args=args, stage="plan", produces=("answer",)),))
    return asyncio.run(
        session.run(
            "How high is the roof?",
            model=ScriptedModel(mind),
            workspace=workspace,
            plan=plan,
            tools=tools,
            **options,
        )
    )


def ended(run: Run) -> list[tuple[str, bool, bool]]:
    """How each step ended: its name, whether well, whether it was skipped."""
    return [
        (event.step, event.ok, event.skipped) for event in run.events() if isinstance(event, StepFinished)
    ]


def test_nothing_goes_on_behind_a_step_that_failed(session: Lab, workspace: Path) -> None:
    """Without a budget the run fails with the step's reason; its answer is what that step says, never what
    another step says.
    """
    mind = Mind()
    run = carry_out(session, workspace, mind, repairs=0)
    assert (run.status, run.answer) == (RunStatus.FAILED, "ValueError: there is no roff")
    assert "step 'plan/height' failed: measure: ValueError: there is no roff" in run.reason
    assert mind.asked == ["Make a", "Look around."]


def test_a_failed_step_is_put_right_and_the_plan_goes_on(session: Lab, workspace: Path) -> None:
    """An agent is told what failed and why; what it says stands for the step, and the steps behind get it."""
    mind = Mind([("measure", {"what": "roof"})], "The roof is 7 m high.")
    run = carry_out(session, workspace, mind, repairs=1)
    assert (run.status, run.answer, run.reason) == (RunStatus.COMPLETE, "It is 7 m high.", "")
    told = next(text for text in mind.seen if text.startswith("Put a step"))
    assert 'call measure with {"what":"roff"}' in told
    assert "there is no roff" in told
    names = [name for name, ok, _ in ended(run) if ok]
    assert names.index("plan/height/repair#1") < names.index("plan/paint") < names.index("plan/tell")
    rows = {
        (event.task, event.stage): event.status for event in run.events() if isinstance(event, StageFinished)
    }
    assert (rows["plan/height", "execute"], rows["plan/height/repair#1", "repair"]) == ("failed", "done")


@pytest.mark.parametrize("budget", [1, 2, 3])
def test_the_budget_of_repairs_ends(session: Lab, workspace: Path, budget: int) -> None:
    """A repair that fails is put right as well, until the budget is used up; then the run fails with the
    failed step's reason.
    """
    schema: Any = {"type": "object", "properties": {"height": {"type": "number"}}, "required": ["height"]}
    mind = Mind(*["a"] * (3 * budget))
    step = Step(
        id="height",
        tool="measure",
        args={"what": "roff"},
        stage="execute",
        repairs=budget,
        produces=("height",),
        schema=schema,
    )
    plan = Plan(steps=(step, Step(id="tell", goal="Tell the height.", consumes=("height",), stage="execute")))
    run = asyncio.run(
        session.run("x", model=ScriptedModel(mind), workspace=workspace, plan=plan, tools=(measure,))
    )
    assert (run.status, run.answer) == (RunStatus.FAILED, "a")
    assert f"step 'height/repair#{budget}' failed" in run.reason
    assert [step.id for step in run.plan.steps] == [
        "height",
        "tell",
        *(f"height/repair#{number}" for number in range(1, budget + 1)),
    ]
    assert "Tell the" not in mind.asked


def test_what_was_denied_is_not_done_by_other_means(session: Lab, workspace: Path) -> None:
    """A call that a policy denied fails the run at once: no agent looks for another way."""

    @tool(danger_level="high", effect="opaque")
    def paint(colour: str) -> str:
        """Paint the roof."""
        return colour

    mind = Mind(
        steps=[
            {"id": "paint", "tool": "paint", "args": {"colour": "red"}},
            {"id": "tell", "goal": "Tell the height."},
        ]
    )
    run = carry_out(session, workspace, mind, repairs=2, tools=(paint,), approve="deny")
    assert run.status == RunStatus.FAILED
    assert not any(asked.startswith("Put a") for asked in mind.asked)


def test_a_model_that_fails_repairs_nothing(session: Lab, workspace: Path) -> None:
    """A repair whose model fails ends the run with the model's error: another repair would fail the same
    way.
    """
    run = carry_out(session, workspace, Mind(ModelError("a bad key", caller=True)), repairs=5)
    assert run.status == RunStatus.FAILED
    assert "a bad key" in run.reason
    assert [name for name, _, _ in ended(run) if "repair" in name] == ["plan/height/repair#1"]


def failing(error: Exception | None, answer: str) -> Tool:
    """A tool that raises an error, or answers."""

    @tool(danger_level="high", effect="opaque")
    def attempt() -> str:
        """Attempt it."""
        if error is not None:
            raise error
        return answer

    return attempt


AROUND: list[dict[str, Any]] = [
    {"id": "look", "goal": "Look around."},
    {"id": "middle", "tool": "attempt", "args": {}, "produces": ["height"]},
    {"id": "tell", "goal": "Tell the height.", "consumes": ["height"]},
]


@pytest.mark.parametrize(
    "error",
    [ValueError("nothing there"), ConnectionError("refused"), TimeoutError("too slow"), OSError("no disk")],
    ids=["logic", "dependency", "transient", "system"],
)
def test_a_failed_call_of_any_kind_becomes_a_new_step(
    error: Exception, session: Lab, workspace: Path
) -> None:
    """Whatever ends a call, an agent is given what failed as a new step of the plan, and the plan goes on."""
    mind = Mind("The roof is 7 m high.", steps=AROUND)
    run = carry_out(session, workspace, mind, repairs=1, tools=(failing(error, ""),), approve="auto:critical")
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is 7 m high.")
    assert [step.id for step in run.plan.steps if step.stage == "repair"] == ["plan/middle/repair#1"]
    told = next(text for text in mind.seen if text.startswith("Put a step"))
    assert str(error) in told


@pytest.mark.parametrize("says", ["", ModelError("it broke off")], ids=["silence", "error"])
def test_an_agent_that_failed_becomes_a_new_step(
    says: str | Exception, session: Lab, workspace: Path
) -> None:
    """An agent whose model says nothing, or breaks off, is followed by another one in its place."""
    steps = [{"id": "look", "goal": "Look around."}, {"id": "tell", "goal": "Work on it."}]

    class Failing(Mind):
        def __call__(self, request: ModelRequest) -> Turn:
            first = next(message.text for message in request.messages if message.role == "user")
            if first.startswith("Work"):
                if isinstance(says, Exception):
                    raise says
                return says
            return super().__call__(request)

    run = carry_out(session, workspace, Failing("It is 7 m high.", steps=steps), repairs=1)
    assert (run.status, run.answer) == (RunStatus.COMPLETE, "It is 7 m high.")
    assert run.plan.steps[-1].id == "plan/tell/repair#1"


@pytest.mark.parametrize(
    ("policy", "says"),
    [("deny", "attempt was denied by policy"), ("auto:critical", "ValueError: nothing there")],
)
def test_a_step_that_stays_failed_answers_in_its_own_words(
    policy: str, says: str, session: Lab, workspace: Path
) -> None:
    """Where nothing may be repaired, the answer of the run is what the failed step says, which no other step
    said.
    """
    mind = Mind(steps=AROUND)
    tools = (failing(ValueError("nothing there"), ""),)
    run = carry_out(session, workspace, mind, repairs=0, tools=tools, approve=policy)
    assert run.status == RunStatus.FAILED
    assert run.answer.startswith(says)
    assert "plan/middle" in run.reason


def test_the_plan_of_a_run_has_its_criteria_and_artifacts(session: Lab, workspace: Path) -> None:
    """`run.plan` has what was proposed and made: also read from the log again, and in a plan that is carried
    out once more.
    """
    run = carry_out(session, workspace, Mind("The roof is 7 m high."), repairs=1)
    assert run.plan.acceptance_criteria == ("it names the height",)
    made = run.plan.artifacts
    assert made["height"] == "The roof is 7 m high."
    assert (made["result of look"], made["answer"]) == ("I saw a roof.", "It is 7 m high.")
    assert session.get(run).plan == run.plan
    told = Plan(
        steps=(Step(id="tell", goal="Tell the height.", produces=("word",)),), artifacts={"goal": "g"}
    )
    first = session.run_sync("g", model=ScriptedModel(["7 m"]), workspace=workspace, plan=told)
    again = session.run_sync("g", model=ScriptedModel(["8 m"]), workspace=workspace, plan=first.plan)
    assert (first.plan.artifacts, again.plan.artifacts) == (
        {"goal": "g", "word": "7 m"},
        {"goal": "g", "word": "8 m"},
    )
    assert Plan.from_json(first.plan.as_json()) == told


def test_steps_that_do_not_wait_for_each_other_would_be_seen(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that leaves the steps unchained goes on behind the failure."""
    monkeypatch.setattr(planning, "_one_at_a_time", lambda steps, _repairs: steps)
    mind = Mind()
    carry_out(session, workspace, mind, repairs=0)
    assert "Paint it." in mind.asked
