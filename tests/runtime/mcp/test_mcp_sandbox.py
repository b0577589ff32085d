"""Claims about MCP servers in a sandbox: they see what their table names, and it is told how far they are
held in.
"""

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import DependencyError, ToolError
from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.mcp.config import read_server
from kestrel_lab.mcp.sandboxing import installation_folder, network_hint
from kestrel_lab.mcp.stdio_transport import ServerLog
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.sandbox import select as choosing
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")

NOSY = str(Path(__file__).with_name("mcp_nosy.py"))


@pytest.fixture
def sessions(tmp_path: Path) -> Iterator[Any]:
    """Makes sessions with one server, which is called `nosy`."""
    opened: list[Lab] = []

    def make(sandbox: str = "auto", **table: Any) -> Lab:
        env = {
            "XDG_CONFIG_HOME": str(tmp_path / "config"),
            "PATH": os.environ["PATH"],
            "MY_KEY": "named",
            "OTHER_KEY": "not named",
        }
        server = read_server("nosy", {"command": sys.executable, "args": ["-I", "-S", NOSY], **table})
        opened.append(
            Lab(
                tmp_path / f"home{len(opened)}",
                env=env,
                mcp={"nosy": server},
                approve="auto",
                sandbox=sandbox,
            )
        )
        return opened[-1]

    yield make
    for session in opened:
        session.close()


def ask(session: Lab, tool: str = "look", **args: Any) -> str:
    """What the server's tool answers."""
    session.mcp.learn("nosy")
    definitions = session.mcp.approvals.tools(session.mcp.servers["nosy"].config)
    assert definitions is not None
    return asyncio.run(session.mcp.call("nosy", tool, definitions[tool].pin, args, lambda *_: None))


@pytest.mark.parametrize("level", ["S3", "S2", "S1"])
def test_a_server_reaches_what_its_table_names_and_nothing_else(
    sessions: Any, tmp_path: Path, level: str
) -> None:
    """At each level: no file of the user, no network, no write, no key that is not named; with `read`,
    `write` and `network` just these.
    """
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    place = tmp_path / "place"
    place.mkdir()
    (place / "secret").write_text("seen")
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        args = {
            "secret": str(place / "secret"),
            "target": str(place / "target"),
            "port": str(door.getsockname()[1]),
            "parent": os.getpid(),
        }
        closed = json.loads(ask(sessions(sandbox=level, env={"MY_KEY": "${MY_KEY}"}), **args))
        opened = sessions(sandbox=level, write=[str(place)], network=True)
        free = json.loads(ask(opened, **args))
    assert (closed["secret"], closed["writes"], closed["network"]) != ("seen", "written", "connected")
    assert {closed[name] for name in ("secret", "writes", "network")} <= {
        *("PermissionError", "FileNotFoundError", "ConnectionRefusedError", "OSError"),
    }
    assert (closed["parent"] is True, closed["names"], (place / "target").exists()) == (
        False,
        ["MY_KEY"],
        True,
    )
    assert (free["secret"], free["writes"], free["network"], free["names"]) == (
        "seen",
        "written",
        "connected",
        [],
    )
    assert [row.sandbox for row in opened.mcp.table()] == [f"{level}, network"]


def test_the_same_server_without_a_sandbox_reaches_everything(sessions: Any, tmp_path: Path) -> None:
    """The mutant: what the test above finds closed is open at S0, and the table says so."""
    (tmp_path / "secret").write_text("seen")
    session = sessions("S0")
    with closing(socket.create_server(("127.0.0.1", 0))) as door:
        port = str(door.getsockname()[1])
        found = json.loads(
            ask(
                session,
                secret=str(tmp_path / "secret"),
                target=str(tmp_path / "t"),
                port=port,
                parent=os.getpid(),
            )
        )
    assert (found["secret"], found["writes"], found["network"]) == ("seen", "written", "connected")
    assert [row.sandbox for row in session.mcp.table()] == ["S0"]


