"""Cells of CSV files that a spreadsheet does not compute.

A spreadsheet takes a text that begins with `=`, `+`, `-`, `@` or a tab for a formula (OWASP, CSV injection),
and a formula can start programs and send cells to others. Such a text gets the spreadsheets' own mark for
text, `'`, in front. Numbers stay as they are. `original_text` takes the mark away again.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import pandas as pd

_FORMULA: Final = re.compile(r"'*[=+\-@\t\r\n\uff1d\uff0b\uff0d\uff20]")
"""The beginning of a formula, also in full-width characters, or of a text that is marked already."""
LINE_END: Final = "\r\n"
"""The end of a row (RFC 4180); it makes the writer quote both characters, each of which ends a row for some
spreadsheet.
"""


def spreadsheet_cell(cell: object) -> object:
    """Return a text marked as text if a spreadsheet would compute it; return any other value unchanged."""
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell


def original_text(cell: str) -> str:
    """Return the text that `spreadsheet_cell` made this cell of."""
    return cell[1:] if cell.startswith("'") and _FORMULA.match(cell) else cell


def write_csv(frame: pd.DataFrame, path: Path, *, index: bool) -> None:
    """Write a frame to a file, and make its folder; the frame itself stays as it is."""
    written = frame.copy()
    for position, dtype in enumerate(written.dtypes):
        if dtype.kind == "O":  # texts and objects; numbers and times have kinds of their own
            cells = written.iloc[:, position].astype(object).map(spreadsheet_cell, na_action="ignore")
            written.isetitem(position, cells.array)
    written = written.rename(columns=spreadsheet_cell)
    if index:
        written = written.rename(index=spreadsheet_cell)
    path.parent.mkdir(parents=True, exist_ok=True)
    written.to_csv(path, index=index, lineterminator=LINE_END)
