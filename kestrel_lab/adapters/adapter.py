"""Protocol of an adapter: runs another agent's program on a goal and yields what the program reports."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeGuard

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ModelAnswer, ToolRequest
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

Resume = Literal["", "end", "any"]
"""Where a program can resume its session: nowhere, at its end, or at any message in a copy of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """Features of an agent program."""

    streams: bool = False
    """Text comes in pieces while it is written."""
    tools: bool = True
    """The program reports its tool calls and their results."""
    approvals: bool = False
    """It asks before a risky call and waits for the answer.

    Of one that does not, a person is asked once, before it begins.
    """
    edits: bool = False
    """An approval can put other arguments in place of the program's."""
    resume: Resume = ""
    cost: bool = False
    """It reports what it spent in US dollars."""
    images: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One answer of the program's model, complete with the calls that it asks for."""

    answer: ModelAnswer
    session: str = ""
    """Session id from which the program can continue after this answer; empty if it cannot."""
    counted: bool = True
    """True if `answer.usage` is known. A program that reports usage once does so in its last answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolDone:
    """The result of a call."""

    call: str
    """The program's id of it."""
    text: str
    error: bool = False
    session: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Note:
    """Text that the program reports outside the conversation."""

    text: str


Reported = Turn | ToolDone | Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """A call that the program asks to make."""

    request: ToolRequest
    danger: Danger = Danger.HIGH
    lasting: bool = False
    """True if the program has no yes for a single call: a yes also covers later calls of the kind."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer to a `Permission`."""

    granted: bool
    reason: str = ""
    args: Mapping[str, Json] | None = None
    """Arguments that a person put in place of the program's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """Work for a program, with its limits."""

    prompt: str
    """Prompt for a session that is continued."""
    transcript: str
    """The same for a new session: with the conversation before it, if there is one."""
    folder: Path
    """The workspace."""
    level: Level
    sandbox: Sandbox
    ask: Callable[[Permission], Awaitable[Decision]]
    delta: OnDelta
    instructions: str = ""
    images: tuple[ImagePart, ...] = ()
    session: str = ""
    """The session to go on with; empty for a new one."""
    copy: bool = False
    """True if the session belongs to another run, so the program must work on a copy."""
    turns: int | None = None
    """Turns left. A program that has no option for it is ended after that many."""
    cost_usd: float | None = None
    pty: bool = False
    """True if the program is to have a terminal for input and output as well as for errors."""

    def said(self, *, resumed: bool) -> str:
        """Return the prompt, with the instructions in it, for a resumed or a new session."""
        return "\n\n".join(filter(None, (self.instructions, self.prompt if resumed else self.transcript)))


class Adapter(Model, Protocol):
    """A model that brings its own loop and tools: it takes a goal and works on it until it has an answer.

    It is named wherever a model is. Called like a model it raises `ModelError`: it has no single answers to
    give.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Features of the program."""
        ...

    def check(self, folder: Path) -> None:
        """Raise `UsageError` if the program is not installed; `folder` is the workspace."""
        ...

    def work(self, task: Task) -> AsyncIterator[Reported]:
        """Yield what the program reports until it has answered; closing the iterator ends its process.

        Raises `ModelError` if the program fails, `UsageError` if it cannot be started, and `LimitError` if it
        reports that it reached a limit.
        """
        ...


def is_adapter(model: object) -> TypeGuard[Adapter]:
    """Return true if `model` is an adapter. Faster than `isinstance` with a Protocol, which checks each
    member.
    """
    return hasattr(model, "work")


DANGERS: Mapping[str, Danger] = {
    "read": Danger.SAFE,
    "search": Danger.SAFE,
    "think": Danger.SAFE,
    "edit": Danger.MEDIUM,
    "move": Danger.MEDIUM,
    "switch_mode": Danger.MEDIUM,
}
"""Danger by kind of call, named as in the agent client protocol; any other kind is HIGH."""


@dataclass
class TurnParts:
    """Collects the parts of a turn that a program reports one by one."""

    text: str = ""
    calls: dict[str, ToolRequest] = field(default_factory=dict)

    def turn(self, answer: ModelAnswer | None = None, session: str = "", *, counted: bool = True) -> Turn:
        """Return the turn of all parts so far, completed from `answer`, and start the next turn."""
        known = answer or ModelAnswer()
        whole = ModelAnswer(
            text=self.text,
            calls=tuple(self.calls.values()),
            usage=known.usage,
            model=known.model,
            finish="tool_calls" if self.calls else known.finish,
        )
        self.text, self.calls = "", {}
        return Turn(answer=whole, session=session, counted=counted)

    def __bool__(self) -> bool:
        return bool(self.text or self.calls)


def model_of_runner(runner: str | Adapter, model: str | Model | None) -> str | Model | None:
    """Return the model that a runner and a model within it are together, `claude-code:opus` say; raises
    `UsageError` where they do not go together.
    """
    if runner in ("", "native"):
        return model
    if not isinstance(runner, str):
        if model is not None:
            raise UsageError(f"runner= is an adapter and model= is {model!r}: give the adapter its model")
        return runner
    # Loaded only where a runner is named: it imports all adapters.
    from kestrel_lab.adapters.registry import adapter_factories

    if (name := runner.partition(":")[0]) not in (known := adapter_factories({})):
        raise UsageError(f"there is no runner {name!r}; {did_you_mean(name, known)}")
    if model and not isinstance(model, str):
        raise UsageError(
            f"the runner {runner!r} brings its own models: name one of them, or leave model= out"
        )
    if model and ":" in runner:
        raise UsageError(f"the runner {runner!r} names what it runs: leave the model {model!r} out")
    return f"{runner}:{model}" if model else runner
