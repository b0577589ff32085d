"""Values grouped by a key, and what a value counts with."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def group_values(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return the values of each key, keys and values in the order in which they come.

    Unlike `itertools.groupby` it needs no sorted pairs, and unlike `pandas` it loads nothing.
    """
    values_by_key: dict[K, list[V]] = {}
    for key, value in pairs:
        values_by_key.setdefault(key, []).append(value)
    return values_by_key


def counting_units(scenarios: Sequence[str], groups: Sequence[str]) -> Sequence[str]:
    """Return what each value counts with: the group of its scenario, given beside it.

    Where all are of one group nothing can be said of other groups. What is said is then about these scenarios
    alone, and each of them counts by itself.
    """
    return groups if len(set(groups)) > 1 else scenarios
