"""Names and their values one below the other, with nothing cut off: as text and as an HTML table."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from kestrel_lab.core.sanitize import plain
from kestrel_lab.views.html.elements import table_html

Facts = Sequence[tuple[str, str]]
_WIDTH = 100
"""Columns of a value before it goes on in the next line."""


def facts_text(facts: Facts) -> str:
    """Return a line for each fact; a long value goes on in further lines."""
    wide = max((len(name) for name, _ in facts), default=0)
    lines = []
    for name, value in facts:
        first, *rest = wrap(plain(value), _WIDTH) or [""]
        lines += [f"{name:<{wide}}  {first}".rstrip(), *(f"{'':<{wide}}  {line}" for line in rest)]
    return "\n".join(lines)


def facts_html(facts: Facts) -> str:
    """Return a table with a row for each fact."""
    return table_html(("", ""), facts)
