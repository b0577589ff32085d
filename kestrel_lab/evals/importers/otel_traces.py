"""OpenTelemetry traces of agents: OTLP JSON whose spans follow the GenAI semantic conventions, also one
request a line as collectors write it.

Source: OpenTelemetry, Semantic conventions for generative AI (1.37 and later): `gen_ai.input.messages`,
`gen_ai.output.messages`, `gen_ai.tool.call.*`. Instrumentations leave the messages out unless they are set to
record content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.agent_sessions import json_lines
from kestrel_lab.evals.importers.imported_run import (
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    offered_tools,
    read_call,
    read_calls,
    record_digest,
    unreadable_record,
    without_unasked_results,
)
from kestrel_lab.evals.importers.json_fields import (
    UNREADABLE,
    Broken,
    JsonFields,
    UnreadNumber,
    is_reasoning,
    parse_json,
    read_seconds,
    reasoning_text,
)
from kestrel_lab.evals.importers.trace_exports import TracedOperation, phoenix_span, read_phoenix
from kestrel_lab.evals.stats.groups import group_values

_MODEL_CALLS: Final = ("chat", "text_completion", "generate_content")
_INFERENCE: Final = "openinference.span.kind"
"""The attribute by which spans of OpenInference are known, which have other conventions."""
_NO_CONTENT: Final = (
    "it has spans of an agent and no messages: have the instrumentation record content "
    "(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true in most)"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span(TracedOperation):
    parent: str
    began: float
    ended: float
    facts: JsonFields

    @property
    def kind(self) -> str:
        """What was done in it; where it does not say so, what it recorded shows it."""
        if operation := self.facts.text("gen_ai.operation.name"):
            return operation
        if "gen_ai.input.messages" in self.facts or "gen_ai.output.messages" in self.facts:
            return "chat"
        return "execute_tool" if "gen_ai.tool.call.id" in self.facts else ""


def read_otel(path: Path) -> Records:
    """Yield one conversation per agent in the traces of a file: of each `invoke_agent` span, and of model
    calls outside of any.
    """
    spans: list[_Span] = []
    left_out: list[Broken] = []
    for found in _requests(path):
        if isinstance(found, Broken):
            yield found
        else:
            spans += _spans(*found, left_out)
    inferred = [span for span in spans if _INFERENCE in span.facts]
    spans = [span for span in spans if _INFERENCE not in span.facts]
    known = {(span.trace, span.id): span for span in spans}
    conversations = group_values(
        ((span.trace, _agent_of(span, known)), span)
        for span in sorted(spans, key=lambda span: span.began)
        if span.kind in (*_MODEL_CALLS, "execute_tool")
    )
    for (trace, agent), calls in conversations.items():
        place = f"{shown_path(path)} (trace {trace}{f', agent span {agent}' if agent else ''})"
        try:
            yield _recording(place, calls, known.get((trace, agent)))
        except UNREADABLE as error:
            yield (
                Broken(place, one_line(str(error), 300))
                if isinstance(error, ValueError)
                else unreadable_record(place, "no GenAI trace", error)
            )
    # Only now: the fields of a span are read where it becomes a message.
    yield from dict.fromkeys(left_out)
    if inferred:
        yield from read_phoenix(
            ((shown_path(path), phoenix_span(span, dict(span.facts))) for span in inferred),
            str(path),
        )


def _requests(path: Path) -> Iterator[tuple[str, Any] | Broken]:
    if path.suffix == ".json":
        try:
            yield shown_path(path), parse_json(path.read_bytes())
        except ValueError as error:
            yield Broken(shown_path(path), f"not JSON: {one_line(str(error), 100)}")
        return
    for found in json_lines(path):
        yield found if isinstance(found, Broken) else (f"{shown_path(path)}:{found[0]}", found[1])


def _spans(place: str, request: Any, left_out: list[Broken]) -> Iterator[_Span]:
    """Yield the spans of a request; what is none in it is noted."""
    try:
        traced = JsonFields(request, place, left_out, whole=True)
        if "resourceSpans" not in traced:
            raise ValueError("it has no resourceSpans")
    except UNREADABLE as error:
        left_out.append(unreadable_record(place, "no OTLP trace", error))
        return
    for resource in traced.objects("resourceSpans"):
        for scope in resource.objects("scopeSpans", "instrumentationLibrarySpans"):
            for span in scope.objects("spans"):
                try:
                    yield _read_span(span)
                except UNREADABLE as error:
                    left_out.append(unreadable_record(span.place, "no span", error))


def _read_span(span: JsonFields) -> _Span:
    status = span.fields("status")
    facts: dict[str, Any] = {}
    # Content is on the span, or on an event of it.
    for holder in (*span.objects("events"), span):
        for attribute in holder.objects("attributes"):
            try:
                facts[_require_text(attribute["key"])] = _attribute_value(attribute["value"])
            except UNREADABLE as error:
                span.left_out.append(unreadable_record(attribute.place, "no attribute", error))
    began = span.read("startTimeUnixNano", _seconds_of_nano)
    if began is None:
        raise ValueError("it does not say when it began")
    # A span that was exported before it ended has no end.
    ended = span.read("endTimeUnixNano", _seconds_of_nano)
    return _Span(
        trace=_require_text(span["traceId"]),
        id=_require_text(span["spanId"]),
        parent=_require_text(span.get("parentSpanId") or ""),
        began=began,
        ended=began if ended is None else max(began, ended),
        error=(status.text("message") or "failed") if status.get("code") in (2, "STATUS_CODE_ERROR") else "",
        facts=JsonFields(facts, span.place, span.left_out),
    )


def _seconds_of_nano(value: Any) -> float:
    seconds = _whole_number(value) / 1e9
    read_seconds(seconds)
    return seconds


def _whole_number(value: Any) -> int:
    """Return a whole number, which OTLP writes as text."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"it is no whole number: {one_line(repr(value), 40)}")
    return int(value)


