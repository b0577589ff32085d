"""Chat logs: `messages` alone, or as request and response, in the forms of OpenAI, Anthropic, Gemini and
LangChain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    declared_effects,
    offered_tools,
    openai_call,
    read_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import (
    UNREADABLE,
    Broken,
    JsonFields,
    MessageContent,
    read_seconds,
)
from kestrel_lab.evals.importers.message_shapes import plain_items, plain_message

_BLOCKS: Final = ("tool_use", "tool_result")
_ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")


def is_chat(value: Any) -> bool:
    """Return whether a JSON value looks like a recorded conversation."""
    return isinstance(value, dict) and _asked_messages(_request(value)) is not None


def _asked_messages(request: Mapping[str, Any]) -> list[Any] | None:
    """Return the messages of a request; `None` where there are none."""
    held = next((request[key] for key in ("messages", "conversations", "contents") if key in request), None)
    # The Responses API has its answer under `output`.
    if held is None and isinstance(request.get("output"), list):
        asked = request.get("input")
        held = [{"role": "user", "content": asked}] if isinstance(asked, str) else asked
    return held if isinstance(held, list) else None


def _answered_messages(answer: JsonFields) -> list[Any]:
    """Return the messages of a response: the first choice, the items of an output, or one of Anthropic."""
    if choices := answer.parts("choices"):
        choice = choices[0][1]
        return [choice.get("message") if isinstance(choice, Mapping) else choice]
    if isinstance(answer.get("output"), list):
        return list(answer["output"])
    return [dict(answer)] if answer.get("type") == "message" and "content" in answer else []


def chat_recording(value: dict[str, Any], source: str, suite: str) -> Recording:
    """Return the recording of one conversation.

    `messages` stand at the top or under `request` or `body`; an answer in `choices`, at the top or under
    `response` (`body`), is the last message. What cannot be read, a message of a role of another tool for
    instance, is in `left_out`. `id`, `model`, `tools`, `usage`, `created` and `metadata` are taken from
    either where they are there. Usage is that of the last answer, so earlier ones are unknown. Nobody judged
    it: give a suite whose checks do.
    """
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    request = JsonFields(_request(value), source, left_out, whole=True)
    answer = JsonFields(_response(value), source, left_out, whole=True)
    messages = [*(_asked_messages(request) or ()), *_answered_messages(answer)]
    guidance = request.content("system", "instructions").text
    system = [guidance] if guidance else []
    parts = plain_items((f"{source} messages[{number}]", one) for number, one in enumerate(messages))
    said = read_parts(parts, lambda message: chat_messages(message, system), left_out)
    usage = answer.fields("usage")
    if usage and said and said[-1].role == "assistant":
        said[-1] = replace(
            said[-1],
            tokens_in=usage.count("prompt_tokens", "input_tokens"),
            tokens_out=usage.count("completion_tokens", "output_tokens"),
            tokens_cached=usage.fields("prompt_tokens_details", "input_tokens_details").count("cached_tokens")
            or 0,
            tokens_reasoning=usage.fields("completion_tokens_details", "output_tokens_details").count(
                "reasoning_tokens"
            )
            or 0,
            cost_usd=usage.amount("cost"),
        )
    metadata = record.fields("metadata")
    known = record.label("id", "custom_id") or answer.label("id")
    tools = request.objects("tools")
    return Recording(
        format="chat",
        source=source,
        id=known,
        digest=record_digest("chat", value),
        model=answer.text("model") or request.text("model") or record.text("model") or "unknown",
        system="\n\n".join(system),
        messages=said,
        tools=offered_tools(tools),
        declared=declared_effects(tools),
        began=answer.read("created", read_seconds),
        suite=suite,
        scenario=metadata.label("scenario") or record.label("scenario") or known,
        group=metadata.label("group", "conversation_id"),
        facts={"metadata": dict(metadata)} if metadata else {},
        left_out=tuple(dict.fromkeys(left_out)),
    )


def _request(value: dict[str, Any]) -> dict[str, Any]:
    return next((one for key in ("request", "body") if isinstance(one := value.get(key), dict)), value)


def _response(value: dict[str, Any]) -> dict[str, Any]:
    response = value.get("response")
    if not isinstance(response, dict):
        return value
    return response["body"] if isinstance(response.get("body"), dict) else response


def is_message(value: Any) -> bool:
    """Return whether a JSON value is one message of a conversation: a role, and content or calls."""
    try:
        message = plain_message(value)
    except UNREADABLE:
        return False
    return message is not None and message["role"] in _ROLES


def list_recording(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a conversation that is a list of messages and nothing else, see
    `message_shapes`.
    """
    system: list[str] = []
    left_out: list[Broken] = []
    said = read_parts(plain_items(parts), lambda message: chat_messages(message, system), left_out)
    return Recording(
        format="messages",
        source=source,
        id="",
        digest=record_digest("messages", [value for _, value in parts]),
        model="unknown",
        system="\n\n".join(system),
        messages=said,
        left_out=tuple(left_out),
    )


