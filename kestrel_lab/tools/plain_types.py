"""Plain types: those of which pydantic's JSON form can always be read back into the same value.

Decided from pydantic's core schema: nothing in it may run code of the user, rename, hide or compute a field,
or be ambiguous. Of all other types only what was given before it was validated means for sure what was meant.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

_SCALARS = frozenset(
    {
        "any",
        "none",
        "bool",
        "int",
        "float",
        "str",
        "enum",
        "date",
        "time",
        "datetime",
        "timedelta",
        "decimal",
        "uuid",
    }
)
_UNAMBIGUOUS = frozenset(
    {"none", "bool", "int", "float", "str", "literal", "nullable", "list", "dict", "union"}
)
"""JSON types, so that a union of them is read back the same way."""
_WITH_FIELDS = frozenset({"typed-dict", "model-fields", "dataclass-args"})
_AROUND = frozenset(
    {
        "nullable",
        "default",
        "model",
        "dataclass",
        "typed-dict-field",
        "model-field",
        "dataclass-field",
        "definitions",
    }
)
_RUNS_CODE = ("post_init", "custom_init", "default_factory", "init_only", "computed_fields", "extras_schema")
"""Keys of a node under which there is code of the user, or what is not part of the JSON form."""
_RENAMES = ("serialization", "validation_alias")


def parameters_of(
    schema: Mapping[str, Any],
) -> tuple[dict[str, Mapping[str, Any]], dict[str, Mapping[str, Any]]]:
    """Return the fields of a typed dict's core schema by name, and its shared definitions by reference."""
    shared = {str(one["ref"]): one for one in schema.get("definitions", ())}
    shape = schema["schema"] if schema["type"] == "definitions" else schema
    return shape["fields"], shared


def is_plain(
    node: Mapping[str, Any], shared: Mapping[str, Mapping[str, Any]], seen: frozenset[str] = frozenset()
) -> bool:
    """Return true if the JSON form of every value of a core-schema node gives the same value again."""
    kind = node["type"]
    if (
        any(node.get(key) for key in _RUNS_CODE)
        or node.get("init") is False
        or any(key.startswith(_RENAMES) for key in node)
    ):
        return False
    if kind == "definition-ref":
        ref = str(node["schema_ref"])
        return ref in seen or (ref in shared and is_plain(shared[ref], shared, seen | {ref}))
    if kind in _SCALARS:
        return True
    if kind == "literal":
        return all(type(one) in (str, int, bool, type(None)) for one in node["expected"])
    if kind == "union":
        choices = [one[0] if isinstance(one, tuple) else one for one in node["choices"]]
        return all(_is_json(one) and is_plain(one, shared, seen) for one in choices)
    if kind in _AROUND or kind in _WITH_FIELDS or kind in {"list", "dict"}:
        return all(is_plain(one, shared, seen) for one in _parts(node))
    return False


def _parts(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("schema", "items_schema", "keys_schema", "values_schema"):
        if key in node:
            yield node[key]
    fields = node.get("fields") if node["type"] in _WITH_FIELDS else None
    yield from fields.values() if isinstance(fields, dict) else fields or ()


def _is_json(node: Mapping[str, Any]) -> bool:
    """Return true if validated values of a node are JSON."""
    return node["type"] in _UNAMBIGUOUS and all(map(_is_json, _parts(node)))
