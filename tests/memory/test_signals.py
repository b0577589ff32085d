"""Each signal of the ranking of notes: who said it, what it names, how sure it is, which conversation it is
of.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.memory.query import MemoryQueryEngine, Weights
from kestrel_lab.memory.table import NoteTable
from kestrel_lab.memory.vector_search import VectorIndex

HERE = "/here"


@pytest.fixture
def table(tmp_path: Path) -> Iterator[NoteTable]:
    """The notes of an empty log."""
    store = SessionStore(tmp_path / "kestrel.db")
    yield NoteTable(store)
    store.close()


@pytest.fixture
def order(table: NoteTable) -> Callable[..., list[str]]:
    """Keep notes and return the ids that a query finds, best first."""

    def ranked(query: str, *notes: Note, weights: Weights | None = None, top_k: int = 9) -> list[str]:
        for note in notes:
            table.add(note, HERE).result()
        return [note.id for note in MemoryQueryEngine(table, weights).rank(NoteQuery(query, top_k, HERE))]

    return ranked


def test_what_somebody_said_comes_first_where_the_query_names_them(order: Callable[..., list[str]]) -> None:
    """Of two notes with the same words that of the author comes first whom the query names, also where it is
    the older one.
    """
    said = [
        Note(id="c", text="Marmalade is fine.", author="Caroline", at=1.0),
        Note(id="m", text="Marmalade is nice.", author="Melanie", at=2.0),
    ]
    assert order("What does Caroline like, marmalade?", *said, weights=Weights(names=0)) == ["c", "m"]
    assert order("What does she like, marmalade?", weights=Weights(names=0)) == ["m", "c"]


def test_the_surer_of_two_notes_comes_first(order: Callable[..., list[str]]) -> None:
    """Confidence decides between notes that the words do not tell apart."""
    assert order(
        "roof",
        Note(id="sure", text="A red roof.", confidence=0.9, at=1.0),
        Note(id="unsure", text="A big roof.", confidence=0.2, at=2.0),
    ) == [
        "sure",
        "unsure",
    ]


def test_a_rare_name_counts_more_than_a_common_one(order: Callable[..., list[str]]) -> None:
    """The share of the query's entities goes by rarity; a person or a number is no entity in this."""
    common = [Note(id=f"n{at}", text="Formats follow ruff.toml here.", at=float(at)) for at in range(3)]
    rare = Note(id="rare", text="Formats follow black.toml here.", at=0.5)
    weights = Weights(names=0, entities=100)
    assert order("formats of ruff.toml and black.toml", *common, rare, weights=weights)[0] == "rare"
    assert order("formats of ruff.toml", weights=weights)[-1] == "rare"
    told = [
        Note(id="bob", text="Asked for tea, Bob did, and for cake.", at=1.0),
        Note(id="all", text="Tea, tea: tea for all!", at=2.0),
    ]
    assert order("who asks Bob for tea, tea, tea", *told, weights=Weights(names=0, entities=0)) == order(
        "who asks Bob for tea, tea, tea", weights=Weights(names=0, entities=100)
    )


def test_an_episode_of_a_conversation_about_it_comes_before_one_of_another(
    order: Callable[..., list[str]],
) -> None:
    """Where all else is equal, the episode whose run has more about the query comes first; notes that are no
    episodes are compared with both.
    """
    about = [
        Note(id=f"a{at}", text=f"The marmalade of shop {at} is orange.", kind="episode", run="a", at=1.0 + at)
        for at in range(3)
    ]
    once = [
        Note(id="b0", text="The marmalade of shop 3 is orange.", kind="episode", run="b", at=9.0),
        Note(id="b1", text="The weather of today is grey.", kind="episode", run="b", at=20.0),
    ]
    near = Weights(before=0, after=0)
    found = order("marmalade", *about, *once, weights=near)
    assert {*found[:3]} == {"a0", "a1", "a2"}
    assert order("marmalade", weights=Weights(before=0, after=0, session=0))[0] == "b0"
    fact = Note(id="fact", text="Marmalade marmalade.", at=0.5)
    assert (
        order("marmalade", fact, weights=near)[0] == "fact"
    )  # what fits best comes before what only has company


