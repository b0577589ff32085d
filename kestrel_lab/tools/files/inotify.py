"""Linux's inotify, as far as it is needed here: whether anybody opened one of some files, by whatever name and from whatever sandbox.

The kernel watches the file itself (its inode), so links, renames and mounts change nothing.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

MOST = 2_000
"""Files that are watched at once; the kernel's own bound is on all of a user's programs together."""
_ACCESS, _OPEN = 0x1, 0x20
_DONT_FOLLOW = 0x02000000


class OpenWatch:
    """Tells whether one of `files` was opened since. Where that cannot be known, it says that one was."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._files = tuple(files)
        self._seen = False
        self._fd = -1
        if not self._files:
            return
        libc = _libc()
        if libc is None or len(self._files) > MOST or (fd := libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)) < 0:
            self._seen = True
            return
        self._fd = fd
        for file in self._files:
            if libc.inotify_add_watch(fd, os.fsencode(file), _ACCESS | _OPEN | _DONT_FOLLOW) < 0 and os.path.lexists(file):
                self._seen = True

    def opened(self) -> bool:
        """Return whether one of the files was opened."""
        if not self._seen and self._fd >= 0:
            try:
                self._seen = bool(os.read(self._fd, 4096))
            except BlockingIOError:
                return False
        return self._seen

    def close(self) -> None:
        """Watch no longer; what was seen until now stays."""
        if self._fd >= 0:
            self.opened()
            os.close(self._fd)
            self._fd = -1


@cache
def _libc() -> Any | None:
    if not sys.platform.startswith("linux"):
        return None
    libc = ctypes.CDLL(None, use_errno=True)
    return libc if hasattr(libc, "inotify_add_watch") else None
