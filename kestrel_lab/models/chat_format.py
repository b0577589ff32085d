"""The chat-completions format of nearly every model server: requests, tool calls and response schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, content_key, dumps, loads
from kestrel_lab.core.messages import Message, ToolRequest, ToolSpec
from kestrel_lab.core.sanitize import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


def messages_to_wire(messages: Iterable[Message]) -> list[dict[str, Json]]:
    """Return the conversation in the format of a server."""
    return [_message(message) for message in messages]


def _message(message: Message) -> dict[str, Json]:
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.text}
    wire: dict[str, Json] = {"role": message.role}
    if message.text or not message.calls:
        wire["content"] = message.text
    if message.calls:
        wire["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": wire_name(call.name), "arguments": dumps(call.args)}}
            for call in message.calls
        ]
    return wire


def tools_to_wire(tools: Iterable[ToolSpec]) -> list[dict[str, Json]]:
    """Return the tools in the format of a server."""
    return [
        {"type": "function", "function": {"name": wire_name(tool.name), "description": tool.description, "parameters": tool.schema}}
        for tool in tools
    ]


@lru_cache(maxsize=4_096)
def wire_name(name: str) -> str:
    """Return a tool name that every server accepts: `time:now` becomes `time__now`; other names end in a hash."""
    if _PLAIN.fullmatch(name):
        return name
    wire = name.replace(":", "__")
    if _PLAIN.fullmatch(wire):
        return wire
    return f"{_NOT_PLAIN.sub('_', wire)[:55]}_{content_key(name)[:8]}"


def from_wire(requests: Iterable[ToolRequest], tools: Iterable[ToolSpec]) -> tuple[ToolRequest, ...]:
    """Return `requests` with the original names of `tools`."""
    names = {wire_name(tool.name): tool.name for tool in tools}
    return tuple(replace(one, name=names[one.name]) if names.get(one.name, one.name) != one.name else one for one in requests)


def response_format(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the `response_format` for JSON that matches `schema`; strict where the schema qualifies for it.

    Providers take objects only: any other value is asked for as that of the key `value`.
    """
    if schema.get("type") != "object" and "$ref" not in schema:
        inner = {key: part for key, part in schema.items() if key != "$defs"}
        outer: dict[str, Json] = {"type": "object", "properties": {"value": inner}, "required": ["value"], "additionalProperties": False}
        schema = {**outer, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}
    named: dict[str, Json] = {"name": "answer", "schema": schema}
    if schema.get("type") == "object" and _closed(schema):
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def _closed(schema: Json) -> bool:
    """Return whether every object in `schema` requires all its properties and allows no others."""
    if isinstance(schema, list):
        return all(map(_closed, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object":
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return False
        if schema.get("additionalProperties") is not False or set(properties) != set(map(str, required)):
            return False
    return all(map(_closed, schema.values()))


def read_args(name: str, text: str) -> tuple[dict[str, Json], str]:
    """Return the arguments in `text` and their problem, which is empty for valid ones."""
    if not text.strip():
        return {}, ""
    try:
        args = loads(text)
    except ValueError as error:
        return {}, f"the arguments of {name!r} are not JSON ({error}): {one_line(text, 200)}"
    if not isinstance(args, dict):
        return {}, f"the arguments of {name!r} must be a JSON object, not {one_line(text, 200)}"
    return args, ""


@dataclass(kw_only=True, slots=True)
class _Piece:
    id: str
    name: str
    args: list[str] = field(default_factory=list)


class CallPieces:
    """Tool calls assembled from the pieces of a stream.

    Pieces belong together by index. A server that numbers every call 0 is understood too: a new id or, where there
    are not ids, a new name begins a new call.
    """

    def __init__(self) -> None:
        self._begun: list[_Piece] = []
        self._at: dict[int, _Piece] = {}

    def add(self, index: int | None, call_id: str | None, name: str | None, args: str | None) -> None:
        """Add one piece."""
        place = index if index is not None else 0
        piece = self._at.get(place)
        if piece is None or (call_id and piece.id and call_id != piece.id) or (name and piece.name and not call_id and piece.args):
            piece = self._at[place] = _Piece(id="", name="")
            self._begun.append(piece)
        piece.id = piece.id or call_id or ""
        piece.name = piece.name or name or ""
        if args:
            piece.args.append(args)

    def requests(self) -> tuple[ToolRequest, ...]:
        """Return the calls in the order they began; one without an id gets one."""
        found = []
        for number, piece in enumerate(self._begun, 1):
            args, problem = read_args(piece.name, "".join(piece.args))
            found.append(ToolRequest(id=piece.id or f"call_{number}", name=piece.name, args=args, problem=problem))
        return tuple(found)
