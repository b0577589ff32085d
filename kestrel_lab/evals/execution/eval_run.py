"""Which trials belong to one run of a suite, so that one that was cut off can be gone on with."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.execution.trial import Ask
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.store import SessionStore

_AT_WORK: set[str] = set()
"""Sittings that go on in this process. Another process can only be seen to be there."""
_SITTINGS = """
    SELECT result_json ->> '$.sitting.id' AS name, result_json ->> '$.sitting.of', result_json ->> '$.sitting.by',
      result_json ->> '$.sitting.also', count(DISTINCT key), max(created_at)
    FROM eval_runs WHERE suite = ? AND name IS NOT NULL GROUP BY name ORDER BY max(created_at) DESC
"""
"""Newest first, each as its newest trial tells of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sitting:
    """One run of a suite, from `kestrel eval run` to its end, with everything that resumed it. It is written in each of its rows."""

    id: str
    of: int
    """How many trials it consists of."""
    by: str
    """The session that works on it, as the log names it."""
    also: tuple[str, ...] = ()
    """Sittings that were cut off, whose trials it has taken over."""

    @classmethod
    def new(cls, store: SessionStore, of: int) -> Sitting:
        """One that begins now."""
        return cls(id=f"e{secrets.token_hex(6)}", of=of, by=str(Owner.here(store.session)))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have it known in this process that somebody works on it."""
        _AT_WORK.add(self.id)
        try:
            yield
        finally:
            _AT_WORK.discard(self.id)

    def mark(self, row: EvalRow) -> EvalRow:
        """`row` as one of this sitting."""
        told: dict[str, Json] = {"id": self.id, "of": self.of, "by": self.by}
        if self.also:
            told["also"] = [*self.also]
        return replace(row, result={**row.result, "sitting": told})


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """The last sitting of a suite, as far as it is stored, and those before it that were cut off as well."""

    sitting: Sitting
    stored: int
    """Trials of `sitting` in the log."""
    before: tuple[str, ...] = ()
    """The sittings between it and the last one that was finished."""
    most: tuple[int, int] = (0, 0)
    """Trials in the log, and trials in all, of the one among them that came farthest."""

    @property
    def all(self) -> tuple[str, ...]:
        """The sittings that are gone on with, newest first."""
        return tuple(dict.fromkeys((self.sitting.id, *self.before, *self.sitting.also)))

    @property
    def going_on(self) -> bool:
        """Whether somebody is at work on it."""
        owner = Owner.parse(self.sitting.by)
        return self.sitting.id in _AT_WORK or (self.stored < self.sitting.of and owner.alive and not owner.same_process)

    @property
    def notice(self) -> str:
        """What somebody who begins anew should know; empty when it was finished or goes on elsewhere."""
        if self.stored >= self.sitting.of or self.going_on:
            return ""
        stored, of = self.most
        return f"an earlier run of this suite was cut off after {stored:,} of {of:,} trials: --resume goes on with it"


def last_sitting(store: SessionStore, suite: Suite) -> Earlier | None:
    """The sitting of the newest stored trial of the suite that belongs to one; `None` when there is none."""
    store.flush()
    rows = store.query(_SITTINGS, (suite.name,))
    if not rows:
        return None
    (name, of, by, also, stored, _), *others = rows
    open_ones = [(stored, of)]
    before = []
    for other, their_of, _, _, their_stored, _ in others if stored < of else ():
        if their_stored >= their_of:
            break
        before.append(other)
        open_ones.append((their_stored, their_of))
    sitting = Sitting(id=name, of=of, by=by, also=tuple(json.loads(also or "[]")))
    return Earlier(sitting=sitting, stored=stored, before=tuple(before), most=max(open_ones))


def gone_on_with(store: SessionStore, suite: Suite, earlier: Earlier, asks: Sequence[Ask]) -> dict[str, EvalRow]:
    """The trials of `earlier` that stand for some of `asks`, by key; those that broke are among them.

    Raises `UsageError` while somebody is at work on it.
    """
    if earlier.going_on:
        process = Owner.parse(earlier.sitting.by).process
        msg = f"the last run of suite {suite.name!r} is still going on in process {process}; wait for it, or stop it first"
        raise UsageError(msg)
    wanted = {ask.identity.key for ask in asks}
    order = {name: place for place, name in enumerate(earlier.all)}
    found: dict[str, EvalRow] = {}
    for row in stored_trials(store, suite=suite.name):
        name = sitting_of(row)
        if name in order and row.key in wanted and order[name] <= order.get(sitting_of(found[row.key]) if row.key in found else name, 0):
            found[row.key] = row
    return found


def sitting_of(row: EvalRow) -> str:
    """The id of the sitting that a trial belongs to; empty where another tool stored it."""
    told = row.result.get("sitting")
    return str(told["id"]) if isinstance(told, dict) else ""
