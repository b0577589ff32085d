"""What time expressions mean on a Wednesday noon in Vienna, and which are refused with what advice."""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import normalize_timezone, time_arithmetic
from kestrel_lab.tools.timeparse.parse import parse_relative
from kestrel_lab.tools.timeparse.session_time import Handshake, from_json, session_time
from kestrel_lab.tools.timeparse.types import Preferences, Reading
from kestrel_lab.tools.timeparse.zones import _keys, local_zone, zone_named


def outcome(call: Callable[[], Reading]) -> str:
    """The start that is found, or the text of the refusal."""
    try:
        return call().start.isoformat()
    except UsageError as error:
        return f"refused: {error}"


NOON = datetime(2026, 11, 18, 12, tzinfo=ZoneInfo("Europe/Vienna"))


@pytest.mark.parametrize(
    ("text", "start", "precision"),
    [
        ("now", "2026-11-18T12:00:00+01:00", "second"),
        ("Tomorrow.", "2026-11-19", "day"),
        ("the day before yesterday", "2026-11-16", "day"),
        ("Friday", "2026-11-20", "day"),
        ("next Friday", "2026-11-27", "day"),
        ("last Monday", "2026-11-09", "day"),
        ("most recent Monday", "2026-11-16", "day"),
        ("on Tuesday next week", "2026-11-24", "day"),
        ("a week from Friday", "2026-11-27", "day"),
        ("the second Tuesday of December", "2026-12-08", "day"),
        ("last Friday of March 2027", "2027-03-26", "day"),
        ("the last day of February 2028", "2028-02-29", "day"),
        ("Feb 29", "2028-02-29", "day"),
        ("twenty-first of May 2030", "2030-05-21", "day"),
        ("December 3, 1984", "1984-12-03", "day"),
        ("21 May", "2027-05-21", "day"),
        ("24 Dec 2026 at 20:15", "2026-12-24T20:15:00+01:00", "minute"),
        ("the 20th of next month", "2026-12-20", "day"),
        ("20261224", "2026-12-24", "day"),
        ("2026-W53-7", "2027-01-03", "day"),
        ("24.12.2026", "2026-12-24", "day"),
        ("3 weeks ago", "2026-10-28", "day"),
        ("in 1 month 2 days", "2026-12-20", "day"),
        ("two Mondays ago", "2026-11-09", "day"),
        ("in 3 business days", "2026-11-23", "day"),
        ("8pm", "2026-11-18T20:00:00+01:00", "hour"),
        ("11:30", "2026-11-19T11:30:00+01:00", "minute"),
        ("tomorrow at noon", "2026-11-19T12:00:00+01:00", "minute"),
        ("tomorrow evening at 8:45", "2026-11-19T20:45:00+01:00", "minute"),
        ("tonight at 7", "2026-11-18T19:00:00+01:00", "hour"),
        ("this morning at 7am", "2026-11-18T07:00:00+01:00", "hour"),
        ("Friday, 24:00", "2026-11-21T00:00:00+01:00", "minute"),
        ("in an hour and a half", "2026-11-18T13:30:00+01:00", "second"),
        ("-2h30m", "2026-11-18T09:30:00+01:00", "second"),
        ("end of next month", "2026-12-31T23:59:59+01:00", "second"),
        ("start of next week", "2026-11-23T00:00:00+01:00", "second"),
        ("2026-11-18T12:00:00Z", "2026-11-18T12:00:00+00:00", "second"),
        ("Wed, 18 Nov 2026 15:50:06 +0530", "2026-11-18T15:50:06+05:30", "second"),
        ("tomorrow 15:00 Asia/Tokyo", "2026-11-19T15:00:00+09:00", "minute"),
        ("9am America/New_York", "2026-11-18T09:00:00-05:00", "hour"),
        ("15:00 CET", "2026-11-18T15:00:00+01:00", "minute"),
        ("next week", "2026-11-23", "week"),
        ("this weekend", "2026-11-21", "weekend"),
        ("last quarter", "2026-07-01", "quarter"),
        ("May", "2027-05-01", "month"),
        ("2030", "2030-01-01", "year"),
        ("in March", "2027-03-01", "month"),
        ("-3 days", "2026-11-15", "day"),
        ("Wednesday the 18th", "2026-11-18", "day"),
        ("Fri, 20 Nov", "2026-11-20", "day"),
    ],
)
def test_readings(text: str, start: str, precision: str) -> None:
    """An expression gives one start and says how exact it is; a day starts at midnight."""
    found = parse_relative(text, NOON)
    whole = start if "T" in start else f"{start}T00:00:00"
    assert (found.start.isoformat()[: len(whole)], found.precision) == (whole, precision)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "there is nothing to read"),
        ("x" * 300, "longer than a time expression"),
        ("blorp", "cannot read 'blorp'"),
        ("15", "cannot read '15'"),
        ("Wednesday", "today is a Wednesday"),
        ("the 31st", "November has no day 31"),
        ("Friday the 13th", "2026-11-13 is not on the side of the future"),
        ("this morning", "a part of a day has no clock time"),
        ("3/4/2027", "2027-03-04 00:00 or 2027-04-03 00:00"),
        ("05/05/71", "two digits"),
        ("3 May 71", "two digits"),
        ("Feb 30", "cannot read"),
        ("29 February 2027", "cannot read"),
        ("2026-13-01", "no date 2026-13-01"),
        ("fifth Friday of November", "has 4 Fridays"),
        ("Monday 24 December 2026", "is a Thursday"),
        ("tomorrow at 8", "8am, 8pm or 8:00"),
        ("8 o'clock", "8am, 8pm"),
        ("Friday at 15", "Write 15:00"),
        ("2 mon ago", "cannot read"),
        ("half past eight", "cannot read"),
        ("8am in the evening", "not clearly evening"),
        ("tonight at 2", "not clearly night"),
        ("11 in the afternoon", "not clearly afternoon"),
        ("25:00", "no hour 25"),
        ("13pm", "no hour 13pm"),
        ("midnight", "00:00 or 24:00"),
        ("next week at 3pm", "no day"),
        ("2 weeks", "no direction"),
        ("in -3 days", "a sign and a direction"),
        ("in a few days", "such as 'in 3 days'"),
        ("in 1.5 days", "36 hours"),
        ("as soon as possible", "names no time"),
        ("in 9000 years", "leaves the years"),
        ("9999-12-31", "leaves the years"),
        ("3pm EST", "America/New_York"),
        ("3pm Eastern time", "cannot read"),
        ("2027-07-01 15:00 CET", "on CEST then"),
        ("15:00 UTC Europe/Vienna", "two time zones"),
        ("2026-03-29 02:30", "does not exist"),
        ("2026-10-25 02:30", "shown twice"),
        ("from Monday to Friday", "cannot read"),
        ("every Monday", "cannot read"),
        ("next December", "cannot read"),
        ("Friday, 13 November", "2027-11-13 is a Saturday"),
        ("July 13-15", "days in a row"),
        ("3rd–5th of May", "days in a row"),
    ],
)
def test_refusals_say_what_to_write(text: str, words: str) -> None:
    """What could mean several things, or nothing, is refused with the reason."""
    with pytest.raises(UsageError) as refusal:
        parse_relative(text, NOON)
    assert words in str(refusal.value)


