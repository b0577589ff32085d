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
    ImportedMessage,
    Recording,
    Records,
    read_parts,
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
    read_amount,
    read_count,
    read_number,
    read_seconds,
    read_time,
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
    asked: list[Any] = field(default_factory=list)
    answer: dict[str, Any] | None = None
    """What the model answered, or the tool (`content`)."""
    model: str = ""
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost: float | None = None


@dataclass
class _Conversation:
    spans: list[_Span] = field(default_factory=list)
    said: list[ImportedMessage] = field(default_factory=list)
    system: list[str] = field(default_factory=list)


def read_spans(
    name: str,
    read: Callable[[JsonFields], _Span | None],
    parts: Iterable[tuple[str, Any]],
    source: str,
) -> Records:
    """Yield the conversations in spans: a call whose messages go on from those of an earlier one of its trace
    goes on with it, any other begins one.
    """
    spans: list[_Span] = []
    left_out: list[Broken] = []
    for place, part in parts:
        try:
            if (span := read(JsonFields(part, place, left_out))) is not None:
                spans.append(span)
        except UNREADABLE as error:
            yield unreadable_record(place, "no span", error)
    spans.sort(key=lambda span: span.began or 0.0)
    found: dict[str, list[_Conversation]] = {}
    tools = [span for span in spans if span.tool]
    for span in spans:
        try:
            if not span.tool:
                _add(found.setdefault(span.trace, []), span, tools, left_out)
        except UNREADABLE as error:
            yield unreadable_record(
                f"{source} (trace {span.trace}, span {span.id})", "no call of a model", error
            )
    # Spans repeat the messages before them, and what is wrong with those.
    yield from dict.fromkeys(left_out)
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
        left_out: list[Broken] = []
        conversation.said = without_unasked_results(conversation.said, place, left_out)
        yield from left_out
        try:
            yield _recording(name, conversation, place, f"{trace}{part}")
        except UNREADABLE as error:
            yield unreadable_record(place, "no conversation", error)


