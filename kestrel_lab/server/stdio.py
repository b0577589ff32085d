"""The protocol over two byte streams, a JSON object per line: how another program drives a run it has
started.

Threads of their own read and write, so that a client that reads slowly, or not at all, holds up no run; and
they are left behind at the end, since a read of standard input cannot be called off.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Final

from kestrel_lab.server.client import Link
from kestrel_lab.server.protocol import MESSAGE_BYTES, Refused, too_large

_FLUSH_S: Final = 5.0
"""Seconds that unsent messages wait for a reader at the end."""


@contextmanager
def standard_streams() -> Iterator[tuple[int, int]]:
    """Yield descriptors of stdin and stdout for the protocol alone; other output goes to stderr."""
    sys.stdout.flush()
    reading, writing = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    try:
        yield reading, writing
    finally:
        sys.stdout.flush()
        os.dup2(reading, 0)
        os.dup2(writing, 1)
        os.close(nothing)


class LineTransport:
    """Carries messages between a link and two descriptors; a client that closes either is gone."""

    def __init__(self, link: Link, reading: int, writing: int) -> None:
        self._link, self._reading, self._writing = link, reading, writing
        self._loop = asyncio.get_running_loop()
        self._lines: SimpleQueue[tuple[bytes, asyncio.Future[None]]] = SimpleQueue()
        self.closed = asyncio.Event()
        """Set when the client sends no more messages."""
        threading.Thread(target=self._read, name="kestrel control reader", daemon=True).start()
        threading.Thread(target=self._write, name="kestrel control writer", daemon=True).start()
        self._telling = asyncio.create_task(self._tell(), name="kestrel control stdio")

    async def finish(self) -> None:
        """Send the remaining messages, as far as the client reads them, and stop."""
        await self._link.close()
        await asyncio.wait({self._telling}, timeout=_FLUSH_S)
        self._telling.cancel()

    async def _tell(self) -> None:
        async for message in self._link:
            written: asyncio.Future[None] = self._loop.create_future()
            self._lines.put((message.line().encode("ascii") + b"\n", written))
            try:
                await written
            except OSError:  # nobody reads any more
                self._gone()
                await self._link.close()
                self._link.drop()
                return

    def _gone(self) -> None:
        """Note that the client sends no more decisions, so that no run waits for it."""
        self._link.leave()
        self.closed.set()

    def _write(self) -> None:
        while True:
            line, written = self._lines.get()
            try:
                while line:
                    line = line[os.write(self._writing, line) :]
            except OSError as error:
                self._soon(_settle, written, error)
                return
            self._soon(_settle, written, None)

    def _read(self) -> None:
        """Split the input at line ends; too long lines and an unfinished last line are not executed."""
        held, skipping = b"", False
        while chunk := self._chunk():
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                if skipping or len(line) > MESSAGE_BYTES:
                    self._said(too_large())
                elif line.strip():
                    self._said(line)
                skipping = False
            if len(held) > MESSAGE_BYTES:
                held, skipping = b"", True
        if held.strip() or skipping:
            self._said(
                Refused(
                    code="cut_off",
                    message="the input ended within a message, which was ignored",
                    todo="end each message with a line end",
                )
            )
        self._soon(self._gone)

    def _chunk(self) -> bytes:
        try:
            return os.read(self._reading, 65_536)
        except OSError:
            # The other end is gone: the same as the end of the input.
            return b""

    def _said(self, what: bytes | Refused) -> None:
        """Send a message and wait until the client takes it, so that a slow client slows the server."""
        work = self._link.refuse(what) if isinstance(what, Refused) else self._link.send(what)
        try:
            asyncio.run_coroutine_threadsafe(work, self._loop).result()
        except (RuntimeError, asyncio.CancelledError, concurrent.futures.CancelledError):  # it is over
            work.close()

    def _soon(self, function: Callable[..., object], *args: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody waits
            pass


def _settle(written: asyncio.Future[None], error: OSError | None) -> None:
    if written.done():
        return
    if error is None:
        written.set_result(None)
    else:
        written.set_exception(error)


async def serve_lines(link: Link, reading: int, writing: int) -> None:
    """Serve until the client closes its end, and answer everything that it has requested by then."""
    transport = LineTransport(link, reading, writing)
    try:
        await transport.closed.wait()
        await link.settled()
    finally:
        await transport.finish()
