"""Recording and replay of models with cassettes.

A request is identified by its content: the model's name, messages, tools and settings; not by the caller, the time or the
folder. Equal requests of one trial are numbered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, ThinkingPart, ToolRequest, Tried
from kestrel_lab.core.protocols import Model, ModelKind, OnDelta
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.models.cassettes.cassette import Cassette, Mode, Recorded, Take
from kestrel_lab.models.cassettes.mismatch import explained
from kestrel_lab.models.cassettes.scrub import Scrubber, folder_hidden, folder_shown, mapped


class Tape:
    """One trial's part of a cassette, which numbers equal requests, so that each gets its own answer.

    A context manager: the file is sorted when the last recording ends.
    """

    def __init__(self, cassette: Cassette, mode: Mode, take: Take, *, scrub: Scrubber, workspace: Path) -> None:
        self.replayed = 0
        """The number of answers from the cassette."""
        self._cassette, self._mode, self._take = cassette, mode, take
        hide = folder_hidden(workspace)
        # Every turn sends the whole conversation again, so the same texts come many times.
        self._hide: Callable[[str], str] = lru_cache(2048)(lambda text: scrub(hide(text)))
        self._guard: Callable[[str], str] = lambda text: scrub.without_secrets(hide(text))
        self._show = folder_shown(workspace)
        self._taken: dict[str, set[int]] = {}
        self._failed = False
        self._clock: datetime | None = None
        self._untold = False

    @property
    def replays(self) -> bool:
        """Whether no model is ever called."""
        return self._mode == "replay"

    def around(self, model: Model, spelled: str | None = None) -> Model:
        """Return `model` on this tape; a scripted or replayed model is returned as it is.

        `spelled` is the name by which the model was requested.
        """
        if model.kind != "real":
            return model
        name = self._cassette.name_of(model.name if spelled is None else spelled, self._take) if self.replays else model.name
        return TapedModel(model=model, tape=self, name=name, spelled=model.name if spelled is None else spelled)

    def now(self) -> datetime:
        """Return the time of the recording, so that prompts are the same on another day."""
        if self._clock is None:
            told = None if self._mode == "refresh" else self._cassette.clock(self._take)
            self._clock = datetime.now(UTC).replace(microsecond=0) if told is None else datetime.fromisoformat(told)
            self._untold = told is None and not self.replays
        return self._clock

    def _tell_time(self) -> None:
        """Record the time of the take before its first recording; a script, which is not recorded, leaves none."""
        if self._untold and self._clock is not None:
            self._untold = False
            self._cassette.tell(self._take, self._clock.isoformat())

    async def ask(self, model: TapedModel, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Return the recorded answer or the model's; raises the model's error, and `ModelError` for a request that was not recorded."""
        said = self._content(model.name, request)
        wanted = Recorded(take=self._take, repeat=0, request=said, answer={}, spelled=model.spelled)
        key = wanted.key
        repeat = self._number(key)
        found = self._found(key, repeat)
        if found is not None and not found.unanswered:
            self.replayed += 1
            return self._said(found, on_delta)
        if self.replays:
            raise ModelError(explained(self._cassette, wanted, key, repeat), caller=True)
        self._tell_time()
        try:
            answer = await model.model(request, on_delta)
        except (Exception, asyncio.CancelledError) as error:
            self._failed = True
            self._taken[key].discard(repeat)  # a retry takes this number
            before = self._cassette.find(key, self._take, repeat)
            if before is None or before.unanswered:  # an earlier answer stays
                why = "it was stopped before it was answered" if isinstance(error, asyncio.CancelledError) else self._guard(str(error))
                self._cassette.add(replace(wanted, repeat=repeat, unanswered=one_line(why, 300)))
            raise
        kept = cast("dict[str, Json]", mapped(answer_content(answer), self._guard))
        recorded = Recorded(take=self._take, repeat=repeat, request=said, answer=kept, spelled=model.spelled)
        await asyncio.to_thread(self._cassette.add, recorded)
        return answer

    def __enter__(self) -> Tape:
        if self._mode in ("record", "refresh"):
            self._cassette.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._mode in ("record", "refresh"):
            whole = self._mode == "refresh" and kind is None and not self._failed
            self._cassette.end(self._take if whole else None)

    def _content(self, name: str, request: ModelRequest) -> dict[str, Json]:
        """Return the content that identifies the request."""
        return cast("dict[str, Json]", mapped(request_content(name, request), self._hide))

    def _found(self, key: str, repeat: int) -> Recorded | None:
        if self.replays:
            return self._cassette.alike(key, self._take, repeat)
        return self._cassette.find(key, self._take, repeat) if self._mode == "record" else None

    def _number(self, key: str) -> int:
        taken = self._taken.setdefault(key, set())
        number = next(number for number in range(1, len(taken) + 2) if number not in taken)
        taken.add(number)
        return number

    def _said(self, recorded: Recorded, on_delta: OnDelta) -> ModelAnswer:
        answer = answer_of(cast("dict[str, Any]", mapped(recorded.answer, self._show)))
        for piece in re.findall(r"\s*\S+\s*|\s+", answer.text):
            on_delta(piece)
        return answer


