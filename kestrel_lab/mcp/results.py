"""Converts results of MCP servers: sanitised, bounded text, structured content, images."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kestrel_lab.core.json_types import Json, dumps
from kestrel_lab.core.messages import IMAGE_BYTES, IMAGE_TYPES, ImagePart
from kestrel_lab.core.sanitize import head_tail, one_line, sanitize_text
from kestrel_lab.tools.results import to_json

if TYPE_CHECKING:
    from mcp_types import CallToolResult

LONGEST = 64_000
"""Most characters of a result; the tool's `max_chars` bounds what a model sees."""
_MOST_IMAGES = 10


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """An answer of a server; all of it is untrusted."""

    value: Json = ""
    """The text, the structured content if it equals the text, or both if they differ."""
    images: tuple[ImagePart, ...] = ()


def answer_of(result: CallToolResult) -> Answer:
    """Return the answer of a tool; `repair` has noted in it where it does not fit the output schema."""
    text, images = text_of(result.content)
    structured: Any = result.structured_content
    shown = None if structured is None else _sanitize(structured)
    if shown is None or (text and not shown) or len(dumps(shown)) > LONGEST:
        return Answer(value=text, images=images)
    # Servers wrap a plain text, number or list in an object of one key, because structured content must be an
    # object.
    inner = next(iter(shown.values())) if isinstance(shown, dict) and len(shown) == 1 else shown
    if not text or _is_same_json(text, shown):
        return Answer(value=shown, images=images)
    if text == inner or _is_same_json(text, inner):
        return Answer(value=text, images=images)
    return Answer(value={"text": text, "structured": shown}, images=images)


def text_of(blocks: Iterable[Any]) -> tuple[str, tuple[ImagePart, ...]]:
    """Return the text and images of content blocks; audio and other files are only named."""
    images: list[ImagePart] = []
    pieces = [piece for block in blocks if (piece := _piece(block, images))]
    return head_tail(sanitize_text("\n".join(pieces)), LONGEST)[0], tuple(images)


def resource_text(contents: Any, images: list[ImagePart]) -> str:
    """Return the text of one content of a resource; an image is added to `images`."""
    where = one_line(str(contents.uri), 200)
    if (text := getattr(contents, "text", None)) is not None:
        return f"[{where}]\n{text}"
    return f"[{where}] {_image(contents.blob, contents.mime_type or '', 'file', images)}"


def _piece(block: Any, images: list[ImagePart]) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return _image(block.data, block.mime_type, block.type, images)
        case "resource":
            return resource_text(block.resource, images)
        case "resource_link":
            return f"[{one_line(str(block.uri), 200)}] {one_line(block.description or block.name, 200)}"
        case other:
            return f"[{one_line(str(other), 40)}, not shown]"


def _image(data: str, kind: str, what: str, images: list[ImagePart]) -> str:
    """Add an image that models take to `images`; return its name in the text."""
    summary = f"{what} {one_line(kind, 60)}, {len(data) * 3 // 4:,} bytes".replace("  ", " ")
    # Base64 has four characters for three bytes.
    if kind not in IMAGE_TYPES or len(data) > IMAGE_BYTES * 4 // 3 or len(images) >= _MOST_IMAGES:
        return f"[{summary}, not shown]"
    try:
        images.append(ImagePart.of(base64.b64decode(data, validate=True), kind))
    except ValueError:
        return f"[{summary}, not shown: it is not Base64]"
    return f"[{summary}]"


def _is_same_json(text: str, value: Json) -> bool:
    try:
        return bool(json.loads(text) == value)
    except (ValueError, RecursionError):
        return False


def _sanitize(value: Any) -> Any:
    """Return a value with harmless texts, and numbers that JSON does not have by their names."""
    if isinstance(value, str):
        return sanitize_text(value)
    if isinstance(value, float):
        return to_json(value)
    if isinstance(value, list):
        return [_sanitize(item) for item in value]
    return (
        {sanitize_text(key): _sanitize(item) for key, item in value.items()}
        if isinstance(value, dict)
        else value
    )
