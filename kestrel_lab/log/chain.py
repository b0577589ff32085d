"""Each event carries a hash of itself and of the one before: what is changed behind the log's back is found.

A fork's chain goes on from the event that it was forked at. Events that were written before there were hashes have none;
once there is one, each that follows has its own. What nobody can find in this way: that the last events are gone
together with the count in the run's row, and a chain written anew from its beginning. Both are found only by whoever
kept the hash of the last event, which each report of a run names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kestrel_lab.core.errors import StoreError

Read = Callable[[str, Iterable[object]], list[tuple[Any, ...]]]
"""Runs a query; raises `StoreError` where the file cannot be read."""

START = b""
"""What the first event of a chain follows."""
PAGE = 500
"""Events read at once."""

# As bytes, so that text which is no Unicode any more is a wrong hash and not an error.
_PAGE = """
SELECT CAST(seq AS INTEGER), CAST(eid AS BLOB), CAST(at AS REAL), CAST(type AS BLOB), CAST(ref AS BLOB), CAST(body AS BLOB),
  CAST(epoch AS INTEGER), CAST(hash AS BLOB),
  typeof(seq) = 'integer' AND typeof(eid) = 'text' AND typeof(at) = 'real' AND typeof(type) = 'text' AND typeof(body) = 'text'
    AND typeof(ref) IN ('text', 'null') AND typeof(epoch) IN ('integer', 'null') AND typeof(hash) IN ('blob', 'null')
FROM events WHERE run_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_TIP = """
SELECT last_seq, CASE WHEN last_seq IS forked_at THEN (SELECT hash FROM events WHERE run_id = runs.parent AND seq = runs.forked_at)
  ELSE (SELECT hash FROM events WHERE run_id = runs.id AND seq = runs.last_seq) END
FROM runs WHERE id = ?
"""
_COUNTED = "SELECT last_seq FROM runs WHERE id = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """From where on the events of a run are not what was written."""

    run_id: str
    """The run that recorded the event: of a fork it may be the parent."""
    seq: int
    """The first event that is wrong or missing."""
    what: str
    """What is wrong with it."""


def link(
    before: bytes,
    run_id: str,
    seq: int,
    eid: str | bytes,
    at: float,
    kind: str | bytes,
    ref: str | bytes | None,
    body: str | bytes,
    epoch: int | None,
) -> bytes:
    """The hash of an event that follows one with the hash `before`: of all its columns, each with its length."""
    parts = (before, run_id, str(seq), eid, repr(float(at) + 0.0), kind, ref, body, None if epoch is None else str(epoch))
    return hashlib.sha256(b"".join(map(_measured, parts))).digest()


def _measured(part: str | bytes | None) -> bytes:
    if part is None:
        return b"-"
    content = part.encode() if isinstance(part, str) else part
    return b"%d:%b" % (len(content), content)


def tip(read: Read, run_id: str) -> tuple[int, bytes]:
    """Number and hash of the last event of a run, by its row; those of none when there is no such run."""
    rows = read(_TIP, (run_id,))
    return (int(rows[0][0]), rows[0][1] or START) if rows else (0, START)


def damage_of(read: Read, lineage: Sequence[tuple[str, int]]) -> Damage | None:
    """The first thing wrong with the events that a run is made of; `None` when all are as they were written.

    `lineage` names the runs that the events are taken from, eldest first, each with its last number that counts. All events
    are read: a snapshot stands for none of them.
    """
    seq, before = 0, START
    for run_id, last in lineage:
        try:
            counted = read(_COUNTED, (run_id,))
        except StoreError as error:
            return Damage(run_id=run_id, seq=seq + 1, what=f"it cannot be read ({error})")
        for row in _rows(read, run_id, seq, last):
            if wrong := _wrong(row, run_id, seq + 1, before):
                return Damage(run_id=run_id, seq=seq + 1, what=wrong)
            seq, before = row[0], row[-2] or START
        due = min(last, int(counted[0][0]) if counted and isinstance(counted[0][0], int) else last)
        if seq < due:
            return Damage(run_id=run_id, seq=seq + 1, what="it is missing")
    return None


def _wrong(row: tuple[Any, ...], run_id: str, due: int, before: bytes) -> str:
    """What is wrong with the event that should have the number `due` and follow one with the hash `before`; empty if nothing is."""
    if len(row) == 1:
        return f"it cannot be read ({row[0]})"
    *columns, digest, plain = row
    if columns[0] != due:
        return "it is missing"
    if not plain:
        return "it is not what was written"
    if digest is None:
        return "its hash is gone" if before != START else ""
    return "" if digest == link(before, run_id, *columns) else "it is not what was written, or does not follow the one before"


def _rows(read: Read, run_id: str, after: int, last: int) -> Iterator[tuple[Any, ...]]:
    """The events in order; at one that cannot be read the error alone, as the last."""
    size = PAGE
    while True:
        try:
            rows = read(_PAGE, (run_id, after, last, size))
        except StoreError as error:
            if size == 1:
                yield (str(error),)
                return
            size = 1  # which of them it is
            continue
        yield from rows
        if len(rows) < size:
            return
        after = rows[-1][0]
