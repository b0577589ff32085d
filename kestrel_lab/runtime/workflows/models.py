"""What workflow and agent files may hold: what Python code says of steps and shapes, and what stands for it.

Their JSON Schemas are for editors.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, TypeAdapter, WithJsonSchema

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.plan_shapes import MAX_ROUNDS, MAX_VISITS, Edge, Repeats, Unsure, Voting
from kestrel_lab.core.step import AgentSettings, Work
from kestrel_lab.core.yaml.validation import Written

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,59}$")]
"""What conditions and `{{name}}` can refer to."""
SOME: Final = {"min_length": 1}
TWO: Final = {"min_length": 2}


@dataclass(frozen=True, kw_only=True)
class InputEntry(Written):
    """A value that is given when the workflow starts. A text alone is its description."""

    TEXT: ClassVar[str] = "description"

    description: str = ""
    type: Literal["string", "number", "integer", "boolean", "array", "object"] = "string"
    default: Any = None
    """What it is when it is not given; without a default it must be given."""
    minimum: float | None = None
    """The least that a number may be."""


@dataclass(frozen=True, kw_only=True)
class WithTeam(Written):
    """What has an agent."""

    team: Sequence[str] = ()
    """Agents to which it may delegate: of this workflow, files beside it, or shipped."""


@dataclass(frozen=True, kw_only=True)
class AgentFileEntry(WithTeam, AgentSettings):
    """An agent for any workflow."""

    kind: Literal["agent"]
    name: str = ""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentEntry(WithTeam, AgentSettings):
    """An agent, by reference or written here. A text alone is a reference."""

    TEXT: ClassVar[str] = "use"

    use: str = ""
    """An agent of this workflow, an agent file beside it, or a shipped agent; other keys replace its own."""
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class StepEntry(WithTeam, Work):
    """A step of a plan: a goal for an agent, one call of a tool, or an operation of the engine."""

    agent: AgentEntry | None = None
    """Who works on the goal, by default `{{goal}}`."""
    workflow: Annotated[
        str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"$dynamicRef": "#"}]})
    ] = None
    """A workflow to carry out: one written here, a file beside this one, or a shipped one; goal and args are
    its goal and inputs.
    """


@dataclass(frozen=True, kw_only=True)
class NodeEntry(StepEntry):
    """Work that has its place in a shape. It makes an artifact of its own name unless it says otherwise."""

    LEFT_OUT: ClassVar[frozenset[str]] = frozenset({"depends_on", "repairs"})

    id: Name


@dataclass(frozen=True, kw_only=True)
class WorkflowEntry(Written):
    """What workflows of every kind have."""

    name: str = ""
    description: str = ""
    inputs: Mapping[Name, InputEntry] = field(default_factory=dict)
    acceptance_criteria: Sequence[str] = ()
    agents: Mapping[Name, AgentEntry] = field(default_factory=dict)
    provider: str = ""
    """The provider of the models of this workflow's agents, where neither they nor their models say one."""
    mcp_servers: Sequence[dict[str, Any]] = ()
    """MCP servers whose tools its steps name as `SERVER:TOOL`: each has a `name`, and what a table of
    `kestrel.toml` has, such as `command` and `args`.
    """
    output: Mapping[str, Any] | str | None = None
    """JSON Schema of the answer, or `module:Type` of a module that is imported."""


@dataclass(frozen=True, kw_only=True)
class PlanEntry(WorkflowEntry):
    """A plan, step by step."""

    kind: Literal["plan"]
    steps: Sequence[StepEntry] = field(metadata=SOME)


@dataclass(frozen=True, kw_only=True)
class SequentialEntry(WorkflowEntry):
    """One step after another; each is given what the one before left."""

    kind: Literal["sequential"]
    steps: Sequence[NodeEntry] = field(metadata=SOME)


@dataclass(frozen=True, kw_only=True)
class ParallelEntry(WorkflowEntry):
    """Branches at once; then, if there is one, `join` is given what all of them made."""

    kind: Literal["parallel"]
    branches: Sequence[NodeEntry] = field(metadata=SOME)
    join: NodeEntry | None = None


@dataclass(frozen=True, kw_only=True)
class RepeatedEntry(WorkflowEntry, Repeats):
    """Work with a state, which may be done again."""

    # Again, for the names: conditions refer to them.
    state: Mapping[Name, Any] = field(default_factory=dict)
    """Artifacts before the first round or node, and their values; steps that make them bring them up to date.
    """


@dataclass(frozen=True, kw_only=True)
class LoopEntry(RepeatedEntry):
    """Steps one after another, again and again until a condition holds."""

    kind: Literal["loop"]
    steps: Sequence[NodeEntry] = field(metadata=SOME)
    until: str = field(metadata=SOME)
    """Condition on artifacts, asked after each round."""
    limit: int = field(metadata={"ge": 1, "le": MAX_ROUNDS})
    """Most rounds."""


@dataclass(frozen=True, kw_only=True)
class EdgeEntry(Written, Edge):
    """A way from a node to another."""


