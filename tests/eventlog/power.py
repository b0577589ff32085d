"""Power cuts, simulated: what a process writes and syncs is noted, and played back up to any moment.

What was synced is there after the cut. Of what was not, each sector of 512 bytes is there or not by chance,
which is what a disk may do. SQLite's shared memory is not simulated, so this is about one connection, in
exclusive mode.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

SECTOR = 512
BASE = apsw.vfs_names()[0]


@dataclass(frozen=True, slots=True)
class Written:
    """Bytes were written to a file; with no bytes it was cut to the length of `offset`."""

    file: str
    offset: int
    content: bytes | None


@dataclass(frozen=True, slots=True)
class Synced:
    """A file was synced; with `gone` it was deleted."""

    file: str
    gone: bool = False


@dataclass(frozen=True, slots=True)
class Told:
    """Something was acknowledged."""

    what: Any


@dataclass
class Tape:
    """Everything that happened to the files of a folder, in order."""

    before: dict[str, bytes]
    """The files at the start, which are safe."""
    happened: list[Written | Synced | Told] = field(default_factory=list)

    def told(self, moment: int) -> list[Any]:
        """What was acknowledged before that moment."""
        return [item.what for item in self.happened[:moment] if isinstance(item, Told)]

    def cut(self, moment: int, dice: random.Random) -> dict[str, bytes]:
        """The files after a power cut at that moment."""
        disk = {name: bytearray(content) for name, content in self.before.items()}
        pending: dict[str, list[Written]] = {}
        for item in self.happened[:moment]:
            if isinstance(item, Written):
                pending.setdefault(item.file, []).append(item)
            elif isinstance(item, Synced):
                for write in pending.pop(item.file, []):
                    _apply(disk, write, kept=1.0, dice=dice)
                if item.gone and dice.random() < 0.5:
                    disk.pop(item.file, None)
        kept = dice.choice((0.0, 1.0, dice.random()))
        for writes in pending.values():
            for write in writes:
                _apply(disk, write, kept=kept, dice=dice)
        return {name: bytes(content) for name, content in disk.items()}


def _apply(disk: dict[str, bytearray], write: Written, *, kept: float, dice: random.Random) -> None:
    content = disk.setdefault(write.file, bytearray())
    if write.content is None:
        if dice.random() < kept:
            del content[write.offset :]
        return
    for start in range(0, len(write.content), SECTOR):
        if kept == 1.0 or dice.random() < kept:
            piece, place = write.content[start : start + SECTOR], write.offset + start
            content.extend(bytes(max(0, place - len(content))))
            content[place : place + len(piece)] = piece


class _File(apsw.VFSFile):
    def __init__(self, name: Any, flags: list[int], tape: Tape) -> None:
        super().__init__(BASE, name, flags)
        self._name = Path(name.filename() if hasattr(name, "filename") else name or "nameless").name
        self._tape = tape

    def xWrite(self, data: bytes, offset: int) -> None:
        super().xWrite(data, offset)
        self._tape.happened.append(Written(self._name, offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:
        super().xTruncate(newsize)
        self._tape.happened.append(Written(self._name, newsize, None))

    def xSync(self, flags: int) -> None:
        super().xSync(flags)
        self._tape.happened.append(Synced(self._name))


class _Disk(apsw.VFS):
    def __init__(self, tape: Tape) -> None:
        super().__init__("taped", BASE, makedefault=True)
        self._tape = tape

    def xOpen(self, name: Any, flags: list[int]) -> _File:
        return _File(name, flags, self._tape)

    def xDelete(self, filename: str, syncdir: bool) -> None:
        super().xDelete(filename, syncdir)
        self._tape.happened.append(Synced(Path(filename).name, gone=True))


@contextmanager
def taped(folder: Path, *, checkpoint_pages: int = 30) -> Iterator[Tape]:
    """Note what every connection that is opened from here on does to the files in `folder`."""
    tape = Tape({path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()})

    def exclusive(connection: apsw.Connection) -> None:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint_pages}")

    disk = _Disk(tape)
    apsw.connection_hooks.append(exclusive)
    try:
        yield tape
    finally:
        apsw.connection_hooks.remove(exclusive)
        disk.unregister()


def laid_out(files: dict[str, bytes], folder: Path) -> Path:
    """The files in a folder, as the machine finds them when it is on again."""
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder
