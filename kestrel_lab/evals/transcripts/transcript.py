"""Transcript: what a run said and did, folded from its log: user, model, calls with their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final, Literal

from kestrel_lab.core.events import union as e
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import one_line
from kestrel_lab.views.formatting import args_line

Kind = Literal["user", "text", "call", "answer"]
_TITLE: Final = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class TranscriptStep:
    """One thing that was said, or one call with its answer."""

    kind: Kind
    text: str
    """What was said; of a call what it answered, or its error."""
    events: tuple[str, ...]
    """The ids of its events."""
    seq: int
    """The number of its last event in the run."""
    turn: int = 0
    """How often models had answered before it, over the whole run."""
    tool: str = ""
    args: Mapping[str, Json] = field(default_factory=dict)
    error: Mapping[str, Json] | None = None
    pure: bool = False
    """Whether the tool declares that it changes nothing."""

    @property
    def title(self) -> str:
        """The step in one line."""
        if self.kind == "call":
            return f"{self.tool}({one_line(args_line(self.args), _TITLE)})"
        return f"{self.kind}: {one_line(self.text, _TITLE)}"


@dataclass(frozen=True, kw_only=True)
class Transcript:
    """The steps of a run, in order."""

    run: str
    steps: tuple[TranscriptStep, ...]
    records: Sequence[e.Record]
    """The events of the run, without what was said of it afterwards."""
    started: e.RunStarted | None = None
    end: e.RunFinished | None = None

    @property
    def goal(self) -> str:
        """What the run was asked to do."""
        return "" if self.started is None else self.started.goal

    @property
    def answer(self) -> str:
        """The answer that it ended with; empty where it has none."""
        return "" if self.end is None else self.end.answer

    @cached_property
    def calls(self) -> tuple[TranscriptStep, ...]:
        """The calls of tools."""
        return tuple(step for step in self.steps if step.kind == "call")

    @cached_property
    def asked(self) -> str:
        """All that people and settings said to the agent."""
        system = "" if self.started is None else self.started.system
        return "\n".join([system, *(step.text for step in self.steps if step.kind == "user")])


def transcript_of(run: str, records: Sequence[e.Record]) -> Transcript:
    """Return the transcript of a run from its events."""
    kept = [record for record in records if not isinstance(record.event, e.Annotation)]
    fold = _Fold()
    for record in kept:
        fold.take(record)
    return Transcript(run=run, steps=fold.ended(), records=kept, started=fold.started, end=fold.end)


class _Fold:
    def __init__(self) -> None:
        self.started: e.RunStarted | None = None
        self.end: e.RunFinished | None = None
        self._steps: list[TranscriptStep] = []
        self._calls: dict[str, int] = {}
        """By call, the place of its step."""
        self._prompts: set[str] = set()
        self._turn = 0

    def take(self, record: e.Record) -> None:
        match record.event:
            case e.RunStarted() as event:
                self.started = event
                self._say("user", event.goal, record)
            case e.Prompted() as event if event.text not in self._prompts:
                # Some agents are given the goal again in each turn: it is shown once.
                self._say("user", event.text, record)
            case e.ModelAnswered() as event if event.error is None:
                self._turn += 1
                if event.text.strip():
                    self._say("text", event.text, record)
                for call in event.calls:
                    args: Any = call.get("args")
                    self._call(
                        str(call["id"]), str(call["name"]), args if isinstance(args, dict) else {}, record
                    )
            case e.ToolCalled() as event:
                self._call(event.call, event.tool, event.args, record, pure=event.effect == "pure")
            case e.ToolAnswered() as event:
                self._call(event.call, event.tool, {}, record)
                place = self._calls[event.call]
                text = event.text or str((event.error or {}).get("message", ""))
                self._steps[place] = replace(self._steps[place], text=text, error=event.error, seq=record.seq)
            case e.RunFinished() as event:
                self.end = event
                self._finish(event, record)
            case _:
                pass

    def _say(self, kind: Kind, text: str, record: e.Record) -> None:
        if kind == "user":
            self._prompts.add(text)
        self._steps.append(
            TranscriptStep(kind=kind, text=text, events=(record.eid,), seq=record.seq, turn=self._turn)
        )

    def _call(
        self, call: str, tool: str, args: Mapping[str, Json], record: e.Record, *, pure: bool = False
    ) -> None:
        """Add an event to the step of a call, which the first one begins."""
        if (place := self._calls.get(call)) is None:
            self._calls[call] = len(self._steps)
            made = TranscriptStep(
                kind="call",
                text="",
                events=(record.eid,),
                seq=record.seq,
                turn=self._turn,
                tool=tool,
                args=args,
                pure=pure,
            )
            self._steps.append(made)
            return
        step = self._steps[place]
        if record.eid not in step.events:
            self._steps[place] = replace(
                step, events=(*step.events, record.eid), seq=record.seq, pure=step.pure or pure
            )

    def _finish(self, event: e.RunFinished, record: e.Record) -> None:
        """The answer is the last text of a model where they are the same, else a step of its own."""
        last = self._steps[-1] if self._steps else None
        if last is not None and last.kind == "text" and last.text == event.answer:
            self._steps[-1] = replace(last, kind="answer", events=(*last.events, record.eid), seq=record.seq)
        elif event.answer:
            self._say("answer", event.answer, record)

    def ended(self) -> tuple[TranscriptStep, ...]:
        return tuple(self._steps)
