"""A run whose events are not those that were written can be read up to there, and forked there; it is never gone on with."""

from __future__ import annotations

from kestrel_lab.core.errors import Damaged
from kestrel_lab.core.events import Record
from kestrel_lab.log.chain import Damage
from kestrel_lab.log.store import SessionStore


def damaged(run_id: str, damage: Damage) -> Damaged:
    """What is said to whoever wants to go on with the run."""
    last = damage.seq - 1
    whose = f" of run {damage.run_id}, which it was forked from" if damage.run_id != run_id else ""
    todo = f"go on from what came before: kestrel fork {run_id} --at {last} (lab.fork({run_id!r}, at={last}))" if last else "start it anew"
    text = (
        f"run {run_id} is damaged from event {damage.seq}{whose} on: {damage.what}. It can be looked at (kestrel show {run_id}) and is not "
        f"gone on with; {todo}. Find out what changed the log: a failing disk, a copy made while it was written, or somebody"
    )
    return Damaged(text, run_id=run_id, seq=damage.seq)


def check_whole(store: SessionStore, run_id: str) -> None:
    """Raise `Damaged` unless every event of the run on disk is as it was written; see `SessionStore.damage`."""
    if (damage := store.damage(run_id)) is not None:
        raise damaged(run_id, damage)


def records_to_fork(store: SessionStore, run_id: str, at: int | None) -> list[Record]:
    """The events that a fork at `at` is made of; of a damaged run those before the damage, or `Damaged` if `at` is none of them."""
    damage = store.damage(run_id)
    if damage is None:
        return store.records(run_id)
    if at is None or at >= damage.seq:
        raise damaged(run_id, damage)
    return store.records(run_id, until=damage.seq - 1)
