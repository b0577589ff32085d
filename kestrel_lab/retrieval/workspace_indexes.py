"""The indexes of a session: one per folder, made when it is first asked for, under the session's home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kestrel_lab.retrieval.cascade import Cascade
from kestrel_lab.retrieval.indexing.index import CodeIndex
from kestrel_lab.retrieval.search import Search
from kestrel_lab.retrieval.semantic import Meaning

Tell = Callable[[str, float | None], None]
"""Told how far something is: a text, and a share from 0 to 1 or `None`."""
PATIENCE_S = 20.0
"""How long whoever searches waits for an index; after that they search what there is of it."""


class Indexes:
    """Indexes by folder."""

    def __init__(self, home: str | Path = ".kestrel", meaning: Meaning | None = None) -> None:
        """Prepare; with `meaning` folders of documents are searched by that too."""
        self._home, self._meaning = Path(home).resolve(), meaning
        self._known: dict[Path, CodeIndex] = {}

    def of(self, folder: str | Path) -> CodeIndex:
        """The index of a folder; nothing is built yet."""
        place = Path(folder).resolve()
        return self._known.setdefault(place, CodeIndex(place, self._home))

    def ready(self, folder: str | Path, tell: Tell | None = None, patience_s: float = PATIENCE_S) -> tuple[CodeIndex, str]:
        """The index of a folder, brought up to date as far as that goes in `patience_s`, and a note where that was not all.

        The rest is built in the background. Raises `UsageError` without the folder, `StoreError` where no index can be kept.
        """
        index = self.of(folder)
        note = index.up_to_date(patience_s, None if tell is None else lambda done, total, path: tell(f"indexing {path}", done / total))
        return index, note

    def cascade(self, index: CodeIndex) -> Cascade:
        """The retriever for an index of these."""
        return Cascade(index, meaning=self._meaning_of(index))

    def search(self, index: CodeIndex) -> Search:
        """The first part of that alone."""
        return Search(index, meaning=self._meaning_of(index))

    def _meaning_of(self, index: CodeIndex) -> Meaning | None:
        """Meaning helps with documents, where it was measured; for code the words of names say more."""
        if self._meaning is None:
            return None
        ((prose, files),) = index.rows("SELECT coalesce(sum(language = 'prose'), 0), count(*) FROM files WHERE skipped = ''")
        return self._meaning if 2 * prose > files else None

    def close(self) -> None:
        """Stop what is being built."""
        for index in self._known.values():
            index.close()
