"""Conditions on JSON values: a small language that is safe in a file from anywhere.

    status == "done" and (score >= 0.8 or attempts in [2, 3]) and not exists(error.message)

Literals (numbers, quoted texts, `true`, `false`, `null`, lists), paths (`name.key[0]`), comparison, `in` and
`not in` (an item of a list, a part of a text, a key of an object), `and`, `or`, `not`, parentheses, and
`exists(path)`. No code is evaluated; the time is proportional to the condition and the values it compares.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import ge, gt, le, lt
from typing import Any, NoReturn

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.json_paths import PATTERN, JsonPath, json_type_name
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
    """A parsed condition; `str` gives its text."""

    text: str
    names: frozenset[str] = field(compare=False)
    """The first names of its paths."""
    _question: _Question = field(compare=False, repr=False)

    def holds(self, scope: Mapping[str, Json]) -> bool:
        """Return whether the condition is true for the values in `scope`.

        `==` is false across types, except that whole and decimal numbers are compared as numbers; true and
        false are not numbers. `<`, `<=`, `>` and `>=` compare two numbers or two texts. `and` and `or`
        evaluate their right side only when it matters. Raises `UsageError` for a missing path outside
        `exists`, sides that cannot be compared, and a value that is neither true nor false where one of them
        is needed.
        """
        try:
            return _evaluate(self._question, scope)
        except UsageError as error:
            # `from None`: frames of the evaluation say nothing to the author of the condition.
            raise UsageError(f"condition {one_line(self.text, 200)!r}: {error}") from None

    def __str__(self) -> str:
        return self.text


def parse_condition(text: str) -> Condition:
    """Parse a condition; raises `UsageError` that names the place of a mistake."""
    try:
        parser = _Parser(text)
        question = parser.whole()
    except UsageError as error:
        raise UsageError(f"condition {one_line(text, 200)!r}: {error}") from None
    return Condition(text, frozenset(parser.names), question)


_Question = Callable[[Mapping[str, Json]], Json]
"""A compiled condition, or a part of one: gives its value for a scope."""


class _Parser:
    """Recursive descent over the tokens, one method per level of precedence."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_LENGTH:
            raise UsageError(f"it has more than {MAX_LENGTH:,} characters")
        self.names: set[str] = set()
        self._tokens = list(_tokens(text))
        self._at = 0
        self._depth = 0

    def whole(self) -> _Question:
        node = self._several("or")
        if self._kind != "end":
            self._refuse("and, or or its end")
        return node

    @property
    def _kind(self) -> str:
        return self._tokens[self._at][0]

    @property
    def _word(self) -> str:
        """The next sign or word; a quoted text is neither."""
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
        raise UsageError(f"{wanted} was expected where {there} is")

    def _deeper(self, read: Callable[[], _Question]) -> _Question:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise UsageError(f"it is nested more than {MAX_DEPTH} deep")
        node = read()
        self._depth -= 1
        return node

    def _several(self, word: str) -> _Question:
        """Parse parts joined by `word`; `and` binds closer than `or`."""
        read = self._no if word == "and" else lambda: self._several("and")
        parts = [read()]
        while self._take(word):
            parts.append(read())
        if len(parts) == 1:
            return parts[0]
        quantifier = all if word == "and" else any
        return lambda scope: quantifier(_evaluate(part, scope) for part in parts)

    def _no(self) -> _Question:
        if not self._take("not"):
            return self._comparison()
        inner = self._deeper(self._no)
        return lambda scope: not _evaluate(inner, scope)

    def _comparison(self) -> _Question:
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
            raise UsageError(
                f"two comparisons follow one another at {self._word!r}: join them with and, or use "
                "parentheses"
            )
        return lambda scope: _compare(sign, left(scope), right(scope))

    def _operand(self) -> _Question:
        if self._kind == "number":
            return _constant(_number(self._next()))
        if self._kind == "text":
            return _constant(_unquote(self._next()))
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
            return partial(_exists, path)
        if self._word in _CONSTANTS:
            return _constant(_CONSTANTS[self._next()])
        return self._path().find

    def _list(self) -> _Question:
        items: list[_Question] = []
        while not self._take("]"):
            if items:
                self._need(",")
            items.append(self._operand())
        return lambda scope: [item(scope) for item in items]

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
            raise UsageError(f"{one_line(text[at:], 40)!r} cannot be read")
        if match.lastgroup != "space":
            found.append((match.lastgroup or "", match[0]))
        at = match.end()
    return [*found, ("end", "")]


def _number(text: str) -> Json:
    number = int(text) if text.lstrip("-").isdigit() else float(text)
    if math.isinf(number):
        raise UsageError(f"{one_line(text, 40)} is too large for a number")
    return number


def _unquote(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPED:
            raise UsageError(rf"{match[0]!r} in a text means nothing: only \\, \', \", \n and \t do")
        return _ESCAPED[match[1]]

    return _ESCAPE.sub(one, text[1:-1])


# Evaluation.


def _evaluate(question: _Question, scope: Mapping[str, Json]) -> bool:
    value = question(scope)
    if not isinstance(value, bool):
        raise UsageError(
            f"{_type_and_value(value)} is not the answer to a yes/no question: compare it with something"
        )
    return value


def _constant(value: Json) -> _Question:
    return lambda _: value


def _exists(path: JsonPath, scope: Mapping[str, Json]) -> bool:
    try:
        path.find(scope)
    except UsageError:
        return False
    return True


def _compare(sign: str, left: Json, right: Json) -> bool:
    if sign in {"==", "!="}:
        return _are_equal(left, right) is (sign == "==")
    if sign in {"in", "not in"}:
        return _contains(right, left) is (sign == "in")
    if not (_is_number(left) and _is_number(right)) and not (
        isinstance(left, str) and isinstance(right, str)
    ):
        raise UsageError(
            f"{_type_and_value(left)} and {_type_and_value(right)} cannot be put in order by {sign}: "
            "it takes two numbers or two texts"
        )
    return _ORDER[sign](left, right)


def _contains(whole: Json, part: Json) -> bool:
    if isinstance(whole, list):
        return any(_are_equal(item, part) for item in whole)
    if isinstance(whole, (str, dict)) and isinstance(part, str):
        return part in whole
    msg = (
        f"{_type_and_value(part)} cannot be looked for in {_type_and_value(whole)}: in takes an item "
        "of a list, a part of a text or a key of an object"
    )
    raise UsageError(msg)


def _are_equal(left: Json, right: Json) -> bool:
    """Whether values are equal (true is not 1); iterative, since values may be deeper than Python's stack."""
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
    # A bool is an int in Python, but not in a condition.
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type_and_value(value: Json) -> str:
    """Return the type of a value, and its beginning for texts and numbers."""
    if isinstance(value, (str, int, float)) and not isinstance(value, bool):
        return (
            f"{json_type_name(value)} ({one_line(repr(value[:60] if isinstance(value, str) else value), 70)})"
        )
    return json_type_name(value)
