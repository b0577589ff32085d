"""Repairs nearly valid results of MCP servers: keeps the valid parts and names the rest.

The SDK rejects a whole result for one invalid part, so each part is checked before the SDK sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line

_LISTS: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}
"""By method, the list field of its result; invalid items are left out."""
_CONTENTS: Final = {"tools/call": "content", "resources/read": "contents"}
"""By method, the content field of its result; invalid items are shown as text."""
_OPTIONAL: Final = ("structuredContent", "isError", "nextCursor", "_meta")

Refuse = Callable[[str, str], None]
"""Takes the name of what is left out of a list, and why."""


def repair_results(session: Any, refuse: Refuse) -> None:
    """Repair every result of a session of the SDK before the SDK validates it."""
    from mcp_types import TextContent  # loaded with the SDK

    # A private attribute: the SDK has no other hook between a message and its validation.
    dispatcher = session._dispatcher
    send = dispatcher.send_raw_request

    async def repaired(method: str, params: Any, options: Any = None) -> Any:
        result = await send(method, params, options)
        if method == "tools/call" and not isinstance(result, dict):
            result = {"content": result}
        if not isinstance(result, dict):
            return result
        return repaired_result(method, result, _fits(method, session.protocol_version), params or {}, refuse)

    dispatcher.send_raw_request = repaired
    validate = session.validate_tool_result

    async def validated(name: str, result: Any) -> None:
        try:
            await validate(name, result)
        except RuntimeError as error:
            # The tool has acted: what it answered is kept, and the model is told what it lacks.
            note = f"[note: the answer does not fit the tool's outputSchema: {one_line(str(error), 300)}]"
            result.content.append(TextContent(type="text", text=note))

    session.validate_tool_result = validated


def repaired_result(
    method: str,
    result: dict[str, Any],
    fits: Callable[[dict[str, Any]], str],
    params: Mapping[str, Any],
    refuse: Refuse,
) -> dict[str, Any]:
    """Return a result with its valid parts; `fits` returns why a result is invalid, empty if it is valid."""
    result = {key: value for key, value in result.items() if not (key in _OPTIONAL and value is None)}
    if "nextCursor" in result:
        # The SDK accepts only a text, and some servers send a number.
        result["nextCursor"] = str(result["nextCursor"])
    if not isinstance(result.get("_meta", {}), dict):
        del result["_meta"]
    if method == "tools/call":
        _repair_answer(result)
    field = _LISTS.get(method) or _CONTENTS.get(method, "")
    given = result.get(field)
    if method in _CONTENTS and given is None:
        given = []
    # The result is invalid even without its items: repairing them would not help.
    if not isinstance(given, list) or fits({**result, field: []}):
        return result

    def why(one: Any) -> str:
        return fits({**result, field: [one]}) if isinstance(one, dict) else "it is not an object"

    if method in _LISTS:
        entries = [_entry(method, one) for one in given]
        return {
            **result,
            field: [
                one for place, one in enumerate(entries, 1) if _is_usable(one, place, field, why, refuse)
            ],
        }
    form = _text_block if method == "tools/call" else _text_content(str(params.get("uri") or ""))
    return {**result, field: [_block(one, why, form) for one in given]}


def _repair_answer(result: dict[str, Any]) -> None:
    if not isinstance(result.get("isError", False), bool):
        # A text such as "false" would be true.
        result["isError"] = str(result["isError"]).casefold() not in {"false", "0", ""}
    if not isinstance(result.get("content", []), list | None):
        result["content"] = [result["content"]]
    structured = result.get("structuredContent", {})
    if not isinstance(structured, dict):
        # The protocol allows an object only; FastMCP wraps other values the same way.
        result["structuredContent"] = {"result": structured}


def _entry(method: str, one: Any) -> Any:
    """Return a listed item without empty fields; a tool without an input schema gets an empty one."""
    if not isinstance(one, dict):
        return one
    kept = {key: value for key, value in one.items() if value is not None}
    if method == "tools/list":
        kept.setdefault("inputSchema", {"type": "object", "properties": {}})
        # With an invalid schema the SDK would refuse every answer of the tool.
        if not _is_schema(kept.get("outputSchema", {})):
            del kept["outputSchema"]
    return kept


def _is_schema(schema: Any) -> bool:
    from jsonschema import SchemaError  # with the SDK
    from jsonschema.validators import validator_for

    if not isinstance(schema, dict):
        return False
    try:
        validator_for(schema).check_schema(schema)
    except (SchemaError, RecursionError, TypeError):
        return False
    return True


def _is_usable(one: Any, place: int, field: str, why: Callable[[Any], str], refuse: Refuse) -> bool:
    name = one.get("name") or one.get("uri") or one.get("uriTemplate") if isinstance(one, dict) else None
    if problem := why(one):
        refuse(name if isinstance(name, str) else f"number {place} of {field}", problem)
    return not problem


def _block(one: Any, why: Callable[[Any], str], form: Callable[[Any], dict[str, Any]]) -> Any:
    kept = {key: value for key, value in one.items() if value is not None} if isinstance(one, dict) else one
    return form(kept) if why(kept) else kept


def _text_block(one: Any) -> dict[str, Any]:
    """Return a block that does not fit as text: its own, else what kind it is."""
    if not isinstance(one, dict):
        return {"type": "text", "text": _text(one)}
    said = one.get("text")
    if said is not None and one.get("type") in ("text", None):
        return {"type": "text", "text": _text(said)}
    kind = one_line(str(one.get("type") or "a content without a type"), 60)
    return {"type": "text", "text": f"[{kind}, not shown: it is not as the protocol says]"}


def _text_content(uri: str) -> Callable[[Any], dict[str, Any]]:
    def form(one: Any) -> dict[str, Any]:
        where = one.get("uri") if isinstance(one, dict) else None
        return {
            "uri": where if isinstance(where, str) and where else uri,
            "text": _text(one.get("text", "") if isinstance(one, dict) else one),
        }

    return form


def _text(value: Any) -> str:
    # Any value, also one that is not finite.
    from json import dumps

    return value if isinstance(value, str) else "" if value is None else dumps(value, ensure_ascii=False)


def _fits(method: str, version: str | None) -> Callable[[dict[str, Any]], str]:
    """Return a function that says why the SDK would reject a result of a method in a protocol version."""
    from mcp_types import methods
    from pydantic import ValidationError

    def why(result: dict[str, Any]) -> str:
        try:
            methods.validate_server_result(method, version or "2025-11-25", result)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(
                str(part) for part in first["loc"] if not isinstance(part, int) and part not in _NO_PLACE
            )
            return one_line(f"{place}: {first['msg']}" if place else first["msg"], 200)
        except (KeyError, ValueError, RecursionError):
            # A method or a version that the SDK does not validate.
            return ""
        return ""

    return why


_NO_PLACE: Final = frozenset({*_LISTS.values(), *_CONTENTS.values()})
