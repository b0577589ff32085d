"""File locks: one writer at a time changes a file, across threads and processes.

The lock is `flock` on the directory that holds the file: a directory is one thing under all its names,
through symlinks and from workspaces within each other, nothing is left in it, and the system lets go when a
process is killed. Writers that do not take it, such as commands and editors, are noticed just before a file
is put in place.
"""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import ConflictError
from kestrel_lab.core.text_files import content_version
from kestrel_lab.host.log_files import open_no_log
from kestrel_lab.tools.files.directory_walk import closing_fd, stamp_of

if TYPE_CHECKING:
    from kestrel_lab.tools.files.workspace import Workspace

MAX_READ_BYTES = 32_000_000
MISSING = ""
"""The version of a file that does not exist."""
WAIT_S = 10.0
"""Longest wait for other writers, which take milliseconds each."""
# What `flock` reports on file systems without locks; any other error is one of the disk.
_NO_LOCKS = frozenset({errno.EOPNOTSUPP, errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.EBADF})
_HERE = threading.Lock()
"""Fallback for file systems without locks, such as some network ones: excludes only threads of this process.
"""


@dataclass(slots=True)
class LockedFile:
    """A locked regular file, or a name for a new one; no other holder of the lock changes it meanwhile."""

    workspace: Workspace
    path: str
    """As it was given, for messages."""
    relative: str
    directory: int
    """A handle of its directory."""
    _stamp: tuple[int, ...] | None = None
    _read: bool = False

    @property
    def name(self) -> str:
        """Its name in the directory."""
        return posixpath.basename(self.relative)

    def status(self) -> os.stat_result | None:
        """Return the status of a name without following symlinks; `None` if missing.

        Raises `OSError` if it is no regular file.
        """
        found = stat_entry(self.name, self.directory)
        if found is not None and not stat.S_ISREG(found.st_mode):
            raise not_replaceable(self.path, found)
        return found

    def read_bytes(self) -> bytes | None:
        """Its content, `None` if there is none: what `write_bytes` will replace.

        Raises as `Workspace.read_bytes` does.
        """
        content, self._read, self._stamp = None, True, None
        if self.status() is not None:
            # Without following links: the name may have become one since `status`.
            with closing_fd(open_no_log(self.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self.directory)) as fd:
                self._stamp = stamp_of(os.fstat(fd))
                content = read_whole(fd, self.path)
        self.workspace.note(self.relative, version_of(content))
        return content

    def write_bytes(self, content: bytes) -> bool:
        """Replace the content atomically; an existing file keeps its mode. Return whether it is new.

        Readers see either the old content or the new one, even after a crash. Other hard links of the file
        keep the old content. Raises `ConflictError` if the file has changed since it was last read through
        this handle or its workspace.
        """
        noted = self.workspace.noted(self.relative)
        if not self._read and noted is not None and version_of(self.read_bytes()) != noted:
            raise self._conflict()
        before = self.status()
        if self._read and (before and stamp_of(before)) != self._stamp:
            raise self._conflict()
        self.workspace.check_settings(self.relative, content)
        temporary = f".kestrel-{secrets.token_hex(8)}.tmp"
        fd = os.open(
            temporary,
            # `O_EXCL`: a file or link put there under that name by somebody else is never written to.
            os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o666,
            dir_fd=self.directory,
        )
        try:
            with os.fdopen(fd, "wb") as file:
                if before is not None:
                    os.fchmod(fd, before.st_mode & 0o777)
                file.write(content)
                file.flush()
                # Before the rename: after a crash, the new name could otherwise have an empty file.
                os.fsync(fd)
            # Programs that do not take the lock may have written meanwhile; this leaves them microseconds.
            now = self.status()
            if (now and stamp_of(now)) != (before and stamp_of(before)):
                raise self._conflict()
            os.rename(temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=self.directory)
            raise
        # The rename itself has to be on disk, not only the content.
        os.fsync(self.directory)
        self._read, self._stamp = False, None
        self.workspace.note(self.relative, version_of(content))
        return before is None

    def _conflict(self) -> ConflictError:
        return ConflictError(
            f"{self.path} was not changed: something else changed it in the meantime; read it and try again"
        )


@contextmanager
def lock_directory(directory: int, what: str) -> Iterator[None]:
    """Hold the lock of an open directory; `TimeoutError` after `WAIT_S` seconds."""
    import fcntl  # not on every system

    until, pause = time.monotonic() + WAIT_S, 0.0005
    while True:
        try:
            # Not blocking: `flock` has no time limit.
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > until:
                raise TimeoutError(
                    f"{what} was not changed: another process has held the lock on its folder for "
                    f"{WAIT_S:g} s; try again"
                ) from None
            time.sleep(pause)
            # Short pauses at first, because other writers take milliseconds.
            pause = min(2 * pause, 0.02)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            with _HERE:
                yield
            return
    try:
        yield
    finally:
        # Closing would not release it if a child was forked meanwhile: the child shares the handle.
        fcntl.flock(directory, fcntl.LOCK_UN)


def read_whole(fd: int, path: str, limit: int = MAX_READ_BYTES) -> bytes:
    """Return the content of an open file; `ValueError` for one larger than `limit` bytes."""
    size = os.fstat(fd).st_size
    file = os.fdopen(fd, "rb", closefd=False)
    # By the size of the file and not the limit: a read allocates as many bytes as it asks for.
    content = file.read(min(size, limit) + 1)
    # The file grows, or reports a size of 0 as files in /proc do.
    if len(content) > size:
        content += file.read(limit + 1 - len(content))
    if len(content) > limit:
        raise ValueError(
            f"{path} is too large to read at once ({max(size, limit):,} bytes, limit {limit:,}): "
            "search it instead"
        )
    return content


def version_of(content: bytes | None) -> str:
    """Names what a file holds: a hash, or `MISSING`."""
    return MISSING if content is None else content_version(content)


def stat_entry(name: str, directory: int) -> os.stat_result | None:
    """Return the status of a name in an open directory without following symlinks; `None` if missing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def not_replaceable(path: str, status: os.stat_result) -> OSError:
    """Return why what is there is not to be replaced by a file."""
    if stat.S_ISDIR(status.st_mode):
        return IsADirectoryError(f"{path} is a directory, not a file")
    if stat.S_ISLNK(status.st_mode):
        return PermissionError(f"{path} is a symlink: write to the file it points to, by its own name")
    return PermissionError(f"{path} is a device, pipe or socket, not a file")
