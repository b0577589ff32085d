"""Cascade: a retriever of search, graph and grep, with a coverage controller that decides whether to search
again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from kestrel_lab.core.events.calls import RetrievalStep
from kestrel_lab.core.json_types import Json
from kestrel_lab.language.code_tokens import WORD, index_text, query_words
from kestrel_lab.retrieval.code_graph import Graph
from kestrel_lab.retrieval.hits import Hit, Retrieval
from kestrel_lab.retrieval.indexing import git_history as history
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.mentions import mentioned_paths, parse_question
from kestrel_lab.retrieval.ranking import Ranking
from kestrel_lab.retrieval.search import PATH_FIRST, Grep, Search, check_hits, check_query, words_found
from kestrel_lab.retrieval.semantic import SemanticScorer

_MOST_WORDS = 40
"""The most frequent words of a question, by which coverage is measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bounds:
    """The limits of a cascade."""

    enough: float = 0.9
    """Coverage at which the search ends."""
    rounds: int = 3
    longer: int = 2
    """Factor for the number of files returned if coverage is low."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Coverage:
    """The share of a question that some files cover."""

    terms: float
    """Share of the question's words, weighted by frequency, that the files contain."""
    files: float
    """Share of the files it names that were found; 1 if it names none."""
    gaps: tuple[str, ...]

    @property
    def both(self) -> float:
        """The smaller share of the two."""
        return min(self.terms, self.files)


