"""Closing a session or a lab: everything that was opened is closed, whatever fails, and a constructor that
fails leaves nothing open.
"""

import asyncio
import gc
import os
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from waits import until

from kestrel_lab import Lab
from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host.log_files import open_folders
from kestrel_lab.runtime.mcp.servers import McpServers
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool

PARTS = ("mcp", "indexes", "store", "cache")


def _watched(session: Lab, monkeypatch: pytest.MonkeyPatch, failing: tuple[str, ...]) -> list[str]:
    """The names of parts in the order in which they are closed; those that are `failing` raise once they
    are.
    """
    closed: list[str] = []

    def after(name: str, close: Callable[[], None]) -> Callable[[], None]:
        def closing() -> None:
            close()
            closed.append(name)
            if name in failing:
                raise OSError(name)

        return closing

    for name in PARTS:
        monkeypatch.setattr(getattr(session, name), "close", after(name, getattr(session, name).close))
    return closed


@pytest.mark.parametrize("failing", [(), ("mcp",), ("cache",), ("mcp", "indexes", "store", "cache")])
def test_every_part_is_closed_whatever_fails(
    failing: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that stops at the first error leaves the log open; all errors arrive in one group, and a
    second close does nothing.
    """
    session = Lab(tmp_path / "home", env={})
    closed = _watched(session, monkeypatch, failing)
    if failing:
        with pytest.raises(ExceptionGroup, match="not every part") as caught:
            session.close()
        assert sorted(map(str, caught.value.exceptions)) == sorted(failing)
    else:
        session.close()
    assert sorted(closed) == sorted(PARTS)
    assert closed.index("mcp") < closed.index("store")
    with pytest.raises(StoreError, match="closed"):
        session.store.runs()
    session.close()
    assert len(closed) == len(PARTS)


def test_a_block_closes_its_lab(tmp_path: Path) -> None:
    """`with Lab(…)` and `async with Lab(…)` close the log, also when the block raises, whose error it is."""
    with Lab(tmp_path / "a", ScriptedModel(["done"]), env={}) as lab:
        assert lab.run_sync("go").answer == "done"
    with pytest.raises(StoreError, match="closed"):
        lab.store.runs()

    async def scene() -> Lab:
        async with Lab(tmp_path / "b", ScriptedModel(["done"]), env={}) as opened:
            assert (await opened.run("go")).answer == "done"
            raise KeyError(opened)

    with pytest.raises(KeyError) as caught:
        asyncio.run(scene())
    with pytest.raises(StoreError, match="closed"):
        caught.value.args[0].store.runs()


def test_an_asynchronous_block_interrupts_what_still_works(tmp_path: Path) -> None:
    """A run that goes on when the block ends is interrupted on disk before the log is closed, and can be
    resumed.
    """

    @tool(danger_level="safe")
    async def dream() -> str:
        """Sleep."""
        await asyncio.sleep(60)
        return "slept"

    async def scene() -> str:
        async with Lab(
            tmp_path / "home", ScriptedModel([[("dream", {})], "done"]), tools=[dream], env={}
        ) as lab:
            run = lab.start("go")
            while not any(event.type == "tool_called" for event in run.events()):
                await asyncio.sleep(0.01)
        return run.id

    name = asyncio.run(scene())
    with Lab(tmp_path / "home", env={}) as lab:
        assert list(lab.runs()["status"]) == ["INTERRUPTED"]
        assert lab.get(name).status is RunStatus.EXECUTING


@pytest.mark.parametrize("fails", ["servers", "tools"])
def test_a_constructor_that_fails_closes_what_it_opened(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant without it leaves the log's connections to the garbage collector; the error is that of the
    constructor.
    """
    closed: list[Any] = []
    close = SessionStore.close
    monkeypatch.setattr(SessionStore, "close", lambda store: (closed.append(store), close(store))[1])
    if fails == "servers":
        monkeypatch.setattr(
            McpServers, "__init__", lambda *_, **__: (_ for _ in ()).throw(UsageError("no servers"))
        )
    with (
        pytest.raises(UsageError, match="no servers" if fails == "servers" else "there is no tool 'wbe'"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        Lab(tmp_path / "home", tools=["wbe"], env={})
        gc.collect()
    assert len(closed) == 1
    with pytest.raises(StoreError, match="closed"):
        closed[0].runs()


def test_a_lab_that_is_thrown_away_leaves_nothing_behind(tmp_path: Path) -> None:
    """A lab that nobody closes has written what was queued, and has no thread and no file of its log open,
    once nobody holds it any more.
    """
    home = tmp_path / "home"

    def work() -> None:
        lab = Lab(home, ScriptedModel(["done"]), env={})
        asyncio.run(_work(lab, tmp_path))
        # Nobody waits for it.
        lab.store.create_run("last", RunStarted(goal="g", workspace="/w", model="m"))

    before = set(threading.enumerate())
    work()

    def ended() -> bool:
        gc.collect()  # a thread of another test may have held something of the lab for a moment
        return set(threading.enumerate()) <= before

    until(ended, "the end of the writer's thread")
    until(lambda: str(home) not in " ".join(open_folders()), "the end of its files")
    assert not [name for name in _open_files() if name.startswith(str(home))]
    with Lab(home, env={}) as lab:
        assert next(row.id for row in lab.store.runs()) == "last"


async def _work(lab: Lab, place: Path) -> None:
    await lab.run("hello", workspace=place)


def _open_files() -> list[str]:
    """The files that this process has open, where the kernel tells."""
    found = []
    for one in Path("/proc/self/fd").glob("*"):
        with suppress(OSError):
            found.append(os.readlink(one))
    return found
