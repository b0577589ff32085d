"""The words of the control protocol, version 1: small JSON objects with a `type`, checked where they come in.

A client ignores types and fields that it does not know; a server refuses them, so that a misspelt word never
counts as a permission. Every message about what happened in a run carries the number of its event: a client
that has seen number n asks for what came `after` n and misses nothing, and gets nothing twice.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model

from kestrel_lab.runtime.options import LimitOptions, RunOptions, table

VERSION: Final = 1
MESSAGE_BYTES: Final = 64 * 1024
"""The length of the longest message that a client may send."""

Seq = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Words = Annotated[str, Field(max_length=20_000)]
ErrorCode = Literal[
    "bad_message",
    "too_large",
    "cut_off",
    "unknown_run",
    "unknown_question",
    "already_decided",
    "changed",
    "bad_arguments",
    "ended",
    "at_work_elsewhere",
    "not_allowed",
    "refused",
    "unauthorized",
    "forbidden",
    "wrong_host",
    "not_found",
    "wrong_method",
    "not_json",
    "too_many",
]


class _Closed(BaseModel):
    """A part of a message of a client."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _FromClient(_Closed):
    """A message of a client."""

    v: Literal[1] = 1
    id: str = Field(default="", max_length=200, description="Comes back in the reply as `re`.")

    def refused(self, code: ErrorCode, message: str, todo: str = "", by: str = "") -> Refused:
        """Return the reply that refuses this message: the reason, and what to do."""
        return Refused(re=self.id, code=code, message=message, todo=todo, by=by)


class Watch(_FromClient):
    """Send the list of the newest runs, every change of it, and the progress of long jobs."""

    type: Literal["watch"] = "watch"
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    trials: bool = Field(default=False, description="Also those that suites started.")


class Subscribe(_FromClient):
    """Follow a run of any process, beginning with the event after number `after`."""

    type: Literal["subscribe"] = "subscribe"
    run: Name
    after: Seq = 0
    view: bool = Field(default=False, description="Send what a screen shows (`view`) instead of events.")


class Unsubscribe(_FromClient):
    """Stop following a run; without a run, end `watch`."""

    type: Literal["unsubscribe"] = "unsubscribe"
    run: str = ""


class _Decision(_FromClient):
    """A decision on what a run waits for."""

    run: Name
    question: Name = Field(description="The `question` of the message that asked.")
    key: str = Field(
        max_length=200,
        description="The `key` of the message that asked: the decision is on exactly that call.",
    )


class Answer(_Decision):
    """Answer the question of an agent; `null` means that there is no answer."""

    type: Literal["answer"] = "answer"
    text: Words | None


class Approve(_Decision):
    """Approve a call, with edited arguments if `args` is given."""

    type: Literal["approve"] = "approve"
    reason: Words = ""
    args: dict[str, Any] | None = None
    scope: Literal["once", "run"] = Field(
        default="once", description="`run`: do not ask about this tool again in this run."
    )


class Deny(_Decision):
    """Deny a call; the model receives the reason."""

    type: Literal["deny"] = "deny"
    reason: Words = ""
    scope: Literal["once", "run"] = Field(
        default="once",
        description="`run`: deny also all later calls of this run that containment would ask about.",
    )


class Cancel(_FromClient):
    """End a run as CANCELLED. A run that another process works on is taken over only with `force`."""

    type: Literal["cancel"] = "cancel"
    run: Name
    force: bool = False


def _fields(options: type[Any], **more: Any) -> dict[str, Any]:
    """Return the fields of a message for the options of this table that clients may give."""
    return {
        name: (opt.client | None, Field(default=None, description=opt.meaning, **more))
        for name, opt in table(options).items()
        if opt.client is not None
    }


if TYPE_CHECKING:  # type checkers know no class that is made of a table
    _LimitFields = _Closed
    _RunFields = _FromClient
else:
    _LimitFields = create_model("_LimitFields", __base__=_Closed, **_fields(LimitOptions, gt=0))
    _RunFields = create_model("_RunFields", __base__=_FromClient, **_fields(RunOptions))


class Bounds(_LimitFields):
    """The limits of a run to start; those that are left out are the configured ones."""


class Start(_RunFields):
    """Start a run in the workspace and under the approval policy of the server."""

    type: Literal["start"] = "start"
    goal: Annotated[str, Field(min_length=1, max_length=20_000)]
    plan: str | None = Field(default=None, description="Name of a shipped workflow.", pattern="^[a-z0-9_-]+$")
    limits: Bounds = Bounds()

    @property
    def options(self) -> dict[str, Any]:
        """The options of the run that are given."""
        names = {*_RunFields.model_fields, "plan"} - {*_FromClient.model_fields}
        options: dict[str, Any] = self.model_dump(include=names, exclude_none=True)
        return options


class Resume(_FromClient):
    """Resume a run that no process works on."""

    type: Literal["resume"] = "resume"
    run: Name


class ListTrials(_FromClient):
    """List the eval runs of suites, and the trials of one of them if it is named."""

    type: Literal["trials"] = "trials"
    suite: str = Field(default="", max_length=200)
    eval_run: str = Field(default="", max_length=200)


