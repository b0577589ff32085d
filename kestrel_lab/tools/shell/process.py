"""Processes that do not outlive their call: in a process group of their own, or in a sandbox."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

from kestrel_lab.tools.sandbox.command_watch import CommandWatch
from kestrel_lab.tools.sandbox.launcher_client import (
    Launch,
    Overgrown,
    Streams,
    can_launch,
    start_command_async,
)

_PIECE = 65_536
_WINDOW = (24, 120)
"""Lines and columns of an invisible terminal."""
_GRACE_S = 0.25
"""Seconds for late output after the program ended, while a process it started holds the pipe."""
_REAP_S = 2.0
"""Seconds a cancelled call waits for a killed program to disappear."""

Sink = Callable[[bytes], bool]
"""Takes a piece of output; returning false kills the program."""
Stopped = Literal["", "timeout", "output", "processes", "memory"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ProcessEnd:
    """How a program ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    seconds: float
    stopped: Stopped = ""
    """Why it was killed: time, enough output, too many processes, or too much memory."""
    notes: tuple[str, ...] = ()
    """Notes for a person on files it left, or could not keep."""


async def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: Sink,
    stderr: Sink,
    timeout_s: float,
    stdin: int | None = None,
) -> ProcessEnd:
    """Run a program in a session of its own and wait for it; `stdin` is a file descriptor, or nothing to
    read.

    When the call ends, by itself, by `timeout_s` or by cancellation, every process left in the program's
    group is killed. A process that moved to another session is not found and survives.
    """
    launch = Launch(argv=tuple(argv), cwd=cwd, env=env)
    return await _follow(lambda out, err: _child(launch, Streams(out, err, stdin)), stdout, stderr, timeout_s)


async def run_launched(
    launch: Launch,
    *,
    stdout: Sink,
    stderr: Sink,
    timeout_s: float,
    stdin: int | None = None,
    report: int | None = None,
) -> ProcessEnd:
    """Run a program through the launcher, which leaves no process of it, in whatever session, even if this
    process is killed.

    The program finds `report` as `REPORT_FD`. Without a launcher it runs as by `run_process`, and finds
    `report` under its own number. The notes name files that run by themselves which it made in the
    workspace. Raises `OSError` for a program that cannot be started.
    """

    def begin(out: int, err: int) -> Awaitable[RunningProcess]:
        return start_program(launch, Streams(out, err, stdin, report))

    if not launch.watched:
        return await _follow(begin, stdout, stderr, timeout_s)
    watch = CommandWatch.of(launch.watched, [real for real, _, _ in launch.repositories])
    # Directly if that is faster than starting a thread.
    before = watch.look() if watch.quick else await asyncio.to_thread(watch.look)
    notes: list[str] = []
    try:
        ended = await _follow(begin, stdout, stderr, timeout_s)
    finally:
        # A command that was cancelled has written, too.
        notes += watch.settle(before) if watch.quick else await asyncio.to_thread(watch.settle, before)
    return replace(ended, notes=(*ended.notes, *notes))


class RunningProcess(Protocol):
    """A running program."""

    overgrown: Overgrown
    """The resource that it used too much of and was killed for; empty if it was not."""
    notes: list[str]
    """Notes on what it could not do; complete at its end."""

    async def wait(self) -> int:
        """Its exit code, negative for the signal that ended it."""

    def kill(self) -> None:
        """Kill what is left of it; no-op if nothing is."""

    async def gone(self) -> None:
        """Wait, not for ever, until what was killed has disappeared."""


async def start_program(launch: Launch, streams: Streams) -> RunningProcess:
    """Start a program through the launcher, or as a child process if there is no launcher."""
    return await (start_command_async if can_launch() else _child)(launch, streams)


async def _child(launch: Launch, streams: Streams) -> RunningProcess:
    return _Group(
        await asyncio.create_subprocess_exec(
            *launch.argv,
            stdin=asyncio.subprocess.DEVNULL if streams.stdin is None else streams.stdin,
            stdout=streams.stdout,
            stderr=streams.stderr,
            cwd=launch.cwd,
            env=dict(launch.env),
            start_new_session=True,
            pass_fds=() if streams.report is None else (streams.report,),
        )
    )


@dataclass(slots=True)
class _Group:
    """A child of this process, and its group."""

    process: Process
    overgrown: Overgrown = ""
    notes: list[str] = field(default_factory=list)

    async def wait(self) -> int:
        return await self.process.wait()

    def kill(self) -> None:
        # Safe after the leader has ended: the kernel does not reuse its number while the group has members.
        # The errors mean that nobody is left, or, on macOS, only zombies.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)

    async def gone(self) -> None:
        await asyncio.wait([asyncio.ensure_future(self.process.wait())], timeout=_REAP_S)


