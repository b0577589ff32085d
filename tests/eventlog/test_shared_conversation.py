"""Follow-ups store what is new in their conversation, are read with all of it, and notice a change of what
they share.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kestrel_lab import Lab, tool
from kestrel_lab.core.errors import Damaged, StoreError
from kestrel_lab.core.events.union import ModelCalled, RunStarted
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.eventlog import shared_conversation
from kestrel_lab.eventlog.shared_conversation import conversation_reference, full_conversation
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.runtime.run import interrupt_run
from kestrel_lab.testing import ScriptedModel

TURNS = 20
CONVERSATION = [
    text
    for number in range(1, TURNS + 1)
    for text in (f"question {number}", f"page {number} " + "x" * 400, f"answer to question {number}")
]


@tool(name="page", danger_level="safe", effect="pure", reads="untrusted", reaches="nothing")
def page(number: int) -> str:
    """Return a page that others wrote."""
    return f"page {number} " + "x" * 400


class Asked:
    """Reads a page in each turn, and keeps what it was sent last."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, request: ModelRequest) -> object:
        self.texts = [
            message.text for message in request.messages if message.role != "system" and message.text
        ]
        question = next(message.text for message in reversed(request.messages) if message.role == "user")
        return (
            f"answer to {question}"
            if request.messages[-1].role == "tool"
            else [("page", {"number": int(question.split()[1])})]
        )


@pytest.fixture
def model() -> Asked:
    """What the labs of a test ask."""
    return Asked()


@pytest.fixture
def lab(tmp_path: Path, model: Asked) -> Iterator[Lab]:
    """A lab with an empty log."""
    opened = lab_of(tmp_path, model)
    yield opened
    opened.close()


def lab_of(home: Path, model: Asked) -> Lab:
    """A lab over the log in `home`, as another process opens it."""
    return Lab(home, ScriptedModel(model), tools=[page], env={})


async def conversation(lab: Lab, turns: int, run: Any = None, *, first: int = 1) -> Any:
    """The last run of a conversation of so many more turns."""
    for number in range(first, first + turns):
        run = await lab.run(f"question {number}", follow=run)
        assert run.status == "COMPLETE", run.reason
    return run


def first_events(lab: Lab) -> list[int]:
    """How long the first event of each run is in the log, in the order of the runs."""
    lab.store.flush()
    return [
        size
        for (size,) in lab.store.query(
            "SELECT length(body) FROM events JOIN runs ON id = run_id WHERE seq = 1 ORDER BY created_at"
        )
    ]


def test_a_long_conversation_takes_room_for_what_is_new(lab: Lab, model: Asked) -> None:
    """The twentieth turn stores as much as the third, and its model is sent, and its log tells, all that was
    said.
    """
    run = asyncio.run(conversation(lab, TURNS))
    sizes = first_events(lab)
    assert sizes[-1] <= 1.05 * sizes[2]
    assert model.texts == CONVERSATION[:-1]
    started = lab.get(run.id).events()[0]
    assert isinstance(started, RunStarted)
    assert [
        message["text"] for message in started.earlier["messages"] if message.get("text")
    ] == CONVERSATION[: 3 * (TURNS - 1)]  # type: ignore[union-attr,index]
    assert len(started.earlier["sources"]) == TURNS - 1  # type: ignore[arg-type]  # the taint of each page is known


def test_a_fork_in_the_middle_and_what_follows_it_have_the_conversation_up_to_there(
    lab: Lab, model: Asked, tmp_path: Path
) -> None:
    """Read by another process: a fork of the tenth run is sent ten turns, and so is a run that follows the
    fork.
    """
    run = asyncio.run(conversation(lab, TURNS))
    tenth = lab.history.conversation(run.id)[9].id
    lab.close()
    again = lab_of(tmp_path, model)
    asked = next(record.seq for record in again.get(tenth).records() if isinstance(record.event, ModelCalled))

    async def fork() -> Any:
        forked = await again.fork(tenth, at=asked)
        assert model.texts == CONVERSATION[:29]
        return await conversation(again, 2, forked, first=11)

    last = asyncio.run(fork())
    assert model.texts == CONVERSATION[:35]
    assert (
        len(again.history.conversation(last.id)) == 12
    )  # nine runs, the fork in the place of the tenth, and two that follow it
    again.close()


