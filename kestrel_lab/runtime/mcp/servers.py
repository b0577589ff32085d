"""The MCP servers of a session: configuration, approval, tools, and supervised calls.

A server is started at the first call of one of its tools. Until then its tools are the approved ones.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from kestrel_lab.core.calls import REPEATABLE
from kestrel_lab.core.errors import DependencyError, ToolError, UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart
from kestrel_lab.host.background_loop import BackgroundLoop
from kestrel_lab.mcp.approvals import Approvals, Definition
from kestrel_lab.mcp.authorization import TokenFile, token_redactor
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.connection import Connection, Progress
from kestrel_lab.mcp.elicitation import Ask
from kestrel_lab.mcp.managed_server import Server
from kestrel_lab.runtime.mcp.server_table import ServerCheck, ServerRow, ServerTable
from kestrel_lab.runtime.supervision.dependency import Dependency
from kestrel_lab.runtime.supervision.health import HealthPolicy
from kestrel_lab.runtime.supervision.supervisor import RuntimeSupervisor
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.sandbox.levels import Sandbox
from kestrel_lab.tools.tool import Tool, ToolContext

T = TypeVar("T")


POLICY = HealthPolicy(failures=1, open_s=1.0, restarts=3, restarts_per_s=600.0)
"""One failure opens the breaker, as a server that is gone answers nothing; three restarts in ten minutes."""
_CONTEXT = "kestrel context"
_CLOSE_S = 8.0


def _unseen(_: ImagePart) -> None:
    """Take an image that nobody looks at."""


def dependency_name(server: str) -> str:
    """Return the name of a server among the dependencies of a session."""
    return f"server {server}"


class McpServers:
    """MCP servers by name. May be used from any thread and event loop, and from plain code."""

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        supervisor: RuntimeSupervisor,
        *,
        env: Mapping[str, str],
        logs: Path,
        policy: HealthPolicy = POLICY,
        sandbox: Callable[[], Sandbox] = Sandbox,
    ) -> None:
        """Start nothing.

        Args:
            servers: The configured servers. One given by code (it has no `source`) counts as approved, with
                the tools of its first start; one of a file has to be approved first.
            supervisor: Watches each server from its first start on.
            env: Environment variables: the place of the approvals, and those that servers name.
            logs: The folder of the servers' logs.
            policy: When a server is given up.
            sandbox: The sandbox of servers whose tables do not name one; without network. It is called each
                time: a server that runs at another level is restarted before its next call.
        """
        self.approvals = Approvals.of(env)
        self._supervisor, self._policy = supervisor, policy
        self._env, self._logs, self._sandbox = env, logs, sandbox
        self._loop = BackgroundLoop(
            at_exit=self.close, name="kestrel-mcp", closed="the MCP servers were closed"
        )
        self._changing = threading.RLock()
        # Replaced as a whole under the lock, never changed in place, so iterating needs no lock.
        self.servers = {name: self._server(config) for name, config in servers.items() if config.enabled}
        self._off = {name: config for name, config in servers.items() if not config.enabled}

    def __len__(self) -> int:
        return len(self.servers)

    @property
    def names(self) -> tuple[str, ...]:
        """The servers that are enabled."""
        return tuple(self.servers)

    def tools(self, server: str | None = None) -> tuple[Tool, ...]:
        """Return the approved tools of every server, or of one; starts none."""
        servers = self.servers
        wanted = servers.values() if server is None else [servers[server]] if server in servers else []
        return tuple(tool for one in wanted for tool in self._tools_of(one))

    async def adopt(self, config: ServerConfig) -> None:
        """Add a server; one of the same name with another command or address is replaced and ended."""
        with self._changing:
            known = self.servers.get(config.name)
            if known is not None and known.config.key == config.key:
                return
            self.servers = {**self.servers, config.name: self._server(config)}
            self._supervisor.unwatch(dependency_name(config.name))
        await self._end([known] if known is not None else [])

    def add(self, configs: Iterable[ServerConfig]) -> None:
        """Add the servers of a workflow; one that is there already stays. Raises `UsageError` for another
        server of the same name.
        """
        with self._changing:
            for config in configs:
                known = self.servers.get(config.name)
                if known is None:
                    self.servers = {**self.servers, config.name: self._server(config)}
                elif known.config.key != config.key:
                    other = known.config.source or "this lab"
                    raise UsageError(
                        f"the MCP server {config.name!r} of {config.source} is not the one of {other}: give "
                        "it another name"
                    )

    async def forget(self, name: str) -> None:
        """Remove a server and end it."""
        with self._changing:
            known = self.servers.get(name)
            self.servers = {other: server for other, server in self.servers.items() if other != name}
            self._supervisor.unwatch(dependency_name(name))
        await self._end([known] if known is not None else [])

    def named(self, wanted: Iterable[Any]) -> list[Any]:
        """Return `wanted` with each `SERVER:*` replaced by the names of the server's tools.

        A server given by code that was never started is started for that, which takes as long as its
        `start_timeout_s` at most. Raises `UsageError` for a server that is unknown or not approved.
        """
        names: list[Any] = []
        for item in wanted:
            server, colon, tool = item.partition(":") if isinstance(item, str) else ("", "", "")
            if not colon:
                names.append(item)
                continue
            self.learn(server)
            names += [one.name for one in self.tools(server)] if tool == "*" else [item]
        return names

    def learn(self, name: str | None = None) -> None:
        """Make sure that the tools of `name`, or of every server given by code, are approved; blocks during a
        first start.

        Raises `UsageError` for a server that is unknown or not approved, `DependencyError` for one that
        cannot be started; without a name neither.
        """
        if name is None:
            for waiting in [self._loop.submit(self._first(each)) for each in self.unstarted(None)]:
                # The table names it, and the other servers work.
                with suppress(DependencyError):
                    waiting.result()
            return
        if not self._is_approved(name):
            self._loop.submit(self._first(name)).result()

    def _is_approved(self, name: str) -> bool:
        """Whether a server's tools are approved; raises `UsageError` if it or its file is not known."""
        server = self._known(name)
        if self.approvals.tools(server.config) is not None:
            return True
        if server.config.source:
            msg = (
                f"MCP server {name!r} of {server.config.source} is not approved: kestrel mcp check "
                f"{name} shows it, kestrel mcp approve {name} allows it"
            )
            raise UsageError(msg)
        return False

    async def check(self, name: str) -> ServerCheck:
        """Start `name` and compare its tools with the approved ones; raises `DependencyError` if it fails."""
        server = self._known(name)
        watched = self._watched(name, server)
        connection = server.connection
        if watched.health.given_up or connection is None or not connection.alive:
            # A person asked for it, so the restart budget does not count.
            await self._start(server, watched, replacing=connection)
        connection = server.connected
        return ServerCheck(
            server=server.config,
            tools=connection.definitions,
            refused=connection.refused,
            approved=self.approvals.tools(server.config),
            who=connection.who,
        )

    async def approve(self, name: str) -> ServerCheck:
        """Approve `name` with the tools it has now; returns what that changed."""
        checked = await self.check(name)
        self.approvals.approve(checked.server, checked.tools)
        return checked

    def withdraw(self, name: str) -> bool:
        """Withdraw the approval of `name`; returns whether there was one."""
        return self.approvals.withdraw(self._known(name).config)

    def table(self) -> ServerTable:
        """Return the state of every server; starts none."""
        rows = [self._row(name, server) for name, server in self.servers.items()]
        rows += [_off_row(one) for one in self._off.values()]
        return ServerTable(rows)

    def row(self, name: str) -> ServerRow:
        """Return the state of one server; raises `UsageError` for an unknown one."""
        return _off_row(self._off[name]) if name in self._off else self._row(name, self._known(name))

    def unstarted(self, wanted: Iterable[Any] | None) -> tuple[str, ...]:
        """Return the servers given by code whose tools are unknown, of those that `wanted` names, or of all.

        Raises `UsageError` for a name of a server that is unknown or not approved.
        """
        if wanted is None:
            return tuple(
                name
                for name, one in self.servers.items()
                if not one.config.source and self.approvals.tools(one.config) is None
            )
        named = dict.fromkeys(
            item.partition(":")[0] for item in wanted if isinstance(item, str) and ":" in item
        )
        return tuple(name for name in named if not self._is_approved(name))

    async def start_first(self, names: Iterable[str]) -> dict[str, DependencyError]:
        """Start servers together the first time and approve their tools; returns errors of failed ones."""
        names = tuple(names)
        ends = await asyncio.gather(
            *(self._loop.run(self._first(name)) for name in names), return_exceptions=True
        )
        for end in ends:
            if isinstance(end, BaseException) and not isinstance(end, DependencyError):
                raise end
        return {name: end for name, end in zip(names, ends, strict=True) if isinstance(end, DependencyError)}

    async def aclose(self) -> None:
        """End every server; from any event loop. A later call starts its server again."""
        await self._end(self._reset())
        self._loop.stop()

    def close(self) -> None:
        """End every server; from any code that is not a coroutine on the loop of the connections."""
        servers = self._reset()
        waiting = [self._loop.submit(server.close()) for server in servers] if self._loop.running else []
        for one in waiting:
            # The sandbox kills what does not end when this process ends.
            with suppress(TimeoutError):
                one.result(_CLOSE_S)
        self._loop.stop()

    async def call(
        self,
        server: str,
        tool: str,
        pin: str,
        args: dict[str, Json],
        progress: Progress,
        *,
        again: bool = False,
        ask: Ask | None = None,
        show: Callable[[ImagePart], object] = _unseen,
    ) -> Json:
        """Call a tool, starting or restarting its server first where needed; `again` repeats the call once if
        the server dies.

        `ask` puts questions of the server to a person, on the loop of the connections; `show` takes the
        images of the answer.

        Raises `ToolError` with the tool's own error, and `DependencyError` that names the server and its
        state.
        """
        known = self._known(server)
        watched = self._watched(server, known)
        await self._ensure_open(known, watched, ask)
        permit = watched.admit()
        try:
            answer = await self._loop.run(known.connected.call(tool, pin, args, progress, ask))
        except ToolError as error:
            # The server answered, so it works: the error is of the call.
            watched.success(permit)
            raise ToolError(token_redactor(known.config, self._env).text(str(error))) from error
        except ConnectionError as error:
            watched.failure(str(error), permit)
            if again:
                return await self.call(server, tool, pin, args, progress, ask=ask, show=show)
            raise watched.error() from error
        except TimeoutError as error:
            # Slow is not broken: a look at the server decides.
            watched.release(permit)
            await watched.look()
            alive = "it still answers to others" if watched.health.usable else str(watched.error())
            raise ToolError(
                f"{server}:{tool} gave no answer within {known.config.timeout_s:g} s and was "
                f"cancelled; {alive}"
            ) from error
        except BaseException:
            # Cancelled: nothing is known about the server, and the permit must not be lost.
            watched.release(permit)
            raise
        watched.success(permit)
        for image in answer.images:
            show(image)
        return token_redactor(known.config, self._env).json(answer.value)

    async def request(
        self, name: str, what: Callable[[Connection], Coroutine[Any, Any, T]], ask: Ask | None = None
    ) -> T:
        """Return what `what` gets from an approved server, which is started where needed: its resources, its
        prompts.

        Raises `UsageError` for a server that is unknown or not approved, else what `call` does.
        """
        server = self._known(name)
        self._is_approved(name)
        await self._ensure_open(server, watched := self._watched(name, server), ask)
        try:
            return await self._loop.run(what(server.connected))
        except (ConnectionError, TimeoutError) as error:
            watched.failure(str(error) or "it did not answer in time")
            raise watched.error() from error

    async def login(self, name: str, ask: Ask) -> ServerCheck:
        """Connect anew to a server at an address; where it wants a login, `ask` shows the address to log in
        at.

        Raises `UsageError` for a server that is started by a command, `DependencyError` when the login fails.
        """
        server = self._known(name)
        if not server.config.url:
            raise UsageError(
                f"MCP server {name!r} is started by a command and takes no login: its table passes "
                "secrets with env"
            )
        await self._start(server, self._watched(name, server), replacing=server.connection, ask=ask)
        return await self.check(name)

    def logout(self, name: str) -> bool:
        """Remove a server's tokens and client registration; returns whether there were any."""
        path = TokenFile.path_of(self._known(name).config, self._env)
        known = path.exists()
        path.unlink(missing_ok=True)
        return known

    async def _ensure_open(self, server: Server, watched: Dependency, ask: Ask | None = None) -> None:
        """Return once the server can be called; restarts it within its budget."""
        connection = server.connection
        if connection is None or server.outdated:
            await self._start(server, watched, replacing=connection, ask=ask)
        elif not connection.alive:
            watched.failure(connection.reason or "it is not connected")
        if not watched.health.usable or not (server.connection and server.connection.alive):
            await self._supervisor.ready(
                watched.name, timeout=server.config.start_timeout_s + self._policy.open_max_s
            )

    async def _start(
        self,
        server: Server,
        watched: Dependency,
        *,
        replacing: Connection | None = None,
        ask: Ask | None = None,
    ) -> None:
        try:
            await self._loop.run(server.open(replacing=replacing, ask=ask))
        except (ConnectionError, UsageError) as error:
            watched.failure(str(error))
            raise watched.error() from error
        watched.success()

    async def _first(self, name: str) -> None:
        """Start a server given by code, and approve the tools it has."""
        server = self._known(name)
        await self._start(server, self._watched(name, server))
        self.approvals.approve(server.config, server.connected.definitions)

    def _server(self, config: ServerConfig) -> Server:
        return Server(
            config,
            self._env,
            self._logs / f"mcp-{config.name}.log",
            partial(self._ended, config.name),
            self._sandbox,
        )

    def _reset(self) -> list[Server]:
        """Replace every server by one never started; returns the old ones, which must be closed."""
        with self._changing:
            before = self.servers
            self.servers = {name: self._server(server.config) for name, server in before.items()}
            for name in before:
                self._supervisor.unwatch(dependency_name(name))
        return list(before.values())

    async def _end(self, servers: Iterable[Server]) -> None:
        if self._loop.running:  # else none was ever started
            await asyncio.gather(*(self._loop.run(server.close()) for server in servers))

    def _watched(self, name: str, server: Server) -> Dependency:
        """Return the server as a dependency, watched from the first call on."""

        async def probe() -> None:
            await self._loop.run(server.connected.ping())

        async def restart() -> None:
            await self._loop.run(server.open(replacing=server.connection))

        with self._changing:
            if (found := self._supervisor.get(dependency_name(name))) is not None:
                return found
            advice = f"Its log: {server.log}. kestrel mcp check {name} tries it."
            return self._supervisor.watch(
                dependency_name(name), "mcp", probe, restart, policy=self._policy, advice=advice
            )

    def _ended(self, name: str, reason: str) -> None:
        if (watched := self._supervisor.get(dependency_name(name))) is not None:
            watched.failure(reason)

    def _known(self, name: str) -> Server:
        if (server := self.servers.get(name)) is not None:
            return server
        if name in self._off:
            off = self._off[name]
            raise UsageError(
                off.problem
                or f"MCP server {name!r} is switched off in {off.source or 'its table'}: enabled = false"
            )
        known = (
            did_you_mean(name, self.servers)
            if self.servers
            else f"none is set up; name it in kestrel.toml, in a table [mcp.servers.{name}]"
        )
        raise UsageError(f"there is no MCP server {name!r}: {known}")

    def _tools_of(self, server: Server) -> list[Tool]:
        config = server.config
        approved = self.approvals.tools(config) or {}
        return [
            self._tool(server, one)
            for one in approved.values()
            if config.only is None or one.name in config.only
        ]

    def _tool(self, server: Server, definition: Definition) -> Tool:
        config = server.config
        trust, pin = config.trust_in(definition.name), definition.pin

        async def call(**values: Any) -> Json:
            ctx: ToolContext = values.pop(_CONTEXT)
            loop = asyncio.get_running_loop()

            def progress(text: str, fraction: float | None) -> None:
                # The run's loop has ended.
                with suppress(RuntimeError):
                    loop.call_soon_threadsafe(ctx.progress, text, fraction)

            async def ask(text: str, options: tuple[str, ...]) -> str | None:
                assert ctx.ask is not None
                return await asyncio.wrap_future(
                    asyncio.run_coroutine_threadsafe(ctx.ask(text, options), loop)
                )

            person, again = None if ctx.ask is None else ask, trust.effect in REPEATABLE
            return await self.call(
                config.name, definition.name, pin, values, progress, again=again, ask=person, show=ctx.show
            )

        name = f"{config.name}:{definition.name}"
        return Tool(
            name=name,
            description=definition.description[:4_000],
            function=call,
            arguments=SchemaArguments(tool=name, schema=definition.schema),
            danger=trust.danger,
            effect=trust.effect,
            version=pin[:12],
            reads=("private", "untrusted") if trust.untrusted else ("private",),
            content=trust.content,
            reaches="nothing" if trust.effect == "pure" or definition.says else "anything",
            unsaid=frozenset({"files"})
            if definition.says
            else frozenset(),  # it is believed of what it sends; files are looked at
            asks=bool(definition.says) and server.reaches_network,
            group="" if config.seal is None else config.name,
            context_parameter=_CONTEXT,
        )

    def _row(self, name: str, server: Server) -> ServerRow:
        config = server.config
        approved = self.approvals.tools(config)
        watched = self._supervisor.get(dependency_name(name))
        if watched is not None:
            state, reason = watched.row().state.value, watched.row().reason
        elif approved is None and config.source:
            state, reason = "not approved", f"kestrel mcp approve {name}"
        else:
            state, reason = "not started", ""
        return ServerRow(
            name=name,
            state=state,
            tools=len(self._tools_of(server)),
            what=config.shown,
            sandbox=server.shown_sandbox,
            reason=reason,
            source=config.source,
        )


def _off_row(config: ServerConfig) -> ServerRow:
    state = "cannot be used" if config.problem else "off"
    return ServerRow(
        name=config.name, state=state, tools=0, what=config.shown, reason=config.problem, source=config.source
    )
