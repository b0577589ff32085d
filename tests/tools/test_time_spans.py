"""From when to when an expression goes, how it was read, and what is noted where it could have been read
otherwise.
"""

from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import time_arithmetic
from kestrel_lab.tools.timeparse.parse import parse_relative
from kestrel_lab.tools.timeparse.types import Prefer, Preferences
from kestrel_lab.tools.timeparse.zones import day_start, zone_named

NOON = datetime(2026, 11, 18, 12, tzinfo=ZoneInfo("Europe/Vienna"))
"""A Wednesday."""


@pytest.mark.parametrize(
    ("text", "prefer", "start", "days", "said", "note"),
    [
        (
            "Friday",
            "past",
            "2026-11-13",
            1,
            "the last Friday",
            "which Friday was not said: the last one was taken",
        ),
        (
            "Friday",
            "future",
            "2026-11-20",
            1,
            "the coming Friday",
            "which Friday was not said: the coming one was taken",
        ),
        ("coming Wednesday", "past", "2026-11-25", 1, "the coming Wednesday", ""),
        ("most recent Wednesday", "future", "2026-11-11", 1, "the last Wednesday", ""),
        ("this Friday", "future", "2026-11-20", 1, "Friday of this week", ""),
        ("this Wednesday", "future", "2026-11-18", 1, "Wednesday of this week", ""),
        (
            "this Monday",
            "future",
            "2026-11-16",
            1,
            "Monday of this week",
            "weeks from Monday; the coming Monday is 2026-11-23",
        ),
        ("last Friday", "future", "2026-11-13", 1, "Friday of last week", ""),
        (
            "last Monday",
            "future",
            "2026-11-09",
            1,
            "Monday of last week",
            "the most recent Monday is 2026-11-16",
        ),
        ("last Wednesday", "future", "2026-11-11", 1, "Wednesday of last week", ""),
        ("next Monday", "future", "2026-11-23", 1, "Monday of next week", ""),
        ("next Friday", "future", "2026-11-27", 1, "Friday of next week", "the coming Friday is 2026-11-20"),
        ("next Wednesday", "future", "2026-11-25", 1, "Wednesday of next week", ""),
        ("Friday of next week", "future", "2026-11-27", 1, "Friday of next week", ""),
        ("last week on Friday", "future", "2026-11-13", 1, "Friday of last week", ""),
        ("November", "future", "2026-11-01", 30, "November of this year", "this month was taken"),
        ("November", "past", "2026-11-01", 30, "November of this year", "this month was taken"),
        ("December", "past", "2025-12-01", 31, "the last December", "the last December was taken"),
        ("December", "future", "2026-12-01", 31, "the coming December", "the coming December was taken"),
        ("March", "past", "2026-03-01", 31, "the last March", "the last March was taken"),
        ("Q4", "future", "2026-10-01", 92, "a calendar quarter", "this year's was taken"),
        ("Q2 2027", "future", "2027-04-01", 91, "a calendar quarter", ""),
        ("last month", "future", "2026-10-01", 31, "last month", ""),
        ("this year", "future", "2026-01-01", 365, "this year", ""),
        ("next quarter", "future", "2027-01-01", 90, "next quarter", ""),
        ("last weekend", "future", "2026-11-14", 2, "Saturday and Sunday of last week", ""),
        ("next weekend", "future", "2026-11-28", 2, "Saturday and Sunday of next week", ""),
        ("last week", "future", "2026-11-09", 7, "last week, from Monday", ""),
        ("1st of next month", "future", "2026-12-01", 1, "the 1st day of next month", ""),
        ("last day of this quarter", "future", "2026-12-31", 1, "the last day of this quarter", ""),
        (
            "30th day of November",
            "future",
            "2026-11-30",
            1,
            "the 30th day of November of this year",
            "this month was taken",
        ),
        ("2027-W01", "future", "2027-01-04", 7, "an ISO week", ""),
        ("1999", "future", "1999-01-01", 365, "a whole year", ""),
        ("March 2027", "future", "2027-03-01", 31, "a whole month", ""),
        ("2027-03", "future", "2027-03-01", 31, "a whole month", ""),
        ("February 2028", "future", "2028-02-01", 29, "a whole month", ""),
        (
            "3 Wednesdays ago",
            "future",
            "2026-10-28",
            1,
            "the Wednesday number 3 before today, which does not count",
            "",
        ),
        (
            "1 Wednesday hence",
            "future",
            "2026-11-25",
            1,
            "the Wednesday number 1 after today, which does not count",
            "",
        ),
        (
            "2 Fridays from now",
            "future",
            "2026-11-27",
            1,
            "the Friday number 2 after today, which does not count",
            "",
        ),
        (
            "2 days before Friday",
            "future",
            "2026-11-18",
            1,
            "2 days before 2026-11-20, the coming Friday",
            "the coming one was taken",
        ),
        (
            "2 weeks after next Monday",
            "future",
            "2026-12-07",
            1,
            "14 days after 2026-11-23, Monday of next week",
            "",
        ),
        ("May 21", "past", "2026-05-21", 1, "the last such day", "the last one was taken"),
        ("Dec 24", "past", "2025-12-24", 1, "the last such day", "the last one was taken"),
        ("Dec 24", "future", "2026-12-24", 1, "the coming such day", "the coming one was taken"),
        ("3 days ago", "future", "2026-11-15", 1, "-3 days from 2026-11-18", ""),
    ],
)
def test_an_expression_is_so_many_days(
    text: str, prefer: Prefer, start: str, days: int, said: str, note: str
) -> None:
    """From midnight to midnight on clocks there; a note only where something was not said."""
    found = parse_relative(text, NOON, preferences=Preferences(prefer=prefer))
    first = datetime.fromisoformat(start)
    assert (found.start.replace(tzinfo=None), found.end.replace(tzinfo=None)) == (
        first,
        first + timedelta(days=days),
    )
    assert found.interpretation == said
    assert (note in " ".join(found.notes)) if note else found.notes == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Wednesday", "today, or a date: 2026-11-25 or 2026-11-11"),
        ("32nd of November", "has 30 days"),
        ("0th day of November", "has 30 days"),
        ("31st day of November", "the last day of it, or a date"),
        ("first Monday of Friday", "is not a week, month, quarter or year"),
        ("0 Mondays ago", "a number from 1"),
        ("2027-W54", "2027 has no ISO week 54"),
    ],
)
def test_a_day_that_there_is_not_is_refused(text: str, words: str) -> None:
    """With what could be meant."""
    with pytest.raises(UsageError) as refusal:
        parse_relative(text, NOON)
    assert words in str(refusal.value)


