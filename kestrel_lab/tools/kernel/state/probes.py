"""A probe: one kind of state that no variable holds, how it is read and, where that is cheap, how it is put
back.

A new kind of state is one more row of `python_probes.PYTHON` or `library_probes.LIBRARIES`. A reading is a
mapping, so that only the keys that code changed are named and put back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kestrel_lab.tools.kernel.variables import short_repr

Reading = Mapping[Any, Any]
ABSENT: Final = object()
"""Marks a key that a reading lacks."""
_MOST_NAMED = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One kind of state.

    `read` and `restore` get the shell; a probe whose library is not loaded, or that cannot be read, reads
    nothing.
    """

    name: str
    read: Callable[[Any], Reading]
    restore: Callable[[Any, Mapping[Any, Any]], object] | None = None
    """Put back the values of these keys; `ABSENT` for one that was not there."""
    lost: str = ""
    """Why it cannot be restored."""
    library: str = ""
    """The module that has to be loaded."""
    words: str = ""
    """Text shown instead of old and new values."""
    secret: bool = False
    """Values may be secrets: only keys are named."""
    adopted: bool = False
    """Plain data, which goes along when the values of a preview are taken over."""
    # A default with the shape of the others.
    ignore: Callable[[Any, Any, Any], bool] = lambda key, old, new: False
    """Return true if a key's change from old to new is no change of state."""

    def reading(self, shell: Any) -> Reading:
        """Return the current state; empty if it cannot be read."""
        if self.library and self.library not in sys.modules:
            return {}
        try:
            return self.read(shell)
        except BaseException:  # the boundary to libraries of any version: what cannot be read is not compared  # noqa: BLE001
            return {}

    def difference(self, old: Reading, new: Reading) -> dict[Any, tuple[Any, Any]]:
        """Return the keys whose values differ, with both values; `ABSENT` if one is missing."""
        found = {}
        for key in [*old, *(key for key in new if key not in old)]:
            was, now = old.get(key, ABSENT), new.get(key, ABSENT)
            if not same(was, now) and not self.ignore(key, was, now):
                found[key] = (was, now)
        return found

    def text(self, changed: Mapping[Any, tuple[Any, Any]]) -> str:
        """Describe a change in one line."""
        if self.words:
            return self.words
        parts = [self._part(str(key), was, now) for key, (was, now) in list(changed.items())[:_MOST_NAMED]]
        return " · ".join(parts) + (
            f" · {len(changed) - _MOST_NAMED} more" if len(changed) > _MOST_NAMED else ""
        )

    def _part(self, key: str, was: Any, now: Any) -> str:
        if was is ABSENT or now is ABSENT:
            value = now if was is ABSENT else was
            return f"{'+' if was is ABSENT else '−'} {key}" + (
                f" ({value})" if isinstance(value, str) and value and not self.secret else ""
            )
        if isinstance(was, tuple) and isinstance(now, tuple) and not key:
            more = [f"+ {short_repr(one)[:80]}" for one in _without(now, was)][:3]
            less = [f"− {short_repr(one)[:80]}" for one in _without(was, now)][:3]
            return " · ".join([*more, *less]) or "another order"
        values = "" if self.secret else f"{short_repr(was)[:60]} → {short_repr(now)[:60]}"
        return ": ".join(part for part in (key, values) if part)


def _without(items: tuple[Any, ...], others: tuple[Any, ...]) -> list[Any]:
    return [one for one in items if not any(same(one, other) for other in others)]


def same(one: Any, other: Any) -> bool:
    """Return true if two values are equal; by identity if they cannot be compared."""
    if one is other:
        return True
    try:
        return type(one) is type(other) and bool(one == other)
    except BaseException:  # the boundary to classes of others: arrays have no one answer  # noqa: BLE001
        return False


def each(restore: Callable[[Any, Any], object]) -> Callable[[Any, Mapping[Any, Any]], None]:
    """Return what puts back a reading key by key."""

    def put_back(_: Any, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            restore(key, value)

    return put_back


def set_or_delete(mapping: Any, key: Any, value: Any) -> None:
    """Make `value` that of `key`; `ABSENT` removes the key."""
    if value is ABSENT:
        mapping.pop(key, None)
    else:
        mapping[key] = value


def each_list(find: Callable[[Any, Any], list[Any]]) -> Callable[[Any, Mapping[Any, Any]], None]:
    """Return a function that restores list items in place; `find` gets the shell and a key."""

    def put_back(shell: Any, values: Mapping[Any, Any]) -> None:
        for key, value in values.items():
            find(shell, key)[:] = () if value is ABSENT else value

    return put_back
