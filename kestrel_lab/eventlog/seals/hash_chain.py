"""Each event carries a hash of itself and of the one before: what is changed behind the log's back is found.

The row of a run says nothing that its events do not: it is held against them, but for who works on it. A
fork's chain goes on from the event that it was forked at. Events that were written before there were hashes
have none; once there is one, each that follows has its own. What nobody can find in this way: that the last
events are gone together with the count in the run's row, and a chain written anew from its beginning. Both
are found only with the hash of the last event, which each report of a run names.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.run_types import RunStatus

Read = Callable[[str, Iterable[object]], list[tuple[Any, ...]]]
"""Runs a query; raises `StoreError` where the file cannot be read."""

START = b""
"""What the first event of a chain follows."""
PAGE = 500
"""Events read at once."""

# As bytes, so that text which is no Unicode any more is a wrong hash and not an error.
_PAGE = """
SELECT CAST(seq AS INTEGER), CAST(eid AS BLOB), CAST(at AS REAL), CAST(type AS BLOB), CAST(ref AS BLOB), \
CAST(body AS BLOB),
  CAST(epoch AS INTEGER), CAST(hash AS BLOB),
  typeof(seq) = 'integer' AND typeof(eid) = 'text' AND typeof(at) = 'real' AND typeof(type) = 'text' AND \
typeof(body) = 'text'
    AND typeof(ref) IN ('text', 'null') AND typeof(epoch) IN ('integer', 'null') AND typeof(hash) IN \
('blob', 'null')
FROM events WHERE run_id = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?
"""
_TIP = """
SELECT last_seq, CASE WHEN last_seq IS forked_at THEN (SELECT hash FROM events WHERE run_id = runs.parent \
AND seq = runs.forked_at)
  ELSE (SELECT hash FROM events WHERE run_id = runs.id AND seq = runs.last_seq) END
FROM runs WHERE id = ?
"""
_COUNTED = "SELECT last_seq, (SELECT min(seq) FROM events WHERE run_id = runs.id) FROM runs WHERE id = ?"
_COLUMNS = (
    "goal",
    "workspace",
    "model",
    "model_kind",
    "config",
    "scenario",
    "began",
    "parent",
    "forked_at",
    "created_at",
)
"""Columns of a run's row that its first event tells too."""
_ROW = f"SELECT {', '.join(_COLUMNS)}, last_seq, epoch, status FROM runs WHERE id = ?"


@dataclass(frozen=True, kw_only=True, slots=True)
class Damage:
    """From where on the events of a run are not what was written."""

    run_id: str
    """The run that recorded the event: of a fork it may be the parent."""
    seq: int
    """The first event that is wrong or missing."""
    what: str
    """What is wrong with it."""
    row: bool = False
    """Whether all events are as they were written, and the row of the run is not."""


