"""Read JSON of models leniently: what plainly means a value of the schema becomes that value; what is
ambiguous stays as it is, to be refused.

Models that no strict schema binds add keys, write `"High"` for `high`, `"0.9"` for .9, and one text where a
list of texts is asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from kestrel_lab.core.json_types import Json, readable

Schema = Mapping[str, Any]
_DEPTH: Final = 30
"""Deepest level of a value that is converted."""
_NUMBER: Final = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,3})?")
_TRUTHS: Final[Mapping[str, bool]] = {"true": True, "yes": True, "false": False, "no": False}


def fit_to_schema(value: Json, schema: Schema) -> Json:
    """Return `value` converted to the schema, as far as there is one reading of it.

    Excluded keys and optional nulls are dropped; keys and enum words match in any case; texts may become
    numbers or booleans, numbers texts, and a single value a list of one. The caller validates the result.
    """
    return _fitted(value, schema, schema, _DEPTH)


def _fitted(value: Json, schema: Schema, root: Schema, depth: int) -> Json:
    schema = _resolved(schema, root)
    # A schema may refer to itself, and a model may nest its answer as it likes.
    if depth <= 0:
        return value
    if isinstance(schema.get("enum"), list):
        return _enum_word(value, schema["enum"])
    kinds = _kinds(schema)
    if "object" in kinds and isinstance(value, dict):
        return _object(value, schema, root, depth)
    if "array" in kinds and isinstance(items := schema.get("items"), Mapping):
        if isinstance(value, list):
            return [_fitted(one, items, root, depth - 1) for one in value]
        # A boolean is an `int` to Python.
        if len(kinds) == 1 and isinstance(value, str | int | float) and not isinstance(value, bool):
            return [_fitted(value, items, root, depth - 1)]
    # Of several kinds one would have to be guessed.
    return _scalar(value, kinds, schema) if len(kinds) == 1 else value


def _resolved(schema: Schema, root: Schema) -> Schema:
    """The schema that a reference within `root` leads to."""
    # References may lead in a circle.
    for _ in range(_DEPTH):
        target = schema.get("$ref")
        if not isinstance(target, str) or not target.startswith("#/"):
            return schema
        found: Any = root
        for part in target[2:].split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = found if isinstance(found, Mapping) else {}
    return {}


def _kinds(schema: Schema) -> frozenset[str]:
    kind = schema.get("type")
    if isinstance(kind, list):
        return frozenset(map(str, kind))
    return (
        frozenset([kind])
        if isinstance(kind, str)
        else frozenset(["object"] if "properties" in schema else [])
    )


def _object(value: dict[str, Json], schema: Schema, root: Schema, depth: int) -> Json:
    known = cast("Mapping[str, Schema]", schema.get("properties") or {})
    closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    required = set(cast("list[str]", schema.get("required") or []))
    found: dict[str, Json] = {}
    for key, part in value.items():
        name = key if key in known else _same_key(key, value, known)
        if name not in known:
            found |= {} if closed else {key: part}
        elif part is not None or name in required:
            found[name] = _fitted(part, known[name], root, depth - 1)
        elif _allows_null(known[name], root):
            found[name] = None
    return found


def _same_key(key: str, value: Mapping[str, Json], known: Mapping[str, Schema]) -> str:
    """Return the schema's key that differs only in case; `key` itself if there is none or both are given."""
    same = [name for name in known if _plain(name) == _plain(key) and name not in value]
    given = [other for other in value if other not in known and _plain(other) == _plain(key)]
    return same[0] if len(same) == len(given) == 1 else key


def _allows_null(schema: Schema, root: Schema) -> bool:
    schema = _resolved(schema, root)
    options = schema.get("anyOf") or schema.get("oneOf") or ()
    return "null" in _kinds(schema) or any(
        _allows_null(one, root) for one in options if isinstance(one, Mapping)
    )


def _plain(word: str) -> str:
    return re.sub(r"[\s_-]+", " ", word).strip(" .\"'`*").casefold()


def _enum_word(value: Json, words: list[Any]) -> Json:
    if value in words or not isinstance(value, str):
        return value
    same = [word for word in words if isinstance(word, str) and _plain(word) == _plain(value)]
    return same[0] if len(same) == 1 else value


def _scalar(value: Json, kinds: frozenset[str], schema: Schema) -> Json:
    kind = next(iter(kinds))
    if kind in ("number", "integer") and isinstance(value, str):
        return _number(value.strip(), kind, schema)
    if kind == "integer" and isinstance(value, float) and value.is_integer():
        return int(value)
    if kind == "boolean" and isinstance(value, str):
        return _TRUTHS.get(value.strip().casefold(), value)
    if (
        kind == "string"
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and "enum" not in schema
    ):
        return readable(value)
    return value


def _number(text: str, kind: str, schema: Schema) -> Json:
    """Return the number in a text; a percentage becomes a share if the schema asks for one."""
    digits = text.removesuffix("%").strip()
    if not _NUMBER.fullmatch(digits):
        return text
    number = float(digits)
    if digits != text:
        return number / 100 if schema.get("maximum") == 1 else text
    return int(number) if number.is_integer() and (kind == "integer" or "." not in digits) else number
