"""Results of MCP tools as text for a model: sanitised and bounded, as they are untrusted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.sanitize import head_tail, one_line, plain

if TYPE_CHECKING:
    from mcp_types import CallToolResult

LONGEST = 64_000
"""Most characters of a result; the tool's `max_chars` bounds what a model sees."""


def text_of(result: CallToolResult) -> str:
    """Return the text of a result; images and audio are named, not shown."""
    pieces = [piece for block in result.content if (piece := _piece(block))]
    if not pieces and result.structured_content is not None:
        pieces = [dumps(result.structured_content)]
    return head_tail(plain("\n".join(pieces)), LONGEST)[0]


def _piece(block: Any) -> str:
    match block.type:
        case "text":
            return str(block.text)
        case "image" | "audio":
            return f"[{block.type} {one_line(block.mime_type, 60)}, {len(block.data) * 3 // 4:,} bytes, not shown]"
        case "resource":
            resource = block.resource
            where = one_line(str(resource.uri), 200)
            text = getattr(resource, "text", None)
            return f"[{where}]\n{text}" if text is not None else f"[{where}, not text, not shown]"
        case "resource_link":
            return f"[{one_line(str(block.uri), 200)}] {one_line(block.description or block.name, 200)}"
        case other:
            return f"[{one_line(str(other), 40)}, not shown]"
