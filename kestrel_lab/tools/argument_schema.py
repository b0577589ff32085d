"""Tool arguments: a JSON schema for the model, and a validator whose errors a model can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Final, NoReturn, NotRequired, Protocol, cast

from kestrel_lab.core.errors import UsageError, did_you_mean, error_text, stops_task
from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.tools.plain_types import is_plain, parameters_of

# Pydantic is loaded at the first use of a tool, not at import.
if TYPE_CHECKING:
    from pydantic import TypeAdapter
    from pydantic_core import ErrorDetails

REQUIRED = object()
"""Marks a parameter without a default."""


class ToolArgumentsError(ValueError):
    """A model called a tool with invalid arguments; the message says which, and what would be valid."""


class Arguments(Protocol):
    """Describes, validates and converts the arguments of one tool."""

    @property
    def schema(self) -> dict[str, Json]:
        """JSON Schema, an object schema."""

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments as JSON, completed with defaults; raises `ToolArgumentsError`.

        What it returns, and what a log has of it, can be validated again and means the same.
        """

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a new dict of Python values for the function, from arguments returned by `validate`."""


_SURELY_JSON: Final = frozenset({str, int})
"""Types whose values need no check."""


class ValidatedArguments(dict[str, Json]):
    """JSON of a call with the values made from it, so that they are made once."""

    __slots__ = ("_text", "_values")

    def __init__(self, args: dict[str, Json], values: dict[str, Any]) -> None:
        super().__init__(args)
        self._text, self._values = dumps(args), cast("dict[str, Any] | None", values)

    def take(self) -> dict[str, Any] | None:
        """Return the values for their one call; `None` afterwards, or if the JSON was changed."""
        values, self._values = self._values, None
        return values if dumps(self) == self._text else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Parameter:
    """One argument of a function."""

    annotation: Any
    default: object = REQUIRED
    description: str = ""

    @property
    def type(self) -> Any:
        """Accepted type: the annotation, plus `None` if that is the default."""
        return self.annotation | None if self.default is None else self.annotation


@dataclass(frozen=True, kw_only=True)
class TypedArguments:
    """Arguments described by Python types.

    The validator is built at first use; raises `UsageError` then, when a type has no JSON form.
    """

    tool: str
    parameters: Mapping[str, Parameter]

    @cached_property
    def schema(self) -> dict[str, Json]:
        """JSON Schema without pydantic's titles, which cost tokens and say nothing."""
        try:
            schema = self._adapter.json_schema()
        except UsageError:
            # From the adapter, which says it.
            raise
        except Exception as error:
            raise self._unsuitable(error) from error
        return cast("dict[str, Json]", _without_titles(schema))

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Numbers in text become numbers, defaults are filled in; raises `ToolArgumentsError` listing each
        wrong key.

        An argument of a type that is not plain (see `plain_types`) stays as the model wrote it, and so does a
        number that is not finite: their Python values need not have a JSON form that could be read again.
        """
        serialize = self._adapter.serializer.to_python
        try:
            values = self._adapter.validator.validate_python(args)
        except BaseException as error:  # whatever a validator of the user raises  # noqa: BLE001
            self._refuse(error)
        if self._all_plain:
            shown: dict[str, Json] = serialize(values, mode="json", warnings=False)
            if _SURELY_JSON.issuperset(map(type, shown.values())) or all(map(_is_json, shown.values())):
                return shown
        plain = {name: value for name, value in values.items() if name in self._plain}
        forms = {
            name: form
            for name, form in serialize(plain, mode="json", warnings=False).items()
            if _is_json(form)
        }
        defaults = {key: form for key, form in self._defaults.items() if key not in args}
        return ValidatedArguments({**args, **forms, **defaults}, values)

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Nested models, dataclasses, paths, … in place of their JSON form."""
        values = args.take() if isinstance(args, ValidatedArguments) else None
        if values is not None:
            return values
        try:
            made: dict[str, Any] = self._adapter.validator.validate_python(args)
        except BaseException as error:  # whatever a validator of the user raises  # noqa: BLE001
            self._refuse(error)
        return made

    def _refuse(self, error: BaseException) -> NoReturn:
        """Raise what the arguments are refused with because their validation raised `error`."""
        from pydantic_core import ValidationError  # loaded on use

        if stops_task(error):
            raise error
        if isinstance(error, UsageError):
            raise error
        if isinstance(error, ValidationError):
            raise ToolArgumentsError(self._explain(error.errors(include_url=False))) from None
        raise ToolArgumentsError(
            f"{self.tool} was not run, its arguments could not be checked: {error_text(error)}"
        ) from error

    @cached_property
    def _plain(self) -> frozenset[str]:
        """Parameters whose JSON form, and that of the default, can be read back."""
        fields, shared = parameters_of(self._adapter.core_schema)
        return frozenset(
            name
            for name, one in self.parameters.items()
            if (one.default is REQUIRED or name in self._readable) and is_plain(fields[name], shared)
        )

    @cached_property
    def _all_plain(self) -> bool:
        return len(self._plain) == len(self.parameters)

    @cached_property
    def _defaults(self) -> dict[str, Json]:
        """JSON form of readable defaults of other parameters, by the key a model uses."""
        fields, _ = parameters_of(self._adapter.core_schema)
        keys = {
            name: fields[name].get("validation_alias", name)
            for name in self._readable
            if name not in self._plain
        }
        return {key: self._readable[name] for name, key in keys.items() if isinstance(key, str)}

    @cached_property
    def _readable(self) -> dict[str, Json]:
        """The JSON form of each default that is the same value when it is read from that form."""
        from pydantic import TypeAdapter  # loaded on use
        from pydantic_core import to_jsonable_python

        fields, _ = parameters_of(self._adapter.core_schema)
        found: dict[str, Json] = {}
        for name, parameter in self.parameters.items():
            default = parameter.default
            if default is REQUIRED:
                continue
            # The usual case first: building a validator takes a hundred times as long.
            if default is None or (
                fields[name]["schema"].get("schema") == {"type": type(default).__name__} and _is_json(default)
            ):
                found[name] = cast("Json", default)
                continue
            # The user's types: whatever they raise, there is no form to show.
            with suppress(Exception):
                form = to_jsonable_python(default)
                if _is_json(form) and TypeAdapter(parameter.type).validate_python(form) == default:
                    found[name] = form
        return found

    @cached_property
    def _adapter(self) -> TypeAdapter[dict[str, Any]]:
        from pydantic import ConfigDict, Field, TypeAdapter  # loaded on use

        # Pydantic needs this one before Python 3.12.
        from typing_extensions import TypedDict

        fields: dict[str, Any] = {}
        for name, parameter in self.parameters.items():
            about = parameter.description or None
            if parameter.default is REQUIRED:
                fields[name] = Annotated[parameter.annotation, Field(description=about)]
                continue
            fields[name] = NotRequired[
                Annotated[parameter.type, Field(default=parameter.default, description=about)]
            ]
        # The functional form, with names known only now.
        shape = cast("Callable[[str, dict[str, Any]], Any]", TypedDict)(self.tool, fields)
        shape.__pydantic_config__ = ConfigDict(extra="forbid", coerce_numbers_to_str=True)
        try:
            return cast("TypeAdapter[dict[str, Any]]", TypeAdapter(shape))
        except Exception as error:
            raise self._unsuitable(error) from error

    def _unsuitable(self, error: Exception) -> UsageError:
        # Pydantic's later lines only point at its own pages.
        why = one_line(str(error).partition("\n")[0].rstrip("."), 200)
        return UsageError(
            f"tool {self.tool!r} has a parameter whose type has no JSON form ({why}); "
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
            parameter = self.parameters.get(str(error["loc"][0])) if top_level else None
            about = parameter.description if parameter is not None else ""
            return f"required but missing ({one_line(about, 120)})" if about else "required but missing"
        if error["type"] == "extra_forbidden":
            return (
                f"unknown argument; {did_you_mean(str(error['loc'][0]), self.parameters)}"
                if top_level
                else "unknown key"
            )
        message = error["msg"].removeprefix("Input ").removeprefix("Value error, ")
        return f"{message}, not {one_line(repr(error['input']), 60)}"


def properties_of(schema: Mapping[str, Json]) -> dict[str, Mapping[str, Json]]:
    """Return a schema's properties; skips those that are just `true`."""
    found = schema.get("properties")
    return (
        {name: one if isinstance(one, dict) else {} for name, one in found.items()}
        if isinstance(found, dict)
        else {}
    )


@dataclass(frozen=True, kw_only=True)
class SchemaArguments:
    """Arguments described only by a JSON Schema that another program enforces, such as a tool server.

    Only the presence and the spelling of top-level keys are checked here. Of a schema that is not as it
    should be, what can be read counts: the other program has the last word.
    """

    tool: str
    schema: dict[str, Json]

    def validate(self, args: dict[str, Json]) -> dict[str, Json]:
        """Return the arguments unchanged; raises `ToolArgumentsError` for missing and forbidden keys."""
        known, required = properties_of(self.schema), self.schema.get("required")
        names = [name for name in required if isinstance(name, str)] if isinstance(required, list) else []
        lines = [f"- {name}: required but missing" for name in names if name not in args]
        if self.schema.get("additionalProperties") is False:
            lines += [
                f"- {name}: unknown argument; {did_you_mean(name, known)}"
                for name in args
                if name not in known
            ]
        if lines:
            raise ToolArgumentsError(
                "\n".join([f"{self.tool} was not run, its arguments are wrong:", *lines])
            )
        return args

    def bind(self, args: dict[str, Json]) -> dict[str, Any]:
        """Return a copy."""
        return dict(args)


def _is_json(value: object) -> bool:
    try:
        dumps(value)
    except (TypeError, ValueError):
        return False
    return True


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
