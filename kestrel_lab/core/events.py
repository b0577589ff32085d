"""The closed vocabulary of recorded facts; whatever is shown, measured or resumed is computed from these.

Each event carries what is needed to understand it alone, holds JSON values only, and is never
changed. Fields are only ever added: a reader ignores fields it does not know and fills in defaults
for fields that an older writer did not have.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import ClassVar

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.jsontypes import Json


@dataclass(frozen=True, kw_only=True, slots=True)
class RunStarted:
    """A run was accepted; everything needed to rebuild its conversation is here."""

    type: ClassVar[str] = "run_started"
    goal: str
    workspace: str
    model: str
    model_kind: str = "real"
    """`real`, `scripted` or `replay`; shown wherever a result of the run is."""
    system: str = ""
    tools: list[dict[str, Json]] = field(default_factory=list)
    """Name, version, danger and effect of each tool offered."""
    limits: dict[str, Json] = field(default_factory=dict)
    policy: str = "ask"
    config: str = ""
    """Name of the model configuration, when a suite ran it."""
    scenario: str = ""
    package: str = ""
    """Version of kestrel_lab that wrote this."""
    plan: dict[str, Json] = field(default_factory=dict)
    """The plan the caller gave; empty when one agent works on the goal."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateTransition:
    """The run went from one state to another; the database applies it in the same transaction."""

    type: ClassVar[str] = "state_transition"
    source: str
    target: str
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResumed:
    """Another session took the run up where the log ends."""

    type: ClassVar[str] = "run_resumed"
    by: str = ""
    model: str = ""
    model_kind: str = "real"


@dataclass(frozen=True, kw_only=True, slots=True)
class RunForked:
    """The run parts from another one here: the events before this one are those of `parent` up to `at`, not copied.

    Questions that were open there are not open here: whoever goes on asks them again.
    """

    type: ClassVar[str] = "run_forked"
    parent: str
    at: int
    model: str
    model_kind: str = "real"
    tools: list[dict[str, Json]] = field(default_factory=list)
    """Offered from here on, as in `run_started`."""
    policy: str = "ask"
    given: str = ""
    """`answer` or `result` when the next event was given by hand, else empty."""
    by: str = ""
    stage: str = ""
    """The last completed stage of the parent, when this is how a run that had ended was resumed."""
    limits: dict[str, Json] = field(default_factory=dict)
    """In force from here on; empty for the parent's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanProposed:
    """The plan the run follows."""

    type: ClassVar[str] = "plan_proposed"
    plan: dict[str, Json]


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanExtended:
    """A step grew more steps; whatever waits for it waits for them too."""

    type: ClassVar[str] = "plan_extended"
    step: str
    steps: list[dict[str, Json]]
    """As in the plan's JSON form, each with `step` as its parent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageStarted:
    """The first step of a stage is about to begin, or the stage is tried again."""

    type: ClassVar[str] = "stage_started"
    stage: str
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class StageFinished:
    """A step of a stage ended: a row of the view `stage_checkpoints`, which is these events and nothing else."""

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


