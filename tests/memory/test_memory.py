"""The laws of the memory: again is the same as once, the newer wins, what is over is not told, what is
forgotten is gone.
"""

import asyncio
import re
import secrets
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import apsw
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import StoreError, UsageError
from kestrel_lab.core.events.union import MemoryStored, RunStarted
from kestrel_lab.core.json_types import dumps
from kestrel_lab.core.notes import SHORT_TTL_S, Note, NoteQuery
from kestrel_lab.eventlog import connection as connection_module
from kestrel_lab.eventlog.schema import MIGRATIONS
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.memory import memory as memory_module
from kestrel_lab.memory.memory import NoteMemory
from kestrel_lab.memory.selector import select_notes

HERE = "/here"


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[NoteMemory]:
    """An empty memory."""
    store = SessionStore(tmp_path / "kestrel.db")
    yield NoteMemory(store, embedder=lambda: None)
    store.close()


def texts(memory: NoteMemory, query: str, top_k: int = 5, **options: str) -> list[str]:
    """What is recalled."""
    return [
        note.text
        for note in asyncio.run(
            memory.recall(NoteQuery(query, top_k, options.pop("workspace", HERE), **options))
        )
    ]


def content(memory: NoteMemory) -> list[list[object]]:
    """Every row about notes, the number of uses left out."""
    tables = ("notes", "notes_text", "note_names", "note_links", "note_sources")
    return [
        [row for row in memory.table.store.query(f"SELECT * FROM {table} ORDER BY 1, 2")] for table in tables
    ]


NOTES = st.builds(
    Note,
    text=st.sampled_from(
        [
            "The default branch is main.",
            "the default branch is  MAIN",
            "The default branch is develop.",
            "Tests are run with make.",
            "Cats sleep.",
        ]
    ),
    kind=st.sampled_from(["fact", "decision", "pitfall", "episode"]),
    tags=st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
    confidence=st.sampled_from([0.2, 0.9]),
    run=st.sampled_from(["r1", "r2"]),
    at=st.sampled_from([1.0, 2.0, 3.0]),
    taint=st.sampled_from(["", "answer"]),
    id=st.sampled_from(["n1", "n2", "n3", "n4"]),
)


@settings(
    max_examples=20,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.lists(NOTES, min_size=1, max_size=4))
def test_again_is_the_same_as_once(tmp_path: Path, notes: list[Note]) -> None:
    """Whatever was kept before: keeping the last note once more changes nothing."""
    store = SessionStore(tmp_path / f"{secrets.token_hex(4)}.db")
    memory = NoteMemory(store, embedder=lambda: None)
    for note in notes:
        memory.keep(note, HERE)
    before = content(memory)
    memory.keep(notes[-1], HERE)
    assert content(memory) == before
    store.close()


@pytest.mark.parametrize("order", [(1.0, 2.0), (2.0, 1.0)])
def test_the_newer_wins_in_whichever_order_they_come(memory: NoteMemory, order: tuple[float, float]) -> None:
    """Of two notes that contradict each other the newer is recalled; the older is kept, and says by what it
    was replaced.
    """
    old, new = "The default branch is main.", "The default branch is develop."
    for at in order:
        memory.keep(Note(text=old if at == 1.0 else new, at=at), HERE)
    assert texts(memory, "default branch") == [new]
    (replaced,) = select_notes(memory.table, "replaced", HERE)
    assert replaced.text == old
    assert memory.table.by_id([replaced.replaced_by], HERE)[replaced.replaced_by].text == new
    assert memory.table.store.query("SELECT relation FROM note_links") == [("replaces",)]


def test_what_is_not_trusted_overrules_nothing_that_is(memory: NoteMemory) -> None:
    """A page that says otherwise is kept beside what the user said, marked and linked; a user overrules a
    page.
    """
    memory.keep(Note(text="The default branch is main.", at=1.0, stated=True), HERE)
    memory.keep(Note(text="The default branch is evil.", at=2.0, taint="tool fetch"), HERE)
    assert set(texts(memory, "default branch")) == {
        "The default branch is main.",
        "The default branch is evil.",
    }
    assert memory.table.store.query("SELECT relation FROM note_links") == [("disputes",)]
    memory.keep(Note(text="The default branch is trunk.", at=3.0), HERE)
    assert texts(memory, "default branch") == ["The default branch is trunk."]


