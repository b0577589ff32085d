"""Selectors of notes: an id, or a property such as `kind:fact` or `expired`."""

from __future__ import annotations

import time
from datetime import datetime

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.notes import KINDS, Note
from kestrel_lab.core.sanitize import shown_folder
from kestrel_lab.memory.table import NoteTable

WORDS = ("all", "expired", "tainted", "short", "replaced")
KEYS = ("kind", "tag", "run", "text", "before", "after", "author")
FORMS = "an id, kind:KIND, tag:TAG, run:RUN, author:NAME, text:WORDS, before:2026-01-31, after:2026-01-31, tainted, short, replaced, expired, all"

_SIMPLE = {
    "all": "1",
    "expired": "expires IS NOT NULL AND expires <= ?",
    "tainted": "taint <> ''",
    "short": "owner <> ''",
    "replaced": "replaced_by <> ''",
}


def select_notes(table: NoteTable, selector: str, workspace: str) -> list[Note]:
    """Return the notes of a workspace that `selector` selects, newest first.

    Raises `UsageError` for an unknown selector, an unknown id, and the beginning of several ids.
    """
    selector = selector.strip()
    key, mark, value = selector.partition(":")
    if selector in _SIMPLE:
        return table.notes(workspace, _SIMPLE[selector], (time.time(),) if selector == "expired" else ())
    if mark and key in KEYS:
        return _select_by_key(table, key, value.strip(), workspace)
    if mark:
        raise UsageError(f"{selector!r} selects no notes: {did_you_mean(key, KEYS)}. Possible selectors: {FORMS}")
    return [find_note(table, selector, workspace)]


def find_note(table: NoteTable, note_id: str, workspace: str) -> Note:
    """Return the note of an id or its beginning; raise `UsageError` when there is none or more than one."""
    found = table.notes(workspace, "id = ?", (note_id,))
    if not found and len(note_id) >= 3:
        found = table.notes(workspace, "substr(id, 1, ?) = ?", (len(note_id), note_id))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{len(found)} notes have an id that begins with {note_id!r}: {', '.join(note.id for note in found[:5])}")
    known = [note.id for note in table.notes(workspace)[:200]]
    hint = did_you_mean(note_id, [*known, *WORDS]) if known else "it has none yet"
    raise UsageError(f"no note {note_id!r} in the memory of {shown_folder(workspace)}; {hint}")


def _select_by_key(table: NoteTable, key: str, value: str, workspace: str) -> list[Note]:
    if not value:
        raise UsageError(f"add a value after '{key}:'")
    match key:
        case "kind":
            if value not in KINDS:
                raise UsageError(f"there is no kind of notes {value!r}; {did_you_mean(value, KINDS)}")
            return table.notes(workspace, "kind = ?", (value,))
        case "tag":
            return table.notes(workspace, "EXISTS (SELECT 1 FROM json_each(tags) WHERE lower(value) = ?)", (value.lower(),))
        case "text":
            return table.notes(workspace, "instr(lower(text), lower(?)) > 0", (value,))
        case "before" | "after":
            return table.notes(workspace, f"at {'<' if key == 'before' else '>='} ?", (_parse_time(value),))
        case _:
            return table.notes(workspace, f"{key} = ? COLLATE NOCASE", (value,))


def _parse_time(text: str) -> float:
    try:
        return datetime.fromisoformat(text).astimezone().timestamp()
    except ValueError as error:
        raise UsageError(f"{text!r} is not a date: write it as 2026-01-31") from error
