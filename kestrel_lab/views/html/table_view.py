"""What results share that are shown as a headline, a table and notes: text in a terminal, HTML in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kestrel_lab.core.sanitize import plain
from kestrel_lab.views.html.elements import headline_html, paragraph_html, table_html
from kestrel_lab.views.text import table_text


class TableView:
    """Base of such a result. Subclasses have `table()`, and `headline`, `lines()` and `nothing` where there is something to say."""

    __slots__ = ()

    @property
    def headline(self) -> str:
        """What it is, in one line."""
        return ""

    @property
    def nothing(self) -> str:
        """What is said in place of a table without rows."""
        return ""

    def table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        """Return headings, and a row of texts for each thing that is shown."""
        raise NotImplementedError

    def lines(self) -> Sequence[str]:
        """Return what to read beside the table."""
        return ()

    def __repr__(self) -> str:
        columns, rows = self.table()
        return "\n".join(
            filter(
                None, (self.headline, table_text(columns, rows) if rows or not self.nothing else self.nothing, *map(plain, self.lines()))
            )
        )

    def _repr_html_(self) -> str:
        columns, rows = self.table()
        head = headline_html(self.headline) if self.headline else ""
        table = table_html(columns, rows) if rows or not self.nothing else paragraph_html(self.nothing)
        return head + table + "".join(map(paragraph_html, self.lines()))