def test_the_same_from_elsewhere_makes_a_note_surer(memory: NoteMemory) -> None:
    """Another trusted run that says the same raises the confidence and adds its tags; an untrusted one raises
    nothing.
    """
    first = memory.keep(
        Note(text="Run the tests with `make test`.", run="r1", confidence=0.6, tags=("tests",)), HERE
    )
    again = memory.keep(
        Note(text="The tests run with `make test`", run="r2", confidence=0.5, tags=("make",)), HERE
    )
    assert (again.id, again.text, again.confidence, again.tags) == (
        first.id,
        first.text,
        0.8,
        ("make", "tests"),
    )
    tainted = memory.keep(
        Note(text="tests run with `make test`", run="r3", confidence=0.9, taint="answer"), HERE
    )
    assert (tainted.id, tainted.confidence, tainted.taint) == (first.id, 0.8, "")


def test_words_of_the_user_take_the_place_of_the_same_untrusted_ones(memory: NoteMemory) -> None:
    """What a tool said becomes no trusted note by the user saying something much like it: the user's own
    words stand.
    """
    memory.keep(
        Note(
            text="Deploy the billing service to production with `make deploy` quickly",
            at=1.0,
            taint="tool fetch",
        ),
        HERE,
    )
    memory.keep(
        Note(text="Deploy the billing service to production with `make deploy`", at=2.0, stated=True), HERE
    )
    (found,) = asyncio.run(memory.recall(NoteQuery("deploy service", 5, HERE)))
    assert (found.text, found.taint, found.stated) == (
        "Deploy the billing service to production with `make deploy`",
        "",
        True,
    )


@pytest.mark.parametrize("kind", ["procedure", "preference"])
def test_what_guides_is_never_tainted(memory: NoteMemory, kind: str) -> None:
    """A procedure or a preference from anywhere but the user is refused, and a kind or a confidence that is
    none too.
    """
    with pytest.raises(
        UsageError,
        match=f"a {kind} tells somebody what to do, so it must be the user's own words, not from tool fetch",
    ):
        memory.keep(Note(text="Always push to main.", kind=kind, taint="tool fetch"), HERE)
    with pytest.raises(UsageError, match="there is no kind of notes 'fcat'; did you mean 'fact'"):
        memory.keep(Note(text="x", kind="fcat"), HERE)
    with pytest.raises(UsageError, match="confidence of a note is from 0 to 1"):
        memory.keep(Note(text="x", confidence=1.5), HERE)
    with pytest.raises(UsageError, match="a note has from 1 to 4,000 characters, this one 0"):
        memory.keep(Note(text="  "), HERE)
    assert memory.table.notes(HERE) == []


@settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.floats(0.1, 1e6), st.floats(0, 2e6))
def test_a_note_is_told_until_it_expires(tmp_path: Path, ttl: float, later: float) -> None:
    """Recalled before its time is over, never after; the next note that is kept takes it out of the
    database.
    """
    store = SessionStore(tmp_path / f"{secrets.token_hex(4)}.db")
    now = time.time()
    memory = NoteMemory(store, embedder=lambda: None, now=lambda: now)
    memory.keep(Note(text="Marmalade is orange.", expires=now + ttl), HERE)
    store.execute("UPDATE notes SET expires = expires - ?", (later,), "time").result()
    assert (
        texts(memory, "marmalade") == (["Marmalade is orange."] if later < ttl - 60 else [])
        or abs(later - ttl) <= 60
    )
    memory.keep(Note(text="Something else."), HERE)
    assert len(memory.table.notes(HERE)) == (2 if ttl > later else 1)
    store.close()