async def _follow(
    begin: Callable[[int, int], Awaitable[RunningProcess]], stdout: Sink, stderr: Sink, timeout_s: float
) -> ProcessEnd:
    started = time.monotonic()
    program, pipes = await start_with_pipes(begin)
    try:
        readers = [
            asyncio.ensure_future(_drain(pipe, sink))
            for pipe, sink in zip(pipes, (stdout, stderr), strict=True)
        ]
        stopped = await _wait(program, readers, timeout_s)
    finally:
        # Also after a normal end: the program may have left processes in the background.
        program.kill()
        for transport, _ in pipes:
            transport.close()
        await program.gone()
    # The readers end now, because their pipes are closed; an error of a sink is raised here.
    await asyncio.gather(*readers)
    code = await program.wait()
    return ProcessEnd(
        exit_code=code,
        seconds=time.monotonic() - started,
        stopped=stopped or program.overgrown,
        notes=tuple(program.notes),
    )


Pipe = tuple[asyncio.ReadTransport, asyncio.StreamReader]
"""The end of a pipe from which this process reads."""


async def start_with_pipes(
    begin: Callable[[int, int], Awaitable[RunningProcess]], limit: int = _PIECE, *, terminal: bool = False
) -> tuple[RunningProcess, list[Pipe]]:
    """Start a program with pipes for its output and its errors. If that fails or is cancelled, no pipe stays
    open.

    `limit` bounds the lines read from them. With `terminal` the errors go to a terminal instead.
    """
    pipes: list[Pipe] = []
    ends: list[int] = []
    try:
        for opened in (os.pipe, _open_terminal if terminal else os.pipe):
            pipe, end = await _readable_pipe(limit, opened)
            pipes.append(pipe)
            ends.append(end)
        program = await begin(*ends)
    except BaseException:
        for transport, _ in pipes:
            transport.close()
        raise
    finally:
        # The program has copies. A writing end left open here would keep its reader waiting forever.
        for end in ends:
            os.close(end)
    return program, pipes


async def start_with_terminal(
    begin: Callable[[int], Awaitable[RunningProcess]], limit: int = _PIECE
) -> tuple[RunningProcess, Pipe, int]:
    """Start a program whose input, output and errors are one terminal without a person.

    Return the program, the pipe with its output, and a file descriptor to write to it. Input arrives
    unchanged and not by lines: lines of a terminal have at most 4,096 bytes.
    """
    import termios  # not on every system

    pipe, theirs = await _readable_pipe(limit, _open_terminal)
    try:
        state = termios.tcgetattr(theirs)
        state[3] &= ~termios.ICANON
        termios.tcsetattr(theirs, termios.TCSANOW, state)
        program = await begin(theirs)
        return program, pipe, os.dup(pipe[0].get_extra_info("pipe").fileno())
    except BaseException:
        pipe[0].close()
        raise
    finally:
        os.close(theirs)


async def _readable_pipe(limit: int, opened: Callable[[], tuple[int, int]]) -> tuple[Pipe, int]:
    """Open a pipe that can be closed while a stray process holds it, unlike asyncio's; return both ends."""
    reading, writing = opened()
    try:
        reader = asyncio.StreamReader(limit=limit)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: _Ending(reader), os.fdopen(reading, "rb", 0))
    except BaseException:
        os.close(writing)
        raise
    return (transport, reader), writing


class _Ending(asyncio.StreamReaderProtocol):
    """Treats the end of a terminal, which Linux reports as an error, as the end of the output."""

    def connection_lost(self, exc: Exception | None) -> None:
        # Linux reports EIO when the last process has closed its side of the terminal.
        super().connection_lost(None if isinstance(exc, OSError) and exc.errno == errno.EIO else exc)


def _open_terminal() -> tuple[int, int]:
    """Open a terminal that passes output unchanged; return our side and the program's."""
    import termios  # not on every system

    ours, theirs = os.openpty()
    try:
        state = termios.tcgetattr(theirs)
        # Otherwise the terminal turns each line end into two characters, and repeats its input as output.
        state[1] &= ~termios.OPOST
        state[3] &= ~termios.ECHO
        termios.tcsetattr(theirs, termios.TCSANOW, state)
        termios.tcsetwinsize(theirs, _WINDOW)
    except BaseException:
        os.close(ours)
        os.close(theirs)
        raise
    return ours, theirs


async def _drain(pipe: Pipe, sink: Sink) -> bool:
    """Feed everything to `sink`; returns whether it had enough before the end."""
    while piece := await pipe[1].read(_PIECE):
        if not sink(piece):
            return True
    return False


async def _wait(
    program: RunningProcess, readers: Sequence[asyncio.Future[bool]], timeout_s: float
) -> Stopped:
    """Wait until the program has ended and its output was read, its time is up, or a reader has enough."""
    ended = asyncio.ensure_future(program.wait())
    waiting: set[asyncio.Future[object]] = {ended, *readers}  # type: ignore[arg-type]  # a set of futures of several types
    deadline = time.monotonic() + timeout_s
    try:
        while waiting:
            left = deadline - time.monotonic()
            done, waiting = await asyncio.wait(waiting, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if any(reader.done() and reader.result() for reader in readers):
                return "output"
            if not done:
                return "" if ended.done() else "timeout"
            # A background process may hold the pipes open for as long as it runs.
            if ended in done:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    finally:
        if ended.done() and not ended.cancelled():
            # `_follow` raises it when it asks for the exit code; here it only must not be logged as unread.
            ended.exception()
        ended.cancel()
    return ""
