"""Yes/no questions about JSON values, in a language small enough to be safe in a file from anywhere.

    status == "done" and (score >= 0.8 or attempts in [2, 3]) and not exists(error.message)

Literals (numbers, quoted texts, `true`, `false`, `null`, lists), paths (`name.key[0]`), comparison,
`in` and `not in` (an item of a list, a part of a text, a key of an object), `and`, `or`, `not`,
parentheses, and `exists(path)`. Nothing is called or evaluated; every question ends in time
proportional to the question and the values it compares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import ge, gt, le, lt
from typing import Any, NoReturn

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.json_paths import PATTERN, JsonPath, kind
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

MAX_LENGTH = 2_000
"""Characters of a condition."""
MAX_DEPTH = 32
"""How deep parentheses, lists and `not` may be nested."""

_TOKEN = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.]))"
    r"|(?P<word>(?:and|or|not|in|exists|true|false|null)(?![\w-]))"
    rf"|(?P<path>{PATTERN}(?![\w.\[-]))"
    r"|(?P<text>'(?:[^'\\]|\\.)*+'|\"(?:[^\"\\]|\\.)*+\")"
    r"|(?P<sign>==|!=|<=|>=|[<>()\[\],])",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"\\": "\\", "'": "'", '"': '"', "n": "\n", "t": "\t"}
_ORDER: dict[str, Callable[[Any, Any], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}
_CONSTANTS: dict[str, Json] = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class Condition:
    """A question that `holds` or does not; `str` gives its text."""

    text: str
    names: frozenset[str] = field(compare=False)
    """The names that its paths begin with."""
    _question: _Node = field(compare=False, repr=False)

    def holds(self, scope: Mapping[str, Json]) -> bool:
        """The answer for the values in `scope`.

        `==` is false across types, except that whole and decimal numbers are compared as numbers; true and
        false are no numbers. `<` and its like compare two numbers or two texts. `and` and `or` look at their
        right side only when it matters. Raises `UsageError` for a path that leads nowhere outside `exists`,
        sides that cannot be compared, and whatever is neither true nor false where a yes or no is needed.
        """
        try:
            return _yes(self._question, scope)
        except UsageError as error:
            msg = f"condition {one_line(self.text, 200)!r}: {error}"
            raise UsageError(msg) from None

    def __str__(self) -> str:
        return self.text


def parse(text: str) -> Condition:
    """Read a condition; raises `UsageError` that says where it cannot be understood."""
    try:
        parser = _Parser(text)
        question = parser.whole()
    except UsageError as error:
        msg = f"condition {one_line(text, 200)!r}: {error}"
        raise UsageError(msg) from None
    return Condition(text, frozenset(parser.names), question)


# The tree of a condition.


@dataclass(frozen=True, slots=True)
class _Literal:
    value: Json


@dataclass(frozen=True, slots=True)
class _Items:
    items: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Lookup:
    path: JsonPath


@dataclass(frozen=True, slots=True)
class _Exists:
    path: JsonPath


@dataclass(frozen=True, slots=True)
class _Not:
    inner: _Node


@dataclass(frozen=True, slots=True)
class _Several:
    """Parts of which all must hold, or one."""

    all: bool
    parts: tuple[_Node, ...]


@dataclass(frozen=True, slots=True)
class _Compared:
    sign: str
    left: _Node
    right: _Node


_Node = _Literal | _Items | _Lookup | _Exists | _Not | _Several | _Compared


# Reading.


class _Parser:
    """Recursive descent over the tokens, each level of binding one method."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            msg = f"it has more than {MAX_LENGTH:,} characters"
            raise UsageError(msg)
        self.names: set[str] = set()
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def whole(self) -> _Node:
        node = self._several("or")
        if self._kind != "end":
            self._refuse("and, or or its end")
        return node

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _word(self) -> str:
        """The sign or word that comes next; a quoted text is neither."""
        kind, text = self._tokens[self._at]
        return text if kind in {"sign", "word"} else ""

    def _take(self, word: str) -> bool:
        if self._word != word:
            return False
        self._at += 1
        return True

    def _need(self, word: str) -> None:
        if not self._take(word):
            self._refuse(word)

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1][1]

    def _refuse(self, wanted: str) -> NoReturn:
        kind, text = self._tokens[self._at]
        there = "its end" if kind == "end" else repr(one_line(text, 40))
        msg = f"{wanted} was expected where {there} is"
        raise UsageError(msg)

    def _deeper(self, read: Callable[[], _Node]) -> _Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            msg = f"it is nested more than {MAX_DEPTH} deep"
            raise UsageError(msg)
        node = read()
        self._depth -= 1
        return node

    def _several(self, word: str) -> _Node:
        """Parts joined by `word`; `and` binds closer than `or`."""
        read = self._no if word == "and" else lambda: self._several("and")
        parts = [read()]
        while self._take(word):
            parts.append(read())
        return parts[0] if len(parts) == 1 else _Several(word == "and", tuple(parts))

    def _no(self) -> _Node:
        return _Not(self._deeper(self._no)) if self._take("not") else self._comparison()

    def _comparison(self) -> _Node:
        left = self._operand()
        if self._word in {"==", "!=", "in", *_ORDER}:
            sign = self._next()
        elif self._take("not"):
            self._need("in")
            sign = "not in"
        else:
            return left
        right = self._operand()
        if self._word in {"==", "!=", "in", "not", *_ORDER}:
            msg = f"two comparisons follow one another at {self._word!r}: join them with and, or use parentheses"
            raise UsageError(msg)
        return _Compared(sign, left, right)

    def _operand(self) -> _Node:
        if self._kind == "number":
            return _Literal(_number(self._next()))
        if self._kind == "text":
            return _Literal(_unquoted(self._next()))
        if self._take("("):
            inner = self._deeper(lambda: self._several("or"))
            self._need(")")
            return inner
        if self._take("["):
            return self._deeper(self._list)
        if self._take("exists"):
            self._need("(")
            path = self._path()
            self._need(")")
            return _Exists(path)
        if self._word in _CONSTANTS:
            return _Literal(_CONSTANTS[self._next()])
        return _Lookup(self._path())

    def _list(self) -> _Node:
        items: list[_Node] = []
        while not self._take("]"):
            if items:
                self._need(",")
            items.append(self._operand())
        return _Items(tuple(items))

    def _path(self) -> JsonPath:
        if self._kind != "path":
            self._refuse("a value")
        path = JsonPath.parse(self._next())
        self.names.add(path.root)
        return path


