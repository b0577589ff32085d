"""Questions that are asked again and again: goals of runs that say much the same."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kestrel_lab.log.store import RunRow
from kestrel_lab.memory.words import stems

ALIKE = 0.7
"""Share of words in common from which two goals are one question."""
TIMES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Recurring:
    """A question and the runs that it was put to."""

    question: str
    """As it was put last."""
    runs: tuple[str, ...]
    """The newest first."""


def recurring(runs: Iterable[RunRow], times: int = TIMES) -> list[Recurring]:
    """Questions put at least `times`, those put most often first; `runs` are the newest first."""
    groups: list[tuple[frozenset[str], list[RunRow]]] = []
    for run in runs:
        words = stems(run.goal)
        for known, asked in groups:
            if len(words & known) >= ALIKE * len(words | known):
                asked.append(run)
                break
        else:
            groups.append((words, [run]))
    found = [Recurring(question=asked[0].goal, runs=tuple(run.id for run in asked)) for _, asked in groups if len(asked) >= times]
    return sorted(found, key=lambda each: -len(each.runs))
