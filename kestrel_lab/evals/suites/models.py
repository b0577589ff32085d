"""The keys of suite files and of scenario files, as pydantic models."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, GetJsonSchemaHandler, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kestrel_lab.checks.parse import checks_schema
from kestrel_lab.core.yaml.validation import Entry
from kestrel_lab.evals.suite import MOST

Positive = Annotated[int, Field(ge=1, le=MOST)]
Name = Annotated[str, Field(min_length=1, max_length=100)]
CheckItem = Annotated[Any, WithJsonSchema(checks_schema())]
"""Read by `parse_check`."""


class _OrText(Entry):
    """A mapping for which a text may stand."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Both forms, for editors."""
        found = handler.resolve_ref_schema(handler(core))
        return {"anyOf": [{"type": "string"}, found]}


class LimitsEntry(Entry):
    """How far a run may go; `null` for no bound."""

    cycles: int | None = None
    cost_usd: float | None = None
    seconds: float | None = None
    tokens: int | None = None
    wall_seconds: float | None = None
    model_seconds: float | None = None
    messages: int | None = None


class WorkspaceEntry(Entry):
    """One of four: files written here, a folder to copy, the source of an installed package, a commit of a
    git repository.
    """

    files: dict[str, str] | None = None
    folder: str | None = None
    package: str | None = None
    repository: str | None = None
    commit: str | None = None


class NoteEntry(Entry):
    """A note that the memory has when a trial begins; only configurations with `learning` have a memory."""

    name: Name
    """Small letters and digits: what checks call it."""
    text: Annotated[str, Field(min_length=1)]
    kind: str = "fact"
    tags: list[str] = Field(default_factory=list)
    taint: str = ""
    age_days: float = 0.0
    ttl_days: float | None = None
    forgotten: bool = False


class DefaultsEntry(Entry):
    """What scenarios have that do not say otherwise; limits are merged one by one, notes come before those of
    a scenario.
    """

    family: str = ""
    workspace: WorkspaceEntry | None = None
    tools: list[str] | None = None
    limits: LimitsEntry = LimitsEntry()
    approve: str = ""
    tags: list[str] = Field(default_factory=list)
    notes: list[NoteEntry] = Field(default_factory=list)
    output: dict[str, Any] | str | None = None
    """What the answer has to be: a JSON Schema, or `module:Type` of a module that is imported."""


class ScenarioEntry(DefaultsEntry):
    """A task with checks."""

    id: Name
    goal: Annotated[str, Field(min_length=1)]
    before: list[Annotated[str, Field(min_length=1)]] = Field(default_factory=list)
    expected: Any = None
    checks: Annotated[list[CheckItem], Field(min_length=1)]
    weight: Annotated[float, Field(gt=0)] = 1.0


class SourceEntry(DefaultsEntry, _OrText):
    """Where more scenarios come from. A text alone is a file of scenarios.

    Of a table (CSV, TSV, JSON, JSONL, Parquet) each row becomes a scenario: all else here is its template, in
    which `{{column}}` stands for what the row has in that column.
    """

    file: Name
    id: str = ""
    """By default the file's name and the number of the row; also in templates: `{{row_number}}`."""
    goal: str = ""
    expected: Any = None
    checks: list[CheckItem] = Field(default_factory=list)
    weight: float | str = 1.0
    limit: Positive | None = None
    sample: Positive | None = None
    seed: int = 0

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"file": value} if isinstance(value, str) else value


class CassetteEntry(_OrText):
    """Recordings of model calls. A text alone is the mode."""

    mode: Literal["off", "record", "replay", "refresh"] = "off"
    folder: str = ""
    volatile: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value


class ScenarioFileEntry(Entry):
    """A file of scenarios that suites take in by `scenarios_from`."""

    defaults: DefaultsEntry = DefaultsEntry()
    scenarios: Annotated[list[ScenarioEntry], Field(min_length=1)]


class GuidanceEntry(_OrText):
    """Guidance files of the workspaces, at a commit of the suite's repository or as they are now.

    The text `none` stands for no files.
    """

    ref: str = ""
    """The commit, branch or tag that has the files; empty for the files as they are in the checkout."""
    files: list[Name] | dict[Name, Name] = Field(default_factory=list)
    """Paths from the top of the repository, the same in the workspace; or paths in the workspace with where
    each file is in the repository.
    """
    text: dict[Name, str] = Field(default_factory=dict)
    """Further files, written here: text by path in the workspace."""

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {} if value == "none" else value


class ConfigEntry(_OrText):
    """One way to run the scenarios. A text alone is the name of a model."""

    name: Name
    runner: str = ""
    model: str = ""
    temperature: Annotated[float, Field(ge=0)] | None = None
    seed: int | None = None
    params: dict[str, Any] = Field(default_factory=dict)
    concurrency: Positive | None = None
    limits: LimitsEntry = LimitsEntry()
    plan: str = ""
    inputs: dict[str, Any] = Field(default_factory=dict)
    routes: dict[str, Any] = Field(default_factory=dict)
    tools: list[str] | None = None
    verify: Literal["", "off", "warn", "repair", "judge", "quality"] = ""
    form: Literal["", "none", "auto", "brief", "plan", "patch", "explanation", "research"] = ""
    learning: bool = False
    guidance: GuidanceEntry | None = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"name": value, "model": value} if isinstance(value, str) else value


class BoundEntry(Entry):
    """The bound of a gate, and what it is for; all configurations, each on its own, and all families by
    default.
    """

    at_least: float | None = None
    at_most: float | None = None
    config: str = ""
    family: str = ""


class SuiteEntry(Entry):
    """A whole suite file."""

    name: str = ""
    epochs: Positive = 1
    concurrency: Positive = 4
    count_errors: Literal["fail", "exclude"] = "fail"
    retry_errors: Annotated[int, Field(ge=0, le=MOST)] = 0
    instructions: str = ""
    instructions_from: str = ""
    tools_from: list[str] = Field(default_factory=list)
    grader: str = ""
    defaults: DefaultsEntry = DefaultsEntry()
    configs: Annotated[list[ConfigEntry], Field(min_length=1)] = Field(default_factory=list)
    matrix: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    gates: list[dict[str, BoundEntry]] = Field(default_factory=list)
    scenarios: list[ScenarioEntry] = Field(default_factory=list)
    scenarios_from: list[SourceEntry] = Field(default_factory=list)
    cassette: CassetteEntry = CassetteEntry()
