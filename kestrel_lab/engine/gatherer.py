"""Finding what a workspace holds that has to do with a goal, by the words of the goal."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kestrel_lab.core.protocols import Gathered, Source
from kestrel_lab.engine.terms import terms
from kestrel_lab.tools.listing import closing
from kestrel_lab.tools.ripgrep import Match, search_tree
from kestrel_lab.tools.workspace import Workspace

_MOST_WORDS = 12
_MOST_MATCHES = 2_000
_LINES_EACH = 4
_LINE_CHARS = 160


class FileGatherer:
    """A `Gatherer` that searches file contents for the words of the goal, upper and lower case alike.

    Files with more different words come first. It knows no synonyms and reads no meaning.
    """

    async def __call__(self, query: str, workspace: Path, top_k: int) -> Gathered:
        """At most `top_k` files, each with the first lines that have a word not seen in a line before."""
        words = terms(query, _MOST_WORDS)
        if not words:
            return Gathered()
        pattern = "|".join(map(re.escape, words))
        with closing(Workspace(workspace).open(".")) as fd:
            found = await search_tree(fd, pattern, ["--ignore-case", "--max-count=60"], _MOST_MATCHES)
        files: dict[str, list[Match]] = {}
        for match in found.matches:
            files.setdefault(match.path, []).append(match)
        sources = sorted((_source(path, matches, words) for path, matches in files.items()), key=lambda one: (-len(one.terms), one.path))
        seen = {word for source in sources for word in source.terms}
        return Gathered(sources=tuple(sources[:top_k]), gaps=tuple(word for word in words if word not in seen))


def _source(path: str, matches: Iterable[Match], words: tuple[str, ...]) -> Source:
    lines: list[tuple[int, str]] = []
    seen: set[str] = set()
    for match in matches:
        new = {word for word in words if word in match.text.casefold()} - seen
        if new and len(lines) < _LINES_EACH:
            lines.append((match.line, match.text.strip()[:_LINE_CHARS]))
        seen |= new
    return Source(path=path, lines=tuple(lines), terms=tuple(word for word in words if word in seen))
