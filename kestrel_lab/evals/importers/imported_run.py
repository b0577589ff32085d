"""Recording: what another tool recorded of one task; and what readers of recordings share."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal

from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.evals.importers.json_fields import (
    UNREADABLE,
    Broken,
    JsonFields,
    describe_type,
    parse_json,
    read_amount,
    read_seconds,
)
from kestrel_lab.models.written_calls import ThinkingText

_THINKING_TAGS: Final = ("<think", "</think", "[THINK]")
_FINISHING_TOOLS: Final = frozenset(
    "attempt_completion complete_task done final_answer finish mark_task_complete submit submit_answer "
    "task_complete".split()
)
"""Tools by which agents of other programs give their answer."""
_ANSWER_ARGUMENTS: Final = (
    "message",
    "answer",
    "final_answer",
    "result",
    "final_thought",
    "output",
    "summary",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCall:
    """A tool call as the model wrote it."""

    tool: str
    args: dict[str, Json]
    id: str = ""
    """Its id in the recording; empty where it has none."""
    problem: str = ""
    """Why the call could not be read."""
    pure: bool | None = None
    """Whether the recording declares that it changes nothing; `None` where the tool's kind says it."""

    def __post_init__(self) -> None:
        require_texts(self, "tool", "id", "problem")
        if not isinstance(self.args, dict):
            raise TypeError(f"the arguments of a call are {describe_type(self.args)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedMessage:
    """One message of the recorded conversation, in order."""

    role: Literal["user", "assistant", "tool", "note"]
    """A note is what the program said of itself, outside of the conversation."""
    text: str = ""
    thinking: str = ""
    """The reasoning before an assistant's text."""
    calls: tuple[ImportedCall, ...] = ()
    call: str = ""
    """Of a tool's message: the recording's id of the call that it answers; empty for the next call without an
    answer.
    """
    error: str = ""
    at: float | None = None
    """When it was complete, in seconds since 1970; `None` where the recording does not say."""
    seconds: float = 0.0
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int = 0
    """Those of `tokens_in` that were in the prompt cache."""
    tokens_reasoning: int = 0
    """Those of `tokens_out` that were reasoning."""
    cost_usd: float | None = None
    model: str = ""
    """The model that wrote it, where that is not the recording's."""
    changed: tuple[str, ...] = ()
    """Of a tool's message: files that the call changed, as the recording says."""
    touched: tuple[str, ...] | None = None
    """Files that were other ones after the call; `None` where the recording compares none."""

    def __post_init__(self) -> None:
        require_texts(self, "text", "thinking", "call", "error", "model")
        require_amounts(self, *_AMOUNTS)
        read_seconds(self.at)
        if self.role == "assistant" and any(tag in self.text for tag in _THINKING_TAGS):
            # Some models write their thinking into the text.
            divider = ThinkingText(lambda _: None)
            divider.add(self.text)
            answer, thoughts = divider.finish()
            object.__setattr__(self, "text", answer)
            object.__setattr__(self, "thinking", "\n\n".join(filter(None, (self.thinking, *thoughts))))


@dataclass(frozen=True, kw_only=True, slots=True)
class WholeUsage:
    """What a recording says that the whole task used; what it does not say is `None`."""

    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    cost_usd: float | None = None
    model_calls: int | None = None

    def as_json(self) -> dict[str, Json]:
        """Return what is known."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def metrics(self) -> dict[str, float]:
        """Return what is known as metrics of a trial."""
        metrics: dict[str, float] = {}
        if self.tokens_in is not None and self.tokens_out is not None:
            metrics["tokens_in"] = float(self.tokens_in)
            metrics["tokens_out"] = float(self.tokens_out)
            metrics["token_usage"] = float(self.tokens_in + self.tokens_out)
        if self.cost_usd is not None:
            metrics |= {"cost_estimate": float(self.cost_usd), "unpriced_calls": 0.0}
        if self.model_calls is not None:
            metrics["model_calls"] = float(self.model_calls)
        return metrics


SHARED: Final = ("group", "repo", "document", "passage", "source")
"""Metadata by which samples of Inspect say what they share, the first that a sample has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What was recorded of one task."""

    format: str
    """A name in `load.FORMATS`."""
    source: str
    """File and place in it."""
    id: str
    """Its id there."""
    digest: str
    """Hash of the record: equal recordings are imported once."""
    model: str
    messages: Sequence[ImportedMessage]
    kind: Literal["imported", "scripted"] = "imported"
    """`scripted` where no real model answered there either."""
    system: str = ""
    tools: tuple[dict[str, Json], ...] = ()
    """Tools that were offered, as far as known: `name`, `description`, `schema`."""
    declared: Mapping[str, bool] = field(default_factory=dict)
    """By tool, whether the recording declares that it changes nothing."""
    began: float | None = None
    seconds: float | None = None
    """From the beginning to the end, where only that is known."""
    error: str = ""
    """Why the task broke."""
    reason: str = ""
    """Why it ended early, where that is no error."""
    suite: str = ""
    scenario: str = ""
    family: str = ""
    group: str = ""
    """What its scenario is drawn together with, where the format says that: a task, repository, document or
    conversation. See `evals.scenario_groups`.
    """
    config: str = ""
    epoch: int = 1
    scores: tuple[dict[str, Json], ...] | None = None
    """As they were recorded; `None` for a recording that nobody judged."""
    passed: bool | None = None
    """Whether it counts as passed; `None` where it broke or was not judged."""
    unjudged: str = ""
    """Why it has no judgement, where that is known."""
    usage: WholeUsage = WholeUsage()
    """What it says of the whole task and not of its calls; it wins over the sum of the calls."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of the whole task."""
    facts: dict[str, Json] = field(default_factory=dict)
    """What else it says, kept as it is in `RunStarted.imported`."""
    summary: str = ""
    """What is shown in place of an answer where the recording has results and no conversation."""
    left_out: tuple[Broken, ...] = ()
    """What could not be read of it; all else is here."""

    def __post_init__(self) -> None:
        require_texts(self, *_RECORDED_TEXTS)
        require_amounts(self, "seconds", "epoch")
        read_seconds(self.began)
        asked = any(message.role == "user" and message.text.strip() for message in self.messages)
        if not asked and any(message.role == "assistant" for message in self.messages):
            # What the model said and did is worth as much without it.
            note = "no message of a user can be read in it"
            object.__setattr__(self, "messages", [described_task(f"({note})"), *self.messages])
            object.__setattr__(self, "left_out", (*self.left_out, Broken(self.source, note)))
        # A field that is read twice is left out once.
        object.__setattr__(self, "left_out", tuple(dict.fromkeys(self.left_out)))

    @property
    def run_id(self) -> str:
        """The id of its run, the same whenever it is imported."""
        return f"i{self.digest[:16]}"

    @property
    def is_trial(self) -> bool:
        """Whether the recording says, or should say, how it was judged."""
        return self.scores is not None

    @property
    def goal(self) -> str:
        """What the user asked first; raises `ValueError` where nobody asked anything."""
        return self.messages[self.first_question].text

    @property
    def first_question(self) -> int:
        """The index of the first message in which a user asks something; raises `ValueError` without one."""
        for index, message in enumerate(self.messages):
            if message.role == "user" and message.text.strip():
                return index
        raise ValueError("there is no message of a user in it")

    @property
    def answer(self) -> str:
        """The last message but notes, if the model wrote it and asked for no more calls; else what it handed
        to the tool by which its program ends; else the summary.
        """
        spoken = [message for message in self.messages if message.role != "note"]
        while spoken and spoken[-1].role == "tool":
            spoken.pop()
        if not spoken or spoken[-1].role != "assistant":
            return self.summary
        last = spoken[-1]
        return (handed_answer(last.calls) or self.summary) if last.calls else last.text


def handed_answer(calls: Iterable[ImportedCall]) -> str:
    """Return the answer that a call hands to the tool by which its program ends; empty where none does."""
    for call in calls:
        if call.tool.lower() in _FINISHING_TOOLS:
            for name in _ANSWER_ARGUMENTS:
                if isinstance(answer := call.args.get(name), str) and answer.strip():
                    return answer
    return ""


Records = Iterator[Recording | Broken]
"""What a reader of files gives, one record at a time."""


def unreadable_record(place: str, what: str, error: Exception) -> Broken:
    """Return a record that cannot be read, with the error in short."""
    return Broken(place, f"{what} ({type(error).__name__}: {one_line(str(error), 100)})")


def read_parts(
    parts: Iterable[tuple[str, Any]],
    read: Callable[[JsonFields], Iterable[ImportedMessage]],
    left_out: list[Broken],
) -> list[ImportedMessage]:
    """Return the messages that parts of a record are, each with its place.

    `read` returns any number of messages for a part. A part that is none is noted in `left_out`, and so is an
    answer to a call that no message before it makes.
    """
    messages: list[ImportedMessage] = []
    calls: list[str] = []
    for place, part in parts:
        try:
            read_messages = list(read(JsonFields(part, place, left_out)))
            unanswered = list(calls)
            for message in read_messages:
                if message.role == "tool":
                    del unanswered[answered_call(unanswered, message.call)]
                elif message.role == "assistant":
                    unanswered = [call.id for call in message.calls]
        except UNREADABLE as error:
            left_out.append(Broken(place, f"left out: {_error_text(error)}"))
        else:
            # Only now: a message that is left out has answered no call.
            calls = unanswered
            messages += read_messages
    return messages


def without_unasked_results(
    messages: Iterable[ImportedMessage], place: str, left_out: list[Broken]
) -> list[ImportedMessage]:
    """Return messages without the answers to calls that none before them makes, which are noted."""
    asked: list[ImportedMessage] = []
    calls: list[str] = []
    for message in messages:
        if message.role == "assistant":
            calls = [call.id for call in message.calls]
        elif message.role == "tool":
            try:
                del calls[answered_call(calls, message.call)]
            except ValueError as error:
                left_out.append(Broken(place, f"left out: {error}"))
                continue
        asked.append(message)
    return asked


def answered_call(calls: Sequence[str], call: str) -> int:
    """Return the index of the call that an answer is for, as `events_of` finds it; raises `ValueError` where
    there is none.
    """
    fitting = [index for index, made in enumerate(calls) if not call or made in ("", call)]
    if fitting:
        return fitting[0]
    if call:
        raise ValueError(f"it answers the call {call!r}, which no message before it makes")
    raise ValueError("it answers no call")


def _error_text(error: Exception) -> str:
    message = one_line(str(error), 100)
    return message if isinstance(error, ValueError) else f"{type(error).__name__}: {message}"


def described_task(text: str) -> ImportedMessage:
    """Return what stands for the user's message in a recording of results without a conversation."""
    return ImportedMessage(role="user", text=text)


def reward_score(check: str, value: float) -> dict[str, Json]:
    """Return a recorded reward as a score: it has passed from 1 on."""
    passed = value >= 1.0
    return {
        "check": check,
        "passed": passed,
        "value": value,
        "reason": "" if passed else f"{check} is {value:g}",
    }


def record_digest(kind: str, *parts: Any) -> str:
    """Return the hash of a record of this format."""
    return content_key("imported", kind, *parts)


_RECORDED_TEXTS: Final = (
    "source",
    "id",
    "digest",
    "model",
    "system",
    "error",
    "reason",
    "suite",
    "scenario",
    "family",
    "group",
    "config",
    "summary",
)
_AMOUNTS: Final = ("seconds", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning", "cost_usd")


def require_texts(owner: object, *names: str) -> None:
    """Raise `TypeError` for an attribute that is no text."""
    for name in names:
        if not isinstance(value := getattr(owner, name), str):
            raise TypeError(f"its {name} is no text, but {describe_type(value)}")


def require_amounts(owner: object, *names: str) -> None:
    """Raise for what is no amount; `None` is one that is not known."""
    for name in names:
        if (value := getattr(owner, name)) is not None:
            try:
                read_amount(value)
            except TypeError as error:
                raise TypeError(f"its {name}: {error}") from error


def finite_json(value: Any) -> Any:
    """Return JSON without numbers that are not finite, which other tools write and no JSON has: they become
    null.
    """
    if isinstance(value, dict):
        return {str(key): finite_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_call(tool: Any, args: Any, call_id: str = "") -> ImportedCall:
    """Return a call whose arguments are an object, or JSON text as models write it; raises `TypeError` for a
    tool without a name.
    """
    problem = ""
    try:
        args = parse_json(args or "{}") if isinstance(args, str) else {} if args is None else args
        problem = "" if isinstance(args, dict) else "its arguments are no JSON object"
    except ValueError as error:
        problem = f"its arguments are not JSON: {error}"
    return ImportedCall(tool=tool, args={} if problem else args, id=call_id, problem=problem)


def read_calls(
    calls: Iterable[JsonFields], read: Callable[[JsonFields], ImportedCall]
) -> tuple[ImportedCall, ...]:
    """Return the calls of a message; one that is none is noted and costs itself alone."""
    readable: list[ImportedCall] = []
    for call in calls:
        try:
            readable.append(read(call))
        except UNREADABLE as error:
            call.left_out.append(Broken(call.place, f"left out: no call ({_error_text(error)})"))
    return tuple(readable)


def openai_call(call: JsonFields) -> ImportedCall:
    """Return a call in the form of OpenAI's chats."""
    function = call.fields("function")
    return read_call(function["name"], function.get("arguments"), call.label("id"))


def files_in_diff(diff: str) -> tuple[str, ...]:
    """Return the files that a unified diff of git changes."""
    return tuple(
        dict.fromkeys(
            name.strip() for name in re.findall(r"^(?:\+\+\+ b/|--- a/)(\S.*)$", diff, re.MULTILINE)
        )
    )


def declared_effects(tools: Iterable[JsonFields]) -> dict[str, bool]:
    """Return of which tools it is declared whether they change nothing: the hint that MCP has for it, in
    `annotations`.
    """
    declared: dict[str, bool] = {}
    for tool in tools:
        about = tool.fields("function") if "function" in tool else tool
        hints = {**about.fields("annotations"), **tool.fields("annotations")}
        if isinstance(hint := hints.get("readOnlyHint"), bool):
            declared[about.text("name")] = hint
    return declared


def offered_tools(tools: Iterable[JsonFields]) -> tuple[dict[str, Json], ...]:
    """Return tools that were offered, from their names, descriptions and JSON Schemas of parameters; one
    without a name is noted.
    """
    offered: list[dict[str, Json]] = []
    for tool in tools:
        about = tool.fields("function") if "function" in tool else tool
        if name := about.text("name"):
            schema = dict(about.fields("parameters", "input_schema"))
            offered.append({"name": name, "description": about.text("description"), "schema": schema})
        else:
            about.note("name", "the tool has none")
    return tuple(offered)
