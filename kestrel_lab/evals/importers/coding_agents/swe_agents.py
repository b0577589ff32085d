"""Trajectories of SWE-agent (`.traj`) and of mini-swe-agent (`.traj.json`, format 1 and 1.1).

In both a command may be text in the model's answer, and what it printed the user's next message: here that is
a call and its result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    WholeUsage,
    files_in_diff,
    openai_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import (
    Broken,
    JsonFields,
    MessageContent,
    parse_json,
    read_seconds,
    reasoning_text,
)

_OWN_COMMANDS: Final = frozenset(
    "open goto scroll_up scroll_down create edit insert append search_dir search_file find_file submit "
    "str_replace_editor view_image".split()
)
"""Commands of SWE-agent's own, which are tools beside its shell."""
_BLOCK: Final = re.compile(r"```(?:mswea_bash_command|bash)\s*\n(.*?)\n```", re.DOTALL)
_MINI_BLOCK: Final = "```mswea_bash_command"


def is_swe_agent(value: Any) -> bool:
    """Return whether a JSON value is a trajectory of SWE-agent, or a demonstration with a history alone."""
    if not isinstance(value, dict) or not isinstance(value.get("history", []), list):
        return False
    steps = value.get("trajectory")
    if isinstance(steps, list) and ("history" in value or "info" in value):
        return True
    return any(isinstance(one, dict) and "message_type" in one for one in value.get("history", [])[:4])


