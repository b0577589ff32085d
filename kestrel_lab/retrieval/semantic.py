"""Semantic similarity of a question and chunks of files, by embeddings stored in the index."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import apsw

from kestrel_lab.retrieval.indexing.file_list import read_text
from kestrel_lab.retrieval.indexing.table import WriteTransaction

_CHARS = 2_000
"""Characters of a chunk that are embedded."""


class Embedder(Protocol):
    """Makes vectors of texts; as in `kestrel_lab.memory.embeddings`."""

    @property
    def name(self) -> str:
        """Key for its stored vectors."""

    def __call__(self, texts: Sequence[str]) -> Any:
        """One row of length 1 per text."""


class SemanticScorer:
    """Compares a question with chunks; vectors are computed on first use and stored in the index."""

    def __init__(self, load: Callable[[], Embedder]) -> None:
        self._load = load

    def __call__(
        self, connection: apsw.Connection, question: str, chunks: Mapping[int, int], *, folder: Path
    ) -> dict[int, float]:
        """Return each file's similarity of its chunk to the question, scaled from 0 (least) to 1 (most)."""
        import numpy as np

        embed = self._load()
        held = self._held(connection, embed.name, list(chunks.values()))
        missing = [chunk for chunk in chunks.values() if chunk not in held]
        if missing:
            held |= self._made(connection, folder, embed, missing)
        known = [(file, held[chunk]) for file, chunk in chunks.items() if chunk in held]
        # One file alone is neither the most nor the least similar.
        if len(known) < 2:
            return {}
        scores = np.stack([vector for _, vector in known]) @ embed([question[:_CHARS]])[0]
        low, high = float(scores.min()), float(scores.max())
        return (
            {
                file: (float(score) - low) / (high - low)
                for (file, _), score in zip(known, scores, strict=True)
            }
            if high > low
            else {}
        )

    def _held(self, connection: apsw.Connection, model: str, chunks: Sequence[int]) -> dict[int, Any]:
        import numpy as np

        sql = (
            "SELECT chunk, vector FROM vectors WHERE model = ? AND chunk IN (SELECT value FROM json_each(?))"
        )
        return {
            chunk: np.frombuffer(vector, dtype="<f4")
            for chunk, vector in connection.execute(sql, (model, json.dumps(list(chunks))))
        }

    def _made(
        self, connection: apsw.Connection, folder: Path, embed: Embedder, chunks: Sequence[int]
    ) -> dict[int, Any]:
        sql = (
            "SELECT chunks.id, path, name, first, last FROM chunks JOIN files ON files.id = file WHERE "
            "chunks.id IN (SELECT value FROM json_each(?))"
        )
        numbers, texts = [], []
        for chunk, path, name, first, last in list(connection.execute(sql, (json.dumps(list(chunks)),))):
            text = read_text(folder, path)
            if not isinstance(text, str):
                numbers.append(chunk)
                texts.append(f"{name}\n" + "\n".join(text[0].split("\n")[first - 1 : last])[:_CHARS])
        if not numbers:
            return {}
        vectors = embed(texts).astype("<f4")
        # A reader's: it ends before anything is written.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        with WriteTransaction(connection):
            connection.executemany(
                "INSERT OR REPLACE INTO vectors SELECT ?1, ?2, ?3 WHERE EXISTS (SELECT 1 FROM chunks "
                "WHERE id = ?1)",
                [
                    (number, embed.name, vector.tobytes())
                    for number, vector in zip(numbers, vectors, strict=True)
                ],
            )
        return dict(zip(numbers, vectors, strict=True))
