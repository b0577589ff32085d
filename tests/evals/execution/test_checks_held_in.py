"""Checks run what the agent wrote: in the trial's sandbox, without our keys, and nothing outside of the
workspace is written.
"""

import asyncio
import json
from pathlib import Path

import pytest

from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.core.errors import CheckError
from kestrel_lab.core.protocols import Trial
from kestrel_lab.core.scores import Score
from kestrel_lab.evals.execution.function_checks import load_judge
from kestrel_lab.evals.execution.runner import run_suite
from kestrel_lab.evals.stored.rescore import rescore_trials
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.lab import Lab
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

SOLUTION = """
import os, pathlib
answer = 42
found = [name for name in os.environ if "SECRET" in name or "API_KEY" in name]
for name, text in (("OUTSIDE", "escaped"), ("seen", " ".join(found))):
    try:
        pathlib.Path(PLACE, name).write_text(text) if name == "OUTSIDE" else \
pathlib.Path(name).write_text(text)
    except OSError:
        pass
"""
CHECKS = """
import pathlib, runpy, subprocess, sys

def imports(trial):
    sys.path.insert(0, str(trial.workspace))
    import solution
    return solution.answer == 42

def starts(trial):
    return subprocess.run([sys.executable, "solution.py"], cwd=trial.workspace).returncode == 0

def evaluates(trial):
    return runpy.run_path(str(trial.workspace / "solution.py"))["answer"] == trial.expected

async def later(trial):
    exec(compile((trial.workspace / "solution.py").read_text(), "<answer>", "exec"), {})
    return 0.5, "half"
"""
SUITE = """
configs: [{name: one, model: "scripted:model.yaml"}]
scenarios:
  - id: a
    goal: Write it.
    expected: 42
    workspace: {files: {"solution.py": "SOLUTION"}}
    checks: [CHECK]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with an agent's program that tries to get out, a suite's functions beside it, and a key in
    the environment.
    """
    monkeypatch.setenv("OPENAI_API_KEY", "sk-1")
    monkeypatch.setenv("MY_SECRET", "s")
    monkeypatch.setenv("PYTHONPATH", "")
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "suite").mkdir()
    (tmp_path / "work" / "solution.py").write_text(SOLUTION.replace("PLACE", repr(str(tmp_path / "outside"))))
    (tmp_path / "suite" / "own.py").write_text(CHECKS)
    return tmp_path


def trial(folder: Path, **more: object) -> Trial:
    """A finished trial in the folder's workspace."""
    return Trial(goal="g", answer="a", records=(), workspace=folder / "work", expected=42, **more)


def escaped(folder: Path) -> tuple[bool, str]:
    """Whether something was written outside, and which keys were seen."""
    return (folder / "outside" / "OUTSIDE").exists(), (folder / "work" / "seen").read_text()


def by_command(folder: Path, **more: object) -> Score:
    """Judge by a command."""
    return asyncio.run(CommandSucceeds(argv=("python", "solution.py"))(trial(folder, **more)))


def by_function(folder: Path, name: str, **more: object) -> Score:
    """Judge by a function of the suite."""
    return asyncio.run(load_judge(f"own:{name}", folder / "suite", None)(trial(folder, **more)))


@pytest.mark.parametrize("name", ["imports", "starts", "evaluates", "later"])
def test_a_function_runs_what_the_agent_wrote_in_the_sandbox(folder: Path, name: str) -> None:
    """However a function has the agent's code run, it sees no key and writes nothing outside; what it says
    counts.
    """
    score = by_function(folder, name)
    assert (score.value, escaped(folder)) == (0.5 if name == "later" else 1.0, (False, ""))


def test_a_command_runs_in_the_sandbox(folder: Path) -> None:
    """It passes, sees no key and writes nothing outside."""
    assert (by_command(folder).passed, escaped(folder)) == (True, (False, ""))


def test_without_a_sandbox_the_same_program_gets_out(folder: Path) -> None:
    """The mutant: at S0, which somebody has to ask for, it does write outside; even there it has no keys."""
    bare = Sandbox(level=Level.S0)
    assert (by_command(folder, sandbox=bare).passed, escaped(folder)) == (True, (True, ""))
    (folder / "outside" / "OUTSIDE").unlink()
    assert (by_function(folder, "imports", sandbox=bare).passed, escaped(folder)) == (True, (True, ""))


def test_where_no_sandbox_can_be_had_nothing_is_run(folder: Path) -> None:
    """A workspace that no level can hold a command in is refused, and the trial is not a failure of the
    agent.
    """
    nowhere = Trial(goal="g", answer="a", records=(), workspace=Path("/"))
    for judge in (CommandSucceeds(argv=("true",)), load_judge("own:imports", folder / "suite", None)):
        with pytest.raises(CheckError, match=r"no sandbox is available here.*set sandbox = S0"):
            asyncio.run(judge(nowhere))


def test_what_a_process_cannot_give_is_said(folder: Path) -> None:
    """A function that ends its process, asks a model, raises, or floods the output has not judged, in so many
    words.
    """
    (folder / "suite" / "own.py").write_text(
        "import os, sys\ndef ends(t): os._exit(0)\ndef asks(t): return t.grader('')\ndef breaks(t): "
        "return 1 / 0\n"
        "def floods(t): print('x' * 5_000_000); print('kestrel-opinion:{\"value\": 1}'); return False\n"
    )
    for name, told in (
        ("ends", "ended without an opinion"),
        ("asks", "use the check `graded`"),
        ("breaks", "ZeroDivisionError"),
    ):
        with pytest.raises(CheckError, match=told):
            by_function(folder, name)
    assert by_function(folder, "floods").passed is False


@pytest.mark.parametrize(
    "check", ["{command_succeeds: [python, solution.py]}", '{python_check: "own:imports"}']
)
def test_suites_and_rescoring_hold_checks_in(folder: Path, check: str) -> None:
    """The same in a whole suite, and again when its kept trials are judged anew."""
    suite = SUITE.replace("CHECK", check).replace(
        '"SOLUTION"', json.dumps((folder / "work" / "solution.py").read_text())
    )
    (folder / "suite" / "model.yaml").write_text("rules:\n  - {when: '.', turns: ['done']}\n")
    (folder / "suite" / "s.yaml").write_text(suite)
    session = Lab(folder / "home", env={})
    try:
        result = asyncio.run(run_suite(session, load_suite(folder / "suite" / "s.yaml")))
        assert [row.result["outcome"] for row in result.rows] == ["pass"], result.rows[0].result["reason"]
        assert not (folder / "outside" / "OUTSIDE").exists()
        again = asyncio.run(rescore_trials(session, folder / "suite" / "s.yaml"))
        assert (len(again.result.rows), again.changes) == (1, ())
        assert not (folder / "outside" / "OUTSIDE").exists()
    finally:
        session.close()
