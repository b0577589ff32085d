"""The example workflows under `scenarios/workflows`, each run to its end with the script beside it."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.events.union import BudgetWarned
from kestrel_lab.core.plan_shapes import all_steps
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.execution.steps import check_steps
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.run import Run
from kestrel_lab.runtime.workflows.loader import load_plan, read_workflow, shipped_workflows
from kestrel_lab.testing import ScriptedApprover, load_script

FOLDER = Path(__file__).parents[3] / "scenarios" / "workflows"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.yaml"))


def carried_out(session: Lab, workspace: Path, name: str, goal: str, **options: object) -> Run:
    """A run of an example with its script."""
    model = load_script(FOLDER / "scripts" / f"{name}.yaml")
    run = asyncio.run(
        session.run(goal, plan=FOLDER / f"{name}.yaml", model=model, workspace=workspace, **options)
    )  # type: ignore[arg-type]
    assert (run.status, run.reason) == (RunStatus.COMPLETE, "")
    return run


def done(run: Run) -> list[str]:
    """The steps of the run that were carried out, in the order of its plan."""
    return [
        step.id
        for step in run.plan.steps
        if run._state.finished_steps[step.id] and step.id not in run._state.skipped_steps
    ]


def test_a_review_loop_ends_when_the_critic_accepts(session: Lab, workspace: Path) -> None:
    """Two rounds: the second draft is written from the review of the first, and is the answer."""
    run = carried_out(session, workspace, "review_loop", "how bees tell each other where flowers are")
    assert run.answer == "A bee dances to show the others where flowers are."
    assert done(run) == ["loop", "draft#1", "review#1", "loop#1", "draft#2", "review#2", "loop#2"]
    told = run._state.conversations["draft#2"].messages[1].text
    assert "say what the dance is for" in told and "waggle runs" in told
    assert not any(isinstance(event, BudgetWarned) for event in run.events())


def test_research_in_parallel_is_joined(session: Lab, workspace: Path) -> None:
    """Three agents search at once with real tools; the fourth answers from what all of them found."""
    (workspace / "shapes.py").write_text("def area(a, b):\n    return a * b\n")
    (workspace / "test_shapes.py").write_text("assert area(2, 3) == 6\n")
    run = carried_out(session, workspace, "research", "What does area do?")
    assert run.answer.startswith("area multiplies its two sides")
    assert done(run) == ["code", "tests", "documents", "answer"]
    assert {call.tool for call in run.events() if call.type == "tool_called"} == {"grep"}


@pytest.mark.parametrize(
    ("message", "ran", "answer"),
    [
        ("I was charged twice.", ["sorted", "refund", "reply"], "You will get your money back."),
        (
            "The page crashes.",
            ["sorted", "bug", "reply"],
            "Which browser do you use, and since when does it crash?",
        ),
        ("When do you open?", ["sorted", "reply"], "We open at nine."),
    ],
)
def test_triage_takes_one_way(
    message: str, ran: list[str], answer: str, session: Lab, workspace: Path
) -> None:
    """Only the specialist for the kind of message works on it, and none if there is none; the reply is always
    written.
    """
    run = carried_out(session, workspace, "triage", message)
    assert (done(run), run.answer) == (ran, answer)


def test_a_pipeline_waits_for_a_person(session: Lab, workspace: Path) -> None:
    """The file is read, summed up, and written after one approval of exactly that call."""
    (workspace / "orders.csv").write_text("id,amount\n1,10\n2,20\n")
    person = ScriptedApprover([True])
    run = carried_out(
        session,
        workspace,
        "report_pipeline",
        "the orders",
        inputs={"source": "orders.csv"},
        approver=person,
        approve="auto:low",
    )
    assert (workspace / "report.md").read_text() == "# Orders\n\nTwo orders, 30 in all."
    assert [(asked.tool, asked.args["path"]) for asked in person.asked] == [("write_file", "report.md")]
    assert "id,amount" in run._state.conversations["report"].messages[1].text
    assert run.answer == "A heading and the sum of the orders were written."


def test_a_critique_leads_back(session: Lab, workspace: Path) -> None:
    """A cyclic graph goes back to the draft, then to the research, and ends when no edge leads on."""
    (workspace / "bees.txt").write_text("Bees dance.\nBees make honey.\n")
    run = carried_out(session, workspace, "draft_and_critique", "what bees do")
    assert run.answer == "Bees dance and make honey."
    assert [step for step in done(run) if not step.startswith("graph")] == [
        *("research#1", "draft#1", "critique#1", "draft#2", "critique#2"),
        *("research#2", "draft#3", "critique#3"),
    ]


def test_a_report_leads_to_a_better_draft(session: Lab, workspace: Path) -> None:
    """What the report names is put right by the agent, from the fixes; the answer is the draft that passed,
    never a report.
    """
    (workspace / "roof.txt").write_text("The roof is red.\n")
    run = carried_out(session, workspace, "quality_review", "What colour is the roof?")
    assert (run.answer, done(run)) == (
        "The roof is red. [roof.txt:1]",
        ["loop", "draft#1", "report#1", "loop#1", "draft#2", "report#2", "loop#2"],
    )
    before = run._state.outputs["report#1"]
    assert [(one["severity"], one["place"], one["step"]) for one in before["issues"]] == [
        ("critical", "The roof has some colour, see tower.txt.", "draft#1"),
        ("minor", "some colour", "draft#1"),
    ]
    assert before["fixes"] == {"draft#1": ["name a file that exists", "name it"]}
    assert (run.report.quality.passed, run.report.quality.issues, len(run.report.quality.frame)) == (
        True,
        [],
        0,
    )


@pytest.mark.parametrize(
    "path",
    [*(FOLDER / f"{name}.yaml" for name in EXAMPLES), *shipped_workflows().values()],
    ids=lambda path: path.stem,
)
def test_every_workflow_is_in_order(path: Path, session: Lab) -> None:
    """It has the name of its file and a description, and every tool, operation and agent that it names
    exists.
    """
    _, entry = read_workflow(path)
    assert (entry.name, bool(entry.description)) == (path.stem, True)
    inputs = {name: "x" for name, given in entry.inputs.items() if "default" not in given.written}
    plan = load_plan(path, "a goal", inputs)
    check_steps(all_steps(plan.steps), session.registry.toolbox, OPERATIONS, session.registry.resolve_model)


def test_there_are_six() -> None:
    """One for each thing that is easy to get wrong: a loop, a report, branches, ways that part, a person, a
    way back.
    """
    assert EXAMPLES == [
        "draft_and_critique",
        "quality_review",
        "report_pipeline",
        "research",
        "review_loop",
        "triage",
    ]
