"""Names and their values one below the other, with nothing cut off: as text and as an HTML table."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from kestrel_lab.core.sanitize import sanitize_text
from kestrel_lab.views.html.elements import table_html


class FactsView:
    """Base of what is shown as its `rows()`, each a name and a value."""

    __slots__ = ()

    def rows(self) -> Sequence[tuple[str, str]]:
        """Return names and values."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return facts_text(self.rows())

    def _repr_html_(self) -> str:
        return table_html(("", ""), self.rows())


def facts_text(facts: Sequence[tuple[str, str]]) -> str:
    """Return names and values below each other, long values in several lines."""
    lines: list[str] = []
    wide = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        first, *rest = wrap(sanitize_text(value), 100) or [""]
        lines += [f"{name:<{wide}}  {first}".rstrip(), *(f"{'':<{wide}}  {line}" for line in rest)]
    return "\n".join(lines)
