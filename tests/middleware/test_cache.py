"""Answers kept and used again, on a store that trusts nobody who can write its file."""

import asyncio
import pickle
import queue
import sqlite3
import threading
import warnings
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from waits import FOREVER_S, PATIENCE_S, until

from kestrel_lab.core.calls import Call, Problem, Result
from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import CacheHit
from kestrel_lab.core.protocols import Handler
from kestrel_lab.middleware.cache import (
    MAX_ROW,
    CacheMode,
    CacheStoreError,
    PendingCalls,
    Place,
    ToolCache,
    cache_mode,
)
from kestrel_lab.middleware.disk_cache import DiskStore, open_cache
from kestrel_lab.middleware.layers import compose_layers

CALL = Call(id="1", kind="tool", target="read", args={"path": "a"})


@dataclass
class DictStore:
    """A store in memory."""

    kept: dict[str, str] = field(default_factory=dict)
    ttl: list[float | None] = field(default_factory=list)

    async def get(self, key: str) -> str | None:
        """The text."""
        return self.kept.get(key)

    async def set(self, key: str, value: str, ttl_s: float | None) -> None:
        """Keep it."""
        self.kept[key] = value
        self.ttl.append(ttl_s)

    def close(self) -> None:
        """Nothing is open."""


@dataclass
class Scene:
    """A cached call whose outside state can be changed."""

    store: DictStore = field(default_factory=DictStore)
    state: str | None = "v1"
    mode: CacheMode = "use"
    runs: int = 0
    hits: list[CacheHit] = field(default_factory=list)
    result: Result = Result(value={"text": "\ud800"})  # frozen  # noqa: RUF009
    changes_while_running: bool = False
    flights: PendingCalls = field(default_factory=PendingCalls)
    layer: type[ToolCache] = ToolCache
    gate: asyncio.Event | None = None
    fails: list[BaseException | None] = field(default_factory=list)
    """What each run ends with in turn; an answer when there is none."""

    async def run(self, _: Call) -> Result:
        """The real call."""
        self.runs += 1
        failure = self.fails.pop(0) if self.fails else None
        if self.gate is not None:
            await self.gate.wait()
        if failure is not None:
            raise failure
        if self.changes_while_running:
            self.state = "v2"
        return self.result

    async def place(self, _: Call) -> Place | None:
        """By the state alone."""
        return None if self.state is None else Place(self.state, 60.0)

    async def once(self) -> Result:
        """Make the call through the cache."""
        return await compose_layers(
            self.run, self.layer(self.store, self.place, self.hits.append, self.mode, self.flights)
        )(CALL)

    def call(self) -> Result:
        """The same, on an event loop of its own."""
        return asyncio.run(self.once())


MADE = replace(Scene().result, cacheable=True)
HIT = replace(MADE, cached=True)


def test_an_answer_is_used_again_while_nothing_changed() -> None:
    """The second equal call is answered from the store, is marked so and recorded; a changed state asks
    anew.
    """
    scene = Scene()
    assert [scene.call(), scene.call()] == [MADE, HIT]
    assert (scene.runs, scene.hits) == (1, [CacheHit(call="1", tool="read", key="v1")])
    assert scene.store.ttl == [60.0]
    scene.state = "v2"
    assert scene.call() == MADE
    assert scene.runs == 2


def test_nothing_is_an_answer_too() -> None:
    """A tool that answers `None` is not asked again."""
    scene = Scene(result=Result(value=None))
    assert [scene.call().cached, scene.call().cached] == [False, True]


def test_what_may_not_be_reused_is_not_kept() -> None:
    """No place, a state that is changing, a failure, an answer too large, and a state that changed while the
    call ran: nothing is kept.
    """
    failed, large = Result(error=Problem(kind="failed", message="no")), Result(value="x" * MAX_ROW)
    uncached = Scene(state=None)
    assert (uncached.call(), uncached.store.kept) == (uncached.result, {})
    for scene in (
        Scene(state=""),
        Scene(result=failed),
        Scene(result=large),
        Scene(changes_while_running=True),
    ):
        assert scene.call() == replace(scene.result, cacheable=True)
        assert scene.store.kept == {}


