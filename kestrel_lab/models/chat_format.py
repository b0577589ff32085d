"""The chat-completions format of nearly every model server: requests, tool calls and response schemas."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from kestrel_lab.core.json_types import Json, content_key, loads, readable
from kestrel_lab.core.messages import Message, ThinkingPart, ToolRequest, ToolSpec
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.written_calls import expand_calls

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect:
    """What a provider accepts in messages besides text and tool calls."""

    signed_thinking: bool = False
    """Thinking with its signature goes back with the assistant's message (Anthropic)."""
    reasoning_text: bool = False
    """Reasoning goes back as `reasoning_content` (DeepSeek, Moonshot)."""
    call_signatures: bool = False
    """The signature of a tool call goes back with it (Gemini)."""
    cache_marks: bool = False
    """The prompt is cached up to marks (`cache_control`), not by itself."""
    tool_images: bool = False
    """True if a tool's message may contain images; else they follow in a user message."""
    sees: bool | None = True
    """True if the model takes images; if unknown (`None`), user images are sent, and tool images after one.
    """


PLAIN = Dialect()
_MARK: Json = {"type": "ephemeral"}


def messages_to_wire(messages: Sequence[Message], dialect: Dialect = PLAIN) -> list[dict[str, Json]]:
    """Return the conversation in the format of a server."""
    shows = dialect.sees or (
        dialect.sees is None and any(message.role == "user" and message.images for message in messages)
    )
    wire: list[dict[str, Json]] = []
    waiting: list[Message] = []
    for message in messages:
        if message.role != "tool" and waiting:
            wire.append(_shown_images(waiting))
            waiting = []
        if message.role == "tool" and message.images and shows and not dialect.tool_images:
            waiting.append(message)
        wire.append(_message(message, dialect, shows=shows))
    if waiting:
        wire.append(_shown_images(waiting))
    if dialect.cache_marks:
        _mark(wire)
    return wire


def _message(message: Message, dialect: Dialect, *, shows: bool) -> dict[str, Json]:
    content: Json = _content(message, dialect, shows=shows) if message.images else message.text
    if message.role == "tool":
        return {"role": "tool", "tool_call_id": message.call_id, "content": content}
    wire: dict[str, Json] = {"role": message.role}
    if content or not message.calls:
        wire["content"] = content
    if message.calls:
        wire["tool_calls"] = [_call(call, dialect) for call in message.calls]
    if message.thinking:
        signed = [_block(part) for part in message.thinking if part.signature or part.redacted]
        if dialect.signed_thinking and signed:
            wire["thinking_blocks"] = signed
        if dialect.reasoning_text:
            wire["reasoning_content"] = "\n\n".join(part.text for part in message.thinking)
    return wire


def _call(call: ToolRequest, dialect: Dialect) -> Json:
    wire: dict[str, Json] = {
        "id": call.id,
        "type": "function",
        "function": {"name": wire_name(call.name), "arguments": readable(call.args)},
    }
    return wire | (
        {"provider_specific_fields": {"thought_signature": call.signature}}
        if dialect.call_signatures and call.signature
        else {}
    )


def _block(part: ThinkingPart) -> Json:
    if part.redacted:
        return {"type": "redacted_thinking", "data": part.redacted}
    return {"type": "thinking", "thinking": part.text, "signature": part.signature}


def _content(message: Message, dialect: Dialect, *, shows: bool) -> Json:
    if not shows:
        kinds = ", ".join(image.media_type for image in message.images)
        return f"{message.text}\n[not shown, as this model is not known to see images: {kinds}]".strip()
    if message.role == "tool" and not dialect.tool_images:
        return message.text
    texts: list[Json] = [{"type": "text", "text": message.text}] if message.text else []
    return [*texts, *_images(message)]


def _images(message: Message) -> list[Json]:
    return [
        {"type": "image_url", "image_url": {"url": f"data:{image.media_type};base64,{image.data}"}}
        for image in message.images
    ]


def _shown_images(messages: list[Message]) -> dict[str, Json]:
    names = ", ".join(f"{message.name} ({message.call_id})" for message in messages)
    text: Json = {"type": "text", "text": f"The images of these tool results, in this order: {names}"}
    return {"role": "user", "content": [text, *(part for message in messages for part in _images(message))]}


def _mark(wire: list[dict[str, Json]]) -> None:
    """Mark what stays the same: the system message, and the ends of the last two requests, the earlier of
    which is cached already.
    """
    ends = [
        at
        for at, message in enumerate(wire)
        if message["role"] != "assistant" and (at + 1 == len(wire) or wire[at + 1]["role"] == "assistant")
    ]
    for at in {0, *ends[-2:]} if wire and wire[0]["role"] == "system" else set(ends[-2:]):
        content = wire[at].get("content")
        if isinstance(content, str) and content:
            wire[at]["content"] = [{"type": "text", "text": content, "cache_control": _MARK}]
        elif isinstance(content, list) and content and isinstance(content[-1], dict):
            wire[at]["content"] = [*content[:-1], {**content[-1], "cache_control": _MARK}]


