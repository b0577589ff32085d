"""Variables of a kernel as text: lists, one inspected, what code can reach, and what changed."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pandas as pd
import pytest

from kestrel_lab.tools.kernel.inspection import MOST_CHARS, MOST_LISTED, inspect_name, variable_lines
from kestrel_lab.tools.kernel.state import library_values
from kestrel_lab.tools.kernel.state.fingerprints import value_fingerprint
from kestrel_lab.tools.kernel.variables import (
    Before,
    describe_value,
    reachable_names,
    short_repr,
    user_variables,
)


class Bare:
    """An object of the user's without attributes."""

    def __repr__(self) -> str:
        return "Bare()"


def frame() -> pd.DataFrame:
    """Numbers, dates, texts and things that cannot be counted."""
    return pd.DataFrame(
        {
            "n": [1.5, np.nan, 3.0],
            "day": [pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-03"), None],
            "word": ["a", "b", "a"],
            "list": [[1], [2], None],
            "yes": [True, False, True],
        }
    )


def test_variables_are_listed_without_what_is_not_the_users() -> None:
    """Modules, private names and IPython's own are left out; many are counted."""
    namespace = {
        "x": 3,
        "_y": 4,
        "os": os,
        "In": [""],
        "odd name": 1,
        "words": ["a"] * 9,
        "arr": np.zeros((2, 3)),
        "one": np.array(1.5),
    }
    assert list(user_variables(namespace)) == ["x", "words", "arr", "one"]
    assert variable_lines(namespace).splitlines() == [
        "x: int, 3",
        "words: list, 9 items: ['a', 'a', 'a', 'a', 'a', 'a', 'a', 'a', ...]",
        "arr: ndarray, 2 × 3 of float64",
        "one: ndarray, one of float64",
    ]
    assert variable_lines({}) == "there are no variables yet"
    many = variable_lines({f"v{number}": number for number in range(MOST_LISTED + 3)}).splitlines()
    assert many[-2:] == ["v99: int, 99", "… 3 more"]
    assert (
        len(variable_lines({f"v{number}": number for number in range(MOST_LISTED)}).splitlines())
        == MOST_LISTED
    )
    assert len(variable_lines({"long": ["word" * 50] * 8})) < 150


@pytest.mark.parametrize(
    ("value", "lines"),
    [
        (
            frame(),
            [
                "v: DataFrame, 3 rows × 5 columns",
                "index: int64, 0 to 2",
                "columns:",
                "  n: float64, 1 missing, min 1.5, mean 2.25, max 3",
                "  day: datetime64[us], 1 missing, 2020-01-01 00:00:00 to 2020-01-03 00:00:00",
                "  word: str, often 'a', 'b'",
                "  list: object, 1 missing, often [1], [2]",
                "  yes: bool",
                "first 3 rows:",
                "  1.5 | 2020-01-01 00:00:00 | a | [1] | True",
                "  nan | 2020-01-03 00:00:00 | b | [2] | False",
                "  3.0 | NaT | a | None | True",
            ],
        ),
        (
            frame().iloc[:0, :1],
            [
                "v: DataFrame, 0 rows × 1 columns",
                "index: empty",
                "columns:",
                "  n: float64",
                "first 0 rows:",
            ],
        ),
        (pd.DataFrame(np.arange(23).reshape(1, 23)), None),
        (
            pd.Series(range(8), name="s"),
            [
                "v: Series, 8 values of int64",
                "s: int64, min 0, mean 3.5, max 7",
                "head:",
                "  0: 0",
                "  1: 1",
                "  2: 2",
                "  3: 3",
                "  4: 4",
            ],
        ),
        (
            pd.Series([np.nan], name="s"),
            ["v: Series, 1 values of float64", "s: float64, 1 missing", "head:", "  0: nan"],
        ),
        (
            np.arange(10),
            ["v: ndarray, 10 of int64", "min 0, mean 4.5, max 9", "begins [0, 1, 2, 3, 4, 5, 6, 7]"],
        ),
        (np.array([]), ["v: ndarray, 0 of float64"]),
        (np.array(["a"]), ["v: ndarray, 1 of <U1"]),
        ({"a": [1], "b": "x"}, ["v: dict, {'a': [1], 'b': 'x'}", "  'a': [1]", "  'b': 'x'"]),
        ("text", ["v: str, 'text'"]),
        (Bare(), ["v: Bare, Bare()", "no attributes"]),
        (Bare, None),
    ],
    ids=[
        "frame",
        "empty frame",
        "wide frame",
        "series",
        "nothing but gaps",
        "array",
        "empty array",
        "texts",
        "dict",
        "text",
        "object",
        "class",
    ],
)
def test_one_variable_is_described_by_its_parts(value: object, lines: list[str] | None) -> None:
    """Types, gaps, statistics and the first rows; never the whole."""
    said = inspect_name({"v": value}, "v").splitlines()
    if lines is not None:
        assert said == lines
    elif isinstance(value, pd.DataFrame):
        assert said[22:25] == [
            "  19: int64, min 19, mean 19, max 19",
            "  … 3 more: 20, 21, 22",
            "first 1 rows:",
        ]
        assert said[25] == "  " + " | ".join(map(str, range(20)))
    else:
        assert len(said) == 1


def test_an_object_is_described_by_its_attributes_and_nothing_is_long() -> None:
    """Names alone; a description of anything fits an answer."""
    thing = type("Thing", (), {})()
    thing.size, thing.shape = 1, 2
    assert inspect_name({"thing": thing}, "thing").endswith("attributes: size, shape")
    wide = pd.DataFrame({f"column{'x' * 80}{number}": ["w" * 90] * 6 for number in range(40)})
    assert len(inspect_name({"wide": wide}, "wide")) <= MOST_CHARS + 100
    assert len(short_repr(["word" * 60] * 8)) == 300
    assert short_repr("a\n\n  b") == "'a\\n\\n b'"


def test_what_code_can_reach() -> None:
    """The names it has, those of functions it calls, and what shares an object or memory with them; all,
    where it can reach anything.
    """
    space: dict[str, Any] = {"__builtins__": __builtins__, "a": [1], "arr": np.arange(9), "n": 3}
    space |= {"b": space["a"], "box": {"inner": space["a"]}, "view": space["arr"][2:], "lone": [2]}
    exec("def reads():\n    def inner():\n        return lone\n    return inner()\n", space)
    everything = set(user_variables(space))
    for code, names in (
        ("n + 1", {"n"}),
        ("a.append(1)", {"a", "b"}),
        ("box['inner'].append(1)", {"a", "b", "box"}),
        ("view[0] = 1", {"arr", "view"}),
        ("reads()", {"reads", "lone"}),
        ("globals()['n'] = 2", everything),
        ("unknown", set()),
        ("this is no code", set()),
    ):
        assert reachable_names(code, space) == names, code
    assert reachable_names("T", {"T": int, "n": 1}) == {"T", "n"}
    deep = {"deep": [[[space["a"]]]], "deeper": [[[[space["a"]]]]], "a": space["a"]}
    assert reachable_names("deep", deep) == {"deep", "a"}
    assert reachable_names("deeper", deep) == {"deeper"}


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ([1, [2]], lambda v: v[1].append(3)),
        ({"a": {1}}, lambda v: v["a"].add(2)),
        (np.arange(6), lambda v: v.__setitem__(5, 0)),
        (np.zeros((300, 700)), lambda v: v.__setitem__((299, 699), 1)),
        (np.asfortranarray(np.zeros((3, 4))), lambda v: v.__setitem__((0, 3), 1)),
        (np.array([[1], "x"], dtype=object), lambda v: v.__setitem__(1, "y")),
        (frame(), lambda v: v.__setitem__("more", 1)),
        (frame(), lambda v: v.loc.__setitem__((2, "word"), "c")),
        (frame(), lambda v: v.attrs.update(source="x")),
        (frame(), lambda v: setattr(v, "columns", [*"abcde"])),
        (pd.DataFrame({"a": [1.0, 2.0]}), lambda v: v.loc.__setitem__((1, "a"), 3.0)),
        (pd.DataFrame({"a": [1.0, 2.0]}), lambda v: setattr(v, "index", pd.RangeIndex(1, 3))),
        (pd.Series([1, 2], name="s"), lambda v: v.__setitem__(1, 5)),
        (pd.Series([1, 2], name="s"), lambda v: setattr(v, "name", "t")),
        (pd.Series([1, 2]), lambda v: setattr(v, "index", pd.Index([0, 7]))),
        (pd.Series(["a", "b"]), lambda v: v.__setitem__(1, "c")),
        (type("Thing", (), {})(), lambda v: setattr(v, "size", [1])),
    ],
)
def test_a_fingerprint_is_equal_until_something_inside_changes(value: Any, change: Any) -> None:
    """Of plain values, arrays, frames and objects, also deep inside."""
    before = value_fingerprint(value)
    assert value_fingerprint(value) == before
    change(value)
    assert value_fingerprint(value) != before


