"""Removal of runs: the one way in which events leave the log, for people who must delete what a run holds.

A row in `removals` says that a run is removed and how many of its first events stay, since forks and
follow-ups that are kept share them; triggers of the database then delete the rest, and refuse any other
deletion. What is left is not rewritten, so its hashes hold.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kestrel_lab.eventlog.connection import rewrite_database
from kestrel_lab.eventlog.store import SessionStore

_RUNS = """
SELECT id, parent, coalesce(forked_at, 0), body ->> '$.earlier.since', body ->> '$.follows' FROM runs
LEFT JOIN events ON run_id = runs.id AND seq = 1 AND json_valid(body) ORDER BY created_at DESC
"""
_STATE = """
SELECT (SELECT count(*) || ' ' || total(epoch) || ' ' || coalesce(max(created_at), 0) FROM runs) || ' '
  || (SELECT count(*) || ' ' || total(keep) FROM removals)
"""
"""Changes when a run begins, is forked, followed, claimed or removed."""
_REMOVE = f"""
INSERT INTO removals(run_id, keep, at) SELECT value ->> 0, value ->> 1, ?2 FROM json_each(?1) WHERE \
({_STATE}) = ?3
ON CONFLICT(run_id) DO UPDATE SET keep = excluded.keep WHERE excluded.keep < keep
"""
_SCORES = (
    "DELETE FROM eval_scores WHERE trial IN (SELECT id FROM eval_runs WHERE result_json ->> '$.run' IN "
    "(SELECT run_id FROM removals))",
    "DELETE FROM eval_runs WHERE result_json ->> '$.run' IN (SELECT run_id FROM removals)",
)
_SETTLE = """
UPDATE heads SET removed = removed + sealed, sealed = 0, hash = zeroblob(32) WHERE sealed > 0 AND CASE source
  WHEN 'eval_runs' THEN NOT EXISTS (SELECT 1 FROM eval_runs AS r WHERE r.suite = heads.name
    AND r.git_sha = heads.git_sha AND r.config = heads.config)
  WHEN 'eval_scores' THEN NOT EXISTS (SELECT 1 FROM eval_scores JOIN eval_runs AS r ON r.id = trial
    WHERE r.suite = heads.name) END
