"""Conditions mean what their text says, against a reference that computes with Python objects."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.expressions.conditions import MAX_LENGTH, Condition, parse_condition
from kestrel_lab.core.json_types import Json

SCOPE: dict[str, Json] = {
    "n": 2,
    "x": 0.5,
    "name": "kestrel",
    "yes": True,
    "no": False,
    "nothing": None,
    "items": [1, "a", True, None, 2.5, [1], {"k": 1}],
    "result": {"status": "done", "score": 0.9, "error-code": 0, "parts": [{"ok": True}, {"ok": False}]},
}


@dataclass(frozen=True)
class Expression:
    """A piece of a condition: its text, how closely it binds (0 or … 4 value) and its value, or `Wrong`."""

    text: str
    binds: int
    value: Any


class Wrong(Exception):
    """The reference's word for what has no answer."""


def value_of(expression: Expression) -> Any:
    """Its value; raises for one that has none."""
    if expression.value is Wrong:
        raise Wrong
    return expression.value


def strict(value: Any) -> Any:
    """A form of JSON in which Python's own `==` is ours: booleans are marked, numbers are numbers."""
    if isinstance(value, bool):
        return ("bool", value)
    if isinstance(value, list):
        return [strict(item) for item in value]
    return {key: strict(item) for key, item in value.items()} if isinstance(value, dict) else value


def compared(sign: str, left: Any, right: Any) -> bool:
    """What a comparison means."""
    if sign in ("==", "!="):
        return (strict(left) == strict(right)) == (sign == "==")
    if sign in ("in", "not in"):
        if isinstance(right, list):
            return (strict(left) in strict(right)) == (sign == "in")
        if isinstance(right, (str, dict)) and isinstance(left, str):
            return (left in right) == (sign == "in")
        raise Wrong
    kinds = {
        bool
        if isinstance(side, bool)
        else str
        if isinstance(side, str)
        else float
        if isinstance(side, (int, float))
        else type(side)
        for side in (left, right)
    }
    if kinds not in ({str}, {float}):
        raise Wrong
    return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[sign]


def yes(value: Any) -> bool:
    """The value where only a yes or no will do."""
    if not isinstance(value, bool):
        raise Wrong
    return value


def attempt(compute: Any) -> Any:
    """What `compute` gives, or `Wrong`."""
    try:
        return compute()
    except Wrong:
        return Wrong


def literal(value: Any) -> Expression:
    """A literal of the language."""
    if isinstance(value, str):
        inner = value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\t", "\\t")
        return Expression(f"'{inner}'", 4, value)
    if isinstance(value, list):
        return Expression("[" + ", ".join(literal(item).text for item in value) + "]", 4, value)
    words = {None: "null", True: "true", False: "false"}
    return Expression(words[value] if value is None or isinstance(value, bool) else repr(value), 4, value)


PATHS: dict[str, Any] = {
    **SCOPE,
    "items[1]": "a",
    "items[6].k": 1,
    "result.status": "done",
    "result.score": 0.9,
    "result.error-code": 0,
    "result.parts[0].ok": True,
    "result.parts[1]": {"ok": False},
    "missing": Wrong,
    "result.lost": Wrong,
    "items[7]": Wrong,
    "name.x": Wrong,
}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([0.5, 2.0, -1.5, 1e300])
    | st.sampled_from(["a", "done", "", "k", "it's", 'a "b"', "\\n\n", "kes"])
    | st.text(max_size=3)
)
literals = st.builds(literal, scalars | st.lists(scalars, max_size=3))
paths = st.sampled_from([Expression(path, 4, value) for path, value in PATHS.items()])
exists = st.sampled_from(
    [Expression(f"exists({path})", 4, value is not Wrong) for path, value in PATHS.items()]
)


def wrapped(part: Expression, least: int, full: bool) -> str:
    """`part` in parentheses where it binds less than `least`, or always."""
    return f"({part.text})" if full or part.binds < least else part.text


