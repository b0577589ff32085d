"""Undo of calls of a run: files as they were, several calls in order, also after the end; nothing that others
changed is lost.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import in_process
import pytest
from waits import PATIENCE_S

from kestrel_lab import Lab
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import ApprovalAsked, ApprovalGiven, RunStarted, ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.approvals import undo
from kestrel_lab.runtime.approvals.undo import newest_run
from kestrel_lab.runtime.run import Run
from kestrel_lab.testing import ScriptedModel, Turn

THREE = [
    ("write_file", {"path": "a.txt", "content": "two\n"}),
    ("edit_file", {"path": "a.txt", "old": "two", "new": "three"}),
    ("write_file", {"path": "sub/new.txt", "content": "new\n"}),
]


def lab_of(folder: Path, *turns: object) -> Lab:
    """A lab whose model makes these calls, a turn each, and is then done."""
    return Lab(
        model=ScriptedModel([*([turn] for turn in turns), "done", "again"]),
        home=folder.parent / "home",
        approve="auto",
    )


def ran(lab: Lab, folder: Path) -> Run:
    """The run of the calls."""
    return lab.run_sync("change files", workspace=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A workspace with two files."""
    place = tmp_path / "work"
    place.mkdir()
    (place / "a.txt").write_text("one\n")
    (place / "b.bin").write_bytes(b"\0\xff")
    return place


def files(folder: Path) -> dict[str, bytes]:
    """What every file holds, the trash left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".kestrel" not in path.parts
    }


def test_three_calls_are_undone_in_order(folder: Path) -> None:
    """Each undo brings the files back to what they were before that call, and the last one to the
    beginning.
    """
    run = ran(lab_of(folder, *THREE), folder)
    left = files(folder)

    assert left == {"a.txt": b"three\n", "b.bin": b"\0\xff", "sub/new.txt": b"new\n"}
    assert run.undo().files == ["sub/new.txt"]
    assert files(folder) == {"a.txt": b"three\n", "b.bin": b"\0\xff"}
    run.undo()
    assert files(folder)["a.txt"] == b"two\n"
    assert str(run.undo()).endswith("(restored a.txt)")
    assert files(folder) == {"a.txt": b"one\n", "b.bin": b"\0\xff"}
    with pytest.raises(UsageError, match=r"no call of run .* can be undone"):
        run.undo()


def test_a_call_is_undone_with_all_that_came_after_it(folder: Path) -> None:
    """One undo from the first call on restores everything; what could be undone is in the log alone."""
    lab = lab_of(folder, *THREE)
    run = ran(lab, folder)
    first = next(event.call for event in run.events() if event.type == "tool_answered")
    undone = lab.get(run.id).undo(first)

    assert (len(undone.calls), undone.missing) == (3, {})
    assert files(folder) == {"a.txt": b"one\n", "b.bin": b"\0\xff"}


def test_deleted_files_come_back_as_they_were(folder: Path) -> None:
    """A binary file with its mode; then a file that was deleted and written anew, both calls in one undo."""
    (folder / "b.bin").chmod(0o755)
    run = ran(
        lab_of(folder, ("delete_file", {"path": "b.bin"}), ("delete_file", {"path": "a.txt"}), THREE[0]),
        folder,
    )
    first = next(event.call for event in run.events() if event.type == "tool_answered")
    run.undo(first)

    assert files(folder) == {"a.txt": b"one\n", "b.bin": b"\0\xff"}
    assert (folder / "b.bin").stat().st_mode & 0o777 == 0o755


def test_what_others_changed_since_is_not_lost(folder: Path) -> None:
    """A person's edit after the run stays, undo names the file and changes nothing at all; by force it
    goes.
    """
    run = ran(lab_of(folder, *THREE), folder)
    first = next(event.call for event in run.events() if event.type == "tool_answered")
    (folder / "a.txt").write_text("mine\n")

    with pytest.raises(UsageError, match=r"a\.txt changed since, by something else"):
        run.undo(first)
    assert files(folder)["sub/new.txt"] == b"new\n"
    run.undo(first, force=True)
    assert files(folder) == {"a.txt": b"one\n", "b.bin": b"\0\xff"}


def test_mutant_without_compare_and_swap_loses_an_edit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mutant that does not compare overwrites what a person wrote after the run."""
    run = ran(lab_of(folder, THREE[0]), folder)
    (folder / "a.txt").write_text("mine\n")
    monkeypatch.setattr(undo._Undo, "_changed_files", lambda *_: [])
    with pytest.raises(UsageError, match=r"nothing was undone: a\.txt: it was changed just now"):
        run.undo()
    assert files(folder)["a.txt"] == b"mine\n"
    second = ran(lab_of(folder, THREE[0]), folder)
    (folder / "a.txt").write_text("mine as well\n")
    monkeypatch.setattr(
        undo, "version_of", lambda _: undo.effects_of(second.records())[0].files["a.txt"]["after"]
    )
    second.undo()
    assert files(folder)["a.txt"] == b"mine\n"