def _add(
    conversations: list[_Conversation], span: _Span, tools: Sequence[_Span], left_out: list[Broken]
) -> None:
    system: list[str] = []
    place = f"span {span.id} of trace {span.trace}: message"
    asked = read_parts(
        ((f"{place} {number}", message) for number, message in enumerate(span.asked)),
        lambda message: chat_messages(message, system),
        left_out,
    )
    best = max(
        (one for one in conversations if _goes_on(one.said, asked)),
        key=lambda one: len(one.said),
        default=None,
    )
    if best is None:
        if not asked and span.answer is None:
            raise ValueError(_NO_MESSAGES)
        conversations.append(best := _Conversation(system=system))
    new = asked[len(best.said) :]
    best.said += [_with_times(one, tools) for one in new]
    best.spans.append(span)
    if span.answer is not None:
        answered = JsonFields({**span.answer, "role": "assistant"}, f"{place} of the answer", left_out)
        (answer,) = chat_messages(answered, system)
        seconds = max(0.0, span.ended - span.began) if span.began and span.ended else 0.0
        best.said.append(
            replace(
                answer,
                at=span.ended,
                seconds=seconds,
                model=span.model,
                tokens_in=span.tokens_in,
                tokens_out=span.tokens_out,
                tokens_cached=span.tokens_cached or 0,
                cost_usd=span.cost,
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
            return parse_json(value)
        except ValueError:
            return value
    return value


def _chat(value: Any, role: str = "user") -> list[Any]:
    """Return messages of a chat from what tools record of one: a list, a request, a response, or a text.

    What is no message stays as it is, for its reader to name.
    """
    value = _json(value)
    if isinstance(value, list):
        return [message for one in value for message in (_chat(one, role) if one != [] else [one])]
    if value is None or value in ("", {}):
        return []
    if isinstance(value, str) and not isinstance(value, UnreadNumber):
        return [{"role": role, "content": value}]
    if not isinstance(value, dict):
        return [value]
    for inner in _HOLDERS:
        if inner in value and "role" not in value:
            return _chat(value[inner], role)
    try:
        message = plain_message(value, role)
    except UNREADABLE:
        return [value]
    if message is None:
        # The items in which a model reasons are none; what else is no message is for its reader to name.
        return [] if is_reasoning(value) or not role else [value]
    return [{"tool_calls": [], **message}]


def _answer_in(one: JsonFields, name: str) -> dict[str, Any] | None:
    """Return the last message in a field; what is no message in it is noted."""
    answer = None
    for message in _chat(one.get(name), "assistant"):
        if isinstance(message, dict) and "role" in message:
            answer = message
        else:
            one.note(name, "it holds what is no message")
    return answer


# Langfuse: observations of a trace, as its API, its download of a trace and its table export have them.


def is_langfuse(value: Any) -> bool:
    """Return whether a JSON value is an observation of Langfuse."""
    return isinstance(value, dict) and "traceId" in value and "type" in value and "startTime" in value


def is_langfuse_trace(value: Any) -> bool:
    """Return whether a JSON value is a trace of Langfuse, or a page of observations."""
    return any(map(is_langfuse, _inside(value, "observations", "data")))


def _langfuse(one: JsonFields) -> _Span | None:
    kind = one.text("type")
    if not kind:
        raise ValueError("it has no type")
    span = _Span(
        trace=_require_label(one, "traceId"),
        id=_require_label(one, "id"),
        began=one.time("startTime"),
        ended=one.time("endTime"),
        error=(one.text("statusMessage") or "failed") if one.get("level") == "ERROR" else "",
    )
    if kind == "TOOL":
        content = one.get("output")
        text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
        return replace(span, tool=one.text("name") or "tool", answer={"content": text})
    if kind != "GENERATION":
        return None
    usage, costs = _json_object(one, "usageDetails", "usage"), _json_object(one, "costDetails")
    # Parts of the input that the cache gave are keys of their own that begin with the same word.
    read = [usage.count(name) for name in usage if name.startswith("input")]
    return replace(
        span,
        asked=_chat(one.get("input")),
        answer=_answer_in(one, "output"),
        model=one.text("model", "providedModelName"),
        tokens_in=sum(filter(None, read)) if usage.count("input") is not None else None,
        tokens_out=usage.count("output"),
        tokens_cached=usage.count("input_cached_tokens", "input_cache_read"),
        cost=one.amount("totalCost") if one.get("totalCost") is not None else costs.amount("total"),
    )


def _require_label(one: JsonFields, *names: str) -> str:
    """Return an id; raises `ValueError` for a span without one."""
    if not (label := one.label(*names)):
        raise ValueError(f"it has no {names[0]}")
    return label


def _json_object(one: JsonFields, *names: str) -> JsonFields:
    """Return the first of the fields that has an object, or JSON text of one."""
    read = JsonFields({name: _json(one.get(name)) for name in names}, one.place, one.left_out)
    return read.fields(*names)


# LangSmith: runs, as its SDK and its API have them, nested or not.


def is_langsmith(value: Any) -> bool:
    """Return whether a JSON value is a run of LangSmith."""
    return isinstance(value, dict) and {"run_type", "inputs", "start_time"} <= value.keys()


def is_langsmith_page(value: Any) -> bool:
    """Return whether a JSON value is a page of runs of LangSmith."""
    return any(map(is_langsmith, _inside(value, "runs")))


def _langsmith(one: JsonFields) -> _Span | None:
    kind, outputs = one.text("run_type"), one.fields("outputs")
    if not kind:
        raise ValueError("it has no run_type")
    span = _Span(
        trace=_require_label(one, "trace_id", "id"),
        id=_require_label(one, "id"),
        began=one.time("start_time"),
        ended=one.time("end_time"),
        error=one.text("error"),
    )
    if kind == "tool":
        answer = next((one for one in _chat(dict(outputs), "assistant") if _is_plain(one)), None)
        text = answer["content"] if answer is not None else json.dumps(dict(outputs), ensure_ascii=False)
        call = str((answer or {}).get("tool_call_id") or "")
        return replace(span, tool=one.text("name") or "tool", call=call, answer={"content": text})
    if kind != "llm":
        return None
    answer = _answer_in(one, "outputs")
    counted = JsonFields(answer or {}, one.place_of("outputs"), one.left_out).fields("usage_metadata")
    usage = counted or outputs.fields("usage_metadata")
    extra = one.fields("extra")
    about, parameters = extra.fields("metadata"), extra.fields("invocation_params")
    return replace(
        span,
        asked=_chat(one.get("inputs")),
        answer=answer,
        model=about.text("ls_model_name") or parameters.text("model", "model_name"),
        tokens_in=_known(one.count("prompt_tokens"), usage.count("input_tokens")),
        tokens_out=_known(one.count("completion_tokens"), usage.count("output_tokens")),
        tokens_cached=usage.fields("input_token_details").count("cache_read"),
        cost=one.read("total_cost", _read_price),
    )


def _is_plain(message: Any) -> bool:
    return isinstance(message, dict) and "role" in message


def _known(first: int | None, second: int | None) -> int | None:
    # LangSmith writes 0 in a run whose tokens only the answer tells.
    return first or second


def _read_price(value: Any) -> float:
    """Return a price, which LangSmith writes as a number or as the text of one."""
    return read_amount(float(value) if isinstance(value, str) else value)


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


def _phoenix(one: JsonFields) -> _Span | None:
    whole = JsonFields(_unflattened(dict(one)), one.place, one.left_out)
    about, context = whole.fields("attributes"), whole.fields("context")
    span = _Span(
        trace=_require_label(context, "trace_id"),
        id=_require_label(context, "span_id"),
        began=whole.read("start_time", _time),
        ended=whole.read("end_time", _time),
        error=(whole.text("status_message") or "failed") if whole.get("status_code") == "ERROR" else "",
    )
    # OpenTelemetry's SDK prints the kind among the attributes.
    kind = whole.text("span_kind") or about.fields("openinference").fields("span").text("kind")
    if not kind:
        kind = "LLM" if "llm" in about else "TOOL" if "tool" in about else ""
    if not kind:
        raise ValueError("it does not say whether it is of a model or of a tool")
    output = about.get("output")
    value = output.get("value") if isinstance(output, Mapping) else None
    if kind == "TOOL":
        tool = about.fields("tool")
        name, call = tool.text("name") or whole.text("name") or "tool", tool.label("id")
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return replace(span, tool=name, call=call, answer={"content": text})
    if kind != "LLM":
        return None
    llm = about.fields("llm")
    tokens = llm.fields("token_count")
    asked = _phoenix_messages(llm, "input_messages")
    answered = _phoenix_messages(llm, "output_messages")
    return replace(
        span,
        asked=asked or _chat(about.fields("input").get("value")),
        answer=answered[-1]
        if answered
        else _answer_in(JsonFields({"output": value}, one.place, one.left_out), "output"),
        model=llm.text("model_name"),
        tokens_in=tokens.read("prompt", _read_span_count),
        tokens_out=tokens.read("completion", _read_span_count),
        tokens_cached=tokens.fields("prompt_details").read("cache_read", _read_span_count),
        cost=llm.fields("cost").read("total", _read_price),
    )


def _read_span_count(value: Any) -> int:
    """Return a count, which collectors write as a number or as the text of one."""
    return read_count(int(value) if isinstance(value, str) else value)


def _phoenix_messages(llm: JsonFields, name: str) -> list[dict[str, Any]]:
    """Return the messages of a call; one that is none is noted and costs itself alone."""
    messages = []
    for number, item in enumerate(llm.read(name, _items) or []):
        try:
            messages.append(_phoenix_message(item))
        except UNREADABLE as error:
            llm.left_out.append(unreadable_record(f"{llm.place_of(name)}[{number}]", "no message", error))
    return messages


def _phoenix_message(item: Mapping[str, Any]) -> dict[str, Any]:
    message = item["message"]
    texts = [
        {"type": "text", "text": (part.get("message_content") or {}).get("text")}
        for part in _items(message.get("contents"))
    ]
    calls = [
        call.get("tool_call") if isinstance(call, Mapping) else call
        for call in _items(message.get("tool_calls"))
    ]
    return {
        "role": message["role"],
        "content": message.get("content") if message.get("content") is not None else texts,
        "tool_call_id": message.get("tool_call_id"),
        "tool_calls": calls,
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
    if value is not None and not isinstance(value, list):
        raise TypeError("it is no list")
    return list(value or ())


def _time(value: Any) -> float | None:
    # A frame that is written as JSON has milliseconds.
    return read_time(value) if isinstance(value, str) else read_seconds(read_number(value) / 1000)


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
        listed = value.get(name)
        for number, one in enumerate(listed if isinstance(listed, list) else ()):
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
