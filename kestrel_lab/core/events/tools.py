"""Facts about the tools that a run comes to have: which of many are shown to a model, servers that were found and installed.

The rules for all events are in `core.events`.
"""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kestrel_lab.core.json_types import FrozenStruct, Json


class ToolsShown(FrozenStruct, frozen=True, kw_only=True):
    """Of more tools than a model is told of at once, it is told of these too from now on."""

    type: ClassVar[str] = "tools_shown"
    tools: list[str]
    step: str = ""
    """Whose model; empty for those of all steps."""
    need: str = ""
    """What they were looked for with."""
    messages: int = 0
    """How many of the step's questions had been put when they were chosen for one of these; 0 when the model asked for them."""


class ToolsAdded(FrozenStruct, frozen=True, kw_only=True):
    """Servers were started for the first time when the run began, and these tools of theirs are among those that it is offered."""

    type: ClassVar[str] = "tools_added"
    tools: list[dict[str, Json]]
    """As in `run_started`."""


class McpCandidateFound(FrozenStruct, frozen=True, kw_only=True):
    """A server that is not there was found for something that is needed, and judged; nothing of it was installed or run."""

    type: ClassVar[str] = "mcp_candidate_found"
    need: str
    server: str
    """Its name in the catalogue or registry."""
    source: str
    """Where it was found."""
    description: str = ""
    """What it says of itself."""
    score: int = 0
    """Of 100 points."""
    rubric: list[dict[str, Json]] = field(default_factory=list)
    """What it got points for: `{criterion, points, most, why}`."""
    package: dict[str, Json] = field(default_factory=dict)
    """What would be installed; empty where nothing can be."""
    lock: str = ""
    """Hash of the list of everything that would be installed; empty where it was not looked up."""
    packages: int = 0
    """How many that are."""
    installer: str = ""
    problem: str = ""
    """Why it cannot be had."""


class McpInstalled(FrozenStruct, frozen=True, kw_only=True):
    """A server was installed, started and its tools taken into the run; also one that had been installed before."""

    type: ClassVar[str] = "mcp_installed"
    server: str
    """What its tools are called by."""
    package: str
    """As `name==version`."""
    folder: str
    lock: str
    """Hash of the list of what was installed."""
    tree: str
    """Hash of the folder; the server is not started from one that is different."""
    tools: list[dict[str, Json]] = field(default_factory=list)
    """As in `run_started`."""
    entry: str = ""
    call: str = ""
    """The call that installed it."""
    allowed: str = ""
    """The setting that allowed it beforehand; empty when somebody was asked."""
