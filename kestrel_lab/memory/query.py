"""Ranking of notes for a query: full text, shared entities, conversation neighbours and vectors."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.language.words import content_words, name_parts
from kestrel_lab.memory.entities import Entity, find_entities
from kestrel_lab.memory.table import COLUMNS, LIVE, NoteTable, note_from_row
from kestrel_lab.memory.vector_search import VectorIndex

CANDIDATES = 200
"""Most notes taken from full-text search: later ones were never the answer in the benchmarks."""
_MOST_TERMS = 48
_NEAREST = 20
_BEHIND = 3.0
"""Subtracted from the similarity of notes found only by vectors, to rank them after matches by words."""
_USUAL_LENGTH = 90.0
"""Characters of an episode that is neither short nor long."""
_VISIBLE = (
    f"workspace = ? AND replaced_by = '' AND owner IN ('', ?) AND {LIVE} AND (SELECT count(*) FROM "
    "json_each(?) WHERE value NOT IN"
    " (SELECT name FROM note_names WHERE number = notes.number AND kind = 'tag')) = 0"
)
_VAGUE = frozenset({"name", "number"})
"""Kinds of entities that carry no more information than any word."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Weights:
    """The weight of each signal; the text of a note itself counts 1.

    Those of episodes were chosen on four of five public conversations and measured on the fifth, for each in
    turn: the choices differed by a step of the grid at most, and the rounded ones are these. `python -m bench
    memory` measures them.
    """

    names: float = 1.0
    """The note's entities, kind, tags, author and day."""
    before: float = 0.5
    """The episode before it."""
    after: float = 0.5
    author: float = 1.3
    """Factor for a note whose author the query names."""
    session: float = 1.0
    """The mean of the best three episodes of its run."""
    answer: float = 0.3
    """Factor for an episode after a question: the query wants the answer, but the question has the same
    words.
    """
    question: float = 0.15
    """Subtracted from an episode that asks something itself."""
    length: float = 0.15
    """Per natural logarithm of an episode's characters: greetings and thanks are short."""
    entities: float = 0.2
    """The share of the query's entities that the note has too, rare ones weighing more."""
    akin: float = 0.35
    """The least likeness of vectors for a note that shares no word with the query."""
    trust: float = 0.1
    """Confidence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A note with the score of its words, and whether something was asked before it."""

    score: float
    asked: bool
    note: Note


