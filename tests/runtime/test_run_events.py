"""`run.events()`: a sequence of what happened so far, and an iterator that follows the run to its end."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from kestrel_lab import ApprovalRequired, Lab, tool
from kestrel_lab.testing import ScriptedModel


def test_events_are_followed_live_and_afterwards(tmp_path: Path) -> None:
    """Followers see each event once and in order, the first before the run goes on, and the same as the log
    has in the end.
    """

    async def follow() -> None:
        seen, go_on = asyncio.Event(), asyncio.Event()

        @tool
        async def wait_for_it() -> str:
            """Wait until the follower has seen the call."""
            seen.set()
            await go_on.wait()
            return "done"

        lab = Lab(
            home=tmp_path,
            model=ScriptedModel([[("wait_for_it", {})], "end"]),
            tools=[wait_for_it],
            approve="auto",
        )
        run = lab.start("go")
        first, second = [], []
        async for event in run.events():
            first.append(event)
            if event.type == "tool_called":
                await seen.wait()
                assert "run_finished" not in {one.type for one in run.events()}
                go_on.set()
        async for event in lab.get(run.id).events():
            second.append(event)
        events = run.events()
        assert isinstance(events, Sequence) and events == first == second
        assert (events[0].type, events[-1].type, len(events[1:3])) == ("run_started", "state_transition", 2)
        lab.close()

    asyncio.run(follow())


def test_following_ends_where_nobody_goes_on(tmp_path: Path) -> None:
    """A run that waits for a person who is not here stops being followed; its question is the last thing
    told.
    """

    async def follow() -> None:
        @tool(danger_level="high")
        def launch() -> str:
            """Launch something."""
            return "up"

        lab = Lab(
            home=tmp_path, model=ScriptedModel([[("launch", {})], "end"]), tools=[launch], approve="ask"
        )
        run = lab.start("go")
        types = [event.type async for event in run.events()]
        assert "approval_asked" in types and "run_finished" not in types
        with pytest.raises(ApprovalRequired):
            await run.wait()
        lab.close()

    asyncio.run(follow())
