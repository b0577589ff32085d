"""Runs are removed: their text is gone from every file, and what others share with them stays as it was."""

import asyncio
import os
import sqlite3
from pathlib import Path
from typing import Any

import apsw
import pytest
from in_process import home_of, kestrel

from kestrel_lab import Lab, tool
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import FilesTainted, RunStarted
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.evals.stored_trials import (
    EvalRow,
    merge_trial,
    store_run,
    store_scores,
    store_trial,
    stored_trials,
)
from kestrel_lab.eventlog import removal
from kestrel_lab.eventlog.removal import plan_removal, remove_from_log, removed_runs
from kestrel_lab.eventlog.run_status import AT_WORK
from kestrel_lab.runtime.security.file_taint import FileTaint
from kestrel_lab.runtime.workspace import removal as workspace_removal
from kestrel_lab.runtime.workspace.removal import (
    collect_garbage,
    plan_of,
    remove_in_parts,
    remove_runs,
    runs_older_than,
)
from kestrel_lab.testing import ScriptedModel
from kestrel_lab.tools.files.trash import TRASH
from kestrel_lab.tools.files.workspace import Workspace

SECRET = "zqtrunkx"


@tool(
    name="page",
    danger_level="safe",
    effect="pure",
    reads="untrusted",
    reaches="nothing",
    cache_ttl_seconds=3_600,
)
def page(name: str) -> str:
    """Return a long page."""
    return f"{name} " + "words " * 20_000


def lab_of(folder: Path, *turns: object) -> Lab:
    """A lab in a folder whose model answers so."""
    return Lab(folder / "home", ScriptedModel(list(turns)), tools=[page], approve="auto", env={})


def run(lab: Lab, folder: Path, goal: str, **more: Any) -> Any:
    """A run in the workspace."""
    (folder / "work").mkdir(exist_ok=True)
    return asyncio.run(lab.run(goal, workspace=folder / "work", **more))


def holding(folder: Path, word: str = SECRET) -> list[str]:
    """The files that hold a word."""
    return sorted(
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and word.encode() in path.read_bytes()
    )


def beginning(lab: Lab, run_id: str) -> object:
    """What a run was given of those before it."""
    started = lab.store.records(run_id)[0].event
    assert isinstance(started, RunStarted)
    return started.earlier


def test_the_text_of_a_removed_run_is_nowhere(tmp_path: Path) -> None:
    """Not in the log, its WAL, long results, blobs of changed files, the trash or the tool cache; the other
    run is whole, the log smaller.
    """
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "a.txt").write_text(f"{SECRET} in a file\n")
    (tmp_path / "work" / "b.txt").write_text(f"{SECRET} in another\n")
    calls = [("page", {"name": SECRET}), ("write_file", {"path": "c.txt", "content": SECRET})]
    more = [
        ("edit_file", {"path": "a.txt", "edits": [{"old": "in a file", "new": "gone"}]}),
        ("delete_file", {"path": "b.txt"}),
    ]
    reads = [("read_file", {"path": "a.txt"}), ("read_file", {"path": "b.txt"})]
    lab = lab_of(tmp_path, reads, [*calls, *more], f"{SECRET} is the answer")
    first = run(lab, tmp_path, f"find {SECRET}")
    other = run(lab, tmp_path, "another", model=ScriptedModel([[("page", {"name": "plain"})], "done"]))
    texts = list((tmp_path / "home" / "results").glob("*.txt"))
    assert holding(tmp_path / "home") and list((tmp_path / "work" / TRASH / first.id).iterdir())
    for name in ("a.txt", "c.txt"):
        (tmp_path / "work" / name).unlink()  # the person's own files are theirs
    removed = remove_runs(lab, first)
    assert removed.freed > 0 and "1 run removed" in repr(removed)
    assert holding(tmp_path) == []
    assert (
        not (tmp_path / "work" / TRASH / first.id).exists()
        and len(texts) > len(list((tmp_path / "home" / "results").glob("*.txt"))) > 0
    )
    assert (
        lab.store.damage(other.id) is None
        and lab.get(other.id).answer == "done"
        and "words" in other.results["answer.1.1"]
    )
    with pytest.raises(UsageError, match="was removed on"):
        lab.get(first.id)
    assert list(lab.runs().index) == [other.id]
    lab.close()
    assert holding(tmp_path) == []


