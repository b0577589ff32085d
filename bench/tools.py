"""How well tools are found: plain BM25 beside ours, by category, on the same questions in one run.

A folder with `bfcl_tools.jsonl` (name, description, parameters) and `bfcl_queries.jsonl` (a question, and the
tools it needs). Questions are parted into two halves by a hash of their ids: `choose` shows what settings
were chosen by, `report` what they give on questions that nothing was chosen by. Both halves are about the
same tools, and the way of searching itself was found while looking at questions of this kind: these are
numbers of development, not of a test.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw

from kestrel_lab.memory.embeddings import default_embedder
from kestrel_lab.tools.tool_search import ToolDescription, ToolIndex, Weights
from kestrel_lab.views.text import table_text

AT = 5
Find = Callable[[str], Sequence[str]]
"""From a question to the names of tools, best first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """What is asked, and the tools that it needs."""

    id: str
    text: str
    category: str
    wanted: frozenset[str]

    @property
    def half(self) -> str:
        """`choose` or `report`, by its id alone."""
        return "report" if hashlib.sha256(self.id.encode()).digest()[0] % 2 else "choose"


def read(folder: Path) -> tuple[list[ToolDescription], list[Question]]:
    """The tools and the questions of a folder."""
    tools = [
        ToolDescription(
            name=item["_id"],
            description=item["description"],
            parameters=" ".join(f"{name} {about}" for name, about in item["parameters"].items()),
        )
        for item in _lines(folder / "bfcl_tools.jsonl")
    ]
    questions = [
        Question(
            id=item["_id"], text=item["query"], category=item["category"], wanted=frozenset(item["gold"])
        )
        for item in _lines(folder / "bfcl_queries.jsonl")
    ]
    return tools, questions


def plain(tools: Iterable[ToolDescription]) -> Find:
    """Full-text search as it comes: one text per tool, every word of the question, BM25."""
    index = apsw.Connection(":memory:")
    index.execute("CREATE VIRTUAL TABLE tools USING fts5(name UNINDEXED, text)")
    index.executemany(
        "INSERT INTO tools VALUES (?, ?)",
        [(one.name, f"{one.name} {one.description} {one.parameters}") for one in tools],
    )

    def find(question: str) -> list[str]:
        words = "".join(sign if sign.isalnum() else " " for sign in question).split()
        match = " OR ".join(f'"{word}"' for word in words)
        return [
            str(row[0])
            for row in index.execute(
                "SELECT name FROM tools WHERE tools MATCH ? ORDER BY rank LIMIT ?", (match, AT)
            )
        ]

    return find


def ours(tools: Iterable[ToolDescription], weights: Weights, *, meaning: bool) -> Find:
    """The search of the package."""
    index = ToolIndex(tools, weights=weights, embedder=default_embedder() if meaning else None)
    return lambda question: index.search(question, AT)


def recall(find: Find, questions: Sequence[Question]) -> dict[str, float]:
    """Recall at 5 of the needed tools, by category and in `all`; `ms` per question."""
    shares: dict[str, list[float]] = defaultdict(list)
    began = time.perf_counter()
    for question in questions:
        share = len(question.wanted & set(find(question.text)[:AT])) / len(question.wanted)
        shares[question.category].append(share)
        shares["all"].append(share)
    took = time.perf_counter() - began
    return {name: sum(each) / len(each) for name, each in sorted(shares.items())} | {
        "ms": took * 1000 / len(questions)
    }


def ways(tools: Sequence[ToolDescription]) -> dict[str, Find]:
    """Every way of searching that is compared."""
    found = {"plain BM25": plain(tools), "ours, words only": ours(tools, Weights(), meaning=False)}
    if default_embedder() is not None:
        found["ours, with meanings (extra)"] = ours(tools, Weights(), meaning=True)
    return found


def grid(tools: Sequence[ToolDescription]) -> dict[str, Find]:
    """The settings that were looked at on the half `choose`."""
    found = {}
    for weights in (
        Weights(),
        Weights(name=1.0),
        Weights(name=3.0),
        Weights(parameters=0.3),
        Weights(parameters=0.8),
        Weights(pairs=0.0),
        Weights(pairs=0.5),
    ):
        found[f"name {weights.name:g}, parameters {weights.parameters:g}, pairs {weights.pairs:g}"] = ours(
            tools, weights, meaning=False
        )
    for meaning in (0.3, 0.5, 0.7, 1.0) if default_embedder() is not None else ():
        found[f"meaning {meaning:g}"] = ours(tools, Weights(meaning=meaning), meaning=True)
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; with `--out` write them as JSON too.

    Returns 1 if ours is not better than BM25 in every category of both halves.
    """
    parser = argparse.ArgumentParser(
        prog="python -m bench tools", description="Measure how well tools are found."
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder with bfcl_tools.jsonl and bfcl_queries.jsonl"
    )
    parser.add_argument(
        "--grid",
        action="store_true",
        help="show the settings that were looked at, on the half they were chosen by",
    )
    parser.add_argument("--out", type=Path, help="file for the numbers as JSON")
    asked = parser.parse_args(arguments)
    tools, questions = read(asked.data)
    print(f"{len(tools):,} tools, {len(questions):,} questions; recall@{AT}; numbers of development")
    kept: dict[str, Any] = {}
    worse = False
    for half in ("choose", "report", "both"):
        mine = [question for question in questions if half in {question.half, "both"}]
        searched = ways(tools) | (grid(tools) if asked.grid and half == "choose" else {})
        found = {name: recall(find, mine) for name, find in searched.items()}
        heads = list(next(iter(found.values())))
        print(f"\n{half}: {len(mine):,} questions\n")
        print(
            table_text(
                ("search", *heads),
                [(name, *(f"{row[head]:.3f}" for head in heads)) for name, row in found.items()],
            )
        )
        kept[half] = found
        bar = found["plain BM25"]
        worse = any(
            row[head] <= bar[head]
            for name, row in found.items()
            if name.startswith("ours")
            for head in heads
            if head != "ms"
        )
    if asked.out:
        asked.out.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(worse)


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        sys.exit(f"there is no {path}")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
