"""Distances in time: 1 month and 21 days, +2h, half an hour, three business days; and moving a moment by one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal, InvalidOperation

from kestrel_lab.core.errors import UsageError, nearest
from kestrel_lab.tools.timeexpr.question import month_start
from kestrel_lab.tools.timeexpr.words import compiled
from kestrel_lab.tools.timeexpr.zones import Choice, Zone, at_clock

_UNITS = {
    "year": ("y", "yr", "yrs", "year", "years"),
    "quarter": ("quarter", "quarters"),
    "month": ("mo", "month", "months"),
    "fortnight": ("fortnight", "fortnights"),
    "week": ("w", "wk", "wks", "week", "weeks"),
    "weekday": ("business day", "business days", "working day", "working days", "workday", "workdays", "weekdays"),
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

    @property
    def whole_days(self) -> bool:
        """Whether it moves from day to day, without hours."""
        return not self.seconds

    @property
    def said(self) -> str:
        """In words, such as `1 month + 21 days`."""
        size, name = next((size, name) for name, size in _SECONDS_IN.items() if self.seconds % size == 0 or size == 1)
        parts = ((self.months, "month"), (self.days, "day"), (self.weekdays, "working day"), (self.seconds / size, name))
        return " + ".join(f"{_plain(count)} {name}{'' if abs(count) == 1 else 's'}" for count, name in parts if count) or "nothing"


def read_offset(text: str) -> Offset | None:
    """The distance that `text`, in canonical spelling, names from end to end; `None` if it names none.

    A sign holds for all terms behind it, up to the next sign. Raises `UsageError` for parts of months and days.
    """
    text = _MINUTES.sub(r"\1min", text)
    place, sign, total, any_term = 0, 1, Offset(), False
    while place < len(text):
        if any_term:
            joined = _JOIN.match(text, place)
            if joined is None:
                return None
            place = joined.end()
        if (term := compiled(_TERM).match(text, place)) is None:
            return None
        if term["sign"]:
            sign = -1 if term["sign"][0] == "-" else 1
        total, place, any_term = _plus(total, _term(term, sign)), term.end(), True
    return total if any_term else None


def required_offset(text: str, canonical: str) -> Offset:
    """The same for a text that must be one; raises `UsageError` saying what to write."""
    if (found := read_offset(canonical)) is not None:
        return found
    words = [word for word in re.findall(r"[a-z]+", canonical) if word not in _UNIT_OF]
    hint = f"{nearest(words[0], list(_UNIT_OF))}; " if words and len(words[0]) > 2 else ""
    msg = f"cannot read {text!r} as a distance in time: {hint}write e.g. '+2 days', '-1 month 3 days', '90 minutes', '5 business days'"
    raise UsageError(msg)


def vague(text: str) -> str:
    """The word that says no number, if there is one."""
    found = _VAGUE.search(text)
    return found[0] if found else ""


def move_day(day: date, offset: Offset) -> tuple[date, tuple[str, ...]]:
    """A day moved by months, days and working days, and what there is to say of it.

    In a month that has no such day its last day is taken, which is said. Raises `UsageError` beyond the years 1 to 9999.
    """
    notes: tuple[str, ...] = ()
    try:
        first = month_start(day.year, day.month + offset.months)
        last = (month_start(first.year, first.month + 1) - timedelta(days=1)).day if (first.year, first.month) != (9999, 12) else 31
        moved = first.replace(day=min(day.day, last))
        if day.day > last:
            notes = (f"{first:%Y-%m} has no day {day.day}: its last, the {last}, was taken",)
        moved += timedelta(days=offset.days)
        return _move_weekdays(moved, offset.weekdays), notes + _said_of_weekdays(offset)
    except (ValueError, OverflowError) as error:
        msg = f"{day} moved by {offset.said} leaves the years 1 to 9999"
        raise UsageError(msg) from error


def move(moment: datetime, offset: Offset, zone: Zone, choice: Choice | None = None) -> tuple[datetime, tuple[str, ...]]:
    """A moment moved by calendar on the clocks of `zone`, then by elapsed time, and what there is to say of it.

    Raises `UsageError` beyond the years 1 to 9999, and as `at_clock` does where the clock time is skipped or comes twice.
    """
    here, notes = moment.astimezone(zone.rules), tuple[str, ...]()
    if offset.months or offset.days or offset.weekdays:
        day, notes = move_day(here.date(), offset)
        if day != here.date():
            here, said = at_clock(day, here.time(), zone, choice)
            notes += said
    try:
        elapsed = timedelta(microseconds=int(offset.seconds * 1_000_000))
        moved = (here.astimezone(UTC) + elapsed).astimezone(zone.rules)
    except (OverflowError, ValueError) as error:
        msg = f"{moment.isoformat()} moved by {offset.said} leaves the years 1 to 9999"
        raise UsageError(msg) from error
    if offset.seconds and moved.utcoffset() != here.utcoffset():
        notes += (f"clocks of {zone.name} change in between: elapsed time was counted, not the hands of the clock",)
    return moved, notes


def _term(term: re.Match[str], sign: int) -> Offset:
    unit, written = _UNIT_OF[term["unit"]], term["count"]
    try:
        count = _count(written) + (Decimal("0.5") if term["half"] else 0)
    except InvalidOperation:  # pragma: no cover  # the pattern lets only numbers through
        count = Decimal(0)
    count *= sign
    if unit in _SECONDS_IN:
        return Offset(seconds=count * _SECONDS_IN[unit])
    size = _MONTHS_IN.get(unit) or _DAYS_IN.get(unit) or 1
    whole = count * size
    if whole != whole.to_integral_value():
        msg = (
            f"{term[0].strip()!r} is no whole number of {'months' if unit in _MONTHS_IN else 'days'}: write smaller units, such as 36 hours"
        )
        raise UsageError(msg)
    if abs(whole) > 10_000_000:
        msg = f"{term[0].strip()!r} leaves the years 1 to 9999"
        raise UsageError(msg)
    if unit in _MONTHS_IN:
        return Offset(months=int(whole))
    return Offset(weekdays=int(whole)) if unit == "weekday" else Offset(days=int(whole))


def _count(written: str) -> Decimal:
    if "half" in written:
        return Decimal("0.5")
    if "couple" in written:
        return Decimal(2)
    return Decimal(1) if written in {"a", "an"} else Decimal(written)


def _plain(count: int | Decimal) -> str:
    """Without a trailing `.0`."""
    return f"{count.normalize():f}" if isinstance(count, Decimal) else str(count)


def _plus(a: Offset, b: Offset) -> Offset:
    return Offset(months=a.months + b.months, days=a.days + b.days, weekdays=a.weekdays + b.weekdays, seconds=a.seconds + b.seconds)


def _move_weekdays(day: date, count: int) -> date:
    """`count` working days on, Monday to Friday; from a weekend the first step is to the working day next to it."""
    step = timedelta(days=1 if count > 0 else -1)
    weeks, rest = divmod(abs(count), 5)
    if weeks and not rest:  # the last five are walked, so that the end is a working day
        weeks, rest = weeks - 1, 5
    day += step * 7 * weeks if day.weekday() < 5 else timedelta()
    left = rest if day.weekday() < 5 else abs(count)
    while left:
        day += step
        left -= day.weekday() < 5
    return day


def _said_of_weekdays(offset: Offset) -> tuple[str, ...]:
    return ("working days are Monday to Friday: public holidays are not known here",) if offset.weekdays else ()
