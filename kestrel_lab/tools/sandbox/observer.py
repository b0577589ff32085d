"""What a locked-down process is refused, seen from outside: an observer hears each call that the lockdown may
refuse, and answers it.

The process cannot hide a refusal, whatever way it calls and whatever it does with the error. The observer
also opens files on its behalf that Landlock does not grant: it looks at what it has opened, not at a name
that may mean something else by then.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from kestrel_lab.tools.sandbox.mounts import DEVICES
from kestrel_lab.tools.sandbox.seccomp import call_numbers

MOST_REFUSALS = 50
_RECEIVE, _SEND, _ADD_DESCRIPTOR = 0xC0502100, 0xC0182101, 0x40182103
_CONTINUE, _SEND_DESCRIPTOR = 1, 2
_NOTICE = struct.Struct("=QIIiIQ6Q")
_ANSWER = struct.Struct("=QqiI")
_DESCRIPTOR = struct.Struct("=QIIII")
_LONGEST_PATH = 4_096
_PAGE = 4_096
_AT_CWD = -100
_PASSED_FLAGS = os.O_NONBLOCK | os.O_DIRECTORY | os.O_CLOEXEC
_ACCESS = os.O_WRONLY | os.O_RDWR


@dataclass(frozen=True, kw_only=True, slots=True)
class Grants:
    """What an observed process may open."""

    read: tuple[str, ...]
    """Real folders and files that Landlock lets it read."""
    brokered: Callable[[str, int], bool]
    """Whether the observer opens a real path for it, which Landlock does not let it read. The second argument
    stands for what is there."""
    write: str
    """The folder that Landlock lets it write beneath."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that a process was refused."""

    kind: str
    """`read`, `write`, `device`, `network`, `process` or `other`."""
    target: str = ""
    """The path, or the name of the system call."""


@dataclass(slots=True)
class Observer:
    """Answers the calls of one locked-down process and notes what it refuses."""

    listener: int
    """The descriptor of its seccomp filter."""
    pid: int
    grants: Grants
    refusals: dict[Refusal, None] = field(default_factory=dict)
    """In order."""
    opened: dict[str, None] = field(default_factory=dict)
    """Real paths of files that were opened for it."""

    def answer(self) -> None:
        """Answer one call that waits; `poll` says that there is one."""
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, notice)
        except OSError:
            # The process was killed in between.
            return
        ident, thread, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        call = _Call(self, ident, thread, call_numbers().get(number, f"call {number}"), arguments)
        try:
            call.answer()
        except (OSError, ValueError) as error:
            # The process has ended, or names what cannot be looked at.
            call.refuse(Refusal("other", f"{call.name} ({error})"), errno.EACCES)

    def note(self, refusal: Refusal) -> None:
        """Note a refusal."""
        if len(self.refusals) < MOST_REFUSALS:
            self.refusals[refusal] = None


