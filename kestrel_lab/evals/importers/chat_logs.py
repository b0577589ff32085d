"""Chat logs in the form of OpenAI's API, one JSON object a line: `messages` with `tool_calls`, alone or as
request and response.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from kestrel_lab.evals.importers.imported_run import (
    ImportedMessage,
    Recording,
    offered_tool,
    read_call,
    read_messages,
    record_digest,
    text_of,
)


def is_chat(value: Any) -> bool:
    """Return whether a JSON value looks like a recorded conversation."""
    return isinstance(value, dict) and isinstance(_request(value).get("messages"), list)


def chat_recording(value: dict[str, Any], source: str, suite: str) -> Recording:
    """Return the recording of one conversation.

    `messages` stand at the top or under `request` or `body`; an answer in `choices`, at the top or under
    `response` (`body`), is the last message. One that cannot be read, of a role of another tool for instance,
    is in `left_out`. `id`, `model`, `tools`, `usage`, `created` and `metadata` are taken from either where
    they are there. Usage is that of the last answer, so earlier ones are unknown. Nobody judged it: give a
    suite whose checks do. Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    request, answer = _request(value), _response(value)
    messages = [
        *request["messages"],
        *(choice.get("message") for choice in (answer.get("choices") or ())[:1]),
    ]
    system: list[str] = []

    def read(message: dict[str, Any]) -> ImportedMessage | None:
        if message["role"] in ("system", "developer"):
            system.append(text_of(message.get("content")))
            return None
        return _read_message(message)

    said, left_out = read_messages(messages, read, source)
    usage, created = answer.get("usage") or {}, answer.get("created")
    if usage and said and said[-1].role == "assistant":
        cost = usage.get("cost")
        tokens_in, tokens_out = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
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


def _read_message(message: dict[str, Any]) -> ImportedMessage:
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
        )
    if role in ("tool", "function"):
        return ImportedMessage(role="tool", text=text, call=str(message.get("tool_call_id") or ""))
    if role != "user":
        raise ValueError(f"a message has the role {role!r}")
    return ImportedMessage(role="user", text=text)
