"""Shared conversation: a follow-up stores what is new in its conversation, and is read with all of it.

`RunStarted.earlier` tells everything that was said before a run. Stored whole in each run, a chat would need
room that grows with the square of its turns. So where the followed run has an `earlier` itself, the log keeps
the difference between the two: the run (`since`) and the hash of its first event (`hash`), how many entries
of each list or table are those of that run (`kept`), and the rest (`added`). First events never change, so
this says the same for ever; that they have not been changed behind the log's back is checked by the hash. A
process that goes on with a conversation checks the part that it has in memory once, and from then on what is
new.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, cast

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.json_types import Json, loads
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.eventlog.seals.hash_chain import START, Read, chain_hash, rows_of

_FIRST = "SELECT hash FROM events WHERE run_id = ? AND seq = 1"
_CHAIN = """
    WITH RECURSIVE line(id, body) AS (
        SELECT run_id, body FROM events WHERE run_id = ? AND seq = 1
        UNION SELECT e.run_id, e.body FROM line JOIN events AS e ON e.run_id = line.body ->> \
'$.earlier.since' AND e.seq = 1)
    SELECT id, body FROM line
"""
_Earlier = Mapping[str, Any]
_MOST_KEPT = 8
"""Conversations that go on side by side in a session, with the one before each."""


class ConversationCache:
    """What runs were given of earlier turns, as this process wrote it or read it, of those that were used
    last; for any thread.

    A follow-up goes on with the run before it. Read anew each time, a chat would cost what grows with the
    square of its turns.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._earlier: OrderedDict[str, dict[str, Json]] = OrderedDict()
        self._checked: dict[str, str] = {}
        """Hash of each run's first event, if that event and all that it continues are intact."""

    def get(self, run_id: str) -> dict[str, Json]:
        """Return the `RunStarted.earlier` that a run was given."""
        with self._lock:
            if (found := self._earlier.get(run_id)) is not None:
                self._earlier.move_to_end(run_id)
                return found
        rows = self._read("SELECT body FROM events WHERE run_id = ? AND seq = 1", (run_id,))
        found = full_conversation(
            self._read, run_id, json.loads(rows[0][0]).get("earlier", {}) if rows else {}
        )
        self.put(run_id, found)
        return found

    def put(self, run_id: str, earlier: dict[str, Json]) -> None:
        """Keep the `earlier` of a run, and forget the one that was used least lately."""
        with self._lock:
            self._earlier[run_id] = earlier
            self._earlier.move_to_end(run_id)
            # What is read again is checked again.
            if len(self._earlier) > _MOST_KEPT:
                self._checked.pop(self._earlier.popitem(last=False)[0], None)

    def changed(self, run_id: str, *, anew: bool) -> str:
        """Return the run whose first event is not what `run_id`, which is whole itself, goes on with; empty
        if there is none.

        Unless `anew`, what is kept and was checked is not read again.
        """
        rows = self._read(
            "SELECT body, hash FROM events WHERE run_id = ? AND seq = 1 AND hash IS NOT NULL", (run_id,)
        )
        earlier = json.loads(rows[0][0]).get("earlier", {}) if rows and '"since"' in rows[0][0] else {}
        found = (
            changed_base(self._read, earlier) if anew else changed_base(self._read, earlier, self._checked)
        )
        with self._lock:
            if rows and not found and run_id in self._earlier:
                self._checked[run_id] = rows[0][1].hex()
        return found


def conversation_reference(
    read: Read, since: str, base: _Earlier, earlier: dict[str, Json]
) -> dict[str, Json]:
    """Return the part of `earlier` that the log keeps, for a run that follows `since` (given `base`)."""
    rows = read(_FIRST, (since,))
    # Nothing to share, in another log, or written before events had hashes.
    if not base or not rows or rows[0][0] is None:
        return earlier
    kept, added = dict[str, Json](), dict[str, Json]()
    for name, value in earlier.items():
        before = base.get(name)
        if isinstance(value, list) and isinstance(before, list):
            same = next(
                (place for place, (old, new) in enumerate(zip(before, value, strict=False)) if old != new),
                min(len(before), len(value)),
            )
            kept[name], added[name] = same, value[same:]
        elif isinstance(value, dict) and isinstance(before, dict) and before.items() <= value.items():
            kept[name], added[name] = (
                len(before),
                {key: one for key, one in value.items() if key not in before},
            )
        else:
            added[name] = value
    return {"since": since, "hash": rows[0][0].hex(), "kept": kept, "added": added}


def full_conversation(read: Read, run_id: str, earlier: _Earlier) -> dict[str, Json]:
    """Return the `earlier` that run `run_id` was given; raises `StoreError` if a part of it is gone."""
    if "since" not in earlier:
        return dict(earlier)
    bodies: dict[Any, str] = dict(read(_CHAIN, (earlier["since"],)))
    later = []
    while "since" in earlier:
        later.append(earlier)
        if (body := bodies.pop(earlier["since"], None)) is None:
            raise StoreError(
                f"the conversation before run {run_id} cannot be read: run {earlier['since']} is not "
                "in the log. See: kestrel doctor"
            )
        earlier = _earlier_of(earlier["since"], body)
    found = dict(earlier)
    for one in reversed(later):
        found = {
            name: _join_values(found.get(name), one["kept"].get(name, 0), value)
            for name, value in one["added"].items()
        }
    return found


def _join_values(before: Json, kept: int, added: Json) -> Json:
    if isinstance(before, list) and isinstance(added, list):
        return [*before[:kept], *added]
    return {**before, **added} if kept and isinstance(before, dict) and isinstance(added, dict) else added


def _earlier_of(run_id: str, body: str) -> _Earlier:
    try:
        found = loads(body)
    except ValueError as error:
        raise StoreError(
            f"event 1 of run {run_id} cannot be read: {full_stop(error)} See: kestrel doctor"
        ) from error
    return cast("_Earlier", found.get("earlier", {})) if isinstance(found, dict) else {}


def changed_base(read: Read, earlier: _Earlier, checked: Mapping[str, str] | None = None) -> str:
    """Return the run whose first event is no longer the one that `earlier`, as the log keeps it, goes on
    with; empty where all are.

    What goes on with a run that was `checked` before, with the same hash, is not read again.
    """
    while "since" in earlier:
        since = str(earlier["since"])
        if checked and checked.get(since) == earlier["hash"]:
            return ""
        rows = [*rows_of(read, since, 0, 1)]
        # Gone, or not to be read.
        if len(rows) != 1 or len(rows[0]) == 1:
            return since
        *columns, digest, _ = rows[0]
        if digest is None or digest.hex() != earlier["hash"] or chain_hash(START, since, *columns) != digest:
            return since
        earlier = _earlier_of(since, columns[5].decode())
    return ""
