"""The table of MCP servers."""

from __future__ import annotations

from dataclasses import dataclass

from kestrel_lab.views.html.elements import paragraph_html, table_html
from kestrel_lab.views.text import table_text

_COLUMNS = ("server", "state", "tools", "started by or reached at", "sandbox", "reason", "configured in")
_NONE = "no MCP server is configured: write [mcp.servers.NAME] with command = … into kestrel.toml, or give Lab(mcp={…})"


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerRow:
    """The state of one server."""

    name: str
    state: str
    """`not approved`, `not started`, `off`, `cannot be used`, or its health: `ready`, `degraded`, `recovering`, `failed`."""
    tools: int
    """The number of approved and offered tools."""
    what: str
    sandbox: str = ""
    """Its sandbox level, or the configured one; empty for a server at an address."""
    reason: str = ""
    source: str = ""


class ServerTable(tuple[ServerRow, ...]):
    """Rows that render as a table."""

    __slots__ = ()

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return the headings and a row of texts per server."""
        return _COLUMNS, [(row.name, row.state, str(row.tools), row.what, row.sandbox, row.reason, row.source or "code") for row in self]

    def __repr__(self) -> str:
        return table_text(*self.table()) if self else _NONE

    def _repr_html_(self) -> str:
        return table_html(*self.table()) if self else paragraph_html(_NONE)
