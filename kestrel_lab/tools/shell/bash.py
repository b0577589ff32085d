"""Tool `bash`: run any command in the workspace and in a sandbox, bounded in time and output."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.host.programs import find_program
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.files.workspace import Workspace
from kestrel_lab.tools.sandbox.command_lines import launch_for
from kestrel_lab.tools.sandbox.launcher_client import can_launch
from kestrel_lab.tools.sandbox.launcher_process import REPORT_FD
from kestrel_lab.tools.sandbox.levels import GIB, Level, denial_cause
from kestrel_lab.tools.sandbox.select import choose_level_async
from kestrel_lab.tools.shell.environment import clean_environment
from kestrel_lab.tools.shell.output import Capture, LiveOutput
from kestrel_lab.tools.shell.process import ProcessEnd, Sink, run_launched
from kestrel_lab.tools.tool import ToolContext

# Start and end folder of commands: after a `cd`, the next command starts in that folder if it is in the
# workspace.

ROOT = "."
_LONGEST = 65_536
_REPORTING = re.compile(r"trap 'builtin pwd -P >&\d+ 2>/dev/null' EXIT; ")


def with_folder_report(command: str, report: int) -> str:
    """Return `command` for bash, reporting its final folder on the file descriptor `report`.

    A command that sets its own exit trap, or is replaced by another program, reports nothing.
    """
    # On the same line as the command, so that line numbers in messages are those of the command.
    return f"trap 'builtin pwd -P >&{report} 2>/dev/null' EXIT; {command}"


def without_folder_report(text: str) -> str:
    """Return bash's message on an unreadable command, quoting the command as given."""
    return _REPORTING.sub("", text)


