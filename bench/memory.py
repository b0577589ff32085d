"""How well notes are found: plain full-text search beside ours, part by part, on the same questions in one
run.

Two sets: LoCoMo, long conversations with questions whose evidence is marked by turn (a folder with
`locomo_turns.jsonl` and `locomo_questions.jsonl`), and `datasets/memory`, notes of coding work with what a
later goal should recall. The settings were chosen while looking at both: these are numbers of development,
not of a test. Chosen on four of the five conversations and measured on the fifth, for each in turn, recall@10
was .810 where this prints .811.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.embeddings import note_embedder
from kestrel_lab.memory.query import MemoryQueryEngine, Weights
from kestrel_lab.memory.table import NoteTable
from kestrel_lab.memory.vector_search import VectorIndex
from kestrel_lab.views.text import table_text

OWN = Path(__file__).parents[1] / "datasets" / "memory"
MULTI_HOP = 1
"""LoCoMo's number for questions whose evidence is in several places."""
_NOTHING = Weights(
    names=0, before=0, after=0, author=1, session=0, answer=0, question=0, length=0, entities=0, trust=0
)

Find = Callable[[str, str], Sequence[str]]
"""From a question and where it is put to the ids of at most ten notes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked, and the notes that say it."""

    text: str
    workspace: str
    wanted: frozenset[str]
    kind: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """What a way of searching found: means over questions."""

    recall: dict[tuple[int, int], float]
    """By kind of question (-1 for all) and by how many notes were looked at."""
    ms: float
    """Of a question."""


def variants(vectors: VectorIndex | None) -> dict[str, tuple[Weights, VectorIndex | None]]:
    """Ours, part by part: each has everything of the one before it."""
    full = Weights()
    steps: list[tuple[str, dict[str, float]]] = [
        ("porter stems, query stop list", {}),
        ("+ names, kind, who and when", {"names": full.names}),
        ("+ what stands before and after", {"before": full.before, "after": full.after}),
        ("+ who is asked about", {"author": full.author}),
        ("+ what belongs together", {"session": full.session}),
        (
            "+ what was asked, length",
            {"answer": full.answer, "question": full.question, "length": full.length},
        ),
        ("+ entities shared, confidence", {"entities": full.entities, "trust": full.trust}),
    ]
    found, weights = {}, _NOTHING
    for name, change in steps:
        weights = replace(weights, **change)  # type: ignore[arg-type]
        found[name] = (weights, None)
    if vectors is not None:
        what = (
            "in the order (extra minilm)" if vectors.ordering else "where words leave room (extra semantic)"
        )
        found[f"+ like meanings {what}"] = (full, vectors)
    return found


