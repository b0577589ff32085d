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
    files_in_diff,
    read_call,
    read_parts,
    record_digest,
    text_of,
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

    Tokens and costs are known of the whole only. Raises `KeyError`, `TypeError` or `ValueError` for another
    shape.
    """
    info = value.get("info") or {}
    system: list[str] = []
    steps = value.get("trajectory") or []
    history = value.get("history") or _history_of(steps)
    reader = _SweReader(system, _changes(steps))
    said, left_out = read_parts(
        ((f"{source} history[{number}]", one) for number, one in enumerate(history)), reader.read
    )
    status, stats = str(info.get("exit_status") or ""), info.get("model_stats") or {}
    name = str(value.get("environment") or "")
    config = ((value.get("replay_config") or {}).get("agent") or {}).get("model") or {}
    return Recording(
        format="swe-agent",
        source=source,
        id=name,
        digest=record_digest("swe-agent", value),
        model=str(config.get("name") or "unknown"),
        system="\n\n".join(system),
        messages=said,
        error=one_line(status, 200) if "error" in status else "",
        reason="" if status in ("", "submitted") or "error" in status else status,
        scenario=name,
        metrics=_whole(stats.get("tokens_sent"), stats.get("tokens_received"), stats.get("instance_cost")),
        facts={
            "exit_status": status,
            **({"submission": info["submission"]} if info.get("submission") else {}),
        },
        left_out=left_out,
    )


def _whole(read: Any, written: Any, cost: Any) -> dict[str, float]:
    found: dict[str, float] = {}
    if read is not None and written is not None:
        found = {
            "tokens_in": float(read),
            "tokens_out": float(written),
            "token_usage": float(read) + float(written),
        }
    return found | ({"cost_estimate": float(cost)} if cost else {})


def _history_of(steps: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a history for a trajectory without one: what its first step was shown, and each step."""
    first = [one for one in (steps[0].get("query") or () if steps else ()) if one.get("role")]
    pairs = [
        pair
        for step in steps
        for pair in (
            {"role": "assistant", "content": step.get("response"), "action": step.get("action")},
            {"role": "user", "content": step.get("observation"), "message_type": "observation"},
        )
    ]
    return [*first, *pairs]


def _changes(steps: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...] | None]:
    """Return the files that each step changed, by the diffs before and after; `None` where there are none."""
    found: list[tuple[str, ...] | None] = []
    before: str | None = ""
    for step in steps:
        state = step.get("state")
        after = state.get("diff") if isinstance(state, dict) else None
        known = before is not None and after is not None
        found.append((() if after == before else files_in_diff(f"{before}\n{after}")) if known else None)
        before = after
    return found


class _SweReader:
    """Reads one message of a history after the other; results belong to calls of messages before."""

    def __init__(self, system: list[str], changes: Sequence[tuple[str, ...] | None]) -> None:
        self._system, self._changes = system, list(changes)
        self._open: list[str] = []

    def read(self, message: Mapping[str, Any]) -> Iterator[ImportedMessage]:
        role, text = message["role"], text_of(message.get("content"))
        if role == "system" or message.get("is_demo"):
            self._system.append(text)
        elif role == "assistant":
            action = str(message.get("action") or "").strip()
            calls = _asked_calls(message) or ((_own_call(action),) if action else ())
            self._open = [call.id for call in calls]
            yield ImportedMessage(
                role="assistant", text=text or str(message.get("thought") or ""), calls=calls
            )
        elif role not in ("user", "tool"):
            raise ValueError(f"a message has the role {role!r}")
        elif self._open:
            known = [str(one) for one in message.get("tool_call_ids") or ()]
            touched = self._changes.pop(0) if self._changes else None
            for call in known or self._open[:1]:
                yield ImportedMessage(role="tool", text=text, call=call, touched=touched)
            self._open = [call for call in self._open if call not in known] if known else self._open[1:]
        else:
            yield ImportedMessage(role="user", text=text)


