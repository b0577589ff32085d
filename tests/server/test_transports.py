"""One protocol, four transports, one suite: the same claims of a program, a terminal, another process and a
page.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from people import TRANSPORTS, Place, _leave, place, until

from kestrel_lab.core.events.union import ApprovalGiven, ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool
from kestrel_lab.tools.tool import ToolContext

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)
Body = Callable[[Place], Awaitable[None]]


@tool(danger_level="safe", effect="pure")
async def dig(ctx: ToolContext) -> str:
    """Dig for ever, and say how deep it is."""
    ctx.progress("3 metres deep", 0.25)
    await asyncio.Event().wait()
    return "never"


SCRIPTS: dict[str, list[Any]] = {
    "write": [[("write_file", {"path": "a.txt", "content": "hi"})], "written"],
    "ask": [[("ask_user", {"question": "Which colour?", "options": ["red", "blue"]})], "painted"],
    "dig": [[("dig", {})], "dug"],
    "talk": ["hello to all of you"],
    "both": [
        [("write_file", {"path": "a.txt", "content": "hi"})],
        [("ask_user", {"question": "And now?"})],
        "done with both",
    ],
}


def play(request: ModelRequest) -> Any:
    """The script that the goal names."""
    goal = next(message.text for message in request.messages if message.role == "user")
    return SCRIPTS[goal][sum(message.role == "assistant" for message in request.messages)]


@pytest.fixture
def scripted(tmp_path: Path) -> Any:
    """A session whose model plays the script that the goal names."""
    session = Lab(tmp_path / "home", model=ScriptedModel(play), tools=[dig], env={})
    yield session
    session.close()


def carry_out(session: Lab, transport: str, body: Body, **options: Any) -> None:
    """Run `body` with people who come by `transport`."""

    async def whole() -> None:
        async with place(session, transport, **options) as where:
            await body(where)

    asyncio.run(whole())


def decisions(run: Run) -> list[ApprovalGiven]:
    """All decisions of a run."""
    return [event for event in run.events() if isinstance(event, ApprovalGiven)]


def answered(run: Run) -> list[str]:
    """What the tools of a run said."""
    return [event.text for event in run.events() if isinstance(event, ToolAnswered)]


def test_a_yes_lets_a_call_go_on(scripted: Lab, workspace: Path, transport: str) -> None:
    """The call is shown whole, runs after the yes, and the record says who decided and by what; the answer is
    told.
    """

    async def body(where: Place) -> None:
        ann = await where.comes()
        run = await ann.start("write")
        asked = await ann.asked()
        await ann.sees("a.txt")
        assert not (workspace / "a.txt").exists()
        assert (await ann.approve(asked)).startswith("accepted")
        await ann.ended()
        await ann.sees("written")
        done = scripted.get(run)
        (given,) = decisions(done)
        assert (given.granted, given.by, given.how, given.scope) == (True, "ann", ann.how, "once")
        assert (done.status, (workspace / "a.txt").read_text()) == (RunStatus.COMPLETE, "hi")

    carry_out(scripted, transport, body, workspace=workspace)


def test_a_no_is_told_to_the_model_with_its_reason(scripted: Lab, workspace: Path, transport: str) -> None:
    """After a no nothing is written, and the reason arrives at the model."""

    async def body(where: Place) -> None:
        ann = await where.comes()
        run = await ann.start("write")
        assert (await ann.deny(await ann.asked(), reason="not on a Sunday")).startswith("accepted")
        await ann.ended()
        assert "not on a Sunday" in answered(scripted.get(run))[0]
        assert not (workspace / "a.txt").exists()

    carry_out(scripted, transport, body, workspace=workspace)


def test_edited_arguments_are_checked_and_used(scripted: Lab, workspace: Path, transport: str) -> None:
    """Arguments that do not fit are refused with what is wrong and the call waits on; fitting ones are what
    is done.
    """

    async def body(where: Place) -> None:
        ann = await where.comes()
        await ann.start("write")
        asked = await ann.asked()
        if transport == "terminal":
            first = asyncio.create_task(ann.approve(asked, args={"paht": "b.txt"}))
            await ann.asked(number=2)
            await ann.sees("paht")
            first.cancel()
        else:
            told = await ann.approve(asked, args={"paht": "b.txt"})
            assert told.startswith("bad_arguments") and "paht" in told
        assert (await ann.approve(asked, args={"path": "b.txt", "content": "ho"})).startswith("accepted")
        await ann.ended()
        assert {path.name: path.read_text() for path in workspace.iterdir()} == {"b.txt": "ho"}

    carry_out(scripted, transport, body, workspace=workspace)


def test_a_question_is_answered_by_an_option(scripted: Lab, workspace: Path, transport: str) -> None:
    """Question and options are shown, and what was chosen is what the tool says."""

    async def body(where: Place) -> None:
        ann = await where.comes()
        run = await ann.start("ask")
        asked = await ann.asked("question")
        for text in ("Which colour?", "red", "blue"):
            await ann.sees(text)
        assert (await ann.answer(asked, "blue")).startswith("accepted")
        await ann.ended()
        assert answered(scripted.get(run)) == ["blue"]

    carry_out(scripted, transport, body, workspace=workspace)


def test_of_two_who_decide_at_once_one_wins_and_the_other_is_told(
    scripted: Lab, workspace: Path, transport: str
) -> None:
    """One decision is recorded; whoever comes second is told so and by whom it was decided; the run follows
    the first.
    """

    async def body(where: Place) -> None:
        ann, rival = await where.comes(), await where.comes("memory")
        run = await ann.start("write")
        asked = await ann.asked()
        await rival.follow(run)
        theirs = await rival.asked()
        if transport == "terminal":  # a slow hand: the prompt is taken away from it
            assert (await rival.deny(theirs, reason="rival")).startswith("accepted")
            await ann.sees("denied by ann")
        else:
            replies = await asyncio.gather(ann.approve(asked), rival.deny(theirs))
            assert sorted(reply.partition(":")[0] for reply in replies) == ["accepted", "already_decided"]
            assert next(reply for reply in replies if reply.startswith("already")).endswith(
                "the first decision counts ann"
            )
        await ann.ended()
        (given,) = decisions(scripted.get(run))
        assert (workspace / "a.txt").exists() == given.granted

    carry_out(scripted, transport, body, workspace=workspace)


def test_a_run_is_stopped(scripted: Lab, workspace: Path, transport: str) -> None:
    """A run that would go on for ever is CANCELLED, and that is told; how far its tool was had been told
    too.
    """

    async def body(where: Place) -> None:
        ann = await where.comes()
        run = await ann.start("dig")
        await until(lambda: any(record.event.type == "progress" for record in scripted.get(run).records()))
        if transport != "terminal":
            assert [(one["text"], one["fraction"]) for one in await until(lambda: ann.of("progress"))] == [
                ("3 metres deep", 0.25)
            ]
        await ann.cancel(run)
        await ann.ended()
        assert scripted.get(run).status is RunStatus.CANCELLED

    carry_out(scripted, transport, body, workspace=workspace)


def test_long_jobs_report_to_everybody(scripted: Lab, workspace: Path, transport: str) -> None:
    """What a `Reporter` is told arrives at who watches, the newest first of all: a thousand reports are not a
    thousand messages.
    """

    async def body(where: Place) -> None:
        ann = await where.comes()
        await ann.start("talk")
        await ann.watch()
        await ann.sees("hello")
        if transport == "terminal":
            await _told_at_a_terminal(where)
            return
        report = where.control.reporter("smoke")
        for done in range(1_001):
            report(done, 1_000, "trials")
        await ann.sees('"done": 1000')
        assert [(one["job"], one["total"], one["fraction"]) for one in ann.of("progress")][-1] == (
            "smoke",
            1000,
            1.0,
        )
        assert len(ann.of("progress")) < 50

    carry_out(scripted, transport, body, workspace=workspace)


async def _told_at_a_terminal(where: Place) -> None:
    """The same for somebody who follows a run that goes on."""
    bob = await where.comes()
    run = await bob.start("dig")
    await until(lambda: "" in bob.link._tasks)
    where.control.reporter("smoke")(1_000, 1_000, "trials")
    await bob.sees("1000/1000 smoke: trials")
    await bob.cancel(run)
    await bob.ended()


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(
    scripted: Lab, workspace: Path, transport: str
) -> None:
    """Parted at every event and back behind it, all events were told once each, in order."""

    async def body(where: Place) -> None:
        first = await where.comes("memory")
        run = await first.start("both")
        assert (await first.approve(await first.asked())).startswith("accepted")
        question = await first.asked("question")
        ann = await where.comes()
        await ann.follow(run)
        if transport == "terminal":  # a screen is drawn anew, each call once
            await ann.asked("question")
            await _leave(ann)
            again = await where.comes()
            await again.follow(run)
            await again.asked("question")
            await again.answer({}, "nothing")
            await again.ended()
            assert again.screen.getvalue().count("✓ write_file") == 1
            assert "yes, [n]o" not in again.screen.getvalue()  # decided long ago
            return
        await ann.asked("question")
        seen = ann.numbers
        await _leave(ann)
        assert (await first.answer(question, "nothing")).startswith("accepted")
        await first.ended()
        again = await where.comes()
        await again.follow(run, after=seen[-1])
        await again.ended()
        whole = list(range(1, len(scripted.get(run).records()) + 1))
        assert seen + again.numbers == whole == first.numbers
        events = [one["event"] for one in first.heard if one.get("event")]
        assert [event["type"] for event in events] == [
            record.event.type for record in scripted.get(run).records()
        ]
        twice = await where.comes()  # mutant: a client that counts from one too early sees an event twice
        await twice.follow(run, after=seen[-1] - 1)
        await twice.ended()
        assert seen + twice.numbers != whole

    carry_out(scripted, transport, body, workspace=workspace)


def test_where_nobody_is_nobody_is_waited_for(scripted: Lab, workspace: Path, transport: str) -> None:
    """When the last person leaves, the run is left waiting in the log and can be taken up; a page may be
    opened at any time.
    """

    async def body(where: Place) -> None:
        ann = await where.comes()
        starter = await where.comes("memory") if transport == "terminal" else ann
        run = await starter.start("write")
        if starter is not ann:
            await ann.follow(run)
            await _leave(starter)
        await ann.asked()
        await _leave(ann)
        if transport == "http":
            bob = await where.comes()
            await bob.follow(run)
            assert (await bob.approve(await bob.asked())).startswith("accepted")
            return await bob.ended()
        await until(lambda: scripted.store.run(run).owner == "")
        bob = await where.comes("memory")
        assert scripted.get(run).status is RunStatus.WAITING_APPROVAL
        await bob.follow(run)
        assert (await bob.approve(await bob.asked())).startswith("accepted")
        assert f"kestrel resume {run}" in json.dumps(bob.heard)
        assert (await bob.say(type="resume", run=run))["run"] == run
        await bob.ended()
        return None

    carry_out(scripted, transport, body, workspace=workspace)
    assert (workspace / "a.txt").read_text() == "hi"


def test_a_question_that_nobody_answers_is_a_no(scripted: Lab, workspace: Path, transport: str) -> None:
    """With a patience the question says when it expires, and then the answer is no, with the reason."""

    async def body(where: Place) -> None:
        ann = await where.comes()
        run = await ann.start("write")
        await ann.asked()
        await ann.ended()
        done = scripted.get(run)
        (given,) = decisions(done)
        assert (given.granted, given.by, given.reason) == (False, "timeout", "nobody answered within 0.3 s")
        if transport != "terminal":
            (asked,) = ann.of("approval")
            assert asked["expires_at"] == pytest.approx(asked["at"] + 0.3)
            late = await ann.approve(asked)
            assert late.startswith("already_decided") and late.endswith("timeout")

    carry_out(scripted, transport, body, workspace=workspace, patience_s=0.3)
