"""`kestrel mcp`: from a configured server to its tools in a run, by commands alone."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_uv import entry, make_uv, write_catalogue
from in_process import home_of

from kestrel_lab.cli.main import main

HOSTILE = Path(__file__).parents[1] / "runtime" / "mcp" / "mcp_hostile.py"
Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Kestrel:
    """Runs a command line in a folder with two servers configured; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "script.yaml").write_text(
        "rules:\n- when: .\n  turns:\n  - - {tool: 'h:echo', args: {text: hello}}\n  - done\n"
    )
    args = ["-S", str(HOSTILE), f"changed={tmp_path / 'now'}"]
    off = '[mcp.servers.off]\ncommand = "x"\nenabled = false\n'
    (tmp_path / "kestrel.toml").write_text(
        f'[mcp.servers.h]\ncommand = "{sys.executable}"\nargs = {args}\ndanger = "low"\n{off}'
    )

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(list(words))
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_a_server_is_looked_at_approved_used_and_withdrawn(kestrel: Kestrel, tmp_path: Path) -> None:
    """Nothing starts before approval; a run uses the tool; a change is shown as a diff; `doctor` and `mcp`
    say how each stands.
    """
    code, out, _ = kestrel("mcp")
    assert code == 0
    assert "not approved" in out
    assert "\noff " in out
    code, _, said = kestrel("mcp", "check", "h")
    assert code == 2
    assert f"it is not started. Its command: {sys.executable} -S {HOSTILE}" in said
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
        (["serve", "--approve", "ask"], "this server asks nobody"),
        (["serve", "--tools", "raed_file"], "did you mean 'read_file'?"),
    ],
)
def test_wrong_words_are_answered(kestrel: Kestrel, words: list[str], said: str) -> None:
    """Exit code 2, and what to write."""
    code, _, error = kestrel("mcp", *words)
    assert code == 2
    assert said in error


def test_a_server_is_found_shown_installed_used_and_removed(
    kestrel: Kestrel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is installed before `--yes`; what it would run is shown whole; a run is offered the tools where
    it names them.
    """
    monkeypatch.setenv("PATH", make_uv(tmp_path / "uv"))
    monkeypatch.setenv("KESTREL_MCP_CATALOGUE", write_catalogue(tmp_path / "catalogue.jsonl", entry()))
    (tmp_path / "echo.yaml").write_text(
        "rules:\n- when: .\n  turns:\n  - - {tool: 'echo:echo', args: {text: hello}}\n  - done\n"
    )
    out = kestrel("mcp", "find", "echo", "some", "text")[1]
    assert "io.github.someone/mcp-echo" in out and "75 of 100" in out
    assert "nothing was found for 'bake bread'" in kestrel("mcp", "find", "bake", "bread")[1]
    out = "".join(kestrel("mcp", "install", "mcp-echo")[1].split())
    folder = str(home_of(tmp_path) / "mcp" / "mcp-echo-1.0.0")
    assert (
        f"thenstarts:{folder}/bin/mcp-echo" in out
        and "nothingwasinstalledyet:kestrelmcpinstallmcp-echo==1.0.0--yesdoesit" in out
    )
    assert "no MCP server is installed" in kestrel("mcp", "installed")[1]
    assert "installed as echo: echo:echo" in kestrel("mcp", "install", "mcp-echo==1.0.0", "--yes")[1]
    assert "as installed" in kestrel("mcp", "installed")[1]
    run = ("run", "x", "--model", "scripted:echo.yaml", "--approve", "auto")
    assert "hello" in kestrel(*run, "--tools", "echo")[1]
    assert "there is no tool 'echo:echo'" in kestrel(*run)[1]
    assert kestrel("mcp", "remove", "echo")[1] == "mcp-echo==1.0.0 is removed\n"
    assert "no MCP server is installed" in kestrel("mcp", "installed")[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["install", "npx evil && curl x"], "it has no version"),
        (["install", "mcp-server-time==latest"], "is not one exact version"),
        (["remove", "tim"], "no MCP server 'tim' is installed"),
    ],
)
def test_what_cannot_be_installed_is_said(kestrel: Kestrel, words: list[str], said: str) -> None:
    """Exit code 2, and why."""
    code, _, error = kestrel("mcp", *words)
    assert (code, said in error) == (2, True)
