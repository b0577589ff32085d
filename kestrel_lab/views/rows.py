"""The parts a view of a run is made of: what each shows, already harmless text in the words of its reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kestrel_lab.core.jsontypes import Json

Change = dict[str, Json]
"""One patch: `op`, `id`, and the fields that take a new value; `text` appends instead."""


@dataclass(kw_only=True, slots=True)
class Part:
    """Something with an identity; `change` sets fields and tells what was set."""

    op: ClassVar[str]
    id: str

    def change(self, **values: Json) -> Change:
        """Set `values` and return the patch that does the same elsewhere."""
        for name, value in values.items():
            setattr(self, name, value)
        return {"op": self.op, "id": self.id, **values}

    def whole(self) -> Change:
        """The patch that makes this part from nothing."""
        # Not `asdict`, which copies: values are replaced here, never changed.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(kw_only=True, slots=True)
class Head(Part):
    """What is true of the run as a whole."""

    op: ClassVar[str] = "head"
    id: str = "head"
    run: str = ""
    goal: str = ""
    status: str = ""
    model: str = ""
    model_kind: str = ""
    """`real`, `scripted` or `replay`; the last two are shown as what they are."""
    started: float = 0.0
    ended: float = 0.0
    """Seconds since 1970; 0 as long as the run goes on."""
    usage: str = ""
    progress: str = ""
    fraction: float | None = None
    outcome: str = ""
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class StepPart(Part):
    """A step of the plan."""

    op: ClassVar[str] = "step"
    goal: str = ""
    needs: list[str] = field(default_factory=list)
    state: str = "waiting"
    """`waiting`, `running`, `ok` or `failed`."""
    reason: str = ""


@dataclass(kw_only=True, slots=True)
class TextRow(Part):
    """What a model wrote."""

    op: ClassVar[str] = "row"
    kind: str = "text"
    step: str = ""
    role: str = "model"
    """`model`, or `answer` for the text that is the run's answer."""
    state: str = "thinking"
    """`thinking`, `streaming`, `done`, `error` or `stopped`."""
    text: str = ""
    note: str = ""
    """Which model, how many tokens, how long."""

    def append(self, text: str) -> Change:
        """Add a piece and return the patch that does the same elsewhere."""
        self.text += text
        return {"op": "text", "id": self.id, "append": text}


@dataclass(kw_only=True, slots=True)
class CallRow(Part):
    """A tool call."""

    op: ClassVar[str] = "row"
    kind: str = "call"
    step: str = ""
    tool: str = ""
    danger: str = ""
    state: str = "asked"
    """`asked`, `waiting` (for a person), `running`, `ok`, `error`, `denied` or `stopped`."""
    summary: str = ""
    args: list[list[str]] = field(default_factory=list)
    """Pairs of name and text."""
    result: str = ""
    preview: str = ""
    """The beginning of the result on one line."""
    note: str = ""
    """Attempts, cache, who approved."""
    since: float = 0.0
    """When it started, while it runs."""
    took: str = ""


@dataclass(kw_only=True, slots=True)
class NoticeRow(Part):
    """Something worth knowing that is neither text nor call."""

    op: ClassVar[str] = "row"
    kind: str = "notice"
    level: str = "info"
    """`info` or `warning`."""
    text: str = ""


@dataclass(kw_only=True, slots=True)
class Ask(Part):
    """A call that waits for a person; its arguments are shown whole, nothing hidden or cut."""

    op: ClassVar[str] = "ask"
    tool: str = ""
    danger: str = ""
    why: str = ""
    args: list[list[str]] = field(default_factory=list)
    json: str = ""
    """The arguments as JSON to edit: hidden characters are written as escapes, the value is the same."""


Row = TextRow | CallRow | NoticeRow
