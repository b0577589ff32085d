"""Marks beside the log: they say which events were acknowledged last, so that a log that was cut is noticed.

A log that lost the end of its write-ahead log, or all of its bytes, is in order as far as SQLite and the
hashes of its events can tell. So each session writes down the last event of each of its commits, after the
commit and before anybody is told of it. Commits are lost from the last one on: where the marked events are
there, all that were acknowledged are. A session has a file of its own, which a later session takes over once
the event that it names is known to be in the log: there are as many files as there were sessions at a time.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import apsw

from kestrel_lab.host.filesystem import private_folder, try_lock_descriptor

_BYTES = 256
"""Length of a mark, which is written at once and over the one before."""
_MOST = 64
"""Sessions that write to a log at a time and have a mark."""
_MISSING = """
SELECT coalesce((SELECT last_seq FROM runs WHERE id = ?1), 0) WHERE NOT EXISTS (SELECT 1 FROM events WHERE \
run_id = ?1 AND seq = ?2 AND hash IS ?3) AND NOT EXISTS (SELECT 1 FROM removals WHERE run_id = ?1)
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """The last event of a commit."""

    run_id: str
    seq: int
    digest: bytes

    def to_bytes(self) -> bytes:
        """Return the mark as it is written."""
        content = f"{self.run_id} {self.seq} {self.digest.hex()}".encode()
        return (b"%b %08x" % (content, zlib.crc32(content))).ljust(_BYTES - 1) + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> Mark | None:
        """Read a mark; `None` for anything else, as a power cut may leave it."""
        try:
            run_id, seq, digest, _ = content.decode().split()
            mark = cls(run_id=run_id, seq=int(seq), digest=bytes.fromhex(digest))
            return mark if mark.to_bytes() == content else None
        except ValueError:
            return None


@dataclass(frozen=True, kw_only=True, slots=True)
class LostEvents:
    """Events that were acknowledged and are not in the log."""

    run_id: str
    first: int
    """The number of the first one that is missing."""
    last: int
    file: Path
    """The mark that says so."""

    def __str__(self) -> str:
        events = f"event {self.last}" if self.first >= self.last else f"events {self.first} to {self.last}"
        return (
            f"{events} of run {self.run_id}, and perhaps what was stored before, are missing: the log was "
            f"cut, or is an older copy. Put the right one back; or remove {self.file} to go on without them"
        )


def marks_folder(log: Path) -> Path:
    """Return the folder of the marks of a log."""
    return log.with_name(f"{log.stem}-marks")


def has_marks(log: Path) -> bool:
    """Return whether any event was acknowledged by the log that is, or was, at this path."""
    return any(True for _ in _read_marks(log))


def remove_marks(log: Path) -> None:
    """Forget what was acknowledged by a log that is gone."""
    shutil.rmtree(marks_folder(log), ignore_errors=True)


def lost_events(log: Path, connection: apsw.Connection) -> list[LostEvents]:
    """Return what was acknowledged and is missing, by the marks beside the log."""
    lost = []
    for file, mark in _read_marks(log):
        if (last := _last_before(mark, connection)) is not None:
            lost.append(LostEvents(run_id=mark.run_id, first=last + 1, last=mark.seq, file=file))
    return lost


def _read_marks(log: Path) -> Iterator[tuple[Path, Mark]]:
    """Yield the marks beside a log with their files."""
    folder = marks_folder(log)
    if not folder.is_dir():
        return
    for file in sorted(folder.iterdir()):
        with suppress(OSError):
            mark = Mark.from_bytes(file.read_bytes())
            if mark is not None:
                yield file, mark


def _last_before(mark: Mark, connection: apsw.Connection) -> int | None:
    """Return the last event of the marked run, where the marked one is missing; `None` where it is there."""
    rows = connection.execute(_MISSING, (mark.run_id, mark.seq, mark.digest)).fetchall()
    for (last,) in rows:
        return min(last, mark.seq - 1) if isinstance(last, int) else 0
    return None


class MarkFile:
    """The mark of one session, in a file that no other session writes meanwhile."""

    def __init__(self, log: Path, connection: apsw.Connection) -> None:
        """Prepare; the file is taken with the first mark."""
        self._log, self._connection = log, connection
        self._descriptor: int | None = None
        self._sought = False

    def advance(self, mark: Mark) -> None:
        """Write down that an event, and all before it, are on disk."""
        if not self._sought:
            self._sought = True
            self._take_file()
        if self._descriptor is not None:
            # An earlier mark stays true where there is no room for this one. `suppress` would be three calls
            # more for each commit.
            try:
                os.pwrite(self._descriptor, mark.to_bytes(), 0)
            except OSError:
                pass

    def _take_file(self) -> None:
        """Take a file whose mark is not needed any more, or a new one.

        A session that finds none, on a full disk or among too many others, leaves no marks.
        """
        folder = marks_folder(self._log)
        with suppress(OSError, apsw.Error):
            private_folder(folder)
            for number in range(_MOST):
                if self._take(folder / str(number)):
                    break

    def _take(self, file: Path) -> bool:
        """Try to make a file this session's."""
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if try_lock_descriptor(descriptor):
            mark = Mark.from_bytes(os.pread(descriptor, _BYTES, 0))
            if mark is None or _last_before(mark, self._connection) is None:
                self._descriptor = descriptor
                return True
        os.close(descriptor)
        return False

    def close(self) -> None:
        """Leave the file to a later session."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
