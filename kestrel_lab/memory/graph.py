"""Memory graph: notes, the entities they name, and the links between notes."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.notes import Note
from kestrel_lab.memory.table import LIVE, NoteTable

_DRAWN = ("path", "symbol", "package", "command", "error", "quoted", "tag", "author", "name", "url")
"""Kinds of names that tell what a note is about; numbers and dates would link unrelated notes."""
MOST = 60
"""Notes in a graph, unless asked otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Thing:
    """Something that notes name."""

    kind: str
    name: str
    notes: tuple[str, ...]
    """Ids of the notes that name it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryGraph:
    """Notes, the things they name, and the links between notes."""

    notes: tuple[Note, ...]
    things: tuple[Thing, ...]
    """Those that most notes name first."""
    links: tuple[tuple[str, str, str], ...]
    """`(source, target, relation)` by ids of notes; a relation is `replaces`, `disputes` or `like`."""


def memory_graph(table: NoteTable, workspace: str, *, about: Sequence[Note] | None = None) -> MemoryGraph:
    """Return the graph of the newest notes of a workspace, or of the given ones, and of the things that at
    least two of them name.

    A thing that one note alone names is in it only while there are few notes.
    """
    notes = list(about) if about is not None else table.notes(workspace, LIVE, (time.time(),))[:MOST]
    ids = dumps([note.id for note in notes])
    rows = table.store.query(
        "SELECT note_names.kind, name, id FROM note_names JOIN notes USING (number) WHERE id IN "
        "(SELECT value FROM json_each(?)) ORDER BY name, id",
        (ids,),
    )
    named: dict[str, dict[str, None]] = defaultdict(dict)
    kinds: dict[str, str] = {}
    for kind, name, note_id in rows:
        if kind in _DRAWN:
            named[name][note_id] = None
            kinds[name] = min(kinds.get(name, kind), kind, key=_DRAWN.index)
    least = 1 if len(notes) <= 12 else 2
    things = [
        Thing(kind=kinds[name], name=name, notes=tuple(found))
        for name, found in named.items()
        if len(found) >= least
    ]
    links = table.store.query(
        "SELECT a.id, b.id, relation FROM note_links JOIN notes AS a ON a.number = source JOIN notes "
        "AS b ON b.number = target"
        " WHERE a.id IN (SELECT value FROM json_each(?1)) AND b.id IN (SELECT value FROM "
        "json_each(?1)) ORDER BY 1, 2, 3",
        (ids,),
    )
    things.sort(key=lambda thing: (-len(thing.notes), thing.name))
    return MemoryGraph(
        notes=tuple(notes),
        things=tuple(things[: 2 * MOST]),
        links=tuple((str(a), str(b), str(c)) for a, b, c in links),
    )
