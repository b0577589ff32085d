"""Runs whose questions were decided while no process worked on them: they wait for a process, no longer for a
person.
"""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.errors import ApprovalRequired
from kestrel_lab.core.events.union import ApprovalGiven
from kestrel_lab.core.run_types import INTERRUPTED, RunStatus
from kestrel_lab.lab import Lab
from kestrel_lab.server.controller import RunList
from kestrel_lab.server.protocol import View
from kestrel_lab.server.run_stream import Follower, LogWatcher
from kestrel_lab.testing import ScriptedModel

WRITES = [
    [("write_file", {"path": "a.txt", "content": "a"}), ("write_file", {"path": "b.txt", "content": "b"})],
    "Done.",
]


async def followed(session: Lab, name: str) -> object:
    """The status that a page shows which follows the run."""
    follower = Follower(session.store, LogWatcher(session.store), name, view=True)
    shown = await anext(aiter(follower.messages()))
    assert isinstance(shown, View)
    return [change["status"] for change in shown.changes if change["op"] == "head"][-1]


@pytest.mark.parametrize("granted", [True, False])
def test_a_decided_run_says_how_to_go_on(tmp_path: Path, granted: bool) -> None:
    """While one question is open the run waits for it; after the last the report, the list, the page and the
    picture say what to type.
    """
    session = Lab(tmp_path / "home", env={})
    model = ScriptedModel(WRITES)
    with pytest.raises(ApprovalRequired) as raised:
        asyncio.run(session.run("write", model=model, workspace=tmp_path))
    name = raised.value.run_id

    def said() -> list[str]:
        run = session.get(name)
        view = run.report.view()
        (listed,) = RunList(session.store).newest(1)
        return [
            run.report.status.word,
            session.history.runs().loc[name, "status"],
            listed.visible_status,
            view.head.status,
        ]

    assert said() == [RunStatus.WAITING_APPROVAL] * 4
    for question in session.get(name).questions:
        assert said() == [RunStatus.WAITING_APPROVAL] * 4
        given = ApprovalGiven(
            call=question.call, question=question.question, granted=granted, by="me", how="click"
        )
        session.get(name).decide(given)
    assert said() == [INTERRUPTED] * 4
    assert f"kestrel run --resume {name}" in session.get(name).report.view().head.reason

    assert asyncio.run(followed(session, name)) == INTERRUPTED

    run = asyncio.run(session.resume(name, model=model))
    assert (run.status, (tmp_path / "a.txt").exists(), said()) == (
        RunStatus.COMPLETE,
        granted,
        [RunStatus.COMPLETE] * 4,
    )
