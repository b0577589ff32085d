"""Registry of models and tools: finds them by the names that people give them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path

from kestrel_lab.core.errors import DependencyError, UsageError
from kestrel_lab.core.events.union import HealthChanged, ToolsAdded
from kestrel_lab.core.protocols import Model
from kestrel_lab.core.step import Step
from kestrel_lab.host.consulted_environment import ConsultedEnvironment
from kestrel_lab.runtime.context.run_context import RunContext
from kestrel_lab.runtime.context.tool_selection import FIND_TOOL, MOST_SHOWN
from kestrel_lab.runtime.context.toolboxes import (
    Tools,
    check_wire_names,
    chosen_tools,
    known_tools,
)
from kestrel_lab.runtime.execution.steps import check_steps
from kestrel_lab.runtime.mcp.discovery import ExpansionSettings, Sources
from kestrel_lab.runtime.mcp.expansion import Expansion
from kestrel_lab.runtime.mcp.servers import McpServers, dependency_name
from kestrel_lab.runtime.operations.registry import OPERATIONS
from kestrel_lab.runtime.options import LabOptions
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.sandbox.select import choose_level_async, is_tested
from kestrel_lab.tools.tool import Tool, Toolbox

_FAILED: ContextVar[Mapping[str, DependencyError]] = ContextVar(
    "servers that could not be started for the run that begins"
)


@contextmanager
def skip_failed_servers(failed: Mapping[str, DependencyError]) -> Iterator[None]:
    """Keep runs that begin in the block from starting these servers again."""
    token = _FAILED.set(failed)
    try:
        yield
    finally:
        _FAILED.reset(token)


def mcp_expansion(options: LabOptions) -> ExpansionSettings:
    """Return how far runs may go to find tools."""
    return ExpansionSettings(
        expand=options["expand"],
        registry=options.get("mcp_registry") or "",
        catalogue=options.get("mcp_catalogue") or "",
        allow=tuple(options["mcp_allow"]),
    )


class Registry:
    """The models and tools that a session knows by name, and the MCP servers that runs can grow by."""

    def __init__(
        self, options: LabOptions, home: Path, mcp: McpServers, sandbox: Sandbox, tools: Iterable[Tool]
    ) -> None:
        """`tools` are the native ones and those that runs are offered on request."""
        self.options = options
        """Those of the lab as they are now; `Lab.change` replaces them."""
        self.sandbox = sandbox
        self._servers_home, self._mcp = home.resolve() / "mcp", mcp
        self._models: dict[str, Model] = dict(options.get("models") or {})
        self._chosen_by: dict[str, ConsultedEnvironment] = {}
        """For models that were chosen by name, the environment that decided: keys and addresses."""
        self._why: str | None = None
        """Why the model is chosen that is used where none is named; `None` until that is asked."""
        self._tools = known_tools(tools, options.get("tools") or (), mcp.names)

    @property
    def _env(self) -> Mapping[str, str]:
        env = self.options.get("env")
        return os.environ if env is None else env

    @property
    def sources(self) -> Sources:
        """The catalogue and registry of MCP servers that are not configured."""
        return Sources(root=self._servers_home, env=self._env, settings=mcp_expansion(self.options))

    def grown(
        self, toolbox: Toolbox, workspace: Path, expand: bool | None
    ) -> tuple[Toolbox, Expansion | None]:
        """`toolbox` with tools for finding more; `expand` also searches unconfigured servers."""
        wanted = self.options["expand"] if expand is None else expand
        if FIND_TOOL in toolbox or (not wanted and len(toolbox) <= MOST_SHOWN):
            return toolbox, None
        expansion = Expansion(
            servers=self._mcp, workspace=workspace, sources=self.sources if wanted else None
        )
        return Toolbox([*toolbox, *expansion.tools()]), expansion

    def resolve_model(self, model: str | Model | None) -> Model:
        """The model of that name, ready to be called; raises `UsageError` when there is none.

        It is chosen anew when a variable of the environment that decided has changed, such as its key.
        """
        wanted = model if model is not None else self.options.get("model")
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        key = wanted or ""
        if key in self._chosen_by and self._chosen_by[key].changed:
            del self._models[key], self._chosen_by[key]
            self._why = None
        if key not in self._models:
            from kestrel_lab.adapters.registry import adapter_factories
            from kestrel_lab.memory.embeddings import default_embedder
            from kestrel_lab.models.learned_router import ROUTER, learned_model

            # Providers and scripts: only where a model is given by name.
            from kestrel_lab.models.resolve import (
                choose_model,
            )
            from kestrel_lab.testing import load_script

            makers: dict[str, Callable[[str], Model]] = {
                "scripted": load_script,
                ROUTER: lambda path: learned_model(path, self.resolve_model, default_embedder()),
                **adapter_factories(self._env),
            }
            env = ConsultedEnvironment(self._env)
            self._models[key] = choose_model(
                wanted,
                env=env,
                provider=self.options.get("provider"),
                api_base=self.options.get("api_base"),
                factories=makers,
            )
            self._chosen_by[key] = env
        return self._models[key]

    def why_model(self, model: str | Model | None) -> str:
        """Return why `resolve_model` chose the model that it gives; empty where somebody named it."""
        named = (model, self.options.get("model"), self.options.get("provider"), self.options.get("api_base"))
        if any(named) or self._env.get("MODEL_PROVIDER"):
            return ""
        if self._why is None:
            # As in `resolve_model`.
            from kestrel_lab.models.resolve import chosen_because

            self._why = chosen_because(self._env)
        return self._why

    def given_model(self, model: str | None) -> Model | None:
        """The existing model object for a name; the session's own for `None`. Chooses none."""
        wanted = model if model is not None else self.options.get("model")
        return (
            wanted if wanted is not None and not isinstance(wanted, str) else self._models.get(wanted or "")
        )

    @property
    def toolbox(self) -> Toolbox:
        """Every known tool: the native ones, those given, and those of MCP servers that are approved."""
        return self._tools + self._mcp.tools() if self._mcp.servers else self._tools

    @toolbox.setter
    def toolbox(self, tools: Toolbox) -> None:
        """Replace the known tools; those of MCP servers stay with their servers."""
        served = {tool.name for tool in self._mcp.tools()}
        self._tools = Toolbox(tool for tool in tools if tool.name not in served)

    def resolve_tools(self, tools: Tools | Toolbox | None) -> Toolbox:
        """Return the toolbox for `tools`, `SERVER:*` for a whole server; raises `UsageError` if unknown."""
        if tools is None and len(self._mcp):
            self._mcp.learn()
        return self._without((), tools, ())

    def known_at_once(
        self, tools: Tools | Toolbox | None, steps: Iterable[Step] = ()
    ) -> tuple[Toolbox, tuple[str, ...]]:
        """`resolve_tools` as far as nothing has to be started for it, and the servers whose tools are still
        missing.

        Raises `UsageError` for an unknown name.
        """
        # Names are looked up even where no server is configured: an unknown one is refused.
        none = isinstance(tools, str | Toolbox) or (tools is None and not self._mcp.servers)
        late = () if none else self._mcp.unstarted(tools)
        return self._without(late, tools, steps), late

    def _without(
        self, servers: Collection[str], tools: Tools | Toolbox | None, steps: Iterable[Step]
    ) -> Toolbox:
        """Return the toolbox that `tools` describe, without the tools of these servers."""
        if tools is not None and not isinstance(tools, str | Toolbox):
            tools = self._mcp.named(
                item for item in tools if not (isinstance(item, str) and item.partition(":")[0] in servers)
            )
        return check_wire_names(chosen_tools(self.toolbox, tools, steps))

    async def prepare(self, tools: Tools | Toolbox | None, workspace: Path) -> Mapping[str, DependencyError]:
        """Start the servers and try the sandbox for a run; returns the servers that cannot be started."""
        late = () if isinstance(tools, str | Toolbox) else self._mcp.unstarted(tools)
        failed = await self._mcp.start_first(late) if late else {}
        if self.sandbox.level is not None:
            # The run raises it, if it has a tool that needs a sandbox.
            with suppress(UsageError):
                await choose_level_async(self.sandbox, workspace)
        return failed

    def equipping(
        self, ctx: RunContext, late: Collection[str], tools: Tools | Toolbox | None, steps: Iterable[Step]
    ) -> Callable[[], Awaitable[None]] | None:
        """Return what the run has to wait for before its first step; `None` if there is nothing."""
        untried = (
            self.sandbox.level is not None
            and not is_tested(self.sandbox)
            and any(tool.sandbox is not None for tool in ctx.toolbox)
        )
        return (
            partial(self._equip, ctx, late=late, tools=tools, steps=tuple(steps)) if late or untried else None
        )

    async def _equip(
        self, ctx: RunContext, *, late: Collection[str], tools: Tools | Toolbox | None, steps: Sequence[Step]
    ) -> None:
        """Start the servers of a run that has begun and give it their tools.

        It goes on without those that cannot be started, and says so. Raises `UsageError` for a name or a step
        that then has no tool, and where the sandbox that was named cannot be had.
        """
        if self.sandbox.level is not None and any(tool.sandbox is not None for tool in ctx.toolbox):
            await choose_level_async(self.sandbox, ctx.given.workspace.root)
        if not late:
            return
        failed = {name: error for name, error in _FAILED.get({}).items() if name in late}
        failed |= await self._mcp.start_first(set(late) - set(failed))
        for name, error in failed.items():
            ctx.emit(_without_tools(name, error.state, str(error)))
        new = [tool for tool in self._without(failed, tools, steps) if tool.name not in ctx.toolbox]
        whole, growth = Toolbox([*ctx.toolbox, *new]), None
        if ctx.growth is None:
            whole, growth = self.grown(whole, ctx.given.workspace.root, expand=False)
        check_steps(steps, check_wire_names(whole), OPERATIONS, ctx.given.resolve)
        if new:
            ctx.emit(ToolsAdded(tools=[tool.named for tool in new]))
            ctx.grow(tool for tool in whole if tool.name not in ctx.toolbox)
        if growth is not None:
            ctx.growth = growth
            growth.attach(ctx)


