"""Tables of notes with full-text index, entities, links and sources; each change is one transaction."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.notes import Note
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.language.words import normal_form
from kestrel_lab.memory.entities import Entity, entities_text, find_entities

COLUMNS = (
    "id, kind, text, evidence, tags, author, confidence, taint, stated, run, event, at, expires, uses, "
    "replaced_by, owner"
)
LIVE = "(expires IS NULL OR expires > ?)"
_NEIGHBOUR = (
    "SELECT {} FROM notes AS other WHERE other.workspace = notes.workspace AND other.run = notes.run "
    "AND other.kind = 'episode'"
)
BEFORE = (
    _NEIGHBOUR.format("max(other.number)") + " AND other.number < notes.number AND notes.kind = 'episode'"
)
AFTER = _NEIGHBOUR.format("min(other.number)") + " AND other.number > notes.number AND notes.kind = 'episode'"

BESIDE_CHANGED = f"""
UPDATE note_vectors SET model = model
  WHERE number IN (SELECT item.value FROM notes, json_each(json_array(({BEFORE}), ({AFTER}))) AS item WHERE \
notes.number = ?);
"""
"""Removes neighbouring episodes from the vector index, called by a trigger: their vectors include neighbours.
"""
_BESIDE_CHANGED = BESIDE_CHANGED.replace("notes.number = ?", "notes.id = ?").strip()
_CHANGED = "UPDATE notes_version SET value = value + 1"

_INSERT = f"""
INSERT OR IGNORE INTO notes({COLUMNS}, workspace, same)
  SELECT ?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,? WHERE NOT EXISTS (SELECT 1 FROM notes_forgotten WHERE id = ?);
INSERT OR IGNORE INTO note_names(number, kind, name) SELECT notes.number, item.value ->> 0, item.value ->> 1
  FROM notes, json_each(?) AS item WHERE notes.id = ?;
INSERT OR IGNORE INTO note_sources SELECT number, ? FROM notes WHERE id = ?;
UPDATE notes_text SET after = ? WHERE rowid = (SELECT ({BEFORE}) FROM notes WHERE id = ?);
INSERT INTO notes_text(rowid, text, names, before, after)
  SELECT number, text, ?, coalesce((SELECT text FROM notes AS other WHERE number = ({BEFORE})), ''), '' FROM \
notes
  WHERE id = ? AND NOT EXISTS (SELECT 1 FROM notes_text WHERE rowid = notes.number);
{_CHANGED}
"""
_REWRITE = f"""
DELETE FROM note_names WHERE number = (SELECT number FROM notes WHERE id = ?);
DELETE FROM note_vectors WHERE number = (SELECT number FROM notes WHERE id = ?);
{_BESIDE_CHANGED}
INSERT OR IGNORE INTO note_names(number, kind, name) SELECT notes.number, item.value ->> 0, item.value ->> 1
  FROM notes, json_each(?) AS item WHERE notes.id = ?;
