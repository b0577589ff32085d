"""A configured MCP server and its connection: opened at the first use, replaced when it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.mcp.connection import Connection
from kestrel_lab.mcp.elicitation import Ask
from kestrel_lab.mcp.registry.installed_servers import check_seal
from kestrel_lab.tools.sandbox.levels import Level, Sandbox


@dataclass(slots=True, eq=False)
class Server:
    """A configured server and its connection. Its coroutines run on the loop of MCP connections."""

    config: ServerConfig
    ours: Mapping[str, str]
    log: Path
    ended: Callable[[str], None]
    sandbox: Callable[[], Sandbox]
    connection: Connection | None = None
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: int = 0

    async def open(self, *, replacing: Connection | None = None, ask: Ask | None = None) -> None:
        """Return once there is a living connection other than `replacing`; closes that one if it is current.

        If several callers see the same connection dead, it is replaced once. Raises `ConnectionError`, also
        if the server is closed meanwhile.
        """
        async with self._opening:
            closed, current = self._closed, self.connection
            if current is not None:
                if current.alive and current is not replacing:
                    return
                await current.close()
            if self.config.seal is not None:
                await asyncio.to_thread(check_seal, self.config.seal)
            # `close` may have run during the awaits above; a connection made now would never be closed.
            if self._closed != closed:
                raise ConnectionError("it was closed before it was started")
            self.connection = Connection(self.config, self.ours, self.log, self.ended, self.sandbox(), ask)
            await self.connection.open()

    @property
    def outdated(self) -> bool:
        """True if the connection was started with another sandbox level than a new one would get."""
        own = bool(self.config.url) or self.config.sandbox is not None
        return (
            not own and self.connection is not None and self.connection.sandbox.level != self.sandbox().level
        )

    @property
    def reaches_network(self) -> bool:
        """True if data sent to it can leave this machine: it is remote, unsandboxed by a setting, or has
        network.
        """
        config = self.config
        return bool(config.url) or config.network or (config.sandbox or self.sandbox()).level is Level.S0

    @property
    def shown_sandbox(self) -> str:
        """Its sandbox level, current or at start, and its network, as text; empty for a remote server."""
        config = self.config
        if config.url:
            return ""
        level = self.connection.level if self.connection is not None else None
        asked = config.sandbox or self.sandbox()
        least = f", at least {config.at_least.name}" if config.at_least > Level.S0 and level is None else ""
        network = ", network" if config.network and (level or level is None) else ""
        return f"{asked.name if level is None else level.name}{least}{network}"

    @property
    def connected(self) -> Connection:
        """The connection; raises `ConnectionError` if there is none."""
        if self.connection is None:
            raise ConnectionError("it is not connected")
        return self.connection

    async def close(self) -> None:
        """End the connection and whatever opens one."""
        self._closed += 1
        if self.connection is not None:
            await self.connection.close()