def test_what_was_not_sure_is_said() -> None:
    """Readings that rest on a convention name it, and what else could be meant."""
    notes = {
        text: parse_relative(text, NOON).notes
        for text in ("next Friday", "Friday", "8:30", "tomorrow", "about 8pm", "3pm CET")
    }
    assert notes == {
        "next Friday": (
            "read as the Friday of next week, weeks from Monday; the coming Friday is 2026-11-20",
        ),
        "Friday": ("which Friday was not said: the coming one was taken",),
        "8:30": (
            "no day was given: the next 08:30 was taken",
            "read on a clock of 24 hours; for the afternoon write 8:30pm",
        ),
        "tomorrow": (),
        "about 8pm": (
            "no day was given: the next 20:00 was taken",
            "an approximate time: it was read as if it were exact",
        ),
        "3pm CET": ("no day was given: the next 15:00 was taken", "CET was read as UTC+01:00"),
    }


def test_a_reading_as_json_and_as_a_table() -> None:
    """Programs get every part under its name; people a line for each, with nothing cut off and nothing taken
    as HTML.
    """
    found = parse_relative("next Friday", NOON)
    assert found.as_json() == {
        "text": "next Friday",
        "start": "2026-11-27T00:00:00+01:00",
        "end": "2026-11-28T00:00:00+01:00",
        "kind": "range",
        "precision": "day",
        "weekday": "Friday",
        "interpretation": "Friday of next week",
        "zone": "Europe/Vienna",
        "zone_from": "the reference",
        "reference": "2026-11-18T12:00:00+01:00",
        "notes": ["read as the Friday of next week, weeks from Monday; the coming Friday is 2026-11-20"],
    }
    assert repr(found).splitlines() == [
        "text          next Friday",
        "day           Friday 2026-11-27",
        "from          2026-11-27T00:00:00+01:00 (Fri)",
        "until before  2026-11-28T00:00:00+01:00 (Sat)",
        "precision     day",
        "read as       Friday of next week",
        "zone          Europe/Vienna, from the reference",
        "relative to   2026-11-18T12:00:00+01:00 (Wed)",
        "note          read as the Friday of next week, weeks from Monday; the coming Friday is 2026-11-20",
    ]
    assert "<td" in found._repr_html_()
    assert "2026-11-20" in found._repr_html_()


