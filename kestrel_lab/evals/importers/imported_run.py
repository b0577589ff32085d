"""Recording: what another tool recorded of one task; and what readers of recordings share."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Literal

from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.sanitize import one_line


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that cannot be read; those beside it can."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


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
            raise TypeError(f"the arguments of a call are {_kind(self.args)}")


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
        require_time(self.at)


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
    config: str = ""
    epoch: int = 1
    scores: tuple[dict[str, Json], ...] | None = None
    """As they were recorded; `None` for a recording that nobody judged."""
    passed: bool | None = None
    """Whether it counts as passed; `None` where it broke or was not judged."""
    unjudged: str = ""
    """Why it has no judgement, where that is known."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the recording says of the whole task and not of its calls; it wins over what the events give."""
    facts: dict[str, Json] = field(default_factory=dict)
    """What else it says, kept as it is in `RunStarted.imported`."""
    summary: str = ""
    """What is shown in place of an answer where the recording has results and no conversation."""
    left_out: tuple[Broken, ...] = ()
    """Messages that could not be read; the others are the conversation."""

    def __post_init__(self) -> None:
        require_texts(self, *_RECORDED_TEXTS)
        require_amounts(self, "seconds", "epoch")
        require_time(self.began)

    @property
    def run_id(self) -> str:
        """The id of its run, the same whenever it is imported."""
        return f"i{self.digest[:16]}"

    @property
    def goal(self) -> str:
        """What the user asked first; raises `ValueError` where nobody asked anything."""
        asked = next((said.text for said in self.messages if said.role == "user"), "")
        if not asked.strip():
            raise ValueError("there is no message of a user in it")
        return asked

    @property
    def answer(self) -> str:
        """The last message but notes, if the model wrote it and asked for no more calls; else the summary."""
        last = next((one for one in reversed(self.messages) if one.role != "note"), self.messages[-1])
        return last.text if last.role == "assistant" and not last.calls else self.summary


Records = Iterator[Recording | Broken]
"""What a reader of files gives, one record at a time."""


UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What readers raise for a record of another shape than theirs."""


def unreadable_record(place: str, what: str, error: Exception) -> Broken:
    """Return a record that cannot be read, with the error in short."""
    return Broken(place, f"{what} ({type(error).__name__}: {one_line(str(error), 100)})")


def read_messages(
    items: Sequence[Any], read: Callable[[Any], ImportedMessage | None], place: str
) -> tuple[list[ImportedMessage], tuple[Broken, ...]]:
    """Return the messages of a conversation, and those that are none, with their places.

    `read` returns `None` for one that does not belong to the conversation, a system message for instance. An
    answer to a call that no message before it makes is left out, too.
    """
    return read_parts(
        ((f"{place} messages[{number}]", item) for number, item in enumerate(items)),
        lambda item: () if (one := read(item)) is None else (one,),
    )


def read_parts(
    parts: Iterable[tuple[str, Any]], read: Callable[[Any], Iterable[ImportedMessage]]
) -> tuple[list[ImportedMessage], tuple[Broken, ...]]:
    """Return the messages that parts of a record are, each with its place, and the parts that are none.

    `read` returns any number of messages for a part. An answer to a call that no message before it makes is
    left out, too.
    """
    said: list[ImportedMessage] = []
    broken: list[Broken] = []
    calls: list[str] = []
    for place, part in parts:
        try:
            found = list(read(part))
            left = list(calls)
            for one in found:
                if one.role == "tool":
                    del left[_answered(left, one.call)]
                elif one.role == "assistant":
                    left = [asked.id for asked in one.calls]
        except UNREADABLE as error:
            broken.append(Broken(place, f"left out: {_words(error)}"))
        else:
            # Only now: a message that is left out has answered no call.
            calls = left
            said += found
    return said, tuple(broken)


def _answered(calls: Sequence[str], known: str) -> int:
    """Return the place of the call that an answer is for, as `events_of` finds it; raises `ValueError` where
    there is none.
    """
    found = [place for place, call in enumerate(calls) if not known or call in ("", known)]
    if not found:
        raise ValueError(
            f"it answers the call {known!r}, which no message before it makes"
            if known
            else "it answers no call"
        )
    return found[0]


def _words(error: Exception) -> str:
    return (
        one_line(str(error), 100)
        if isinstance(error, ValueError)
        else f"{type(error).__name__}: {one_line(str(error), 100)}"
    )


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
    "config",
    "summary",
)
# JSON's numbers are doubles: above it whole numbers are not exact.
_MOST: Final = 1 << 53


_AMOUNTS: Final = ("seconds", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning", "cost_usd")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def require_texts(one: object, *names: str) -> None:
    """Raise `TypeError` for an attribute that is no text."""
    for name in names:
        if not isinstance(value := getattr(one, name), str):
            raise TypeError(f"its {name} is no text, but {_kind(value)}")


def require_amounts(one: object, *names: str) -> None:
    """Raise for what is no amount; `None` is one that is not known."""
    for name in names:
        value = getattr(one, name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST
        ):
            raise TypeError(f"its {name} is no amount: {one_line(repr(value), 40)}")


def require_time(value: float | None) -> None:
    """Raise `ValueError` for what is no time in seconds since 1970; `None` is one that is not known."""
    # Calendars end with the year 9999: a later time cannot be shown as a date.
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 253_402_300_800.0
    ):
        raise ValueError(f"its time is none of the calendar: {one_line(repr(value), 40)}")


def finite_json(value: Any) -> Any:
    """Return JSON without numbers that are not finite, which other tools write and no JSON has: they become
    null.
    """
    if isinstance(value, dict):
        return {str(key): finite_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seconds_of(stamp: Any) -> float | None:
    """Return a time in ISO form as seconds since 1970; `None` where there is none. One without a zone is UTC.

    Raises `ValueError` for another form.
    """
    if not stamp:
        return None
    read = datetime.fromisoformat(str(stamp))
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def text_of(content: Any) -> str:
    """Return the text of a message: a text, or parts, of which one that is no text is named and not shown."""
    if not isinstance(content, list):
        return str(content or "")
    parts = [part if isinstance(part, dict) else {"text": part} for part in content]
    return "\n\n".join(
        str(part["text"]) if part.get("text") is not None else f"[{part.get('type', 'part')}]"
        for part in parts
    )


def read_call(tool: Any, args: Any, known: Any) -> ImportedCall:
    """Return a call whose arguments are an object, or JSON text as models write it."""
    problem = ""
    try:
        args = json.loads(args or "{}") if not isinstance(args, dict) else args
        problem = "" if isinstance(args, dict) else "its arguments are no JSON object"
    except ValueError as error:
        problem = f"its arguments are not JSON: {error}"
    return ImportedCall(tool=str(tool), args={} if problem else args, id=str(known or ""), problem=problem)


def files_in_diff(diff: str) -> tuple[str, ...]:
    """Return the files that a unified diff of git changes."""
    return tuple(
        dict.fromkeys(
            name.strip() for name in re.findall(r"^(?:\+\+\+ b/|--- a/)(\S.*)$", diff, re.MULTILINE)
        )
    )


def declared_effects(tools: Iterable[Any]) -> dict[str, bool]:
    """Return of which tools it is declared whether they change nothing: the hint that MCP has for it, in
    `annotations`.
    """
    found: dict[str, bool] = {}
    for tool in tools:
        about = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        hint = {**(about.get("annotations") or {}), **(tool.get("annotations") or {})}.get("readOnlyHint")
        if isinstance(hint, bool):
            found[str(about.get("name") or "")] = hint
    return found


def offered_tool(tool: Mapping[str, Any]) -> dict[str, Json]:
    """Return a tool that was offered, from its name, description and JSON Schema of parameters."""
    return {
        "name": str(tool["name"]),
        "description": str(tool.get("description") or ""),
        "schema": tool.get("parameters") or {},
    }
