"""Snapshots of a run's state: equal to what its events make, never needed, and never trusted blindly."""

import json
import pickle
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import apsw
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fold import histories

from kestrel_lab.core.errors import StoreError
from kestrel_lab.core.events.union import (
    CheckpointSaved,
    ModelAnswered,
    Record,
    RunForked,
    RunStarted,
    StateTransition,
    StepStarted,
)
from kestrel_lab.core.run_types import RunStatus
from kestrel_lab.eventlog.checkpoints import (
    KEPT,
    DamagedSnapshot,
    _codec,
    encode_state,
    pack_snapshot,
    restore_state,
    snapshot_format,
)
from kestrel_lab.eventlog.run_state import RunState, fold
from kestrel_lab.eventlog.store import SessionStore

STARTED = RunStarted(goal="count", workspace="/w", model="m", system="be brief")


@settings(max_examples=200)
@given(records=histories, cut=st.integers(0, 25))
def test_a_restored_prefix_and_the_rest_are_the_whole(records: list[Record], cut: int) -> None:
    """Whatever happened: a state stored and read back, with the events behind it, is the state that all
    events make.
    """
    state = restore_state(pack_snapshot(encode_state(fold(records[:cut])), run="r"), run="r")
    assert state == fold(records[:cut])
    for record in records[cut:]:
        state.apply(record.event, record.at)
    assert state == fold(records)
    assert list(state.conversations) == list(
        fold(records).conversations
    )  # their order counts, which == does not see


def filled(kind: Any) -> Any:
    """A value of type `kind` that no field has by default."""
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{part.name: filled(hints[part.name]) for part in fields(kind)})  # type: ignore[operator]  # is_dataclass also takes instances
    if isinstance(kind, type) and issubclass(kind, Enum):
        return list(kind)[-1]
    origin, args = get_origin(kind), get_args(kind)
    if origin is Literal:
        return args[-1]
    if origin in (Union, types.UnionType):
        rest = [arg for arg in args if arg is not type(None)]
        return filled(rest[0]) if len(rest) == 1 else {"any": [1, None, 2.5, {"json": "\udfff"}]}
    if origin is dict:
        return {"\ud800 key": filled(args[1])}
    if origin in (list, set, tuple):
        return origin([filled(args[0])])
    return {bool: True, int: 7, float: 0.1, str: "text \ud800\0", None: None}[kind]


def variants(state: Any) -> Iterator[tuple[str, Any]]:
    """`state` with one field, at any depth of dataclasses, set to something else."""
    for part in fields(state):
        value = getattr(state, part.name)
        if is_dataclass(value):
            yield from (
                (f"{part.name}.{name}", replace(state, **{part.name: other}))
                for name, other in variants(value)
            )
        elif isinstance(value, dict) and value and is_dataclass(inner := next(iter(value.values()))):
            yield from (
                (f"{part.name}.{name}", replace(state, **{part.name: {"k": other}}))
                for name, other in variants(inner)
            )
        else:
            default = type(value)() if not isinstance(value, Enum) else next(iter(type(value)))
            yield part.name, replace(state, **{part.name: default})


def test_every_field_is_carried() -> None:
    """A state whose every field, however deep, holds something unusual comes back whole; and each field alone
    makes a difference.
    """
    state = filled(RunState)
    assert isinstance(state, RunState)
    assert state != RunState()
    assert restore_state(pack_snapshot(encode_state(state), run="r"), run="r") == state
    others = dict(variants(state))
    assert {name.split(".")[0] for name in others} == {part.name for part in fields(RunState)}
    assert len(others) > 60
    for name, other in others.items():
        assert other != state, name
        assert restore_state(pack_snapshot(encode_state(other), run="r"), run="r") == other, name


def test_a_field_more_is_another_form() -> None:
    """A state class with a field more, or of another type, has another shape, so that older snapshots are not
    read as if they fitted.
    """

    @dataclass
    class One:
        a: int = 0

    @dataclass
    class Two:
        a: int = 0
        b: str = ""

    @dataclass
    class Three:
        a: str = ""

    Two.__name__ = Three.__name__ = "One"
    assert len({_codec(kind).shape for kind in (One, Two, Three)}) == 3
    with pytest.raises(TypeError, match="a snapshot cannot carry: teach it"):
        _codec(complex)


