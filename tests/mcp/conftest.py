"""Sessions with MCP servers, and a server behind OAuth."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from ports import free_port
from waits import until

from kestrel_lab.lab import Lab
from kestrel_lab.mcp.config import read_server

sys.path.insert(0, str(Path(__file__).parent))

from offered import SERVER, Open  # beside this file


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Open]:
    """Sessions of one user, each with a home of its own."""
    sessions: list[Lab] = []

    def open_session(**tables: dict[str, Any]) -> Lab:
        env = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
        servers = {name: read_server(name, table) for name, table in tables.items()}
        sessions.append(
            Lab(tmp_path / f"home{len(sessions)}", env=env, mcp=servers, approve="auto", containment="off")
        )
        return sessions[-1]

    yield open_session
    for session in sessions:
        session.close()


@pytest.fixture(scope="session")
def guarded_starter() -> Iterator[subprocess.Popen[str]]:
    """A process that starts servers behind OAuth, which takes a line with port and lives of tokens each; it
    prints their ids.
    """
    with subprocess.Popen(
        [sys.executable, SERVER, "guarded"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process


@pytest.fixture
def guarded(request: pytest.FixtureRequest, guarded_starter: subprocess.Popen[str]) -> Iterator[str]:
    """A server behind OAuth, whose tokens live as many seconds as the test says: its address without a
    path.
    """
    port = free_port()
    assert guarded_starter.stdin is not None
    assert guarded_starter.stdout is not None
    print(port, getattr(request, "param", 3600), file=guarded_starter.stdin, flush=True)
    process = int(guarded_starter.stdout.readline())

    def listens() -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    until(listens)
    yield f"http://127.0.0.1:{port}"
    os.kill(process, signal.SIGKILL)
