"""Events of OpenHands: a list of them (a downloaded trajectory), the folder `events` of a session, and rows
of an evaluation (`output.jsonl`); of the older agent (`action`, `observation`) and of its SDK (`kind`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.importers.coding_agents.swe_agents import repository_of_instance
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    WholeUsage,
    declared_effects,
    described_task,
    offered_tools,
    read_call,
    read_calls,
    read_parts,
    record_digest,
)
from kestrel_lab.evals.importers.json_fields import Broken, JsonFields, MessageContent, reasoning_text

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
    kind = value.get("kind")
    if (isinstance(kind, str) and kind in _KINDS) or (
        str(value.get("kind", "")).endswith("Event") and "source" in value
    ):
        return True
    return (isinstance(value.get("action"), str) and ("args" in value or "thought" in value)) or (
        isinstance(value.get("observation"), str) and ("content" in value or "extras" in value)
    )


def is_openhands_row(value: Any) -> bool:
    """Return whether a JSON value is a row of an evaluation of OpenHands, be it one that broke at once."""
    if not isinstance(value, dict) or not isinstance(history := value.get("history", []), list):
        return False
    if "instance_id" in value and "test_result" in value:
        return True
    return any(is_openhands_event(event) for pair in history[:6] for event in _flat(pair))


def _flat(pair: Any) -> list[Any]:
    # Older rows have pairs of action and observation.
    return pair if isinstance(pair, list) else [pair]


def openhands_row(value: dict[str, Any], source: str) -> Recording:
    """Return the recording of a row; it is a trial where the row says whether the instance was resolved, or
    that it broke.
    """
    left_out: list[Broken] = []
    record = JsonFields(value, source, left_out, whole=True)
    parts = [(place, event) for place, pair in record.parts("history") for event in _flat(pair)]
    conversation = openhands_events(parts, source)
    instance = record.label("instance_id")
    messages = conversation.messages
    if not any(message.role == "user" for message in messages):
        asked = record.text("instruction") or f"Instance {instance} of OpenHands; the row has no task"
        messages = [described_task(asked), *messages]
    metrics, result = record.fields("metrics"), record.fields("test_result")
    tokens = metrics.fields("accumulated_token_usage")
    report = record.fields("report") if record.get("report") is not None else result.fields("report")
    passed = report.flag("resolved") if "resolved" in report else record.flag("success")
    metadata = record.fields("metadata")
    model = metadata.fields("llm_config", "llm").text("model")
    error = record.text("error")
    scores: list[dict[str, Json]] = []
    if passed is not None:
        scores = [{"check": "resolved", "passed": passed, "value": float(passed), "reason": ""}]
    patch = result.text("git_patch")
    return replace(
        conversation,
        id=instance,
        digest=record_digest("openhands", value),
        model=model or conversation.model,
        error=error or conversation.error,
        suite=metadata.text("dataset") or "openhands",
        scenario=instance or conversation.scenario,
        group=repository_of_instance(instance),
        config=model,
        messages=messages,
        summary=patch,
        scores=tuple(scores) if scores or error else None,
        passed=None if error else passed,
        usage=WholeUsage(
            tokens_in=tokens.count("prompt_tokens"),
            tokens_out=tokens.count("completion_tokens"),
            tokens_cached=tokens.count("cache_read_tokens"),
            # It writes 0 where it has no price.
            cost_usd=metrics.amount("accumulated_cost") or None,
        )
        if metrics
        else conversation.usage,
        facts={"git_patch": patch} if patch else {},
        left_out=(*left_out, *conversation.left_out),
    )


def openhands_events(parts: Sequence[tuple[str, Any]], source: str) -> Recording:
    """Return the recording of a session's events; one that cannot be read is in `left_out`."""
    left_out: list[Broken] = []
    reader = _OpenHandsReader(parts, left_out)
    messages = read_parts(parts, reader.read, left_out)
    return Recording(
        format="openhands",
        source=source,
        id="",
        digest=record_digest("openhands", [event for _, event in parts]),
        model=next((message.model for message in messages if message.model), "") or reader.model or "unknown",
        system="\n\n".join(reader.system),
        tools=offered_tools(reader.tools),
        declared=declared_effects(reader.tools),
        messages=messages,
        error=reader.error,
        usage=reader.usage,
        left_out=tuple(left_out),
    )


