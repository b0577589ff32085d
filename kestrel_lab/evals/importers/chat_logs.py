"""Chat logs in the form of OpenAI's API, one JSON object a line: `messages` with `tool_calls`, alone or as request and response."""

from __future__ import annotations

import json
from typing import Any, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.importers.imported_run import Asked, Recording, Said, digest


def is_chat(value: Any) -> bool:
    """Return whether a JSON value looks like a recorded conversation."""
    return isinstance(value, dict) and isinstance(_request(value).get("messages"), list)


def chat_recording(value: dict[str, Any], source: str, suite: str) -> Recording:
    """Return the recording of one conversation.

    `messages` stand at the top or under `request` or `body`; an answer in `choices`, at the top or under `response` (`body`),
    is the last message. `id`, `model`, `tools`, `usage`, `created` and `metadata` are taken from either where they are there.
    Usage is that of the last answer, so earlier ones are unknown. Nobody judged it: give a suite whose checks do.
    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    request, answer = _request(value), _response(value)
    messages = [*request["messages"], *(choice["message"] for choice in (answer.get("choices") or ())[:1])]
    system = [_text(message) for message in messages if message["role"] in ("system", "developer")]
    usage, created = answer.get("usage") or {}, answer.get("created")
    said = [_said(message) for message in messages if message["role"] not in ("system", "developer")]
    if usage and said and said[-1].role == "assistant":
        cost = usage.get("cost")
        said[-1] = Said(
            role="assistant", text=said[-1].text, calls=said[-1].calls, tokens_in=int(usage["prompt_tokens"]),
            tokens_out=int(usage["completion_tokens"]), cost_usd=None if cost is None else float(cost),
        )  # fmt: skip
    metadata = value.get("metadata") or {}
    known = next((one for one in (value.get("id"), value.get("custom_id"), answer.get("id")) if one), "")
    return Recording(
        format="chat",
        source=source,
        id=str(known),
        digest=digest("chat", value),
        model=str(answer.get("model") or request.get("model") or value.get("model") or "unknown"),
        system="\n\n".join(system),
        messages=said,
        tools=tuple(_tool(tool) for tool in request.get("tools") or ()),
        began=None if created is None else float(created),
        suite=suite,
        scenario=str(metadata.get("scenario") or value.get("scenario") or known),
        facts={"metadata": metadata} if metadata else {},
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    return next((one for key in ("request", "body") if isinstance(one := value.get(key), dict)), value)


def _response(value: dict[str, Any]) -> dict[str, Any]:
    found = value.get("response")
    if not isinstance(found, dict):
        return value
    return found["body"] if isinstance(found.get("body"), dict) else found


def _said(message: dict[str, Any]) -> Said:
    role = message["role"]
    if role == "assistant":
        written = (
            message.get("tool_calls") or [{"function": message["function_call"]}]
            if message.get("function_call")
            else message.get("tool_calls")
        )
        text = "\n\n".join(filter(None, (_text(message), str(message.get("refusal") or ""))))
        return Said(role="assistant", text=text, calls=tuple(_asked(call) for call in written or ()))
    if role in ("tool", "function"):
        return Said(role="tool", text=_text(message), call=str(message.get("tool_call_id") or ""))
    if role != "user":
        raise ValueError(f"a message has the role {role!r}")
    return Said(role="user", text=_text(message))


def _asked(call: dict[str, Any]) -> Asked:
    function, known = call["function"], str(call.get("id") or "")
    given = function.get("arguments")
    if isinstance(given, dict):
        return Asked(tool=str(function["name"]), args=given, id=known)
    try:
        args = json.loads(given or "{}")
    except ValueError as error:
        return Asked(tool=str(function["name"]), args={}, id=known, problem=f"its arguments are not JSON: {error}")
    problem = "" if isinstance(args, dict) else "its arguments are no JSON object"
    return Asked(tool=str(function["name"]), args={} if problem else args, id=known, problem=problem)


def _text(message: dict[str, Any]) -> str:
    """Return the text of a message; parts that are no text are named and not shown."""
    content = message.get("content")
    if not isinstance(content, list):
        return str(content or "")
    parts = [part if isinstance(part, str) else str(part.get("text") or f"[{part.get('type', 'part')}]") for part in content]
    return "\n\n".join(parts)


def _tool(tool: dict[str, Any]) -> dict[str, Json]:
    function = tool.get("function") or tool
    return {
        "name": str(function["name"]),
        "description": str(function.get("description") or ""),
        "schema": cast("Json", function.get("parameters") or {}),
    }
