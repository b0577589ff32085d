"""Recording and replay of models with cassettes.

A request is identified by its content: the model's name, messages, tools and settings; not by the caller, the
time or the folder. Equal requests of one trial are numbered.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from difflib import ndiff
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import (
    Message,
    ModelAnswer,
    ModelRequest,
    ThinkingPart,
    ToolRequest,
    ToolSpec,
    TriedModel,
)
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.cassettes.cassette import Cassette, Mode, RecordedCall, RecordedTrial
from kestrel_lab.models.cassettes.scrub import Scrubber, folder_hidden, folder_shown, map_texts


class TrialCassette:
    """One trial's part of a cassette, which numbers equal requests, so that each gets its own answer.

    A context manager: the file is sorted when the last recording ends.
    """

    def __init__(
        self, cassette: Cassette, mode: Mode, take: RecordedTrial, *, scrub: Scrubber, workspace: Path
    ) -> None:
        self.replayed = 0
        """The number of answers from the cassette."""
        self.missing: list[str] = []
        """Requests of a replay missing in the cassette, one line each, also if the caller continued without
        an answer.
        """
        self._cassette, self._mode, self._take = cassette, mode, take
        hide = folder_hidden(workspace)
        # Every turn sends the whole conversation again, so the same texts come many times.
        self._hide: Callable[[str], str] = lru_cache(2048)(lambda text: scrub(hide(text)))
        self._guard: Callable[[str], str] = lambda text: scrub.without_secrets(hide(text))
        self._show = folder_shown(workspace)
        self._taken: dict[str, set[int]] = {}
        self._failed = False
        self._clock: datetime | None = None
        self._clock_unsaved = False

    @property
    def replays(self) -> bool:
        """True if no model is ever called."""
        return self._mode == "replay"

    def around(self, model: Model, spelled: str | None = None) -> Model:
        """Return `model` on this tape; a scripted or replayed model is returned as it is.

        `spelled` is the name by which the model was requested.
        """
        if model.kind != "real":
            return model
        name = (
            self._cassette.name_of(model.name if spelled is None else spelled, self._take)
            if self.replays
            else model.name
        )
        return CassetteModel(
            model=model, tape=self, name=name, spelled=model.name if spelled is None else spelled
        )

    def now(self) -> datetime:
        """Return the time of the recording, so that prompts are the same on another day."""
        if self._clock is None:
            stored = None if self._mode == "refresh" else self._cassette.clock(self._take)
            self._clock = (
                datetime.now(UTC).replace(microsecond=0) if stored is None else datetime.fromisoformat(stored)
            )
            self._clock_unsaved = stored is None and not self.replays
        return self._clock

    def _tell_time(self) -> None:
        """Record the time of the take before its first call; scripts, which are not recorded, have none."""
        if self._clock_unsaved and self._clock is not None:
            self._clock_unsaved = False
            self._cassette.tell(self._take, self._clock.isoformat())

    async def ask(self, model: CassetteModel, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Return the recorded answer or the model's.

        Raises the model's error, or `ModelError` for an unrecorded request.
        """
        said = self._content(model.name, request)
        wanted = RecordedCall(take=self._take, repeat=0, request=said, answer={}, spelled=model.spelled)
        key = wanted.key
        repeat = self._number(key)
        found = self._found(key, repeat)
        if found is not None and not found.unanswered:
            self.replayed += 1
            return self._said(found, on_delta)
        if self.replays:
            why = explain_miss(self._cassette, wanted, key, repeat)
            self.missing.append(why.partition("\n")[0])
            raise ModelError(why, caller=True)
        self._tell_time()
        try:
            answer = await model.model(request, on_delta)
        except (Exception, asyncio.CancelledError) as error:
            self._failed = True
            # A retry of the same request gets the same number, so a replay finds the answer at once.
            self._taken[key].discard(repeat)
            before = self._cassette.find(key, self._take, repeat)
            if before is None or before.unanswered:  # an earlier answer stays
                why = (
                    "it was stopped before it was answered"
                    if isinstance(error, asyncio.CancelledError)
                    else self._guard(str(error))
                )
                self._cassette.add(replace(wanted, repeat=repeat, unanswered=one_line(why, 300)))
            raise
        kept = cast("dict[str, Json]", map_texts(answer_content(answer), self._guard))
        recorded = RecordedCall(
            take=self._take, repeat=repeat, request=said, answer=kept, spelled=model.spelled
        )
        await asyncio.to_thread(self._cassette.add, recorded)
        return answer

    def __enter__(self) -> TrialCassette:
        if self._mode in ("record", "refresh"):
            self._cassette.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._mode in ("record", "refresh"):
            whole = self._mode == "refresh" and kind is None and not self._failed
            self._cassette.end(self._take if whole else None)

    def _content(self, name: str, request: ModelRequest) -> dict[str, Json]:
        return cast("dict[str, Json]", map_texts(request_content(name, request), self._hide))

    def _found(self, key: str, repeat: int) -> RecordedCall | None:
        if self.replays:
            return self._cassette.alike(key, self._take, repeat)
        return self._cassette.find(key, self._take, repeat) if self._mode == "record" else None

    def _number(self, key: str) -> int:
        taken = self._taken.setdefault(key, set())
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        taken.add(number)
        return number

    def _said(self, recorded: RecordedCall, on_delta: OnDelta) -> ModelAnswer:
        answer = answer_of(cast("dict[str, Any]", map_texts(recorded.answer, self._show)))
        for piece in re.findall(r"\s*\S+\s*|\s+", answer.text):
            on_delta(piece)
        return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class CassetteModel:
    """`model`, on a tape."""

    model: Model
    tape: TrialCassette = field(repr=False)
    name: str
    spelled: str
    """The name by which it was requested."""

    @property
    def kind(self) -> ModelKind:
        """`replay` if the model is never called, else the model's kind; answers tell if they are replayed."""
        return "replay" if self.tape.replays else self.model.kind

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer from the cassette or by the model, depending on the mode."""
        return await self.tape.ask(self, request, on_delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class AbsentModel:
    """A placeholder for a real model that is only replayed and need not be available."""

    name: str
    kind: ClassVar[ModelKind] = "real"  # as the model it replaces

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        raise ModelError(
            f"{self.name or 'the model'} is replayed from a cassette and cannot be called", caller=True
        )


def request_content(name: str, request: ModelRequest) -> dict[str, Json]:
    """Return everything of a request that the answer depends on, as JSON."""
    return {
        "model": name,
        "messages": [message_content(message) for message in request.messages],
        "tools": tools_content(request.tools),
        "settings": settings_content(request),
    }


def settings_content(request: ModelRequest) -> dict[str, Json]:
    """Return the parameters of a request that are set, as JSON."""
    settings: dict[str, Json] = {
        "schema": request.schema,
        "temperature": request.temperature,
        "max_tokens": request.max_tokens,
        "seed": request.seed,
        "top_p": request.top_p,
        "stop": [*request.stop] or None,
        "reasoning_effort": request.reasoning_effort,
        "response_format": request.response_format,
    }
    return {key: value for key, value in settings.items() if value is not None}


def tools_content(tools: Iterable[ToolSpec]) -> list[Json]:
    """Return the tools of a request as JSON."""
    return [{"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in tools]


def message_content(message: Message) -> dict[str, Json]:
    """Return a message without call ids, which differ in each run; results follow their calls' order."""
    stored: dict[str, Json] = {"role": message.role, "text": message.text}
    if message.calls:
        stored["calls"] = [_call(call) for call in message.calls]
    if message.name:
        stored["name"] = message.name
    if message.thinking:
        stored["thinking"] = [part.as_json() for part in message.thinking]
    if message.images:
        stored["images"] = [image.as_json() for image in message.images]
    return stored


