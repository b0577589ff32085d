"""Words without a command: a goal is what several of them are, a mistyped command what one of them is."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, Final

import typer

from kestrel_lab.core.errors import UsageError

RUN: Final = "run"
_HELP: Final = ("-h", "--help")
_LIKELY: Final = 0.75
"""Similarity, of 1, above which the first of several words is taken for a mistyped command."""
# Depending on its version, typer brings its own click; this finds the base of its usage errors in either.
_BadUsage: type[Exception] = typer.BadParameter.__bases__[0]


def with_run(words: Sequence[str], root: Any, program: str) -> list[str]:
    """Return `words` with `run` before them where they are those of a run: several words that name no
    command, or options of `run` first.

    One word that is no command is left to `root`, which refuses it. Raises `UsageError` for several words
    that would be a command but for a letter or two, such as `shwo RUN`.
    """
    if not words or words[0] in root.commands or words[0] in _root_options(root):
        return list(words)
    if words[0].startswith("-"):
        return [RUN, *words]
    goal = _positional(root, words)
    if len(goal) == 1 and " " not in goal[0].strip():
        return list(words)
    if command := _mistyped(root, words):
        example = " ".join((program, command, *words[1:]))
        raise UsageError(
            f"{program} has no command {words[0]!r}: did you mean {example}? If these words are a "
            f'goal: {program} run "…"'
        )
    return [RUN, *words]


def _root_options(root: Any) -> set[str]:
    return {*_HELP, *(name for parameter in root.params for name in parameter.opts)}


def _positional(root: Any, words: Sequence[str]) -> list[str]:
    """Return the words that `run` takes as its goal; if its options do not fit, those before the first."""
    run = root.commands[RUN]
    try:
        with run.make_context(
            RUN, [word for word in words if word not in _HELP], parent=typer.Context(root, info_name="")
        ) as context:
            return [str(word) for word in context.params.get("goal") or ()]
    except (_BadUsage, UsageError):
        # An option that `run` does not have: the goal is what was typed before it.
        return list(takewhile(lambda word: not word.startswith("-"), words))


def _mistyped(root: Any, words: Sequence[str]) -> str:
    """Return the command that the first word nearly is and that would accept the rest; or empty."""
    names: list[str] = get_close_matches(words[0], [*root.commands], n=1, cutoff=_LIKELY)
    for name in names:
        command, rest = root.commands[name], list(words[1:])
        if hasattr(command, "commands"):
            return name if rest and rest[0] in command.commands else ""
        try:
            with command.make_context(name, rest, parent=typer.Context(root, info_name="")):
                return name
        except (_BadUsage, UsageError):
            # The nearest command would not take these words: then they are more likely a goal.
            return ""
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
