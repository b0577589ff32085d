"""`kestrel init`: a first suite that is green at once, and nothing overwritten."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import tomllib
from pathlib import Path

import in_process
import pytest
import yaml
from waits import PATIENCE_S, readable

from kestrel_lab.evals.starter.files import Project
from kestrel_lab.evals.suites.loader import load_suite


def test_an_empty_folder_is_green_without_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Suite, example answers, notebook, settings and a file for CI are written; the first two commands that are
    shown work, and the gate of the suite holds. Results are labelled as scripted.
    """
    monkeypatch.setenv("CI", "true")
    (tmp_path / "pyproject.toml").write_text('[dependency-groups]\ndev = ["pytest"]\n')
    assert Project.at(tmp_path).bug.command == ("python", "-m", "pytest", "-q")
    (tmp_path / "pyproject.toml").unlink()
    done = in_process.kestrel(tmp_path, "init", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {
        ".github/workflows/agents.yml",
        "evals/.gitignore",
        "evals/first.ipynb",
        "evals/first.script.yaml",
        "evals/first.suite.yaml",
        "kestrel.toml",
    }
    assert tomllib.loads((tmp_path / "kestrel.toml").read_text()) == {"approve": "ask"}
    commands = [line.strip() for line in done.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    assert len(commands) == 3
    assert commands[0] == "kestrel eval run evals/first.suite.yaml --report evals/out/first.html"
    run = in_process.kestrel(tmp_path, *commands[0].split()[1:])
    assert (run.returncode, "100 % (44–100)" in run.stdout, "example (scripted)" in run.stdout) == (
        0,
        True,
        True,
    ), run.stdout
    assert (tmp_path / "evals" / "out" / "first.html").exists()
    gate = in_process.kestrel(tmp_path, "eval", "gate", "evals/first.suite.yaml", "--cassette", "replay")
    assert gate.returncode == 0, gate.stdout + gate.stderr
    steps = yaml.safe_load((tmp_path / ".github" / "workflows" / "agents.yml").read_text())["jobs"]["agents"][
        "steps"
    ]
    action = yaml.safe_load((Path(__file__).parents[2] / "action.yml").read_text())
    assert set(steps[1]["with"]) <= set(action["inputs"])


def test_a_repository_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is that of the README, whatever is in it; language, tests and forge are those of the folder. What was
    there is left, and named.
    """
    (tmp_path / "README.md").write_text('![logo](x.png)\n\n# The [*Owl*](x) {{ x }}: "100 %" \\ù\n\nSees.\n')
    (tmp_path / "package.json").write_text("{}")
    (tmp_path / ".gitlab-ci.yml").write_text("mine: {}\n")
    (tmp_path / "kestrel.toml").write_text('approve = "deny"\n')
    done = in_process.kestrel(tmp_path, "init", "--yes", "--suites", "checks/agents", "--model", "openai/x")
    assert done.returncode == 0, done.stderr
    assert "left as it is: .gitlab-ci.yml, which was there" in done.stdout
    assert (tmp_path / "kestrel.toml").read_text() == 'approve = "deny"\n'
    assert (tmp_path / ".gitlab-ci.yml").read_text() == "mine: {}\n"
    suite = load_suite(tmp_path / "checks" / "agents" / "first.suite.yaml")
    assert [one.id for one in suite.scenarios] == ["name-of-the-project", "repair-mean", "total-of-orders"]
    assert "contains 'The Owl {{ x }}: \"100 %\" \\\\ù'" in suite.scenarios[0].checks[0].label
    assert "mean.js" in suite.scenarios[1].goal
    (tmp_path / "package.json").unlink()
    (tmp_path / "go.mod").write_text("module x\n")
    monkeypatch.setenv("PATH", "/nowhere")
    assert Project.at(tmp_path).bug.command == ()  # no go here: the file is compared
    again = in_process.kestrel(tmp_path, "init", "--yes", "--suites", "checks/agents")
    assert "wrote" not in again.stdout


@pytest.mark.parametrize("words", [("nowhere",), ("--suites", "/etc"), ("--suites", "../x"), ("--ci", "svn")])
def test_what_cannot_be_written_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A folder that is not there, one outside, and an unknown forge are a sentence, and nothing is written."""
    done = in_process.kestrel(tmp_path, "init", "--yes", *words)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_half_written(tmp_path: Path) -> None:
    """Where a file cannot be made, those made before it are removed."""
    (tmp_path / ".github").write_text("a file where a folder has to be\n")
    done = in_process.kestrel(tmp_path, "init", "--yes")
    assert done.returncode == 2
    assert "workflows" in done.stderr
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [".github"]


@pytest.mark.long
def test_a_person_is_asked_three_questions(tmp_path: Path) -> None:
    """In a terminal three questions are asked at most; Enter takes what is proposed."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "kestrel_lab", "init"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdin=follower, stdout=follower, stderr=follower
    ) as asked:
        os.close(follower)
        os.write(leader, b"\n\nnone\n")
        said = b""
        while readable(leader, PATIENCE_S):
            try:
                said += os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
        assert asked.wait(PATIENCE_S) == 0, said
    os.close(leader)
    assert [
        said.count(question) for question in (b"Folder for suites", b"Model that is to work", b"CI: ")
    ] == [1, 1, 1]
    assert (tmp_path / "evals" / "first.suite.yaml").exists()
    assert not (tmp_path / ".github").exists()


@pytest.mark.long
def test_the_notebook_runs(tmp_path: Path) -> None:
    """The notebook that is written runs from top to bottom without a key."""
    in_process.kestrel(tmp_path, "init", "--yes", "--ci", "none")
    done = in_process.kestrel(
        tmp_path, "notebook", "run", "evals/first.ipynb", "--out", "evals/out/first.ipynb"
    )
    assert done.returncode == 0, done.stderr
    assert "first.html" in (tmp_path / "evals" / "out" / "first.ipynb").read_text()