def _asked_calls(message: Mapping[str, Any]) -> tuple[ImportedCall, ...]:
    """Return the calls that a message has in the form of OpenAI."""
    return tuple(
        read_call(call["function"]["name"], call["function"].get("arguments"), call.get("id"))
        for call in message.get("tool_calls") or ()
    )


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
    """Return the recording of a trajectory file of mini-swe-agent.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    parts = [(f"{source} messages[{number}]", one) for number, one in enumerate(value["messages"])]
    return mini_swe_agent_messages(parts, source, value)


def mini_swe_agent_messages(
    parts: Sequence[tuple[str, Any]], source: str, value: Mapping[str, Any] | None = None
) -> Recording:
    """Return the recording of messages of mini-swe-agent, with or without the file around them."""
    whole = value or {}
    info = whole.get("info") or {}
    system: list[str] = []
    said, left_out = read_parts(parts, _MiniReader(system).read)
    status = str(info.get("exit_status") or "")
    model = ((info.get("config") or {}).get("model") or {}).get("model_name")
    cost = (info.get("model_stats") or {}).get("instance_cost")
    facts: dict[str, Json] = {
        name: info[name] for name in ("exit_status", "submission", "mini_version") if info.get(name)
    }
    return Recording(
        format="mini-swe-agent",
        source=source,
        id=str(whole.get("instance_id") or ""),
        digest=record_digest("mini-swe-agent", whole or [one for _, one in parts]),
        model=str(model or "unknown"),
        system="\n\n".join(system),
        messages=said,
        reason="" if status.lower() in ("", "submitted") else status,
        scenario=str(whole.get("instance_id") or ""),
        metrics=_whole(None, None, cost),
        facts=facts,
        left_out=left_out,
    )


class _MiniReader:
    """Reads one message after the other; results belong to calls of messages before."""

    def __init__(self, system: list[str]) -> None:
        self._system = system
        self._open: list[str] = []

    def read(self, message: Mapping[str, Any]) -> Iterator[ImportedMessage]:
        extra = message.get("extra") or {}
        if message.get("object") == "response":
            message = _response_message(message)
        if message.get("type") == "function_call_output":
            message = {**message, "role": "tool", "content": message.get("output")}
        role, text, at = message["role"], text_of(message.get("content")), extra.get("timestamp")
        if role in ("system", "developer"):
            self._system.append(text)
        elif role == "assistant":
            calls = _mini_calls(message, text, extra)
            self._open = [call.id for call in calls]
            yield _mini_answer(message, text, calls, extra)
        elif role not in ("user", "tool", "exit"):
            raise ValueError(f"a message has the role {role!r}")
        elif self._open and extra.get("interrupt_type") is None:
            known = str(message.get("tool_call_id") or message.get("call_id") or self._open[0])
            self._open = [call for call in self._open if call != known] if known else self._open[1:]
            failed = str(extra.get("exception_info") or "")
            yield ImportedMessage(role="tool", text=text, call=known, at=at, error=failed)
        else:
            yield ImportedMessage(role="note" if role == "exit" else "user", text=text, at=at)


def _mini_calls(message: Mapping[str, Any], text: str, extra: Mapping[str, Any]) -> tuple[ImportedCall, ...]:
    """Return the calls of an answer: those of its form, those that were parsed, or the one in its text."""
    if asked := _asked_calls(message):
        return asked
    commands = [str(action["command"]) for action in extra.get("actions") or ()]
    # As the agent does: an answer with two commands in its text is refused, and none of them is run.
    found = commands or (blocks if len(blocks := _BLOCK.findall(text)) == 1 else [])
    return tuple(ImportedCall(tool="bash", args={"command": command.strip()}) for command in found)


def _mini_answer(
    message: Mapping[str, Any], text: str, calls: tuple[ImportedCall, ...], extra: Mapping[str, Any]
) -> ImportedMessage:
    response = message.get("usage_of") or extra.get("response") or {}
    usage = (response.get("usage") if isinstance(response, dict) else None) or {}
    cached = (usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}).get(
        "cached_tokens"
    )
    return ImportedMessage(
        role="assistant",
        text=text,
        calls=calls,
        thinking=str(message.get("reasoning_content") or ""),
        at=extra.get("timestamp"),
        tokens_in=usage.get("prompt_tokens", usage.get("input_tokens")),
        tokens_out=usage.get("completion_tokens", usage.get("output_tokens")),
        tokens_cached=int(cached or 0),
        # It writes 0 where it has no price.
        cost_usd=extra.get("cost") or None,
        model=str(response.get("model") or "") if isinstance(response, dict) else "",
    )


def _response_message(response: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer of OpenAI's Responses interface as a message of a chat."""
    items = response.get("output") or ()
    return {
        "role": "assistant",
        "content": [
            part for item in items if item.get("type") == "message" for part in item.get("content") or ()
        ],
        "tool_calls": [
            {
                "id": item.get("call_id"),
                "function": {"name": item["name"], "arguments": item.get("arguments")},
            }
            for item in items
            if item.get("type") == "function_call"
        ],
        "usage_of": response,
    }