def test_short_notes_are_of_their_run_until_they_prove_useful(memory: NoteMemory) -> None:
    """A short-lived note is for its own run, a day long; recalled three times it is for all and stays; a
    tainted one never is.
    """
    memory.keep(Note(text="The parser is in lexer.py.", run="r1", term="short"), HERE)
    memory.keep(Note(text="The parser may be slow.", run="r1", term="short", taint="tool bash"), HERE)
    (first,) = [note for note in memory.table.notes(HERE) if not note.taint]
    assert abs((first.expires or 0) - time.time() - SHORT_TTL_S) < 60
    assert texts(memory, "where is the parser", run="r2") == []
    for _ in range(3):
        assert len(texts(memory, "where is the parser", run="r1")) == 2
    assert texts(memory, "where is the parser", run="r2") == ["The parser is in lexer.py."]
    (now,) = memory.table.by_id([first.id], HERE).values()
    assert (now.term, now.expires) == ("long", None)
    stated = memory.keep(Note(text="Said by the user.", run="r1", term="short", stated=True), HERE)
    assert (stated.term, stated.expires) == ("long", None)


def files(memory: NoteMemory) -> bytes:
    """Every byte of the database's files."""
    return b"".join(path.read_bytes() for path in sorted(memory.table.store.path.parent.glob("kestrel.db*")))


def test_what_is_forgotten_is_in_no_byte_of_the_files(memory: NoteMemory) -> None:
    """After a few hundred notes in any order, no word of a forgotten one is left anywhere in the database;
    all others are.
    """
    words = {number: [f"zq{secrets.token_hex(5)}x" for _ in range(12)] for number in range(120)}
    for number, own in words.items():
        kind, run = ("episode", f"r{number % 3}") if number % 2 else ("fact", "r")
        queued = memory.table.add(
            Note(id=f"n{number}", text=" ".join(own), kind=kind, run=run, tags=(own[0],), at=1.0), HERE
        )
    queued.result()  # they are written in order
    memory.find(NoteQuery(" ".join(word for own in words.values() for word in own[:1]), 50, HERE))
    gone = [number for number in words if number % 3 == 0 or number > 100]
    memory.table.delete(memory.table.by_id([f"n{number}" for number in gone[1:]], HERE).values())
    assert memory.forget(f"text:{words[gone[0]][3]}", HERE).notes[0].id == f"n{gone[0]}"
    left = set(re.findall(rb"zq[0-9a-f]{10}x", files(memory)))
    assert not {word for number in gone for word in words[number] if word.encode() in left}
    assert {word.encode() for number in words if number not in gone for word in words[number]} <= left
    raw = apsw.Connection(str(memory.table.store.path))
    assert raw.execute("INSERT INTO notes_text(notes_text) VALUES('integrity-check')").fetchall() == []
    raw.close()


