"""What may come next in a line that begins with `%kestrel`: commands, options, and the values they take."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.calls import Danger
from kestrel_lab.engine.toolset import group_names
from kestrel_lab.models.choose import available_models
from kestrel_lab.models.ollama import Ollama
from kestrel_lab.notebook.commands import WITH_GOAL, root_command

if TYPE_CHECKING:
    from kestrel_lab.lab import Lab

POLICIES = ("ask", "auto", "deny", *(f"auto:{danger.name.lower()}" for danger in Danger))
RUNS = 30
"""How many runs are offered, the newest."""

Values = Callable[["Lab", str], Iterable[str]]
"""Values that a word may take, given what is typed of it."""


def completions(line: str, find_lab: Callable[[], Lab] | None = None, held: Iterable[str] = ()) -> list[str]:
    """What the last word of `line` may become, which ends where the cursor is.

    `find_lab` is asked where values depend on a lab; `held` are variables with runs, which are offered as `@name`
    wherever a run is.
    """
    words = line.split()[1:]
    typed = "" if line[-1:].isspace() or not words else words.pop()
    if line.startswith("%%") and not (words and words[0] in WITH_GOAL):
        words = ["run", *words]
    elif words[:1] == ["help"]:
        words = words[1:]
    command = root_command()
    arguments = 0
    for place, word in enumerate(words):
        known = getattr(command, "commands", {})
        if word in known:
            command = known[word]
        elif not word.startswith("-") and not _takes_value(command, words[place - 1] if place else ""):
            arguments += 1
    if hasattr(command, "commands"):
        return _fitting([*command.commands, "--help"], typed)
    if values := _values(command, words[-1] if words else "", arguments, typed):
        named = [f"@{name}" for name in held] if values is _runs else []
        return _fitting((*named, *values(find_lab(), typed)), typed) if find_lab else []
    options = [option for parameter in command.params for option in parameter.opts if option.startswith("--")]
    return _fitting((*options, "--help"), typed or "-")


def _fitting(words: Iterable[str], typed: str) -> list[str]:
    return sorted(word for word in words if word.startswith(typed))


def _option(command: Any, word: str) -> Any:
    return next((parameter for parameter in command.params if word in parameter.opts), None) if word.startswith("-") else None


def _takes_value(command: Any, word: str) -> bool:
    option = _option(command, word)
    return option is not None and not option.is_flag


def _values(command: Any, before: str, arguments: int, typed: str) -> Values | None:
    """Where the values of the word come from: the option before it, or the argument in whose place it stands."""
    if _takes_value(command, before):
        # An option without values of its own has none to offer, and no option may stand here.
        return _OF_OPTION.get(max(_option(command, before).opts, key=len), _nothing)
    places = [parameter for parameter in command.params if not any(name.startswith("-") for name in parameter.opts)]
    if typed.startswith("-") or arguments >= len(places):
        return None
    return _OF_ARGUMENT.get(places[arguments].metavar)


def _nothing(_lab: Lab, _typed: str) -> Iterable[str]:
    return ()


def _policies(_lab: Lab, _typed: str) -> Iterable[str]:
    return POLICIES


def _models(lab: Lab, _typed: str) -> Iterable[str]:
    usable = {choice.name for choice in available_models(lab.env) if choice.available}
    return usable | {f"ollama/{name}" for name in Ollama.of(lab.env).models()}


def _runs(lab: Lab, _typed: str) -> Iterable[str]:
    return [run.id for run in lab.store.runs(limit=RUNS, trials=False)]


def _plans(_lab: Lab, typed: str) -> Iterable[str]:
    from kestrel_lab.engine.workflow import shipped  # loads pydantic

    return [*shipped(), *_paths(_lab, typed)]


def _tools(lab: Lab, typed: str) -> Iterable[str]:
    chosen, comma, _ = typed.rpartition(",")
    return [f"{chosen}{comma}{name}" for name in [*lab.toolbox.names, *group_names(lab.toolbox)] if name not in chosen.split(",")]


def _paths(_lab: Lab, typed: str) -> Iterable[str]:
    folder = typed[: typed.rfind("/") + 1]
    place = Path(folder or ".")
    found = place.iterdir() if place.is_dir() else ()
    return [f"{folder}{path.name}{'/' if path.is_dir() else ''}" for path in found if typed.endswith(".") or not path.name.startswith(".")]


_OF_OPTION: Mapping[str, Values] = {
    "--approve": _policies,
    "--csv": _paths,
    "--cwd": _paths,
    "--html": _paths,
    "--junit": _paths,
    "--markdown": _paths,
    "--model": _models,
    "--out": _paths,
    "--plan": _plans,
    "--report": _paths,
    "--resume": _runs,
    "--suite": _paths,
    "--svg": _paths,
    "--tools": _tools,
    "--workspace": _paths,
}
_OF_ARGUMENT: Mapping[str | None, Values] = {"RUN": _runs, "A": _runs, "B": _runs, "NB": _paths, "SUITE": _paths}