def test_where_no_level_can_be_had_a_server_is_not_started(
    sessions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why, and what to set; a table that asks for more than there is, is refused too."""
    tried = {(level, False, choosing.bwrap_path()): "not here" for level in Level if level > Level.S0}
    monkeypatch.setattr(choosing, "_VERDICTS", tried)
    with pytest.raises(
        DependencyError,
        match=r'S0: no sandbox; S3 and S2 and S1: not here\. It is not started: sandbox = "S0" in its table',
    ):
        ask(sessions())
    with pytest.raises(DependencyError, match="no sandbox of level S2 or above is available"):
        ask(sessions(at_least="S2"))
    assert json.loads(ask(sessions("S0"), secret="/", target="/", port="1", parent=1))["names"] == []


def test_a_failure_that_sounds_like_the_network_says_what_to_set(sessions: Any) -> None:
    """Only where the network is shut; other errors stay as they are."""
    if probe_level(Level.S1, Sandbox()):
        pytest.skip("no sandbox here")
    with pytest.raises(
        ToolError,
        match=r"EAI_AGAIN example\.org; it has no network: if it needs one, set network = true for the "
        r"MCP server 'nosy'",
    ):
        ask(sessions(), "fetch")
    with pytest.raises(ToolError, match=r"EAI_AGAIN example\.org$"):
        ask(sessions(network=True), "fetch")
    config = read_server("nosy", {"command": "x"})
    assert [network_hint(config, Level.S3, said) for said in ("FileNotFoundError: x", "no such page")] == [
        "",
        "",
    ]
    assert network_hint(read_server("n", {"command": "npx"}), Level.S3, "it was not ready within 20 s") != ""


def test_more_freedom_needs_a_new_approval_and_is_shown() -> None:
    """Network, places and no sandbox change what an approval is bound to, and stand beside the command; the
    defaults change nothing.
    """
    plain = read_server("a", {"command": "x"})
    free = [{"network": True}, {"write": ["."]}, {"read": ["/data"]}, {"sandbox": "S0"}]
    servers = [read_server("a", {"command": "x", **more}) for more in free]
    assert len({plain.key, *(one.key for one in servers)}) == 5
    assert [one.shown for one in (plain, *servers)] == [
        "x",
        "x  (with network)",
        "x  (writes .)",
        "x  (reads /data)",
        "x  (without a sandbox)",
    ]
    assert read_server("a", {"command": "x", "at_least": "S2"}).key == plain.key


def test_a_program_brings_along_what_it_was_installed_with(tmp_path: Path) -> None:
    """The environment of a script, the tree of a package; of a place that everything lies in, the file
    alone.
    """
    assert installation_folder(tmp_path / "env/bin/server") == tmp_path / "env"
    assert installation_folder(tmp_path / "s/node_modules/.bin/server") == tmp_path / "s"
    assert installation_folder(Path.home() / "server.py") == Path.home() / "server.py"
    assert installation_folder(Path.home() / ".local/bin/server") == Path.home() / ".local/bin/server"
    assert installation_folder(Path("/usr/bin/python3")) is None


def test_a_server_of_another_environment_works_from_a_hidden_folder(sessions: Any, tmp_path: Path) -> None:
    """Its own virtual environment lies in the lab's folder, which nothing in a sandbox sees: it alone is
    shown.
    """
    if probe_level(Level.S3, Sandbox()):
        pytest.skip("no bubblewrap here")
    folder = tmp_path / "home0" / "mcp" / "nosy"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (folder / "server.py").write_text(Path(NOSY).read_text())
    (tmp_path / "home0" / "log").write_text("log")
    session = sessions("S3", command=str(folder / "bin/python"), args=["-I", str(folder / "server.py")])
    found = json.loads(
        ask(session, secret=str(tmp_path / "home0/log"), target=str(folder / "x"), port="1", parent=1)
    )
    assert (found["secret"], found["writes"]) == ("FileNotFoundError", "OSError")


def test_a_run_says_which_tools_it_has_to_do_without(tmp_path: Path, workspace: Path) -> None:
    """A configured server that is not approved, or cannot be used, is warned of in the run's log and shown;
    named tools are no such case.
    """
    servers = {
        "mine": read_server("mine", {"command": "no-such-program"}, "kestrel.toml"),
        "broken": read_server("broken", {"command": "no-such-program"}),
        "off": read_server("off", {"command": "x", "enabled": False}, "kestrel.toml"),
    }
    session = Lab(
        tmp_path / "home",
        env={"XDG_CONFIG_HOME": str(tmp_path / "c"), "PATH": os.environ["PATH"]},
        mcp=servers,
    )
    run = session.run_sync("go", model=ScriptedModel(["done"]), workspace=workspace)
    warned = {
        event.dependency: (event.target, event.reason)
        for event in run.events()
        if isinstance(event, HealthChanged)
    }
    assert sorted(warned) == ["server broken", "server mine"]
    assert warned["server mine"] == (
        "not approved",
        "none of its tools are offered; kestrel mcp approve mine",
    )
    assert "no-such-program: No such file or directory" in warned["server broken"][1]
    assert (
        run.status,
        "mcp server mine is not approved: none of its tools are offered" in repr(run.report),
    ) == (RunStatus.COMPLETE, True)
    named = session.run_sync("go", model=ScriptedModel(["done"]), tools=["read_file"], workspace=workspace)
    assert not any(isinstance(event, HealthChanged) for event in named.events())
    session.close()


def test_a_server_cannot_write_a_secret_into_its_log(tmp_path: Path) -> None:
    """Said in two pieces, and at the very end: neither the file nor the last words, which errors quote, have
    it; the rest is kept.
    """
    log = ServerLog(tmp_path / "log", Redactor.of({"A_TOKEN": "plugh-xyzzy-1"}))
    log.write(b"starting with plugh-")
    log.write(b"xyzzy-1 now\nlast: plugh-xyzzy-1")
    assert log.last == "last: [REDACTED]"
    log.close()
    assert (tmp_path / "log").read_text() == "starting with [REDACTED] now\nlast: [REDACTED]"
