"""How a model is told to cite: only where somebody looks at the answer and tools show something, in forms
that resolve.
"""

import asyncio
import re
from pathlib import Path

import pytest

from kestrel_lab.core.citations import citations_in
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.guidance import citation_instructions
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.builtin import native_tools
from kestrel_lab.views.run_view import RunView


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with one module."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "limits.py").write_text("MAX = 20\nLEAST = 3\n")
    return folder


def told(run: Run) -> str:
    """What the run's models were told of citing; empty if nothing."""
    started = next(event for event in run.events() if isinstance(event, RunStarted))
    found = re.search(r"Cite .*result\.", started.system)
    return found[0] if found else ""


def start(session: Lab, workspace: Path, **options: object) -> Run:
    """A run of one answer."""
    return asyncio.run(
        session.run("go", model=ScriptedModel(lambda _: "done"), workspace=workspace, **options)
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "how"),
    [
        ({}, "what it rests on"),
        ({"verify": "off"}, ""),
        ({"tools": []}, ""),
        ({"tools": ["ask_user", "tasks"]}, ""),
        ({"tools": ["grep"], "verify": "quality"}, "what it rests on"),
        ({"verify": "repair"}, "each claim"),
        ({"form": "research"}, "each claim"),
        ({"form": "research", "verify": "off"}, ""),
    ],
)
def test_citing_is_asked_for_where_it_can_be_done_and_is_read(
    session: Lab, workspace: Path, options: dict[str, object], how: str
) -> None:
    """Not without a look at the answer, as in trials, nor without a tool that shows anything; each claim
    where evidence decides.
    """
    said = told(start(session, workspace, **options))
    assert (how in said, bool(said)) == (True, bool(how))


@pytest.mark.parametrize("level", ["warn", "judge"])
def test_the_forms_that_a_model_is_told_are_those_that_are_read(level: str) -> None:
    """Filled in, each is one citation of its kind; copied as they stand they are none, so that a weak model
    names no wrong evidence.
    """
    forms = re.findall(r"\[[^\]]+\]", text := citation_instructions(level, "none", native_tools()))
    assert (len(forms), citations_in(text)) == (4, ())
    values = {
        "path": "a.py",
        "line": "7",
        "first": "7",
        "last": "9",
        "address": "https://example.org/a",
        "call id": "main.1.1",
    }
    filled = [re.sub("call id|[a-z]+", lambda word: values[word[0]], form) for form in forms]
    read = [citations_in(f"It is so {form}.") for form in filled]
    assert [(one.path, one.first, one.last, one.page, one.call) for (one,) in read] == [
        ("a.py", 7, 7, "", ""),
        ("a.py", 7, 9, "", ""),
        ("", 0, 0, "https://example.org/a", ""),
        ("", 0, 0, "", "main.1.1"),
    ]


def cites(request: ModelRequest) -> Turn:
    """Reads and lists, then cites both as the prompt says, the list by the id under which its result is
    shown.
    """
    results = [message for message in request.messages if message.role == "tool"]
    if not results:
        return [("read_file", {"path": "limits.py"}), ("list_directory", {})]
    assert "[path:line]" in request.messages[0].text
    return f"LEAST is 3 [limits.py:2]. The folder holds limits.py and nothing else [{results[1].call_id}]."


def test_what_is_cited_as_told_resolves_and_opens(session: Lab, workspace: Path) -> None:
    """Both citations are spans of the run's evidence, and the answer's row in every view offers them with
    their text.
    """
    run = asyncio.run(session.run("What is LEAST?", model=ScriptedModel(cites), workspace=workspace))
    backed = list(run.report.evidence)
    assert [one.span.id for claim in backed for one in claim.cited if one.span] == [
        "limits.py:2",
        "answer.1.2",
    ]
    (shown,) = [
        offered for row in run.report.view().rows.values() if (offered := getattr(row, "cites", None))
    ]
    assert [(name, since) for name, _, since in shown] == [("limits.py:2", ""), ("answer.1.2", "")]
    assert (shown[0][1], "limits.py" in shown[1][1]) == ("LEAST = 3", True)


def test_what_is_cited_is_marked_when_its_file_changes(session: Lab, workspace: Path) -> None:
    """`mark` changes the answer's row when a cited place moved since, and only then; a run without an answer
    or citations has nothing to mark.
    """
    run = asyncio.run(session.run("What is LEAST?", model=ScriptedModel(cites), workspace=workspace))
    view, text = run.report.view(), (workspace / "limits.py").read_text()
    assert view.mark(run.report.evidence.claims) == []
    (workspace / "limits.py").write_text(f"# a line more\n{text}")
    (change,) = view.mark(run.report.evidence.claims)
    assert change["cites"][0][::2] == ["limits.py:2", "moved since"]
    assert view.mark(run.report.evidence.claims) == []
    (workspace / "limits.py").write_text(text)
    (back,) = view.mark(run.report.evidence.claims)
    assert back["cites"][0][::2] == ["limits.py:2", ""]
    unmarked = asyncio.run(session.run("go", model=ScriptedModel(["3"]), workspace=workspace)).report
    assert (unmarked.view().cites, unmarked.view().mark(unmarked.evidence.claims), RunView().mark([])) == (
        False,
        [],
        [],
    )