def chain_hash(
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
    """The hash of an event after one with the hash `before`: of all columns, each with its length."""
    if type(eid) is str and type(kind) is str and ref is None and type(body) is str and epoch is not None:
        # Nearly every event that is written: one format takes less time than nine.
        number, time, era = b"%d" % seq, repr(float(at) + 0.0).encode(), b"%d" % epoch
        run, name, word, text = run_id.encode(), eid.encode(), kind.encode(), body.encode()
        return hashlib.sha256(
            b"%d:%b%d:%b%d:%b%d:%b%d:%b%d:%b-%d:%b%d:%b"
            % (
                *(len(before), before, len(run), run, len(number), number, len(name), name),
                *(len(time), time, len(word), word, len(text), text, len(era), era),
            )
        ).digest()
    hashed = []
    for part in (
        before,
        run_id,
        str(seq),
        eid,
        repr(float(at) + 0.0),
        kind,
        ref,
        body,
        None if epoch is None else str(epoch),
    ):
        if part is None:
            hashed.append(b"-")
        else:
            content = part if isinstance(part, bytes) else part.encode()
            hashed.append(b"%d:%b" % (len(content), content))
    return hashlib.sha256(b"".join(hashed)).digest()


def last_hash(read: Read, run_id: str) -> tuple[int, bytes]:
    """Number and hash of the last event of a run, by its row; those of none when there is no such run."""
    rows = read(_TIP, (run_id,))
    return (int(rows[0][0]), rows[0][1] or START) if rows else (0, START)


def damage_of(read: Read, lineage: Sequence[tuple[str, int]]) -> Damage | None:
    """The first thing wrong with the events that a run is made of; `None` when all are as they were written.

    `lineage` names the runs that the events are taken from, eldest first, each with its last number that
    counts. All events are read: a snapshot stands for none of them.
    """
    seq, before, rows = 0, START, _RowsHeld(read)
    for run_id, last in lineage:
        rows.begin(run_id)
        try:
            counted = read(_COUNTED, (run_id,))
        except StoreError as error:
            return Damage(run_id=run_id, seq=seq + 1, what=f"it cannot be read ({error})")
        if counted and isinstance(counted[0][1], int) and 0 < counted[0][1] <= seq:
            return Damage(
                run_id=run_id,
                seq=counted[0][1],
                what="it is missing where the run's row says that the run was forked later",
            )
        for row in rows_of(read, run_id, seq, last):
            if wrong := _row_problem(row, run_id, seq + 1, before):
                return Damage(run_id=run_id, seq=seq + 1, what=wrong)
            seq, before = row[0], row[-2] or START
            rows.take(row)
        due = min(last, int(counted[0][0]) if counted and isinstance(counted[0][0], int) else last)
        if seq < due:
            return Damage(run_id=run_id, seq=seq + 1, what="it is missing")
        rows.end(seq, whole=last >= seq and run_id == lineage[-1][0])
    return Damage(run_id=rows.wrong[0], seq=seq + 1, what=rows.wrong[1], row=True) if rows.wrong else None


class _RowsHeld:
    """The rows of a run and of those it was forked from, each held against the events that are read of it."""

    def __init__(self, read: Read) -> None:
        self._read, self._status, self._said = read, str(RunStatus.PLANNING), dict[str, Any]()
        self.wrong: tuple[str, str] | None = None
        """Run and what is wrong with its row, the first that is."""

    def begin(self, run_id: str) -> None:
        """The events of a run are read next."""
        self._run_id, self._first, self._began, self._epoch = run_id, True, self._status, 0

    def take(self, row: tuple[Any, ...]) -> None:
        """The next event, which is as it was written."""
        _, _, at, kind, _, body, epoch, digest, _ = row
        self._epoch = max(self._epoch, epoch or 0)
        if self._first and digest is not None and kind in (b"run_started", b"run_forked"):
            first = json.loads(body)
            if kind == b"run_started":
                self._said = {
                    "model_kind": "real",
                    "config": "",
                    "scenario": "",
                    **first,
                    "parent": None,
                    "forked_at": None,
                }
            else:
                kept: dict[str, Any] = {
                    name: self._said[name] for name in ("goal", "workspace") if name in self._said
                }
                more = {
                    "model": first["model"],
                    "model_kind": first.get("model_kind", "real"),
                    "config": "",
                    "scenario": "",
                }
                self._said = {**kept, **more, "parent": first["parent"], "forked_at": first["at"]}
            self._said |= {"began": self._began, "created_at": at}
        elif self._first:  # of an earlier version, whose row may say more than its first event
            self._said = {}
        self._first = False
        if kind == b"state_transition":
            self._status = json.loads(body)["target"]

    def end(self, seq: int, *, whole: bool) -> None:
        """All events of the run that count were read; `whole` if those are all it has."""
        try:
            (row,) = self._read(_ROW, (self._run_id,))
        except (StoreError, ValueError):
            self.wrong = self.wrong or (self._run_id, "its row cannot be read")
            return
        *stored, last, epoch, status = row
        for name, value in zip(_COLUMNS, stored, strict=True):
            said = self._said.get(name, value)
            if value != (said.encode("utf-8", "replace").decode() if isinstance(said, str) else said):
                self.wrong = self.wrong or (
                    self._run_id,
                    f"its row has another {name.replace('_', ' ')} than its first event",
                )
        if not isinstance(epoch, int) or not isinstance(last, int):
            self.wrong = self.wrong or (self._run_id, "its row is not what was written")
        elif epoch < self._epoch or (whole and last < seq):
            self.wrong = self.wrong or (self._run_id, "its row counts fewer events or owners than it has")
        elif whole and last == seq and status != self._status:  # more events may have come since
            self.wrong = self.wrong or (
                self._run_id,
                f"its row says {status!r}, and its events {self._status!r}",
            )


def _row_problem(row: tuple[Any, ...], run_id: str, due: int, before: bytes) -> str:
    """What is wrong with the event that should have number `due` and follow `before`; empty if nothing is."""
    if len(row) == 1:
        return f"it cannot be read ({row[0]})"
    *columns, digest, plain = row
    if columns[0] != due:
        return "it is missing"
    if not plain:
        return "it is not what was written"
    if digest is None:
        return "its hash is gone" if before != START else ""
    return (
        ""
        if digest == chain_hash(before, run_id, *columns)
        else "it is not what was written, or does not follow the one before"
    )


def rows_of(read: Read, run_id: str, after: int, last: int) -> Iterator[tuple[Any, ...]]:
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
