"""diskcache that stores JSON text in its rows and nothing else.

As shipped, diskcache unpickles what its file says is a pickle and opens and deletes whatever path a row
names, so whoever can write the file runs code. Here a row that is not plain text is a miss, and no file
beside the database is ever read, written or removed.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from diskcache import Cache, Disk

_RAW = 1


class JsonDisk(Disk):  # type: ignore[misc]  # diskcache comes without types
    """Text keys and text values, in the row itself."""

    def put(self, key: Any) -> tuple[str, bool]:
        """The key as it is."""
        if not isinstance(key, str):
            msg = f"cache keys are text, not {type(key).__name__}"
            raise TypeError(msg)
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """The key back; what claims to be anything but text becomes an empty key."""
        return key if raw and isinstance(key, str) else ""

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, str]:
        """The value as it is."""
        if read or not isinstance(value, str):
            msg = f"cached values are text, not {type(value).__name__}"
            raise TypeError(msg)
        return len(value), _RAW, None, value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> str:
        """The value back; raises `OSError`, which diskcache takes for a miss, for a row that we did not write."""
        if mode != _RAW or filename is not None or read or not isinstance(value, str):
            warnings.warn("a row of the tool cache was tampered with; it is not used", stacklevel=2)
            msg = "not a row of ours"
            raise OSError(msg)
        return value

    def filename(self, key: Any = None, value: Any = None) -> tuple[str, str]:
        """Refuse: values never lie in files."""
        msg = "the tool cache keeps no files"
        raise OSError(msg)

    def remove(self, file_path: str) -> None:
        """Remove nothing: there are no files of ours, whatever a row says."""


def open_cache(folder: Path) -> Cache:
    """The cache in `folder`, at most 256 MB, least recently used answers leave first."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Cache(str(folder), disk=JsonDisk, eviction_policy="least-recently-used", size_limit=256 * 2**20)
