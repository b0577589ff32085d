"""Canary: tests whether a sandbox level holds on this machine by a command that tries to get out."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from kestrel_lab.tools.sandbox.command_lines import bwrap_path, launch_with_places
from kestrel_lab.tools.sandbox.launcher_client import Launch, can_launch, run_blocking
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.environment import clean_environment

PROBES = (
    *("read outside", "write outside", "TCP", "Unix socket", "environment of the parent"),
    *("settings of the kernel", "settings of git", "link of a worktree"),
)
_GIT = "settings of git"
"""S1 cannot protect parts of a writable folder, and reports that."""
_SECONDS = 20.0
_OLD = "Unknown option"
Start = Callable[..., Launch]

_PROBE = """
import hashlib, json, os, socket, sys
secret, target, port, place, parent, mark, linked = json.loads(sys.argv[1])
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
tried("environment of the parent", lambda: hashlib.sha256(open(f"/proc/{parent}/environ", \
"rb").read()).hexdigest() == mark)
def sets(*names):
    for name in names:
        try:
            os.close(os.open(name, os.O_WRONLY))
            return True
        except OSError:
            pass
tried("settings of the kernel", lambda: sets("/proc/self/comm", "/proc/sys/kernel/core_pattern", \
"/proc/sysrq-trigger",
    "/sys/kernel/uevent_helper", "/sys/power/state", "/sys/kernel/mm/transparent_hugepage/enabled"))
tried("link of a worktree", lambda: open(linked).read())
for name, text in ((".git/commondir", "../other"), (".git/config", "[core]fsmonitor=x"), \
    (".git/hooks/post-commit", "true")):
    tried("", lambda: os.makedirs(os.path.dirname(name), exist_ok=True) or open(name, "w").write(text) and \
False)
open("written", "w").write("yes")
print(json.dumps(leaks))
"""


def find_leaks(level: Level, sandbox: Sandbox, start: Start = launch_with_places) -> list[str]:
    """Return which of `PROBES` got through at `level`; raises `OSError` with the reason where no command can
    be run at it at all.

    Takes about a tenth of a second. What a probe wrote outside counts by what is there, not by what the
    command said. With the network allowed TCP is not tried. `start` says how a command is started, for trying
    the canary itself.
    """
    with tempfile.TemporaryDirectory(prefix="kestrel-canary-") as folder:
        root = Path(folder).resolve()
        workspace, tree = root / "workspace", root / "tree"
        repository, linked = _repository(workspace), _worktree(tree, root)
        secret, target, address = root / "secret", root / "target", workspace / "socket"
        secret.write_text("seen", encoding="utf-8")
        with (
            closing(socket.socket(socket.AF_UNIX)) as door,
            closing(socket.create_server(("127.0.0.1", 0))) as tcp,
        ):
            door.bind(str(address))
            door.listen()
            port = 0 if sandbox.network else tcp.getsockname()[1]
            own = Path("/proc/self/environ")
            environ = own.read_bytes() if own.exists() else b""
            given = [
                str(secret),
                str(target),
                port,
                str(address),
                os.getpid(),
                hashlib.sha256(environ).hexdigest(),
                str(linked),
            ]
            plain = Launch(
                argv=(sys.executable, "-I", "-S", "-c", _PROBE, json.dumps(given)),
                cwd=str(workspace),
                env=clean_environment(),
            )
            code, output = run_blocking(
                start(level, plain, read=(), write=(workspace, tree), sandbox=sandbox), _SECONDS
            )
        if code != 0 or not (workspace / "written").exists():
            raise OSError(_reason(output) or f"the probe ended with code {code}")
        # Maybe into a folder that is gone with it.
        said = set(json.loads(output.strip().splitlines()[-1])) - {"write outside"}
        if target.exists() and target.read_text(encoding="utf-8"):
            said.add("write outside")
        if level is not Level.S1 and _repository_now(workspace) != repository:
            said.add(_GIT)
        return [name for name in PROBES if name in said]


def _repository(workspace: Path) -> dict[str, str]:
    """Make a folder that git takes for a repository; returns the files of it that git runs and obeys."""
    for name in ("objects", "refs"):
        (workspace / ".git" / name).mkdir(parents=True)
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n", encoding="utf-8")
    (workspace / ".git/config").write_text("[core]\n\trepositoryformatversion = 0\n", encoding="utf-8")
    return _repository_now(workspace)


def _repository_now(workspace: Path) -> dict[str, str]:
    names = (".git/config", ".git/commondir", ".git/hooks/post-commit")
    return {name: place.read_text(encoding="utf-8") for name in names if (place := workspace / name).exists()}


def _worktree(tree: Path, root: Path) -> Path:
    """Make a worktree whose repository has a link in place of its logs; return a file outside."""
    repository, own, elsewhere = root / "repository", root / "repository/worktrees/tree", root / "elsewhere"
    for place in (tree, own, repository / "objects", repository / "refs", elsewhere):
        place.mkdir(parents=True)
    (repository / "logs").symlink_to(elsewhere)
    for file, text in (
        (tree / ".git", f"gitdir: {own}"),
        (own / "gitdir", str(tree / ".git")),
        (own / "commondir", "../.."),
    ):
        file.write_text(f"{text}\n", encoding="utf-8")
    (elsewhere / "kept").write_text("seen", encoding="utf-8")
    return elsewhere / "kept"


def _reason(output: str) -> str:
    """Return why no command could be run, as the program that should have started it reported."""
    last = output.strip().splitlines()[-1][:300] if output.strip() else ""
    return (
        f"bubblewrap is too old ({last}): it needs --bind-fd, which 0.10 and security updates of "
        "earlier ones have"
        if _OLD in last
        else last
    )


def probe_level(level: Level, sandbox: Sandbox) -> str:
    """Return why the level is unreliable here; empty if it is reliable.

    A failure of the test itself is a reason too.
    """
    if level is Level.S0:
        return ""
    if not can_launch():
        return "this level needs Linux"
    if level >= Level.S2 and bwrap_path() is None:
        return "bubblewrap is not installed (apt install bubblewrap, or dnf install bubblewrap)"
    try:
        found = find_leaks(level, sandbox)
    except (OSError, ValueError) as error:
        return f"a command cannot be run at this level here: {error}"
    return f"the canary got out: {', '.join(found)}" if found else ""
