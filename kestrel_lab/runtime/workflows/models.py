"""What workflow and agent files may hold, as models: each key with its type.

Their JSON Schemas are for editors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, GetJsonSchemaHandler, TypeAdapter, WithJsonSchema, model_validator
from pydantic_core import CoreSchema

from kestrel_lab.core.plan_shapes import MAX_COUNCIL_ROUNDS, MAX_ROUNDS, MAX_VISITS
from kestrel_lab.core.yaml.validation import Entry

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,59}$")]
"""What conditions and `{{name}}` can refer to."""
Names = Annotated[list[str], Field(default_factory=list)]


class _TextToo(Entry):
    """A mapping that may be written as one text, the value of one of its keys."""

    TEXT: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {cls.TEXT: value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        mapping = handler.resolve_ref_schema(handler(core))
        about = mapping.pop("description", "")
        return {"anyOf": [{"type": "string"}, mapping], "description": about}


class InputEntry(_TextToo):
    """A value that is given when the workflow starts. A text alone is its description."""

    TEXT: ClassVar[str] = "description"

    description: str = ""
    type: Literal["string", "number", "integer", "boolean", "array", "object"] = "string"
    default: Any = Field(
        default=None, description="What it is when it is not given; without a default it must be given."
    )
    minimum: float | None = Field(default=None, description="The least that a number may be.")


class AgentSettings(Entry):
    """How an agent works."""

    model: str = Field(default="", description="The run's by default.")
    instructions: str = Field(default="", description="Added to the system message.")
    tools: list[str] | None = Field(
        default=None, description="Names of the tools it is offered; all of the run by default."
    )
    turns: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Most model turns for one goal."
    )
    react: bool = Field(default=False, description="Thought, action and observation as text, for any model.")
    temperature: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="How much chance there is; the model's own by default."
    )
    params: dict[str, Any] = Field(
        default_factory=dict,
        description="Further parameters of the model, such as reasoning_effort and top_p.",
    )
    answer: dict[str, Any] | None = Field(
        default=None, alias="schema", description="JSON Schema of the answer, which is then a value."
    )
    team: Names = Field(
        default_factory=list,
        description="Agents to which it may delegate: of this workflow, files beside it, or shipped.",
    )


class AgentFileEntry(AgentSettings):
    """An agent for any workflow."""

    kind: Literal["agent"]
    name: str = ""
    description: str = ""


class AgentEntry(_TextToo, AgentSettings):
    """An agent, by reference or written here. A text alone is a reference."""

    TEXT: ClassVar[str] = "use"

    use: str = Field(
        default="",
        description="An agent of this workflow, an agent file beside it, or a shipped agent; other keys "
        "replace its own.",
    )
    description: str = ""


class WorkEntry(AgentSettings):
    """A piece of work: a goal for an agent, one call of a tool, or an operation of the engine."""

    id: Annotated[str, Field(min_length=1)]
    agent: AgentEntry | None = None
    goal: str = Field(
        default="",
        description="For an agent; {{goal}} and {{input}} are put in. With an agent, {{goal}} by default.",
    )
    tool: str = Field(default="", description="Tool to call with args.")
    operation: str = Field(default="", description="Operation of the engine to carry out with args.")
    workflow: Annotated[
        str | dict[str, Any] | None, WithJsonSchema({"anyOf": [{"type": "string"}, {"$dynamicRef": "#"}]})
    ] = Field(
        default=None,
        description="A workflow to carry out: one written here, a file beside this one, or a shipped one; "
        "goal "
        "and args are its goal and inputs.",
    )
    args: dict[str, Any] = Field(default_factory=dict, description="{{name}} stands for an artifact.")
    produces: Names
    consumes: Names
    parallelizable: bool = True
    needs_approval: bool = False
    stage: str = ""
    when: str = Field(default="", description="Condition; if it does not hold the work is skipped.")


class StepEntry(WorkEntry):
    """A step of a plan, as in `Step`."""

    depends_on: Names
    after_failure: bool = False
    repairs: int = Field(
        default=0,
        ge=0,
        description="How often an agent puts it right at most where it fails; of a step with a stage.",
    )


class NodeEntry(WorkEntry):
    """Work that has its place in a shape. It makes an artifact of its own name unless it says otherwise."""

    id: Name
    after_failure: bool = False


class WorkflowEntry(Entry):
    """What workflows of every kind have."""

    name: str = ""
    description: str = ""
    inputs: dict[Name, InputEntry] = Field(default_factory=dict)
    acceptance_criteria: Names
    agents: dict[Name, AgentEntry] = Field(default_factory=dict)
    output: dict[str, Any] | str | None = Field(
        default=None, description="JSON Schema of the answer, or `module:Type` of a module that is imported."
    )


class PlanEntry(WorkflowEntry):
    """A plan, step by step."""

    kind: Literal["plan"]
    steps: Annotated[list[StepEntry], Field(min_length=1)]


class SequentialEntry(WorkflowEntry):
    """One step after another; each is given what the one before left."""

    kind: Literal["sequential"]
    steps: Annotated[list[NodeEntry], Field(min_length=1)]


class ParallelEntry(WorkflowEntry):
    """Branches at once; then, if there is one, `join` is given what all of them made."""

    kind: Literal["parallel"]
    branches: Annotated[list[NodeEntry], Field(min_length=1)]
    join: NodeEntry | None = None


class LoopEntry(WorkflowEntry):
    """Steps one after another, again and again until a condition holds."""

    kind: Literal["loop"]
    steps: Annotated[list[NodeEntry], Field(min_length=1)]
    until: Annotated[str, Field(min_length=1, description="Condition on artifacts, asked after each round.")]
    limit: Annotated[int, Field(ge=1, le=MAX_ROUNDS, description="Most rounds.")]
    at_limit: Literal["fail", "continue"] = Field(
        default="fail", description="Whether the run fails if it does not hold after the last round."
    )
    state: dict[Name, Any] = Field(
        default_factory=dict, description="Artifacts before the first round, and their values."
    )
    result: str = Field(
        default="", description="The artifact that is the answer; what the last step makes by default."
    )


class EdgeEntry(Entry):
    """A way from a node to another."""

    source: str = Field(alias="from")
    target: str = Field(alias="to")
    when: str = Field(
        default="", description="Condition on artifacts, asked when the node it comes from is done."
    )


class GraphEntry(WorkflowEntry):
    """Nodes and edges with conditions. A node runs if an edge leads to it from one that ran."""

    kind: Literal["graph"]
    nodes: Annotated[list[NodeEntry], Field(min_length=1)]
    edges: list[EdgeEntry] = Field(default_factory=list)
    start: Names
    state: dict[Name, Any] = Field(
        default_factory=dict, description="Artifacts before the first node, and their values."
    )
    limit: (
        Annotated[
            int,
            Field(
                ge=1, le=MAX_VISITS, description="Most visits of all nodes together, where edges lead back."
            ),
        ]
        | None
    ) = None
    at_limit: Literal["fail", "continue"] = "fail"
    result: str = Field(default="", description="The artifact that is the answer, where edges lead back.")


class SupervisorEntry(WorkflowEntry):
    """An agent that delegates to others and answers from what they found."""

    kind: Literal["supervisor"]
    supervisor: NodeEntry
    workers: Annotated[
        list[str], Field(min_length=1, description="Agents of this workflow, files beside it, or shipped.")
    ]


class RouteEntry(NodeEntry):
    """A route, and what it is for."""

    purpose: Annotated[str, Field(min_length=1, description="Told to the router.")]


class RouterEntry(WorkflowEntry):
    """An agent chooses one of the routes, which alone is carried out."""

    kind: Literal["router"]
    router: NodeEntry
    routes: Annotated[list[RouteEntry], Field(min_length=2)]
    below: Annotated[
        float, Field(ge=0, le=1, description="Confidence of the router below which `otherwise` is taken.")
    ] = 0.0
    otherwise: str = Field(default="", description="The route for what the router is not sure of.")


class EnsembleEntry(WorkflowEntry):
    """Members at once; the synthesiser is given what they made, as long as one of them made something."""

    kind: Literal["ensemble"]
    members: Annotated[list[NodeEntry], Field(min_length=2)]
    synthesiser: NodeEntry


class CouncilEntry(WorkflowEntry):
    """Members take positions with evidence in rounds, and vote; the chair decides and says why."""

    kind: Literal["council"]
    members: Annotated[list[NodeEntry], Field(min_length=2)]
    chair: NodeEntry
    rounds: Annotated[int, Field(ge=1, le=MAX_COUNCIL_ROUNDS, description="Rounds before the vote.")] = 2
    majority: Annotated[
        float,
        Field(ge=0, lt=1, description="A vote is split where no position has a larger share of the votes."),
    ] = 0.5


class EscalationEntry(WorkflowEntry):
    """Each tier takes over where the one before fails, its council is split, or it is not sure enough."""

    kind: Literal["escalation"]
    tiers: Annotated[list[NodeEntry], Field(min_length=2)]
    below: Annotated[
        float, Field(ge=0, le=1, description="Confidence below which the next tier takes over.")
    ] = 0.0


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


def json_schema_text(name: str, kind: Any) -> str:
    """Return the JSON Schema of the pydantic type `kind`, called `name`, as indented JSON."""
    found = TypeAdapter(kind).json_schema(by_alias=True)
    whole = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"kestrel_lab {name}",
        **_without_titles(found),
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


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
