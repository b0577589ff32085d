"""Names and their values, one below the other, with nothing cut off: for text and for a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from kestrel_lab.core.text import plain
from kestrel_lab.views.html import table_html

Facts = Sequence[tuple[str, str]]
_WIDTH = 100
"""Columns of a value before it goes on in the next line."""


def facts_text(facts: Facts) -> str:
    """A line for each, long values on several."""
    wide = max((len(name) for name, _ in facts), default=0)
    lines = []
    for name, value in facts:
        first, *rest = wrap(plain(value), _WIDTH) or [""]
        lines += [f"{name:<{wide}}  {first}".rstrip(), *(f"{'':<{wide}}  {line}" for line in rest)]
    return "\n".join(lines)


def facts_html(facts: Facts) -> str:
    """A table with a row for each."""
    return table_html(("", ""), facts)
