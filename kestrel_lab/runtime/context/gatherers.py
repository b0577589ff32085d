"""Finding what a workspace holds that has to do with a goal: by an index where there is one, else by the
words of the goal.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

from kestrel_lab.core.protocols import GatheredContext, Gatherer, Source
from kestrel_lab.language.code_tokens import query_words
from kestrel_lab.language.words import goal_terms
from kestrel_lab.retrieval.trace_events import events_of
from kestrel_lab.retrieval.workspace_indexes import WorkspaceIndexes
from kestrel_lab.tools.files.directory_walk import closing_fd
from kestrel_lab.tools.files.ripgrep import Match, search_tree
from kestrel_lab.tools.files.workspace import Workspace

_MOST_WORDS = 12
_MOST_MATCHES = 2_000
_LINES_EACH = 4
_LINE_CHARS = 160


class FileGatherer:
    """A `Gatherer` that searches file contents for the words of the goal, upper and lower case alike.

    Files with more different words come first. It knows no synonyms and reads no meaning.
    """

    async def __call__(self, query: str, workspace: Path, top_k: int) -> GatheredContext:
        """At most `top_k` files, each with the first lines that have a word not seen in a line before."""
        words = goal_terms(query, _MOST_WORDS)
        if not words:
            return GatheredContext()
        pattern = "|".join(map(re.escape, words))
        with closing_fd(Workspace(workspace).open(".")) as fd:
            found = await search_tree(fd, pattern, ["--ignore-case", "--max-count=60"], _MOST_MATCHES)
        files: dict[str, list[Match]] = {}
        for match in found.matches:
            files.setdefault(match.path, []).append(match)
        sources = sorted(
            (_source(path, matches, words) for path, matches in files.items()),
            key=lambda one: (-len(one.terms), one.path),
        )
        seen = {word for source in sources for word in source.terms}
        return GatheredContext(
            sources=tuple(sources[:top_k]), gaps=tuple(word for word in words if word not in seen)
        )


class IndexedGatherer:
    """A `Gatherer` that asks the index of a workspace, where somebody had one made (`kestrel index`), and
    else another gatherer.
    """

    def __init__(self, indexes: WorkspaceIndexes, otherwise: Gatherer) -> None:
        self._indexes, self._otherwise = indexes, otherwise

    async def __call__(self, query: str, workspace: Path, top_k: int) -> GatheredContext:
        """At most `top_k` files, each with the lines of its best place that have a word of the goal."""
        if not self._indexes.of(workspace).exists or not query_words(query):
            return await self._otherwise(query, workspace, top_k)
        index, _ = await asyncio.to_thread(self._indexes.ready, workspace)
        found = await asyncio.to_thread(self._indexes.cascade(index), query, top_k)
        words = query_words(query)
        sources = []
        for hit in found.hits[:top_k]:
            lines = [
                (number, line) for number, line in enumerate(hit.text.split("\n"), hit.first) if line.strip()
            ]
            telling = [
                (number, line) for number, line in lines if any(word in line.lower() for word in words)
            ] or lines
            shown = tuple((number, line.strip()[:_LINE_CHARS]) for number, line in telling[:_LINES_EACH])
            sources.append(
                Source(
                    path=hit.path,
                    lines=shown,
                    terms=tuple(word for word in words if word in hit.text.lower()),
                )
            )
        return GatheredContext(sources=tuple(sources), gaps=found.gaps, steps=events_of(found))


def _source(path: str, matches: Iterable[Match], words: tuple[str, ...]) -> Source:
    lines: list[tuple[int, str]] = []
    seen: set[str] = set()
    for match in matches:
        new = {word for word in words if word in match.text.casefold()} - seen
        if new and len(lines) < _LINES_EACH:
            lines.append((match.line, match.text.strip()[:_LINE_CHARS]))
        seen |= new
    return Source(path=path, lines=tuple(lines), terms=tuple(word for word in words if word in seen))
