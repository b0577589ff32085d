"""Snapshots: the contents of a workspace's files at one moment, stored under the home for forks.

A snapshot is an index of paths, each with its kind, mode and the name of its content. The store addresses
contents by their hash, so it has each content once, however many snapshots share it. `workspace_recorder`
decides what is in a snapshot.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kestrel_lab.core.json_types import Json
from kestrel_lab.eventlog.large_results import ResultStore
from kestrel_lab.host.filesystem import private_folder

ROOM_BYTES: Final = 2_000_000_000
"""Most bytes of all contents of a home; beyond them, the least recently used ones are deleted."""
_SMALL: Final = 1 << 16
"""Bytes of a content that may lie in a bundle."""
_FEW: Final = 8
"""Fewer contents than this get a file each: reading a bundle's head would cost more."""
_BUNDLE: Final = "bundle-"


class Entry(NamedTuple):
    """One path of a snapshot."""

    kind: str
    """`f` for a file, `d` for a folder, `l` for a symlink."""
    mode: int = 0
    content: str = ""
    """Name of a file's stored content, empty if not stored; target of a symlink."""
    size: int = 0
    mtime: int = 0
    ctime: int = 0
    """Nanoseconds. The time of the last change of any kind, which no program can set."""

    @property
    def same(self) -> tuple[object, ...]:
        """Equal for entries with the same content; files not stored are compared by size and times."""
        if self.kind == "f" and not self.content:
            return (self.kind, self.mode & 0o777, self.size, self.mtime)
        return (self.kind, 0 if self.kind == "l" else self.mode & 0o777, self.content)


Snapshot = dict[str, Entry]


def entries_from_json(kept: Mapping[str, Json]) -> Snapshot:
    """Return what `entries_as_json` gave."""
    return {path: Entry(*one) for path, one in kept.items()}  # type: ignore[misc]  # lists that this module wrote


def entries_as_json(entries: Mapping[str, Entry]) -> dict[str, Json]:
    """Return entries as an event has them."""
    return {path: [*one] for path, one in entries.items()}


Batch = dict[str, bytes]
"""Contents that are to be kept together, by name."""


