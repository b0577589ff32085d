"""The stdio transport of MCP servers: a process, bounded lines of JSON, and no process left when it closes.

The SDK's own stdio transport reads lines of any length, ignores lines that are no JSON, and leaves the
process running when a kernel is killed.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from kestrel_lab.core.redaction import Redactor
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.text_files import split_lines
from kestrel_lab.host.filesystem import private_folder
from kestrel_lab.tools.sandbox.launcher_client import Launch, Streams
from kestrel_lab.tools.shell.process import (
    Pipe,
    RunningProcess,
    start_program,
    start_with_pipes,
    start_with_terminal,
)

PIECE = 65_536
_GRACE_S = 1.0
"""Seconds a server may take to end after the end of its input."""


class Program:
    """The process of a server, with its streams."""

    def __init__(self, running: RunningProcess, stdin: asyncio.StreamWriter, outputs: list[Pipe]) -> None:
        self._running, self.stdin = running, stdin
        self._transports = [transport for transport, _ in outputs]
        self.stdout, self.stderr = (reader for _, reader in outputs)

    async def write(self, line: bytes) -> None:
        """Write a line to its input; raises `OSError` when the input is closed."""
        self.stdin.write(line)
        await self.stdin.drain()

    async def code(self, within_s: float) -> int | None:
        """Return the exit code, negative for a signal; `None` while it runs.

        Raises `OSError` if it never started.
        """
        try:
            async with asyncio.timeout(within_s):
                return await self._running.wait()
        except TimeoutError:
            return None

    async def stop(self) -> None:
        """Close its input, wait briefly, then kill it and all descendants, even if this is cancelled."""
        stopping = asyncio.ensure_future(self._stop())
        # A cancellation ends only the wait: the process must be gone before this returns.
        while not stopping.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(stopping)

    async def _stop(self) -> None:
        # The end of its input asks a server to end by itself, as the protocol says.
        self.stdin.close()
        # `finally`, because a loop that shuts down cancels this task, too.
        try:
            with suppress(OSError):  # it never started
                await self.code(_GRACE_S)
        finally:
            self._running.kill()
            try:
                await self._running.gone()
            finally:
                for transport in self._transports:
                    transport.close()


async def start_in_terminal(launch: Launch, *, limit: int = PIECE) -> Program:
    """Start a program, as `start_server` does, in a terminal: its errors are among its output."""
    loop, unread, nothing = asyncio.get_running_loop(), asyncio.StreamReader(), asyncio.StreamReader()
    nothing.feed_eof()
    running, pipe, ours = await start_with_terminal(
        lambda theirs: start_program(launch, Streams(theirs, theirs, theirs)), limit
    )
    transport, protocol = await loop.connect_write_pipe(
        lambda: asyncio.StreamReaderProtocol(unread), os.fdopen(ours, "wb", 0)
    )
    return Program(
        running, asyncio.StreamWriter(transport, protocol, unread, loop), [pipe, (pipe[0], nothing)]
    )


async def start_server(launch: Launch, *, limit: int = PIECE) -> Program:
    """Start a server; raises `OSError` for a missing program, at the latest in `Program.code`.

    `limit` bounds the lines that its streams read.
    """
    theirs, ours = os.pipe()
    try:
        loop, unread = asyncio.get_running_loop(), asyncio.StreamReader()
        transport, protocol = await loop.connect_write_pipe(
            lambda: asyncio.StreamReaderProtocol(unread), os.fdopen(ours, "wb", 0)
        )
        try:
            running, outputs = await start_with_pipes(
                lambda out, err: start_program(launch, Streams(out, err, theirs)),
                limit,
                terminal=launch.terminal,
            )
        except BaseException:
            transport.close()
            raise
    finally:
        os.close(theirs)
    return Program(running, asyncio.StreamWriter(transport, protocol, unread, loop), outputs)


LONGEST_LINE = 1_000_000
"""Bytes of one message; the request of a longer one fails."""
MOST_GARBAGE = 50
"""Lines that are no JSON before the connection is closed; some servers print a banner."""
MOST_HELD = 65_536
"""Characters of the log that may wait because they could be the beginning of a secret."""
MOST_LOGGED = 2_000_000
"""Bytes of a server's log; a larger one is truncated at the next start."""
_HEAD, _LAST = 400, 200
_END_S = 0.5
"""Seconds a server may take to end after the end of its output."""
_ID = rb'"id"\s*:\s*(\d{1,15}|"[^"\\]{1,100}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2.0"\s*'
_FIRST_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID + rb",")
_LAST_ID = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*$")
"""The message's own id, before or after its result; the result may contain other ids."""


