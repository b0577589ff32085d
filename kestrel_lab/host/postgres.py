"""PostgreSQL servers: addresses, connections (asyncpg), and errors without user and password."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.redaction import Redactor, shown_url, url_secrets
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from asyncpg import Connection

SCHEMES = ("postgresql", "postgres")
_SHOWN = 200
"""Characters of what a server says that are shown."""
_LOCK = 7_290_113_058_264_001
"""Held while tables are made: `IF NOT EXISTS` fails where two do so at once."""


class Postgres:
    """The PostgreSQL server at an address, which is written as libpq writes it:
    `postgresql://USER@HOST:PORT/DATABASE?sslmode=…`.

    What the address leaves out comes from `PGPASSWORD`, `PGSSLMODE` … and the password file, as for `psql`.
    """

    def __init__(self, url: str, purpose: str) -> None:
        """Connect to nothing yet.

        Raises `UsageError` for an address that cannot be one, or without the client, which `purpose` needs.
        """
        self.where = shown_url(url)
        """The address without user and password."""
        if not is_postgres(url):
            raise UsageError(f"the address {self.where!r} must begin with {SCHEMES[0]}://")
        try:
            self._client = import_module("asyncpg")  # an extra
        except ImportError as error:
            raise UsageError(
                f"{purpose} on a PostgreSQL server needs its client: pip install 'kestrel-lab[postgres]'"
            ) from error
        self._url = url
        client = self._client
        self.errors: tuple[type[Exception], ...] = (
            *(client.PostgresError, client.InterfaceError, client.InternalClientError),
            *(OSError, ValueError, SyntaxError),
        )
        """What is raised by a server that refuses, fails or is gone, and by an address that cannot be read.
        """

    async def connect(self, command_s: float | None = None) -> Connection:
        """Return a connection on which a command may take `command_s` seconds; raises one of `errors`."""
        # Without a cache of statements: one that was prepared is not known behind a pooler that changes
        # connections between transactions.
        return await self._client.connect(
            self._url,
            statement_cache_size=0,
            command_timeout=command_s,
            server_settings={"application_name": "kestrel_lab"},
        )

    def problem_text(self, error: Exception) -> str:
        """Return what went wrong with the server, in one line without the password."""
        if isinstance(error, TimeoutError):
            return f"{self.where}: it did not answer in time"
        why = Redactor(url_secrets(self._url)).text(str(error) or type(error).__name__)
        return f"{self.where}: {one_line(why, _SHOWN)}"


async def make_tables(connection: Connection, table: str, script: str) -> None:
    """Run `script`, which makes missing tables, unless `table` exists; holds a lock meanwhile."""
    if await connection.fetchval("SELECT to_regclass($1)::text", table) is None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1)", _LOCK)
            await connection.execute(script)


def is_postgres(url: str) -> bool:
    """Return whether an address is one of a PostgreSQL server."""
    scheme, colon, _ = url.partition("://")
    return bool(colon) and scheme in SCHEMES
