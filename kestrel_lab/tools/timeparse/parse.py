"""`parse_relative`: what a time expression means at a reference time; what could mean several things is refused."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import NoReturn

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.clock_times import PARTS, Pieces, take_apart
from kestrel_lab.tools.timeparse.durations import move
from kestrel_lab.tools.timeparse.normalize import canonical
from kestrel_lab.tools.timeparse.other_languages import read_foreign
from kestrel_lab.tools.timeparse.relative_days import Shift, day_or_period, read_shift, shifted_day
from kestrel_lab.tools.timeparse.types import Order, Prefer, Question, Reading, Span, refuse
from kestrel_lab.tools.timeparse.zones import Choice, Zone, at_clock, day_start, take_zone, zone_of

_MOST = 200
"""Characters of an expression; longer ones are no time."""
_ISO = re.compile(r"(?P<day>\d{4}-\d\d-\d\d)[t ](?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d{1,6})?)?)", re.ASCII | re.IGNORECASE)
_CTIME = re.compile(r"(?P<day>.+ \d{1,2}) (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})", re.ASCII)
_EDGE = re.compile(
    r"(?:by )?(?:the )?(?P<edge>end|close|start|beginning|middle) of (?:the )?(?P<what>.+)|(?:by )?(?:the )?(?P<short>eo[dwmy])\b ?(?P<when>.*)"
)
_BARE_HOUR = re.compile(r"(?:.* )?at (?P<hour>\d|1\d|2[0-4])(?: .*)?", re.ASCII)
_SHORT_EDGES = {"eod": "day", "eow": "week", "eom": "month", "eoy": "year"}
_NOW = {"now", "right now", "just now", "at the moment", "at this moment", "this moment", "this instant"}
_EXAMPLES = "e.g. 'tomorrow at 15:30', 'next Friday', 'in 2 weeks', '3 days ago', '2030-12-31 20:15'"


def parse_relative(
    text: str,
    reference: datetime,
    *,
    zone: Zone | None = None,
    prefer: Prefer = "future",
    order: Order | None = None,
    short_years: bool = False,
    disambiguate: Choice | None = None,
    language: str = "en",
) -> Reading:
    """Read `text` as it would be meant at `reference`.

    Args:
        text: An expression such as `next Friday` or `tomorrow at 15:30 Europe/Vienna`, and nothing else.
        reference: The time it is told from, with its zone.
        zone: Whose clocks and days are meant where the text names no zone; the reference's by default.
        prefer: Which side a `Friday` or a `2 October` without a year is taken from.
        order: Whether the month or the day comes first in 3/4/2030; without it such a date is refused.
        short_years: Take years of two digits, 69 to 99 as 19xx.
        disambiguate: Which moment is meant where clocks show a time twice or not at all.
        language: Code of the language; what is not English is read by dateparser.

    Raises:
        UsageError: For a reference without a zone, and for a text that is not understood or could mean several
            things, saying what to write instead.

    """
    home = zone or zone_of(reference, "the reference")
    zone_of(reference, "the reference")  # a reference without a zone is refused
    asked = Question(
        text=text.strip(), reference=reference, zone=home, prefer=prefer, order=order, short_years=short_years, disambiguate=disambiguate
    )
    if not asked.text or len(asked.text) > _MOST:
        msg = (
            f"there is nothing to read: write {_EXAMPLES}"
            if not asked.text
            else f"this is longer than a time expression: write {_EXAMPLES}"
        )
        raise UsageError(msg)
    try:
        return _read(asked, home) if language == "en" else read_foreign(asked, language)
    except UsageError:
        raise
    except (OverflowError, ValueError):  # a date that the calendar of Python does not hold
        msg = f"{text!r} leaves the years 1 to 9999"
        raise UsageError(msg) from None


def _read(asked: Question, home: Zone) -> Reading:
    rest, zone = take_zone(asked.text)
    asked = asked if zone is None else asked.within(zone)
    words = _CTIME.sub(r"\g<day> \g<year> \g<clock>", canonical(rest))
    if iso := _ISO.fullmatch(words):
        return _iso(iso, asked)
    if words in _NOW:
        return _moment(asked.now, "now", "second", asked)
    if words in {"asap", "as soon as possible", "soon", "later", "recently", "someday", "sometime"}:
        refuse(asked.text, "it names no time", _EXAMPLES)
    if (edge := _EDGE.fullmatch(words)) is not None:
        return _edge(edge, asked)
    if (shift := read_shift(words, asked)) is not None and not shift.whole_days:
        return _elapsed(shift, asked)
    if shift is not None and (day := shifted_day(words, asked)) is not None:
        return _whole(day, asked, ())
    pieces = take_apart(words, asked)
    if not pieces.day and pieces.clock is not None:
        return _clock_alone(pieces, asked)
    span = _days(pieces.day, asked, numbers=pieces.clock is not None)
    if span is None and (bare := _BARE_HOUR.fullmatch(words)) is not None:
        _refuse_hour(bare["hour"], asked)
    if span is None:
        msg = f"cannot read {asked.text!r} as a time: write {_EXAMPLES}; for another language than English say which, such as language de"
        raise UsageError(msg)
    _same_today(span, asked, home)
    return _whole(span, asked, pieces.notes) if pieces.clock is None and not pieces.part else _at(span, pieces, asked)


def _refuse_hour(hour: str, asked: Question) -> NoReturn:
    if 1 <= int(hour) <= 12:
        refuse(asked.text, f"{hour} may be before or after noon", f"{hour}am, {hour}pm or {hour}:00")
    refuse(asked.text, f"{hour} alone is no time of day", f"{hour}:00")


def _days(text: str, asked: Question, *, numbers: bool = False) -> Span | None:
    """The days that `text` names; with `numbers`, a number alone is the day of a month."""
    text = text.removeprefix("on ").removeprefix("by ")
    if numbers and re.fullmatch(r"\d{1,2}", text, re.ASCII):
        text = f"the {text}"
    if text.startswith("in ") and (period := day_or_period(text.removeprefix("in "), asked)) is not None and not period.is_day:
        return period
    return shifted_day(text, asked) or day_or_period(text, asked)


def _iso(found: re.Match[str], asked: Question) -> Reading:
    try:
        day, clock = date.fromisoformat(found["day"]), time.fromisoformat(found["clock"].replace(",", "."))
    except ValueError as error:
        msg = f"{asked.text!r} is no time: {error}"
        raise UsageError(msg) from None
    moment, notes = at_clock(day, clock, asked.zone, asked.disambiguate)
    return _moment(moment, "an ISO 8601 time", "second" if clock.second or found["clock"].count(":") > 1 else "minute", asked, *notes)


def _edge(found: re.Match[str], asked: Question) -> Reading:
    what = found["what"] or f"{_SHORT_EDGES[found['short']]} {found['when']}".strip()
    if found["edge"] in {"middle", "close"}:
        refuse(asked.text, f"the {found['edge']} of it is no exact time", "a day or a clock time")
    if what.startswith("day "):
        what = what.removeprefix("day ").removeprefix("of ").removeprefix("on ")
    elif what in {"day", "week", "month", "quarter", "year"}:
        what = f"this {what}"
    span = _days(what, asked)
    if span is None:
        refuse(asked.text, f"{what!r} is no day or period that is known here", "the end of today, of Friday, of next month …")
    if found["edge"] in {"start", "beginning"}:
        return _moment(day_start(span.first, asked.zone), f"the first moment of {span.said}", "second", asked, *span.notes)
    last = day_start(span.end, asked.zone).astimezone(UTC) - timedelta(seconds=1)
    return _moment(last.astimezone(asked.zone.rules), f"the last second of {span.said}", "second", asked, *span.notes)


def _elapsed(shift: Shift, asked: Question) -> Reading:
    """Hours, minutes or seconds from now."""
    moment, notes = move(asked.now, shift.offset, asked.zone, asked.disambiguate)
    return _moment(moment, f"{shift.offset.said} from the reference", "second", asked, *notes)


def _clock_alone(pieces: Pieces, asked: Question) -> Reading:
    """A time of day without a day: the nearest on the preferred side."""
    clock, now = pieces.clock, asked.now
    assert clock is not None
    for step in (0, 1) if asked.prefer == "future" else (0, -1):
        day = asked.today + timedelta(days=step + clock.next_day)
        moment, said = at_clock(day, clock.at, asked.zone, asked.disambiguate)
        if moment >= now if asked.prefer == "future" else moment <= now:
            break
    side = "next" if asked.prefer == "future" else "last"
    note = f"no day was given: the {side} {clock.at:%H:%M} was taken"
    return _moment(moment, f"the {side} {clock.at:%H:%M}", clock.precision, asked, note, *pieces.notes, *said)


def _at(span: Span, pieces: Pieces, asked: Question) -> Reading:
    """A time or a part of a day."""
    if not span.is_day:
        refuse(asked.text, f"{span.said} is a {span.precision}, no day", "a day with the time of day")
    if (clock := pieces.clock) is not None:
        day = span.first + timedelta(days=1) if clock.next_day else span.first
        moment, said = at_clock(day, clock.at, asked.zone, asked.disambiguate)
        return _moment(
            moment, f"{span.said}, at {clock.at:%H:%M:%S}".removesuffix(":00"), clock.precision, asked, *span.notes, *pieces.notes, *said
        )
    part = "evening" if pieces.part == "tonight" else pieces.part
    first, last = PARTS[part]
    start, said = at_clock(span.first, time(first), asked.zone, asked.disambiguate)
    if last == 24:
        end, more = day_start(span.end, asked.zone), tuple[str, ...]()
    else:
        end, more = at_clock(span.first, time(last), asked.zone, asked.disambiguate)
    note = f"{pieces.part} was taken as {first}:00 to {last}:00"
    return _range(
        start,
        end,
        f"{part} of {span.said}" if part == pieces.part else pieces.part,
        "part of a day",
        asked,
        *span.notes,
        *pieces.notes,
        note,
        *said,
        *more,
    )


def _whole(span: Span, asked: Question, notes: tuple[str, ...]) -> Reading:
    start, end = day_start(span.first, asked.zone), day_start(span.end, asked.zone)
    return _range(start, end, span.said, span.precision, asked, *span.notes, *notes)


def _same_today(span: Span, asked: Question, home: Zone) -> None:
    """Refuse days told from today when the zone in the text has another day now than the asker's."""
    there, here = asked.today, asked.within(home).today
    if span.relative and there != here:
        why = f"it is {there} in {asked.zone.name} and {here} in {home.name} now"
        refuse(asked.text, why, f"the date instead of a day told from today, such as {span.first}")


def _moment(moment: datetime, said: str, precision: str, asked: Question, *notes: str) -> Reading:
    return _range(moment, moment, said, precision, asked, *notes)


def _range(start: datetime, end: datetime, said: str, precision: str, asked: Question, *notes: str) -> Reading:
    if asked.zone.short:
        notes = (*notes, f"{asked.zone.short} was read as {asked.zone.name}")
    return Reading(
        text=asked.text,
        start=start,
        end=end,
        precision=precision,
        interpretation=said,
        zone=asked.zone,
        reference=asked.reference,
        notes=tuple(dict.fromkeys(notes)),
    )
