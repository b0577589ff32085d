"""Selectors of notes: an id, a property such as `kind:fact` or `expired`, or words unique to one note."""

from __future__ import annotations

import time
from datetime import datetime

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.notes import KINDS, Note
from kestrel_lab.core.sanitize import one_line, shown_folder
from kestrel_lab.language.words import stems
from kestrel_lab.memory.table import NoteTable

WORDS = ("all", "expired", "tainted", "short", "replaced")
KEYS = ("kind", "tag", "run", "text", "before", "after", "author")
_MOST_LISTED = 10
FORMS = (
    "an id, words of one note, kind:KIND, tag:TAG, run:RUN, author:NAME, text:WORDS, "
    "before:2026-01-31, after:2026-01-31, tainted, short, replaced, expired, all"
)

_SIMPLE = {
    "all": "1",
    "expired": "expires IS NOT NULL AND expires <= ?",
    "tainted": "taint <> ''",
    "short": "owner <> ''",
    "replaced": "replaced_by <> ''",
}


def select_notes(table: NoteTable, selector: str, workspace: str) -> list[Note]:
    """Return the notes of a workspace that `selector` selects, newest first.

    Words that are neither an id nor a property mean the one note that has all of them. Raises `UsageError`
    for an unknown property, the beginning of several ids, words that no note has, and, with a list, words
    that several have.
    """
    selector = selector.strip()
    key, mark, value = selector.partition(":")
    if selector in _SIMPLE:
        return table.notes(workspace, _SIMPLE[selector], (time.time(),) if selector == "expired" else ())
    if mark and key in KEYS:
        return _select_by_key(table, key, value.strip(), workspace)
    if mark:
        raise UsageError(
            f"{selector!r} selects no notes: {did_you_mean(key, KEYS)}. Possible selectors: {FORMS}"
        )
    try:
        return [find_note(table, selector, workspace)]
    except UsageError:
        if not (found := _notes_with(table, selector, workspace)):
            raise
        return found


def _notes_with(table: NoteTable, words: str, workspace: str) -> list[Note]:
    """Return the one note with all these words and its predecessors; raises `UsageError` if there are
    several.
    """
    wanted = stems(words)
    found = [
        note
        for note in table.notes(workspace)
        if wanted and wanted <= stems(f"{note.text} {' '.join(note.tags)}")
    ]
    current = [note for note in found if not note.replaced_by]
    if len(current) > 1:
        listed = "".join(f"\n- {note.id}: {one_line(note.text, 100)}" for note in current[:_MOST_LISTED])
        more = f"\n- and {len(current) - _MOST_LISTED} more" if len(current) > _MOST_LISTED else ""
        raise UsageError(
            f"{len(current)} notes say {words!r}: name one by its id, or all of them with "
            f"text:{words}{listed}{more}"
        )
    # An older note would come back if only the newer one went.
    return found


def find_note(table: NoteTable, note_id: str, workspace: str) -> Note:
    """Return the note of an id or its beginning; raise `UsageError` when there is none or more than one."""
    found = table.notes(workspace, "id = ?", (note_id,))
    if not found and len(note_id) >= 3:
        found = table.notes(workspace, "substr(id, 1, ?) = ?", (len(note_id), note_id))
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(
            f"{len(found)} notes have an id that begins with {note_id!r}: "
            f"{', '.join(note.id for note in found[:5])}"
        )
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
            return table.notes(
                workspace, "EXISTS (SELECT 1 FROM json_each(tags) WHERE lower(value) = ?)", (value.lower(),)
            )
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
