"""Forms of answers: a contract that is told, looked at and repaired, and the form that fits what a goal asks
for.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from reference import put_prefix

from kestrel_lab.answers.contracts import CONTRACTS, Contract
from kestrel_lab.answers.intent import IntentGuess, decide_intent
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import (
    ModelAnswered,
    ModelCalled,
    RunFinished,
    StepStarted,
    VerifierFinished,
)
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.protocols import Claim
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations.verifiers import Formed
from kestrel_lab.runtime.operations.verify_plan import with_verification
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn

LONG = "It stands there, as anybody can see who looks at it with care. " * 20
BRIEF = "It stands in `a.py`, line 1."
PLAN = "## Goal\nLess.\n\n## Steps\n1. Edit `a.py`.\n\n## Checks\n`python a.py`\n\n## Risks\nNone known."
UNSURE = "bananas and {{oranges}}"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with one module."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("print(1)\n")
    return folder


def says(bad: str, good: str, second: str = "", seen: list[ModelRequest] | None = None) -> ScriptedModel:
    """First answers badly; when told what is wrong, well; gives a second opinion when asked for one."""

    def turn(request: ModelRequest) -> Turn:
        if seen is not None:
            seen.append(request)
        goal = next(message.text for message in request.messages if message.role == "user")
        if goal.startswith("What does this goal ask"):
            return second
        return good if goal.startswith("Put an answer") else bad

    return ScriptedModel(turn)


def carry_out(session: Lab, workspace: Path, goal: str, model: ScriptedModel, **options: Any) -> Run:
    """A run to its end."""
    return asyncio.run(session.run(goal, model=model, workspace=workspace, **options))


def steps(run: Run) -> list[str]:
    """Steps in the order they were begun."""
    return [event.step for event in run.events() if isinstance(event, StepStarted)]


def test_a_form_is_told_looked_at_and_repaired(session: Lab, workspace: Path) -> None:
    """The contract stands in the system message of who answers and of who repairs; what breaks it is an
    issue; no model judges.
    """
    seen: list[ModelRequest] = []
    run = carry_out(session, workspace, "where", says(LONG, BRIEF, seen=seen), form="brief")
    assert (run.status, run.answer) == (RunStatus.COMPLETE, BRIEF)
    assert steps(run) == ["answer", "verify", "verify/repair#1", "verify#2"]
    verdicts = [event for event in run.events() if isinstance(event, VerifierFinished)]
    assert [(event.verifier, event.passed) for event in verdicts] == [("form", False), ("form", True)]
    assert verdicts[0].issues[0].startswith("form 'brief': the answer has 260 words, at most 150 are allowed")
    assert ["Form of the answer: the answer itself" in request.messages[0].text for request in seen] == [
        True,
        True,
    ]
    assert len(seen) == 2


def test_a_form_that_is_never_kept_is_reported(session: Lab, workspace: Path) -> None:
    """After two repairs the answer is given, and what is wrong with its form stands beside it: a broken form
    fails nothing.
    """
    run = carry_out(session, workspace, "plan it", says(LONG, LONG), form="plan")
    assert (run.status, run.answer.strip()) == (RunStatus.COMPLETE, LONG.strip())
    assert [event.passed for event in run.events() if isinstance(event, VerifierFinished)] == [
        False,
        False,
        False,
    ]
    (end,) = [event for event in run.events() if isinstance(event, RunFinished)]
    assert [(one["severity"], one["check"], one["what"]) for one in end.concerns] == [
        ("minor", "form", "form 'plan': the answer lacks the sections ## Goal, ## Steps, ## Checks, ## Risks")
    ]
    assert "the answer lacks the sections" in repr(run.report)


def test_a_wrong_fact_fails_also_where_the_form_is_broken(session: Lab, workspace: Path) -> None:
    """What is wrong with the answer itself refuses it, and the form is named as well."""
    run = carry_out(
        session,
        workspace,
        "where",
        says(LONG, f"{LONG} See `src.py:1`, and `a.py:77`."),
        form="brief",
        verify="repair",
    )
    assert (run.status, run.outcome) == (RunStatus.FAILED, "unmet")
    assert "form 'brief'" in run.reason
    assert "a.py:77 is not there" in run.reason


@pytest.mark.parametrize(
    "goal",
    [
        "Make a plan",
        "How can a.py print less? Make a plan.",
        "Wie druckt a.py weniger? Mach einen Plan.",
        "a.py はどうすれば短くなりますか。計画を立ててください。",
    ],
)
def test_a_goal_that_asks_for_a_plan_gets_the_form_of_one(session: Lab, workspace: Path, goal: str) -> None:
    """In any language, and where the goal is a question, too: the model that is there says what it wants."""
    run = carry_out(session, workspace, goal, says(LONG, PLAN, "plan"), form="auto")
    output = run._state.outputs["intake"]
    assert isinstance(output, dict)
    assert (output["intent"], output["form"], output["by"], run.status, run.answer) == (
        "plan",
        "plan",
        "model",
        RunStatus.COMPLETE,
        PLAN,
    )


def test_with_a_level_facts_and_judges_look_too(session: Lab, workspace: Path) -> None:
    """`verify` says what is looked at beside the form, and both are carried into later rounds."""
    run = carry_out(session, workspace, "where", says(LONG, BRIEF), form="brief", verify="repair")
    names = [event.verifier for event in run.events() if isinstance(event, VerifierFinished)]
    assert (run.status, names) == (RunStatus.COMPLETE, ["form", "facts", "form", "facts"])


def test_a_plan_that_verifies_gets_the_form(session: Lab, workspace: Path) -> None:
    """The last verification of a plan asks for the form too, and who makes the answer is told; a form of its
    own stays.
    """
    check = Step(
        id="check", operation="verify", args={"answer": "{{draft}}", "judge": False}, consumes=("draft",)
    )
    todo = Plan(steps=(Step(id="write", goal="write", produces=("draft",)), check))
    found = with_verification(todo, "g", "warn", "plan")
    assert found is not None
    assert [(step.id, step.args.get("form"), "numbered" in step.instructions) for step in found.steps] == [
        ("write", None, True),
        ("check", "plan", False),
    ]
    assert with_verification(found, "g", "warn", "brief") == found
    assert carry_out(session, workspace, "g", says(LONG, PLAN), plan=todo, form="plan").answer == PLAN


@pytest.mark.parametrize(
    ("goal", "second", "asked", "form", "by"),
    [
        ("Where is the limit defined?", "Explanation.", 1, "explanation", "model"),
        ("Where is the limit defined?", "no idea", 1, "brief", "rules"),
        (UNSURE, "Explanation.", 1, "explanation", "model"),
        (UNSURE, "either a question or an edit", 1, "brief", "rules"),
        (UNSURE, "bananas", 1, "brief", "rules"),
        (UNSURE, "", 1, "brief", "rules"),
    ],
)
def test_auto_finds_the_form(
    session: Lab, workspace: Path, goal: str, second: str, asked: int, form: str, by: str
) -> None:
    """The model is asked once, without chance or tools; where it says no clear word, rules decide."""
    seen: list[ModelRequest] = []
    answer = "I do not know."
    run = carry_out(session, workspace, goal, says(answer, answer, second, seen), form="auto")
    opinions = [request for request in seen if request.messages[1].text.startswith("What does this goal")]
    assert [(request.temperature, request.tools) for request in opinions] == [(0.0, ())] * asked
    output = run._state.outputs["intake"]
    assert isinstance(output, dict)
    assert (output["form"], output["by"], run.status, run.answer) == (form, by, RunStatus.COMPLETE, answer)
    assert steps(run) == ["intake", "intake/work", "intake/check"]
    work = next(step for step in run.plan.steps if step.id == "intake/work")
    assert (work.goal, work.instructions.startswith("Form of the answer: ")) == (goal, True)


def test_any_prefix_is_completed(session: Lab, workspace: Path, tmp_path: Path) -> None:
    """Cut after any event and resumed, a run with a second opinion and a repair ends the same; no question is
    asked twice.
    """

    def counted(run: Run) -> list[str]:
        return sorted(event.step for event in run.events() if isinstance(event, ModelAnswered))

    reference = carry_out(session, workspace, UNSURE, says(LONG, BRIEF, "question"), form="auto")
    records, plan = reference.records(), sorted(step.id for step in reference.plan.steps)
    assert (reference.answer, len(plan)) == (BRIEF, 5)
    other = Lab(tmp_path / "other", env={})
    for cut in range(1, len(records)):
        run = asyncio.run(other.resume(put_prefix(other, records, cut), model=says(LONG, BRIEF, "question")))
        assert (cut, run.status, run.answer) == (cut, RunStatus.COMPLETE, BRIEF)
        assert (cut, sorted(step.id for step in run.plan.steps), counted(run)) == (
            cut,
            plan,
            counted(reference),
        )
    other.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"form": "breif"}, "there is no answer form 'breif'; did you mean 'brief'"),
        (
            {"form": "auto", "plan": Plan.single("g")},
            "'auto' is for runs without a plan of their own; name the form instead: brief, plan",
        ),
        (
            {"form": "brief", "plan": Plan(steps=(Step(id="a", goal="a"), Step(id="b", goal="b")))},
            "ends in several steps",
        ),
    ],
)
def test_wrong_forms_are_told_at_once(
    session: Lab, workspace: Path, options: dict[str, Any], problem: str
) -> None:
    """Before the run begins, with the nearest name."""
    with pytest.raises(UsageError, match=problem):
        carry_out(session, workspace, "g", says(BRIEF, BRIEF), **options)


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ({"form": "auto"}, "there is no answer form 'auto'"),
        ({"facts": 1}, "facts of the operation 'verify' must be true or false, not 1"),
        ({"facts": False, "judge": False}, "has nothing to check"),
    ],
)
def test_wrong_arguments_of_verify_are_told(
    session: Lab, workspace: Path, args: dict[str, Any], problem: str
) -> None:
    """They fail the step with what would be right."""
    check = Step(id="check", operation="verify", args={"answer": "{{draft}}", **args}, consumes=("draft",))
    todo = Plan(steps=(Step(id="write", goal="write", produces=("draft",)), check))
    run = carry_out(session, workspace, "g", says(BRIEF, BRIEF), plan=todo)
    assert (run.status, problem in run.reason) == (RunStatus.FAILED, True), run.reason


def test_without_a_form_nothing_changes(tmp_path: Path, workspace: Path) -> None:
    """By default one agent is asked once, as if there were no forms; a session's own form can be lifted, and
    `auto` spares plans.
    """
    session = Lab(tmp_path / "home", env={}, form="auto")
    seen: list[ModelRequest] = []
    run = carry_out(session, workspace, "where", says(LONG, BRIEF, seen=seen), form="none")
    assert (run.answer, len(seen), "Form of the answer" in seen[0].messages[0].text) == (
        LONG.strip(),
        1,
        False,
    )
    assert [event.call for event in run.events() if isinstance(event, ModelCalled)] == ["answer.m1"]
    assert steps(carry_out(session, workspace, "where", says(LONG, BRIEF), plan=Plan.single("where"))) == [
        "answer"
    ]
    session.close()


def test_a_contract_that_passes_everything_would_be_seen(workspace: Path) -> None:
    """The deliberate bug: a check that finds nothing passes an answer that the real one refuses."""
    real = CONTRACTS["brief"]
    mutant = replace(real, check=lambda *_: iter(()))

    def passes(contract: Contract) -> bool:
        return asyncio.run(Formed(contract, workspace)(Claim(goal="g", answer=LONG, criteria=("c",)))).passed

    assert (passes(mutant), passes(real)) == (True, False)


def test_an_intake_that_ignores_the_model_would_be_seen() -> None:
    """The deliberate bug: rules alone take a goal for something else than the model that decides."""

    async def second(_: str) -> str:
        return "Explanation."

    assert asyncio.run(decide_intent(UNSURE)).intent == "question"
    assert asyncio.run(decide_intent(UNSURE, second)) == IntentGuess(
        intent="explanation", share=1.0, by="model"
    )
