"""Events of OpenHands: a list of them (a downloaded trajectory), the folder `events` of a session, and rows
of an evaluation (`output.jsonl`); of the older agent (`action`, `observation`) and of its SDK (`kind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from kestrel_lab.core.json_types import Json
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    declared_effects,
    offered_tool,
    read_call,
    read_parts,
    record_digest,
    seconds_of,
    text_of,
)

_CALLS: Final = frozenset(
    "run run_ipython read write edit browse browse_interactive call_tool_mcp mcp delegate think "
    "task_tracking".split()
)
"""Actions of the agent that are calls of tools."""
_NOT_SAID: Final = frozenset(
    "agent_state_changed change_agent_state null recall start stop pause resume condensation "
    "condensation_request loop_recovery user_rejected".split()
)
"""Actions and observations in which nobody says or does anything in the conversation."""
_NO_ARGUMENTS: Final = frozenset(
    "thought action is_confirmed confirmation_state action_risk security_risk keep_prompt blocking hidden "
    "is_input is_static cwd kernel_init_code".split()
)
_KINDS: Final = frozenset(
    "MessageEvent ActionEvent ObservationEvent AgentErrorEvent UserRejectObservation "
    "SystemPromptEvent".split()
)
"""Events of the SDK in which somebody says or does something."""


def is_openhands_event(value: Any) -> bool:
    """Return whether a JSON value is an event of OpenHands."""
    if not isinstance(value, dict):
        return False
    if value.get("kind") in _KINDS or (str(value.get("kind", "")).endswith("Event") and "source" in value):
        return True
    return (isinstance(value.get("action"), str) and ("args" in value or "thought" in value)) or (
        isinstance(value.get("observation"), str) and ("content" in value or "extras" in value)
    )


def is_openhands_row(value: Any) -> bool:
    """Return whether a JSON value is a row of an evaluation of OpenHands."""
    if not isinstance(value, dict) or not isinstance(history := value.get("history"), list):
        return False
    return any(is_openhands_event(one) for pair in history[:6] for one in _flat(pair))


def _flat(pair: Any) -> list[Any]:
    # Older rows have pairs of action and observation.
    return pair if isinstance(pair, list) else [pair]


def openhands_row(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a row; it is a trial where the row says whether the instance was resolved.

    Raises `KeyError`, `TypeError` or `ValueError` for another shape.
    """
    parts = [
        (f"{source} history[{number}]", one)
        for number, pair in enumerate(value["history"])
        for one in _flat(pair)
    ]
    metadata, metrics = value.get("metadata") or {}, value.get("metrics") or {}
    found = openhands_events(parts, source)
    instance = str(value.get("instance_id") or "")
    result = value.get("test_result") or {}
    report = value.get("report") or (result.get("report") if isinstance(result, dict) else None) or {}
    passed = report.get("resolved", value.get("success"))
    passed = passed if isinstance(passed, bool) else None
    tokens = metrics.get("accumulated_token_usage") or {}
    counts = {
        "tokens_in": tokens.get("prompt_tokens"),
        "tokens_out": tokens.get("completion_tokens"),
        "cost_estimate": metrics.get("accumulated_cost") or None,
    }
    facts: dict[str, Json] = {
        name: result[name] for name in ("git_patch",) if isinstance(result, dict) and result.get(name)
    }
    error = str(value.get("error") or "")
    return replace(
        found,
        id=instance,
        digest=record_digest("openhands", value),
        model=str((metadata.get("llm_config") or {}).get("model") or found.model),
        error=error,
        suite=str(metadata.get("dataset") or "openhands"),
        scenario=instance or found.scenario,
        config=str((metadata.get("llm_config") or {}).get("model") or ""),
        scores=None
        if passed is None
        else ({"check": "resolved", "passed": passed, "value": float(passed), "reason": ""},),
        passed=None if error else passed,
        metrics={name: float(count) for name, count in counts.items() if count is not None},
        facts=facts,
    )


