"""diskcache that stores JSON text in its rows and nothing else.

As shipped, diskcache unpickles what its file says is a pickle and opens and deletes whatever path a row
names, so anybody who can write the file runs code. Here a row that is not plain text is a miss, and no file
beside the database is ever read, written or removed.
"""

from __future__ import annotations

import sqlite3
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from diskcache import Cache, Disk, Timeout

from kestrel_lab.host.filesystem import private_file, private_folder
from kestrel_lab.host.log_files import OpenDatabase
from kestrel_lab.middleware.cache import MAX_ROW, CacheStoreError

_RAW = 1
_TAMPERED = "a row of the tool cache was tampered with; it is not used"
_BUSY_S = 0.5
"""Longest wait for a writing process: no answer is worth more."""
_NOT_OURS = (sqlite3.Error, OSError, TypeError, ValueError, LookupError, AttributeError)
"""Errors raised when opening a file written by something else."""


class JsonDisk(Disk):  # type: ignore[misc]  # diskcache comes without types
    """Text keys and text values, in the row itself."""

    def put(self, key: Any) -> tuple[str, bool]:
        """The key as it is."""
        if not isinstance(key, str):
            raise TypeError(f"cache keys are text, not {type(key).__name__}")
        return key, True

    def get(self, key: Any, raw: bool) -> str:
        """The key back; what claims to be anything but text becomes an empty key."""
        return key if raw and isinstance(key, str) else ""

    def store(self, value: Any, read: bool, key: Any = None) -> tuple[int, int, None, str]:
        """The value as it is."""
        if read or not isinstance(value, str):
            raise TypeError(f"cached values are text, not {type(value).__name__}")
        return len(value), _RAW, None, value

    def fetch(self, mode: int, filename: str | None, value: Any, read: bool) -> str:
        """Return the value; raises `OSError`, a miss for diskcache, if we did not write the row."""
        if mode != _RAW or filename is not None or read or not isinstance(value, str):
            warnings.warn(_TAMPERED, stacklevel=2)
            raise OSError("not a row of ours")
        return value

    def filename(self, key: Any = None, value: Any = None) -> tuple[str, str]:
        """Refuse: values never lie in files."""
        raise OSError("the tool cache keeps no files")

    def remove(self, file_path: str) -> None:
        """No-op: rows never name files of ours."""


class BoundedCache(Cache):  # type: ignore[misc]  # diskcache comes without types
    """Reads no row that is larger than one of ours can be."""

    @property
    def _con(self) -> sqlite3.Connection:
        connection: sqlite3.Connection = super()._con
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ROW)
        return connection


def open_cache(folder: Path) -> Cache:
    """Return the cache in `folder`: at most 256 MB, least recently used answers are evicted first."""
    private_folder(folder)
    private_file(folder / "cache.db")
    return BoundedCache(
        str(folder),
        timeout=_BUSY_S,
        disk=JsonDisk,
        eviction_policy="least-recently-used",
        size_limit=256 * 2**20,
    )


class DiskStore:
    """A store in a folder.

    What is in the folder and cannot be read is thrown away, with a warning: it can be had again.
    """

    def __init__(self, folder: Path) -> None:
        """Raise `CacheStoreError` if the folder cannot be used."""
        try:
            self._cache = open_cache(folder)
        except _NOT_OURS as error:
            warnings.warn(
                f"the tool cache in {folder} cannot be read and starts empty ({type(error).__name__}: "
                f"{error})",
                stacklevel=2,
            )
            try:
                # Only these names: whatever else is in the folder is not ours.
                for name in ("cache.db", "cache.db-wal", "cache.db-shm"):
                    with suppress(FileNotFoundError):
                        (folder / name).unlink()
                self._cache = open_cache(folder)
            except _NOT_OURS as again:
                raise CacheStoreError(f"the tool cache cannot be kept in {folder}: {again}") from again

        self._files = OpenDatabase(folder / "cache.db")

    async def get(self, key: str) -> str | None:
        """The text under `key`; a row that is not ours is none, with a warning."""
        try:
            found: str | None = self._cache.get(key)
        except sqlite3.DataError:  # too big
            warnings.warn(_TAMPERED, stacklevel=2)
            return None
        except (sqlite3.Error, Timeout, OSError) as error:
            raise CacheStoreError(_error_text(error)) from error
        return found

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep `value` under `key`."""
        try:
            self._cache.set(key, value, expire=ttl_s)
        except (sqlite3.Error, Timeout, OSError) as error:
            raise CacheStoreError(_error_text(error)) from error

    def clear(self) -> None:
        """Delete everything, also from the free pages of the files."""
        self._cache.clear()
        # SQLite keeps deleted rows in free pages and in the write-ahead log.
        for statement in ("VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
            self._cache._sql(statement).fetchall()

    def close(self) -> None:
        """Close the file."""
        self._cache.close()
        self._files.close()


def _error_text(error: Exception) -> str:
    return f"the tool cache on disk: {str(error) or type(error).__name__}"
