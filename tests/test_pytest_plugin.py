"""The pytest plugin: suites as test items, the fixture `kestrel`, comparison with the last green commit."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tomllib
from contextlib import chdir, redirect_stdout
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

ROOT = Path(__file__).parents[1]
PLUGIN = ("-p", "kestrel_lab.pytest_plugin")
SUITE = """\
name: talks
configs: [{name: script, model: "scripted:script.yaml"}]
gates: [{success_rate: {at_least: 0.5}}]
scenarios:
""" + "".join(f"  - {{id: s{n}, goal: talk, checks: [{{answer_contains: hello}}]}}\n" for n in range(8))
SCRIPT = "rules:\n  - {when: talk, turns: [WORD]}\n"
TESTS = """\
def test_good(kestrel):
    run = kestrel.run("talk", model="scripted:script.yaml", epochs=2)
    kestrel.check(run, answer_contains="o")

def test_failed(kestrel):
    run = kestrel.run("talk", model="scripted:script.yaml")
    kestrel.check(run, answer_contains="nothing")

def test_broke(kestrel):
    kestrel.run("sing", model="scripted:script.yaml")
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a suite and tests whose script passes, in one commit."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # whether the plugin is installed or not
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "talks.suite.yaml").write_text(SUITE)
    (tmp_path / "script.yaml").write_text(SCRIPT.replace("WORD", "hello"))
    (tmp_path / "test_agent.py").write_text(TESTS)
    (tmp_path / ".gitignore").write_text("__pycache__/\n.pytest_cache/\nout/\n")
    subprocess.run(["git", "init", "-q", "-b", "main"], cwd=tmp_path, check=True)
    commit(tmp_path)
    return tmp_path


def commit(folder: Path) -> str:
    """Commit everything; returns the short hash that the plugin shows."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run([*git, "add", "-A"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-qm", "c", "--allow-empty"], cwd=folder, check=True)
    told = subprocess.run([*git, "rev-parse", "HEAD"], cwd=folder, check=True, capture_output=True, text=True)
    return told.stdout[:8]


def session(folder: Path, *words: str) -> tuple[int, str]:
    """Run pytest in this process; returns its exit code and what it says."""
    said = io.StringIO()
    sys.modules.pop("test_agent", None)  # of an earlier session
    with chdir(folder), redirect_stdout(said):
        code = pytest.main([*PLUGIN, "--import-mode=importlib", "--rootdir=.", *words])
    return int(code), said.getvalue()


def test_a_session_measures_and_compares(project: Path) -> None:
    """Scenarios are items; what failed is a failure, what broke an error, in JUnit XML too. Gates are decided
    over all trials, each suite has a page, and the next commit is compared with the last green one by its
    hash, difference and interval.
    """
    green = commit(project)
    code, said = session(project, "--junitxml=out/j.xml", "--kestrel-report=out")
    assert code == 1
    assert "1 failed, 9 passed, 1 error" in said
    assert "ERROR at trial of test_broke" in said
    assert "expected: answer contains 'nothing'; found: missing 'nothing'; answered 'hello'" in said
    assert "suite talks: 8 trials of 8 scenarios of 1 task: 8 passed, 0 failed, 0 broke" in said
    assert "suite test_agent.py: 4 trials of 3 scenarios: 2 passed, 1 failed, 1 broke" in said
    assert "no earlier green commit is stored here" in said
    assert "gate success_rate ≥ 50 % [script (scripted)]: holds" in said
    assert {path.name for path in (project / "out").glob("*.html")} == {"talks.html", "test_agent.py.html"}
    root = ET.parse(project / "out" / "j.xml").getroot()[0]
    assert (root.get("failures"), root.get("errors")) == ("1", "1")

    (project / "script.yaml").write_text(SCRIPT.replace("WORD", "bye"))
    commit(project)
    code, said = session(project, "talks.suite.yaml", "-q")
    assert code == 1
    assert f"script (scripted): worse than {green} by 100 points, interval" in said
    assert "changed sides: s0 [script] epoch 1, pass → fail" in said
    assert "gate success_rate ≥ 50 % [script (scripted)]: violated" in said
    assert "Traceback" not in said
    # What is red is no green commit: the next one is compared with the same.
    commit(project)
    assert f"worse than {green} by" in session(project, "talks.suite.yaml", "-q")[1]


def test_one_item_of_a_suite(project: Path) -> None:
    """`-k` chooses scenarios, `--kestrel-epochs` repeats them, and gates of a whole suite stay open. A suite with
    a mistake is an error of collection.
    """
    code, said = session(project, "-k", "s3", "--kestrel-epochs=2")
    assert code == 0
    assert "suite talks: 2 trials of 1 scenario: 2 passed" in said
    assert "gates are not decided: of scenarios × configurations 7 did not run" in said
    (project / "talks.suite.yaml").write_text(SUITE.replace("goal:", "goals:"))
    code, said = session(project, "talks.suite.yaml")
    assert code == 2
    assert "talks.suite.yaml:5: " in said


def test_items_of_a_suite_run_together(project: Path) -> None:
    """All selected items of a suite run when the first is asked for, and no more than may fail before pytest
    stops; what one of them lacks costs the others nothing.
    """
    lines = [line.replace("talk,", "talk, before: [{command: sleep 0.1}],") for line in SUITE.splitlines()]
    lines[-1] = lines[-1].replace("checks", "workspace: {folder: nowhere}, checks")
    (project / "talks.suite.yaml").write_text("\n".join([*lines, "concurrency: 8", ""]))
    code, said = session(project, "talks.suite.yaml", "-k", "not s7 and not s6", "--junitxml=out/j.xml")
    assert (code, "6 passed" in said) == (0, True)
    first, *rest = (
        float(case.get("time", "9")) for case in ET.parse(project / "out" / "j.xml").iter("testcase")
    )
    assert first > 0.1 > sum(rest), "the others were there"
    (project / "script.yaml").write_text(SCRIPT.replace("WORD", "bye"))
    assert "suite talks: 1 trial of 1 scenario" in session(project, "talks.suite.yaml", "-x")[1]
    assert "suite talks: 2 trials of 2 scenarios" in session(project, "talks.suite.yaml", "--maxfail=2")[1]
    (project / "script.yaml").write_text(SCRIPT.replace("WORD", "hello"))
    said = session(project, "talks.suite.yaml", "-k", "s5 or s7")[1]
    assert "1 passed, 6 deselected, 1 error" in said
    assert "ERROR at trial of s7[script]" in said


def test_in_ci_nothing_is_asked(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where CI is set, answers are replayed: a suite of a real model without recordings breaks and says how to
    make them.
    """
    monkeypatch.setenv("CI", "true")
    (project / "talks.suite.yaml").write_text(SUITE.replace("scripted:script.yaml", "openai/gpt-5-mini"))
    code, said = session(project, "talks.suite.yaml", "-k", "s1")
    assert code == 1
    assert "1 error" in said
    assert "there are no recordings in" in said
    assert "--kestrel-record" in said