def watch_servers(ctx: RunContext, supervisor: RuntimeSupervisor) -> Callable[[], None] | None:
    """Record changes of health of the run's MCP servers in its log; returns a function that ends that, `None`
    for a run without servers.
    """
    if ctx.growth is None and ctx.equip is None and not _used_servers(ctx):
        return None
    loop = asyncio.get_running_loop()

    def emit(change: HealthChanged) -> None:
        if not ctx.state.status.terminal:
            ctx.emit(change)

    # On whatever thread noticed it.
    def heard(change: HealthChanged) -> None:
        if change.kind == "mcp" and change.dependency in _used_servers(ctx):
            # The run's loop has ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(emit, change)

    return supervisor.subscribe(heard)


def missing_servers(servers: McpServers, *, but: Collection[str] = ()) -> tuple[HealthChanged, ...]:
    """Return an event per configured server without tools, except `but`: the run goes on without."""
    return tuple(
        _without_tools(row.name, row.state, row.reason)
        for row in servers.table()
        if row.name not in but and not row.tools and row.state not in {"off", "ready", "not started"}
    )


def _without_tools(server: str, state: str, why: str) -> HealthChanged:
    return HealthChanged(
        dependency=dependency_name(server),
        kind="mcp",
        source="",
        target=state,
        reason=f"none of its tools are offered; {why}",
    )


def _used_servers(ctx: RunContext) -> set[str]:
    return {dependency_name(name.partition(":")[0]) for name in ctx.toolbox.names if ":" in name}