class Bomb:
    """Something that a careless reader would run."""

    def __reduce__(self) -> Any:
        """Break whoever unpickles it."""
        return (exec, ("raise SystemExit('executed')",))


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"nonsense",
        pickle.dumps(Bomb()),
        zstandard.compress(pickle.dumps(Bomb())),
        zstandard.compress(b"[" * 100_000),
        zstandard.compress(b"null"),
        zstandard.compress(b'{"form": "x", "state": {}}'),
        zstandard.compress(
            json.dumps({"run": "r", "form": snapshot_format(), "state": {"status": "COMPLETE"}}).encode()
        ),
        zstandard.compress(json.dumps({"run": "r", "form": snapshot_format(), "state": []}).encode()),
        pack_snapshot(encode_state(RunState()), run="other"),
        pack_snapshot(encode_state(RunState()), run="r")[:-9],
    ],
    ids=range(11),
)
def test_what_is_no_snapshot_is_refused(content: bytes) -> None:
    """Nothing in a snapshot's place is executed or half read: it is damaged, and the reader says so."""
    with pytest.raises(DamagedSnapshot):
        restore_state(content, run="r")


@settings(max_examples=100)
@given(data=st.data())
def test_a_flipped_bit_is_noticed(data: st.DataObject) -> None:
    """A snapshot with any one bit turned over is refused, or still gives the same state."""
    state = fold([Record(run_id="r", seq=1, eid="e", at=1.0, event=STARTED)])
    content = bytearray(pack_snapshot(encode_state(state), run="r"))
    content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    try:
        assert restore_state(bytes(content), run="r") == state
    except DamagedSnapshot:
        pass


def answered(store: SessionStore, run_id: str, number: int) -> None:
    """A model turn."""
    store.append(
        run_id,
        ModelAnswered(call=f"m{number}", step="s", model="m", text=f"turn {number} " + "x" * 50, tokens_in=1),
    )


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SessionStore]:
    """A log with run `r`: 20 turns, and snapshots behind each fifth."""
    opened = SessionStore(tmp_path / "k.db")
    opened.create_run("r", STARTED)
    opened.append("r", StateTransition(source="PLANNING", target="EXECUTING"))
    opened.append("r", StepStarted(step="s", goal="count"))
    for number in range(1, 21):
        answered(opened, "r", number)
        if number % 5 == 0:
            opened.flush()
            saved = opened.checkpoint("r", "cycles")
            assert saved == CheckpointSaved(
                seq=3 + number, reason="cycles", bytes=saved.bytes if saved else 0
            )
    for number in (21, 22):
        answered(opened, "r", number)
    opened.flush()
    yield opened
    opened.close()


def change(store: SessionStore, sql: str, *values: Any) -> None:
    """Change snapshots as only somebody else would."""
    raw = apsw.Connection(str(store.path))
    raw.execute("DROP TRIGGER IF EXISTS checkpoints_update")
    raw.execute(sql, values)
    raw.close()


def test_the_newest_few_are_kept(store: SessionStore) -> None:
    """Of four snapshots the newest three remain, each the state of its moment, and the state is what all
    events make.
    """
    assert [(one.seq, one.reason, one.usable) for one in store.checkpoints("r")] == [
        (seq, "cycles", "yes") for seq in (23, 18, 13)
    ]
    assert KEPT == 3
    for one in store.checkpoints("r"):
        assert one.restored() == fold(store.records("r")[: one.seq])
    assert store.state("r") == fold(store.records("r"))


def test_the_state_is_read_from_the_newest_snapshot(store: SessionStore) -> None:
    """Only events behind the newest snapshot are read: those before it may be unreadable.

    Without snapshots they are needed.
    """
    expected = fold(store.records("r"))
    raw = apsw.Connection(str(store.path))
    raw.execute("DROP TRIGGER events_update")
    raw.execute("UPDATE events SET body = '{}' WHERE run_id = 'r' AND seq < 23")
    assert store.state("r") == expected
    raw.execute("DELETE FROM checkpoints")
    raw.close()
    with pytest.raises(StoreError):
        store.state("r")


