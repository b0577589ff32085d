"""A small process that starts commands and leaves nothing of them behind, whatever becomes of who asked.

It runs beside the process that asks, without threads, so that forking is safe. For each command it forks a keeper:
the keeper holds the command in, waits for it, and kills everything that came of it when the one who asked says so,
or is gone.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import struct
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from kestrel_lab.tools.sandbox import landlock

CONTROL_FD = 3
FILTER_FD = 3
"""Where a command finds its filter of system calls, if it is to put it up itself."""
_SUBREAPER = 36
_SWEEP_S = 5.0
_CHECK_S = 0.2
MAX_PROCESSES = 1_000
"""How many processes a command may have at once; one that forks without end is killed."""

Request = dict[str, Any]


def serve() -> None:
    """Fork a keeper for each command, until whoever asks is gone."""
    control = socket.socket(fileno=CONTROL_FD)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 16, 4)
        if not message:
            return
        if os.fork() == 0:
            code = 1
            try:
                control.close()
                _keep(*fds)
                code = 0
            finally:
                os._exit(code)  # no cleaning up that is the launcher's
        for fd in fds:
            os.close(fd)


def _keep(talk_fd: int, *streams: int) -> None:
    """One command, from its request to the end of everything that came of it."""
    talk = socket.socket(fileno=talk_fd)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    request = _received(talk)
    private = tempfile.mkdtemp(prefix="kestrel-") if request["private"] else ""
    try:
        child = _started(request, private, streams, talk)
        for stream in streams:
            os.close(stream)
        if child:
            _wait(child, talk, wake)
    finally:
        _sweep()
        if private:
            shutil.rmtree(private, ignore_errors=True)


def _received(talk: socket.socket) -> Request:
    with talk.makefile("rb") as stream:
        (size,) = struct.unpack("=I", stream.read(4))
        request: Request = json.loads(stream.read(size))
    return request


def _started(request: Request, private: str, streams: tuple[int, ...], talk: socket.socket) -> int:
    """The number of the command's process; 0 when it could not be started, which is then told."""
    told, tell = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(told)
            _become(request, private, streams, tell)
        except BaseException as error:  # noqa: BLE001  # a forked process: the error is told to who asked
            os.write(tell, f"{type(error).__name__}: {error}".encode()[:4096])
        finally:
            os._exit(127)
    os.close(tell)
    with os.fdopen(told, "rb") as pipe:
        problem = pipe.read()
    if problem:
        with suppress(OSError):
            talk.sendall(json.dumps({"error": problem.decode("utf-8", "replace")}).encode() + b"\n")
        return 0
    return child


def _become(request: Request, private: str, streams: tuple[int, ...], tell: int) -> None:
    """Turn this process into the command, held in as asked; returns only by an error."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    program = base64.b64decode(request["filter"])
    tell_high = os.dup(tell) if tell <= FILTER_FD else tell
    high = [os.dup(stream) for stream in streams]
    for place, stream in enumerate(high):
        os.dup2(stream, place)
    keep = {0, 1, 2, tell_high}
    if program and not request["landlock"]:
        os.dup2(_memory(program), FILTER_FD)
        os.set_inheritable(FILTER_FD, True)  # it may have had that number already
        keep.add(FILTER_FD)
    _close_others(keep)
    env = dict(request["env"])
    if private:
        env |= {"HOME": private, "TMPDIR": private}
    os.chdir(request["cwd"])
    if request["landlock"]:
        rules = request["landlock"]
        landlock.drop_privileges()
        landlock.restrict(rules["read"], [*rules["write"], *([private] if private else [])], network=rules["network"])
        landlock.filter_calls(program)
    os.execvpe(request["argv"][0], request["argv"], env)  # noqa: S606  # no shell is what is wanted


def _memory(content: bytes) -> int:
    fd = os.memfd_create("filter")
    os.write(fd, content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


def _close_others(keep: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in keep:
            with suppress(OSError):
                os.close(int(name))


def _wait(child: int, talk: socket.socket, wake: int) -> None:
    """Tell how the command ended, and wait until who asked wants it gone or is gone."""
    alive = True
    while True:
        ready, _, _ = select.select([talk.fileno(), wake], [], [], _CHECK_S if alive else None)
        if wake in ready:
            os.read(wake, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == child:
                    alive = False
                    if not _tell(talk, {"exit": os.waitstatus_to_exitcode(ended[1])}):
                        return
        if talk.fileno() in ready:
            return
        if not ready and sum(1 for _ in _descendants(os.getpid())) > MAX_PROCESSES:
            _tell(talk, {"stopped": "processes"})
            return


def _tell(talk: socket.socket, message: Request) -> bool:
    try:
        talk.sendall(json.dumps(message).encode() + b"\n")
    except OSError:
        return False
    return True


def _sweep() -> None:
    """Kill every process that came of the command, also those that moved to sessions of their own: they are this one's by now."""
    deadline = time.monotonic() + _SWEEP_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        found = list(_descendants(os.getpid()))
        for what in (signal.SIGSTOP, signal.SIGKILL):  # stopped first, none can start another in the meantime
            for process in found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, what)
        time.sleep(0.001)


def _descendants(of: int) -> Iterator[int]:
    """The children of a process, their children, and so on, as far as they can be seen at this moment."""
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
