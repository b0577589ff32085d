"""Validation of YAML files by pydantic; each mistake has file, line, key and the nearest valid spelling."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.core.yaml.reader import Where, YamlFile

MAX_REPORTED: Final = 40
"""Most mistakes in one message."""

_T = TypeVar("_T")
_Entry = TypeVar("_Entry", bound=BaseModel)


class Entry(BaseModel):
    """A mapping of a file; unknown keys and values of another type are errors."""

    model_config = ConfigDict(extra="forbid", strict=True)


def validate(document: YamlFile, kind: type[_Entry], value: Any = None, at: Where = ()) -> _Entry:
    """Return the document, or its `value` at the place `at`, as a `kind`.

    Raises `UsageError` with one line for each mistake, in the order of the file.
    """
    try:
        return kind.model_validate(document.value if value is None else value)
    except ValidationError as error:
        details = sorted(error.errors(), key=lambda detail: document.line((*at, *detail["loc"])))
        raise UsageError(
            join_problems(
                f"{document.place((*at, *detail['loc']))}: {_explain(kind, detail)}" for detail in details
            )
        ) from error


def validate_partly(
    document: YamlFile, kind: type[_Entry], problems: list[str], stand_ins: Mapping[str, Json]
) -> _Entry | None:
    """Return the valid part of the document as a `kind`, for further checks, and add its mistakes to
    `problems`.

    Invalid keys are left out and missing ones are taken from `stand_ins`, so that every other value keeps its
    line. Returns `None` when no valid document is left.
    """
    value = copy.deepcopy(document.value)
    for again in range(_ROUNDS):
        try:
            return kind.model_validate(value)
        except ValidationError as error:
            details = sorted(error.errors(), key=lambda detail: document.line(detail["loc"]))
        # Later rounds only find consequences of the repairs.
        if not again:
            problems += [f"{document.place(detail['loc'])}: {_explain(kind, detail)}" for detail in details]
        if not isinstance(value, dict):
            value = {}
        for detail in reversed(details):
            _repair(value, detail["loc"], detail["type"], stand_ins)
    return None


_ROUNDS: Final = 6


def _repair(value: Any, loc: Where, error: str, stand_ins: Mapping[str, Json]) -> None:
    """Remove the value at `loc`, or insert its stand-in where one is missing."""
    within: list[tuple[Any, Any]] = []
    inside: Any = value
    part: Any
    for part in loc:
        if (isinstance(inside, dict) and part in inside) or (
            isinstance(inside, list) and isinstance(part, int) and part < len(inside)
        ):
            within.append((inside, part))
            inside = inside[part]
        elif isinstance(inside, dict) and error == "missing":
            inside[str(part)] = copy.deepcopy(stand_ins.get(str(part)))
            return
    if within and error in _NOT_A_MAPPING:
        holder, part = within[-1]
        holder[part] = {}
        return
    while within:
        holder, part = within.pop()
        if isinstance(holder, dict):
            holder.pop(part, None)
            return


def collect_error(document: YamlFile, where: Where, problems: list[str], make: Callable[[], _T]) -> _T | None:
    """Return the result of `make`; its `UsageError` is added to `problems` with the place `where`."""
    try:
        return make()
    except UsageError as error:
        # Collected, so that all mistakes of a file are reported at once.
        problems.append(f"{document.place(where)}: {error}")
        return None


def join_problems(problems: Iterable[str]) -> str:
    """Return one line for each of the first `MAX_REPORTED` problems."""
    lines = list(problems)
    more = [f"… and {len(lines) - MAX_REPORTED} more"] if len(lines) > MAX_REPORTED else []
    return "\n".join(lines[:MAX_REPORTED] + more)


_NOT_A_MAPPING: Final = ("model_type", "dict_type", "model_attributes_type")
_TYPES: Final = {
    "int_type": "a whole number",
    "float_type": "a number",
    "list_type": "a list",
    "bool_type": "true or false",
}


def _explain(kind: type[BaseModel], detail: ErrorDetails) -> str:
    error, value = detail["type"], detail["input"]
    if error == "extra_forbidden":
        return f"unknown key; {did_you_mean(str(detail['loc'][-1]), _keys(kind, detail['loc'][:-1]))}"
    if error == "missing":
        return "is missing"
    if error in _NOT_A_MAPPING:
        return f"must be a mapping of keys to values, not {_quote(value)}"
    if error == "string_type":
        hint = "; put it in quotes" if isinstance(value, int | float) else ""
        return f"must be text, not {_quote(value)}{hint}"
    if error in _TYPES:
        return f"must be {_TYPES[error]}, not {_quote(value)}"
    if error in ("too_short", "string_too_short"):
        return "must not be empty"
    return f"{detail['msg'].replace('Input should', 'must')}, not {_quote(value)}"


def _keys(kind: type[BaseModel], where: Where) -> list[str]:
    """Return the keys that are allowed in the mapping at `where`."""
    inside: list[Any] = [kind]
    for part in where:
        fields = [_fields(model) for annotation in inside for model in _models(annotation)]
        inside = [found[part] for found in fields if part in found] or inside
    return sorted(
        {str(name) for annotation in inside for model in _models(annotation) for name in _fields(model)}
    )


def _fields(model: type[BaseModel]) -> dict[str | int, Any]:
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that a value of the annotated type may contain, within lists and mappings too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
        return
    for inner in get_args(annotation):
        yield from _models(inner)


def _quote(value: object) -> str:
    return "nothing" if value is None else one_line(repr(value), 60)
