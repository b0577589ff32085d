"""Traces exported from Langfuse, LangSmith and Phoenix: spans of model and tool calls as conversations.

Sources: Langfuse, Observations API and the download of a trace; LangSmith, run data format; Phoenix, spans of
its REST API and its frames, with the attributes of OpenInference.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.importers.chat_logs import chat_messages
from kestrel_lab.evals.importers.imported_run import (
    UNREADABLE,
    Broken,
    ImportedMessage,
    Recording,
    Records,
    record_digest,
    seconds_of,
    unreadable_record,
)
from kestrel_lab.evals.importers.message_shapes import plain_message

_NO_MESSAGES: Final = "its spans have no messages: export inputs and outputs too"
_HOLDERS: Final = ("messages", "input", "output", "choices", "generations", "message", "response", "prompts")
"""Keys below which tools record what was said."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedOperation:
    """What spans of all formats have; times are in seconds, `None` where they are not recorded."""

    trace: str
    id: str
    began: float | None
    ended: float | None
    error: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Span(TracedOperation):
    """A call of a model or of a tool, as messages of a chat."""

    tool: str = ""
    """The tool that was called; empty for a model."""
    call: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    """What the model answered, or the tool (`content`)."""
    model: str = ""
    tokens_in: Any = None
    tokens_out: Any = None
    tokens_cached: Any = 0
    cost: Any = None


@dataclass
class _Conversation:
    spans: list[_Span] = field(default_factory=list)
    said: list[ImportedMessage] = field(default_factory=list)
    system: list[str] = field(default_factory=list)


def read_spans(
    name: str,
    read: Callable[[Mapping[str, Any]], _Span | None],
    parts: Iterable[tuple[str, Any]],
    source: str,
) -> Records:
    """Yield the conversations in spans: a call whose messages go on from those of an earlier one of its trace
    goes on with it, any other begins one.
    """
    spans: list[_Span] = []
    for place, part in parts:
        try:
            if (span := read(part)) is not None:
                spans.append(span)
        except UNREADABLE as error:
            yield unreadable_record(place, "no span", error)
    spans.sort(key=lambda span: span.began or 0.0)
    found: dict[str, list[_Conversation]] = {}
    tools = [span for span in spans if span.tool]
    for span in spans:
        try:
            if not span.tool:
                _add(found.setdefault(span.trace, []), span, tools)
        except UNREADABLE as error:
            yield unreadable_record(
                f"{source} (trace {span.trace}, span {span.id})", "no call of a model", error
            )
    if not any(found.values()):
        yield Broken(source, _NO_MESSAGES)
    for trace, conversations in found.items():
        yield from _recordings(name, trace, conversations, tools, source)


def _recordings(
    name: str, trace: str, conversations: Sequence[_Conversation], tools: Sequence[_Span], source: str
) -> Records:
    for number, conversation in enumerate(conversations, 1):
        part = f" part {number}" if len(conversations) > 1 else ""
        place = f"{source} (trace {trace}{part})"
        _add_last_results(conversation, tools)
        try:
            yield _recording(name, conversation, place, f"{trace}{part}")
        except UNREADABLE as error:
            yield unreadable_record(place, "no conversation", error)


def _add(conversations: list[_Conversation], span: _Span, tools: Sequence[_Span]) -> None:
    system: list[str] = []
    asked = [one for message in span.asked for one in chat_messages(message, system)]
    best = max(
        (one for one in conversations if _goes_on(one.said, asked)),
        key=lambda one: len(one.said),
        default=None,
    )
    if best is None:
        if not any(one.role == "user" and one.text.strip() for one in asked):
            raise ValueError(_NO_MESSAGES)
        conversations.append(best := _Conversation(system=system))
    new = asked[len(best.said) :]
    best.said += [_with_times(one, tools) for one in new]
    best.spans.append(span)
    if span.answer is not None:
        (answer,) = chat_messages({**span.answer, "role": "assistant"}, system)
        seconds = max(0.0, span.ended - span.began) if span.began and span.ended else 0.0
        best.said.append(
            replace(
                answer,
                at=span.ended,
                seconds=seconds,
                model=span.model,
                tokens_in=None if span.tokens_in is None else int(span.tokens_in),
                tokens_out=None if span.tokens_out is None else int(span.tokens_out),
                tokens_cached=int(span.tokens_cached or 0),
                cost_usd=None if span.cost is None else float(span.cost),
            )
        )


