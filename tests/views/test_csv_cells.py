"""CSV files that a spreadsheet opens: a text stays a text, and numbers stay numbers."""

import csv
from pathlib import Path

import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from kestrel_lab.cli.eval_options import save_outputs
from kestrel_lab.views.csv_cells import original_text, spreadsheet_cell, write_csv

FORMULAS = ("=1+1", "+1", "-1", "@SUM(A1)", "\tx", "\rx", "'=1", "''@x", "\uff1dcmd")
PLAIN = ("", "x", "a\r=1", "'quoted'", "a=b", "1-2", " =1", "'", "''")


def rows_of(path: Path) -> list[list[str]]:
    """The rows of a CSV file."""
    with path.open(newline="") as file:
        return [*csv.reader(file)]


@pytest.mark.parametrize("text", [*FORMULAS, *PLAIN])
def test_a_text_comes_back_as_it_was(text: str) -> None:
    """Texts that a spreadsheet would compute are marked, others are not, and reading takes the mark away."""
    assert (spreadsheet_cell(text) != text) == (text in FORMULAS)
    assert original_text(str(spreadsheet_cell(text))) == text


@pytest.mark.parametrize("value", [-1, -0.5, 10**30, None, True])
def test_other_values_stay_as_they_are(value: object) -> None:
    """A negative number is no formula."""
    assert spreadsheet_cell(value) is value


FRAME = pd.DataFrame(
    {
        "=answer": [*FORMULAS, None],
        "score": [-0.5, *[1.0] * 8, float("nan")],
        "count": range(-9, 1),
        "mixed": [-3, "-3", *["x"] * 8],
        "kind": pd.Categorical(["=a", *["b"] * 9]),
        "at": pd.to_datetime(["2026-01-01"] * 10),
    },
    index=pd.Index([*"abcdefgh", "=i", "j"], name="config"),
)


def test_a_frame_is_written_without_formulas(tmp_path: Path) -> None:
    """Headings, index and texts of every kind of column are marked; numbers, times and the frame are not."""
    before, plain, marked = FRAME.copy(deep=True), tmp_path / "plain.csv", tmp_path / "out/marked.csv"
    write_csv(FRAME, marked, index=True)
    assert_frame_equal(FRAME, before)
    FRAME.to_csv(plain, lineterminator="\r\n")
    tables = [rows_of(path) for path in (plain, marked)]
    assert [[original_text(cell) for cell in row] for row in tables[1]] == tables[0]
    formulas = {cell for row in tables[1] for cell in row if cell[:1] in [*"=+-@\t\r"]}
    assert formulas == {"-0.5", "-3", *map(str, range(-9, 0))}


def test_the_option_of_every_command_writes_it_so(tmp_path: Path) -> None:
    """`--csv` goes through the one function that marks texts.

    A mutant that calls `frame.to_csv` is caught.
    """

    class Result:
        frame = pd.DataFrame({"answer": ["=cmd|' /C calc'!A0"]})

    save_outputs(Result(), csv=tmp_path / "a.csv")
    assert (tmp_path / "a.csv").read_bytes() == b"answer\r\n'=cmd|' /C calc'!A0\r\n"


def test_a_carriage_return_begins_no_row(tmp_path: Path) -> None:
    """A text with a return in it is one quoted cell, not a second row that begins with a formula."""
    write_csv(pd.DataFrame({"answer": ["a\r=1+1"]}), tmp_path / "a.csv", index=False)
    assert rows_of(tmp_path / "a.csv") == [["answer"], ["a\r=1+1"]]
