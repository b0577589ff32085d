"""Facts about plans: steps, stages, what was verified, scored and remembered on the way."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kestrel_lab.core.events import Event
from kestrel_lab.core.json_types import Json


class PlanProposed(Event, frozen=True, kw_only=True):
    """The plan the run follows."""

    type: ClassVar[str] = "plan_proposed"
    plan: dict[str, Json]


class PlanExtended(Event, frozen=True, kw_only=True):
    """A step grew more steps; whatever waits for it waits for them too."""

    type: ClassVar[str] = "plan_extended"
    step: str
    steps: list[dict[str, Json]]
    """As in the plan's JSON form, each with `step` as its parent."""
    artifacts: dict[str, Json] = field(default_factory=dict)
    """Artifacts that are there before the grown steps: those of a nested workflow, under `SCOPE/NAME`."""


class StageStarted(Event, frozen=True, kw_only=True):
    """The first step of a stage is about to begin, or the stage is tried again."""

    type: ClassVar[str] = "stage_started"
    stage: str
    attempt: int = 1


class StageFinished(Event, frozen=True, kw_only=True):
    """A step of a stage ended. The view `stage_checkpoints` consists of these events."""

    type: ClassVar[str] = "stage_finished"
    stage: str
    task: str
    """The step."""
    status: str
    """`done`, `skipped`, `retrying` or `failed`."""
    attempt: int = 1
    inputs_hash: str = ""
    """Hash of everything the step was given: equal for equal inputs."""
    outputs_ref: str = ""
    """Where its output is in the log: a step of the run, or a call."""
    error_class: str = ""
    """`transient`, `dependency`, `logic` or `budget`; empty when nothing went wrong."""
    error_message: str = ""


class StepStarted(Event, frozen=True, kw_only=True):
    """A step of the plan began."""

    type: ClassVar[str] = "step_started"
    step: str
    goal: str = ""
    """Empty when the step is a call of a tool."""
    context: str = ""
    """Text after the goal in an agent's first message: the artifacts it consumes."""
    model: str = ""
    """The model of this step; empty for the run's."""
    model_kind: str = "real"
    system: str | None = None
    """The system message of this step; `None` for the run's."""
    images: list[dict[str, Json]] = field(default_factory=list)
    """Images beside the goal: `{media_type, blob}`."""
    parent: str = ""
    """The step whose model delegated to this sub-agent; empty for a step of the plan."""
    call: str = ""
    """The call of `delegate` that the sub-agent answers."""
    limits: dict[str, float] = field(default_factory=dict)
    """What the sub-agent and those below it may use together: `cost_usd`, `tokens` and `seconds`."""


class Prompted(Event, frozen=True, kw_only=True):
    """A step sent its model another message: what was wrong with its answer, or the next question."""

    type: ClassVar[str] = "prompted"
    step: str
    text: str
    system: str | None = None
    """The system message, if this is the first thing said and it is not the run's."""
    images: list[dict[str, Json]] = field(default_factory=list)
    """Images beside the text: `{media_type, blob}`."""
    again: bool = False
    """Whether the step asks the same question again; the new answer replaces the last one."""


class StepRetried(Event, frozen=True, kw_only=True):
    """A step failed for a reason that may be temporary, and is retried; its earlier answer no longer
    counts.
    """

    type: ClassVar[str] = "step_retried"
    step: str
    attempt: int
    """Number of the attempt that begins, from 2."""
    error_class: str
    reason: str
    wait_s: float = 0.0


class StepFinished(Event, frozen=True, kw_only=True):
    """A step of the plan ended."""

    type: ClassVar[str] = "step_finished"
    step: str
    ok: bool
    reason: str = ""
    skipped: bool = False
    """It was not carried out: its condition did not hold, or something it needs failed (then not `ok`)."""
    output: Json = None
    """What an operation gave; answers of agents and calls are in events of their own."""


class VerifierStarted(Event, frozen=True, kw_only=True):
    """A verifier was asked to judge an answer."""

    type: ClassVar[str] = "verifier_started"
    step: str
    verifier: str
    criteria: list[str] = field(default_factory=list)


class VerifierFinished(Event, frozen=True, kw_only=True):
    """A verifier has judged."""

    type: ClassVar[str] = "verifier_finished"
    step: str
    verifier: str
    passed: bool
    confidence: float | None = None
    """From 0 to 1; `None` where the verifier gives none."""
    issues: list[str] = field(default_factory=list)


class BranchScored(Event, frozen=True, kw_only=True):
    """A candidate of a search over approaches was judged."""

    type: ClassVar[str] = "branch_scored"
    step: str
    candidate: str
    text: str
    score: float
    """From 0 to 1."""
    parent: str = ""
    """The candidate it goes on from; empty at the root."""
    done: bool = False
    """Whether it solves the goal."""


class MemoryRecalled(Event, frozen=True, kw_only=True):
    """The run received notes of earlier runs.

    Its log has their ids, not their text, which may be forgotten.
    """

    type: ClassVar[str] = "memory_recalled"
    step: str
    notes: list[dict[str, Json]] = field(default_factory=list)
    """`{id, kind, confidence, run, at}`, and `taint` where there is one.

    Listeners get the `text` too.
    """


class MemoryStored(Event, frozen=True, kw_only=True):
    """A note was kept for later runs."""

    type: ClassVar[str] = "memory_stored"
    step: str
    note: dict[str, Json] = field(default_factory=dict)
    """As in `MemoryRecalled`. Earlier versions kept the whole note here."""


class VoteCast(Event, frozen=True, kw_only=True):
    """A member of a council took a position, with the evidence of each claim, or voted for one."""

    type: ClassVar[str] = "vote_cast"
    council: str
    """The step that is the council."""
    step: str
    """The step in which the member worked."""
    member: str
    round: int
    position: str
    """Its answer; empty in a vote."""
    claims: list[dict[str, Json]] = field(default_factory=list)
    """`{claim, evidence, shown}`: `shown` counts the evidence found verbatim in the members' tool answers."""
    confidence: float = 0.0
    """From 0 to 1, by its own account."""
    vote: str = ""
    """The member for whose position it votes; empty before the vote."""
    reason: str = ""
    """Why it votes so."""


class CouncilDecided(Event, frozen=True, kw_only=True):
    """The chair of a council decided, or left the decision to the next tier of the escalation."""

    type: ClassVar[str] = "council_decided"
    step: str
    decision: str
    reason: str
    votes: dict[str, int] = field(default_factory=dict)
    """Votes by the member whose position they are for."""
    dissent: list[dict[str, Json]] = field(default_factory=list)
    """`{member, vote, reason}` of each vote that is not for the position with most votes."""
    split: bool = False
    """Whether no position had the share of votes that was asked for."""
    confidence: float = 0.0
