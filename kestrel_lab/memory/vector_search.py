"""Vector search of notes: candidates from a `vec0` table, re-scored with full vectors."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from kestrel_lab.core.json_types import dumps
from kestrel_lab.eventlog.connection import add_vector_tables
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.vector_tables import candidate_rows, load_problem, sign_bits, table_name
from kestrel_lab.memory.embeddings import Embedder, Vectors
from kestrel_lab.memory.table import AFTER, BEFORE, BESIDE_CHANGED

FILLING_S = 2.0
"""Seconds a search may spend on missing vectors, newest notes first; later searches continue."""
_BATCH = 32
_INDEXED_AT_ONCE = 1_000
_FEW = 5_000
"""Up to so many notes are compared one and all, which is faster and exact."""

_INDEX = """
CREATE VIRTUAL TABLE IF NOT EXISTS {table} USING vec0(workspace TEXT PARTITION KEY, bits BIT[{width}]);
CREATE TRIGGER IF NOT EXISTS {table}_deleted AFTER DELETE ON note_vectors BEGIN DELETE FROM {table} WHERE \
rowid = OLD.number; END;
CREATE TRIGGER IF NOT EXISTS {table}_changed AFTER UPDATE ON note_vectors BEGIN DELETE FROM {table} WHERE \
rowid = OLD.number; END;
"""
_TAGGED = (
    "SELECT number FROM note_names WHERE kind = 'tag' AND name IN (SELECT value FROM json_each(?))"
    " GROUP BY number HAVING count(*) = json_array_length(?)"
)
_KEEP = f"""
INSERT OR REPLACE INTO note_vectors(number, model, vector) SELECT number, ?, ? FROM notes WHERE number = ? \
AND text = ?;
{BESIDE_CHANGED}
"""
"""Stores a vector if the note still has its text; its neighbours are then indexed again."""
_VECTORS = f"""
SELECT notes.number, own.vector, before.vector, after.vector FROM notes JOIN note_vectors AS own ON \
own.number = notes.number AND own.model = ?1
LEFT JOIN note_vectors AS before ON before.model = ?1 AND notes.run <> '' AND before.number = ({BEFORE})
LEFT JOIN note_vectors AS after ON after.model = ?1 AND notes.run <> '' AND after.number = ({AFTER})
WHERE notes.number IN (SELECT value FROM json_each(?2)) ORDER BY notes.number
"""


@dataclass(frozen=True, slots=True)
class _Filled:
    """Known state of a workspace's vectors at a version of its notes."""

    version: int
    count: int
    held: tuple[list[int], Vectors] | None = None
    """Numbers and vectors of all notes, if all are compared."""


