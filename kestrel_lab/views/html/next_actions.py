"""Next actions as lines to be copied: nothing here can be clicked or is run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import overload

from kestrel_lab.answers.next_actions import NextAction
from kestrel_lab.views.formatting import action_line
from kestrel_lab.views.html.elements import pre_html


class Actions(Sequence[NextAction]):
    """The next actions in order, shown as a line each."""

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
        return "\n".join(action_line(one.text, one.why) for one in self._found) or "no next action was found"

    def _repr_html_(self) -> str:
        return pre_html(repr(self))
