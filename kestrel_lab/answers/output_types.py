"""Output types: the required type or JSON Schema of a run's answer, and the parsed value.

Pydantic makes the schema of a type and validates against it; it is imported only if a type is given.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, Generic, cast

from typing_extensions import TypeVar

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json, dumps, readable

if TYPE_CHECKING:
    from typing import _SpecialForm

    from pydantic import TypeAdapter

    OutputForm = UnionType | _SpecialForm | Mapping[str, Any] | str
    """Accepted besides a type: `A | B`, `Literal[...]`, a JSON Schema, or the name `module:Type` of an
    imported type.
    """

T = TypeVar("T", default=Any)
"""Type of a run's value; `Any` if none was given."""
MAX_MISTAKES: Final = 5
"""Mistakes of one answer that are reported to the model."""


class OutputType(Generic[T]):
    """Required form of an answer."""

    def __init__(self, schema: dict[str, Json], adapter: TypeAdapter[T] | None = None) -> None:
        self.schema = schema
        """JSON Schema that the answer has to fit."""
        self._adapter = adapter

    @classmethod
    def of(cls, form: Any) -> OutputType[Any] | None:
        """Return `form` as an output type, `None` for `None`; raises `UsageError` for anything else."""
        if form is None or isinstance(form, OutputType):
            return form
        if isinstance(form, Mapping):
            return cls(_valid_schema({str(key): value for key, value in form.items()}))
        kind = _imported_type(form) if isinstance(form, str) else form
        from pydantic import TypeAdapter
        from pydantic.errors import PydanticUserError

        try:
            adapter: TypeAdapter[Any] = TypeAdapter(kind)
            return cls(adapter.json_schema(), adapter)
        except (PydanticUserError, TypeError, NameError) as error:
            raise UsageError(
                f"output={form!r} is not a type that an answer can have: {str(error).splitlines()[0]}"
            ) from error

    def value(self, found: Json) -> T:
        """Return JSON as a value of the type; raises `UsageError` that names what does not fit."""
        if self._adapter is None:
            return cast("T", found)
        from pydantic import ValidationError

        try:
            return self._adapter.validate_json(dumps(found))
        except ValidationError as error:
            mistakes = [
                f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ")
                for one in error.errors(include_url=False)
            ]
            raise UsageError("; ".join(mistakes[:MAX_MISTAKES])) from error

    @property
    def instructions(self) -> str:
        """Instructions for the model on the form of its answer."""
        return (
            "Form of the answer: one JSON value and nothing else, which fits this JSON "
            f"Schema:\n{readable(self.schema)}"
        )


def _valid_schema(schema: dict[str, Any]) -> dict[str, Json]:
    # A third of a second: not at import.
    import jsonschema

    try:
        jsonschema.Draft202012Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise UsageError(f"output is not a JSON Schema: {error.message}") from error
    return schema


def _imported_type(name: str) -> Any:
    """Return the type from an already imported module: importing one by name would run its code."""
    where, _, attribute = name.rpartition(":" if ":" in name else ".")
    module = sys.modules.get(where or "builtins")
    if module is None or not hasattr(module, attribute):
        why = (
            f"the module {where!r} is not imported here"
            if module is None
            else f"{where or 'builtins'} has no {attribute!r}"
        )
        raise UsageError(f"output: {name!r} cannot be used, {why}; import it first, or write a JSON Schema")
    return getattr(module, attribute)
