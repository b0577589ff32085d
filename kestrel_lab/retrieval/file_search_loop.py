"""File-search loop: query, search, merge, until saturation, confidence or the round limit."""

from __future__ import annotations

import asyncio
import posixpath
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kestrel_lab.core.calls import format_count
from kestrel_lab.core.errors import UsageError
from kestrel_lab.language.code_tokens import query_words
from kestrel_lab.retrieval.cascade import Cascade
from kestrel_lab.retrieval.hits import Hit, Retrieval, missing_words_phrase, nothing_found
from kestrel_lab.retrieval.mentions import named_code, parse_question
from kestrel_lab.retrieval.search import Search

MOST_ROUNDS = 6
_LATER = 0.6
"""The weight of a find by a later query; one by the goal itself counts 1."""
_MOST_QUERIES = 4
_ENOUGH = 0.95
"""Coverage at which the search ends."""


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyFile:
    """A file that matters for a goal, and why."""

    path: str
    why: str
    place: str
    """Place to start reading: `path:first-last`."""
    score: float
    queries: tuple[str, ...]
    """Which queries found it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceMap:
    """The files of a folder that matter for a goal."""

    goal: str
    key_files: tuple[KeyFile, ...] = ()
    """The most useful first."""
    clusters: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The key files by the folders they are in."""
    gaps: tuple[str, ...] = ()
    """Words of the goal that no key file has."""
    coverage: float = 0.0
    """Share of the goal that the key files cover, from 0 to 1."""
    stopped: str = ""
    """`saturation`: a round found nothing new; `confidence`: enough is covered; `limit`: no more rounds."""
    rounds: int = 0
    queries: tuple[str, ...] = ()
    retrievals: tuple[Retrieval, ...] = ()
    """Every search that was made, with its steps."""

    def __repr__(self) -> str:
        if not self.key_files:
            return nothing_found(self.gaps)
        lines = [f"{one.place}  {one.why}" for one in self.key_files]
        missing = f"; {missing_words_phrase(self.gaps)}" if self.gaps else ""
        return "\n".join(
            [
                *lines,
                f"coverage {self.coverage:.0%} after {format_count(self.rounds, 'round')} "
                f"({self.stopped}){missing}",
            ]
        )


Propose = Callable[[ResourceMap], Awaitable[Sequence[str]]]
"""Proposes queries, given what is found so far; none of them if it has none."""


async def propose_by_rule(found: ResourceMap) -> Sequence[str]:
    """Propose queries by rules: the goal, its names, missing words, and names in the results."""
    if not found.rounds:
        named = named_code(found.goal)
        return [found.goal, *([" ".join(named)] if named and len(found.goal.split()) > len(named) else [])]
    names = [name for one in found.key_files[:3] for name in named_code(one.why)]
    head = " ".join(query_words(parse_question(found.goal).head)[:4])
    return [
        query
        for query in (" ".join(found.gaps[:8]), " ".join([head, *dict.fromkeys(names)][:8]) if names else "")
        if query
    ]


async def find_files(
    cascade: Cascade,
    search: Search,
    goal: str,
    *,
    propose: Propose = propose_by_rule,
    rounds: int = 4,
    top_k: int = 8,
) -> ResourceMap:
    """Find the files that matter for `goal`, round by round; raises `UsageError` for bounds out of range, or
    a goal without a word.

    The first round asks for the goal itself, whatever is proposed; a query is never asked twice. Without a
    model in `propose` the same folder gives the same answer.
    """
    if not 1 <= rounds <= MOST_ROUNDS or top_k < 1:
        raise UsageError(
            f"rounds must be from 1 to {MOST_ROUNDS}, top_k at least 1, not {rounds} and {top_k}"
        )
    found = ResourceMap(goal=goal)
    held: dict[str, dict[str, tuple[float, Hit]]] = defaultdict(dict)
    for number in range(1, rounds + 1):
        proposed = [goal, *await propose(found)] if number == 1 else await propose(found)
        queries = [
            query
            for query in dict.fromkeys(query.strip() for query in proposed)
            if query_words(query) and query not in found.queries
        ]
        made = []
        for query in queries[:_MOST_QUERIES]:
            answer = await asyncio.to_thread(cascade if query == goal else search, query, top_k)
            made.append(answer)
            # As shares of the best one: scores for two queries cannot be compared.
            top = max((hit.score for hit in answer.hits), default=0.0) or 1.0
            for hit in answer.hits:
                held[hit.path][query] = (hit.score / top * (1.0 if query == goal else _LATER), hit)
        before = {one.path for one in found.key_files}
        found = await asyncio.to_thread(
            _resource_map,
            cascade,
            found,
            held,
            [*found.queries, *queries[:_MOST_QUERIES]],
            made,
            top_k,
            number,
        )
        if found.coverage >= _ENOUGH:
            return replace(found, stopped="confidence")
        # Only a later round can show that nothing new is found.
        if number > 1 and not {one.path for one in found.key_files} - before:
            return replace(found, stopped="saturation")
    return replace(found, stopped="limit")


def _resource_map(
    cascade: Cascade,
    before: ResourceMap,
    held: Mapping[str, Mapping[str, tuple[float, Hit]]],
    queries: Sequence[str],
    made: Sequence[Retrieval],
    top_k: int,
    number: int,
) -> ResourceMap:
    files = [_key_file(path, finds) for path, finds in held.items()]
    best = tuple(sorted(files, key=lambda one: (-one.score, one.path))[:top_k])
    coverage = cascade.coverage(before.goal, [one.path for one in best])
    clusters: dict[str, list[str]] = defaultdict(list)
    for one in best:
        clusters[posixpath.dirname(one.path) or "."].append(one.path)
    return ResourceMap(
        goal=before.goal,
        key_files=best,
        clusters={folder: tuple(paths) for folder, paths in clusters.items()},
        gaps=coverage.gaps,
        coverage=round(coverage.both, 3),
        rounds=number,
        queries=tuple(queries),
        retrievals=(*before.retrievals, *made),
    )


def _key_file(path: str, finds: Mapping[str, tuple[float, Hit]]) -> KeyFile:
    """Return a file by its best find; each further query that found it adds a tenth."""
    score, hit = max(finds.values(), key=lambda one: one[0])
    return KeyFile(
        path=path,
        why=hit.why,
        place=hit.place,
        score=round(score + 0.1 * (len(finds) - 1), 4),
        queries=tuple(finds),
    )
