"""The closed vocabulary of recorded facts; whatever is shown, measured or resumed is computed from these."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events import Event
from kestrel_lab.core.events.calls import (
    ApprovalAsked,
    ApprovalGiven,
    CacheHit,
    ContextCompacted,
    FilesKept,
    FilesTainted,
    FolderChanged,
    MacroFinished,
    MacroStarted,
    McpCandidateFound,
    McpInstalled,
    ModelAnswered,
    ModelCalled,
    ModelDelta,
    ModelEscalated,
    RetrievalStep,
    SchedulerParallelBatch,
    ToolAnswered,
    ToolCalled,
    ToolDelta,
    ToolsAdded,
    ToolsShown,
)
from kestrel_lab.core.events.kernel import CellsChanged, KernelChanged, KernelPreviewed, KernelUndone
from kestrel_lab.core.events.labels import (
    Annotation,
    ClusterNamed,
    LabelUndone,
    RubricEdited,
    RunScanned,
    TrialJudged,
    TrialLabelled,
)
from kestrel_lab.core.events.plan import (
    BranchScored,
    CouncilDecided,
    MemoryRecalled,
    MemoryStored,
    PlanExtended,
    PlanProposed,
    Prompted,
    StageFinished,
    StageStarted,
    StepFinished,
    StepRetried,
    StepStarted,
    VerifierFinished,
    VerifierStarted,
    VoteCast,
)
from kestrel_lab.core.events.run import (
    BudgetWarned,
    CheckpointSaved,
    FilesApplied,
    HealthChanged,
    Progress,
    RunFinished,
    RunForked,
    RunInterrupted,
    RunResumed,
    RunStarted,
    StateTransition,
    TaskChanged,
)
from kestrel_lab.core.json_types import FrozenStruct, Json, dumps

LiveEvent = ModelDelta | ToolDelta
"""Events that listeners receive and no log keeps."""


def _recorded(kind: type[Event]) -> Iterator[type[Event]]:
    for each in kind.__subclasses__():
        if "type" in vars(each):  # not what several kinds have in common
            yield each
        yield from _recorded(each)


EVENT_TYPES: dict[str, type[Event]] = {cls.type: cls for cls in _recorded(Event)}
"""Every event class by its name in the log."""

_NAMES = {cls: frozenset(cls.__struct_fields__) for cls in EVENT_TYPES.values()}
_ENCODER = msgspec.json.Encoder()


class Record(FrozenStruct, frozen=True, kw_only=True):
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
    return msgspec.structs.asdict(event)


def encode_event(event: Event) -> str:
    """Return the fields of `event` as JSON text; raises `TypeError` for what is no JSON.

    Numbers are finite: `loads` and `tools.results` see to it.
    """
    try:
        return _ENCODER.encode(event).decode()
    except (
        UnicodeEncodeError,
        TypeError,
    ):  # a lone surrogate, which only an escape can hold; a key that is no text
        return dumps(to_json(event))


def decode_event(kind: str, body: str) -> Event:
    """Rebuild an event that `encode_event` wrote; raises like `from_json`, and `ValueError` for bad JSON."""
    try:
        return from_json(kind, msgspec.json.decode(body))
    except msgspec.DecodeError:  # the escape of a lone surrogate
        return from_json(kind, json.loads(body))


def from_json(kind: str, body: dict[str, Json]) -> Event:
    """Rebuild the event; raises `StoreError` for an unknown type or a missing field."""
    cls = EVENT_TYPES.get(kind)
    if cls is None:
        raise StoreError(
            f"the log has an event of type {kind!r}, which this version of kestrel_lab does not know: "
            "upgrade it"
        )
    known = _NAMES[cls]
    if not body.keys() <= known:
        body = {name: value for name, value in body.items() if name in known}
    try:
        # The constructor checks names, to_json wrote the values.
        return cls(**body)
    except TypeError as error:
        raise StoreError(f"an event of type {kind!r} in the log is incomplete: {error}") from error
