"""A server's process: its three streams, and an end that takes along all that came of it."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable
from contextlib import suppress
from typing import Protocol

from kestrel_lab.tools.sandbox.launching import Launch, Launched, can_launch, launched

PIECE = 65_536
_GRACE_S, _TERM_S = 1.0, 0.5
"""How long a server may take to end when its input ends, and after it was asked to."""


class Program(Protocol):
    """A server at work."""

    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    async def write(self, line: bytes) -> None:
        """Give it a line; raises `OSError` when it takes no more."""
        ...

    async def code(self, within_s: float) -> int | None:
        """Its exit code, negative for the signal that ended it; `None` while it works. Raises `OSError` if it never began."""
        ...

    async def stop(self) -> None:
        """End its input, wait a little, then kill what is left of it and of all that came of it."""
        ...


async def start(launch: Launch) -> Program:
    """Start a server; raises `OSError` for a program that is not there, at the latest in `Program.code`."""
    return await _Held.begin(launch) if can_launch() else await _Child.begin(launch)


class _Held:
    """Started by the launcher: nothing of it outlives this process, wherever it went."""

    def __init__(
        self, running: Launched, stdin: asyncio.StreamWriter, outputs: list[tuple[asyncio.ReadTransport, asyncio.StreamReader]]
    ) -> None:
        self._running, self._stdin = running, stdin
        self._transports = [transport for transport, _ in outputs]
        self.stdout, self.stderr = (reader for _, reader in outputs)

    @classmethod
    async def begin(cls, launch: Launch) -> _Held:
        theirs, ours = os.pipe()
        ends, outputs = [theirs], []
        try:
            stdin = await _writer(ours)
            for _ in range(2):
                reading, writing = os.pipe()
                ends.append(writing)
                outputs.append(await _reader(reading))
            running = await launched(launch, *ends)
        finally:
            for end in ends:
                os.close(end)
        return cls(running, stdin, outputs)

    async def write(self, line: bytes) -> None:
        self._stdin.write(line)
        await self._stdin.drain()

    async def code(self, within_s: float) -> int | None:
        return await _within(self._running.wait(), within_s)

    async def stop(self) -> None:
        self._stdin.close()
        with suppress(OSError):  # it never began
            await self.code(_GRACE_S)
        self._running.kill()
        await self._running.gone()
        for transport in self._transports:
            transport.close()


async def _reader(fd: int) -> tuple[asyncio.ReadTransport, asyncio.StreamReader]:
    reader = asyncio.StreamReader(limit=PIECE)
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, os.fdopen(fd, "rb", 0))
    return transport, reader


async def _writer(fd: int) -> asyncio.StreamWriter:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await loop.connect_write_pipe(lambda: protocol, os.fdopen(fd, "wb", 0))
    return asyncio.StreamWriter(transport, protocol, reader, loop)


class _Child:
    """A child of this process, and its group: for systems that the launcher does not know."""

    def __init__(self, process: Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdout, self.stderr = process.stdout, process.stderr

    @classmethod
    async def begin(cls, launch: Launch) -> _Child:
        return cls(
            await asyncio.create_subprocess_exec(
                *launch.argv,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                env=dict(launch.env),
                cwd=launch.cwd,
                start_new_session=True,
                limit=PIECE,
            )
        )

    async def write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line)
        await self._process.stdin.drain()

    async def code(self, within_s: float) -> int | None:
        async def ended() -> int:
            while self._process.returncode is None:  # noqa: ASYNC110  # not `wait`: that waits for pipes which a grandchild may hold
                await asyncio.sleep(0.01)
            return self._process.returncode

        return await _within(ended(), within_s)

    async def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        for number, patience in ((0, _GRACE_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
            if number:
                self._signal(number)
            if await self.code(patience) is not None:
                break
        self._signal(signal.SIGKILL)
        self._process._transport.close()  # type: ignore[attr-defined]  # a grandchild may hold the pipes, nothing public lets go of them

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)


async def _within(ending: Awaitable[int], seconds: float) -> int | None:
    try:
        async with asyncio.timeout(seconds):
            return await ending
    except TimeoutError:
        return None
