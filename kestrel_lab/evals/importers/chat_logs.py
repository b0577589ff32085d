"""Chat logs: `messages` alone, or as request and response, in the forms of OpenAI, Anthropic, Gemini and
LangChain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    ImportedMessage,
    Recording,
    declared_effects,
    offered_tool,
    read_call,
    read_parts,
    record_digest,
    text_of,
)
from kestrel_lab.evals.importers.message_shapes import plain_items, plain_message

_BLOCKS: Final = ("tool_use", "tool_result", "thinking", "redacted_thinking")


def is_chat(value: Any) -> bool:
    """Return whether a JSON value looks like a recorded conversation."""
    return isinstance(value, dict) and _asked(_request(value)) is not None


def _asked(request: dict[str, Any]) -> list[Any] | None:
    """Return the messages of a request; `None` where there are none."""
    held = next((request[key] for key in ("messages", "conversations", "contents") if key in request), None)
    # The Responses API has its answer under `output`.
    if held is None and isinstance(request.get("output"), list):
        given = request.get("input")
        held = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return held if isinstance(held, list) else None


def _answered(answer: dict[str, Any]) -> list[Any]:
    """Return the messages of a response: the first choice, the items of an output, or one of Anthropic."""
    found = [choice.get("message") for choice in (answer.get("choices") or ())[:1]]
    if not found and isinstance(answer.get("output"), list):
        return list(answer["output"])
    return found or ([answer] if answer.get("type") == "message" and "content" in answer else [])


def chat_recording(value: dict[str, Any], source: str, suite: str) -> Recording:
    """Return the recording of one conversation.

    `messages` stand at the top or under `request` or `body`; an answer in `choices`, at the top or under
    `response` (`body`), is the last message. One that cannot be read, of a role of another tool for instance,
    is in `left_out`. `id`, `model`, `tools`, `usage`, `created` and `metadata` are taken from either where
    they are there. Usage is that of the last answer, so earlier ones are unknown. Nobody judged it: give a
    suite whose checks do. Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    request, answer = _request(value), _response(value)
    messages = [*(_asked(request) or ()), *_answered(answer)]
    guidance = request.get("system") or request.get("instructions")
    system = [text_of(guidance)] if guidance else []
    parts = plain_items((f"{source} messages[{number}]", one) for number, one in enumerate(messages))
    said, left_out = read_parts(parts, lambda message: chat_messages(message, system))
    usage, created = answer.get("usage") or {}, answer.get("created")
    if usage and said and said[-1].role == "assistant":
        cost = usage.get("cost")
        tokens_in = _count(usage, "prompt_tokens", "input_tokens")
        tokens_out = _count(usage, "completion_tokens", "output_tokens")
        said[-1] = replace(
            said[-1],
            tokens_in=tokens_in,
            tokens_out=tokens_out,
            cost_usd=None if cost is None else float(cost),
        )
    metadata = value.get("metadata") or {}
    known = next((one for one in (value.get("id"), value.get("custom_id"), answer.get("id")) if one), "")
    return Recording(
        format="chat",
        source=source,
        id=str(known),
        digest=record_digest("chat", value),
        model=str(answer.get("model") or request.get("model") or value.get("model") or "unknown"),
        system="\n\n".join(system),
        messages=said,
        tools=tuple(offered_tool(tool.get("function") or tool) for tool in request.get("tools") or ()),
        declared=declared_effects(request.get("tools") or ()),
        began=None if created is None else float(created),
        suite=suite,
        scenario=str(metadata.get("scenario") or value.get("scenario") or known),
        facts={"metadata": metadata} if metadata else {},
        left_out=left_out,
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    return next((one for key in ("request", "body") if isinstance(one := value.get(key), dict)), value)


def _response(value: dict[str, Any]) -> dict[str, Any]:
    found = value.get("response")
    if not isinstance(found, dict):
        return value
    return found["body"] if isinstance(found.get("body"), dict) else found


def _count(usage: Mapping[str, Any], *names: str) -> int | None:
    return next((int(usage[name]) for name in names if usage.get(name) is not None), None)


def is_message(value: Any) -> bool:
    """Return whether a JSON value is one message of a conversation: a role, and content or calls."""
    try:
        found = plain_message(value)
    except UNREADABLE:
        return False
    return found is not None and found["role"] in (
        "system",
        "developer",
        "user",
        "assistant",
        "tool",
        "function",
    )


def list_recording(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a conversation that is a list of messages and nothing else, see
    `message_shapes`.
    """
    system: list[str] = []
    said, left_out = read_parts(plain_items(parts), lambda message: chat_messages(message, system))
    return Recording(
        format="messages",
        source=source,
        id="",
        digest=record_digest("messages", [value for _, value in parts]),
        model="unknown",
        system="\n\n".join(system),
        messages=said,
        left_out=left_out,
    )


def chat_messages(message: Mapping[str, Any], system: list[str]) -> list[ImportedMessage]:
    """Return what a message of a chat is: nothing for a system message, which is added to `system`; several
    for a message of Anthropic with results of calls.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    message = plain_message(message) or message
    if message["role"] in ("system", "developer"):
        system.append(text_of(message.get("content")))
        return []
    content = message.get("content")
    blocks = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []
    if not any(part.get("type") in _BLOCKS for part in blocks):
        return [_read_message(message)]
    rest = text_of([part for part in blocks if part.get("type") not in _BLOCKS])
    if message["role"] == "assistant":
        calls = [part for part in blocks if part.get("type") == "tool_use"]
        asked = tuple(read_call(part["name"], part.get("input") or {}, part.get("id")) for part in calls)
        thought = "\n\n".join(filter(None, (str(part.get("thinking") or "") for part in blocks)))
        return [ImportedMessage(role="assistant", text=rest, calls=asked, thinking=thought)]
    results = [_block_result(part) for part in blocks if part.get("type") == "tool_result"]
    return [*results, *([ImportedMessage(role="user", text=rest)] if rest else [])]


def _block_result(part: Mapping[str, Any]) -> ImportedMessage:
    text = text_of(part.get("content"))
    error = (text or "failed") if part.get("is_error") else ""
    return ImportedMessage(role="tool", text=text, call=str(part["tool_use_id"]), error=error)


def _read_message(message: Mapping[str, Any]) -> ImportedMessage:
    role, text = message["role"], text_of(message.get("content"))
    if role == "assistant":
        calls = message.get("tool_calls") or (
            [{"function": message["function_call"]}] if message.get("function_call") else []
        )
        asked = tuple(
            read_call(call["function"]["name"], call["function"].get("arguments"), call.get("id"))
            for call in calls
        )
        return ImportedMessage(
            role="assistant",
            text="\n\n".join(filter(None, (text, str(message.get("refusal") or "")))),
            calls=asked,
            thinking=str(message.get("reasoning_content") or ""),
        )
    if role in ("tool", "function"):
        return ImportedMessage(role="tool", text=text, call=str(message.get("tool_call_id") or ""))
    if role != "user":
        raise ValueError(f"a message has the role {role!r}")
    return ImportedMessage(role="user", text=text)
