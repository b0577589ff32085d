"""Log files: finds which files belong to a log, so that only SQLite opens them.

Closing any descriptor of a file drops all POSIX locks that the process has on it (fcntl(2)), including those
of SQLite. Then two processes may write to one database at the same time. So a file that this process has open
as a database is recognised by device and inode before anything opens it. Other logs are recognised by their
name, or by the header that SQLite writes.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

LOG = "kestrel.db"
"""The log, by which the home folder of a lab is known, whatever its own name."""
_BESIDE = ("", "-wal", "-shm", "-journal")
LOG_NAMES = frozenset(f"{LOG}{ending}" for ending in _BESIDE)
APPLICATION_ID = 0x4B53544C
"""What the header of a log says of the program that wrote it (`PRAGMA application_id`)."""
_HEADER = (b"SQLite format 3\0", APPLICATION_ID.to_bytes(4, "big"))
_ID_AT = 68
"""Where the header of a database has it (sqlite.org/fileformat.html)."""
_SMALLEST_PAGE = 512
_ALWAYS = os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)
"""Opening a pipe must not block."""

_lock = threading.Lock()
_inodes: Counter[tuple[int, int]] = Counter()
"""Device and inode of each file that is open here, and how many hold it."""
_folders: Counter[str] = Counter()
_unclosed: list[int] = []
"""Descriptors of such files that were opened by mistake: closing one would drop the locks."""


class OpenDatabase:
    """A database that this process has open, from `OpenDatabase(path)` until `close`.

    Nothing else opens its files meanwhile.
    """

    def __init__(self, path: Path) -> None:
        """Remember the database's files; call it after the first statement, when all of them exist."""
        self.path, self._seen = path, set[tuple[int, int]]()
        with _lock:
            _folders[os.path.realpath(path.parent)] += 1
        self.look_again()

    def look_again(self) -> None:
        """Remember files made since: SQLite makes some when the first connection needs them."""
        for ending in _BESIDE:
            with suppress(OSError):
                status = Path(f"{self.path}{ending}").stat()
                if (inode := (status.st_dev, status.st_ino)) not in self._seen:
                    self._seen.add(inode)
                    with _lock:
                        _inodes[inode] += 1

    def close(self) -> None:
        """Forget the files; every connection is closed."""
        with _lock:
            _inodes.subtract(self._seen)
            _folders.subtract([os.path.realpath(self.path.parent)] if self._seen else [])
            self._seen = set()
            for table in (_inodes, _folders):
                for key in [key for key, count in table.items() if count <= 0]:
                    del table[key]


def is_open_here(device: int, inode: int) -> bool:
    """Return whether a file is part of a database that this process has open."""
    return _inodes.get((device, inode), 0) > 0


def open_folders() -> list[str]:
    """Return the folders, without links, of all databases that this process has open."""
    with _lock:
        return list(_folders)


def is_log(path: str | Path, *, dir_fd: int | None = None) -> bool:
    """Return whether a file belongs to a log, or is another database that this process has open; links are
    followed.

    False for what does not exist or cannot be read.
    """
    if _has_log_name(path):
        return True
    try:
        status = os.stat(path, dir_fd=dir_fd)
        if is_open_here(status.st_dev, status.st_ino):
            return True
        if not _may_be_database(status):
            return False
        fd = os.open(path, os.O_RDONLY | _ALWAYS, dir_fd=dir_fd)
    except OSError:
        return False
    return _is_log_open(fd, close=True)


def leave_out_logs(*patterns: str) -> Callable[[str, list[str]], set[str]]:
    """Return an `ignore` for `shutil.copytree`: no logs, no homes, nothing that matches `patterns`."""
    named = shutil.ignore_patterns(*patterns)

    def ignored(folder: str, names: list[str]) -> set[str]:
        left = set(named(folder, names))
        for name in names:
            place = Path(folder, name)
            if place.is_symlink():  # copied as a link
                continue
            if os.path.lexists(place / LOG) or is_log(place):
                left.add(name)
        return left

    return ignored


def open_no_log(path: str | Path, flags: int = os.O_RDONLY, *, dir_fd: int | None = None) -> int:
    """Return a descriptor of a file; raises `PermissionError` for a log without opening it, and `OSError`."""
    status = os.stat(path, dir_fd=dir_fd)
    if _has_log_name(path) or is_open_here(status.st_dev, status.st_ino):
        raise log_refused(path)
    fd = os.open(path, flags | _ALWAYS, dir_fd=dir_fd)
    refuse_open_log(fd, path)
    return fd


def refuse_open_log(fd: int, path: str | Path) -> None:
    """Raise `PermissionError` if the opened file is a log; then do not use the descriptor."""
    if _is_log_open(fd, close=False):
        raise log_refused(path)


def log_refused(path: str | Path) -> PermissionError:
    """The error for a path that leads to a log."""
    return PermissionError(f"{path!s} is protected: it belongs to a log of kestrel, which only kestrel opens")


def _is_log_open(fd: int, *, close: bool) -> bool:
    status = os.fstat(fd)
    # The name may have become a link to a log since it was checked.
    if is_open_here(status.st_dev, status.st_ino):
        _unclosed.append(fd)
        return True
    found = False
    if _may_be_database(status):
        with suppress(OSError):  # opened for writing only
            header = os.pread(fd, _ID_AT + 4, 0)
            found = header.startswith(_HEADER[0]) and header[_ID_AT:] == _HEADER[1]
    if found or close:
        os.close(fd)
    return found


def _has_log_name(path: str | Path) -> bool:
    return str(path).rpartition("/")[2].casefold() in LOG_NAMES


def _may_be_database(status: os.stat_result) -> bool:
    return (
        stat.S_ISREG(status.st_mode)
        and status.st_size >= _SMALLEST_PAGE
        and status.st_size % _SMALLEST_PAGE == 0
    )
