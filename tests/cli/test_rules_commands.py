"""`kestrel rules`: what holds, what would become of a call, and rules given for one run."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main
from kestrel_lab.core.events.union import ApprovalGiven, ToolCalled
from kestrel_lab.lab import Lab

Kestrel = Callable[..., tuple[int, str, str]]

SETTINGS = """
[[rules]]
tool = "bash"
command = ["git status", "pytest ..."]
verdict = "allow"

[[rules]]
tool = "write_file"
path = "secret/**"
verdict = "deny"
reason = "not yours"
"""


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with rules; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    Path("kestrel.toml").write_text(SETTINGS)

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_the_rules_in_force_are_listed(kestrel: Kestrel) -> None:
    """`rules` and `config` show each rule, where it is written and why; without any, how to write one."""
    for words in (["rules"], ["config"]):
        code, out, _ = kestrel(*words)
        assert code == 0
        for text in (
            "bash `git status`, `pytest ...`",
            "write_file `secret/**`",
            "rule 2 of kestrel.toml",
            "not yours",
        ):
            assert text in out
    Path("kestrel.toml").unlink()
    assert "Write some as [[rules]] in kestrel.toml" in kestrel("rules")[1]


def test_a_call_can_be_tried(kestrel: Kestrel) -> None:
    """`rules try` says what would become of a call, by which rule and why, and runs nothing."""
    for words, told in (
        (["bash", "git", "status"], ["bash (HIGH) goes on: rule 1 of kestrel.toml"]),
        (
            ["bash", "git status && make"],
            ["bash (HIGH) is asked about: policy ask", "it runs: git status · make"],
        ),
        (["bash", "git status > x"], ["no rule can allow it: it reads or writes a file by a redirection"]),
        (
            ["write_file", '{"path": "a/../secret/x", "content": ""}', "--approve", "auto"],
            ["is refused: rule 2 of kestrel.toml", "not yours"],
        ),
        (["time:now", "{}"], ["time:now (MEDIUM) is asked about"]),
    ):
        code, out, err = kestrel("rules", "try", *words)
        assert (code, err) == (0, "")
        assert [text for text in told if text not in out] == []


def test_what_cannot_be_tried_is_explained(kestrel: Kestrel) -> None:
    """A wrong tool, wrong arguments and a missing file are errors of one line, with exit code 2."""
    for words, told in (
        (["bahs", "ls"], "there is no tool 'bahs'; did you mean 'bash'?"),
        (["bash"], "command: required but missing"),
        (["bash", "ls", "--rules", "none.toml"], "none.toml: no such file or directory"),
        (["write_file", "{"], "the arguments are not JSON"),
    ):
        code, _, err = kestrel("rules", "try", *words)
        assert (code, told in err) == (2, True)


def test_rules_for_one_run(kestrel: Kestrel) -> None:
    """`run --rules FILE` adds rules to those of the settings; what they decide is in the log of the run."""
    Path("more.toml").write_text(
        '[[rules]]\ntool = "write_file"\npath = ["docs/**", "secret/**"]\nverdict = "allow"\n'
    )
    turns = [
        [{"tool": "write_file", "args": {"path": path, "content": "x"}}] for path in ("docs/a", "secret/a")
    ]
    Path("script.yaml").write_text(json.dumps({"rules": [{"when": "write", "turns": [*turns, "done"]}]}))
    code, _, err = kestrel("run", "write", "--model", "scripted:script.yaml", "--rules", "more.toml")
    assert (code, err) == (0, "")
    lab = Lab(env={})
    events = lab.get(lab.store.runs()[0].id).events()
    assert [event.leave for event in events if isinstance(event, ToolCalled)] == [
        "rule 1 of more.toml: allow write_file `docs/**`, `secret/**`"
    ]
    assert [(event.granted, event.by, event.how) for event in events if isinstance(event, ApprovalGiven)] == [
        (False, "rule 2 of kestrel.toml", "rule")
    ]
    assert (Path("docs/a").exists(), Path("secret/a").exists()) == (True, False)
    lab.close()
    code, _, err = kestrel("run", "--resume", "x", "--rules", "more.toml")
    assert (code, "leave --rules out" in err) == (2, True)