class ServerLog:
    """The log of a server: its standard error, and lines of its output that are not messages; bounded."""

    def __init__(self, path: Path, redactor: Redactor | None = None) -> None:
        """Append to `path`, readable by its owner only; `redactor` removes secrets."""
        self._redactor, self._held, self._line = redactor or Redactor(), "", ""
        # Pieces are cut by bytes: one may end within a character.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        private_folder(path.parent)
        self.path, self.last = path, ""
        fresh = not path.exists() or path.stat().st_size > MOST_LOGGED
        # The log may contain secrets of the server that no redactor knows: only its owner may read it.
        self._file = os.open(
            path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (os.O_TRUNC if fresh else 0), 0o600
        )
        self._left = MOST_LOGGED

    def write(self, piece: bytes) -> None:
        """Append `piece`, as far as there is room."""
        text = self._held + self._decoder.decode(piece)
        if lines := [line for line in split_lines(self._line + self._redactor.text(text)) if line.strip()]:
            self.last = one_line(lines[-1], _LAST)
        # The end of the text may be the beginning of a secret: it waits for the next piece.
        cut = max(self._redactor.settled(text), len(text) - MOST_HELD)
        self._held = text[cut:]
        self._line = (self._line + self._redactor.text(text[:cut])).rpartition("\n")[2][:_LAST]
        self._keep(text[:cut])

    def close(self) -> None:
        """Write what is left and close the file."""
        self._keep(self._held)
        os.close(self._file)

    def _keep(self, text: str) -> None:
        content = self._redactor.text(text).encode("utf-8", "replace")[: max(0, self._left)]
        # A full disk costs lines of the log, not the server.
        with suppress(OSError):
            os.write(self._file, content)
        self._left -= len(content)


@asynccontextmanager
async def open_pipe(launch: Launch, *, log: ServerLog, ended: Callable[[str], None]) -> AsyncIterator[Any]:
    """Start a server and yield the SDK's two streams; on exit, the process and its descendants are killed.

    `ended` is called with the reason if the server ends by itself. Raises `OSError` if it cannot be started.
    """
    import anyio  # with the SDK

    program = await start_server(launch)
    to_session, from_server = anyio.create_memory_object_stream[Any](0)
    to_server, from_session = anyio.create_memory_object_stream[Any](0)
    incoming = _Incoming(program, log, to_session, ended)
    tasks = [
        asyncio.create_task(work)
        for work in (incoming.read(), _write(program, from_session), _copy(program, log))
    ]
    try:
        yield from_server, to_server
    finally:
        # First, or the reader would report an end that we cause.
        incoming.closing = True
        # `finally`, because a loop that shuts down may cancel this wait once more.
        try:
            await program.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            for stream in (to_session, from_server, to_server, from_session):
                stream.close()