@pytest.mark.parametrize(
    ("query", "found"),
    [("utf", "part"), ("pitfall", "kind"), ("march 2026", "day")],
)
def test_a_note_is_found_by_what_it_names_is_and_when_it_was(
    order: Callable[..., list[str]], query: str, found: str
) -> None:
    """The words within a name, the kind of a note, and the day of an episode find it, though its text has
    none of them.
    """
    notes = [
        Note(id="part", text="parse_utf8() fails.", at=1.0),
        Note(id="kind", text="Nightly builds break.", kind="pitfall", at=1.0),
        Note(id="day", text="We met.", kind="episode", run="r", at=1_772_400_000.0),
        Note(id="noday", text="Dinner is at eight.", kind="fact", run="r", at=1_772_400_000.0),
    ]
    assert order(query, *notes) == [found]


class Topics:
    """Knows by their words what is about cars; keeps what it read."""

    name = "topics"

    def __init__(self, ordering: float) -> None:
        self.ordering, self.read = ordering, list[str]()

    def __call__(self, texts: Sequence[str]) -> Any:
        """Two numbers each: about cars, about something else."""
        self.read += texts
        about = np.array(
            [any(word in text.lower() for word in ("car ", "automobile")) for text in texts], dtype="f4"
        )
        return np.stack([about, 1 - about], axis=1)


@pytest.mark.parametrize(("ordering", "first"), [(0.0, "words"), (5.0, "meaning")])
def test_likeness_orders_notes_only_with_an_embedder_that_says_so(
    table: NoteTable, ordering: float, first: str
) -> None:
    """With `ordering` the likest note comes first though enough others share words; without, those that share
    words do. An author is read along.
    """
    topics = Topics(ordering)
    index = VectorIndex(table.store, lambda: topics)
    table.add(Note(id="words", text="On the table is the key.", at=1.0, author="Ann"), HERE).result()
    table.add(Note(id="meaning", text="An automobile.", at=1.0), HERE).result()
    assert index.ordering == ordering
    found = MemoryQueryEngine(table, vectors=index).rank(
        NoteQuery("a car on the table", 1 if ordering == 0 else 2, HERE)
    )
    assert found[0].id == first
    index.nearest("car ", HERE, 1)
    assert {"Ann: On the table is the key.", "An automobile."} <= {*topics.read}


def test_the_nearest_of_no_notes_are_none(table: NoteTable) -> None:
    """An empty workspace has nothing near, and none is asked for with 0; one is with 1."""
    index = VectorIndex(table.store, lambda: Topics(0.0))
    assert index.nearest("car ", HERE, 3) == {}
    table.add(Note(id="n", text="An automobile.", at=1.0), HERE).result()
    assert index.nearest("car ", HERE, 0) == {}
    assert index.nearest("car ", HERE, 1) == {1: 1.0}


def test_episodes_and_short_notes_neither_replace_nor_are_replaced(table: NoteTable) -> None:
    """What was said, and what counts for one run, stands beside what is true in all."""
    memory = NoteMemory(table.store, embedder=lambda: None)
    notes = [
        Note(id="said", text="The roof is green.", kind="episode", run="r", at=1.0),
        Note(id="short", text="The roof is grey.", term="short", at=2.0),
        Note(id="fact", text="The roof is red.", at=3.0),
        Note(id="said2", text="The roof is blue.", kind="episode", run="r", at=4.0),
        Note(id="short2", text="The roof is pink.", term="short", at=5.0),
    ]
    for note in notes:
        memory.keep(note, HERE)
    assert {
        note.id: note.replaced_by for note in table.by_id([note.id for note in notes], HERE).values()
    } == {note.id: "" for note in notes}