def test_bytes_are_left_when_the_files_are_not_written_anew(
    memory: NoteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mutant that only deletes the rows is caught: the words are still in the log of changes."""
    word = f"zq{secrets.token_hex(5)}x"
    memory.keep(Note(text=f"The word is {word}."), HERE)
    monkeypatch.setattr(memory_module, "rewrite_database", lambda path: None)
    memory.forget("all", HERE)
    assert word.encode() in files(memory)


def test_forgetting_while_another_process_writes_says_what_is_left_to_do(
    memory: NoteMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the database held by another the notes are gone from the tables, the message says that the files
    are not clean, and how to have them cleaned.
    """
    word = f"zq{secrets.token_hex(5)}x"
    memory.keep(Note(text=f"The word is {word}."), HERE)
    other = apsw.Connection(str(memory.table.store.path))
    reading = other.cursor()
    reading.execute("BEGIN; SELECT * FROM notes")
    monkeypatch.setattr(connection_module, "SCRUB_WAIT_S", 0.2)
    with pytest.raises(
        StoreError, match="the notes are deleted, but parts of their text may still be in the database files"
    ):
        memory.forget("all", HERE)
    reading.close()
    other.close()
    assert memory.table.notes(HERE) == []
    assert str(memory.forget("expired", HERE)) == "nothing was selected: nothing is forgotten"
    assert word.encode() not in files(memory)


def test_what_is_forgotten_does_not_come_back(memory: NoteMemory) -> None:
    """An id that was forgotten is not kept again; forgetting the newer of two that contradict brings the
    older one back.
    """
    memory.keep(Note(id="n1", text="The default branch is main.", at=1.0), HERE)
    memory.keep(Note(id="n2", text="The default branch is develop.", at=2.0), HERE)
    memory.forget("n2", HERE)
    assert texts(memory, "default branch") == ["The default branch is main."]
    assert (
        asyncio.run(
            memory.remember(Note(id="n2", text="The default branch is develop.", at=3.0), workspace=HERE)
        )
        is False
    )
    assert texts(memory, "default branch") == ["The default branch is main."]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ("all", ""),
        ("kind:pitfall", "acd"),
        ("tag:X", "bcd"),
        ("run:r9", "abc"),
        ("tainted", "abd"),
        ("text:BETA", "acd"),
        ("before:2001-01-01", "abc"),
        ("after:2001-01-01", "d"),
        ("short", "abcd"),
        ("aaa1", "bcd"),
        ("aaa", "bcd"),
    ],
)
def test_selectors_say_what_is_meant(memory: NoteMemory, selector: str, left: str) -> None:
    """Each form of a selector forgets its notes and no others."""
    at = 1_500_000_000.0
    memory.keep(Note(id="aaa1", text="alpha", tags=("x",), at=at), HERE)
    memory.keep(Note(id="bbb1", text="beta", kind="pitfall", at=at), HERE)
    memory.keep(Note(id="ccc1", text="gamma", taint="tool bash", at=at), HERE)
    memory.keep(Note(id="ddd1", text="delta", run="r9", at=1.0), HERE)
    memory.keep(Note(id="eee1", text="alpha"), "/elsewhere")
    memory.forget(selector, HERE)
    assert "".join(sorted(note.id[0] for note in memory.table.notes(HERE))) == left
    assert len(memory.table.notes("/elsewhere")) == 1


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        ("knid:fact", "did you mean 'kind'"),
        ("kind:fcat", "did you mean 'fact'"),
        ("before:yesterday", "'yesterday' is not a date"),
        ("tag:", "add a value after 'tag:'"),
        ("n77", "no note 'n77' in the memory of /here"),
        ("nab", "2 notes have an id that begins with 'nab'"),
        ("' OR 1=1 --", "no note"),
    ],
)
def test_selectors_that_mean_nothing_are_refused(memory: NoteMemory, selector: str, why: str) -> None:
    """Nothing is forgotten by mistake: what is meant must be said."""
    memory.keep(Note(id="nab1", text="one"), HERE)
    memory.keep(Note(id="nab2", text="two"), HERE)
    with pytest.raises(UsageError, match=re.escape(why)):
        memory.forget(selector, HERE)
    assert len(memory.table.notes(HERE)) == 2


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ("timezone", ["b", "c", "d"]),
        ("Timezones", ["b", "c", "d"]),
        ("the nairobi timezone", ["o", "b", "c", "d"]),
        ("answers", ["a", "o", "c", "d"]),
        ("short answers", ["a", "o", "c", "d"]),
        ("deploy", ["a", "o", "b", "d"]),
    ],
)
def test_words_that_mean_one_note_forget_it(memory: NoteMemory, selector: str, left: list[str]) -> None:
    """What a person says of a note is enough where only one note says that, by text or tag; what it replaced
    and says that too does not come back.
    """
    memory.keep(
        Note(id="o", text="The timezone of the user is Berlin.", kind="preference", stated=True, at=1.0), HERE
    )
    memory.keep(
        Note(id="a", text="Use Nairobi timezone from now on.", kind="preference", stated=True, at=2.0), HERE
    )
    memory.table.mark("o", newer="a")
    memory.keep(Note(id="b", text="I prefer short answers.", kind="preference", stated=True), HERE)
    memory.keep(Note(id="c", text="Releases happen on Tuesdays.", tags=("deploy",)), HERE)
    memory.keep(Note(id="d", text="The roof is red."), HERE)
    memory.forget(selector, HERE)
    assert {note.id for note in memory.table.notes(HERE)} == set(left)


def test_words_of_several_notes_are_answered_with_a_list(memory: NoteMemory) -> None:
    """Nothing is forgotten, and whoever asked reads how to name one or all; words of no note are told as
    such.
    """
    for name, colour in (("a", "red"), ("b", "blue")):
        memory.keep(Note(id=name, text=f"The roof of house {name} is {colour}."), HERE)
    with pytest.raises(
        UsageError, match=r"2 notes say 'roof': name one by its id, or all of them with text:roof\n- "
    ) as told:
        memory.forget("roof", HERE)
    assert {"- a: The roof of house a is red.", "- b: The roof of house b is blue."} <= set(
        str(told.value).splitlines()
    )
    with pytest.raises(UsageError, match="no note 'cellar' in the memory of /here"):
        memory.forget("cellar", HERE)
    assert len(memory.table.notes(HERE)) == 2
    assert len(memory.forget("text:roof", HERE).notes) == 2


