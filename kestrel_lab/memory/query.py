"""Finding notes: what a goal names, the words it is told from others by, and what stands near what they find."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kestrel_lab.core.jsontypes import dumps
from kestrel_lab.core.notes import Note
from kestrel_lab.memory.entities import Entity, entities
from kestrel_lab.memory.table import COLUMNS, LIVE, NoteTable, read
from kestrel_lab.memory.vectors import VectorIndex
from kestrel_lab.memory.words import content_words, parts

CANDIDATES = 200
"""Notes that full-text search may give; more cost time and none of them has ever been the answer."""
_MOST_TERMS = 48
_NEAREST = 20
_VISIBLE = (
    f"workspace = ? AND replaced_by = '' AND owner IN ('', ?) AND {LIVE} AND (SELECT count(*) FROM json_each(?) WHERE value NOT IN"
    " (SELECT name FROM note_names WHERE number = notes.number AND kind = 'tag')) = 0"
)
_VAGUE = frozenset({"name", "number"})
"""What a note is found by as well as by any other word, but not told from others by."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """How much each sign counts beside the words of a note itself, which count 1."""

    names: float = 1.0
    """What the note names, its kind, its tags, its author and its day."""
    before: float = 0.5
    """The episode before it."""
    after: float = 0.5
    author: float = 1.3
    """Factor for what was said by somebody the query names."""
    session: float = 0.6
    """What belongs to it: the mean of the best three episodes of its run."""
    entities: float = 0.2
    """The share of what the query names that the note names too, rare names more."""
    akin: float = 0.35
    """From which likeness of meaning on a note fills a place that words leave empty, where meanings are known."""
    trust: float = 0.1
    """Confidence."""


class MemoryQueryEngine:
    """Ranks the notes of a workspace for a query."""

    def __init__(self, table: NoteTable, weights: Weights | None = None, vectors: VectorIndex | None = None) -> None:
        self._table, self._vectors = table, vectors
        self._weights = weights or Weights()

    def extract_entities(self, goal: str, context: str = "") -> tuple[Entity, ...]:
        """What the goal names, then what its context names: files, symbols, packages, commands, errors, quotes, dates, people."""
        return tuple(dict.fromkeys((*entities(goal), *entities(context))))

    def rank(self, query: str, workspace: str, top_k: int, *, tags: Sequence[str] = (), run: str = "", context: str = "") -> list[Note]:
        """At most `top_k` notes that have to do with `query`, the most useful first; with all of `tags`, if any."""
        if top_k < 1:
            return []
        named = self.extract_entities(query, context)
        terms = _terms(query, named)
        found = self._lexical(terms, workspace, tags, run)
        ranked = self._weighed(found, named) if found else []
        if self._vectors is not None and len(ranked) < top_k:
            ranked += self._akin(query, workspace, tags, run, without={note.id for note in ranked})
        return ranked[:top_k]

    def _weighed(self, found: dict[int, tuple[float, Note]], named: Sequence[Entity]) -> list[Note]:
        """What full-text search found, with all other signs taken into account."""
        weights = self._weights
        scores = _spread({number: score for number, (score, _) in found.items()})
        notes = {number: note for number, (_, note) in found.items()}
        for number, share in self._sharing(named, list(notes)).items():
            scores[number] += weights.entities * share
        people = {word for entity in named if entity.kind == "name" for word in entity.name.split()}
        for number, note in notes.items():
            if note.author and note.author.lower() in people:
                scores[number] *= weights.author
            scores[number] *= 1 + weights.trust * (note.confidence - 0.5)
        if weights.session:
            _lift(scores, notes, weights.session)
        best = sorted(scores, key=lambda number: (-scores[number], -notes[number].at, number))
        return [notes[number] for number in best]

    def _akin(self, query: str, workspace: str, tags: Sequence[str], run: str, without: Collection[str]) -> list[Note]:
        """Notes of a like meaning that share no word with the query."""
        assert self._vectors is not None
        near = {number: score for number, score in self._vectors.nearest(query, workspace, _NEAREST).items() if score >= self._weights.akin}
        sql = f"SELECT number, {COLUMNS} FROM notes WHERE number IN (SELECT value FROM json_each(?)) AND {_VISIBLE}"
        rows = self._table.store.query(sql, (dumps(list(near)), workspace, run or "-", time.time(), _wanted(tags)))
        notes = {int(row[0]): read(row[1:]) for row in rows}
        return [notes[number] for number in near if number in notes and notes[number].id not in without]

    def _lexical(self, terms: Sequence[str], workspace: str, tags: Sequence[str], run: str) -> dict[int, tuple[float, Note]]:
        """Candidates with the score of their words, by number."""
        if not terms:
            return {}
        weights = self._weights
        match = " OR ".join(f'"{term}"' for term in terms)
        score = f"bm25(notes_text, 1.0, {weights.names}, {weights.before}, {weights.after})"
        columns = ", ".join(f"notes.{name.strip()}" for name in COLUMNS.split(","))
        sql = (
            f"SELECT notes.number, -{score} AS score, {columns} FROM notes_text JOIN notes ON notes.number = notes_text.rowid"
            f" WHERE notes_text MATCH ? AND {_VISIBLE} ORDER BY score DESC LIMIT {CANDIDATES}"
        )
        rows = self._table.store.query(sql, (match, workspace, run or "-", time.time(), _wanted(tags)))
        return {int(row[0]): (float(row[1]), read(row[2:])) for row in rows}

    def _sharing(self, named: Sequence[Entity], numbers: Sequence[int]) -> dict[int, float]:
        """For each note the share, by rarity, of what the query names that it names too."""
        names = sorted({entity.name for entity in named if entity.kind not in _VAGUE})
        if not names or not self._weights.entities:
            return {}
        rows = self._table.store.query(
            "SELECT DISTINCT name, number FROM note_names WHERE name IN (SELECT value FROM json_each(?))"
            " AND number IN (SELECT value FROM json_each(?))",
            (dumps(names), dumps(list(numbers))),
        )
        holders: dict[str, set[int]] = defaultdict(set)
        for name, number in rows:
            holders[name].add(int(number))
        rarity = {name: 1 / len(found) for name, found in holders.items()}
        total = sum(rarity.values())
        shares: dict[int, float] = defaultdict(float)
        for name, found in holders.items():
            for number in found:
                shares[number] += rarity[name] / total
        return shares


def _wanted(tags: Sequence[str]) -> str:
    return dumps([tag.lower() for tag in tags])


def _terms(query: str, named: Sequence[Entity]) -> list[str]:
    """What is looked for: the words of the query, and those that the names in it are made of."""
    found = dict.fromkeys(word for word in content_words(query))
    for entity in named:
        found |= dict.fromkeys(part for part in parts(entity.name) if len(part) > 1)
    return list(found)[:_MOST_TERMS]


def _spread(scores: Mapping[int, float]) -> dict[int, float]:
    """Scores from 0 to 1."""
    least, most = min(scores.values()), max(scores.values())
    return {number: (score - least) / (most - least) if most > least else 1.0 for number, score in scores.items()}


def _lift(scores: dict[int, float], notes: Mapping[int, Note], weight: float) -> None:
    """Raise the episodes of runs whose best three are good."""
    by_run: dict[str, list[float]] = defaultdict(list)
    for number, note in notes.items():
        if note.kind == "episode" and note.run:
            by_run[note.run].append(scores[number])
    prior = {run: sum(sorted(found, reverse=True)[:3]) / 3 for run, found in by_run.items()}
    for number, note in notes.items():
        if note.kind == "episode":
            scores[number] += weight * prior.get(note.run, 0.0)