def _require_text(value: object) -> str:
    if not isinstance(value, str) or isinstance(value, UnreadNumber):
        raise TypeError(f"an id is a text, not {one_line(str(value), 60)}")
    return value


def _attribute_value(value: Any) -> Any:
    """Return an OTLP value as JSON; whole numbers are texts in OTLP."""
    ((kind, held),) = value.items()
    if kind == "intValue":
        return _whole_number(held)
    if kind == "stringValue":
        return _require_text(held)
    if kind == "arrayValue":
        return [_attribute_value(one) for one in held.get("values", ())]
    if kind == "kvlistValue":
        return {one["key"]: _attribute_value(one["value"]) for one in held.get("values", ())}
    return held


def _agent_of(span: _Span, known: Mapping[tuple[str, str], _Span]) -> str:
    """Return the id of the nearest agent's span around a span; empty where there is none."""
    above, seen = known.get((span.trace, span.parent)), set[str]()
    while above is not None and above.kind != "invoke_agent" and above.id not in seen:
        seen.add(above.id)
        above = known.get((above.trace, above.parent))
    return above.id if above is not None and above.kind == "invoke_agent" else ""


def _recording(place: str, spans: Sequence[_Span], agent: _Span | None) -> Recording:
    chats = [span for span in spans if span.kind in _MODEL_CALLS]
    tools = {span.facts.label("gen_ai.tool.call.id"): span for span in spans if span.kind == "execute_tool"}
    messages: list[ImportedMessage] = []
    for span in chats:
        asked = _messages(span, "gen_ai.input.messages")
        # The last answer of the model and all before it are known from the spans before this one.
        last = max(
            (number for number, message in enumerate(asked) if message.get("role") == "assistant"),
            default=-1,
        )
        for message in asked[last + 1 if messages else 0 :]:
            messages += _read_tolerantly(message, tools)
        messages += _read_answer(span)
    if not messages:
        raise ValueError(_NO_CONTENT)
    messages = without_unasked_results(messages, place, spans[0].facts.left_out)
    answered = {message.call for message in messages if message.role == "tool"}
    # Results of the last calls are in no later model call.
    for wanted in messages[-1].calls:
        if (ran := tools.get(wanted.id)) is not None and wanted.id not in answered:
            messages.append(_read_result(wanted.id, _text(ran.facts.get("gen_ai.tool.call.result")), ran))
    first, whole = chats[0], agent or chats[0]
    facts = {
        "trace": first.trace,
        "agent": whole.facts.get("gen_ai.agent.name"),
        "conversation": whole.facts.get("gen_ai.conversation.id"),
    }
    return Recording(
        format="otel",
        source=place,
        id=f"{first.trace}/{whole.id}",
        digest=record_digest("otel", first.trace, [span.id for span in spans]),
        model=first.facts.text("gen_ai.response.model", "gen_ai.request.model") or "unknown",
        system="\n\n".join(part.text("content") for part in _objects(first, "gen_ai.system_instructions")),
        tools=offered_tools(_objects(first, "gen_ai.tool.definitions")),
        messages=messages,
        began=whole.began,
        error=whole.error,
        facts={key: value for key, value in facts.items() if value},
    )


