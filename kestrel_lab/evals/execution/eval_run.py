"""Eval runs: which stored trials belong to one run of a suite, and how a run that was cut off is resumed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.execution.trial import TrialRequest
from kestrel_lab.evals.stored_trials import EvalRow, stored_trials
from kestrel_lab.evals.suite import Suite
from kestrel_lab.eventlog.owner import Owner
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.filesystem import try_lock_file
from kestrel_lab.views.formatting import format_count

_EVAL_RUNS = """
    SELECT result_json ->> '$.sitting.id' AS name, result_json ->> '$.sitting.of', result_json ->> \
'$.sitting.by',
      result_json ->> '$.sitting.also', count(DISTINCT key), max(created_at)
    FROM eval_runs WHERE suite = ? AND name IS NOT NULL GROUP BY name ORDER BY max(created_at) DESC
"""
"""Newest first; each as its newest trial has it. In stored rows an eval run is called `sitting`."""
_STORED = "SELECT count(DISTINCT key) FROM eval_runs WHERE result_json ->> '$.sitting.id' = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalRun:
    """One run of a suite, from `kestrel eval run` to its end, and all that resumed it; each of its rows names
    it.
    """

    id: str
    of: int
    """How many trials it consists of."""
    by: str
    """The owner that works on it, as the log names its session."""
    also: tuple[str, ...] = ()
    """Eval runs that were cut off and whose trials it has taken over."""
    seen: int | None = None
    """Of one that is resumed, how many trials were stored when it was looked at."""

    @classmethod
    def new(cls, store: SessionStore, of: int) -> EvalRun:
        """Return an eval run that begins now."""
        return cls(id=f"e{secrets.token_hex(6)}", of=of, by=str(Owner.here(store.session)))

    @contextmanager
    def at_work(self, store: SessionStore) -> Iterator[None]:
        """Hold the lock of this eval run; raises `UsageError` while another session holds it, in this process
        or another, and where another has stored trials of it since it was looked at.
        """
        lock = _lock(store, self.id)
        with try_lock_file(lock) as free:
            if not free:
                raise UsageError(
                    f"eval run {self.id} is still going on in another session; wait for it, or stop it first"
                )
            try:
                if self.seen is not None and stored_number(store, self.id) != self.seen:
                    raise UsageError(
                        f"another session went on with eval run {self.id} just now; repeat the command to "
                        "go on from there"
                    )
                yield
            finally:
                lock.unlink(missing_ok=True)

    def mark(self, row: EvalRow) -> EvalRow:
        """Return `row` as one of this eval run."""
        sitting: dict[str, Json] = {"id": self.id, "of": self.of, "by": self.by}
        if self.also:
            sitting["also"] = [*self.also]
        return replace(row, result={**row.result, "sitting": sitting})


@dataclass(frozen=True, kw_only=True, slots=True)
class EarlierRun:
    """The last eval run of a suite, as far as it is stored, and those before it that were cut off as well."""

    eval_run: EvalRun
    stored: int
    """Trials of `eval_run` in the log."""
    before: tuple[str, ...] = ()
    """The eval runs between it and the last one that was finished."""
    most: tuple[int, int] = (0, 0)
    """Of the eval run that came farthest: its trials in the log, and its trials in all."""

    going_on: bool = False
    """Whether a session works on it."""

    @property
    def all(self) -> tuple[str, ...]:
        """The eval runs that are resumed together, newest first."""
        return tuple(dict.fromkeys((self.eval_run.id, *self.before, *self.eval_run.also)))

    @property
    def notice(self) -> str:
        """The hint for a user who starts a new eval run; empty when this one is finished or still going
        on.
        """
        if self.stored >= self.eval_run.of or self.going_on:
            return ""
        stored, of = self.most
        return (
            f"an earlier run of this suite was cut off after {stored:,} of "
            f"{format_count(of, 'trial')}: --resume "
            "goes on with it"
        )


def last_eval_run(store: SessionStore, suite: Suite) -> EarlierRun | None:
    """Return the eval run of the suite's newest stored trial that belongs to one; `None` when there is
    none.
    """
    store.flush()
    rows = store.query(_EVAL_RUNS, (suite.name,))
    if not rows:
        return None
    (name, of, by, also, stored, _), *others = rows
    open_ones = [(stored, of)]
    before = []
    for other, their_of, _, _, their_stored, _ in others if stored < of else ():
        # Only runs after the last finished one belong to what was cut off.
        if their_stored >= their_of:
            break
        before.append(other)
        open_ones.append((their_stored, their_of))
    eval_run = EvalRun(id=name, of=of, by=by, also=tuple(json.loads(also or "[]")))
    going_on = is_going_on(store, eval_run, stored)
    return EarlierRun(
        eval_run=eval_run, stored=stored, before=tuple(before), most=max(open_ones), going_on=going_on
    )


def stored_number(store: SessionStore, name: str) -> int:
    """Return how many trials of an eval run are in the log."""
    ((number,),) = store.query(_STORED, (name,))
    return int(number)


def is_going_on(store: SessionStore, eval_run: EvalRun, stored: int) -> bool:
    """Return whether a session works on it: its lock is held, or its process is alive, which another version
    may have started without a lock.
    """
    lock = _lock(store, eval_run.id)
    if lock.exists():
        with try_lock_file(lock) as free:
            if not free:
                return True
    # The lock is free or not there; an earlier version works without one.
    owner = Owner.parse(eval_run.by)
    return stored < eval_run.of and owner.alive and not owner.same_process


def _lock(store: SessionStore, name: str) -> Path:
    return store.path.parent / "eval-runs" / f"{name}.lock"


def resumed_trials(
    store: SessionStore, suite: Suite, earlier: EarlierRun, asks: Sequence[TrialRequest]
) -> dict[str, EvalRow]:
    """Return the trials of `earlier` that are among those asked for, by key, broken ones included.

    Raises `UsageError` while a session still works on it.
    """
    if earlier.going_on:
        process = Owner.parse(earlier.eval_run.by).process
        raise UsageError(
            f"the last run of suite {suite.name!r} is still going on in process {process}; wait for "
            "it, or stop it first"
        )
    wanted = {ask.identity.key for ask in asks}
    # Of two runs with the same trial the newer one counts.
    order = {name: place for place, name in enumerate(earlier.all)}
    found: dict[str, EvalRow] = {}
    for row in stored_trials(store, suite=suite.name):
        name = eval_run_of(row)
        if (
            name in order
            and row.key in wanted
            and order[name] <= order.get(eval_run_of(found[row.key]) if row.key in found else name, 0)
        ):
            found[row.key] = row
    return found


def eval_run_of(row: EvalRow) -> str:
    """Return the id of the eval run that a trial belongs to; empty where another tool stored it."""
    sitting = row.result.get("sitting")
    return str(sitting["id"]) if isinstance(sitting, dict) else ""
