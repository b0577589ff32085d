"""Completion of lines that begin with `%kestrel`: commands, options and their values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.notes import KINDS
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.memory.selector import KEYS, WORDS
from kestrel_lab.models.providers import Ollama
from kestrel_lab.models.resolve import available_models
from kestrel_lab.notebook.command_line import complete_command, root_command
from kestrel_lab.runtime.context.toolboxes import group_names
from kestrel_lab.views.formatting import opening_line

if TYPE_CHECKING:
    from kestrel_lab.lab import Lab

POLICIES = {
    "ask": "ask a person about risky calls",
    "auto": "allow all calls but CRITICAL ones",
    "deny": "deny what would be asked about",
    **{
        f"auto:{danger.name.lower()}": f"allow calls up to {danger.name}, ask about the rest"
        for danger in Danger
    },
}
NEWEST = 30
"""How many of the newest runs, and of the newest notes, are offered."""

Values = Callable[["Lab", str], Mapping[str, str]]
"""Returns the values that a word can take, given its typed part, each with a few words on what it is."""
_LONGEST = 72
"""Characters of an explanation."""
_HELP = {"--help": "show what there is, and stop"}


def complete_line(
    line: str, find_lab: Callable[[], Lab] | None = None, held: Iterable[str] = ()
) -> dict[str, str]:
    """Return what the last word of `line` can become, each with a few words on what it is, in order of the
    alphabet; the line ends at the cursor.

    `find_lab` is asked where values depend on a lab; `held` are variables with runs, which are offered as
    `@name` wherever a run is.
    """
    words = line.split()[1:]
    typed = "" if line[-1:].isspace() or not words else words.pop()
    # What is wrong with the words is said when they are run.
    with suppress(UsageError):
        words = complete_command(words, cell=line.startswith("%%"))
    if words[:1] == ["help"]:
        words = words[1:]
    command = root_command()
    arguments = 0
    for place, word in enumerate(words):
        known = getattr(command, "commands", {})
        if word in known:
            command = known[word]
        elif not word.startswith("-") and not _takes_value(command, words[place - 1] if place else ""):
            arguments += 1
    before = words[-1] if words else ""
    options = {
        option: _brief(parameter.help)
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--")
    }
    if not words and typed.startswith("-"):
        options |= complete_line(f"%kestrel run {typed}")
    if hasattr(command, "commands") and not _takes_value(command, before):
        known = {name: _brief(inner.help) for name, inner in command.commands.items()}
        return _starting_with(known | options | _HELP, typed)
    if values := _values(command, before, arguments, typed):
        named = {f"@{name}": "the run of this variable" for name in held} if values is _runs else {}
        return _starting_with(named | dict(values(find_lab(), typed)), typed) if find_lab else {}
    return _starting_with(options | _HELP, typed or "-")


def _brief(text: str | None) -> str:
    """Return the beginning of a help text: its first clause."""
    first = re.split(r";\s|(?<!e\.g)\.(?:\s|$)", " ".join((text or "").split()), maxsplit=1)[0]
    return one_line(first, _LONGEST) or "option"


def completion_type(text: str) -> str:
    """Return what a completion is, in one word."""
    if text.startswith("-"):
        return "option"
    if text.startswith("@"):
        return "variable"
    return "command" if text in _command_names() else "value"


@cache
def _command_names() -> frozenset[str]:
    root = root_command()
    groups = [command.commands for command in root.commands.values() if hasattr(command, "commands")]
    return frozenset(name for commands in (root.commands, *groups) for name in commands)


def _starting_with(words: Mapping[str, str], typed: str) -> dict[str, str]:
    return {word: words[word] for word in sorted(words) if word.startswith(typed)}


def _option(command: Any, word: str) -> Any:
    return (
        next((parameter for parameter in command.params if word in parameter.opts), None)
        if word.startswith("-")
        else None
    )


def _takes_value(command: Any, word: str) -> bool:
    option = _option(command, word)
    return option is not None and not option.is_flag


def _choices(option: Any) -> tuple[str, ...]:
    """The words that an option accepts; typer keeps them in its type or annotation, by version."""
    annotation = getattr(getattr(option, "type_descriptor", None), "annotation", None)
    kinds = [kind for kind in (annotation, *get_args(annotation)) if get_origin(kind) is Literal]
    return (
        *getattr(getattr(option, "type", None), "choices", ()),
        *(str(word) for kind in kinds for word in get_args(kind)),
    )


def _values(command: Any, before: str, arguments: int, typed: str) -> Values | None:
    """Return the source of a word's values: the option before it, or the argument at its place."""
    if _takes_value(command, before):
        option = _option(command, before)
        if choices := _choices(option):
            return lambda _lab, _typed: dict.fromkeys(choices, _brief(option.help))
        # An option without values of its own has none to offer, and no option may stand here.
        return _OF_OPTION.get(max(option.opts, key=len)) or _OF_ARGUMENT.get(
            option.metavar, lambda _lab, _typed: {}
        )
    places = [
        parameter for parameter in command.params if not any(name.startswith("-") for name in parameter.opts)
    ]
    if typed.startswith("-") or arguments >= len(places):
        return None
    return _OF_ARGUMENT.get(places[arguments].metavar)


