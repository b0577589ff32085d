"""A store on a Redis server, for sessions on several machines: JSON text under keys of our own, which Redis
lets expire.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any
from urllib.parse import urlsplit

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.redaction import shown_url
from kestrel_lab.host.postgres import SCHEMES as POSTGRES
from kestrel_lab.middleware.cache import LONGEST_S, MAX_ROW, CacheStoreError

PREFIX = "kestrel:tools:1:"
"""Before each key; the number is raised when what is stored under one has another form."""
_TIMEOUT_S = 0.5
SCHEMES = ("redis", "rediss", "unix")


class RedisStore:
    """Asks a server with a deadline, on a thread, so that a slow one holds up no run but its own call."""

    def __init__(self, url: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        """Connect on first use.

        Raises `UsageError` for an address that cannot be one, or without the client installed.
        """
        parts = urlsplit(url)
        if parts.scheme not in SCHEMES:
            raise UsageError(
                f"the cache address {shown_url(url)!r} must begin with one of "
                f"{', '.join(f'{scheme}://' for scheme in (*SCHEMES, *POSTGRES))}"
            )
        try:
            import redis  # an extra
            from redis.backoff import NoBackoff
            from redis.retry import Retry
        except ImportError as error:
            raise UsageError(
                "a cache on a Redis server needs its client: pip install 'kestrel-lab[redis]'"
            ) from error
        self.where = shown_url(url)
        """The address without user and password."""
        self._errors: tuple[type[Exception], ...] = (redis.RedisError, OSError)
        self._not_text = redis.ResponseError
        try:
            # One more attempt, for a connection that the server has closed meanwhile.
            self._client = redis.Redis.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                retry=Retry(NoBackoff(), 1),
                decode_responses=False,
            )
        except (ValueError, TypeError) as error:
            raise UsageError(f"the cache address {self.where!r} cannot be read: {error}") from error

    async def get(self, key: str) -> str | None:
        """Return the text under `key`; oversized values or non-text count as none, with a warning."""
        try:
            # A range, so that a huge value of somebody else is never fetched whole.
            found = await asyncio.to_thread(self._client.getrange, PREFIX + key, 0, MAX_ROW)
        except self._not_text as error:
            # A key of ours with a list or set in it: somebody else wrote it.
            if "WRONGTYPE" not in str(error):
                raise self._failed(error) from error
            found = b"\xff"
        except self._errors as error:
            raise self._failed(error) from error
        return self._text(found)

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep `value` under `key`."""
        kept_ms = max(1, round(min(ttl_s or LONGEST_S, LONGEST_S) * 1000))
        try:
            await asyncio.to_thread(self._client.set, PREFIX + key, value.encode("ascii"), px=kept_ms)
        except self._errors as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _text(self, found: Any) -> str | None:
        # A range of nothing is empty, and nothing we store is.
        if not found:
            return None
        try:
            if len(found) <= MAX_ROW:
                return str(found, "ascii")
        except (UnicodeDecodeError, TypeError):
            pass
        warnings.warn(
            f"what {self.where} holds for the tool cache was not written by it; it is ignored", stacklevel=2
        )
        return None

    def _failed(self, error: Exception) -> CacheStoreError:
        return CacheStoreError(f"{self.where}: {error}")
