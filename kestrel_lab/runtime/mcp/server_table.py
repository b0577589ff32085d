"""The states of MCP servers as a table, and a server compared with what was approved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kestrel_lab.mcp.approvals import Definition, definition_diff
from kestrel_lab.mcp.config import ServerConfig
from kestrel_lab.views.html.table_view import TableView

_COLUMNS = ("server", "state", "tools", "started by or reached at", "sandbox", "reason", "configured in")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRow:
    """The state of one server."""

    name: str
    state: str
    """`not approved`, `not started`, `off`, `cannot be used`, or its health: `ready`, `degraded`,
    `recovering`, `failed`.
    """
    tools: int
    """The number of approved and offered tools."""
    what: str
    sandbox: str = ""
    """Its sandbox level, or the configured one; empty for a server at an address."""
    reason: str = ""
    source: str = ""


class ServerTable(TableView, tuple[ServerRow, ...]):
    """Rows that render as a table."""

    __slots__ = ()
    nothing = (
        "no MCP server is configured: write [mcp.servers.NAME] with command = … into kestrel.toml, or "
        "give Lab(mcp={…})"
    )

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and a row of texts per server."""
        return _COLUMNS, [
            (row.name, row.state, str(row.tools), row.what, row.sandbox, row.reason, row.source or "code")
            for row in self
        ]


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCheck:
    """A server as it is now, and as it was approved."""

    server: ServerConfig
    tools: Mapping[str, Definition]
    refused: Mapping[str, str]
    """Tools that are not offered, and why."""
    approved: Mapping[str, Definition] | None
    """`None` when its command or address is not approved."""
    who: str = ""

    @property
    def changes(self) -> tuple[str, ...]:
        """Return a diff for each tool that is new, gone or different."""
        before = self.approved or {}
        names = sorted({*before, *self.tools})
        pins = {
            name: (
                before[name].pin if name in before else "",
                self.tools[name].pin if name in self.tools else "",
            )
            for name in names
        }
        return tuple(
            definition_diff(name, before.get(name), self.tools.get(name))
            for name, (old, new) in pins.items()
            if old != new
        )
