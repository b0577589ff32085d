"""Health of MCP servers in the logs of the runs that use them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress

from kestrel_lab.core.events.union import HealthChanged
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.mcp.servers import McpServers, watched_as
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor


def tell_of_servers(ctx: RunContext, supervisor: RuntimeSupervisor) -> Callable[[], None]:
    """Record changes of health of the run's MCP servers in its log; returns a function that ends that."""
    if ctx.growth is None and ctx.equip is None and not _used(ctx):
        return _nothing
    loop = asyncio.get_running_loop()

    def emit(change: HealthChanged) -> None:
        if not ctx.state.status.terminal:
            ctx.emit(change)

    def heard(change: HealthChanged) -> None:  # on whatever thread noticed it
        if change.kind == "mcp" and change.dependency in _used(ctx):
            with suppress(RuntimeError):  # the run's loop has ended
                loop.call_soon_threadsafe(emit, change)

    return supervisor.subscribe(heard)


def missing_servers(servers: McpServers, *, but: Collection[str] = ()) -> tuple[HealthChanged, ...]:
    """Return an event for each configured server without tools, except those in `but`: the run goes on without them and says so."""
    return tuple(
        HealthChanged(
            dependency=watched_as(row.name), kind="mcp", source="", target=row.state, reason=f"none of its tools are offered; {row.reason}"
        )
        for row in servers.table()
        if row.name not in but and not row.tools and row.state not in {"off", "ready", "not started"}
    )


def _used(ctx: RunContext) -> set[str]:
    """Return the servers of the run's tools, which may become more."""
    return {watched_as(name.partition(":")[0]) for name in ctx.toolbox.names if ":" in name}


def _nothing() -> None:
    """There is nothing to end."""
