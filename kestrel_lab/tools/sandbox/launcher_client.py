"""Client of the launcher: start a command, wait for it, or kill all its processes."""

from __future__ import annotations

import asyncio
import atexit
import base64
import json
import os
import signal
import socket
import struct
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kestrel_lab.tools.sandbox.landlock import Access
from kestrel_lab.tools.sandbox.launcher_process import CONTROL_FD

_ROOT = str(Path(__file__).resolve().parents[3])
_GONE_S = 6.0
"""Seconds to wait until all processes have ended; the launcher gives up a little earlier."""
_START = (
    "import sys; sys.path.insert(0, sys.argv[1]); from kestrel_lab.tools.sandbox.launcher_process "
    "import serve; serve()"
)


Overgrown = Literal["", "processes", "memory"]
"""Resource that a killed command used too much of: processes or memory."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """A command and its sandbox; fields that are not set take the launcher's values."""

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    program: bytes = b""
    """A filter of system calls.

    It is applied to the command or, without `access`, passed to it as file descriptor 3.
    """
    access: Access | None = None
    """What Landlock allows; `None` for no Landlock."""
    private: bool = False
    """Gives the command a temporary folder of its own, which is also its HOME and is removed at the end."""
    sources: tuple[str, ...] = ()
    """Paths that are open when its program starts, the first as `SOURCE_FD`; no part of a path may be a link.
    """
    repositories: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Of each `PrivateGit`: the real folder, the private one, and what is mounted there."""
    memory: int | None = None
    """Bytes of memory that the command and its descendants may use; with more they are killed."""
    in_memory: tuple[str, ...] = ()
    """Places of file systems in memory that only it has; what lies in them counts as its memory."""
    watched: str = ""
    """The workspace that is searched before and after for files that run by themselves."""
    terminal: bool = False
    """True if its standard error, opened as a terminal by the caller, becomes its controlling terminal."""
    shifted: bool = False
    """True if its program reports a signal as shells do: 128 plus its number."""

    def message(self) -> bytes:
        """Return the request to the launcher."""
        body = json.dumps(
            {
                "argv": self.argv,
                "cwd": self.cwd,
                "env": dict(self.env),
                "filter": base64.b64encode(self.program).decode("ascii"),
                "landlock": None if self.access is None else asdict(self.access),
                "private": self.private,
                "sources": self.sources,
                "repositories": self.repositories,
                "memory": self.memory,
                "in_memory": self.in_memory,
                "terminal": self.terminal,
            }
        ).encode()
        return struct.pack("=I", len(body)) + body


def can_launch() -> bool:
    """Return whether this system has what the launcher needs: Linux."""
    return sys.platform.startswith("linux")


@dataclass
class _Launcher:
    """The launcher of this process. It is started when first needed, and again if it has ended."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    control: socket.socket | None = None
    owner: int = 0

    def send(self, fds: Sequence[int]) -> None:
        """Fork a keeper that receives these file descriptors."""
        with self.lock:
            # After a fork the socket is shared: parent and child would take each other's keepers.
            if self.control is None or self.owner != os.getpid():
                self._start()
            assert self.control is not None
            try:
                socket.send_fds(self.control, [b"start"], fds)
            except OSError:  # it ended
                self._start()
                socket.send_fds(self.control, [b"start"], fds)

    def _start(self) -> None:
        if self.control is not None:
            self.control.close()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            actions = [(os.POSIX_SPAWN_DUP2, theirs.fileno(), CONTROL_FD)]
            # Duplicating a descriptor onto itself would leave it closed on exec.
            if theirs.fileno() == CONTROL_FD:
                os.set_inheritable(CONTROL_FD, True)
                actions = []
            nothing = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
            # Isolated and without `site`: no file of the workspace or the user's Python runs in it, and it
            # starts faster.
            command = [sys.executable, "-I", "-S", "-c", _START, _ROOT]
            os.posix_spawn(sys.executable, command, {}, file_actions=[*actions, *nothing], setsid=True)
        self.control, self.owner = ours, os.getpid()
        # Closing it ends the launcher. Left open, it would be a ResourceWarning at exit.
        atexit.register(ours.close)


_LAUNCHER = _Launcher()


