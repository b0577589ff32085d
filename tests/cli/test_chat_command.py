"""`kestrel chat`: each line goes on where the last answer ended, in a script and at a terminal."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from pathlib import Path

import in_process
import pytest
from at_terminal import Terminal
from waits import PATIENCE_S

from kestrel_lab import Lab

SCRIPT = """
rules:
  - when: slow
    turns: [[{tool: bash, args: {command: "sleep 60"}}], done]
  - when: .
    turns: [Heard.]
"""


def command(*words: str) -> list[str]:
    """The command with a scripted model."""
    return [sys.executable, "-m", "kestrel_lab", "chat", "--model", "scripted:script.yaml", *words]


@pytest.mark.parametrize("end", ["/exit\nthree\n", "/quit\nthree\n", ""])
def test_lines_of_a_script_are_turns_of_one_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Every turn is a run that follows the one before; the log has them.

    A word or the end of the input ends it.
    """
    (tmp_path / "script.yaml").write_text(SCRIPT)
    monkeypatch.setattr("sys.stdin", io.StringIO(f"one\n\ntwo\n{end}"))
    done = in_process.kestrel(tmp_path, "chat", "--model", "scripted:script.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Heard.") == 2
    with Lab(home=in_process.home_of(tmp_path), env={}) as lab:
        run = lab.get(lab.runs().index[0])
        assert (
            run.goal,
            [one.goal for one in lab.history.conversation(run.id)],
            run.events()[0].earlier["turn"],
        ) == (
            "two",
            ["one", "two"],
            1,
        )


def test_a_turn_that_cannot_begin_is_explained_and_the_next_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that needs a script and has none: the reason is printed, no run is made, and the exit code is
    that of nothing having failed.
    """
    monkeypatch.setattr("sys.stdin", io.StringIO("one\ntwo\n"))
    done = in_process.kestrel(tmp_path, "chat", "--model", "scripted:gone.yaml")
    assert (done.returncode, done.stdout.count("gone.yaml")) == (0, 2)


def test_a_run_that_does_not_exist_is_refused_at_once(tmp_path: Path) -> None:
    """Before anything is typed."""
    (tmp_path / "script.yaml").write_text(SCRIPT)
    done = in_process.kestrel(
        tmp_path, "chat", "--model", "scripted:script.yaml", "--follow", "r0"
    )  # which reading would break

    assert (done.returncode, "r0" in done.stderr) == (2, True)


@pytest.mark.long
def test_ctrl_c_cancels_the_turn_and_the_conversation_goes_on(tmp_path: Path) -> None:
    """The turn that was cancelled can be followed; Ctrl-C on an empty line leaves, and what was typed is in
    the history.
    """
    (tmp_path / "script.yaml").write_text(SCRIPT)
    terminal = Terminal(command("--approve", "auto:critical"), tmp_path)
    try:
        terminal.until("›")
        terminal.say("be slow")
        terminal.until("sleep 60")
        time.sleep(1)  # the tool is under way; also before that the turn can be cancelled
        os.kill(terminal.program.pid, signal.SIGINT)
        terminal.until("was stopped")
        terminal.until("›")
        terminal.say("and now")
        terminal.until("Heard.")
        terminal.until("›")
        terminal.press(b"\x03")
        assert terminal.program.wait(PATIENCE_S) == 0
    finally:
        terminal.program.kill()
        terminal.program.wait()
        os.close(terminal.fd)

    assert "be slow" in (in_process.home_of(tmp_path) / "chat_history").read_text()