def test_it_loads_nothing_heavy() -> None:
    """The entry point is the module, which brings nine small modules of the package at most, and no library."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert declared["project"]["entry-points"]["pytest11"] == {"kestrel": PLUGIN[1]}
    code = (
        "import pytest, sys; before = set(sys.modules); import kestrel_lab.pytest_plugin;"
        "print(*sorted(name for name in set(sys.modules) - before if '.' in name or 'kestrel' in name))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert all(name.startswith("kestrel_lab") for name in loaded), loaded
    assert len(loaded) <= 9


@pytest.mark.long
def test_answers_are_recorded_and_replayed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--kestrel-record` asks the model of a test function and keeps its answer beside the test; in CI that is replayed
    without a key, and a changed goal is an error that shows the change.
    """
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "models"))
    from openai_server import OpenAIServer, Reply

    (project / "talks.suite.yaml").unlink()
    test = project / "test_agent.py"
    test.write_text(
        "def test_it(kestrel):\n    run = kestrel.run('Say hello', model='openai/gpt-5-mini')\n"
        "    kestrel.check(run, answer_contains='hello')\n"
    )
    with OpenAIServer([Reply(text="hello")]) as server, monkeypatch.context() as keyed:
        keyed.setenv("OPENAI_API_BASE", server.api_base)
        keyed.setenv("OPENAI_API_KEY", "k")
        code, said = session(project, "--kestrel-record")
    assert code == 0, said
    assert (project / "cassettes" / "test_agent.py" / "test_it.jsonl").exists()
    monkeypatch.setenv("CI", "true")
    assert session(project)[0] == 0
    test.write_text(test.read_text().replace("Say hello", "Say hello loudly"))
    code, said = session(project)
    assert code == 1
    assert "- Say hello\nE       + Say hello loudly" in said
    assert "with pytest: --kestrel-record" in said


@pytest.mark.long
def test_processes_share_one_report(project: Path) -> None:
    """With two processes of pytest-xdist there is one report, with the trials of both."""
    command = [sys.executable, "-m", "pytest", *PLUGIN, "-p", "xdist.plugin", "-n", "2", "-q"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=project, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 failed, 9 passed, 1 error" in done.stdout
    assert (
        done.stdout.count("suite talks: 8 trials of 8 scenarios of 1 task: 8 passed, 0 failed, 0 broke") == 1
    )
    assert done.stdout.count("suite test_agent.py: 4 trials of 3 scenarios") == 1
