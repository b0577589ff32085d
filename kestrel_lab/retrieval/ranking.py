"""Ranking of files and chunks for a question: signals from 0 to 1, and their weighted sum."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import apsw

from kestrel_lab.retrieval.indexing import git_history as history
from kestrel_lab.retrieval.indexing.imports import resolve_import
from kestrel_lab.retrieval.indexing.table import FIELDS
from kestrel_lab.retrieval.mentions import KINDS, Mentions, Question, find_mentions, parse_question

# Files are tied to the best of a ranking because a change often touches a file together with those that
# changed with it before, that it imports, or that are in its folder.

TIES = ("together", "imported", "folder")
"""Kinds of ties: changed in the same commits, imported or linked to, in the same folder."""


def file_ties(
    connection: apsw.Connection, leaders: Mapping[str, float], paths: Collection[str]
) -> dict[str, dict[str, float]]:
    """Return for each kind how closely each of `paths` is tied to a leader: 0 to 1, times the leader's
    weight.

    The first leader is fully tied to itself by each kind, so that no other file overtakes it by ties. The
    other leaders are tied only to one another.
    """
    found: dict[str, dict[str, float]] = {kind: defaultdict(float) for kind in TIES}

    def tie(kind: str, path: str, leader: str, closely: float) -> None:
        found[kind][path] = max(found[kind][path], closely * leaders[leader])

    imported, shares = (
        _imported_files(connection, leaders),
        history.co_change_shares(connection, leaders, paths),
    )
    for leader in leaders:
        for path in paths:
            if path == leader:
                continue
            tie("together", path, leader, shares[leader].get(path, 0.0))
            tie("imported", path, leader, float(path in imported.get(leader, ())))
            tie("folder", path, leader, float(posixpath.dirname(path) == posixpath.dirname(leader)))
    for first in list(leaders)[:1]:
        for kind in TIES:
            found[kind][first] = 1.0
    return found


def _imported_files(connection: apsw.Connection, leaders: Collection[str]) -> dict[str, set[str]]:
    known = frozenset(str(row[0]) for row in connection.execute("SELECT path FROM files"))
    sql = (
        "SELECT path, kind, target, names FROM edges JOIN files ON files.id = file WHERE path IN "
        "(SELECT value FROM json_each(?))"
    )
    found: dict[str, set[str]] = defaultdict(set)
    for path, kind, target, names in connection.execute(sql, (json.dumps(list(leaders)),)):
        found[path].update(resolve_import(path, kind, target, names, known))
    return found


_MOST_TERMS = 300
_MOST_BODY_TERMS, _MOST_CHUNK_TERMS = 100, 40
_MOST_CHUNKS = 600
_MOST_COMMITS = 60
_MOST_ALIKE = 100
_MOST_TIMES = 8
"""A word's count in a question is capped at this."""
_COMMON_SHARE, _COMMON_FILES = 0.4, 20
_LEADERS, _MOST_TIED = 3, 60
"""Top files of a ranking that others may be tied to, and how many files are considered."""
LEAST_SHARE = 0.005
"""Share of the best content and name score; files below match only words that nearly every file has."""
PRIORS = frozenset({"lately"})
"""Signals that do not depend on the question."""
_TESTS = re.compile(
    r"(^|/)(tests?|testing|spec|specs|__tests__)/|(^|/)(test_[^/]*|[^/]*_test\.[^/.]+|[^/]*[.-](test|spec)\.[^/.]+|conftest\.py)$"
)
_ASKS_TESTS = re.compile(
    r"\b(unit ?tests?|test (file|case|suite|module)s?|fixtures?|conftest|tests? (for|of|that))\b",
    re.IGNORECASE,
)
_ASKS_DOCS = re.compile(
    r"\b(documentation|docs?|tutorials?|examples?|readme|changelog|guide)\b", re.IGNORECASE
)
_PERIPHERAL = re.compile(
    r"(^|/)(docs?|examples?|samples?|benchmarks?|changelog|changes|release[^/]*|whatsnew|vendor|third_party|cextern|extern|locale(?=/[^/]+/))(/|\.|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The weight of each signal, chosen on half of a public set of issues; see `bench`."""

    body: float = 1.0
    title: float = 0.3
    path: float = 0.1
    base: float = 0.15
    symbols: float = 0.2
    chunk: float = 0.5
    m_path: float = 0.5
    m_frame: float = 0.5
    m_module: float = 0.3
    m_dotted: float = 0.2
    m_identifier: float = 0.3
    said: float = 0.4
    """Messages of commits that changed the file."""
    lately: float = 0.3
    alike: float = 0.5
    """Similarity of embeddings, if available."""
    together: float = 0.7
    """Changed together with one of the best files.

    This and the next two were tuned on the logs of repositories.
    """
    imported: float = 0.15
    """Imported by one of the best files."""
    folder: float = 0.1
    """In the folder of one of the best files."""
    tests: float = 0.3
    """Factor of tests if the question is not about them."""
    peripheral: float = 0.5
    """Factor of documents, examples and what is not code, likewise."""
    asked_docs: float = 0.6
    """Factor of documents if the question is about them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranked:
    """A file with its score and the signals in it."""

    file: int
    path: str
    score: float
    parts: Mapping[str, float]
    """Signals that are not 0, before they are weighted."""
    factor: float
    chunks: tuple[tuple[int, float], ...] = ()
    """Its chunks that match, best first, with their scores."""
    named: tuple[str, ...] = ()
    """What the question names of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranking:
    """Every file that matches a question, best first."""

    files: tuple[Ranked, ...]
    question: Question
    places: Mapping[str, int] = field(default_factory=dict)
    """Places by path, counted from 1."""
    clear: int = 0
    """Number of top files good enough to be hits; see `LEAST_SHARE`."""
    looked: tuple[str, ...] = ()
    """Words searched in texts, as stored in the index; names are searched for all words."""

    @property
    def hits(self) -> tuple[Ranked, ...]:
        """The files that are hits."""
        return self.files[: self.clear]


Alike = Callable[[apsw.Connection, str, Mapping[int, int]], Mapping[int, float]]
"""From a question and files, each with its best chunk, to how alike they are in meaning, from 0 to 1."""


def rank_files(
    connection: apsw.Connection,
    query: str,
    weights: Weights = Weights(),
    alike: Alike | None = None,
) -> Ranking:
    """Rank the files of an index for `query`."""
    question = parse_question(query)
    rows = list(connection.execute("SELECT id, path, language FROM files WHERE skipped = ''"))
    files: dict[int, str] = {number: path for number, path, _ in rows}
    numbers = {path: number for number, path in files.items()}
    wide = _informative_words(connection, question.weights, len(files))
    few = dict(list(wide.items())[:_MOST_CHUNK_TERMS])
    signals: dict[str, Mapping[int, float]] = {
        name: scale_scores(
            words_in(connection, "file_words", name, wide if name == "body" else question.weights)
        )
        for name in FIELDS
    }
    by_file, best = _by_file(connection, words_in(connection, "chunk_words", "", few, _MOST_CHUNKS))
    signals["chunk"] = scale_scores(by_file)
    named = find_mentions(query, question.telling, files, lambda names: _definitions(connection, names))
    signals |= {f"m_{kind}": scale_scores(named.scores[kind], least=1.0) for kind in KINDS}
    said = words_in(connection, "commit_words", "", few, _MOST_COMMITS)
    signals["said"] = scale_scores(history.commit_message_scores(connection, said, numbers))
    signals["lately"] = scale_scores(history.recent_changes(connection, numbers))
    if alike is not None:
        # Vectors are computed on first use, so only the best files by words are compared.
        nearest = sorted(by_file, key=lambda file: (-by_file[file], file))[:_MOST_ALIKE]
        signals["alike"] = alike(connection, question.telling, {file: best[file][0][0] for file in nearest})
    about = (bool(_ASKS_TESTS.search(question.head)), bool(_ASKS_DOCS.search(question.head)))
    rank = partial(_rank_row, signals=signals, best=best, named=named, weights=weights, about=about)
    ranked = _sort_ranked(one for row in rows if (one := rank(row)) is not None)
    clear, faint = _split_by_score(ranked, weights)
    ranked = [*_raise_tied(connection, clear, weights), *faint]
    places = {one.path: place for place, one in enumerate(ranked, 1)}
    return Ranking(
        files=tuple(ranked), question=question, places=places, clear=len(clear), looked=tuple(wide)
    )


def _sort_ranked(files: Iterable[Ranked]) -> list[Ranked]:
    return sorted(files, key=lambda one: (-one.score, one.path))


def _split_by_score(ranked: Sequence[Ranked], weights: Weights) -> tuple[list[Ranked], list[Ranked]]:
    """Split files by `LEAST_SHARE` of the best score, ignoring signals that do not depend on the question."""
    owned = [
        one.score - one.factor * sum(getattr(weights, name) * one.parts.get(name, 0.0) for name in PRIORS)
        for one in ranked
    ]
    least = LEAST_SHARE * max(owned, default=0.0)
    parted: tuple[list[Ranked], list[Ranked]] = ([], [])
    for one, own in zip(ranked, owned, strict=True):
        # `False` is 0: files that are clear come first.
        parted[own < least].append(one)
    return parted


def _raise_tied(connection: apsw.Connection, ranked: list[Ranked], weights: Weights) -> list[Ranked]:
    """Raise files near the top that are tied to the best ones: a change is rarely of one file alone."""
    if not ranked or ranked[0].score <= 0 or not any(getattr(weights, kind) for kind in TIES):
        return ranked
    near = ranked[:_MOST_TIED]
    # Squared, so that a file whose score is half of the best one lends a quarter of the weight.
    leaders = {one.path: (one.score / ranked[0].score) ** 2 for one in ranked[:_LEADERS]}
    found = file_ties(connection, leaders, [one.path for one in near])
    risen = []
    for one in near:
        parts = {kind: found[kind][one.path] for kind in TIES if found[kind].get(one.path)}
        score = one.score + sum(getattr(weights, kind) * part for kind, part in parts.items()) * one.factor
        risen.append(replace(one, score=score, parts={**one.parts, **parts}))
    return _sort_ranked([*risen, *ranked[_MOST_TIED:]])


def _informative_words(
    connection: apsw.Connection, asked: Mapping[str, float], files: int
) -> Mapping[str, float]:
    """Return the most informative words, best first, without those in most files, which are slowest to
    search.
    """
    tokenizer = connection.fts5_tokenizer("porter", ["unicode61"])
    kept: dict[str, float] = {}
    for word, amount in asked.items():
        stems = tokenizer(
            word.encode(), apsw.FTS5_TOKENIZE_QUERY, None, include_offsets=False, include_colocated=False
        )
        most = max((_held_by(connection, str(stem)) for stem in stems), default=0)
        # In a small folder each word is in a large share of the files.
        if most <= max(_COMMON_SHARE * files, _COMMON_FILES):
            kept[word] = (
                (1 + math.log(max(0.5, amount))) * math.log((files + 1) / (most + 0.5)) if most else 0.0
            )
    best = sorted(kept, key=lambda word: (-kept[word], word))[:_MOST_BODY_TERMS]
    return {word: asked[word] for word in best if kept[word] > 0} or asked


def _held_by(connection: apsw.Connection, stem: str) -> int:
    row = connection.execute("SELECT doc FROM vocabulary WHERE term = ?", (stem,)).fetchone()
    return int(row[0]) if row else 0


def words_in(
    connection: apsw.Connection, table: str, column: str, asked: Mapping[str, float], most: int | None = None
) -> dict[int, float]:
    """Return BM25 scores of a full-text table's rows, in one column or all; a word that is said `n` times
    counts 1 + ln n.
    """
    groups: dict[float, list[str]] = defaultdict(list)
    for word, many in sorted(asked.items(), key=lambda item: (-item[1], item[0]))[:_MOST_TERMS]:
        groups[round(2 * (1 + math.log(max(0.5, min(many, _MOST_TIMES))))) / 2].append(word)
    found: dict[int, float] = defaultdict(float)
    for weight, words in groups.items():
        match = " OR ".join(f'"{word}"' for word in words)
        # Sorting doubles the time of matching, so only a limited query sorts.
        sql = f"SELECT rowid, rank FROM {table} WHERE {table} MATCH ?" + (
            f" ORDER BY rank LIMIT {most:d}" if most else ""
        )
        for number, score in connection.execute(sql, (f"{{{column}}} : ({match})" if column else match,)):
            found[number] -= score * weight
    return found


def scale_scores(scores: Mapping[int, float], least: float = 0.0) -> dict[int, float]:
    """Return `scores` as shares of the greatest, or of `least` if that is more."""
    top = max(scores.values(), default=0.0)
    return (
        {number: score / max(top, least) for number, score in scores.items() if score > 0} if top > 0 else {}
    )


def _by_file(
    connection: apsw.Connection, chunks: Mapping[int, float]
) -> tuple[dict[int, float], dict[int, list[tuple[int, float]]]]:
    """Return for each file its best chunk + ½ of the second + ⅓ of the third, and its chunks, best first."""
    owners = connection.execute(
        "SELECT id, file FROM chunks WHERE id IN (SELECT value FROM json_each(?))",
        (json.dumps(list(chunks)),),
    )
    best: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for chunk, file in owners:
        best[file].append((chunk, chunks[chunk]))
    for held in best.values():
        held.sort(key=lambda one: (-one[1], one[0]))
    return {
        file: sum(score / place for place, (_, score) in enumerate(held[:3], 1))
        for file, held in best.items()
    }, best


def _definitions(connection: apsw.Connection, names: Collection[str]) -> dict[str, dict[int, set[str]]]:
    found: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
    sql = "SELECT folded, file, qualified FROM symbols WHERE folded IN (SELECT value FROM json_each(?))"
    for folded, file, qualified in connection.execute(sql, (json.dumps(sorted(names)),)):
        found[folded][file].add(qualified)
    return found


def _rank_row(
    row: tuple[Any, ...],
    *,
    signals: Mapping[str, Mapping[int, float]],
    best: Mapping[int, list[tuple[int, float]]],
    named: Mentions,
    weights: Weights,
    about: tuple[bool, bool],
) -> Ranked | None:
    """Return a file with its score, unless nothing of the question is in it; the question is `about` tests or
    documents.
    """
    number, path, language = row
    parts = {name: scores[number] for name, scores in signals.items() if scores.get(number)}
    if not any(name not in PRIORS for name in parts):
        return None
    factor = 1.0
    if is_test(path) and not about[0]:
        factor *= weights.tests
    if is_peripheral(path, language):
        factor *= weights.asked_docs if about[1] else weights.peripheral
    return Ranked(
        file=number,
        path=path,
        score=sum(getattr(weights, name) * part for name, part in parts.items()) * factor,
        parts=parts,
        factor=factor,
        chunks=tuple(best.get(number, ())),
        named=named.because.get(number, ()),
    )


def is_test(path: str) -> bool:
    """Return whether a file is a test by its name."""
    return _TESTS.search(path) is not None


def is_peripheral(path: str, language: str) -> bool:
    """Return true for a file beside the project's code: documents, examples, settings, vendored code."""
    return language in {"prose", "text", "notebook"} or _PERIPHERAL.search(path) is not None