def test_each_mode_does_what_it_says() -> None:
    """`off` neither looks nor keeps; `refresh` keeps anew without looking; `replay` only looks, and a miss is
    an error, not a call.
    """
    scene = Scene(mode="off")
    assert (scene.call(), scene.store.kept) == (scene.result, {})
    scene.mode = "replay"
    missed = scene.call()
    assert missed.error is not None
    assert missed.error.message == (
        "the cache is on replay and has no answer of read for these arguments; store one with cache "
        "mode use or refresh"
    )
    scene.mode, runs = "refresh", scene.runs
    assert [scene.call(), scene.call()] == [MADE, MADE]
    assert scene.runs == runs + 2
    scene.result, scene.mode = Result(value="new"), "refresh"
    scene.call()
    scene.mode, runs = "replay", scene.runs
    assert scene.call() == Result(value="new", cached=True, cacheable=True)
    scene.state = ""
    assert "has just changed" in str(scene.call().error)
    assert scene.runs == runs
    scene.state = None
    assert scene.call() == Result(value="new")  # what is never stored is called in every mode


class CallsAnyway(ToolCache):
    """A mutant: makes the call that a replay has no answer of."""

    async def __call__(self, call: Call, proceed: Handler) -> Result:
        """Answer or call."""
        result = await ToolCache.__call__(self, call, proceed)
        return result if result.ok else await proceed(call)


def test_a_replay_that_calls_is_caught() -> None:
    """A replay makes no call; the mutant does."""
    proper, mutant = Scene(mode="replay"), Scene(mode="replay", layer=CallsAnyway)
    proper.call()
    mutant.call()
    assert (proper.runs, mutant.runs) == (0, 1)


@pytest.mark.parametrize(
    "row",
    [
        "{broken",
        "[]",
        "7",
        '{"value": 1}',
        '{"key": "v2", "value": "of another"}',
        '{"key": "v1", "value": 1, "more": 2}',
        "[" * 100_000,
    ],
)
def test_what_was_not_written_for_the_call_is_a_miss(row: str) -> None:
    """A text that is not a row, or the row of another call, is replaced by a real answer, with a warning."""
    scene = Scene(store=DictStore({"v1": row}))
    with pytest.warns(UserWarning, match="belongs to another call"):
        assert scene.call() == MADE
    assert scene.call() == HIT
    assert (scene.runs, len(scene.hits)) == (1, 1)


def _together(scene: Scene, calls: int, cancelled: int = 0) -> list[Result | BaseException]:
    """That many equal calls at once, the first few of them cancelled while the tool runs."""

    async def work() -> list[Result | BaseException]:
        scene.gate = asyncio.Event()
        tasks = [asyncio.create_task(scene.once()) for _ in range(calls)]
        while not scene.runs:
            await asyncio.sleep(0)
        for task in tasks[:cancelled]:
            task.cancel()
        scene.gate.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(asyncio.wait_for(work(), PATIENCE_S))


def test_equal_calls_at_once_are_one() -> None:
    """Fifty equal calls at the same time run the tool once; the others are hits, each with a value of its
    own.
    """
    scene = Scene(result=Result(value=["shared"]))
    first, *others = _together(scene, 50)
    assert (first, scene.runs, len(scene.hits)) == (replace(scene.result, cacheable=True), 1, 49)
    assert all(other == replace(scene.result, cached=True, cacheable=True) for other in others)
    assert isinstance(others[0], Result)
    assert isinstance(others[1], Result)
    assert others[0].value is not others[1].value


def test_one_that_fails_fails_alone() -> None:
    """When the call that the others wait for raises, answers with an error or is cancelled, each of the
    others is made after all.
    """
    raising = Scene(fails=[OSError("gone")])
    first, *others = _together(raising, 4)
    assert isinstance(first, OSError)
    assert (others, raising.runs) == ([MADE] * 3, 4)
    cancelled = Scene()
    first, *others = _together(cancelled, 4, cancelled=1)
    assert isinstance(first, asyncio.CancelledError)
    assert (others, cancelled.runs) == ([MADE] * 3, 4)
    refused = Scene(result=Result(error=Problem(kind="failed", message="no")))
    assert _together(refused, 3) == [replace(refused.result, cacheable=True)] * 3
    assert refused.runs == 3


