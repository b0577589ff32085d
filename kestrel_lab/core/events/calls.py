"""Events of calls and tools: approvals, macros, and tools that a run gains."""

from __future__ import annotations

from typing import ClassVar

from msgspec import field

from kestrel_lab.core.events import AskedTool, CallEvent, Event
from kestrel_lab.core.json_types import Json


class SchedulerParallelBatch(Event, frozen=True, kw_only=True):
    """Several calls of one turn were started together."""

    type: ClassVar[str] = "scheduler_parallel_batch"
    step: str
    calls: list[str]


class ModelCalled(CallEvent, frozen=True, kw_only=True):
    """A model was asked. The conversation is not repeated here: it follows from the events before."""

    type: ClassVar[str] = "model_called"
    model: str
    cycle: int
    messages: int
    tools: int = 0


class ModelDelta(Event, frozen=True, kw_only=True):
    """A piece of a model's answer as it streams. Shown, never stored."""

    type: ClassVar[str] = "model_delta"
    call: str
    text: str
    thinking: bool = False
    """Whether it is reasoning before the answer."""


class ModelAnswered(CallEvent, frozen=True, kw_only=True):
    """A model answered, or failed to."""

    type: ClassVar[str] = "model_answered"
    model: str
    text: str = ""
    calls: list[dict[str, Json]] = field(default_factory=list)
    """What it asks for: `{id, name, args, problem}`, and `signature` where the provider sent one."""
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float | None = None
    """`None` where the price is not known."""
    tokens_cached: int = 0
    """Tokens of `tokens_in` that the provider had in its prompt cache."""
    tokens_cache_written: int = 0
    tokens_reasoning: int = 0
    """Tokens of `tokens_out` that were reasoning."""
    thinking: list[dict[str, Json]] = field(default_factory=list)
    """The reasoning before the text: `{text, signature, redacted}`, without empty fields."""
    seconds: float = 0.0
    """From the question to the answer, `queued` and `backoff` included."""
    queued: float = 0.0
    """Seconds of it that the call waited for its turn at the endpoint."""
    backoff: float = 0.0
    """Seconds of it between attempts, of which the one before had failed or was refused."""
    finish: str = "stop"
    cached: bool = False
    error: dict[str, Json] | None = None
    given: bool = False
    """Written by the person who forked the run; no model said it."""
    routed: str = ""
    """The kind of work for which this model was chosen among several, and how that kind was recognised."""
    replayed: bool = False
    """From a recording: tokens and cost are what they were then, the seconds are those of the replay."""
    metered: bool = True
    """Whether its tokens are known; where not, `tokens_in` and `tokens_out` are counted here, or 0."""
    session: str = ""
    """For another agent's program: what it needs to continue after this answer, see
    `adapters.adapter.Turn`.
    """


class ToolCalled(AskedTool, frozen=True, kw_only=True):
    """A tool is about to be run: the intent, stored before any effect of the call."""

    type: ClassVar[str] = "tool_called"
    danger: str = "SAFE"
    effect: str = "opaque"
    attempt: int = 1
    sandbox: str = ""
    """The level that its commands are held in at; empty for a tool that starts none."""
    leave: str = ""
    """Who approved the call (a person, a rule or a policy), and why; empty if no approval was needed."""


class ToolDelta(Event, frozen=True, kw_only=True):
    """The latest output of a running tool, some thousand characters ten times a second. Never stored."""

    type: ClassVar[str] = "tool_delta"
    call: str
    text: str


class ContextCompacted(Event, frozen=True, kw_only=True):
    """The conversation outgrew the context: from here on the model gets less of it; nothing is deleted."""

    type: ClassVar[str] = "context_compacted"
    step: str
    window: int
    """Tokens that the context holds."""
    before: int
    after: int
    """About how many tokens the conversation shows, before and after."""
    results: dict[str, str] = field(default_factory=dict)
    """By call, the text that replaces its result."""
    wholes: dict[str, Json] = field(default_factory=dict)
    """Texts that were stored because of it, by the name in the store: `call`, `tool` and `chars` of each."""
    summary: str = ""
    """The text that replaces the messages up to `upto`; empty if none are summarised."""
    upto: int = 0
    by: str = ""
    """The step under which the model was asked for the summary."""


class FolderChanged(CallEvent, frozen=True, kw_only=True):
    """A command of a step changed the folder in which its later commands start."""

    type: ClassVar[str] = "folder_changed"
    folder: str
    """As seen from the workspace; `.` for the workspace itself."""