@dataclass(frozen=True, kw_only=True, slots=True)
class StepStarted:
    """A step of the plan began."""

    type: ClassVar[str] = "step_started"
    step: str
    goal: str = ""
    """Empty when the step is a call of a tool."""
    context: str = ""
    """What an agent is told beside the goal: the artifacts it consumes."""
    model: str = ""
    """The model of this step; empty for the run's."""
    model_kind: str = "real"
    system: str | None = None
    """The system message of this step; `None` for the run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompted:
    """A step told its model something more: what was wrong with its answer, or the next question."""

    type: ClassVar[str] = "prompted"
    step: str
    text: str
    system: str | None = None
    """The system message, if this is the first thing said and it is not the run's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRetried:
    """A step failed in a way that may pass and is tried again; what its call answered no longer counts."""

    type: ClassVar[str] = "step_retried"
    step: str
    attempt: int
    """Number of the attempt that begins, from 2."""
    error_class: str
    reason: str
    wait_s: float = 0.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFinished:
    """A step of the plan ended."""

    type: ClassVar[str] = "step_finished"
    step: str
    ok: bool
    reason: str = ""
    skipped: bool = False
    """It was not carried out: its condition did not hold, or something it needs failed (then not `ok`)."""
    output: Json = None
    """What an operation gave; answers of agents and calls are in events of their own."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SchedulerParallelBatch:
    """Several calls of one turn were started together."""

    type: ClassVar[str] = "scheduler_parallel_batch"
    step: str
    calls: list[str]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelCalled:
    """A model was asked. The conversation is not repeated here: it follows from the events before."""

    type: ClassVar[str] = "model_called"
    call: str
    step: str
    model: str
    cycle: int
    messages: int
    tools: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDelta:
    """A piece of a model's answer as it streams. Shown, never stored."""

    type: ClassVar[str] = "model_delta"
    call: str
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelAnswered:
    """A model answered, or failed to."""

    type: ClassVar[str] = "model_answered"
    call: str
    step: str
    model: str
    text: str = ""
    calls: list[dict[str, Json]] = field(default_factory=list)
    """What it asks for: `{id, name, args, problem}`."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    """`None` where the price is not known."""
    seconds: float = 0.0
    finish: str = "stop"
    cached: bool = False
    error: dict[str, Json] | None = None
    given: bool = False
    """Written by whoever forked the run; no model said it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCalled:
    """A tool is about to be run: the intent, stored before any effect of the call."""

    type: ClassVar[str] = "tool_called"
    call: str
    step: str
    tool: str
    args: dict[str, Json]
    danger: str = "SAFE"
    effect: str = "opaque"
    attempt: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolAnswered:
    """A tool call ended. `text` is what the model is shown."""

    type: ClassVar[str] = "tool_answered"
    call: str
    step: str
    tool: str
    text: str
    error: dict[str, Json] | None = None
    seconds: float = 0.0
    queued: float = 0.0
    """Seconds between being asked for and starting, a person's thinking time left out."""
    cached: bool = False
    truncated: bool = False
    given: bool = False
    """Written by whoever forked the run; the tool did not say it."""
    value: Json = None
    """The answer as JSON where a step of the plan made the call: what others consume keeps its type."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheHit:
    """A stored answer was used instead of a call."""

    type: ClassVar[str] = "cache_hit"
    call: str
    tool: str
    key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalAsked:
    """A call waits for a person."""

    type: ClassVar[str] = "approval_asked"
    call: str
    step: str
    tool: str
    args: dict[str, Json]
    danger: str
    key: str
    """Hash of tool and arguments: the decision is bound to exactly these."""
    why: str = ""
    """Why it is asked: `"danger"`, or `"unknown_outcome"` when the last session ended while the call ran."""
    question: str = ""
    """Names this question; a call asked about twice has two."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ApprovalGiven:
    """A waiting call was decided. The first decision for a call stands."""

    type: ClassVar[str] = "approval_given"
    call: str
    granted: bool
    by: str
    """Who: a user name, `policy`, or a transport's word for its user."""
    how: str
    """`policy`, `click`, `prompt`, `command` or `rule`."""
    reason: str = ""
    args: dict[str, Json] | None = None
    """Edited arguments, when the person changed them."""
    scope: str = "once"
    """`once`, or `run`: equal tools of this run are not asked about again."""
    waited: float = 0.0
    """Seconds between question and answer."""
    question: str = ""
    """Which question this answers; filled in by whoever records it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BudgetWarned:
    """A limit is near, or cannot be watched (a model without a known price)."""

    type: ClassVar[str] = "budget_warned"
    limit: str
    message: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MacroStarted:
    """A macro was called by `macro_run`; its calls follow under ids that begin with `call`."""

    type: ClassVar[str] = "macro_started"
    call: str
    step: str
    macro: str
    version: int
    args: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class MacroFinished:
    """A macro ended."""

    type: ClassVar[str] = "macro_finished"
    call: str
    step: str
    macro: str
    ok: bool
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierStarted:
    """An answer is put to a verifier."""

    type: ClassVar[str] = "verifier_started"
    step: str
    verifier: str
    criteria: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class VerifierFinished:
    """A verifier has judged."""

    type: ClassVar[str] = "verifier_finished"
    step: str
    verifier: str
    passed: bool
    confidence: float | None = None
    """From 0 to 1; `None` where the verifier gives none."""
    issues: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class BranchScored:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryRecalled:
    """Notes of earlier runs were given to this one."""

    type: ClassVar[str] = "memory_recalled"
    step: str
    notes: list[dict[str, Json]] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryStored:
    """A note was kept for later runs."""

    type: ClassVar[str] = "memory_stored"
    step: str
    note: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelEscalated:
    """Another model takes over, because one failed or was not sure enough."""

    type: ClassVar[str] = "model_escalated"
    step: str
    source: str
    target: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HealthChanged:
    """Something that runs depend on went from one state of health to another."""

    type: ClassVar[str] = "health_changed"
    dependency: str
    kind: str
    """`model`, `mcp`, or another word for what it is."""
    source: str
    target: str
    """`starting`, `ready`, `degraded`, `recovering` or `failed`."""
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointSaved:
    """A snapshot of the run was stored; resuming starts from the newest and reads on from there."""

    type: ClassVar[str] = "checkpoint_saved"
    seq: int
    """The last event in it."""
    reason: str
    """`cycles`, `interrupt`, `error` or `asked`."""
    bytes: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A tool or step tells how far it is."""

    type: ClassVar[str] = "progress"
    text: str
    fraction: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished:
    """The run ended; its last state transition follows."""

    type: ClassVar[str] = "run_finished"
    outcome: str
    """`complete`, `limit`, `error` or `cancelled`."""
    answer: str = ""
    reason: str = ""
    limit: str = ""
    """Which limit was reached, when `outcome` is `limit`."""


