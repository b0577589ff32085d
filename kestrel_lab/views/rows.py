"""The parts of a run's view; all their texts are harmless to show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from kestrel_lab.core.json_types import Json
from kestrel_lab.views.formatting import format_duration

Change = dict[str, Json]
"""One patch: `op`, `id` and changed fields; `text` appends to the text, or to the reasoning."""


@dataclass(kw_only=True, slots=True)
class Part:
    """A part with an identity; `change` sets fields and returns the patch."""

    op: ClassVar[str]
    id: str

    def change(self, **values: Json) -> Change:
        """Set `values` and return the patch that does the same elsewhere."""
        for name, value in values.items():
            setattr(self, name, value)
        return {"op": self.op, "id": self.id, **values}

    def whole(self) -> Change:
        """The patch that builds this part from nothing: `op` and every field."""
        # Not `asdict`, which copies and leaves out class variables: values are replaced here, never changed.
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(kw_only=True, slots=True)
class RunHead(Part):
    """The facts about the run as a whole."""

    op: ClassVar[str] = "head"
    id: str = "head"
    run: str = ""
    goal: str = ""
    """As the person wrote it."""
    given: str = ""
    """What the model was given for it, where that is something else: with variables filled in."""
    status: str = ""
    model: str = ""
    model_kind: str = ""
    """`real`, `scripted` or `replay`; the last two are shown as what they are."""
    ended: float = 0.0
    """Seconds since 1970; 0 as long as the run goes on."""
    took: float = 0.0
    """Seconds that the run took until `working`: see `UsageMeter.took_s`."""
    usage: str = ""
    budget: list[Json] = field(default_factory=list)
    """Limits that are counted: what is used of each in words, and as a fraction."""
    worked: float = 0.0
    """Seconds of work until `working`."""
    working: float = 0.0
    """Since when it works, in seconds since 1970; 0 while it waits for a person, and at the end."""
    seconds: float | None = None
    """How long it may work."""
    health: str = ""
    """What the run depends on and is not in order; empty when all is."""
    progress: str = ""
    fraction: float | None = None
    outcome: str = ""
    reason: str = ""

    def took_until(self, now: float) -> float:
        """Return how long the run has taken, in seconds, `now` seconds since 1970."""
        counts = self.working and not self.ended
        return self.took + (max(0.0, now - self.working) if counts else 0.0)

    @property
    def took_text(self) -> str:
        """How long the run took, for people; empty while it goes on, and where nobody recorded its times."""
        return format_duration(self.took) if self.ended and self.took else ""


@dataclass(kw_only=True, slots=True)
class StepPart(Part):
    """A step of the plan, and where it is drawn."""

    op: ClassVar[str] = "step"
    name: str = ""
    """Its id, harmless."""
    label: str = ""
    """The same, short enough for its place."""
    goal: str = ""
    needs: list[str] = field(default_factory=list)
    """Names of the steps right before it."""
    state: str = "pending"
    """`pending`, `running`, `waiting` (for a person), `ok`, `failed`, `skipped` or `stopped`."""
    reason: str = ""
    stage: str = ""
    parent: str = ""
    """The step that grew it."""
    exclusive: bool = False
    within: str = ""
    """The step it is drawn as one with, when long plans are folded; it has no place of its own then."""
    folded: int = 0
    """How many steps are drawn as one with it."""
    x: int = 0
    y: int = 0
    width: int = 0


@dataclass(kw_only=True, slots=True)
class GraphPart(Part):
    """The drawing of the plan without its steps, in pixels."""

    op: ClassVar[str] = "graph"
    id: str = "graph"
    summary: str = ""
    width: int = 0
    height: int = 0
    lines: list[Json] = field(default_factory=list)
    """From, to, and the `d` of an SVG path, which consists of numbers and letters only."""
    bands: list[Json] = field(default_factory=list)
    """Title, left edge and width of each stage."""


@dataclass(kw_only=True, slots=True)
class StageRow(Part):
    """A stage of the plan began."""

    op: ClassVar[str] = "row"
    kind: str = "stage"
    stage: str = ""
    attempt: int = 1
    state: str = "running"
    """`running`, `done`, `retrying` or `failed`."""


@dataclass(kw_only=True, slots=True)
class StepRow(Part):
    """A row that belongs to a step; the step is empty for one of the whole run."""

    op: ClassVar[str] = "row"
    kind: ClassVar[str]
    step: str = ""


@dataclass(kw_only=True, slots=True)
class TextRow(StepRow):
    """A text of a model."""

    kind = "text"
    role: str = "model"
    """`model`, or `answer` for the text that is the run's answer."""
    state: str = "thinking"
    """`thinking`, `streaming`, `done`, `error` or `stopped`."""
    text: str = ""
    thinking: str = ""
    """The model's reasoning before the text; shown folded, shortened in the middle where it is long."""
    note: str = ""
    """Which model, how many tokens, how long."""
    cites: list[list[str]] = field(default_factory=list)
    """Citations of an answer: name, text or why it is missing, and whether it changed; each once."""
    claims: list[Json] = field(default_factory=list)
    """Claims of an answer that cites something: start and end in `text`, state, and what is cited in words.
    """
    numbers: dict[str, Json] = field(default_factory=dict)
    """Numbers of an answer as they are written, and the id of the row of the call that gave each."""

    def append(self, text: str) -> Change:
        """Add a piece and return the patch that does the same elsewhere."""
        # The row lets go of its text first: a string that only this name refers to grows in place, not by a
        # copy for each piece.
        whole, self.text = self.text, ""
        whole += text
        self.text = whole
        return {"op": "text", "id": self.id, "append": text}

    def think(self, text: str) -> Change:
        """Add a piece to the reasoning and return the patch that does the same elsewhere."""
        whole, self.thinking = self.thinking, ""
        whole += text
        self.thinking = whole
        return {"op": "text", "id": self.id, "thought": text}