def joined(word: str, left: Expression, right: Expression, full: bool) -> Expression:
    """`and`, `or`."""
    binds = {"or": 0, "and": 1}[word]

    def compute() -> bool:
        first = yes(value_of(left))
        return first if first is (word == "or") else yes(value_of(right))

    return Expression(
        f"{wrapped(left, binds, full)} {word} {wrapped(right, binds + 1, full)}", binds, attempt(compute)
    )


def negated(part: Expression, full: bool) -> Expression:
    """`not`."""
    return Expression(f"not {wrapped(part, 2, full)}", 2, attempt(lambda: not yes(value_of(part))))


def asked(sign: str, left: Expression, right: Expression, full: bool) -> Expression:
    """A comparison."""
    text = f"{wrapped(left, 4, full)} {sign} {wrapped(right, 4, full)}"
    return Expression(text, 3, attempt(lambda: compared(sign, value_of(left), value_of(right))))


signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">=", "in", "not in"])
comparisons = st.builds(asked, signs, literals | paths, literals | paths, st.booleans())
expressions = st.recursive(
    comparisons | exists | literals | paths,
    lambda inner: (
        st.builds(joined, st.sampled_from(["and", "or"]), inner, inner, st.booleans())
        | st.builds(negated, inner, st.booleans())
        | st.builds(asked, signs, inner, inner, st.booleans())
    ),
    max_leaves=10,
)


@given(expression=expressions)
def test_a_condition_means_what_the_reference_computes(expression: Expression) -> None:
    """Over random questions, written with as few or as many parentheses as can be: the same yes or no, or
    refused by both.
    """
    condition = parse_condition(expression.text)
    if isinstance(expression.value, bool):
        assert condition.holds(SCOPE) is expression.value
    else:
        with pytest.raises(UsageError):
            condition.holds(SCOPE)


@given(
    left=scalars | st.lists(scalars, max_size=3), right=scalars | st.lists(scalars, max_size=3), sign=signs
)
def test_literals_are_read_as_written(left: Any, right: Any, sign: str) -> None:
    """Every literal that can be written is read as itself: a comparison of two is that of the values."""
    expected = attempt(lambda: compared(sign, left, right))
    condition = parse_condition(f"{literal(left).text} {sign} {literal(right).text}")
    if expected is Wrong:
        with pytest.raises(UsageError):
            condition.holds({})
    else:
        assert condition.holds({}) is expected


def test_a_condition_tells_its_text_and_its_names() -> None:
    """`str`, `names` and equality by text; the names in `exists` count."""
    text = "a.b[0] == 1 and (not exists(c.d) or 'e' in [f, a])"
    condition = parse_condition(text)
    assert (str(condition), condition.names, condition) == (
        text,
        {"a", "c", "f"},
        Condition(text, frozenset(), condition._question),
    )
    assert parse_condition("'a.b' == \"c\"").names == frozenset()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "name < 1",
            "a text ('kestrel') and a number (1) cannot be put in order by <: it takes two numbers or "
            "two texts",
        ),
        (
            "yes >= 1",
            "true or false and a number (1) cannot be put in order by >=: it takes two numbers or two texts",
        ),
        (
            "1 in n",
            "a number (1) cannot be looked for in a number (2): in takes an item of a list, a part of "
            "a text or a key of an object",
        ),
        ("n", "a number (2) is not the answer to a yes/no question: compare it with something"),
        (
            "yes and name",
            "a text ('kestrel') is not the answer to a yes/no question: compare it with something",
        ),
        ("result.stats == 1", "'result.stats': result has no 'stats'; did you mean 'status'?"),
        ("nam == 1", "'nam': there is no 'nam'; did you mean 'name'?"),
        ("items[9] == 1", "'items[9]': items has 7 items, counted from [0]"),
    ],
)
def test_a_question_without_an_answer_is_told(text: str, told: str) -> None:
    """The error gives the condition, both sides and what to do."""
    with pytest.raises(UsageError) as caught:
        parse_condition(text).holds(SCOPE)
    assert str(caught.value) == f"condition {text!r}: {told}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "a value was expected where its end is"),
        ("a ==", "a value was expected where its end is"),
        ("a = 1", "'= 1' cannot be read"),
        ("a == 1 b", "and, or or its end was expected where 'b' is"),
        ("(a", ") was expected where its end is"),
        ("1 < a < 3", "two comparisons follow one another at '<': join them with and, or use parentheses"),
        ("a not 1", "in was expected where '1' is"),
        ("[1 2]", ", was expected where '2' is"),
        ("exists('a')", "a value was expected where \"'a'\" is"),
        ("'a", '"\'a" cannot be read'),
        (r"'\x41' == a", r"'\\x' in a text means nothing: only \\, \', \", \n and \t do"),
        ("1e999 == a", "1e999 is too large for a number"),
        ("a.b.", "'a.b.' cannot be read"),
        ("in == 1", "a value was expected where 'in' is"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, told: str) -> None:
    """The error says what was expected, and where."""
    with pytest.raises(UsageError) as caught:
        parse_condition(text)
    assert str(caught.value) == f"condition {text!r}: {told}"


