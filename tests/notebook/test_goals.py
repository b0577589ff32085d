"""Notebook variables in goals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.notebook.command_line import LONGEST, fill_goal, fill_variables

VARIABLES = {
    "name": "Ada",
    "numbers": [1, 2],
    "frame": pd.DataFrame({"n": range(1_000_000)}),
    "small": pd.DataFrame({"n": range(2)}),
    "long": "x" * (2 * LONGEST),
    "dataclass": dataclasses.dataclass,
    "folder": Path("src/app"),
    "pd": pd,
}


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        ("hello @name!", "hello Ada!"),
        ("sum @numbers", "sum [1, 2]"),
        ("@unknown and {name} and {{x}} and %d", "@unknown and {name} and {{x}} and %d"),
        ("mail a@name.org, @@name", "mail a@name.org, @@name"),
        ("look into @folder", "look into src/app"),
        ("use @dataclass and @pd", "use @dataclass and @pd"),
    ],
)
def test_only_known_names_are_filled_in(goal: str, text: str) -> None:
    """A known variable's text goes in; braces, unknown names, addresses, functions and modules stay as
    written.
    """
    assert fill_variables(goal, VARIABLES) == text


@pytest.mark.parametrize(
    ("goal", "line", "told"),
    [
        (
            "clean @fram",
            False,
            "there is no variable 'fram' for @fram in the goal; did you mean 'frame'; `@fram` keeps the word",
        ),
        (
            "hello {nmae}",
            True,
            "there is no variable 'nmae' for {nmae} in the goal; did you mean 'name'; {{nmae}} keeps "
            "the word",
        ),
        ("of {q.x}", True, "there is no variable 'q' for {q.x}"),
        ("sum @numbers\n\n@lst", False, "there is no variable 'lst'"),
    ],
)
def test_a_variable_that_does_not_exist_is_refused_with_the_nearest(goal: str, line: bool, told: str) -> None:
    """A model would take the name for what the user said."""
    with pytest.raises(UsageError) as refused:
        fill_goal(goal, VARIABLES, line=line)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    "goal",
    [
        "what does `@lru_cache` do, and @property?",
        "explain\n```\n@nothing\nx = {q}\n```",
        "explain\n@app.route('/')\n@login\nasync def page(): ...",
        "mail a@unknown.org, use {braces} as they are",
        "call @dataclass and @@handle",
    ],
)
def test_words_that_only_look_like_variables_pass(goal: str) -> None:
    """Code, addresses, functions, and braces of a cell stay as they are written."""
    assert fill_goal(goal, VARIABLES) == goal


def test_tables_and_long_texts_are_cut() -> None:
    """A large table gives its size, schema, statistics and head, in less than a thousand tokens; a long text
    its beginning and end.
    """
    table = fill_variables("@frame", VARIABLES)

    assert fill_variables("@small", VARIABLES).split() == ["n", "0", "0", "1", "1"]
    assert table.splitlines()[0] == "frame: DataFrame, 1,000,000 rows × 1 columns"
    assert "n: int64, min 0, mean 500000, max 999999" in table
    assert table.splitlines()[-5:] == ["  0", "  1", "  2", "  3", "  4"]
    assert len(table) < 3_500
    assert len(fill_variables("@long", VARIABLES)) < LONGEST + 100


def test_a_value_of_several_lines_stands_below_the_sentence_that_names_it() -> None:
    """It breaks no sentence and is there once, however often it is named; at the end of a line it stays
    there.
    """
    told = fill_variables("Plot @small by n, and @small again for @name.\nThe table:\n  @small", VARIABLES)
    table = VARIABLES["small"].to_string()  # type: ignore[union-attr]
    assert told == f"Plot small by n, and small again for Ada.\nThe table:\n  {table}\n\nsmall:\n{table}"

    large = fill_variables("Plot @frame by month", VARIABLES)
    assert large.startswith("Plot frame by month\n\nframe: DataFrame, 1,000,000 rows")
