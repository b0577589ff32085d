"""What the conformance suite of the protocol is run against: `kestrel mcp serve --http` with the tools that
its scenarios call.

`python conformance_server.py FOLDER` prints the address and serves until it is ended. The answers are the
suite's, word for word.
"""

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from kestrel_lab.core.errors import ToolError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart
from kestrel_lab.lab import Lab
from kestrel_lab.server.serve import serving_http
from kestrel_lab.tools.argument_schema import SchemaArguments
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import ToolContext

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c63f8cfc0f01f00050001ff5aa3b8200000000049454e44ae426082"
)
harmless: Any = {"danger_level": "safe", "effect": "pure"}


@tool(**harmless)
def test_simple_text() -> str:
    """Answer with a text."""
    return "This is a simple text response for testing."


@tool(**harmless)
def test_image_content(ctx: ToolContext) -> str:
    """Answer with an image.

    Args:
        ctx: The run it works for.

    """
    ctx.show(ImagePart.of(PIXEL, "image/png"))
    return "one pixel"


@tool(**harmless)
def test_error_handling() -> str:
    """Fail."""
    raise ToolError("This tool intentionally returns an error for testing")


@tool(**harmless)
async def test_tool_with_progress(ctx: ToolContext) -> str:
    """Report progress three times.

    Args:
        ctx: The run it works for.

    """
    for share in (0.0, 0.5, 1.0):
        ctx.progress(f"{share:.0%} done", share)
        await asyncio.sleep(0.05)
    return "done"


SCHEMA: dict[str, Json] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
NAME = "json_schema_2020_12_tool"
with_schema = replace(test_simple_text, name=NAME, arguments=SchemaArguments(tool=NAME, schema=SCHEMA))


async def main(home: Path) -> None:
    """Serve until a signal."""
    tools = [test_simple_text, test_image_content, test_error_handling, test_tool_with_progress, with_schema]
    session = Lab(home, env={}, tools=tools)
    async with serving_http(session, token=False, workspace=str(home), tools=[one.name for one in tools]) as (
        port,
        _,
        work,
    ):
        print(f"http://127.0.0.1:{port}/mcp", flush=True)
        await work


asyncio.run(main(Path(sys.argv[1])))
