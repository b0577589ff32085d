"""The pipe to a server that we start: lines of JSON out and in, bounded, and no process left when it closes.

The SDK's own pipe reads lines of any length, keeps quiet about what is no JSON, and outlives a killed kernel.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kestrel_lab.core.text import one_line

LONGEST_LINE = 1_000_000
"""Bytes of one message; a longer one is not read, and its request is answered with an error."""
MOST_GARBAGE = 50
"""Lines that are no JSON until the connection is given up; a banner is forgiven."""
MOST_LOGGED = 2_000_000
"""Bytes of a server's log; then it begins anew."""
_PIECE, _HEAD = 65_536, 400
_GRACE_S, _TERM_S = 1.0, 0.5
"""How long a server may take to end when its input ends, and after it was asked to."""
_ID = re.compile(rb'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")')


class ServerLog:
    """What a server writes to its standard error, and what on its standard output is no message; bounded."""

    def __init__(self, path: Path) -> None:
        """Append to `path`, made if need be and readable by its owner only."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.last = path, ""
        fresh = not path.exists() or path.stat().st_size > MOST_LOGGED
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0)
        self._file = os.open(path, flags, 0o600)
        self._left = MOST_LOGGED

    def write(self, piece: bytes) -> None:
        """Keep `piece`, as far as there is room."""
        if lines := [line for line in piece.decode("utf-8", "replace").splitlines() if line.strip()]:
            self.last = one_line(lines[-1], 200)
        if self._left > 0:
            with suppress(OSError):  # a full disk must not end a server
                os.write(self._file, piece[: self._left])
            self._left -= len(piece)

    def close(self) -> None:
        """Write no more."""
        os.close(self._file)


@asynccontextmanager
async def open_pipe(
    argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None, log: ServerLog, ended: Callable[[str], None]
) -> AsyncIterator[Any]:
    """Start a server and give the SDK's two streams to it; on leaving, every process of its group is gone.

    `ended` is told why, when the server stops talking by itself. Raises `OSError` for a program that cannot be started.
    """
    import anyio  # with the SDK

    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=dict(env),
        cwd=cwd,
        start_new_session=True,
        preexec_fn=_die_with_parent if sys.platform == "linux" else None,  # one system call, nothing allocated
        limit=_PIECE,
    )
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)
    incoming = _Incoming(process, log, to_session, ended)
    tasks = [asyncio.create_task(work) for work in (incoming.read(), _write(process, from_session), _copy(process, log))]
    try:
        yield from_server, to_server
    finally:
        incoming.closing = True
        stopping = asyncio.ensure_future(_stop(process))
        while not stopping.done():  # also when we are cancelled: the process must not stay
            with suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stream in (to_session, from_server, to_server, from_session):
            stream.close()


class _Incoming:
    """Lines of the server's standard output as messages for the session."""

    def __init__(self, process: Process, log: ServerLog, session: Any, ended: Callable[[str], None]) -> None:
        self.closing = False
        self._process, self._log, self._session, self._ended = process, log, session, ended
        self._garbage = 0

    async def read(self) -> None:
        """Until the server's output ends or makes no sense."""
        try:
            reason = await self._lines()
        except (OSError, ValueError) as error:
            reason = f"its output cannot be read: {error}"
        if not self.closing:
            self._ended(reason or await self._how_it_ended())
        self._session.close()  # after the reason is known: whoever waits for an answer asks for it

    async def _lines(self) -> str:
        assert self._process.stdout is not None
        buffer, head, skipped = b"", b"", 0
        while piece := await self._process.stdout.read(_PIECE):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                if skipped:
                    reason, skipped = await self._too_long(head, line[-_HEAD:], skipped + len(line)), 0
                else:
                    reason = await self._line(line)
                if reason:
                    return reason
            if len(buffer) > LONGEST_LINE or skipped:
                head = head if skipped else buffer[:_HEAD]
                skipped += max(0, len(buffer) - _HEAD)
                buffer = buffer[-_HEAD:]
        return ""

    async def _line(self, line: bytes) -> str:
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        if not line.strip():
            return ""
        if len(line) > LONGEST_LINE:
            return await self._too_long(line[:_HEAD], line[-_HEAD:], len(line))
        try:
            message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        except ValueError:
            self._log.write(b"[not a message] " + line[:_HEAD] + b"\n")
            self._garbage += 1
            if self._garbage < MOST_GARBAGE:
                return ""
            return f"it writes what is no message to its standard output: {one_line(line.decode('utf-8', 'replace'), 80)}"
        await self._send(SessionMessage(message))
        return ""

    async def _too_long(self, head: bytes, tail: bytes, size: int) -> str:
        """Fail the request that a line too long to be read answers; when that cannot be told, the connection."""
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError

        found = _ID.search(head) or _ID.search(tail)
        what = f"the server's answer is too long: {size:,} bytes, at most {LONGEST_LINE:,} are read"
        if found is None:
            return f"it sent a message of {size:,} bytes, at most {LONGEST_LINE:,} are read"
        text = found[1].decode("utf-8", "replace")
        number: int | str = int(text) if text.isdigit() else text[1:-1]
        await self._send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=-32603, message=what))))
        return ""

    async def _send(self, message: Any) -> None:
        import anyio

        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):  # the session is gone already
            await self._session.send(message)

    async def _how_it_ended(self) -> str:
        with suppress(TimeoutError):
            async with asyncio.timeout(_TERM_S):
                await self._process.wait()
        await asyncio.sleep(0.05)  # what it said last is on its way
        code = self._process.returncode
        if code is None:
            how = "it closed its standard output"
        else:
            how = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        return f"{how}; it said last: {self._log.last}" if self._log.last else how


async def _write(process: Process, messages: Any) -> None:
    assert process.stdin is not None
    with suppress(OSError):  # the reader notices that nobody is there, and says so
        async for message in messages:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            process.stdin.write(text.encode() + b"\n")
            await process.stdin.drain()


async def _copy(process: Process, log: ServerLog) -> None:
    assert process.stderr is not None
    while piece := await process.stderr.read(_PIECE):
        log.write(piece)


async def _stop(process: Process) -> None:
    """End its input, wait, ask, kill; at last the whole group, whoever is left in it."""
    assert process.stdin is not None
    process.stdin.close()
    for number, patience in ((0, _GRACE_S), (signal.SIGTERM, _TERM_S), (signal.SIGKILL, _TERM_S)):
        if number:
            _signal_group(process, number)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                while process.returncode is None:  # noqa: ASYNC110  # not `wait`: that waits for pipes which a grandchild may hold
                    await asyncio.sleep(0.01)
        if process.returncode is not None:
            break
    _signal_group(process, signal.SIGKILL)
    process._transport.close()  # type: ignore[attr-defined]  # a grandchild may hold the pipes, nothing public lets go of them


def _signal_group(process: Process, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


if sys.platform == "linux":
    _libc = ctypes.CDLL(None)
    _PR_SET_PDEATHSIG = 1

    def _die_with_parent() -> None:
        """A kernel that is killed takes its servers along, also those that do not notice that their input ended."""
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
else:

    def _die_with_parent() -> None:
        """Nothing to do it with: a server notices that its input ended."""