def swe_agent_recording(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a SWE-agent trajectory; where it compares the folder (`diff` in its states),
    its results say which files changed.

    Calls, tokens and costs are known of the whole only (`model_stats`); the answer is what was submitted.
    """
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    info = record.fields("info")
    system: list[str] = []
    steps = record.objects("trajectory")
    history = record.parts("history") or _history_of(steps)
    reader = _SweReader(system, _changes(steps))
    messages = read_parts(history, reader.read, left_out)
    status, name = info.text("exit_status"), record.label("environment")
    submission = info.text("submission")
    return Recording(
        format="swe-agent",
        source=source,
        id=name,
        digest=record_digest("swe-agent", value),
        model=_replayed_model(record) or "unknown",
        system="\n\n".join(system),
        messages=messages,
        error=one_line(status, 200) if "error" in status else "",
        reason="" if status in ("", "submitted") or "error" in status else status,
        scenario=name,
        group=repository_of_instance(name),
        summary=submission,
        usage=_model_stats(info),
        facts={"exit_status": status, **({"submission": submission} if submission else {})},
        left_out=tuple(left_out),
    )


def repository_of_instance(instance: str) -> str:
    """Return the repository of an instance of SWE-bench, whose id is `owner__name-NUMBER`; empty for another
    id.
    """
    named = re.fullmatch(r"(.+__.+)-\d+", instance)
    return named[1] if named else ""


def _replayed_model(record: JsonFields) -> str:
    config = record.get("replay_config")
    if isinstance(config, str):
        # SWE-agent writes the configuration as JSON text.
        config = record.read("replay_config", parse_json)
    if not isinstance(config, Mapping):
        return ""
    replayed = JsonFields(config, record.place_of("replay_config"), record.left_out)
    return replayed.fields("agent").fields("model").text("name")


def _model_stats(info: JsonFields) -> WholeUsage:
    """Return what the whole task used; a cost of 0 is written where no price is known."""
    stats = info.fields("model_stats")
    return WholeUsage(
        tokens_in=stats.count("tokens_sent"),
        tokens_out=stats.count("tokens_received"),
        cost_usd=stats.amount("instance_cost") or None,
        model_calls=stats.count("api_calls"),
    )


def _history_of(steps: Sequence[JsonFields]) -> list[tuple[str, Any]]:
    """Return a history for a trajectory without one: what its first step was shown, and each step."""
    history: list[tuple[str, Any]] = steps[0].parts("query", "messages") if steps else []
    for step in steps:
        answer = {"role": "assistant", "content": step.get("response"), "action": step.get("action")}
        result = {"role": "user", "content": step.get("observation"), "message_type": "observation"}
        history += [(step.place, answer), (step.place, result)]
    return history


def _changes(steps: Sequence[JsonFields]) -> list[tuple[str, ...] | None]:
    """Return the files that each step changed, by the diffs before and after; `None` where there are none."""
    changes: list[tuple[str, ...] | None] = []
    before: str | None = ""
    for step in steps:
        state = step.get("state")
        after = state.get("diff") if isinstance(state, Mapping) else None
        after = after if isinstance(after, str) else None
        if before is None or after is None:
            changes.append(None)
        else:
            changes.append(() if after == before else files_in_diff(f"{before}\n{after}"))
        before = after
    return changes


class _SweReader:
    """Reads one message of a history after the other; results belong to calls of messages before."""

    def __init__(self, system: list[str], changes: Sequence[tuple[str, ...] | None]) -> None:
        self._system, self._changes = system, list(changes)
        self._open: list[str] = []

    def read(self, message: JsonFields) -> Iterator[ImportedMessage]:
        role, content = message["role"], message.content("content")
        if role == "system" or message.get("is_demo"):
            self._system.append(content.text)
        elif role == "assistant":
            action = message.text("action").strip()
            calls = read_calls(message.objects("tool_calls"), openai_call)
            calls = calls or ((_own_call(action),) if action else ())
            self._open = [call.id for call in calls]
            thinking = "\n\n".join(filter(None, (content.thinking, _thinking_blocks(message))))
            text = content.text or message.text("thought")
            yield ImportedMessage(role="assistant", text=text, calls=calls, thinking=thinking)
        elif role not in ("user", "tool"):
            raise ValueError(f"a message has the role {role!r}")
        elif self._open:
            answered = message.texts("tool_call_ids")
            touched = self._changes.pop(0) if self._changes else None
            for call in answered or self._open[:1]:
                yield ImportedMessage(role="tool", text=content.text, call=call, touched=touched)
            if answered:
                self._open = [call for call in self._open if call not in answered]
            else:
                self._open = self._open[1:]
        else:
            yield ImportedMessage(role="user", text=content.text)


def _thinking_blocks(message: JsonFields) -> str:
    blocks = message.objects("thinking_blocks")
    return "\n\n".join(filter(None, (reasoning_text(block) for block in blocks)))


def _own_call(action: str) -> ImportedCall:
    name, _, rest = action.partition(" ")
    name = name.split("\n")[0]
    if name == "str_replace_editor":
        return ImportedCall(tool=name, args={"command": rest.split(" ")[0], "text": rest})
    if name in _OWN_COMMANDS:
        return ImportedCall(tool=name, args={"text": action.removeprefix(name).strip()})
    return ImportedCall(tool="bash", args={"command": action})


def is_mini_swe_agent(value: Any) -> bool:
    """Return whether a JSON value is a trajectory file of mini-swe-agent, of either format."""
    if not isinstance(value, dict) or not isinstance(value.get("messages"), list):
        return False
    info = value.get("info")
    return str(value.get("trajectory_format", "")).startswith("mini-swe-agent") or (
        isinstance(info, dict) and "mini_version" in info
    )


def is_mini_message(value: Any) -> bool:
    """Return whether a JSON value is a message of mini-swe-agent's with a command in its text."""
    content = value.get("content") if isinstance(value, dict) else None
    return (
        isinstance(content, str) and _MINI_BLOCK in content and value.get("role") in ("system", "assistant")
    )


def mini_swe_agent_recording(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a trajectory file of mini-swe-agent."""
    record = JsonFields(value, source, [], whole=True)
    return _read_mini(record.parts("messages"), record)


def mini_swe_agent_messages(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of messages of mini-swe-agent without the file around them."""
    return _read_mini(parts, JsonFields({}, source, [], whole=True))


def _read_mini(parts: Sequence[tuple[str, Any]], record: JsonFields) -> Recording:
    info = record.fields("info")
    system: list[str] = []
    messages = read_parts(parts, _MiniReader(system).read, record.left_out)
    status, instance = info.text("exit_status"), record.label("instance_id")
    facts: dict[str, Json] = {
        name: info[name] for name in ("exit_status", "submission", "mini_version") if info.get(name)
    }
    return Recording(
        format="mini-swe-agent",
        source=record.place,
        id=instance,
        digest=record_digest("mini-swe-agent", dict(record) or [part for _, part in parts]),
        model=info.fields("config").fields("model").text("model_name") or "unknown",
        system="\n\n".join(system),
        messages=messages,
        reason="" if status.lower() in ("", "submitted") else status,
        scenario=instance,
        group=repository_of_instance(instance),
        summary=info.text("submission"),
        usage=_model_stats(info),
        facts=facts,
        left_out=tuple(record.left_out),
    )


class _MiniReader:
    """Reads one message after the other; results belong to calls of messages before."""

    def __init__(self, system: list[str]) -> None:
        self._system = system
        self._open: list[str] = []

    def read(self, message: JsonFields) -> Iterator[ImportedMessage]:
        extra = message.fields("extra")
        at = extra.read("timestamp", read_seconds)
        if message.get("object") == "response":
            message = JsonFields(_response_message(message), message.place, message.left_out)
        if message.get("type") == "function_call_output":
            message = JsonFields(
                {**message, "role": "tool", "content": message.get("output")}, message.place, message.left_out
            )
        role, content = message["role"], message.content("content")
        if role in ("system", "developer"):
            self._system.append(content.text)
        elif role == "assistant":
            calls = _mini_calls(message, content.text, extra)
            self._open = [call.id for call in calls]
            yield _mini_answer(message, content, calls, extra)
        elif role not in ("user", "tool", "exit"):
            raise ValueError(f"a message has the role {role!r}")
        elif self._open and extra.get("interrupt_type") is None:
            call = message.label("tool_call_id", "call_id") or self._open[0]
            self._open = [made for made in self._open if made != call] if call else self._open[1:]
            failed = extra.text("exception_info")
            yield ImportedMessage(role="tool", text=content.text, call=call, at=at, error=failed)
        else:
            yield ImportedMessage(role="note" if role == "exit" else "user", text=content.text, at=at)


def _mini_calls(message: JsonFields, text: str, extra: JsonFields) -> tuple[ImportedCall, ...]:
    """Return the calls of an answer: those of its form, those that were parsed, or the one in its text."""
    if asked := read_calls(message.objects("tool_calls"), openai_call):
        return asked
    commands = [action.text("command") for action in extra.objects("actions")]
    if not commands:
        # As the agent does: an answer with two commands in its text is refused, and none of them is run.
        blocks = _BLOCK.findall(text)
        commands = blocks if len(blocks) == 1 else []
    return tuple(ImportedCall(tool="bash", args={"command": command.strip()}) for command in commands)


def _mini_answer(
    message: JsonFields, content: MessageContent, calls: tuple[ImportedCall, ...], extra: JsonFields
) -> ImportedMessage:
    response = message.fields("usage_of") if "usage_of" in message else extra.fields("response")
    usage = response.fields("usage")
    cached = usage.fields("prompt_tokens_details", "input_tokens_details").count("cached_tokens")
    return ImportedMessage(
        role="assistant",
        text=content.text,
        calls=calls,
        thinking="\n\n".join(filter(None, (message.text("reasoning_content"), content.thinking))),
        at=extra.read("timestamp", read_seconds),
        tokens_in=usage.count("prompt_tokens", "input_tokens"),
        tokens_out=usage.count("completion_tokens", "output_tokens"),
        tokens_cached=cached or 0,
        # It writes 0 where it has no price.
        cost_usd=extra.amount("cost") or None,
        model=response.text("model"),
    )


def _response_message(response: JsonFields) -> dict[str, Any]:
    """Return an answer of OpenAI's Responses interface as a message of a chat."""
    items = response.objects("output")
    return {
        "role": "assistant",
        "content": [
            part for item in items if item.get("type") == "message" for _, part in item.parts("content")
        ],
        "tool_calls": [
            {
                "id": item.get("call_id"),
                "function": {"name": item.get("name"), "arguments": item.get("arguments")},
            }
            for item in items
            if item.get("type") == "function_call"
        ],
        "usage_of": dict(response),
    }
