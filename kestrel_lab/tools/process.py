"""Running a program in its own process group, which does not outlive the call."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

_PIECE = 65_536
_GRACE_S = 0.25
"""How long output may still arrive after the program ended, while something it started holds the pipe."""
_REAP_S = 2.0
"""How long a killed program may take to disappear before a cancelled call stops waiting for that."""

Sink = Callable[[bytes], bool]
"""Takes a piece of output; returns whether it wants more. When it does not, the program is killed."""
Stopped = Literal["", "timeout", "output"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ended:
    """How a program ended."""

    exit_code: int
    """Negative: the signal that ended it."""
    seconds: float
    stopped: Stopped = ""
    """Why it was killed: its time was up, or nobody wanted more output."""


async def run_process(
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: Sink,
    stderr: Sink,
    timeout_s: float,
    stdin: int | None = None,
) -> Ended:
    """Run a program in a session of its own and wait for it; `stdin` is a file descriptor, or nothing to read.

    When the call ends, by itself, by `timeout_s` or by cancellation, every process left in the program's
    group is killed. A process that moved to another session is not found and survives.
    """
    started = time.monotonic()
    process, pipes = await _start(argv, cwd, env, stdin)
    try:
        readers = [asyncio.ensure_future(_drain(pipe, sink)) for pipe, sink in zip(pipes, (stdout, stderr), strict=True)]
        stopped = await _wait(process, readers, timeout_s)
    except asyncio.CancelledError:
        _kill_group(process.pid)
        await asyncio.wait([asyncio.ensure_future(process.wait())], timeout=_REAP_S)
        raise
    finally:
        _kill_group(process.pid)
        for transport, _ in pipes:
            transport.close()
    await asyncio.gather(*readers)  # a closed pipe ends its reader
    return Ended(exit_code=await process.wait(), seconds=time.monotonic() - started, stopped=stopped)


_Pipe = tuple[asyncio.ReadTransport, asyncio.StreamReader]


async def _start(argv: Sequence[str], cwd: str, env: Mapping[str, str], stdin: int | None) -> tuple[Process, list[_Pipe]]:
    pipes: list[_Pipe] = []
    ends: list[int] = []
    try:
        for _ in range(2):
            pipe, end = await _open_pipe()
            pipes.append(pipe)
            ends.append(end)
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL if stdin is None else stdin,
            stdout=ends[0],
            stderr=ends[1],
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except BaseException:
        for transport, _ in pipes:
            transport.close()
        raise
    finally:
        for end in ends:
            os.close(end)
    return process, pipes


async def _open_pipe() -> tuple[_Pipe, int]:
    """A pipe of our own: unlike those that asyncio makes, it can be closed while a stray process still holds it."""
    reading, writing = os.pipe()
    reader = asyncio.StreamReader(limit=_PIECE)
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(reading, "rb", 0))
    return (transport, reader), writing


async def _drain(pipe: _Pipe, sink: Sink) -> bool:
    """Feed everything to `sink`; returns whether it had enough before the end."""
    while piece := await pipe[1].read(_PIECE):
        if not sink(piece):
            return True
    return False


async def _wait(process: Process, readers: Sequence[asyncio.Future[bool]], timeout_s: float) -> Stopped:
    """Until the program ended and its output was read, its time is up, or a reader has enough."""
    ended = asyncio.ensure_future(process.wait())
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
            if ended in done:
                deadline = min(deadline, time.monotonic() + _GRACE_S)
    finally:
        ended.cancel()
    return ""


def _kill_group(leader: int) -> None:
    """Kill whatever is left. The number of an ended leader is not given away while its group has members."""
    with suppress(ProcessLookupError, PermissionError):  # nobody left; or, on macOS, only zombies
        os.killpg(leader, signal.SIGKILL)
