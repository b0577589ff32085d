"""Snapshots kept beside the events, so that a long run is taken up quickly. The log is the truth: without them it is only slower."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from kestrel_lab.log.fold import RunState
from kestrel_lab.log.snapshot import DamagedSnapshot, form, restore

Read = Callable[[str, Iterable[object]], list[tuple[Any, ...]]]
"""Runs a query."""

KEPT = 3
"""How many snapshots of a run are kept: the newest, so the last one before an end too."""

SAVE = """
INSERT OR IGNORE INTO checkpoints(run_id, seq, reason, form, state, created_at) VALUES (?,?,?,?,?,?);
DELETE FROM checkpoints WHERE run_id = ? AND seq NOT IN (SELECT seq FROM checkpoints WHERE run_id = ? ORDER BY seq DESC LIMIT ?)
"""

_SELECT = """
SELECT run_id, seq, reason, form, state, checkpoints.created_at, eid FROM checkpoints JOIN events USING (run_id, seq)
WHERE run_id = ? AND seq <= ? ORDER BY seq DESC
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoint:
    """A stored snapshot."""

    run_id: str
    """The run that made it: of a fork it may be the parent."""
    seq: int
    """The last event in it; `Session.fork` goes on from there."""
    reason: str
    """`cycles`, `interrupt` or `error`."""
    form: str
    state: bytes
    created_at: float
    eid: str
    """Of that event."""

    @property
    def current(self) -> bool:
        """Whether this version can read it."""
        return self.form == form()

    def restored(self) -> RunState:
        """The state; raises `DamagedSnapshot` when the bytes are not those that were written for that event."""
        return restore(self.state, run=self.run_id, seq=self.seq, eid=self.eid)

    @property
    def usable(self) -> str:
        """`yes`, `older form` or `damaged`."""
        if not self.current:
            return "older form"
        try:
            self.restored()
        except DamagedSnapshot:
            return "damaged"
        return "yes"


def stored(read: Read, lineage: Iterable[tuple[str, int]]) -> Iterable[Checkpoint]:
    """The snapshots of a run, the newest first, then those that it shares with the runs it was forked from."""
    for run_id, last in reversed(list(lineage)):
        for row in read(_SELECT, (run_id, last)):
            owner, seq, reason, named, state, created_at, eid = row
            yield Checkpoint(run_id=owner, seq=seq, reason=reason, form=named, state=state, created_at=created_at, eid=eid)


def newest_state(checkpoints: Iterable[Checkpoint]) -> RunState:
    """The state in the first snapshot that can be used, or that of a run without events.

    One of another version is passed over; a damaged one too, with a warning that names it.
    """
    for checkpoint in checkpoints:
        if not checkpoint.current:
            continue
        try:
            return checkpoint.restored()
        except DamagedSnapshot as error:
            text = f"the checkpoint of run {checkpoint.run_id} at event {checkpoint.seq} is damaged ({error}) and not used: the log is read"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
    return RunState()
