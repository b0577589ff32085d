"""Parsing of checks that are written as data: `answer_contains: "42"` becomes a check object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import UnionType
from typing import Any, Final, Literal, cast, get_args, get_origin, get_type_hints

from kestrel_lab.checks.answer import (
    AnswerAbstains,
    AnswerContains,
    AnswerEquals,
    AnswerForm,
    AnswerMatches,
    AnswerSchema,
)
from kestrel_lab.checks.answer_forms import (
    AnswerNumber,
    Choice,
    EndsWith,
    IsJson,
    IsSql,
    IsXml,
    Similar,
    StartsWith,
)
from kestrel_lab.checks.behaviour import (
    CostAtMost,
    SecondsAtMost,
    TokensAtMost,
    ToolAtMost,
    ToolNotUsed,
    ToolUsed,
    TurnsAtMost,
)
from kestrel_lab.checks.commands import CommandSucceeds
from kestrel_lab.checks.composition import AllOf, AnyOf, NamedCheck, Not
from kestrel_lab.checks.files import FileAbsent, FileContains, FileEquals
from kestrel_lab.checks.grounding import AnswerCites, CitesWhatIsThere, Faithful, Grounded
from kestrel_lab.checks.llm_judge import ModelGraded
from kestrel_lab.checks.python_function import PythonCheck
from kestrel_lab.checks.retrieval import RecallAt, Recalled
from kestrel_lab.checks.trajectory import ToolsInOrder, TrajectoryMatch
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.protocols import Check
from kestrel_lab.core.sanitize import one_line

CHECKS: Final[dict[str, Any]] = {
    "all_of": AllOf,
    "answer_abstains": AnswerAbstains,
    "answer_cites": AnswerCites,
    "answer_contains": AnswerContains,
    "answer_equals": AnswerEquals,
    "answer_form": AnswerForm,
    "answer_matches": AnswerMatches,
    "answer_schema": AnswerSchema,
    "any_of": AnyOf,
    "choice": Choice,
    "command_succeeds": CommandSucceeds,
    "cost_at_most": CostAtMost,
    "cited": CitesWhatIsThere,
    "ends_with": EndsWith,
    "faithful": Faithful,
    "file_absent": FileAbsent,
    "file_contains": FileContains,
    "file_equals": FileEquals,
    "graded": ModelGraded,
    "grounded": Grounded,
    "is_json": IsJson,
    "is_sql": IsSql,
    "is_xml": IsXml,
    "not": Not,
    "number": AnswerNumber,
    "python_check": PythonCheck,
    "recall_at": RecallAt,
    "recalled": Recalled,
    "seconds_at_most": SecondsAtMost,
    "similar": Similar,
    "starts_with": StartsWith,
    "tokens_at_most": TokensAtMost,
    "tool_at_most": ToolAtMost,
    "tool_not_used": ToolNotUsed,
    "tool_used": ToolUsed,
    "tools_in_order": ToolsInOrder,
    "trajectory_match": TrajectoryMatch,
    "turns_at_most": TurnsAtMost,
}
"""Every check's class, a dataclass, by the name it has in a suite file."""
_BESIDE: Final = tuple(field.name for field in fields(NamedCheck) if field.name != "inner")
"""Keys that may stand beside the name of any check."""

CHECK_SCHEMA: Final[dict[str, Json]] = {"$comment": "Check"}
"""Stands for the schema of a check, which is in a file's schema once: checks are made of checks."""
_WORDS: Final = {
    str: "text",
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    dict: "a mapping",
}
_JSON_TYPES: Final = {str: "string", float: "number", int: "integer", bool: "boolean", dict: "object"}


def parse_check(item: Json, *, loosely: bool = False) -> Check:
    """Return the check that `item` describes.

    `{"tool_used": "grep"}` gives the check's first field its value, a list where that field holds several;
    `{"file_contains": {"path": "out.txt", "text": "hi"}}` names the fields. Raises `UsageError` that names
    the unknown check or field and the nearest right one. `name`, `weight` and `at_least` may stand beside any
    check.
    """
    # Exactly one name of a check; `name`, `weight` and `at_least` may stand beside it.
    words = [name for name in item if name not in _BESIDE] if isinstance(item, dict) else []
    if not isinstance(item, dict) or len(words) != 1:
        raise UsageError(
            f'a check is one name with a value, such as answer_contains: "42", not {one_line(repr(item))}'
        )
    (name,) = words
    value = item[name]
    if name not in CHECKS:
        raise UsageError(f"{name!r} is not a check; {did_you_mean(name, CHECKS)}")
    kind = CHECKS[name]
    # A mapping names fields, unless the check holds checks, which are mappings themselves.
    given = value if isinstance(value, dict) and not _of_checks(kind) else {fields(kind)[0].name: value}
    check: Check = kind(**_arguments(name, kind, given, loosely=loosely))
    if beside := {key: item[key] for key in _BESIDE if key in item}:
        given = {"inner": {name: value}, **beside}
        return NamedCheck(**cast("Any", _arguments(name, NamedCheck, given, loosely=loosely)))
    return check