def test_the_last_fingerprint_replaces_the_one_before(table: NoteTable) -> None:
    """A workspace is in one state."""
    memory = NoteMemory(table.store, embedder=lambda: None)
    for at in (1.0, 2.0):
        memory.keep(
            Note(id=f"f{at:.0f}", text=f"12 files, {at:.0f} of Rust", kind="fingerprint", at=at), HERE
        )
    assert {note.id: note.replaced_by for note in table.by_id(["f1", "f2"], HERE).values()} == {
        "f1": "f2",
        "f2": "",
    }


def test_what_says_more_takes_the_place_of_its_own_kind_only(table: NoteTable) -> None:
    """A decision that repeats a fact with more words leaves the fact."""
    memory = NoteMemory(table.store, embedder=lambda: None)
    memory.keep(Note(id="fact", text="The tests run with make on the build server", at=1.0), HERE)
    memory.keep(
        Note(
            id="decision", text="The tests run nightly with make on the build server", kind="decision", at=2.0
        ),
        HERE,
    )
    assert table.by_id(["fact"], HERE)["fact"].replaced_by == ""
    memory.keep(Note(id="more", text="The unit tests run with make on the build server", at=3.0), HERE)
    assert table.by_id(["fact"], HERE)["fact"].replaced_by == "more"


def test_said_again_it_keeps_its_origin_and_its_time(table: NoteTable) -> None:
    """An untrusted note said again by others stays untrusted; a note that nothing replaced is of when it was
    said first.
    """
    memory = NoteMemory(table.store, embedder=lambda: None)
    for at in (1.0, 2.0):
        kept = memory.keep(Note(text="The roof is red.", taint="web", run=f"r{at}", at=at), HERE)
    assert (kept.taint, kept.at) == ("web", 1.0)
    trusted = [memory.keep(Note(text="Cats sleep.", run=f"r{at}", at=at), HERE) for at in (1.0, 2.0)]
    assert trusted[1].at == 1.0
    assert trusted[1].confidence > trusted[0].confidence


def test_a_forgotten_note_is_not_even_merged_with_another(table: NoteTable) -> None:
    """A note whose id was forgotten makes no other note surer."""
    memory = NoteMemory(table.store, embedder=lambda: None)
    gone = memory.keep(Note(id="gone", text="Cats sleep.", run="r1", at=1.0), HERE)
    memory.forget("gone", HERE)
    kept = memory.keep(Note(id="kept", text="Cats sleep.", run="r2", at=2.0), HERE)
    assert memory.keep(gone, HERE).id == ""
    assert table.by_id(["kept"], HERE)["kept"] == kept


def test_a_whole_id_selects_its_note_though_another_begins_with_it(table: NoteTable) -> None:
    """The beginning of an id stands for a note only where no note has it as its id."""
    memory = NoteMemory(table.store, embedder=lambda: None)
    for name, text in (("abc", "Cats sleep."), ("abcd", "Dogs bark.")):
        memory.keep(Note(id=name, text=text, at=1.0), HERE)
    assert [note.id for note in memory.forget("abc", HERE).notes] == ["abc"]


def test_recall_leaves_preferences_out_where_tags_are_asked_for(table: NoteTable) -> None:
    """A preference comes with every recall that has room, but with none of tags; and no more notes come than
    were asked for.
    """
    memory = NoteMemory(table.store, embedder=lambda: None)
    memory.keep(Note(id="likes", text="Short answers please.", kind="preference", at=1.0), HERE)
    memory.keep(Note(id="roof", text="The roof is red.", tags=("house",), at=2.0), HERE)

    def recalled(top_k: int, *tags: str) -> list[str]:
        return [note.id for note in asyncio.run(memory.recall(NoteQuery("roof", top_k, HERE, tags=tags)))]

    assert (recalled(2), recalled(1), recalled(2, "house")) == (["roof", "likes"], ["roof"], ["roof"])