class FilesTainted(Event, frozen=True, kw_only=True):
    """Untrusted text may be in files of the workspace: a call may write some from now on, has written some,
    or has `ended` and what it read and wrote is known.
    """

    type: ClassVar[str] = "files_tainted"
    call: str
    """Empty for a step that reads files itself."""
    step: str
    began: float
    """When the call began, in seconds since 1970."""
    source: str = ""
    """The untrusted source whose text it may write; empty for a call that has ended and wrote none."""
    places: list[str] = field(default_factory=list)
    """Files that it may write, `.` for any in the workspace."""
    also: list[str] = field(default_factory=list)
    """Calls of the same turn that began together and share this event; they end when the last has ended."""
    ended: bool = False
    files: list[dict[str, Json]] = field(default_factory=list)
    """What was written so far: `{path, size, content}`, the last a hash; with `name` where the path itself
    may be words of others, and for text with `runs`, hashes of some of the runs of words that it has and had
    not before; `whole` says whether these are all of them.
    """
    folders: list[str] = field(default_factory=list)
    """Folders in which it wrote too many files to name."""
    read: str = ""
    """The file with words of others that the answer may hold, and their source; empty if it holds none."""
    key: str = ""
    """Hash of tool and arguments, where the answer may be given again when the files are others."""


class FilesKept(Event, frozen=True, kw_only=True):
    """The contents of the workspace's files at this moment are stored beside the log, for forks.

    Recorded before and after a call that may change files. The first event of a session has all files, later
    ones only the changes since.
    """

    type: ClassVar[str] = "files_kept"
    call: str
    when: str = "before"
    """`before` or `after` the call; what is found before one was changed by something else."""
    whole: str = ""
    """Names the index of all files, which is kept beside the log; empty if the event has only the changes."""
    changed: dict[str, Json] = field(default_factory=dict)
    """By path, what is there now: see `tools.files.snapshots.Entry`."""
    gone: list[str] = field(default_factory=list)
    problem: str = ""
    """Why no contents are stored from here on."""


class ToolAnswered(CallEvent, frozen=True, kw_only=True):
    """A tool call ended. `text` is what the model is shown."""

    type: ClassVar[str] = "tool_answered"
    tool: str
    text: str
    error: dict[str, Json] | None = None
    seconds: float = 0.0
    queued: float = 0.0
    """Seconds between being asked for and starting, a person's thinking time left out."""
    cached: bool = False
    truncated: bool = False
    given: bool = False
    """Written by the person who forked the run; the tool did not say it."""
    value: Json = None
    """The answer as JSON, if later steps use it, or if it is not text and short enough to show."""
    cacheable: bool = False
    """Whether a stored answer might have been used."""
    whole: str = ""
    """If `text` is only a part: the name of the whole text, kept beside the log while there is room."""
    chars: int = 0
    """Characters of the whole text, where it is kept."""
    knows: dict[str, Json] = field(default_factory=dict)
    """Hashes of the file versions that the step has seen, by path; empty for a missing file."""
    changed: list[str] = field(default_factory=list)
    """Files that the call changed, as far as the tool says so."""
    touched: list[str] | None = None
    """Files of the workspace that changed while the call ran, if it names none and may change any; `None` if
    they were not compared. Something other than the call may have changed them.
    """
    before: dict[str, Json] = field(default_factory=dict)
    """By changed file, what undoes the change: `{blob, existed, after}` or, of a deletion, `{trash, after}`.
    What the file held is kept beside the log under the name `blob`, empty where it held nothing; `after` is
    the version that the call left.
    """
    images: list[dict[str, Json]] = field(default_factory=list)
    """Images of the answer: `{media_type, blob}`; the bytes are kept beside the log under that name."""
    session: str = ""
    """For a call of another agent's program: what the program needs to continue after this result."""


class RetrievalStep(Event, frozen=True, kw_only=True):
    """One look-up of a search for files relevant to a question; the last one holds the result."""

    type: ClassVar[str] = "retrieval_step"
    step: str
    call: str = ""
    """The tool call it was made for; empty for an operation's."""
    question: str = ""
    """What all look-ups of the same call are for."""
    retriever: str = ""
    query: str = ""
    arguments: dict[str, Json] = field(default_factory=dict)
    found: int = 0
    """Files that matched."""
    chosen: list[str] = field(default_factory=list)
    """Paths, best first."""
    dropped: dict[str, Json] = field(default_factory=dict)
    """Files that are not in the answer, with the reason; of those ranked too low, only the next hundred."""
    seconds: float = 0.0
    note: str = ""
    hits: list[dict[str, Json]] = field(default_factory=list)
    """`{path, first, last, hash, how, why, score}`, in the last one only."""
    coverage: float | None = None
    gaps: list[str] = field(default_factory=list)
    stopped: str = ""
    """`confidence`, `saturation`, `limit` or `nothing`; empty until the last one."""


class CacheHit(Event, frozen=True, kw_only=True):
    """A stored answer was used instead of a call."""

    type: ClassVar[str] = "cache_hit"
    call: str
    tool: str
    key: str