def _of_checks(kind: Any) -> bool:
    """Return whether a check is made of checks: what it holds is then never a mapping of its fields."""
    first = get_type_hints(kind)[fields(kind)[0].name]
    return first is Check or Check in get_args(first)


def check_definition(check: Check) -> dict[str, Json]:
    """Return a check as JSON: equal for equal checks, so that stored results show by which checks they were
    judged.
    """
    if (own := getattr(check, "definition", None)) is not None:
        body: dict[str, Json] = own()
    else:
        parts: tuple[Field[Any], ...] = fields(check) if is_dataclass(check) else ()
        body = {
            part.name: _defined(value)
            for part in parts
            for value in [getattr(check, part.name)]
            # Left out at its default, so that a check has the hash that it had before the field was added.
            if not (part.metadata.get("added_later") and value == part.default)
        }
    return {"check": type(check).__name__, "label": check.label, **body}


def _defined(value: Any) -> Json:
    """Return a field of a check as JSON; checks that it holds by their own definitions."""
    if isinstance(value, tuple):
        return [_defined(item) for item in value]
    return check_definition(cast("Check", value)) if is_dataclass(value) else cast("Json", value)


def checks_schema() -> dict[str, Json]:
    """Return the JSON Schema of one check as `parse_check` reads it, for editors."""
    return {"oneOf": [_check_schema(name, kind) for name, kind in CHECKS.items()]}


def _check_schema(name: str, kind: Any) -> dict[str, Json]:
    types = get_type_hints(kind)
    properties: dict[str, Json] = {field.name: _field_schema(types[field.name]) for field in fields(kind)}
    beside = {key: _field_schema(get_type_hints(NamedCheck)[key]) for key in _BESIDE}
    required: list[Json] = [field.name for field in fields(kind) if _is_required(field)]
    forms: list[Json] = [
        {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    ]
    first = fields(kind)[0].name
    if _of_checks(kind):
        forms = [properties[first]]
    elif len(required) <= 1 and get_origin(types[first]) is not dict:
        forms.insert(0, properties[first])
    return {
        "type": "object",
        "properties": {
            name: {"description": (kind.__doc__ or "").partition("\n")[0], "anyOf": forms},
            **beside,
        },
        "required": [name],
        "additionalProperties": False,
    }


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _field_schema(kind: Any) -> dict[str, Json]:
    if get_origin(kind) is tuple:
        item = _field_schema(get_args(kind)[0])
        return {"anyOf": [item, {"type": "array", "items": item}]}
    if get_origin(kind) is Literal:
        return {"enum": [word for word in get_args(kind) if word]}
    if kind is Check:
        return dict(CHECK_SCHEMA)
    if isinstance(kind, UnionType):
        return _field_schema(get_args(kind)[0])
    return {} if kind is Any else {"type": _JSON_TYPES[get_origin(kind) or kind]}


def _arguments(name: str, kind: Any, given: Mapping[str, Json], *, loosely: bool) -> dict[str, object]:
    known = {field.name: field for field in fields(kind)}
    types = get_type_hints(kind)
    found: dict[str, object] = {}
    for key, value in given.items():
        if key not in known:
            raise UsageError(f"{name} has no {key!r}; {did_you_mean(key, known)}")
        found[key] = _typed_value(f"{name}.{key}", types[key], value, loosely=loosely)
    if missing := [key for key, field in known.items() if key not in found and _is_required(field)]:
        raise UsageError(
            f"{name} needs {' and '.join(missing)}: write {name}: "
            f"{{{', '.join(f'{key}: …' for key in missing)}}}"
        )
    return found


def _typed_value(place: str, kind: Any, value: Json, *, loosely: bool) -> object:
    """Return `value` as a field of type `kind`: text, a number, a mapping, one of several words, or a tuple
    of such.
    """
    if kind is Any:
        return value
    if kind is Check:
        return parse_check(value, loosely=loosely)
    # The other part of the union is `None`, for a key that is left out.
    if isinstance(kind, UnionType):
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        items = value if isinstance(value, list) else [value]
        return tuple(_typed_value(place, get_args(kind)[0], item, loosely=loosely) for item in items)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            words = " or ".join(filter(None, get_args(kind)))
            raise UsageError(f"{place} is {words}, not {value!r}")
        return value
    kind = get_origin(kind) or kind
    if loosely and (read := _read_as(kind, value)) is not None:
        return read
    # To Python `True` is a number; in a suite file it is a mistake.
    fits = isinstance(value, int | float if kind is float else kind) and (
        kind is bool or not isinstance(value, bool)
    )
    if not fits:
        hint = "; put it in quotes" if kind is str and isinstance(value, bool | int | float) else ""
        raise UsageError(f"{place} is {_WORDS[kind]}, not {one_line(repr(value))}{hint}")
    return value


def _read_as(kind: Any, value: Json) -> object | None:
    """Return a number as text or a text as a number, as cells of tables need it; `None` for anything else."""
    if kind is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if kind in (int, float) and isinstance(value, str):
        try:
            return cast("object", kind(value))
        except ValueError:
            return None
    return None
