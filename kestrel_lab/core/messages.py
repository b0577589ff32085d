"""Messages to a model with their parts (thinking, images), parameters, requests and answers."""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

import msgspec

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import FrozenStruct, Json

Role = Literal["system", "user", "assistant", "tool"]


class ToolRequest(FrozenStruct, frozen=True, kw_only=True):
    """A tool call as a model asked for it."""

    id: str
    name: str
    args: dict[str, Json] = msgspec.field(default_factory=dict)
    problem: str = ""
    """Why the arguments could not be read, when they were not a JSON object."""
    signature: str = ""
    """Gemini's signature of the reasoning behind the call; it must be sent back with the conversation."""


class ThinkingPart(FrozenStruct, frozen=True, kw_only=True):
    """A block of a model's reasoning. It is no part of the answer, and as untrusted as the answer is."""

    text: str = ""
    """The reasoning, or the provider's summary of it."""
    signature: str = ""
    """Anthropic's signature of the block; the API refuses the block without it."""
    redacted: str = ""
    """A block that the provider encrypted: there is no text, only this."""

    def as_json(self) -> dict[str, Json]:
        """Return the fields that are not empty."""
        return {name: value for name in ("text", "signature", "redacted") if (value := getattr(self, name))}


IMAGE_TYPES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""What models take."""
IMAGE_BYTES: Final = 5_000_000
"""Most bytes of one image: providers refuse larger ones."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ImagePart:
    """An image in a message. The log names it; the bytes are kept beside the log."""

    media_type: str
    """One of `IMAGE_TYPES`."""
    blob: str
    """The name under which the image is kept: the first 32 hexadecimal digits of the SHA-256 of `data`."""
    data: str = field(default="", repr=False, compare=False)
    """The bytes in Base64; empty where they are not loaded."""

    @classmethod
    def of(cls, content: bytes, media_type: str) -> ImagePart:
        """Return the part for the bytes of an image."""
        data = base64.b64encode(content)
        return cls(media_type=media_type, blob=hashlib.sha256(data).hexdigest()[:32], data=data.decode())

    def as_json(self) -> dict[str, Json]:
        """Return what an event holds of the image: its type and its name."""
        return {"media_type": self.media_type, "blob": self.blob}


class ThinkingDelta(str):
    """A piece of a model's reasoning, given to `on_delta`; any other string is a piece of its answer."""

    __slots__ = ()


class Message(FrozenStruct, frozen=True, kw_only=True, dict=True):
    """One entry of a conversation."""

    role: Role
    text: str = ""
    calls: tuple[ToolRequest, ...] = ()
    """What an assistant asks for."""
    call_id: str = ""
    """Which call a tool message answers."""
    name: str = ""
    """Which tool a tool message comes from."""
    earlier: bool = False
    """Whether it was said in a run that this one follows."""
    thinking: tuple[ThinkingPart, ...] = ()
    """The reasoning before an assistant's text and calls."""
    images: tuple[ImagePart, ...] = ()
    """Images beside the text of a user or of a tool."""

    @cached_property
    def chars(self) -> int:
        """Characters of its text and calls; cached, since a conversation is measured before each turn."""
        return len(self.text) + sum(len(json.dumps(call.args)) + len(call.name) for call in self.calls)

    def as_json(self) -> dict[str, Json]:
        """Return the message as JSON, without `earlier`: providers want thinking back within a run only."""
        calls: list[Json] = [
            {"id": call.id, "name": call.name, "args": call.args, "problem": call.problem}
            for call in self.calls
        ]
        body: dict[str, Json] = {
            "role": self.role,
            "text": self.text,
            "calls": calls,
            "call_id": self.call_id,
            "name": self.name,
        }
        body["images"] = [image.as_json() for image in self.images]
        return {key: value for key, value in body.items() if value}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, earlier: bool = False) -> Message:
        """Return the message that `as_json` described; fields that this version does not know are ignored."""
        calls = tuple(
            [
                ToolRequest(
                    id=call["id"],
                    name=call["name"],
                    args=call.get("args") or {},
                    problem=call.get("problem", ""),
                )
                for call in body.get("calls", ())
            ]
        )
        return cls(
            role=body["role"],
            text=body.get("text", ""),
            calls=calls,
            call_id=body.get("call_id", ""),
            name=body.get("name", ""),
            earlier=earlier,
            images=tuple([ImagePart(**image) for image in body["images"]]) if "images" in body else (),
        )


class ToolSpec(FrozenStruct, frozen=True, kw_only=True, dict=True):
    """The specification of a tool for a model."""

    name: str
    description: str
    schema: dict[str, Json]
    """JSON Schema of its arguments, an object schema."""

    @cached_property
    def chars(self) -> int:
        """Length of what a model reads of it, in characters; counted once."""
        return len(self.name) + len(self.description) + len(json.dumps(self.schema))


