"""Linux's inotify, as far as it is needed here: whether a program opened certain files, and which entries of
folders changed.

The kernel watches the file or folder itself (its inode), so it also sees accesses through links, new names,
mounts and sandboxes.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
import sys
import threading
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any

MOST = 2_000
"""Most files watched at once; the kernel's own limit is for all programs of a user together."""
_ACCESS, _OPEN = 0x1, 0x20
_DONT_FOLLOW, _ONLY_FOLDERS = 0x02000000, 0x01000000
_CHANGES = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200
"""Modify, attributes, close after writing, moved from, moved to, create, delete."""
_LOST = 0x4000
_EVENT = struct.Struct("iIII")


class OpenWatch:
    """Reports whether one of `files` was opened since; true if unknown."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._seen = False
        self._fd = -1
        if not self._files:
            return
        libc = _libc()
        if (
            libc is None
            or len(self._files) > MOST
            or (fd := libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)) < 0
        ):
            self._seen = True
            return
        self._fd = fd
        for file in self._files:
            # A file that cannot be watched counts as opened, unless it does not exist.
            if libc.inotify_add_watch(
                fd, os.fsencode(file), _ACCESS | _OPEN | _DONT_FOLLOW
            ) < 0 and os.path.lexists(file):
                self._seen = True

    def opened(self) -> bool:
        """Return whether one of the files was opened."""
        # What the events say does not matter: one event is enough.
        if not self._seen and self._fd >= 0:
            try:
                self._seen = bool(os.read(self._fd, 4096))
            except BlockingIOError:
                return False
        return self._seen

    def close(self) -> None:
        """Stop watching; what was seen until now is kept."""
        if self._fd >= 0:
            self.opened()
            os.close(self._fd)
            self._fd = -1


class ChangeWatch:
    """Reports which entries of watched folders changed since the last question."""

    def __init__(self) -> None:
        libc = _libc()
        self._fd = -1 if libc is None else libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        self._folders: dict[int, str] = {}
        """By the number of a watch, the name given to its folder."""
        poller = select.poll() if self._fd >= 0 else None
        if poller is not None:
            poller.register(self._fd, select.POLLIN)
            self.poll: Callable[[int], object] = poller.poll
            """Call with 0: true if there are changes to read; a function written in C."""
        self.reliable = self._fd >= 0
        """False if changes may go unnoticed: no inotify, or no more watches."""

    def add(self, folder: str, name: str) -> None:
        """Watch the entries of `folder`, not those below; `name` is how `changed` calls it."""
        libc = _libc()
        if not self.reliable or libc is None:
            return
        number = libc.inotify_add_watch(
            self._fd, os.fsencode(folder), _CHANGES | _ONLY_FOLDERS | _DONT_FOLLOW
        )
        if number >= 0:
            self._folders[number] = name
        elif os.path.isdir(folder) and not os.path.islink(folder):
            # It exists and cannot be watched: the user's watches are used up. A folder that has disappeared
            # needs none.
            self.reliable = False

    def changed(self) -> tuple[dict[str, set[str]], bool]:
        """Return names of changed entries by folder, and whether the kernel lost some; an empty name is the
        folder.
        """
        found: dict[str, set[str]] = {}
        lost = False
        while self._fd >= 0:
            try:
                events = os.read(self._fd, 65_536)
            except BlockingIOError:
                break
            place = 0
            while place < len(events):
                number, mask, _, length = _EVENT.unpack_from(events, place)
                place += _EVENT.size
                name = events[place : place + length].rstrip(b"\0")
                place += length
                lost = lost or bool(mask & _LOST)
                if mask & _CHANGES and number in self._folders:
                    found.setdefault(self._folders[number], set()).add(os.fsdecode(name))
        return found, lost

    def close(self) -> threading.Thread | None:
        """Stop watching; return the thread in which the kernel ends the watches, if there were any."""
        if self._fd < 0:
            return None
        fd, self._fd, self.reliable = self._fd, -1, False
        # In a thread, since the kernel takes 10 ms: it waits until no processor uses the watches.
        thread = threading.Thread(target=os.close, args=(fd,), name="kestrel end watch", daemon=True)
        thread.start()
        return thread


@cache
def _libc() -> Any | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_add_watch") else None
