"""Sessions of OpenCode as `opencode export` writes them: messages with parts, and snapshots of the folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    read_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import Broken, JsonFields


def is_opencode_message(value: Any) -> bool:
    """Return whether a JSON value is a message of OpenCode with its parts."""
    return (
        isinstance(value, dict)
        and isinstance(value.get("parts"), list)
        and isinstance(info := value.get("info"), dict)
        and info.get("role") in ("user", "assistant")
    )


def is_opencode_session(value: Any) -> bool:
    """Return whether a JSON value is an exported session of OpenCode."""
    return (
        isinstance(value, dict)
        and isinstance(messages := value.get("messages"), list)
        and any(map(is_opencode_message, messages[:4]))
    )


def opencode_session(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of an exported session."""
    session = JsonFields(value, source, [], whole=True)
    return _read_session(session.parts("messages"), source, session.fields("info"))


def opencode_messages(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of the messages of a session alone."""
    return _read_session(parts, source, JsonFields({}, source, []))


def _read_session(parts: Sequence[tuple[str, Any]], source: str, about: JsonFields) -> Recording:
    """Return the recording of the messages of a session.

    Each step of the agent is an answer. Where the snapshots before and after a step are known, its calls say
    which files were other ones: none, or those of its patch.
    """
    system: list[str] = []
    left_out: list[Broken] = about.left_out
    messages = read_parts(parts, lambda message: _read_message(message, system), left_out)
    session_id = about.label("id")
    return Recording(
        format="opencode",
        source=source,
        id=session_id,
        digest=record_digest("opencode", session_id, [part for _, part in parts]),
        model=next((message.model for message in messages if message.model), "unknown"),
        system="\n\n".join(dict.fromkeys(system)),
        messages=messages,
        facts={name: about[name] for name in ("title", "directory", "version") if about.get(name)},
        left_out=tuple(left_out),
    )


def _read_message(message: JsonFields, system: list[str]) -> Iterator[ImportedMessage]:
    info, parts = message.fields("info"), message.objects("parts")
    if not isinstance(message.get("parts"), list):
        raise ValueError("it has no parts")
    at = info.fields("time").seconds("created", scale=1000)
    if info["role"] == "user":
        if guidance := info.text("system"):
            system.append(guidance)
        texts = [_user_text(part) for part in parts]
        yield ImportedMessage(role="user", text="\n\n".join(filter(None, texts)), at=at)
        return
    if info["role"] != "assistant":
        raise ValueError(f"a message has the role {info['role']!r}")
    steps: list[list[JsonFields]] = [[]]
    for part in parts:
        if part.text("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    for step in steps:
        yield from _read_step(step, info, at, alone=len(steps) == 1)
    if info.get("error") is not None:
        error = info.fields("error")
        yield ImportedMessage(
            role="note", text=f"error: {error.fields('data').text('message') or error.text('name')}", at=at
        )


def _user_text(part: JsonFields) -> str:
    if part.text("type") == "text":
        return part.text("text")
    return f"[{part.text('type')} {part.text('filename', 'name')}]".replace(" ]", "]")


def _read_step(
    step: Sequence[JsonFields], info: JsonFields, began: float | None, *, alone: bool
) -> Iterator[ImportedMessage]:
    tools = [part for part in step if part.text("type") == "tool"]
    finish = next((part for part in step if part.text("type") == "step-finish"), None)
    empty = JsonFields({}, info.place, info.left_out)
    spent = finish if finish is not None else info if alone else empty
    tokens = spent.fields("tokens")
    cached = tokens.fields("cache")
    thought = tokens.count("reasoning") or 0
    ended = info.fields("time").seconds("completed", scale=1000) if alone else None
    calls = read_calls(tools, _read_tool_call)
    made = [part for part in tools if part.label("callID") in {call.id for call in calls}]
    starts = [part.fields("state").fields("time").seconds("start", scale=1000) for part in made]
    text = "\n\n".join(part.text("text") for part in step if part.text("type") == "text")
    thinking = "\n\n".join(part.text("text") for part in step if part.text("type") == "reasoning")
    if not (text or thinking or calls):
        return
    read, written = tokens.count("input"), tokens.count("output")
    yield ImportedMessage(
        role="assistant",
        text=text,
        thinking=thinking,
        calls=calls,
        at=min((start for start in starts if start), default=ended) or began,
        # It counts what the cache gave, and thoughts, apart.
        tokens_in=None if read is None else read + (cached.count("read") or 0) + (cached.count("write") or 0),
        tokens_out=None if written is None else written + thought,
        tokens_cached=cached.count("read") or 0,
        tokens_reasoning=thought,
        # It writes 0 where it has no price.
        cost_usd=spent.amount("cost") or None,
        model="/".join(filter(None, (info.text("providerID"), info.text("modelID")))),
    )
    touched = _touched_files(step, finish)
    for part in made:
        yield _read_result(part, touched)


def _read_tool_call(part: JsonFields) -> ImportedCall:
    return read_call(part["tool"], part.fields("state").get("input"), part.label("callID"))


def _touched_files(step: Sequence[JsonFields], finish: JsonFields | None) -> tuple[str, ...] | None:
    """Return the files that are other ones after a step; `None` where a snapshot is missing."""
    before = next((part.text("snapshot") for part in step if part.text("type") == "step-start"), "")
    after = "" if finish is None else finish.text("snapshot")
    if not before or not after:
        return None
    patches = [part for part in step if part.text("type") == "patch"]
    if before != after and not patches:
        return None
    return tuple(dict.fromkeys(name for part in patches for name in part.texts("files")))


def _read_result(part: JsonFields, touched: tuple[str, ...] | None) -> ImportedMessage:
    state = part.fields("state")
    times = state.fields("time")
    error = (state.text("error") or "failed") if state.get("status") == "error" else ""
    began, ended = times.seconds("start", scale=1000), times.seconds("end", scale=1000)
    return ImportedMessage(
        role="tool",
        text=state.text("output") or error,
        call=part.label("callID"),
        error=error,
        at=ended,
        seconds=max(0.0, ended - began) if began is not None and ended is not None else 0.0,
        touched=touched,
    )
