"""Commits and trials between which there is no difference by construction, so that no number of trials is
needed to show it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.stats.difference import BY_CONSTRUCTION, SAME_CONVERSATIONS, SAME_FILES, Difference
from kestrel_lab.evals.stats.intervals_and_tests import Interval
from kestrel_lab.evals.stored_trials import EvalRow


def same_conversations(base: Iterable[EvalRow], head: Iterable[EvalRow]) -> bool:
    """Return whether each trial of one side is that of the other made again, as far as a scenario was tried
    on both.

    They are where scripts or recordings were asked the same, answered the same, and were judged the same: no
    chance is involved, so another round would give the same again. A real model may answer differently, so it
    is never so for one.
    """
    base, head = tuple(base), tuple(head)
    both = {row.scenario for row in base} & {row.scenario for row in head}
    before, after = (
        {(row.scenario, row.epoch): _made(row) for row in rows if row.scenario in both}
        for rows in (base, head)
    )
    return bool(before) and before == after and all(one is not None for one in before.values())


def no_difference_possible(found: Difference, why: str) -> Difference:
    """Return `found` with the verdict that there is no difference; `why` is given in place of a test."""
    value = found.head if found.head == found.head else found.base
    exact = Interval(
        mean=0.0, low=0.0, high=0.0, se=0.0, clusters=found.interval.clusters, n=found.interval.n
    )
    return replace(
        found,
        base=value,
        head=value,
        interval=exact,
        p=1.0,
        p_holm=1.0,
        mde=0.0,
        verdict="stable",
        test=why,
        note="",
        lower=0,
        higher=0,
    )


def unchanged(found: Difference, *, same_files: bool, same_trials: bool) -> Difference:
    """Return `found`, or that there is no difference where none is possible."""
    if same_files and found.scenarios:
        return no_difference_possible(found, SAME_FILES)
    # Times differ between equal trials, and are tested as always.
    alike = found.base == found.head and not found.lower and not found.higher
    return (
        no_difference_possible(found, SAME_CONVERSATIONS)
        if same_trials and alike and found.scenarios
        else found
    )


def by_construction(found: Iterable[Difference]) -> Sequence[str]:
    """Return the reasons for which there is no difference without a test, each once."""
    return [why for why in BY_CONSTRUCTION if any(one.test == why for one in found)]


def _made(row: EvalRow) -> tuple[str, str, list[tuple[Json, ...]]] | None:
    if not row.conversation:
        return None
    return row.conversation, row.outcome, [(one["check"], one["passed"], one["value"]) for one in row.scores]