class VectorIndex:
    """The vectors of all notes. They are made when a search first needs them, so that notes come and change
    without an embedder.

    `note_vectors` has the vector of each note. A `vec0` table per model, partitioned by workspace, has the
    signs of its numbers as bits; a trigger takes a row out of it in the transaction that deletes or changes
    the vector. Where sqlite-vec cannot be loaded, the query is compared with every vector.
    """

    def __init__(
        self, store: SessionStore, embedder: Callable[[], Embedder], *, filling_s: float = FILLING_S
    ) -> None:
        self._store, self._load, self._filling_s = store, embedder, filling_s
        self._table = ""
        self._filled: dict[str, _Filled] = {}

    @property
    def ordering(self) -> float:
        """Weight of similarity in the ranking; 0 if vectors only find what words do not."""
        return float(getattr(self._load(), "ordering", 0.0))

    def nearest(
        self, query: str, workspace: str, top_k: int, *, tags: Sequence[str] = (), also: Collection[int] = ()
    ) -> dict[int, float]:
        """Return the notes with all of `tags` most like the query, best first, and their likeness from -1 to
        1; then those of `also`.
        """
        vector = self._load()([query])[0]
        filled = self._fill(workspace, len(vector))
        if not filled.count or top_k < 1:
            return {}
        tagged = dumps([tag.lower() for tag in tags])
        if filled.held is not None:
            numbers, matrix = filled.held
            wanted = {row[0] for row in self._store.query(_TAGGED, (tagged, tagged))} if tags else {*numbers}
        else:
            where, bindings = (
                (f"workspace = ? AND rowid IN ({_TAGGED})", (tagged, tagged))
                if tags
                else ("workspace = ?", ())
            )
            wanted = {
                *candidate_rows(self._store.query, self._table, vector, top_k, where, (workspace, *bindings))
            }
            numbers, matrix = self._vectors(sorted({*wanted, *also}))
        scores = dict(zip(numbers, (matrix @ vector).tolist(), strict=True))
        best = sorted(wanted & scores.keys(), key=lambda number: (-scores[number], number))[:top_k]
        return {number: scores[number] for number in (*best, *also) if number in scores}

    def _fill(self, workspace: str, width: int) -> _Filled:
        """Add missing vectors and index entries, unless no note changed since none were missing."""
        version = self._store.query("SELECT value FROM notes_version")[0][0]
        if (known := self._filled.get(workspace)) is not None and known.version == version:
            return known
        if not self._table and not load_problem():
            table = table_name("note_index", self._load().name)
            add_vector_tables(self._store.path, _INDEX.format(table=table, width=-width % 8 + width))
            self._table = table
        until = time.monotonic() + self._filling_s
        whole = self._made(workspace, until) and (not self._table or self._indexed(workspace, until))
        sql = (
            "SELECT number FROM notes JOIN note_vectors USING (number) WHERE workspace = ? AND model = "
            "? ORDER BY number"
        )
        numbers = [row[0] for row in self._store.query(sql, (workspace, self._load().name))]
        few = len(numbers) <= _FEW or not self._table
        filled = _Filled(version, len(numbers), self._vectors(numbers) if few and numbers else None)
        if whole:
            # Only the last workspace is kept: the vectors of all its notes are in memory.
            self._filled = {workspace: filled}
        return filled

    def _made(self, workspace: str, until: float) -> bool:
        """Make missing vectors, as many as there is time for; return whether all notes have theirs."""
        embed = self._load()
        lacking = (
            "SELECT number, text, author FROM notes WHERE workspace = ? AND number NOT IN (SELECT "
            "number FROM note_vectors WHERE model = ?)"
            f" ORDER BY number DESC LIMIT {_BATCH}"
        )
        while batch := self._store.query(lacking, (workspace, embed.name)):
            vectors = embed([f"{author}: {text}" if author else text for _, text, author in batch]).astype(
                "<f4"
            )
            for (number, text, _), vector in zip(batch, vectors, strict=True):
                bindings = (embed.name, vector.tobytes(), number, text, number)
                done = self._store.execute(_KEEP, bindings, f"the vector of note {number}")
            done.result()
            if time.monotonic() >= until:
                return not self._store.query(lacking, (workspace, embed.name))
        return True

    def _indexed(self, workspace: str, until: float) -> bool:
        """Add missing bits to the index, as time allows; return true if some are still missing."""
        table, model = self._table, self._load().name
        sql = (
            "SELECT number FROM notes JOIN note_vectors USING (number) WHERE workspace = ? AND model "
            f"= ? AND number NOT IN (SELECT rowid FROM {table}) ORDER BY number DESC"
        )
        lacking = [row[0] for row in self._store.query(sql, (workspace, model))]
        for at in range(0, len(lacking), _INDEXED_AT_ONCE):
            if at and time.monotonic() >= until:
                return False
            numbers, matrix = self._vectors(lacking[at : at + _INDEXED_AT_ONCE])
            rows = dumps(
                [[number, row.hex()] for number, row in zip(numbers, sign_bits(matrix), strict=True)]
            )
            sql = (
                f"DELETE FROM {table} WHERE rowid IN (SELECT value ->> 0 FROM json_each(?));"
                f"INSERT INTO {table}(rowid, workspace, bits) SELECT number, workspace, "
                "vec_bit(unhex(value ->> 1))"
                " FROM json_each(?) JOIN notes ON number = value ->> 0 JOIN note_vectors USING "
                "(number) WHERE model = ?"
            )
            self._store.execute(sql, (rows, rows, model), "the index of vectors").result()
        return True

    def _vectors(self, numbers: Sequence[int]) -> tuple[list[int], Vectors]:
        """Return those of `numbers` with vectors, and the vectors: an episode's is averaged with its
        neighbours.
        """
        import numpy as np

        rows = self._store.query(_VECTORS, (self._load().name, dumps(list(numbers))))
        if not rows:
            return [], np.empty((0, 0), dtype="f4")
        found = np.frombuffer(b"".join(row[1] for row in rows), dtype="<f4").reshape(len(rows), -1)
        if beside := [at for at, row in enumerate(rows) if row[2] or row[3]]:
            nothing, own = bytes(found.itemsize * found.shape[1]), found[beside]
            before, after = (
                np.frombuffer(b"".join(rows[at][column] or nothing for at in beside), dtype="<f4").reshape(
                    own.shape
                )
                for column in (2, 3)
            )
            around = own + before + after
            around /= np.maximum(np.linalg.norm(around, axis=1, keepdims=True), 1e-9)
            found = found.copy()
            found[beside] = (own + around) / 2
        return [row[0] for row in rows], found
