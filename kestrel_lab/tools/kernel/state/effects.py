"""Effects of code on files, processes and the network, by what Python reports to audit hooks.

A preview notes what is wanted, in words, while the system refuses it (`Effects`); code that runs in the
kernel is watched while it does it (`Witness`). Code can hide from both. They are for the person who is asked,
or who undoes it: the lockdown refuses, and an `Observer` outside of the copy knows what was refused.
"""

from __future__ import annotations

import builtins
import io
import os
import shutil
import stat
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from kestrel_lab.tools.kernel.state.libraries import in_library, in_python
from kestrel_lab.tools.kernel.variables import Alteration, Change

MOST_WISHES = 20
"""Effects that are noted."""
_CHANGES = {
    "os.remove": "delete {0}",
    "os.rmdir": "delete the folder {0}",
    "os.rename": "rename {0} to {1}",
    "os.mkdir": "make the folder {0}",
    "os.link": "link {1} to {0}",
    "os.symlink": "link {1} to {0}",
    "os.truncate": "cut {0} short",
    "os.chmod": "change the mode of {0}",
    "os.chown": "change the owner of {0}",
    "os.utime": "change the times of {0}",
    "os.system": "run the command {0}",
    "os.posix_spawn": "run the program {0}",
    "os.exec": "run the program {0}",
    "os.fork": "start a process",
    "os.forkpty": "start a process",
    "os.kill": "send signal {1} to process {0}",
    "os.killpg": "send signal {1} to processes",
    "subprocess.Popen": "run the program {0}",
    "socket.connect": "connect to {1}",
    "socket.bind": "wait for connections at {1}",
    "socket.getaddrinfo": "reach {0}, port {1}",
    "socket.gethostbyname": "reach {0}",
    "shutil.rmtree": "delete the folder {0}",
}
NETWORK = ("connect to", "reach ", "wait for connections", "use the network")
_INTERNET = (2, 10)


