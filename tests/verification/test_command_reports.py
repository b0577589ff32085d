"""Reports of commands: how they ended, and what they printed, held against the log."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab.core.events.actions import Action
from kestrel_lab.verification import command_reports
from kestrel_lab.verification.engine import check_answer
from kestrel_lab.verification.subject import Subject
from kestrel_lab.verification.workspace_files import Files


def ran(command: str, code: int | None = 0, output: str = "", tool: str = "bash") -> Action:
    """A command that ended so, as its tool answers."""
    text = f"exit_code: {code}\nstderr: \ntruncated: false\nseconds: 0.01\nstdout:\n{output}\n"
    return Action(
        call="c1",
        tool=tool,
        args={"command": command},
        outcome="done",
        kind="command",
        exit_code=code,
        output=text,
    )


def said(folder: Path, answer: str, actions: Sequence[Action], *, goal: str = "Go on.") -> list[str]:
    """The checks that have something against an answer."""
    subject = Subject(answer=answer, goal=goal, actions=actions, calls=(), ground=Files(folder))
    return [issue.check for issue in check_answer(subject)]


FALSE, ECHO = ran("false", 1), ran("echo 41", 0, "41")
SCRIPT = ran("python sum.py --all", 0, "rows: 1,204\nmean 3.14159\nDone in time.\nWARNING: old format")
UNTRUE: list[tuple[str, list[Action]]] = [
    ("I ran `false` and it succeeded.", [FALSE]),
    ("`false` succeeded.", [FALSE]),
    ("I ran `false`, which completed without errors.", [FALSE]),
    ("Running `false` works.", [FALSE]),
    ("I successfully ran `false`.", [FALSE]),
    ("`false` passed, and `echo 41` printed 41.", [FALSE, ECHO]),
    ("I ran `false` and it exited with code 0.", [FALSE, ECHO]),
    ("I ran `true` and it failed.", [ran("true")]),
    ("I ran `echo 41` and it printed `42`.", [ECHO]),
    ("I ran `echo 41` and it printed 42.", [ECHO]),
    ('`echo 41` outputs "42".', [ECHO]),
    ("The command `echo 41` returned `42`.", [ECHO]),
    ("I ran `echo 41`. It printed `42`.", [ECHO]),
    ("It printed `42`.", [ECHO]),
    ("The script printed 42.", [ECHO]),
    ("`python sum.py --all` reports `rows: 1,205`.", [SCRIPT]),
    ("`python sum.py --all` shows `ERROR: old format`.", [SCRIPT]),
    ("`python sum.py --all` printed a mean of 3.15, i.e. it printed 3.15.", [SCRIPT]),
    ("| `echo 41` | printed `42` |", [ECHO]),
]
TRUE: list[tuple[str, list[Action]]] = [
    ("I ran `false` and it failed.", [FALSE]),
    ("I ran `false`; it did not succeed.", [FALSE]),
    ("`false` exited with code 1.", [FALSE]),
    ("`false` is meant to fail, so a script that expects success would stop.", [FALSE]),
    ("I ran `true` and it succeeded.", [ran("true")]),
    (
        "I ran `make test`, which failed at first; after the fix `make test` passed.",
        [ran("make test", 2), ran("make test")],
    ),
    ("I ran `echo 41` and it printed `41`.", [ECHO]),
    ("I ran `echo 41` and it printed 41.", [ECHO]),
    ("`echo 41` did not print `42`.", [ECHO]),
    ("If `echo 41` printed `42`, the shell would be broken.", [ECHO]),
    ("`echo 42` will print `42`.", [ECHO]),
    ("`python sum.py --all` printed `rows: 1204`.", [SCRIPT]),
    ("`python sum.py --all` gave a mean of 3.14.", [SCRIPT]),
    ("`python sum.py --all` printed `mean 3.1`.", [SCRIPT]),
    ("`python sum.py --all` printed 4 lines.", [SCRIPT]),
    ("`python sum.py --all` succeeded with a warning, but `load()` returns `None`.", [SCRIPT]),
    ("It returns `None` where nothing is there.", [SCRIPT]),
    (
        "`python sum.py --all` failed to read the new format.",
        [ran("python sum.py --all", 0, "error: old format")],
    ),
    ("I ran `make | tail`, and the build failed.", [ran("make | tail", 0, "stopped")]),
    ("`seq 1 99999` printed `70000`.", [ran("seq 1 99999", 0, "1\n… 400,000 characters left out …\n99999")]),
    ("`ls` shows `src/`.", [ran("ls", 0, "src\ndocs")]),
]


@pytest.mark.parametrize(("answer", "actions"), UNTRUE)
def test_an_untrue_report_has_one_concern(tmp_path: Path, answer: str, actions: list[Action]) -> None:
    """An exit or an output that the log refutes is told once, in whatever words and marks it stands."""
    assert len(said(tmp_path, answer, actions)) == 1


@pytest.mark.parametrize(("answer", "actions"), TRUE)
def test_a_true_report_has_none(tmp_path: Path, answer: str, actions: list[Action]) -> None:
    """What the log has, what it has only in part, and what is no report is let be."""
    assert said(tmp_path, answer, actions) == []


@pytest.mark.parametrize("printed", ["42", "rows 41", "forty"])
def test_outputs_in_json_and_of_code_are_read(tmp_path: Path, printed: str) -> None:
    """The output of a command may be a field of JSON, and code prints as a command does."""
    fields = json.dumps({"exit_code": 0, "stdout": "41\n", "stderr": "", "truncated": False})
    command = Action(
        call="a",
        tool="bash",
        args={"command": "x"},
        outcome="done",
        kind="command",
        exit_code=0,
        output=fields,
    )
    code = Action(call="b", tool="run_python", args={"code": "print(41)"}, outcome="done", output="41")
    for action, name in ((command, "x"), (code, "print(41)")):
        assert said(tmp_path, f"I ran `{name}` and it printed `{printed}`.", [action]) != []
        assert said(tmp_path, f"I ran `{name}` and it printed `41`.", [action]) == []


def test_the_mutant_that_finds_every_value_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a check for which each output has each text, the untrue report passes."""
    monkeypatch.setattr(command_reports, "_has_value", lambda *_: True)
    assert said(tmp_path, "I ran `echo 41` and it printed `42`.", [ECHO]) == []


@pytest.mark.parametrize(
    ("answer", "exact"),
    [
        ("The roof is `green` [roof.txt:1].", False),
        ("The roof is `the roof is green` [roof.txt:1].", False),
        ("roof.txt:1 says `blue and white`.", False),
        ('roof.txt:1 reads "blue".', False),
        ("`limit = 31` [roof.txt:2]", False),
        ("`limit: 31` (roof.txt:2)", False),
        ("`limit = 30` [roof.txt:2]", True),
        ("The roof is `red` [roof.txt:1].", True),
        ("`paint(colour=1)` is called like that [roof.txt:1].", True),
        ("It is set from `urllib.parse` (line 12).", True),
        ("`roof.limit` [roof.txt:2] is the limit.", True),
    ],
)
def test_a_text_beside_a_cited_place_is_a_quote(tmp_path: Path, answer: str, *, exact: bool) -> None:
    """What stands in backticks or quotation marks directly beside cited lines has to be in their file."""
    (tmp_path / "roof.txt").write_text("The roof is red.\nlimit = 30\n", encoding="utf-8")
    assert said(tmp_path, answer, []) == ([] if exact else ["quotes_are_exact"])
