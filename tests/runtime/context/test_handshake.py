"""What a run is told of the time when it begins, and what its tools tell from: the same after a resume,
whatever the clock says then.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.events.union import Record, RunStarted, ToolAnswered
from kestrel_lab.core.messages import ModelRequest
from kestrel_lab.lab import Lab
from kestrel_lab.testing import ScriptedModel

NOON = datetime(2026, 11, 18, 12, tzinfo=ZoneInfo("Europe/Vienna"))
TIME = {
    "now_iso": "2026-11-18T12:00:00+01:00",
    "timezone": "Europe/Vienna",
    "weekday": "Wednesday",
    "date": "2026-11-18",
    "iso_week": "2026-W47",
}
LINE = (
    "When this session began it was 2026-11-18T12:00:00+01:00, a Wednesday, ISO week 2026-W47, time "
    "zone Europe/Vienna."
)
TURNS = [
    [("parse_relative", {"text": "tomorrow at 15:30"})],
    [("time_arithmetic", {"base": "2026-11-18T12:00", "offset": "+2 hours"})],
    "done",
]


@contextmanager
def session_at(home: Path, now: Callable[[], datetime]) -> Iterator[Lab]:
    """A session with a clock of its own."""
    made = Lab(home, env={})
    made.ports = replace(made.ports, now=now)
    yield made
    made.close()


def answers(events: Iterable[object]) -> list[Any]:
    """What the tools answered, in order: a start, or the text of an error."""
    given = [event for event in events if isinstance(event, ToolAnswered)]
    return [json.loads(event.text)["start"] if event.error is None else event.text for event in given]


FOUND = ["2026-11-19T15:30:00+01:00", "2026-11-18T14:00:00+01:00"]


def first_run(folder: Path) -> list[Record]:
    """The log of a run that asks its tools about the time."""
    with session_at(folder, lambda: NOON) as session:
        return asyncio.run(session.run("go", model=ScriptedModel(TURNS), workspace=folder)).records()


def same_after_a_month(folder: Path, began: RunStarted, records: list[Record]) -> None:
    """Cut after these records and resumed a month later, the agent is told the same time and its tools find
    the same.
    """
    told: list[str] = []
    left = TURNS[sum(record.event.type == "model_answered" for record in records) :]

    def later(request: ModelRequest) -> Any:
        told.append(request.messages[0].text)
        return left[len(told) - 1]

    with session_at(folder, lambda: NOON + timedelta(days=30)) as other:
        other.store.create_run("r", began)
        for record in records:
            other.store.append("r", record.event, at=record.at)
        resumed = asyncio.run(other.resume("r", model=ScriptedModel(later)))
        assert answers(resumed.events()) == FOUND
        assert all(LINE in text for text in told)


def test_a_run_is_told_the_time_once_and_keeps_it(tmp_path: Path) -> None:
    """The time is an event, a sentence for the agent, and what its tools tell from, also after a resume from
    any point.
    """
    records = first_run(tmp_path / "a")
    began = records[0].event
    assert isinstance(began, RunStarted)
    assert (began.time, LINE in began.system) == (TIME, True)
    assert answers(record.event for record in records) == FOUND
    last = next(record.seq for record in records if record.event.type == "run_finished")
    for cut in range(1, last):
        same_after_a_month(tmp_path / f"cut{cut}", began, records[1:cut])


def test_bugs_in_the_handshake_are_caught(tmp_path: Path) -> None:
    """Mutants: the time is not in the log; the time of the resume is.

    Without it tools refuse, they do not ask the clock.
    """
    records = first_run(tmp_path / "a")
    began = records[0].event
    assert isinstance(began, RunStarted)
    moved = {**began.time, "now_iso": (NOON + timedelta(days=30)).isoformat()}
    for name, time in (("lost", {}), ("moved", moved)):
        with pytest.raises(AssertionError):
            same_after_a_month(tmp_path / name, replace(began, time=time), [])
    with session_at(tmp_path / "lost", lambda: NOON) as session:
        first, second = answers(session.get("r").events())
    assert ("give reference" in first, "has no time zone" in second) == (True, True)


def test_a_clock_without_a_zone_begins_nothing(tmp_path: Path) -> None:
    """A clock that does not say its zone is refused before there is a run."""
    with session_at(tmp_path / "a", lambda: NOON.replace(tzinfo=None)) as session:
        with pytest.raises(UsageError, match="has no time zone"):
            asyncio.run(session.run("go", model=ScriptedModel(["done"]), workspace=tmp_path))
        assert len(session.store.runs()) == 0


def test_only_what_the_arguments_settle_is_kept(tmp_path: Path) -> None:
    """An answer told from the run's own time is worked out in every run; one told from an argument comes from
    the cache.
    """
    told = {"text": "tomorrow", "reference": "2026-11-18T12:00:00+01:00"}
    turns = [
        [
            ("parse_relative", {"text": "tomorrow"}),
            ("parse_relative", told),
            ("normalize_timezone", {"time": "2026-11-18T12:00Z", "to_zone": "Asia/Tokyo"}),
        ],
        "done",
    ]
    cached, found = [], []
    for day in (0, 1):
        with session_at(tmp_path / "a", lambda day=day: NOON + timedelta(days=day)) as session:  # type: ignore[misc]
            run = asyncio.run(session.run("go", model=ScriptedModel(turns), workspace=tmp_path))
            cached.append([event.cached for event in run.events() if isinstance(event, ToolAnswered)])
            found.append(answers(run.events()))
    assert cached == [[False, False, False], [False, True, True]]
    assert [day[0][:10] for day in found] == ["2026-11-19", "2026-11-20"]
    assert found[0][1:] == found[1][1:]


def test_a_refusal_tells_the_model_what_to_write(tmp_path: Path) -> None:
    """What cannot be read is an error of the call, with the way out in it; the run goes on."""
    calls = [
        ("parse_relative", {"text": "3pm CST"}),
        ("time_arithmetic", {"base": "2026-03-28T02:30", "offset": "1 day"}),
    ]
    with session_at(tmp_path / "a", lambda: NOON) as session:
        run = asyncio.run(session.run("go", model=ScriptedModel([calls, "done"]), workspace=tmp_path))
        first, second = answers(run.events())
    assert (
        "America/Chicago" in first,
        "write 2026-03-29T01:30:00+01:00 or 2026-03-29T03:30:00+02:00" in second,
        run.answer,
    ) == (
        True,
        True,
        "done",
    )