class Find(_FromClient):
    """Find runs by words and by what is known of them, newest first; the reply names the filters."""

    type: Literal["find"] = "find"
    query: str = Field(default="", max_length=2_000)
    filters: dict[str, str] = Field(default_factory=dict, description="By name; see `kestrel find --help`.")
    limit: int = Field(default=20, ge=1, le=200)
    after: int | None = Field(default=None, description="Of the page before, for the next one.")


ClientMessage = (
    Watch | Subscribe | Unsubscribe | Answer | Approve | Deny | Cancel | Start | Resume | ListTrials | Find
)
Command = Answer | Approve | Deny | Cancel | Start | Resume | ListTrials | Find
"""Messages that are carried out and have one reply."""
Decision = Answer | Approve | Deny


class _FromServer(BaseModel):
    """A message of the server."""

    model_config = ConfigDict(frozen=True)

    v: Literal[1] = 1

    def line(self) -> str:
        """Return the message as one line of ASCII; lone surrogates are escaped like other characters."""
        return json.dumps(self.model_dump(), separators=(",", ":"))


class Hello(_FromServer):
    """The first message of a server."""

    type: Literal["hello"] = "hello"
    server: str = Field(description="Version of kestrel_lab.")
    user: str
    can_start: bool


class RunSummary(BaseModel):
    """A run in the list of runs."""

    model_config = ConfigDict(frozen=True)

    id: str
    goal: str
    status: str
    model: str
    model_kind: str
    workspace: str
    parent: str | None
    created_at: float
    ended_at: float | None
    took_s: float = Field(
        description="Seconds from its start to its end, waiting for a person and the time between sessions "
        "apart; as long as it goes on, until `counting_since`."
    )
    counting_since: float = Field(
        description="Since when time passes that is not in `took_s` yet, in seconds since 1970; 0 while it "
        "waits for a person, and at its end."
    )
    seq: int = Field(description="Number of its last event.")
    tokens: int
    cost_usd: float
    unpriced: int = Field(description="Model calls whose price is not known.")
    waiting: int = Field(description="Questions that wait for a person.")
    visible_status: str = Field(
        description="`status`, or INTERRUPTED or UNKNOWN where no process of this machine works on a run "
        "that "
        "goes on."
    )
    worked_on: bool = Field(description="Whether a process works on it.")


class Runs(_FromServer):
    """The newest runs, newest first."""

    type: Literal["runs"] = "runs"
    runs: list[RunSummary]


class EvalRunSummary(BaseModel):
    """One execution of a suite; trials outside of any are grouped by commit."""

    model_config = ConfigDict(frozen=True)

    suite: str
    eval_run: str
    commit: str = Field(
        description="The commit of its code, with a hash of what was not committed; empty outside of git."
    )
    trials: int = Field(description="Trials that have ended.")
    passed: int
    failed: int
    broke: int
    of: int = Field(description="Trials that there are to be.")
    at: float = Field(description="When its newest trial ended; seconds since 1970, UTC.")


class TrialSummary(BaseModel):
    """A trial of an eval run."""

    model_config = ConfigDict(frozen=True)

    id: str
    scenario: str
    config: str
    epoch: int
    outcome: str = Field(description="`pass`, `fail`, or `error` for one that broke.")
    reason: str = Field(description="Why it did not pass.")
    model_kind: str
    run: str = Field(description="The run to follow; empty where this log does not have it.")
    at: float


class Trials(_FromServer):
    """The reply to `trials`: eval runs, newest first, and the trials of the named one, failed ones first."""

    type: Literal["trials"] = "trials"
    re: str = ""
    eval_runs: list[EvalRunSummary]
    suite: str = ""
    eval_run: str = ""
    trials: list[TrialSummary]


class FoundRun(BaseModel):
    """A run that was found."""

    model_config = ConfigDict(frozen=True)

    run: str
    task: str = Field(description="The scenario of a trial, or the goal.")
    model: str
    began: float = Field(description="Seconds since 1970, UTC.")
    ended: str = Field(description="The outcome of its trial with the checks that failed, or its status.")
    where: str = Field(description="In which kind of text the words are.")
    event: int = Field(description="The number of the event that has it; 0 for the goal.")
    parts: list[tuple[str, bool]] = Field(
        description="That text in pieces, each with whether it was asked for."
    )


class Found(_FromServer):
    """The reply to `find`."""

    type: Literal["found"] = "found"
    re: str = ""
    runs: list[FoundRun]
    after: int | None = Field(description="For the next page; null at the end.")
    notes: list[str] = Field(description="How far the index and the search are.")
    filters: dict[str, str] = Field(description="The filters that there are, with what they mean.")


class RunChanged(_FromServer):
    """A run began or changed."""

    type: Literal["run"] = "run"
    run: RunSummary


class _Dated(_FromServer):
    """A message about something at a time."""

    at: float = Field(description="Seconds since 1970, UTC.")


