"""Workspace: the directory of an agent; all file access goes through it, and nothing outside is reachable."""

from __future__ import annotations

import errno
import json
import os
import posixpath
import stat
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import loads_toml
from kestrel_lab.core.sanitize import escape_surrogates, is_utf8
from kestrel_lab.core.text_files import Text, decode_text, encode_text
from kestrel_lab.host.log_files import LOG, LOG_NAMES, is_log, is_open_here, log_refused, refuse_open_log
from kestrel_lab.host.programs import exclude_folder
from kestrel_lab.tools.files.directory_walk import (
    Entry,
    closing_fd,
    list_directory,
    stamps_below,
    walk_directory,
)
from kestrel_lab.tools.files.lock import (
    MAX_READ_BYTES,
    MISSING,
    LockedFile,
    lock_directory,
    read_whole,
    version_of,
)
from kestrel_lab.tools.files.safe_open import open_beneath

SKIPPED = frozenset({".git", ".venv", "node_modules", "__pycache__", ".kestrel", ".ipynb_checkpoints"})
"""Directories that are not searched or listed recursively unless named."""
PROTECTED = frozenset({".git", ".kestrel", "kestrel.toml", ".mcp.json", *LOG_NAMES})
"""Names, at any depth, that file tools never write: other programs, and this one, run or trust them."""

