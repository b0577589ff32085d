"""Facts about a run as a whole: its beginning and end, its states, its health and limits."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kestrel_lab.core.events import Event
from kestrel_lab.core.json_types import Json


class RunStarted(Event, frozen=True, kw_only=True):
    """A run was accepted; everything needed to rebuild its conversation is here."""

    type: ClassVar[str] = "run_started"
    goal: str
    said: str = ""
    """The goal as the person wrote it, where variables were filled in; empty where `goal` is that."""
    workspace: str
    model: str
    model_why: str = ""
    """Why this model was chosen, if none was named."""
    model_kind: str = "real"
    """`real`, `scripted`, `replay` or `imported`; shown wherever a result of the run is."""
    system: str = ""
    tools: list[dict[str, Json]] = field(default_factory=list)
    """Name, version, danger and effect of each tool offered."""
    limits: dict[str, Json] = field(default_factory=dict)
    policy: str = "ask"
    rules: list[dict[str, Json]] = field(default_factory=list)
    """Rules of this run alone, `{source, rule}` each; rules in settings are read again on resume."""
    config: str = ""
    """Name of the model configuration, when a suite ran it."""
    scenario: str = ""
    package: str = ""
    """Version of kestrel_lab that wrote this."""
    plan: dict[str, Json] = field(default_factory=dict)
    """The plan the caller gave; empty when one agent works on the goal."""
    follows: str = ""
    """The run whose conversation it goes on with; empty for a run that begins one."""
    earlier: dict[str, Json] = field(default_factory=dict)
    """State of the earlier run: `turn` (how many runs came before), `messages`, and facts about them
    (`untrusted`, `doubts`, `private`, `words` of the user, `recalled` notes, `files` with their versions,
    `wholes` of long results). See `runtime.conversation`; `eventlog.shared_conversation` says what the log
    stores of it.
    """
    params: dict[str, Json] = field(default_factory=dict)
    """Parameters of the models, by name."""
    private_copy: dict[str, Json] = field(default_factory=dict)
    """If the run follows a fork: that fork's private copy of the workspace, see `RunForked.private_copy`."""
    images: list[dict[str, Json]] = field(default_factory=list)
    """Images beside the goal: `{media_type, blob}`; the bytes are kept beside the log under that name."""
    output: dict[str, Json] = field(default_factory=dict)
    """JSON Schema of the answer, when a typed one was asked for."""
    guidance: list[dict[str, Json]] = field(default_factory=list)
    """Texts of the workspace in the system message: `path`, `size` in bytes, `digest` (SHA-256), `at` (their
    place in it), `cut`, `tainted` (their untrusted source), `skill` (the name, if it is the description of a
    skill), `own` (of the user, not of the workspace), or the `problem` that kept one out. See
    `runtime.context.guidance`.
    """
    time: dict[str, Json] = field(default_factory=dict)
    """When it began, by whose clocks: `now_iso`, `timezone`, `weekday`, `date`, `iso_week`.

    Relative times of the run, such as "tomorrow", are computed from it.
    """
    imported: dict[str, Json] = field(default_factory=dict)
    """Set where another tool recorded the run: `format`, `source` (file and place), `id` there, `at` (when it
    was imported), `times` (`each`, `total` or `unknown`: which times are the recording's own), `calls` (its
    ids of calls by ours).
    """


class StateTransition(Event, frozen=True, kw_only=True):
    """The run went from one state to another; the database applies it in the same transaction."""

    type: ClassVar[str] = "state_transition"
    source: str
    target: str
    reason: str = ""


class RunResumed(Event, frozen=True, kw_only=True):
    """Another session continues the run from the end of the log."""

    type: ClassVar[str] = "run_resumed"
    by: str = ""
    model: str = ""
    model_kind: str = "real"
    limits: dict[str, Json] = field(default_factory=dict)
    """In force from here on; empty for those before."""


class RunInterrupted(Event, frozen=True, kw_only=True):
    """Work on the run was interrupted, for example by Ctrl-C. It can be resumed from here."""

    type: ClassVar[str] = "run_interrupted"