def _objects(span: _Span, name: str) -> list[JsonFields]:
    """Return the objects in an attribute that instrumentations record as they are, or as JSON text."""
    value = span.facts.get(name)
    if isinstance(value, str):
        value = span.facts.read(name, parse_json)
    return JsonFields({name: value}, span.facts.place, span.facts.left_out).objects(name)


def _messages(span: _Span, name: str) -> list[JsonFields]:
    return [message for message in _objects(span, name) if message.get("role") != "system"]


def _read_tolerantly(message: JsonFields, tools: Mapping[str, _Span]) -> list[ImportedMessage]:
    """Return what a message holds; one that cannot be read is noted and costs itself alone."""
    try:
        return _read_message(message, tools)
    except UNREADABLE as error:
        message.left_out.append(unreadable_record(message.place, "no message", error))
        return []


def _read_message(message: JsonFields, tools: Mapping[str, _Span]) -> list[ImportedMessage]:
    """Return what a message holds: the answers to calls one by one, and its text."""
    role, parts = message["role"], message.objects("parts")
    results = []
    for part in parts:
        if part.get("type") == "tool_call_response":
            call = part.label("id")
            results.append(
                _read_result(call, _text(part.get("response", part.get("result"))), tools.get(call))
            )
    text, thinking = _text_and_thinking(parts)
    if role == "assistant":
        answer = ImportedMessage(role="assistant", text=text, thinking=thinking, calls=_calls(parts))
        return [*results, answer]
    if role not in ("user", "tool"):
        raise ValueError(f"a message has the role {role!r}")
    return [*results, *([ImportedMessage(role="user", text=text)] if text else [])]


def _text_and_thinking(parts: Sequence[JsonFields]) -> tuple[str, str]:
    """Return what parts of a message say, and what its model thought."""
    texts: list[str] = []
    thoughts: list[str] = []
    for part in parts:
        if is_reasoning(part):
            thoughts.append(reasoning_text(part))
        elif part.get("type") not in ("tool_call", "tool_call_response"):
            texts.append(_text(part.get("content", f"[{part.get('type', 'part')}]")))
    return "\n\n".join(texts), "\n\n".join(filter(None, thoughts))


def _read_result(call: str, text: str, ran: _Span | None) -> ImportedMessage:
    message = ImportedMessage(role="tool", text=text, call=call)
    if ran is None:
        return message
    return replace(message, at=ran.ended, seconds=ran.ended - ran.began, error=ran.error)


def _read_answer(span: _Span) -> list[ImportedMessage]:
    answers = _messages(span, "gen_ai.output.messages")
    if not answers:
        return []
    parts = answers[0].objects("parts")
    text, thinking = _text_and_thinking(parts)
    facts = span.facts
    # What the cache gave is among the tokens read.
    return [
        ImportedMessage(
            role="assistant",
            text=text,
            thinking=thinking,
            calls=_calls(parts),
            at=span.ended,
            seconds=span.ended - span.began,
            tokens_in=facts.count("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
            tokens_out=facts.count("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
            tokens_cached=facts.count("gen_ai.usage.cache_read.input_tokens", "gen_ai.usage.cached_tokens")
            or 0,
            tokens_reasoning=facts.count("gen_ai.usage.reasoning.output_tokens") or 0,
            model=facts.text("gen_ai.response.model"),
        )
    ]


def _calls(parts: Sequence[JsonFields]) -> tuple[ImportedCall, ...]:
    return read_calls([part for part in parts if part.get("type") == "tool_call"], _read_call)


def _read_call(part: JsonFields) -> ImportedCall:
    return read_call(part["name"], part.get("arguments"), part.label("id"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
