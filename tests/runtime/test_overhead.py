"""What a run costs beside its model and its tools, counted in calls of functions: no clock, so a busy machine
changes next to nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pydantic
import pytest

from kestrel_lab import tool
from kestrel_lab.core.calls import Effect
from kestrel_lab.core.events.union import RunStarted
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.core.run_types import Limits
from kestrel_lab.eventlog.seals import hash_chain
from kestrel_lab.eventlog.store import SessionStore
from kestrel_lab.lab import Lab
from kestrel_lab.runtime.context.tool_selection import MOST_SHOWN
from kestrel_lab.testing import ScriptedModel, Turn
from kestrel_lab.tools.tool import Tool

BUSY = 1.05
"""Above what is counted on a quiet machine: threads that wait for a processor are waited for in more steps,
up to 1.5 % more here.
"""
MOST_OF_A_SHORT_RUN = BUSY * 3_400
"""Calls of functions, in all threads, in a run with one tool call; 5,690 before reviews of answers were made
cheaper.
"""
MOST_OF_A_TURN, MOST_OF_A_PLAIN_TURN, MOST_OF_AN_OPAQUE_TURN, MOST_OF_A_DOUBTED_TURN = (
    BUSY * 507,
    BUSY * 548,
    BUSY * 736,
    BUSY * 940,
)
"""Calls of Python functions in a turn with three calls of a tool; 1,201 the last when each call told of its
files by itself.
"""

WRITER = "kestrel-log-writer"
MOST_WRITTEN = {"calls": 290, "statements": 4, "bytes": BUSY * 3_430}
MOST_WRITTEN_BEFORE_EFFECTS = {"calls": 370, "statements": 8, "bytes": BUSY * 3_435}
"""Of the log's writer, in a turn with three calls: 250 and 320 calls of functions on a quiet machine, 412 and
456 when each part of an event was hashed by itself. Statements are those of one commit, and of two: answers
that wait for company may find none on a busy machine.
"""


@tool(effect="pure")
async def add(x: int, y: int) -> str:
    """Add two numbers."""
    return str(x + y)


def session(home: Path, turns: int, calls: int, *, context_tokens: int | None = None) -> Lab:
    """One whose model asks for so many calls in each of so many turns.

    Snapshots are left out: what they cost is spread by their own rule.
    """

    def play(request: ModelRequest) -> Turn:
        done = (len(request.messages) - 2) // (1 + calls)
        return "done" if done == turns else [("add", {"x": done, "y": place}) for place in range(calls)]

    limits = Limits(cycles=None, seconds=None, context_tokens=context_tokens)
    return Lab(home, ScriptedModel(play), "auto", tools=[add], env={}, limits=limits, checkpoint_every=None)


@contextmanager
def counting(kinds: set[str]) -> Iterator[list[int]]:
    """The number of calls of these kinds so far, in a list of one."""
    count, before = [0], sys.getprofile()

    def note(_: FrameType, what: str, __: object) -> None:
        count[0] += what in kinds

    sys.setprofile(note)
    threading.setprofile(note)  # of threads to come: the log's writer, and where an answer is looked at
    yield count
    sys.setprofile(before)
    threading.setprofile(None)


@pytest.fixture
def counted() -> Iterator[list[int]]:
    """The number of functions called so far, also those written in C."""
    with counting({"call", "c_call"}) as count:
        yield count


@pytest.fixture
def counted_python() -> Iterator[list[int]]:
    """The number of functions called so far that are written in Python."""
    with counting({"call"}) as count:
        yield count


async def cost(lab: Lab, place: Path, counted: list[int], *, before: int = 1) -> int:
    """Of a run, when so many were done before."""
    for _ in range(before + 1):
        begun = counted[0]
        run = await lab.run("add", workspace=place)
        assert run.answer == "done"
    return counted[0] - begun


def test_a_short_run_stays_cheap(tmp_path: Path, counted: list[int]) -> None:
    """A run with one tool call has a bound: what is done anew for every run is noticed before it is felt."""
    lab = session(tmp_path / "home", 1, 1)
    spent = asyncio.run(cost(lab, tmp_path, counted))
    lab.close()
    assert spent <= MOST_OF_A_SHORT_RUN


@pytest.mark.parametrize("context_tokens", [None, 10_000_000])
def test_a_call_costs_the_same_in_a_long_run(
    context_tokens: int | None, tmp_path: Path, counted: list[int]
) -> None:
    """Four times as many calls cost four times as much: nothing goes through all that was before at each of
    them.
    """
    spent = []
    for turns in (20, 80):
        lab = session(tmp_path / f"home{turns}", turns, 4, context_tokens=context_tokens)
        spent.append(asyncio.run(cost(lab, tmp_path, counted)) / turns)
        lab.close()
    assert spent[1] <= 1.1 * spent[0]


def test_a_run_begins_as_fast_behind_many(tmp_path: Path, counted: list[int]) -> None:
    """The log of earlier runs is not gone through when another begins."""
    lab = session(tmp_path / "home", 1, 1)
    first, later = (
        asyncio.run(cost(lab, tmp_path, counted)),
        asyncio.run(cost(lab, tmp_path, counted, before=40)),
    )
    lab.close()
    assert later <= 1.05 * first


@pytest.mark.parametrize(
    ("effect", "sync", "news", "most"),
    [
        ("pure", False, "", MOST_OF_A_TURN),
        ("pure", True, "", MOST_OF_A_PLAIN_TURN),
        ("opaque", False, "", MOST_OF_AN_OPAQUE_TURN),
        ("opaque", False, ", which somebody else may have written", MOST_OF_A_DOUBTED_TURN),
    ],
)
def test_a_turn_stays_cheap(
    effect: Effect, sync: bool, news: str, most: float, tmp_path: Path, counted_python: list[int]
) -> None:
    """A turn with three calls has a bound in calls of Python functions, also where the tool is a plain
    function that Ctrl-C can stop.

    The most expensive are calls whose author has read what may be words of others: the files of the workspace are
    watched.
    """

    async def look_up(topic: str, limit: int) -> str:
        """Find entries."""
        return f"{limit} entries of {topic}{news}"

    def look_up_now(topic: str, limit: int) -> str:
        """Find entries."""
        return f"{limit} entries of {topic}{news}"

    look = tool(effect=effect, name="look_up")(look_up_now if sync else look_up)

    def play(turns: int) -> Callable[[ModelRequest], Turn]:
        return lambda request: (
            "done"
            if len(request.messages) > 4 * turns
            else [("look_up", {"topic": f"entry {place}", "limit": 5}) for place in range(3)]
        )

    async def spent(folder: Path, turns: int) -> int:
        options: dict[str, Any] = {
            "env": {},
            "limits": Limits(cycles=None, seconds=None),
            "checkpoint_every": None,
        }
        lab = Lab(folder / f"home{turns}", ScriptedModel(play(turns)), "auto", tools=[look], **options)
        spent = await cost(lab, folder, counted_python)
        lab.close()
        return spent

    def of_a_turn(folder: Path) -> float:
        folder.mkdir()
        short, long = asyncio.run(spent(folder, 10)), asyncio.run(spent(folder, 30))
        return (long - short) / 20

    # A busy machine only adds, so the least of three counts is what a turn costs.
    assert min(of_a_turn(tmp_path / name) for name in "abc") <= most


def test_a_run_of_many_tools_builds_no_schema_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run of a session, with more tools than are shown and a skill, describes none of them again
    and asks once what was said of them.

    The tools that only a run has, `find_tool` and `load_skill`, took more time than the rest of it when each
    run made them.
    """
    described, asked = list[object](), list[str]()
    build, query = pydantic.TypeAdapter.__init__, SessionStore.query

    def building(self: Any, shape: object, **how: Any) -> None:
        described.append(shape)
        build(self, shape, **how)

    def querying(self: SessionStore, sql: str, bindings: Iterable[object] = ()) -> Any:
        asked.append(sql)
        return query(self, sql, bindings)

    def numbered(number: int) -> Tool:
        async def do(what: str) -> str:
            return what

        do.__doc__ = f"Do thing number {number}."
        return tool(name=f"do_{number}")(do)

    (folder := tmp_path / "place" / ".agents" / "skills" / "one").mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: one\ndescription: Do one thing.\n---\nDo it.\n")
    lab = Lab(
        tmp_path / "home",
        ScriptedModel(lambda _: "done"),
        "auto",
        tools=[numbered(number) for number in range(MOST_SHOWN + 1)],
        env={},
    )

    async def offered() -> set[str]:
        run = await lab.run("go", workspace=tmp_path / "place")
        return {
            str(one["name"]) for event in run.events() if isinstance(event, RunStarted) for one in event.tools
        }

    first = asyncio.run(offered())
    assert {"find_tool", "load_skill"} <= first
    monkeypatch.setattr(pydantic.TypeAdapter, "__init__", building)
    monkeypatch.setattr(SessionStore, "query", querying)
    assert asyncio.run(offered()) == first
    lab.close()
    assert described == []
    assert sum("tool_flows" in sql for sql in asked) == 1


