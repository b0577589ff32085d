"""Runs aligned: exactly where they are forks of each other, by calls and texts else."""

import asyncio
from pathlib import Path

import pytest
from recorded_runs import recording, store_recordings, transcript

from kestrel_lab.core.errors import UsageError
from kestrel_lab.evals.transcripts.alignment import align_transcripts
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

A, B, C = (("look", {"at": at}, f"saw {at}") for at in "abc")


@pytest.fixture
def lab(tmp_path: Path):
    """A lab with an empty log."""
    made = Lab(home=tmp_path / "home", env={})
    yield made
    made.close()


def states(*runs: tuple[object, ...]) -> list[str]:
    """How far each row of aligned runs is the same."""
    return [row.same for row in align_transcripts([transcript("go", *run) for run in runs]).rows]


def test_equal_steps_stand_beside_each_other() -> None:
    """What one run has more stands alone, and what follows is aligned again."""
    assert states((A, B, C, "done"), (A, C, "done")) == ["same", "same", "not in all", "same", "same"]


def test_how_far_a_call_is_the_same_is_said() -> None:
    """A call with another answer or other arguments corresponds, one of another tool does not."""
    other = ("look", {"at": "a"}, "saw nothing")
    assert states((A, "done"), (other, "done")) == ["same", "other answer", "same"]
    assert states((A, "done"), (B, "gone")) == ["same", "other arguments", "differs"]
    assert states((A, "done"), (("go", {"at": "a"}, "saw a"), "done")).count("not in all") == 2


def test_three_runs_are_aligned_at_once() -> None:
    """A row holds one step per run; runs that do the same have no first difference."""
    aligned = align_transcripts([transcript("go", *run) for run in ((A, B, "x"), (A, "x"), (A, C, B, "x"))])
    assert [len(row.steps) for row in aligned.rows] == [3] * len(aligned.rows)
    assert aligned.first == 2
    for number, run in enumerate(((A, B, "x"), (A, "x"), (A, C, B, "x"))):
        assert [row.steps[number].text for row in aligned.rows if row.steps[number]] == [
            step.text for step in transcript("go", *run).steps
        ]
    assert align_transcripts([transcript("go", A, "x")] * 3).first is None


def test_a_fork_is_aligned_exactly(lab: Lab, tmp_path: Path) -> None:
    """A fork and its parent share the events up to where they part, and both are shown from there."""
    (tmp_path / "a.txt").write_text("hello")
    read = [("read_file", {"path": "a.txt"})]

    async def work() -> tuple[str, str]:
        model = ScriptedModel([read, "hello"])
        one = await lab.run("read it", model=model, workspace=tmp_path)
        at = max(r.seq for r in one.records() if r.event.type == "model_called")
        return one.id, (await lab.fork(one.id, at=at, answer="bye", in_place=True, model=model)).id

    runs = asyncio.run(work())
    aligned = lab.align(*runs)
    parent, fork = aligned.runs
    shared = aligned.alignment.shared_events
    assert shared > 5
    assert [r.eid for r in parent.records[:shared]] == [r.eid for r in fork.records[:shared]]
    assert [step.text for step in aligned.first.steps] == ["hello", "bye"]
    assert f"{shared} events of one log" in aligned.headline
    assert "first difference" in repr(aligned)
    assert "first difference" in aligned._repr_html_()
    assert list(aligned.frame.query("first")[runs[1]]) == ["answer: bye"]


def test_what_is_foreign_is_text_on_the_page(lab: Lab, tmp_path: Path) -> None:
    """The page of a run that holds markup shows it and runs nothing."""
    runs = store_recordings(
        lab.store,
        [recording("go", ("look", {"at": "<b>"}, "<script>x</script>"), text) for text in ("a", "<i>")],
    )
    page = lab.align(*runs).report(tmp_path / "page.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_two_runs_that_are_there_are_asked_for(lab: Lab) -> None:
    """One run, one twice, and one that is not there are errors that say so."""
    [run] = store_recordings(lab.store, [recording("go", "x")])
    for runs, why in (([run], "two runs"), ([run, run], "itself"), ([run, "nosuch"], "nosuch")):
        with pytest.raises(UsageError, match=why):
            lab.align(*runs)