@dataclass(slots=True)
class _Call:
    """One system call that waits for its answer."""

    observer: Observer
    ident: int
    thread: int
    name: str
    arguments: list[int]

    def answer(self) -> None:
        if self.name in _OPENS:
            self._answer_open()
        elif self.name in _ENTRIES:
            self._answer_change()
        else:
            self.refuse(Refusal(*_KINDS.get(self.name, ("other", self.name))), errno.EPERM)

    def _answer_open(self) -> None:
        folder, path, flags = self._opened()
        if path is None:
            self.refuse(_UNREADABLE, errno.EACCES)
            return
        if flags & os.O_PATH or not path:
            self._go_on()
            return
        flags_of_path = os.O_PATH | os.O_CLOEXEC | flags & os.O_NOFOLLOW
        try:
            place = os.open(self._named(folder, path), flags_of_path)
        except OSError as error:
            if flags & os.O_CREAT and error.errno == errno.ENOENT:
                self._answer_entry(folder, path)
            else:
                # The process gets the same error.
                self._go_on()
            return
        try:
            self._answer_place(place, path, flags)
        finally:
            os.close(place)

    def _answer_place(self, place: int, path: str, flags: int) -> None:
        """Answer the opening of what a descriptor stands for."""
        real, mode, grants = self._real(place), os.fstat(place).st_mode, self.observer.grants
        if (flags & os.O_CREAT and flags & os.O_EXCL) or stat.S_ISLNK(mode):
            # The process gets an error without Landlock, too.
            self._go_on()
        elif flags & (_ACCESS | os.O_TRUNC) or flags & os.O_TMPFILE == os.O_TMPFILE:
            if _is_below(real, (grants.write,)):
                self._go_on()
            elif real in DEVICES:
                self._hand_over(place, flags & (_ACCESS | os.O_CLOEXEC))
            else:
                self.refuse(Refusal("write", real), errno.EACCES)
        elif _is_below(real, (*grants.read, grants.write, f"/proc/{self.observer.pid}")):
            self._go_on()
        elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            self.refuse(Refusal("device", path), errno.EACCES)
        elif grants.brokered(real, place):
            if stat.S_ISREG(mode):
                self.observer.opened[real] = None
            self._hand_over(place, flags & _PASSED_FLAGS)
        else:
            self.refuse(Refusal("read", real), errno.EACCES)

    def _answer_change(self) -> None:
        """Answer a call that makes, moves or removes entries of folders, or cuts a file short."""
        entries = []
        for folder_place, path_place in _ENTRIES[self.name]:
            folder = _AT_CWD if folder_place is None else _signed(self.arguments[folder_place])
            path = self._text(self.arguments[path_place])
            if path is None:
                self.refuse(_UNREADABLE, errno.EACCES)
                return
            entries.append((folder, path))
        # What is there cannot be made, and what is not there cannot be removed, with or without Landlock.
        is_there = os.path.lexists(self._named(*entries[0]))
        real_entries = [self._entry(folder, path) for folder, path in entries]
        if is_there == (self.name in _MAKING) or not all(real_entries):
            self._go_on()
            return
        for real in real_entries:
            if not _is_below(real, (self.observer.grants.write,)):
                self.refuse(Refusal("write", real), errno.EACCES)
                return
        self._go_on()

    def _answer_entry(self, folder: int, path: str) -> None:
        """Answer the making of a file that is not there."""
        real = self._entry(folder, path)
        if real and not _is_below(real, (self.observer.grants.write,)):
            self.refuse(Refusal("write", real), errno.EACCES)
        else:
            self._go_on()

    def _entry(self, folder: int, path: str) -> str:
        """Return the real path of an entry; empty if its folder is not there."""
        head, _, name = path.rstrip("/").rpartition("/")
        head = head or ("/" if path.startswith("/") else ".")
        try:
            place = os.open(self._named(folder, head), os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.path.join(self._real(place), name)
        finally:
            os.close(place)

    def _opened(self) -> tuple[int, str | None, int]:
        """Return the folder, path and flags of a call that opens."""
        first, second, third = self.arguments[:3]
        match self.name:
            case "open":
                return _AT_CWD, self._text(first), second
            case "creat":
                return _AT_CWD, self._text(first), os.O_CREAT | os.O_WRONLY | os.O_TRUNC
            case "openat":
                return _signed(first), self._text(second), third
        flags = self._memory(third, _FLAGS.size)
        if len(flags) < _FLAGS.size:
            return _AT_CWD, None, 0
        return _signed(first), self._text(second), _FLAGS.unpack(flags)[0]

    def _named(self, folder: int, path: str) -> str:
        """Return a path of the process as this process names it."""
        thread = f"/proc/{self.thread}"
        for link in ("/proc/self", "/proc/thread-self"):
            if path == link or path.startswith(f"{link}/"):
                return f"/proc/{self._process()}{path.removeprefix(link)}"
        if path.startswith("/"):
            return path
        return f"{thread}/cwd/{path}" if folder == _AT_CWD else f"{thread}/fd/{folder}/{path}"

    def _process(self) -> int:
        is_own = os.path.exists(f"/proc/{self.observer.pid}/task/{self.thread}")
        return self.observer.pid if is_own else self.thread

    def _real(self, place: int) -> str:
        """Return what a descriptor stands for, by its real path."""
        real = os.readlink(f"/proc/self/fd/{place}")
        own = f"/proc/{os.getpid()}/"
        # A link such as /dev/fd leads each process to a folder of its own.
        return f"/proc/{self._process()}/{real.removeprefix(own)}" if real.startswith(own) else real

    def _text(self, address: int) -> str | None:
        """Return the text at an address; `None` if it cannot be read."""
        content = b""
        while len(content) < _LONGEST_PATH and b"\0" not in content:
            # Page by page: what follows may not be there.
            place = address + len(content)
            part = self._memory(place, _PAGE - place % _PAGE)
            if not part:
                return None
            content += part
        end = content.find(b"\0")
        return os.fsdecode(content[:end]) if end >= 0 else None

    def _memory(self, address: int, size: int) -> bytes:
        """Return bytes at an address; none if they cannot be read."""
        try:
            memory = os.open(f"/proc/{self.thread}/mem", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(memory, size, address)
        except (OSError, OverflowError):
            return b""
        finally:
            os.close(memory)

    # Answers.

    def _go_on(self) -> None:
        """Let the kernel decide, which has Landlock."""
        self._send(0, 0, _CONTINUE)

    def refuse(self, refusal: Refusal, error: int) -> None:
        self.observer.note(refusal)
        self._send(0, -error, 0)

    def _hand_over(self, place: int, flags: int) -> None:
        """Open what a descriptor stands for, and answer with the new descriptor."""
        try:
            opened = os.open(f"/proc/self/fd/{place}", flags | os.O_CLOEXEC | os.O_NOCTTY)
        except OSError as error:
            self._send(0, -(error.errno or errno.EACCES), 0)
            return
        try:
            kept_on_exec = flags & os.O_CLOEXEC
            described = _DESCRIPTOR.pack(self.ident, _SEND_DESCRIPTOR, opened, 0, kept_on_exec)
            with suppress(OSError):
                fcntl.ioctl(self.observer.listener, _ADD_DESCRIPTOR, described)
        finally:
            os.close(opened)

    def _send(self, value: int, error: int, flags: int) -> None:
        with suppress(OSError):
            fcntl.ioctl(self.observer.listener, _SEND, _ANSWER.pack(self.ident, value, error, flags))


_FLAGS = struct.Struct("=Q")
_OPENS = frozenset({"open", "creat", "openat", "openat2"})
_KINDS = {
    **dict.fromkeys(("socket", "socketpair"), ("network", "")),
    **dict.fromkeys(("execve", "execveat", "fork", "vfork", "clone"), ("process", "")),
}
_UNREADABLE = Refusal("other", "a path that cannot be read")
_ENTRIES: dict[str, tuple[tuple[int | None, int], ...]] = {
    **dict.fromkeys(("truncate", "mkdir", "mknod", "rmdir", "unlink"), ((None, 0),)),
    **dict.fromkeys(("mkdirat", "mknodat", "unlinkat"), ((0, 1),)),
    "rename": ((None, 0), (None, 1)),
    **dict.fromkeys(("renameat", "renameat2"), ((0, 1), (2, 3))),
    **dict.fromkeys(("link", "symlink"), ((None, 1),)),
    "linkat": ((2, 3),),
    "symlinkat": ((1, 2),),
}
"""By call, the arguments that hold the folder (`None`: the working folder) and the path of each entry that it
changes.
"""
_MAKING = frozenset("mkdir mkdirat mknod mknodat link linkat symlink symlinkat".split())


def _signed(number: int) -> int:
    return ctypes.c_int(number & 0xFFFFFFFF).value


def _is_below(path: str, folders: Iterable[str]) -> bool:
    return any(path == folder or path.startswith(folder.rstrip("/") + "/") for folder in folders)
