"""Session files of coding agents: what Claude Code keeps under `~/.claude/projects` and Codex under
`~/.codex/sessions` (rollout files).

Each line is one JSON object. A line that cannot be read is reported with its number, and the rest of the
conversation is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import shown_path
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    read_call,
    read_calls,
    record_digest,
    unreadable_record,
)
from kestrel_lab.evals.importers.json_fields import UNREADABLE, Broken, JsonFields, numbered_lines, parse_line

_HEAD: Final = 4_096
_CODEX_LINES: Final = ("session_meta", "turn_context", "response_item", "event_msg")
_HARNESS: Final = re.compile(r"\s*<([\w-]+)[ >].*</\1>\s*", re.DOTALL)
"""Text in one element: this is how both programs mark what they, and not the user, send to the model."""


def session_format(path: Path) -> str:
    """Return `claude-code`, `codex` or `otel` for a file that begins as these do; empty for any other."""
    with path.open("rb") as file:
        # A `.json` file is one object, perhaps on many lines.
        if path.suffix == ".json":
            return "otel" if b'"resourceSpans"' in file.read(_HEAD) else ""
        # A session may begin with notes of the program, so that its first line says nothing.
        for _, line in islice(numbered_lines(file), 40):
            value = parse_line(line, "")
            if isinstance(value, dict) and (found := _format_of(value)):
                return found
    return ""


def _format_of(line: Mapping[str, Any]) -> str:
    if "resourceSpans" in line:
        return "otel"
    if line.get("type") in _CODEX_LINES and isinstance(line.get("payload"), dict):
        return "codex"
    return (
        "claude-code"
        if "sessionId" in line and "uuid" in line and line.get("type") in ("user", "assistant", "system")
        else ""
    )


def json_lines(path: Path) -> Iterator[tuple[int, dict[str, Any]] | Broken]:
    """Yield the objects of a file of JSON lines with their numbers, and what is broken in it."""
    with path.open("rb") as file:
        for number, line in numbered_lines(file):
            place = f"{shown_path(path)}:{number}"
            if not line.strip():
                continue
            value = parse_line(line, place)
            if isinstance(value, Broken):
                yield value
            elif isinstance(value, dict):
                yield number, value
            else:
                yield Broken(place, "a line of a session is a JSON object")


@dataclass
class _Conversation:
    said: list[ImportedMessage] = field(default_factory=list)
    answers: dict[str, int] = field(default_factory=dict)
    """By the recording's id of a model's answer, its place in `said`."""
    lines: list[Any] = field(default_factory=list)
    system: list[str] = field(default_factory=list)
    called: set[str] = field(default_factory=set)

    def add(self, one: ImportedMessage, into: int | None = None) -> None:
        """Append a message, or add it to the answer of the model that it is a further part of."""
        self.called.update(asked.id for asked in one.calls)
        if into is None:
            self.said.append(one)
        else:
            old = self.said[into]
            self.said[into] = replace(
                one,
                text="\n\n".join(filter(None, (old.text, one.text))),
                thinking="\n\n".join(filter(None, (old.thinking, one.thinking))),
                calls=(*old.calls, *one.calls),
            )

    def add_user(self, text: str, at: float | None, *, harness: bool) -> None:
        """Add a message of the user; one that the program sends before it is part of the system message."""
        if harness and not self.said:
            self.system.append(text)
        else:
            self.add(ImportedMessage(role="user", text=text, at=at))


def read_claude_code(path: Path) -> Records:
    """Yield the conversations of a session file of Claude Code.

    Its main thread is one; each branch that the user left by going back to an earlier message, and each
    sub-agent whose lines are in the file, are others.
    """
    threads: dict[str, _Conversation] = {}
    left_out: list[Broken] = []
    facts: dict[str, Json] = {}
    root: dict[str, str] = {}
    """By uuid of a line, the thread that it is in."""
    length: dict[str, int] = {}
    """By uuid of a line, how many messages its thread had behind it."""
    left = 0
    for found in json_lines(path):
        if isinstance(found, Broken):
            yield found
            continue
        number, value = found
        line = JsonFields(value, f"{shown_path(path)}:{number}", left_out, whole=True)
        known, parent = line.label("uuid"), line.label("parentUuid")
        # A sub-agent's first line has no parent in its thread; its other lines follow that one.
        name = (root.get(parent) or known) if line.get("isSidechain") else ""
        conversation = threads.setdefault(name, _Conversation())
        root[known] = name
        try:
            if not line.text("type"):
                raise ValueError("it has no type")
            if line["type"] in ("user", "assistant"):
                facts |= {
                    key: line[key] for key in ("sessionId", "cwd", "version", "gitBranch") if line.get(key)
                }
                back = 0 if not (parent or name) else length.get(parent, len(conversation.said))
                if _is_prompt(line) and any(one.role != "tool" for one in conversation.said[back:]):
                    left += 1
                    yield _claude_recording(path, conversation, facts, f"branch {left}")
                    conversation = threads[name] = _conversation_until(conversation, back)
                _take_claude(conversation, line)
        except UNREADABLE as error:
            yield unreadable_record(f"{shown_path(path)}:{number}", "no line of a session", error)
        length[known] = len(conversation.said)
    yield from left_out
    for number, (name, conversation) in enumerate(threads.items()):
        if conversation.said:
            yield _claude_recording(path, conversation, facts, f"sub-agent {number}" if name else "")


def _conversation_until(conversation: _Conversation, back: int) -> _Conversation:
    """Return the conversation up to a message, with the answers to the calls until there, which may come in
    any order.
    """
    said, answers = (
        conversation.said[:back],
        {known: place for known, place in conversation.answers.items() if place < back},
    )
    calls = {asked.id for one in said for asked in one.calls}
    said += [one for one in conversation.said[back:] if one.role == "tool" and one.call in calls]
    return _Conversation(
        said=said, answers=answers, lines=list(conversation.lines), system=conversation.system, called=calls
    )


def _is_prompt(line: JsonFields) -> bool:
    content = line.fields("message").get("content")
    return line["type"] == "user" and not (
        isinstance(content, list)
        and any(isinstance(part, Mapping) and part.get("type") == "tool_result" for part in content)
    )


def _take_claude(conversation: _Conversation, line: JsonFields) -> None:
    message, at = line.fields("message"), line.time("timestamp")
    if "content" not in message:
        raise ValueError("its message has no content")
    content = message.content("content", skip=("tool_use", "tool_result"))
    blocks = message.objects("content") if isinstance(message["content"], list) else []
    if line["type"] == "assistant":
        calls = read_calls([block for block in blocks if block.get("type") == "tool_use"], _read_tool_use)
        usage = message.fields("usage")
        # What came from the prompt cache and what was written to it are counted apart there.
        fresh, cached = usage.count("input_tokens"), usage.count("cache_read_input_tokens") or 0
        written = usage.count("cache_creation_input_tokens") or 0
        answer = ImportedMessage(
            role="assistant",
            text=content.text,
            thinking=content.thinking,
            calls=calls,
            at=at,
            tokens_in=None if fresh is None else fresh + cached + written,
            tokens_out=usage.count("output_tokens"),
            tokens_cached=cached,
            model=message.text("model"),
        )
        # Claude Code writes one answer in several lines, which have the same id.
        answer_id = message.label("id")
        conversation.add(answer, conversation.answers.get(answer_id) if answer_id else None)
        conversation.answers.setdefault(answer_id, len(conversation.said) - 1)
    else:
        for block in blocks:
            if block.get("type") == "tool_result":
                _add_result(conversation, block, at, _changed(line.get("toolUseResult")))
        if content.text:
            harness = bool(line.get("isMeta")) or _HARNESS.fullmatch(content.text) is not None
            conversation.add_user(content.text, at, harness=harness)
    conversation.lines.append(line.get("uuid"))


def _read_tool_use(block: JsonFields) -> ImportedCall:
    return read_call(block["name"], block.get("input"), block.label("id"))


def _add_result(
    conversation: _Conversation, block: JsonFields, at: float | None, changed: tuple[str, ...]
) -> None:
    """Add the result of a call; one that is none costs itself and not the others of its line."""
    try:
        text, failed = block.content("content").text, bool(block.flag("is_error"))
        _add_answer(conversation, block.label("tool_use_id"), text, at, failed=failed, changed=changed)
    except UNREADABLE as error:
        block.left_out.append(unreadable_record(block.place, "no result of a call", error))


def _changed(result: Any) -> tuple[str, ...]:
    """Return the file that a call of Claude Code changed, as its line says."""
    if not isinstance(result, dict) or "structuredPatch" not in result:
        return ()
    return (result["filePath"],) if isinstance(result.get("filePath"), str) else ()


def _add_answer(
    conversation: _Conversation,
    call: str,
    text: str,
    at: float | None,
    *,
    failed: bool,
    changed: tuple[str, ...] = (),
) -> None:
    if call not in conversation.called:
        raise ValueError(f"it answers the call {call!r}, which no line before it makes")
    conversation.add(
        ImportedMessage(
            role="tool",
            text=text,
            call=call,
            at=at,
            error=(text or "failed") if failed else "",
            changed=() if failed else changed,
        )
    )


def _claude_recording(
    path: Path, conversation: _Conversation, facts: Mapping[str, Json], part: str
) -> Recording:
    models = [one.model for one in conversation.said if one.model and one.model != "<synthetic>"]
    known = str(facts.get("sessionId") or path.stem)
    return Recording(
        format="claude-code",
        source=f"{shown_path(path)} ({part})" if part else shown_path(path),
        id=f"{known} {part}".strip(),
        digest=record_digest(
            "claude-code", known, conversation.lines, [one.text for one in conversation.said]
        ),
        model=models[0] if models else "unknown",
        system="\n\n".join(conversation.system),
        messages=list(conversation.said),
        facts=dict(facts),
    )


def read_codex(path: Path) -> Records:
    """Yield the conversation of a rollout file of Codex.

    Its events repeat what its items say, so only the token counts are read of them.
    """
    conversation, facts, model, lines = _Conversation(), cast("dict[str, Json]", {}), "unknown", 0
    left_out: list[Broken] = []
    for found in json_lines(path):
        if isinstance(found, Broken):
            yield found
            continue
        number, value = found
        lines += 1
        line = JsonFields(value, f"{shown_path(path)}:{number}", left_out, whole=True)
        try:
            payload, at, kind = line.fields("payload"), line.time("timestamp"), line.text("type")
            if not kind:
                raise ValueError("it has no type")
            if kind == "session_meta":
                facts |= {
                    key: payload[key] for key in ("id", "cwd", "cli_version", "git") if payload.get(key)
                }
                given = payload.fields("base_instructions").text("text") or payload.text("instructions")
                conversation.system += [given] if given else []
            elif kind == "turn_context":
                model = payload.text("model") or model
            elif kind == "response_item":
                _take_codex(conversation, payload, at)
            elif kind == "event_msg" and payload.text("type") == "token_count":
                _count_codex(conversation, payload.fields("info"))
        except UNREADABLE as error:
            yield unreadable_record(f"{shown_path(path)}:{number}", "no line of a rollout", error)
    yield from left_out
    if conversation.said:
        known = str(facts.get("id") or path.stem)
        yield Recording(
            format="codex",
            source=shown_path(path),
            id=known,
            digest=record_digest("codex", known, lines, [one.text for one in conversation.said]),
            model=model,
            system="\n\n".join(conversation.system),
            messages=conversation.said,
            facts=facts,
        )


def _take_codex(conversation: _Conversation, item: JsonFields, at: float | None) -> None:
    kind = item.text("type")
    if not kind:
        raise ValueError("it has no type")
    if kind == "message" and item["role"] != "assistant":
        text = item.content("content").text
        if item["role"] in ("developer", "system"):
            conversation.system.append(text)
        else:
            conversation.add_user(text, at, harness=_HARNESS.fullmatch(text) is not None)
        return
    if kind.endswith("_output"):
        output = item.get("output")
        failed = isinstance(output, Mapping) and output.get("success") is False
        holder = item
        if isinstance(output, Mapping):
            holder = item.fields("output")
            if "content" not in holder:
                holder.note("content", "an output has none")
        text = holder.content("content", "output").text
        _add_answer(conversation, item.label("call_id"), text, at, failed=failed)
        return
    if kind == "message":
        content = item.content("content")
        one = ImportedMessage(role="assistant", text=content.text, thinking=content.thinking, at=at)
    elif kind in ("function_call", "custom_tool_call", "local_shell_call", "web_search_call"):
        one = ImportedMessage(role="assistant", calls=(_codex_call(item),), at=at)
    else:  # reasoning, which is encrypted, and kinds of later versions
        return
    # The items of one answer follow each other; an answer that was counted is complete.
    further = (
        bool(conversation.said)
        and conversation.said[-1].role == "assistant"
        and conversation.said[-1].tokens_in is None
    )
    conversation.add(one, len(conversation.said) - 1 if further else None)


def _codex_call(item: JsonFields) -> ImportedCall:
    call_id = item.label("call_id", "id")
    if item["type"] == "function_call":
        return read_call(item["name"], item.get("arguments"), call_id)
    if item["type"] == "custom_tool_call":
        return read_call(item["name"], {"input": item.text("input")}, call_id)
    return read_call(str(item["type"]).removesuffix("_call"), dict(item.fields("action")), call_id)


def _count_codex(conversation: _Conversation, info: JsonFields) -> None:
    used = info.fields("last_token_usage")
    for index in reversed(range(len(conversation.said))):
        if used and conversation.said[index].role == "assistant":
            if conversation.said[index].tokens_in is None:
                conversation.said[index] = replace(
                    conversation.said[index],
                    tokens_in=used.count("input_tokens"),
                    tokens_out=used.count("output_tokens"),
                    tokens_cached=used.count("cached_input_tokens") or 0,
                    tokens_reasoning=used.count("reasoning_output_tokens") or 0,
                )
            return