def test_a_date_moved_by_whole_days_is_a_whole_day() -> None:
    """Its end is the next midnight there, also where the day has 23 hours."""
    found = time_arithmetic("2026-03-28", "1 day", zone="Europe/Vienna")
    assert (found.start.isoformat(), found.end.isoformat()) == (
        "2026-03-29T00:00:00+01:00",
        "2026-03-30T00:00:00+02:00",
    )


def test_a_day_begins_where_clocks_are_put_forward_at_midnight() -> None:
    """The first moment that has its date; a day that a zone skipped has none."""
    santiago = zone_named("America/Santiago", "test")
    assert day_start(date(2024, 9, 8), santiago).isoformat() == "2024-09-08T01:00:00-03:00"
    with pytest.raises(UsageError, match="there was no 2011-12-30 in Pacific/Apia"):
        day_start(date(2011, 12, 30), zone_named("Pacific/Apia", "test"))


def test_zones_are_named_by_what_they_are() -> None:
    """By name in any case, by distance, and by an abbreviation that means one."""
    found = [
        zone_named(word, "test") for word in (" europe/vienna ", "+05:30", "-0330", "z", "CET", "Etc/UTC")
    ]
    assert [zone.name for zone in found] == [
        "Europe/Vienna",
        "UTC+05:30",
        "UTC-03:30",
        "UTC",
        "UTC+01:00",
        "UTC",
    ]
    assert [zone.short for zone in found] == ["", "", "", "", "CET", ""]
    for word, why in (
        ("+24:00", "less than 24 hours"),
        ("EST5", "there is no time zone"),
        ("IST", "does not say which zone"),
        ("EET2", "no time zone"),
    ):
        with pytest.raises(UsageError, match=why):
            zone_named(word, "test")