def starting_folder(workspace: Workspace, folder: str) -> tuple[str, str]:
    """Return `folder`, or the workspace with the reason if it is gone."""
    if folder == ROOT:
        return ROOT, ""
    try:
        os.close(workspace.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    except (OSError, ValueError):
        return ROOT, f"the folder {folder} is gone: this command began in the workspace folder again"
    return folder, ""


def ending_folder(workspace: Workspace, reported: bytes, before: str) -> tuple[str, str]:
    """Return the folder a command reported, relative to the workspace, and a note if the next starts
    elsewhere.
    """
    lines = [line for line in reported.split(b"\n") if line]
    if not lines:
        return before, ""
    try:
        place = Path(lines[-1].decode("utf-8"))
    except UnicodeDecodeError:
        return (
            ROOT,
            "the next command begins in the workspace folder: the name of the folder this one ended in "
            "is not UTF-8",
        )
    if place == workspace.root:
        return ROOT, ""
    if not place.is_absolute() or ".." in place.parts or workspace.root not in place.parents:
        return ROOT, f"the next command begins in the workspace folder: {place} lies outside it"
    return str(place.relative_to(workspace.root)), ""


def read_pipe(reading: int) -> bytes:
    """Return what was written to a pipe so far, without waiting."""
    # A background process may hold the writing end open for ever.
    os.set_blocking(reading, False)
    with suppress(BlockingIOError):
        return os.read(reading, _LONGEST)
    return b""


KEPT_STDOUT = 12_000
KEPT_STDERR = 6_000
"""Most bytes of output in the answer: more would fill the model's context."""
MAX_OUTPUT = 50_000_000
"""A command that writes more bytes is killed: it is in a loop."""
MAX_SECONDS = 600.0


@tool(
    danger_level=Danger.HIGH,
    effect="opaque",
    version="3",
    parallel_safe=False,
    sandbox=Level.S0,
    reads="workspace",
    reaches="workspace",
)
async def bash(command: str, ctx: ToolContext, timeout_s: float = 60.0) -> dict[str, Json]:
    """Run a bash command in the workspace directory and return its exit code and output.

    Nothing can be typed into it. When the time is up it is killed, with everything it started. Long
    output is shortened in the middle. The next command begins in the directory where this one ended, as
    long as that is in the workspace; variables do not carry over.

    Args:
        command: The command line, e.g. `python -m pytest -q tests`.
        ctx: The run it works for.
        timeout_s: Seconds it may take, at most 600.

    """
    if ctx.workspace.read_only:
        raise PermissionError("this workspace is read-only, and a command could write")
    if not 0 < timeout_s <= MAX_SECONDS:
        raise ValueError(f"timeout_s must be more than 0 and at most {MAX_SECONDS:.0f}, not {timeout_s}")
    if "\0" in command:
        raise ValueError("the command contains a NUL character")
    out, err = Capture(KEPT_STDOUT, ctx.redactor), Capture(KEPT_STDERR, ctx.redactor)
    choice = await choose_level_async(ctx.sandbox, ctx.workspace.root)
    folder, gone = starting_folder(ctx.workspace, ctx.folder)
    live = LiveOutput(lambda text: ctx.output(without_folder_report(text)), ctx.redactor)
    try:
        ended, reported = await _run(
            command, ctx, choice.level, folder, _output_sink(out, live), _output_sink(err, live), timeout_s
        )
    finally:
        live.close()
    folder, outside = ending_folder(ctx.workspace, reported, folder)
    if folder != ctx.folder:
        ctx.moved(folder)
    denied = denial_cause(choice.level, ctx.sandbox, err.text() + out.text()) if ended.exit_code else ""
    return _answer(
        ended,
        out,
        err,
        timeout_s,
        ctx.sandbox.memory,
        folder,
        "; ".join(note for note in (gone, outside, denied, *ended.notes) if note),
    )


def _answer(
    ended: ProcessEnd,
    out: Capture,
    err: Capture,
    timeout_s: float,
    memory: int | None,
    folder: str,
    note: str,
) -> dict[str, Json]:
    answer: dict[str, Json] = {
        "exit_code": None if ended.stopped else ended.exit_code,
        "stdout": out.text(),
        "stderr": without_folder_report(err.text()),
        "truncated": out.truncated or err.truncated,
        "seconds": round(ended.seconds, 2),
    }
    if ended.stopped:
        why = {"timeout": f"it took longer than {timeout_s:g} seconds", "output": "it wrote too much output"}
        if memory is not None:
            why["memory"] = (
                f"it took more than {memory / GIB:g} GiB of memory, the most that the setting "
                "sandbox_memory lets it have"
            )
        answer["killed"] = why.get(ended.stopped, "it started too many processes")
    if folder != ROOT:
        answer["directory"] = folder
    if note:
        answer["note"] = note
    return answer


async def _run(
    command: str, ctx: ToolContext, level: Level, folder: str, out: Sink, err: Sink, timeout_s: float
) -> tuple[ProcessEnd, bytes]:
    """Run the command; returns how it ended, and what it reported of the folder it ended in."""
    root = ctx.workspace.root
    if ctx.sandbox.container is not None:
        ended = await ctx.sandbox.container.shell(
            command, folder, stdout=out, stderr=err, timeout_s=timeout_s
        )
        return ended, b""
    reading, report = os.pipe()
    try:
        number = REPORT_FD if can_launch() else report
        if (program := find_program("bash")) is None:
            raise FileNotFoundError("bash is not installed on this machine")
        argv = [program, "--noprofile", "--norc", "-c", with_folder_report(command, number)]
        launch = launch_for(
            level, argv, workspace=root, env=clean_environment(), sandbox=ctx.sandbox, folder=root / folder
        )
        ended = await run_launched(launch, stdout=out, stderr=err, timeout_s=timeout_s, report=report)
        return ended, read_pipe(reading)
    finally:
        os.close(reading)
        os.close(report)


def _output_sink(capture: Capture, live: LiveOutput) -> Sink:
    report = live.stream()

    def take(piece: bytes) -> bool:
        capture.feed(piece)
        report(piece)
        return capture.total < MAX_OUTPUT

    return take
