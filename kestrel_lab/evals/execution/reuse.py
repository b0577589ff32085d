"""Reuse of stored trials: which trials need not be run again, and why the others must be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.stored_trials import EvalRow, stored_scores, stored_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.store import SessionStore

_PARTS = {
    "scenario": "its scenario changed",
    "config": "its configuration changed",
    "suite": "instructions or tool files of the suite changed",
    "package": "another version of kestrel_lab",
    "code": "the code changed",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Reuse:
    """Stored rows that replace trials."""

    rows: dict[str, EvalRow] = field(default_factory=dict)
    """By key."""
    why: dict[str, int] = field(default_factory=dict)
    """How many trials must be run, by reason."""


def reusable_rows(
    store: SessionStore, suite: Suite, asks: Sequence[TrialRequest], *, outside_git: bool = False
) -> Reuse:
    """Return the newest row that did not break for each of `asks` that has one with an equal identity.

    Outside of git nothing tells whether the code is the same; such rows count only with `outside_git`.
    """
    stored = stored_trials(store, suite=suite.name)
    judged_again = [row for row in stored_scores(store, suite=suite.name) if row.key]
    good = {row.key: row for row in (*judged_again, *stored) if row.outcome != "error"}
    earlier: dict[tuple[str, str, int], list[EvalRow]] = {}
    for row in stored:
        earlier.setdefault((row.scenario, row.config, row.epoch), []).append(row)
    wanted = {ask.identity.key for ask in asks if ask.identity.code or outside_git}
    why = Counter(
        _difference_reason(ask, earlier, outside_git=outside_git)
        for ask in asks
        if ask.identity.key not in good or ask.identity.key not in wanted
    )
    return Reuse(rows={key: row for key, row in good.items() if key in wanted}, why=dict(why))


def _difference_reason(
    ask: TrialRequest, earlier: dict[tuple[str, str, int], list[EvalRow]], *, outside_git: bool
) -> str:
    if not ask.identity.code and not outside_git:
        return "the suite is not in a git commit, so nothing tells whether its code changed"
    rows = earlier.get((ask.scenario.id, ask.config.name, ask.epoch))
    if not rows:
        return "not run before"
    nearest = min((_changed_parts(ask, row) for row in rows), key=len)
    return ", ".join(nearest) or "it broke before"


def _changed_parts(ask: TrialRequest, row: EvalRow) -> list[str]:
    """Return what differs now from the time when `row` was stored."""
    before = row.result["identity"]
    parts = before if isinstance(before, dict) else {}
    return [words for part, words in _PARTS.items() if parts.get(part) != getattr(ask.identity, part)]
