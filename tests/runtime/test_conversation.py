"""Conversations: a run goes on where another one ended, with what is known of its messages, in a context of
any size.
"""

from __future__ import annotations

import asyncio
import functools
import re
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel_lab import Lab, tool
from kestrel_lab.core.errors import ApprovalRequired, UsageError
from kestrel_lab.core.events.union import ContextCompacted, ModelCalled, Prompted, RunStarted, ToolAnswered
from kestrel_lab.core.messages import Message, ModelRequest
from kestrel_lab.core.run_types import Limits
from kestrel_lab.eventlog.run_state import fold
from kestrel_lab.runtime.agent.compaction import tokens_of
from kestrel_lab.testing import ScriptedApprover, ScriptedModel

WINDOW = 8_000


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an asynchronous test in an event loop of its own."""

    @functools.wraps(test)
    def run(**given: Any) -> None:
        asyncio.run(test(**given))

    return run


def own(request: ModelRequest) -> list[Message]:
    """The messages of the run itself."""
    return [message for message in request.messages if not message.earlier and message.role != "system"]


def texts(request: ModelRequest) -> str:
    """Everything that a request says."""
    return "\n".join(message.text for message in request.messages)


class Reader:
    """Reads a file in each turn and answers with its first word; asked to summarise, it names the files."""

    name, kind = "reader", "scripted"

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.script = ScriptedModel(self.turn)

    def turn(self, request: ModelRequest) -> object:
        self.requests.append(ModelRequest(messages=tuple(request.messages), tools=request.tools))
        if request.messages[-1].text.startswith("Summarise"):
            return "Files were read: " + ", ".join(dict.fromkeys(re.findall(r"f\d+\.txt", texts(request))))
        said = own(request)
        if any(message.role == "tool" for message in said[-1:]):
            return f"It begins with {said[-1].text.split()[0]}."
        number = re.search(r"\d+", said[-1].text)
        return [("look", {"path": f"f{number[0] if number else 0}.txt"})]

    async def __call__(self, request: ModelRequest, on_delta: object) -> object:
        return await self.script(request, on_delta)  # type: ignore[arg-type]


@tool(name="look", danger_level="safe", effect="pure")
def look(path: str) -> str:
    """Return a long text."""
    return f"word-{path} " + "lorem ipsum dolor " * 250


def lab_of(
    home: Path,
    model: object,
    window: int | None = WINDOW,
    tools: Sequence[object] = (look,),
    **options: object,
) -> Lab:
    """A lab whose models hold `window` tokens."""
    return Lab(home=home, model=model, tools=tools, limits=Limits(context_tokens=window), **options)  # type: ignore[arg-type]


@in_loop
async def test_a_follow_up_is_told_what_was_said_and_done(tmp_path: Path) -> None:
    """It names its parent, is sent the parent's messages with ids of their own, and can be followed
    itself.
    """
    model = Reader()
    async with lab_of(tmp_path, model) as lab:
        first = await lab.run("read 1", tools=["look"])
        second = await first.ask("read 2")
        third = await lab.run("read 3", follow=second.id)
        runs = lab.history.conversation(third.id)
        offered = [item["name"] for item in third.events()[0].tools]  # type: ignore[union-attr]

    last = model.requests[-1].messages
    calls = [call.id for message in last for call in message.calls]
    assert [run.id for run in runs] == [first.id, second.id, third.id]
    assert [message.text for message in last if message.role == "user"] == ["read 1", "read 2", "read 3"]
    assert calls == ["turn1.answer.1.1", "turn2.answer.1.1", "answer.1.1"]
    assert [message.call_id for message in last if message.role == "tool"] == calls
    assert offered == ["look"]


@in_loop
async def test_taint_and_long_results_are_taken_over(tmp_path: Path) -> None:
    """A turn that read what others wrote makes the next turn ask before it has an effect; a long result can
    still be read.
    """

    @tool(name="page", danger_level="safe", effect="pure", reads="untrusted", reaches="nothing")
    def page() -> str:
        """Return a page that others wrote."""
        return "do as I say " + "x" * 30_000

    @tool(name="send", danger_level="low", effect="opaque", reads="", reaches="others")
    def send(text: str) -> str:
        """Send a text to others."""
        return "sent"

    @tool(name="diary", danger_level="safe", effect="pure", reads="private", reaches="nothing")
    def diary() -> str:
        """Return private words."""
        return "dear diary"

    def turn(request: ModelRequest) -> object:
        said = own(request)
        if said[-1].role == "tool":
            return "Done."
        return (
            [("page", {}), ("diary", {})] if "read" in said[-1].text else [("send", {"text": "hello there"})]
        )

    async with lab_of(tmp_path, ScriptedModel(turn), None, (page, send, diary), approve="auto") as lab:
        begun = await lab.run("read it")
        alone = await lab.run("send it")
        after = await begun.ask("send it")
        sent = {
            run.id: [event.error for event in run.events() if isinstance(event, ToolAnswered)]
            for run in (alone, after)
        }
        started = after.events()[0]

    assert isinstance(started, RunStarted)
    assert (started.follows, started.earlier["untrusted"], started.earlier["private"]) == (
        begun.id,
        ["page"],
        ["diary"],
    )
    assert len(started.earlier["wholes"]) == 1  # type: ignore[arg-type]
    assert sent[alone.id] == [None]
    assert sent[after.id][0] is not None and sent[after.id][0]["kind"] == "denied"


@in_loop
async def test_twenty_turns_fit_a_small_context_and_can_be_resumed_in_the_middle(tmp_path: Path) -> None:
    """No request outgrows 8,000 tokens, the older results and then the older turns give way, and each can be
    read back.
    """

    @tool(name="risky", danger_level="high")
    def risky() -> str:
        """Do it."""
        return "done"

    class Asking(Reader):
        def turn(self, request: ModelRequest) -> object:
            said = own(request)
            if said[0].text.startswith("read 12 at") and len(said) == 1:
                return [("look", {"path": "f12.txt"}), ("risky", {})]
            return super().turn(request)

    model = Asking()
    async with lab_of(tmp_path, model, tools=(look, risky)) as lab:
        run = await lab.run("read 1", tools=["look", "risky"])
        for number in range(2, 21):
            if number == 12:
                with pytest.raises(ApprovalRequired):
                    await run.ask("read 12 at a risk")
                run = await lab.resume(lab.runs().index[0], approver=ScriptedApprover([True]))
            else:
                run = await run.ask(f"read {number}, please. {'More words. ' * 60}")
            assert run.status == "COMPLETE", run.reason
        runs = lab.history.conversation(run.id)
        compacted = [event for one in runs for event in one.events() if isinstance(event, ContextCompacted)]
        dropped = [name for event in compacted for name in event.wholes]
        kept = lab.store.results.path(dropped[0])

    sizes = [tokens_of(request.messages, request.tools) for request in model.requests]
    print(
        f"20 turns: {len(compacted)} compactions, {sum(bool(event.summary) for event in compacted)} "
        f"with a summary, largest request {max(sizes)}"
    )
    assert len(runs) == 20
    assert max(sizes) <= WINDOW
    assert any(event.summary for event in compacted) and any(event.results for event in compacted)
    assert kept is not None and kept.read_text().startswith("word-f")
    assert "read_result" in [spec.name for spec in model.requests[-1].tools]
    assert "f1.txt" in texts(model.requests[-1])


@settings(
    max_examples=12,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    window=st.integers(2_500, 9_000),
    turns=st.lists(st.integers(0, 6_000), min_size=1, max_size=4),
    rounds=st.integers(1, 4),
)
def test_folding_the_log_gives_what_the_model_was_sent(
    tmp_path_factory: pytest.TempPathFactory, window: int, turns: list[int], rounds: int
) -> None:
    """At every question to the model, the events so far describe exactly the messages that it was sent."""

    @tool(name="long", danger_level="safe", effect="pure")
    def long(chars: int) -> str:
        """Return so many characters."""
        return "abcdefg " * (chars // 8 + 1)

    sent: list[tuple[Message, ...]] = []

    def turn(request: ModelRequest) -> object:
        if not request.messages[-1].text.startswith("Summarise"):
            sent.append(tuple(request.messages))
        else:
            return "It was summarised."
        played = sum(message.role == "assistant" for message in own(request))
        done = len([one for one in own(request) if one.role == "tool"])
        return (
            [("long", {"chars": turns[done % len(turns)] + played})] * 2
            if done < 2 * rounds
            else "That is all."
        )

    async def work() -> list[object]:
        home = tmp_path_factory.mktemp("lab")
        async with lab_of(home, ScriptedModel(turn), window, (long,)) as lab:
            run = await lab.run("go", tools=["long"])
            run = await run.ask("again")
            return [one.records() for one in lab.history.conversation(run.id)]

    shown = []
    for records in asyncio.run(work()):
        asked = [
            place
            for place, record in enumerate(records)
            if isinstance(record.event, ModelCalled) and record.event.step == "answer"
        ]  # type: ignore[var-annotated,arg-type]
        shown += [tuple(fold(records[:place]).conversation("answer").sent) for place in asked]  # type: ignore[index]
        assert fold(records) == fold(records)  # type: ignore[arg-type]
    assert shown == sent


@in_loop
async def test_a_summary_that_was_given_before_a_crash_is_not_asked_for_again(tmp_path: Path) -> None:
    """A run that is forked between the summary and its use takes the summary from the log."""
    model = Reader()
    async with lab_of(tmp_path, model, 3_000) as lab:
        run = await lab.run("read 1", tools=["look"])
        for number in range(2, 9):
            run = await run.ask(f"read {number}. {'More words. ' * 100}")
        with_summary = next(
            one
            for one in lab.history.conversation(run.id)
            if any(isinstance(event, Prompted) for event in one.events())
        )
        records = with_summary.records()
        place = next(
            record.seq
            for record in records
            if isinstance(record.event, ContextCompacted) and record.event.summary
        )
        before = len([one for one in model.requests if one.messages[-1].text.startswith("Summarise")])
        fork = await lab.fork(with_summary.id, at=place - 1)
        after = len([one for one in model.requests if one.messages[-1].text.startswith("Summarise")])

    assert fork.status == "COMPLETE"
    assert after == before


@in_loop
async def test_a_run_that_works_cannot_be_followed(tmp_path: Path) -> None:
    """Its messages are not complete."""

    @tool(name="risky", danger_level="high")
    def risky() -> str:
        """Do it."""
        return "done"

    async with lab_of(tmp_path, ScriptedModel([[("risky", {})], "Done."]), tools=(risky,)) as lab:
        with pytest.raises(ApprovalRequired):
            await lab.run("go")
        with pytest.raises(UsageError, match="has not ended"):
            await lab.run("more", follow=lab.runs().index[0])
        with pytest.raises(UsageError, match="r0"):
            await lab.run("more", follow="r0")


@in_loop
async def test_a_chat_goes_on_from_turn_to_turn(tmp_path: Path) -> None:
    """Each turn follows the one before; a turn that failed is followed too, and says that it gave no
    answer.
    """
    seen: list[str] = []

    def turn(request: ModelRequest) -> object:
        seen.append(texts(request))
        return ValueError("broken") if "break" in request.messages[-1].text else "Yes."

    async with lab_of(tmp_path, ScriptedModel(turn)) as lab:
        chat = lab.chat()
        await chat.ask("one")
        await chat.ask("break it")
        last = await chat.ask("three")

    assert (last.answer, len(chat.runs)) == ("Yes.", 3)
    assert "The run ended without an answer" in seen[-1]


@in_loop
async def test_a_follow_up_keeps_the_settings_of_its_model(tmp_path: Path) -> None:
    """`run.ask` goes on with the run's `params`, the second question after it too, unless others are given."""
    async with Lab(home=tmp_path / "home", model=ScriptedModel(["Yes."])) as lab:
        first = await lab.run("one", workspace=tmp_path, params={"temperature": 0.5})
        second = await first.ask("two")
        third = await second.ask("three")
        other = await third.ask("four", params={"temperature": 0.1})
        runs = (first, second, third, other)
        started = [fold(lab.store.records(run.id)).started for run in runs]
    assert [event.params for event in started if event is not None] == [
        {"temperature": 0.5},
        {"temperature": 0.5},
        {"temperature": 0.5},
        {"temperature": 0.1},
    ]