def locomo(folder: Path) -> tuple[list[tuple[str, Note]], list[Question]]:
    """The turns of the conversations as episodes, and the questions that have evidence."""
    notes = []
    for turn in _lines(folder / "locomo_turns.jsonl"):
        at = datetime.strptime(turn["date"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC).timestamp()
        text = turn["text"] + (f" [{turn['image_caption']}]" if turn["image_caption"] else "")
        run, sample = f"{turn['sample']}/{turn['session']}", turn["sample"]
        notes.append(
            (
                sample,
                Note(
                    id=f"{sample}/{turn['dia_id']}",
                    text=text,
                    kind="episode",
                    run=run,
                    author=turn["speaker"],
                    at=at,
                ),
            )
        )
    questions = [
        Question(
            text=item["question"],
            workspace=item["sample"],
            wanted=frozenset(f"{item['sample']}/{place}" for place in item["evidence"]),
            kind=item["category"],
        )
        for item in _lines(folder / "locomo_questions.jsonl")
        if item["evidence"]
    ]
    return notes, questions


def own(folder: Path = OWN) -> tuple[list[tuple[str, Note]], list[Question]]:
    """Notes of coding work, and what later goals should recall of them."""
    notes = [
        ("work", Note(id=item["id"], kind=item["kind"], text=item["text"], at=1.0))
        for item in _lines(folder / "notes.jsonl")
    ]
    return notes, [
        Question(text=item["query"], workspace="work", wanted=frozenset(item["notes"]))
        for item in _lines(folder / "queries.jsonl")
    ]


def plain(notes: Iterable[tuple[str, Note]]) -> Find:
    """Full-text search as it comes: every word of the question, no stems, the words of the notes alone."""
    index = apsw.Connection(":memory:")
    index.execute("CREATE VIRTUAL TABLE notes USING fts5(id UNINDEXED, workspace UNINDEXED, text)")
    index.executemany(
        "INSERT INTO notes VALUES (?, ?, ?)", [(note.id, workspace, note.text) for workspace, note in notes]
    )

    def find(question: str, workspace: str) -> list[str]:
        words = "".join(sign if sign.isalnum() else " " for sign in question).split()
        match = " OR ".join(f'"{word}"' for word in words)
        sql = "SELECT id FROM notes WHERE notes MATCH ? AND workspace = ? ORDER BY rank LIMIT 10"
        return [str(row[0]) for row in index.execute(sql, (match, workspace))]

    return find


def measure(find: Find, questions: Sequence[Question]) -> Found:
    """Recall at 5 and at 10: the share of the wanted notes that is among so many."""
    sums: dict[tuple[int, int], list[float]] = defaultdict(list)
    began = time.perf_counter()
    for question in questions:
        found = find(question.text, question.workspace)
        for many in (5, 10):
            share = len(question.wanted & set(found[:many])) / len(question.wanted)
            for kind in (-1, question.kind):
                sums[kind, many].append(share)
    took = time.perf_counter() - began
    return Found(
        recall={key: sum(shares) / len(shares) for key, shares in sums.items()},
        ms=took * 1000 / len(questions),
    )


def ablation(
    notes: Sequence[tuple[str, Note]], questions: Sequence[Question], say: Callable[[str], None]
) -> dict[str, Found]:
    """Plain search and each of our variants over the same notes."""
    say(f"{len(notes):,} notes, {len(questions):,} questions")
    found = {"plain FTS5": measure(plain(notes), questions)}
    with tempfile.TemporaryDirectory() as folder:
        store = SessionStore(Path(folder) / "notes.db")
        try:
            table = NoteTable(store)
            for done in [table.add(note, workspace) for workspace, note in notes]:
                done.result()
            embedder = note_embedder()
            for name, (weights, vectors) in variants(
                None if embedder is None else VectorIndex(store, embedder, filling_s=3600)
            ).items():
                engine = MemoryQueryEngine(table, weights, vectors)
                found[name] = measure(
                    lambda text, place, engine=engine: [
                        note.id for note in engine.rank(NoteQuery(text, 10, place))
                    ],
                    questions,
                )  # type: ignore[misc]
                say(name)
        finally:
            store.close()
    return found


def rows(found: dict[str, Found]) -> list[tuple[str, ...]]:
    """One row per way of searching."""
    several = any((MULTI_HOP, 10) in each.recall for each in found.values())
    return [
        (
            name,
            f"{each.recall[-1, 5]:.3f}",
            f"{each.recall[-1, 10]:.3f}",
            f"{each.recall[MULTI_HOP, 10]:.3f}" if several else "",
            f"{each.ms:.1f}",
        )
        for name, each in found.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with `--out` write them as JSON too.

    Returns 1 if ours is not better than plain search.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench memory", description="Measure how well notes are found."
    )
    parser.add_argument("--data", type=Path, help="folder with locomo_turns.jsonl and locomo_questions.jsonl")
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    asked = parser.parse_args(arguments)
    sets = {"notes of coding work": own()} | ({"LoCoMo": locomo(asked.data)} if asked.data else {})
    kept: dict[str, Any] = {}
    worse = False
    for name, (notes, questions) in sets.items():
        found = ablation(notes, questions, lambda text: print(f"  {text}", file=sys.stderr))
        print(f"\n{name}: {len(notes):,} notes, {len(questions):,} questions\n")
        print(table_text(("search", "recall@5", "recall@10", "multi-hop@10", "ms a question"), rows(found)))
        kept[name] = {
            way: {"ms": each.ms} | {f"{kind}@{many}": value for (kind, many), value in each.recall.items()}
            for way, each in found.items()
        }
        worse |= list(found.values())[-1].recall[-1, 5] <= found["plain FTS5"].recall[-1, 5]
    if asked.out:
        asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(worse)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        sys.exit(f"there is no {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