def _goes_on(said: Sequence[ImportedMessage], asked: Sequence[ImportedMessage]) -> bool:
    """Return whether messages begin with those that were said; ids and times are no part of it."""

    def shape(one: ImportedMessage) -> tuple[Any, ...]:
        return one.role, one.text.strip(), [(call.tool, call.args) for call in one.calls]

    return len(said) <= len(asked) and all(
        shape(one) == shape(other) for one, other in zip(said, asked, strict=False)
    )


def _with_times(one: ImportedMessage, tools: Sequence[_Span]) -> ImportedMessage:
    ran = next((span for span in tools if span.call and span.call == one.call), None)
    if one.role != "tool" or ran is None:
        return one
    seconds = max(0.0, ran.ended - ran.began) if ran.began and ran.ended else 0.0
    return replace(one, at=ran.ended, seconds=seconds, error=one.error or ran.error)


def _add_last_results(conversation: _Conversation, tools: Sequence[_Span]) -> None:
    """Add the results of the last calls, which no later call of the model was shown."""
    if not conversation.said or conversation.said[-1].role != "assistant":
        return
    trace = conversation.spans[-1].trace
    left = [
        span
        for span in tools
        if span.trace == trace and (span.began or 0.0) >= (conversation.spans[-1].began or 0.0)
    ]
    for call in conversation.said[-1].calls:
        ran = next(
            (one for one in left if one.call == call.id or (not one.call and one.tool == call.tool)), None
        )
        if ran is not None:
            left.remove(ran)
            text = str((ran.answer or {}).get("content") or "")
            conversation.said.append(
                _with_times(ImportedMessage(role="tool", text=text, call=call.id, error=ran.error), [ran])
            )


def _recording(name: str, conversation: _Conversation, place: str, known: str) -> Recording:
    first = conversation.spans[0]
    return Recording(
        format=name,
        source=place,
        id=known,
        digest=record_digest(name, [span.id for span in conversation.spans], known),
        model=next((span.model for span in conversation.spans if span.model), "unknown"),
        system="\n\n".join(conversation.system),
        messages=conversation.said,
        began=first.began,
        error=next((one_line(span.error, 300) for span in conversation.spans[-1:] if span.error), ""),
        facts={"trace": first.trace},
    )


