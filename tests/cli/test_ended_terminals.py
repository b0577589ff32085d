"""Commands of `kestrel eval` at a terminal that is closed, hung up, interrupted, or that dies with them."""

from __future__ import annotations

import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path

import in_process
import pytest
from at_terminal import Terminal
from waits import PATIENCE_S

from kestrel_lab.evals.stored_trials import stored_trials
from kestrel_lab.lab import Lab

SUITE = """\
name: work
grader: "scripted:judge.yaml"
concurrency: 1
configs: [{name: one, model: "scripted:script.yaml"}]
scenarios:
"""
TASK = "  - {{id: s{0}, goal: talk {0}, checks: [{{answer_contains: hello}}, {{graded: {{rubric: It greets.}}}}]}}\n"
ENDS: dict[str, Callable[[Terminal], object]] = {
    "Ctrl-C": lambda at: at.press(b"\x03"),
    "hang-up": lambda at: os.kill(at.program.pid, signal.SIGHUP),
    "kill": lambda at: os.kill(at.program.pid, signal.SIGTERM),
    "kill -9": lambda at: os.kill(at.program.pid, signal.SIGKILL),
    "closed": lambda at: os.close(at.fd),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A suite of six scenarios that was run."""
    place = tmp_path_factory.mktemp("suite")
    (place / "suite.yaml").write_text(SUITE + "".join(TASK.format(n) for n in range(6)))
    (place / "script.yaml").write_text("rules:\n  - {when: ., turns: [hello there]}\n")
    (place / "judge.yaml").write_text('rules:\n  - {when: ., turns: [\'{"score": 0.8, "why": "so"}\']}\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KESTREL_HOME", str(place / "home"))
        assert in_process.kestrel(place, "eval", "run", "suite.yaml").returncode == 0
        yield place


def at_terminal(folder: Path, *words: str) -> Terminal:
    """The command at a terminal."""
    return Terminal([sys.executable, "-m", "kestrel_lab", "eval", *words], folder)


def ended(terminal: Terminal, how: str) -> int:
    """End it so; its exit code, and where the terminal is still there its modes are those of before."""
    ENDS[how](terminal)
    if how == "closed":
        return terminal.program.wait(PATIENCE_S)
    try:
        code = terminal.end()
        # Nobody restores anything after SIGKILL: shells do.
        assert how == "kill -9" or termios.tcgetattr(terminal.fd) == terminal.usual
        return code
    finally:
        os.close(terminal.fd)


@pytest.mark.long
@pytest.mark.parametrize(
    ("how", "code"), [("Ctrl-C", 0), ("hang-up", 129), ("kill", 143), ("kill -9", -9), ("closed", 129)]
)
def test_labels_outlive_the_terminal(folder: Path, how: str, code: int) -> None:
    """Both labels that were given are kept, and the next call goes on with the third trial."""
    at = at_terminal(folder, "label", "suite.yaml", "--who", how, "-n", "6")
    for key in (b"1", b"0"):
        at.until("q quit")
        at.press(key)
    at.until("q quit")
    assert ended(at, how) == code, at.text
    assert "Traceback" not in at.text
    with Lab(home=folder / "home", env={}) as lab:
        given = [one.said.value for one in lab.evals.labels("work").labels if one.said.who == how]
        labelling = lab.evals.label(folder / "suite.yaml", who=how, number=6)
        assert sorted(given) == [0, 1]
        assert labelling.progress()[0] == 2


@pytest.mark.long
@pytest.mark.parametrize("how", ["Ctrl-C", "closed", "kill -9"])
def test_trials_outlive_the_terminal(folder: Path, how: str) -> None:
    """What `eval run` had done is in the log, and it goes on from there."""
    at = at_terminal(folder, "run", "suite.yaml", "--epochs", "200")
    at.until("passed ·")
    ended(at, how)
    with Lab(home=folder / "home", env={}) as lab:
        there = sum(row.epoch > 0 for row in stored_trials(lab.store, suite="work"))
    assert there > 0
    again = in_process.kestrel(folder, "eval", "run", "suite.yaml", "--epochs", "2", "--resume")
    assert again.returncode == 0, again.stderr
    assert "taken from earlier runs" in again.stdout
