"""Log files: finds which files belong to a log, so that only SQLite opens them.

Closing any descriptor of a file drops all POSIX locks that the process has on it (fcntl(2)), including those
of SQLite. Then two processes may write to one database at the same time. So a file that this process has open
as a database is recognised by device and inode before anything opens it; a descriptor of ours holds the inode
as long. Other logs are recognised by their name, or by the header that SQLite writes.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
import weakref
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

_PIN = getattr(os, "O_PATH", os.O_RDONLY) | _ALWAYS
"""Holds a file without opening its contents: closing such a descriptor drops no locks. macOS has only the
other kind, which is closed when no database here holds the file any more.
"""

_lock = threading.Lock()
_unclosed: list[int] = []
"""Descriptors of such files that were opened by mistake: closing one would drop the locks."""


class _Pin:
    """A file that is held open while this object lives: the system gives its inode to no other file."""

    __slots__ = ("__weakref__", "_descriptor")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        # A callback and not `__del__`: the pin has left `_pins` when the system may give the inode away.
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def named(self) -> bool:
        """Whether the file still has a name, so that somebody may open it."""
        return os.fstat(self._descriptor).st_nlink > 0


class OpenDatabase:
    """A database that this process has open, from `OpenDatabase(path)` until `close` or until it is dropped.

    Nothing else opens its files meanwhile. A descriptor holds each of them: an inode that is protected here
    belongs to that file, and to none that was made after it.
    """

    def __init__(self, path: Path) -> None:
        """Hold the database's files; call it after the first statement, when all of them exist."""
        self.path = path
        self.folder = os.path.realpath(path.parent)
        self._held: dict[tuple[int, int], _Pin] = {}
        with _lock:
            _databases.add(self)
        self.look_again()

    def look_again(self) -> None:
        """Hold files made since, and let deleted ones go: SQLite makes some of them with its first connection
        and deletes them with its last.
        """
        with _lock:
            held = {inode: pin for inode, pin in self._held.items() if pin.named}
            for ending in _BESIDE:
                with suppress(OSError):
                    inode, pin = _pin_file(f"{self.path}{ending}")
                    held[inode] = pin
            self._held = held

    def close(self) -> None:
        """Let the files go; every connection is closed."""
        with _lock:
            _databases.discard(self)
        self._held = {}


_pins: weakref.WeakValueDictionary[tuple[int, int], _Pin] = weakref.WeakValueDictionary()
"""The files of databases that are open here, by device and inode."""
_databases: weakref.WeakSet[OpenDatabase] = weakref.WeakSet()


def _pin_file(path: str) -> tuple[tuple[int, int], _Pin]:
    """Hold the file at `path`, once for all databases; raises `OSError`."""
    status = Path(path).stat()
    if pin := _pins.get((status.st_dev, status.st_ino)):
        return (status.st_dev, status.st_ino), pin
    descriptor = os.open(path, _PIN)
    status = os.fstat(descriptor)
    pin = _pins[status.st_dev, status.st_ino] = _Pin(descriptor)
    return (status.st_dev, status.st_ino), pin


def is_open_here(device: int, inode: int) -> bool:
    """Return whether a file is part of a database that this process has open."""
    return (device, inode) in _pins


def open_folders() -> list[str]:
    """Return the folders, without links, of all databases that this process has open."""
    with _lock:
        return list(dict.fromkeys(database.folder for database in _databases))


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
