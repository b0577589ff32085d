"""Claims about what a tool returns: whatever it is, a model can read it, and the run goes on."""

import array
import asyncio
import io
import itertools
import json
import sys
import types
import uuid
from collections import ChainMap, OrderedDict, UserDict, deque, namedtuple
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from kestrel_lab.core.events.union import ToolAnswered
from kestrel_lab.core.json_types import dumps, loads
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.results import MOST_DEPTH, render_result, to_json

Pair = namedtuple("Pair", "a b")


def nested(levels: int, made: Any = lambda inner: [inner]) -> Any:
    value: Any = "inmost"
    for _ in range(levels):
        value = made(value)
    return value


class Rude:
    """An object of which everything that could show it raises."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        self.error = error

    def __repr__(self) -> NoReturn:
        raise self.error("no")

    __str__ = __repr__

    def __getattr__(self, name: str) -> NoReturn:
        raise self.error("no")


class RudeClass:
    """An object that does not even say of which class it is."""

    @property
    def __class__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no")


class RudeMapping(UserDict[str, int]):
    """A mapping whose items fail."""

    def items(self) -> NoReturn:
        raise OSError("no")


class Colour(Enum):
    """A value that has no JSON form itself."""

    SPAN = range(3)


class Flags(IntFlag):
    """Numbers that are flags."""

    A = 1
    B = 2


class Row(BaseModel):
    """A model with a field of any kind."""

    model_config = {"arbitrary_types_allowed": True}
    value: Any


@dataclass
class Node:
    """A dataclass that can hold itself."""

    name: str
    below: list[Any] = field(default_factory=list)


def counted(to: int) -> Iterator[int]:
    yield from range(to)


def broken() -> Iterator[int]:
    yield 1
    raise LookupError("gone")


endless: list[Any] = []
endless.append(endless)
twice: list[Any] = []
twice += [twice, twice]
knot = Node("a")
knot.below.append({"up": knot})
circle = Row(value=None)
circle.value = [circle]

VALUES: dict[str, tuple[Any, Any]] = {
    "a huge integer": (10**5000, hex(10**5000)),
    "a huge negative integer": ({"n": -(10**5000)}, {"n": hex(-(10**5000))}),
    "a large integer": (10**4000, 10**4000),
    "a range": (range(2), [0, 1]),
    "a range without end": (range(10**18), f"range(0, {10**18})"),
    "bytes of a text": (b"caf\xc3\xa9", "café"),
    "bytes": (b"\xff\xfe", r"b'\xff\xfe'"),
    "bytes within": ([{"a": (b"\xff",)}], [{"a": [r"b'\xff'"]}]),
    "a bytearray": (bytearray(b"\xff"), r"b'\xff'"),
    "a memoryview": (memoryview(b"\xff"), r"b'\xff'"),
    "a period": (pd.Period("2026-01"), "2026-01"),
    "an interval": (pd.Interval(0, 1), "(0, 1]"),
    "a missing value": (pd.NA, "<NA>"),
    "no time": (pd.NaT, "NaT"),
    "a time": (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02T00:00:00Z"),
    "a day": (date(2026, 1, 2), "2026-01-02"),
    "a duration": (timedelta(seconds=90), "PT1M30S"),
    "an array of objects": (np.array([1, pd.NA, b"\xff"], dtype=object), [1, "<NA>", r"b'\xff'"]),
    "an array": (np.array([1.0, np.nan]), [1.0, "NaN"]),
    "a number of numpy": (np.float64(1.5), 1.5),
    "another array": (array.array("i", [1, 2]), [1, 2]),
    "a complex number": (1 + 2j, "1+2j"),
    "a fraction": (Fraction(1, 3), "1/3"),
    "a decimal": (Decimal("1.10"), "1.10"),
    "a set": ({1}, [1]),
    "a set of sets": ({frozenset({b"\xff"})}, [[r"b'\xff'"]]),
    "a queue": (deque([1, {2}]), [1, [2]]),
    "a named tuple": (Pair(1, b"\xff"), [1, r"b'\xff'"]),
    "other mappings": (
        [ChainMap({"a": 1}), OrderedDict(a=1), types.MappingProxyType({"a": 1})],
        [{"a": 1}] * 3,
    ),
    "keys": (
        {1: 1, None: 2, (3, 4): 3, date(2026, 1, 2): 4},
        {"1": 1, "null": 2, "[3, 4]": 3, "2026-01-02": 4},
    ),
    "keys of one text": ({1: "a", "1": "b"}, [[1, "a"], ["1", "b"]]),
    "a generator": (counted(3), [0, 1, 2]),
    "a generator that breaks": (broken(), [1, "(after 1 items it failed: LookupError: gone)"]),
    "a map": (map(str, [1]), ["1"]),
    "itself": (endless, ["(this list contains itself)"]),
    "itself twice": (twice, ["(this list contains itself)"] * 2),
    "a knot": (knot, {"name": "a", "below": [{"up": "(this Node contains itself)"}]}),
    "an object": (object(), "<object object>"),
    "an object within": ({"a": [object()]}, {"a": ["<object object>"]}),
    "a rude object": (Rude(), "<Rude object, which cannot be shown: ValueError>"),
    "a ruder object": (
        [Rude(asyncio.CancelledError)],
        ["<Rude object, which cannot be shown: CancelledError>"],
    ),
    "an object that ends": (Rude(SystemExit), "<Rude object, which cannot be shown: SystemExit>"),
    "a rude class": (RudeClass(), "<RudeClass object>"),
    "a rude mapping": (RudeMapping(a=1), "{'a': 1}"),
    "a class": (Row, str(Row)),
    "a function": (len, "<built-in function len>"),
    "an enumeration": (Colour.SPAN, "range(0, 3)"),
    "flags": (Flags.A | Flags.B, 3),
    "an identifier": (uuid.UUID(int=1), str(uuid.UUID(int=1))),
    "a path": ([Path("a/b")], ["a/b"]),
    "a model": (Row(value=[1, {2}]), {"value": [1, [2]]}),
    "a model of bytes": (Row(value=b"\xff"), {"value": r"b'\xff'"}),
    "a model of an object": (Row(value=object()), {"value": "<object object>"}),
    "surrogates": ({"\ud800": "\udc80"}, {"?": "?"}),
    "an error": (ValueError("no"), "no"),
}


@pytest.mark.parametrize("name", VALUES)
def test_what_a_model_gets(name: str) -> None:
    """Each value has a form that a model can read, and that the log can hold."""
    value, expected = VALUES[name]
    converted = to_json(value)
    assert converted == expected
    assert loads(dumps(converted)) == converted
    assert render_result(converted)


@pytest.mark.parametrize(
    "value",
    [
        circle,
        nested(3_000),
        nested(3_000, lambda inner: {"a": inner}),
        nested(3_000, lambda inner: Row(value=inner)),
        nested(MOST_DEPTH + 5, lambda inner: (inner, inner)),
        io.StringIO("a\nb"),
        sys.stdin,
        sys,
        pd.Series([pd.Interval(0, 1)]),
        pd.DataFrame({"a": [b"\xff", 10**5000]}, dtype=object),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_has_no_obvious_form_can_be_read(value: Any) -> None:
    """Values that are nested deeply, contain themselves or stand for something outside have a form, too."""
    converted = to_json(value)
    assert loads(dumps(converted)) == converted
    assert render_result(converted)


def test_an_iterator_without_end_ends() -> None:
    """Of an iterator many items are taken, and the last one says so."""
    converted = to_json(itertools.count())
    assert isinstance(converted, list)
    assert converted[:2] == [0, 1]
    assert converted[-1] == "(after 100,000 items no more were taken)"


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.dates(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(st.text() | st.integers() | st.binary(), inner)
            | st.frozensets(st.integers())
            | st.tuples(inner, inner)
        ),
    )
)
def test_any_value_becomes_json(value: Any) -> None:
    """Of whatever values are made, the form can be written and read; plain ones stay as they are."""
    converted = to_json(value)
    assert loads(dumps(converted)) == converted
    try:
        plain = json.loads(json.dumps(value, allow_nan=False)) == value
    except (ValueError, TypeError):
        return
    if plain and "\\u" not in json.dumps(value):
        assert converted == value


@pytest.mark.parametrize(
    "name", ["a huge integer", "bytes", "itself", "a rude object", "a period", "a class"]
)
@pytest.mark.parametrize("thread", [False, True])
def test_the_run_goes_on(name: str, thread: bool, session: Lab) -> None:
    """A tool that has acted and returns such a value is answered without an error, and the model goes on."""
    value, _ = VALUES[name]

    @tool(thread=thread)
    def act() -> object:
        """Act."""
        return value

    model = ScriptedModel([[("act", {})], "done"])
    run = asyncio.run(session.run("go", model=model, tools=[act], approve="auto:critical"))
    (event,) = [event for event in run.events() if isinstance(event, ToolAnswered)]
    assert (run.status, run.answer, event.error) == (RunStatus.COMPLETE, "done", None)
