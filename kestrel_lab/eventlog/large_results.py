"""Texts too long to show, kept whole beside the log, each under a hash of itself.

A text is there as long as there is room: the folder has a bound, beyond which those go that were not used for
longest.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import threading
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kestrel_lab.core.errors import StoreError
from kestrel_lab.host.filesystem import private_folder

MOST_BYTES = 50_000_000
"""Of one text that are kept: its beginning."""
ROOM_BYTES = 1_000_000_000
"""Of all texts together."""
_NAME = re.compile(r"[0-9a-f]{32}")
_PIECE = 1 << 20
_STALE_S = 86_400.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredText:
    """A whole text that an event names."""

    call: str
    tool: str
    chars: int


class ResultStore:
    """A folder of texts; may be used by several processes and threads at once."""

    def __init__(self, folder: Path, *, most_bytes: int = MOST_BYTES, room_bytes: int = ROOM_BYTES) -> None:
        """Keep texts in `folder`, which is made when the first one is kept."""
        self.folder = folder
        self._most, self._room = most_bytes, room_bytes
        self._lock = threading.Lock()
        self._used: int | None = None

    def keep(self, text: str) -> tuple[str, int]:
        """Keep a text, or the beginning of one that is too long; returns its name and how many characters are
        kept.

        The name is empty, with a warning, where nothing can be kept: no room on the disk, no folder.
        """
        spool = self.spool()
        for start in range(0, len(text), _PIECE):
            spool.feed(text[start : start + _PIECE].encode("utf-8", "replace"))
        return spool.close()

    def keep_bytes(self, content: bytes) -> str:
        """Keep bytes under 32 hexadecimal digits of their SHA-256 and return that name; empty if full."""
        spool = self.spool()
        spool.feed(content)
        return spool.close()[0]

    def spool(self) -> Spool:
        """Keep a text that comes piece by piece, without holding it."""
        return Spool(self, self._most)

    def path(self, name: str) -> Path | None:
        """The file of that text; `None` where it is not kept, or no longer.

        Raises `StoreError` where it is not what was kept.
        """
        path = self.folder / f"{name}.txt"
        if not _NAME.fullmatch(name) or not path.is_file():
            return None
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found[:32] != name:
            msg = (
                f"{path} is not what was kept there: a failing disk, or somebody changed it. Make the "
                "call again for the answer"
            )
            raise StoreError(msg)
        return path

    def settle(self, temporary: Path, name: str, size: int) -> None:
        """Put a finished file in its place, and make room."""
        temporary.replace(self.folder / f"{name}.txt")
        with self._lock:
            self._used = None if self._used is None else self._used + size
            if self._used is None or self._used > self._room:
                self._used = self._make_room()

    def _make_room(self) -> int:
        """Remove what was not used for longest until a tenth is free; returns how many bytes are left.

        What others are writing is left alone, unless it has been lying there for a day: its writer was
        killed.
        """
        found = []
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    # Another process may drop the text meanwhile.
                    status = entry.stat(follow_symlinks=False)
                    if entry.name.startswith("."):
                        if status.st_mtime < time.time() - _STALE_S:
                            Path(entry.path).unlink(missing_ok=True)
                        continue
                    found.append((status.st_mtime, status.st_size, entry.path))
        used = sum(size for _, size, _ in found)
        if used > self._room:
            # Never the newest: it was just asked for.
            for _, size, path in sorted(found)[:-1]:
                if used <= self._room * 0.9:
                    break
                Path(path).unlink(missing_ok=True)
                used -= size
        return used


class Spool:
    """A text on its way to the folder; what goes beyond its bound is counted and dropped."""

    def __init__(self, store: ResultStore, most: int) -> None:
        self.total = 0
        """Bytes fed so far."""
        self._store, self._left = store, most
        self._hash = hashlib.sha256()
        self._temporary = store.folder / f".{secrets.token_hex(8)}.part"
        self._file: int | None = None
        self._failed = False

    def feed(self, piece: bytes) -> None:
        """Take the next bytes of UTF-8."""
        self.total += len(piece)
        piece = piece[: self._left]
        if not piece or self._failed:
            return
        self._left -= len(piece)
        self._hash.update(piece)
        try:
            if self._file is None:
                private_folder(self._store.folder)
                self._file = os.open(
                    self._temporary,
                    os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                    0o600,
                )
            view = memoryview(piece)
            while view:
                view = view[os.write(self._file, view) :]
        except OSError as error:
            warnings.warn(f"a long answer is not kept whole: {error}", stacklevel=2)
            self._failed = True
            self.drop()

    def close(self) -> tuple[str, int]:
        """End the text; returns its name and the characters kept, an empty name if it could not be kept."""
        if self._file is None:
            return "", 0
        name = self._hash.hexdigest()[:32]
        with self._temporary.open(encoding="utf-8", errors="replace", newline="") as file:
            chars = sum(len(piece) for piece in iter(lambda: file.read(_PIECE), ""))
        os.close(self._file)
        self._file = None
        try:
            self._store.settle(self._temporary, name, self._temporary.stat().st_size)
        except OSError as error:
            warnings.warn(f"a long answer is not kept whole: {error}", stacklevel=2)
            self.drop()
            return "", 0
        return name, chars

    def drop(self) -> None:
        """Keep nothing of it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
        with contextlib.suppress(OSError):
            self._temporary.unlink(missing_ok=True)


def piece_of(path: Path, offset: int, limit: int) -> str:
    """At most `limit` characters of a kept text from `offset` on, in a megabyte of memory; counts as use."""
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        while offset > 0 and (skipped := file.read(min(offset, _PIECE))):
            offset -= len(skipped)
        piece = file.read(limit)
    with contextlib.suppress(OSError):
        # The time of last use decides what is dropped first; a read-only folder must not hide the text.
        os.utime(path)
    return piece


def offsets_of(path: Path, lines: Iterable[int]) -> dict[int, int]:
    """At which character of a kept text each of these lines begins, counted from 1."""
    wanted = set(lines)
    found: dict[int, int] = {}
    line, at = 1, 0
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        if 1 in wanted:
            found[1] = 0
        while len(found) < len(wanted) and (piece := file.read(_PIECE)):
            start = piece.find("\n")
            while start >= 0:
                line += 1
                if line in wanted:
                    found[line] = at + start + 1
                start = piece.find("\n", start + 1)
            at += len(piece)
    return found