class ApprovalAsked(AskedTool, frozen=True, kw_only=True):
    """A call waits for a person."""

    type: ClassVar[str] = "approval_asked"
    danger: str
    key: str
    """Hash of tool, its version, arguments, folder and sandbox level: the decision is bound to exactly these.
    """
    why: str = ""
    """Why it is asked: `"danger"`, `"contained"`, `"question"` when a person's words are the call's answer,
    `"unknown_outcome"` when the last session ended while the call ran, or what a rule says.
    """
    question: str = ""
    """Names this question; a call asked about twice has two."""
    preview: str = ""
    """What the call would change, as a unified diff, or why it would fail; empty where its tool cannot say.
    """
    sandbox: str = ""
    """The level that its commands are to be held in at, with the reason where that is none."""
    offer: str = ""
    """A pattern of commands that may be allowed for the rest of the run, e.g. `git diff ...`; or empty."""
    shows: str = ""
    """A key of the whole preview: where it would be another one when the call begins, it is asked again."""
    contained: dict[str, Json] = field(default_factory=dict)
    """Why containment asks: `untrusted`, `private` (lists of sources), `effect`; see `containment`."""
    skills: list[str] = field(default_factory=list)
    """The folders of the skills that the agent had loaded."""
    origins: list[dict[str, Json]] = field(default_factory=list)
    """Where each argument comes from: `{arg, from: [{source, kind, piece}]}`, `from` empty where the words
    are the model's own.

    `kind` is `goal`, `untrusted`, `private`, `tool`, or `filled`: then `source` says who filled it in.
    """


class ApprovalGiven(Event, frozen=True, kw_only=True):
    """A waiting call was decided. The first decision for a call counts."""

    type: ClassVar[str] = "approval_given"
    call: str
    granted: bool
    by: str
    """Who: a user name, `policy`, `rule 2 of kestrel.toml`, or a transport's word for its user."""
    how: str
    """`policy`, `click`, `prompt`, `command` or `rule`."""
    reason: str = ""
    args: dict[str, Json] | None = None
    """Edited arguments, when the person changed them."""
    scope: str = "once"
    """`once`; or what of this run is not asked about again: `same` for equal calls, `like` for commands that
    the `offer` of the question describes, `run` for all calls of the tool.
    """
    waited: float = 0.0
    """Seconds between question and answer."""
    question: str = ""
    """The question that this answers; filled in when it is recorded."""
    answer: str | None = None
    """The person's words, if the call is a question and not an approval."""
    sandbox: str = ""
    danger: str = ""
    """Where the code has its effect and how dangerous it is, if that was found after the question."""


class MacroStarted(CallEvent, frozen=True, kw_only=True):
    """A macro was called by `macro_run`; its calls follow under ids that begin with `call`."""

    type: ClassVar[str] = "macro_started"
    macro: str
    version: int
    args: dict[str, Json] = field(default_factory=dict)


class MacroFinished(CallEvent, frozen=True, kw_only=True):
    """A macro ended."""

    type: ClassVar[str] = "macro_finished"
    macro: str
    ok: bool
    reason: str = ""


class ModelEscalated(Event, frozen=True, kw_only=True):
    """Another model takes over, because one failed or was not sure enough."""

    type: ClassVar[str] = "model_escalated"
    step: str
    source: str
    target: str
    reason: str


class ToolsShown(Event, frozen=True, kw_only=True):
    """More tools exist than are offered to a model at once: from now on it is also offered these."""

    type: ClassVar[str] = "tools_shown"
    tools: list[str]
    step: str = ""
    """Whose model; empty for those of all steps."""
    need: str = ""
    """What they were looked for with."""
    messages: int = 0
    """How many questions the step had asked when tools were chosen for one; 0 if the model asked for them."""


class ToolsAdded(Event, frozen=True, kw_only=True):
    """Servers were started for the first time when the run began; the run is offered these tools."""

    type: ClassVar[str] = "tools_added"
    tools: list[dict[str, Json]]
    """As in `run_started`."""


class McpCandidateFound(Event, frozen=True, kw_only=True):
    """A missing server was found for something that is needed, and judged; nothing was installed or run."""

    type: ClassVar[str] = "mcp_candidate_found"
    need: str
    server: str
    """Its name in the catalogue or registry."""
    source: str
    """Where it was found."""
    description: str = ""
    """What it says of itself."""
    score: int = 0
    """Of 100 points."""
    rubric: list[dict[str, Json]] = field(default_factory=list)
    """What it got points for: `{criterion, points, most, why}`."""
    package: dict[str, Json] = field(default_factory=dict)
    """What would be installed; empty where nothing can be."""
    lock: str = ""
    """Hash of the list of everything that would be installed; empty where it was not looked up."""
    packages: int = 0
    """How many that are."""
    installer: str = ""
    problem: str = ""
    """Why it cannot be had."""


class McpInstalled(Event, frozen=True, kw_only=True):
    """A server was installed (or was already), started, and its tools added to the run."""

    type: ClassVar[str] = "mcp_installed"
    server: str
    """What its tools are called by."""
    package: str
    """As `name==version`."""
    folder: str
    lock: str
    """Hash of the list of what was installed."""
    tree: str
    """Hash of the folder; the server is not started from one that is different."""
    tools: list[dict[str, Json]] = field(default_factory=list)
    """As in `run_started`."""
    entry: str = ""
    call: str = ""
    """The call that installed it."""
    allowed: str = ""
    """The setting that allowed it beforehand; empty when somebody was asked."""