class Sampling(FrozenStruct, frozen=True, kw_only=True):
    """Parameters of a request to a model. `None` and an empty `stop` leave the provider's own value."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    """The most tokens of one answer, reasoning included where the provider counts it so."""
    seed: int | None = None
    stop: tuple[str, ...] = ()
    """Texts at which the model stops."""
    reasoning_effort: str | None = None
    """`none`, `minimal`, `low`, `medium`, `high` or another word that the provider knows."""
    response_format: dict[str, Json] | None = None
    """As the provider takes it. A step or request with a schema of its own sends that instead."""
    timeout_s: float | None = None
    """Seconds of silence after which a call fails, as one whose endpoint hangs; 120 by default.

    The answer does not depend on it. The limit `model_seconds` bounds the whole call.
    """


class ModelRequest(Sampling, frozen=True, kw_only=True):
    """One question to a model.

    `messages` may be a live list that later turns append to: read it during the call, keep no reference.
    """

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Json] | None = None
    """JSON Schema that the answer's text must match, where the provider can enforce one."""
    stream: bool = True
    """Whether somebody watches the text as it comes; a whole answer is cheaper to receive."""


class TriedModel(FrozenStruct, frozen=True, kw_only=True):
    """A model that was asked before another one took over."""

    model: str
    reason: str
    """Why its answer is not used."""
    then: str = ""
    """The model asked next; empty when there was none."""
    usage: Usage = Usage()
    """What it used up, as far as that is known."""


class ModelAnswer(FrozenStruct, frozen=True, kw_only=True):
    """The answer of a model."""

    text: str = ""
    calls: tuple[ToolRequest, ...] = ()
    usage: Usage = Usage()
    """Tokens and cost of this one answer; `unpriced=1` where the price is not known."""
    model: str = ""
    """The name the provider gives for what really answered."""
    finish: str = "stop"
    """`stop`, `tool_calls`, `length` (cut off), `content_filter`, `refusal`, or a provider's own word."""
    thinking: tuple[ThinkingPart, ...] = ()
    """The reasoning before the text and the calls, as far as the provider shows it."""
    tried: tuple[TriedModel, ...] = ()
    """Who was asked before; what they used is not in `usage`."""
    routed: str = ""
    """Why this model was chosen among several, where one was."""
    replayed: bool = False
    """Whether it comes from a recording; usage and cost are what they were then, and nothing is spent."""
    sources: tuple[tuple[str, str], ...] = ()
    """Title and address of the web pages behind the answer; known only if the answer was not streamed."""


# Parameters that runs, steps, agents and suites can set.

_KINDS: dict[str, tuple[type, ...]] = {
    "temperature": (int, float),
    "top_p": (int, float),
    "max_tokens": (int,),
    "seed": (int,),
    "stop": (tuple,),
    "reasoning_effort": (str,),
    "response_format": (dict,),
    "timeout_s": (int, float),
}


class ModelParams(Sampling, frozen=True, kw_only=True):
    """Parameters that a run, a step, an agent or a suite sets. A provider gets only those that it knows.

    Raises `UsageError` for a value of another type, a negative temperature, a `top_p` outside of 0 to 1, and
    `max_tokens` below 1.
    """

    def __post_init__(self) -> None:
        for name, value in self.as_json().items():
            given = getattr(self, name)
            # `temperature: true` would pass as a number: a bool is an int in Python.
            wrong = isinstance(given, bool) or not isinstance(given, _KINDS[name])
            if name == "stop":
                wrong = wrong or not all(isinstance(text, str) and text for text in self.stop)
            elif isinstance(given, int | float) and not wrong:
                wrong = (
                    not math.isfinite(given)
                    or (name != "seed" and given < (name == "max_tokens"))
                    or (name == "top_p" and given > 1)
                )
            if wrong:
                raise UsageError(f"the model parameter {name} cannot be {value!r}")

    @classmethod
    def of(cls, given: ModelParams | Mapping[str, Json] | None) -> ModelParams:
        """Return parameters from a mapping; raises `UsageError` for an unknown name or a wrong value."""
        if isinstance(given, ModelParams):
            return given
        if not given:
            return NO_PARAMS
        values = dict(given)
        if unknown := sorted(values.keys() - _KINDS.keys()):
            raise UsageError(
                f"there is no model parameter {unknown[0]!r}; {did_you_mean(unknown[0], _KINDS)}"
            )
        stop = values.get("stop")
        if stop is None or isinstance(stop, str | list):
            values["stop"] = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)  # type: ignore[assignment]  # checked by the constructor
        return cls(**values)  # type: ignore[arg-type]  # checked by the constructor

    def as_json(self) -> dict[str, Json]:
        """Return the parameters that are set, as JSON."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name in _KINDS
            if (value := getattr(self, name)) not in (None, ())
        }

    def over(self, request: ModelRequest) -> ModelRequest:
        """Return `request` with these parameters where it sets none itself."""
        # The usual case, on the path of every turn.
        if self is NO_PARAMS:
            return request
        unset = {
            name: value
            for name in _KINDS
            if getattr(request, name) in (None, ()) and (value := getattr(self, name)) not in (None, ())
        }
        return replace(request, **unset) if unset else request

    def __or__(self, other: ModelParams) -> ModelParams:
        """Return these parameters where `other` sets none."""
        return ModelParams.of({**self.as_json(), **other.as_json()})


NO_PARAMS = ModelParams()
"""No parameter is set."""
