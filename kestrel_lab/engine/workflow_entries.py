"""What workflow files may hold, as models: each key with its type; their JSON Schema is for editors."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from kestrel_lab.core.entries import Entry

Name = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,59}$")]
"""What conditions and `{{name}}` can refer to."""
Names = Annotated[list[str], Field(default_factory=list)]


class InputEntry(Entry):
    """A value that whoever starts the workflow gives. A text alone is its description."""

    description: str = ""
    type: Literal["string", "number", "integer", "boolean", "array", "object"] = "string"
    default: Any = None
    """What it is when it is not given; one without a default must be given."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"description": value} if isinstance(value, str) else value


class WorkflowEntry(Entry):
    """What workflows of every kind have."""

    name: str = ""
    description: str = ""
    inputs: dict[Name, InputEntry] = Field(default_factory=dict)
    acceptance_criteria: Names


class StepEntry(Entry):
    """A step of a plan, as in `Step`."""

    id: Annotated[str, Field(min_length=1)]
    goal: str = ""
    tool: str = ""
    operation: str = ""
    args: dict[str, Any] = Field(default_factory=dict)
    depends_on: Names
    produces: Names
    consumes: Names
    parallelizable: bool = True
    needs_approval: bool = False
    stage: str = ""
    when: str = ""
    after_failure: bool = False
    model: str = ""
    instructions: str = ""
    tools: list[str] | None = None
    turns: Annotated[int, Field(ge=1)] | None = None
    react: bool = False
    temperature: Annotated[float, Field(ge=0)] | None = None
    answer: dict[str, Any] | None = Field(default=None, alias="schema")


class PlanEntry(WorkflowEntry):
    """A plan, step by step."""

    kind: Literal["plan"]
    steps: Annotated[list[StepEntry], Field(min_length=1)]
