"""Recording: what another tool recorded of one task, and the events and the trial that it is in the log; and
what readers of recordings share.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, cast

from kestrel_lab.core.events import union as e
from kestrel_lab.core.events.tool_kinds import edited_file, only_reads
from kestrel_lab.core.json_types import Json, content_key
from kestrel_lab.core.plan import Plan
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.core.sanitize import head_tail, one_line
from kestrel_lab.evals.execution.trial import ANSWER_KEPT
from kestrel_lab.evals.metrics import measure_run
from kestrel_lab.evals.stored_trials import EvalRow
from kestrel_lab.host.version import __version__
from kestrel_lab.runtime.context.recorded_tools import recorded_tool

COMMIT: Final = "imported"
"""In place of a commit's hash: `kestrel eval summary SUITE --commit imported` shows imported trials, no
commit's name does.
"""
_STEP: Final = "answer"
_TOKENS: Final = ("token_usage", "tokens_in", "tokens_out")
_CLOCKS: Final = ("wall_time", "working_time", "waiting_time", "queued_time", "backoff_time")


@dataclass(frozen=True, slots=True)
class Broken:
    """A record that cannot be read; those beside it can."""

    place: str
    why: str

    def __str__(self) -> str:
        return f"{self.place}: {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedCall:
    """A tool call as the model wrote it."""

    tool: str
    args: dict[str, Json]
    id: str = ""
    """Its id in the recording; empty where it has none."""
    problem: str = ""
    """Why the call could not be read."""
    pure: bool | None = None
    """Whether the recording declares that it changes nothing; `None` where the tool's kind says it."""

    def __post_init__(self) -> None:
        require_texts(self, "tool", "id", "problem")
        if not isinstance(self.args, dict):
            raise TypeError(f"the arguments of a call are {_kind(self.args)}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ImportedMessage:
    """One message of the recorded conversation, in order."""

    role: Literal["user", "assistant", "tool", "note"]
    """A note is what the program said of itself, outside of the conversation."""
    text: str = ""
    thinking: str = ""
    """The reasoning before an assistant's text."""
    calls: tuple[ImportedCall, ...] = ()
    call: str = ""
    """Of a tool's message: the recording's id of the call that it answers; empty for the next call without an
    answer.
    """
    error: str = ""
    at: float | None = None
    """When it was complete, in seconds since 1970; `None` where the recording does not say."""
    seconds: float = 0.0
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int = 0
    """Those of `tokens_in` that were in the prompt cache."""
    tokens_reasoning: int = 0
    """Those of `tokens_out` that were reasoning."""
    cost_usd: float | None = None
    model: str = ""
    """The model that wrote it, where that is not the recording's."""
    changed: tuple[str, ...] = ()
    """Of a tool's message: files that the call changed, as the recording says."""
    touched: tuple[str, ...] | None = None
    """Files that were other ones after the call; `None` where the recording compares none."""

    def __post_init__(self) -> None:
        require_texts(self, "text", "thinking", "call", "error", "model")
        require_amounts(self, *_AMOUNTS)
        require_time(self.at)


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """What was recorded of one task."""

    format: str
    """A name in `load.FORMATS`."""
    source: str
    """File and place in it."""
    id: str
    """Its id there."""
    digest: str
    """Hash of the record: equal recordings are imported once."""
    model: str
    messages: Sequence[ImportedMessage]
    kind: Literal["imported", "scripted"] = "imported"
    """`scripted` where no real model answered there either."""
    system: str = ""
    tools: tuple[dict[str, Json], ...] = ()
    """Tools that were offered, as far as known: `name`, `description`, `schema`."""
    declared: Mapping[str, bool] = field(default_factory=dict)
    """By tool, whether the recording declares that it changes nothing."""
    began: float | None = None
    seconds: float | None = None
    """From the beginning to the end, where only that is known."""
    error: str = ""
    """Why the task broke."""
    reason: str = ""
    """Why it ended early, where that is no error."""
    suite: str = ""
    scenario: str = ""
    family: str = ""
    config: str = ""
    epoch: int = 1
    scores: tuple[dict[str, Json], ...] | None = None
    """As they were recorded; `None` for a recording that nobody judged."""
    passed: bool | None = None
    """Whether it counts as passed; `None` where it broke or was not judged."""
    unjudged: str = ""
    """Why it has no judgement, where that is known."""
    metrics: dict[str, float] = field(default_factory=dict)
    """What the recording says of the whole task and not of its calls; stands before what the events give."""
    facts: dict[str, Json] = field(default_factory=dict)
    """What else it says, kept as it is in `RunStarted.imported`."""
    summary: str = ""
    """What stands in place of an answer where the recording has results and no conversation."""
    left_out: tuple[Broken, ...] = ()
    """Messages that could not be read; the others are the conversation."""

    def __post_init__(self) -> None:
        require_texts(self, *_RECORDED_TEXTS)
        require_amounts(self, "seconds", "epoch")
        require_time(self.began)

    @property
    def run_id(self) -> str:
        """The id of its run, the same whenever it is imported."""
        return f"i{self.digest[:16]}"

    @property
    def goal(self) -> str:
        """What the user asked first; raises `ValueError` where nobody asked anything."""
        asked = next((said.text for said in self.messages if said.role == "user"), "")
        if not asked.strip():
            raise ValueError("there is no message of a user in it")
        return asked

    @property
    def answer(self) -> str:
        """The last message but notes, if the model wrote it and asked for no more calls; else the summary."""
        last = next((one for one in reversed(self.messages) if one.role != "note"), self.messages[-1])
        return last.text if last.role == "assistant" and not last.calls else self.summary


Records = Iterator[Recording | Broken]
"""What a reader of files gives, one record at a time."""


UNREADABLE: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What readers raise for a record of another shape than theirs."""


def unreadable_record(place: str, what: str, error: Exception) -> Broken:
    """Return a record that cannot be read, with the error in short."""
    return Broken(place, f"{what} ({type(error).__name__}: {one_line(str(error), 100)})")


def read_messages(
    items: Sequence[Any], read: Callable[[Any], ImportedMessage | None], place: str
) -> tuple[list[ImportedMessage], tuple[Broken, ...]]:
    """Return the messages of a conversation, and those that are none, with their places.

    `read` returns `None` for one that does not belong to the conversation, a system message for instance. An
    answer to a call that no message before it makes is left out, too.
    """
    return read_parts(
        ((f"{place} messages[{number}]", item) for number, item in enumerate(items)),
        lambda item: () if (one := read(item)) is None else (one,),
    )


def read_parts(
    parts: Iterable[tuple[str, Any]], read: Callable[[Any], Iterable[ImportedMessage]]
) -> tuple[list[ImportedMessage], tuple[Broken, ...]]:
    """Return the messages that parts of a record are, each with its place, and the parts that are none.

    `read` returns any number of messages for a part. An answer to a call that no message before it makes is
    left out, too.
    """
    said: list[ImportedMessage] = []
    broken: list[Broken] = []
    calls: list[str] = []
    for place, part in parts:
        try:
            found = list(read(part))
            left = list(calls)
            for one in found:
                if one.role == "tool":
                    del left[_answered(left, one.call)]
                elif one.role == "assistant":
                    left = [asked.id for asked in one.calls]
        except UNREADABLE as error:
            broken.append(Broken(place, f"left out: {_words(error)}"))
        else:
            calls = left
            said += found
    return said, tuple(broken)


def _answered(calls: Sequence[str], known: str) -> int:
    """Return the place of the call that an answer is for, as `events_of` finds it; raises `ValueError` where
    there is none.
    """
    found = [place for place, call in enumerate(calls) if not known or call in ("", known)]
    if not found:
        raise ValueError(
            f"it answers the call {known!r}, which no message before it makes"
            if known
            else "it answers no call"
        )
    return found[0]


def _words(error: Exception) -> str:
    return (
        one_line(str(error), 100)
        if isinstance(error, ValueError)
        else f"{type(error).__name__}: {one_line(str(error), 100)}"
    )


def record_digest(kind: str, *parts: Any) -> str:
    """Return the hash of a record of this format."""
    return content_key("imported", kind, *parts)


_RECORDED_TEXTS: Final = (
    "source",
    "id",
    "digest",
    "model",
    "system",
    "error",
    "reason",
    "suite",
    "scenario",
    "family",
    "config",
    "summary",
)
_LAST: Final = 253_402_300_800.0
"""The end of the year 9999, with which calendars end."""
_MOST: Final = 1 << 53


_AMOUNTS: Final = ("seconds", "tokens_in", "tokens_out", "tokens_cached", "tokens_reasoning", "cost_usd")


def _kind(value: Any) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def require_texts(one: object, *names: str) -> None:
    """Raise `TypeError` for an attribute that is no text."""
    for name in names:
        if not isinstance(value := getattr(one, name), str):
            raise TypeError(f"its {name} is no text, but {_kind(value)}")


def require_amounts(one: object, *names: str) -> None:
    """Raise for what is no amount; `None` is one that is not known."""
    for name in names:
        value = getattr(one, name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST
        ):
            raise TypeError(f"its {name} is no amount: {one_line(repr(value), 40)}")


def require_time(value: float | None) -> None:
    """Raise `ValueError` for what is no time in seconds since 1970; `None` is one that is not known."""
    if value is not None and (
        isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LAST
    ):
        raise ValueError(f"its time is none of the calendar: {one_line(repr(value), 40)}")


def finite_json(value: Any) -> Any:
    """Return JSON without numbers that are not finite, which other tools write and no JSON has: they become
    null.
    """
    if isinstance(value, dict):
        return {str(key): finite_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite_json(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def seconds_of(stamp: Any) -> float | None:
    """Return a time in ISO form as seconds since 1970; `None` where there is none. One without a zone is UTC.

    Raises `ValueError` for another form.
    """
    if not stamp:
        return None
    read = datetime.fromisoformat(str(stamp))
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp()


def text_of(content: Any) -> str:
    """Return the text of a message: a text, or parts, of which one that is no text is named and not shown."""
    if not isinstance(content, list):
        return str(content or "")
    parts = [part if isinstance(part, dict) else {"text": part} for part in content]
    return "\n\n".join(
        str(part["text"]) if part.get("text") is not None else f"[{part.get('type', 'part')}]"
        for part in parts
    )


def read_call(tool: Any, args: Any, known: Any) -> ImportedCall:
    """Return a call whose arguments are an object, or JSON text as models write it."""
    problem = ""
    try:
        args = json.loads(args or "{}") if not isinstance(args, dict) else args
        problem = "" if isinstance(args, dict) else "its arguments are no JSON object"
    except ValueError as error:
        problem = f"its arguments are not JSON: {error}"
    return ImportedCall(tool=str(tool), args={} if problem else args, id=str(known or ""), problem=problem)


_DIFF_FILE: Final = re.compile(r"^(?:\+\+\+ b/|--- a/)(\S.*)$", re.MULTILINE)


def files_in_diff(diff: str) -> tuple[str, ...]:
    """Return the files that a unified diff of git changes."""
    return tuple(dict.fromkeys(name.strip() for name in _DIFF_FILE.findall(diff)))


def declared_effects(tools: Iterable[Any]) -> dict[str, bool]:
    """Return of which tools it is declared whether they change nothing: the hint that MCP has for it, in
    `annotations`.
    """
    found: dict[str, bool] = {}
    for tool in tools:
        about = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        hint = {**(about.get("annotations") or {}), **(tool.get("annotations") or {})}.get("readOnlyHint")
        if isinstance(hint, bool):
            found[str(about.get("name") or "")] = hint
    return found


def offered_tool(tool: Mapping[str, Any]) -> dict[str, Json]:
    """Return a tool that was offered, from its name, description and JSON Schema of parameters."""
    return {
        "name": str(tool["name"]),
        "description": str(tool.get("description") or ""),
        "schema": tool.get("parameters") or {},
    }


def events_of(recording: Recording) -> list[tuple[float, e.Event]]:
    """Return the events of the recording's run, each with its time.

    Times that the recording does not tell are those of the event before: only what `RunStarted.imported`
    names is known. Raises `ValueError` for a conversation that cannot be one.
    """
    return _Teller(recording).told()


class _Teller:
    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        known = [said.at for said in recording.messages if said.at is not None]
        start = (
            recording.began
            if recording.began is not None
            else min(known, default=time.time() - (recording.seconds or 0.0))
        )
        self._start = self._now = start
        self._times = "each" if known else "total" if recording.seconds is not None else "unknown"
        self._events: list[tuple[float, e.Event]] = []
        self._open: dict[str, tuple[str, ImportedCall]] = {}
        """Calls without an answer, by our id, with the recording's."""
        self._ids: dict[str, str] = {}
        self._turns = 0

    def told(self) -> list[tuple[float, e.Event]]:
        recording, goal = self._recording, self._recording.goal
        self._put(e.PlanProposed(plan=Plan.single(goal).as_json()))
        self._put(e.StateTransition(source=RunStatus.PLANNING, target=RunStatus.EXECUTING))
        self._put(e.StepStarted(step=_STEP, goal=goal))
        first = next(place for place, said in enumerate(recording.messages) if said.role == "user")
        for place, said in enumerate(recording.messages):
            if said.role == "assistant":
                self._assistant(said, place)
            elif said.role == "tool":
                self._tool(said)
            elif said.role == "note":
                self._put(e.Progress(text=said.text), said.at)
            elif place != first:
                self._close()
                self._put(e.Prompted(step=_STEP, text=said.text), said.at)
        self._close()
        self._end()
        return [(self._start, self._started(goal)), *self._events]

    def _put(self, event: e.Event, at: float | None = None) -> None:
        self._now = max(self._now, self._now if at is None else at)
        self._events.append((self._now, event))

    def _assistant(self, said: ImportedMessage, place: int) -> None:
        self._close()
        self._turns += 1
        call, model = f"{_STEP}.m{self._turns}", said.model or self._recording.model
        calls: list[dict[str, Json]] = []
        for number, asked in enumerate(said.calls, 1):
            ours = f"{_STEP}.{self._turns}.{number}"
            self._open[ours] = (asked.id, asked)
            self._ids[ours] = asked.id
            calls.append(
                {"id": ours, "name": asked.tool, "args": finite_json(asked.args), "problem": asked.problem}
            )
        began = None if said.at is None else said.at - said.seconds
        messages, tools = place + bool(self._recording.system), len(self._recording.tools)
        self._put(
            e.ModelCalled(
                call=call, step=_STEP, model=model, cycle=self._turns, messages=messages, tools=tools
            ),
            began,
        )
        answered = e.ModelAnswered(
            call=call,
            step=_STEP,
            model=model,
            text=said.text,
            calls=calls,
            tokens_in=said.tokens_in or 0,
            tokens_out=said.tokens_out or 0,
            tokens_cached=said.tokens_cached,
            tokens_reasoning=said.tokens_reasoning,
            thinking=[{"text": said.thinking}] if said.thinking else [],
            cost_usd=said.cost_usd,
            seconds=said.seconds,
            finish="tool_calls" if calls else "stop",
            metered=said.tokens_in is not None,
        )
        self._put(answered, said.at)

    def _tool(self, said: ImportedMessage) -> None:
        fits = [
            ours for ours, (theirs, _) in self._open.items() if not said.call or theirs in ("", said.call)
        ]
        if not fits:
            msg = (
                f"a tool answers the call {said.call!r}, which nobody made"
                if said.call
                else "a tool answers, and no call is open"
            )
            raise ValueError(msg)
        self._result(fits[0], said.text, said.error, "failed", said)

    def _result(
        self, ours: str, text: str, error: str, kind: str, said: ImportedMessage | None = None
    ) -> None:
        _, asked = self._open.pop(ours)
        said = said or ImportedMessage(role="tool")
        at, seconds = said.at, said.seconds
        if not asked.problem:
            began = None if at is None else at - seconds
            # What a call can have done is what claims of deeds are checked against.
            declared = self._recording.declared.get(asked.tool) if asked.pure is None else asked.pure
            pure = only_reads(asked.tool, asked.args) if declared is None else declared
            called = e.ToolCalled(
                call=ours,
                step=_STEP,
                tool=asked.tool,
                args=finite_json(asked.args),
                danger="",
                effect="pure" if pure else "opaque",
            )
            self._put(called, began)
        edited = "" if error or said.changed else edited_file(asked.tool, asked.args)
        problem: dict[str, Json] | None = (
            {"kind": kind, "message": error, "transient": False} if error else None
        )
        self._put(
            e.ToolAnswered(
                call=ours,
                step=_STEP,
                tool=asked.tool,
                text=text or error,
                error=problem,
                seconds=seconds,
                changed=[edited] if edited else list(said.changed),
                touched=None if said.touched is None else list(said.touched),
            ),
            at,
        )

    def _close(self) -> None:
        """Answer the calls that the recording has no answer to, so that every conversation is whole and can
        be forked.
        """
        for ours, (_, asked) in list(self._open.items()):
            kind = "invalid_arguments" if asked.problem else "unknown_outcome"
            self._result(ours, "", asked.problem or "the recording has no result of this call", kind)

    def _end(self) -> None:
        recording = self._recording
        until = None if recording.seconds is None else self._start + recording.seconds
        outcome, target = ("error", RunStatus.FAILED) if recording.error else ("complete", RunStatus.COMPLETE)
        reason = recording.error or recording.reason
        self._put(e.StepFinished(step=_STEP, ok=not recording.error, reason=reason), until)
        ended = e.RunFinished(outcome=outcome, answer=recording.answer, reason=reason)
        self._put(_reviewed(recording.goal, [event for _, event in self._events], ended))
        self._put(e.StateTransition(source=RunStatus.EXECUTING, target=target, reason=reason))

    def _started(self, goal: str) -> e.RunStarted:
        recording = self._recording
        imported: dict[str, Json] = {
            "format": recording.format,
            "source": recording.source,
            "id": recording.id,
            "at": time.time(),
            "times": self._times,
            **finite_json(recording.facts),
            **({"left_out": [str(one) for one in recording.left_out]} if recording.left_out else {}),
            "calls": {ours: theirs for ours, theirs in self._ids.items() if theirs},
        }
        called = dict.fromkeys(asked.tool for said in recording.messages for asked in said.calls)
        offered = {str(tool["name"]): finite_json(tool) for tool in recording.tools}
        return e.RunStarted(
            goal=goal,
            workspace="",
            model=recording.model,
            model_kind=recording.kind,
            system=recording.system,
            config=recording.config,
            scenario=recording.scenario,
            package=__version__,
            imported=imported,
            tools=[
                recorded_tool(**cast("Any", offered.get(name, {"name": name})))
                for name in dict.fromkeys((*offered, *called))
            ],
        )


def _reviewed(goal: str, events: Sequence[e.Event], ended: e.RunFinished) -> e.RunFinished:
    """Return the end of a run with what its answer claims and its calls refute, as in our own runs.

    Only deeds are compared: the files that it is about are not here.
    """
    if not ended.answer:
        return ended
    # With all the rules of the checks: imported only where there is an answer.
    from kestrel_lab.verification.claimed_actions import mentions_actions
    from kestrel_lab.verification.engine import CHECKS, check_answer
    from kestrel_lab.verification.subject import subject_of

    if not mentions_actions(ended.answer):
        return replace(ended, looked=True)
    records = _records("", ((0.0, event) for event in events))
    subject = subject_of(records, answer=ended.answer, goal=goal, root=None)
    found = check_answer(subject, {"deeds": CHECKS["deeds"]})
    return replace(ended, looked=True, concerns=[one.as_json() for one in found])


def _records(run: str, events: Iterable[tuple[float, e.Event]]) -> list[e.Record]:
    return [
        e.Record(run_id=run, seq=seq, eid="", at=at, event=event) for seq, (at, event) in enumerate(events, 1)
    ]


def trial_of(recording: Recording, events: Sequence[tuple[float, e.Event]]) -> EvalRow:
    """Return the trial that the recording is; what it does not tell is in no metric."""
    run = recording.run_id
    metrics = measure_run(_records(run, events))
    if any(said.role == "assistant" and said.tokens_in is None for said in recording.messages):
        for name in _TOKENS:
            metrics.pop(name)
    if all(said.at is None for said in recording.messages):
        for name in _CLOCKS if recording.seconds is None else _CLOCKS[1:]:
            metrics.pop(name)
    metrics |= recording.metrics
    broke = recording.passed is None
    outcome = "error" if broke else "pass" if recording.passed else "fail"
    reason = (
        recording.error
        or recording.reason
        or (recording.unjudged or "not judged in the recording" if broke else "")
    )
    if outcome == "fail" and not reason:
        reason = "; ".join(str(score["check"]) for score in recording.scores or () if not score["passed"])
    result: dict[str, Json] = {
        "family": recording.family,
        "weight": 1.0,
        "model": recording.model,
        "model_kind": recording.kind,
        "outcome": outcome,
        "reason": reason,
        "scores": finite_json(recording.scores or ()),
        "status": str(RunStatus.FAILED if recording.error else RunStatus.COMPLETE),
        "answer": head_tail(recording.answer, ANSWER_KEPT)[0],
        "run": run,
        "imported": recording.format,
    }
    return EvalRow(
        id=f"t{recording.run_id}",
        scenario=recording.scenario,
        result=result,
        created_at=time.time(),
        git_sha=COMMIT,
        metrics={name: value for name, value in metrics.items() if math.isfinite(value)},
        suite=recording.suite,
        config=recording.config or recording.model,
        epoch=recording.epoch,
        key="",
    )