def test_mutant_that_leaves_the_files_as_they_are_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the rewriting the write-ahead log still has the text."""
    lab = lab_of(tmp_path, f"{SECRET} is the answer")
    first = run(lab, tmp_path, "go")
    monkeypatch.setattr(removal, "rewrite_database", lambda _path: None)
    remove_runs(lab, first.id)
    assert holding(tmp_path)
    lab.close()


def test_a_fork_keeps_what_it_shares(tmp_path: Path) -> None:
    """Its events are the same and whole; what the parent did afterwards is gone, and with the fork all of
    it.
    """
    lab = lab_of(tmp_path, [("page", {"name": "shared"})], f"{SECRET} is the answer")
    parent = run(lab, tmp_path, "go")
    fork = asyncio.run(lab.fork(parent.id, model=ScriptedModel(lambda _request: "another answer")))
    before = lab.store.records(fork.id)
    assert "for " + fork.id in repr(remove_runs(lab, parent))
    assert lab.store.records(fork.id) == before and lab.store.damage(fork.id) is None
    assert holding(tmp_path) == [] and lab.get(fork.id).answer == "another answer"
    assert list(lab.runs().index) == [fork.id] and removed_runs(lab.store)[parent.id] > 0
    with pytest.raises(UsageError, match="was removed"):
        lab.get(parent.id)
    remove_runs(lab, fork)
    assert lab.store.query("SELECT count(*) FROM events") == [(0,)] and set(
        removed_runs(lab.store).values()
    ) == {0}
    lab.close()


def test_a_conversation_goes_on_when_its_beginning_is_removed(tmp_path: Path) -> None:
    """What was said is part of the follow-ups: they stay whole, also for another process, until they are
    removed, too.
    """
    lab = lab_of(tmp_path, "one", "two", "three")
    first = run(lab, tmp_path, f"first {SECRET}")
    second = run(lab, tmp_path, "second", follow=first)
    third = run(lab, tmp_path, "third", follow=second)
    said = beginning(lab, third.id)
    remove_runs(lab, second)
    lab.close()
    lab = lab_of(tmp_path, "four")
    assert lab.store.damage(third.id) is None
    assert beginning(lab, third.id) == said
    fourth = run(lab, tmp_path, "fourth", follow=third.id)
    assert fourth.status == "COMPLETE" and lab.store.damage(fourth.id) is None
    remove_runs(lab, first, children=True)
    assert (
        lab.runs().empty
        and holding(tmp_path) == []
        and lab.store.query("SELECT count(*) FROM events") == [(0,)]
    )
    lab.close()


def test_a_run_at_work_is_refused(tmp_path: Path) -> None:
    """Nothing is removed, the others that were named included."""
    lab = lab_of(tmp_path, "one")
    first = run(lab, tmp_path, "go")
    lab.store.create_run("busy", RunStarted(goal="g", workspace=str(tmp_path), model="m"))
    lab.store.flush()
    AT_WORK.add((lab.store.session, "busy"))
    with pytest.raises(UsageError, match="busy is at work: stop it first"):
        remove_runs(lab, first, "busy")
    with pytest.raises(UsageError, match="no run"):
        remove_runs(lab, first, "r0")
    assert len(lab.store.runs()) == 2
    AT_WORK.discard((lab.store.session, "busy"))
    remove_runs(lab, first, "busy")
    assert lab.store.runs() == []
    lab.close()


def test_a_plan_that_is_out_of_date_is_not_carried_out(tmp_path: Path) -> None:
    """A follow-up that began since shares what would go: the plan is made anew."""
    lab = lab_of(tmp_path, "one", "two")
    first = run(lab, tmp_path, "go")
    plan = plan_removal(lab.store, [first.id])
    run(lab, tmp_path, "second", follow=first)
    assert not remove_from_log(lab.store, plan) and lab.store.damage(first.id) is None
    lab.close()


def trial(run_id: str) -> EvalRow:
    """A trial whose run that is."""
    result = {"outcome": "pass", "reason": SECRET, "run": run_id, "model_kind": "scripted"}
    return EvalRow(
        id="t",
        scenario="s",
        result=result,
        metrics={},
        git_sha="a",
        created_at=1,
        suite="u",
        config="c",
        epoch=1,
        key="k",
    )


def test_results_of_a_suite_go_with_their_run_and_do_not_come_back(tmp_path: Path) -> None:
    """The trial's row and scores hold text of the run; a server from which results are pulled does not bring
    them back.
    """
    lab = lab_of(tmp_path, "one")
    first = run(lab, tmp_path, "go")
    store_trial(lab.store, trial(first.id)).result()
    store_scores(lab.store, trial(first.id), "t", "h").result()
    events = [(record.at, record.event) for record in lab.store.records(first.id)]
    assert (
        "1 trial of suites" in repr(remove_runs(lab, first))
        and [*stored_trials(lab.store)] == []
        and holding(tmp_path) == []
    )
    assert not store_run(lab.store, first.id, events)
    merge_trial(lab.store, trial(first.id)).result()
    assert [*stored_trials(lab.store)] == [] and lab.store.query("SELECT count(*) FROM runs") == [(0,)]
    lab.close()


def test_files_that_a_removed_run_wrote_stay_tainted(tmp_path: Path) -> None:
    """Of what others said nothing is kept, but that a file holds words of others is."""
    lab = lab_of(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "sum.md").write_text("words that others wrote, at some length")
    entry = FileTaint(lambda: lab.store).described(Workspace(tmp_path / "work"), "sum.md", name=False)
    event = FilesTainted(call="c", step="s", began=1.0, source=SECRET, ended=True, files=[entry])
    lab.store.create_run("w", RunStarted(goal="g", workspace=str(tmp_path / "work"), model="m"))
    lab.store.append("w", event)
    lab.store.flush()
    lab.store.release("w").result()
    remove_runs(lab, "w")
    assert holding(tmp_path / "home") == []
    again = FileTaint(lambda: lab.store)
    again.refresh()
    assert "removed" in again.source(str(tmp_path / "work"), "sum.md")
    lab.close()


def test_runs_of_an_age(tmp_path: Path) -> None:
    """Those of suites only where they are asked for."""
    lab = lab_of(tmp_path)
    for name, at, scenario in (("old", 1.0, ""), ("trial", 1.0, "s"), ("new", 4e9, "")):
        lab.store.create_run(name, RunStarted(goal="g", workspace="/w", model="m", scenario=scenario), at=at)
        lab.store.flush()
        lab.store.release(name).result()
    assert runs_older_than(lab, "30d") == ["old"]
    assert sorted(runs_older_than(lab, "1.5 h", trials=True)) == ["old", "trial"]
    for age in ("", "30", "d", "-1d", "30y"):
        with pytest.raises(UsageError, match="say a number and m, h, d or w"):
            runs_older_than(lab, age)
    lab.close()


def test_garbage_is_what_nobody_names(tmp_path: Path) -> None:
    """A kept text that no event names goes once it is an hour old; one that is named stays."""
    lab = lab_of(tmp_path, [("page", {"name": "a"})], "done")
    run(lab, tmp_path, "go")
    results = tmp_path / "home" / "results"
    named = {path.name for path in results.glob("*.txt")}
    (new := results / f"{'a' * 32}.txt").write_text("on its way")
    (old := results / f"{'b' * 32}.txt").write_text("of a run that was killed")
    for path in (old, *(results / name for name in named)):
        os.utime(path, (1, 1))
    assert collect_garbage(lab).texts == 1
    assert {path.name for path in results.glob("*.txt")} == named | {new.name}
    lab.close()


def test_the_command_shows_what_goes_and_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --yes and without a person nothing is removed; wrong words are answered."""
    (tmp_path / "s.yaml").write_text("rules:\n- when: .\n  turns: [done]\n")
    kestrel(tmp_path, "run", f"find {SECRET}", "--model", "scripted:s.yaml")
    with Lab(home=home_of(tmp_path), env={}) as lab:
        (run_id,) = lab.runs().index
    shown = kestrel(tmp_path, "runs", "remove", run_id).stdout
    assert (
        SECRET in shown
        and "1 run to be removed, for good" in shown
        and "nothing was removed: add --yes" in shown
    )
    assert run_id in kestrel(tmp_path, "runs").stdout
    assert "name runs, or say --older-than" in kestrel(tmp_path, "runs", "remove").stderr
    assert "no run is older than 30d" in kestrel(tmp_path, "runs", "remove", "--older-than", "30d").stdout
    assert "1 run removed" in kestrel(tmp_path, "runs", "remove", run_id, "--yes").stdout
    assert (
        "no runs in" in kestrel(tmp_path, "runs").stdout
        and "was removed on" in kestrel(tmp_path, "show", run_id).stderr
    )
    assert "0 kept texts" in kestrel(tmp_path, "gc").stdout