class _OpenHandsReader:
    def __init__(self, parts: Sequence[tuple[str, Any]], left_out: list[Broken]) -> None:
        self.system: list[str] = []
        self.tools: list[JsonFields] = []
        self.model = ""
        self.error = ""
        self.usage = WholeUsage()
        self._turns: dict[str, list[JsonFields]] = {}
        """By the model's answer, the actions that it asked for together."""
        self._begun: set[str] = set()
        self._open: set[str] = set()
        self._cost = 0.0
        for place, event in parts:
            if isinstance(event, Mapping) and (answer := _answer_id(event)):
                self._turns.setdefault(answer, []).append(JsonFields(event, place, left_out))

    def read(self, event: JsonFields) -> Iterator[ImportedMessage]:
        """Yield what is said and done in an event."""
        if kind := event.text("kind"):
            yield from self._sdk(event, kind)
        elif isinstance(event.get("action"), str):
            yield from self._action(event, event.text("action"))
        elif isinstance(event.get("observation"), str):
            yield from self._observation(event, event.text("observation"))
        else:
            raise ValueError("it is neither an action nor an observation")

    def _action(self, event: JsonFields, action: str) -> Iterator[ImportedMessage]:
        args, at = _arguments_of(event), event.time("timestamp")
        if action in _NOT_SAID:
            return
        if action == "system":
            self.system.append(args.text("content"))
            self.tools += args.objects("tools")
        elif action in ("message", "finish", "reject"):
            said = (
                args.text("content"),
                args.text("final_thought"),
                args.text("thought"),
                event.text("message"),
            )
            text = next(filter(None, said), "")
            # In the oldest files nobody is named, and the task comes first.
            agent = event.get("source", "agent" if self._begun else "user") == "agent" or action != "message"
            role: Literal["assistant", "user"] = "assistant" if agent else "user"
            yield ImportedMessage(role=role, text=text, at=at, **(self._usage(event) if agent else {}))
            self._begun.add("")
        elif action in _CALLS:
            yield from self._turn(event, at)
        else:
            yield ImportedMessage(role="note", text=f"[{action}]", at=at)

    def _turn(self, event: JsonFields, at: float | None) -> Iterator[ImportedMessage]:
        """Yield the answer that asked for an action, once for all actions that it asked for."""
        answer = _answer_id(event)
        if answer and answer in self._begun:
            return
        self._begun.add(answer)
        calls = read_calls(self._turns.get(answer, [event]) if answer else [event], _read_action)
        self._open = {call.id for call in calls}
        thought = _arguments_of(event).text("thought")
        yield ImportedMessage(role="assistant", text=thought, calls=calls, at=at, **self._usage(event))

    def _usage(self, event: JsonFields) -> dict[str, Any]:
        response = event.fields("tool_call_metadata").fields("model_response")
        tokens = response.fields("usage")
        usage: dict[str, Any] = {
            "tokens_in": tokens.count("prompt_tokens"),
            "tokens_out": tokens.count("completion_tokens"),
            "tokens_cached": tokens.fields("prompt_tokens_details").count("cached_tokens") or 0,
            "model": response.text("model"),
        }
        if whole := event.fields("llm_metrics").amount("accumulated_cost"):
            usage["cost_usd"], self._cost = max(0.0, whole - self._cost), whole
        return usage

    def _observation(self, event: JsonFields, kind: str) -> Iterator[ImportedMessage]:
        if kind in _NOT_SAID:
            return
        extras, text, at = event.fields("extras"), event.content("content").text, event.time("timestamp")
        # It is an error of the agent itself, such as a call that could not be read.
        if not self._open:
            yield ImportedMessage(role="note", text=text, at=at)
            return
        call = event.fields("tool_call_metadata").label("tool_call_id") or event.label("cause")
        failed = kind == "error"
        self._open.discard(call)
        path = extras.text("path") or event.text("path")
        yield ImportedMessage(
            role="tool",
            text=text,
            call=call,
            at=at,
            error=(text or "failed") if failed else "",
            changed=(path,) if kind in ("edit", "write") and path and not failed else (),
        )

    def _sdk(self, event: JsonFields, kind: str) -> Iterator[ImportedMessage]:
        at = event.time("timestamp")
        if kind == "ConversationStateUpdateEvent":
            self._state(event)
        elif kind == "ConversationErrorEvent":
            self.error = one_line(event.text("detail") or event.text("code"), 300)
        elif kind == "ACPToolCallEvent":
            # A tool that another agent's program called: no model of this session asked for it.
            title = event.text("title") or "a tool of another agent"
            yield ImportedMessage(role="note", text=f"{title}: {event.text('status') or 'called'}", at=at)
        elif kind == "SystemPromptEvent":
            self.system.append(event.fields("system_prompt").text("text"))
            self.tools += event.objects("tools")
        elif kind == "MessageEvent":
            message = event.fields("llm_message")
            content = message.content("content")
            if message["role"] not in ("assistant", "user"):
                raise ValueError(f"a message has the role {message['role']!r}")
            role: Literal["assistant", "user"] = message["role"]
            yield ImportedMessage(role=role, text=content.text, at=at, thinking=_thinking(message, content))
        elif kind == "ActionEvent":
            answer = _answer_id(event)
            if answer and answer in self._begun:
                return
            self._begun.add(answer)
            content = event.content("thought")
            yield ImportedMessage(
                role="assistant",
                text=content.text,
                thinking=_thinking(event, content),
                calls=read_calls(self._turns.get(answer, [event]) if answer else [event], _sdk_call),
                at=at,
            )
        elif kind in _KINDS:
            yield _sdk_result(event, at)

    def _state(self, event: JsonFields) -> None:
        """Take the model and what was used from a state of the conversation, the last of which counts."""
        if event.get("key") not in ("stats", "full_state"):
            return
        state = event.fields("value")
        self.model = state.fields("agent").fields("llm").text("model") or self.model
        by_use = (state if event["key"] == "stats" else state.fields("stats")).fields("usage_to_metrics")
        models = [by_use.fields(name) for name in by_use]
        if not models:
            return
        tokens = [model.fields("accumulated_token_usage") for model in models]
        # It writes 0 where it has no price.
        costs = [model.amount("accumulated_cost") or None for model in models]
        self.usage = WholeUsage(
            tokens_in=_total([one.count("prompt_tokens") for one in tokens]),
            tokens_out=_total([one.count("completion_tokens") for one in tokens]),
            tokens_cached=_total([one.count("cache_read_tokens") for one in tokens]),
            cost_usd=sum(filter(None, costs)) or None,
        )