def test_runs_whose_logs_have_the_words_are_named(memory: NoteMemory) -> None:
    """A log is not changed: whoever forgets is told which runs said it."""
    memory.table.store.create_run(
        "r1", RunStarted(goal='Say "marmalade is orange", please.', workspace=HERE, model="m")
    )
    memory.keep(Note(text='Say "marmalade is orange"', run="r1"), HERE)
    forgotten = memory.forget("all", HERE)
    assert forgotten.still_in == ("r1",)
    assert memory.table.store.damage("r1") is None  # its events are not touched
    assert (
        str(forgotten)
        == "forgot 1 note. The words were said in these runs, whose logs keep what was said: r1"
    )


def test_an_edit_leaves_nothing_of_the_old_words(memory: NoteMemory) -> None:
    """New words are found and the old ones are in no byte; they count as the user's own."""
    note = memory.keep(Note(text="The word is zqabcdefx.", taint="answer"), HERE)
    changed = memory.edit(note, HERE, text="The word is marmalade.")
    assert (changed.taint, changed.stated, changed.id) == ("", True, note.id)
    assert (texts(memory, "zqabcdefx"), texts(memory, "marmalade")) == ([], ["The word is marmalade."])
    assert b"zqabcdefx" not in files(memory)
    other = memory.keep(Note(text="Quite another thing."), HERE)
    with pytest.raises(UsageError, match=f"note {note.id} says that already"):
        memory.edit(other, HERE, text="the word is MARMALADE")


OLD = (
    ("r1", {"text": "Run tests with make.", "kind": "preference", "evidence": "tests with make"}),
    ("r1", {"text": "Roofs are red.", "kind": "preference", "evidence": "are red"}),
    ("r2", {"text": "run tests with make.", "kind": "fact", "evidence": ""}),
)


def test_a_note_is_forgotten_without_reading_all_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No statement of it goes through a table of notes or links, also in a log that was made before they had
    the indexes for it.
    """
    monkeypatch.setattr(connection_module, "MIGRATIONS", MIGRATIONS[:7])
    connection_module.connect_log(tmp_path / "kestrel.db").close()
    monkeypatch.undo()
    memory = NoteMemory(SessionStore(tmp_path / "kestrel.db"), embedder=lambda: None)
    note = memory.keep(Note(text="Cats sleep."), HERE)
    run, statements = memory.table.store.execute, []

    def executed(sql: str, bindings: tuple[object, ...], what: str) -> Future[None]:
        statements.extend(sql.split(";"))
        return run(sql, bindings, what)

    monkeypatch.setattr(memory.table.store, "execute", executed)
    memory.forget(note.id, HERE)
    raw = apsw.Connection(str(tmp_path / "kestrel.db"))
    plans = {
        sql: [str(row[-1]) for row in raw.execute(f"EXPLAIN QUERY PLAN {sql}", (None,) * sql.count("?"))]
        for sql in statements[:-1]
    }
    assert len(plans) > 10
    read = [row for plan in plans.values() for row in plan if row.startswith("SCAN") and "VIRTUAL" not in row]
    assert {row.split()[1] for row in read} <= {"CONSTANT", "notes_version"}


def test_notes_of_older_logs_are_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log that kept notes in its events has them in the memory after the update, those trusted that its
    user said; events stay readable.
    """
    monkeypatch.setattr(connection_module, "MIGRATIONS", MIGRATIONS[:2])
    old = connection_module.connect_log(tmp_path / "kestrel.db")
    for run in ("r1", "r2"):
        row = (run, "I run Tests with make.", HERE)
        old.execute(
            "INSERT INTO runs(id, goal, workspace, model, model_kind, created_at) VALUES (?, ?, ?, "
            "'m', 'real', 0)",
            row,
        )
    for at, (run, note) in enumerate(OLD):
        body = dumps({"step": "s", "note": {**note, "run": run, "at": float(at)}})
        number = sum(other == run for other, _ in OLD[: at + 1])
        insert = (
            "INSERT INTO events(run_id, seq, eid, at, type, body, epoch) VALUES (?, ?, ?, ?, "
            "'memory_stored', ?, 0)"
        )
        old.execute(insert, (run, number, f"e{at}", float(at), body))
    old.close()
    monkeypatch.undo()
    store = SessionStore(tmp_path / "kestrel.db")
    memory = NoteMemory(store, embedder=lambda: None)
    notes = sorted(memory.table.notes(HERE), key=lambda note: note.at)
    assert [(note.text, note.kind, note.taint, note.run) for note in notes] == [
        ("Run tests with make.", "preference", "", "r1"),
        ("Roofs are red.", "fact", "answer", "r1"),
    ]
    assert texts(memory, "how to test") == ["Run tests with make."]
    told = [
        record.event.note["text"]
        for run in ("r1", "r2")
        for record in store.records(run)
        if isinstance(record.event, MemoryStored)
    ]
    assert told == [note["text"] for _, note in OLD]
    store.close()


