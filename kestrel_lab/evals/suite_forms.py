"""How suite files write what Python code holds as another type: checks, gates, limits, guidance."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, cast, get_type_hints

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    Strict,
    ValidationError,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from kestrel_lab.checks.parse import CHECK_SCHEMA, parse_check
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Check
from kestrel_lab.core.run_types import Limits
from kestrel_lab.core.yaml.validation import Entry, WrittenAs
from kestrel_lab.evals.gate_bounds import Gate
from kestrel_lab.evals.guidance import Guidance, read_guidance

MOST: Final = 1_000_000_000
"""The largest number of anything in a suite file."""

_T = TypeVar("_T")
Many = Annotated[tuple[_T, ...], Strict(False)]
"""A tuple, for which a list may be given; its items are as strict as ever."""
Texts = Many[str]


def some(item: Any) -> Any:
    """Return the type of a list that is not empty.

    Not of a tuple: pydantic calls one too short where an item has a mistake.
    """
    return Annotated[list[item], Field(min_length=1)]


def as_tuple(written: list[_T], _: object) -> tuple[_T, ...]:
    """Return what is written as a list as Python code holds it."""
    return tuple(written)


Positive = Annotated[int, Field(ge=1, le=MOST)]
Filled = Annotated[str, Field(min_length=1)]
Name = Annotated[str, Field(min_length=1, max_length=100)]


def _check(written: Any, context: Mapping[str, Any]) -> Check:
    return parse_check(written, loosely=context.get("loosely", False))


CheckForm = Annotated[Any, WithJsonSchema(CHECK_SCHEMA)]
CheckItem = Annotated[Check, WrittenAs(CheckForm, _check)]


class BoundForm(Entry):
    """The bound of a gate, and what it is for; all configurations, each on its own, and all families by
    default.
    """

    at_least: float | None = None
    at_most: float | None = None
    config: str = ""
    family: str = ""
    undecided: Literal["fail", "pass"] = "fail"


def _gate(written: dict[str, BoundForm], _: object) -> Gate:
    if len(written) != 1:
        raise UsageError(f"a gate is one metric with its bound, not {' and '.join(written) or 'nothing'}")
    ((metric, bound),) = written.items()
    return Gate(metric=metric, **bound.model_dump())


GateItem = Annotated[Gate, WrittenAs(dict[str, BoundForm], _gate)]

# These limits are for the machine and the model, not for a task.
LimitsForm: Any = create_model(
    "LimitsForm",
    __base__=Entry,
    __doc__="How far a run may go; `null` for no bound.",
    **cast(
        "Any",
        {
            name: (kind | None, None)
            for name, kind in get_type_hints(Limits).items()
            if name in Limits.__dataclass_fields__
            and name not in ("calls_per_turn", "steps_at_once", "context_tokens")
        },
    ),
)


def limits_of(form: Entry, _: object) -> dict[str, int | float | None]:
    """Return the limits that are written."""
    return form.model_dump(exclude_unset=True)


def text_or_mapping(core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
    """Return the JSON Schema of a mapping for which a text may stand: both forms, for editors."""
    return {"anyOf": [{"type": "string"}, handler.resolve_ref_schema(handler(core))]}


class GuidanceForm(Entry):
    """Guidance files of the workspaces, at a commit of the suite's repository or as they are now.

    The text `none` means no files.
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

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return text_or_mapping(core, handler)


def guidance_of(form: GuidanceForm | None, context: Mapping[str, Any]) -> Guidance | None:
    """Return the guidance; its files are read below the context's `top`."""
    if form is None:
        return None
    files = form.files if isinstance(form.files, dict) else {name: name for name in form.files}
    return read_guidance(context.get("top", Path.cwd()), files, form.ref, form.text)


def mistake_at(key: str, given: Json, error: UsageError) -> ValidationError:
    """Return the error that reports a `UsageError` with one key, for a validator of the whole mapping."""
    return ValidationError.from_exception_data(
        "mistake", [{"type": "value_error", "loc": (key,), "input": given, "ctx": {"error": error}}]
    )
