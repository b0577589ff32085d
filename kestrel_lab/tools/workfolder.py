"""Where a command begins and where it ended: a `cd` holds for the next command, as far as it stays in the workspace."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

from kestrel_lab.tools.workspace import Workspace

ROOT = "."
_LONGEST = 65_536
_REPORTING = re.compile(r"trap 'builtin pwd -P >&\d+ 2>/dev/null' EXIT; ")


def reporting(command: str, report: int) -> str:
    """`command` for bash, followed by a word on the file descriptor `report` about the folder it ends in.

    Nothing is told by a command that sets a trap for its end itself, or that another program takes the place of.
    """
    # On the line of the command: the numbers of lines in messages are those of the command.
    return f"trap 'builtin pwd -P >&{report} 2>/dev/null' EXIT; {command}"


def without_reporting(text: str) -> str:
    """What bash says of a command that it cannot read, quoted as it was given."""
    return _REPORTING.sub("", text)


def starting_folder(workspace: Workspace, folder: str) -> tuple[str, str]:
    """`folder`, or the workspace itself with the reason where it cannot be used any more."""
    if folder == ROOT:
        return ROOT, ""
    try:
        os.close(workspace.open(folder, os.O_RDONLY | os.O_DIRECTORY))
    except (OSError, ValueError):
        return ROOT, f"the folder {folder} is gone: this command began in the workspace folder again"
    return folder, ""


def ending_folder(workspace: Workspace, told: bytes, before: str) -> tuple[str, str]:
    """The folder that a command told of as seen from the workspace, and a note where the next one begins elsewhere."""
    lines = [line for line in told.split(b"\n") if line]
    if not lines:
        return before, ""
    try:
        place = Path(lines[-1].decode("utf-8"))
    except UnicodeDecodeError:
        return ROOT, "the next command begins in the workspace folder: the name of the folder this one ended in is no UTF-8"
    if place == workspace.root:
        return ROOT, ""
    if not place.is_absolute() or ".." in place.parts or workspace.root not in place.parents:
        return ROOT, f"the next command begins in the workspace folder: {place} lies outside it"
    return str(place.relative_to(workspace.root)), ""


def told(reading: int) -> bytes:
    """What was written to a pipe by now; the pipe is not waited for."""
    os.set_blocking(reading, False)
    with suppress(BlockingIOError):
        return os.read(reading, _LONGEST)
    return b""
