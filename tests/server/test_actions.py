"""What a client asks for is done without holding up the event loop, which shows the runs of everybody."""

import asyncio
import threading
from pathlib import Path

import pytest

from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.seals.hash_chain import Damage
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.server.actions import cancel_run
from kestrel_lab.server.protocol import Cancel
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.decorator import tool


@tool(danger_level="high")
def launch() -> str:
    """Launch."""
    return "launched"


def test_stopping_hashes_no_events_on_the_loop(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that nobody works on is cancelled without its events being hashed on the event loop, which takes
    .5 s for 20,000.
    """
    damage = SessionStore.damage

    def hashed(store: SessionStore, run_id: str) -> Damage | None:
        assert threading.current_thread() is not threading.main_thread()
        return damage(store, run_id)

    async def scene() -> str:
        with pytest.raises(ApprovalRequired) as waits:
            await session.run(
                "go", model=ScriptedModel([[("launch", {})], "up"]), tools=[launch], workspace=workspace
            )
        monkeypatch.setattr(SessionStore, "damage", hashed)
        reply = await cancel_run(session, Cancel(run=waits.value.run_id), by="ann")
        assert reply.type == "accepted"
        monkeypatch.undo()
        return waits.value.run_id

    assert session.get(asyncio.run(scene())).status is RunStatus.CANCELLED


def test_a_lab_counts_its_runs_without_reading_them(
    session: Lab, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of runs that a lab shows is counted by the database; runs of suites are not among them."""
    for number in range(3):
        session.run_sync(
            "go", model=ScriptedModel(["done"]), workspace=workspace, scenario="s" if number == 2 else ""
        )
    monkeypatch.setattr(SessionStore, "runs", None)
    assert session.history.count() == 2
