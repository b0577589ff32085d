"""Seed notes: notes that the memory of a trial holds before it begins, as if earlier runs had kept them."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import Iterable
from typing import Annotated, Any, Final

from pydantic import Strict

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.notes import GUIDING, KINDS, Note
from kestrel_lab.core.protocols import Memory
from kestrel_lab.core.yaml.validation import Declared, WrittenAs
from kestrel_lab.runtime.memory.run_memory import ForgettingMemory

_DAY_S: Final = 24 * 3600.0
_NAME: Final = re.compile(r"[a-z][a-z0-9]{0,29}")


class GivenNote(Declared):
    """A note that the memory has when a trial begins; only configurations with `learning` have a memory.

    Raises `UsageError` for a note that no memory takes.
    """

    name: str
    """Lower-case letters and digits: what `recalled` checks call it."""
    text: str
    kind: str = "fact"
    tags: Annotated[tuple[str, ...], Strict(False)] = ()
    taint: str = ""
    """Who said it, if it was not the user: `tool web_fetch`, `answer`.

    Such a note is never the user's own word.
    """
    age_days: Annotated[float, WrittenAs(float)] = 0.0
    """How long ago it was kept."""
    ttl_days: Annotated[float | None, WrittenAs(float | None)] = None
    """How long it is kept; for good if left out."""
    forgotten: bool = False
    """Whether the user has it forgotten since."""

    def model_post_init(self, _context: Any) -> None:
        """Raise `UsageError` for a note that no memory takes."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                "the name of a note consists of lower-case letters and digits, such as portnew, not "
                f"{self.name!r}"
            )
        if self.kind not in KINDS:
            raise UsageError(f"there is no kind of notes {self.kind!r}; {did_you_mean(self.kind, KINDS)}")
        if self.taint and self.kind in GUIDING:
            raise UsageError(
                f"a {self.kind} tells somebody what to do, so it must be the user's own words, not "
                f"from {self.taint}"
            )
        if not self.text.strip() or self.age_days < 0 or (self.ttl_days is not None and self.ttl_days <= 0):
            raise UsageError(f"the note {self.name!r} needs a text, an age from 0 and a ttl above 0, in days")

    def definition(self) -> Json:
        """Return all of it, as JSON."""
        return {**dict(self), "tags": list(self.tags)}

    def note(self, now: float) -> Note:
        """Return the note, kept at a time before `now`; its id begins with its name and is used once."""
        at = now - self.age_days * _DAY_S
        return Note(
            id=f"{self.name}{secrets.token_hex(4)}",
            text=self.text,
            kind=self.kind,
            tags=self.tags,
            taint=self.taint,
            stated=not self.taint,
            confidence=0.6 if self.taint else 0.95,
            at=at,
            expires=None if self.ttl_days is None else at + self.ttl_days * _DAY_S,
        )


async def store_seed_notes(memory: Memory, notes: Iterable[GivenNote], workspace: str) -> None:
    """Store the notes in `memory`, one after the other, and forget those that are forgotten.

    Raises `UsageError` where it cannot forget and has to.
    """
    now = time.time()
    for given in notes:
        note = given.note(now)
        await memory.remember(note, workspace=workspace)
        if given.forgotten:
            if not isinstance(memory, ForgettingMemory):
                raise UsageError(
                    f"the memory of these trials cannot forget, as the note {given.name!r} asks for"
                )
            await asyncio.to_thread(memory.forget, note.id, workspace)
