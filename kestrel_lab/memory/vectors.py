"""What notes mean, as vectors: kept as blobs beside them, compared in memory. Only where the extra `semantic` is installed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from kestrel_lab.log.store import SessionStore

if TYPE_CHECKING:
    import numpy as np

Vectors = Any
"""Rows of 32-bit floats, one per text, each of length 1."""


class Embedder(Protocol):
    """Makes vectors of texts."""

    @property
    def name(self) -> str:
        """What its vectors are filed under: those of different names are not compared."""
        ...

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """One row per text."""
        ...


class WordVectors:
    """The static word vectors that come inside the package `wordllama`: nothing is fetched, a text costs microseconds."""

    name = "wordllama-256"

    def __init__(self) -> None:
        quiet, root = logging.NullHandler(), logging.getLogger()
        root.addHandler(quiet)  # the package sets up the logging of the whole program, unless it finds that done
        try:
            import wordllama  # an extra, and a third of a second
        finally:
            root.removeHandler(quiet)

        # Its own folder has the tokenizer too; without it named as the cache it would look for one on the network.
        place = Path(wordllama.__file__).parent
        self._model = wordllama.WordLlama.load(cache_dir=place, disable_download=True)

    def __call__(self, texts: Sequence[str]) -> Vectors:
        """One row per text."""
        return self._model.embed(list(texts), norm=True)


@cache
def default_embedder() -> Callable[[], Embedder] | None:
    """What makes the vectors of the installed extra; `None` without it."""
    return cache(WordVectors) if find_spec("wordllama") is not None else None


class VectorIndex:
    """The vectors of all notes: made when they are first needed, so that notes may come and change without them."""

    def __init__(self, store: SessionStore, embedder: Callable[[], Embedder]) -> None:
        self._store, self._load = store, embedder
        self._held: dict[str, tuple[object, list[int], Vectors]] = {}

    def nearest(self, query: str, workspace: str, top_k: int) -> dict[int, float]:
        """The notes most like the query, best first, with how alike they are."""
        import numpy as np

        numbers, matrix = self._matrix(workspace)
        if not numbers or top_k < 1:
            return {}
        scores = matrix @ self._load()([query])[0]
        best = np.argpartition(-scores, min(top_k, len(scores)) - 1)[:top_k]
        return {numbers[int(at)]: float(scores[at]) for at in sorted(best, key=lambda at: -scores[at])}

    def _matrix(self, workspace: str) -> tuple[list[int], Vectors]:
        """The notes that have vectors, and these; read again only when a note came, changed or went."""
        import numpy as np

        version = self._store.query("SELECT value FROM notes_version")[0][0]
        held = self._held.get(workspace)
        if held is None or held[0] != version:
            self._fill(workspace)
            rows = self._store.query(
                "SELECT number, vector FROM note_vectors JOIN notes USING (number) WHERE workspace = ? AND model = ? ORDER BY number",
                (workspace, self._load().name),
            )
            matrix: np.ndarray[Any, Any] = np.frombuffer(b"".join(vector for _, vector in rows), dtype="<f4").reshape(
                len(rows), -1 if rows else 0
            )
            held = (version, [int(number) for number, _ in rows], matrix)
            self._held = {workspace: held}
        return held[1], held[2]

    def _fill(self, workspace: str) -> None:
        """Make the vectors that are missing."""
        embed = self._load()
        missing = self._store.query(
            "SELECT notes.number, text FROM notes LEFT JOIN note_vectors ON note_vectors.number = notes.number AND model = ?"
            " WHERE workspace = ? AND vector IS NULL",
            (embed.name, workspace),
        )
        if not missing:
            return
        made = embed([text for _, text in missing]).astype("<f4")
        sql = "INSERT OR REPLACE INTO note_vectors(number, model, vector) SELECT number, ?, ? FROM notes WHERE number = ? AND text = ?"
        for (number, text), vector in zip(missing, made, strict=True):
            done = self._store.execute(sql, (embed.name, vector.tobytes(), number, text), f"the vector of note {number}")
        done.result()
