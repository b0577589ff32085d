"""Tool search: full text over names, descriptions and parameters, and embeddings if available."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.json_types import Json
from kestrel_lab.language.words import COMMON, name_parts, stem
from kestrel_lab.memory.embeddings import Embedder, default_embedder

if TYPE_CHECKING:
    import apsw

_SILENT = COMMON - {"time", "day"}
"""Words that say nothing of what a tool does."""
_MOST_TERMS = 120
_MOST_CHARS = 4_000
"""Words taken of a need, of a description and of all parameters at most."""
_DEEPEST = 4
"""Levels of nested parameters that are looked at."""
_POOL = 100
"""Candidates of full-text search that meanings may reorder."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDescription:
    """A tool, or anything else that is found like one, in words."""

    name: str
    """Unlike that of any other in the index."""
    description: str = ""
    parameters: str = ""
    """Names and descriptions of what it takes."""
    server: str = ""
    """Its server and the server's description."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """Weight of each part."""

    name: float = 2.0
    description: float = 1.0
    parameters: float = 0.5
    server: float = 0.5
    pairs: float = 0.3
    """Adjacent words written as one: `timezone` finds `time zone`, and the other way round."""
    meaning: float = 0.3
    """Added to the score by words; both are from 0 to 1."""


class ToolIndex:
    """Described tools, searched by words and, with an embedder, by meaning; never changed after it was made.

    Equal contents and queries give equal answers, in an order that depends on nothing else.
    """

    def __init__(
        self,
        tools: Iterable[ToolDescription],
        *,
        weights: Weights | None = None,
        embedder: Callable[[], Embedder] | None = None,
    ) -> None:
        """Read nothing yet; of several tools with one name the first counts."""
        self._tools = {tool.name: tool for tool in reversed(tuple(tools))}
        self._names = sorted(self._tools)
        self._weights, self._embedder = weights or Weights(), embedder

    def __len__(self) -> int:
        return len(self._names)

    def search(self, need: str, top_k: int) -> tuple[str, ...]:
        """Return the names of at most `top_k` tools that have to do with `need`, best first; none for words
        that no tool has and no known meaning.
        """
        if top_k < 1 or not self._names or not need.strip():
            return ()
        need = need[:_MOST_CHARS]
        scores = self._by_words(need)
        most = max(scores.values(), default=0.0)
        scores = {number: score / most if most > 0 else 0.0 for number, score in scores.items()}
        if self._embedder is not None and self._weights.meaning:
            for number, likeness in self._by_meaning(need).items():
                scores[number] = scores.get(number, 0.0) + self._weights.meaning * likeness
        best = sorted(scores, key=lambda number: (-scores[number], number))[:top_k]
        return tuple(self._names[number] for number in best)

    def _by_words(self, need: str) -> dict[int, float]:
        terms = list(dict.fromkeys([*_words(need), *_pairs(name_parts(need))]))[:_MOST_TERMS]
        if not terms:
            return {}
        match = " OR ".join(f'"{term}"' for term in terms)
        weights = self._weights
        rank = (
            f"bm25(tools, {weights.name}, {weights.description}, {weights.parameters}, "
            f"{weights.server}, {weights.pairs})"
        )
        rows = self._text.execute(
            f"SELECT rowid, -{rank} AS score FROM tools WHERE tools MATCH ? ORDER BY score DESC, rowid "
            f"LIMIT {_POOL}",
            (match,),
        )
        return {int(number): float(score) for number, score in rows}

    def _by_meaning(self, need: str) -> dict[int, float]:
        """Of the nearest only: how alike, from 0 for the average tool to 1 for the nearest."""
        assert self._embedder is not None
        likeness = self._vectors @ self._embedder()([need])[0]
        middle, most = float(likeness.mean()), float(likeness.max())
        if most <= middle:
            return {}
        near = sorted(range(len(likeness)), key=lambda number: (-float(likeness[number]), number))[:_POOL]
        return {
            number: (float(likeness[number]) - middle) / (most - middle)
            for number in near
            if likeness[number] > middle
        }

    @cached_property
    def _text(self) -> apsw.Connection:
        import apsw  # loaded on use

        index = apsw.Connection(":memory:")
        index.execute(
            "CREATE VIRTUAL TABLE tools USING fts5(name, description, parameters, server, pairs, "
            "tokenize = 'porter unicode61')"
        )
        index.executemany(
            "INSERT INTO tools(rowid, name, description, parameters, server, pairs) VALUES (?, ?, ?, "
            "?, ?, ?)",
            ((number, *self._columns(self._tools[name])) for number, name in enumerate(self._names)),
        )
        return index

    @staticmethod
    def _columns(tool: ToolDescription) -> tuple[str, ...]:
        pairs = [*_pairs(name_parts(tool.name)), *_pairs(name_parts(tool.description[:_MOST_CHARS]))]
        return (
            _split(tool.name),
            _split(tool.description),
            _split(tool.parameters),
            _split(tool.server),
            " ".join(pairs),
        )

    @cached_property
    def _vectors(self) -> Any:
        assert self._embedder is not None
        said = [
            f"{_split(tool.name)}: {tool.description[:_MOST_CHARS]}"
            for tool in (self._tools[name] for name in self._names)
        ]
        return self._embedder()(said)


def tool_from_definition(
    name: str, description: str, schema: Mapping[str, Json], server: str = ""
) -> ToolDescription:
    """Return a tool by its definition."""
    return ToolDescription(
        name=name,
        description=description,
        parameters=" ".join(_parameters(dict(schema), _DEEPEST))[:_MOST_CHARS],
        server=server,
    )


def tool_index(tools: Iterable[ToolDescription]) -> ToolIndex:
    """Return an index, with embeddings if the extra `semantic` is installed."""
    return ToolIndex(tools, embedder=default_embedder())


def _parameters(schema: Json, deep: int) -> list[str]:
    if not isinstance(schema, Mapping) or deep < 1:
        return []
    found: list[str] = []
    properties = schema.get("properties")
    for name, about in properties.items() if isinstance(properties, Mapping) else ():
        found.append(name)
        if isinstance(about, Mapping):
            found += [text for key in ("title", "description") if isinstance(text := about.get(key), str)]
            found += _parameters(about, deep - 1)
    return found + _parameters(schema.get("items"), deep - 1)


def _split(text: str) -> str:
    """`text` with the names in it taken apart: `readFile` and `math.factorial` are found by their words."""
    return " ".join(name_parts(text[:_MOST_CHARS]))


def _pairs(said: Sequence[str]) -> list[str]:
    return [one + other for one, other in pairwise(said)]


def telling_stems(text: str) -> frozenset[str]:
    """Return the stems of a need's or description's words, without those that do not describe a tool."""
    return frozenset(map(stem, _words(text)))


def count_covered(need: str, said: str) -> tuple[int, int]:
    """Return how many of the stems in `need` are in `said`, also inside joined words, and their number."""
    wanted, known = telling_stems(need), telling_stems(said) | frozenset(map(stem, _pairs(name_parts(said))))
    words = name_parts(need)
    joined = {stem(one + other): (stem(one), stem(other)) for one, other in pairwise(words)}
    also = {word for whole, halves in joined.items() if whole in known for word in halves}
    return len(wanted & (known | also)), len(wanted)


def _words(text: str) -> list[str]:
    """Return the words of `text`, with names split and common words dropped unless there are no others."""
    found = name_parts(text)
    return [word for word in found if word not in _SILENT and (len(word) > 1 or word.isdigit())] or found
