"""What goes into the log comes out of it, whatever it holds; what another version wrote is read as far as it
can be.
"""

import itertools
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import (
    EVENT_TYPES,
    ApprovalAsked,
    ApprovalGiven,
    Event,
    LiveEvent,
    RunStarted,
    StateTransition,
    ToolAnswered,
    from_json,
    to_json,
)
from kestrel_lab.core.json_types import Json
from kestrel_lab.eventlog.connection import connect_log
from kestrel_lab.eventlog.store import SessionStore

characters = st.characters() | st.sampled_from("\0\ud800\udfff\ufeff\u202e'\"\\\n\x1b")
texts = st.text(characters, max_size=40)
numbers = st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | st.text(characters, max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(characters, max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.text(characters, max_size=8), values, max_size=4)
BY_ANNOTATION: dict[str, st.SearchStrategy[Any]] = {
    "str": texts,
    "str | None": st.none() | texts,
    "Json": values,
    "bool": st.booleans(),
    "int": st.integers(),
    "int | None": st.none() | st.integers(),
    "float": numbers,
    "float | None": st.none() | numbers,
    "list[str]": st.lists(texts, max_size=3),
    "list[list[str]]": st.lists(st.lists(texts, max_size=2), max_size=2),
    "list[str] | None": st.none() | st.lists(texts, max_size=3),
    "dict[str, Json]": objects,
    "dict[str, Json] | None": st.none() | objects,
    "dict[str, str]": st.dictionaries(texts, texts, max_size=3),
    "dict[str, float]": st.dictionaries(texts, numbers, max_size=3),
    "dict[str, int]": st.dictionaries(texts, st.integers(), max_size=3),
    "list[dict[str, Json]]": st.lists(objects, max_size=3),
}


def any_event(cls: type[Event]) -> st.SearchStrategy[Event]:
    """Events of a class with every field filled in."""
    return st.builds(cls, **{field.name: BY_ANNOTATION[str(field.type)] for field in fields(cls)})


QUESTIONS = itertools.count()
events = st.one_of([any_event(cls) for cls in EVENT_TYPES.values()])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SessionStore]:
    """One log with one run for all examples."""
    opened = SessionStore(tmp_path_factory.mktemp("records") / "k.db")
    opened.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    yield opened
    opened.close()


@settings(max_examples=120, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(event=events)
@example(event=RunStarted(goal="g", workspace="/w", model="m", follows="r0", earlier={"messages": []}))
def test_every_event_comes_back_as_it_was(event: Event, store: SessionStore) -> None:
    """Any event of any class, with any text and any JSON in it, is read back equal, and so are its number and
    time.
    """
    assert from_json(event.type, to_json(event)) == event
    if isinstance(
        event, StateTransition | LiveEvent
    ):  # the one is checked against the map, the other never stored
        return
    if isinstance(event, ApprovalGiven):
        event = replace(event, question=f"q{next(QUESTIONS)}")
        store.append(
            "r",
            ApprovalAsked(
                call="c", step="s", tool="t", args={}, danger="LOW", key="k", question=event.question
            ),
        )
    elif isinstance(event, ApprovalAsked):
        event = replace(event, question=f"q{next(QUESTIONS)}")
    number = store.append("r", event, at=12.5, urgent=True).result()

    (record,) = store.records("r", after=number - 1)
    assert (record.run_id, record.seq, record.at, record.event) == ("r", number, 12.5, event)


def test_a_huge_text_is_kept_whole(store: SessionStore) -> None:
    """A million characters of every kind come back as they were."""
    event = ToolAnswered(call="c", step="s", tool="t", text="a\0\ud800é\U0001f985" * 200_000)
    number = store.append("r", event, urgent=True).result()
    assert store.records("r", after=number - 1)[0].event == event


@pytest.mark.parametrize("cls", EVENT_TYPES.values(), ids=lambda cls: str(cls.type))
def test_fields_of_a_newer_version_are_ignored(cls: type[Event]) -> None:
    """A field this version does not know is left out, and one with a default may be missing."""
    simple: dict[str, Json] = {"str": "x", "bool": True, "int": 1, "float": 1.0, "float | None": 1.0}
    full: dict[str, Json] = {
        field.name: simple.get(str(field.type), [] if "list" in str(field.type) else {})
        for field in fields(cls)
    }
    event = from_json(cls.type, full | {"from_the_future": [1]})
    assert to_json(event) == full


def test_an_event_of_an_unknown_type_is_named() -> None:
    """A type that this version does not know is refused with the advice to upgrade, not skipped."""
    with pytest.raises(StoreError, match=r"'teleported'.*upgrade"):
        from_json("teleported", {})


def test_an_event_that_lacks_a_field_is_named() -> None:
    """A body without a required field says which event and which field."""
    with pytest.raises(StoreError, match=r"'step_started'.*incomplete.*'step'"):
        from_json("step_started", {"goal": "g"})


def test_a_log_with_an_unknown_event_is_refused_when_read(tmp_path: Path) -> None:
    """Reading a run that a newer version wrote into raises `StoreError`; other runs are read as ever."""
    store = SessionStore(tmp_path / "k.db")
    for run_id in ("old", "new"):
        store.create_run(run_id, RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    newer = (
        "INSERT INTO events(run_id, seq, eid, at, type, body, epoch, hash) VALUES ('new', 2, 'e', 0, "
        "'teleported', '{}', 0, zeroblob(32))"
    )
    connect_log(tmp_path / "k.db").execute(newer)
    with pytest.raises(StoreError, match="teleported"):
        store.records("new")
    assert len(store.records("old")) == 1
    store.close()


@pytest.mark.parametrize("body", ["5", "null", "[]", "{"])
def test_a_body_of_another_type_is_told(tmp_path: Path, body: str) -> None:
    """A body that a flipped bit made a number, or no object, is an event that cannot be read."""
    store = SessionStore(tmp_path / "k.db")
    store.create_run("r", RunStarted(goal="g", workspace="/w", model="m"))
    store.flush()
    raw = apsw.Connection(str(store.path))
    raw.execute("DROP TRIGGER events_update; PRAGMA ignore_check_constraints = on")
    raw.execute("UPDATE events SET body = ?", (body,))
    raw.close()
    with pytest.raises(StoreError, match=r"event 1 of run r cannot be read.*kestrel doctor"):
        store.records("r")
    store.close()


def test_a_broken_page_is_told(tmp_path: Path) -> None:
    """A log whose bytes were overwritten raises `StoreError` when it is read, never something silent."""
    path = tmp_path / "k.db"
    store = SessionStore(path)
    store.create_run("r", RunStarted(goal="g" * 20_000, workspace="/w", model="m"))
    store.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)
    with pytest.raises(StoreError):
        SessionStore(path).records("r")
