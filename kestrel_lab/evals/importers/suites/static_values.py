"""Values of a Python file that is read and not run: what is known, what stays a call, what is not known; and
the operations on them.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import string
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from kestrel_lab.core.errors import UsageError

if TYPE_CHECKING:
    from kestrel_lab.evals.importers.suites.static_python import StaticModule

MOST_TEXT: Final = 1_000_000
"""Characters of a text, items of a list."""
MOST_BITS: Final = 10_000


class Unreadable(UsageError):
    """A place of a file that would have to be run to be read."""

    def __init__(self, node: ast.AST, what: str) -> None:
        self.line = getattr(node, "lineno", 0)
        super().__init__(f"line {self.line}: {what}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Called:
    """A call of something that the file imports, as it is written."""

    name: str
    """The last part of its name."""
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    line: int
    owner: Any = None
    """What it is a method of, where that is a call too: a dataset that is filtered."""

    def arg(self, name: str, place: int = -1, default: Any = None) -> Any:
        """Return an argument by its name, or its place where it may be given by it."""
        if name in self.kwargs:
            return self.kwargs[name]
        return self.args[place] if 0 <= place < len(self.args) else default


@dataclass(frozen=True, kw_only=True, slots=True)
class Named:
    """A name that the file imports or does not define."""

    name: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Function:
    """A function or lambda of the file, with the names around it."""

    name: str
    node: ast.FunctionDef | ast.Lambda
    module: StaticModule = field(repr=False)
    around: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class Unread:
    """A value that would have to be run to be known."""

    error: Unreadable

    @property
    def name(self) -> str:
        """Why, without the line."""
        return str(self.error).partition(": ")[2]


OPAQUE: Final = (Called, Named, Function, Unread)


def is_plain(value: Any) -> bool:
    """Return whether a value is known through and through."""
    if isinstance(value, dict):
        return all(map(is_plain, value)) and all(map(is_plain, value.values()))
    return all(map(is_plain, value)) if isinstance(value, list | tuple) else not isinstance(value, OPAQUE)


def _united(a: Any, b: Any) -> Any:
    return list(dict.fromkeys([*a, *b])) if isinstance(a, list) and isinstance(b, list) else a | b


def _times(a: Any, b: Any) -> Any:
    for one, count in ((a, b), (b, a)):
        if isinstance(one, str | list) and isinstance(count, int) and len(one) * count > MOST_TEXT:
            raise ValueError("it makes something too large")
    return a * b


def _floor_mod(work: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def numbers(a: Any, b: Any) -> Any:
        # % is a way to format texts, of any width.
        if not isinstance(a, int | float):
            raise TypeError("it is no number")
        return work(a, b)

    return numbers


BINARY: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: lambda a, b: [one for one in a if one not in b] if isinstance(a, list) else a - b,
    ast.Mult: _times,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: _floor_mod(operator.mod),
    ast.BitOr: _united,
    ast.BitAnd: lambda a, b: [one for one in a if one in b] if isinstance(a, list) else a & b,
}
COMPARED: Final[dict[type, Callable[[Any, Any], Any]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}


def _range(*ends: int) -> list[int]:
    numbers = range(*ends)
    if len(numbers) > MOST_TEXT:
        raise ValueError("it makes something too large")
    return list(numbers)


FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {
    **{
        f.__name__: f
        for f in (str, int, float, bool, len, list, dict, sorted, ord, chr, min, max, sum, abs, round, repr)
    },
    "any": any,
    "all": all,
    "range": _range,
    "tuple": list,
    # Sets keep the order in which they are written, so that the same file gives the same suite.
    "set": lambda items=(): list(dict.fromkeys(items)),
    "frozenset": lambda items=(): list(dict.fromkeys(items)),
    "reversed": lambda items: list(reversed(items)),
    "zip": lambda *lists, strict=False: list(zip(*lists, strict=strict)),
    "enumerate": lambda items, start=0: list(enumerate(items, start)),
    "dedent": textwrap.dedent,
    "json.loads": json.loads,
    "json.dumps": json.dumps,
    "textwrap.dedent": textwrap.dedent,
}
HOLDERS: Final = frozenset("len list tuple enumerate zip reversed".split())
"""Functions that do not look at the items of a list."""
TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    **{one.__name__: one for one in (str, int, float, bool, dict)},
    "list": list,
    "tuple": list,
    "Sequence": (list, str),
    "Mapping": dict,
}
METHODS: Final[dict[type, frozenset[str]]] = {
    str: frozenset(
        "strip lstrip rstrip split rsplit join lower upper replace format title capitalize startswith "
        "endswith removeprefix removesuffix splitlines isdigit index find count partition rpartition "
        "isalpha isupper islower casefold".split()
    ),
    list: frozenset("append insert extend index pop copy count add".split()),
    dict: frozenset("get keys values items pop copy update setdefault".split()),
}
CHANGING: Final = frozenset("append insert extend pop add update setdefault remove clear sort".split())
BUILDERS: Final = frozenset({"solver", "scorer", "agent", "tool", "metric", "reducer", "approver"})
"""Decorators of functions that make what Inspect calls later: what is in them is code of a run."""
SPEC: Final = re.compile(r"[<>^]?[+ ]?0?\d{0,3}[,_]?(\.\d{1,2})?[bcdeEfFgGnosxX%]?")


def grown_length(text: str, name: str, args: list[Any]) -> int:
    """Return how long a text is at most after its method was called, before it is."""
    if not args or not is_plain(args[0]):
        return 0
    if name == "join":
        return sum(len(str(one)) + len(text) for one in args[0])
    return len(text) + text.count(str(args[0])) * len(str(args[-1]))


def filled_template(node: ast.AST, template: str, args: list[Any], kwargs: dict[str, Any]) -> str:
    """Return `str.format` for names and numbers of arguments alone: no attributes, no widths."""
    pieces, number = [], 0
    try:
        for literal, name, spec, conversion in string.Formatter().parse(template):
            pieces.append(literal)
            if name is None:
                continue
            if spec or conversion or not (name == "" or name.isidentifier() or name.isdigit()):
                raise Unreadable(node, f"the format {{{name}}} would have to be run")
            key = number if name == "" else int(name) if name.isdigit() else name
            number += name == ""
            found = args[key] if isinstance(key, int) else kwargs[key]
            if not is_plain(found):
                raise Unreadable(node, f"the value of {name!r} would have to be run")
            pieces.append(str(found))
    except (ValueError, LookupError) as error:
        raise Unreadable(node, f"a template that cannot be filled: {error}") from error
    return "".join(pieces)


def decorators_of(node: ast.AST) -> set[str]:
    """Return the names of the decorators of a function, without their modules."""
    found = [one.func if isinstance(one, ast.Call) else one for one in getattr(node, "decorator_list", ())]
    return {str(getattr(one, "attr", getattr(one, "id", ""))) for one in found}