class Happened(_Dated):
    """An event was recorded; each event of a run is sent as exactly one message."""

    type: Literal["event"] = "event"
    run: str
    seq: int
    event: dict[str, Any] = Field(description="The record: its `type` and its fields.")


class _Asks(Happened):
    """A call waits for a person."""

    question: str = Field(description="Names this question.")
    key: str = Field(description="Hash of the exact call; a decision must repeat it.")
    expires_at: float | None = Field(
        default=None, description="When the answer becomes no; seconds since 1970."
    )


class Question(_Asks):
    """An agent asks a question that is answered in words."""

    type: Literal["question"] = "question"  # type: ignore[assignment]  # each kind of message has its own word
    text: str
    options: list[str]


class ApprovalWanted(_Asks):
    """A call waits for approval."""

    type: Literal["approval"] = "approval"  # type: ignore[assignment]  # as above
    tool: str
    args: dict[str, Any] = Field(description="Whole; hidden characters are to be shown as such.")
    danger: str
    why: str
    diff: str = Field(
        description="What the call would change, as a unified diff; empty where its tool cannot say."
    )
    sandbox: str


class Decided(Happened):
    """A question was decided; the first decision counts."""

    type: Literal["decided"] = "decided"  # type: ignore[assignment]  # as above
    question: str
    granted: bool
    by: str
    reason: str
    answer: str | None


class JobProgress(_Dated):
    """The progress of a tool of a run, whose event has a number, or of another long job."""

    type: Literal["progress"] = "progress"
    run: str = ""
    seq: int | None = None
    event: dict[str, Any] | None = None
    job: str = Field(default="", description="Name of the job where it is not a run.")
    text: str
    fraction: float | None = None
    done: int | None = None
    total: int | None = None


class Delta(_FromServer):
    """A piece of a streaming answer, for runs of the server's process; the next event has it whole."""

    type: Literal["delta"] = "delta"
    run: str
    call: str
    text: str
    thinking: bool = False


class View(_Dated):
    """Patches of the view that a screen shows of a run; with `whole`, patches that build all of it."""

    type: Literal["view"] = "view"
    run: str
    seq: int
    whole: bool
    changes: list[dict[str, Any]]
    asks: dict[str, tuple[str, str, float | None]] = Field(
        description="Calls that wait for a person: question and key, to decide by, and when the answer "
        "becomes "
        "no."
    )


class Ended(_FromServer):
    """A followed run has ended, and all of its messages have been sent."""

    type: Literal["end"] = "end"
    run: str
    seq: int


class Accepted(_FromServer):
    """The reply to a message that was carried out."""

    type: Literal["accepted"] = "accepted"
    re: str = ""
    run: str = ""
    note: str = ""


class Refused(_FromServer):
    """The reply to a message that was refused: the reason, and what to do."""

    type: Literal["error"] = "error"
    re: str = ""
    code: ErrorCode
    message: str
    todo: str = ""
    by: str = Field(default="", description="With `already_decided`: who was faster.")


ServerMessage = (
    Hello
    | Runs
    | Trials
    | Found
    | RunChanged
    | Happened
    | Question
    | ApprovalWanted
    | Decided
    | JobProgress
    | Delta
    | View
    | Ended
    | Accepted
    | Refused
)
Reply = Accepted | Refused | Trials | Found

_CLIENT: TypeAdapter[ClientMessage] = TypeAdapter(Annotated[ClientMessage, Field(discriminator="type")])


class ControlSchema(BaseModel):
    """The messages of both directions, for the published schema."""

    client: Annotated[ClientMessage, Field(discriminator="type")]
    server: Annotated[ServerMessage, Field(discriminator="type")]


def read_message(text: str | bytes) -> ClientMessage | Refused:
    """Return the client's message, or the reply to input that is not a message; never raises."""
    if len(text) > MESSAGE_BYTES:
        return too_large()
    try:
        return _CLIENT.validate_json(text)
    except ValidationError as error:
        return bad_message(error, _id_of(text))


def too_large() -> Refused:
    """Return the reply to a message that is too long."""
    return Refused(
        code="too_large",
        message=f"a message has at most {MESSAGE_BYTES:,} bytes",
        todo="decide with `kestrel approve` instead",
    )


def bad_message(error: ValidationError, re: str = "") -> Refused:
    """Return the reply to JSON that is not a message; it names each wrong place."""
    places = []
    for problem in error.errors(include_url=False, include_input=False)[:5]:
        # The input is left out: it may be long, or a secret typed into the wrong window.
        place = ".".join(str(part) for part in problem["loc"])
        places.append(f"{place}: {problem['msg']}" if place else str(problem["msg"]))
    return Refused(
        re=re,
        code="bad_message",
        message="; ".join(places),
        todo="`kestrel schema control` prints the allowed messages",
    )


def _id_of(text: str | bytes) -> str:
    """Return the `id` of a message that is otherwise invalid, so that the sender can identify it."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        # RecursionError: a client may nest deeper than the stack.
        return ""
    found = value.get("id") if isinstance(value, dict) else None
    return found[:200] if isinstance(found, str) else ""