class Effects:
    """Records the effects that code in a preview tries to have; files go to a scratch folder.

    `install` is permanent: Python cannot remove an audit hook.
    """

    def __init__(self, scratch: str) -> None:
        """Files that are written go into `scratch`."""
        self.scratch = os.path.join(scratch, "")
        self.refused: list[str] = []
        self.written: dict[str, str] = {}
        """By path, where it was written instead."""
        self._open: Callable[..., Any] = io.open
        self._busy = False

    def install(self) -> None:
        """Record from now on what code in this process tries."""
        builtins.open = io.open = self.opened
        sys.addaudithook(self._heard)

    def sizes(self) -> list[list[Any]]:
        """Return path and size of each file written; relative to the working folder if inside."""
        here = os.path.join(os.getcwd(), "")
        return [
            [path.removeprefix(here), os.path.getsize(place)]
            for path, place in self.written.items()
            if os.path.exists(place)
        ]

    def opened(self, file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
        """Open a file as `open` does, but write to a copy in the scratch folder, which is deleted later."""
        if not isinstance(file, str | bytes | os.PathLike):
            return self._open(file, mode, *args, **options)
        path = os.path.abspath(os.fsdecode(file))
        if path.startswith(self.scratch) or path == os.devnull:
            return self._open(file, mode, *args, **options)
        if not set(mode) & set("wax+"):
            return self._open(self.written.get(path, file), mode, *args, **options)
        place = self.written.get(path)
        if place is None:
            place = os.path.join(self.scratch, f"{len(self.written)}-{os.path.basename(path)}")
            self.written[path] = place
            if os.path.isfile(path):
                if "x" in mode:
                    raise FileExistsError(17, os.strerror(17), path)
                if "w" not in mode:
                    shutil.copyfile(path, place)
        return self._open(place, mode.replace("x", "w"), *args, **options)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        # The hook opens files itself, which calls the hook again.
        if self._busy:
            return
        self._busy = True
        try:
            if event == "open":
                if (
                    isinstance(args[2], int)
                    and args[2] & (os.O_WRONLY | os.O_RDWR)
                    and isinstance(args[0], str)
                    and not self._own(args[0])
                ):
                    self._note(f"write {args[0]}")
            elif event == "socket.__new__" and args[1] in _INTERNET:
                self._note("use the network")
            elif event in _CHANGES and not self._harmless(event, args):
                self._note(_CHANGES[event].format(*(_in_words(arg) for arg in args), "", ""))
        finally:
            self._busy = False

    def _own(self, path: str) -> bool:
        return os.path.join(os.path.abspath(path), "").startswith(self.scratch) or path == os.devnull

    def _harmless(self, event: str, args: tuple[Any, ...]) -> bool:
        """Return true if only scratch files are concerned, or an existing folder is made."""
        path = args[0] if args and isinstance(args[0], str) else None
        return (
            path is not None
            and not event.startswith(("socket", "subprocess"))
            and (self._own(path) or (event == "os.mkdir" and os.path.isdir(path)))
        )

    def _note(self, wish: str) -> None:
        if wish not in self.refused and len(self.refused) < MOST_WISHES:
            self.refused.append(wish)


def _in_words(value: object) -> str:
    text = (
        " ".join(map(str, value))
        if isinstance(value, list | tuple)
        else os.fsdecode(value)
        if isinstance(value, bytes)
        else str(value)
    )
    return text if len(text) <= 120 else f"{text[:117]}..."


# What code does in the kernel.

_FILES = frozenset(
    "os.remove os.rmdir os.rename os.mkdir os.link os.symlink os.truncate os.chmod os.chown os.utime "
    "shutil.rmtree sqlite3.connect".split()
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_FOLDER_ARGUMENT = {"os.remove": 1, "os.rmdir": 1, "os.mkdir": 2}
"""Position of the folder descriptor that an event's path is relative to."""
_MOST_DESCRIPTORS = 256
_NO_FILES = ("/proc/", "/sys/")
_WATCHED: ContextVar[Witness | None] = ContextVar("watched", default=None)
"""Observer of the running code. Each thread and task has its own context."""
_WATCHING: list[Witness] = []

_Signature = tuple[int, int, int, int] | None


@dataclass(slots=True, eq=False)
class Witness:
    """Records effects of code besides variables, also from threads it starts."""

    hidden: str = ""
    """Folder whose files are ignored."""
    done: dict[str, str] = field(default_factory=dict)
    """Effects that cannot be taken back, each with the reason."""
    _files: dict[str, _Signature] = field(default_factory=dict)
    """State of each path before the code changed it."""
    _opened: set[str] = field(default_factory=set)
    _sockets: bool = False
    _threads: list[threading.Thread] = field(default_factory=list)
    _before: dict[_Identity, int] = field(default_factory=dict)
    _paused: int = 0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Record the effects of the code in the block."""
        _install()
        self._before = _open_descriptors()
        token = _WATCHED.set(self)
        _WATCHING.append(self)
        start = threading.Thread.start

        def start_noted(thread: threading.Thread) -> None:
            if _witness() is self and not self._paused:
                self._threads.append(thread)
            start(thread)

        threading.Thread.start = start_noted  # type: ignore[method-assign,assignment]  # no audit event names the thread
        try:
            yield
        finally:
            if threading.Thread.start is start_noted:
                threading.Thread.start = start  # type: ignore[method-assign]
            _WATCHING.remove(self)
            _WATCHED.reset(token)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the effects of the block."""
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1

    def started(self, thread: int) -> bool:
        """Return true if the code started this thread."""
        return any(one.ident == thread for one in self._threads)

    def hear(self, event: str, args: tuple[Any, ...]) -> None:
        """Take in one event."""
        if self._paused:
            return
        if event == "open":
            # Libraries keep files such as fonts open. Only files that the user's code opens, or that are in
            # the working folder, can be left open by it.
            self._hear_open(args[0], args[2], by_own=not in_library(_opener()))
        elif event in _FILES:
            self._hear_files(event, args)
        elif event == "socket.__new__":
            self._sockets = self._sockets or not in_library(_opener())
        elif event == "sys.addaudithook":
            self.done["add an audit hook"] = "Python cannot remove it"
        elif event in _CHANGES and len(self.done) < MOST_WISHES:
            words = _CHANGES[event].format(*(_in_words(arg) for arg in args), "", "")
            self.done[words] = (
                "what was sent is not known" if words.startswith(NETWORK) else "what it did is not known"
            )

    def _hear_open(self, path: Any, flags: Any, *, by_own: bool) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            name = os.path.abspath(os.fsdecode(path))
            if by_own or (name.startswith(os.path.join(os.getcwd(), "")) and not in_library(name)):
                self._opened.add(name)
            if isinstance(flags, int) and flags & _WRITES:
                self._note(name)

    def _hear_files(self, event: str, args: tuple[Any, ...]) -> None:
        folder = (
            args[place] if (place := _FOLDER_ARGUMENT.get(event)) is not None and len(args) > place else -1
        )
        count = 2 if event in ("os.rename", "os.link", "os.symlink") else 1
        for path in args[:count]:
            if isinstance(path, str | bytes | os.PathLike):
                name = os.fsdecode(path)
                begin = (
                    os.readlink(f"/proc/self/fd/{folder}")
                    if isinstance(folder, int) and folder >= 0
                    else os.getcwd()
                )
                self._note(os.path.normpath(os.path.join(begin, name)))

    def _note(self, path: str) -> None:
        ignored = (
            path.startswith(_NO_FILES)
            or "__pycache__" in path
            or (self.hidden and path.startswith(self.hidden))
        )
        if path not in self._files and not ignored and len(self._files) < 10 * MOST_WISHES:
            self._files[path] = _signature(path)

    def alterations(self) -> Iterator[Alteration]:
        """Yield what came of it, once the code has ended."""
        changed = [(path, was, now) for path, was in self._files.items() if (now := _signature(path)) != was]
        for path, was, now in changed[:MOST_WISHES]:
            text = "made" if was is None else "deleted" if now is None else "changed"
            why = "the code changed it itself, and what it held is not kept"
            yield _lost(f"file {_short(path)}", text, why, partial(_is_file, path, was))
        if len(changed) > MOST_WISHES:
            yield _lost(
                "more files", f"{len(changed) - MOST_WISHES} others changed", "the code changed them itself"
            )
        for words, why in self.done.items():
            yield _lost(words, "done", why)
        for thread in self._threads:
            if thread.is_alive():
                yield _lost(
                    f"thread {thread.name}",
                    "runs",
                    "a thread cannot be ended from outside",
                    partial(_is_over, thread),
                )
        yield from self._still_open()

    def _still_open(self) -> Iterator[Alteration]:
        opened = {key: path for path in self._opened if (key := _identity(path)) is not None}
        for key, count in _open_descriptors().items():
            was = self._before.get(key, 0)
            if count > was and (key in opened or (self._sockets and key[0] == "socket")):
                change = Change(
                    name=f"open file {_short(opened[key])}" if key in opened else "open socket",
                    kind="state",
                    text="left open",
                )
                # Undo does not close it: the file closes when its variable is restored, and `_is_closed`
                # checks that.
                yield Alteration(change, lambda: None, lambda: True, partial(_is_closed, key, was))


def _lost(name: str, text: str, why: str, is_back: Callable[[], bool] = lambda: False) -> Alteration:
    return Alteration(
        Change(name=name, kind="state", text=text, lost=why), lambda: None, lambda: True, is_back
    )


def _is_file(path: str, was: _Signature) -> bool:
    return _signature(path) == was


def _is_over(thread: threading.Thread) -> bool:
    return not thread.is_alive()


def _is_closed(file: _Identity, count: int) -> bool:
    return _open_descriptors().get(file, 0) <= count


def _signature(path: str) -> _Signature:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    device = not any(kind(found.st_mode) for kind in (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK))
    return None if device else (found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode)


_Identity = tuple[object, int]


def _identity(file: str | int) -> _Identity | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return ("socket" if stat.S_ISSOCK(found.st_mode) else found.st_dev), found.st_ino


def _open_descriptors() -> dict[_Identity, int]:
    """Return how many descriptors there are of each file or socket."""
    try:
        numbers = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        # A locked-down copy cannot list them, and has few.
        numbers = list(range(_MOST_DESCRIPTORS))
    found = dict[_Identity, int]()
    for number in numbers:
        if (key := _identity(number)) is not None:
            found[key] = found.get(key, 0) + 1
    return found


def _short(path: str) -> str:
    try:
        here = os.path.join(os.getcwd(), "")
    except OSError:
        return path
    return path.removeprefix(here)


@cache
def _install() -> None:
    """Install an audit hook for observers; it cannot be removed and is cheap without one."""
    sys.addaudithook(_heard)


def _opener() -> str:
    """Return the file of the code that opens a file, skipping frames of Python, IPython and this package."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None:
        file, name = frame.f_code.co_filename, frame.f_code.co_name
        if name != "_modified_open" and not in_python(file):
            return file
        frame = frame.f_back
    return ""


def _witness() -> Witness | None:
    """Return the observer of the code on this thread."""
    witness = _WATCHED.get()
    # A new thread has an empty context; the witness knows which threads the code has started.
    if witness is None:
        return next((one for one in _WATCHING if one.started(threading.get_ident())), None)
    return witness if witness in _WATCHING else None


def _heard(event: str, args: tuple[Any, ...]) -> None:
    if not _WATCHING:
        return
    try:
        witness = _witness()
        if witness is not None:
            witness.hear(event, args)
    except Exception:  # an exception here would stop what the code does  # noqa: BLE001, S110
        pass
