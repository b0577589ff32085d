"""Tool arguments: a JSON schema for the model, and a validator whose errors a model can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, NotRequired, Protocol, cast

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:  # pydantic is loaded at the first use of a tool, not at import
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

REQUIRED = object()
"""Stands for the default of a parameter that has none."""


class ToolArgumentsError(ValueError):
    """A model called a tool with arguments that do not fit; the message tells it which, and what would."""


class Arguments(Protocol):
    """How the arguments of one tool are described, checked and turned into Python values."""

    @property
    def schema(self) -> dict[str, Json]:
        """JSON Schema, an object schema."""

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments as JSON, converted and completed with defaults; raises `ToolArgumentsError`."""

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a new dict of the Python values to call the function with, from arguments that `validate` returned."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One argument of a function."""

    annotation: Any
    default: object = REQUIRED
    description: str = ""


@dataclass(frozen=True, kw_only=True)
class TypedArguments:
    """Arguments described by Python types.

    The validator is built at first use; raises `UsageError` then, when a type has no JSON form.
    """

    tool: str
    parameters: Mapping[str, Parameter]

    @cached_property
    def schema(self) -> dict[str, Json]:
        """JSON Schema without the titles that pydantic adds: they cost tokens and say nothing."""
        try:
            schema = self._adapter.json_schema()
        except Exception as error:
            raise self._unsuitable(error) from error
        return cast("dict[str, Json]", _without_titles(schema))

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Numbers in text become numbers, defaults are filled in; raises `ToolArgumentsError` listing each wrong key."""
        adapter = self._adapter
        try:
            values: dict[str, Json] = adapter.serializer.to_python(adapter.validator.validate_python(args), mode="json", warnings=False)
        except ValueError as error:
            from pydantic_core import ValidationError  # loaded on use

            if not isinstance(error, ValidationError):
                raise
            raise ToolArgumentsError(self._explain(error.errors(include_url=False))) from None
        return values

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Nested models, dataclasses, paths, … in place of their JSON form."""
        values: dict[str, Any] = self._adapter.validator.validate_python(args)
        return values

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        from pydantic import ConfigDict, Field, TypeAdapter  # loaded on use
        from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

        fields: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            about = parameter.description or None
            if parameter.default is REQUIRED:
                fields[name] = Annotated[parameter.annotation, Field(description=about)]
                continue
            annotation = parameter.annotation | None if parameter.default is None else parameter.annotation
            fields[name] = NotRequired[Annotated[annotation, Field(default=parameter.default, description=about)]]
        make_shape = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)  # the functional form, with names known only now
        shape = make_shape(self.tool, fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
        try:
            return cast("TypeAdapter[dict[str, Any]]", TypeAdapter(shape))
        except Exception as error:
            raise self._unsuitable(error) from error

    def _unsuitable(self, error: Exception) -> UsageError:
        return UsageError(
            f"tool {self.tool!r} has a parameter whose type has no JSON form ({one_line(str(error), 200)}); "
            "use str, int, float, bool, list, dict, Literal, a dataclass or a pydantic model"
        )

    def _explain(self, errors: Iterable[ErrorDetails]) -> str:
        lines = [f"{self.tool} was not run, its arguments are wrong:"]
        for error in errors:
            where = ".".join(str(part) for part in error["loc"]) or "arguments"
            lines.append(f"- {where}: {self._complaint(error)}")
        return "\n".join(lines)

    def _complaint(self, error: ErrorDetails) -> str:
        top_level = len(error["loc"]) == 1
        if error["type"] == "missing":
            about = self.parameters[str(error["loc"][0])].description if top_level else ""
            return f"required but missing ({one_line(about, 120)})" if about else "required but missing"
        if error["type"] == "extra_forbidden":
            return f"unknown argument; {did_you_mean(str(error['loc'][0]), self.parameters)}" if top_level else "unknown key"
        message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        return f"{message}, not {one_line(repr(error['input']), 60)}"


@dataclass(frozen=True, kw_only=True)
class SchemaArguments:
    """Arguments described only by a JSON Schema that another program enforces, such as a tool server.

    Only the presence and the spelling of top-level keys are checked here.
    """

    tool: str
    schema: dict[str, Json]

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """The arguments as they are; raises `ToolArgumentsError` for a missing key, or an unknown one where the schema forbids it."""
        known = cast("dict[str, Json]", self.schema.get("properties") or {})
        required = cast("list[str]", self.schema.get("required") or [])
        lines = [f"- {name}: required but missing" for name in required if name not in args]
        if self.schema.get("additionalProperties") is False:
            lines += [f"- {name}: unknown argument; {did_you_mean(name, known)}" for name in args if name not in known]
        if lines:
            raise ToolArgumentsError("\n".join([f"{self.tool} was not run, its arguments are wrong:", *lines]))
        return args

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a copy."""
        return dict(args)


def _without_titles(schema: object) -> object:
    """`schema` without `title` annotations; a property that is called `title` stays."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, object] = {}
    for key, value in schema.items():
        if key in {"properties", "$defs"} and isinstance(value, dict):
            kept[key] = {name: _without_titles(item) for name, item in value.items()}
        elif key in {"default", "enum", "const", "examples"}:
            kept[key] = value
        elif not (key == "title" and isinstance(value, str)):
            kept[key] = _without_titles(value)
    return kept