def test_missing_values_are_counted_in_frames_of_any_kind() -> None:
    """Of one numeric type, of several, of texts; whole numbers have none."""
    for made, missing in (
        (frame(), 3),
        (pd.DataFrame({"a": [np.nan, 1.0], "b": [np.nan, np.nan]}), 3),
        (pd.DataFrame({"a": [1, 2]}), 0),
        (pd.DataFrame({"a": ["x", None]}), 1),
        (pd.DataFrame(), 0),
    ):
        assert describe_value(made).missing == missing
    assert describe_value(pd.Series([1.0, np.nan])).missing == 1


@pytest.mark.parametrize(
    ("setup", "code", "lines"),
    [
        ("df = F()", "df = df.dropna(subset=['n'])", ["df: 3 → 2 rows · missing values 3 → 2"]),
        ("df = F()", "df['a'] = 1; df['b'] = 1; del df['yes']", ["df: + columns a, b · − column yes"]),
        ("df = F()", "df['yes'] = df.yes.astype(int)", ["df: yes: bool → int64"]),
        (
            "df = F()",
            "for number in range(7): df[f'c{number}'] = 0",
            [
                "df: + columns c0, c1, c2, c3, c4, c5 …",
                "number: new int, 6",
            ],
        ),
        ("df = F()", "df.loc[0, 'n'] = 9.0", ["df: other values"]),
        ("s = pd.Series([1, 2])", "s = s[:1]", ["s: 2 → 1 values"]),
        ("x = 1", "x = 2", ["x: 1 → 2"]),
        ("x = 1", "x = 'a'", ["x: int → str, 'a'"]),
        ("x = [1]", "del x; y = 3", ["x: deleted (list)", "y: new int, 3"]),
        ("x = [1]", "x.append(2)", ["x: [1] → [1, 2]"]),
        (
            "x = [1]",
            "x.append(len)",
            ["x: [1] → [1, <built-in function len>] (cannot be undone: it is a builtin_function_or_method)"],
        ),
        ("x = [1]; y = 2", "z = x", ["z: new list, [1]"]),
    ],
)
def test_changes_are_told_in_a_line_each(setup: str, code: str, lines: list[str]) -> None:
    """What a person and a model read of what code did."""
    space: dict[str, Any] = {"F": frame, "pd": pd}
    exec(setup, space)
    before = Before.of(code, space)
    exec(code, space)
    assert [change.line for change in before.changes(space)] == lines
    assert before.key == Before(before.values, before.described, before.prints, before.modules).key


def test_large_arrays_are_compared_whole_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it by a sample, which still knows the shape."""
    big = np.zeros(400_001)
    before = value_fingerprint(big)
    for place in (0, 200_000, 400_000):
        big[place] = 1
        assert value_fingerprint(big) != before
        big[place] = 0
    assert value_fingerprint(big) == before
    monkeypatch.setattr(library_values, "MOST_HASHED", big.nbytes // 4)
    sampled = value_fingerprint(big)
    big[1] = 1
    assert value_fingerprint(big) == sampled
    assert value_fingerprint(big[:-1]) != sampled