@pytest.mark.parametrize(
    "newest", ["x'00'", "(SELECT state FROM checkpoints WHERE seq = 13)", "zeroblob(40)"]
)
def test_a_damaged_snapshot_is_passed_over_and_named(newest: str, store: SessionStore) -> None:
    """One that was overwritten, also by an older one, is told of and not used; the state is right all the
    same.
    """
    expected = fold(store.records("r"))
    change(store, f"UPDATE checkpoints SET state = {newest} WHERE seq = 23")
    with pytest.warns(RuntimeWarning, match="checkpoint of run r at event 23 is damaged"):
        assert store.state("r") == expected
    assert [one.usable for one in store.checkpoints("r")] == ["damaged", "yes", "yes"]


def test_a_snapshot_of_another_version_is_passed_over(store: SessionStore) -> None:
    """One of another form is listed as such and not read; that is nothing to warn of."""
    expected = fold(store.records("r"))
    change(store, "UPDATE checkpoints SET form = '0.0.1/1/abc', state = x'00' WHERE seq > 13")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.state("r") == expected
    assert [one.usable for one in store.checkpoints("r")] == ["older form", "older form", "yes"]


def test_a_snapshot_of_an_event_that_was_replaced_is_not_used(store: SessionStore) -> None:
    """A snapshot belongs to one event, not to a number: where another event has that number it does not
    count.
    """
    raw = apsw.Connection(str(store.path))
    raw.execute("DROP TRIGGER events_update")
    raw.execute("UPDATE events SET eid = 'another' WHERE run_id = 'r' AND seq = 23")
    raw.close()
    with pytest.warns(RuntimeWarning, match="event 23"):
        assert store.state("r") == fold(store.records("r"))


def test_a_fork_has_its_parents_snapshots_up_to_the_fork(store: SessionStore) -> None:
    """A fork is taken up from the parent's last snapshot before it, then from its own, which hold the shared
    events too.
    """
    store.fork_run("f", RunForked(parent="r", at=20, model="m"), RunStatus.EXECUTING)
    store.flush()
    assert [(one.run_id, one.seq) for one in store.checkpoints("f")] == [("r", 18), ("r", 13)]
    assert store.state("f") == fold(store.records("f"))
    answered(store, "f", 18)
    store.flush()
    store.checkpoint("f", "error")
    answered(store, "f", 19)
    store.flush()
    own, *_ = store.checkpoints("f")
    assert (own.run_id, own.seq, own.restored()) == ("f", 22, fold(store.records("f")[:22]))
    assert store.state("f") == fold(store.records("f"))
    assert store.state("f").usage.model_calls == 19


def test_a_snapshot_is_never_ahead_of_the_log(tmp_path: Path) -> None:
    """What is queued and not on disk is in no snapshot, and a run with nothing on disk has none."""
    store = SessionStore(tmp_path / "k.db")
    assert store.checkpoint("nowhere", "cycles") is None
    store.create_run("r", STARTED)
    store.flush()
    raw = apsw.Connection(str(store.path))
    raw.execute("BEGIN IMMEDIATE")  # nothing can be written now
    late = store.append("r", StepStarted(step="s", goal="count"))
    saved = store.checkpoint("r", "cycles")
    raw.execute("ROLLBACK")
    assert late.result() == 2
    assert saved == CheckpointSaved(seq=1, reason="cycles", bytes=saved.bytes if saved else 0)
    store.flush()
    assert [one.seq for one in store.checkpoints("r")] == [1]
    store.close()


def test_what_a_snapshot_is_made_of_does_not_change_with_the_run() -> None:
    """The image of a state packs to the same snapshot when the run has gone on since; a mutant that is made
    of the state when it is packed does not.
    """
    started = [RunStarted(goal="count", workspace="/w", model="m"), StepStarted(step="s", goal="count")]
    state = fold(
        [
            Record(run_id="r", seq=n, eid=f"e{n}", at=float(n), event=event)
            for n, event in enumerate(started, 1)
        ]
    )
    conversation = state.conversation("s")
    conversation.replies.append("one")
    before, image, mutant = (
        pack_snapshot(encode_state(state), run="r"),
        encode_state(state),
        lambda: encode_state(state),
    )
    packed_mutant = pack_snapshot(mutant(), run="r")
    conversation.replies.append("two")
    conversation.answers["c1"] = "late"
    state.conversation("t")
    assert pack_snapshot(image, run="r") == before
    assert pack_snapshot(mutant(), run="r") != packed_mutant
