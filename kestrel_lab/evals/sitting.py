"""Which trials belong to one run of a suite, so that one that was cut off can be gone on with."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.jsontypes import Json
from kestrel_lab.evals.suite import Suite
from kestrel_lab.evals.trial import Ask
from kestrel_lab.log.owner import Owner
from kestrel_lab.log.store import EvalRow, SessionStore

_AT_WORK: set[str] = set()
"""Sittings that go on in this process. Another process can only be seen to be there."""
_LOOKED_AT = 50
"""Of the newest trials of a suite: those that another tool stored belong to no sitting."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sitting:
    """One run of a suite, from `kestrel eval run` to its end, with everything that resumed it. It is written in each of its rows."""

    id: str
    of: int
    """How many trials it consists of."""
    by: str
    """The session that works on it, as the log names it."""

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
        return replace(row, result={**row.result, "sitting": told})


@dataclass(frozen=True, kw_only=True, slots=True)
class Earlier:
    """The last sitting of a suite, as far as it is stored."""

    sitting: Sitting
    stored: int

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
        return f"an earlier run of this suite was cut off after {self.stored:,} of {self.sitting.of:,} trials: --resume goes on with it"


def last_sitting(store: SessionStore, suite: Suite) -> Earlier | None:
    """The sitting of the newest stored trial of the suite; `None` when there is none."""
    store.flush()
    rows = store.query(
        f"SELECT result_json ->> '$.sitting' FROM eval_runs WHERE suite = ? ORDER BY created_at DESC LIMIT {_LOOKED_AT}", (suite.name,)
    )
    told = next((row[0] for row in rows if row[0]), None)
    if told is None:
        return None
    body: dict[str, Any] = json.loads(told)
    sitting = Sitting(id=body["id"], of=body["of"], by=body["by"])
    count = store.query("SELECT count(*) FROM eval_runs WHERE suite = ? AND result_json ->> '$.sitting.id' = ?", (suite.name, sitting.id))
    return Earlier(sitting=sitting, stored=int(count[0][0]))


def gone_on_with(store: SessionStore, suite: Suite, earlier: Earlier, asks: Sequence[Ask]) -> dict[str, EvalRow]:
    """The trials of `earlier` that stand for some of `asks`, by key; those that broke are among them.

    Raises `UsageError` while somebody is at work on it.
    """
    if earlier.going_on:
        process = Owner.parse(earlier.sitting.by).process
        msg = f"the last run of suite {suite.name!r} is still going on in process {process}; wait for it, or stop it first"
        raise UsageError(msg)
    wanted = {ask.identity.key for ask in asks}
    return {
        row.key: row
        for row in store.eval_runs(suite=suite.name)
        if row.key in wanted and isinstance(told := row.result.get("sitting"), dict) and told["id"] == earlier.sitting.id
    }
