"""Directory listings through an open handle, so that no symlink is ever entered."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from kestrel_lab.host.log_files import LOG, LOG_NAMES, is_open_here

_BELOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags to open a directory that must not be reached through a symlink."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """An entry of a directory; `path` is relative to the start of the listing."""

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int = 0
    """Bytes of a file, 0 for anything else."""
    stamp: tuple[int, ...] = ()
    """Of a file: what changes when it does.

    Device, number, size, time of change of its content and of anything, in ns.
    """

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


def list_directory(directory: int, prefix: str = "") -> list[Entry]:
    """Return what an open directory holds, sorted by name."""
    with os.scandir(directory) as found:
        return sorted((_entry(item, prefix) for item in found), key=lambda entry: entry.path)


def walk_directory(
    directory: int, skip: Collection[str], depth: int | None = None, prefix: str = ""
) -> Iterator[Entry]:
    """Yield everything under an open directory, parents before children and sorted; symlinks are named, not
    entered.

    Directories called as in `skip` are left out, and so is what belongs to a log: its files, and the content
    of a home folder below the one that is walked. `depth=1` is the directory alone.
    """
    listed = list_directory(directory, prefix)
    if prefix and any(entry.name == LOG for entry in listed):
        return
    for entry in listed:
        if entry.name in LOG_NAMES or is_open_here(*entry.stamp[:2] or (0, 0)):
            continue
        if entry.kind != "directory":
            yield entry
            continue
        if entry.name in skip:
            continue
        yield entry
        if depth is not None and depth <= 1:
            continue
        try:
            below = os.open(entry.name, _BELOW, dir_fd=directory)
        # Removed, replaced or closed to us since it was listed: it was named, it is not entered.
        except OSError:
            continue
        with closing_fd(below):
            yield from walk_directory(below, skip, None if depth is None else depth - 1, f"{entry.path}/")


def stamps_below(
    directory: int, skip: Collection[str], leave: str, most: int, prefix: str = ""
) -> dict[str, tuple[int, ...]]:
    """Return the stamps of everything that `walk_directory` yields, by path, without the path `leave` and
    what is below it.

    Nor of databases that this process has open: those are not to be opened. What is not a file has an empty
    one. Ends early with more than `most` entries where there are as many.
    """
    found: dict[str, tuple[int, ...]] = {}
    with os.scandir(directory) as listed:
        items = sorted(listed, key=attrgetter("name"))
    for item in items:
        path = prefix + item.name
        if path == leave or len(found) > most:
            continue
        if not item.is_dir(follow_symlinks=False):
            stamp = _stamp(item)
            if not stamp or not is_open_here(*stamp[:2]):
                found[path] = stamp
        elif item.name not in skip:
            found[path] = ()
            # Removed, replaced or closed to us since it was listed: it was named, it is not entered.
            with suppress(OSError):
                below = os.open(item.name, _BELOW, dir_fd=directory)
                try:
                    found |= stamps_below(below, skip, leave, most - len(found), f"{path}/")
                finally:
                    os.close(below)
    return found


def _stamp(item: os.DirEntry[str]) -> tuple[int, ...]:
    # not `suppress`, which costs as much as the rest: this is done for every file before and after a call
    try:
        return stamp_of(item.stat(follow_symlinks=False)) if item.is_file(follow_symlinks=False) else ()
    except FileNotFoundError:  # removed since it was listed
        return ()


@contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Close a file descriptor at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


SIZE = 2
"""Index of the size in a stamp."""


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """Return what changes with a file even if its size and times are restored: see `Entry.stamp`."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _entry(item: os.DirEntry[str], prefix: str) -> Entry:
    path = prefix + item.name
    if item.is_symlink():
        return Entry(path=path, kind="symlink")
    if item.is_dir(follow_symlinks=False):
        return Entry(path=path, kind="directory")
    if not item.is_file(follow_symlinks=False):
        return Entry(path=path, kind="other")
    with suppress(FileNotFoundError):  # removed since it was listed
        return Entry(
            path=path,
            kind="file",
            size=(found := item.stat(follow_symlinks=False)).st_size,
            stamp=stamp_of(found),
        )
    return Entry(path=path, kind="file")
