"""A loop on a thread of its own: it starts with the first work, outlives the caller's loop, and says to
whoever waits that it was stopped.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from waits import FOREVER_S, PATIENCE_S, until

from kestrel_lab.host.background_loop import BackgroundLoop


@pytest.fixture
def loop() -> Iterator[BackgroundLoop]:
    """A loop that was not started."""
    made = BackgroundLoop(lambda: None, name="aside", closed="it was closed")
    yield made
    made.stop()


async def where() -> str:
    """The thread that work runs on."""
    return threading.current_thread().name


def test_work_of_several_callers_runs_on_one_daemon_thread(loop: BackgroundLoop) -> None:
    """Also after the loop of the first caller has ended; the thread does not keep the process alive."""
    assert not loop.running
    assert {loop.submit(where()).result(PATIENCE_S), asyncio.run(loop.run(where()))} == {"aside"}
    assert loop.running
    assert [one.daemon for one in threading.enumerate() if one.name == "aside"] == [True]


def test_a_stopped_loop_says_so_to_whoever_waits_and_can_be_started_again(loop: BackgroundLoop) -> None:
    """Work under way is given up with the reason; its thread ends."""
    begun = threading.Event()

    async def endless() -> None:
        begun.set()
        await asyncio.sleep(FOREVER_S)

    async def waits() -> None:
        waiting = asyncio.create_task(loop.run(endless()))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        loop.stop()
        with pytest.raises(ConnectionError, match="it was closed"):
            await waiting

    asyncio.run(waits())
    assert not loop.running
    until(lambda: "aside" not in [one.name for one in threading.enumerate()], "the end of the thread")
    assert loop.submit(where()).result(PATIENCE_S) == "aside"


def test_whoever_gives_up_waiting_cancels_the_work(loop: BackgroundLoop) -> None:
    """A cancelled caller is cancelled, and not told that the loop was stopped."""
    begun, ended = threading.Event(), threading.Event()

    async def endless() -> None:
        try:
            begun.set()
            await asyncio.sleep(FOREVER_S)
        finally:
            ended.set()

    async def gives_up() -> None:
        waiting = asyncio.create_task(loop.run(endless()))
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(gives_up())
    assert ended.wait(PATIENCE_S)
    assert loop.running
