"""A judge of an edit sees the files as they are after it, and its verdict is read leniently at the first
answer.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.plan import Plan, Step
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations import verify as verifying
from kestrel_lab.runtime.review import evidence_table
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn

OLD = "import math\n\n\ndef area(r):\n    return 3 * r * r\n"
NEW = "def area(r):\n    return math.pi * r * r\n"
LONG = "".join(f"# line {number} of a long module, as there are many\n" for number in range(400))


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A module that is edited."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "circle.py").write_text(OLD)
    return folder


def carry_out(session: Lab, workspace: Path, says: Any, operation: str, **args: Any) -> Run:
    """An edit and its judgement."""
    plan = Plan(
        steps=(
            Step(id="write", goal="write it", produces=("draft",)),
            Step(id="check", operation=operation, args={"answer": "{{draft}}", **args}, consumes=("draft",)),
        )
    )
    return asyncio.run(
        session.run("use pi", model=ScriptedModel(says), workspace=workspace, plan=plan, approve="auto")
    )


def editor(old: str, new: str, answer: str, judged: str, seen: list[str]) -> Any:
    """Reads the module, edits it, answers; as a judge it says `judged`."""
    turns: list[Turn] = [
        [("read_file", {"path": "circle.py"})],
        [("edit_file", {"path": "circle.py", "old": old, "new": new})],
        answer,
    ]

    def says(request: ModelRequest) -> Turn:
        first = next(message.text for message in request.messages if message.role == "user")
        if first.startswith(("Judge", "Report")):
            seen.append(first)
            return judged
        return turns[sum(message.role == "assistant" for message in request.messages)]

    return says


def part_of(shown: str) -> str:
    """What a judge is shown of the module as it is now, between the marks around it."""
    found = re.search(
        r"span circle\.py(?:'| of the file)(.*?)span circle\.py(?:'| of the file)", shown, re.DOTALL
    )
    return found[1] if found else ""


PASSES = json.dumps(
    {"criteria": [{"criterion": 1, "met": True, "why": "w", "evidence": ["circle.py"]}], "confidence": 0.9}
)
REPORT = '{"issues": [], "missing_evidence": []}'


@pytest.mark.parametrize("answer", ["`area` in circle.py uses pi now [circle.py:1-2].", "It uses pi now."])
@pytest.mark.parametrize(
    ("operation", "said", "args"),
    [("verify", PASSES, {"facts": False}), ("quality", REPORT, {"model": True})],
)
def test_a_judge_sees_the_file_after_the_edit(
    session: Lab, workspace: Path, answer: str, operation: str, said: str, args: dict[str, Any]
) -> None:
    """That `import math` is missing can be seen: the whole file is shown as it is now, whether the answer
    cites it or not.
    """
    seen: list[str] = []
    run = carry_out(session, workspace, editor(OLD, NEW, answer, said, seen), operation, **args)
    assert run.status == RunStatus.COMPLETE
    (shown,) = seen
    part = part_of(shown)
    assert "math.pi" in part
    assert "import math" not in part
    assert "import math" not in shown or "before circle.py was changed" in shown or operation == "quality"


def test_of_a_long_file_its_head_and_what_was_changed_is_shown(session: Lab, workspace: Path) -> None:
    """A change in the middle of a file that is too long to be shown whole is there, and so is its
    beginning.
    """
    (workspace / "circle.py").write_text(f"import os\n{LONG}{OLD}{LONG}")
    seen: list[str] = []
    carry_out(
        session, workspace, editor("3 * r * r", "4 * r * r", "Done.", PASSES, seen), "verify", facts=False
    )
    part = part_of(seen[0])
    assert ("import os" in part, "return 4 * r * r" in part, len(part) < 7_000) == (True, True, True)


LENIENT = [
    {
        "criteria": [{"criterion": 1, "met": True, "why": "w", "evidence": ["circle.py"], "score": 5}],
        "confidence": 0.9,
        "summary": "s",
    },
    {
        "criteria": [{"criterion": "1", "met": "yes", "why": "w", "evidence": "circle.py"}],
        "confidence": "90%",
    },
    {"Criteria": [{"Criterion": 1, "Met": True, "Why": "w", "Evidence": ["circle.py"]}], "Confidence": 0.9},
]


@pytest.mark.parametrize("verdict", LENIENT)
@pytest.mark.parametrize("form", ["{}", "Here is my verdict:\n```json\n{}\n```\nThat is all."])
def test_a_verdict_with_more_than_was_asked_for_is_read_at_once(
    session: Lab, workspace: Path, verdict: dict[str, Any], form: str
) -> None:
    """Another key, a number as a text, keys in capitals, a fence: the judge is asked once and the run
    passes.
    """
    seen: list[str] = []
    says = editor(OLD, NEW, "It uses pi now.", form.replace("{}", json.dumps(verdict)), seen)
    run = carry_out(session, workspace, says, "verify", facts=False)
    assert (run.status, len(seen)) == (RunStatus.COMPLETE, 1)


def test_a_judge_that_is_shown_what_was_read_before_would_be_seen(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that shows no file as it is now leaves the judge with the text from before the edit."""
    monkeypatch.setattr(verifying, "changed_spans", lambda *_: ())
    monkeypatch.setattr(evidence_table, "changed_spans", lambda *_: ())
    seen: list[str] = []
    verdict = PASSES.replace("circle.py", "write.1.1")
    carry_out(session, workspace, editor(OLD, NEW, "It uses pi now.", verdict, seen), "verify", facts=False)
    assert "span circle.py" not in seen[0]
    assert "import math" in seen[0]