def _total(counts: Sequence[int | None]) -> int | None:
    """Return a sum, which is not known where one of the counts is not."""
    return None if None in counts else sum(count or 0 for count in counts)


def _thinking(message: JsonFields, content: MessageContent) -> str:
    blocks = [reasoning_text(block) for block in message.objects("thinking_blocks")]
    # The blocks of some providers repeat what is in `reasoning_content`.
    return "\n\n".join(
        dict.fromkeys(filter(None, (message.text("reasoning_content"), content.thinking, *blocks)))
    )


def _answer_id(event: Mapping[str, Any]) -> str:
    """Return the id of the model's answer that an action is of; empty where it has none."""
    if event.get("kind") == "ActionEvent":
        return str(event.get("llm_response_id") or "")
    action = event.get("action")
    if not isinstance(action, str) or action not in _CALLS:
        return ""
    metadata = event.get("tool_call_metadata")
    response = metadata.get("model_response") if isinstance(metadata, Mapping) else None
    return str(response.get("id") or "") if isinstance(response, Mapping) else ""


def _arguments_of(event: JsonFields) -> JsonFields:
    """Return the arguments of an action, which the oldest files write into the action itself."""
    return event.fields("args") if event.get("args") is not None else event


def _read_action(event: JsonFields) -> ImportedCall:
    metadata = event.fields("tool_call_metadata")
    call_id = metadata.label("tool_call_id")
    name = metadata.text("function_name") or event["action"]
    for choice in metadata.fields("model_response").objects("choices")[:1]:
        for call in choice.fields("message").objects("tool_calls"):
            if call_id and call.label("id") == call_id:
                return read_call(name, call.fields("function").get("arguments"), call_id)
    own = {
        key: value
        for key, value in _arguments_of(event).items()
        if key not in _NO_ARGUMENTS and value is not None
    }
    return read_call(name, own, call_id or event.label("id"))


def _sdk_call(event: JsonFields) -> ImportedCall:
    call = event.fields("tool_call")
    args = call.get("arguments")
    if args is None:
        args = {key: value for key, value in event.fields("action").items() if key != "kind"}
    return read_call(event["tool_name"], args, event.label("tool_call_id") or call.label("id"))


def _sdk_result(event: JsonFields, at: float | None) -> ImportedMessage:
    observation = event.fields("observation")
    if event["kind"] == "AgentErrorEvent":
        text = error = event.text("error") or "failed"
    elif event["kind"] == "UserRejectObservation":
        text = error = event.text("rejection_reason") or "rejected"
    else:
        text = observation.content("content", "output").text
        failed = observation.flag("is_error")
        error = observation.text("error") or ((text or "failed") if failed else "")
    path = observation.text("path")
    changes = "old_content" in observation and observation.get("new_content") is not None and not error
    return ImportedMessage(
        role="tool",
        text=text,
        call=event.label("tool_call_id"),
        at=at,
        error=error,
        changed=(path,) if changes and path else (),
    )