@dataclass(kw_only=True, slots=True)
class CallRow(StepRow):
    """A tool call."""

    kind = "call"
    tool: str = ""
    danger: str = ""
    state: str = "asked"
    """`asked`, `waiting` (for a person), `running`, `ok`, `error`, `denied`, `stopped` or `undone`."""
    summary: str = ""
    args: list[list[str]] = field(default_factory=list)
    """Pairs of name and text."""
    code: list[str] = field(default_factory=list)
    """Language and text of the code among the arguments, which `args` leaves out; empty for no code."""
    result: str = ""
    diff: str = ""
    """What the call changed, as a unified diff; `result` is the rest of what the tool said."""
    figures: list[str] = field(default_factory=list)
    """What the call drew, as `data:` addresses of a PNG or JPEG."""
    table: list[list[str]] = field(default_factory=list)
    """The data frame that `result` is the text of: headings, then row by row."""
    preview: str = ""
    """The beginning of the result on one line."""
    note: str = ""
    """Attempts, cache, who approved."""
    since: float = 0.0
    """When it started, while it runs."""
    took: str = ""
    inside: str = ""
    """The macro that makes the call."""
    undo: str = ""
    """The id of the call, where what it changed can be undone."""


@dataclass(kw_only=True, slots=True)
class NoticeRow(StepRow):
    """Something worth knowing that is neither text nor call."""

    kind = "notice"
    level: str = "info"
    """`info`, `good`, `warning` or `bad`; empty for what needs no word before it."""
    state: str = "done"
    """`running` as long as the end of it is still to come, else `done` or `stopped`."""
    text: str = ""
    items: list[str] = field(default_factory=list)
    """What belongs to it, a line or more each."""
    table: list[list[str]] = field(default_factory=list)
    """What belongs to it and has columns: their headings, then row by row."""


@dataclass(kw_only=True, slots=True)
class QuestionRow(Part):
    """A call that waits for a person; its arguments are shown whole, nothing hidden or cut."""

    op: ClassVar[str] = "ask"
    kind: str = "approval"
    """`approval` of a call, or `question` to be answered in words."""
    text: str = ""
    """What the agent asks."""
    options: list[str] = field(default_factory=list)
    """The answers it offers."""
    diff: str = ""
    """What the call would change, as a unified diff, or why it would fail."""
    folded: bool = False
    """The diff says all that the arguments do: they need not be unfolded."""
    previewing: float = 0.0
    """Since when its preview is being made, in seconds since 1970; 0 where none is."""
    images: list[str] = field(default_factory=list)
    """Figures of a preview as `data:` addresses of a PNG or JPEG; only while the run is followed live."""
    tool: str = ""
    danger: str = ""
    why: str = ""
    args: list[list[str]] = field(default_factory=list)
    origins: list[list[str]] = field(default_factory=list)
    """Pairs of a place among the arguments and where the words there come from."""
    json: str = ""
    """The arguments as JSON to edit: hidden characters are written as escapes, the value is the same."""
    offer: str = ""
    """Commands that may be allowed for the rest of the run with this one; empty for none."""
    contained: bool = False
    """Whether containment asks: then all like it may be allowed, or none from here on."""


Row = TextRow | CallRow | NoticeRow | StageRow
