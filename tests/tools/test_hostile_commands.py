"""What a command tries that must not work, given to the `bash` tool as an agent would give it; and files that
run themselves.
"""

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.tools.files.tools import preview_edit, preview_write
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.autorun_list import autorun_reason
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.launcher_process import MAX_FILE
from kestrel_lab.tools.sandbox.levels import Level, Sandbox, denial_cause
from kestrel_lab.tools.shell.bash import bash
from kestrel_lab.tools.tool import ToolContext
from kestrel_lab.views.diffs import diff_stat, is_complete_diff

linux = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes need Linux")
HELD = ["S3", "S1"]


def shell(root: Path, level: str, command: str, *, network: bool = False) -> Any:
    """A command at a level."""
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    context = ToolContext(workspace=Workspace(root), sandbox=Sandbox(level=Level[level], network=network))
    return asyncio.run(bash.run(bash.validate({"command": command}), context))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with keys and a kernel's connection file, which is not the workspace."""
    folder = tmp_path / "home"
    for name in (".ssh/id_rsa", ".local/share/jupyter/runtime/kernel-1.json", ".aws/credentials"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("TOPSECRET")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("OPENAI_API_KEY", "TOPSECRET")
    (tmp_path / "work").mkdir()
    return folder


@linux
@pytest.mark.parametrize("level", HELD)
def test_keys_and_kernels_cannot_be_read(level: str, home: Path) -> None:
    """Neither by their names, nor found by a search, nor in the environment of the process that asked; at S0
    they can: the probe works.
    """
    command = (
        f"cat {home}/.ssh/id_rsa {home}/.local/share/jupyter/runtime/*.json; grep -rs TOPSECRET "
        f"{home}; tr '\\0' '\\n' </proc/{os.getpid()}/environ; env"
    )
    work = home.parent / "work"
    assert "TOPSECRET" not in str(shell(work, level, command))
    assert shell(work, "S0", command)["stdout"].count("TOPSECRET") >= 4


@linux
@pytest.mark.parametrize("level", HELD)
def test_nothing_gets_out_and_the_sandbox_says_so(level: str, tmp_path: Path) -> None:
    """TCP, names, UDP and Unix sockets are shut, and the answer says that it is the sandbox, not the program;
    with the network it does not.
    """
    place = tmp_path / "s"
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as tcp,
        closing(socket.socket(socket.AF_UNIX)) as unix,
    ):
        unix.bind(str(place))
        unix.listen()
        port = tcp.getsockname()[1]
        by_tcp = shell(tmp_path, level, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo out")
        by_name = shell(
            tmp_path,
            level,
            f"{sys.executable} -c 'import socket; socket.getaddrinfo(\"localhost.example\", 80)'",
        )
        by_socket = shell(
            tmp_path,
            level,
            f'{sys.executable} -c \'import socket; socket.socket(socket.AF_UNIX).connect("s"); '
            'print("out")\'',
        )
        opened = shell(tmp_path, level, f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo out", network=True)
    assert [answer["stdout"] for answer in (by_tcp, by_name, by_socket, opened)] == ["", "", "", "out\n"]
    assert by_tcp["exit_code"] != 0
    assert f"the sandbox ({level}) lets commands have no network" in by_name["note"]
    assert "note" not in opened


def test_only_what_sounds_like_the_sandbox_is_said_to_be_its_doing() -> None:
    """Other errors, no sandbox, and a network that is open are left alone."""
    refused, missing = (
        "curl: (7) Failed to connect to example.org",
        "ls: cannot access 'x': No such file or directory",
    )
    held = [
        denial_cause(Level.S3, Sandbox(), said) != ""
        for said in (refused, "touch: /x: Read-only file system", missing)
    ]
    assert held == [True, True, False]
    assert (
        denial_cause(Level.S0, Sandbox(), refused),
        denial_cause(Level.S3, Sandbox(network=True), refused),
    ) == ("", "")


@linux
@pytest.mark.parametrize("level", ["S3", "S1", "S0"])
def test_a_file_has_a_bound(level: str, tmp_path: Path) -> None:
    """Fifty gigabytes are refused at once, at every level; what is written in memory has a bound of its
    own.
    """
    answer = shell(
        tmp_path,
        level,
        f"truncate -s {5 * MAX_FILE} big; ls -s big | cut -d' ' -f1; truncate -s 1G fine && rm fine && "
        "echo fine",
    )
    assert answer["stdout"] == "0\nfine\n"
    if level == "S3":
        assert int(shell(tmp_path, level, "df --output=size -B1 /tmp | tail -1")["stdout"]) <= 4 * 1024**3
        assert shell(tmp_path, level, "touch /run/x /var/tmp/x")["exit_code"] == 1


SELF_RUNNING = {
    "conftest.py": "pytest",
    "tests/sub/conftest.py": "pytest",
    "sitecustomize.py": "Python",
    "lib/evil.pth": "Python",
    "./.BASHRC": "every new shell",
    "x/../Makefile": "make",
    ".github/workflows/ci.yml": "the forge",
    "notes/Untitled.ipynb": "notebook",
    ".vscode/tasks.json": "the editor",
    ".mcp.json": "servers",
    ".envrc": "direnv",
}


@pytest.mark.parametrize(("path", "who"), SELF_RUNNING.items())
def test_a_change_to_a_file_that_runs_itself_is_shown_as_that(path: str, who: str, tmp_path: Path) -> None:
    """The preview that a person approves ends with who runs the file; it is still the whole diff, and counts
    no line more.
    """
    context = ToolContext(workspace=Workspace(tmp_path))
    (tmp_path / "x").mkdir()
    shown = preview_write({"path": path, "content": "a\nb\n"}, context)
    assert shown.splitlines()[-1].startswith("Note: ")
    assert who in shown.splitlines()[-1]
    assert (is_complete_diff(shown), diff_stat(shown)) == (True, "+2 \u22120 lines")


def test_ordinary_files_have_no_such_word(tmp_path: Path) -> None:
    """Nor has an edit that would fail."""
    context = ToolContext(workspace=Workspace(tmp_path))
    assert [
        autorun_reason(path)
        for path in ("a.py", "conftest.py.txt", "github/workflows/x.yml", "my.json", "docs/setup.md")
    ] == [""] * 5
    assert "Note:" not in preview_write({"path": "a.py", "content": "x"}, context)
    assert "Note:" not in preview_write({"path": "b/conftests.py", "content": "x"}, context)
    (tmp_path / "conftest.py").write_text("a = 1\n")
    assert (
        preview_edit({"path": "conftest.py", "old": "1", "new": "2"}, context)
        .splitlines()[-1]
        .startswith("Note: pytest")
    )


PLANTED = {
    "settings of a nested repository": (
        "git init -q sub; git -C sub config core.fsmonitor x",
        "sub/.git/config",
    ),
    "a commondir": (
        "mkdir -p x/.git && echo ref: refs/heads/m > x/.git/HEAD && echo ../y > x/.git/commondir",
        "x/.git/commondir",
    ),
    "alternates": (
        "git init -q a && echo /x > a/.git/objects/info/alternates",
        "a/.git/objects/info/alternates",
    ),
    "a hook where hooks were missing": (
        "git init -q --template= h && mkdir h/.git/hooks && echo x > h/.git/hooks/pre-commit",
        "h/.git/hooks/pre-commit",
    ),
    "settings of a bare repository": ("git init -q --bare b; git -C b config core.pager x", "b/config"),
    "a file that says where": ("mkdir w && echo gitdir: ../b > w/.git", "w/.git"),
    "a moved conftest": ("mkdir t && echo x > t/c && mv t/c t/conftest.py", "t/conftest.py"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_a_command_leaves_that_runs_itself_is_told(what: str, tmp_path: Path) -> None:
    """The answer names the file and who runs it; the next command, which touches none, has no such word."""
    command, path = PLANTED[what]
    note = str(shell(tmp_path, "S0", command).get("note"))
    assert f"{path} (" in note
    assert "note" not in shell(tmp_path, "S0", "echo x > plain; ls")


def test_what_settings_of_a_repository_include_is_told(tmp_path: Path) -> None:
    """A change to a file that a repository's settings include, or to a folder that they take hooks from,
    wherever it lies.
    """
    prepared = (
        "git init -q r && git -C r config include.path ../../notes && git -C r config core.hooksPath "
        "tools/h && mkdir -p r/tools/h"
    )
    # A person's settings: those of a command would be put back.
    subprocess.run(["bash", "-c", prepared], cwd=tmp_path, check=True)
    assert "notes (the settings of a repository include it)" in str(
        shell(tmp_path, "S0", "echo x > notes")["note"]
    )
    assert "r/tools/h/post-checkout (git runs it)" in str(
        shell(tmp_path, "S0", "echo x > r/tools/h/post-checkout")["note"]
    )


def test_a_time_that_is_set_back_hides_nothing(tmp_path: Path) -> None:
    """The mutant: by its own time the file is old, by the system's it is not."""
    note = shell(tmp_path, "S0", "echo x > conftest.py && touch -d 2001-01-01 conftest.py")["note"]
    assert "conftest.py (pytest runs it" in str(note)
    assert (tmp_path / "conftest.py").stat().st_mtime < 1_000_000_000
