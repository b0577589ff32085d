"""Parser of time expressions, `parse_relative`: what an expression means at a reference time; an ambiguous
one is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Final

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.dates import day_or_period, read_day, read_foreign, read_shift, shifted_day
from kestrel_lab.tools.timeparse.durations import move_day, move_moment
from kestrel_lab.tools.timeparse.normalize import canonical_text, lazy_pattern
from kestrel_lab.tools.timeparse.types import (
    NotATime,
    Preferences,
    Question,
    Reading,
    Span,
    one_day,
    refuse_expression,
    time_range,
)
from kestrel_lab.tools.timeparse.zones import Zone, at_clock, day_start, split_zone, zone_of

_HALF = r"(?:\s?(?P<half>[ap]m))"
_CLOCKS = (
    rf"(?P<hour>\d{{1,2}}):(?P<minute>[0-5]\d)(?::(?P<second>[0-5]\d))?{_HALF}?(?: o'?clock)?",
    rf"(?P<hour>\d{{1,2}})[. ](?P<minute>[0-5]\d)(?:[. ](?P<second>[0-5]\d))?{_HALF}",
    rf"(?P<hour>\d{{1,2}})(?: o'?clock)?{_HALF}",
)
_O_CLOCK = re.compile(r"(?P<hour>\d{1,2}) ?o'?clock", re.ASCII)
_PART = re.compile(
    r",? ?\b(?:in the |(?P<today>this ))?(?P<part>morning|afternoon|evening|night)\b|\b(?P<tonight>tonight)\b"
)
_PARTS = {"morning": range(12), "afternoon": range(12, 20), "evening": range(16, 24), "night": range(18, 24)}
"""Hours that can be meant in a part of the day; any other is refused."""
_ABOUT = re.compile(r"\b(?:around|about|approximately|approx\.?|roughly|circa)\b ?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Clock:
    """A time of day, on a clock of 24 hours."""

    at: time
    precision: str
    """`hour`, `minute` or `second`: how exactly it is written."""
    next_day: bool = False
    """24:00: the end of the day."""
    notes: tuple[str, ...] = ()


def split_expression(text: str, asked: Question) -> tuple[str, Clock | None, tuple[str, ...]]:
    """Separate the day from the time of day; returns both and notes on how the time was read.

    What is not understood stays in the day.
    """
    text, roughly = _ABOUT.subn("", text)
    part = ""
    if (found := _PART.search(text)) is not None:
        part = found["part"] or "night"
        text = " ".join(
            (
                text[: found.start()]
                + (" today " if found["today"] or found["tonight"] else " ")
                + text[found.end() :]
            ).split()
        )
    notes = ("an approximate time: it was read as if it were exact",) if roughly else ()
    words = text.split(" ")
    # The longest first, at the end and then at the beginning.
    counts = range(min(len(words), 7), 0, -1)
    splits = [(words[-count:], words[:-count]) for count in counts] + [
        (words[:count], words[count:]) for count in counts
    ]
    for piece, rest in splits:
        if (clock := _clock(_without_joints(" ".join(piece)), part, asked)) is not None:
            return _without_joints(" ".join(rest)), clock, (*notes, *clock.notes)
    if part:
        refuse_expression(asked.text, "a part of a day has no clock time", "a clock time")
    return _without_joints(text), None, notes


def _without_joints(text: str) -> str:
    """Return `text` without the small words that join a day and a time."""
    text = text.strip(" ,;-")
    text = re.sub(r"^(?:(?:at|on|by|@)(?: |(?=\d)))+", "", text)
    return re.sub(r"[ ,]*\b(?:at|on|in the|the|-|,)$", "", text).strip(" ,;-")


def _clock(piece: str, part: str, asked: Question) -> Clock | None:
    if piece in {"noon", "12 noon", "midday"}:
        return Clock(at=time(12), precision="minute")
    if piece in {"midnight", "12 midnight"}:
        refuse_expression(
            asked.text, "midnight begins one day and ends another", "00:00 or 24:00 with the day"
        )
    for pattern in _CLOCKS:
        if (found := lazy_pattern(pattern).fullmatch(piece)) is not None:
            return _clock_of(found.groupdict(), part, asked)
    if part and piece.isdigit():
        return _clock_of({"hour": piece}, part, asked)
    if (found := _O_CLOCK.fullmatch(piece)) is not None:
        hour = found["hour"]
        refuse_expression(
            asked.text,
            f"{hour} o'clock may be before or after noon",
            f"{hour}am, {hour}pm or 24 hours with minutes",
        )
    return None


def _clock_of(groups: dict[str, str | None], part: str, asked: Question) -> Clock:
    hour, minute, second = (int(groups.get(name) or 0) for name in ("hour", "minute", "second"))
    half = groups.get("half")
    precision = "second" if groups.get("second") else "minute" if groups.get("minute") else "hour"
    if hour > 24 or (half and not 1 <= hour <= 12):
        raise UsageError(f"there is no hour {hour}{half or ''} in {asked.text!r}: write 8pm or 20:00")
    if hour == 24:
        if minute or second:
            raise UsageError(f"24:00 is the end of a day: there is no {hour}:{minute:02d} in {asked.text!r}")
        return Clock(at=time(), precision=precision, next_day=True)
    notes: tuple[str, ...] = ()
    if half:
        hour = hour % 12 + (12 if half == "pm" else 0)
    if part:
        meant = [one for one in ({hour} if half else {hour, hour + 12}) if one in _PARTS[part]]
        if len(meant) != 1:
            refuse_expression(
                asked.text,
                f"that hour is not clearly {part}",
                "am or pm behind it, or a clock time such as 20:15",
            )
        hour = meant[0]
    elif not half and 1 <= hour < 12 and not (groups["hour"] or "").startswith("0"):
        notes = (f"read on a clock of 24 hours; for the afternoon write {hour}:{minute:02d}pm",)
    return Clock(at=time(hour, minute, second), precision=precision, notes=notes)


_MOST = 200
"""Characters of an expression; longer ones are no time."""
_ISO = re.compile(
    r"(?P<day>\d{4}-\d\d-\d\d)[t ](?P<clock>\d\d:\d\d(?::\d\d(?:[.,]\d{1,6})?)?)", re.ASCII | re.IGNORECASE
)
_CTIME = re.compile(r"(?P<day>.+ \d{1,2}) (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})", re.ASCII)
_EDGE = re.compile(
    r"(?:by )?(?:the )?(?P<edge>end|close|start|beginning|middle) of (?:the )?(?P<what>.+)|(?:by "
    r")?(?:the )?(?P<short>eo[dwmy])\b ?(?P<when>.*)"
)
_BARE_HOUR = re.compile(r"(?:.* )?at (?P<hour>\d|1\d|2[0-4])(?: .*)?", re.ASCII)
_SHORT_EDGES = {"eod": "day", "eow": "week", "eom": "month", "eoy": "year"}
_NO_TIME = {"asap", "as soon as possible", "soon", "later", "recently", "someday", "sometime"}
_NOW = {"now", "right now", "just now", "at the moment", "at this moment", "this moment", "this instant"}
_EXAMPLES = "e.g. 'tomorrow at 15:30', 'next Friday', 'in 2 weeks', '3 days ago', '2030-12-31 20:15'"


_NONE: Final = Preferences()


def parse_relative(
    text: str,
    reference: datetime,
    *,
    zone: Zone | None = None,
    preferences: Preferences = _NONE,
    language: str = "en",
) -> Reading:
    """Read `text` as it would be meant at `reference`.

    Args:
        text: An expression such as `next Friday` or `tomorrow at 15:30 Europe/Vienna`, and nothing else.
        reference: The time that the expression is relative to, with its zone.
        zone: Whose clocks and days are meant where the text names no zone; the reference's by default.
        preferences: What is meant where the text may mean several things.
        language: Code of the language; other languages than English are read by dateparser alone.

    Raises:
        UsageError: For a reference without a zone, and for a text that is not understood or could mean
            several things, saying what to write instead.

    """
    # A reference without a zone is refused.
    own = zone_of(reference, "the reference")
    home = zone or own
    asked = Question(
        text=text.strip(),
        reference=reference,
        zone=home,
        prefer=preferences.prefer,
        order=preferences.order,
        disambiguate=preferences.disambiguate,
    )
    if not asked.text or len(asked.text) > _MOST:
        problem = "this is longer than a time expression" if asked.text else "there is nothing to read"
        raise UsageError(f"{problem}: write {_EXAMPLES}")
    try:
        return _read(asked, home) if language == "en" else read_foreign(asked, language)
    except UsageError:
        raise
    except (OverflowError, ValueError):
        # A date that the calendar of Python does not hold.
        raise UsageError(f"{text!r} leaves the years 1 to 9999") from None


def _read(asked: Question, home: Zone) -> Reading:
    rest, zone = split_zone(asked.text)
    asked = asked if zone is None else asked.within(zone)
    words = _CTIME.sub(r"\g<day> \g<year> \g<clock>", canonical_text(rest))
    if iso := _ISO.fullmatch(words):
        return _iso(iso, asked)
    if words in _NOW:
        return _moment_reading(asked.now, "now", "second", asked)
    if words in _NO_TIME:
        refuse_expression(asked.text, "it names no time", _EXAMPLES)
    if (edge := _EDGE.fullmatch(words)) is not None:
        return _edge(edge, asked)
    if (far := read_shift(words, asked)) is not None:
        if far.whole_days:
            day, notes = move_day(asked.today, far)
            return _whole_span(one_day(day, f"{far.said} from {asked.today}"), asked, *notes)
        moment, notes = move_moment(asked.now, far, asked.zone, asked.disambiguate)
        return _moment_reading(moment, f"{far.said} from the reference", "second", asked, *notes)
    return _day_and_clock(words, asked, home)


def _day_and_clock(words: str, asked: Question, home: Zone) -> Reading:
    day, clock, notes = split_expression(words, asked)
    if not day and clock is not None:
        return _clock_alone(clock, asked, notes)
    span = _days(day, asked)
    if span is None and (bare := _BARE_HOUR.fullmatch(words)) is not None:
        hour = bare["hour"]
        if 1 <= int(hour) <= 12:
            refuse_expression(
                asked.text, f"{hour} may be before or after noon", f"{hour}am, {hour}pm or {hour}:00"
            )
        refuse_expression(asked.text, f"{hour} alone is not a time of day", f"{hour}:00")
    if span is None and (span := read_day(day, asked)) is None:
        raise NotATime(
            f"cannot read {asked.text!r} as a time: write {_EXAMPLES}; for another language than "
            "English say which, such as language de"
        )
    there, here = asked.today, asked.within(home).today
    if span.relative and there != here:
        refuse_expression(
            asked.text,
            f"it is {there} in {asked.zone.name} and {here} in {home.name} now",
            f"the date, such as {span.first}, instead of a relative day",
        )
    return _whole_span(span, asked, *notes) if clock is None else _reading_at(span, clock, asked, notes)


def _days(text: str, asked: Question) -> Span | None:
    text = text.removeprefix("on ").removeprefix("by ")
    if (
        text.startswith("in ")
        and (period := day_or_period(text.removeprefix("in "), asked)) is not None
        and not period.is_day
    ):
        return period
    return shifted_day(text, asked) or day_or_period(text, asked)


def _iso(found: re.Match[str], asked: Question) -> Reading:
    try:
        day, clock = date.fromisoformat(found["day"]), time.fromisoformat(found["clock"].replace(",", "."))
    except ValueError as error:
        raise UsageError(f"{asked.text!r} is not a time: {error}") from None
    moment, notes = at_clock(day, clock, asked.zone, asked.disambiguate)
    return _moment_reading(
        moment,
        "an ISO 8601 time",
        "second" if clock.second or found["clock"].count(":") > 1 else "minute",
        asked,
        *notes,
    )


def _edge(found: re.Match[str], asked: Question) -> Reading:
    what = found["what"] or f"{_SHORT_EDGES[found['short']]} {found['when']}".strip()
    if found["edge"] in {"middle", "close"}:
        refuse_expression(
            asked.text, f"the {found['edge']} of it is not an exact time", "a day or a clock time"
        )
    if what.startswith("day "):
        what = what.removeprefix("day ").removeprefix("of ").removeprefix("on ")
    elif what in {"day", "week", "month", "quarter", "year"}:
        what = f"this {what}"
    span = _days(what, asked)
    if span is None:
        refuse_expression(
            asked.text,
            f"{what!r} is not a day or period that is known here",
            "the end of today, of Friday, of next month …",
        )
    if found["edge"] in {"start", "beginning"}:
        return _moment_reading(
            day_start(span.first, asked.zone),
            f"the first moment of {span.said}",
            "second",
            asked,
            *span.notes,
        )
    last = day_start(span.end, asked.zone).astimezone(UTC) - timedelta(seconds=1)
    return _moment_reading(
        last.astimezone(asked.zone.rules), f"the last second of {span.said}", "second", asked, *span.notes
    )


def _clock_alone(clock: Clock, asked: Question, notes: tuple[str, ...]) -> Reading:
    """Read a time of day without a day: the nearest on the preferred side."""
    for step in (0, 1) if asked.prefer == "future" else (0, -1):
        moment, said = at_clock(
            asked.today + timedelta(days=step + clock.next_day), clock.at, asked.zone, asked.disambiguate
        )
        if moment >= asked.now if asked.prefer == "future" else moment <= asked.now:
            break
    what = f"the {'next' if asked.prefer == 'future' else 'last'} {clock.at:%H:%M}"
    return _moment_reading(
        moment, what, clock.precision, asked, f"no day was given: {what} was taken", *notes, *said
    )


def _reading_at(span: Span, clock: Clock, asked: Question, notes: tuple[str, ...]) -> Reading:
    if not span.is_day:
        refuse_expression(
            asked.text, f"{span.said} is a {span.precision}, no day", "a day with the time of day"
        )
    moment, said = at_clock(
        span.first + timedelta(days=clock.next_day), clock.at, asked.zone, asked.disambiguate
    )
    what = (
        f"{span.said}, at {'24:00' if clock.next_day else clock.at.isoformat('seconds').removesuffix(':00')}"
    )
    return _moment_reading(moment, what, clock.precision, asked, *span.notes, *notes, *said)


def _whole_span(span: Span, asked: Question, *notes: str) -> Reading:
    start, end = day_start(span.first, asked.zone), day_start(span.end, asked.zone)
    return time_range(start, end, span.said, span.precision, asked, *span.notes, *notes)


def _moment_reading(moment: datetime, said: str, precision: str, asked: Question, *notes: str) -> Reading:
    return time_range(moment, moment, said, precision, asked, *notes)
