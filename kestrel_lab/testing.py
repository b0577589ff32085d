"""Fakes for everything that can be plugged in, for tests, demonstrations and suites without a key.

A scripted model is not a model: it says so by its `kind`, and every table, panel and report repeats it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from kestrel_lab.core.calls import Call, Result, Usage
from kestrel_lab.core.errors import ModelError, UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, Event
from kestrel_lab.core.expressions.bounded_search import search_in_time
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import Message, ModelAnswer, ModelRequest, Role, ToolRequest
from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.core.protocols import (
    Claim,
    GatheredContext,
    Handler,
    ModelKind,
    OnDelta,
    Trial,
    Verification,
)
from kestrel_lab.core.scores import Score

ScriptedCall = tuple[str, dict[str, Json]]
Turn = str | Sequence[ScriptedCall] | ModelAnswer | Exception
"""One turn of a script: an answer, tool calls, a whole `ModelAnswer`, or an error to raise."""


class ScriptedModel:
    """Plays prepared turns. The conversation of the run decides which one, so a script may serve many runs at
    once.

    `turns` is a list, or a function from the request to a turn. Raises `ModelError` when the list is
    used up, so that a script that is too short cannot pass for an answer.
    """

    def __init__(
        self,
        turns: Sequence[Turn] | Callable[[ModelRequest], Turn],
        *,
        name: str = "scripted",
        usage: Usage | None = None,
    ) -> None:
        self._turns = turns
        self._name = name
        self._usage = usage if usage is not None else Usage(tokens_in=20, tokens_out=5)

    @property
    def name(self) -> str:
        """The script's name."""
        return self._name

    @property
    def kind(self) -> ModelKind:
        """`scripted`."""
        return "scripted"

    async def __call__(self, request: ModelRequest, on_delta: OnDelta) -> ModelAnswer:
        """Play the turn that follows the conversation; text is streamed word by word."""
        turn = self._turn(request)
        if isinstance(turn, Exception):
            raise turn
        if isinstance(turn, ModelAnswer):
            return turn
        if isinstance(turn, str):
            for word in re.findall(r"\S+\s*", turn):
                on_delta(word)
            return ModelAnswer(text=turn, usage=self._usage, model=self._name)
        return ModelAnswer(
            calls=tuple(
                ToolRequest(id=str(place), name=name, args=args) for place, (name, args) in enumerate(turn)
            ),
            usage=self._usage,
            model=self._name,
            finish="tool_calls",
        )

    def _turn(self, request: ModelRequest) -> Turn:
        if callable(self._turns):
            return self._turns(request)
        # Turns of the runs that this one follows are not of this script.
        played = sum(message.role == "assistant" and not message.earlier for message in request.messages)
        if played >= len(self._turns):
            raise ModelError(
                f"the script {self._name!r} has only {len(self._turns)} turns and is asked for one more"
            )
        return self._turns[played]


def load_script(path: str | Path, *, name: str = "") -> ScriptedModel:
    """Return a scripted model from a YAML file, called `scripted:` and the path unless a name is given.

    The file is `rules:`, a list of `when:` (a regular expression sought in the goal) and `turns:` (each a
    text, or a list of `{tool: …, args: {…}}`). The first rule that fits plays. Raises `UsageError` for a
    file that is something else.
    """
    source = Path(path)
    if not str(path):
        raise UsageError(
            "a scripted model plays turns from a file, to try things out or test them without a real "
            "model: write scripted:FILE, "
            "the file being YAML like `rules: [{when: PATTERN IN THE GOAL, turns: [ANSWER]}]`; kestrel "
            "models lists real ones"
        )
    if not source.is_file():
        raise UsageError(f"there is no script {str(path)!r}")
    from kestrel_lab.core.yaml.reader import read_yaml  # PyYAML: only where a file is the script

    content = read_yaml(source, str(path)).value
    rules = content.get("rules") if isinstance(content, dict) else None
    if not isinstance(rules, list):
        raise UsageError(f"{path}: a script needs a list under 'rules'")
    parsed = [_rule(rule, f"{path}: rules[{place}]") for place, rule in enumerate(rules)]

    def play(request: ModelRequest) -> Turn:
        # The rule is chosen by the goal of this run, not of those that it follows.
        own = [message for message in request.messages if not message.earlier]
        goal = next((message.text for message in own if message.role == "user"), "")
        played = sum(message.role == "assistant" for message in own)
        for pattern, turns in parsed:
            try:
                fits = search_in_time(pattern, goal) is not None
            except TimeoutError as error:
                raise ModelError(f"{path}: {error}") from error
            if fits:
                if played < len(turns):
                    return turns[played]
                raise ModelError(f"{path}: the rule for {pattern.pattern!r} has only {len(turns)} turns")
        raise ModelError(f"{path}: no rule fits the goal {goal[:80]!r}")

    return ScriptedModel(play, name=name or f"scripted:{path}")


def _rule(rule: Json, place: str) -> tuple[re.Pattern[str], list[Turn]]:
    if not isinstance(rule, dict) or set(rule) != {"when", "turns"} or not isinstance(rule["turns"], list):
        raise UsageError(f"{place}: a rule has exactly 'when' and a list of 'turns'")
    try:
        pattern = re.compile(str(rule["when"]))
    except re.error as error:
        raise UsageError(f"{place}.when: not a regular expression: {error}") from error
    return pattern, [_turn(turn, f"{place}.turns[{number}]") for number, turn in enumerate(rule["turns"])]


