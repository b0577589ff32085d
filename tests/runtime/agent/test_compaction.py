"""What a model is shown of a conversation that outgrows its context: which results give way, by how much, and
what a summary holds.
"""

import asyncio
import re
from collections.abc import Sequence

from kestrel_lab.core.events.union import ContextCompacted
from kestrel_lab.core.messages import ModelAnswer, ModelRequest, ToolRequest
from kestrel_lab.core.run_types import Limits, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.models.prompted_tools import TextToolModel
from kestrel_lab.runtime.agent.compaction import context_of, tokens_of
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.decorator import tool

WINDOW, LONG = 8_000, 2_000
ROOM = WINDOW - WINDOW // 4
"""The rest is for the answer; the tools' descriptions take some of it as well."""


@tool(danger_level="safe", effect="pure")
def look(path: str, chars: int) -> str:
    """Return a text of so many characters."""
    return f"begin-{path} " + "x" * (chars - 20) + f" end-{path}"


def worked(
    session: Lab, says: object, goal: str = "go on"
) -> tuple[Run, list[ModelRequest], list[ContextCompacted]]:
    """A run with a context of `WINDOW` tokens, the requests that its model was sent, and its compactions."""
    requests: list[ModelRequest] = []

    def answer(request: ModelRequest) -> Turn:
        requests.append(ModelRequest(messages=tuple(request.messages), tools=request.tools))
        return says(request)  # type: ignore[operator, no-any-return]

    run = asyncio.run(
        session.run(goal, model=ScriptedModel(answer), tools=[look], limits=Limits(context_tokens=WINDOW))
    )
    assert run.status is RunStatus.COMPLETE, run.reason
    return run, requests, [event for event in run.events() if isinstance(event, ContextCompacted)]


def results(request: ModelRequest) -> list[str]:
    return [message.text for message in request.messages if message.role == "tool"]


def turns(request: ModelRequest) -> int:
    return sum(message.role == "assistant" for message in request.messages)


def test_the_oldest_results_give_way_and_no_more_than_needed(session: Lab) -> None:
    """Until half of the room is free again; those of the last turn stay, and short ones are not worth it."""

    def says(request: ModelRequest) -> Turn:
        done = turns(request)
        return (
            [("look", {"path": f"f{done}", "chars": LONG}), ("look", {"path": f"s{done}", "chars": 200})]
            if done < 9
            else "done"
        )

    run, requests, (event,) = worked(session, says)
    first = next(request for request in requests if any("left out" in text for text in results(request)))
    shown = results(first)
    long, short = shown[::2], shown[1::2]
    gone = ["left out to save room" in text for text in long]
    assert 1 < sum(gone) < len(gone) - 1
    assert gone == sorted(gone, reverse=True)
    assert all(f"begin-s{place}" in text for place, text in enumerate(short))
    assert event.window == WINDOW
    assert event.after <= ROOM // 2 < event.after + LONG // 3
    assert event.before > event.after == tokens_of(first.messages)
    assert all(name in text for name, text in zip(event.wholes, long, strict=False))
    assert [whole["chars"] for whole in event.wholes.values()] == [len(look.function("f0", LONG))] * sum(gone)
    assert event.summary == event.by == ""
    kept = session.store.results.path(next(iter(event.wholes)))
    assert kept is not None and kept.read_text() == look.function("f0", LONG)
    assert run.answer == "done"


def test_long_results_of_one_turn_share_half_of_the_room(session: Lab) -> None:
    """Each is shown by its beginning and end and says how to read it whole; one that is short enough stays as
    it is.
    """

    def says(request: ModelRequest) -> Turn:
        calls: Sequence[tuple[str, dict[str, object]]] = [
            ("look", {"path": f"f{n}", "chars": 15_000}) for n in range(2)
        ]
        return [*calls, ("look", {"path": "small", "chars": 500})] if not turns(request) else "done"  # type: ignore[list-item]

    _, requests, (event,) = worked(session, says)
    *long, small = results(requests[-1])
    assert small == look.function("small", 500)
    for place, (text, name) in enumerate(zip(long, event.wholes, strict=True)):
        assert text.startswith(f"begin-f{place} ")
        assert f'end-f{place}\n[shortened to save room; read it with read_result(id="{name}")]' in text
    share = ROOM * 3 // 2 // 3
    assert [0.8 * share < len(text) < 1.1 * share for text in long] == [True, True]


def test_a_summary_stands_for_what_came_before_and_keeps_the_goal(session: Lab) -> None:
    """Its writer is given goal, words and calls as text; who goes on is shown the summary, what the user said
    last, and the last messages.
    """

    def says(request: ModelRequest) -> Turn:
        if request.messages[-1].text.startswith("Summarise"):
            return "  Seven things were said.  "
        number = next(
            (
                int(found[1]) + 1
                for one in reversed(request.messages)
                if (found := re.search(r"words-(\d+)", one.text))
            ),
            0,
        )
        call = ToolRequest(id=str(number), name="look", args={"path": f"p{number}", "chars": 100})
        return ModelAnswer(text=f"words-{number} " + "talk " * 700, calls=(call,)) if number < 7 else "done"

    _, requests, events = worked(session, says, "find the leak")
    event = events[0]
    (asked, *_) = [request for request in requests if request.messages[-1].text.startswith("Summarise")]
    text = asked.messages[-1].text
    after = requests[requests.index(asked) + 1]
    words = re.search(r"in at most (\d+) words", text)
    assert words is not None and 0.8 * ROOM // 10 <= int(words[1]) <= ROOM // 10
    assert "user: find the leak" in text
    assert "\n\nassistant: words-0 talk" in text
    assert 'calls look {"path": "p0", "chars": 100}' in text
    assert "\n\ntool look: begin-p0" in text
    assert "system: " not in text
    assert [message.role for message in after.messages[:3]] == ["system", "user", "assistant"]
    assert after.messages[1].text.startswith(
        "Summary of the conversation so far:\nSeven things were said.\n\nThe user said last:\nfind the leak"
    )
    assert f"words-{turns(requests[-1])}" not in after.messages[1].text
    assert ROOM // 6 < tokens_of(after.messages[2:]) <= ROOM // 3
    assert event.by == "answer.summary6"
    assert event.before > ROOM - 500 and event.after == tokens_of(after.messages)
    (whole,) = event.wholes.values()
    assert whole["tool"] == "conversation"  # type: ignore[index, call-overload]
    assert max(tokens_of(request.messages, request.tools) for request in requests) <= WINDOW


def test_the_context_of_a_wrapped_model_is_that_of_the_model_inside() -> None:
    """However deep it is; of a model that does not say it nothing is known."""

    class Sized(ScriptedModel):
        context_tokens = 32_000

    assert context_of(TextToolModel(TextToolModel(Sized(["x"])))) == 32_000
    assert context_of(TextToolModel(ScriptedModel(["x"]))) is None  # type: ignore[arg-type]
