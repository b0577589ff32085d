"""`bash`: any command, in the workspace and in a sandbox, bounded in time and output."""

from __future__ import annotations

import shutil

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.tools.capture import Capture
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.environment import clean_environment
from kestrel_lab.tools.process import Ended, Sink, run_launched, run_process
from kestrel_lab.tools.registry import ToolContext
from kestrel_lab.tools.sandbox.choose import chosen
from kestrel_lab.tools.sandbox.launching import can_launch
from kestrel_lab.tools.sandbox.levels import Level
from kestrel_lab.tools.sandbox.recipes import launch_for

KEPT_STDOUT = 12_000
KEPT_STDERR = 6_000
"""Bytes of output that are kept; more than a model can use costs it the rest of its context."""
MAX_OUTPUT = 50_000_000
"""Bytes after which a command is killed: it is in a loop."""
MAX_SECONDS = 600.0


@tool(danger_level=Danger.HIGH, effect="opaque", version="2", parallel_safe=False, sandbox=Level.S0, reads="workspace", reaches="workspace")
async def bash(command: str, ctx: ToolContext, timeout_s: float = 60.0) -> dict[str, Json]:
    """Run a bash command in the workspace directory and return its exit code and output.

    Nothing can be typed into it. When the time is up it is killed, with everything it started. Long
    output is shortened in the middle. Each command starts anew: cd and variables do not carry over.

    Args:
        command: The command line, e.g. `python -m pytest -q tests`.
        ctx: The run it works for.
        timeout_s: Seconds it may take, at most 600.

    """
    if ctx.workspace.read_only:
        msg = "this workspace is read-only, and a command could write"
        raise PermissionError(msg)
    if not 0 < timeout_s <= MAX_SECONDS:
        msg = f"timeout_s must be more than 0 and at most {MAX_SECONDS:.0f}, not {timeout_s}"
        raise ValueError(msg)
    if "\0" in command:
        msg = "the command contains a NUL character"
        raise ValueError(msg)
    out, err = Capture(KEPT_STDOUT), Capture(KEPT_STDERR)
    choice = await chosen(ctx.sandbox, ctx.workspace.root)
    ended = await _run(command, ctx, choice.level, _sink(out), _sink(err), timeout_s)
    answer: dict[str, Json] = {
        "exit_code": None if ended.stopped else ended.exit_code,
        "stdout": out.text(),
        "stderr": err.text(),
        "truncated": out.truncated or err.truncated,
        "seconds": round(ended.seconds, 2),
    }
    if ended.stopped:
        why = {"timeout": f"it took longer than {timeout_s:g} seconds", "output": "it wrote too much output"}
        answer["killed"] = why.get(ended.stopped, "it started too many processes")
    return answer


async def _run(command: str, ctx: ToolContext, level: Level, out: Sink, err: Sink, timeout_s: float) -> Ended:
    argv = [_bash_path(), "--noprofile", "--norc", "-c", command]
    if not can_launch():  # only the process group is killed there, what moved out of it survives
        return await run_process(argv, cwd=str(ctx.workspace.root), env=clean_environment(), stdout=out, stderr=err, timeout_s=timeout_s)
    launch = launch_for(level, argv, workspace=ctx.workspace.root, env=clean_environment(), sandbox=ctx.sandbox)
    return await run_launched(launch, stdout=out, stderr=err, timeout_s=timeout_s)


def _sink(capture: Capture) -> Sink:
    def take(piece: bytes) -> bool:
        capture.feed(piece)
        return capture.total < MAX_OUTPUT

    return take


def _bash_path() -> str:
    if found := shutil.which("bash"):
        return found
    msg = "bash is not installed on this machine"
    raise FileNotFoundError(msg)