class SnapshotStore:
    """The contents and the indexes of the snapshots of a home; safe to use from any thread and by several
    processes.

    Small contents that are stored together share one file, a bundle: with a file for each, storing a
    workspace of thousands of files would take seconds.
    """

    def __init__(
        self, home: Path, is_secret: Callable[[str], bool] = lambda _: False, *, writes: bool = True
    ) -> None:
        """`is_secret` detects contents that must not be stored; without `writes` contents are only named."""
        self.home = home.resolve()
        self._is_secret, self._writes = is_secret, writes
        self.contents = ResultStore(self.home / "snapshots", room_bytes=ROOM_BYTES)
        self._places: dict[str, tuple[str, int, int]] = {}
        """By content name: its bundle, offset and length."""
        self._bundles: set[str] = set()
        self._listed = False
        self._used: set[str] = set()
        """Files marked as used by this process, so that they are not deleted first."""
        # Reentrant: `drop` keeps the rest of a bundle while it holds the lock.
        self._lock = threading.RLock()

    def keep(self, content: bytes, batch: Batch | None = None) -> str:
        """Store a content and return its name, empty if it has a secret. In a `batch` it is stored at the
        end.

        Raises `OSError` on failure.
        """
        name = hashlib.sha256(content).hexdigest()[:32]
        if self._writes and not self.has(name):
            if self._is_secret(content.decode("utf-8", "replace")):
                return ""
            if batch is not None and len(content) <= _SMALL:
                batch[name] = content
            else:
                self._write(name, [content])
        return name

    def keep_batch(self, batch: Batch) -> None:
        """Keep the contents of a batch, and empty it."""
        if len(batch) < _FEW:
            for name, content in batch.items():
                self._write(name, [content])
        else:
            places, begin = dict[str, tuple[int, int]](), 0
            for name, content in batch.items():
                places[name] = (begin, len(content))
                begin += len(content)
            head = json.dumps(places, separators=(",", ":")).encode() + b"\n"
            bundle = f"{_BUNDLE}{secrets.token_hex(12)}"
            self._write(bundle, [head, *batch.values()])
            with self._lock:
                self._bundles.add(bundle)
                self._places |= {
                    name: (bundle, len(head) + at, length) for name, (at, length) in places.items()
                }
        batch.clear()

    def read(self, name: str) -> bytes | None:
        """Return a content; `None` if it is missing or damaged."""
        with self._lock:
            place = self._find(name)
        try:
            if place is None:
                content = self._file(name).read_bytes()
            else:
                with self._file(place[0]).open("rb") as file:
                    file.seek(place[1])
                    content = file.read(place[2])
        except OSError:
            return None
        # The name is the hash of the content, so a damaged or changed file is detected.
        return content if hashlib.sha256(content).hexdigest()[:32] == name else None

    def keep_index(self, entries: Mapping[str, Entry]) -> str:
        """Keep a whole snapshot; returns its name."""
        return self.keep(json.dumps(entries_as_json(entries), separators=(",", ":")).encode())

    def index(self, name: str) -> Snapshot | None:
        """Return a whole snapshot; `None` if it is missing."""
        content = self.read(name)
        return None if content is None else entries_from_json(json.loads(content))

    def has(self, name: str) -> bool:
        """Return whether a content is kept; it counts as used."""
        with self._lock:
            place = self._find(name, anew=False)
            file = name if place is None else place[0]
            if file in self._used:
                return True
            # The time of a file says when it was last used; deleting goes by that.
            try:
                os.utime(self._file(file))
            except OSError:
                self._places = {one: found for one, found in self._places.items() if found[0] != file}
                return False
            self._used.add(file)
            return True

    def drop(self, names: Collection[str]) -> int:
        """Delete contents and return their number; others in the same bundles are moved."""
        dropped = set[str]()
        with self._lock:
            for name in names:
                if self._file(name).exists():
                    self._file(name).unlink(missing_ok=True)
                    dropped.add(name)
            # All bundles on disk, not only the known ones: other processes may have written some.
            for bundle in [file.stem for file in self.contents.folder.glob(f"{_BUNDLE}*.txt")]:
                places = self._places_in(bundle)
                if gone := places.keys() & set(names):
                    dropped |= gone
                    content = self._file(bundle).read_bytes()
                    # First the copy of the rest, then the deletion: a process that ends in between loses
                    # nothing.
                    self.keep_batch(
                        {
                            name: content[at : at + length]
                            for name, (_, at, length) in places.items()
                            if name not in gone
                        }
                    )
                    self._file(bundle).unlink(missing_ok=True)
            self._places = {
                name: found for name, found in self._places.items() if self._file(found[0]).exists()
            }
            self._used.clear()
        return len(dropped)

    def _file(self, name: str) -> Path:
        return self.contents.folder / f"{name}.txt"

    def _find(self, name: str, *, anew: bool = True) -> tuple[str, int, int] | None:
        """Return where in a bundle a content is; `None` if it is in none.

        Without `anew`, bundles that other processes wrote since the first search may be missed. A content is
        then stored twice, which costs less than listing a folder of thousands for each new content.
        """
        if name not in self._places and (anew or not self._listed) and not self._file(name).exists():
            self._read_bundles()
        return self._places.get(name)

    def _read_bundles(self) -> None:
        """Load bundles written by other processes."""
        self._listed = True
        with suppress(OSError):
            for file in os.listdir(self.contents.folder):
                bundle = file.removesuffix(".txt")
                if bundle.startswith(_BUNDLE) and bundle not in self._bundles:
                    self._bundles.add(bundle)
                    self._places |= self._places_in(bundle)

    def _places_in(self, bundle: str) -> dict[str, tuple[str, int, int]]:
        """Return where the contents of a bundle are; empty if it is missing or unreadable."""
        with suppress(OSError, ValueError), self._file(bundle).open("rb") as opened:
            head = opened.readline()
            return {name: (bundle, len(head) + at, length) for name, (at, length) in json.loads(head).items()}
        return {}

    def _write(self, name: str, pieces: Iterable[bytes]) -> None:
        private_folder(self.contents.folder)
        temporary, size = self.contents.folder / f".{secrets.token_hex(8)}.part", 0
        # 0600: a snapshot may contain files that only their owner can read.
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(fd, "wb") as file:
                for piece in pieces:
                    file.write(piece)
                    size += len(piece)
            self.contents.settle(temporary, name, size)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
