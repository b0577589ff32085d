"""The tool cache of a session: where answers are kept, under which keys, and what becomes of a run when that
place fails.
"""

from __future__ import annotations

import inspect
import platform
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kestrel_lab.core.calls import Call
from kestrel_lab.core.errors import DependencyError, error_text, stops_task
from kestrel_lab.core.events.union import Event, HealthChanged
from kestrel_lab.core.json_types import content_key
from kestrel_lab.host.postgres import is_postgres
from kestrel_lab.middleware.cache import (
    CacheMode,
    CacheStore,
    CacheStoreError,
    PendingCalls,
    Place,
    ToolCache,
    cache_mode,
)
from kestrel_lab.middleware.disk_cache import DiskStore
from kestrel_lab.middleware.postgres_cache import PostgresStore
from kestrel_lab.middleware.redis_cache import RedisStore
from kestrel_lab.runtime.supervision.dependency import Dependency
from kestrel_lab.runtime.supervision.health import HealthPolicy, HealthState
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.files.fingerprints import PathFingerprint
from kestrel_lab.tools.tool import Tool, Toolbox, ToolContext

_T = TypeVar("_T")
Emit = Callable[[Event], Any]
KIND, DEPENDENCY = "tool", "cache"
"""What the supervisor and the log call it."""
_POLICY = HealthPolicy(failures=1)
"""One failure is enough to leave it alone for a while: a call is seldom dearer than waiting for a server that
is gone.
"""


class ToolCaching:
    """One store for all runs of a session, opened when the first call is looked up."""

    def __init__(self, folder: Path, mode: str, url: str | None, supervisor: RuntimeSupervisor) -> None:
        """Keep answers in `folder`, or on the server at `url`.

        Raises `UsageError` for an unknown mode or no such address.
        """
        self.mode = mode
        self._folder, self._supervisor = folder, supervisor
        self._store: CacheStore | None = (
            None if not url else PostgresStore(url) if is_postgres(url) else RedisStore(url)
        )
        self._flights = PendingCalls()
        self._pins: dict[Tool, str] = {}

    @property
    def mode(self) -> CacheMode:
        """What runs do that do not say it themselves."""
        return self._mode

    @mode.setter
    def mode(self, text: str) -> None:
        """Take another mode from now on; raises `UsageError` for one that does not exist."""
        self._mode = cache_mode(text)

    @property
    def where(self) -> str:
        """A folder or an address, as people may see it."""
        return self._store.where if isinstance(self._store, RedisStore | PostgresStore) else str(self._folder)

    def layers(
        self, given: str | None, toolbox: Toolbox, scope: ToolContext, emit: Emit
    ) -> tuple[ToolCache, ...]:
        """What is put around the tool calls of a run: nothing when the cache is off."""
        mode = cache_mode(given) if given else self._mode
        if mode == "off":
            return ()

        async def place(call: Call) -> Place | None:
            tool = toolbox.get(call.target)
            return await cache_key(tool, call, scope, self._pin(tool)) if is_cacheable(tool) else None

        return (ToolCache(WatchedStore(self._open, self._watched(), emit), place, emit, mode, self._flights),)

    def clear(self) -> None:
        """Forget all answers that are kept in the folder; those on a server stay."""
        if not isinstance(self._store, RedisStore | PostgresStore) and (self._folder / "cache.db").exists():
            store = self._store if isinstance(self._store, DiskStore) else DiskStore(self._folder)
            store.clear()
            if store is not self._store:
                store.close()

    def close(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.close()

    def _open(self) -> CacheStore:
        if self._store is None:
            self._store = DiskStore(self._folder)
        return self._store

    def _watched(self) -> Dependency:
        advice = f"Runs go on without stored answers; look at {self.where}, or set cache to off."
        known = self._supervisor.get(DEPENDENCY)
        return known or self._supervisor.watch(DEPENDENCY, KIND, policy=_POLICY, advice=advice)

    def _pin(self, tool: Tool) -> str:
        if tool not in self._pins:
            foreign = "untrusted" in tool.flow.reads
            self._pins[tool] = content_key(
                tool.name, tool.version, tool.description, tool.schema, tool.effect, foreign
            )
        return self._pins[tool]


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """A store that misses while it fails: its health is reported; no call fails or waits long for it."""

    opened: Callable[[], CacheStore]
    dependency: Dependency
    emit: Emit

    async def get(self, key: str) -> str | None:
        """The text under `key`, or `None`."""
        return await self._ask(lambda store: store.get(key))

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep `value` if that can be done."""
        await self._ask(lambda store: store.set(key, value, ttl_s))

    def close(self) -> None:
        """Leave it open: it is the session's."""

    async def _ask(self, work: Callable[[CacheStore], Awaitable[_T]]) -> _T | None:
        try:
            permit = self.dependency.admit()
        except DependencyError:
            return None
        try:
            found = await work(self.opened())
        except CacheStoreError as error:
            self._tell(self.dependency.failure(error, permit))
            return None
        except BaseException:
            self.dependency.release(permit)
            raise
        self._tell(self.dependency.success(permit))
        return found

    def _tell(self, changes: list[HealthChanged]) -> None:
        for change in changes[-1:]:  # one word for all that one failure has changed
            if (
                change.source != HealthState.STARTING or change.target != HealthState.READY
            ):  # that it works is no news to a run
                self.emit(change)


def is_cacheable(tool: Tool) -> bool:
    """Whether answers of the tool may be used again at all: it is pure, and says when they are out of
    date.
    """
    return tool.effect == "pure" and (tool.fingerprint is not None or tool.cache_ttl_seconds is not None)


async def cache_key(tool: Tool, call: Call, scope: ToolContext, pin: str) -> Place | None:
    """Where the answer of a call belongs; `None` if it must not be used again.

    The key is a hash of the tool (`pin`: its definition and version), the arguments (paths in one spelling),
    whose workspace or run it is, and the state of what the call reads.
    """
    state: str | None = ""
    if tool.fingerprint is not None:
        try:
            found = tool.fingerprint(call.args, scope)
            state = await found if inspect.isawaitable(found) else found
        except BaseException as error:  # foreign code; the call itself is not harmed
            if stops_task(error):
                raise
            warnings.warn(
                f"answers of {tool.name} are not reused: its fingerprint failed ({error_text(error)})",
                stacklevel=2,
            )
            return None
        if state is None:
            return None
        if not state:
            return Place("", tool.cache_ttl_seconds)
    args = (
        tool.fingerprint.spelled(call.args, scope.workspace)
        if isinstance(tool.fingerprint, PathFingerprint)
        else call.args
    )
    return Place(content_key(pin, args, _workspace_identity(tool, scope), state), tool.cache_ttl_seconds)


def _workspace_identity(tool: Tool, scope: ToolContext) -> str:
    match tool.cache_scope:
        case "global":
            return ""
        case "run":
            return scope.run_id
    root = scope.workspace.root
    status = (
        root.stat()
    )  # another folder may have the same name later, or on another machine that shares the cache
    return f"{platform.node()}:{root}:{status.st_dev}:{status.st_ino}"
