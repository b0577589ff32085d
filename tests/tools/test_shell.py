"""`bash`: bounded in time, output and what it leaves behind."""

import asyncio
import os
import resource
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import PATIENCE_S, until

from kestrel_lab.core.calls import Danger
from kestrel_lab.mcp.stdio_transport import start_server
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.launcher_client import Launch
from kestrel_lab.tools.shell import process
from kestrel_lab.tools.shell.bash import KEPT_STDOUT, bash
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.output import Capture
from kestrel_lab.tools.tool import ToolContext


async def call(root: Path, command: str, **options: Any) -> Any:
    """Run a command as the engine does."""
    return await bash.run(
        bash.validate({"command": command, **options}), ToolContext(workspace=Workspace(root))
    )


def shell(root: Path, command: str, **options: Any) -> Any:
    """The same, to its end."""
    return asyncio.run(call(root, command, **options))


def alive(mark: str) -> list[str]:
    """Processes whose command line has the mark."""
    listed = subprocess.run(
        ["ps", "-ww", "-eo", "stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    return [line for line in listed.splitlines() if mark in line and not line.startswith("Z")]


def gone(mark: str) -> bool:
    """Whether no such process is left, a moment for the kernel to clear up allowed."""
    return until(lambda: not alive(mark))


def test_it_returns_exit_code_and_both_streams(tmp_path: Path) -> None:
    """The command runs in the workspace, with nothing to read, and its streams are kept apart."""
    answer = shell(tmp_path, "pwd; cat; echo oops >&2; exit 3")
    seconds = answer.pop("seconds")
    assert answer == {
        "exit_code": 3,
        "stdout": f"{tmp_path.resolve()}\n",
        "stderr": "oops\n",
        "truncated": False,
    }
    assert 0 <= seconds < PATIENCE_S
    assert (bash.danger, bash.effect, bash.parallel_safe) == (Danger.HIGH, "opaque", False)


def test_a_signal_is_a_negative_exit_code(tmp_path: Path) -> None:
    """As Python has it."""
    assert shell(tmp_path, "kill -9 $$")["exit_code"] == -9


def test_a_timeout_kills_the_whole_group_and_keeps_the_output(tmp_path: Path) -> None:
    """What was written until then is returned, the reason is said, and no process of the group is left."""
    mark = f"{uuid.uuid4().int % 10**6 + 10**6}"
    for timeout_s in (0.5, 5.0, 50.0):  # a busy machine may not have begun within the first
        answer = shell(
            tmp_path,
            f"echo begun; sleep {mark} & (sleep {mark} & sleep {mark}); sleep {mark}",
            timeout_s=timeout_s,
        )
        if answer["stdout"]:
            break
    assert (answer["exit_code"], answer["stdout"], answer["killed"]) == (
        None,
        "begun\n",
        f"it took longer than {timeout_s:g} seconds",
    )
    assert gone(f"sleep {mark}")


def test_cancelling_kills_the_whole_group(tmp_path: Path) -> None:
    """The cancellation goes on to the caller, and no process is left."""
    mark = f"{uuid.uuid4().int % 10**6 + 2 * 10**6}"

    async def main() -> None:
        task = asyncio.create_task(call(tmp_path, f"sleep {mark} & sleep {mark}"))
        while len(alive(f"sleep {mark}")) < 2:
            await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert gone(f"sleep {mark}")


def test_a_background_process_does_not_outlive_the_command(tmp_path: Path) -> None:
    """The call returns when the command ends, although something it started still holds its output."""
    mark = f"{uuid.uuid4().int % 10**6 + 3 * 10**6}"
    answer = shell(tmp_path, f"sleep {mark} & echo done")
    assert (answer["exit_code"], answer["stdout"]) == (0, "done\n")
    assert gone(f"sleep {mark}")


def test_a_process_that_left_the_group_does_not_hold_the_call(tmp_path: Path) -> None:
    """A daemon survives until there is a sandbox, but nobody waits for it, and no file descriptor stays
    open.
    """
    shell(tmp_path, "true")  # what starts commands is kept open from the first on
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    mark = f"{uuid.uuid4().int % 10**6 + 4 * 10**6}"
    assert shell(tmp_path, f"setsid sleep {mark} & echo done")["stdout"] == "done\n"
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) == before


def test_a_flood_is_stopped_in_bounded_memory(tmp_path: Path) -> None:
    """`yes` is killed long before its time, flagged, and the memory of this process hardly grows."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = shell(tmp_path, "yes flood", timeout_s=PATIENCE_S)
    assert (answer["exit_code"], answer["truncated"], answer["killed"]) == (
        None,
        True,
        "it wrote too much output",
    )
    assert len(answer["stdout"]) < KEPT_STDOUT + 100
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kilobytes
    assert gone("yes flood")


def test_long_output_keeps_beginning_and_end(tmp_path: Path) -> None:
    """The line between says how much is left out."""
    answer = shell(tmp_path, "seq 100000")
    lines = answer["stdout"].splitlines()
    assert (answer["exit_code"], answer["truncated"], lines[0], lines[-1]) == (0, True, "1", "100000")
    assert "… 576,895 bytes left out …" in lines


@given(pieces=st.lists(st.binary(max_size=40), max_size=20), keep=st.integers(min_value=3, max_value=60))
def test_capture_holds_the_beginning_and_the_end(pieces: list[bytes], keep: int) -> None:
    """Law: everything when it fits, else exactly the first two thirds and the rest from the end of what was
    fed.
    """
    fed = b"".join(pieces)
    capture = Capture(keep)
    for piece in pieces:
        capture.feed(piece)
    assert (capture.total, capture.truncated) == (len(fed), len(fed) > keep)
    if len(fed) <= keep:
        assert capture.text() == fed.decode("utf-8", "replace")
    else:
        head, tail = fed[: keep * 2 // 3], fed[-(keep - keep * 2 // 3) :]
        expected = (
            f"{head.decode('utf-8', 'ignore')}\n… {len(fed) - keep:,} bytes left out "
            f"…\n{tail.decode('utf-8', 'ignore')}"
        )
        assert capture.text() == expected


def test_secrets_do_not_reach_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only listed variables pass, and none whose name speaks of a secret."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-8321")
    monkeypatch.setenv("LC_TOKEN", "tok-8321")
    monkeypatch.setenv("UNLISTED", "unl-8321")
    monkeypatch.setenv("LC_TIME", "C")
    out = shell(tmp_path, "env")["stdout"]
    assert ("sk-8321" in out, "tok-8321" in out, "unl-8321" in out, "LC_TIME=C" in out) == (
        False,
        False,
        False,
        True,
    )
    assert set(clean_environment({"A": "1"})) <= {
        "PATH",
        "TERM",
        "NO_COLOR",
        "PAGER",
        "GIT_PAGER",
        "GIT_TERMINAL_PROMPT",
    }


def test_python_in_a_command_is_this_python(tmp_path: Path) -> None:
    """A command finds the packages that the notebook has."""
    if sys.prefix == sys.base_prefix:
        pytest.skip("not in a virtual environment")
    assert shell(tmp_path, "python -c 'import sys; print(sys.prefix)'")["stdout"].strip() == sys.prefix


@pytest.mark.parametrize("options", [{"timeout_s": 0}, {"timeout_s": 601}, {"command": "a\0b"}])
def test_what_cannot_be_run_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Impossible times and NUL characters are explained before anything starts."""
    with pytest.raises(ValueError, match=r"timeout_s must be|NUL"):
        shell(tmp_path, options.pop("command", "true"), **options)


def test_a_read_only_workspace_has_no_shell(tmp_path: Path) -> None:
    """A command could write, so it is refused."""
    with pytest.raises(PermissionError, match="read-only"):
        asyncio.run(bash.run({"command": "true"}, ToolContext(workspace=Workspace(tmp_path, read_only=True))))


def test_it_runs_on_a_loop_of_another_thread(tmp_path: Path) -> None:
    """A notebook may run its agent beside the main thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(shell(tmp_path, "echo hi")["stdout"]))
    thread.start()
    thread.join(PATIENCE_S)
    assert found == ["hi\n"]


@pytest.mark.parametrize("launcher", [True, False])
def test_a_program_whose_input_stays_open_is_talked_to_and_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, launcher: bool
) -> None:
    """Servers and other agents: with the launcher of Linux, and as a child where there is none; what it
    started ends with it.
    """
    monkeypatch.setattr(process, "can_launch", lambda: launcher)
    mark = uuid.uuid4().hex
    left = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)', '{mark}'])"
    echo = f"import subprocess, sys\n{left}\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"

    async def conversation() -> tuple[bytes, int | None, int | None]:
        program = await start_server(
            Launch(argv=(sys.executable, "-c", echo), cwd=str(tmp_path), env=clean_environment())
        )
        await program.write(b"abc\n")
        said, running = await program.stdout.readline(), await program.code(0.05)
        assert alive(mark)
        await program.stop()
        return said, running, await program.code(PATIENCE_S)

    assert asyncio.run(conversation()) == (b"ABC\n", None, 0)
    until(lambda: not alive(mark))