class _Incoming:
    """Turns the lines of the server's standard output into messages for the session."""

    def __init__(self, program: Program, log: ServerLog, session: Any, ended: Callable[[str], None]) -> None:
        self.closing = False
        self._program, self._log, self._session, self._ended = program, log, session, ended
        self._garbage = 0

    async def read(self) -> None:
        """Read until the server's output ends or cannot be parsed."""
        try:
            reason = await self._lines()
        except (OSError, ValueError) as error:
            reason = f"its output cannot be read: {error}"
        if not self.closing:
            try:
                reason = reason or await self._how_it_ended()
            except OSError as error:
                reason = str(error)
            self._ended(reason)
        # Only after `_ended` has set the reason: closing fails the pending calls, which report it.
        self._session.close()

    async def _lines(self) -> str:
        buffer, head, skipped = b"", b"", 0
        while piece := await self._program.stdout.read(PIECE):
            *lines, buffer = (buffer + piece).split(b"\n")
            for line in lines:
                if skipped:
                    reason, skipped = await self._too_long(head, line[-_HEAD:], skipped + len(line)), 0
                else:
                    reason = await self._line(line)
                if reason:
                    return reason
            # Of an oversized line only both ends are kept: the id of the request is in one of them.
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
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False)
            except ValueError:
                # A lone surrogate is valid JSON, but the SDK refuses it; and some servers send results or
                # errors of a wrong form, which `_response` turns into an error of that one call.
                whole = json.loads(line.decode("utf-8", "replace"))
                message = jsonrpc_message_adapter.validate_json(
                    json.dumps(_response(whole) or whole, ensure_ascii=False).encode("utf-8", "replace"),
                    by_name=False,
                )
        except (ValueError, RecursionError):
            self._log.write(b"[not a message] " + line[:_HEAD] + b"\n")
            # A stray print is harmless; a program that only prints is no MCP server.
            self._garbage += 1
            if self._garbage < MOST_GARBAGE:
                return ""
            return (
                "it writes what is not a message to its standard output: "
                f"{one_line(line.decode('utf-8', 'replace'), 80)}"
            )
        await self._send(SessionMessage(message))
        return ""

    async def _too_long(self, head: bytes, tail: bytes, size: int) -> str:
        """Fail the request of an oversized line, or the whole connection if its id is not found."""
        from mcp.shared.message import SessionMessage
        from mcp_types import ErrorData, JSONRPCError

        found = _FIRST_ID.match(head) or _LAST_ID.search(tail)
        what = f"the server's answer is too long: {size:,} bytes, at most {LONGEST_LINE:,} are read"
        if found is None:
            return f"it sent a message of {size:,} bytes, at most {LONGEST_LINE:,} are read"
        text = found[1].decode("utf-8", "replace")
        number: int | str = int(text) if text.isdigit() else text[1:-1]
        await self._send(
            SessionMessage(JSONRPCError(jsonrpc="2.0", id=number, error=ErrorData(code=-32603, message=what)))
        )
        return ""

    async def _send(self, message: Any) -> None:
        import anyio

        # The session may have ended first; nobody waits for the message then.
        with suppress(anyio.ClosedResourceError, anyio.BrokenResourceError):
            await self._session.send(message)

    async def _how_it_ended(self) -> str:
        # Raises `OSError` if it never started.
        code = await self._program.code(_END_S)
        # Its last words may still be in the pipe of its standard error; the reason quotes them.
        await asyncio.sleep(0.05)
        if code is None:
            how = "it closed its standard output"
        else:
            how = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
        return f"{how}; it said last: {self._log.last}" if self._log.last else how


def _response(message: Any) -> dict[str, Any] | None:
    """Return a response with an invalid result or error as an error response; `None` for anything else."""
    number = message.get("id") if isinstance(message, dict) and "method" not in message else None
    if not isinstance(number, int | str) or isinstance(number, bool):
        return None
    head = {"jsonrpc": "2.0", "id": number}
    result, error = message.get("result"), message.get("error")
    if error is None and (isinstance(result, dict) or (result is None and "result" in message)):
        return {**head, "result": result or {}}
    if error is None:
        return {
            **head,
            "error": {
                "code": -32603,
                "message": f"its result is no object: {one_line(json.dumps(result), 200)}",
            },
        }
    fields = error if isinstance(error, dict) else {"message": error}
    code, said = fields.get("code"), fields.get("message")
    text = said if isinstance(said, str) else one_line(json.dumps(error), 500)
    return {**head, "error": {"code": code if isinstance(code, int) else -32603, "message": text}}


async def _write(program: Program, messages: Any) -> None:
    # A closed input means that the process has ended; `_Incoming` reports that, with the reason.
    with suppress(OSError):
        async for message in messages:
            text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
            await program.write(text.encode() + b"\n")


async def _copy(program: Program, log: ServerLog) -> None:
    while piece := await program.stderr.read(PIECE):
        log.write(piece)
