"""Bodies of six families of providers, written by hand after their documentation. None of them is a
recording.

- OpenAI, and servers that speak its protocol: the chat completion object and its chunks,
  `platform.openai.com/docs/api-reference/chat`;
  content as a list of parts, as in its schema of messages.
- Anthropic: `platform.claude.com/docs/en/build-with-claude/streaming` and `…/extended-thinking`,
  `…/prompt-caching`.
- Gemini: `ai.google.dev/api/generate-content` and `ai.google.dev/gemini-api/docs/thought-signatures`.
- DeepSeek: `api-docs.deepseek.com/guides/thinking_mode` and `…/api/create-chat-completion`.
- Mistral: `docs.mistral.ai/studio-api/conversations/reasoning`.
- Ollama with Qwen: `github.com/ollama/ollama/blob/main/docs/api.md`; the form of written calls is that of
  Qwen's chat template.

Each function returns one `Body` that says the same whole and streamed: it thinks "let me think", says a text
and may call `grep`.
"""

from __future__ import annotations

import json
from typing import Any

from replay_server import Body

THOUGHT = "let me think"
CALL = {"pattern": "a"}
USAGE = {
    "prompt_tokens": 1010,
    "completion_tokens": 50,
    "total_tokens": 1060,
    "prompt_tokens_details": {"cached_tokens": 900},
    "completion_tokens_details": {"reasoning_tokens": 30},
}


def chat(
    *deltas: dict[str, Any], finish: str = "stop", usage: dict[str, Any] | None = None, **message: Any
) -> Body:
    """A chat completion of the OpenAI protocol: the `message` whole, the `deltas` streamed."""
    head = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "m"}
    counted = USAGE if usage is None else usage
    whole = {
        **head,
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": counted,
    }
    chunk = {**head, "object": "chat.completion.chunk"}
    stream: list[dict[str, Any]] = [
        {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    stream += [
        {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": finish}]},
        {**chunk, "choices": [], "usage": counted},
    ]
    return Body(whole=whole, stream=stream)


def openai_call() -> Body:
    """OpenAI with a tool call; its reasoning is counted and not shown."""
    call = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": json.dumps(CALL)}}
    return chat(
        {"content": "I look."},
        {"tool_calls": [{"index": 0, **call}]},
        finish="tool_calls",
        content="I look.",
        tool_calls=[call],
    )


def openai_refusal() -> Body:
    """A refusal, which stands beside the content."""
    return chat({"refusal": "I cannot "}, {"refusal": "help."}, content=None, refusal="I cannot help.")


def text_blocks() -> Body:
    """Content as a list of parts, from an own server."""
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    return chat({"content": parts[:1]}, {"content": parts[1:]}, content=parts)


def thinking_blocks() -> Body:
    """Content as a list of parts of which one is thinking: Mistral, and own servers with its models."""
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": THOUGHT}]},
        {"type": "text", "text": "Hello"},
    ]
    return chat({"content": parts[:1]}, {"content": parts[1:]}, content=parts)


def deepseek(text: str = "Hello") -> Body:
    """DeepSeek in thinking mode, with its own names of cached tokens."""
    usage = {**USAGE, "prompt_cache_hit_tokens": 900, "prompt_cache_miss_tokens": 110}
    return chat(
        {"reasoning_content": THOUGHT},
        {"content": text},
        content=text,
        reasoning_content=THOUGHT,
        usage=usage,
    )


def deepseek_call() -> Body:
    """DeepSeek in thinking mode with a tool call."""
    call = {"id": "call_1", "type": "function", "function": {"name": "grep", "arguments": json.dumps(CALL)}}
    deltas = ({"reasoning_content": THOUGHT}, {"tool_calls": [{"index": 0, **call}]})
    return chat(*deltas, finish="tool_calls", content="", reasoning_content=THOUGHT, tool_calls=[call])


def anthropic(*content: dict[str, Any], stop: str = "end_turn") -> Body:
    """A message of Anthropic with these blocks, each streamed in the events of its kind."""
    head = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4-5",
        "stop_sequence": None,
    }
    read = {"input_tokens": 10, "cache_creation_input_tokens": 100, "cache_read_input_tokens": 900}
    whole = {**head, "content": [*content], "stop_reason": stop, "usage": {**read, "output_tokens": 50}}
    begun = {**head, "content": [], "stop_reason": None, "usage": {**read, "output_tokens": 1}}
    stream: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(content):
        empty, deltas = _block_events(block)
        stream.append({"type": "content_block_start", "index": index, "content_block": empty})
        stream += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        stream.append({"type": "content_block_stop", "index": index})
    stream.append(
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 50},
        }
    )
    return Body(form="anthropic", whole=whole, stream=[*stream, {"type": "message_stop"}])


def _block_events(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match block["type"]:
        case "thinking":
            pieces = [block["thinking"][:4], block["thinking"][4:]]
            deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
            return {**block, "thinking": "", "signature": ""}, [
                *deltas,
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        case "text":
            return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        case "tool_use":
            return {**block, "input": {}}, [
                {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
            ]
        case _:  # redacted thinking comes whole
            return block, []


def anthropic_call() -> Body:
    """Anthropic with extended thinking and a tool call: a signed block, a redacted one, text, the call."""
    return anthropic(
        {"type": "thinking", "thinking": THOUGHT, "signature": "c2lnbmVk"},
        {"type": "redacted_thinking", "data": "cmVkYWN0ZWQ="},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "toolu_1", "name": "grep", "input": CALL},
        stop="tool_use",
    )


def gemini(*parts: dict[str, Any], finish: str = "STOP") -> Body:
    """An answer of Gemini with these parts."""
    answer = {
        "candidates": [{"content": {"role": "model", "parts": [*parts]}, "finishReason": finish, "index": 0}],
        "usageMetadata": {
            "promptTokenCount": 1010,
            "candidatesTokenCount": 20,
            "thoughtsTokenCount": 30,
            "totalTokenCount": 1060,
            "cachedContentTokenCount": 900,
        },
        "modelVersion": "gemini-2.5-pro",
        "responseId": "r1",
    }
    return Body(form="gemini", whole=answer, stream=[answer])


def gemini_call() -> Body:
    """Gemini with a summary of its thoughts and a call that carries a signature."""
    call = {"functionCall": {"name": "grep", "args": CALL}, "thoughtSignature": "Z2VtaW5p"}
    return gemini({"text": THOUGHT, "thought": True}, {"text": "I look."}, call)


def ollama(content: str, thinking: str = THOUGHT, done_reason: str = "stop") -> Body:
    """An answer of an Ollama server."""
    head = {"model": "qwen3", "created_at": "2026-01-01T00:00:00Z"}
    counted = {"done": True, "done_reason": done_reason, "prompt_eval_count": 1010, "eval_count": 50}
    whole = {**head, "message": {"role": "assistant", "content": content, "thinking": thinking}, **counted}
    thought = {**head, "message": {"role": "assistant", "content": "", "thinking": thinking}, "done": False}
    said = {**head, "message": {"role": "assistant", "content": content}, "done": False}
    last = {**head, "message": {"role": "assistant", "content": ""}, **counted}
    return Body(form="ollama", whole=whole, stream=[*([thought] if thinking else []), said, last])


def qwen_call() -> Body:
    """Qwen behind Ollama, which writes its call as text as its template has it."""
    return ollama(f'I look.\n<tool_call>\n{{"name": "grep", "arguments": {json.dumps(CALL)}}}\n</tool_call>')