UPDATE notes_text SET text = ?, names = ? WHERE rowid = (SELECT number FROM notes WHERE id = ?);
UPDATE notes_text SET after = ? WHERE rowid = (SELECT ({BEFORE}) FROM notes WHERE id = ?);
UPDATE notes_text SET before = ? WHERE rowid = (SELECT ({AFTER}) FROM notes WHERE id = ?);
{_CHANGED}
"""


class NoteTable:
    """Reads and writes notes of all workspaces in one log's database."""

    def __init__(self, store: SessionStore) -> None:
        self.store = store

    def add(self, note: Note, workspace: str) -> Future[None]:
        """Queue `note`, which has an id; no-op if it was forgotten, exists, or another says the same."""
        named = _entities_of(note)
        pairs = dumps([[each.kind, each.name] for each in named])
        text = _names_text(note, named)
        row = (*_row(note), workspace, words_digest(note.text), note.id)
        return self.store.execute(
            _INSERT,
            (*row, pairs, note.id, note_source(note), note.id, note.text, note.id, text, note.id),
            f"note {note.id}",
        )

    def change(self, note: Note, workspace: str) -> None:
        """Overwrite the note with its id, and wait until it is on disk."""
        named = _entities_of(note)
        pairs = dumps([[each.kind, each.name] for each in named])
        columns = ", ".join(f"{name.strip()} = ?" for name in COLUMNS.split(","))
        sql = f"UPDATE notes SET {columns}, same = ? WHERE id = ? AND workspace = ?;" + _REWRITE
        one = note.id
        rest = (
            one,
            one,
            one,
            pairs,
            one,
            note.text,
            _names_text(note, named),
            one,
            note.text,
            one,
            note.text,
            one,
        )
        self.store.execute(
            sql, (*_row(note), words_digest(note.text), one, workspace, *rest), f"note {note.id}"
        ).result()

    def confirm(self, note_id: str, by: str) -> bool:
        """Record another source of the note; return true if the source is new."""
        where = "number = (SELECT number FROM notes WHERE id = ?) AND source = ?"
        if self.store.query(f"SELECT 1 FROM note_sources WHERE {where}", (note_id, by)):
            return False
        self.store.execute(
            "INSERT OR IGNORE INTO note_sources SELECT number, ? FROM notes WHERE id = ?",
            (by, note_id),
            "a source",
        ).result()
        return True

    def mark(self, note_id: str, *, newer: str) -> None:
        """Mark a note as replaced by a newer one that contradicts it, and link the two instead of older
        links.
        """
        self.store.execute(
            "UPDATE notes SET replaced_by = ? WHERE id = ? AND id <> ?;"
            "DELETE FROM note_links WHERE relation IN ('replaces', 'disputes') AND source IN (SELECT "
            "number FROM notes WHERE id IN (?, ?))"
            " AND target IN (SELECT number FROM notes WHERE id IN (?, ?));"
            "INSERT OR IGNORE INTO note_links SELECT a.number, b.number, 'replaces' FROM notes AS a, "
            "notes AS b WHERE a.id = ? AND b.id = ?",
            (newer, note_id, newer, *(note_id, newer) * 2, newer, note_id),
            f"note {note_id}",
        ).result()

    def link(self, source: str, target: str, relation: str) -> None:
        """Link two notes."""
        self.store.execute(
            "INSERT OR IGNORE INTO note_links SELECT a.number, b.number, ? FROM notes AS a, notes AS b "
            "WHERE a.id = ? AND b.id = ?",
            (relation, source, target),
            f"note {source}",
        ).result()

    def used(self, ids: Sequence[str], promote_after: int) -> Future[None]:
        """Queue one use of these notes; trusted notes of one run become global after `promote_after` uses."""
        listed = dumps(list(ids))
        return self.store.execute(
            "UPDATE notes SET uses = uses + 1 WHERE id IN (SELECT value FROM json_each(?));"
            "UPDATE OR IGNORE notes SET owner = '', expires = NULL WHERE owner <> '' AND uses >= ? AND "
            "taint = ''"
            " AND id IN (SELECT value FROM json_each(?))",
            (listed, promote_after, listed),
            "the use of notes",
        )

    def delete(self, notes: Iterable[Note]) -> None:
        """Delete notes from every table and index, and wait until that is on disk; their ids are never used
        again.

        Notes that a deleted note had replaced are replaced by its own replacement, or valid again.
        """
        done = []
        for note in notes:
            sql = f"""
            INSERT OR IGNORE INTO notes_forgotten VALUES (?, ?);
            UPDATE notes_text SET after = '' WHERE rowid = (SELECT ({BEFORE}) FROM notes WHERE id = ?);
            UPDATE notes_text SET before = '' WHERE rowid = (SELECT ({AFTER}) FROM notes WHERE id = ?);
            DELETE FROM notes_text WHERE rowid = (SELECT number FROM notes WHERE id = ?);
            DELETE FROM note_names WHERE number = (SELECT number FROM notes WHERE id = ?);
            DELETE FROM note_vectors WHERE number = (SELECT number FROM notes WHERE id = ?);
            {_BESIDE_CHANGED}
            DELETE FROM note_sources WHERE number = (SELECT number FROM notes WHERE id = ?);
            DELETE FROM note_links WHERE source = (SELECT number FROM notes WHERE id = ?);
            DELETE FROM note_links WHERE target = (SELECT number FROM notes WHERE id = ?);
            INSERT OR IGNORE INTO note_links SELECT newer.number, older.number, 'replaces' FROM notes AS one
              JOIN notes AS newer ON newer.id = one.replaced_by JOIN notes AS older ON older.replaced_by = \
one.id AND older.replaced_by <> ''
              WHERE one.id = ?;
            UPDATE notes SET replaced_by = coalesce((SELECT replaced_by FROM notes AS one WHERE one.id = ?), \
'')
              WHERE replaced_by = ? AND replaced_by <> '';
            DELETE FROM notes WHERE id = ?;
            {_CHANGED}
            """
            done.append(self.store.execute(sql, (note.id, time.time(), *(note.id,) * 13), f"note {note.id}"))
        for each in done:
            each.result()

    def forgotten(self, note_id: str) -> bool:
        """Return whether a note of that id was forgotten."""
        return bool(self.store.query("SELECT 1 FROM notes_forgotten WHERE id = ?", (note_id,)))

    def notes(self, workspace: str, where: str = "1", bindings: Iterable[object] = ()) -> list[Note]:
        """Return the notes of a workspace that meet the SQL condition `where`, newest first."""
        sql = f"SELECT {COLUMNS} FROM notes WHERE workspace = ? AND ({where}) ORDER BY at DESC, number DESC"
        return [note_from_row(row) for row in self.store.query(sql, (workspace, *bindings))]

    def by_id(self, ids: Iterable[str], workspace: str) -> dict[str, Note]:
        """Return the notes of these ids that the workspace has."""
        found = self.notes(workspace, "id IN (SELECT value FROM json_each(?))", (dumps(list(ids)),))
        return {note.id: note for note in found}

    def equal(self, note: Note, workspace: str) -> Note | None:
        """Return the note with the same text for the same runs."""
        found = self.notes(workspace, "owner = ? AND same = ?", (_owner(note), words_digest(note.text)))
        return found[0] if found else None


