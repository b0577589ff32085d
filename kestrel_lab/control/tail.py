"""One watch over a log for everybody who follows something in it: says that it has grown, not how."""

from __future__ import annotations

import asyncio
import time
from typing import Final, Self

from kestrel_lab.core.errors import StoreError
from kestrel_lab.log.notify import wait_until
from kestrel_lab.log.store import SessionStore

_POLL_S: Final = 0.02
"""Between looks while something is going on; a look costs 20 µs."""
_QUIET_S: Final = 1.0
"""After so long without a change the file system is asked to say when there is one."""


class Tail:
    """Watches a log, also what other processes write to it, as long as it is entered."""

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._version = -1
        self._grown = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self.count = 0
        """How often it has grown."""

    async def __aenter__(self) -> Self:
        self._watching = asyncio.create_task(self._watch(), name="kestrel control tail")
        self._watching.add_done_callback(lambda _: self.poke())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    def poke(self) -> None:
        """Wake everybody as if the log had grown."""
        self.count += 1
        self._grown.set()
        self._grown = asyncio.Event()

    async def grown(self, count: int) -> None:
        """Wait until it has grown since it had grown `count` times; raises `StoreError` when it is watched no longer."""
        while self.count <= count:
            await self._grown.wait()
        if self._watching is None or self._watching.done():
            msg = f"the log {self._store.path} is watched no longer"
            raise StoreError(msg)

    async def _watch(self) -> None:
        while True:
            await wait_until(self._store.path, self._look)
            quiet_at = time.monotonic() + _QUIET_S
            while time.monotonic() < quiet_at:
                await asyncio.sleep(_POLL_S)
                if self._look():
                    quiet_at = time.monotonic() + _QUIET_S

    def _look(self) -> bool | None:
        ((version,),) = self._store.query("PRAGMA data_version")
        if version == self._version:
            return None
        self._version = version
        self.poke()
        return True
