"""Launcher: a small process that starts commands and kills everything they started, whatever happens to the
caller.

It runs beside the process that asks, without threads, so that forking is safe. For each command it forks a
keeper ahead of time. The keeper restricts the command, waits for it, and kills everything it started when the
caller says so, or is gone.
"""

from __future__ import annotations

import base64
import ctypes
import fcntl
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import struct
import tempfile
import termios
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from kestrel_lab.tools.sandbox import landlock
from kestrel_lab.tools.sandbox.gitdir.private_gitdir import PrivateGit, remove_tree

CONTROL_FD = 3
FILTER_FD = 3
"""The file descriptor from which a command reads its filter of system calls, if it applies the filter itself.
"""
REPORT_FD = 19
"""Descriptor for reports of a command besides its output; programs do not use that number otherwise."""
_SUBREAPER = 36
SOURCE_FD = 40
"""First descriptor of the paths that a program mounts; it closes them before the command starts."""
_HIGH = 300
"""Descriptors are moved above this number first, so that placing one overwrites no other."""
_PLACES = (0, 1, 2, REPORT_FD)
_DEFAULTS = (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python, or this process, handles in its own way."""
_SWEEP_S = 5.0
_CHECK_S = 0.05
MAX_FILE = 10 * 1024**3
"""Bytes of one file that a command may write; a larger one fails, or ends the command."""
MAX_PROCESSES = 500
"""Most processes of a command at once; a fork bomb is killed."""

Request = dict[str, Any]


def serve() -> None:
    """Keep one keeper ready for the next command until the caller is gone."""
    control = socket.socket(fileno=CONTROL_FD)
    # Nobody waits for the keepers: without a handler the kernel reaps them.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C is for the caller, which decides what becomes of its commands.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    bound = MAX_FILE if most == resource.RLIM_INFINITY else min(MAX_FILE, most)
    # A command that writes one file without end must not fill the disk.
    resource.setrlimit(resource.RLIMIT_FSIZE, (bound, bound))
    for fd in map(int, os.listdir("/proc/self/fd")):
        # Inherited from the caller, and not for commands.
        if fd > CONTROL_FD:
            with suppress(OSError):
                os.set_inheritable(fd, False)
    # A collection would write to every object, and the forked keepers could not share their pages any more.
    gc.disable()
    while True:
        # A keeper writes one byte when it takes a command. Then the next one is forked, before it is needed.
        taken, take = os.pipe()
        if os.fork() == 0:
            code = 1
            try:
                os.close(taken)
                _serve_one(control, take)
                code = 0
            finally:
                # Not `sys.exit`: exit handlers are the launcher's, not the keeper's.
                os._exit(code)
        os.close(take)
        # It ended without a command: nobody is left to give one.
        if not os.read(taken, 1):
            return
        os.close(taken)


def _serve_one(control: socket.socket, take: int) -> None:
    """Serve one command, from its request to the end of its last process."""
    wake, woken = os.pipe()
    # A full pipe must not block the signal handler; one byte in it is enough to wake.
    os.set_blocking(woken, False)
    # `poll` has to notice the end of a child too, also one that ends before it waits.
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # Orphans of the command come to this process, so that none escapes by ending its parent.
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    message, fds, _, _ = socket.recv_fds(control, 16, 5)
    if not message:
        return
    # `recv_fds` does not pass flags on: without this the command has them, and `control` too.
    for fd in fds:
        os.set_inheritable(fd, False)
    control.close()
    with suppress(OSError):  # the launcher may have ended
        os.write(take, b"x")
    os.close(take)
    connection = socket.socket(fileno=fds[0])
    with connection.makefile("rb") as received:
        # The length comes first: the socket stays open for the command's control messages.
        (size,) = struct.unpack("=I", received.read(4))
        request: Request = json.loads(received.read(size))
    private = os.path.realpath(tempfile.mkdtemp(prefix="kestrel-")) if request["private"] else ""
    repositories: list[PrivateGit] = []
    try:
        child = _start_command(request, private, fds[1:], connection, repositories)
        for stream in fds[1:]:
            os.close(stream)
        if child:
            _wait(
                child,
                connection,
                wake,
                repositories,
                None
                if request["memory"] is None
                else MemoryBound(request["memory"], tuple(request["in_memory"])),
            )
    finally:
        # Before the notes: what lives on could still write to the private git folder.
        _kill_descendants()
        if notes := [note for one in repositories for note in one.end()]:
            _send_message(connection, {"notes": notes})
        connection.close()  # nobody waits for the rest
        remove_tree(*(one.rest for one in repositories), *([private] if private else []))


def _start_command(
    request: Request,
    private: str,
    streams: list[int],
    connection: socket.socket,
    repositories: list[PrivateGit],
) -> int:
    """Start the command and return its process id; if it does not start, send the caller the error and
    return 0.

    Adds the private git folders that it makes to `repositories`; the caller has to end them.
    """
    problem = b""
    try:
        for real, inside, shown in request["repositories"]:
            one = PrivateGit(real, inside, frozenset(shown))
            one.make()
            repositories.append(one)
        os.chdir(request["cwd"])
        if not request["landlock"]:
            return _spawn_process(request, streams)
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _exec_restricted(request, private, streams, writing)
        os.close(writing)
        # A successful exec closes the pipe without a word, as it is not inheritable.
        with os.fdopen(reading, "rb") as pipe:
            problem = pipe.read()
    except OSError as error:
        problem = _error_bytes(error)
    if not problem:
        return child
    _send_message(connection, {"error": problem.decode("utf-8", "replace")})
    return 0


def _spawn_process(request: Request, streams: list[int]) -> int:
    """Start a process that restricts itself or is not restricted; it gets only its streams, its filter and
    its sources.
    """
    # `posix_spawn` copies no memory of this process, as a fork would.
    kept = [
        (fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _HIGH), place)
        for place, stream in zip(_PLACES, streams, strict=False)
    ]
    if program := base64.b64decode(request["filter"]):
        kept.append((fcntl.fcntl(_memory(program), fcntl.F_DUPFD_CLOEXEC, _HIGH), FILTER_FD))
    try:
        for place, source in enumerate(request["sources"], SOURCE_FD):
            opened = landlock.open_nofollow(source)
            kept.append((fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, _HIGH), place))
            os.close(opened)
        actions: list[Any] = [(os.POSIX_SPAWN_DUP2, fd, place) for fd, place in kept]
        # A new session gets the first terminal that its leader opens.
        if request["terminal"]:
            actions.append((os.POSIX_SPAWN_OPEN, 2, os.ttyname(streams[2]), os.O_RDWR, 0))
        return os.posix_spawnp(
            request["argv"][0],
            request["argv"],
            request["env"],
            file_actions=actions,
            setsid=True,
            setsigdef=_DEFAULTS,
        )
    finally:
        for fd, _ in kept:
            os.close(fd)


def _exec_restricted(request: Request, private: str, streams: list[int], writing: int) -> NoReturn:
    """Become the command in this forked process, restricted by Landlock; errors go to `writing`."""
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in _DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        kept = [fcntl.fcntl(stream, fcntl.F_DUPFD_CLOEXEC, _HIGH) for stream in streams]
        for place, fd in zip(_PLACES, kept, strict=False):
            os.dup2(fd, place)
        if request["terminal"]:
            fcntl.ioctl(2, termios.TIOCSCTTY, 0)
        access = landlock.Access(**request["landlock"])
        landlock.drop_privileges()
        landlock.restrict_process(replace(access, write=[*access.write, private]))
        landlock.filter_calls(base64.b64decode(request["filter"]))
        os.execvpe(  # noqa: S606
            request["argv"][0], request["argv"], request["env"] | {"HOME": private, "TMPDIR": private}
        )  # no shell is wanted
    except BaseException as error:  # a forked process has nobody else to tell  # noqa: BLE001
        os.write(writing, _error_bytes(error))
    finally:
        os._exit(127)


def _error_bytes(error: BaseException) -> bytes:
    return f"{type(error).__name__}: {error}".encode()[:4096]


def _memory(content: bytes) -> int:
    fd = os.memfd_create("filter")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _wait(
    child: int,
    connection: socket.socket,
    wake: int,
    repositories: list[PrivateGit],
    bound: MemoryBound | None,
) -> None:
    """Report how the command ended; return when it must be killed, the caller is gone, or all processes
    ended.
    """
    alive, look = True, time.monotonic() + _CHECK_S
    watch = _poll_of(connection.fileno(), wake)
    while True:
        left = max(0, math.ceil(1000 * (look - time.monotonic())))
        ready = [descriptor for descriptor, _ in watch.poll(left if alive else None)]
        if wake in ready:
            os.read(wake, 4096)
        try:
            status = _reap(child)
            if alive and status is not None:
                alive = False
                if not _send_message(connection, {"exit": os.waitstatus_to_exitcode(status)}):
                    return
                _reap(child)
        except ChildProcessError:
            # Orphans become children of this subreaper: without children, nothing of the command is left.
            return
        if connection.fileno() in ready:
            return
        # By the clock and not per wake-up: a command whose children end all the time wakes this loop often.
        if alive and time.monotonic() >= look:
            for one in repositories:
                one.carry()
            processes = list(_descendants(os.getpid()))
            if len(processes) > MAX_PROCESSES or (bound is not None and bound.exceeded(processes)):
                _send_message(
                    connection, {"stopped": "processes" if len(processes) > MAX_PROCESSES else "memory"}
                )
                return
            look = time.monotonic() + _CHECK_S


def _poll_of(*descriptors: int) -> select.poll:
    """Return what waits until one can be read; `select.select` takes no descriptor over 1,023."""
    watch = select.poll()
    for descriptor in descriptors:
        watch.register(descriptor, select.POLLIN)
    return watch


def _reap(child: int) -> int | None:
    """Reap ended processes up to `child`, return its status; raises `ChildProcessError` if none is left."""
    while (ended := os.waitpid(-1, os.WNOHANG))[0]:
        if ended[0] == child:
            return ended[1]
    return None


def _send_message(connection: socket.socket, message: Request) -> bool:
    try:
        connection.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def _kill_descendants() -> None:
    """Kill every process that the command started, including those in sessions of their own, which have
    become children of this process.
    """
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        found = list(_descendants(os.getpid()))
        # All are stopped before any is killed: a running one could fork faster than this loop kills.
        for what in (signal.SIGSTOP, signal.SIGKILL):
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, what)
        time.sleep(0.001)


def _descendants(of: int) -> Iterator[int]:
    """Yield all descendants of a process that are visible now."""
    todo = [of]
    while todo:
        for child in _children(todo.pop()):
            todo.append(child)
            yield child


def _children(of: int) -> list[int]:
    found: list[int] = []
    try:
        tasks = os.listdir(f"/proc/{of}/task")
    except OSError:
        return found
    for task in tasks:
        with suppress(OSError), open(f"/proc/{of}/task/{task}/children", "rb") as file:
            found += map(int, file.read().split())
    return found


# The memory of a command.

_PAGE = resource.getpagesize()
_PATIENCE = 10
"""Pause after an exact count, in multiples of its duration: counting takes at most a tenth of the time."""


@dataclass(slots=True)
class MemoryBound:
    """A limit on the bytes of memory of all processes of one command, enforced by asking the kernel again and
    again.

    `RLIMIT_AS` and `RLIMIT_DATA` bound what one process asks for, not what all have: runtimes reserve far
    more than they use, and ten processes have ten times as much. A cgroup would be exact, but containers and
    sessions rarely let one be made.
    """

    most: int
    in_memory: tuple[str, ...] = ()
    """Places of file systems in memory of the command, as it sees them."""
    _next: float = 0.0

    def exceeded(self, there: Sequence[int]) -> bool:
        """Return true if these processes exceed the limit.

        Mapped files do not count: the kernel can drop them.
        """
        # A cheap upper bound first. It counts shared pages in each process, and all memory files of the
        # machine, whoever made them: if even that fits, the exact count is not needed.
        if sum(map(_resident, there)) + _shared_memory() <= self.most or time.monotonic() < self._next:
            return False
        begun = time.monotonic()
        anonymous, shared = (
            map(sum, zip(*(_proportional(process) for process in there), strict=True)) if there else (0, 0)
        )
        # Not the sum: pages of memory files that processes map are in `shared` as well.
        found = anonymous + max(shared, _memory_files(there) + _file_systems(there, self.in_memory))
        self._next = time.monotonic() + _PATIENCE * (time.monotonic() - begun)
        return found > self.most


def _shared_memory() -> int:
    """Return the bytes in memory files and shared memory on the whole machine."""
    try:
        with open("/proc/meminfo", "rb") as file:
            return next((int(line.split()[1]) * 1024 for line in file if line.startswith(b"Shmem:")), 0)
    except OSError:
        return 0


def _resident(process: int) -> int:
    """Return a process's resident memory in bytes, shared memory included; 0 if it is gone."""
    try:
        with open(f"/proc/{process}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError):
        return 0


def _proportional(process: int) -> tuple[int, int]:
    """Return private memory and the share of shared pages in bytes, if the kernel reports it."""
    for file, own, shared in (
        ("smaps_rollup", b"Pss_Anon", b"Pss_Shmem"),
        ("status", b"RssAnon", b"RssShmem"),
    ):
        try:
            with open(f"/proc/{process}/{file}", "rb") as lines:
                found = {name: rest for name, _, rest in (line.partition(b":") for line in lines)}
            return int(found[own].split()[0]) * 1024, int(found[shared].split()[0]) * 1024
        except (OSError, KeyError):
            # It ended, may not be asked, or the kernel is older.
            continue
    return 0, 0


def _file_systems(processes: Iterable[int], places: Sequence[str]) -> int:
    """Return the bytes in memory file systems that the processes see and this one does not."""
    found: dict[int, int] = {}
    for place in places:
        try:
            own = os.stat(place).st_dev
        except OSError:
            own = -1
        for process in processes:
            inside = f"/proc/{process}/root{place}"
            try:
                if (device := os.stat(inside).st_dev) not in (own, *found):
                    held = os.statvfs(inside)
                    found[device] = (held.f_blocks - held.f_bfree) * held.f_frsize
            except OSError:
                # It ended, may not be asked, or has another root.
                continue
    return sum(found.values())


def _memory_files(processes: Iterable[int]) -> int:
    """Return the bytes of the memory files (`memfd_create`) that the processes hold open, each counted once;
    such a file can be filled without being mapped.
    """
    found = {}
    for process in processes:
        folder = f"/proc/{process}/fd"
        try:
            for fd in os.listdir(folder):
                if os.readlink(f"{folder}/{fd}").startswith("/memfd:"):
                    mark = os.stat(f"{folder}/{fd}")
                    found[mark.st_dev, mark.st_ino] = mark.st_blocks * 512
        except OSError:
            # It ended, or may not be asked.
            continue
    return sum(found.values())
