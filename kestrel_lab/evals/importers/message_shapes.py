"""Messages of chats as other libraries write them, as those of OpenAI or of Anthropic with its blocks.

LangChain has `type` in place of a role, and writes messages plain, under `data`, or as objects with `kwargs`.
The Responses API of OpenAI has items beside messages, Gemini has `parts`, and data for training has `from`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

_ROLES: Final = {
    "human": "user",
    "ai": "assistant",
    "aichunk": "assistant",
    "model": "assistant",
    "gpt": "assistant",
    "chat": "user",
    "function": "tool",
}
"""Roles of others, in lower case and without the word message."""


def plain_message(value: Any, role: str = "") -> dict[str, Any] | None:
    """Return a message with a role and `content` or `tool_calls`; `None` for what is none, such as the items
    of a response in which a model reasons.

    `role` is that of a message that does not say its own. Raises `KeyError` or `TypeError` for one that
    begins as a message and goes on otherwise.
    """
    if not isinstance(value, Mapping):
        return None
    # LangChain serialises an object with its `kwargs`.
    if isinstance(value.get("kwargs"), Mapping):
        value = {"type": value["kwargs"].get("type") or value["id"][-1], **value["kwargs"]}
    elif isinstance(value.get("data"), Mapping) and "role" not in value:
        value = {"type": value.get("type"), **value["data"]}
    kind = str(value.get("type") or "")
    if kind in ("function_call", "custom_tool_call"):
        return _asked([value], value.get("arguments", value.get("input")))
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": value["call_id"], "content": value.get("output")}
    said = value.get("role") or value.get("from") or (role if kind == "message" else kind) or role
    known = str(said).lower().removesuffix("chunk").removesuffix("message")
    found = {**value, "role": _ROLES.get(known, known)}
    if isinstance(parts := value.get("parts"), list) and "content" not in value:
        found["content"] = [_block(part) for part in parts]
    elif "from" in value and "value" in value:
        found["content"] = value["value"]
    calls = _calls(value)
    if "content" not in found and not calls:
        return {"role": role, "content": str(value["text"])} if role and "text" in value else None
    return {**found, "tool_calls": calls} if calls or "tool_calls" in value else found


def plain_items(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield messages with their places: the calls that a response lists one by one are one message."""
    calls: list[Mapping[str, Any]] = []
    first = ""
    for place, value in values:
        if isinstance(value, Mapping) and value.get("type") == "function_call":
            first, calls = (first if calls else place), [*calls, value]
            continue
        if calls:
            yield first, _asked(calls)
            calls = []
        if not (isinstance(value, Mapping) and value.get("type") == "reasoning"):
            yield place, value
    if calls:
        yield first, _asked(calls)


def _asked(calls: Iterable[Mapping[str, Any]], args: Any = None) -> dict[str, Any]:
    asked = [
        {
            "id": one.get("call_id"),
            "function": {"name": one["name"], "arguments": args or one.get("arguments")},
        }
        for one in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": asked}


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    more = message.get("additional_kwargs") or {}
    return [
        call
        if isinstance(call.get("function"), dict)
        else {"id": call.get("id"), "function": {"name": call["name"], "arguments": call.get("args") or {}}}
        for call in message.get("tool_calls") or more.get("tool_calls") or ()
    ]


def _block(part: Any) -> Any:
    """Return a part of a message of Gemini as a block."""
    if not isinstance(part, Mapping):
        return part
    call = part.get("functionCall") or part.get("function_call")
    answer = part.get("functionResponse") or part.get("function_response")
    if isinstance(call, Mapping):
        return {
            "type": "tool_use",
            "id": call.get("id") or "",
            "name": call["name"],
            "input": call.get("args"),
        }
    if isinstance(answer, Mapping):
        text = json.dumps(answer.get("response"), ensure_ascii=False)
        return {"type": "tool_result", "tool_use_id": answer.get("id") or "", "content": text}
    return {"type": "thinking", "thinking": part.get("text")} if part.get("thought") else part
