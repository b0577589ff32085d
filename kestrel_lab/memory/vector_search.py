"""The notes that mean what a query means: vectors kept as blobs beside the notes, compared one and all in memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.json_types import dumps
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.embeddings import Embedder, Vectors

if TYPE_CHECKING:
    import numpy as np

FILLING_S = 2.0
"""How long a search may make vectors that are missing; those of the newest notes come first, the others with later searches."""
_BATCH = 32


_Key = tuple[int, float, bytes, str]
"""Number, moment and words of a note, and the run of an episode: as long as these are the same its vector is."""


@dataclass(frozen=True, slots=True)
class _Held:
    """The vectors of a workspace, as of a version of its notes."""

    version: object
    places: dict[_Key, int]
    """The row of each note, by ascending numbers."""
    numbers: np.ndarray[Any, Any]
    own: Vectors
    """What each note means by itself."""
    matrix: Vectors
    """The same, episodes together with those beside them."""
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
        """The notes that have vectors, and these; looked for again only when a note came, changed or went, or vectors were missing."""
        version = self._store.query("SELECT value FROM notes_version")[0][0]
        held = self._held.get(workspace)
        if held is None or held.version != version or not held.whole:
            held = self._updated(workspace, held, version)
            self._held = {workspace: held}
        return held

    def _updated(self, workspace: str, held: _Held | None, version: object) -> _Held:
        """The vectors as they are now; of those that are held none is read again."""
        import numpy as np

        keys: list[_Key] = self._store.query(
            "SELECT number, at, same, CASE kind WHEN 'episode' THEN run ELSE '' END FROM notes WHERE workspace = ? ORDER BY number",
            (workspace,),
        )
        places = held.places if held else {}
        missing = [key[0] for key in keys if key not in places]
        new = self._stored(missing)
        lacking = [number for number in reversed(missing) if number not in new]
        new |= self._made(lacking)
        there = [key for key in keys if key in places or key[0] in new]
        old = np.array([places.get(key, -1) for key in there], dtype=np.int64)
        width = len(next(iter(new.values()))) // 4 if new else held.own.shape[1] if held else 0
        own = np.empty((len(there), width), dtype="<f4")
        if held is not None:
            own[old >= 0] = held.own[old[old >= 0]]
        for row in np.flatnonzero(old < 0).tolist():
            own[row] = np.frombuffer(new[there[row][0]], dtype="<f4")
        matrix = _with_neighbours(own, [key[3] for key in there])
        numbers = np.array([key[0] for key in there], dtype=np.int64)
        return _Held(version, {key: row for row, key in enumerate(there)}, numbers, own, matrix, len(there) == len(keys))

    def _stored(self, numbers: list[int]) -> dict[int, bytes]:
        sql = "SELECT number, vector FROM note_vectors WHERE model = ? AND number IN (SELECT value FROM json_each(?))"
        return dict(self._store.query(sql, (self._load().name, dumps(numbers)))) if numbers else {}

    def _made(self, numbers: list[int]) -> dict[int, bytes]:
        """Make vectors of these notes, as many as there is time for, and keep them."""
        embed = self._load()
        until = time.monotonic() + self._filling_s
        sql = "INSERT OR REPLACE INTO note_vectors(number, model, vector) SELECT number, ?, ? FROM notes WHERE number = ? AND text = ?"
        made: dict[int, bytes] = {}
        for at in range(0, len(numbers), _BATCH):
            if at and time.monotonic() >= until:
                break
            wanted = dumps(numbers[at : at + _BATCH])
            batch = self._store.query("SELECT number, text, author FROM notes WHERE number IN (SELECT value FROM json_each(?))", (wanted,))
            vectors = embed([f"{author}: {text}" if author else text for _, text, author in batch]).astype("<f4") if batch else ()
            for (number, text, _), vector in zip(batch, vectors, strict=True):
                made[number] = vector.tobytes()
                done = self._store.execute(sql, (embed.name, made[number], number, text), f"the vector of note {number}")
        if made:
            done.result()
        return made


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
