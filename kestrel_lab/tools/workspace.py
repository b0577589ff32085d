"""The directory an agent works in: files are reached through it, and nothing outside can be."""

from __future__ import annotations

import errno
import os
import posixpath
import secrets
import stat
import tomllib
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kestrel_lab.core.encoding import Text, decode
from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.tools.confine import open_beneath
from kestrel_lab.tools.listing import Entry, closing, descend, entries

SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__", ".kestrel", ".ipynb_checkpoints"})
"""Directories that are not searched or listed recursively unless named."""
PROTECTED = frozenset({".git", ".kestrel", "kestrel.toml", ".mcp.json"})
"""Names, at any depth, that file tools never write to: what is in them is run or trusted by other programs, this one included."""
MAX_READ_BYTES = 32_000_000

_MOST_SUGGESTED = 30
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory that paths cannot leave: not by `..`, by an absolute path, or by a symlink put there at any moment.

    Paths are relative to it; an absolute path that lies under it counts as relative. Symlinks that stay
    inside are followed for reading (on Linux; elsewhere refused) and refused for writing. Errors are
    plain Python ones whose message is for the model that gave the path: `PermissionError` for what the
    workspace forbids, `FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`, `ValueError` for
    what is no text, `OSError` otherwise.
    """

    root: Path
    read_only: bool = False
    _given: Path = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `UsageError` if `root` is no directory."""
        if os.open not in os.supports_dir_fd:
            msg = "workspaces need a system with directory handles (Linux, macOS); on Windows use WSL"
            raise UsageError(msg)
        given = Path(os.path.abspath(Path(self.root).expanduser()))
        if not given.is_dir():
            msg = f"the workspace {given} is not a directory: create it, or name another"
            raise UsageError(msg)
        object.__setattr__(self, "_given", given)
        object.__setattr__(self, "root", given.resolve())

    def relative(self, path: str | Path) -> str:
        """`path` as seen from the root, without `.` and `..`; `PermissionError` if it is not under the root."""
        text = os.fspath(path)
        if "\0" in text:
            msg = f"the path {text!r} contains a NUL character"
            raise ValueError(msg)
        if posixpath.isabs(text):
            normal = posixpath.normpath(text)
            for base in (self.root, self._given):
                if normal == str(base) or normal.startswith(str(base).rstrip("/") + "/"):
                    text = posixpath.relpath(normal, base)
                    break
            else:
                raise _outside(path)
        normal = posixpath.normpath(text)
        if normal == ".." or normal.startswith("../"):
            raise _outside(path)
        return normal

    def open(self, path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """A file descriptor of a regular file or a directory; the caller closes it."""
        relative = self.relative(path)
        writes = bool(flags & _WRITING)
        if writes:
            self.check_writable(relative)
        with explained(path, self), closing(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            fd = open_beneath(root, relative, flags, mode, follow=not writes)
        kind = os.fstat(fd).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            os.close(fd)
            msg = f"{path!s} is a device, pipe or socket, not a file"
            raise PermissionError(msg)
        return fd

    def stat(self, path: str | Path) -> os.stat_result:
        """What the path names, a symlink that stays inside followed; opens nothing that could block."""
        relative = self.relative(path)
        with explained(path, self), closing(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            if not hasattr(os, "O_PATH"):
                parent, name = posixpath.split(relative)
                with closing(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=True)) as directory:
                    return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
            with closing(open_beneath(root, relative, os.O_PATH, 0, follow=True)) as fd:
                return os.fstat(fd)

    def exists(self, path: str | Path) -> bool:
        """Whether the path names something inside; `PermissionError` if it leads out."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_bytes(self, path: str | Path, limit: int = MAX_READ_BYTES) -> bytes:
        """A file's content; `ValueError` for one larger than `limit` bytes."""
        with closing(self.open(path)) as fd:
            status = os.fstat(fd)
            if stat.S_ISDIR(status.st_mode):
                msg = f"{path!s} is a directory, not a file"
                raise IsADirectoryError(msg)
            file = os.fdopen(fd, "rb", closefd=False)
            content = file.read(min(status.st_size, limit) + 1)  # the size first: a read reserves what it asks for
            if len(content) > status.st_size:  # it grows, or lies about its size as files in /proc do
                content += file.read(limit + 1 - len(content))
        if len(content) > limit:
            msg = f"{path!s} is too large to read at once ({max(status.st_size, limit):,} bytes, limit {limit:,}): search it instead"
            raise ValueError(msg)
        return content

    def read_text(self, path: str | Path) -> Text:
        """A file's text with its encoding, line ends kept; `ValueError` for a binary file."""
        return decode(self.read_bytes(path), str(path))

    def write_bytes(self, path: str | Path, content: bytes) -> bool:
        """Put a file in place in one step, with its directories; an existing one keeps its mode. Returns whether it is new.

        Whatever happens on the way, a reader sees the old content or the new, and after the return the new.
        """
        relative = self.relative(path)
        self.check_writable(relative)
        self.check_settings(relative, content)
        parent, name = posixpath.split(relative)
        with explained(path, self), self.directory(parent) as directory:
            before = lstat(name, directory)
            if before is not None and not stat.S_ISREG(before.st_mode):
                raise _not_replaceable(path, before)
            temporary = f".kestrel-{secrets.token_hex(8)}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=directory)
            try:
                with os.fdopen(fd, "wb") as file:
                    if before is not None:
                        os.fchmod(fd, before.st_mode & 0o777)
                    file.write(content)
                    file.flush()
                    os.fsync(fd)
                os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=directory)
                raise
            os.fsync(directory)
        return before is None

    def write_text(self, path: str | Path, text: str, encoding: str = "utf-8") -> bool:
        """The same for text, line ends as given; `ValueError` for a character the encoding does not have."""
        try:
            content = text.encode(encoding)
        except UnicodeEncodeError as error:
            msg = f"{path!s} is {encoding}, which has no {text[error.start : error.end]!r}: use another character, or rewrite the file"
            raise ValueError(msg) from error
        return self.write_bytes(path, content)

    def listdir(self, path: str | Path = ".") -> list[Entry]:
        """What a directory holds, sorted by name."""
        with closing(self.open(path, _DIRECTORY)) as fd:
            return entries(fd)

    def walk(self, path: str | Path = ".", skip: Collection[str] = SKIPPED, depth: int | None = None) -> Iterator[Entry]:
        """Everything under a directory, parents first and sorted; symlinks are named, not entered."""
        with closing(self.open(path, _DIRECTORY)) as fd:
            yield from descend(fd, skip, depth)

    @contextmanager
    def directory(self, parent: str) -> Iterator[int]:
        """A handle of the directory of that relative path, made if missing, reached without any symlink."""
        with closing(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            made = ""
            for part in parent.split("/") if parent else ():
                above, made = made or ".", posixpath.join(made, part)
                with closing(open_beneath(root, above, _DIRECTORY, 0, follow=False)) as fd, suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
            with closing(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=False)) as fd:
                yield fd

    def check_writable(self, relative: str) -> None:
        """Raise `PermissionError` or `IsADirectoryError` for a path, as `relative` gives it, that tools must not write."""
        if self.read_only:
            msg = f"cannot write {relative}: this workspace is read-only"
            raise PermissionError(msg)
        if found := [part for part in relative.split("/") if part.casefold() in PROTECTED]:
            msg = f"cannot write {relative}: {found[0]} is protected"
            raise PermissionError(msg)
        if relative == ".":
            msg = "the workspace itself cannot be written, name a file in it"
            raise IsADirectoryError(msg)

    def check_settings(self, relative: str, content: bytes) -> None:
        """Raise `PermissionError` if `content` would change the settings of this package that a `pyproject.toml` holds.

        They say what an agent may do unasked. The rest of the file is as free as any other.
        """
        if posixpath.basename(relative).casefold() != "pyproject.toml":
            return
        before = self.read_bytes(relative) if self.exists(relative) else b""
        if settings_in(before) != settings_in(content):
            msg = f"cannot write {relative}: its [tool.kestrel] is protected, leave that table as it is"
            raise PermissionError(msg)


def settings_in(content: bytes) -> object:
    """The settings of this package in a `pyproject.toml`; `None` where it has none, also because it is no TOML."""
    try:
        tool = tomllib.loads(content.decode("utf-8")).get("tool")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError):
        return None
    return tool.get("kestrel") if isinstance(tool, dict) else None


