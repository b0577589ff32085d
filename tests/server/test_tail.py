"""Following a log: commits of this process are notified, those of others polled for, less and less often."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from pathlib import Path

import pytest
from waits import PATIENCE_S

from kestrel_lab.core.events.union import Progress, RunStarted
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.server import run_stream
from kestrel_lab.server.run_stream import LogWatcher


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


def test_a_commit_of_this_process_needs_no_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows is woken by the store itself, though nobody asks the file system or the database."""
    monkeypatch.setattr(run_stream, "wait_until", _never)

    async def body(store: SessionStore) -> None:
        async with LogWatcher(store) as tail:
            for number in range(3):
                count = tail.count
                store.create_run(f"r{number}", RunStarted(goal="g", workspace="w", model="m"))
                await asyncio.wait_for(tail.grown(count), PATIENCE_S)

    with closing(SessionStore(tmp_path / "log.db")) as store:
        asyncio.run(body(store))
        assert store._writer.listeners == ()


def test_while_this_process_writes_others_are_polled_for_seldom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll that finds nothing doubles the pause; only one that finds another process's commit makes it
    short again.
    """
    polls: list[bool] = []
    look = LogWatcher._look

    def counted(self: LogWatcher, *, own: bool = False) -> bool:
        found = look(self, own=own)
        if not own:
            polls.append(found)
        return found

    monkeypatch.setattr(LogWatcher, "_look", counted)

    async def body(store: SessionStore) -> None:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        async with LogWatcher(store) as tail:
            await asyncio.sleep(0.3)
            polls.clear()
            count, began = tail.count, time.monotonic()
            while (took := time.monotonic() - began) < 1 or tail.count < count + 5:
                store.append("r", Progress(text="on"), urgent=True)
                await asyncio.sleep(0.03)
            assert len(polls) <= 5 * (1 + sum(polls)) + took / run_stream._LONGEST_POLL_S

    with closing(SessionStore(tmp_path / "log.db")) as store:
        asyncio.run(body(store))


def test_a_poll_leaves_own_commits_to_their_notification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each commit of this process that a poll happens to see first would make polling frequent again."""
    monkeypatch.setattr(run_stream, "_GATHER_S", 0.5)

    async def body(store: SessionStore) -> None:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        async with LogWatcher(store) as tail:
            await asyncio.sleep(0.05)
            looked: list[bool] = []
            monkeypatch.setattr(tail, "_look", lambda *, own=False: looked.append(own))
            store.append("r", Progress(text="on"), urgent=True)
            until = time.monotonic() + PATIENCE_S
            while not looked and time.monotonic() < until:
                await asyncio.sleep(0.01)
            assert looked[0]

    with closing(SessionStore(tmp_path / "log.db")) as store:
        asyncio.run(body(store))


def test_a_commit_of_another_store_is_seen_while_this_one_writes(tmp_path: Path) -> None:
    """What somebody else writes in between wakes followers within the longest pause and a bit."""

    async def body(store: SessionStore, other: SessionStore) -> None:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        async with LogWatcher(store) as tail:
            await asyncio.sleep(0.6)
            count = tail.count
            other.create_run("o", RunStarted(goal="g", workspace="w", model="m"))
            await asyncio.wait_for(tail.grown(count), PATIENCE_S)

    with (
        closing(SessionStore(tmp_path / "log.db")) as store,
        closing(SessionStore(tmp_path / "log.db")) as other,
    ):
        asyncio.run(body(store, other))
