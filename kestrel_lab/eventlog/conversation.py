"""The conversation of a step and its open macros: parts of a run's state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import cast

from kestrel_lab.core.events.union import MacroStarted, ModelAnswered, ToolAnswered
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.messages import ImagePart, Message, ThinkingPart, ToolRequest


@dataclass(kw_only=True, slots=True)
class Conversation:
    """The messages, requests and answers of one step."""

    messages: list[Message] = field(default_factory=list)
    """Complete turns only: an assistant's calls and all their answers, in the order asked."""
    cycles: int = 0
    """Model turns begun."""
    asked: bool = False
    """Whether the model owes an answer."""
    requests: tuple[ToolRequest, ...] = ()
    """Tool calls of the last turn, until the last of them is answered."""
    answers: dict[str, str] = field(default_factory=dict)
    """Texts of those already answered, by call."""
    images: dict[str, tuple[ImagePart, ...]] = field(default_factory=dict)
    """Images of these answers, by call."""
    values: dict[str, Json] = field(default_factory=dict)
    """These answers as JSON, of calls that did not fail, where that is in the log."""
    text: str = ""
    """What the assistant said last."""
    finish: str = "stop"
    """How its last answer ended: see `ModelAnswer.finish`."""
    error: str = ""
    """Why the call failed, when the step is a call of a tool."""
    value: Json = None
    """What it answered, as JSON, when the step is a call of a tool."""
    prompts: int = 0
    """How often the step has asked its model for an answer, its goal being the first."""
    again: bool = False
    """Whether the step has asked once more for the answer to its last question, which was empty."""
    replies: list[str] = field(default_factory=list)
    """The answers to these, in order."""
    folder: str = "."
    """Where its commands begin, as seen from the workspace."""
    attempt: int = 1
    """Which attempt of the step this is."""
    earlier: int = 0
    """How many of the attempts belong to an earlier try, which ended in failure before the run was resumed.
    """
    waited_s: float = 0.0
    """Seconds this try has been made to wait between its attempts."""
    problem: str = ""
    """The kind of that failure, when the step is a call of a tool; see `Problem.kind`."""
    passing: bool = False
    """Whether it is one that may pass."""
    began: float = 0.0
    """When the step began first."""
    results: dict[str, str] = field(default_factory=dict)
    """By call, what its model is shown in the place of the result; see `ContextCompacted`."""
    summary: str = ""
    """Shown instead of the messages before `upto`, except the system message; empty if all are shown."""
    upto: int = 0
    files: dict[str, str] = field(default_factory=dict)
    """Versions of files, by path, that it knows: see `tools.files.versions`."""
    read: dict[str, str] = field(default_factory=dict)
    """Those that it has read and its model has not been shown yet."""
    within: str = ""
    """The step whose model delegated this one; empty for a step of the plan."""
    limits: dict[str, float] = field(default_factory=dict)
    """What it and those that it delegates may use together; see `StepStarted.limits`."""
    used: dict[str, float] = field(default_factory=dict)
    """What its own calls have used of `cost_usd`, `tokens` and `seconds`."""
    session: str = ""
    """By what the program of another agent can go on with it."""
    borrowed: bool = False
    """Whether that session is of the run that this one was forked from."""

    def end_turn(self) -> None:
        """Put the answers of all requests of the turn into the conversation."""
        self.messages += [
            Message(
                role="tool",
                text=self.answers[request.id],
                call_id=request.id,
                name=request.name,
                images=self.images.get(request.id, ()) if self.images else (),
            )
            for request in self.requests
        ]
        self.requests = ()
        self.begin_turn()

    def begin_turn(self) -> None:
        """Forget the answers of the last turn, which are messages by now."""
        self.answers, self.images, self.values = {}, {}, {}

    def take_answer(self, event: ToolAnswered) -> None:
        """Keep the answer of a call until those of its turn are complete."""
        self.answers[event.call] = event.text
        if event.images:
            self.images[event.call] = read_images(event.images)
        if event.error is None and (event.given or event.value is not None):
            self.values[event.call] = event.text if event.given else event.value

    def use(self, **amounts: float) -> None:
        """Count what a call has used."""
        for name, amount in amounts.items():
            self.used[name] = self.used.get(name, 0) + amount

    def answered(self, event: ModelAnswered) -> None:
        """Go on with what its model answered."""
        self.asked = False
        if not (event.given or event.cached):
            self.use(
                cost_usd=event.cost_usd or 0.0,
                tokens=event.tokens_in + event.tokens_out,
                seconds=event.seconds,
            )
        if event.error is not None:
            return
        self.text, self.finish = event.text or self.text, event.finish
        if event.session:
            self.session, self.borrowed = event.session, False
        self.requests = tuple([read_request(call) for call in event.calls])
        self.begin_turn()
        thinking = (
            tuple(ThinkingPart(**part) for part in cast("list[dict[str, str]]", event.thinking))
            if event.thinking
            else ()
        )
        self.messages.append(
            Message(role="assistant", text=event.text, calls=self.requests, thinking=thinking)
        )
        if not self.requests:
            self.replies.append(event.text)

    def annotate(self, call: str, note: str) -> None:
        """Append `note` to the answer of `call` that the model reads."""
        if call in self.answers:
            self.answers[call] += note
        self.messages[:] = [
            replace(one, text=one.text + note) if one.role == "tool" and one.call_id == call else one
            for one in self.messages
        ]

    @property
    def sent(self) -> list[Message]:
        """What its model is shown of the messages: all of them, unless the context was compacted."""
        return self.sent_with({}, "", 0) if self.results or self.upto else self.messages

    def sent_with(self, results: Mapping[str, str], summary: str, upto: int) -> list[Message]:
        """The model's messages with further `results`, and with `summary` instead of those before `upto`."""
        shown, summary, upto = {**self.results, **results}, summary or self.summary, upto or self.upto
        system = self.messages[:1] if upto and self.messages[0].role == "system" else []
        summarised = (
            [Message(role="user", text=f"Summary of the conversation so far:\n{summary}")] if summary else []
        )
        rest = [
            replace(one, text=shown[one.call_id]) if one.role == "tool" and one.call_id in shown else one
            for one in self.messages[upto:]
        ]
        return [*system, *summarised, *rest]

    @property
    def open_requests(self) -> tuple[ToolRequest, ...]:
        """Tool calls that still need an answer."""
        return tuple([request for request in self.requests if request.id not in self.answers])


@dataclass(kw_only=True, slots=True)
class OpenMacro:
    """A macro that was begun and whose call has no answer yet."""

    started: MacroStarted
    answers: dict[str, ToolAnswered] = field(default_factory=dict)
    """Of its calls, by call."""
    finished: bool = False


def read_request(call: dict[str, Json]) -> ToolRequest:
    """Return the request that an event has as JSON."""
    return ToolRequest(
        id=str(call.get("id", "")),
        name=str(call.get("name", "")),
        args=cast("dict[str, Json]", call.get("args") or {}),
        problem=str(call.get("problem") or ""),
        signature=str(call.get("signature") or ""),
    )


def read_images(images: list[dict[str, Json]]) -> tuple[ImagePart, ...]:
    """Return the images that an event names."""
    return tuple(ImagePart(media_type=str(image["media_type"]), blob=str(image["blob"])) for image in images)
