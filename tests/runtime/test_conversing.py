"""A user who says several things in one conversation."""

import asyncio
from pathlib import Path

from kestrel_lab.core.errors import ModelError
from kestrel_lab.core.events.union import Prompted
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.operations.intake import conversation_plan
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool

SAYS = ("Note one.", "Note {{two}} and ${three}.", "What did you note?")


def noting(notes: list[str]):
    @tool
    def note(text: str) -> str:
        """Keep a note."""
        notes.append(text)
        return f"kept {text}"

    return note


def told(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.role == "user"]


def play(request: ModelRequest) -> Turn:
    said, last = told(request)[-1], request.messages[-1]
    if said == SAYS[-1]:
        return "One and two."
    return f"noted: {said}" if last.role == "tool" else [("note", {"text": said})]


def test_each_turn_follows_the_answer_before(tmp_path: Path) -> None:
    """Everything said is in one conversation, word for word, and the run's answer is the last one."""
    notes: list[str] = []
    requests: list[ModelRequest] = []

    def watched(request: ModelRequest) -> Turn:
        requests.append(request)
        return play(request)

    session = Lab(home=tmp_path, approve="auto")
    run = asyncio.run(
        session.run(
            "talk",
            model=ScriptedModel(watched),
            tools=[noting(notes)],
            plan=conversation_plan(SAYS, ("note",)),
        )
    )
    assert (run.outcome, run.answer) == ("complete", "One and two.")
    assert notes == list(SAYS[:2])
    assert told(requests[-1]) == list(SAYS)
    answers = [
        message.text for message in requests[-1].messages if message.role == "assistant" and message.text
    ]
    assert answers == [*(f"noted: {said}" for said in SAYS[:2]), "One and two."]
    assert [event.text for event in run.events() if isinstance(event, Prompted)] == list(SAYS)


def test_what_was_said_is_not_said_again(tmp_path: Path) -> None:
    """A run that broke in the second turn and goes on where it was says and does nothing twice."""
    notes: list[str] = []
    asked: list[str] = []

    def breaks(request: ModelRequest) -> Turn:
        return (
            ModelError("gone")
            if len(told(request)) == 2 and request.messages[-1].role == "tool"
            else play(request)
        )

    def goes_on(request: ModelRequest) -> Turn:
        asked.append(told(request)[-1])
        return play(request)

    async def both() -> tuple[str, str, list[str]]:
        session = Lab(home=tmp_path, approve="auto")
        kept = noting(notes)
        first = await session.start(
            "talk", model=ScriptedModel(breaks), tools=[kept], plan=conversation_plan(SAYS, ("note",))
        ).wait()
        again = await session.fork(first.id, model=ScriptedModel(goes_on), tools=[kept])
        return (
            first.outcome,
            again.answer,
            [event.text for event in again.events() if isinstance(event, Prompted)],
        )

    assert asyncio.run(both()) == ("error", "One and two.", list(SAYS))
    assert notes == list(SAYS[:2])
    assert asked == list(SAYS[1:])
