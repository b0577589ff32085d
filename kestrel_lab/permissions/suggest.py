"""Suggested patterns: the commands that a person can allow for the rest of a run together with the one in question."""

from __future__ import annotations

import re
import shlex

from kestrel_lab.core.calls import Call
from kestrel_lab.permissions.command_patterns import MORE, CommandPattern
from kestrel_lab.shell_syntax.parser import COMMAND, read_line

_WITH_SUBCOMMANDS_WORDS = (
    "git hg cargo npm pnpm yarn go pip pip3 docker podman kubectl gh brew apt conda mamba ruff dotnet terraform poetry systemctl"
)
_WITH_SUBCOMMANDS = frozenset(_WITH_SUBCOMMANDS_WORDS.split())
_SUBCOMMAND = re.compile(r"[a-z][a-z0-9-]*")


def offer(call: Call) -> str:
    """Return a pattern such as `git diff ...` for a line that is one plain command with a word of what to do; empty for any other line.

    Never for a line with operators, substitutions, redirections or anything else that is not clear, and only for programs
    whose first word says what they do: other commands may be allowed again as they are.
    """
    text = call.args.get(COMMAND)
    line = read_line(text) if isinstance(text, str) else None
    if line is None or line.unclear or len(line.commands) != 1 or re.search(r"[;|&$()<>`\n]", str(text)):
        return ""
    program, *rest = line.commands[0]
    if program not in _WITH_SUBCOMMANDS or not rest or not _SUBCOMMAND.fullmatch(rest[0] or ""):
        return ""
    pattern = f"{shlex.join([program, str(rest[0])])} {MORE}"
    return pattern if CommandPattern.parse(pattern).allows(line.commands[0]) else ""


def covers(pattern: CommandPattern, call: Call) -> bool:
    """Return whether the command line of `call` is clear, and each command in it is one that `pattern` describes."""
    text = call.args.get(COMMAND)
    line = read_line(text) if isinstance(text, str) else None
    return line is not None and not line.unclear and bool(line.commands) and all(pattern.allows(command) for command in line.commands)