def _call(call: ToolRequest) -> dict[str, Json]:
    stored: dict[str, Json] = {"name": call.name, "args": call.args}
    return stored | {name: value for name in ("problem", "signature") if (value := getattr(call, name))}


def answer_content(answer: ModelAnswer) -> dict[str, Json]:
    """Return an answer as JSON, without default values."""
    stored: dict[str, Json] = {
        "text": answer.text,
        "calls": [_call(call) for call in answer.calls],
        "usage": _usage(answer.usage),
        "model": answer.model,
        "finish": answer.finish,
        "tried": [
            {"model": one.model, "reason": one.reason, "then": one.then, "usage": _usage(one.usage)}
            for one in answer.tried
        ],
        "routed": answer.routed,
        "thinking": [part.as_json() for part in answer.thinking],
    }
    return {key: value for key, value in stored.items() if value not in ("", [], {})}


def answer_of(stored: dict[str, Any]) -> ModelAnswer:
    """Return the answer stored by `answer_content`, marked as replayed, with the recorded usage."""
    calls = stored.get("calls", ())
    tried = stored.get("tried", ())
    return ModelAnswer(
        text=stored.get("text", ""),
        calls=tuple(ToolRequest(id=f"call_{number}", **call) for number, call in enumerate(calls, 1)),
        usage=Usage(**stored.get("usage", {})),
        model=stored.get("model", ""),
        finish=stored.get("finish", "stop"),
        tried=tuple(TriedModel(**{**one, "usage": Usage(**one.get("usage", {}))}) for one in tried),
        routed=stored.get("routed", ""),
        thinking=tuple(ThinkingPart(**part) for part in stored.get("thinking", ())),
        replayed=True,
    )