def _turn(turn: Json, place: str) -> Turn:
    if isinstance(turn, str):
        return turn
    if not isinstance(turn, list) or not all(
        isinstance(call, dict) and "tool" in call and set(call) <= {"tool", "args"} for call in turn
    ):
        raise UsageError(f"{place}: a turn is a text or a list of {{tool: …, args: {{…}}}}")
    calls = cast("list[dict[str, Json]]", turn)
    if wrong := next((call for call in calls if not isinstance(call.get("args") or {}, dict)), None):
        raise UsageError(
            f"{place}: the args of {wrong['tool']} are a table of names and values, not {wrong['args']!r}"
        )
    return [(str(call["tool"]), cast("dict[str, Json]", call.get("args") or {})) for call in calls]


@dataclass
class ScriptedApprover:
    """Gives prepared decisions in order: `True`, `False`, a reason to deny, or edited arguments; records the
    questions.

    A text is the answer where an agent asks a question.
    """

    answers: list[bool | str | dict[str, Json]]
    asked: list[ApprovalAsked] = field(default_factory=list)

    async def __call__(self, asked: ApprovalAsked) -> ApprovalGiven:
        """Answer with the next decision."""
        self.asked.append(asked)
        # One question too many is an `IndexError`: a test has to expect each.
        answer = self.answers[len(self.asked) - 1]
        if isinstance(answer, dict):
            return ApprovalGiven(call=asked.call, granted=True, by="script", how="prompt", args=answer)
        if isinstance(answer, str) and asked.why == "question":
            return ApprovalGiven(call=asked.call, granted=True, by="script", how="prompt", answer=answer)
        if isinstance(answer, str):
            return ApprovalGiven(call=asked.call, granted=False, by="script", how="prompt", reason=answer)
        return ApprovalGiven(call=asked.call, granted=answer, by="script", how="prompt")


@dataclass
class RecordingWatcher(ScriptedApprover):
    """Records the runs that it is to show, and decides like a `ScriptedApprover`."""

    runs: list[Any] = field(default_factory=list)
    closed: bool = False

    def follow(self, run: Any) -> None:
        """Record the run."""
        self.runs.append(run)

    def close(self) -> None:
        """Record the end."""
        self.closed = True


@dataclass
class RecordingSurroundings:
    """Surroundings in which somebody looks and gives prepared decisions."""

    answers: list[bool | str | dict[str, Json]] = field(default_factory=list)
    watchers: list[RecordingWatcher] = field(default_factory=list)

    def watcher(self) -> RecordingWatcher:
        """Return a watcher, and record it."""
        self.watchers.append(RecordingWatcher(self.answers))
        return self.watchers[-1]

    def reporter(self) -> RecordingReporter:
        """Return a reporter that records its calls."""
        return RecordingReporter()


@dataclass
class RecordingListener:
    """Records every event."""

    events: list[Event] = field(default_factory=list)

    def __call__(self, event: Event) -> None:
        """Record `event`."""
        self.events.append(event)


@dataclass
class RecordingReporter:
    """Records every report of progress."""

    reports: list[tuple[int, int, str]] = field(default_factory=list)

    def __call__(self, done: int, total: int, note: str) -> None:
        """Record the report."""
        self.reports.append((done, total, note))


@dataclass
class RecordingMiddleware:
    """Records the calls that pass, and proceeds."""

    calls: list[Call] = field(default_factory=list)

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Record `call`, then proceed."""
        self.calls.append(call)
        return await proceed(call)


@dataclass(frozen=True)
class FixedCheck:
    """Gives the same score to every trial."""

    passes: bool
    label: str = "fixed"

    async def __call__(self, trial: Trial) -> Score:
        """Return the score."""
        return Score(
            check=self.label,
            passed=self.passes,
            value=float(self.passes),
            reason="" if self.passes else "as scripted",
        )


@dataclass
class ScriptedVerifier:
    """Gives prepared verdicts in order, repeating the last one; records the claims."""

    verdicts: Sequence[Verification]
    name: str = "scripted"
    claims: list[Claim] = field(default_factory=list)

    async def __call__(self, claim: Claim) -> Verification:
        """Return the next verdict."""
        self.claims.append(claim)
        return self.verdicts[min(len(self.claims), len(self.verdicts)) - 1]


@dataclass
class ListMemory:
    """Stores notes in a list, and recalls the newest ones for any query."""

    kept: list[Note] = field(default_factory=list)

    async def recall(self, query: NoteQuery) -> tuple[Note, ...]:
        """Return the newest notes."""
        return tuple(reversed(self.kept))[: query.top_k]

    async def remember(self, note: Note, *, workspace: str) -> bool:
        """Store a note that is not there yet; returns whether it is stored."""
        new = all(known.text != note.text for known in self.kept)
        if new:
            self.kept.append(note)
        # A note that is kept again under its own id counts as kept.
        return new or any(known.id == note.id != "" for known in self.kept)

    async def notes(self, ids: Collection[str], *, workspace: str) -> tuple[Note, ...]:
        """Return the notes with these ids."""
        return tuple(note for note in self.kept if note.id in ids)


@dataclass(frozen=True)
class FixedGatherer:
    """Finds its prepared sources for any query."""

    found: GatheredContext = field(default_factory=GatheredContext)

    async def __call__(self, query: str, workspace: Path, top_k: int) -> GatheredContext:
        """Return the prepared sources."""
        return self.found


def conversation(*turns: tuple[str, str]) -> list[Message]:
    """Return messages from pairs of role and text, for calling a model in a test."""
    return [Message(role=cast("Role", role), text=text) for role, text in turns]
