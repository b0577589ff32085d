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
_CALL_ITEMS: Final = ("function_call", "custom_tool_call")


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
    if kind in _CALL_ITEMS:
        return _message_of_calls([value])
    if kind in ("function_call_output", "custom_tool_call_output"):
        return {"role": "tool", "tool_call_id": value["call_id"], "content": value.get("output")}
    speaker = value.get("role") or value.get("from") or (role if kind == "message" else kind) or role
    name = str(speaker).lower().removesuffix("chunk").removesuffix("message")
    message = {**value, "role": _ROLES.get(name, name)}
    if isinstance(parts := value.get("parts"), list) and "content" not in value:
        message["content"] = [_anthropic_block(part) for part in parts]
    elif "from" in value and "value" in value:
        message["content"] = value["value"]
    calls = _openai_calls(value)
    if "content" not in message and not calls:
        return {"role": role, "content": value["text"]} if role and "text" in value else None
    return {**message, "tool_calls": calls} if calls or "tool_calls" in value else message


def plain_items(values: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield messages with their places: the calls that a response lists one by one are one message."""
    calls: list[Mapping[str, Any]] = []
    first = ""
    for place, value in values:
        if isinstance(value, Mapping) and value.get("type") in _CALL_ITEMS:
            first, calls = (first if calls else place), [*calls, value]
            continue
        if calls:
            yield first, _message_of_calls(calls)
            calls = []
        if not (isinstance(value, Mapping) and value.get("type") == "reasoning"):
            yield place, value
    if calls:
        yield first, _message_of_calls(calls)


def _message_of_calls(items: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    calls = []
    for item in items:
        arguments = item.get("arguments")
        if arguments is None and (free_text := item.get("input")) is not None:
            # A custom tool is called with a text and not with an object.
            arguments = {"input": free_text}
        calls.append(
            {"id": item.get("call_id"), "function": {"name": item.get("name"), "arguments": arguments}}
        )
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _openai_calls(message: Mapping[str, Any]) -> Any:
    """Return the calls of a message in OpenAI's form; what is none stays as it is, for its reader to note."""
    more = message.get("additional_kwargs")
    listed = message.get("tool_calls") or (more.get("tool_calls") if isinstance(more, Mapping) else None)
    if not isinstance(listed, list):
        return listed
    return [_openai_form(call) for call in listed]


def _openai_form(call: Any) -> Any:
    if not isinstance(call, Mapping) or "function" in call or "name" not in call:
        return call
    return {"id": call.get("id"), "function": {"name": call["name"], "arguments": call.get("args")}}


def _anthropic_block(part: Any) -> Any:
    """Return a part of a message of Gemini as a block."""
    if not isinstance(part, Mapping):
        return part
    call = part.get("functionCall") or part.get("function_call")
    answer = part.get("functionResponse") or part.get("function_response")
    if isinstance(call, Mapping):
        return {
            "type": "tool_use",
            "id": call.get("id") or "",
            "name": call.get("name"),
            "input": call.get("args"),
        }
    if isinstance(answer, Mapping):
        text = json.dumps(answer.get("response"), ensure_ascii=False)
        return {"type": "tool_result", "tool_use_id": answer.get("id") or "", "content": text}
    return {"type": "thinking", "thinking": part.get("text")} if part.get("thought") else part