class SharesFailures(PendingCalls):
    """A mutant: whoever waits for a call that fails is given its failure."""

    def land(self, key: str, text: str | None) -> None:
        """End a flight."""
        flight = self._flying.pop(key)
        if text is None:
            flight.set_exception(OSError("not mine"))
        else:
            flight.set_result(text)


def test_sharing_failures_is_caught() -> None:
    """With the mutant the calls that waited fail too."""
    mutant = Scene(fails=[OSError("gone")], flights=SharesFailures())
    assert [type(answer) for answer in _together(mutant, 4)] == [OSError] * 4


def test_one_that_gives_up_waiting_stops_nobody() -> None:
    """A waiting call that is cancelled takes neither the flight nor the other waiting calls with it."""

    async def work(scene: Scene) -> list[Result]:
        scene.gate = asyncio.Event()
        leader = asyncio.create_task(scene.once())
        while not scene.runs:
            await asyncio.sleep(0)
        impatient, patient = asyncio.create_task(scene.once()), asyncio.create_task(scene.once())
        await asyncio.sleep(0.01)
        impatient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await impatient
        scene.gate.set()
        return [await leader, await patient]

    scene = Scene()
    assert asyncio.run(asyncio.wait_for(work(scene), PATIENCE_S)) == [MADE, HIT]
    assert scene.runs == 1


def test_threads_share_flights() -> None:
    """Equal calls on event loops of several threads are one too."""
    scene, answers = Scene(), queue.SimpleQueue[Result]()
    begun, go = threading.Event(), threading.Event()

    async def slow(_: Call) -> Result:
        scene.runs += 1
        begun.set()
        await asyncio.to_thread(go.wait, PATIENCE_S)
        return scene.result

    def body() -> None:
        layer = ToolCache(scene.store, scene.place, scene.hits.append, "use", scene.flights)
        answers.put(asyncio.run(compose_layers(slow, layer)(CALL)))

    threads = [threading.Thread(target=body) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE_S)
    go.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert scene.runs == 1
    assert sorted(answers.get_nowait().cached for _ in threads) == [False, True, True, True]


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, tuple[Path]]:
        return (Path.touch, (self.mark,))


def test_a_store_keeps_text_for_the_next_session(tmp_path: Path) -> None:
    """What is set is there after closing and opening, for text of any kind; anything but text is refused."""
    store = open_cache(tmp_path / "cache")
    store.set("k", "v\0é" * 100_000)
    with pytest.raises(TypeError, match="cached values are text"):
        store.set("k2", b"bytes")
    with pytest.raises(TypeError, match="cache keys are text"):
        store.set(1, "v")
    store.close()
    again = open_cache(tmp_path / "cache")
    assert again.get("k") == "v\0é" * 100_000
    assert again.get("other") is None
    assert {path.name.partition("-")[0] for path in (tmp_path / "cache").iterdir()} == {"cache.db"}
    again.close()


@pytest.mark.parametrize("attack", ["pickle", "file", "bytes", "number"])
def test_a_tampered_row_is_a_miss(attack: str, tmp_path: Path) -> None:
    """A row rewritten to hold a pickle or to point at a file runs nothing, reads nothing and deletes nothing;
    it is a miss with a warning.
    """
    mark, secret = tmp_path / "mark", tmp_path / "secret.txt"
    secret.write_text("secret")
    store = open_cache(tmp_path / "cache")
    store.set("k", "v")
    store.close()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    value, mode, filename = {
        "pickle": (pickle.dumps(Trap(mark)), 4, None),
        "file": (None, 2, "../secret.txt"),
        "bytes": (b"bytes", 1, None),
        "number": (5, 1, None),
    }[attack]
    raw.execute("UPDATE Cache SET value = ?, mode = ?, filename = ?", (value, mode, filename))
    raw.commit()
    raw.close()

    store = open_cache(tmp_path / "cache")
    with pytest.warns(UserWarning, match="tampered with"):
        assert store.get("k") is None
    store.set("k", "new")
    assert store.get("k") == "new"
    store.clear()
    store.close()
    assert not mark.exists()
    assert secret.read_text() == "secret"