def test_two_memories_of_one_database_keep_a_note_once(memory: NoteMemory) -> None:
    """Another process that keeps the same note, forgets it or reads it works on the same notes."""
    other_store = SessionStore(memory.table.store.path)
    other = NoteMemory(other_store, embedder=lambda: None)
    kept = [each.keep(Note(text="The roof is red."), HERE) for each in (memory, other)]
    assert kept[0].id == kept[1].id
    other.forget("all", HERE)
    assert texts(memory, "roof") == []
    other_store.close()


def test_recall_goes_by_tags_workspace_and_top_k(memory: NoteMemory) -> None:
    """Only notes of the workspace, with every tag asked for, and no more than asked for; nothing for a query
    of nothing.
    """
    for number in range(4):
        memory.keep(
            Note(text=f"Kestrel number{number} flies.", tags=("bird", "even" if number % 2 == 0 else "odd")),
            HERE,
        )
    memory.keep(Note(text="Kestrel elsewhere."), "/elsewhere")
    everything = memory.find(NoteQuery("kestrel", 9, HERE))
    assert len(everything) == 4
    assert {note.text for note in memory.find(NoteQuery("kestrel", 9, HERE, tags=("Bird", "even")))} == {
        "Kestrel number0 flies.",
        "Kestrel number2 flies.",
    }
    assert len(memory.find(NoteQuery("kestrel", 2, HERE))) == 2
    assert [
        len(memory.find(NoteQuery(query, top_k, HERE)))
        for query, top_k in (("", 5), ("kestrel", 0), ('" OR * NEAR(', 5))
    ] == [0, 0, 0]


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=200))
def test_no_query_is_an_error(query: str) -> None:
    """Whatever is asked, full-text syntax included, is looked for as words."""
    SHARED().find(NoteQuery(query, 5, HERE))


def _shared() -> Callable[[], NoteMemory]:
    made: list[NoteMemory] = []

    def get() -> NoteMemory:
        if not made:
            made.append(NoteMemory(SessionStore(_place()), embedder=lambda: None))
            made[0].keep(Note(text="A note on NEAR and AND."), HERE)
        return made[0]

    return get


def _place() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp()) / "kestrel.db"


SHARED = _shared()


def test_merging_keeps_what_the_user_said_longest(memory: NoteMemory) -> None:
    """A note with an end that the user then states has none."""
    first = memory.keep(Note(text="The roof is red.", expires=time.time() + 99), HERE)
    again = memory.keep(replace(first, id="", stated=True), HERE)
    assert (again.id, again.expires, again.stated) == (first.id, None, True)


