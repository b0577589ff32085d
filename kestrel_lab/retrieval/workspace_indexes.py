"""Code indexes of a session, one per folder, made on first use under the session's home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kestrel_lab.retrieval.cascade import Cascade
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.search import Search
from kestrel_lab.retrieval.semantic import SemanticScorer

Report = Callable[[str, float | None], None]
"""Receives progress: a text, and a share from 0 to 1 or `None`."""
PATIENCE_S = 20.0
"""Seconds that a search waits for an index; then it searches the part that is there."""


class WorkspaceIndexes:
    """Indexes by folder."""

    def __init__(self, home: str | Path, meaning: SemanticScorer | None = None) -> None:
        """Build nothing yet; with `meaning` document folders are also searched by embeddings."""
        self._home, self._meaning = Path(home).resolve(), meaning
        self._known: dict[Path, CodeIndex] = {}

    def of(self, folder: str | Path) -> CodeIndex:
        """Return the index of a folder without building it."""
        place = Path(folder).resolve()
        return self._known.setdefault(place, CodeIndex(place, self._home))

    def ready(self, folder: str | Path, report: Report | None = None) -> tuple[CodeIndex, str]:
        """Update the index of a folder for at most `PATIENCE_S`; return it, with a note if it is incomplete.

        The rest is built in the background. Raises `UsageError` without the folder, `StoreError` if no index
        can be kept.
        """
        index = self.of(folder)
        note = index.up_to_date(
            PATIENCE_S,
            None if report is None else lambda done, total, path: report(f"indexing {path}", done / total),
        )
        return index, note

    def cascade(self, index: CodeIndex) -> Cascade:
        """Return the cascade for an index."""
        return Cascade(index, meaning=self._meaning_of(index))

    def search(self, index: CodeIndex) -> Search:
        """Return the plain search for an index."""
        return Search(index, meaning=self._meaning_of(index))

    def _meaning_of(self, index: CodeIndex) -> SemanticScorer | None:
        """Return embeddings for a folder of documents, where they were measured to help; `None` for code."""
        if self._meaning is None:
            return None
        ((prose, files),) = index.rows(
            "SELECT coalesce(sum(language = 'prose'), 0), count(*) FROM files WHERE skipped = ''"
        )
        return self._meaning if 2 * prose > files else None

    def close(self) -> None:
        """Stop all index builds."""
        for index in self._known.values():
            index.close()
