"""What can be done next, as lines to be copied: nothing here can be clicked or is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from textwrap import wrap
from typing import overload

from kestrel_lab.answers.next_actions import NextAction
from kestrel_lab.core.sanitize import plain
from kestrel_lab.views.formatting import action_line
from kestrel_lab.views.html.elements import pre_html, table_html


class Actions(Sequence[NextAction]):
    """What can be done next, in order; shown as a line each."""

    def __init__(self, found: Iterable[NextAction]) -> None:
        self._found = tuple(found)

    @overload
    def __getitem__(self, index: int) -> NextAction: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[NextAction, ...]: ...
    def __getitem__(self, index: int | slice) -> NextAction | tuple[NextAction, ...]:
        return self._found[index]

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[NextAction]:
        return iter(self._found)

    def __repr__(self) -> str:
        return "\n".join(action_line(one.text, one.why) for one in self._found) or "nothing to do next was found"

    def _repr_html_(self) -> str:
        return pre_html(repr(self))


# Names and their values, one below the other, with nothing cut off: for text and for a notebook.

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