@dataclass(frozen=True, kw_only=True)
class GraphEntry(RepeatedEntry):
    """Nodes and edges with conditions. A node runs if an edge leads to it from one that ran."""

    kind: Literal["graph"]
    nodes: Sequence[NodeEntry] = field(metadata=SOME)
    edges: Sequence[EdgeEntry] = ()
    start: Sequence[str] = ()
    """Nodes that run first; by default those to which no edge leads."""
    limit: int | None = field(default=None, metadata={"ge": 1, "le": MAX_VISITS})
    """Most visits of all nodes together, where edges lead back."""


@dataclass(frozen=True, kw_only=True)
class SupervisorEntry(WorkflowEntry):
    """An agent that delegates to others and answers from what they found."""

    kind: Literal["supervisor"]
    supervisor: NodeEntry
    workers: Sequence[str] = field(metadata=SOME)
    """Agents of this workflow, files beside it, or shipped."""


@dataclass(frozen=True, kw_only=True)
class RouteEntry(NodeEntry):
    """A route, and what it is for."""

    purpose: str = field(metadata=SOME)
    """Shown to the router."""


@dataclass(frozen=True, kw_only=True)
class RouterEntry(WorkflowEntry, Unsure):
    """An agent chooses one of the routes, which alone is carried out."""

    kind: Literal["router"]
    router: NodeEntry
    routes: Sequence[RouteEntry] = field(metadata=TWO)


@dataclass(frozen=True, kw_only=True)
class EnsembleEntry(WorkflowEntry):
    """Members at once; the synthesiser is given what they made, as long as one of them made something."""

    kind: Literal["ensemble"]
    members: Sequence[NodeEntry] = field(metadata=TWO)
    synthesiser: NodeEntry


@dataclass(frozen=True, kw_only=True)
class CouncilEntry(WorkflowEntry, Voting):
    """Members take positions with evidence in rounds, and vote; the chair decides and says why."""

    kind: Literal["council"]
    members: Sequence[NodeEntry] = field(metadata=TWO)
    chair: NodeEntry


@dataclass(frozen=True, kw_only=True)
class EscalationEntry(WorkflowEntry):
    """Each tier takes over where the one before fails, its council is split, or it is not sure enough."""

    kind: Literal["escalation"]
    tiers: Sequence[NodeEntry] = field(metadata=TWO)
    below: float = field(default=0.0, metadata={"ge": 0, "le": 1})
    """Confidence below which the next tier takes over."""


AnyWorkflow = (
    PlanEntry
    | SequentialEntry
    | ParallelEntry
    | LoopEntry
    | GraphEntry
    | SupervisorEntry
    | RouterEntry
    | EnsembleEntry
    | CouncilEntry
    | EscalationEntry
)
KINDS: dict[str, type[AnyWorkflow]] = {
    "plan": PlanEntry,
    "sequential": SequentialEntry,
    "parallel": ParallelEntry,
    "loop": LoopEntry,
    "graph": GraphEntry,
    "supervisor": SupervisorEntry,
    "router": RouterEntry,
    "ensemble": EnsembleEntry,
    "council": CouncilEntry,
    "escalation": EscalationEntry,
}


FOLDER: Final = Path(__file__).parents[2] / "schemas"
"""The folder of the shipped schemas, `NAME.schema.json`."""
SCHEMAS: Final[dict[str, Any]] = {
    "workflow": Annotated[AnyWorkflow, Field(discriminator="kind")],
    "agent": AgentFileEntry,
}
"""The types of the files that have a shipped schema, by its name."""


def json_schema_text(
    name: str, kind: Any, shared: Mapping[str, Json] | None = None, shared_schema: Json = None
) -> str:
    """Return the JSON Schema of the pydantic type `kind`, called `name`, as indented JSON.

    Where it has `shared`, `{"$comment": NAME}`, it refers to `shared_schema`, which may do so itself:
    pydantic knows no definitions but its own.
    """
    found = TypeAdapter(kind).json_schema(by_alias=True)
    if shared is not None and f'"{shared["$comment"]}"' in json.dumps(found):
        name_of = str(shared["$comment"])
        found = _refer({**found, "$defs": {**found.get("$defs", {}), name_of: shared_schema}}, shared)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kestrel_lab {name}",
        **_without_titles(found),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def _refer(value: Any, shared: Mapping[str, Json]) -> Any:
    if value == shared:
        return {"$ref": f"#/$defs/{shared['$comment']}"}
    if isinstance(value, list):
        return [_refer(item, shared) for item in value]
    return {key: _refer(item, shared) for key, item in value.items()} if isinstance(value, dict) else value


def _without_titles(value: Any) -> Any:
    """Return a schema without the titles that only repeat the names of keys."""
    if isinstance(value, list):
        return [_without_titles(item) for item in value]
    if isinstance(value, dict):
        return {
            key: _unwrapped(item) if key == "description" and isinstance(item, str) else _without_titles(item)
            for key, item in value.items()
            if key != "title" or not isinstance(item, str)
        }
    return value


def _unwrapped(text: str) -> str:
    """Return a description with one line for each paragraph: where its docstring is wrapped says nothing."""
    return re.sub(r"(?<!\n)\n(?!\n)", " ", text)
