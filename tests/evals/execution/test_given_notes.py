"""Notes that a suite gives to the memory of its trials."""

import asyncio
from pathlib import Path

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.notes import Note
from kestrel_lab.evals.execution.trial import scenario_hash
from kestrel_lab.evals.seed_notes import GivenNote, store_seed_notes
from kestrel_lab.evals.suites.loader import load_suite
from kestrel_lab.testing import ListMemory

SUITE = """
name: s
defaults: {{notes: [{{name: everywhere, text: "All of us know this."}}]}}
scenarios:
  - id: a
    goal: what do we know
    notes: [{note}]
    checks: [{{recalled: [everywhere]}}]
"""


def written(folder: Path, note: str) -> Path:
    """A suite with one note beside the common one."""
    (folder / "s.yaml").write_text(SUITE.format(note=note), encoding="utf-8")
    return folder / "s.yaml"


def test_notes_of_a_suite_come_before_those_of_a_scenario_and_are_part_of_it(tmp_path):
    """A scenario has the common notes and its own, in this order, and is another one when a note changes."""
    (one,) = load_suite(
        written(tmp_path, "{name: own, text: Only here., kind: pitfall, tags: [x], age_days: 2, ttl_days: 3}")
    ).scenarios
    assert [note.name for note in one.notes] == ["everywhere", "own"]
    assert one.notes[1] == GivenNote(
        name="own", text="Only here.", kind="pitfall", tags=("x",), age_days=2, ttl_days=3
    )
    (other,) = load_suite(written(tmp_path, "{name: own, text: Only there.}")).scenarios
    assert scenario_hash(one) != scenario_hash(other)


@pytest.mark.parametrize(
    ("note", "told"),
    [
        ("{name: Own, text: x}", "lower-case letters and digits"),
        ("{name: own, text: x, kind: fakt}", "did you mean 'fact'"),
        ("{name: own, text: x, kind: procedure, taint: answer}", "the user's own words"),
        ("{name: own, text: x, ttl_days: 0}", "a ttl above 0"),
        ("{name: everywhere, text: x}", "two notes are called 'everywhere'"),
    ],
)
def test_a_note_that_no_memory_takes_is_told_with_its_line(tmp_path, note, told):
    """Before anything runs, with file and line."""
    with pytest.raises(UsageError, match=told) as error:
        load_suite(written(tmp_path, note))
    assert "s.yaml:7" in str(error.value)


def test_a_note_is_kept_as_if_it_had_been_for_long():
    """Its age, its end and whom it is from are as given; its id begins with its name."""
    memory = ListMemory()
    asyncio.run(
        store_seed_notes(
            memory, [GivenNote(name="old", text="x", taint="answer", age_days=2, ttl_days=3)], "/w"
        )
    )
    (note,) = memory.kept
    assert isinstance(note, Note)
    assert note.id.startswith("old")
    assert len(note.id) == len("old") + 8
    assert (note.taint, note.stated, note.expires - note.at) == ("answer", False, 3 * 24 * 3600)


def test_a_memory_that_cannot_forget_is_told():
    """A suite whose note is to be forgotten needs a memory that forgets."""
    with pytest.raises(UsageError, match="cannot forget"):
        asyncio.run(store_seed_notes(ListMemory(), [GivenNote(name="gone", text="x", forgotten=True)], "/w"))