_MOST_SUGGESTED = 30
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory that paths cannot leave: not by `..`, by an absolute path, or by a symlink put there at any
    moment.

    Paths are relative to it; an absolute path that lies under it counts as relative. Symlinks that stay
    inside are followed for reading (on Linux; elsewhere refused) and refused for writing. Errors are
    plain Python ones whose message is for the model that gave the path: `PermissionError` for what the
    workspace forbids, `FileNotFoundError`, `IsADirectoryError`, `NotADirectoryError`, `ValueError` for
    what is not text, `OSError` otherwise.
    """

    root: Path
    read_only: bool = False
    _given: Path = field(init=False, repr=False, compare=False)
    _noted: dict[str, str] | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise `UsageError` if `root` is not a directory."""
        if os.open not in os.supports_dir_fd:
            raise UsageError(
                "workspaces need a system with directory handles (Linux, macOS); on Windows use WSL"
            )
        given = Path(os.path.abspath(Path(self.root).expanduser()))
        if not given.is_dir():
            raise UsageError(f"the workspace {given} is not a directory: create it, or name another")
        object.__setattr__(self, "_given", given)
        object.__setattr__(self, "root", given.resolve())
        if not is_utf8(str(self.root)):  # the log stores it as text
            shown = escape_surrogates(str(self.root))
            raise UsageError(
                f"the workspace {shown} has a name that is not UTF-8: rename the folder, or name another"
            )
        exclude_folder(self.root)

    def also_known_as(self, original: Path) -> Workspace:
        """Return this directory with absolute paths in `original`, of which it is a copy, accepted too."""
        if self.root == original:
            return self
        view = Workspace(self.root, self.read_only)
        object.__setattr__(view, "_given", original)
        return view

    def relative(self, path: str | Path) -> str:
        """Return `path` relative to the root, without `.` and `..`; `PermissionError` if it is outside."""
        text = os.fspath(path)
        if "\0" in text:
            raise ValueError(f"the path {text!r} contains a NUL character")
        try:
            os.fsencode(text)
        except UnicodeEncodeError:
            raise ValueError(f"the path {escape_surrogates(text)!r} contains half a character") from None
        if posixpath.isabs(text):
            normal = posixpath.normpath(text)
            for base in (self.root, self._given):
                if normal == str(base) or normal.startswith(str(base).rstrip("/") + "/"):
                    text = posixpath.relpath(normal, base)
                    break
            else:
                raise _outside_error(path)
        normal = posixpath.normpath(text)
        if normal == ".." or normal.startswith("../"):
            raise _outside_error(path)
        return normal

    def open(self, path: str | Path, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Return a file descriptor of a regular file or a directory; the caller closes it."""
        relative = self.relative(path)
        writes = bool(flags & _WRITING)
        if writes:
            self.check_writable(relative)
        if not flags & os.O_DIRECTORY:
            self._check_no_log(path, relative)
        # From the root's descriptor, step by step: a path that is checked and then opened could be swapped
        # for a link in between.
        with explain_os_error(path, self), closing_fd(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            fd = open_beneath(root, relative, flags, mode, follow=not writes)
        refuse_open_log(fd, path)
        kind = os.fstat(fd).st_mode
        if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
            os.close(fd)
            raise PermissionError(f"{path!s} is a device, pipe or socket, not a file")
        return fd

    def _check_no_log(self, path: str | Path, relative: str) -> None:
        """Raise `PermissionError` for a log's file, by its name or because it is open here; opens nothing."""
        if posixpath.basename(relative).casefold() in LOG_NAMES:
            raise log_refused(path)
        with suppress(OSError):  # opening it reports the error
            status = self.stat(relative)
            if is_open_here(status.st_dev, status.st_ino):
                raise log_refused(path)

    def stat(self, path: str | Path) -> os.stat_result:
        """Return the status of a path, following symlinks that stay inside; opens nothing that may block."""
        relative = self.relative(path)
        with explain_os_error(path, self), closing_fd(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            if not hasattr(os, "O_PATH"):
                parent, name = posixpath.split(relative)
                with closing_fd(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=True)) as directory:
                    return os.stat(name or ".", dir_fd=directory, follow_symlinks=False)
            with closing_fd(open_beneath(root, relative, os.O_PATH, 0, follow=True)) as fd:
                return os.fstat(fd)

    def exists(self, path: str | Path) -> bool:
        """Return whether the path names something inside; `PermissionError` if it leads out."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read_bytes(self, path: str | Path, limit: int = MAX_READ_BYTES) -> bytes:
        """Return a file's content; `ValueError` for one larger than `limit` bytes."""
        try:
            with closing_fd(self.open(path)) as fd:
                if stat.S_ISDIR(os.fstat(fd).st_mode):
                    raise IsADirectoryError(f"{path!s} is a directory, not a file")
                content = read_whole(fd, str(path), limit)
        except FileNotFoundError:
            self.note(self.relative(path), MISSING)
            raise
        if self._noted is not None:
            self.note(self.relative(path), version_of(content))
        return content

    def read_text(self, path: str | Path) -> Text:
        """Return a file's text with its encoding, line ends kept; `ValueError` for a binary file."""
        return decode_text(self.read_bytes(path), str(path))

    def write_bytes(self, path: str | Path, content: bytes) -> bool:
        """Write a file atomically, with its directories; an existing one keeps its mode. Return whether it is
        new.

        Other writers that use a workspace wait meanwhile. To change the contents of a file, read and write it
        under one lock: `with workspace.locked(path) as file`. In a tool's call, a file that has changed since
        it was read is not replaced: `ConflictError`. Otherwise see `LockedFile.write_bytes`.
        """
        with self.locked(path, make=True) as file:
            return file.write_bytes(content)

    def write_text(self, path: str | Path, text: str, encoding: str = "utf-8") -> bool:
        """Write text, line ends as given; `ValueError` for a character the encoding does not have."""
        return self.write_bytes(path, encode_text(text, encoding, str(path)))

    @contextmanager
    def locked(self, path: str | Path, *, make: bool = False) -> Iterator[LockedFile]:
        """Lock a file against all other writers that use a workspace, in this and other processes. With
        `make`, create its folder.
        """
        relative = self.relative(path)
        self.check_writable(relative)
        parent = posixpath.dirname(relative)
        with (
            explain_os_error(path, self),
            self.directory(parent, make=make) as directory,
            lock_directory(directory, str(path)),
        ):
            yield LockedFile(self, str(path), relative, directory)

    def for_call(self) -> Workspace:
        """Return the directory for one tool call: files it read that changed since are not replaced."""
        # As `copy` does, in a tenth of its time: there is one for each call.
        view = object.__new__(type(self))
        for name, value in (
            ("root", self.root),
            ("read_only", self.read_only),
            ("_given", self._given),
            ("_noted", {}),
        ):
            object.__setattr__(view, name, value)
        return view

    def note(self, relative: str, version: str) -> None:
        """Keep for the call, if this is for one, which version of a file was read or written last."""
        if self._noted is not None:
            self._noted[relative] = version

    def noted(self, relative: str) -> str | None:
        """Return which version of a file the call has read or written last; `None` for none."""
        return None if self._noted is None else self._noted.get(relative)

    def listdir(self, path: str | Path = ".") -> list[Entry]:
        """Return what a directory holds, sorted by name."""
        with closing_fd(self.open(path, _DIRECTORY)) as fd:
            return list_directory(fd)

    def walk(
        self, path: str | Path = ".", skip: Collection[str] = SKIPPED, depth: int | None = None
    ) -> Iterator[Entry]:
        """Yield everything under a directory, parents first and sorted; symlinks are named, not entered."""
        with closing_fd(self.open(path, _DIRECTORY)) as fd:
            yield from walk_directory(fd, skip, depth)

    def stamps(self, skip: Collection[str], leave: str, most: int) -> dict[str, tuple[int, ...]]:
        """Return the stamps of the workspace except `leave`, see `stamps_below`."""
        with closing_fd(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as fd:
            return stamps_below(fd, skip, leave, most)

    @contextmanager
    def directory(self, parent: str, *, make: bool = True) -> Iterator[int]:
        """Return a handle of a relative directory, reached without symlinks; created by default."""
        with closing_fd(os.open(self.root, _DIRECTORY | os.O_CLOEXEC)) as root:
            made = ""
            for part in parent.split("/") if parent and make else ():
                above, made = made or ".", posixpath.join(made, part)
                with (
                    closing_fd(open_beneath(root, above, _DIRECTORY, 0, follow=False)) as fd,
                    suppress(FileExistsError),
                ):
                    os.mkdir(part, dir_fd=fd)
            with closing_fd(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=False)) as fd:
                yield fd

    def check_writable(self, relative: str) -> None:
        """Raise `PermissionError` or `IsADirectoryError` for a path that tools must not write."""
        if self.read_only:
            raise PermissionError(f"cannot write {relative}: this workspace is read-only")
        if found := [part for part in relative.split("/") if part.casefold() in PROTECTED]:
            raise PermissionError(f"cannot write {relative}: {found[0]} is protected")
        if home := next(
            (
                parent
                for parent in PurePosixPath(relative).parents
                if parent.name and (self.root / parent / LOG).exists()
            ),
            None,
        ):
            raise PermissionError(f"cannot write {relative}: {home} is protected, it has a log of kestrel")
        if is_log(self.root / relative):
            raise PermissionError(f"cannot write {relative}: it is protected, it belongs to a log of kestrel")
        if relative == ".":
            raise IsADirectoryError("the workspace itself cannot be written, name a file in it")

    def check_settings(self, relative: str, content: bytes) -> None:
        """Raise `PermissionError` if `content` changes this package's settings in `pyproject.toml`.

        They decide what an agent may do unasked. The rest of the file is free.
        """
        if posixpath.basename(relative).casefold() != "pyproject.toml":
            return
        before = self.read_bytes(relative) if self.exists(relative) else b""
        if settings_in(before) != settings_in(content):
            raise PermissionError(
                f"cannot write {relative}: its [tool.kestrel] is protected, leave that table as it is"
            )


def quoted_path(path: str) -> str:
    """Return `path` for display; as JSON text, as a model writes it in a call, if it has odd characters."""
    return path if path.isprintable() and not path.startswith('"') else json.dumps(path)


def settings_in(content: bytes) -> object:
    """Return this package's settings in a `pyproject.toml`; `None` if there are none or it is invalid."""
    try:
        tool = loads_toml(content.decode("utf-8")).get("tool")
    except ValueError:
        return None
    return tool.get("kestrel") if isinstance(tool, dict) else None


@contextmanager
def explain_os_error(path: str | Path, workspace: Workspace) -> Iterator[None]:
    """Return an `OSError` of the same class with a message that a model can act on."""
    try:
        yield
    except OSError as error:
        match error.errno:
            case None:
                raise
            case errno.EXDEV | errno.ELOOP:
                raise PermissionError(
                    f"{path!s} leads through a symlink that leaves the workspace or may not be followed"
                ) from None
            case errno.ENXIO:
                raise PermissionError(f"{path!s} is a pipe or socket, not a file") from None
            case errno.ENOENT:
                raise FileNotFoundError(f"{path!s} does not exist{_suggestion(path, workspace)}") from None
        raise type(error)(f"{path!s}: {error.strerror}") from None


def _suggestion(path: str | Path, workspace: Workspace) -> str:
    """Return a hint on what the directory of a missing path contains; empty if that does not help."""
    parent = posixpath.dirname(workspace.relative(path))
    with suppress(OSError), closing_fd(os.open(workspace.root, _DIRECTORY | os.O_CLOEXEC)) as root:
        with closing_fd(open_beneath(root, parent or ".", _DIRECTORY, 0, follow=True)) as directory:
            there = [posixpath.join(parent, entry.path) for entry in list_directory(directory)]
        if 0 < len(there) <= _MOST_SUGGESTED:
            return f"; {did_you_mean(str(path), there)}"
    return ""


def _outside_error(path: str | Path) -> PermissionError:
    return PermissionError(f"{path!s} is outside the workspace: use a path relative to it")