@dataclass(frozen=True, kw_only=True, slots=True)
class TapedModel:
    """`model`, on a tape."""

    model: Model
    tape: Tape = field(repr=False)
    name: str
    spelled: str
    """The name by which it was requested."""

    @property
    def kind(self) -> ModelKind:
        """`replay` where the model is never called; otherwise the model's own, and each answer says whether it is replayed."""
        return "replay" if self.tape.replays else self.model.kind

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Answer from the tape or by the model, as the tape's mode says."""
        return await self.tape.ask(self, request, on_delta)


@dataclass(frozen=True, kw_only=True, slots=True)
class AbsentModel:
    """A placeholder for a real model that is only replayed and need not be available."""

    name: str

    @property
    def kind(self) -> ModelKind:
        """Real, as the model it replaces."""
        return "real"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Raise `ModelError`."""
        raise ModelError(f"{self.name or 'the model'} is replayed from a cassette and cannot be called", caller=True)


def request_content(name: str, request: ModelRequest) -> dict[str, Json]:
    """Return everything of a request that the answer depends on, as JSON."""
    settings: dict[str, Json] = {
        "schema": request.schema, "temperature": request.temperature, "max_tokens": request.max_tokens, "seed": request.seed,
        "top_p": request.top_p, "stop": [*request.stop] or None, "reasoning_effort": request.reasoning_effort,
        "response_format": request.response_format,
    }  # fmt: skip
    return {
        "model": name,
        "messages": [_message(message) for message in request.messages],
        "tools": [{"name": tool.name, "description": tool.description, "schema": tool.schema} for tool in request.tools],
        "settings": {key: value for key, value in settings.items() if value is not None},
    }


def _message(message: Message) -> dict[str, Json]:
    """Return a message without the ids of calls, which differ in each run; results are in the order of their calls."""
    told: dict[str, Json] = {"role": message.role, "text": message.text}
    if message.calls:
        told["calls"] = [_call(call) for call in message.calls]
    if message.name:
        told["name"] = message.name
    if message.thinking:
        told["thinking"] = [part.as_json() for part in message.thinking]
    if message.images:
        told["images"] = [image.as_json() for image in message.images]
    return told


def _call(call: ToolRequest) -> dict[str, Json]:
    told: dict[str, Json] = {"name": call.name, "args": call.args}
    return told | {name: value for name in ("problem", "signature") if (value := getattr(call, name))}


def answer_content(answer: ModelAnswer) -> dict[str, Json]:
    """Return an answer as JSON, without default values."""
    told: dict[str, Json] = {
        "text": answer.text,
        "calls": [_call(call) for call in answer.calls],
        "usage": _usage(answer.usage),
        "model": answer.model,
        "finish": answer.finish,
        "tried": [{"model": one.model, "reason": one.reason, "then": one.then, "usage": _usage(one.usage)} for one in answer.tried],
        "routed": answer.routed,
        "thinking": [part.as_json() for part in answer.thinking],
    }
    return {key: value for key, value in told.items() if value not in ("", [], {})}


def answer_of(told: dict[str, Any]) -> ModelAnswer:
    """Return the answer from the result of `answer_content`, marked as replayed; usage and cost are those of the recording."""
    calls = told.get("calls", ())
    tried = told.get("tried", ())
    return ModelAnswer(
        text=told.get("text", ""),
        calls=tuple(ToolRequest(id=f"call_{number}", **call) for number, call in enumerate(calls, 1)),
        usage=Usage(**told.get("usage", {})),
        model=told.get("model", ""),
        finish=told.get("finish", "stop"),
        tried=tuple(Tried(**{**one, "usage": Usage(**one.get("usage", {}))}) for one in tried),
        routed=told.get("routed", ""),
        thinking=tuple(ThinkingPart(**part) for part in told.get("thinking", ())),
        replayed=True,
    )


def _usage(usage: Usage) -> dict[str, Json]:
    return {key: value for key, value in asdict(usage).items() if value}