class RunForked(Event, frozen=True, kw_only=True):
    """The run is a fork: its events before this one are those of `parent` up to `at`, which are not copied.

    Questions that were open in the parent are not open here: the fork asks them again.
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
    private_copy: dict[str, Json] = field(default_factory=dict)
    """The private copy of the workspace that it works in; empty if it works in the folder of its parent.
    Memory, macros and settings remain those of the workspace. `folder` is the path of the copy, `whole` names
    the index of its files when it was made, and `source` says what they were made from. `exact` is true if
    they certainly are those of that moment; `notes` lists differences, `objects` git folders that it shares.
    """


class FilesApplied(Event, frozen=True, kw_only=True):
    """The changes that a fork made in its private copy were taken over into the workspace."""

    type: ClassVar[str] = "files_applied"
    by: str
    folder: str
    """The workspace that they were applied to."""
    changed: dict[str, Json] = field(default_factory=dict)
    """By path, what is there now; `null` for what was deleted. See `tools.files.snapshots.Entry`."""
    before: dict[str, Json] = field(default_factory=dict)
    """The same of what was there before; `null` for what is new."""


class BudgetWarned(Event, frozen=True, kw_only=True):
    """A limit is near, cannot be checked (unknown price), or was reached where it only ends a loop; or a step
    works without something that it names.
    """

    type: ClassVar[str] = "budget_warned"
    limit: str
    message: str


class HealthChanged(Event, frozen=True, kw_only=True):
    """Something that runs depend on went from one state of health to another."""

    type: ClassVar[str] = "health_changed"
    dependency: str
    kind: str
    """`model`, `mcp`, or another word for what it is."""
    source: str
    target: str
    """`starting`, `ready`, `degraded`, `recovering` or `failed`; at the start also why a part is not used."""
    reason: str = ""


class CheckpointSaved(Event, frozen=True, kw_only=True):
    """A snapshot of the run was stored; resuming starts from the newest and reads on from there."""

    type: ClassVar[str] = "checkpoint_saved"
    seq: int
    """The last event in it."""
    reason: str
    """`cycles`, `interrupt`, `error` or `asked`."""
    bytes: int = 0


class Progress(Event, frozen=True, kw_only=True):
    """A tool or step tells how far it is."""

    type: ClassVar[str] = "progress"
    text: str
    fraction: float | None = None
    lasting: bool = False
    """Whether it is of use after the step, too, such as why a note was refused."""


class TaskChanged(Event, frozen=True, kw_only=True):
    """An agent put a task on the list of its run, or one of them is in another state."""

    type: ClassVar[str] = "task_changed"
    task: str
    """Its number on the list."""
    title: str
    status: str = "todo"
    """`todo`, `doing`, `done` or `dropped`."""
    note: str = ""
    call: str = ""
    """The call that put it on the list."""


class RunFinished(Event, frozen=True, kw_only=True):
    """The run ended; its last state transition follows."""

    type: ClassVar[str] = "run_finished"
    outcome: str
    """`complete`, `limit`, `unmet` (the result is not good enough), `error` or `cancelled`."""
    answer: str = ""
    reason: str = ""
    limit: str = ""
    """Which limit was reached, when `outcome` is `limit`."""
    finish: str = ""
    """How the answer ended where it is not whole: `length`, `content_filter`, `refusal`, or `empty`."""
    concerns: list[dict[str, Json]] = field(default_factory=list)
    """The concerns that the review of the answer raised: `severity`, `place`, `what`, `fix`, `check` each."""
    looked: bool = False
    """Whether somebody looked: only then does it mean something that there are none."""
    support: float | None = None
    """Logs of earlier versions only: how many words of the answer the run had read, from 0 to 1."""
    claims: list[dict[str, Json]] = field(default_factory=list)
    """Claims of the answer, if asked for: `text`, `state`, `citations` of each, as they were when given."""
    confirmed: int = 0
    """Actions that the answer claims in the first person and the log has."""
    checked: int | None = None
    """How many places, quotes and actions the checks could compare; `None` in logs of earlier versions."""
    calibrated: dict[str, Json] = field(default_factory=dict)
    """How often answers with this confidence were right in trials: `share`, `trials`, `suite`."""
    actions: list[dict[str, Json]] = field(default_factory=list)
    """What can be done next, and could be done when the answer was given: `kind`, `text`, `why` each."""
