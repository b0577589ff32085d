"""Whether a level holds, tried on this machine: a command that does its best to get out, and must not."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from kestrel_lab.tools.environment import clean_environment
from kestrel_lab.tools.sandbox.launching import can_launch, run_blocking
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.sandbox.recipes import bwrap_path, launch_for
from kestrel_lab.tools.sandbox.seatbelt import can_seatbelt

PROBES = ("read outside", "write outside", "TCP", "Unix socket", "environment of the parent")
_SECONDS = 20.0

_PROBE = """
import hashlib, json, socket, sys
secret, target, port, place, parent, mark = json.loads(sys.argv[1])
leaks = []
def tried(name, attempt):
    try:
        if attempt():
            leaks.append(name)
    except OSError:
        pass
def connects(kind, address):
    with socket.socket(kind) as one:
        one.settimeout(2)
        one.connect(address)
        return True
tried("read outside", lambda: open(secret).read())
tried("write outside", lambda: open(target, "w").write("x"))
tried("TCP", lambda: port and connects(socket.AF_INET, ("127.0.0.1", port)))
tried("Unix socket", lambda: connects(socket.AF_UNIX, place))
tried("environment of the parent", lambda: hashlib.sha256(open(f"/proc/{parent}/environ", "rb").read()).hexdigest() == mark)
open("written", "w").write("yes")
print(json.dumps(leaks))
"""


def leaks(level: Level, sandbox: Sandbox) -> list[str]:
    """Which of `PROBES` got through at `level`; raises `OSError` with the reason where no command can be run at it at all.

    Takes about a tenth of a second. What a probe wrote outside counts by what is there, not by what the command said.
    With the network allowed TCP is not tried.
    """
    with tempfile.TemporaryDirectory(prefix="kestrel-canary-") as folder:
        root = Path(folder).resolve()
        workspace = root / "workspace"
        workspace.mkdir()
        secret, target, address = root / "secret", root / "target", workspace / "socket"
        secret.write_text("seen", encoding="utf-8")
        with closing(socket.socket(socket.AF_UNIX)) as door, closing(socket.create_server(("127.0.0.1", 0))) as tcp:
            door.bind(str(address))
            door.listen()
            port = 0 if sandbox.network else tcp.getsockname()[1]
            own = Path("/proc/self/environ")
            environ = own.read_bytes() if own.exists() else b""
            given = [str(secret), str(target), port, str(address), os.getpid(), hashlib.sha256(environ).hexdigest()]
            argv = [sys.executable, "-I", "-S", "-c", _PROBE, json.dumps(given)]
            private = root / "private"
            private.mkdir()
            launch = launch_for(level, argv, workspace=workspace, env=clean_environment(), sandbox=sandbox, private=private)
            code, output = run_blocking(launch, _SECONDS)
        if code != 0 or not (workspace / "written").exists():
            raise OSError(output.strip().splitlines()[-1][:300] if output.strip() else f"the probe ended with code {code}")
        found: list[str] = json.loads(output.strip().splitlines()[-1])
        if target.exists() and "write outside" not in found and target.read_text(encoding="utf-8"):
            found.append("write outside")
        if (level >= Level.S2) and "write outside" in found and not target.exists():
            found.remove("write outside")  # into a folder of the sandbox's own, which is gone with it
        return found


def why_not(level: Level, sandbox: Sandbox) -> str:
    """Why the level cannot be relied on here; empty where it can. Whatever goes wrong in asking is a reason."""
    if level is Level.S0:
        return ""
    if not can_launch() and not (level is Level.S1 and can_seatbelt()):
        return "this level needs Linux; macOS has S1 where sandbox-exec is there"
    if level >= Level.S2 and bwrap_path() is None:
        return "bubblewrap is not installed (apt install bubblewrap, or dnf install bubblewrap)"
    try:
        found = leaks(level, sandbox)
    except (OSError, ValueError) as error:
        return f"a command cannot be run at this level here: {error}"
    return f"the canary got out: {', '.join(found)}" if found else ""
