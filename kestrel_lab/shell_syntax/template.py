"""Command templates: values that are filled into a shell command are data, never a part of the program.

Each reference is quoted as its place requires. Where no quoting can keep a value from being read as a
program (the name of a command, a here-document, arithmetic, the text behind `sh -c` or `python -c`), the
template is refused. A command that is one reference and nothing else has no place to quote: its value is the
command, and is judged and approved as that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn, cast

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.json_paths import JsonPath
from kestrel_lab.core.expressions.templates import render_template, template_parts
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.shell_syntax.parser import CHANGES, COMMAND, bash_parser, read_line
from kestrel_lab.shell_syntax.program_options import Command, name_of
from kestrel_lab.shell_syntax.runnable_words import SCRIPTED, script_place
from kestrel_lab.shell_syntax.wrappers import GIT_RUNS, UNKNOWN, commands_in

if TYPE_CHECKING:
    from tree_sitter import Node

_AROUND = {
    "word": ("", ""),
    "string_content": ('"', '"'),
    "raw_string": ("'", "'"),
    "ansi_c_string": ("'", "$'"),
}
"""By what a place is: what ends the quotes around it, and what begins them again."""
_WITHIN = frozenset(
    (
        "program list pipeline negated_command redirected_statement command concatenation string "
        "file_redirect herestring_redirect "
        "variable_assignment command_substitution process_substitution subshell compound_statement "
        "if_statement elif_clause else_clause "
        "while_statement for_statement do_group"
    ).split()
)
"""Parts of a program in which a quoted word is a word."""
_EVALUATES = frozenset({*CHANGES, "test", "[", "ssh", "expr", "dc", "bc"})
"""Commands that read their arguments as a program, an expression or a name with a subscript."""
_RUNS = re.compile(
    r"PATH|IFS|ENV|BASH_ENV|SHELL|PS\d|PROMPT_COMMAND|\w*PAGER|\w*EDITOR|\w*BROWSER|LD_\w+|DYLD_\w+|GIT_\w+|\w*OPTIONS|\w*OPTS?|PYTHON\w+"
)
"""Variables that change what programs run."""
_CODE_OPTION = re.compile(r"-[A-Za-z]*[ceEpr]|--(?:eval|exec|execute|expression|command|print|run)")
_INTERPRETERS = re.compile(
    r"python|perl|ruby|node|deno|bun|php|lua|Rscript|R|julia|tclsh|osascript|psql|mysql|sqlite3|pwsh|powershell|vim?|ed|gdb"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Position of a reference."""

    before: str
    after: str
    begins: bool
    """True if a value that starts with `-` would be an option here."""


def check_command(args: Mapping[str, Json]) -> None:
    """Raise `UsageError` if a command refers to a value in a position where no quoting is safe."""
    _command(args)