@contextmanager
def explained(path: str | Path, workspace: Workspace) -> Iterator[None]:
    """Turn an `OSError` into one of the same class whose message a model can act on."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case None:
                raise
            case errno.EXDEV | errno.ELOOP:
                msg = f"{path!s} leads through a symlink that leaves the workspace or may not be followed"
                raise PermissionError(msg) from error
            case errno.ENXIO:
                msg = f"{path!s} is a pipe or socket, not a file"
                raise PermissionError(msg) from error
            case errno.ENOENT:
                msg = f"{path!s} does not exist{_suggestion(path, workspace)}"
                raise FileNotFoundError(msg) from error
        msg = f"{path!s}: {error.strerror}"
        raise type(error)(msg) from error


def _suggestion(path: str | Path, workspace: Workspace) -> str:
    """A clause naming what there is in the directory of a path that does not exist; empty where that helps nobody."""
    parent = posixpath.dirname(workspace.relative(path))
    with suppress(OSError), closing(os.open(workspace.root, _DIRECTORY | os.O_CLOEXEC)) as root:
        with closing(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=True)) as directory:
            there = [posixpath.join(parent, entry.path) for entry in entries(directory)]
        if 0 < len(there) <= _MOST_SUGGESTED:
            return f"; {nearest(str(path), there)}"
    return ""


def _outside(path: str | Path) -> PermissionError:
    return PermissionError(f"{path!s} is outside the workspace: use a path relative to it")


def _not_replaceable(path: str | Path, status: os.stat_result) -> OSError:
    if stat.S_ISDIR(status.st_mode):
        return IsADirectoryError(f"{path!s} is a directory, not a file")
    if stat.S_ISLNK(status.st_mode):
        return PermissionError(f"{path!s} is a symlink: write to the file it points to, by its own name")
    return PermissionError(f"{path!s} is a device, pipe or socket, not a file")


def lstat(name: str, directory: int) -> os.stat_result | None:
    """What a name in an open directory is, a symlink not followed; `None` if there is nothing."""
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None