def chat_messages(given: JsonFields, system: list[str]) -> list[ImportedMessage]:
    """Return what a message of a chat is: nothing for a system message, which is added to `system`; several
    for a message of Anthropic with results of calls.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    plain = plain_message(given)
    message = given if plain is None else JsonFields(plain, given.place, given.left_out)
    role, content = message["role"], message.content("content", skip=_BLOCKS)
    if role in ("system", "developer"):
        system.append(content.text)
        return []
    blocks = [block for block in _content_blocks(message) if block.get("type") in _BLOCKS]
    if role == "assistant":
        return [_read_answer(message, content, blocks)]
    if role == "user" and blocks:
        results = [_block_result(block) for block in blocks if block["type"] == "tool_result"]
        return [*results, *([ImportedMessage(role="user", text=content.text)] if content.text else [])]
    if role in ("tool", "function"):
        call = message.label("tool_call_id")
        error = (content.text or "failed") if message.get("status") == "error" else ""
        return [ImportedMessage(role="tool", text=content.text, call=call, error=error)]
    if role != "user":
        raise ValueError(f"a message has the role {role!r}")
    if message.get("content") is None:
        raise ValueError("a message of a user has no content")
    return [ImportedMessage(role="user", text=content.text)]


def _content_blocks(message: JsonFields) -> list[JsonFields]:
    content = message.get("content")
    if not isinstance(content, list):
        return []
    place = message.place_of("content")
    return [
        JsonFields(block, f"{place}[{index}]", message.left_out)
        for index, block in enumerate(content)
        if isinstance(block, Mapping)
    ]


def _read_answer(
    message: JsonFields, content: MessageContent, blocks: Sequence[JsonFields]
) -> ImportedMessage:
    calls = read_calls([block for block in blocks if block["type"] == "tool_use"], _block_call)
    # LangChain repeats the calls of its blocks in the form of OpenAI.
    calls = calls or read_calls(message.objects("tool_calls"), openai_call)
    if not calls and message.get("function_call") is not None:
        legacy = JsonFields({"function": message["function_call"]}, message.place, message.left_out)
        calls = read_calls([legacy], openai_call)
    thinking = (
        content.thinking,
        message.text("reasoning_content"),
        message["reasoning"] if isinstance(message.get("reasoning"), str) else "",
        message.fields("additional_kwargs").text("reasoning_content"),
    )
    return ImportedMessage(
        role="assistant",
        text="\n\n".join(filter(None, (content.text, message.text("refusal")))),
        calls=calls,
        thinking="\n\n".join(dict.fromkeys(filter(None, thinking))),
    )


def _block_call(block: JsonFields) -> ImportedCall:
    return read_call(block["name"], block.get("input"), block.label("id"))


def _block_result(block: JsonFields) -> ImportedMessage:
    text = block.content("content").text
    error = (text or "failed") if block.flag("is_error") else ""
    return ImportedMessage(role="tool", text=text, call=block.label("tool_use_id"), error=error)