def render_call(args: Mapping[str, Json], scope: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments with references filled in, quoted in the command; raises `UsageError`."""
    parts = _command(args)
    if not parts:
        return cast("dict[str, Json]", render_template(dict(args), scope))
    places = _places(tuple(None if isinstance(part, JsonPath) else part for part in parts))
    references: list[Json] = [f"{{{{{part}}}}}" for part in parts if isinstance(part, JsonPath)]
    others = {name: value for name, value in args.items() if name != COMMAND}
    filled, values = cast("tuple[dict[str, Json], list[Json]]", render_template([others, references], scope))
    quoted = iter(
        [
            _quote_value(value, place, str(name))
            for value, place, name in zip(values, places, references, strict=True)
        ]
    )
    line = "".join(next(quoted) if isinstance(part, JsonPath) else part for part in parts)
    return {name: line if name == COMMAND else filled[name] for name in args}


def _command(args: Mapping[str, Json]) -> list[str | JsonPath]:
    """Return the pieces of a command that has references among other text; none for any other."""
    text = args.get(COMMAND)
    parts = list(template_parts(text)) if isinstance(text, str) else []
    if len(parts) < 2 or not any(isinstance(part, JsonPath) for part in parts):
        return []
    _places(tuple(None if isinstance(part, JsonPath) else part for part in parts))
    return parts


def _quote_value(value: Json, place: _Place, name: str) -> str:
    text = value if isinstance(value, str) else dumps(value)
    if place.begins and re.match(r"-(?!\s|$|\d+(?:\.\d+)?$)", text):
        msg = (
            f"the value of {name}, {one_line(text, 60)!r}, would be read as an option: in the command, "
            f"write `--` or `./` before {name}, or join it to its option with `=`"
        )
        raise UsageError(msg)
    if "\0" in text:
        raise UsageError(f"the value of {name} contains a NUL character, which no command can be given")
    # Between single quotes nothing is special but the quote itself, which ends them.
    inner = text.replace("'", "'\"'\"'")
    return f"{place.before}'{inner}'{place.after}"


@lru_cache(maxsize=256)
def _places(parts: tuple[str | None, ...]) -> tuple[_Place, ...]:
    """Return how to quote each reference, `None`; raises `UsageError` where no quoting is safe."""
    mark = "kestrelvalue"
    # The command may contain the mark itself.
    while any(mark in part for part in parts if part):
        mark += "x"
    # All of one length: no mark is the beginning of another.
    marks = [f"{mark}{number:04d}" for number in range(parts.count(None))]
    rest = iter(marks)
    text = "".join(next(rest) if part is None else part for part in parts)
    places = _by_tree(text, marks)
    for one in read_line(text).commands:
        if why := _evaluating_part(one, mark):
            _refuse(why)
    _check_injection(text, marks, places)
    return tuple(places)


def _by_tree(text: str, marks: list[str]) -> list[_Place]:
    source = text.encode("utf-8", "replace")
    root = bash_parser().parse(source).root_node
    if root.has_error:
        _refuse("the command cannot be read as a shell program")
    places: list[_Place] = []
    for mark in marks:
        at = source.index(mark.encode())
        node = root.descendant_for_byte_range(at, at + len(mark))
        before = source[:at].decode()
        # After an odd number of backslashes the quote around the value would be escaped.
        if node is None or node.type not in _AROUND or (len(before) - len(before.rstrip("\\"))) % 2:
            _refuse(_kind(node))
        _check_around(node, source)
        places.append(_Place(*_AROUND[node.type], begins=_begins_option(node, source[:at], source, marks)))
    return places


def _begins_option(node: Node, before: bytes, source: bytes, marks: list[str]) -> bool:
    """Return whether a value may be the beginning of a word that a command could read as an option."""
    word = node
    while word.parent is not None and word.parent.type in ("concatenation", "string"):
        word = word.parent
    written = before[word.start_byte :]
    # A value before it may be empty.
    for mark in marks:
        written = written.replace(mark.encode(), b"")
    if written.strip(b"\"'") and b"$" not in written:
        return False
    around = word.parent
    if around is None or around.type in ("file_redirect", "herestring_redirect", "variable_assignment"):
        return False
    words = [one for one in around.children if one.end_byte <= word.start_byte]
    if around.type != "command" or not any(source[one.start_byte : one.end_byte] == b"--" for one in words):
        return True
    inner, programs = commands_in(
        tuple(source[one.start_byte : one.end_byte].decode() for one in around.children)
    )
    return bool(inner or programs)


def _check_around(node: Node, source: bytes) -> None:
    inner = node
    while (parent := inner.parent) is not None:
        text = source[parent.start_byte : parent.end_byte]
        name = parent.child_by_field_name("name") or parent.child_by_field_name("variable")
        is_name = name is not None and name.start_byte <= inner.start_byte and inner.end_byte <= name.end_byte
        runs = (
            parent.type == "variable_assignment"
            and name is not None
            and _RUNS.fullmatch(source[name.start_byte : name.end_byte].decode())
        )
        if (
            runs
            or parent.type not in _WITHIN
            or (parent.type == "command_substitution" and text[:1] == b"`")
            or is_name
        ):
            _refuse(_kind(name if is_name else parent))
        inner = parent


def _evaluating_part(command: Command, mark: str) -> str:
    """Return which part of a command makes it read a value as a program; empty if none does."""
    marked = [word is not None and mark in word for word in command]
    if not any(marked):
        return ""
    if command[0] is None or marked[0]:
        return "the name of a command"
    name = name_of(command[0])
    inner, programs = commands_in(command)
    if name in _EVALUATES or UNKNOWN in inner or any(mark in program for program in programs):
        return f"what {name} reads as a program"
    before = [word or "" for word in command]
    behind = any(at and _CODE_OPTION.match(option) for at, option in zip(marked[1:], before, strict=False))
    joined = any(
        here and re.match(r"-[ceEpr]|--\w+=", word) for here, word in zip(marked, before, strict=True)
    )
    if _INTERPRETERS.match(name) and (behind or joined):
        return f"a program of {name}"
    if (
        name == "git"
        and (setting := next((at for at, word in enumerate(command) if word and GIT_RUNS.fullmatch(word)), 0))
        and any(marked[setting:])
    ):
        return "a command that git is to run"
    if name in SCRIPTED:
        script = script_place(command, SCRIPTED[name])
        if any(marked[: script + 1]):
            return f"a program of {name}"
    return ""


def _check_injection(text: str, marks: list[str], places: list[_Place]) -> None:
    """Raise `UsageError` if a value full of shell characters would change the parsed commands."""
    probe = "'\";$(x)`x`\\|&<>*?~{a,b}#!\n\\"
    tried = text
    for mark, place in zip(marks, places, strict=True):
        tried = tried.replace(mark, _quote_value(probe, place, ""))
    wanted = []
    for command in read_line(text).commands:
        words = list(command)
        for mark in marks:
            words = [word and word.replace(mark, probe) for word in words]
        wanted.append(tuple(words))
    if read_line(tried).commands != tuple(wanted):
        _refuse("a place that programs do not agree on")


_KINDS = {
    "command_name": "the name of a command",
    "variable_name": "the name of a variable",
    "heredoc_body": "a here-document",
    "heredoc_redirect": "a here-document",
    "arithmetic_expansion": "arithmetic",
    "test_command": "a test in brackets",
    "expansion": "the expansion of a variable",
    "simple_expansion": "the expansion of a variable",
    "comment": "a comment",
    "command_substitution": "backticks",
}


def _kind(node: Node | None) -> str:
    kind = "" if node is None else node.type
    return _KINDS.get(kind, kind.replace("_", " ") or "an unknown place")


def _refuse(where: str) -> NoReturn:
    raise UsageError(
        f"its command has a reference in {where}, where a value could become a part of the program: "
        "refer to values as words of a command, quoted or not, e.g. grep -e {{word}} -- {{file}}"
    )
