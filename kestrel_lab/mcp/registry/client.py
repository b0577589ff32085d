"""A client for registries of MCP servers, such as the official one, over HTTP.

A registry's own search matches names only, so each content word of a need is searched by itself, and the
results are ranked here.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.language.words import content_words
from kestrel_lab.mcp.registry.catalogue import Entry, read_entries
from kestrel_lab.tools.web.fetch import Reach
from kestrel_lab.tools.web.json_api import Service, api_service, text_at

_WORDS, _PAGES, _PER_PAGE = 4, 2, 30
_SECONDS, _MOST_BYTES = 10.0, 2_000_000
"""Bounds of one search, and of one response."""
_VERSIONED = re.compile(r"/v\d+(?:\.\d+)?$")


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry at an address."""

    service: Service
    seconds: float = _SECONDS
    """Most seconds of one search."""

    @classmethod
    def at(cls, address: str, reach: Reach) -> Registry:
        """Return the registry at `address`, with the API version (`/v0.1`) appended if missing.

        A configured address may be private. Raises `UsageError` for an invalid one.
        """
        address = address.strip().rstrip("/")
        if not _VERSIONED.search(address):
            address += "/v0.1"
        try:
            bounded = replace(reach, seconds=_SECONDS, most_bytes=_MOST_BYTES)
            return cls(
                api_service("the MCP registry", address, address, bounded, {"Accept": "application/json"})
            )
        except ValueError as error:
            raise UsageError(f"mcp_registry is not an address of a registry: {error}") from error

    async def search(self, need: str) -> list[Entry]:
        """Return the servers whose name contains a word of `need`, in the registry's order.

        Raises `ConnectionError` if the first request fails; after a later failure, returns the results so
        far.
        """
        found: dict[str, Entry] = {}
        try:
            async with asyncio.timeout(self.seconds):
                # The longest words are the most specific.
                for word in sorted(set(content_words(need)), key=lambda word: (-len(word), word))[:_WORDS]:
                    await self._pages(word, found)
        # TimeoutError, ConnectionError and PermissionError are OSErrors.
        except (
            ValueError,
            OSError,
            RecursionError,
        ) as error:
            if not found:
                why = one_line(str(error) or f"no answer within {self.seconds:g} s", 200)
                raise ConnectionError(f"the registry at {self.service.base} did not answer: {why}") from error
        return list(found.values())

    async def _pages(self, word: str, found: dict[str, Entry]) -> None:
        cursor = ""
        for _ in range(_PAGES):
            answer = await self.service.get(
                "/servers", search=word, limit=_PER_PAGE, version="latest", cursor=cursor
            )
            for entry in read_entries(self.service.list_in(answer, "servers")[:_PER_PAGE], self.service.base):
                found.setdefault(entry.name, entry)
            cursor = text_at(answer, "metadata", "nextCursor")
            if not cursor or len(cursor) > 1000:
                return