def test_other_connections_still_delete_nothing(tmp_path: Path) -> None:
    """The rules hold beside a removal: a foreign connection deletes no event of a run that is not removed."""
    lab = lab_of(tmp_path, "one", "two")
    first, second = run(lab, tmp_path, "go"), run(lab, tmp_path, "on")
    remove_runs(lab, first)
    lab.close()
    with sqlite3.connect(tmp_path / "home" / "kestrel.db") as raw:
        for sql in (
            "DELETE FROM events",
            f"DELETE FROM runs WHERE id = '{second.id}'",
            "DELETE FROM removals",
        ):
            with pytest.raises(sqlite3.IntegrityError, match="E_APPEND_ONLY"):
                raw.execute(sql)
    raw.close()


def test_files_kept_for_forks_go_with_the_runs_that_had_them(tmp_path: Path) -> None:
    """What snapshots hold of a removed run's files is gone, from bundles too, and what others share with it
    can still be had.
    """
    work = tmp_path / "work"
    work.mkdir()
    for number in range(12):
        (work / f"{number}.txt").write_text(f"plain {number}\n")
    write = ("write_file", {"path": "new.txt", "content": f"{SECRET}\n"})
    lab = lab_of(
        tmp_path, [write], "done", [("bash", {"command": "rm new.txt; echo more > other.txt"})], "done"
    )
    first, second = run(lab, tmp_path, "go"), run(lab, tmp_path, "and on", approve="auto:critical")
    assert any(name.startswith("home/snapshots/") for name in holding(tmp_path))
    (work / "new.txt").unlink(missing_ok=True)
    remove_runs(lab, first, second)
    assert holding(tmp_path) == []
    third = run(lab, tmp_path, "again", model=ScriptedModel([[write], "done"]))
    fork = asyncio.run(lab.fork(third.id, at=1, model=ScriptedModel(lambda _request: "done")))
    copy = Path(str(fork.files.folder))
    assert (copy / "3.txt").read_text() == "plain 3\n" and not (copy / "new.txt").exists()
    lab.close()


