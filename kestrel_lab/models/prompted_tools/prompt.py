"""The prompt that describes tools to a model, and the JSON Schema of its reply."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kestrel_lab.core.messages import ToolSpec

_KEPT = ("type", "enum", "const", "required")
"""Keywords of a tool's schema that are kept beside the structural ones.

Others (patterns, formats, bounds) are left out: grammar engines refuse a schema with a keyword they cannot enforce, and
the tool checks its arguments itself.
"""


def tool_prompt(tools: Sequence[ToolSpec], *, thought: bool, answer: dict[str, Json] | None = None) -> str:
    """Return the instructions, one line per tool; short, because the context of the model may be small."""
    first = '"thought":"<thought>",' if thought else ""
    lines = ["Reply with one JSON object. Use a tool to get what you need, then give the answer.", "Tools:"]
    for tool in tools:
        arguments, others = _example(tool.schema)
        note = f" Also takes: {', '.join(others)}." if others else ""
        lines.append(f'{{{first}"tool":"{tool.name}","arguments":{dumps(arguments)}}} {one_line(tool.description, 200)}{note}')
    said = dumps("<answer>" if answer is None else _example(answer)[0] or "<answer>")
    lines += ["When you know the answer:", f'{{{first}"answer":{said}}}']
    return "\n".join(lines)


def brief_prompt(tools: Sequence[ToolSpec]) -> str:
    """Return shorter instructions without placeholders, which very small models copy: names and first sentences only."""
    lines = ["Reply with one JSON object: call a tool, or give the answer.", "Tools:"]
    for tool in tools:
        first = one_line(tool.description, 200).split(". ")[0].rstrip(".")
        lines.append(f"{tool.name}({', '.join(_mapping(tool.schema, 'properties'))}): {first}.")
    return "\n".join(lines)


def required_only(tool: ToolSpec) -> ToolSpec:
    """Return the tool without its optional arguments."""
    properties, required = _mapping(tool.schema, "properties"), tool.schema.get("required")
    kept: dict[str, Json] = {name: properties[name] for name in properties if isinstance(required, list) and name in required}
    return replace(tool, schema={**tool.schema, "properties": kept})


def _example(schema: dict[str, Json]) -> tuple[dict[str, Json], list[str]]:
    """Return the required properties with sample values, and the names of the others."""
    properties, required = schema.get("properties"), schema.get("required")
    if not isinstance(properties, dict):
        return {}, []
    needed = [name for name in properties if isinstance(required, list) and name in required]
    return {name: _sample(name, properties[name]) for name in needed}, [name for name in properties if name not in needed]


def _sample(name: str, schema: Json) -> Json:
    # Dots in place of `<name>` were copied into calls by small models.
    if not isinstance(schema, dict):
        return f"<{name}>"
    if isinstance(options := schema.get("enum"), list):
        return "|".join(map(str, options[:6]))
    samples: dict[str, Json] = {"integer": 1, "number": 1.5, "boolean": True, "array": [f"<{name}>"], "object": {}, "null": None}
    kind = schema.get("type")
    return samples.get(kind, f"<{name}>") if isinstance(kind, str) else f"<{name}>"


def reply_schema(
    tools: Sequence[ToolSpec], *, thought: bool, answer: dict[str, Json] | None = None, call_first: bool = False
) -> dict[str, Json]:
    """Return a schema that allows a call of any tool and, unless `call_first`, an answer."""
    definitions: dict[str, Json] = {}
    choices: list[Json] = []
    for tool in tools:
        arguments = _within({"type": "object", **tool.schema}, tool.name, definitions)
        choices.append(_object({"tool": {"const": tool.name}, "arguments": arguments}, thought=thought))
    said: Json = {"type": "string"} if answer is None else _within(answer, "answer", definitions)
    if not call_first:
        choices.append(_object({"answer": said}, thought=thought))
    return {"anyOf": choices, **({"$defs": definitions} if definitions else {})}


def _object(properties: dict[str, Json], *, thought: bool) -> Json:
    before: dict[str, Json] = {"thought": {"type": "string"}} if thought else {}
    named = {**before, **properties}
    return {"type": "object", "properties": named, "required": [*named], "additionalProperties": False}


def _within(schema: Json, owner: str, definitions: dict[str, Json]) -> Json:
    """Return `schema` as part of a larger one; its definitions move to `definitions`, named after `owner`."""
    if not isinstance(schema, dict):
        return schema

    def part(inner: Json) -> Json:
        return _within(inner, owner, definitions)

    for name, inner in {**_mapping(schema, "definitions"), **_mapping(schema, "$defs")}.items():
        definitions[f"{owner}.{name}"] = part(inner)
    if isinstance(target := schema.get("$ref"), str):
        return {"$ref": f"#/$defs/{owner}.{target.rpartition('/')[2]}"}
    kept: dict[str, Json] = {word: schema[word] for word in _KEPT if word in schema}
    if properties := _mapping(schema, "properties"):
        kept["properties"] = {name: part(inner) for name, inner in properties.items()}
        kept.setdefault("additionalProperties", False)
    for word in ("items", "additionalProperties"):
        if word in schema:
            kept[word] = part(schema[word])
    options = schema.get("anyOf", schema.get("oneOf"))
    if isinstance(options, list):
        kept["anyOf"] = [part(option) for option in options]
    return kept


def _mapping(schema: dict[str, Json], word: str) -> dict[str, Json]:
    found = schema.get(word)
    return found if isinstance(found, dict) else {}
