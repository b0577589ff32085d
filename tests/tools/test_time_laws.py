"""Laws of time: zones, clocks that change, counting on and back; and for each a deliberate bug that the law
catches.
"""

import time as clock_of_the_process
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo, available_timezones

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import normalize_timezone, time_arithmetic
from kestrel_lab.tools.timeparse.normalize import MONTH_NAMES, WEEKDAY_NAMES, canonical_text, ordinal
from kestrel_lab.tools.timeparse.parse import parse_relative
from kestrel_lab.tools.timeparse.types import Preferences, Reading
from kestrel_lab.tools.timeparse.zones import ABBREVIATIONS, AMBIGUOUS, Zone, at_clock, day_start, zone_named

NAMES = (
    "Europe/Vienna",
    "America/New_York",
    "Australia/Lord_Howe",
    "Asia/Kolkata",
    "America/Sao_Paulo",
    "Africa/Casablanca",
    "UTC",
)
NOON = datetime(2026, 11, 18, 12, tzinfo=ZoneInfo("Europe/Vienna"))  # a Wednesday
names = st.sampled_from(NAMES)
moments = st.integers(631_152_000, 2_114_294_400).map(lambda stamp: datetime.fromtimestamp(stamp, UTC))
days = st.dates(date(1990, 1, 1), date(2036, 12, 31))
clocks = st.times().map(lambda clock: clock.replace(second=0, microsecond=0))