_USAGE: Final = tuple(one.name for one in fields(Usage))


def _usage(usage: Usage) -> dict[str, Json]:
    return {name: value for name in _USAGE if (value := getattr(usage, name))}


# Why a request is not on a cassette: its differences to the nearest recording.

MAX_LINES: Final = 14
"""Lines of differences that are shown."""
_WIDTH: Final = 160
_LONGEST: Final = 400
"""Most lines of a message that are compared."""

_Request = dict[str, Any]


def explain_miss(cassette: Cassette, wanted: RecordedCall, key: str, repeat: int) -> str:
    """Return why `wanted` is not on the cassette, the difference to the nearest recording, and what to do."""
    where = (
        f"turn {1 + _turns(wanted.request)} with {wanted.request['model']}, cassette "
        f"{Path(*cassette.path.parts[-3:])}"
    )
    again = "Record what is missing (--cassette record), or everything anew (--cassette refresh)."
    known = list(cassette)
    if not known:
        there = "is not there" if not cassette.path.exists() else "holds no calls"
        return f"not recorded: the file {there} ({where}). {again}"
    same = [one for one in known if one.key == key]
    if failed := [
        one for one in same if one.unanswered and (one.take.epoch, one.repeat) == (wanted.take.epoch, repeat)
    ]:
        return f"not recorded: when it was, this call failed: {failed[0].unanswered} ({where}). {again}"
    if same:
        return f"not recorded: {_other_tries(same, wanted, repeat)} ({where}). {again}"
    nearest = max(known, key=lambda one: _alikeness(one, wanted))
    lines = list(_differences(cast("_Request", nearest.request), cast("_Request", wanted.request)))
    more = [f"… and {len(lines) - MAX_LINES} more lines"] if len(lines) > MAX_LINES else []
    what_changed = [line for line in lines if line[:2] not in ("- ", "+ ")]
    first = f"not recorded: {one_line('; '.join(what_changed), 400)} ({where})"
    of = (
        f"configuration {nearest.take.config!r}, epoch {nearest.take.epoch}"
        if nearest.take.config
        else "that run"
    )
    what = (
        f"Compared with the nearest recording ({of}, turn {1 + _turns(nearest.request)}; - recorded, + "
        "asked now):"
    )
    return "\n".join([first, what, *lines[:MAX_LINES], *more, again])


def _other_tries(same: Sequence[RecordedCall], wanted: RecordedCall, repeat: int) -> str:
    epochs = sorted({one.take.epoch for one in same})
    if wanted.take.epoch not in epochs:
        others = ", ".join(map(str, epochs))
        return (
            f"the same request was recorded in epoch {others}, and this is epoch {wanted.take.epoch}, "
            "which needs an answer of its own"
        )
    most = max(one.repeat for one in same if one.take.epoch == wanted.take.epoch)
    return f"the same request was recorded {most} times in this trial, and is now made for the {repeat}. time"


