"""Claims about the commands: logging in, resources and prompts in a terminal, and kestrel as a server over
HTTP.
"""

import asyncio
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from offered import SERVER, Open
from waits import PATIENCE_S

from kestrel_lab.cli.commands import mcp as commands
from kestrel_lab.cli.main import main

Kestrel = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kestrel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], guarded: str
) -> Kestrel:
    """Runs a command line in a folder with a server that wants a login and one that does not."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    limits = f"start_timeout_s = {PATIENCE_S}\ntimeout_s = {PATIENCE_S}\n"
    (tmp_path / "kestrel.toml").write_text(
        f'[mcp.servers.g]\nurl = "{guarded}/mcp"\n{limits}[mcp.servers.o]\ncommand = '
        f'"{sys.executable}"\nargs = ["{SERVER}"]\n{limits}'
    )

    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(["mcp", *words])
        told = capsys.readouterr()
        return int(end.value.code or 0), told.out, told.err

    return run


def test_a_person_logs_in_with_a_browser_and_out_again(
    kestrel: Kestrel, guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page is opened; without a login, and of a server that has none, it is said what to do."""
    code, _, said = kestrel("check", "g", "--start")
    assert code != 0 and "kestrel mcp login g" in said and "Traceback" not in said
    monkeypatch.setattr(commands.webbrowser, "open", lambda address: urllib.request.urlopen(address).read())
    code, out, said = kestrel("login", "g")
    assert code == 0 and f"g ({guarded}/mcp) wants a login" in said
    assert "connected as you to g" in out and "secret-token" not in out + said
    assert "approved" in kestrel("approve", "g")[1]
    assert kestrel("logout", "g")[1] == "the login to g is forgotten\n"
    assert kestrel("logout", "g")[1] == "there is no login to g\n"
    assert "is started by a command and takes no login" in kestrel("login", "o")[2]


def test_resources_and_prompts_in_a_terminal(kestrel: Kestrel) -> None:
    """They are listed and printed, of an approved server only."""
    assert "kestrel mcp approve o" in kestrel("resources", "o")[2]
    kestrel("approve", "o")
    assert "notes://today  What is on today" in kestrel("resources", "o")[1]
    assert "feed the bird" in kestrel("resources", "o", "notes://today")[1]
    assert kestrel("prompts", "o")[1] == "greet name=…  Greet somebody.\n"
    assert kestrel("prompts", "o", "greet", "name=Ada")[1] == "Say hello to Ada.\n"
    assert "is not of the form KEY=VALUE" in kestrel("prompts", "o", "greet", "Ada")[2]


@pytest.mark.parametrize("token", [True, False])
def test_tools_are_served_over_http_to_whoever_has_the_token(
    opened: Open, tmp_path: Path, token: bool
) -> None:
    """Without the token nothing is answered, unless `--no-token` says so; pages of other sites are refused
    either way.
    """
    (tmp_path / "a.txt").write_text("seven")
    command = [
        sys.executable,
        "-m",
        "kestrel_lab",
        "mcp",
        "serve",
        "--http",
        "0",
        "--tools",
        "read_file",
        *([] if token else ["--no-token"]),
    ]
    environment = {**os.environ, "KESTREL_HOME": str(tmp_path / "served")}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None and program.stderr is not None
            url = program.stdout.readline().strip()
            said = program.stderr.readline()
            headers = {}
            if token:
                file = Path(said.split("the token in ")[1].split(" as ")[0])
                headers = {"Authorization": f"Bearer {file.read_text()}"}
                assert file.stat().st_mode & 0o077 == 0
            assert ("need no token" in said) is not token
            for more, status in (
                ({}, 401 if token else 0),
                ({"Origin": "https://evil.example", **headers}, 403),
            ):
                request = urllib.request.Request(url, b"{}", {"Content-Type": "application/json", **more})
                if status:
                    with pytest.raises(urllib.error.HTTPError, match=str(status)):
                        urllib.request.urlopen(request)
            session = opened(
                k={"url": url, "headers": headers, "timeout_s": PATIENCE_S, "start_timeout_s": PATIENCE_S}
            )
            pin = asyncio.run(session.mcp.approve("k")).tools["read_file"].pin
            answer = asyncio.run(session.mcp.call("k", "read_file", pin, {"path": "a.txt"}, lambda *_: None))
            assert str(answer).strip() == "seven"
            session.mcp.close()
        finally:
            program.terminate()
            program.communicate(timeout=PATIENCE_S)