def test_a_tampered_key_is_not_unpickled(tmp_path: Path) -> None:
    """Listing the keys of a store runs nothing that was put there."""
    mark = tmp_path / "mark"
    store = open_cache(tmp_path / "cache")
    store.set("k", "v")
    store.close()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    raw.execute("UPDATE Cache SET key = ?, raw = 0", (pickle.dumps(Trap(mark)),))
    raw.commit()
    raw.close()
    store = open_cache(tmp_path / "cache")
    assert list(store) == [""]
    store.close()
    assert not mark.exists()


def test_a_huge_row_is_not_read(tmp_path: Path) -> None:
    """A row larger than any of ours is a miss with a warning, and can be written over; what we do not keep
    does not get there.
    """
    store = DiskStore(tmp_path / "cache")
    asyncio.run(store.set("k", "v", None))
    store.close()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    raw.execute("UPDATE Cache SET value = ?", ("x" * (MAX_ROW + 1),))
    raw.commit()
    raw.close()
    store = DiskStore(tmp_path / "cache")
    with pytest.warns(UserWarning, match="tampered with"):
        assert asyncio.run(store.get("k")) is None
    asyncio.run(store.set("k", "new", None))
    assert asyncio.run(store.get("k")) == "new"
    store.close()


def test_a_row_under_another_key_is_a_miss(tmp_path: Path) -> None:
    """Rows of the file that were exchanged answer neither call."""
    store = DiskStore(tmp_path / "cache")
    scene = Scene(store=store)  # type: ignore[arg-type]  # another store
    scene.call()
    raw = sqlite3.connect(tmp_path / "cache" / "cache.db")
    raw.execute("UPDATE Cache SET key = 'v2'")
    raw.commit()
    raw.close()
    scene.state = "v2"
    with pytest.warns(UserWarning, match="belongs to another call"):
        assert scene.call() == MADE
    assert scene.call() == HIT
    store.close()


def test_answers_leave_when_their_time_is_up(tmp_path: Path) -> None:
    """A row with a time to live is there before it and gone after it."""
    store = DiskStore(tmp_path / "cache")
    asyncio.run(store.set("long", "v", FOREVER_S))
    asyncio.run(store.set("short", "v", 0.01))
    until(lambda: asyncio.run(store.get("short")) is None)
    assert asyncio.run(store.get("long")) == "v"
    store.close()


@pytest.mark.parametrize("garbage", [b"not a database at all " * 500, b""])
def test_a_file_that_is_no_cache_begins_anew(garbage: bytes, tmp_path: Path) -> None:
    """What stands in the place of the file is thrown away, with a warning unless it is empty; nothing
    fails.
    """
    (tmp_path / "cache.db").write_bytes(garbage)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        store = DiskStore(tmp_path)
    assert [str(warning.message).partition(" (")[0] for warning in told] == (
        [f"the tool cache in {tmp_path} cannot be read and starts empty"] if garbage else []
    )
    asyncio.run(store.set("k", "v", None))
    assert asyncio.run(store.get("k")) == "v"
    store.close()


def test_a_place_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """Where no folder can be, opening says so."""
    (tmp_path / "file").write_text("")
    with (
        pytest.warns(UserWarning, match="starts empty"),
        pytest.raises(CacheStoreError, match="cannot be kept in"),
    ):
        DiskStore(tmp_path / "file")


def test_a_mode_that_does_not_exist_is_named() -> None:
    """The nearest one is told."""
    assert cache_mode(" Replay ") == "replay"
    with pytest.raises(UsageError, match=r"unknown cache mode 'refesh'; did you mean 'refresh'\?"):
        cache_mode("refesh")
