"""Messages to a model, requests and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from kestrel_lab.core.calls import Usage
from kestrel_lab.core.json_types import Json

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolRequest:
    """A tool call as a model asked for it."""

    id: str
    name: str
    args: dict[str, Json] = field(default_factory=dict)
    problem: str = ""
    """Why the arguments could not be read, when they were not a JSON object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
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

    def as_json(self) -> dict[str, Json]:
        """Return the message as a JSON object, without `earlier`."""
        calls: list[Json] = [{"id": call.id, "name": call.name, "args": call.args, "problem": call.problem} for call in self.calls]
        body: dict[str, Json] = {"role": self.role, "text": self.text, "calls": calls, "call_id": self.call_id, "name": self.name}
        return {key: value for key, value in body.items() if value}

    @classmethod
    def from_json(cls, body: Mapping[str, Any], *, earlier: bool = False) -> Message:
        """Return the message that `as_json` described; fields that this version does not know are ignored."""
        calls = tuple(
            ToolRequest(id=call["id"], name=call["name"], args=call.get("args") or {}, problem=call.get("problem", ""))
            for call in body.get("calls", ())
        )
        return cls(
            role=body["role"],
            text=body.get("text", ""),
            calls=calls,
            call_id=body.get("call_id", ""),
            name=body.get("name", ""),
            earlier=earlier,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """The specification of a tool for a model."""

    name: str
    description: str
    schema: dict[str, Json]
    """JSON Schema of its arguments, an object schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRequest:
    """One question to a model.

    `messages` may be a live list that later turns append to: read it during the call, keep no reference.
    """

    messages: Sequence[Message]
    tools: tuple[ToolSpec, ...] = ()
    schema: dict[str, Json] | None = None
    """JSON Schema that the answer's text must match, where the provider can enforce one."""
    temperature: float | None = None
    max_tokens: int | None = None
    seed: int | None = None
    stream: bool = True
    """Whether somebody watches the text as it comes; a whole answer is cheaper to receive."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Tried:
    """A model that was asked before another one took over."""

    model: str
    reason: str
    """Why its answer is not used."""
    then: str = ""
    """The model asked next; empty when there was none."""
    usage: Usage = Usage()
    """What it used up, as far as that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswer:
    """The answer of a model."""

    text: str = ""
    calls: tuple[ToolRequest, ...] = ()
    usage: Usage = Usage()
    """Tokens and cost of this one answer; `unpriced=1` where the price is not known."""
    model: str = ""
    """The name the provider gives for what really answered."""
    finish: str = "stop"
    """`stop`, `tool_calls`, `length` (cut off) or a provider's own word."""
    tried: tuple[Tried, ...] = ()
    """Who was asked before; what they used is not in `usage`."""
    routed: str = ""
    """Why this model was chosen among several, where one was."""
    replayed: bool = False
    """Whether it comes from a recording; usage and cost are what they were then, and nothing is spent."""
    sources: tuple[tuple[str, str], ...] = ()
    """Title and address of web pages that the provider says the answer rests on; only known where it came whole."""