"""
"""Of an evaluation whose last trial was removed nothing is missed any more, also what was lost before."""
_BLOB = re.compile(r"[0-9a-f]{32}")
_PAGE = 500
_SETTLED_S = 3_600.0
"""How old a kept text is before nobody can be about to name it in an event."""


class _Row(NamedTuple):
    """A run, and what it shares with others."""

    id: str
    parent: str | None
    forked_at: int
    since: str | None
    """The run on whose first event its conversation builds."""
    follows: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class RemovalPlan:
    """What becomes of runs that are removed."""

    keep: dict[str, int] = field(default_factory=dict)
    """By run, how many of its first events stay because others share them; youngest first."""
    children: dict[str, list[str]] = field(default_factory=dict)
    """By run, the forks and follow-ups that are kept and share those."""
    state: str = ""
    """Of the log when this was planned."""


def removed_runs(store: SessionStore) -> dict[str, int]:
    """Return the runs that were removed, each with how many of its events are kept for others."""
    return {str(run): int(keep) for run, keep in store.query("SELECT run_id, keep FROM removals")}


def plan_removal(store: SessionStore, chosen: Collection[str], *, children: bool = False) -> RemovalPlan:
    """Return what removing the `chosen` runs does; with `children` their forks and follow-ups are removed,
    too.

    Runs that were removed before are part of it where nobody shares their events any more.
    """
    store.flush()
    ((state,),) = store.query(_STATE)
    rows = [_Row(*row) for row in store.query(_RUNS)]
    before, gone = removed_runs(store), set(chosen)
    if children:
        for row in reversed(rows):
            if {row.parent, row.follows} & gone:
                gone.add(row.id)
    sharing = dict[str, list[str]]()
    for row in rows:
        if row.id not in gone and row.id not in before:
            for other in {row.parent, row.follows} & gone:
                sharing.setdefault(str(other), []).append(row.id)
    needed = _needed(rows, gone | before.keys())
    keep = {
        row.id: needed[row.id]
        for row in rows
        if (row.id in gone and row.id not in before) or needed[row.id] < before.get(row.id, 0)
    }
    return RemovalPlan(keep=keep, children=sharing, state=str(state))


def _needed(rows: Sequence[_Row], gone: set[str]) -> dict[str, int]:
    """Return how many first events of each run those share that are kept."""
    needed, changed = dict.fromkeys((row.id for row in rows), 0), True
    # Once, and again where a child is older than its parent by a clock that was set.
    while changed:
        changed = False
        for row in rows:
            if row.id in gone and not needed[row.id]:
                continue
            for other, events in ((row.parent, row.forked_at), (row.since, 1)):
                if other in needed and needed[other] < events:
                    needed[other], changed = events, True
    return needed


def remove_from_log(store: SessionStore, plan: RemovalPlan) -> bool:
    """Carry a plan out, in the tables of the log and beside it, with the trials of suites whose runs these
    are.

    Returns false, and does nothing, where runs have begun or were claimed since it was made. The files still
    hold what was deleted: see `rewrite`.
    """
    named = _named_blobs(store, plan.keep)
    work = json.dumps([[run, keep] for run, keep in plan.keep.items()])
    values = (work, time.time(), plan.state)
    # Their words leave the index in the same transaction, unless it is damaged and made anew.
    store.texts.repaired(lambda: store.execute(_REMOVE, values, "a removal of runs").result())
    if not plan.keep.items() <= removed_runs(store).items():
        return False
    for sql in (*_SCORES, _SETTLE):
        store.execute(sql, (), "a removal of trials").result()
    _remove_blobs(store, named)
    return True


def sweep_blobs(store: SessionStore) -> int:
    """Remove the texts beside the log that no event names; returns how many there were.

    New ones stay, an event may be on its way.
    """
    limit = time.time() - _SETTLED_S
    folder = store.results.folder
    old = (
        {
            path.stem
            for path in folder.glob("*.txt")
            if _BLOB.fullmatch(path.stem) and path.stat().st_mtime < limit
        }
        if folder.is_dir()
        else set()
    )
    return _remove_blobs(store, old)


def rewrite(store: SessionStore) -> int:
    """Write the files of the log anew, without what was deleted; returns by how many bytes they shrank.

    Raises as `rewrite_database`.
    """
    before = _size(store.path)
    rewrite_database(store.path)
    return before - _size(store.path)


def _named_blobs(store: SessionStore, keep: dict[str, int]) -> set[str]:
    """Return the kept texts that the events to be removed name."""
    found = set[str]()
    if store.results.folder.is_dir():
        for run, first in keep.items():
            for body in _bodies(store, run, first):
                found.update(_BLOB.findall(body))
    return {name for name in found if (store.results.folder / f"{name}.txt").exists()}


def _remove_blobs(store: SessionStore, names: set[str]) -> int:
    """Remove those texts that no event names."""
    if not names:
        return 0
    for (run,) in store.query("SELECT id FROM runs"):
        for body in _bodies(store, str(run), 0):
            names = names - set(_BLOB.findall(body))
    for name in names:
        (store.results.folder / f"{name}.txt").unlink(missing_ok=True)
    return len(names)


def _bodies(store: SessionStore, run: str, after: int) -> Iterator[str]:
    """Yield the bodies of the events of a run behind number `after`, a page at a time."""
    while rows := store.query(
        f"SELECT seq, body FROM events WHERE run_id = ? AND seq > ? ORDER BY seq LIMIT {_PAGE}", (run, after)
    ):
        for seq, body in rows:
            yield str(body)
            after = int(seq)


def _size(path: Path) -> int:
    return sum(one.stat().st_size for ending in ("", "-wal") if (one := Path(f"{path}{ending}")).exists())