Event = (
    RunStarted
    | StateTransition
    | RunResumed
    | RunForked
    | PlanProposed
    | PlanExtended
    | StageStarted
    | StageFinished
    | StepStarted
    | Prompted
    | StepRetried
    | StepFinished
    | SchedulerParallelBatch
    | ModelCalled
    | ModelDelta
    | ModelAnswered
    | ToolCalled
    | ToolAnswered
    | CacheHit
    | ApprovalAsked
    | ApprovalGiven
    | BudgetWarned
    | MacroStarted
    | MacroFinished
    | VerifierStarted
    | VerifierFinished
    | BranchScored
    | MemoryRecalled
    | MemoryStored
    | ModelEscalated
    | HealthChanged
    | CheckpointSaved
    | Progress
    | RunFinished
)

EVENT_TYPES: dict[str, type[Event]] = {cls.type: cls for cls in Event.__args__}
"""Every event class by its name in the log."""

_FIELDS = {cls: tuple(f.name for f in fields(cls)) for cls in EVENT_TYPES.values()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """An event as the log keeps it."""

    run_id: str
    seq: int
    """1, 2, 3 … without a gap within the run."""
    eid: str
    """Unique for ever."""
    at: float
    """Seconds since 1970, UTC."""
    event: Event


def to_json(event: Event) -> dict[str, Json]:
    """The fields of `event`, its type left out."""
    return {name: getattr(event, name) for name in _FIELDS[type(event)]}


def from_json(kind: str, body: dict[str, Json]) -> Event:
    """Rebuild the event; raises `StoreError` for a type this version does not know or a body that lacks a field."""
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        msg = f"the log has an event of type {kind!r}, which this version of kestrel_lab does not know: upgrade it"
        raise StoreError(msg)
    known = _FIELDS[cls]
    try:
        return cls(**{name: body[name] for name in known if name in body})  # type: ignore[arg-type]  # the constructor checks names, to_json wrote the values
    except TypeError as error:
        msg = f"an event of type {kind!r} in the log is incomplete: {error}"
        raise StoreError(msg) from error
