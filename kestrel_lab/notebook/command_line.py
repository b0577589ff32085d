"""The command line in a notebook: the same commands, with a cell as the goal and `@name` variables."""

from __future__ import annotations

import builtins
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import PurePath
from string import Formatter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

import typer
import typer.main
from rich.text import Text

from kestrel_lab.cli.app import app
from kestrel_lab.cli.command_arguments import takes_words
from kestrel_lab.cli.frontend import Frontend
from kestrel_lab.cli.goal_words import RUN, with_run, wrong_usage
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.run_types import FilledGoal
from kestrel_lab.core.sanitize import head_tail
from kestrel_lab.runtime.run import Run
from kestrel_lab.tools.kernel.inspection import inspect_value
from kestrel_lab.tools.kernel.variables import user_variables

PROGRAM = "%kestrel"
WITH_GOAL = ("run", "orchestrate")
"""Commands whose goal may be the cell."""
_WIDTH = 110
"""Characters of a line of help."""
_APOSTROPHE = re.compile(r"(?<=\w)'(?=\w)")
"""An apostrophe inside of a word: a letter, and no quotation mark."""
_NO_QUOTE = "\ue000"
"""Stands for an apostrophe while a line is split into words; no text has this character."""
# Depending on its version, typer brings its own click; this finds the base of its usage errors in either.
_BadUsage: type[Exception] = typer.BadParameter.__bases__[0]


# `@name` is replaced by a notebook variable, and so is `{name}` in a line, as IPython does for every magic.
# In a cell braces are text, because a cell may hold code.

LONGEST = 20_000
"""Characters of one variable that go into a goal: beginning and end."""
SMALL = 200
"""Cells of a table or array that goes into a goal whole."""

_PATH = r"[A-Za-z_]\w*(?:\.[A-Za-z]\w*|\[[^][{}]+\])*"
_VARIABLE = re.compile(
    rf"(?<![\w@.])@(?P<name>[A-Za-z_]\w*)|\{{\{{(?P<itself>{_PATH})\}}\}}|\{{(?P<path>{_PATH})\}}"
)
_CODE = re.compile(
    r"```.*?```|`[^`\n]*`|^[ \t]*@[^\n]*\n(?=(?:[ \t]*@[^\n]*\n)*[ \t]*(?:async[ ]+def|def|class)\b)",
    re.DOTALL | re.MULTILINE,
)
"""What is code in a goal: between backquotes, and decorators above a definition."""


def fill_variables(
    goal: str,
    variables: Mapping[str, object],
    *,
    line: bool = False,
    unknown: Callable[[re.Match[str], str], str] = lambda match, _: match[0],
) -> str:
    """`goal` with each `@name` of a known variable replaced by the variable's text; in a `line` also
    `{name}`, `{name.part}` and `{name[key]}`.

    Text of several lines goes below the goal, unless it ends its line.

    Names of modules, functions and classes are not replaced: `@dataclass` in a goal means the word. Unknown
    names are not replaced either, unless `unknown`, called with the match and the name, returns another text.
    `{{name}}` gives `{name}` where that would be replaced. Raises `UsageError` for an attribute or item that
    a variable does not have.
    """
    below: dict[str, str] = {}

    def text(match: re.Match[str]) -> str:
        path = match["name"] or match["path"] or match["itself"]
        name = re.split(r"[.[]", path, maxsplit=1)[0]
        if name not in variables:
            return unknown(match, name)
        if isinstance(variables[name], ModuleType | FunctionType | BuiltinFunctionType | type):
            return match[0]
        if not match["name"] and not line:
            return match[0]
        if match["itself"]:
            return f"{{{path}}}"
        try:
            value, _ = Formatter().get_field(path, (), variables)
        except (AttributeError, LookupError, TypeError) as error:
            msg = (
                f"{match[0]} cannot be filled in ({type(error).__name__}: {error}); {{{match[0]}}} "
                "keeps the text"
            )
            raise UsageError(msg) from error
        found = head_tail(as_text(value, path), LONGEST)[0]
        if "\n" not in found or not goal[match.end() :].partition("\n")[0].strip():
            return found
        below[path] = found if found.startswith(f"{path}: ") else f"{path}:\n{found}"
        return path

    return "\n\n".join([_VARIABLE.sub(text, goal), *below.values()])


