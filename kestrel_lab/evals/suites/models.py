"""What suite files and scenario files have beside the suites, scenarios and configurations of Python code."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, GetJsonSchemaHandler, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kestrel_lab.core.yaml.validation import Entry, WrittenAs
from kestrel_lab.evals.suite import Config, Defaults, Scenario, Suite
from kestrel_lab.evals.suite_forms import CheckForm, Many, Name, Positive, as_tuple, some, text_or_mapping


class Source(Defaults):
    """Where more scenarios come from. A text alone is a file of scenarios.

    Of a table (CSV, TSV, JSON, JSONL, Parquet) each row becomes a scenario: all else here is its template, in
    which `{{column}}` stands for what the row has in that column.
    """

    file: Name
    limit: Positive | None = None
    sample: Positive | None = None
    seed: int = 0

    # What follows is read as part of a scenario once the columns of a row are filled in.
    id: str = ""
    """By default the file's name and the number of the row; also in templates: `{{row_number}}`."""
    goal: str = ""
    expected: Any = None
    checks: list[CheckForm] = Field(default_factory=list)
    weight: float | str = 1.0
    at_least: Any = None
    choices: Any = None
    metadata: Any = None
    turns: Any = ()
    user: Any = None
    before: Any = ()
    place: Any = Field(default=None, validation_alias="workspace")
    tags: Any = ()
    notes: Any = ()
    output: Any = None

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: object) -> object:
        return {"file": value} if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return text_or_mapping(core, handler)


class ScenarioFile(Entry):
    """A file of scenarios that suites take in by `scenarios_from`."""

    defaults: Defaults = Field(default_factory=Defaults)
    scenarios: Annotated[list[Scenario], Field(min_length=1)]


class SuiteFile(Suite):
    """A whole suite file: the suite that it makes has the scenarios and configurations of all its parts."""

    name: str = ""
    scenarios: Many[Scenario] = ()
    configs: Annotated[tuple[Config, ...], WrittenAs(some(Config), as_tuple)] = ()
    defaults: Defaults = Field(default_factory=Defaults)
    matrix: dict[str, list[Any] | dict[str, Any]] = Field(default_factory=dict)
    scenarios_from: Many[Source] = ()

    def model_post_init(self, _context: Any) -> None:
        """Check nothing yet: it is not the whole suite."""