def test_a_private_copy_goes_with_the_last_run_that_works_in_it(tmp_path: Path) -> None:
    """A follow-up of a fork works on in the fork's copy: removing the fork leaves it, removing the follow-up
    too does not.
    """
    (tmp_path / "work").mkdir()
    lab = lab_of(tmp_path, [("write_file", {"path": "a.txt", "content": "a\n"})], "done")
    parent = run(lab, tmp_path, "go")
    fork = asyncio.run(lab.fork(parent.id, at=1, model=ScriptedModel(lambda _request: "done")))
    copy = Path(str(fork.files.folder))
    after = asyncio.run(lab.run("go on", follow=fork, model=ScriptedModel(lambda _request: "done")))
    assert Path(str(after.files.folder)) == copy
    remove_runs(lab, fork)
    assert copy.is_dir()
    remove_runs(lab, after)
    assert not copy.exists()
    lab.close()


def test_many_runs_are_removed_in_parts_that_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after the first part, its runs are gone with all that they kept, and the others are whole; the
    same command then removes those, though forks share their events.
    """
    monkeypatch.setattr(workspace_removal, "_PART", 3)
    lab = lab_of(tmp_path, *["done"] * 20)
    runs = [run(lab, tmp_path, f"{SECRET} {number}") for number in range(4)]
    forks = [asyncio.run(lab.fork(one.id)) for one in runs]
    names = [one.id for one in (*runs, *forks)]
    parts = remove_in_parts(lab, plan_of(lab, names))
    assert [next(parts).removed, next(parts).removed] == [0, 3]
    parts.close()
    left = {row.id for row in lab.store.runs()}
    assert len(left) == 5 and {one.id for one in runs} <= left, "the youngest go first"
    assert all(lab.store.damage(name) is None for name in left)
    ends = [part.removed for part in remove_in_parts(lab, plan_of(lab, sorted(left)))]
    assert ends == [0, 3, 5, 5]
    assert (lab.store.runs(), set(removed_runs(lab.store).values())) == ([], {0})
    lab.close()
    assert holding(tmp_path / "home") == []


def test_the_log_does_not_grow_while_many_runs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The write-ahead log holds one part; the mutant, which removes all at once, writes as much as there
    was.
    """
    grown = {}
    for part in (20, 1_000):
        monkeypatch.setattr(workspace_removal, "_PART", part)
        lab = Lab(tmp_path / str(part), env={})
        for number in range(400):
            lab.store.create_run(f"r{number}", RunStarted(goal="g" * 60_000, workspace="/w", model="m"))
            lab.store.transition(f"r{number}", RunStatus.CANCELLED, source=RunStatus.PLANNING)
        lab.store.flush()
        raw = apsw.Connection(str(lab.store.path))
        raw.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        raw.close()
        for reached in remove_in_parts(lab, plan_of(lab, [f"r{number}" for number in range(400)])):
            if reached.removed == 400:
                break
        grown[part] = Path(f"{lab.store.path}-wal").stat().st_size
        lab.close()
    assert grown[20] * 2 < grown[1_000]


def test_runs_that_another_process_removes_meanwhile_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two removals at once of the same runs end well, both."""
    monkeypatch.setattr(workspace_removal, "_PART", 1)
    lab = lab_of(tmp_path, *["done"] * 3)
    runs = [run(lab, tmp_path, f"goal {number}") for number in range(3)]
    parts = remove_in_parts(lab, plan_of(lab, [one.id for one in runs]))
    assert next(parts).removed == 0
    remove_runs(lab, runs[2], runs[1])
    *_, last = parts
    assert (last.done, lab.store.runs()) == (True, [])
    lab.close()