@pytest.mark.parametrize(
    "attack",
    [
        "().__class__",
        "__import__('os').system('id') == 0",
        "name.upper() == 'A'",
        "items.append(1)",
        "[x for x in items] == []",
        "lambda: 1",
        "(n := 3) == 3",
        "f'{name}' == name",
        "n ** n == 4",
        "9 * 9 == 81",
        "n if yes else no",
        "'a' % n == 'a'",
        "items[-1] == 1",
        "items[0:1] == []",
        "{'a': 1} == result",
        "yes; yes",
        "yes # yes",
        "`id`",
        "1_000 == n",
        "0x10 == n",
        "${n} == 2",
        "{{n}} == 2",
    ],
)
def test_nothing_of_python_gets_in(attack: str) -> None:
    """Calls, attributes of objects, comprehensions, arithmetic, formats, slices: refused when read."""
    with pytest.raises(UsageError):
        parse_condition(attack)


@pytest.mark.parametrize(
    "attribute",
    ["name.__class__", "items.append", "result.keys", "n.real", "yes.__doc__", "result.__class__"],
)
def test_paths_reach_no_attribute(attribute: str) -> None:
    """A path finds keys of objects and nothing else."""
    assert parse_condition(f"exists({attribute})").holds(SCOPE) is False


pieces = st.sampled_from(
    [
        "and",
        "or",
        "not",
        "in",
        "exists",
        "(",
        ")",
        "[",
        "]",
        ",",
        "==",
        "<",
        "n",
        "items[0]",
        "'a'",
        "1",
        "-1.5e3",
        "true",
        ".",
        '"',
        " ",
    ]
)


@given(text=st.text(max_size=40) | st.lists(pieces, max_size=14).map(" ".join))
def test_any_text_is_answered_or_refused(text: str) -> None:
    """No text raises anything but `UsageError`, neither when read nor when asked."""
    try:
        parse_condition(text).holds(SCOPE)
    except UsageError:
        pass


@pytest.mark.parametrize(
    "text",
    [
        "(" * 2_000,
        "not " * 500,
        "[" * 1_000 + "]" * 1_000,
        "(" * 33 + "yes" + ")" * 33,
        "a" + ".b" * 990 + ".",
        "'" + "\\" * 1_999,
        "1" * 1_999 + "x",
        "-" * 2_000,
        " " * 2_000,
    ],
)
def test_a_condition_is_bounded(text: str) -> None:
    """Nesting beyond 32 and what would make a reader run in circles is refused at once."""
    began = time.thread_time()
    with pytest.raises(UsageError):
        parse_condition(text)
    assert time.thread_time() - began < 0.5


def test_long_conditions_are_refused_and_wide_ones_answered() -> None:
    """One character too many is refused; a condition as wide as the cap and values as deep as can be are
    answered.
    """
    with pytest.raises(UsageError, match="more than 2,000 characters"):
        parse_condition("yes" + " " * (MAX_LENGTH - 2))
    wide = " or ".join(["no"] * 300) + " or yes"
    assert parse_condition(wide).holds(SCOPE) is True
    assert parse_condition("(" * 32 + "yes" + ")" * 32).holds(SCOPE) is True
    left: Json = 1
    right: Json = True
    for _ in range(50_000):
        left, right = [left], [right]
    assert parse_condition("a == a and a != b").holds({"a": left, "b": right}) is True
