"""Commands of a conversation in the terminal: what begins with a slash and is none of them is a goal."""

from __future__ import annotations

import io
from pathlib import Path

import in_process
import pytest

from kestrel_lab import Lab, UsageError
from kestrel_lab.cli.slash_commands import SLASH_COMMANDS, SlashCommand, slash_command

RULES = """
rules:
  - when: ^Make a plan
    turns:
      - '{"steps": [{"id": "look", "goal": "Look around."}], "acceptance_criteria": ["it says something"]}'
  - when: ^Judge
    turns: ['{"criteria": [{"criterion": 1, "met": true, "why": "see above", "evidence": []}], "confidence": 1}']
  - when: ^A run has
    turns: ['{"notes": []}']
  - when: .
    turns: [Heard.]
"""


@pytest.mark.parametrize(
    "goal",
    [
        "/home/ada/sales.csv has wrong totals: why?",
        "/etc/hosts",
        "/tmp",
        "/usr is full",
        "/timeline.md is out of date",
        "/memory.md says what we know",
        "/time/zones.py is slow",
        "/help-text of the tool is wrong",
        "// is what in Python?",
        "/",
        "time flies",
        "what does /help do?",
        "1 /time 2",
    ],
)
def test_a_goal_that_begins_with_a_path_is_a_goal(goal: str) -> None:
    """Only the word of a command, alone behind the slash, is one."""
    assert slash_command(goal) is None


@pytest.mark.parametrize("name", SLASH_COMMANDS)
def test_a_command_takes_what_stands_behind_it(name: str) -> None:
    """Also over several lines, and in capital letters."""
    assert slash_command(f" /{name.upper()}  one\ntwo ") == SlashCommand(name, "one\ntwo")


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        ("/hlep", "did you mean /help?"),
        ("/orchestrat tidy up", "did you mean /orchestrate?"),
        ("/orchestrate", "/orchestrate GOAL"),
    ],
)
def test_a_mistyped_command_is_not_sent_to_a_model(typed: str, message: str) -> None:
    """It is refused with the one that was meant."""
    with pytest.raises(UsageError, match=message):
        slash_command(typed)


def test_commands_of_a_chat_are_answered_without_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Time, notes and help are shown, mistakes explained; only goals are runs."""
    (tmp_path / "script.yaml").write_text(RULES)
    lines = [
        "/help",
        "/time 2030-12-31 20:15 --zone Europe/Vienna",
        "/memory add Tests are run with make.",
        "/memory",
        "/memory serch",
        "/time flies",
        "/hlep",
        "one",
        "/home/ada is full",
    ]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    done = in_process.kestrel(tmp_path, "chat", "--model", "scripted:script.yaml")
    assert done.returncode == 0, done.stderr
    for text in (*(f"/{name}: " for name in SLASH_COMMANDS), "2030-12-31", "Tests are run with make."):
        assert text in done.stdout
    for text in ("cannot read 'flies' as a time", "did you mean /help?", "Did you mean 'search'?"):
        assert text in " ".join(done.stdout.split())
    with Lab(home=in_process.home_of(tmp_path), env={}) as lab:
        assert [*lab.runs().goal] == ["/home/ada is full", "one"]


def test_orchestrate_works_in_stages_and_the_conversation_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/orchestrate GOAL` is a turn with the plan `standard`, and the next line follows it."""
    (tmp_path / "script.yaml").write_text(RULES)
    monkeypatch.setattr("sys.stdin", io.StringIO("one\n/orchestrate tidy up\nthree\n"))
    done = in_process.kestrel(tmp_path, "chat", "--model", "scripted:script.yaml", "--approve", "auto")
    assert done.returncode == 0, done.stderr
    with Lab(home=in_process.home_of(tmp_path), env={}) as lab:
        three, staged, one = (lab.get(run) for run in lab.runs().index)
        assert [run.goal for run in (one, staged, three)] == ["one", "tidy up", "three"]
        assert len(one.plan.steps) == 1
        assert {"gather", "plan", "verify"} <= {step.stage for step in staged.plan.steps}
        assert [run.goal for run in lab.history.conversation(three.id)] == ["one", "tidy up", "three"]
        assert len(three.plan.steps) == 1