def tools_to_wire(tools: Iterable[ToolSpec], dialect: Dialect = PLAIN) -> list[dict[str, Json]]:
    """Return the tools in the format of a server."""
    wire: list[dict[str, Json]] = [
        {
            "type": "function",
            "function": {
                "name": wire_name(tool.name),
                "description": tool.description,
                "parameters": tool.schema,
            },
        }
        for tool in tools
    ]
    if dialect.cache_marks and wire:
        wire[-1]["cache_control"] = _MARK
    return wire


@lru_cache(maxsize=4_096)
def wire_name(name: str) -> str:
    """Return a tool name valid on every server: `time:now` becomes `time__now`; other names end in a hash."""
    if _PLAIN.fullmatch(name):
        return name
    wire = name.replace(":", "__")
    if _PLAIN.fullmatch(wire):
        return wire
    return f"{_NOT_PLAIN.sub('_', wire)[:55]}_{content_key(name)[:8]}"


def from_wire(requests: Iterable[ToolRequest], tools: Iterable[ToolSpec]) -> tuple[ToolRequest, ...]:
    """Return `requests` with the original names of `tools`; see `written_calls.expand_calls` for invented
    names.
    """
    names = {wire_name(tool.name): tool.name for tool in tools}
    own = expand_calls(requests, names)
    return tuple(
        replace(one, name=names[one.name]) if names.get(one.name, one.name) != one.name else one
        for one in own
    )


def object_schema(schema: dict[str, Json]) -> dict[str, Json]:
    """Return a schema of objects for answers that match `schema`: providers take no other, so any other value
    is that of the key `value`.
    """
    if schema.get("type") == "object" or "$ref" in schema:
        return schema
    inner = {key: part for key, part in schema.items() if key != "$defs"}
    outer: dict[str, Json] = {
        "type": "object",
        "properties": {"value": inner},
        "required": ["value"],
        "additionalProperties": False,
    }
    return {**outer, **({"$defs": schema["$defs"]} if "$defs" in schema else {})}


def response_format(schema: dict[str, Json]) -> dict[str, Json]:
    """Return the `response_format` for JSON that matches `schema`; strict if the schema qualifies."""
    named: dict[str, Json] = {"name": "answer", "schema": schema}
    if schema.get("type") == "object" and _is_closed(schema):
        named["strict"] = True
    return {"type": "json_schema", "json_schema": named}


def _is_closed(schema: Json) -> bool:
    """Return true if every object in `schema` requires all its properties and allows no others."""
    if isinstance(schema, list):
        return all(map(_is_closed, schema))
    if not isinstance(schema, dict):
        return True
    if schema.get("type") == "object":
        properties, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(properties, dict) or not isinstance(required, list):
            return False
        if schema.get("additionalProperties") is not False or set(properties) != set(map(str, required)):
            return False
    return all(map(_is_closed, schema.values()))


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
    signature: str = ""


def _is_whole(args: list[str]) -> bool:
    if not args or not args[-1].rstrip().endswith("}"):
        return False
    try:
        return isinstance(loads("".join(args)), dict)
    except ValueError:
        return False


class CallPieces:
    """Tool calls assembled from the pieces of a stream.

    Pieces belong together by index. A server that numbers every call 0 is understood too: there a new call
    begins with a name, and with a new id or another name where the arguments of the last call are complete.
    So name and id may stand in each piece of a call, and the id may be a new one each time.
    """

    def __init__(self) -> None:
        self._begun: list[_Piece] = []
        self._at: dict[int, _Piece] = {}

    def add(
        self, index: int | None, call_id: str | None, name: str | None, args: str | None, signature: str = ""
    ) -> None:
        """Add one piece."""
        place = index if index is not None else 0
        piece = self._at.get(place)
        if piece is None or (name and piece.name and self._is_next(piece, call_id, name)):
            piece = self._at[place] = _Piece(id="", name="")
            self._begun.append(piece)
        piece.id = piece.id or call_id or ""
        # A name, too, may come in pieces.
        if name and not piece.args and name != piece.name:
            piece.name = name if name.startswith(piece.name) else piece.name + name
        piece.signature = piece.signature or signature
        if args:
            piece.args.append(args)

    @staticmethod
    def _is_next(piece: _Piece, call_id: str | None, name: str) -> bool:
        """Return true if a piece with a name, and maybe an id, starts another call."""
        other = bool(call_id and piece.id and call_id != piece.id)
        if name != piece.name:
            return other or (not call_id and bool(piece.args))
        if other and not piece.args:
            return True
        return (other or not call_id) and _is_whole(piece.args)

    def requests(self) -> tuple[ToolRequest, ...]:
        """Return the calls in the order they began; one without an id gets one."""
        found = []
        for number, piece in enumerate(self._begun, 1):
            args, problem = read_args(piece.name, "".join(piece.args))
            name = piece.id or f"call_{number}"
            found.append(
                ToolRequest(id=name, name=piece.name, args=args, problem=problem, signature=piece.signature)
            )
        return tuple(found)