def fill_goal(goal: str, variables: Mapping[str, object], *, line: bool = False) -> str:
    """Return a goal with its variables filled in, as `fill_variables` does, and in a `line` `{name}` for
    `{{name}}`.

    Raises `UsageError` for a variable that does not exist, with the nearest one: a model would take its name
    for what the user said. Names in code, and those of Python's own functions such as `@property`, are no
    variables.
    """
    code = [match.span() for match in _CODE.finditer(goal)]

    def unknown(match: re.Match[str], name: str) -> str:
        if match["itself"] and line:
            return f"{{{match['itself']}}}"
        meant = match["name"] or (line and match["path"])
        if not meant or hasattr(builtins, name) or any(start <= match.start() < end for start, end in code):
            return match[0]
        own = user_variables(variables)
        near = f"; {did_you_mean(name, own).removesuffix('?')}" if own else ""
        itself = f"`{match[0]}`" if match["name"] else f"{{{match[0]}}}"
        raise UsageError(
            f"there is no variable {name!r} for {match[0]} in the goal{near}; {itself} keeps the word"
        )

    return fill_variables(goal, variables, line=line, unknown=unknown)


def fill_argument(text: str, variables: Mapping[str, object]) -> str:
    """Return an option's value or an argument with its variables replaced; a run is replaced by its id."""
    name = text.removeprefix("@") if text[:1] == "@" else text[1:-1] if text[:1] + text[-1:] == "{}" else ""
    if isinstance(run := variables.get(name), Run):
        return run.id
    return fill_variables(text, variables, line=True)


