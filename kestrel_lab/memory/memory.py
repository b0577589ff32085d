"""Note memory: stores each note once, replaces outdated ones, protects trusted ones, deletes on request."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import StoreError, UsageError, did_you_mean
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.notes import GUIDING, KINDS, SHORT_TTL_S, Note, NoteQuery
from kestrel_lab.core.sanitize import full_stop, sanitize_text
from kestrel_lab.eventlog.connection import rewrite_database
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.deduplicate import adds_words, compare_notes
from kestrel_lab.memory.embeddings import Embedder, note_embedder
from kestrel_lab.memory.query import MemoryQueryEngine
from kestrel_lab.memory.selector import select_notes
from kestrel_lab.memory.table import LIVE, NoteTable, for_all_runs, note_source, words_digest
from kestrel_lab.memory.vector_search import VectorIndex

LONGEST = 4_000
"""Characters of a note."""
PROMOTE_AFTER = 3
"""After so many recalls a note of one run becomes one for all runs."""
_COMPARED = 12
"""Number of most similar notes that a new note is compared with."""
_PREFERENCES = f"kind = 'preference' AND replaced_by = '' AND owner = '' AND taint = '' AND {LIVE}"
_MOST_PREFERENCES = 3
_NEVER_ALIKE = frozenset({"episode", "fingerprint"})


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class ForgetResult:
    """The result of forgetting."""

    notes: tuple[Note, ...]
    still_in: tuple[str, ...] = ()
    """Runs whose logs contain one of the texts; logs are never changed."""

    def __repr__(self) -> str:
        """In a sentence."""
        count = len(self.notes)
        text = (
            f"forgot {format_count(count, 'note')}" if count else "nothing was selected: nothing is forgotten"
        )
        if self.still_in:
            runs = ", ".join(self.still_in[:5]) + (" …" if len(self.still_in) > 5 else "")
            text += f". The words were said in these runs, whose logs keep what was said: {runs}"
        return text


class NoteMemory:
    """A `Memory` in the database of a log, for runs and for people. Each note belongs to a workspace."""

    def __init__(
        self,
        store: SessionStore,
        *,
        embedder: Callable[[], Callable[[], Embedder] | None] = note_embedder,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Prepare; reads nothing.

        `embedder` returns the embedder for notes, or `None`: see the extras `semantic` and `minilm`.
        """
        self.table = NoteTable(store)
        self._now = now
        self._words = MemoryQueryEngine(self.table)
        load = embedder()
        self.engine = MemoryQueryEngine(
            self.table, vectors=None if load is None else VectorIndex(store, load)
        )

    async def recall(self, query: NoteQuery) -> tuple[Note, ...]:
        """Return the notes that match `query`, the most useful first.

        If there are fewer than asked for, the newest preferences of the user follow, whatever the query is.
        """
        found = await asyncio.to_thread(self.find, query)
        if len(found) >= query.top_k or query.tags:
            return found
        preferences = await asyncio.to_thread(self.table.notes, query.workspace, _PREFERENCES, (self._now(),))
        known = {note.id for note in found}
        left = min(_MOST_PREFERENCES, query.top_k - len(found))
        more = [note for note in preferences if note.id not in known][:left]
        if more:
            self.table.used([note.id for note in more], PROMOTE_AFTER)
        return (*found, *more)

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Keep `note`; return whether it is a new one."""
        return await asyncio.to_thread(lambda: self.keep(note, workspace).id == note.id != "")

    async def notes(self, ids: Collection[str], *, workspace: str) -> tuple[Note, ...]:
        """Return the notes of these ids that are not forgotten."""
        return tuple((await asyncio.to_thread(self.table.by_id, ids, workspace)).values())

    def find(self, query: NoteQuery, *, count: bool = True) -> tuple[Note, ...]:
        """Return what `recall` returns, without preferences; with `count` their use is counted."""
        found = tuple(self.engine.rank(query))
        if found and count:
            self.table.used([note.id for note in found], PROMOTE_AFTER).result()
        return found

    def keep(self, note: Note, workspace: str) -> Note:
        """Store `note` and return it, under the id of an older note that says the same.

        Storing twice equals storing once. Older notes that it contradicts or includes are replaced and
        linked, but an untrusted note never replaces a trusted one. A note whose id was forgotten is not
        stored and is returned with an empty id. Raises `UsageError` for an invalid note.
        """
        note = self._checked(note)
        self.sweep(workspace)
        if self.table.forgotten(note.id):
            return replace(note, id="")
        if (
            known := self.table.by_id([note.id], workspace).get(note.id) or self.table.equal(note, workspace)
        ) is not None:
            return self._merged(known, note, workspace)
        related: dict[str, list[Note]] = {"rival": [], "part": [], "near": [], "other": []}
        for other in self._similar(note, workspace):
            if (how := _relation_of(note, other)) == "same":
                return self._merged(other, note, workspace)
            related[how].append(other)
        # First stored, then linked: if the process ends in between, the new note is there and the old ones
        # are still valid.
        self.table.add(note, workspace).result()
        if (kept := self.table.equal(note, workspace)) is None or kept.id != note.id:
            # Another process was faster.
            return kept or replace(note, id="")
        for other in related["rival"]:
            self._settle(note, other)
        for other in related["part"]:
            self.table.mark(other.id, newer=note.id)
        # More links would connect nearly all notes.
        for other in related["near"][:3]:
            self.table.link(note.id, other.id, "like")
        return self.table.by_id([note.id], workspace).get(note.id, note)

    def edit(self, note: Note, workspace: str, **changes: object) -> Note:
        """Change a note for its user; changed text counts as stated by the user now."""
        changed = replace(note, **changes)  # type: ignore[arg-type]  # fields of a note
        if changed.text != note.text:
            changed = replace(changed, taint="", stated=True, evidence="", replaced_by="", at=self._now())
        changed = self._checked(changed)
        equal = self.table.equal(changed, workspace)
        if equal is not None and equal.id != note.id:
            raise UsageError(f"note {equal.id} says that already: forget one of the two")
        self.table.change(changed, workspace)
        if changed.text != note.text:
            self._contest(changed, workspace)
            rewrite_database(self.table.store.path)
        return changed

    def forget(self, selector: str, workspace: str) -> ForgetResult:
        """Delete the selected notes from every table, index and file of the database.

        Rewrites the database, which takes as long as copying it. Run logs keep the text; the result names
        those runs.
        """
        chosen = self.chosen(selector, workspace)
        self.table.delete(chosen)
        # Expired notes were deleted from the tables earlier; their text may still be in the file.
        if chosen or selector == "expired":
            try:
                rewrite_database(self.table.store.path)
            except StoreError as error:
                raise StoreError(
                    "the notes are deleted, but parts of their text may still be in the database "
                    f"files: {full_stop(error)} Then: kestrel memory forget expired"
                ) from error
        return ForgetResult(notes=tuple(chosen), still_in=self._said_in(chosen))

    def chosen(self, selector: str, workspace: str) -> list[Note]:
        """Return the notes that `forget` would delete, newest first; raises `UsageError` for an unknown
        selector.
        """
        return select_notes(self.table, selector, workspace)

    def sweep(self, workspace: str) -> None:
        """Delete expired notes."""
        if over := self.table.notes(workspace, "expires IS NOT NULL AND expires <= ?", (self._now(),)):
            self.table.delete(over)

    def _checked(self, note: Note) -> Note:
        text = note.text.strip()
        if not text or len(text) > LONGEST or "\0" in text:
            raise UsageError(f"a note has from 1 to {LONGEST:,} characters, this one {len(text):,}")
        if note.kind not in KINDS:
            raise UsageError(f"there is no kind of notes {note.kind!r}; {did_you_mean(note.kind, KINDS)}")
        if not 0 <= note.confidence <= 1:
            raise UsageError(f"the confidence of a note is from 0 to 1, not {note.confidence!r}")
        if note.taint and note.kind in GUIDING:
            raise UsageError(
                f"a {note.kind} tells somebody what to do, so it must be the user's own words, not "
                f"from {note.taint}"
            )
        now = self._now()
        note = replace(
            note, text=sanitize_text(text), id=note.id or f"n{secrets.token_hex(5)}", at=note.at or now
        )
        note = replace(note, tags=tuple(sorted({tag.strip() for tag in note.tags if tag.strip()})))
        if note.stated:
            note = replace(note, term="long")
        if note.term == "short" and note.expires is None:
            note = replace(note, expires=now + SHORT_TTL_S)
        return note

    def _similar(self, note: Note, workspace: str) -> list[Note]:
        """Return notes that `note` may repeat or contradict; for a fingerprint the last one."""
        if note.kind == "fingerprint":
            return self.table.notes(workspace, "kind = 'fingerprint' AND replaced_by = ''")
        if note.kind in _NEVER_ALIKE or note.term == "short":
            return []
        found = self._words.rank(NoteQuery(note.text, _COMPARED, workspace))
        return [other for other in found if other.kind not in _NEVER_ALIKE and other.term == "long"]

    def _merged(self, known: Note, note: Note, workspace: str) -> Note:
        """Return `known` updated after a repeated statement."""
        # An untrusted repetition must not raise the confidence of a trusted note.
        trusted = not note.taint or bool(known.taint)
        merged = replace(known, tags=tuple(sorted({*known.tags, *note.tags})))
        if trusted and self.table.confirm(known.id, note_source(note)):
            merged = replace(merged, confidence=round(1 - (1 - known.confidence) * (1 - note.confidence), 4))
        alike = words_digest(known.text) == words_digest(note.text)
        if known.taint and not note.taint and alike:
            merged = replace(merged, taint="", at=max(known.at, note.at))
        if known.replaced_by and trusted and alike:
            newer = self.table.by_id([known.replaced_by], workspace).get(known.replaced_by)
            # Stated again after its replacement: the older statement is true again.
            if newer is None or note.at > newer.at:
                merged = replace(merged, replaced_by="", at=note.at)
        if note.stated and not known.stated:
            merged = replace(for_all_runs(merged), stated=True)
        if merged != known:
            self.table.change(merged, workspace)
            if merged.at != known.at:
                self._contest(merged, workspace)
        return merged

    def _contest(self, note: Note, workspace: str) -> None:
        """Resolve contradictions of `note`, which counts as stated now."""
        for other in self._similar(note, workspace):
            if (
                other.id != note.id
                and note.kind != "fingerprint"
                and compare_notes(note.text, other.text) == "contradicts"
            ):
                self._settle(note, other)

    def _settle(self, note: Note, other: Note) -> None:
        """Let the newer of two contradicting notes replace the older, unless only the older is trusted."""
        newer, older = (note, other) if note.at >= other.at else (other, note)
        if newer.taint and not older.taint:
            self.table.link(newer.id, older.id, "disputes")
        else:
            self.table.mark(older.id, newer=newer.id)

    def _said_in(self, notes: Sequence[Note]) -> tuple[str, ...]:
        runs: dict[str, None] = {}
        for note in notes[:100]:
            # A text this short is in nearly every log by chance.
            if len(note.text) < 12:
                continue
            # Logs contain JSON: the text is searched in its escaped form.
            once = dumps(note.text)[1:-1]
            rows = self.table.store.query(
                "SELECT DISTINCT run_id FROM events WHERE instr(body, ?) > 0 OR instr(body, ?) > 0 "
                "ORDER BY run_id",
                (once, dumps(once)[1:-1]),
            )
            runs |= dict.fromkeys(str(row[0]) for row in rows)
        return tuple(runs)


def _relation_of(note: Note, other: Note) -> str:
    """Return the relation of an older note to a new one: `same`, `part`, `rival`, `near` or `other`."""
    if note.kind == "fingerprint":
        return "rival"
    relation = compare_notes(note.text, other.text)
    if relation != "same":
        return "rival" if relation == "contradicts" else relation
    if adds_words(note.text, other.text):
        return "part" if other.kind == note.kind and (other.taint or not note.taint) else "near"
    return "same" if not other.taint or (note.taint and other.kind == note.kind) else "rival"