@pytest.mark.parametrize(
    ("language", "text", "start"),
    [
        ("de", "vor 3 Tagen", "2026-11-15T00:00:00+01:00"),
        ("de", "in 2 Stunden", "2026-11-18T14:00:00+01:00"),
        ("fr", "demain à 15h30", "2026-11-19T15:30:00+01:00"),
        ("de", "gestern 15 Uhr", "the 15 in it was not understood"),
        ("de", "diese Woche", "may be a whole week"),
        ("de", "01.02.2027", "2027-01-02 00:00 or 2027-02-01 00:00"),
        ("de", "31.02.2027", "was not understood"),
        ("xx", "morgen", "no language 'xx'"),
    ],
)
def test_other_languages(language: str, text: str, start: str) -> None:
    """Another language is read where it is named; what the library passed over or chose by itself is
    refused.
    """
    found = outcome(lambda: parse_relative(text, NOON, language=language))
    assert found == start or (found.startswith("refused: ") and start in found)


@pytest.mark.parametrize(
    ("moment", "far", "zone", "end"),
    [
        ("2026-01-31T12:00:00+00:00", "1 month", None, "2026-02-28T12:00:00+00:00"),
        ("2026-03-28T12:00", "+1 day", "Europe/Vienna", "2026-03-29T12:00:00+02:00"),
        ("2026-03-28T12:00", "+24 hours", "Europe/Vienna", "2026-03-29T13:00:00+02:00"),
        ("2026-03-28T02:30", "+1 day", "Europe/Vienna", "02:30 does not exist"),
        ("2026-11-18T12:00", "+1 day", None, "has no time zone"),
        (
            "2026-11-18T12:00+02:00",
            "+1 day",
            "Europe/Vienna",
            "UTC+02:00, but Europe/Vienna was then at UTC+01:00",
        ),
        ("2026-11-20", "2 business days", "UTC", "2026-11-24T00:00:00+00:00"),
        ("2026-11-20", "2 hours", "UTC", "is a date, and '2 hours' counts hours"),
        ("2026-11-20T12:00Z", "2 dayz", None, "did you mean 'day'"),
        ("2026-02-30", "1 day", "UTC", "is not a date"),
        ("9999-12-30", "1 day", "UTC", "beyond the years 1 to 9999"),
        ("tomorrow", "1 day", "UTC", "is not an ISO 8601 time"),
        ("2026-11-20T12:00Z", "-1 month +2 days -90 minutes", None, "2026-10-22T10:30:00+00:00"),
    ],
)
def test_counting_on(moment: str, far: str, zone: str | None, end: str) -> None:
    """Calendar units move the hands of the clock, hours count what passes; what is not sure is refused."""
    found = outcome(lambda: time_arithmetic(moment, far, zone=zone))
    assert found == end or (found.startswith("refused: ") and end in found)


