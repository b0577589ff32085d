"""The beginning and the end of something long: what is saved with a notebook has a size that somebody can open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


def ends(items: Sequence[T], render: Callable[[T], str], limit: int | None) -> tuple[list[str], int, list[str]]:
    """Renderings of the first and of the last items, and how many are left out between.

    Together they have about `limit` characters, a third of them at the beginning; the last item is always there.
    `None` leaves nothing out. Only what is returned is rendered.
    """
    if limit is None or not items:
        return [render(item) for item in items], 0, []
    last = render(items[-1])
    head = _fitting(items[:-1], render, limit // 3)
    rest = items[len(head) : -1]
    tail = _fitting(reversed(rest), render, limit - sum(map(len, head)) - len(last))
    return head, len(rest) - len(tail), [*reversed(tail), last]


def _fitting(items: Iterable[T], render: Callable[[T], str], room: int) -> list[str]:
    found: list[str] = []
    for item in items:
        text = render(item)
        room -= len(text)
        if room < 0:
            break
        found.append(text)
    return found
