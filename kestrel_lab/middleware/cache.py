"""A pure call that was answered before is answered from the cache, as long as what it read has not changed."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from kestrel_lab.core.calls import Call, Result
from kestrel_lab.core.events import CacheHit
from kestrel_lab.core.jsontypes import dumps
from kestrel_lab.core.protocols import Handler


class Shelf(Protocol):
    """Text under text keys."""

    def get(self, key: str) -> Any:
        """The text under `key`, or `None`."""
        ...

    def set(self, key: str, value: str) -> Any:
        """Keep `value` under `key`."""
        ...


@dataclass(frozen=True, slots=True)
class ToolCache:
    """Answers from `shelf` what is there; keeps what succeeds.

    `key` says under which name an answer may be reused, the state of what the call reads included; `None`
    for a call that is never cached. A hit costs nothing and is recorded as `cache_hit`.
    """

    shelf: Shelf
    key: Callable[[Call], str | None]
    emit: Callable[[CacheHit], Any]

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Answer from the shelf or by `proceed`."""
        key = self.key(call)
        if key is None:
            return await proceed(call)
        if (text := self.shelf.get(key)) is not None:
            with suppress(ValueError):  # what is no JSON was not written here: as good as nothing
                kept = Result(value=json.loads(text), cached=True)
                self.emit(CacheHit(call=call.id, tool=call.target, key=key))
                return kept
        result = await proceed(call)
        if result.ok and self.key(call) == key:  # what it read may have changed meanwhile
            self.shelf.set(key, dumps(result.value))
        return result
