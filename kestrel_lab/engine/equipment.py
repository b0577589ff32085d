"""What runs are equipped with: models and tools by the names that people give them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kestrel_lab.core.protocols import Model
from kestrel_lab.core.step import Step
from kestrel_lab.engine.expansion import Expansion, with_growth
from kestrel_lab.engine.mcp import McpServers
from kestrel_lab.engine.options import Tools
from kestrel_lab.engine.sources import ExpansionSettings, Sources
from kestrel_lab.engine.toolset import apart_on_the_wire, chosen_tools
from kestrel_lab.models.choose import choose_model
from kestrel_lab.testing import load_script
from kestrel_lab.tools.registry import Toolbox


class Equipment:
    """The models and tools that a session knows."""

    home: Path
    env: Mapping[str, str]
    expansion: ExpansionSettings
    """How far runs may go to find tools."""
    model: str | Model | None
    provider: str | None
    api_base: str | None
    mcp: McpServers
    """Servers of tools: `table()`, `check`, `approve`, `withdraw`."""
    _models: dict[str, Model]
    """Those that were chosen before, by name."""
    _tools: Toolbox

    @property
    def sources(self) -> Sources:
        """Where servers of tools can be had that are not configured."""
        return Sources(root=self.home.resolve() / "mcp", env=self.env, settings=self.expansion)

    def grown(self, toolbox: Toolbox, workspace: Path, expand: bool | None) -> tuple[Toolbox, Expansion | None]:
        """`toolbox` with what a run needs to find more tools; `expand` also among servers that are not configured."""
        wanted = self.expansion.expand if expand is None else expand
        return with_growth(toolbox, self.mcp, workspace, self.sources if wanted else None)

    def resolve_model(self, model: str | Model | None) -> Model:
        """The model of that name, ready to be called; raises `UsageError` when there is none."""
        wanted = model if model is not None else self.model
        if wanted is not None and not isinstance(wanted, str):
            return wanted
        key = wanted or ""
        if key not in self._models:
            self._models[key] = choose_model(
                wanted, env=self.env, provider=self.provider, api_base=self.api_base, factories={"scripted": load_script}
            )
        return self._models[key]

    def given_model(self, model: str | None) -> Model | None:
        """The model object that the name stands for already, the session's own where it is `None`; chooses none."""
        wanted = model if model is not None else self.model
        return wanted if wanted is not None and not isinstance(wanted, str) else self._models.get(wanted or "")

    @property
    def toolbox(self) -> Toolbox:
        """Every known tool: the native ones, those given, and those of MCP servers that are approved."""
        return self._tools + self.mcp.tools() if len(self.mcp) else self._tools

    @toolbox.setter
    def toolbox(self, tools: Toolbox) -> None:
        """Know these tools from now on; those of MCP servers stay with their servers."""
        served = {tool.name for tool in self.mcp.tools()}
        self._tools = Toolbox(tool for tool in tools if tool.name not in served)

    def resolve_tools(self, tools: Tools | Toolbox | None, steps: Iterable[Step] = ()) -> Toolbox:
        """The toolbox that `tools` describe, `SERVER:*` for all tools of an MCP server; `steps` are of the plan it is for, see `chosen_tools`.

        Raises `UsageError` for an unknown name.
        """
        if not len(self.mcp):
            return chosen_tools(self._tools, tools, steps)
        if tools is None:
            self.mcp.learn()
        elif not isinstance(tools, str | Toolbox):
            tools = self.mcp.named(tools)
        return apart_on_the_wire(chosen_tools(self.toolbox, tools, steps))