def _models(lab: Lab, _typed: str) -> Mapping[str, str]:
    usable = {choice.name: choice.note for choice in available_models(lab.env) if choice.available}
    return dict.fromkeys((f"ollama/{name}" for name in Ollama.of(lab.env).models()), "Ollama") | usable


def _runs(lab: Lab, _typed: str) -> Mapping[str, str]:
    found = lab.store.runs(limit=NEWEST, trials=False)
    return {run.id: opening_line(f"{run.status}: {run.goal}", _LONGEST) for run in found}


def _notes(lab: Lab, _typed: str) -> Mapping[str, str]:
    return {note.id: note.kind for note in lab.memory.list(replaced=True)[:NEWEST]}


def _selectors(lab: Lab, typed: str) -> Mapping[str, str]:
    tags = sorted({tag for note in lab.memory.list(replaced=True) for tag in note.tags})
    keyed = [f"{key}:" for key in KEYS if key not in ("kind", "tag")]
    words = [*WORDS, *(f"kind:{kind}" for kind in KINDS), *(f"tag:{tag}" for tag in tags), *keyed]
    return {**_notes(lab, typed), **dict.fromkeys(words, "which notes")}


def _plans(_lab: Lab, typed: str) -> Mapping[str, str]:
    from kestrel_lab.runtime.workflows.loader import shipped_workflows  # loads pydantic

    return {**dict.fromkeys(shipped_workflows(), "workflow"), **_paths(_lab, typed)}


def _tools(lab: Lab, typed: str) -> Mapping[str, str]:
    chosen, comma, _ = typed.rpartition(",")
    toolbox = lab.registry.toolbox
    names = {tool.name: _brief(tool.description) for tool in toolbox}
    names |= dict.fromkeys(group_names(toolbox), "a group of tools")
    return {f"{chosen}{comma}{name}": about for name, about in names.items() if name not in chosen.split(",")}


def _paths(_lab: Lab, typed: str) -> Mapping[str, str]:
    folder = typed[: typed.rfind("/") + 1]
    place = Path(folder or ".")
    found = place.iterdir() if place.is_dir() else ()
    return {
        f"{folder}{path.name}{'/' if path.is_dir() else ''}": "folder" if path.is_dir() else "file"
        for path in found
        if typed.endswith(".") or not path.name.startswith(".")
    }


_OF_OPTION: Mapping[str, Values] = {
    "--approve": lambda _lab, _typed: POLICIES,
    **dict.fromkeys(
        (
            "--csv",
            "--cwd",
            "--html",
            "--junit",
            "--markdown",
            "--out",
            "--report",
            "--rules",
            "--suite",
            "--svg",
        ),
        _paths,
    ),
    "--kind": lambda _lab, _typed: dict.fromkeys(KINDS, "kind of note"),
    "--model": _models,
    "--plan": _plans,
    "--resume": _runs,
    "--tools": _tools,
    "--workspace": _paths,
}
_OF_ARGUMENT: Mapping[str | None, Values] = {
    **dict.fromkeys(("A", "B", "RUN"), _runs),
    **dict.fromkeys(("NB", "SUITE"), _paths),
    "ID": _notes,
    "SELECTOR": _selectors,
}
