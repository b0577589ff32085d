"""Results of retrieval: hits, the steps that led to them, and the `Retriever` protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

from kestrel_lab.core.events.calls import RetrievalStep


@dataclass(frozen=True, kw_only=True, slots=True)
class Hit:
    """Lines of a file that were found, with all that a citation needs."""

    path: str
    """Relative to the folder that was searched."""
    first: int
    """First line, counted from 1."""
    last: int
    text: str
    hash: str
    """SHA-256 of the whole file's bytes, in hexadecimal, as it was when this was found."""
    how: str
    """Which retriever found it: `search`, `graph`, `grep`, or several of them with `+`."""
    why: str
    """For a person, in a few words."""
    score: float = 0.0
    parts: Mapping[str, float] = field(default_factory=dict)
    """The signals in the score, before they are weighted."""
    trust: str = "workspace"
    """Trust level: file contents are data, never instructions."""

    @property
    def place(self) -> str:
        """`path:first-last`."""
        return f"{self.path}:{self.first}" + (f"-{self.last}" if self.last != self.first else "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrieval(Sequence[Hit]):
    """The answer to a question, best first, with the steps that led to it."""

    query: str
    hits: tuple[Hit, ...] = ()
    steps: tuple[RetrievalStep, ...] = ()
    """In order; `trace_events` adds the question and the result before they are recorded."""
    coverage: float = 0.0
    """Weighted share of the question's words that the files found have, from 0 to 1."""
    gaps: tuple[str, ...] = ()
    """Words of the question that none of them has."""
    stopped: str = ""
    """Why the search stopped: `confidence`, `saturation`, `limit`, or `nothing_found`."""

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, best first."""
        return tuple(dict.fromkeys(hit.path for hit in self.hits))

    @overload
    def __getitem__(self, place: int) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[Hit, ...]: ...
    def __getitem__(self, place: int | slice) -> Hit | tuple[Hit, ...]:
        return self.hits[place]

    def __len__(self) -> int:
        return len(self.hits)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)


_NAMED = 10
"""Missing words that are named."""


def missing_words_phrase(gaps: Sequence[str]) -> str:
    """Return a phrase with words that no found file has; empty if none are missing."""
    return f"none of them has {_words(gaps)}, which the question has" if gaps else ""


def nothing_found(gaps: Sequence[str]) -> str:
    """Return a sentence that nothing was found, with the searched words."""
    return f"nothing has to do with that: no file has {_words(gaps)}"


def _words(gaps: Sequence[str]) -> str:
    named = ", ".join(f"'{word}'" for word in gaps[:_NAMED])
    return f"the word{'s' * (len(gaps) > 1)} {named}" + (
        f" and {len(gaps) - _NAMED} more" if len(gaps) > _NAMED else ""
    )


class Retriever(Protocol):
    """Finds the files of a folder that a question is about."""

    @property
    def name(self) -> str:
        """The name of the retriever in its hits."""

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """Return at most `top_k` files, each with its best place; raises `UsageError` for a question without
        a word, or `top_k` below 1.
        """
