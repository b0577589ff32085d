"""Time arithmetic: durations such as 1 month and 21 days, +2h or three business days, and moments moved by
them or to other zones.
"""

from __future__ import annotations

import re
from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.tools.timeparse.normalize import canonical_text, lazy_pattern
from kestrel_lab.tools.timeparse.types import Reading, month_start
from kestrel_lab.tools.timeparse.zones import (
    Choice,
    Zone,
    at_clock,
    day_start,
    offset_name,
    on_clocks,
    zone_named,
    zone_of,
)

_UNITS = {
    "year": ("y", "yr", "yrs", "year", "years"),
    "quarter": ("quarter", "quarters"),
    "month": ("mo", "month", "months"),
    "fortnight": ("fortnight", "fortnights"),
    "week": ("w", "wk", "wks", "week", "weeks"),
    "weekday": (
        "business day",
        "business days",
        "working day",
        "working days",
        "workday",
        "workdays",
        "weekdays",
    ),
    "day": ("d", "day", "days"),
    "hour": ("h", "hr", "hrs", "hour", "hours"),
    "minute": ("min", "mins", "minute", "minutes"),
    "second": ("s", "sec", "secs", "second", "seconds"),
    "decade": ("decade", "decades"),
}
_UNIT_OF = {word: unit for unit, words in _UNITS.items() for word in words}
_MONTHS_IN = {"month": 1, "quarter": 3, "year": 12, "decade": 120}
_DAYS_IN = {"day": 1, "week": 7, "fortnight": 14}
_SECONDS_IN = {"hour": 3600, "minute": 60, "second": 1}
_NAMES = "|".join(sorted(_UNIT_OF, key=len, reverse=True))
_COUNT = r"(?P<count>\d+(?:\.\d+)?|an?|half an?|a couple(?: of)?|a half)"
_TERM = rf"(?P<sign>[+-]\s?)?{_COUNT}\s?(?P<unit>{_NAMES})(?![a-z_])\.?(?P<half> and a half)?"
_MINUTES = re.compile(r"(\d\s?h(?:rs?|ours?)?,?\s?\d+)\s?m(?![a-z])", re.ASCII)
"""An `m` that can only be minutes: it follows hours."""
_JOIN = re.compile(r"\s*(?:,\s*and|,|and|\s)\s*|(?=[+-])|(?<=[a-z])(?=\d)")
_VAGUE = re.compile(r"\b(few|several|some|many|couple|m)\b")


@dataclass(frozen=True, kw_only=True, slots=True)
class Offset:
    """A distance: calendar months first, then days, then working days, then elapsed time."""

    months: int = 0
    days: int = 0
    weekdays: int = 0
    seconds: Decimal = Decimal(0)

    def __neg__(self) -> Offset:
        return Offset(months=-self.months, days=-self.days, weekdays=-self.weekdays, seconds=-self.seconds)

    def __add__(self, more: Offset) -> Offset:
        return Offset(
            months=self.months + more.months,
            days=self.days + more.days,
            weekdays=self.weekdays + more.weekdays,
            seconds=self.seconds + more.seconds,
        )

    @property
    def whole_days(self) -> bool:
        """True if it has only days, without hours."""
        return not self.seconds

    @property
    def said(self) -> str:
        """In words, such as `1 month + 21 days`."""
        size, name = next(
            (size, name) for name, size in _SECONDS_IN.items() if self.seconds % size == 0 or size == 1
        )
        elapsed = (self.seconds / size).normalize()  # without a trailing .0
        parts = ((self.months, "month"), (self.days, "day"), (self.weekdays, "working day"), (elapsed, name))
        return (
            " + ".join(
                f"{Decimal(count):f} {name}{'' if abs(count) == 1 else 's'}" for count, name in parts if count
            )
            or "nothing"
        )


def read_offset(text: str) -> Offset | None:
    """Return the distance that `text`, in canonical spelling, names from end to end; `None` if it names none.

    A sign holds for all terms behind it, up to the next sign. Raises `UsageError` for parts of months and
    days.
    """
    text = _MINUTES.sub(r"\1min", text)
    place, sign, total = 0, 1, Offset()
    while (term := lazy_pattern(_TERM).match(text, place)) is not None:
        if term["sign"]:
            sign = -1 if term["sign"][0] == "-" else 1
        total += _term(term, sign)
        if term.end() == len(text):
            return total
        if (joined := _JOIN.match(text, term.end())) is None:
            return None
        place = joined.end()
    return None


def _required_offset(text: str) -> Offset:
    """Read a text that must be a distance; raises `UsageError` saying what to write."""
    plain = canonical_text(text)
    if (found := read_offset(plain)) is not None:
        return found
    words = [word for word in re.findall(r"[a-z]+", plain) if word not in _UNIT_OF]
    hint = f"{did_you_mean(words[0], list(_UNIT_OF))}; " if words and len(words[0]) > 2 else ""
    raise UsageError(
        f"cannot read {text!r} as a distance in time: {hint}write e.g. '+2 days', '-1 month 3 days', "
        "'90 minutes', '5 business days'"
    )


