"""`kestrel mcp`: from a configured server to its tools in a run, by commands alone."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kestrel_lab.cli.main import main

HOSTILE = Path(__file__).parents[1] / "engine" / "mcp_hostile.py"
Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with two servers configured; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "script.yaml").write_text("rules:\n- when: .\n  turns:\n  - - {tool: 'h:echo', args: {text: hello}}\n  - done\n")
    args = ["-S", str(HOSTILE), f"changed={tmp_path / 'now'}"]
    off = '[mcp.servers.off]\ncommand = "x"\nenabled = false\n'
    (tmp_path / "kestrel.toml").write_text(f'[mcp.servers.h]\ncommand = "{sys.executable}"\nargs = {args}\ndanger = "low"\n{off}')

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_a_server_is_looked_at_approved_used_and_withdrawn(kestrel: Kestrel, tmp_path: Path) -> None:
    """Nothing starts before approval; a run uses the tool; a change is shown as a diff; `doctor` and `mcp` say how each stands."""
    code, out, _ = kestrel("mcp")
    assert code == 0
    assert "not approved" in out
    assert "\noff " in out
    code, _, said = kestrel("mcp", "check", "h")
    assert code == 2
    assert f"it is not started. It would be: {sys.executable} -S {HOSTILE}" in said
    code, _, said = kestrel("run", "x", "--model", "scripted:script.yaml", "--tools", "h:*")
    assert code == 2
    assert "kestrel mcp approve h allows it" in said
    assert "approved: its tools may be offered" in kestrel("mcp", "approve", "h")[1]
    assert kestrel("run", "x", "--model", "scripted:script.yaml", "--tools", "h:*")[0] == 0
    assert "h:echo" in kestrel("tools")[1]
    assert "approved as it is" in kestrel("mcp", "check", "h")[1]
    (tmp_path / "now").write_text("")
    changed = kestrel("mcp", "check", "h")[1]
    assert '- "description": "A tool."' in changed
    assert '+ "description": "Another description."' in changed
    assert "not started, 14 tools" in kestrel("doctor")[1]
    assert kestrel("mcp", "withdraw", "h")[1] == "h is no longer approved\n"
    assert "not approved" in kestrel("mcp")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["check", "hh"], "there is no MCP server 'hh': did you mean 'h'?"),
        (["approve", "off"], "MCP server 'off' is switched off"),
        (["serve", "--approve", "ask"], "nobody can be asked here"),
        (["serve", "--tools", "raed_file"], "did you mean 'read_file'?"),
    ],
)
def test_wrong_words_are_answered(kestrel: Kestrel, words: list[str], said: str) -> None:
    """Exit code 2, and what to write."""
    code, _, error = kestrel("mcp", *words)
    assert code == 2
    assert said in error
