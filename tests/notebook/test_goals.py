"""Notebook variables in goals."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pandas as pd
import pytest

from kestrel_lab.notebook.command_line import LONGEST, fill_variables

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
    """A known variable's text goes in; braces, unknown names, addresses, functions and modules stay as written."""
    assert fill_variables(goal, VARIABLES) == text


def test_tables_and_long_texts_are_cut() -> None:
    """A large table gives its size, schema, statistics and head, in less than a thousand tokens; a long text its beginning and end."""
    table = fill_variables("@frame", VARIABLES)

    assert fill_variables("@small", VARIABLES).split() == ["n", "0", "0", "1", "1"]
    assert table.splitlines()[0] == "frame: DataFrame, 1,000,000 rows × 1 columns"
    assert "n: int64, min 0, mean 500000, max 999999" in table
    assert table.splitlines()[-5:] == ["  0", "  1", "  2", "  3", "  4"]
    assert len(table) < 3_500
    assert len(fill_variables("@long", VARIABLES)) < LONGEST + 100


def test_a_value_of_several_lines_stands_below_the_sentence_that_names_it() -> None:
    """It breaks no sentence and is there once, however often it is named; at the end of a line it stays there."""
    told = fill_variables("Plot @small by n, and @small again for @name.\nThe table:\n  @small", VARIABLES)
    table = VARIABLES["small"].to_string()  # type: ignore[union-attr]
    assert told == f"Plot small by n, and small again for Ada.\nThe table:\n  {table}\n\nsmall:\n{table}"

    large = fill_variables("Plot @frame by month", VARIABLES)
    assert large.startswith("Plot frame by month\n\nframe: DataFrame, 1,000,000 rows")
