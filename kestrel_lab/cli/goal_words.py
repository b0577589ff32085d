"""Words without a command: a goal is what several of them are, a mistyped command what one of them is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Final

import typer

from kestrel_lab.cli.command_arguments import HELP, LIKELY, split_arguments, takes_text, takes_words
from kestrel_lab.core.errors import UsageError

RUN: Final = "run"
_CERTAIN: Final = 0.9
"""Similarity above which a word is taken for a command whose arguments may be any text."""
_NAME: Final = re.compile(r"[\w.:/-]*")
"""What one word has to be to be taken for the name of a command."""
# Depending on its version, typer brings its own click; this finds the base of its usage errors in either.
_BadUsage: type[Exception] = typer.BadParameter.__bases__[0]

IsCommand = Callable[[Sequence[str]], bool]
"""Whether words that begin with the name of a command are that command with its arguments."""


def with_run(
    words: Sequence[str], root: Any, program: str, is_command: IsCommand = lambda _: True
) -> list[str]:
    """Return `words` with `run` before them where they are those of a run: several words that are no command,
    or options of `run` first.

    By default every line that begins with the name of a command is one: a script that passes a wrong argument
    must not begin a run.

    One word that is no command is left to `root`, which refuses it. Raises `UsageError` for several words
    that would be a command but for a letter or two, such as `shwo RUN`.
    """
    if not words or words[0] in _root_options(root):
        return list(words)
    if words[0].startswith("-"):
        return [RUN, *words]
    split = split_arguments(root.commands[RUN], words)
    if words[0] in root.commands:
        return list(words) if split is None or is_command(words) else [RUN, *words]
    goal = [*takewhile(lambda word: not word.startswith("-"), words)] if split is None else split[0]
    if len(goal) == 1 and _NAME.fullmatch(goal[0].strip()):
        return list(words)
    if command := _mistyped_command(root, words):
        example = " ".join((program, command, *words[1:]))
        raise UsageError(
            f"{program} has no command {words[0]!r}: did you mean {example}? If these words are a "
            f'goal: {program} run "…"'
        )
    return [RUN, *words]


def _root_options(root: Any) -> set[str]:
    return {*HELP, *(name for parameter in root.params for name in parameter.opts)}


def _mistyped_command(root: Any, words: Sequence[str]) -> str:
    """Return the command that the first word nearly is and that would accept the rest; or empty.

    A command that takes any text would accept every goal, so its name has to be nearer.
    """
    close: list[str] = get_close_matches(words[0], [*root.commands], n=1, cutoff=LIKELY)
    for name in close:
        if takes_text(root.commands[name]) and not get_close_matches(words[0], [name], cutoff=_CERTAIN):
            return ""
        if takes_words(root, [name, *words[1:]], {}):
            return name
    return ""


def wrong_usage(error: Exception, root: Any, program: str, words: list[str]) -> str:
    """Return what is wrong with a command, what was probably meant, and its help; empty if help was shown."""
    message = str(error.format_message() if hasattr(error, "format_message") else error).strip()
    # A group of commands without a command prints its help.
    if not message:
        return ""
    if likely := getattr(error, "possibilities", None):
        message = f"{str(error).rstrip('.')}. Did you mean {min(likely)}?"
    known, command = [program], root
    for word in words:
        if (command := getattr(command, "commands", {}).get(word)) is None:
            break
        known.append(word)
    # `show me the data` begins with a command.
    if len(known) == 2 and len(words) > 2 and not any(word.startswith("-") for word in words):
        message = f"{message.removesuffix('.')}. If these words are a goal: {program} run {' '.join(words)}."
    return f"{message}{'' if message.endswith(('.', '?')) else '.'} See {' '.join(known)} --help."
