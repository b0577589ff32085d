"""The notes that mean what a query means: vectors kept as blobs beside the notes, compared one and all in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kestrel_lab.log.store import SessionStore
from kestrel_lab.memory.vectors import Embedder, Vectors

if TYPE_CHECKING:
    import numpy as np

FILLING_S = 2.0
"""How long a search may make vectors that are missing; those of the newest notes come first, the others with later searches."""
_BATCH = 32


@dataclass(frozen=True, slots=True)
class _Held:
    """The vectors of a workspace, as of a version of its notes."""

    version: object
    numbers: np.ndarray[Any, Any]
    """Of the notes, ascending."""
    matrix: Vectors
    whole: bool
    """Whether every note has one."""


class VectorIndex:
    """The vectors of all notes: made when they are first needed, so that notes may come and change without them.

    Search is exact: a hundred thousand vectors are one product of a matrix and a vector, some ten milliseconds.
    """

    def __init__(self, store: SessionStore, embedder: Callable[[], Embedder], *, filling_s: float = FILLING_S) -> None:
        self._store, self._load, self._filling_s = store, embedder, filling_s
        self._held: dict[str, _Held] = {}

    @property
    def ordering(self) -> float:
        """How much likeness counts in the order of notes; 0 where it only finds what words do not."""
        return float(getattr(self._load(), "ordering", 0.0))

    def nearest(self, query: str, workspace: str, top_k: int, *, also: Collection[int] = ()) -> dict[int, float]:
        """The notes most like the query, best first, with how alike they are from -1 to 1; then those of `also` that have vectors."""
        import numpy as np

        held = self._matrix(workspace)
        count = len(held.numbers)
        if not count or top_k < 1:
            return {}
        scores = held.matrix @ self._load()([query])[0]
        best = np.argpartition(-scores, min(top_k, count) - 1)[:top_k]
        found = {int(held.numbers[at]): float(scores[at]) for at in best[np.argsort(-scores[best], kind="stable")]}
        wanted = np.fromiter(also, dtype=np.int64, count=len(also))
        places = np.minimum(np.searchsorted(held.numbers, wanted), count - 1)
        known = held.numbers[places] == wanted
        return found | dict(zip(wanted[known].tolist(), scores[places[known]].tolist(), strict=True))

    def _matrix(self, workspace: str) -> _Held:
        """The notes that have vectors, and these; read again only when a note came, changed or went, or vectors were missing."""
        import numpy as np

        version = self._store.query("SELECT value FROM notes_version")[0][0]
        held = self._held.get(workspace)
        if held is None or held.version != version or not held.whole:
            whole = self._fill(workspace)
            rows = self._store.query(
                "SELECT number, vector, CASE kind WHEN 'episode' THEN run ELSE '' END FROM note_vectors JOIN notes USING (number)"
                " WHERE workspace = ? AND model = ? ORDER BY number",
                (workspace, self._load().name),
            )
            matrix: np.ndarray[Any, Any] = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4").reshape(
                len(rows), -1 if rows else 0
            )
            numbers = np.array([row[0] for row in rows], dtype=np.int64)
            held = _Held(version, numbers, _with_neighbours(matrix, [row[2] for row in rows]), whole)
            self._held = {workspace: held}
        return held

    def _fill(self, workspace: str) -> bool:
        """Make vectors that are missing, as many as there is time for; returns whether none is missing now."""
        embed = self._load()
        missing = self._store.query(
            "SELECT notes.number, text, author FROM notes LEFT JOIN note_vectors ON note_vectors.number = notes.number AND model = ?"
            " WHERE workspace = ? AND vector IS NULL ORDER BY notes.number DESC",
            (embed.name, workspace),
        )
        until = time.monotonic() + self._filling_s
        sql = "INSERT OR REPLACE INTO note_vectors(number, model, vector) SELECT number, ?, ? FROM notes WHERE number = ? AND text = ?"
        at = 0
        while at < len(missing) and (at == 0 or time.monotonic() < until):
            batch = missing[at : at + _BATCH]
            made = embed([f"{author}: {text}" if author else text for _, text, author in batch]).astype("<f4")
            for (number, text, _), vector in zip(batch, made, strict=True):
                done = self._store.execute(sql, (embed.name, vector.tobytes(), number, text), f"the vector of note {number}")
            at += _BATCH
        if missing:
            done.result()
        return at >= len(missing)


def _with_neighbours(matrix: Vectors, runs: list[str]) -> Vectors:
    """Vectors of which that of an episode is half its own and half that of it together with the episodes before and after it."""
    import numpy as np

    before = np.array([bool(run) and run == other for run, other in zip(runs[1:], runs, strict=False)], dtype=bool)
    if not before.any():
        return matrix
    around = matrix.copy()
    around[1:][before] += matrix[:-1][before]
    around[:-1][before] += matrix[1:][before]
    around /= np.maximum(np.linalg.norm(around, axis=1, keepdims=True), 1e-9)
    return (matrix + around) / 2