def test_counting_says_what_it_settled() -> None:
    """The last of a shorter month, a change of clocks on the way, an offset without rules, public holidays:
    said.
    """
    far = {
        "month": time_arithmetic("2026-01-31T12:00Z", "1 month"),
        "clocks": time_arithmetic("2026-03-28T12:00", "24 hours", zone="Europe/Vienna"),
        "offset": time_arithmetic("2026-03-28T12:00+01:00", "1 day"),
        "zone": normalize_timezone("2026-11-18T20:00+00:00", "Asia/Tokyo"),
    }
    assert {name: found.notes for name, found in far.items()} == {
        "month": ("2026-02 has no day 31: its last, the 28, was taken",),
        "clocks": (
            "clocks of Europe/Vienna change in between: elapsed time was counted, not the hands of the clock",
        ),
        "offset": (
            "only the distance UTC+01:00 is known: daylight saving time was not minded; for that say "
            "the zone",
        ),
        "zone": ("it is the next day there",),
    }


def test_the_handshake() -> None:
    """Now, zone, weekday, date and ISO week of a moment that is given; a moment without a zone is refused;
    JSON leads back to it.
    """
    met = session_time(NOON)
    assert met.as_json() == {
        "now_iso": "2026-11-18T12:00:00+01:00",
        "timezone": "Europe/Vienna",
        "weekday": "Wednesday",
        "date": "2026-11-18",
        "iso_week": "2026-W47",
    }
    again = from_json(met.as_json())
    assert isinstance(again, Handshake)
    assert (again.now, again.zone.rules, again.as_json()) == (met.now, met.zone.rules, met.as_json())
    assert from_json({}) is None
    assert (
        session_time(NOON, zone_named("Asia/Tokyo", "a test")).as_json()["now_iso"]
        == "2026-11-18T20:00:00+09:00"
    )
    with pytest.raises(UsageError, match="has no time zone"):
        session_time(NOON.replace(tzinfo=None))


def test_the_zone_of_the_machine_is_its_present_one() -> None:
    """What is taken for the machine's zone has the distance from UTC that the machine has now."""
    here = datetime.now().astimezone()
    assert here.astimezone(local_zone().rules).utcoffset() == here.utcoffset()


def test_the_zone_of_the_machine_is_found_without_listing_all_zones() -> None:
    """The first run of a process need not read the names of the database from hundreds of files; the zone is
    that of its name.
    """
    zone_named.cache_clear()
    _keys.cache_clear()
    found = local_zone()
    assert _keys.cache_info().currsize == 0
    assert found.origin != "this machine" or found == zone_named(
        found.name if found.name != "UTC" else str(found.rules), "this machine"
    )


@pytest.mark.parametrize(
    "text",
    [
        "yesterday",
        "tomorrow",
        "last month",
        "next month",
        "next year",
        "last decade",
        "this week",
        "2 years ago",
        "in 2 days",
    ],
)
@pytest.mark.parametrize("year", [1, 9999])
def test_the_ends_of_the_calendar(text: str, year: int) -> None:
    """At the first and the last day that can be written an expression is read or refused, in a sentence."""
    edge = datetime(year, 1, 1, tzinfo=UTC) if year == 1 else datetime(year, 12, 31, tzinfo=UTC)
    found = outcome(lambda: parse_relative(text, edge))
    assert found[:4].isdigit() or "leaves the years 1 to 9999" in found or "cannot read" in found


@pytest.mark.parametrize(
    "text",
    [
        "July 13-15",
        "13 - 15 July",
        "Mon July 13/15",
        "July 13–15, 2026",
        "May 3-5",
        "the 3rd-5th of May '27",
        "May 5-3",
        "May 13-69",
    ],
)
def test_a_row_of_days_is_no_short_year(text: str) -> None:
    """Where days in a row may be meant no short year is read; a mutant rule that reads one is caught."""
    for prefer in ("future", "past"):
        with pytest.raises(UsageError, match=r"days in a row|the 15 in it"):
            parse_relative(text, NOON, preferences=Preferences(prefer=prefer))