class MemoryQueryEngine:
    """Ranks the notes of a workspace for a query."""

    def __init__(
        self, table: NoteTable, weights: Weights | None = None, vectors: VectorIndex | None = None
    ) -> None:
        self._table, self._vectors = table, vectors
        self._weights = weights or Weights()

    def rank(self, query: NoteQuery) -> list[Note]:
        """Return the notes that are asked for, the most useful first."""
        top_k, workspace, tags, run = query.top_k, query.workspace, query.tags, query.run
        if top_k < 1:
            return []
        named = find_entities(query.text)
        found = self._lexical(_terms(query.text, named), workspace, tags, run)
        scores = self._weighed(found, named) if found else {}
        notes = {number: each.note for number, each in found.items()}
        if self._vectors is not None and (len(notes) < top_k or self._vectors.ordering):
            near = self._vectors.nearest(query.text, workspace, _NEAREST, tags=tags, also=notes)
            akin = self._akin(near, workspace, tags, run, without=notes)
            notes |= akin
            if weight := self._vectors.ordering:
                scores = {
                    number: scores.get(number, 0.0) + weight * near.get(number, 0.0) for number in notes
                }
            else:
                scores |= {number: near[number] - _BEHIND for number in akin}
        best = sorted(scores, key=lambda number: (-scores[number], -notes[number].at, number))
        return [notes[number] for number in best[:top_k]]

    def _weighed(self, found: Mapping[int, _Found], named: Sequence[Entity]) -> dict[int, float]:
        weights = self._weights
        scores = _rescale({number: each.score for number, each in found.items()})
        notes = {number: each.note for number, each in found.items()}
        for number, share in self._sharing(named, list(notes)).items():
            scores[number] += weights.entities * share
        people = {word for entity in named if entity.kind == "name" for word in entity.name.split()}
        for number, note in notes.items():
            if note.author and note.author.lower() in people:
                scores[number] *= weights.author
            scores[number] *= 1 + weights.trust * (note.confidence - 0.5)
        _add_conversation_scores(scores, found, weights)
        return scores

    def _akin(
        self,
        near: Mapping[int, float],
        workspace: str,
        tags: Sequence[str],
        run: str,
        without: Collection[int],
    ) -> dict[int, Note]:
        alike = [
            number for number, score in near.items() if score >= self._weights.akin and number not in without
        ]
        rows = self._table.store.query(
            f"SELECT number, {COLUMNS} FROM notes WHERE number IN (SELECT value FROM json_each(?)) AND "
            f"{_VISIBLE}",
            (dumps(alike), workspace, run or "-", time.time(), _tags_json(tags)),
        )
        return {int(row[0]): note_from_row(row[1:]) for row in rows}

    def _lexical(
        self, terms: Sequence[str], workspace: str, tags: Sequence[str], run: str
    ) -> dict[int, _Found]:
        if not terms:
            return {}
        weights = self._weights
        match = " OR ".join(f'"{term}"' for term in terms)
        score = f"bm25(notes_text, 1.0, {weights.names}, {weights.before}, {weights.after})"
        columns = ", ".join(f"notes.{name.strip()}" for name in COLUMNS.split(","))
        rows = self._table.store.query(
            f"SELECT notes.number, -{score} AS score, instr(notes_text.before, '?') > 0, {columns} "
            "FROM notes_text JOIN notes ON notes.number = notes_text.rowid"
            f" WHERE notes_text MATCH ? AND {_VISIBLE} ORDER BY score DESC LIMIT {CANDIDATES}",
            (match, workspace, run or "-", time.time(), _tags_json(tags)),
        )
        return {
            int(row[0]): _Found(score=float(row[1]), asked=bool(row[2]), note=note_from_row(row[3:]))
            for row in rows
        }

    def _sharing(self, named: Sequence[Entity], numbers: Sequence[int]) -> dict[int, float]:
        """Return for each note the share, by rarity, of the query's entities that it has."""
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


def _tags_json(tags: Sequence[str]) -> str:
    return dumps([tag.lower() for tag in tags])


def _terms(query: str, named: Sequence[Entity]) -> list[str]:
    found = dict.fromkeys(word for word in content_words(query))
    for entity in named:
        found |= dict.fromkeys(part for part in name_parts(entity.name) if len(part) > 1)
    return list(found)[:_MOST_TERMS]


def _rescale(scores: Mapping[int, float]) -> dict[int, float]:
    least, most = min(scores.values()), max(scores.values())
    return {
        number: (score - least) / (most - least) if most > least else 1.0 for number, score in scores.items()
    }


def _add_conversation_scores(scores: dict[int, float], found: Mapping[int, _Found], weights: Weights) -> None:
    """Adjust scores of episodes by their conversation: the run's best three, questions, length."""
    by_run: dict[str, list[float]] = defaultdict(list)
    for number, each in found.items():
        if each.note.kind == "episode" and each.note.run:
            by_run[each.note.run].append(scores[number])
    prior = {run: sum(sorted(several, reverse=True)[:3]) / 3 for run, several in by_run.items()}
    for number, each in found.items():
        if each.note.kind == "episode":
            score = scores[number] + weights.session * prior.get(each.note.run, 0.0)
            score += weights.answer * each.asked - weights.question * ("?" in each.note.text)
            score += weights.length * math.log(len(each.note.text) / _USUAL_LENGTH)
            # As high as those of other notes.
            scores[number] = score / (1 + weights.session)
