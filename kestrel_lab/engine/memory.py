"""Notes of earlier runs, read back from the event log: the events that tell of them are where they are kept."""

from __future__ import annotations

import asyncio
import math

from kestrel_lab.core.events import MemoryStored, Record
from kestrel_lab.core.protocols import Note
from kestrel_lab.engine.terms import terms
from kestrel_lab.log.store import SessionStore

_ALL = 200
"""Words of a note that are compared."""


class LogMemory:
    """A `Memory` without a store of its own: `memory_stored` events of runs in the same workspace are the notes.

    Recall goes by the words that a note shares with the query, newer notes first among equals. There is nothing to
    write: whoever remembers emits the event.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store

    async def recall(self, query: str, top_k: int, *, workspace: str) -> tuple[Note, ...]:
        """Notes with a word in common with `query`; those with most first, in proportion to their length."""
        wanted = frozenset(terms(query, _ALL))
        scored = [(_score(note, wanted), note) for note in await self._notes(workspace)]
        best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], -pair[1].at, pair[1].text))
        return tuple(note for _, note in best[:top_k])

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Whether no note of the workspace says the same yet."""
        return _same(note) not in {_same(known) for known in await self._notes(workspace)}

    async def _notes(self, workspace: str) -> list[Note]:
        """Every note once, as it was first told."""
        records = await asyncio.to_thread(self._store.told, MemoryStored.type, workspace)
        notes: dict[str, Note] = {}
        for record in records:
            note = note_of(record)
            notes.setdefault(_same(note), note)
        return list(notes.values())


class NoMemory:
    """A `Memory` that keeps nothing."""

    async def recall(self, query: str, top_k: int, *, workspace: str) -> tuple[Note, ...]:
        """Nothing."""
        return ()

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Not kept."""
        return False


def note_of(record: Record) -> Note:
    """The note that a `memory_stored` event tells of."""
    assert isinstance(record.event, MemoryStored)
    body = record.event.note
    words = {key: str(body.get(key) or "") for key in ("text", "kind", "evidence")}
    return Note(**words, run=record.run_id, at=record.at)


def _same(note: Note) -> str:
    """Equal for notes that differ in spaces and capitals only."""
    return " ".join(note.text.casefold().split())


def _score(note: Note, wanted: frozenset[str]) -> float:
    found = frozenset(terms(note.text, _ALL))
    return len(found & wanted) / math.sqrt(len(found)) if found else 0.0