class Cascade:
    """A `Retriever` that searches, searches again where files or words of the question are missing, and reads
    what it returns.

    First the search. Where that covers too little: once more with the names of files and symbols first, for
    what is missing; then along imports, definitions and common changes of what was found; each time the list
    grows, to at most `longer` times what was asked for. It stops when enough is covered (`confidence`), when
    a round finds nothing new (`saturation`), or at its bounds (`limit`). In the end every file is read, and
    those that do not hold are dropped.
    """

    name = "cascade"

    def __init__(
        self, index: CodeIndex, bounds: Bounds = Bounds(), meaning: SemanticScorer | None = None
    ) -> None:
        self._index = index
        self._bounds = bounds
        self._search, self._graph, self._grep = (
            Search(index, meaning=meaning),
            Graph(index),
            Grep(index.workspace),
        )

    def __call__(self, query: str, top_k: int = 10) -> Retrieval:
        """See `Retriever`; return up to `longer` × `top_k` files."""
        check_query(query, top_k)
        began = time.perf_counter()
        ranking = self._search.ranking(query, top_k)
        first = self._search.answer(ranking, query, top_k, began)
        chosen = {hit.path: hit for hit in first.hits}
        steps, stopped = list(first.steps), "limit"
        # What is not in the index can still be read.
        if not chosen or not self._index.complete:
            found = self._grep(query, top_k)
            steps += found.steps
            chosen |= {hit.path: hit for hit in found.hits if hit.path not in chosen}
        most = top_k * self._bounds.longer
        for look in range(self._bounds.rounds):
            coverage = self.coverage(query, chosen)
            if coverage.both >= self._bounds.enough:
                stopped = "confidence"
                break
            if look == self._bounds.rounds - 1 or len(chosen) >= most:
                break
            if look == 0:
                new, step = self._again(query, coverage, ranking, len(chosen), most)
            else:
                new, step = self._onward(list(chosen.values()), coverage, ranking)
            new = [hit for hit in new if hit.path not in chosen][: most - len(chosen)]
            dropped = {path: why for path, why in step.dropped.items() if path not in chosen}
            steps.append(replace(step, chosen=[hit.path for hit in new], dropped=dropped))
            chosen |= {hit.path: hit for hit in new}
            if not new and look > 0:
                stopped = "saturation"
                break
        began = time.perf_counter()
        kept, out = check_hits(self._index.workspace, chosen.values(), query)
        steps.append(
            RetrievalStep(
                step="",
                retriever="grep",
                query=query,
                arguments={"read": len(chosen)},
                found=len(kept),
                chosen=[hit.path for hit in kept],
                dropped={**out},
                seconds=round(time.perf_counter() - began, 4),
                note="read to check them",
            )
        )
        coverage = self.coverage(query, [hit.path for hit in kept])
        return Retrieval(
            query=query,
            hits=tuple(kept),
            steps=tuple(steps),
            coverage=round(coverage.both, 3),
            gaps=coverage.gaps,
            stopped=stopped if kept else "nothing",
        )

    def coverage(self, query: str, paths: Collection[str]) -> Coverage:
        """Return the share of `query` that these files cover, by the index; what one of them is called is no
        gap.
        """
        telling = parse_question(query).telling
        said = Counter(map(str.lower, WORD.findall(telling))) & Counter(
            dict.fromkeys(query_words(telling), len(telling))
        )
        words = dict(said.most_common(_MOST_WORDS)) or dict.fromkeys(query_words(query), 1)
        # The parts of a name such as `HTTPServer` are told by its capitals.
        spelled = {word.lower(): word for word in WORD.findall(telling)}
        whole = {word: index_text(spelled.get(word, word)).split()[-1:] for word in words}
        with self._index.reading() as connection:
            known = {
                str(path): int(number)
                for number, path in connection.execute("SELECT id, path FROM files WHERE skipped = ''")
            }
            held = words_found(
                connection,
                [known[path] for path in paths if path in known],
                {each for pieces in whole.values() for each in pieces},
            )
        missing = [word for word, pieces in whole.items() if not any(piece in held for piece in pieces)]
        total = sum(words.values())
        named = mentioned_paths(query, known)
        # A question may name a file that does not have its own name in it.
        in_names = {word.lower() for path in paths for word in WORD.findall(path)}
        return Coverage(
            terms=1 - sum(words[word] for word in missing) / total if total else 0.0,
            files=len(named & set(paths)) / len(named) if named else 1.0,
            gaps=tuple(word for word in missing if word not in in_names),
        )

    def _again(
        self, query: str, coverage: Coverage, found: Ranking, held: int, most: int
    ) -> tuple[list[Hit], RetrievalStep]:
        """Search for the missing words, weighting names of files and symbols most; then extend the first
        list.
        """
        began = time.perf_counter()
        asked = " ".join(coverage.gaps) or query
        search = Search(self._index, PATH_FIRST)
        ranking = search.ranking(asked)
        telling = [one for one in ranking.hits if {"path", "base", "symbols"} & set(one.parts)][
            : max(3, most // 4)
        ]
        first = search.hits(telling, asked)
        behind, why = found.hits[held:most], "none of the missing words is in its name or its symbols"
        step = RetrievalStep(
            step="",
            retriever=self._search.name,
            query=asked,
            arguments={"first": "paths and symbols", "terms": coverage.terms, "files": coverage.files},
            found=ranking.clear,
            dropped={one.path: why for one in ranking.hits[:100] if one not in telling},
            seconds=round(time.perf_counter() - began, 4),
            note="looked again: too little was covered",
        )
        return [
            *(replace(hit, why=f"{hit.why} (second look)") for hit in first),
            *self._search.hits(behind, query),
        ], step

    def _onward(
        self, held: Sequence[Hit], coverage: Coverage, ranking: Ranking
    ) -> tuple[list[Hit], RetrievalStep]:
        """Find files with a missing word among those that the best files import, that import them, or that
        change together with them.
        """
        began = time.perf_counter()
        origins: dict[str, str] = {}
        for hit in held[:3]:
            for other in self._graph.imports(hit.path):
                origins.setdefault(other, f"imported by {hit.path}")
            for other in self._graph.imported_by(hit.path)[:10]:
                origins.setdefault(other, f"imports {hit.path}")
            with self._index.reading() as connection:
                for other, share in history.changed_together(connection, hit.path, 5).items():
                    if share >= 0.1:
                        origins.setdefault(other, f"changes together with {hit.path}")
        lacking = {piece for word in coverage.gaps for piece in index_text(word).split()[-1:]}
        have = {one.path: one for one in ranking.files if one.path in origins}
        with self._index.reading() as connection:
            useful = [path for path in have if words_found(connection, [have[path].file], lacking)]
        found = self._search.hits([have[path] for path in useful], ranking.question.text)
        hits = [replace(hit, how="graph", why=origins[hit.path]) for hit in found]
        dropped: dict[str, Json] = {
            path: "beside what was found, but has none of the missing words"
            for path in origins
            if path not in useful
        }
        step = RetrievalStep(
            step="",
            retriever=self._graph.name,
            query=" ".join(coverage.gaps),
            arguments={"from": [hit.path for hit in held[:3]]},
            found=len(origins),
            dropped=dropped,
            seconds=round(time.perf_counter() - began, 4),
            note="second hop",
        )
        return hits, step