def _turns(request: dict[str, Json]) -> int:
    return sum(
        message["role"] == "assistant" for message in cast("list[dict[str, Json]]", request["messages"])
    )


def _alikeness(one: RecordedCall, wanted: RecordedCall) -> tuple[bool, int, bool, bool, bool]:
    """Return the sort key of similarity: equal turn, equal messages, equal model, then the same trial."""
    ours, theirs = (cast("list[Json]", recorded.request["messages"]) for recorded in (wanted, one))
    equal = sum(mine == other for mine, other in zip(ours, theirs, strict=False))
    return (
        _turns(one.request) == _turns(wanted.request),
        equal - abs(len(ours) - len(theirs)),
        one.request["model"] == wanted.request["model"],
        one.take == wanted.take,
        one.request["tools"] == wanted.request["tools"],
    )


def _differences(old: _Request, new: _Request) -> Iterator[str]:
    if old["model"] != new["model"]:
        yield f"the model is {new['model']!r}, recorded was {old['model']!r}"
    for name in sorted({*old["settings"], *new["settings"]}):
        before, after = old["settings"].get(name), new["settings"].get(name)
        if before != after:
            yield f"the setting {name} is {_value_text(after)}, recorded was {_value_text(before)}"
    yield from _tools(old["tools"], new["tools"])
    yield from _messages(old["messages"], new["messages"])


def _tools(old: list[_Request], new: list[_Request]) -> Iterator[str]:
    before, after = ({tool["name"]: tool for tool in tools} for tools in (old, new))
    if added := [name for name in after if name not in before]:
        yield f"tools that were not offered: {', '.join(added)}"
    if gone := [name for name in before if name not in after]:
        yield f"tools that are not offered any more: {', '.join(gone)}"
    for name in (name for name in after if name in before and after[name] != before[name]):
        parts = [part for part in ("description", "schema") if after[name][part] != before[name][part]]
        yield f"the {' and '.join(parts)} of the tool {name} changed"
        for part in parts:
            yield from _lines(_text(before[name][part]), _text(after[name][part]))
    if list(before) != list(after) and set(before) == set(after):
        yield "the tools are offered in another order"


def _messages(old: list[_Request], new: list[_Request]) -> Iterator[str]:
    if len(old) != len(new):
        yield f"the conversation has {len(new)} messages, recorded were {len(old)}"
    for number, (before, after) in enumerate(zip(old, new, strict=False), 1):
        if before != after:
            who = (
                after["role"]
                if after["role"] == before["role"]
                else f"{after['role']}, recorded was {before['role']}"
            )
            yield f"message {number} ({who}{', ' + after['name'] if after.get('name') else ''}) changed"
            yield from _lines(before["text"], after["text"])
            if before.get("calls") != after.get("calls"):
                yield from _lines(_text(before.get("calls", [])), _text(after.get("calls", [])))
    for message in new[len(old) :]:
        yield f"+ {message['role']}: {one_line(message['text'] or _text(message.get('calls', [])), _WIDTH)}"


def _lines(old: str, new: str) -> Iterator[str]:
    before, after = (text.splitlines()[:_LONGEST] for text in (old, new))
    # The common beginning is removed first, as the time of the comparison grows with the square of the lines.
    start = next(
        (at for at, (one, other) in enumerate(zip(before, after, strict=False)) if one != other),
        min(len(before), len(after)),
    )
    for line in ndiff(before[start : start + 60], after[start : start + 60]):
        if line.startswith(("- ", "+ ")):
            yield f"{line[:2]}{_line_around_difference(line[2:], old if line[0] == '+' else new)}"


def _line_around_difference(line: str, other: str) -> str:
    """Return the line; a long one from its first difference to `other`."""
    if len(line) <= _WIDTH:
        return one_line(line, _WIDTH)
    at = next((end for end in range(0, len(line), 40) if line[: end + 40] not in other), 0)
    return one_line(("…" if at else "") + line[max(0, at - 40) :], _WIDTH)


def _text(value: Json) -> str:
    return (
        value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=1, sort_keys=True)
    )


def _value_text(value: Json) -> str:
    return "not given" if value is None else one_line(json.dumps(value, ensure_ascii=False), 80)
