"""A `cd` holds for the next command, stays in the workspace, and is told."""

import asyncio
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.canary import probe_level
from kestrel_lab.tools.sandbox.levels import Level, Sandbox
from kestrel_lab.tools.shell.bash import bash, ending_folder
from kestrel_lab.tools.tool import ToolContext


class Shell:
    """Commands of one step, as the engine gives them their folder."""

    def __init__(self, root: Path, level: Level = Level.S0) -> None:
        self.workspace, self.sandbox, self.folder = Workspace(root), Sandbox(level=level), "."

    def __call__(self, command: str) -> Any:
        """Run one."""
        return asyncio.run(bash.run(bash.validate({"command": command}), self.context()))

    def context(self) -> ToolContext:
        """What it is given."""
        return ToolContext(
            workspace=self.workspace, sandbox=self.sandbox, folder=self.folder, moved=self.move
        )

    def move(self, folder: str) -> None:
        """Take up a change."""
        self.folder = folder


@pytest.mark.parametrize("level", ["S0", "S1", "S3"])
def test_the_next_command_begins_where_the_last_one_ended(tmp_path: Path, level: str) -> None:
    """Through exits and errors, not through a subshell; code, lines and messages are those of the command;
    variables are not kept.
    """
    if problem := probe_level(Level[level], Sandbox()):
        pytest.skip(problem)
    run = Shell(tmp_path.resolve(), Level[level])
    assert run("mkdir -p a/b && cd a/b && exit 3")["exit_code"] == 3
    first = run("pwd; X=1; export X; (cd /); echo 'a'\nif fi")
    assert (first["stdout"], first["directory"]) == (f"{tmp_path.resolve()}/a/b\na\n", "a/b")
    assert first["stderr"].splitlines() == [
        f"{bash_name()}: -c: line 2: {rest}"
        for rest in ("syntax error near unexpected token `fi'", "`if fi'")
    ]
    assert run("echo $X; cd ..; echo $LINENO; nope")["stdout"] == "\n1\n"
    assert run("cd - 2>/dev/null; kill -9 $$")["exit_code"] == -9
    assert run("basename $PWD")["stdout"] == "a\n"


def bash_name() -> str:
    """What bash calls itself in messages."""
    return str(shutil.which("bash"))


@pytest.mark.parametrize("place", ["/", "/usr", "..", "out"])
def test_a_folder_outside_is_left_again(tmp_path: Path, place: str) -> None:
    """By a path or through a link: the next command begins in the workspace, and the answer says so."""
    root = tmp_path / "work"
    root.mkdir()
    (root / "out").symlink_to("/usr")
    run = Shell(root.resolve())
    run("mkdir in; cd in")
    answer = run(f"cd ../{place}" if place in ("..", "out") else f"cd {place}")
    assert answer["note"].startswith("the next command begins in the workspace folder: /")
    assert ("directory" in answer, run("pwd")["stdout"]) == (False, f"{root.resolve()}\n")


def test_a_folder_that_is_gone_or_turned_into_a_way_out_is_not_entered(tmp_path: Path) -> None:
    """Deleted by somebody, or replaced by a link that leads outside: the command begins in the workspace, and
    the answer says so.
    """
    run = Shell(tmp_path.resolve())
    run("mkdir sub; cd sub")
    (tmp_path / "sub").rmdir()
    answer = run("pwd")
    assert (answer["stdout"], answer["note"]) == (
        f"{tmp_path.resolve()}\n",
        "the folder sub is gone: this command began in the workspace folder again",
    )
    assert "note" not in run("mkdir sub; cd sub")
    (tmp_path / "sub").rmdir()
    (tmp_path / "sub").symlink_to("/usr")
    assert run("pwd")["stdout"] == f"{tmp_path.resolve()}\n"


def test_a_command_cannot_lie_itself_out(tmp_path: Path) -> None:
    """What a command tells of its folder is believed only beneath the workspace."""
    workspace = Workspace(tmp_path)
    root = str(tmp_path.resolve()).encode()
    for lie in (
        b"/etc\n",
        root + b"/../x\n",
        b"../x\n",
        b"\xff\n",
        root + b"-beside\n",
        root + b"/a/../../x\n",
    ):
        folder, note = ending_folder(workspace, lie, "kept")
        assert (folder, note.startswith("the next command begins in the workspace folder")) == (".", True)
    assert ending_folder(workspace, b"", "kept") == ("kept", "")
    assert ending_folder(workspace, b"junk\n" + root + b"/a\n", "kept") == ("a", "")


def test_commands_at_once_do_not_move_each_other(tmp_path: Path) -> None:
    """Two steps that change folders at the same time each go on in their own; no file descriptor stays
    open.
    """
    for name in "ab":
        (tmp_path / name).mkdir()
    shells = [Shell(tmp_path.resolve()), Shell(tmp_path.resolve())]
    shells[0]("true")
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0

    async def main() -> None:
        for words in ("cd a; sleep 0.05", "cd b; sleep 0.05"), ("pwd > out", "pwd > out"):
            await asyncio.gather(
                *(
                    bash.run(bash.validate({"command": word}), one.context())
                    for one, word in zip(shells, words, strict=True)
                )
            )

    asyncio.run(main())
    assert [(tmp_path / name / "out").read_text() for name in "ab"] == [
        f"{tmp_path.resolve()}/{name}\n" for name in "ab"
    ]
    assert (len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0) == before