@pytest.mark.parametrize(
    ("effect", "most"), [("pure", MOST_WRITTEN), ("opaque", MOST_WRITTEN_BEFORE_EFFECTS)]
)
def test_the_thread_that_writes_the_log_stays_cheap(
    effect: Effect, most: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn with three calls has a bound in the writer's thread, too: its functions, C among them, its
    statements of SQLite, and the bytes it hashes. That thread takes its time from all others.
    """
    counts = {"calls": 0, "statements": 0, "bytes": 0}
    sha256 = hashlib.sha256

    def note(_: FrameType, what: str, called: Any) -> None:
        if threading.current_thread().name != WRITER:
            return
        counts["calls"] += what in {"call", "c_call"}
        counts["statements"] += what == "c_call" and called.__name__ in {"execute", "executemany"}

    def hashed(content: bytes) -> Any:
        counts["bytes"] += len(content)
        return sha256(content)

    @tool(effect=effect)
    async def look_up(topic: str, limit: int) -> str:
        """Find entries."""
        return f"{limit} entries of {topic}"

    def play(request: ModelRequest) -> Turn:
        done = (len(request.messages) - 2) // 4
        return "done" if done == 40 else [("look_up", {"topic": f"t{n}", "limit": 5}) for n in range(3)]

    monkeypatch.setattr(hash_chain.hashlib, "sha256", hashed)
    threading.setprofile(note)
    options: dict[str, Any] = {"limits": Limits(cycles=None, seconds=None), "checkpoint_every": None}
    lab = Lab(tmp_path / "home", ScriptedModel(play), "auto", tools=[look_up], env={}, **options)
    try:
        spent = {}
        for _ in range(2):
            before = dict(counts)
            assert asyncio.run(_answer(lab, tmp_path)) == "done"
            spent = {name: (count - before[name]) / 40 for name, count in counts.items()}
    finally:
        threading.setprofile(None)
        lab.close()
    assert {name: count for name, count in spent.items() if count > most[name]} == {}


class CountingLoop(asyncio.SelectorEventLoop):
    """An event loop that counts what it is given to do in a later turn, and the tasks among that."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"handles": 0, "tasks": 0}

    def call_soon(self, *args: Any, **options: Any) -> asyncio.Handle:
        """Schedule and count."""
        self.counts["handles"] += 1
        return super().call_soon(*args, **options)

    def create_task(self, *args: Any, **options: Any) -> asyncio.Task[Any]:
        """Begin a task and count it."""
        self.counts["tasks"] += 1
        return super().create_task(*args, **options)


@pytest.mark.parametrize(("news", "most"), [("", 9), (", which somebody else may have written", 11)])
def test_calls_that_may_have_effects_wait_for_the_disk_together(
    news: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn with three such calls asks for one commit, and the event loop has little to do: the first call
    needs no task, and all that wait are woken once.

    That machinery was half of the functions that such a turn calls more than one with pure tools. It was 14
    handles, 17 where files are watched, when each call was a task, gave way before it asked for a commit, and
    woke the turn by itself.
    """
    asked, on_disk = [0], SessionStore.on_disk

    def counting(store: SessionStore) -> Any:
        asked[0] += 1
        return on_disk(store)

    @tool(effect="opaque")
    async def look_up(topic: str, limit: int) -> str:
        """Find entries."""
        return f"{limit} entries of {topic}{news}"

    def play(turns: int) -> Callable[[ModelRequest], Turn]:
        return lambda request: (
            "done"
            if len(request.messages) > 4 * turns
            else [("look_up", {"topic": f"entry {place}", "limit": 5}) for place in range(3)]
        )

    def spent(turns: int) -> dict[str, int]:
        options: dict[str, Any] = {"limits": Limits(cycles=None, seconds=None), "checkpoint_every": None}
        lab = Lab(
            tmp_path / f"{turns}", ScriptedModel(play(turns)), "auto", tools=[look_up], env={}, **options
        )
        with asyncio.Runner(loop_factory=CountingLoop) as runner:
            runner.run(_answer(lab, tmp_path))
            loop = runner.get_loop()
            assert isinstance(loop, CountingLoop)
            before = loop.counts | {"commits": asked[0]}
            assert runner.run(_answer(lab, tmp_path)) == "done"
            after = loop.counts | {"commits": asked[0]}
        lab.close()
        return {name: count - before[name] for name, count in after.items()}

    monkeypatch.setattr(SessionStore, "on_disk", counting)
    short, long = spent(5), spent(15)
    of_a_turn = {name: (count - short[name]) / 10 for name, count in long.items()}
    assert of_a_turn["commits"] == 1
    assert of_a_turn["tasks"] == 2
    assert of_a_turn["handles"] <= most


async def _answer(lab: Lab, place: Path) -> str:
    return (await lab.run("look", workspace=place)).answer