def test_an_interrupted_run_in_the_middle_is_resumed_with_the_conversation(
    lab: Lab, model: Asked, tmp_path: Path
) -> None:
    """A run of the middle that was broken off goes on in another process with all that was said before it,
    and can be followed.
    """

    async def broken_off() -> str:
        run = lab.start("question 10", follow=await conversation(lab, 9))
        run.ctx.listeners.append(lambda event: interrupt_run(run) if event.type == "tool_answered" else None)
        with pytest.raises(asyncio.CancelledError):
            await run.wait()
        return str(run.id)

    name = asyncio.run(broken_off())
    lab.close()
    again = lab_of(tmp_path, model)

    async def go_on() -> None:
        await conversation(again, 10, await again.resume(name), first=11)

    asyncio.run(go_on())
    assert model.texts == CONVERSATION[:-1]
    assert first_events(again)[-1] <= 1.05 * first_events(again)[2]
    again.close()


def test_a_log_of_before_is_gone_on_with(lab: Lab, model: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that hold their whole conversation, as all did once, are read, and followed by runs that hold what
    is new.
    """
    with monkeypatch.context() as before:
        before.setattr(
            shared_conversation, "conversation_reference", lambda _read, _since, _base, earlier: earlier
        )
        run = asyncio.run(conversation(lab, 10))
    asyncio.run(conversation(lab, 10, lab.get(run.id), first=11))
    assert model.texts == CONVERSATION[:-1]
    sizes = first_events(lab)
    assert sizes[9] > 1.5 * sizes[2] and sizes[-1] <= 1.05 * sizes[11]


def test_what_is_changed_in_a_shared_event_is_damage(
    lab: Lab, model: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follow-up whose conversation was changed in another run's first event is told to be damaged, and is
    not gone on with.

    The mutant that does not check the first events of other runs takes it for whole.
    """
    last = asyncio.run(conversation(lab, 5))
    third = lab.history.conversation(last.id)[2].id
    lab.close()
    raw = apsw.Connection(str(tmp_path / "kestrel.db"))
    raw.execute("DROP TRIGGER events_update")
    raw.execute(
        "UPDATE events SET body = replace(body, 'page 2 x', 'page 9 x') WHERE run_id = ? AND seq = 1",
        (third,),
    )
    raw.close()
    again = lab_of(tmp_path, model)
    damage = again.store.damage(last.id)
    assert damage is not None and third in damage.what
    with pytest.raises(Damaged):
        asyncio.run(conversation(again, 1, last.id, first=6))
    monkeypatch.setattr(shared_conversation, "changed_base", lambda _read, _earlier: "")
    assert again.store.damage(last.id) is None
    again.close()


class Counted(SessionStore):
    """Counts what is read of the log: rows, and bytes of text, which is what is hashed at most."""

    rows = size = 0

    def query(self, sql: str, bindings: Any = ()) -> list[tuple[Any, ...]]:
        """Return the rows, counted."""
        found = super().query(sql, bindings)
        Counted.rows += len(found)
        Counted.size += sum(len(cell) for row in found for cell in row if isinstance(cell, str | bytes))
        return found


async def read_per_turn(lab: Lab, turns: int) -> list[tuple[int, int]]:
    """What each turn of a conversation reads of the log."""
    lab.store.__class__ = Counted
    lab.store._conversations._read = lab.store.query
    found, run = [], None
    for number in range(1, turns + 1):
        Counted.rows = Counted.size = 0
        run = await conversation(lab, 1, run, first=number)
        found.append((Counted.rows, Counted.size))
    return found


def test_a_follow_up_reads_as_much_after_three_hundred_turns_as_after_ten(
    lab: Lab, model: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Events read and bytes hashed stay within 1.3 times; the mutant that forgets what it has checked reads
    five times as much.
    """
    found = asyncio.run(read_per_turn(lab, 300))
    for part in (0, 1):
        assert sum(one[part] for one in found[-10:]) <= 1.3 * sum(one[part] for one in found[5:15])
    assert len(model.texts) == 3 * 300 - 1
    monkeypatch.setattr(shared_conversation, "_MOST_KEPT", 0)
    (other := tmp_path / "forgetful").mkdir()
    with lab_of(other, model) as forgetful:
        found = asyncio.run(read_per_turn(forgetful, 60))
    assert sum(size for _, size in found[-5:]) > 5 * sum(size for _, size in found[:5])


def test_two_chats_side_by_side_read_no_more(lab: Lab) -> None:
    """Turns that take turns find what their own conversation was."""

    async def both() -> list[int]:
        lab.store.__class__ = Counted
        lab.store._conversations._read = lab.store.query
        runs: list[Any] = [None, None]
        sizes = []
        for number in range(1, 41):
            Counted.size = 0
            runs = [await conversation(lab, 1, run, first=number) for run in runs]
            sizes.append(Counted.size)
        return sizes

    sizes = asyncio.run(both())
    assert sum(sizes[-5:]) <= 1.3 * sum(sizes[5:10])


def test_a_bit_that_flips_under_a_chat_is_found_when_the_disk_is_read(
    lab: Lab, model: Asked, tmp_path: Path
) -> None:
    """The session goes on with what it has checked and holds; whoever reads the conversation from the disk is
    told, also in this session.
    """
    last = asyncio.run(conversation(lab, 6))
    third = lab.history.conversation(last.id)[2].id
    raw = apsw.Connection(str(tmp_path / "kestrel.db"))
    raw.execute("DROP TRIGGER events_update")
    raw.execute(
        "UPDATE events SET body = replace(body, 'page 2 x', 'page 9 x') WHERE run_id = ? AND seq = 1",
        (third,),
    )
    raw.close()
    following = asyncio.run(conversation(lab, 1, last, first=7))
    assert (
        following.damage is None
        and [text[:7] for text in model.texts if text.startswith("page")][1] == "page 2 "
    )
    assert lab.get(following.id).damage is not None and lab.store.damage(last.id) is not None
    lab.close()
    again = lab_of(tmp_path, model)
    with pytest.raises(Damaged):
        asyncio.run(conversation(again, 1, following.id, first=8))
    again.close()


def test_a_bit_that_flips_in_the_turn_before_stops_the_chat(lab: Lab, tmp_path: Path) -> None:
    """The events of the run that is followed are read and hashed each time."""
    last = asyncio.run(conversation(lab, 3))
    raw = apsw.Connection(str(tmp_path / "kestrel.db"))
    raw.execute("DROP TRIGGER events_update")
    raw.execute("UPDATE events SET body = replace(body, 'page 3 x', 'page 9 x') WHERE run_id = ?", (last.id,))
    raw.close()
    with pytest.raises(Damaged):
        asyncio.run(conversation(lab, 1, last, first=4))


def test_a_shared_event_that_is_gone_is_named(lab: Lab, model: Asked, tmp_path: Path) -> None:
    """Where the run with the earlier part is no longer in the log, that is damage, not a shorter
    conversation.
    """
    last = asyncio.run(conversation(lab, 4))
    third = lab.history.conversation(last.id)[2].id
    lab.close()
    raw = apsw.Connection(str(tmp_path / "kestrel.db"))
    raw.execute("DROP TRIGGER events_delete")
    raw.execute("DELETE FROM events WHERE run_id = ?", (third,))
    raw.close()
    again = lab_of(tmp_path, model)
    assert again.store.damage(last.id) is not None
    assert again.get(last.id).damage is not None
    again.close()


def earlier_values() -> st.SearchStrategy[dict[str, Any]]:
    """What may have been said before a run, from so few words that two have much in common."""
    value = (
        st.lists(st.sampled_from("ab"), max_size=4)
        | st.dictionaries(st.sampled_from("xyz"), st.just([1]), max_size=3)
        | st.just("text")
    )
    return st.dictionaries(st.sampled_from(["messages", "files", "recalled"]), value, max_size=3)


def first_events_log(*rows: tuple[str, bytes | None, str]) -> Any:
    """A function that reads the first events of these runs: their ids, hashes and bodies."""
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE events(run_id, seq, hash, body)")
    connection.executemany("INSERT INTO events VALUES (?, 1, ?, ?)", rows)
    return lambda sql, bindings: connection.execute(sql, tuple(bindings)).fetchall()


@given(st.lists(earlier_values(), min_size=1, max_size=5))
@settings(max_examples=60, deadline=None)
def test_each_run_is_read_with_what_it_was_given(said: list[dict[str, Any]]) -> None:
    """However little of it is new: what each run of a conversation was given comes back from what the log
    keeps of it.
    """
    rows: list[tuple[str, bytes | None, str]] = []
    kept = base = said[0]
    for number, earlier in enumerate(said):
        read = first_events_log(*rows)
        kept = conversation_reference(read, f"r{number - 1}", base, earlier) if number else earlier
        assert full_conversation(read, f"r{number}", kept) == earlier
        rows.append((f"r{number}", b"h", json.dumps({"earlier": kept})))
        base = earlier


def test_only_what_is_new_is_kept() -> None:
    """Of a list what follows the common beginning, of a table its new keys; what was changed or is neither is
    kept whole.
    """
    base = {
        "messages": [1, 2, 3],
        "files": {"a": "1"},
        "same": {"a": "1"},
        "changed": {"a": "1"},
        "text": "t",
        "gone": [1],
    }
    earlier = {
        "messages": [1, 2, 4, 5],
        "files": {"a": "1", "b": "2"},
        "same": {"a": "1"},
        "changed": {"a": "2"},
        "text": "t",
        "new": [1],
    }
    assert conversation_reference(first_events_log(("r", b"\x01", "{}")), "r", base, earlier) == {
        "since": "r",
        "hash": "01",
        "kept": {"messages": 2, "files": 1, "same": 1},
        "added": {
            "messages": [4, 5],
            "files": {"b": "2"},
            "same": {},
            "changed": {"a": "2"},
            "text": "t",
            "new": [1],
        },
    }


@pytest.mark.parametrize(
    ("rows", "base"),
    [([("r", None, "{}")], {"messages": [1]}), ([], {"messages": [1]}), ([("r", b"h", "{}")], {})],
    ids=["from before events had hashes", "not in this log", "nothing was said before"],
)
def test_what_cannot_be_held_against_a_hash_is_kept_whole(rows: list[Any], base: dict[str, Any]) -> None:
    """A run whose first event has no hash, or is not there, shares nothing with those that follow it."""
    assert conversation_reference(first_events_log(*rows), "r", base, {"messages": [1, 2]}) == {
        "messages": [1, 2]
    }


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('{"earlier": {"since": "r", "kept": {}, "added": {}}}', "run r is not in the log"),
        ("{earlier: {}}", "event 1 of run r cannot be read"),
    ],
    ids=["a circle", "no JSON"],
)
def test_a_conversation_that_makes_no_sense_is_told(body: str, told: str) -> None:
    """It is neither followed for ever nor taken for an empty one."""
    with pytest.raises(StoreError, match=f"{told}.*kestrel doctor"):
        full_conversation(first_events_log(("r", b"h", body)), "s", {"since": "r", "kept": {}, "added": {}})
    assert full_conversation(
        first_events_log(("r", b"h", "[1]")), "s", {"since": "r", "kept": {}, "added": {"a": 1}}
    ) == {"a": 1}


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "change",
    [
        "DELETE FROM events",
        "UPDATE events SET hash = NULL",
        "UPDATE events SET hash = zeroblob(32)",
        "UPDATE events SET at = at + 1",
    ],
)
def test_any_change_of_what_is_shared_is_damage_of_what_follows(
    change: str, number: int, tmp_path: Path
) -> None:
    """In the run before and in the one before that: the follow-up names it; with nothing changed there is
    none.
    """
    store = SessionStore(tmp_path / "k.db")
    for at in range(3):
        earlier: dict[str, Any] = {"messages": [f"m{one}" for one in range(at + 1)]}
        store.create_run(
            f"r{at}",
            RunStarted(
                goal="g", workspace="/w", model="m", follows=f"r{at - 1}" if at else "", earlier=earlier
            ),
        )
        store.flush()
    assert store.damage("r2") is None
    raw = apsw.Connection(str(store.path))
    raw.execute("DROP TRIGGER events_delete; DROP TRIGGER events_update")
    raw.execute(f"{change} WHERE run_id = 'r{number}' AND seq = 1")
    raw.close()
    damage = store.damage("r2")
    assert damage is not None
    assert (damage.run_id, damage.seq, damage.row) == ("r2", 1, False) and damage.what.endswith(
        f"written in run r{number}"
    )
    store.close()