def vague_word(text: str) -> str:
    """Return the first vague quantity, such as `few`, if any."""
    found = _VAGUE.search(text)
    return found[0] if found else ""


def move_day(day: date, offset: Offset) -> tuple[date, tuple[str, ...]]:
    """Move a day by months, days and working days; returns the day and notes on how it was counted.

    In a month that has no such day its last day is taken. Raises `UsageError` beyond the years 1 to 9999.
    """
    notes: list[str] = []
    try:
        first = month_start(day.year, day.month + offset.months)
        last = monthrange(first.year, first.month)[1]
        if day.day > last:
            notes.append(f"{first:%Y-%m} has no day {day.day}: its last, the {last}, was taken")
        moved = _move_weekdays(
            first.replace(day=min(day.day, last)) + timedelta(days=offset.days), offset.weekdays
        )
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{day} moved by {offset.said} leaves the years 1 to 9999") from error
    if offset.weekdays:
        notes.append("working days are Monday to Friday: public holidays are not known here")
    return moved, tuple(notes)


def move_moment(
    moment: datetime, offset: Offset, zone: Zone, choice: Choice | None = None
) -> tuple[datetime, tuple[str, ...]]:
    """Move a moment by calendar on the clocks of `zone`, then by elapsed time; returns the moment and notes
    on how it was counted.

    Raises `UsageError` beyond the years 1 to 9999, and as `at_clock` does where the clock time is skipped or
    comes twice.
    """
    here, notes = on_clocks(moment, zone), tuple[str, ...]()
    if offset.months or offset.days or offset.weekdays:
        day, notes = move_day(here.date(), offset)
        if day != here.date():
            here, said = at_clock(day, here.time(), zone, choice)
            notes += said
    try:
        elapsed = timedelta(microseconds=int(offset.seconds * 1_000_000))
        moved = (here.astimezone(UTC) + elapsed).astimezone(zone.rules)
    except (OverflowError, ValueError) as error:
        raise UsageError(f"{moment.isoformat()} moved by {offset.said} leaves the years 1 to 9999") from error
    if offset.seconds and moved.utcoffset() != here.utcoffset():
        notes += (
            f"clocks of {zone.name} change in between: elapsed time was counted, not the hands of the clock",
        )
    return moved, notes


def _term(term: re.Match[str], sign: int) -> Offset:
    unit, written = _UNIT_OF[term["unit"]], term["count"]
    words = {"half": "0.5", "couple": "2"}
    number = next(
        (words[word] for word in words if word in written), "1" if written in {"a", "an"} else written
    )
    count = (Decimal(number) + (Decimal("0.5") if term["half"] else 0)) * sign
    if unit in _SECONDS_IN:
        return Offset(seconds=count * _SECONDS_IN[unit])
    whole = count * (_MONTHS_IN.get(unit) or _DAYS_IN.get(unit) or 1)
    if whole != whole.to_integral_value():
        what = "months" if unit in _MONTHS_IN else "days"
        raise UsageError(
            f"{term[0].strip()!r} is not a whole number of {what}: write smaller units, such as 36 hours"
        )
    if abs(whole) > 10_000_000:
        raise UsageError(f"{term[0].strip()!r} leaves the years 1 to 9999")
    if unit in _MONTHS_IN:
        return Offset(months=int(whole))
    return Offset(weekdays=int(whole)) if unit == "weekday" else Offset(days=int(whole))


def _move_weekdays(day: date, count: int) -> date:
    """Count working days, Monday to Friday; from a weekend the first step goes to the adjacent one."""
    step = timedelta(days=1 if count > 0 else -1)
    left = abs(count)
    while left:
        # Whole weeks at once; the last days are walked, so that the end is a working day.
        if left > 5 and day.weekday() < 5:
            weeks = (left - 1) // 5
            day, left = day + step * 7 * weeks, left - 5 * weeks
        day += step
        left -= day.weekday() < 5
    return day


# Counting on from a moment, and showing a moment on the clocks of another zone.

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE
)


