"""The indexes of a session: one per folder, made when it is first asked for, under the session's home."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kestrel_lab.retrieval.index import CodeIndex

Tell = Callable[[str, float | None], None]
"""Told how far something is: a text, and a share from 0 to 1 or `None`."""
PATIENCE_S = 20.0
"""How long whoever searches waits for an index; after that they search what there is of it."""


class Indexes:
    """Indexes by folder."""

    def __init__(self, home: str | Path = ".kestrel") -> None:
        self._home = Path(home)
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

    def close(self) -> None:
        """Stop what is being built."""
        for index in self._known.values():
            index.close()
