"""Everything that can be plugged in, on one page. `kestrel_lab.testing` has a fake for each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from kestrel_lab.core.calls import Call, Effect, Result
    from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event, Record, RetrievalStep
    from kestrel_lab.core.json_types import Json
    from kestrel_lab.core.messages import ModelAnswer, ModelRequest
    from kestrel_lab.core.notes import Note, NoteQuery
    from kestrel_lab.core.scores import Score

ModelKind = Literal["real", "scripted", "replay"]
OnDelta = Callable[[str], None]
"""Receives each piece of text as a model streams it."""
Handler = Callable[["Call"], Awaitable["Result"]]
Listener = Callable[["Event"], None]
"""Called with each event of a run at once, on the run's event loop; must not block."""


@runtime_checkable
class Model(Protocol):
    """Something that answers requests."""

    @property
    def name(self) -> str:
        """The name a person would type to get it again."""
        ...

    @property
    def kind(self) -> ModelKind:
        """Whether a real model, a script or a recording answers; shown beside every result."""
        ...

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Return the answer; raises `ModelError`, with `transient=True` if trying again may help."""
        ...


class Middleware(Protocol):
    """Wraps every call of a run: may change, answer or refuse it."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Answer `call`, usually by awaiting `proceed(call)`."""
        ...


class Approver(Protocol):
    """Decides on risky calls: a panel, a terminal, a program."""

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Wait for the decision. Cancelled when the call was decided elsewhere."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A run that has ended, for checks."""

    goal: str
    answer: str
    records: tuple[Record, ...]
    workspace: Path
    expected: Json = None
    grader: Callable[[str], Model] | None = None
    """The model of that name, for checks that ask one; the suite's grader where the name is empty."""
    function: Callable[[str], Callable[..., Any]] | None = None
    """The function that `module:function` names, for checks that are written in Python."""
    resolve: Callable[[str], Path] | None = None
    """The file or folder that the suite calls by a name, for checks that bring files."""
    environment: Any = None
    """The state that the scenario's tools acted on, as it was left; `None` where they have none of their own.
    """
    sandbox: Any = None
    """The `tools.sandbox.levels.Sandbox` for commands of checks; `None` for the best available."""
    read_only: bool = False
    """Whether checks must not write the workspace, such as an installed package."""


class Memory(Protocol):
    """Keeps what later runs in the same workspace should know."""

    async def recall(self, query: NoteQuery) -> tuple[Note, ...]:
        """Return the notes that match `query`, the most useful first.

        Preferences of the user match every query.
        """
        ...

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Store `note`; return true if it is new, or was stored under the same id before.

        Idempotent for notes with an id.
        """
        ...

    async def notes(self, ids: Collection[str], *, workspace: str) -> tuple[Note, ...]:
        """The notes of these ids, without those that were forgotten since."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """A file that is relevant to a goal, with the matching lines."""

    path: str
    lines: tuple[tuple[int, str], ...]
    """Number and text."""
    terms: tuple[str, ...]
    """The words of the goal that are in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GatheredContext:
    """The context that was gathered for a goal before any step."""

    sources: tuple[Source, ...] = ()
    """The most useful first."""
    gaps: tuple[str, ...] = ()
    """Words of the goal that were found nowhere."""
    steps: tuple[RetrievalStep, ...] = ()
    """How they were looked up, for the log; may be empty."""


class Gatherer(Protocol):
    """Finds files of a workspace that are relevant to a goal."""

    async def __call__(self, query: str, workspace: Path, top_k: int) -> GatheredContext:
        """At most `top_k` sources."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class TrialStart:
    """What a trial begins with."""

    tools: Mapping[str, Effect]
    """The effects of the tools that the agent is offered, by their names."""
    files: Mapping[str, str] | None = None
    """The texts of the files in its workspace, by path; `None` where they are not known beforehand."""


class Check(Protocol):
    """Judges a finished run.

    A check may declare in `needs` what it reads besides the trial's goal, answer, records and expectation.
    With `needs = ""` it can judge a stored run again. Without the attribute, it needs the workspace.

    A check that takes certain tools to pass may have a method `out_of_reach(start: TrialStart) -> str`, which
    returns why no agent can pass it in such a trial, and an empty text where one may.
    """

    @property
    def label(self) -> str:
        """A short text that names the check; the heading of its column."""
        ...

    async def __call__(self, trial: Trial) -> Score:
        """Return the score; raise an error only if the trial cannot be judged."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """The answer of a tool in a run, as evidence."""

    call: str
    tool: str
    text: str
    span: str = ""
    """What it is cited by, where it is a part of an answer: `src/app.py:12-20`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """An answer to verify: somebody claims that it reaches the goal."""

    goal: str
    answer: str
    criteria: tuple[str, ...]
    """What must hold of the answer; never empty."""
    evidence: tuple[Evidence, ...] = ()
    """In the order in which the calls were answered, as far as that is known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """The verdict of a verifier."""

    passed: bool
    confidence: float | None = None
    """From 0 to 1; `None` where the verifier gives none."""
    issues: tuple[str, ...] = ()
    """What is wrong, each written so that it can be fixed; empty if it passed."""


class Verifier(Protocol):
    """Judges an answer while the run goes on."""

    @property
    def name(self) -> str:
        """The name of its verdicts."""
        ...

    async def __call__(self, claim: Claim) -> Verification:
        """Return the verdict; raises a `RunError` if there is none."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Entailed:
    """The verdict of an entailment model on a claim and its evidence."""

    verdict: Literal["entailed", "contradicted", "neither"]
    confidence: float | None = None
    """From 0 to 1; `None` where it gives none."""


@runtime_checkable
class Watcher(Approver, Protocol):
    """Shows one run while it works and is its approver."""

    def follow(self, run: Any) -> None:
        """Show a run, from now on until it ends; call on its event loop."""
        ...

    def close(self) -> None:
        """Stop showing the run as working; repeated calls do nothing."""
        ...


class Surroundings(Protocol):
    """The place where a person may watch the program: a notebook."""

    def watcher(self) -> Watcher | None:
        """Return what shows the run that is about to begin; `None` if nobody would see it."""
        ...

    def reporter(self) -> Reporter | None:
        """Return what shows the progress of a long job; `None` if nobody would see it."""
        ...


class Reporter(Protocol):
    """Shows the progress of a long job: a bar in a terminal or a notebook."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """`done` of `total` units are finished."""
        ...
