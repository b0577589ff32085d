"""A run whose log was changed behind its back can be looked at and forked before the damage; nobody goes on
with it.
"""

import asyncio
from pathlib import Path

import apsw
import pytest
from reference import ANSWER, GOAL, HonestPerson, model, tools

from kestrel_lab.cli.commands.doctor import run_diagnostics
from kestrel_lab.core.errors import ApprovalRequired, Damaged
from kestrel_lab.core.events.union import ApprovalGiven, ModelAnswered
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime import start as start_module
from kestrel_lab.runtime.run import Run


def waiting(home: Path, workspace: Path) -> str:
    """A run that waits for approval, with a snapshot of its last event; the id."""
    session = Lab(home, env={}, tools=tools(lambda effect: None), checkpoint_every=1)
    with pytest.raises(ApprovalRequired) as stopped:
        asyncio.run(session.run(GOAL, model=model(), workspace=workspace))
    assert len(session.store.checkpoints(stopped.value.run_id)) > 0
    session.close()
    return stopped.value.run_id


def edit(home: Path, run_id: str) -> int:
    """Change what the model said first, as only somebody else would; the number of that event."""
    raw = apsw.Connection(str(home / "kestrel.db"))
    raw.execute("DROP TRIGGER events_update")
    (seq,) = raw.execute(
        "SELECT min(seq) FROM events WHERE run_id = ? AND type = ?", (run_id, ModelAnswered.type)
    ).fetchone()
    raw.execute(
        "UPDATE events SET body = json_set(body, '$.text', 'told otherwise') WHERE run_id = ? AND seq = ?",
        (run_id, seq),
    )
    raw.close()
    return int(seq)


def test_a_damaged_run_is_never_gone_on_with(tmp_path: Path, workspace: Path) -> None:
    """Resuming, forking behind the damage and deciding are refused with the event and what to do; a fork
    before it completes.
    """
    home, effects = tmp_path / "home", list[str]()
    run_id = waiting(home, workspace)
    seq = edit(home, run_id)
    session = Lab(home, env={}, tools=tools(effects.append))
    shown = session.get(run_id)
    refused = [
        lambda: asyncio.run(
            session.resume(run_id, model=model(), approver=HonestPerson(effects.__contains__))
        ),
        lambda: asyncio.run(session.fork(run_id, model=model())),
        lambda: asyncio.run(session.fork(run_id, at=seq, model=model())),
        lambda: shown.decide(ApprovalGiven(call="x", granted=True, by="ann", how="click")),
    ]
    for tried in refused:
        with pytest.raises(
            Damaged, match=f"damaged from event {seq} on: .*kestrel fork {run_id} --at {seq - 1}"
        ) as told:
            tried()
        assert (told.value.run_id, told.value.seq) == (run_id, seq)
    assert (effects, session.store.run(run_id).epoch) == ([], 0)
    child = asyncio.run(
        session.fork(run_id, at=seq - 1, model=model(), approver=HonestPerson(effects.__contains__))
    )
    assert (child.status, child.answer, child.damage) == (RunStatus.COMPLETE, ANSWER, None)
    session.close()


def test_a_damaged_run_is_shown_up_to_there(tmp_path: Path, workspace: Path) -> None:
    """Text, HTML and the page say so; what is behind the damage is not shown, and the doctor names the run.

    A report names the last hash.
    """
    home = tmp_path / "home"
    run_id = waiting(home, workspace)
    session = Lab(home, env={})
    sound = session.get(run_id)
    head = sound.report.head
    assert (sound.damage, head in sound.report(tmp_path / "a.html").read_text("utf-8")) == (None, True)
    session.close()
    seq = edit(home, run_id)
    lab = Lab(home, env={})
    shown = lab.get(run_id)
    assert [record.seq for record in shown.records()] == list(range(1, seq))
    told = f"run {run_id} is damaged from event {seq} on"
    assert all(
        told in text
        for text in (
            repr(shown.report),
            shown._repr_html_(),
            shown.report(tmp_path / "b.html").read_text("utf-8"),
        )
    )
    assert "told otherwise" not in repr(shown.report)
    found = {one.what: one for one in run_diagnostics(lab).findings}["  events"]
    assert (found.ok, f"{run_id} from event {seq} on" in found.found) == (False, True)
    lab.close()


def test_what_cannot_be_read_is_shown_up_to_there(tmp_path: Path, workspace: Path) -> None:
    """An event that is not an event any more, or no text, hides nothing of what came before."""
    home = tmp_path / "home"
    run_id = waiting(home, workspace)
    raw = apsw.Connection(str(home / "kestrel.db"))
    raw.execute("DROP TRIGGER events_update")
    raw.execute(
        "UPDATE events SET type = CAST(x'ff' AS TEXT), body = '[]' WHERE run_id = ? AND seq = 4", (run_id,)
    )
    raw.close()
    session = Lab(home, env={})
    assert len(session.get(run_id).records()) == 3
    with pytest.raises(Damaged, match="event 4"):
        asyncio.run(session.resume(run_id, model=model()))
    session.close()


def test_trusting_a_snapshot_is_caught(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant: where a snapshot stands for the events, a run with an edited event goes on as if nothing
    had happened.
    """
    home, effects = tmp_path / "home", list[str]()
    run_id = waiting(home, workspace)
    edit(home, run_id)

    def trusting(store: SessionStore, run: str) -> None:
        assert store.checkpoints(run)

    monkeypatch.setattr(start_module, "check_whole", trusting)
    session = Lab(home, env={}, tools=tools(effects.append))

    def go_on() -> Run:
        return asyncio.run(session.resume(run_id, model=model(), approver=HonestPerson(effects.__contains__)))

    assert go_on().status is RunStatus.COMPLETE
    session.close()