class LaunchedCommand:
    """A running command, on a running event loop."""

    def __init__(self, connection: socket.socket, *, shifted: bool) -> None:
        self._connection = connection
        self._shifted = shifted
        self._ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._following = asyncio.get_running_loop().create_task(self._follow())
        # Also if the loop ends first and nobody waits in `gone`: closing the socket kills what is left of the
        # command.
        self._following.add_done_callback(lambda _: connection.close())
        self._killed = False
        self.overgrown: Overgrown = ""
        self.notes: list[str] = []

    async def wait(self) -> int:
        """Return the exit code, negative for a signal; raises `OSError` if the command could not start."""
        return await asyncio.shield(self._ended)

    def kill(self) -> None:
        """Kill the command and all descendants; no-op if they are gone."""
        self._killed = True
        # Only our direction: the keeper takes that as the order to kill, and can still send its notes.
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)

    async def gone(self) -> None:
        """Wait, after `kill`, until none of its processes is left."""
        await asyncio.wait([self._following], timeout=_GONE_S)
        self._following.cancel()
        if self._ended.done():
            # Read once, or asyncio logs an error that nobody waited for.
            self._ended.exception()

    async def _follow(self) -> None:
        loop = asyncio.get_running_loop()
        text = b""
        try:
            while piece := await loop.sock_recv(self._connection, 4096):
                text += piece
                while b"\n" in text:
                    line, _, text = text.partition(b"\n")
                    self._take(json.loads(line))
        except OSError:
            pass  # the same as its end
        if self._ended.done():
            return
        if self._killed:
            self._ended.set_result(-signal.SIGKILL)
        else:
            self._ended.set_exception(
                OSError("the keeper of the command was killed, and the command with it: run it again")
            )

    def _take(self, message: dict[str, Any]) -> None:
        if "notes" in message:
            self.notes += message["notes"]
        elif self._ended.done():
            return
        elif "error" in message:
            self._ended.set_exception(OSError(f"the command could not be started: {message['error']}"))
        elif "stopped" in message:
            self.overgrown = message["stopped"]
            self._ended.set_result(-signal.SIGKILL)
        else:
            code = int(message["exit"])
            self._ended.set_result(signal_exit_code(code) if self._shifted else code)


_FATAL = frozenset(
    {
        signal.SIGILL,
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGKILL,
        signal.SIGSEGV,
        signal.SIGPIPE,
        signal.SIGTERM,
    }
)


def signal_exit_code(code: int) -> int:
    """Return the exit code with a signal as a negative number.

    Some programs use 129 and 130 as codes of their own: these stay.
    """
    return 128 - code if code - 128 in _FATAL else code


@dataclass(frozen=True, slots=True)
class Streams:
    """The file descriptors of a command."""

    stdout: int
    stderr: int
    stdin: int | None = None
    """`None` for nothing to read."""
    report: int | None = None
    """What it finds as `REPORT_FD`."""


def start_command(launch: Launch, streams: Streams) -> socket.socket:
    """Start a command; its streams may be closed here afterwards. The socket reports its end, and closing the
    socket kills the command.
    """
    ours, theirs = socket.socketpair()
    nothing = os.open(os.devnull, os.O_RDONLY) if streams.stdin is None else -1
    try:
        with theirs:
            stdin = nothing if streams.stdin is None else streams.stdin
            more = () if streams.report is None else (streams.report,)
            _LAUNCHER.send([theirs.fileno(), stdin, streams.stdout, streams.stderr, *more])
        ours.sendall(launch.message())
    except BaseException:
        ours.close()
        raise
    finally:
        if nothing >= 0:
            os.close(nothing)
    return ours


async def start_command_async(launch: Launch, streams: Streams) -> LaunchedCommand:
    """Start a command on a running event loop."""
    connection = start_command(launch, streams)
    connection.setblocking(False)
    return LaunchedCommand(connection, shifted=launch.shifted)


def run_blocking(launch: Launch, timeout_s: float) -> tuple[int | None, str]:
    """Run a command to its end without an event loop: exit code and output; `None` for one that was not
    started or took too long.
    """
    reading, writing = os.pipe()
    try:
        with start_command(launch, Streams(writing, writing)) as connection:
            os.close(writing)
            writing = -1
            connection.settimeout(timeout_s)
            try:
                message = json.loads(connection.makefile("rb").readline() or b'{"error": "it was killed"}')
            except TimeoutError:
                message = {"error": f"no end after {timeout_s:g} seconds"}
            connection.shutdown(socket.SHUT_WR)
            # Returns at the end of the connection, when no process of the command is left: only then is the
            # output complete.
            with suppress(OSError):
                connection.recv(1)
            with os.fdopen(reading, "rb") as pipe:
                reading = -1
                output = pipe.read(100_000).decode("utf-8", "replace")
    finally:
        for fd in (reading, writing):
            if fd >= 0:
                os.close(fd)
    if "error" in message:
        return None, f"{message['error']}\n{output}".strip()
    return int(message.get("exit", -9)), output
