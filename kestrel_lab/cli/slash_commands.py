"""Commands of a conversation: `/help`, `/time`, `/memory` and `/orchestrate`, typed where a goal is typed.

They are the commands of the same names. Only these words are commands: a goal may begin with a path.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import typer

from kestrel_lab.cli.command_arguments import LIKELY
from kestrel_lab.cli.command_table import COMMANDS
from kestrel_lab.cli.goal_words import wrong_usage
from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.options import RunOptions

if TYPE_CHECKING:
    from kestrel_lab.cli.frontend import Frontend

HELP: Final = "help"
ORCHESTRATE: Final = "orchestrate"
SLASH_COMMANDS: Final = {
    HELP: "List these commands.",
    "time": COMMANDS["time"],
    "memory": COMMANDS["memory"],
    ORCHESTRATE: COMMANDS[ORCHESTRATE],
}
"""The commands, each with what it does."""
ORCHESTRATED: Final[RunOptions] = {"plan": "standard"}
"""The options of a run that `/orchestrate` begins."""
_TYPED: Final = re.compile(r"/([a-z]+)(?:\s+(.*))?", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SlashCommand:
    """A command that was typed in a conversation."""

    name: str
    text: str
    """What stands behind it."""


def slash_command(typed: str) -> SlashCommand | None:
    """Return the command that was typed; `None` for a goal.

    Raises `UsageError` for a word that is nearly a command and no path, and for a command without the goal
    that it needs.
    """
    match = _TYPED.fullmatch(typed.strip())
    if match is None:
        return None
    name, text = match[1].lower(), (match[2] or "").strip()
    if name not in SLASH_COMMANDS:
        close = get_close_matches(name, SLASH_COMMANDS, n=1, cutoff=LIKELY)
        if close and not Path(f"/{match[1]}").exists():
            raise UsageError(f"there is no /{name}: did you mean /{close[0]}? /help lists the commands")
        return None
    if name == ORCHESTRATE and not text:
        raise UsageError("say what is to be done: /orchestrate GOAL")
    return SlashCommand(name, text)


def carry_out(command: SlashCommand, root: Any, frontend: Frontend) -> Any:
    """Return what a command gives that begins no run.

    Raises `UsageError` for words that the command does not take.
    """
    if command.name == HELP:
        return help_text()
    try:
        words = shlex.split(command.text)
    except ValueError:
        words = command.text.split()
    try:
        return root.main([command.name, *words], prog_name="kestrel", standalone_mode=False, obj=frontend)
    except typer.TyperException as error:
        raise UsageError(wrong_usage(error, root, "kestrel", [command.name, *words])) from None


def help_text() -> str:
    """Return the commands with what they do."""
    lines = [f"/{name}: {about}" for name, about in SLASH_COMMANDS.items()]
    return "\n".join([*lines, "Anything else is a goal, also if it begins with a path."])
