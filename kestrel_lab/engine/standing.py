"""The files of a run's workspace as they are now: what citations of its answer are held against when it is shown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

_LARGEST: Final = 1_500_000
"""Bytes of a file that is looked into."""


def reader(workspace: str) -> Callable[[str], str | None] | None:
    """Reads a file of the folder by its path, each once; `None` as its text where there is none inside, or no text.

    Nothing at all where the folder itself is not there: then nothing is known of its files.
    """
    root = Path(workspace)
    if not workspace or not root.is_dir():
        return None
    root, known = root.resolve(), dict[str, str | None]()

    def read(path: str) -> str | None:
        if path not in known:
            known[path] = _text(root, path)
        return known[path]

    return read


def _text(root: Path, path: str) -> str | None:
    try:
        place = (root / path).resolve()
        if not place.is_relative_to(root) or not place.is_file() or place.stat().st_size > _LARGEST:
            return None
        return place.read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # a name that cannot be one, or links in a circle
        return None
