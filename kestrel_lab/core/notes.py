"""Notes of the memory: their kinds and where they come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Literal, cast

from kestrel_lab.core.json_types import Json

KINDS = ("fact", "procedure", "pitfall", "preference", "decision", "episode", "fingerprint")
"""What a note may be: something true, how something is done, what goes wrong, what the user likes, what was
decided, what was said or happened, what a repository looks like.
"""
GUIDING = frozenset({"procedure", "preference"})
"""Kinds that tell somebody what to do: never of a source that is not trusted."""
SHORT_TTL_S = 24 * 3600.0
"""How long a note of one run only is kept, unless it says so itself."""
REFERENCE = "[[note:{}]]"
"""How the log names a note, whose words it does not carry: they are put in when a model is asked."""

NAMES = "names of files"
"""The taint of a note that says what files are called."""
OWN = "own "
"""How the taint of a note begins that comes from a run into which no words of others had come."""

Term = Literal["long", "short"]


@dataclass(frozen=True, slots=True)
class NoteQuery:
    """Asks a memory for notes."""

    text: str
    """What they have to do with."""
    top_k: int
    """At most so many."""
    workspace: str
    tags: Sequence[str] = ()
    """They have all of these."""
    run: str = ""
    """The run for which notes that are kept for its length only are among them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Something worth knowing in later runs, and where it comes from."""

    text: str
    kind: str = "fact"
    """One of `KINDS`."""
    evidence: str = ""
    """The words it rests on."""
    run: str = ""
    """The run that learned it; what it belongs to, for episodes of something else."""
    at: float = 0.0
    """When, in seconds since 1970."""
    id: str = ""
    """Its name; the memory gives it one if this is empty."""
    tags: tuple[str, ...] = ()
    confidence: float = 0.7
    """From 0 to 1."""
    expires: float | None = None
    """When it is forgotten, in seconds since 1970; `None` for never."""
    event: str = ""
    """The event it was learned from."""
    taint: str = ""
    """Why its words are not the user's own (`answer`, `own answer`, `tool read_file`); empty if they are."""
    author: str = ""
    """Who said it, for episodes."""
    term: Term = "long"
    """`short`: for its own run only, until it proves useful."""
    stated: bool = False
    """Whether the user said it in so many words."""
    uses: int = 0
    """How often it was recalled."""
    replaced_by: str = ""
    """The newer note that says otherwise."""

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        return {
            each.name: cast("Json", list(self.tags) if each.name == "tags" else getattr(self, each.name))
            for each in fields(self)
        }

    def named(self) -> dict[str, Json]:
        """Return what the log keeps of the note: all but its text, which can be forgotten."""
        kept = {
            "id": self.id,
            "kind": self.kind,
            "confidence": round(self.confidence, 2),
            "run": self.run,
            "at": self.at,
        }
        return cast("dict[str, Json]", kept | ({"taint": self.taint} if self.taint else {}))

    def referred(self) -> dict[str, Json]:
        """`named`, with the reference that becomes its words when a model is asked."""
        return {"text": REFERENCE.format(self.id), **self.named()}


def untrusted_taint(taint: str) -> str:
    """`taint` if words of others may be part of the note; empty if only trusted sources are."""
    return "" if taint == NAMES or taint.startswith(OWN) else taint