@pytest.mark.parametrize("number", range(1, 32))
def test_a_weekday_with_a_number_is_on_the_side_that_is_preferred(number: int) -> None:
    """`Friday the 13th` is never before the reference where the future is preferred, nor after it where the
    past is; else it is refused.
    """
    for weekday in ("Monday", "Wednesday", "Friday"):
        for prefer, sign in (("future", 1), ("past", -1)):
            with suppress(UsageError):
                found = parse_relative(
                    f"{weekday} the {number}", NOON, preferences=Preferences(prefer=prefer)
                )  # type: ignore[arg-type]
                assert (found.start.date() - NOON.date()).days * sign >= 0
                assert (found.start.day, f"{found.start:%A}") == (number, weekday)


def test_a_date_in_part_is_not_taken_from_the_other_side_in_any_language() -> None:
    """Where dateparser takes `the Friday 13` of this month although it is over, it is refused; what is told
    from today or in full is not.
    """
    with pytest.raises(UsageError, match="2026-11-13 is not on the side of the future"):
        parse_relative("vendredi 13", NOON, language="fr")
    for text, day in (
        ("il y a 3 jours", "2026-11-15"),
        ("13 novembre 2026", "2026-11-13"),
        ("hier", "2026-11-17"),
    ):
        assert parse_relative(text, NOON, language="fr").start.date().isoformat() == day
    assert (
        parse_relative("vendredi 13", NOON, language="fr", preferences=Preferences(prefer="past"))
        .start.date()
        .isoformat()
        == "2026-11-13"
    )


@pytest.mark.parametrize(
    ("text", "today", "prefer", "day"),
    [
        ("the 1st", "2026-03-27", "future", "2026-04-01"),
        (
            "the 1st",
            "2026-01-31",
            "future",
            "2026-02-01",
        ),  # February has no 31st: such a today hid that the day was over
        ("the 31st", "2026-04-01", "past", "2026-03-31"),
        ("the 31st", "2026-01-31", "future", "2026-01-31"),
        ("January 31", "2026-01-31", "future", "2026-01-31"),
        ("the second", "2026-12-31", "future", "2027-01-02"),
    ],
)
def test_a_day_without_its_month_lies_on_the_preferred_side(
    text: str, today: str, prefer: str, day: str
) -> None:
    """The coming or the last such day, never one on the other side."""
    now = datetime.fromisoformat(today).replace(hour=12, tzinfo=ZoneInfo("Europe/Vienna"))
    assert f"{parse_relative(text, now, preferences=Preferences(prefer=prefer)).start:%Y-%m-%d}" == day  # type: ignore[arg-type]


def test_another_language_does_not_read_a_past_day_as_the_coming_one_at_the_end_of_a_month() -> None:
    """A reading that jumps by more than a day when a day passes is no distance from today."""
    now = datetime(2026, 1, 31, 12, tzinfo=ZoneInfo("Europe/Vienna"))
    with pytest.raises(UsageError, match="not on the side of the future"):
        parse_relative("le 30", now, language="fr")
    assert parse_relative("il y a 3 jours", now, language="fr").start.day == 28


def test_times_at_the_end_of_the_calendar_and_unknown_zones_are_refused_in_words() -> None:
    """An `OverflowError` and a list of all zones say nothing to do next."""
    for call in (
        lambda: normalize_timezone("9999-12-31T23:59+00:00", "Asia/Tokyo"),
        lambda: normalize_timezone("0001-01-01T00:00", "America/New_York", from_zone="UTC"),
        lambda: time_arithmetic("9999-12-31T23:30+00:00", "+1 hour", zone="Europe/Vienna"),
    ):
        assert "leaves the years 1 to 9999" in outcome(call)
    assert (
        len(outcome(lambda: normalize_timezone("2026-11-18T12:00Z", "Mars/Phobos"))) < 1_200
    )  # not all 597 names


def test_a_time_that_clocks_skip_or_repeat_is_refused_with_texts_that_can_be_read() -> None:
    """What the refusal advises can be given back as it is."""
    now = datetime(2018, 11, 3, 10, tzinfo=ZoneInfo("America/Sao_Paulo"))
    said = outcome(lambda: parse_relative("tomorrow 0:30", now))
    assert "write 2018-11-03T23:30:00-03:00 or 2018-11-04T01:30:00-02:00" in said
    assert parse_relative("2018-11-04T01:30:00-02:00", now).start.hour == 1
    assert parse_relative("tomorrow 24:00", now).interpretation == "tomorrow, at 24:00"