ONES = (
    "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"

Counts = Callable[[datetime, str], datetime]


def caught(law: Callable[[], object]) -> None:
    """A law that is broken says so."""
    with pytest.raises(AssertionError):
        law()


def outcome(call: Callable[[], object]) -> object:
    """What the call gives, or the text of its refusal."""
    try:
        return call()
    except UsageError as error:
        return f"refused: {error}"


def refused(call: Callable[[], object], *words: str) -> None:
    """The call says what is wrong, with these words."""
    found = outcome(call)
    assert str(found).startswith("refused: "), f"{found!r} was not refused"
    assert [word for word in words if word not in str(found)] == []


@pytest.fixture(params=["Asia/Tokyo", "America/New_York"])
def elsewhere(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The process believes that it is in another zone."""
    monkeypatch.setenv("TZ", request.param)
    clock_of_the_process.tzset()
    yield request.param
    monkeypatch.undo()
    clock_of_the_process.tzset()


def no_zone_is_assumed(read: Callable[[str, datetime], Reading]) -> None:
    """A reference without a zone is refused, one with a zone is read by that."""
    with pytest.raises(UsageError, match="has no time zone"):
        read("tomorrow", NOON.replace(tzinfo=None))
    assert read("tomorrow at 15:30", NOON).start.isoformat() == "2026-11-19T15:30:00+01:00"


def test_the_zone_of_the_machine_is_never_taken(elsewhere: str) -> None:
    """Wherever the machine is: a reference without a zone is refused, and the same reference gives the same
    answer.
    """
    no_zone_is_assumed(parse_relative)
    refused(lambda: time_arithmetic("2026-11-18T12:00", "+1 day"), "has no time zone", "Europe/Vienna")
    refused(lambda: normalize_timezone("2026-11-18T12:00", "UTC"), "has no time zone")


def test_a_bug_that_takes_the_zone_of_the_machine_is_caught(elsewhere: str) -> None:
    """Mutant: a reference without a zone gets the machine's; and one that puts all into the machine's
    zone.
    """
    with pytest.raises(pytest.fail.Exception):
        no_zone_is_assumed(lambda text, reference: parse_relative(text, reference.astimezone()))
    caught(
        lambda: no_zone_is_assumed(
            lambda text, reference: parse_relative(
                text, reference.astimezone() if reference.tzinfo else reference
            )
        )
    )


def elapsed_time_is_exact(count: Counts, moment: datetime, hours: int) -> None:
    """Hours are hours, whatever clocks do."""
    moved = count(moment, f"{hours:+d} hours")
    assert (moved.astimezone(UTC) - moment.astimezone(UTC)) == timedelta(hours=hours)


def days_keep_the_clock(count: Counts, moment: datetime, far: int) -> None:
    """A day on, clocks show the same time."""
    moved = count(moment, f"{far:+d} days")
    assert (moved.date() - moment.date(), moved.time()) == (timedelta(days=far), moment.time())


def months_stay_in_their_month(count: Counts, moment: datetime, months: int) -> None:
    """So many months on it is that month, on the same day or on the last."""
    moved = count(moment, f"{months:+d} months")
    assert (moved.year * 12 + moved.month) - (moment.year * 12 + moment.month) == months
    assert moved.day == moment.day or (moved.day < moment.day and (moved + timedelta(days=1)).day == 1)


def counted(moment: datetime, far: str) -> datetime:
    """What the package says."""
    return time_arithmetic(moment, far).start


@given(moments, names, st.integers(-5_000, 5_000))
def test_hours_are_elapsed_time(moment: datetime, name: str, hours: int) -> None:
    """Hours counted on are hours passed, and counting them back leads back."""
    here = moment.astimezone(ZoneInfo(name))
    elapsed_time_is_exact(counted, here, hours)
    assert counted(counted(here, f"{hours:+d} hours"), f"{-hours:+d} hours") == here


@given(moments, names, st.integers(-400, 400), st.integers(-30, 30))
def test_days_and_months_move_by_calendar(moment: datetime, name: str, far: int, months: int) -> None:
    """Days keep the time that clocks show, months end in their month; what clocks skip or show twice is
    refused, not moved.
    """
    here = moment.astimezone(ZoneInfo(name))
    for law, number in ((days_keep_the_clock, far), (months_stay_in_their_month, months)):
        found = outcome(lambda law=law, number=number: law(counted, here, number))  # type: ignore[misc]
        assert found is None or "does not exist" in str(found) or "is shown twice" in str(found)


@given(days, st.integers(-300, 300), st.integers(-300, 300))
def test_dates_add_up(day: date, one: int, two: int) -> None:
    """Days counted in two steps are days counted in one, working days too when they run one way."""

    def end(start: date, far: str) -> date:
        return time_arithmetic(start.isoformat(), far, zone="UTC").start.date()

    assert end(end(day, f"{one:+d} days"), f"{two:+d} days") == end(day, f"{one + two:+d} days")
    forward = end(end(day, f"+{abs(one)} business days"), f"+{abs(two)} business days")
    assert forward == end(day, f"+{abs(one) + abs(two)} business days")
    assert one == 0 or end(day, f"{one:+d} business days").weekday() < 5


@given(days, st.integers(0, 60))
def test_working_days_are_counted_one_by_one(day: date, count: int) -> None:
    """The end is where counting Monday to Friday by hand leads."""
    at, left = day, count
    while left:
        at += timedelta(days=1)
        left -= at.weekday() < 5
    assert time_arithmetic(day.isoformat(), f"+{count} business days", zone="UTC").start.date() == at


def amount(far: str) -> int:
    """The number in a distance."""
    return int(far.split(maxsplit=1)[0])


def test_bugs_in_counting_are_caught() -> None:
    """Mutants: hours moved on the clock's hands, days of 24 hours, a month that runs over, all at an end of
    daylight saving time.
    """
    spring = datetime(2026, 3, 28, 12, tzinfo=ZoneInfo("Europe/Vienna"))

    def hands(moment: datetime, far: str) -> datetime:
        return moment + timedelta(hours=amount(far))

    def day_is_24_hours(moment: datetime, far: str) -> datetime:
        return (moment.astimezone(UTC) + timedelta(days=amount(far))).astimezone(moment.tzinfo)

    def month_is_30_days(moment: datetime, far: str) -> datetime:
        return moment + timedelta(days=30 * amount(far))

    caught(lambda: elapsed_time_is_exact(hands, spring, 24))
    caught(lambda: days_keep_the_clock(day_is_24_hours, spring, 1))
    caught(lambda: months_stay_in_their_month(month_is_30_days, datetime(2026, 1, 31, tzinfo=UTC), 1))


def clocks_that_change_are_minded(
    resolve: Callable[..., tuple[datetime, tuple[str, ...]]], day: date, clock: time, zone: Zone
) -> None:
    """The time found is shown by the clock then, exactly once that day; else it is refused."""
    shown = [
        moment
        for minutes in range(-26 * 60, 26 * 60)
        if (
            moment := (datetime.combine(day, clock, tzinfo=UTC) + timedelta(minutes=minutes)).astimezone(
                zone.rules
            )
        ).replace(tzinfo=None)
        == datetime.combine(day, clock)
    ]
    try:
        found, _ = resolve(day, clock, zone)
    except UsageError:
        assert len(shown) != 1
    else:
        assert [found.astimezone(UTC)] == [moment.astimezone(UTC) for moment in shown]


@settings(max_examples=25)
@given(
    st.sampled_from([(date(2026, 3, 29), 2), (date(2026, 10, 25), 2), (date(2026, 6, 1), 2)]),
    st.integers(-90, 150),
)
def test_gaps_and_folds_are_refused(change: tuple[date, int], minutes: int) -> None:
    """Around both changes of a year: a time is taken if clocks show it once, and refused if never or
    twice.
    """
    day, hour = change
    clock = (datetime.combine(day, time(hour)) + timedelta(minutes=minutes)).time()
    clocks_that_change_are_minded(at_clock, day, clock, zone_named("Europe/Vienna", "a test"))


def test_bugs_at_changes_of_the_clock_are_caught() -> None:
    """Mutants: the first of two times is taken, and a time that does not exist is moved."""
    vienna = zone_named("Europe/Vienna", "a test")

    def first(day: date, clock: time, zone: Zone) -> tuple[datetime, tuple[str, ...]]:
        return datetime.combine(day, clock, tzinfo=zone.rules), ()

    caught(lambda: clocks_that_change_are_minded(first, date(2026, 10, 25), time(2, 30), vienna))
    caught(lambda: clocks_that_change_are_minded(first, date(2026, 3, 29), time(2, 30), vienna))


@pytest.mark.parametrize(
    ("day", "choice", "moment"),
    [
        (date(2026, 3, 29), "earlier", "2026-03-29T01:30:00+01:00"),
        (date(2026, 3, 29), "later", "2026-03-29T03:30:00+02:00"),
        (date(2026, 10, 25), "earlier", "2026-10-25T02:30:00+02:00"),
        (date(2026, 10, 25), "later", "2026-10-25T02:30:00+01:00"),
    ],
)
def test_who_says_which_moment_gets_it(day: date, choice: str, moment: str) -> None:
    """With a choice a skipped or doubled time is one moment, and it is said that it was chosen."""
    found = parse_relative(f"{day} 02:30", NOON, preferences=Preferences(disambiguate=choice))  # type: ignore[arg-type]
    assert (found.start.isoformat(), len(found.notes)) == (moment, 1)


@given(days, names)
def test_a_day_begins_when_the_last_ends(day: date, name: str) -> None:
    """The first moment of a day is of that day, and the microsecond before it is not; days with no midnight
    too.
    """
    zone = zone_named(name, "a test")
    start = day_start(day, zone)
    before = (start.astimezone(UTC) - timedelta(microseconds=1)).astimezone(zone.rules)
    assert (start.date(), before.date()) == (day, day - timedelta(days=1))


def test_days_without_midnight_and_days_that_were_skipped() -> None:
    """Where clocks are put forward at midnight the day begins at one; Samoa had no 30 December 2011."""
    assert (
        day_start(date(2018, 11, 4), zone_named("America/Sao_Paulo", "a test")).isoformat()
        == "2018-11-04T01:00:00-02:00"
    )
    refused(
        lambda: parse_relative("2011-12-30", NOON, zone=zone_named("Pacific/Apia", "a test")),
        "there was no 2011-12-30 in Pacific/Apia",
    )


@example(datetime(1990, 2, 11, 1, tzinfo=UTC), "America/Sao_Paulo", "Europe/Vienna")
@given(moments, names, names)
def test_zones_change_the_clock_and_not_the_moment(moment: datetime, one: str, two: str) -> None:
    """The same moment in any zone, and back again; a wall time that clocks show twice is refused on the
    way.
    """
    there = normalize_timezone(moment, one).start
    # In UTC: datetimes of two zones are never equal where clocks show a time twice (PEP 495).
    assert there.astimezone(UTC) == moment
    assert normalize_timezone(there, two).start.astimezone(UTC) == moment
    again = outcome(
        lambda: normalize_timezone(there.replace(tzinfo=None).isoformat(), "UTC", from_zone=one).start
    )
    assert again == moment or "is shown twice" in str(again)


def short_names_are_not_guessed(named: Callable[[str, str], Zone]) -> None:
    """What could mean several zones is refused, with these zones named."""
    for short, candidates in AMBIGUOUS.items():
        for written in (short, short.lower()):
            with pytest.raises(UsageError, match=candidates[0]):
                named(written, "a test")


def test_ambiguous_abbreviations_are_refused() -> None:
    """CST, IST and their like are refused in every spelling; so is every abbreviation that is a key of the
    database.
    """
    short_names_are_not_guessed(zone_named)
    refused(lambda: parse_relative("tomorrow 3pm CST", NOON), "America/Chicago", "Asia/Shanghai")
    refused(
        lambda: normalize_timezone("2026-11-18T12:00", "UTC", from_zone="IST"),
        "Asia/Kolkata",
        "Europe/Dublin",
        "Asia/Jerusalem",
    )
    refused(lambda: zone_named("Europe/Viena", "a test"), "Europe/Vienna")
    refused(lambda: zone_named("EST5EDT", "a test"))


def test_a_bug_that_guesses_zones_is_caught() -> None:
    """Mutants: CST is Chicago; and whatever the database knows by that name is taken, which gives EST to
    Panama.
    """
    with pytest.raises(pytest.fail.Exception):
        short_names_are_not_guessed(
            lambda name, origin: zone_named("America/Chicago" if name.upper() == "CST" else name, origin)
        )
    with pytest.raises((pytest.fail.Exception, AssertionError, KeyError)):
        short_names_are_not_guessed(lambda name, origin: Zone(rules=ZoneInfo(name), name=name, origin=origin))


def test_abbreviations_that_are_taken_mean_one_distance() -> None:
    """In the zone database, from 2019 on and in all places, each means the distance we take it for, or
    nothing else.
    """
    seen: dict[str, set[int]] = {}
    for key in available_timezones():
        if "/" in key:
            for month in range(0, 108, 3):
                moment = datetime(2019 + month // 12, month % 12 + 1, 1, tzinfo=UTC).astimezone(ZoneInfo(key))
                seen.setdefault(str(moment.tzname()), set()).add(
                    int((moment.utcoffset() or timedelta()).total_seconds() // 60)
                )
    assert {short: seen[short] for short in ABBREVIATIONS} == {
        short: {minutes} for short, (minutes, _) in ABBREVIATIONS.items()
    }
    assert [
        short
        for short, found in seen.items()
        if len(found) > 1 and short.isalpha() and short not in AMBIGUOUS
    ] == []


@given(days, st.integers(0, 6))
def test_every_unambiguous_spelling_of_a_date_is_that_date(day: date, spelling: int) -> None:
    """A date written in any way that can mean only one is read as that date, from any reference."""
    month, weekday = MONTH_NAMES[day.month - 1], WEEKDAY_NAMES[day.weekday()]
    written = (
        f"{day}",
        f"{day:%Y/%m/%d}",
        f"{day.day} {month} {day.year}",
        f"{month} {ordinal(day.day)}, {day.year}",
        f"{weekday}, {day.day} {month[:3]} {day.year}",
        f"the {ordinal(day.day)} of {month} {day.year}",
        f"{day.year}-{month[:3].lower()}-{day.day:02d}",
    )[spelling]
    found = parse_relative(written, NOON)
    assert (found.start.date(), found.precision, found.notes) == (day, "day", ())


def numbers_are_not_ordered_by_guess(read: Callable[[str], Reading], a: int, b: int) -> None:
    """Two numbers that could each be the month are refused."""
    with pytest.raises(UsageError, match="the order"):
        read(f"{a}/{b}/2027")


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(["MDY", "DMY"]))
def test_the_order_of_numbers_is_never_guessed(a: int, b: int, order: str) -> None:
    """3/4/2027 is refused and says so; with an order that was asked for it is read by that; a mutant that
    takes the American one is caught.
    """
    assume(a != b)
    numbers_are_not_ordered_by_guess(lambda text: parse_relative(text, NOON), a, b)
    told = parse_relative(f"{a}/{b}/2027", NOON, preferences=Preferences(order=order)).start.date()  # type: ignore[arg-type]
    assert told == (date(2027, a, b) if order == "MDY" else date(2027, b, a))
    with pytest.raises(pytest.fail.Exception):
        numbers_are_not_ordered_by_guess(
            lambda text: parse_relative(text, NOON, preferences=Preferences(order="MDY")), a, b
        )


@given(st.sampled_from(WEEKDAY_NAMES), moments, st.sampled_from(["future", "past"]))
def test_a_weekday_is_within_a_week(name: str, moment: datetime, prefer: str) -> None:
    """A bare weekday is the next or the last one; on that very weekday it is refused."""
    if WEEKDAY_NAMES[moment.weekday()] == name:
        refused(lambda: parse_relative(name, moment), f"today is a {name}")
        return
    far = (
        parse_relative(name, moment, preferences=Preferences(prefer=prefer)).start.date() - moment.date()
    ).days  # type: ignore[arg-type]
    assert parse_relative(
        name, moment, preferences=Preferences(prefer=prefer)
    ).start.weekday() == WEEKDAY_NAMES.index(name)  # type: ignore[arg-type]
    assert 0 < far < 7 if prefer == "future" else -7 < far < 0


@given(moments, st.integers(1, 500), st.sampled_from(["days", "weeks", "hours", "minutes"]))
def test_in_and_ago_are_mirrors(moment: datetime, count: int, unit: str) -> None:
    """`in 3 days` lies as far ahead as `3 days ago` lies back."""
    ahead, back = parse_relative(f"in {count} {unit}", moment), parse_relative(f"{count} {unit} ago", moment)
    here = moment if ahead.instant else moment.replace(hour=0, minute=0, second=0)
    assert ahead.start - here == here - back.start == timedelta(**{unit: count})


@given(moments, names)
def test_today_is_the_day_of_the_zone_that_was_asked_for(moment: datetime, name: str) -> None:
    """`today` holds the reference, on the clocks of the zone, not on those the reference was written by."""
    found = parse_relative("today", moment, zone=zone_named(name, "a test"))
    assert found.start <= moment < found.end
    assert found.start.date() == moment.astimezone(ZoneInfo(name)).date()


def test_days_told_from_today_where_it_is_another_day_are_refused() -> None:
    """`tomorrow` with the zone of a place where it is tomorrow already could be two days; a date could
    not.
    """
    late = datetime(2026, 11, 18, 23, tzinfo=ZoneInfo("Europe/Vienna"))
    refused(
        lambda: parse_relative("tomorrow 9am Asia/Tokyo", late),
        "2026-11-19 in Asia/Tokyo",
        "2026-11-18 in Europe/Vienna",
    )
    assert parse_relative("tomorrow 9am Asia/Tokyo", NOON).start.isoformat() == "2026-11-19T09:00:00+09:00"
    assert parse_relative("2026-11-19 9am Asia/Tokyo", late).start.isoformat() == "2026-11-19T09:00:00+09:00"


_WORDS = (
    "next last this in ago the of at on tomorrow friday march 5 31 2027 8pm 8:30 week month days 2 "
    "noon UTC CST - / , second two thousand"
)


@given(st.one_of(st.text(max_size=30), st.lists(st.sampled_from(_WORDS.split()), max_size=7).map(" ".join)))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever is written: a reading in order, told from its own reference, or an error that says what to
    write; never anything else.
    """
    found = outcome(lambda: parse_relative(text, NOON))
    if isinstance(found, Reading):
        assert found.start <= found.end
        assert found.start.tzinfo is not None
    else:
        assert len(str(found)) > 30


@given(st.integers(1, 99), st.booleans())
def test_numbers_in_words(number: int, place: bool) -> None:
    """Numbers that are written out become the digits they say."""
    ones, tens = ONES.split(), TENS.split()
    special = {
        "one": "first",
        "two": "second",
        "three": "third",
        "five": "fifth",
        "eight": "eighth",
        "nine": "ninth",
        "twelve": "twelfth",
    }
    words = (
        [ones[number - 1]]
        if number < 20
        else [tens[number // 10 - 2], *([ones[number % 10 - 1]] if number % 10 else [])]
    )
    assume(not place or number <= 31)
    if place:
        words[-1] = special.get(
            words[-1], words[-1].removesuffix("y") + ("ieth" if words[-1].endswith("y") else "th")
        )
    expected = ordinal(number) if place else str(number)
    assert canonical_text(" ".join(["March", *words])) == f"march {expected}"
    assert canonical_text("march " + "-".join(words)) == f"march {expected}"