def note_source(note: Note) -> str:
    """Return the source of a note: its run, or its own id."""
    return note.run or note.id


def words_digest(text: str) -> bytes:
    """Return a digest that is equal for texts with the same words."""
    return hashlib.sha256(normal_form(text).encode("utf-8", "surrogatepass")).digest()


def note_from_row(row: Sequence[Any]) -> Note:
    """Return the note in a row of `COLUMNS`."""
    values: dict[str, Any] = dict(zip(COLUMNS.split(", "), row, strict=True))
    term = "short" if values.pop("owner") else "long"
    return Note(
        **values | {"tags": tuple(json.loads(values["tags"])), "stated": bool(values["stated"]), "term": term}
    )


def for_all_runs(note: Note) -> Note:
    """Return `note` as one for all runs."""
    return replace(note, term="long", expires=None)


def _owner(note: Note) -> str:
    return (note.run or "-") if note.term == "short" else ""


def _row(note: Note) -> tuple[object, ...]:
    tags = dumps(list(note.tags))
    head = (
        note.id,
        note.kind,
        note.text,
        note.evidence,
        tags,
        note.author,
        note.confidence,
        note.taint,
        int(note.stated),
    )
    return (*head, note.run, note.event, note.at, note.expires, note.uses, note.replaced_by, _owner(note))


def _entities_of(note: Note) -> tuple[Entity, ...]:
    entities = [Entity("tag", tag.lower()) for tag in note.tags] + (
        [Entity("author", note.author.lower())] if note.author else []
    )
    return tuple(dict.fromkeys((*entities, *find_entities(note.text))))


def _names_text(note: Note, named: tuple[Entity, ...]) -> str:
    when = time.strftime("%d %B %Y", time.gmtime(note.at)) if note.kind == "episode" and note.at else ""
    return " ".join(part for part in (note.kind, when, entities_text(named)) if part)
