"""Base classes of results shown as a headline, paragraphs and tables: text or HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.views.html.elements import headline_html, paragraph_html, pre_html, table_html
from kestrel_lab.views.text import table_text


class Table(NamedTuple):
    """Headings, and rows of cells below them."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


Part = str | Table
"""A paragraph, an empty one for a blank line in a text, or a table."""


class PartsView:
    """Base of a result that is shown as a headline with the `parts()` below it."""

    __slots__ = ()

    @property
    def headline(self) -> str:
        """What it is, in one line."""
        return ""

    def parts(self) -> Iterable[Part]:
        """Return what is shown, from top to bottom."""
        raise NotImplementedError

    def __repr__(self) -> str:
        blocks = [
            table_text(*part) if isinstance(part, Table) else sanitize_text(part) for part in self.parts()
        ]
        return "\n".join([self.headline, *blocks] if self.headline else blocks)

    def _repr_html_(self) -> str:
        blocks = [
            table_html(*part) if isinstance(part, Table) else paragraph_html(part)
            for part in self.parts()
            if part
        ]
        return "".join([headline_html(self.headline), *blocks] if self.headline else blocks)


class TableView(PartsView):
    """Base of a result that is one table.

    Subclasses have `table()`, and `headline`, `lines()` and `nothing` where there is something to say.
    """

    __slots__ = ()

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

    def parts(self) -> Iterable[Part]:
        """Return the table, or what is said in its place, and the lines."""
        columns, rows = self.table()
        if rows or (columns and not self.nothing):
            yield Table(columns, rows)
        elif self.nothing:
            yield self.nothing
        yield from filter(None, self.lines())


class TextView:
    """Base of a result that is shown as its own text, line by line."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return pre_html(repr(self))