def test_an_undo_after_the_end_is_an_event(folder: Path) -> None:
    """It is in the log behind the end, whole by its hashes; the model of the next turn is told, and a file
    taken back by hand is not asked about twice.
    """
    lab = lab_of(folder, THREE[0])
    run = ran(lab, folder)
    run.undo()
    again = lab.get(run.id)
    following = lab.run_sync("go on", follow=run.id)
    told = [
        message["text"] for message in following.events()[0].earlier["messages"] if message["role"] == "tool"
    ]

    assert [event.type for event in again.events()][-1] == "kernel_undone"
    assert lab.store.damage(run.id) is None
    assert again.status == "COMPLETE"
    assert told[0].endswith("[the user has undone this call since]")
    assert "undone" in str(again.report.view().rows)


def test_nothing_else_is_appended_to_an_ended_run(folder: Path) -> None:
    """The exception is for undos only."""
    lab = lab_of(folder, THREE[0])
    run = ran(lab, folder)
    other = next(event for event in run.events() if event.type == "tool_answered")

    with pytest.raises(Exception, match="E_RUN_TERMINAL"):
        lab.store.append(run.id, other).result()


def test_what_is_not_kept_any_more_is_named(folder: Path) -> None:
    """The store of old contents has a bound: what went from it cannot be restored, and the rest can."""
    run = ran(lab_of(folder, THREE[0], THREE[2]), folder)
    first = next(event.call for event in run.events() if event.type == "tool_answered")
    for kept in (folder.parent / "home" / "results").glob("*.txt"):
        kept.unlink()
    undone = run.undo(first)

    assert (undone.files, undone.missing) == (["sub/new.txt"], {"a.txt": "what it held is not kept any more"})


def test_the_command_undoes_a_run_that_is_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`kestrel undo --run RUN` in a terminal; without a run it asks for one."""
    run = ran(lab_of(folder, THREE[0]), folder)
    monkeypatch.setenv("KESTREL_HOME", str(folder.parent / "home"))
    unnamed, named = in_process.kestrel(folder, "undo"), in_process.kestrel(folder, "undo", "--run", run.id)

    assert "kestrel undo --run RUN" in unnamed.stderr
    assert named.stdout.strip().endswith("(restored a.txt)")
    assert files(folder)["a.txt"] == b"one\n"


def test_an_undo_while_the_run_works_is_told_to_its_model(folder: Path) -> None:
    """Between two calls: the model of the next turn reads that the first was undone, and a resumed run would,
    too.
    """
    told: list[str] = []

    def turn(request: ModelRequest) -> Turn:
        told[:] = [message.text for message in request.messages if message.role == "tool"]
        return [[THREE[0]], [THREE[2]], "done"][len(told)]

    async def approver(asked: ApprovalAsked) -> ApprovalGiven:
        if asked.args["path"] != "a.txt":
            run.undo()
        return ApprovalGiven(call=asked.call, granted=True, by="me", how="test")

    async def work() -> Run:
        nonlocal run
        run = Lab(model=ScriptedModel(turn), home=folder.parent / "home", approve="ask").start(
            "change files", workspace=folder, approver=approver
        )
        return await run.wait()

    run: Run
    run = asyncio.run(work())

    assert told[0].endswith("[the user has undone this call since]")
    assert "undone" not in told[1]
    assert files(folder) == {"a.txt": b"one\n", "b.bin": b"\0\xff", "sub/new.txt": b"new\n"}
    assert [event.type for event in run.events()].count("kernel_undone") == 1


def test_what_holds_a_secret_is_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The home has no copy of a key, so a file with one is not restored, and the others are."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-canary-77aa88bb99")
    (folder / "a.txt").write_text("key=sk-canary-77aa88bb99\n")
    run = ran(lab_of(folder, THREE[0], THREE[2]), folder)

    assert run.undo().files == ["sub/new.txt"]
    with pytest.raises(UsageError, match="can be undone"):
        run.undo()
    kept = [
        path
        for path in (folder.parent / "home").rglob("*")
        if path.is_file() and b"sk-canary-77aa" in path.read_bytes()
    ]
    assert kept == []


def test_the_newest_run_is_this_session_s_own(tmp_path: Path) -> None:
    """Of those with a call to be undone: neither a trial, nor a run that changed nothing, nor one of another
    session.
    """
    before: dict[str, Any] = {"a.txt": {"existed": False, "blob": "", "after": "v"}}

    def begin(store: SessionStore, name: str, *, changes: bool = True, **more: Any) -> None:
        store.create_run(name, RunStarted(goal="g", workspace=str(tmp_path), model="m", **more))
        store.append(
            name, ToolAnswered(call="c", step="s", tool="t", text="x", before=before if changes else {})
        ).result(PATIENCE_S)

    store = SessionStore(tmp_path / "k.db")
    assert newest_run(store) == ""
    begin(store, "mine")
    begin(store, "quiet", changes=False)
    begin(store, "trial", scenario="s")
    other = SessionStore(tmp_path / "k.db")
    assert newest_run(other) == ""
    begin(other, "theirs")
    assert (newest_run(store), newest_run(other)) == ("mine", "theirs")
    other.close()
    store.close()
