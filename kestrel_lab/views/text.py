"""Tables as plain text, for a saved notebook, a log and a terminal without colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kestrel_lab.core.sanitize import one_line


def table_text(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Columns under their headings, each cell on one line."""
    cells = [[one_line(str(cell), 60) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def table_lines(table: Sequence[Sequence[str]]) -> list[str]:
    """A table with headings where there is no room for columns: a line per row, without what is empty."""
    return [" · ".join(cell for cell in row if cell) for row in table[1:]]
