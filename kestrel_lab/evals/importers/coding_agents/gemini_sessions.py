"""Sessions of Gemini CLI (`~/.gemini/tmp/PROJECT/chats/session-*.json`, `.jsonl` in later versions)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kestrel_lab.evals.importers.imported_run import (
    Broken,
    ImportedMessage,
    Recording,
    read_call,
    read_parts,
    record_digest,
    seconds_of,
)


def is_gemini_session(value: Any) -> bool:
    """Return whether a JSON value is a session of Gemini CLI, or the first line of one."""
    return isinstance(value, dict) and {"sessionId", "projectHash"} <= value.keys()


def gemini_session(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a session that is one JSON object.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    parts = [(f"{source} messages[{number}]", one) for number, one in enumerate(value["messages"])]
    return _recording(value, parts, source)


def gemini_lines(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a session that is written line by line: its head, messages (a later one of the
    same id replaces it), `$set` for changes of the head and `$rewindTo` for messages that were taken back.
    """
    about: dict[str, Any] = {}
    messages: dict[str, tuple[str, Any]] = {}
    broken: list[Broken] = []
    for place, line in parts:
        if isinstance(back := line.get("$rewindTo"), str):
            known = list(messages)
            for name in known[known.index(back) if back in messages else 0 :]:
                del messages[name]
        elif isinstance(change := line.get("$set"), dict):
            about |= {name: value for name, value in change.items() if name != "messages"}
            if isinstance(change.get("messages"), list):
                messages = {
                    f"{place} {number}": (place, one) for number, one in enumerate(change["messages"])
                }
        elif isinstance(line.get("id"), str):
            messages[line["id"]] = (place, line)
        elif "sessionId" in line:
            about |= {name: value for name, value in line.items() if name != "messages"}
            for number, one in enumerate(line.get("messages") or ()):
                messages[str(one.get("id") or f"{place} {number}")] = (place, one)
        else:
            broken.append(Broken(place, "no line of a session"))
    return _recording(about, list(messages.values()), source, broken)


def _recording(
    about: Mapping[str, Any], parts: Sequence[tuple[str, Any]], source: str, broken: Sequence[Broken] = ()
) -> Recording:
    said, left_out = read_parts(parts, _read)
    known = str(about.get("sessionId") or "")
    return Recording(
        format="gemini",
        source=source,
        id=known,
        digest=record_digest("gemini", known, [one for _, one in parts]),
        model=next((one.model for one in said if one.model), "unknown"),
        messages=said,
        began=seconds_of(about.get("startTime")),
        facts={name: about[name] for name in ("sessionId", "projectHash", "summary") if about.get(name)},
        left_out=(*broken, *left_out),
    )


def _read(message: Mapping[str, Any]) -> Iterator[ImportedMessage]:
    kind, at, text = message["type"], seconds_of(message.get("timestamp")), _text(message.get("content"))
    if kind == "user":
        yield ImportedMessage(role="user", text=text, at=at)
        return
    if kind != "gemini":
        yield ImportedMessage(role="note", text=f"{kind}: {text}", at=at)
        return
    calls = message.get("toolCalls") or ()
    tokens = message.get("tokens") or {}
    thoughts = (
        ": ".join(filter(None, (str(one.get("subject") or ""), str(one.get("description") or ""))))
        for one in message.get("thoughts") or ()
    )
    thought = int(tokens.get("thoughts") or 0)
    yield ImportedMessage(
        role="assistant",
        text=text,
        thinking="\n".join(thoughts),
        calls=tuple(read_call(call["name"], dict(call.get("args") or {}), call.get("id")) for call in calls),
        at=at,
        # What tools put into the prompt is counted apart, and so are thoughts.
        tokens_in=int(tokens["input"]) + int(tokens.get("tool") or 0) if tokens else None,
        tokens_out=int(tokens["output"]) + thought if tokens else None,
        tokens_cached=int(tokens.get("cached") or 0),
        tokens_reasoning=thought,
        model=str(message.get("model") or ""),
    )
    for call in calls:
        yield _result(call)


def _result(call: Mapping[str, Any]) -> ImportedMessage:
    text, shown = _text(call.get("result")), call.get("resultDisplay")
    failed = call.get("status") in ("error", "cancelled")
    name = shown.get("filePath", shown.get("fileName")) if isinstance(shown, dict) else None
    return ImportedMessage(
        role="tool",
        text=text,
        call=str(call.get("id") or ""),
        at=seconds_of(call.get("timestamp")),
        error=(text or str(call["status"])) if failed else "",
        changed=(str(name),)
        if isinstance(shown, dict) and "fileDiff" in shown and name and not failed
        else (),
    )


def _text(content: Any) -> str:
    """Return the text of what Gemini calls parts: one or several, of which some are answers of functions."""
    if isinstance(content, list):
        return "\n\n".join(filter(None, map(_text, content)))
    if not isinstance(content, dict):
        return str(content or "")
    if isinstance(answered := content.get("functionResponse"), dict):
        response = answered.get("response") or {}
        return str(response.get("output") or response.get("error") or "")
    if content.get("text") is not None:
        return str(content["text"])
    return f"[{next(iter(content), 'part')}]"