def _tokens(text: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            msg = f"{one_line(text[at:], 40)!r} cannot be read"
            raise UsageError(msg)
        if match.lastgroup != "space":
            found.append((match.lastgroup or "", match[0]))
        at = match.end()
    return [*found, ("end", "")]


def _number(text: str) -> Json:
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    if math.isinf(number):
        msg = f"{one_line(text, 40)} is too large for a number"
        raise UsageError(msg)
    return number


def _unquoted(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPED:
            msg = rf"{match[0]!r} in a text means nothing: only \\, \', \", \n and \t do"
            raise UsageError(msg)
        return _ESCAPED[match[1]]

    return _ESCAPE.sub(one, text[1:-1])


# Answering.


def _yes(node: _Node, scope: Mapping[str, Json]) -> bool:
    value = _value(node, scope)
    if not isinstance(value, bool):
        msg = f"{_shown(value)} is not the answer to a yes/no question: compare it with something"
        raise UsageError(msg)
    return value


def _value(node: _Node, scope: Mapping[str, Json]) -> Json:
    match node:
        case _Literal(value):
            return value
        case _Items(items):
            return [_value(item, scope) for item in items]
        case _Lookup(path):
            return path.find(scope)
        case _Exists(path):
            return _exists(path, scope)
        case _Not(inner):
            return not _yes(inner, scope)
        case _Several(True, parts):
            return all(_yes(part, scope) for part in parts)
        case _Several(_, parts):
            return any(_yes(part, scope) for part in parts)
        case _Compared(sign, left, right):
            return _compared(sign, _value(left, scope), _value(right, scope))


def _exists(path: JsonPath, scope: Mapping[str, Json]) -> bool:
    try:
        path.find(scope)
    except UsageError:
        return False
    return True


def _compared(sign: str, left: Json, right: Json) -> bool:
    if sign in {"==", "!="}:
        return _same(left, right) is (sign == "==")
    if sign in {"in", "not in"}:
        return _contains(right, left) is (sign == "in")
    if not (_is_number(left) and _is_number(right)) and not (isinstance(left, str) and isinstance(right, str)):
        msg = f"{_shown(left)} and {_shown(right)} cannot be put in order by {sign}: it takes two numbers or two texts"
        raise UsageError(msg)
    return _ORDER[sign](left, right)


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, list):
        return any(_same(item, part) for item in whole)
    if isinstance(whole, (str, dict)) and isinstance(part, str):
        return part in whole
    msg = f"{_shown(part)} cannot be looked for in {_shown(whole)}: in takes an item of a list, a part of a text or a key of an object"
    raise UsageError(msg)


def _same(left: Json, right: Json) -> bool:
    """Return whether two values are equal, where true is not 1, at any depth. It is a loop because a model may send values nested deeper than calls may be."""
    todo = [(left, right)]
    while todo:
        a, b = todo.pop()
        if isinstance(a, list) and isinstance(b, list):
            if len(a) != len(b):
                return False
            todo += zip(a, b, strict=True)
        elif isinstance(a, dict) and isinstance(b, dict):
            if a.keys() != b.keys():
                return False
            todo += [(a[key], b[key]) for key in a]
        elif (type(a) is not type(b) and not (_is_number(a) and _is_number(b))) or a != b:
            return False
    return True


def _is_number(value: Json) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _shown(value: Json) -> str:
    """Return the sort of a value, with the value itself where it is short."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return f"{kind(value)} ({one_line(repr(value[:60] if isinstance(value, str) else value), 70)})"
    return kind(value)