def read_moment(
    text: str, zone: Zone | None, choice: Choice | None = None
) -> tuple[datetime, Zone, tuple[str, ...]]:
    """Read an ISO 8601 time; returns it with its zone, which is `zone` or the written offset from UTC, and
    notes.

    Raises `UsageError` for anything else, for a time with neither, and where the two contradict each other.
    """
    if not _TIME.fullmatch(text.strip()):
        raise UsageError(
            f"{text!r} is not an ISO 8601 time: write it as 2030-12-31T20:15:00+01:00, or without the "
            "distance and with a zone"
        )
    try:
        moment = datetime.fromisoformat(text.strip().upper())
    except ValueError as error:
        raise UsageError(f"{text!r} is not a time: {error}") from None
    if moment.tzinfo is None:
        if zone is None:
            raise UsageError(
                f"{text!r} has no time zone: write {text.strip()}+00:00 if it is UTC, or say the zone, "
                "such as Europe/Vienna"
            )
        found, notes = at_clock(moment.date(), moment.time(), zone, choice)
        return found, zone, notes
    if zone is None:
        return moment, zone_of(moment, "the time itself"), ()
    there = on_clocks(moment, zone)
    if there.utcoffset() != moment.utcoffset():
        was, now = (
            offset_name(moment.utcoffset() or timedelta()),
            offset_name(there.utcoffset() or timedelta()),
        )
        raise UsageError(
            f"{text!r} is at {was}, but {zone.name} was then at {now}: leave out the one that is wrong"
        )
    return there, zone, ()


def time_arithmetic(
    base: str | datetime, offset: str, *, zone: str | Zone | None = None, disambiguate: Choice | None = None
) -> Reading:
    """Move `base` by `offset`, such as `+2 days` or `-1 month 90 minutes`.

    Years, months, days and weeks move the hands of the clock, hours and less count elapsed time; a month
    without such a day gives its last, which is said. A date moves to a date and takes whole days only.

    Args:
        base: A time with its zone or distance from UTC, or an ISO 8601 text.
        offset: A distance in English; a sign holds up to the next one.
        zone: Whose clocks are moved; needed where the base carries none.
        disambiguate: Which moment is meant where clocks show the result twice or not at all.

    Raises:
        UsageError: For what cannot be read, a base without a zone, a result that clocks skip or show twice.

    """
    place = zone_named(zone, "the arguments") if isinstance(zone, str) else zone
    far = _required_offset(offset)
    text = f"{base if isinstance(base, str) else base.isoformat()} {offset}"
    if isinstance(base, str) and _DATE.fullmatch(base.strip()):
        if not far.whole_days:
            raise UsageError(
                f"{base!r} is a date, and {offset!r} counts hours: write a time of day with it, such "
                f"as {base.strip()}T00:00"
            )
        if place is None:
            raise UsageError(f"{base!r} has no time zone: say which, such as Europe/Vienna or UTC")
        try:
            first = date.fromisoformat(base.strip())
        except ValueError as error:
            raise UsageError(f"{base.strip()!r} is not a date: {error}") from None
        day, notes = move_day(first, far)
        if day == date.max:
            raise UsageError(f"the end of {day} is beyond the years 1 to 9999")
        start, end = day_start(day, place), day_start(day + timedelta(days=1), place)
        return Reading(
            text=text, start=start, end=end, precision="day", interpretation=far.said, zone=place, notes=notes
        )
    moment, place, notes = _given_time(base, place, disambiguate)
    moved, said = move_moment(moment, far, place, disambiguate)
    if place.fixed and place.name != "UTC" and (far.months or far.days or far.weekdays):
        said += (
            f"only the distance {place.name} is known: daylight saving time was not minded; for that "
            "say the zone",
        )
    return Reading(
        text=text,
        start=moved,
        end=moved,
        precision="second",
        interpretation=far.said,
        zone=place,
        notes=notes + said,
    )


def normalize_timezone(time: str | datetime, to_zone: str, *, from_zone: str | None = None) -> Reading:
    """Show the moment `time` on the clocks of `to_zone`.

    Args:
        time: A time with its zone or distance from UTC, or an ISO 8601 text.
        to_zone: IANA name, `UTC`, or a distance such as `+05:30`.
        from_zone: Whose clocks `time` was read from; needed where it carries no distance from UTC.

    Raises:
        UsageError: For a zone that is not known or means several, a time without a zone, one that does not
            exist or comes twice.

    """
    target = zone_named(to_zone, "the arguments")
    moment, source, notes = _given_time(
        time, zone_named(from_zone, "the arguments") if from_zone is not None else None
    )
    there = on_clocks(moment, target)
    if target.short:
        at_clock(there.date(), there.time(), target)  # refuses CET in July
        notes += (f"{target.short} was read as {target.name}",)
    days = (there.date() - moment.date()).days
    if days:
        notes += (f"it is the {'next' if days > 0 else 'previous'} day there",)
    text = f"{time if isinstance(time, str) else time.isoformat()} in {to_zone}"
    said = f"{moment.isoformat()} in {source.name}"
    return Reading(
        text=text, start=there, end=there, precision="second", interpretation=said, zone=target, notes=notes
    )


def _given_time(
    time: str | datetime, zone: Zone | None, choice: Choice | None = None
) -> tuple[datetime, Zone, tuple[str, ...]]:
    if isinstance(time, str) or time.tzinfo is None:
        return read_moment(time if isinstance(time, str) else time.isoformat(), zone, choice)
    return (time, zone_of(time, "the time itself"), ()) if zone is None else (on_clocks(time, zone), zone, ())