def _json(value: Any) -> Any:
    """Return a value that is JSON or text of it; other text as it is."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _chat(value: Any, role: str = "user") -> list[dict[str, Any]]:
    """Return messages of a chat from what tools record of one: a list, a request, a response, or a text."""
    value = _json(value)
    if isinstance(value, list):
        return [message for one in value for message in _chat(one, role)]
    if isinstance(value, str):
        return [{"role": role, "content": value}] if value else []
    if not isinstance(value, dict):
        return []
    for inner in _HOLDERS:
        if inner in value and "role" not in value:
            return _chat(value[inner], role)
    found = plain_message(value, role)
    return [{"tool_calls": [], **found}] if found is not None else []


def _last(value: Any) -> dict[str, Any] | None:
    found = _chat(value, "assistant")
    return found[-1] if found else None


# Langfuse: observations of a trace, as its API, its download of a trace and its table export have them.


def is_langfuse(value: Any) -> bool:
    """Return whether a JSON value is an observation of Langfuse."""
    return isinstance(value, dict) and "traceId" in value and "type" in value and "startTime" in value


def is_langfuse_trace(value: Any) -> bool:
    """Return whether a JSON value is a trace of Langfuse, or a page of observations."""
    return any(map(is_langfuse, _inside(value, "observations", "data")))


def _langfuse(one: Mapping[str, Any]) -> _Span | None:
    usage, costs = one.get("usageDetails") or one.get("usage") or {}, one.get("costDetails") or {}
    usage, costs = _json(usage), _json(costs)
    span = _Span(
        trace=str(one["traceId"]),
        id=str(one["id"]),
        began=seconds_of(one["startTime"]),
        ended=seconds_of(one.get("endTime")),
        error=str(one.get("statusMessage") or "failed") if one.get("level") == "ERROR" else "",
    )
    if one["type"] == "TOOL":
        content = one.get("output")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return replace(span, tool=str(one.get("name") or "tool"), answer={"content": text})
    if one["type"] != "GENERATION":
        return None
    read = sum(
        int(count or 0)
        for name, count in usage.items()
        if name.startswith("input") and isinstance(count, int | float)
    )
    return replace(
        span,
        asked=_chat(one.get("input")),
        answer=_last(one.get("output")),
        model=str(one.get("model") or one.get("providedModelName") or ""),
        # Parts of the input that the cache gave are keys of their own that begin with the same word.
        tokens_in=read if "input" in usage else None,
        tokens_out=usage.get("output"),
        tokens_cached=usage.get("input_cached_tokens", usage.get("input_cache_read")),
        cost=one.get("totalCost", costs.get("total")),
    )


# LangSmith: runs, as its SDK and its API have them, nested or not.


def is_langsmith(value: Any) -> bool:
    """Return whether a JSON value is a run of LangSmith."""
    return isinstance(value, dict) and {"run_type", "inputs", "start_time"} <= value.keys()


def is_langsmith_page(value: Any) -> bool:
    """Return whether a JSON value is a page of runs of LangSmith."""
    return any(map(is_langsmith, _inside(value, "runs")))


def _langsmith(one: Mapping[str, Any]) -> _Span | None:
    outputs = one.get("outputs") or {}
    span = _Span(
        trace=str(one.get("trace_id") or one["id"]),
        id=str(one["id"]),
        began=seconds_of(one["start_time"]),
        ended=seconds_of(one.get("end_time")),
        error=str(one.get("error") or ""),
    )
    if one["run_type"] == "tool":
        answer = _last(outputs)
        text = answer["content"] if answer is not None else json.dumps(outputs, ensure_ascii=False)
        call = str((answer or {}).get("tool_call_id") or "")
        return replace(span, tool=str(one["name"]), call=call, answer={"content": text})
    if one["run_type"] != "llm":
        return None
    answer = _last(outputs)
    usage = (answer or {}).get("usage_metadata") or outputs.get("usage_metadata") or {}
    about = (one.get("extra") or {}).get("metadata") or {}
    given = (one.get("extra") or {}).get("invocation_params") or {}
    model = about.get("ls_model_name") or given.get("model") or given.get("model_name") or ""
    return replace(
        span,
        asked=_chat(one["inputs"]),
        answer=answer,
        model=str(model),
        tokens_in=one.get("prompt_tokens") or usage.get("input_tokens"),
        tokens_out=one.get("completion_tokens") or usage.get("output_tokens"),
        tokens_cached=(usage.get("input_token_details") or {}).get("cache_read"),
        cost=one.get("total_cost"),
    )


# Phoenix: spans with the attributes of OpenInference, nested or with dots in their names.


def is_phoenix(value: Any) -> bool:
    """Return whether a JSON value is a span of Phoenix."""
    if not isinstance(value, dict) or not ("context" in value or "context.span_id" in value):
        return False
    attributes = value.get("attributes")
    return "start_time" in value and (
        "span_kind" in value or (isinstance(attributes, dict) and "openinference.span.kind" in attributes)
    )


def is_phoenix_page(value: Any) -> bool:
    """Return whether a JSON value is a page of spans of Phoenix."""
    return any(map(is_phoenix, _inside(value, "data")))


def _phoenix(one: Mapping[str, Any]) -> _Span | None:
    whole = _unflattened(one)
    about, context = whole.get("attributes") or {}, whole["context"]
    span = _Span(
        trace=str(context["trace_id"]),
        id=str(context["span_id"]),
        began=_time(whole["start_time"]),
        ended=_time(whole.get("end_time")),
        error=str(whole.get("status_message") or "failed") if whole.get("status_code") == "ERROR" else "",
    )
    output, kind = about.get("output") or {}, whole.get("span_kind")
    # OpenTelemetry's SDK prints spans without the wrapping of OTLP.
    if kind is None:
        kind = about["openinference"]["span"]["kind"]
    if kind == "TOOL":
        tool = about.get("tool") or {}
        name, call = str(tool.get("name") or whole.get("name") or "tool"), str(tool.get("id") or "")
        value = output.get("value")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return replace(span, tool=name, call=call, answer={"content": text})
    if kind != "LLM":
        return None
    llm = about.get("llm") or {}
    tokens = llm.get("token_count") or {}
    answered = list(map(_phoenix_message, _items(llm.get("output_messages"))))
    asked = list(map(_phoenix_message, _items(llm.get("input_messages"))))
    return replace(
        span,
        asked=asked or _chat((about.get("input") or {}).get("value")),
        answer=answered[-1] if answered else _last(output.get("value")),
        model=str(llm.get("model_name") or ""),
        tokens_in=tokens.get("prompt"),
        tokens_out=tokens.get("completion"),
        tokens_cached=(tokens.get("prompt_details") or {}).get("cache_read"),
        cost=(llm.get("cost") or {}).get("total"),
    )


def _phoenix_message(item: Mapping[str, Any]) -> dict[str, Any]:
    message = item["message"]
    texts = [
        {"type": "text", "text": (part.get("message_content") or {}).get("text")}
        for part in _items(message.get("contents"))
    ]
    calls = [one["tool_call"] for one in _items(message.get("tool_calls"))]
    return {
        "role": message["role"],
        "content": message.get("content") if message.get("content") is not None else texts,
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": [{"id": call.get("id"), "function": call["function"]} for call in calls],
    }


def _unflattened(value: Any) -> Any:
    """Return JSON with keys like `llm.input_messages.0.message.role` as objects in objects."""
    if isinstance(value, list):
        return [_unflattened(one) for one in value]
    if not isinstance(value, dict):
        return value
    found: dict[str, Any] = {}
    for key, one in value.items():
        if one is None:
            continue
        inner, (*path, last) = found, str(key).split(".")
        for name in path:
            inner = inner.setdefault(name, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{key} is a part of a value that is no object")
        read = _unflattened(_json(one) if last != "arguments" and path else one)
        if isinstance(read, dict) and isinstance(inner.get(last), dict):
            inner[last].update(read)
        else:
            inner[last] = read
    return found


def _items(value: Any) -> list[Any]:
    """Return a list that may be an object with numbers for keys."""
    if isinstance(value, dict):
        return [value[key] for key in sorted(value, key=int)]
    return list(value) if isinstance(value, list) else []


def _time(value: Any) -> float | None:
    # A frame that is written as JSON has milliseconds.
    return float(value) / 1000 if isinstance(value, int | float) else seconds_of(value)


def _inside(value: Any, *names: str) -> list[Any]:
    """Return the first spans in a page or a trace."""
    held = (
        [value[name] for name in names if isinstance(value.get(name), list)]
        if isinstance(value, dict)
        else []
    )
    return list(held[0][:40]) if held else []


def _nested(value: Mapping[str, Any], place: str, *names: str) -> Iterator[tuple[str, Any]]:
    """Yield the spans inside of a page or a span, each with its place."""
    for name in names:
        for number, one in enumerate(value.get(name) or ()):
            yield f"{place} {name}[{number}]", one


def _with_children(parts: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for place, one in parts:
        yield place, one
        if isinstance(one, dict):
            yield from _with_children(_nested(one, place, "child_runs"))


read_langfuse: Final = partial(read_spans, "langfuse", _langfuse)


def read_langfuse_trace(value: dict[str, Any], source: str) -> Records:
    """Yield the conversations of a trace of Langfuse, or of a page of observations."""
    return read_langfuse(
        (
            (place, {"traceId": value.get("id"), **one} if isinstance(one, dict) else one)
            for place, one in _nested(value, source, "observations", "data")
        ),
        source,
    )


def read_langsmith(parts: Iterable[tuple[str, Any]], source: str) -> Records:
    """Yield the conversations of runs of LangSmith, and of those inside of them."""
    return read_spans("langsmith", _langsmith, _with_children(parts), source)


def read_langsmith_page(value: dict[str, Any], source: str) -> Records:
    """Yield the conversations of a page of runs of LangSmith."""
    return read_langsmith(_nested(value, source, "runs"), source)


read_phoenix: Final = partial(read_spans, "phoenix", _phoenix)


def phoenix_span(span: TracedOperation, attributes: Any) -> Any:
    """Return a span of OpenTelemetry with attributes of OpenInference as Phoenix has it."""
    return {
        "context": {"trace_id": span.trace, "span_id": span.id},
        # Phoenix counts in milliseconds.
        "start_time": 1000 * (span.began or 0.0),
        "end_time": 1000 * (span.ended or 0.0),
        "status_code": "ERROR" if span.error else "OK",
        "status_message": span.error,
        "attributes": attributes,
    }


def read_phoenix_page(value: dict[str, Any], source: str) -> Records:
    """Yield the conversations of a page of spans of Phoenix."""
    return read_phoenix(_nested(value, source, "data"), source)
