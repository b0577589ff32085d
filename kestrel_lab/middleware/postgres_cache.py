"""A store on a PostgreSQL server, for sessions on several machines: JSON text in a table of our own, from
which what has expired is removed.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from kestrel_lab.host.background_loop import BackgroundLoop
from kestrel_lab.host.postgres import Postgres, make_tables
from kestrel_lab.middleware.cache import LONGEST_S, MAX_ROW, CacheStoreError

if TYPE_CHECKING:
    from asyncpg import Connection

TABLE = "kestrel.tool_cache_1"
"""The number is raised when what is stored has another form."""
_TIMEOUT_S = 0.5
_CONNECT_S = 2.0
"""Longer, because the server starts a process for each connection; one is made seldom."""
_CONNECTIONS = 8
"""At once: a session asks for no more answers at a time, and a server has about a hundred for everybody."""
# Unlogged: an answer that a crash of the server loses can be had again, and others need not wait for the
# disk.
_SCRIPT = f"""
CREATE SCHEMA IF NOT EXISTS kestrel;
CREATE UNLOGGED TABLE IF NOT EXISTS {TABLE}(key text PRIMARY KEY, value text NOT NULL, expires timestamptz \
NOT NULL);
CREATE INDEX IF NOT EXISTS tool_cache_1_expires ON {TABLE}(expires);
"""
_GET = (
    f"SELECT octet_length(value), CASE WHEN octet_length(value) <= $2 THEN value END FROM {TABLE} "
    "WHERE key = $1 AND expires > now()"
)
_SET = f"""
INSERT INTO {TABLE} VALUES ($1, $2, now() + make_interval(secs => $3))
ON CONFLICT (key) DO UPDATE SET value = EXCLUDED.value, expires = EXCLUDED.expires
"""
# By itself: in one transaction with the insert, two sessions could wait for each other's rows.
_SWEEP = f"""
DELETE FROM {TABLE} WHERE key IN (SELECT key FROM {TABLE} WHERE expires < now() LIMIT 10 FOR UPDATE SKIP \
LOCKED)
"""
"""Each store deletes up to ten expired answers: they cannot pile up and no call waits long."""


class PostgresStore:
    """Queries a server with a deadline.

    Runs an event loop of its own: a session is used from several loops, a connection only from one.
    """

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S, connect_s: float = _CONNECT_S) -> None:
        """Connect on first use.

        Raises `UsageError` for an address that cannot be one, or without the client installed.
        """
        self._server = Postgres(url, "a tool cache")
        self.where = self._server.where
        """The address without user and password."""
        self._timeout_s, self._connect_s = timeout_s, connect_s
        self._loop = BackgroundLoop(
            at_exit=self.close, name="kestrel-cache", closed="the tool cache was closed"
        )
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(_CONNECTIONS)

    async def get(self, key: str) -> str | None:
        """Return the text under `key`; oversized or non-ASCII text counts as none, with a warning."""
        row = await self._ask(lambda connection: connection.fetchrow(_GET, key, MAX_ROW))
        if row is None:
            return None
        text: str | None = row[1]
        if text is not None and text.isascii():
            return text
        warnings.warn(
            f"what {self.where} holds for the tool cache was not written by it; it is ignored", stacklevel=2
        )
        return None

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep `value` under `key`."""

        async def work(connection: Connection) -> None:
            await connection.execute(_SET, key, value, min(ttl_s or LONGEST_S, LONGEST_S))
            await connection.execute(_SWEEP)

        await self._ask(work)

    def close(self) -> None:
        """Close the connections."""
        if self._loop.running:
            self._loop.submit(self._end()).result()
            self._loop.stop()

    async def _ask(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        try:
            return await self._loop.run(self._answer(work))
        except self._server.errors as error:
            raise CacheStoreError(self._server.problem_text(error)) from error

    async def _answer(self, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        async with self._free:
            while self._idle:
                connection = self._idle.pop()
                # The server was restarted, or has closed it.
                if connection.is_closed():
                    continue
                return await self._used(connection, work)
            return await self._used(await asyncio.wait_for(self._connected(), self._connect_s), work)

    async def _used(self, connection: Connection, work: Callable[[Connection], Awaitable[Any]]) -> Any:
        try:
            # After an error or a cancelled query the connection may be in the middle of an answer: it is not
            # used again.
            found = await asyncio.wait_for(work(connection), self._timeout_s)
        except BaseException:
            connection.terminate()
            raise
        self._idle.append(connection)
        return found

    async def _connected(self) -> Connection:
        connection = await self._server.connect()
        try:
            await make_tables(connection, TABLE, _SCRIPT)
        except BaseException:
            connection.terminate()
            raise
        return connection

    async def _end(self) -> None:
        while self._idle:
            self._idle.pop().terminate()
