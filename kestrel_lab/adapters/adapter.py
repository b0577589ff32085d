"""The Protocol of an adapter: an agent program that works on a goal by itself, and what it tells while it
does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, TypeGuard

from kestrel_lab.core.calls import Danger
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, ModelAnswer, ToolRequest
from kestrel_lab.core.protocols import Model, OnDelta
from kestrel_lab.tools.sandbox.levels import Level, Sandbox

Resume = Literal["", "end", "any"]
"""Where a program can take up a session of its own: nowhere, where it ended, or behind any of its messages in
a copy of it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Capabilities:
    """What an agent program offers to whoever runs it."""

    streams: bool = False
    """Text comes in pieces while it is written."""
    tools: bool = True
    """Its tool calls and their results are told."""
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
    """By what the program can go on behind this answer; empty where it cannot."""
    counted: bool = True
    """Whether `answer.usage` is what was used; a program that counts once does so in its last answer, for all
    of them.
    """


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
    """Something that the program tells beside the conversation."""

    text: str


Reported = Turn | ToolDone | Note


@dataclass(frozen=True, kw_only=True, slots=True)
class Permission:
    """A call that the program may not make without leave."""

    request: ToolRequest
    danger: Danger = Danger.HIGH
    lasting: bool = False
    """Whether the program takes a yes for the later calls of that kind too: it offers no yes for this one
    only.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The answer to a `Permission`."""

    granted: bool
    reason: str = ""
    args: Mapping[str, Json] | None = None
    """Arguments that a person put in place of the program's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What a program is to do, and how far it may go."""

    prompt: str
    """What is said in the session that it goes on with."""
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
    """Whether that session belongs to another run and has to stay as it is."""
    turns: int | None = None
    """Most turns that are left; a program that cannot be told is ended when it has made them."""
    cost_usd: float | None = None

    def said(self, *, resumed: bool) -> str:
        """Return the prompt for a program that takes instructions in it, of a session that is taken up or of
        a new one.
        """
        return "\n\n".join(filter(None, (self.instructions, self.prompt if resumed else self.transcript)))


class Adapter(Model, Protocol):
    """A model that brings its own loop and tools: it takes a goal and works on it until it has an answer.

    It is named wherever a model is. Called like a model it raises `ModelError`: it has no single answers to
    give.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What the program offers."""
        ...

    def check(self, folder: Path) -> None:
        """Raise `UsageError` where the program is not on this machine; `folder` is the workspace."""
        ...

    def work(self, task: Task) -> AsyncIterator[Reported]:
        """Yield what the program tells until it has answered; its process is gone when the iterator is
        closed.

        Raises `ModelError` when it fails, `UsageError` when it is not installed or cannot be started, and
        `LimitError` when it says that a limit it was given is reached.
        """
        ...


def is_adapter(model: object) -> TypeGuard[Adapter]:
    """Return whether a model is an adapter; `isinstance` with a Protocol asks for each of its members, in
    every run.
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
"""Danger by kind of call, as the agent client protocol names kinds; any other kind (execute, delete, fetch,
other) is HIGH.
"""


@dataclass
class TurnParts:
    """The parts of a turn that a program tells one by one."""

    text: str = ""
    calls: dict[str, ToolRequest] = field(default_factory=dict)

    def turn(self, answer: ModelAnswer | None = None, session: str = "", *, counted: bool = True) -> Turn:
        """Return the turn of all parts so far, with what else is known of it in `answer`, and begin the
        next.
        """
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
