"""Workflow files: what they say, and what a reader is told who made a mistake."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.states import RunStatus
from kestrel_lab.engine.session import Session
from kestrel_lab.engine.workflow import load_plan
from kestrel_lab.engine.workflow_entries import StepEntry
from kestrel_lab.testing import ScriptedModel

PLAN = """\
kind: plan
name: report
inputs:
  language: {description: what to write in, default: English}
  words: {type: integer}
acceptance_criteria: ["at most {{words}} words"]
steps:
  - id: write
    goal: "Write about {{goal}} in {{language}}"
    produces: [text]
  - id: keep
    tool: write_file
    args: {path: out.txt, content: "{{text}}"}
    consumes: [text]
"""


def written(folder: Path, text: str, name: str = "flow.yaml") -> Path:
    """A workflow file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_plan_file_is_the_plan_it_says(tmp_path: Path) -> None:
    """Goal and inputs are put into goals and criteria, and are artifacts; references to what steps make are left for later."""
    assert load_plan(written(tmp_path, PLAN), "bees {{x}}", {"words": "40"}) == Plan(
        steps=(
            Step(id="write", goal="Write about bees {{x}} in English", produces=("text",)),
            Step(id="keep", tool="write_file", args={"path": "out.txt", "content": "{{text}}"}, consumes=("text",)),
        ),
        artifacts={"goal": "bees {{x}}", "language": "English", "words": 40},
        acceptance_criteria=("at most 40 words",),
    )


def test_a_run_follows_a_shipped_workflow_by_name(session: Session, workspace: Path) -> None:
    """`plan="react"` works with a model that only writes text."""
    run = asyncio.run(session.run("say hello", plan="react", model=ScriptedModel(["Final Answer: hello"]), workspace=workspace))
    assert (run.status, run.plan.steps) == (RunStatus.COMPLETE, (Step(id="answer", goal="say hello", react=True),))


def test_a_file_may_say_all_that_a_step_says() -> None:
    """No field of `Step` but its parent, which growth gives, is missing in files."""
    assert {field.alias or name for name, field in StepEntry.model_fields.items()} == set(Step.__dataclass_fields__) - {"parent", "given"}


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("goal: \"Write", "gaol: \"Write", "flow.yaml:9: steps[0].gaol: unknown key; did you mean 'goal'?"),
        ("{{language}}", "{{langage}}", "flow.yaml:8: steps[0]: {{langage}} is neither the goal nor a declared input; did you mean 'language'?"),
        ("id: keep", "id: 7", "flow.yaml:11: steps[1].id: must be text, not 7; put it in quotes"),
        ("consumes: [text]", "consumes: [txt]", "flow.yaml:11: steps[1]: step 'keep' refers to 'text', which it does not consume"),
        ("produces: [text]", "produces: [txt]", "flow.yaml:7: steps: step 'keep' consumes 'text', which no step produces"),
        ("type: integer", "typ: integer", "flow.yaml:5: inputs.words.typ: unknown key; did you mean 'type'?"),
        ("kind: plan\n", "", "flow.yaml:1: kind: is missing"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_place(old: str, new: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """File, line, key and the nearest spelling."""
    monkeypatch.chdir(tmp_path)
    assert old in PLAN
    written(tmp_path, PLAN.replace(old, new, 1))
    with pytest.raises(UsageError) as caught:
        load_plan("flow.yaml", "bees", {"words": 40})
    assert str(caught.value).startswith(told)


def test_inputs_are_checked(tmp_path: Path) -> None:
    """A missing input, one that is not declared, one of another type, and inputs without a workflow are refused."""
    path = written(tmp_path, PLAN)
    with pytest.raises(UsageError, match="needs the input 'words'"):
        load_plan(path, "bees")
    with pytest.raises(UsageError, match="has no input 'word'; did you mean 'words'"):
        load_plan(path, "bees", {"word": 1})
    with pytest.raises(UsageError, match="'words' must be of type integer, not 'many'"):
        load_plan(path, "bees", {"words": "many"})
    with pytest.raises(UsageError, match="must be of type integer, not True"):
        load_plan(path, "bees", {"words": True})


def test_names_that_lead_nowhere(tmp_path: Path) -> None:
    """An unknown shipped workflow is told with the nearest one, a file that is not there as a file."""
    with pytest.raises(UsageError, match="no shipped workflow 'reakt'; did you mean 'react'"):
        load_plan("reakt", "x")
    with pytest.raises(UsageError, match=r"there is no workflow file .a/b\.yaml."):
        load_plan("a/b.yaml", "x")
