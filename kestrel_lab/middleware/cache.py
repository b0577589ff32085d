"""Cache of answers of pure calls, valid while what they read is unchanged."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, cast, get_args

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.errors import KestrelError, UsageError, did_you_mean
from kestrel_lab.core.events.union import CacheHit
from kestrel_lab.core.json_types import Json, dumps, loads
from kestrel_lab.core.protocols import Handler

CacheMode = Literal["off", "use", "refresh", "replay"]
"""`off`: unused; `use`: read and store; `refresh`: only store; `replay`: only read, a miss is an error."""
MAX_ROW = 8_000_000
"""Most characters of a stored answer. Longer answers are not stored, and longer rows are not ours."""

LONGEST_S = 30 * 86_400.0
"""Expiry on a server for answers without one: a shared store must not grow forever."""


class CacheStoreError(KestrelError):
    """A store cannot be reached or read."""


class CacheStore(Protocol):
    """Text under text keys, kept by a file or a server; raises `CacheStoreError` when that fails."""

    async def get(self, key: str) -> str | None:
        """Return the text under `key`; `None` if there is none, or, with a warning, if this package did not
        write it.
        """
        ...

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep `value` under `key`, for `ttl_s` seconds at most."""
        ...

    def close(self) -> None:
        """Give back what it holds open."""
        ...


def cache_mode(text: str) -> CacheMode:
    """The mode of that name; raises `UsageError` for any other."""
    if (word := text.strip().lower()) not in get_args(CacheMode):
        raise UsageError(f"unknown cache mode {text!r}; {did_you_mean(word, get_args(CacheMode))}")
    return cast("CacheMode", word)


@dataclass(frozen=True, slots=True)
class Place:
    """Key of a call's answer in the cache."""

    key: str
    """Equal for calls that may share an answer; empty while their inputs change, so that nothing is reused.
    """
    ttl_s: float | None = None


class PendingCalls:
    """Running calls by key, so that equal ones run once; shared by all threads and loops of a process."""

    def __init__(self) -> None:
        # A `threading` lock, not one of asyncio: sessions of several event loops share the calls.
        self._lock = threading.Lock()
        self._flying: dict[str, Future[str | None]] = {}

    def board(self, key: str) -> tuple[Future[str | None], bool]:
        """The flight under that key, and whether it begins with this call; then `land` must follow."""
        with self._lock:
            if (flight := self._flying.get(key)) is not None:
                return flight, False
            flight = self._flying[key] = Future()
            return flight, True

    def land(self, key: str, text: str | None) -> None:
        """End a call; waiting callers get `text`, or `None` if each must make the call itself."""
        with self._lock:
            # Before the result is set: a call that comes now looks into the store, where the answer is.
            flight = self._flying.pop(key)
        flight.set_result(text)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A stored answer, which may be `None`."""

    value: Json
    knows: dict[str, str] = field(default_factory=dict)
    """File versions that a reader of the answer knows from it."""

    def row(self, **more: Json) -> str:
        """The same as text; `read` is the way back."""
        return dumps({"value": self.value, **({"knows": dict(self.knows)} if self.knows else {}), **more})

    @classmethod
    def read(cls, text: str, **more: Json) -> _Kept | None:
        """Return the stored answer in `row`; `None` for any other text."""
        try:
            row = loads(text)
        except ValueError:
            return None
        if (
            not isinstance(row, dict)
            or row.keys() - {"knows"} != {"value", *more}
            or any(row[key] != value for key, value in more.items())
        ):
            return None
        knows = row.get("knows", {})
        if not isinstance(knows, dict) or not all(isinstance(version, str) for version in knows.values()):
            return None
        return cls(row["value"], cast("dict[str, str]", knows))


@dataclass(frozen=True, slots=True)
class ToolCache:
    """Answers from `store` if possible, and stores successes.

    `place` returns the key under which an answer may be reused, including the state of its inputs; `None` for
    a call that is never cached. A hit costs nothing and is recorded as `cache_hit`. Equal concurrent calls
    run once; if that one fails or is cancelled, each of the others runs.
    """

    store: CacheStore
    place: Callable[[Call], Awaitable[Place | None]]
    emit: Callable[[CacheHit], Any]
    mode: CacheMode = "use"
    flights: PendingCalls = PendingCalls()  # shared on purpose: by all that are not given one of their own  # noqa: RUF009

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Answer from the store or by `proceed`."""
        place = None if self.mode == "off" else await self.place(call)
        if place is None:
            return await proceed(call)
        if not place.key:
            return (
                _missing_replay(call, ": what it reads has just changed")
                if self.mode == "replay"
                else await _make_cacheable(call, proceed)
            )
        if self.mode == "replay":
            kept = await self._kept(place.key)
            return _missing_replay(call) if kept is None else self._hit(call, place.key, kept)
        # By mode: a call that refreshes must not share the answer that a call in `use` found in the store.
        name = f"{self.mode}:{place.key}"
        flight, first = self.flights.board(name)
        if first:
            return await self._fly(name, call, place, proceed)
        # Cancelling one waiting caller must not end the shared call for the others.
        text = await asyncio.shield(asyncio.wrap_future(flight))
        known = None if text is None else _Kept.read(text)
        return await _make_cacheable(call, proceed) if known is None else self._hit(call, place.key, known)

    async def _fly(self, name: str, call: Call, place: Place, proceed: Handler) -> Result:
        text: str | None = None
        try:
            if self.mode == "use" and (kept := await self._kept(place.key)) is not None:
                text = kept.row()
                return self._hit(call, place.key, kept)
            result = await _make_cacheable(call, proceed)
            # The key is made again after the call: if its inputs changed meanwhile, it is unknown which of
            # them the answer is from. Rows have no images.
            if result.ok and not result.images and await self.place(call) == place:
                kept = _Kept(result.value, result.knows)
                text = kept.row()
                # The margin is for the key, which the stored row has in addition.
                if len(text) <= MAX_ROW - 1_000:
                    await self.store.set(place.key, kept.row(key=place.key), place.ttl_s)
            return result
        finally:
            # Also after an error or a cancellation: the waiting callers then make the call themselves.
            self.flights.land(name, text)

    async def _kept(self, key: str) -> _Kept | None:
        """The answer stored under `key`; `None` also if the row belongs to another key or cannot be read."""
        if (text := await self.store.get(key)) is None:
            return None
        kept = _Kept.read(text, key=key)
        if kept is None:
            warnings.warn(
                "an answer in the tool cache belongs to another call than the one it is stored under; "
                "it is ignored",
                stacklevel=2,
            )
        return kept

    def _hit(self, call: Call, key: str, kept: _Kept) -> Result:
        self.emit(CacheHit(call=call.id, tool=call.target, key=key))
        return Result(value=kept.value, knows=kept.knows, cached=True, cacheable=True)


async def _make_cacheable(call: Call, proceed: Handler) -> Result:
    return replace(await proceed(call), cacheable=True)


def _missing_replay(call: Call, why: str = "") -> Result:
    """Return the error of a replayed call that has no stored answer."""
    message = (
        f"the cache is on replay and has no answer of {call.target} for these arguments{why}; store "
        "one with cache mode use or refresh"
    )
    return Result(error=Problem(kind="failed", message=message), cacheable=True)