@pytest.mark.parametrize("ages", [(1.0, 2.0), (2.0, 1.0)])
def test_a_note_that_says_more_takes_the_place_of_what_says_less(
    memory: NoteMemory, ages: tuple[float, float]
) -> None:
    """What was added is not lost in a merge; the shorter one stays, linked; said again it is the longer one,
    and one not trusted replaces nothing.
    """
    short, longer = (
        "Deploys run from deploy/run.sh on host flims3.",
        "Deploys run from deploy/run.sh on host flims3 every night.",
    )
    first = memory.keep(Note(text=short, at=ages[0]), HERE)
    doubtful = memory.keep(Note(text=longer.replace("night", "noon"), at=ages[1], taint="answer"), HERE)
    assert memory.table.by_id([first.id], HERE)[first.id].replaced_by == ""
    memory.table.delete([doubtful])
    second = memory.keep(Note(text=longer, at=ages[1]), HERE)
    assert (second.text, memory.table.by_id([first.id], HERE)[first.id].replaced_by) == (longer, second.id)
    assert texts(memory, "where do deploys run") == [longer]


def test_preferences_are_told_whatever_the_goal(memory: NoteMemory) -> None:
    """The newest three that the user stands by take the places that are left, and no others."""
    for at in range(1, 6):
        memory.keep(
            Note(text=f"I prefer colour{at}.", kind="preference", stated=True, at=float(at), run=f"r{at}"),
            HERE,
        )
    memory.keep(Note(text="Marmalade is orange."), HERE)
    memory.keep(Note(text="I prefer places elsewhere.", kind="preference"), "/elsewhere")
    told = ["Marmalade is orange.", "I prefer colour5.", "I prefer colour4.", "I prefer colour3."]
    assert texts(memory, "marmalade") == told
    assert texts(memory, "marmalade", 2) == told[:2]
    assert [note.text for note in memory.find(NoteQuery("marmalade", 5, HERE))] == told[:1]
    assert [note.uses for note in memory.table.notes(HERE, "text = 'I prefer colour5.'")] == [2]


def test_what_was_true_before_is_so_again_when_it_is_said_again(memory: NoteMemory) -> None:
    """The last thing said stands, also when it was said before; a replay of what was said before that changes
    nothing.
    """

    def say(text: str, at: float) -> Note:
        return memory.keep(Note(text=text, stated=True, at=at), "/w")

    def standing() -> list[str]:
        return [note.text for note in memory.table.notes("/w", "replaced_by = ''")]

    first = say("Deploys happen on Friday.", 1.0)
    say("Deploys happen on Monday.", 2.0)
    say("Deploys happen on Friday.", 1.0)
    assert standing() == ["Deploys happen on Monday."]
    say("Deploys happen on Friday.", 3.0)
    assert standing() == ["Deploys happen on Friday."]
    changed = memory.edit(first, "/w", text="Deploys happen on Sunday.")
    assert standing() == ["Deploys happen on Sunday."]
    assert changed.at > 3.0


def test_a_user_who_says_it_too_settles_a_dispute(memory: NoteMemory) -> None:
    """A note that is not trusted only disputes; said by the user as well, it takes the place of the older
    one.
    """
    memory.keep(Note(text="The port is 8080.", stated=True, at=1.0), "/w")
    memory.keep(Note(text="The port is 9090.", taint="tool web", at=2.0), "/w")
    assert len(memory.table.notes("/w", "replaced_by = ''")) == 2
    memory.keep(Note(text="The port is 9090.", stated=True, at=3.0), "/w")
    assert [(note.text, note.taint) for note in memory.table.notes("/w", "replaced_by = ''")] == [
        ("The port is 9090.", "")
    ]
    assert memory.table.store.query("SELECT relation FROM note_links") == [("replaces",)]


def test_forgetting_a_note_between_two_does_not_bring_back_the_oldest(memory: NoteMemory) -> None:
    """Of three that contradict each other the newest stands, whichever of the others is forgotten; forgotten
    itself, the one before it.
    """
    kept = [
        memory.keep(Note(text=f"Deploys happen on {day}.", stated=True, at=float(at)), "/w")
        for at, day in enumerate(("Friday", "Monday", "Tuesday"), 1)
    ]
    memory.forget(kept[1].id, "/w")
    assert [note.id for note in memory.table.notes("/w", "replaced_by = ''")] == [kept[2].id]
    assert len(memory.table.store.query("SELECT 1 FROM note_links WHERE relation = 'replaces'")) == 1
    memory.forget(kept[2].id, "/w")
    assert [note.id for note in memory.table.notes("/w", "replaced_by = ''")] == [kept[0].id]