def as_text(value: object, name: str) -> str:
    """What a model is given for a variable.

    A string itself, a path as one would type it, a small table whole, of a large one its schema, statistics
    and head, else the `repr`.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, PurePath):
        return str(value)
    pandas, numpy = sys.modules.get("pandas"), sys.modules.get("numpy")
    if pandas is not None and isinstance(value, pandas.DataFrame | pandas.Series):
        return inspect_value(name, value) if value.size > SMALL else str(value.to_string())
    if numpy is not None and isinstance(value, numpy.ndarray) and value.size > SMALL:
        return inspect_value(name, value)
    return repr(value.report if isinstance(value, Run) else value)


def run_magic(line: str, body: str | None, frontend: Frontend, variables: Mapping[str, object]) -> Any:
    """Carry out `%kestrel LINE`, or `%%kestrel LINE` over `body`; returns what the command gives.

    `@name`, and `{name}` in the line, are replaced by the variable of that name.

    Raises `UsageError` for words or options that do not exist.
    """
    try:
        split = shlex.split(_APOSTROPHE.sub(_NO_QUOTE, line))
    except ValueError as error:
        try:
            split = shlex.split(line.replace("'", _NO_QUOTE))
        except ValueError:
            msg = (
                f"cannot read {line!r} ({error}): put the goal in quotes, or write it in a %%kestrel cell "
                "where it needs none"
            )
            raise UsageError(msg) from None
    typed = [word.replace(_NO_QUOTE, "'") for word in split]
    words = complete_command(
        typed, cell=body is not None, is_command=partial(_is_command, frontend, variables)
    )
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if body is None and words != typed and typed[0] in root_command().commands:
        frontend.say(f"These words are a goal; for the command see {PROGRAM} {typed[0]} --help.")
    try:
        return _invoke(words, body, frontend, variables)
    except _BadUsage as error:
        if message := wrong_usage(error, root_command(), PROGRAM, words):
            raise UsageError(message) from None
        return None
    except typer.Exit:  # after --help
        return None


def complete_command(
    words: list[str], *, cell: bool, is_command: Callable[[Sequence[str]], bool] = lambda _: True
) -> list[str]:
    """The words of a line or of a cell's first line, with `run` before them where they are those of a run:
    over a cell they always are, and in a line where they are no command with its arguments.

    Raises `UsageError` as `with_run` does.
    """
    root = root_command()
    if words[:1] and (
        words[0] in WITH_GOAL or (words[0] == "help" and (cell or _asks_for_help(root, words)))
    ):
        return words
    return [RUN, *words] if cell else with_run(words, root, PROGRAM, is_command)


def _is_command(frontend: Frontend, variables: Mapping[str, object], words: Sequence[str]) -> bool:
    """Whether these words are a command with its arguments, in this notebook."""
    if words[0] == "fix" and len(words) > 1:
        try:
            frontend.failed_cell("")
        except UsageError:
            return False
    return takes_words(root_command(), words, variables)


def _asks_for_help(root: Any, words: Sequence[str]) -> bool:
    """Whether what follows `help` leads to a command, or is a word that may be a mistyped one."""
    command = root
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word)
    return command is not None or (len(words) == 2 and words[1].isidentifier())


def _invoke(words: list[str], body: str | None, frontend: Frontend, variables: Mapping[str, object]) -> Any:
    root = root_command()
    if not words or words[0].startswith("-"):
        root.main(words or ["--help"], prog_name=PROGRAM, standalone_mode=False)
        return None
    if words[0] not in root.commands:
        near = did_you_mean(words[0], root.commands)
        hint = f"{near}; " if near.startswith("did you mean") else ""
        raise UsageError(
            f'{PROGRAM} has no command {words[0]!r}: {hint}a goal is {PROGRAM} run "…", or the cell '
            f"below %{PROGRAM}; see {PROGRAM} --help"
        )
    with root.make_context(PROGRAM, words, obj=frontend) as context:
        name, command, rest = root.resolve_command(context, words)
        # Its own commands read their words later.
        if hasattr(command, "commands"):
            with command.make_context(
                name, [fill_argument(word, variables) for word in rest], parent=context
            ) as inner:
                return command.invoke(inner)
        with command.make_context(name, rest, parent=context) as inner:
            for option, value in inner.params.items():
                if isinstance(value, str):
                    inner.params[option] = fill_argument(value, variables)
                elif isinstance(value, list) and option != "goal":
                    # Texts or paths.
                    inner.params[option] = [
                        type(given)(fill_argument(str(given), variables)) for given in value
                    ]
            if name in WITH_GOAL:
                inner.params["goal"] = _goal(inner.params.get("goal"), body, variables)
            return command.invoke(inner)


def _goal(given: list[str] | None, body: str | None, variables: Mapping[str, object]) -> list[str] | None:
    if body is not None:
        if given:
            raise UsageError(
                f"the cell is the goal: take {' '.join(given)!r} out of its first line, or write it "
                "into the cell"
            )
        said = body.strip("\n")
    elif given:
        said = " ".join(given)
    else:
        return given
    goal = fill_goal(said, variables, line=body is None)
    return [goal if goal == said else FilledGoal.of(goal, said)]


@cache
def root_command() -> Any:
    """All commands with their options, as click has them, without what is for a terminal's own completion."""
    root = typer.main.get_command(app)
    root.params = [parameter for parameter in root.params if "completion" not in (parameter.name or "")]
    _as_text(root)
    return root


def _grouped(command: Any, context: Any, formatter: Any) -> None:
    """Write the commands below their headings, as the drawing of a terminal has them."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, inner in command.commands.items():
        if not inner.hidden:
            heading = getattr(inner, "rich_help_panel", None) or "Commands"
            groups.setdefault(str(heading), []).append((name, inner.get_short_help_str(limit=_WIDTH - 16)))
    for heading, rows in groups.items():
        with formatter.section(heading):
            formatter.write_dl(rows)


def _as_text(command: Any) -> None:
    """Help as plain text: terminal drawing is cut off at a notebook's edge and stored with odd signs."""
    command.rich_markup_mode = None
    if hasattr(command, "commands"):
        command.format_commands = partial(_grouped, command)
    command.context_settings = {**command.context_settings, "terminal_width": _WIDTH}
    command.epilog = Text.from_markup(command.epilog or "").plain
    for inner in getattr(command, "commands", {}).values():
        _as_text(inner)
