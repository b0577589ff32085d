"""Sessions of Gemini CLI (`~/.gemini/tmp/PROJECT/chats/session-*.json`, `.jsonl` in later versions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    read_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import Broken, JsonFields, UnreadNumber, describe_type

_PARTS: Final = frozenset(
    "text thought functionCall functionResponse inlineData fileData executableCode "
    "codeExecutionResult".split()
)
"""What Gemini calls the kinds of parts of a content."""


def is_gemini_line(value: Any) -> bool:
    """Return whether a JSON value is a line of a session of Gemini CLI: its head, or a model's answer."""
    return is_gemini_session(value) or (
        isinstance(value, dict) and value.get("type") == "gemini" and "content" in value
    )


def is_gemini_session(value: Any) -> bool:
    """Return whether a JSON value is a session of Gemini CLI, or the first line of one."""
    return isinstance(value, dict) and {"sessionId", "projectHash"} <= value.keys()


def gemini_session(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a session that is one JSON object."""
    left_out: list[Broken] = []
    session = JsonFields(value, source, left_out, whole=True)
    return _read_session(session, session.parts("messages"))


def gemini_lines(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a session that is written line by line: its head, messages (a later one of the
    same id replaces it), `$set` for changes of the head and `$rewindTo` for messages that were taken back.
    """
    about: dict[str, Any] = {}
    messages: dict[str, tuple[str, Any]] = {}
    left_out: list[Broken] = []
    for place, value in parts:
        if not isinstance(value, Mapping):
            left_out.append(Broken(place, "left out: no line of a session"))
            continue
        line = JsonFields(value, place, left_out, whole=True)
        if isinstance(back := line.get("$rewindTo"), str):
            ids = list(messages)
            for message_id in ids[ids.index(back) if back in messages else 0 :]:
                del messages[message_id]
        elif line.get("$set") is not None:
            change = line.fields("$set")
            about |= {name: field for name, field in change.items() if name != "messages"}
            if change.get("messages") is not None:
                messages = {
                    inner_place: (inner_place, inner) for inner_place, inner in change.parts("messages")
                }
        elif isinstance(line.get("id"), str):
            messages[line["id"]] = (place, value)
        elif "sessionId" in line:
            about |= {name: field for name, field in line.items() if name != "messages"}
            messages |= _messages_by_id(line)
        elif "type" in line:
            # A message whose id is missing is one all the same.
            messages[place] = (place, value)
        else:
            left_out.append(Broken(place, "left out: no line of a session"))
    return _read_session(JsonFields(about, source, left_out, whole=True), list(messages.values()))


def _messages_by_id(line: JsonFields) -> dict[str, tuple[str, Any]]:
    """Return the messages in a line; one without an id is known by its place."""
    messages = {}
    for place, message in line.parts("messages"):
        message_id = message.get("id") if isinstance(message, Mapping) else None
        messages[message_id if isinstance(message_id, str) else place] = (place, message)
    return messages


def _read_session(session: JsonFields, parts: Sequence[tuple[str, Any]]) -> Recording:
    messages = read_parts(parts, _read_message, session.left_out)
    session_id = session.label("sessionId")
    return Recording(
        format="gemini",
        source=session.place,
        id=session_id,
        digest=record_digest("gemini", session_id, [part for _, part in parts]),
        model=next((message.model for message in messages if message.model), "unknown"),
        messages=messages,
        began=session.time("startTime"),
        facts={name: session[name] for name in ("sessionId", "projectHash", "summary") if session.get(name)},
        left_out=tuple(session.left_out),
    )


def _read_message(message: JsonFields) -> Iterator[ImportedMessage]:
    kind, at, text = message["type"], message.time("timestamp"), message.read("content", _read_text) or ""
    if kind == "user":
        yield ImportedMessage(role="user", text=text, at=at)
        return
    if kind != "gemini":
        yield ImportedMessage(role="note", text=f"{kind}: {text}", at=at)
        return
    tools, tokens = message.objects("toolCalls"), message.fields("tokens")
    thoughts = [
        ": ".join(filter(None, (thought.text("subject"), thought.text("description"))))
        for thought in message.objects("thoughts")
    ]
    calls = read_calls(tools, _read_tool_call)
    read, written = tokens.count("input"), tokens.count("output")
    thought = tokens.count("thoughts") or 0
    yield ImportedMessage(
        role="assistant",
        text=text,
        thinking="\n".join(thoughts),
        calls=calls,
        at=at,
        # What tools put into the prompt is counted apart, and so are thoughts.
        tokens_in=None if read is None else read + (tokens.count("tool") or 0),
        tokens_out=None if written is None else written + thought,
        tokens_cached=tokens.count("cached") or 0,
        tokens_reasoning=thought,
        model=message.text("model"),
    )
    made = {call.id for call in calls}
    for tool in tools:
        if tool.label("id") in made:
            yield _read_result(tool)


def _read_tool_call(tool: JsonFields) -> ImportedCall:
    return read_call(tool["name"], tool.get("args"), tool.label("id"))


def _read_result(tool: JsonFields) -> ImportedMessage:
    text, status = tool.read("result", _read_text) or "", tool.text("status")
    failed = status in ("error", "cancelled")
    # What is shown of a result is a text where no file changed.
    shown = tool.fields("resultDisplay") if isinstance(tool.get("resultDisplay"), Mapping) else None
    name = shown.text("filePath", "fileName") if shown is not None and "fileDiff" in shown else ""
    return ImportedMessage(
        role="tool",
        text=text,
        call=tool.label("id"),
        at=tool.time("timestamp"),
        error=(text or status) if failed else "",
        changed=(name,) if name and not failed else (),
    )


def _read_text(content: Any) -> str:
    """Return the text of what Gemini calls parts: one or several, of which some are answers of functions and
    some are thoughts, which are none of it.
    """
    parts = content if isinstance(content, list) else [content]
    return "\n\n".join(filter(None, map(_part_text, parts)))


def _part_text(part: Any) -> str:
    if isinstance(part, str) and not isinstance(part, UnreadNumber):
        return part
    if not isinstance(part, Mapping) or not _PARTS & part.keys():
        raise TypeError(f"it is neither a text nor parts of one, but {describe_type(part)}")
    if part.get("thought") is True:
        return ""
    fields = JsonFields(part, "", [])
    if "functionResponse" in part:
        response = fields.fields("functionResponse").get("response")
        if fields.left_out:
            raise TypeError(f"its answer of a function: {fields.left_out[0].why}")
        if not isinstance(response, Mapping):
            return str(response or "")
        return str(response.get("output") or response.get("error") or "")
    if "text" in part:
        if not isinstance(part["text"], str) or isinstance(part["text"], UnreadNumber):
            raise TypeError(f"its text is none, but {describe_type(part['text'])}")
        return part["text"]
    return f"[{next(iter(part))}]"
