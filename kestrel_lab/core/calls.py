"""One shape for everything an agent asks for: a `Call` to a model or a tool, and its `Result`."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any, Literal

from msgspec import field

from kestrel_lab.core.json_types import FrozenStruct, Json, content_key

if TYPE_CHECKING:
    from kestrel_lab.core.events.union import ModelAnswered
    from kestrel_lab.core.messages import ImagePart, ModelAnswer, ModelRequest

Effect = Literal["pure", "idempotent", "checkable", "opaque"]
"""What repeating a call does: nothing, the same as once, something a probe can tell, or nobody knows."""

REPEATABLE: frozenset[Effect] = frozenset({"pure", "idempotent"})
"""Effects that are the same when they happen again."""


PREVIEWED, IN_KERNEL = "preview", "kernel"
"""Sandbox levels of kernel code: its preview's result is adopted, or it runs in the user's own kernel."""
PREVIEWING = "the preview of this code is not finished"
"""Shown in place of a preview that was not ready when the question was asked."""
CONTAINER = "container"
HELD = frozenset({"S1", "S2", "S3", CONTAINER})
"""Sandbox levels, as calls name them, at which a command reaches no network."""


class Danger(IntEnum):
    """The danger of a call; an approval policy compares it."""

    SAFE = 0
    LOW = 1
    MEDIUM = 2
    HIGH = 3
    CRITICAL = 4


def format_count(number: int, noun: str) -> str:
    """`1 call`, `2,000 calls`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def cache_text(usage: Usage | ModelAnswered) -> str:
    """Cached and reasoning tokens, in brackets; empty if there are none."""
    read, written, thought = usage.tokens_cached, usage.tokens_cache_written, usage.tokens_reasoning
    if not (read or written or thought):
        return ""
    words = (
        f"{read / usage.tokens_in:.0%} of the prompt from its cache" if read and usage.tokens_in else "",
        f"{written:,} written to it" if written else "",
        f"{thought:,} reasoning" if thought else "",
    )
    return f" ({', '.join(filter(None, words))})"


class Usage(FrozenStruct, frozen=True, kw_only=True):
    """The consumption of calls."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0
    unpriced: int = 0
    """Model calls whose price is not known; `cost_usd` leaves them out."""
    model_calls: int = 0
    tool_calls: int = 0
    unmetered: int = 0
    """Model calls whose tokens are not known; `tokens` leaves them out."""
    tokens_cached: int = 0
    """Tokens of `tokens_in` that the provider had in its prompt cache."""
    tokens_cache_written: int = 0
    """Tokens of `tokens_in` that the provider wrote to its prompt cache."""
    tokens_reasoning: int = 0
    """Tokens of `tokens_out` that were reasoning."""

    @property
    def tokens(self) -> int:
        """Tokens read and written."""
        return self.tokens_in + self.tokens_out

    def __str__(self) -> str:
        """Tokens, cost and calls in a line; marks unknown tokens, cached prompts, calls without a price."""
        unpriced = f" + {self.unpriced} unpriced" if self.unpriced else ""
        money = f"${self.cost_usd:.4f}{unpriced}" if self.cost_usd or not self.unpriced else ""
        tokens = format_count(self.tokens, "token")
        if self.unmetered:
            tokens = f"at least {tokens}" if self.tokens else "tokens unknown"
        parts = (
            tokens + cache_text(self),
            money,
            format_count(self.model_calls, "model call"),
            format_count(self.tool_calls, "tool call"),
        )
        return " · ".join(filter(None, parts))

    def _repr_pretty_(self, printer: Any, _cycle: bool) -> None:
        """What IPython and notebooks show."""
        printer.text(str(self))

    def __add__(self, other: Usage) -> Usage:
        # Each turn adds up once: the generic form, by `__struct_fields__`, takes seven times as long.
        return Usage(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost_usd=self.cost_usd + other.cost_usd,
            unpriced=self.unpriced + other.unpriced,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            unmetered=self.unmetered + other.unmetered,
            tokens_cached=self.tokens_cached + other.tokens_cached,
            tokens_cache_written=self.tokens_cache_written + other.tokens_cache_written,
            tokens_reasoning=self.tokens_reasoning + other.tokens_reasoning,
        )


class Problem(FrozenStruct, frozen=True, kw_only=True):
    """Why a call failed, in words its reader (a model or a person) can act on."""

    kind: str
    """`invalid_arguments`, `unknown_tool`, `denied`, `timeout`, `failed`, `raised` (code that it ran),
    `conflict`, `limit`, `unknown_outcome`, `cancelled`.
    """
    message: str
    transient: bool = False

    def as_json(self) -> dict[str, Json]:
        """Return the fields as a JSON object."""
        return {"kind": self.kind, "message": self.message, "transient": self.transient}


class Call(FrozenStruct, frozen=True, kw_only=True):
    """One request to a model or a tool."""

    id: str
    """Unique within its run."""
    kind: Literal["model", "tool"]
    target: str
    """Which model or tool: `"openai/gpt-5"`, `"grep"`."""
    args: dict[str, Json] = field(default_factory=dict)
    """A tool's arguments; empty for a model."""
    request: ModelRequest | None = None
    """What a model is asked; `None` for a tool."""
    step: str = ""
    """The plan step this call serves."""
    danger: Danger = Danger.SAFE
    effect: Effect = "opaque"
    attempt: int = 1
    sandbox: str = ""
    """The sandbox level of the tool's commands, with a reason if it is none; empty if it starts none."""
    approved_by: str = ""
    """Who approved the call, and why; empty if no approval was needed."""

    @property
    def unsandboxed(self) -> bool:
        """Return whether the call starts commands without a sandbox although nobody asked for that."""
        return ":" in self.sandbox

    @property
    def in_kernel(self) -> bool:
        """Whether the call runs code in the user's own kernel, which only a person or a rule can allow."""
        return self.sandbox.partition(" ")[0] == IN_KERNEL

    @property
    def key(self) -> str:
        """Equal for equal tool requests, whichever step makes them."""
        return content_key(self.kind, self.target, self.args)


class Result(FrozenStruct, frozen=True, kw_only=True):
    """The result of a call."""

    value: Json = None
    """A tool's answer; `None` for a model and a failed call, unless the tool's code raised or was stopped."""
    answer: ModelAnswer | None = None
    """A model's answer; `None` for a tool."""
    error: Problem | None = None
    seconds: float = 0.0
    """Working time: waiting for a person or for its turn is not in it."""
    queued: float = 0.0
    """Seconds spent waiting for its turn."""
    cached: bool = False
    cacheable: bool = False
    """Whether a stored answer might have been used."""
    truncated: bool = False
    whole: str = ""
    """Names the whole text of which the answer has parts, where the tool has kept it."""
    chars: int = 0
    """Characters of that text."""
    knows: dict[str, str] = field(default_factory=dict)
    """Versions of files, by path, that the receiver of the answer knows by it."""
    changed: list[str] = field(default_factory=list)
    """Files that the call changed."""
    touched: list[str] | None = None
    """Workspace files that changed while the call ran; `None` if nobody compared them."""
    before: dict[str, dict[str, Json]] = field(default_factory=dict)
    """By file, what undoes the change: see `ToolAnswered.before`."""
    images: tuple[ImagePart, ...] = ()
    """Images of a tool's answer."""
    note: str = ""
    """Text for the model after a tool's answer."""

    @property
    def ok(self) -> bool:
        """Return whether the call succeeded."""
        return self.error is None
