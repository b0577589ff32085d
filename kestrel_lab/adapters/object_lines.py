"""Lines of JSON-RPC that are objects: the library `acp` stops at any other JSON value, such as a batch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any


class ObjectLines(asyncio.StreamReader):
    """Stream for the library `acp` that drops JSON lines other than objects and passes them to `refused`."""

    def __init__(self, stream: asyncio.StreamReader, refused: Callable[[bytes], None]) -> None:
        # Not the constructor of a stream: `acp` wants the class, and everything is the other stream's.
        self._stream, self._refused = stream, refused

    async def readuntil(self, separator: Any = b"\n") -> bytes:
        """Return the next line that is an object or no JSON at all; the library reports the latter."""
        while True:
            try:
                line = await self._stream.readuntil(separator)
            except asyncio.IncompleteReadError as end:
                if is_object(end.partial):
                    raise
                self._refused(end.partial)
                raise asyncio.IncompleteReadError(b"", None) from None
            if is_object(line):
                return line
            self._refused(line)

    async def readexactly(self, n: int) -> bytes:
        """Read from the other stream."""
        return await self._stream.readexactly(n)


def is_object(line: bytes) -> bool:
    """Return true if a line may be a message: an object, empty, or no JSON."""
    if line.lstrip()[:1] in (b"{", b""):
        return True
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return True
