"""Whether words can be the arguments of a command: each argument says by its metavar of which kind it is.

A line that begins with the name of a command may be a sentence: `show me the data`. What follows decides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from string import Formatter
from typing import Any, Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.runtime.run import Run

HELP: Final = ("-h", "--help")
LIKELY: Final = 0.75
"""Similarity, of 1, above which a word is taken for a mistyped one."""

_ID = re.compile(r"[a-z][\w.-]*\d[\w.-]*", re.IGNORECASE)
_COMMIT = re.compile(r"HEAD\S*|[0-9a-f]{7,40}|\S*[/~^]\S*|v?\d\S*")
_FILE = re.compile(r"\S*[/\\*]\S*|\.{1,2}|\S*\w\.\w{1,8}")


def _is_run(value: object) -> bool:
    return isinstance(value, Run) or (isinstance(value, str) and _ID.fullmatch(value) is not None)


def _is_path(value: object) -> bool:
    if not isinstance(value, str):
        return isinstance(value, Path)
    return _FILE.fullmatch(value) is not None or Path(value).exists()


def _is_commit(value: object) -> bool:
    return isinstance(value, str) and _COMMIT.fullmatch(value) is not None


_CHECKED: Final[Mapping[str, Callable[[object], bool]]] = {
    **dict.fromkeys(("RUN", "A", "B", "CALL", "ID"), _is_run),
    **dict.fromkeys(("FILE", "PATH", "SUITE", "NB"), _is_path),
    **dict.fromkeys(("BASE", "HEAD", "GOOD", "BAD"), _is_commit),
}
"""The kinds of arguments whose words can be recognised, by metavar."""
_TEXTS: Final = frozenset({"GOAL", "QUESTION", "WORDS", "QUERY", "TEXT", "NEED"})
"""The kinds of arguments that are any text; of several words, it stands in quotes."""
_TIME: Final = "TIME"


def split_arguments(command: Any, words: Sequence[str]) -> tuple[list[str], set[str]] | None:
    """Return the arguments among `words` and the names of the options; `None` for an option that the command
    does not have.
    """
    arguments: list[str] = []
    options: set[str] = set()
    remaining = iter(words)
    for word in remaining:
        name, equals, _ = word.partition("=")
        if word == "--":
            arguments.extend(remaining)
        elif not name.startswith("-") or name == "-":
            arguments.append(word)
        elif name not in HELP:
            option = option_named(command, name)
            if option is None:
                return None
            options.add(str(option.name))
            if not option.is_flag and not equals:
                next(remaining, None)
    return arguments, options


def option_named(command: Any, word: str) -> Any:
    """Return the option of a command that is written `word`, or `None`."""
    for parameter in command.params:
        if word.startswith("-") and word in (*parameter.opts, *parameter.secondary_opts):
            return parameter
    return None


def takes_words(root: Any, words: Sequence[str], variables: Mapping[str, object]) -> bool:
    """Whether `words` can be a command of `root` and its arguments, where `@name` stands for a variable.

    Each argument takes words of its kind: a run, a path, a time. A text of several words has to be in
    quotes, unless an agent works on it. Behind the name of a sub-command, and with an option that only this
    command has, the line can be nothing else.
    """
    command, rest = root.commands[words[0]], list(words[1:])
    if any(word in HELP for word in rest):
        return True
    if hasattr(command, "commands"):
        return _group_takes(command, rest, variables)
    split = split_arguments(command, rest)
    if split is None:
        return False
    arguments, options = split
    run_options = {str(parameter.name) for parameter in root.commands["run"].params}
    return bool(options - run_options) or _fit(command, arguments, variables)


def takes_text(command: Any) -> bool:
    """Whether a command has an argument that may be any text."""
    return any(_TEXTS.intersection(_kinds(argument)) for argument in _arguments(command))


def _group_takes(group: Any, words: Sequence[str], variables: Mapping[str, object]) -> bool:
    split = split_arguments(group, words)
    if split is None:
        # Options of a sub-command are read by itself.
        return words[0] in group.commands
    if not split[0]:
        return True
    name, *rest = split[0]
    if name not in group.commands:
        close = get_close_matches(name, group.commands, n=1, cutoff=LIKELY)
        return bool(close) and _count_fits(group.commands[close[0]], rest, variables)
    return hasattr(group.commands[name], "commands") or _count_fits(group.commands[name], rest, variables)


def _fit(command: Any, words: Sequence[str], variables: Mapping[str, object]) -> bool:
    """Whether every argument of a command takes the words in its place."""
    remaining = list(words)
    for argument in _arguments(command):
        count = len(remaining) if argument.nargs == -1 else argument.nargs
        taken, remaining = remaining[:count], remaining[count:]
        if taken and not _takes(command, argument, [_value(word, variables) for word in taken]):
            return False
    return all(_is_surplus(command, word, variables) for word in remaining)


def _count_fits(command: Any, words: Sequence[str], variables: Mapping[str, object]) -> bool:
    """Whether a sub-command has arguments for so many words."""
    arguments = _arguments(command)
    if any(argument.nargs == -1 for argument in arguments):
        return True
    count = sum(argument.nargs for argument in arguments)
    return all(_is_surplus(command, word, variables) for word in words[count:])


def _is_surplus(command: Any, word: str, variables: Mapping[str, object]) -> bool:
    """Whether a word too many is one more of what the command takes: a slip, and no sentence."""
    kinds = {kind for argument in _arguments(command) for kind in _kinds(argument)}
    value = _value(word, variables)
    return any(_CHECKED[kind](value) for kind in kinds if kind in _CHECKED)


def _takes(command: Any, argument: Any, values: Sequence[object]) -> bool:
    kinds = _kinds(argument)
    if _TIME in kinds:
        return all(isinstance(value, str) for value in values) and _is_time(" ".join(map(str, values)))
    if _TEXTS.intersection(kinds):
        works_on_it = any(parameter.name == "background" for parameter in command.params)
        return works_on_it or (len(values) == 1 and isinstance(values[0], str))
    checks = [_CHECKED[kind] for kind in kinds if kind in _CHECKED]
    if not checks:
        return all(isinstance(value, str) for value in values)
    return all(any(check(value) for check in checks) for value in values)


def _is_time(text: str) -> bool:
    from kestrel_lab.tools.timeparse.parse import parse_relative  # loaded on use
    from kestrel_lab.tools.timeparse.session_time import session_time
    from kestrel_lab.tools.timeparse.types import NotATime

    now = session_time()
    try:
        parse_relative(text, now.now, zone=now.zone)
    except NotATime:
        return False
    except UsageError:
        # A time that could mean two things is one; the command says which.
        return True
    return True


def _arguments(command: Any) -> list[Any]:
    return [parameter for parameter in command.params if parameter.param_type_name == "argument"]


def _kinds(argument: Any) -> list[str]:
    return re.findall(r"[A-Z]+", argument.metavar or str(argument.name).upper())


def _value(word: str, variables: Mapping[str, object]) -> object:
    """Return the value that `@name`, `{name}`, `{name.part}` or `{name[key]}` stands for, else the word."""
    field = word.removeprefix("@") if word.startswith("@") else word[1:-1] if word[:1] == "{" else ""
    try:
        return Formatter().get_field(field, (), variables)[0]
    except (AttributeError, LookupError, TypeError, ValueError):
        return word
