"""The runs of a log: tables, decisions on what they wait for, and reports of runs that went well, failed or
were stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kestrel_lab.core.errors import RunFailed, UsageError
from kestrel_lab.core.run_types import Limits
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.run import Run, RunHistory, checkpoints_frame
from kestrel_lab.testing import ScriptedModel


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Lab]:
    """A session that asks before it changes anything."""
    made = Lab(tmp_path / "home", env={}, sandbox="S0", containment="off", checkpoint_every=1)
    yield made
    made.close()


def run(session: Lab, *turns: Any, **options: Any) -> Run[Any]:
    """A run of scripted turns in a workspace of one file."""
    folder = session.store.path.parent.parent / "work"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("a\n")
    return asyncio.run(
        session.run("look\ninto it", model=ScriptedModel(list(turns)), workspace=folder, **options)
    )


READ = [("read_file", {"path": "a.txt"})]


def test_runs_are_listed_the_newest_first(session: Lab) -> None:
    """With a status that says what can be done, and a model that says it was a script."""
    history = RunHistory(session.store)
    assert (len(history.runs()), history.count(), list(history.runs().columns)) == (
        0,
        0,
        ["status", "goal", "model", "started"],
    )
    first, second = run(session, "one"), run(session, "two")
    frame = history.runs()
    assert list(frame.index) == [second.id, first.id]
    assert (history.count(), set(frame["goal"]), set(frame["status"])) == (2, {"look into it"}, {"COMPLETE"})
    assert all(model.endswith("(scripted)") for model in frame["model"])
    assert str(frame["started"].dtype) == "datetime64[ms, UTC]"
    assert list(history.runs(limit=1).index) == [second.id]
    with pytest.raises(UsageError, match=first.id):
        history.get(first.id[:-1] + "?")


def test_snapshots_are_listed_with_what_they_hold(session: Lab) -> None:
    """The number of the last event in each is the index; without any the table is empty."""
    made = run(session, READ, READ, "done")
    frame = RunHistory(session.store).checkpoints(made.id)
    assert (
        list(frame.columns) == ["reason", "bytes", "created", "run", "usable"] and frame.index.name == "seq"
    )
    assert (
        len(frame) >= 1
        and set(frame["run"]) == {made.id}
        and frame["usable"].all()
        and (frame["bytes"] > 0).all()
    )
    assert list(frame.index) == sorted(frame.index, reverse=True)
    assert len(checkpoints_frame(())) == 0
    with pytest.raises(UsageError):
        RunHistory(session.store).checkpoints("none")


def test_two_runs_of_a_log_are_compared(session: Lab) -> None:
    """By their ids."""
    first, second, third = run(session, "one"), run(session, "one"), run(session, "other")
    history = RunHistory(session.store)
    assert history.diff(first.id, second.id).same
    parted = history.diff(first.id, third.id)
    assert not parted.same and "share" in parted.headline
    assert [(one.id, one.answer) for one in history.conversation(third.id)] == [(third.id, "other")]


def test_nothing_is_decided_where_nothing_waits(session: Lab) -> None:
    """The error says what the run is."""
    made = run(session, "done")
    with pytest.raises(UsageError, match=f"run {made.id} is COMPLETE and waits for no approval"):
        RunHistory(session.store).decide(made.id, granted=True, by="me", how="test")


def test_a_report_says_how_to_go_on_with_a_run_that_reached_a_limit(session: Lab) -> None:
    """The option that raises it, on the command line and in code; a run that went well has no way on."""
    good = run(session, "done")
    assert (good.report.way_on, good.report.interrupted, good.report.status.word) == ("", False, "COMPLETE")
    stopped = run(session, READ, READ, READ, limits=Limits(cycles=2))
    assert stopped.report.way_on == (
        f"go on with a higher limit: kestrel run --resume {stopped.id} --cycles N, or: await "
        f"lab.resume({stopped.id!r}, limits=Limits(cycles=N))"
    )
    assert stopped.report.limits.cycles == 2
    assert stopped.report.way_on in repr(stopped.report)
    with pytest.raises(UsageError, match="was not asked for a value"):
        _ = stopped.value
    typed = run(session, READ, READ, READ, limits=Limits(cycles=2), output=int)
    with pytest.raises(
        RunFailed,
        match=f"run {typed.id} has no value, it ended FAILED: the limit of 2 model turns is reached",
    ):
        _ = typed.value


def test_the_results_of_calls_are_kept_by_call(session: Lab) -> None:
    """As a table with where each is kept; an unknown call is told with the nearest."""
    made = run(session, READ, "done")
    results = made.results
    (call,) = results
    assert (results[call], len(results), call in results, results.path(call), results.path("x")) == (
        "a\n",
        1,
        True,
        None,
        None,
    )
    assert results.table() == (
        ("call", "tool", "characters", "kept"),
        [(call, "read_file", "2", "in the log")],
    )
    with pytest.raises(UsageError, match="no call 'zz' of the run was answered"):
        _ = results["zz"]


def test_a_report_shows_a_run_as_it_was_at_an_event(session: Lab, tmp_path: Path) -> None:
    """And is a page that stands alone; an event before the first is refused."""
    made = run(session, READ, "the file says a")
    whole, early = str(made.report.view()), made.report.view(at=2)
    assert made.report.view(at=10_000) is not None and whole is not None and early is not None
    with pytest.raises(UsageError, match=r"has no event 0: its first is 1, its last \d+"):
        made.report.view(at=0)
    page = made.report(tmp_path / "deep" / "page.html")
    text = page.read_text()
    assert "the file says a" in text and made.report.head in text and "<script" not in text
    assert made.report.model.endswith("(scripted)")
    assert made.report.stages().empty and len(made.report.claims) == 1