def openhands_events(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a session's events; one that cannot be read is in `left_out`."""
    reader = _Reader([event for _, event in parts if isinstance(event, dict)])
    said, left_out = read_parts(parts, reader.read)
    return Recording(
        format="openhands",
        source=source,
        id="",
        digest=record_digest("openhands", [event for _, event in parts]),
        model=next((one.model for one in said if one.model), "unknown"),
        system="\n\n".join(reader.system),
        tools=tuple(offered_tool(tool.get("function") or tool) for tool in reader.tools),
        declared=declared_effects(reader.tools),
        messages=said,
        left_out=left_out,
    )


class _Reader:
    def __init__(self, events: Sequence[Mapping[str, Any]]) -> None:
        self.system: list[str] = []
        self.tools: list[dict[str, Any]] = []
        self._turns: dict[str, list[Mapping[str, Any]]] = {}
        """By the model's answer, the actions that it asked for together."""
        self._begun: set[str] = set()
        self._open: set[str] = set()
        self._cost = 0.0
        for event in events:
            if answer := _answer_of(event):
                self._turns.setdefault(answer, []).append(event)

    def read(self, event: Mapping[str, Any]) -> Iterator[ImportedMessage]:
        if "kind" in event:
            yield from self._sdk(event)
        elif isinstance(event.get("action"), str):
            yield from self._action(event, event["action"])
        elif isinstance(event["observation"], str):
            yield from self._observation(event, event["observation"])
        else:
            raise ValueError("it is neither an action nor an observation")

    def _action(self, event: Mapping[str, Any], action: str) -> Iterator[ImportedMessage]:
        args, at = event.get("args") or event, seconds_of(event.get("timestamp"))
        if action in _NOT_SAID:
            return
        if action == "system":
            self.system.append(str(args["content"]))
            self.tools += args.get("tools") or []
        elif action in ("message", "finish", "reject"):
            said = [args.get("content"), args.get("final_thought"), args.get("thought"), event.get("message")]
            text = str(next((one for one in said if one), ""))
            # In the oldest files nobody is named, and the task comes first.
            agent = event.get("source", "agent" if self._begun else "user") == "agent" or action != "message"
            role: Literal["assistant", "user"] = "assistant" if agent else "user"
            yield ImportedMessage(role=role, text=text, at=at, **(self._usage(event) if agent else {}))
            self._begun.add("")
        elif action in _CALLS:
            yield from self._turn(event, at)
        else:
            yield ImportedMessage(role="note", text=f"[{action}]", at=at)

    def _turn(self, event: Mapping[str, Any], at: float | None) -> Iterator[ImportedMessage]:
        """Yield the answer that asked for an action, once for all actions that it asked for."""
        answer = _answer_of(event)
        if answer and answer in self._begun:
            return
        self._begun.add(answer)
        turn = self._turns.get(answer, [event]) if answer else [event]
        calls = tuple(map(_call_of, turn))
        self._open = {call.id for call in calls}
        thought = str((event.get("args") or event).get("thought") or "")
        yield ImportedMessage(role="assistant", text=thought, calls=calls, at=at, **self._usage(event))

    def _usage(self, event: Mapping[str, Any]) -> dict[str, Any]:
        response = (event.get("tool_call_metadata") or {}).get("model_response") or {}
        usage = response.get("usage") or {}
        found: dict[str, Any] = {
            "tokens_in": usage.get("prompt_tokens"),
            "tokens_out": usage.get("completion_tokens"),
            "tokens_cached": int((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0),
            "model": str(response.get("model") or ""),
        }
        whole = (event.get("llm_metrics") or {}).get("accumulated_cost")
        if whole:
            found["cost_usd"], self._cost = max(0.0, float(whole) - self._cost), float(whole)
        return found

    def _observation(self, event: Mapping[str, Any], kind: str) -> Iterator[ImportedMessage]:
        if kind in _NOT_SAID:
            return
        extras, text = event.get("extras") or {}, text_of(event.get("content"))
        metadata = event.get("tool_call_metadata") or {}
        call = str(
            metadata.get("tool_call_id") or (event.get("cause") if event.get("cause") is not None else "")
        )
        failed = kind == "error"
        # It is an error of the agent itself, such as a call that could not be read.
        if not self._open:
            yield ImportedMessage(role="note", text=text, at=seconds_of(event.get("timestamp")))
            return
        self._open.discard(call)
        path = extras.get("path", event.get("path"))
        yield ImportedMessage(
            role="tool",
            text=text,
            call=call,
            at=seconds_of(event.get("timestamp")),
            error=(text or "failed") if failed else "",
            changed=(str(path),) if kind in ("edit", "write") and path and not failed else (),
        )

    def _sdk(self, event: Mapping[str, Any]) -> Iterator[ImportedMessage]:
        kind, at = str(event["kind"]), seconds_of(event.get("timestamp"))
        if kind not in _KINDS:
            return
        if kind == "SystemPromptEvent":
            self.system.append(text_of([event["system_prompt"]]))
            self.tools += event.get("tools") or []
        elif kind == "MessageEvent":
            message = event["llm_message"]
            role: Literal["assistant", "user"] = "assistant" if message["role"] == "assistant" else "user"
            thought = str(message.get("reasoning_content") or "")
            yield ImportedMessage(role=role, text=text_of(message.get("content")), at=at, thinking=thought)
        elif kind == "ActionEvent":
            answer = _answer_of(event)
            if answer in self._begun:
                return
            self._begun.add(answer)
            turn = self._turns.get(answer, [event]) if answer else [event]
            yield ImportedMessage(
                role="assistant",
                text=text_of(event.get("thought") or []),
                thinking=str(event.get("reasoning_content") or ""),
                calls=tuple(map(_sdk_call, turn)),
                at=at,
            )
        else:
            yield _sdk_result(event, at)


def _answer_of(event: Mapping[str, Any]) -> str:
    """Return the id of the model's answer that an action is of; empty where it has none."""
    if event.get("kind") == "ActionEvent":
        return str(event.get("llm_response_id") or "")
    if event.get("action") not in _CALLS:
        return ""
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, dict) else None
    return str(response.get("id") or "") if isinstance(response, dict) else ""


def _call_of(event: Mapping[str, Any]) -> ImportedCall:
    metadata = event.get("tool_call_metadata") or {}
    known = metadata.get("tool_call_id")
    name = str(metadata.get("function_name") or event["action"])
    message = ((metadata.get("model_response") or {}).get("choices") or [{}])[0].get("message") or {}
    for call in message.get("tool_calls") or ():
        if call.get("id") == known and known:
            return read_call(name, call["function"].get("arguments"), known)
    args = event.get("args") or event
    own = {key: value for key, value in args.items() if key not in _NO_ARGUMENTS and value is not None}
    return read_call(name, own, known if known is not None else event.get("id"))


def _sdk_call(event: Mapping[str, Any]) -> ImportedCall:
    call = event.get("tool_call") or {}
    args = call.get("arguments")
    if args is None:
        args = {key: value for key, value in (event.get("action") or {}).items() if key != "kind"}
    return read_call(event["tool_name"], args, event.get("tool_call_id") or call.get("id"))


def _sdk_result(event: Mapping[str, Any], at: float | None) -> ImportedMessage:
    observation = event.get("observation") or {}
    content = observation.get("content", observation.get("output"))
    if event["kind"] == "AgentErrorEvent":
        text = error = str(event["error"])
    elif event["kind"] == "UserRejectObservation":
        text = error = str(event.get("rejection_reason") or "rejected")
    else:
        text = text_of(content)
        error = str(observation.get("error") or "") or (
            (text or "failed") if observation.get("is_error") else ""
        )
    path = observation.get("path")
    changes = "old_content" in observation and observation.get("new_content") is not None and not error
    return ImportedMessage(
        role="tool",
        text=text,
        call=str(event.get("tool_call_id") or ""),
        at=at,
        error=error,
        changed=(str(path),) if changes and path else (),
    )
