"""OpenTelemetry traces of agents: OTLP JSON whose spans follow the GenAI semantic conventions, also one
request a line as collectors write it.

Source: OpenTelemetry, Semantic conventions for generative AI (1.37 and later): `gen_ai.input.messages`,
`gen_ai.output.messages`, `gen_ai.tool.call.*`. Instrumentations leave the messages out unless they are set to
record content.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line, shown_path
from kestrel_lab.evals.importers.agent_sessions import json_lines
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    Broken,
    ImportedCall,
    ImportedMessage,
    Recording,
    Records,
    offered_tool,
    read_call,
    record_digest,
    require_texts,
    require_time,
    unreadable_record,
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
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_texts(self, "trace", "id", "parent")
        require_time(self.began)
        require_time(self.ended)

    @property
    def kind(self) -> str:
        return str(self.facts.get("gen_ai.operation.name") or "")


def read_otel(path: Path) -> Records:
    """Yield one conversation per agent in the traces of a file: of each `invoke_agent` span, and of model
    calls outside of any.
    """
    spans: list[_Span] = []
    for found in _requests(path):
        if isinstance(found, Broken):
            yield found
            continue
        for span in _spans(*found):
            if isinstance(span, Broken):
                yield span
            else:
                spans.append(span)
    inferred = [span for span in spans if _INFERENCE in span.facts]
    if inferred:
        yield from read_phoenix(
            ((shown_path(path), phoenix_span(span, span.facts)) for span in inferred),
            str(path),
        )
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


def _requests(path: Path) -> Iterator[tuple[str, dict[str, Any]] | Broken]:
    if path.suffix == ".json":
        try:
            yield shown_path(path), json.loads(path.read_bytes())
        except (ValueError, RecursionError) as error:
            yield Broken(shown_path(path), f"not JSON: {one_line(str(error), 100)}")
        return
    for found in json_lines(path):
        yield found if isinstance(found, Broken) else (f"{shown_path(path)}:{found[0]}", found[1])


def _spans(place: str, request: Mapping[str, Any]) -> Iterator[_Span | Broken]:
    """Yield the spans of a request, and what is none in it."""
    try:
        found = [
            span
            for one in request["resourceSpans"]
            for scope in one.get("scopeSpans", ())
            for span in scope.get("spans", ())
        ]
    except UNREADABLE as error:
        yield unreadable_record(place, "no OTLP trace", error)
        return
    for number, span in enumerate(found):
        try:
            yield _span(span)
        except UNREADABLE as error:
            yield unreadable_record(f"{place} spans[{number}]", "no span", error)


def _span(span: Mapping[str, Any]) -> _Span:
    status = span.get("status") or {}
    return _Span(
        trace=_id(span["traceId"]),
        id=_id(span["spanId"]),
        parent=_id(span.get("parentSpanId") or ""),
        began=int(span["startTimeUnixNano"]) / 1e9,
        ended=int(span["endTimeUnixNano"]) / 1e9,
        error=str(status.get("message") or "failed")
        if status.get("code") in (2, "STATUS_CODE_ERROR")
        else "",
        # Content is on the span, or on an event of it.
        facts={
            one["key"]: _value(one["value"])
            for holder in (*span.get("events", ()), span)
            for one in holder.get("attributes", ())
        },
    )


def _id(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"an id is a text, not {one_line(str(value), 60)}")
    return value


def _value(value: Mapping[str, Any]) -> Any:
    """Return an OTLP value as JSON; whole numbers are texts in OTLP."""
    ((kind, held),) = value.items()
    if kind == "intValue":
        return int(held)
    if kind == "arrayValue":
        return [_value(one) for one in held.get("values", ())]
    if kind == "kvlistValue":
        return {one["key"]: _value(one["value"]) for one in held.get("values", ())}
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
    tools = {
        str(span.facts.get("gen_ai.tool.call.id")): span for span in spans if span.kind == "execute_tool"
    }
    said: list[ImportedMessage] = []
    for span in chats:
        asked = _messages(span, "gen_ai.input.messages")
        # The last answer of the model and all before it are known from the spans before this one.
        last = max(
            (number for number, message in enumerate(asked) if message["role"] == "assistant"), default=-1
        )
        said += [one for message in asked[last + 1 if said else 0 :] for one in _read_message(message, tools)]
        said += _answer(span)
    if not any(one.role == "user" for one in said):
        raise ValueError(_NO_CONTENT)
    answered = {one.call for one in said if one.role == "tool"}
    # Results of the last calls are in no later model call.
    for wanted in said[-1].calls:
        if (ran := tools.get(wanted.id)) is not None and wanted.id not in answered:
            said.append(_result(wanted.id, _text(ran.facts.get("gen_ai.tool.call.result")), ran))
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
        model=str(
            first.facts.get("gen_ai.response.model") or first.facts.get("gen_ai.request.model") or "unknown"
        ),
        system="\n\n".join(
            _text(part.get("content")) for part in _json(first.facts.get("gen_ai.system_instructions")) or ()
        ),
        tools=tuple(offered_tool(one) for one in _json(first.facts.get("gen_ai.tool.definitions")) or ()),
        messages=said,
        began=whole.began,
        error=whole.error,
        facts={key: value for key, value in facts.items() if value},
    )


def _messages(span: _Span, name: str) -> list[dict[str, Any]]:
    return [message for message in _json(span.facts.get(name)) or () if message["role"] != "system"]


def _read_message(message: Mapping[str, Any], tools: Mapping[str, _Span]) -> list[ImportedMessage]:
    """Return what a message holds: the answers to calls one by one, and its text."""
    parts = message["parts"]
    found = [
        _result(
            str(part.get("id") or ""),
            _text(part.get("response", part.get("result"))),
            tools.get(str(part.get("id"))),
        )
        for part in parts
        if part["type"] == "tool_call_response"
    ]
    text = "\n\n".join(
        _text(part.get("content", f"[{part['type']}]"))
        for part in parts
        if part["type"] not in ("tool_call", "tool_call_response")
    )
    if message["role"] == "assistant":
        return [*found, ImportedMessage(role="assistant", text=text, calls=_calls(parts))]
    return [*found, *([ImportedMessage(role="user", text=text)] if text else [])]


def _result(call: str, text: str, ran: _Span | None) -> ImportedMessage:
    one = ImportedMessage(role="tool", text=text, call=call)
    return one if ran is None else replace(one, at=ran.ended, seconds=ran.ended - ran.began, error=ran.error)


def _answer(span: _Span) -> list[ImportedMessage]:
    found = _messages(span, "gen_ai.output.messages")
    if not found:
        return []
    read, written = span.facts.get("gen_ai.usage.input_tokens"), span.facts.get("gen_ai.usage.output_tokens")
    parts = [part for message in found[:1] for part in message["parts"]]
    return [
        ImportedMessage(
            role="assistant",
            text="\n\n".join(_text(part.get("content")) for part in parts if part["type"] == "text"),
            calls=_calls(parts),
            at=span.ended,
            seconds=span.ended - span.began,
            tokens_in=None if read is None else int(read),
            tokens_out=None if written is None else int(written),
            model=str(span.facts.get("gen_ai.response.model") or ""),
        )
    ]


def _calls(parts: Sequence[Mapping[str, Any]]) -> tuple[ImportedCall, ...]:
    return tuple(
        read_call(part["name"], part.get("arguments"), part.get("id"))
        for part in parts
        if part["type"] == "tool_call"
    )


def _json(value: Any) -> Any:
    """Return a value that instrumentations record as it is or as JSON text."""
    return json.loads(value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, ensure_ascii=False)
