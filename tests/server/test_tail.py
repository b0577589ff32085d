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
from kestrel_lab.server.run_stream import Tail


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


def test_a_commit_of_this_process_needs_no_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who follows is woken by the store itself, though nobody asks the file system or the database."""
    monkeypatch.setattr(run_stream, "wait_until", _never)

    async def body(store: SessionStore) -> None:
        async with Tail(store) as tail:
            for number in range(3):
                count = tail.count
                store.create_run(f"r{number}", RunStarted(goal="g", workspace="w", model="m"))
                await asyncio.wait_for(tail.grown(count), PATIENCE_S)

    with closing(SessionStore(tmp_path / "log.db")) as store:
        asyncio.run(body(store))
        assert store._writer.listeners == ()


def test_while_this_process_writes_others_are_polled_for_seldom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a second of steady writing there are some ten looks beside those for own commits; fifty was every 20 ms."""
    looks = {"own": 0, "others": 0}
    look = Tail._look

    def counted(self: Tail, *, own: bool = False) -> bool:
        looks["own" if own else "others"] += 1
        return look(self, own=own)

    monkeypatch.setattr(Tail, "_look", counted)

    async def body(store: SessionStore) -> None:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        async with Tail(store) as tail:
            await asyncio.sleep(0.3)
            before, began = looks["others"], time.monotonic()
            while (took := time.monotonic() - began) < 1 or looks["own"] <= 5:
                store.append("r", Progress(text="on"), urgent=True)
                await asyncio.sleep(0.03)
            assert looks["others"] - before <= 25 * took
            assert tail.count >= looks["own"]

    with closing(SessionStore(tmp_path / "log.db")) as store:
        asyncio.run(body(store))


def test_a_commit_of_another_store_is_seen_while_this_one_writes(tmp_path: Path) -> None:
    """What somebody else writes in between wakes followers within the longest pause and a bit."""

    async def body(store: SessionStore, other: SessionStore) -> None:
        store.create_run("r", RunStarted(goal="g", workspace="w", model="m"))
        async with Tail(store) as tail:
            await asyncio.sleep(0.6)
            count = tail.count
            other.create_run("o", RunStarted(goal="g", workspace="w", model="m"))
            await asyncio.wait_for(tail.grown(count), PATIENCE_S)

    with closing(SessionStore(tmp_path / "log.db")) as store, closing(SessionStore(tmp_path / "log.db")) as other:
        asyncio.run(body(store, other))
