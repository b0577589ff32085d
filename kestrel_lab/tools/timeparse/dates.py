"""Days and periods in English: weekdays, tomorrow, next month, dates with the year first, three days from
Friday.

Other calendar dates, and any expression in another language, are read by dateparser; accepted only where
nothing was left to its choice.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import Offset, move_day, read_offset, vague_word
from kestrel_lab.tools.timeparse.normalize import (
    MONTH_NAMES,
    MONTHS,
    WEEKDAY_NAMES,
    WEEKDAYS,
    lazy_pattern,
    ordinal,
)
from kestrel_lab.tools.timeparse.types import (
    Question,
    Reading,
    Span,
    calendar_day,
    month_start,
    one_day,
    refuse_expression,
    time_range,
    whole_months,
)
from kestrel_lab.tools.timeparse.zones import at_clock, day_start

Rule = Callable[["re.Match[str]", Question], Span]
_RULES: list[tuple[str, Rule]] = []

_MONTH = rf"(?P<month>{'|'.join(sorted(MONTHS, key=len, reverse=True))})\.?"
_WEEKDAY = rf"(?P<weekday>{'|'.join(sorted(WEEKDAYS, key=len, reverse=True))})\.?"
_NAMED = {
    **dict.fromkeys(("today", "this day"), 0),
    **dict.fromkeys(("tomorrow", "tmr", "next day", "the next day"), 1),
    **dict.fromkeys(("day after tomorrow", "the day after tomorrow"), 2),
    **dict.fromkeys(("yesterday", "the previous day"), -1),
    **dict.fromkeys(("day before yesterday", "the day before yesterday"), -2),
}
_SIDE = {"this": 0, "current": 0, "next": 1, "last": -1, "previous": -1}
_WHICH = rf"(?:the )?(?P<which>{'|'.join(_SIDE)})"


def day_or_period(text: str, asked: Question) -> Span | None:
    """Return the days that `text`, in canonical spelling, names; `None` if no rule knows it."""
    for pattern, function in _RULES:
        if (found := lazy_pattern(pattern).fullmatch(text)) is not None:
            return function(found, asked)
    return None


def _rule(pattern: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function for texts that match `pattern` from end to end; earlier rules go first."""

    def enter(function: Rule) -> Rule:
        _RULES.append((pattern, function))
        return function

    return enter


def _monday(day: date) -> date:
    return day - timedelta(days=day.weekday())


# Days and periods relative to today.


@_rule("|".join(_NAMED))
def _near_day(found: re.Match[str], asked: Question) -> Span:
    return one_day(asked.today + timedelta(days=_NAMED[found[0]]), found[0])


@_rule(rf"(?:(?:the )?(?P<near>coming|upcoming|most recent) )?{_WEEKDAY}")
def _bare_weekday(found: re.Match[str], asked: Question) -> Span:
    weekday, near, today = WEEKDAYS[found["weekday"]], found["near"] or "", asked.today
    name, ahead = WEEKDAY_NAMES[weekday], (weekday - today.weekday()) % 7
    if not near and ahead == 0:
        refuse_expression(
            asked.text,
            f"today is a {name}",
            f"today, or a date: {today + timedelta(days=7)} or {today - timedelta(days=7)}",
        )
    future = "coming" in near if near else asked.prefer == "future"
    side = "coming" if future else "last"
    note = () if near else (f"which {name} was not said: the {side} one was taken",)
    return one_day(
        today + timedelta(days=(ahead or 7) if future else (ahead or 7) - 7 or -7),
        f"the {side} {name}",
        *note,
    )


@_rule(rf"(?:the )?(?P<which>this|next|last|previous) {_WEEKDAY}")
@_rule(rf"{_WEEKDAY},? (?:of |in )?(?P<week>this|next|last) week")
@_rule(rf"(?P<week>this|next|last) week,? (?:on )?{_WEEKDAY}")
def _weekday_of_week(found: re.Match[str], asked: Question) -> Span:
    weekday, which, today = WEEKDAYS[found["weekday"]], found.groupdict().get("which"), asked.today
    step = _SIDE[which or found["week"]]
    name = WEEKDAY_NAMES[weekday]
    day, what = (
        _monday(today) + timedelta(days=7 * step + weekday),
        f"{name} of {('this', 'next', 'last')[step]} week",
    )
    ahead = (weekday - today.weekday()) % 7 or 7
    nearest = today + timedelta(days=ahead if step >= 0 else ahead - 7 or -7)
    if which is None or day == nearest or (step == 0 and day == today):
        return one_day(day, what)
    other = "coming" if step >= 0 else "most recent"
    return one_day(day, what, f"read as the {what}, weeks from Monday; the {other} {name} is {nearest}")


@_rule(
    rf"(?:the )?(?:(?P<count>\d{{1,2}})(?:st|nd|rd|th)|last)(?: day| {_WEEKDAY})? (?:of|in) (?P<period>.+)"
)
def _day_of_period(found: re.Match[str], asked: Question) -> Span:
    period = _period(found["period"], asked)
    days = [period.first + timedelta(days=far) for far in range((period.end - period.first).days)]
    weekday = WEEKDAYS.get(found["weekday"] or "")
    if weekday is not None:
        days = [day for day in days if day.weekday() == weekday]
    name, count = "day" if weekday is None else WEEKDAY_NAMES[weekday], int(found["count"] or -1)
    if not -1 <= count <= len(days) or count == 0:
        refuse_expression(
            asked.text, f"{period.said} has {len(days)} {name}s", f"the last {name} of it, or a date"
        )
    which = "last" if count < 0 else ordinal(count)
    return one_day(
        days[count - (count > 0)],
        f"the {which} {name} of {period.said}",
        *period.notes,
        relative=period.relative,
    )


def _period(text: str, asked: Question) -> Span:
    period = day_or_period(text, asked)
    if period is None or period.is_day:
        refuse_expression(
            asked.text,
            f"{text!r} is not a week, month, quarter or year that is known here",
            "this month, next year, March 2030 …",
        )
    return period


@_rule(rf"(?:{_WHICH}|the) (?P<unit>week|month|quarter|year|weekend)")
def _by_period(found: re.Match[str], asked: Question) -> Span:
    step, unit, today = _SIDE[found["which"] or "this"], found["unit"], asked.today
    said = f"{('this', 'next', 'last')[step]} {unit}"
    if months := {"month": 1, "quarter": 3, "year": 12}.get(unit):
        return whole_months(
            today.year, (today.month - 1) // months * months + 1 + months * step, months, said
        )
    first = _monday(today) + timedelta(days=7 * step)
    if unit == "week":
        return Span(first=first, end=first + timedelta(days=7), precision=unit, said=f"{said}, from Monday")
    said = f"Saturday and Sunday of {said.removesuffix('end')}"
    return Span(first=first + timedelta(days=5), end=first + timedelta(days=7), precision=unit, said=said)


@_rule(_MONTH)
def _bare_month(found: re.Match[str], asked: Question) -> Span:
    month, today = MONTHS[found["month"]], asked.today
    name = MONTH_NAMES[month - 1]
    if month == today.month:
        return whole_months(
            today.year, month, 1, f"{name} of this year", "no year was given: this month was taken"
        )
    return whole_months(
        today.year + ((month < today.month) if asked.prefer == "future" else -(month > today.month)),
        month,
        1,
        f"the {asked.side} {name}",
        f"no year was given: the {asked.side} {name} was taken",
    )


@_rule(r"(?:the )?(?P<number>\d{1,2})(?:st|nd|rd|th)")
def _bare_day_of_month(found: re.Match[str], asked: Question) -> Span:
    number, today, step = int(found["number"]), asked.today, 1 if asked.prefer == "future" else -1
    first = month_start(today.year, today.month + step * ((number - today.day) * step < 0))
    day = first + timedelta(days=number - 1)
    if day.month != first.month:
        refuse_expression(
            asked.text, f"{MONTH_NAMES[first.month - 1]} has no day {number}", "the full date, year first"
        )
    which = f"the {asked.side} {ordinal(number)} of a month"
    return one_day(day, which, f"no month was given: {which} was taken")


@_rule(r"q(?P<quarter>[1-4])(?:[\s,/-]*(?P<year>\d{4}))?")
def _quarter(found: re.Match[str], asked: Question) -> Span:
    year, notes = (
        int(found["year"] or asked.today.year),
        () if found["year"] else ("no year was given: this year's was taken",),
    )
    return whole_months(
        year, int(found["quarter"]) * 3 - 2, 3, "a calendar quarter", *notes, relative=not found["year"]
    )


# Dates by their place in the calendar.


@_rule(r"(?P<year>\d{4})(?P<gap>[-/.])(?P<month>\d{1,2})(?P=gap)(?P<day>\d{1,2})")
@_rule(r"(?P<year>[12]\d{3})(?P<month>\d\d)(?P<day>\d\d)")
def _year_first(found: re.Match[str], asked: Question) -> Span:
    return one_day(
        calendar_day(int(found["year"]), int(found["month"]), int(found["day"])),
        "a date, year first",
        relative=False,
    )


@_rule(rf"{_MONTH}(?: of)?[\s,/-]*(?P<year>\d{{4}})")
@_rule(rf"(?P<year>\d{{4}})[\s,/-]*{_MONTH}")
@_rule(r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])")
def _month_of_year(found: re.Match[str], asked: Question) -> Span:
    month = MONTHS.get(found["month"]) or int(found["month"])
    return whole_months(int(found["year"]), month, 1, "a whole month", relative=False)


@_rule(r"(?P<year>\d{4})-?w(?P<week>\d\d)(?:-?(?P<weekday>[1-7]))?")
def _iso_week(found: re.Match[str], asked: Question) -> Span:
    year, week = int(found["year"]), int(found["week"])
    try:
        first = date.fromisocalendar(year, week, int(found["weekday"] or 1))
    except ValueError:
        raise UsageError(f"{year} has no ISO week {week}") from None
    if found["weekday"]:
        return one_day(first, "a day of an ISO week", relative=False)
    return Span(
        first=first, end=first + timedelta(days=7), precision="week", said="an ISO week", relative=False
    )


@_rule(r"(?:the year )?(?P<year>(?:19|20|21)\d\d)")
def _year(found: re.Match[str], asked: Question) -> Span:
    return whole_months(int(found["year"]), 1, 12, "a whole year", relative=False)


# Distances from a day: in 3 weeks, two days ago, a week from Friday, two Mondays later.

_FORWARD = re.compile(
    r"in (?P<far>.+?)(?:'?s?'? time| from now)?|(?P<behind>.+?) (?:from "
    r"(?:now|today)|later|hence|away|after (?:now|today))"
)
_BACKWARD = re.compile(r"(?P<far>.+?) (?:ago|earlier|back|before (?:now|today))")
_SIGNED = re.compile(r"[+-].+")
_ANCHORED = re.compile(r"(?P<far>.+?) (?P<side>from|after|before) (?P<anchor>.+)")
_WEEKDAYS_ON = (
    rf"(?:in )?(?P<count>\d{{1,2}}) (?P<weekday>{'|'.join(map(str.lower, WEEKDAY_NAMES))})s? "
    r"(?P<side>later|from now|ago|hence)"
)


def read_shift(text: str, asked: Question) -> Offset | None:
    """Return the distance from the reference in `text`; raises `UsageError` without a number or direction."""
    sign = 1
    if (forward := _FORWARD.fullmatch(text)) is not None:
        far = forward["far"] or forward["behind"]
    elif (backward := _BACKWARD.fullmatch(text)) is not None:
        far, sign = backward["far"], -1
    elif _SIGNED.fullmatch(text):
        far = text
    else:
        if read_offset(text) is not None:
            refuse_expression(asked.text, "it has no direction", f"'in {text}' or '{text} ago'")
        return None
    far = far.removeprefix("in ")
    offset = read_offset(far)
    if offset is None:
        if (word := vague_word(far)) and read_offset(
            far.replace(word, "2", 1).removeprefix("a ")
        ) is not None:
            refuse_expression(
                asked.text,
                f"{word!r} is not a number",
                f"how many, such as '{text.replace(f'a {word}', word).replace(word, '3', 1)}'",
            )
        return None
    if not _SIGNED.fullmatch(text) and re.search(r"[+-]", far):
        refuse_expression(
            asked.text,
            "it has a sign and a direction",
            f"'+…' or '-…' alone, or '{'in …' if sign > 0 else '… ago'} without a sign",
        )
    return offset if sign > 0 else -offset


def shifted_day(text: str, asked: Question) -> Span | None:
    """Return the day at a distance in whole days from today or from another day."""
    if (counted := lazy_pattern(_WEEKDAYS_ON).fullmatch(text)) is not None:
        return _weekdays_on(counted, asked)
    if (offset := read_shift(text, asked)) is not None:
        if not offset.whole_days:
            return None
        day, notes = move_day(asked.today, offset)
        return one_day(day, f"{offset.said} from {asked.today}", *notes)
    if (anchored := _ANCHORED.fullmatch(text)) is None:
        return None
    offset, anchor = (
        read_offset(anchored["far"]),
        day_or_period(anchored["anchor"].removeprefix("the day of "), asked),
    )
    if offset is None or anchor is None or not anchor.is_day or not offset.whole_days:
        return None
    back = anchored["side"] == "before"
    day, notes = move_day(anchor.first, -offset if back else offset)
    return one_day(
        day,
        f"{offset.said} {'before' if back else 'after'} {anchor.first}, {anchor.said}",
        *anchor.notes,
        *notes,
        relative=anchor.relative,
    )


def _weekdays_on(found: re.Match[str], asked: Question) -> Span:
    """Return the second Monday from now: today does not count."""
    weekday, count, back = WEEKDAYS[found["weekday"]], int(found["count"]), found["side"] == "ago"
    if count == 0:
        refuse_expression(asked.text, "zero is not a position", "a number from 1")
    far = ((asked.today.weekday() - weekday if back else weekday - asked.today.weekday()) % 7 or 7) + 7 * (
        count - 1
    )
    said = (
        f"the {WEEKDAY_NAMES[weekday]} number {count} {'before' if back else 'after'} today, which "
        "does not count"
    )
    return one_day(asked.today + timedelta(days=-far if back else far), said)


# Read by dateparser.

_CLOCK = re.compile(r"\d[:.h]\d\d|\d\s?(?:uhr|heures?|h|hrs?|ora|horas?)\b|[ap]m\b", re.IGNORECASE)
_SHORT_YEAR = re.compile(r"(?<!\d)\d{1,2}[-/.]\d{1,2}[-/.]\d\d(?!\d)")
_WORDS = {"the", "of", "st", "nd", "rd", "th", *MONTHS, *WEEKDAYS}


def read_day(text: str, asked: Question) -> Span | None:
    """Return the day of the calendar that `text` names in English, such as `3 May 2030`; `None` if it names
    none.

    Raises `UsageError` where it could be several days, as `read_foreign` does, or falls on another weekday
    than it says.
    """
    words, numbers = re.findall(r"[a-z]+", text), re.findall(r"\d+", text)
    if not numbers or text.isdigit() or not {*words} <= _WORDS:
        return None
    asked = replace(asked, text=text)
    whole_year = any(len(number) == 4 for number in numbers)
    if not whole_year and len(numbers) > 2 - any(word in MONTHS for word in words):
        refuse_expression(
            text, "its year has two digits, or days in a row are meant", "one day, the year with four digits"
        )
    known = _agreed_readings(asked, "en")
    if known is None or known[0] != known[1] or known[0][0].time() != time():
        return None
    day = known[0][0].date()
    if any(WEEKDAYS.get(word, day.weekday()) != day.weekday() for word in words):
        refuse_expression(
            text,
            f"{day} is a {WEEKDAY_NAMES[day.weekday()]}",
            f"either the date or the weekday, such as {day}",
        )
    if whole_year:
        return one_day(day, "a date", relative=False)
    if (day.month, day.day) == (asked.today.month, asked.today.day):
        return one_day(asked.today, "that day of this year", "no year was given: today was taken")
    return one_day(
        day, f"the {asked.side} such day", f"the date was not given in full: the {asked.side} one was taken"
    )


def read_foreign(asked: Question, language: str) -> Reading:
    """Read `asked.text` in `language`, a code such as `de`.

    It is read several times: by clocks that differ, the day before the month and behind it, and with every
    number changed by one. Only what all agree on is accepted, unless the asker settled it, and only if every
    number changed the answer: dateparser passes over what it does not know. Raises `UsageError` otherwise.
    """
    # Loaded on use: this package is slow to load.
    from dateparser.data.languages_info import language_order

    if language not in language_order:
        raise UsageError(
            f"there is no language {language!r} here: write a code such as de, es, fr, ja, pt, ru or zh"
        )
    if _SHORT_YEAR.search(asked.text):
        refuse_expression(asked.text, "its year has two digits", "the year with four")
    if (known := _agreed_readings(asked, language)) is None:
        refuse_expression(
            asked.text,
            f"it was not understood in the language {language!r}",
            "it in English, or a date such as 2030-12-31 20:15",
        )
    moved = known[1][0] - known[0][0]
    if known[0][1] not in {"day", "time"} and not re.search(r"\d", asked.text):
        refuse_expression(
            asked.text, f"it may be a whole {known[0][1]} or a day of it", "it in English, or a date"
        )
    if moved and _CLOCK.search(asked.text) and not _is_elapsed(known[0][0], asked):
        refuse_expression(
            asked.text, "its time of day was not understood", "it in English, or the time as 15:30"
        )
    return _make_reading(asked, language, known[0], moved)


def _agreed_readings(
    asked: Question, language: str
) -> tuple[tuple[datetime, str], tuple[datetime, str]] | None:
    """Return the readings by the clock and by one a minute later, on which every order agrees; `None` for a
    text that is not understood.
    """
    orders = [asked.order] if asked.order else ["DMY", "MDY"]
    pairs = [(_read_by(asked, language, order, 0), _read_by(asked, language, order, 1)) for order in orders]
    known = [(now, later) for now, later in pairs if now is not None and later is not None]
    if not known:
        return None
    moments = {now[0] for now, _ in known}
    if len(moments) > 1:
        several = " or ".join(sorted(f"{moment:%Y-%m-%d %H:%M}" for moment in moments))
        refuse_expression(
            asked.text, f"it may be {several}", "the full date, year first, or settle the order (MDY, DMY)"
        )
    order = orders[pairs.index(known[0])]
    _every_number_counts(asked, language, order, known[0][0][0])
    _on_the_preferred_side(asked, language, order, known[0][0][0])
    return known[0]


def _every_number_counts(asked: Question, language: str, order: str, moment: datetime) -> None:
    """Refuse a text that means the same with another number in it: that number was not understood."""
    for number in re.finditer(r"\d+", asked.text):
        for other in {int(number[0]) + 1, abs(int(number[0]) - 1)}:
            changed = f"{asked.text[: number.start()]}{other:0{len(number[0])}d}{asked.text[number.end() :]}"
            found = _read_by(replace(asked, text=changed), language, order, 0)
            if found is not None and found[0] == moment:
                refuse_expression(
                    asked.text,
                    f"the {number[0]} in it was not understood",
                    "it in English, or a date such as 2030-12-31 20:15",
                )


def _on_the_preferred_side(asked: Question, language: str, order: str, moment: datetime) -> None:
    """Refuse a date without its year or month that was taken from the other side: it does not move with the
    days but with the years.
    """
    days = (moment.date() - asked.today).days
    if not re.search(r"\d", asked.text) or (days >= 0 if asked.prefer == "future" else days <= 0):
        return
    tomorrow, later = (_read_by(asked, language, order, 24 * 60 * passed) for passed in (1, 366))
    if tomorrow is None or (tomorrow[0] - moment != timedelta(days=1) and later != tomorrow):
        refuse_expression(
            asked.text,
            f"{moment:%Y-%m-%d} is not on the side of the {asked.prefer}",
            "the full date, year first",
        )


def _read_by(asked: Question, language: str, order: str, shift: int) -> tuple[datetime, str] | None:
    """Return what dateparser says, in clock time, when now is `shift` minutes later than it is."""
    from dateparser.date import DateDataParser

    settings: dict[str, Any] = {
        "RELATIVE_BASE": asked.now.replace(tzinfo=None) + timedelta(minutes=shift),
        "PREFER_DATES_FROM": asked.prefer,
        "DATE_ORDER": order,
        "RETURN_TIME_AS_PERIOD": True,
        "RETURN_AS_TIMEZONE_AWARE": False,
        "STRICT_PARSING": False,
        "REQUIRE_PARTS": ["day"],
    }
    if language == "en":
        # The grammar reads distances and days relative to today.
        settings["PARSERS"] = ["absolute-time"]
    with warnings.catch_warnings():
        # It warns of its own use of the standard library.
        warnings.simplefilter("ignore")
        got = DateDataParser(languages=[language], settings=settings).get_date_data(asked.text)
    if got.date_obj is None:
        return None
    if got.date_obj.tzinfo is not None:
        refuse_expression(
            asked.text, "zones are read in English only", "the time without its zone, and the zone by itself"
        )
    return got.date_obj, got.period


def _make_reading(asked: Question, language: str, found: tuple[datetime, str], moved: timedelta) -> Reading:
    moment, period = found
    said, notes = "a time in another language", (f"read in the language {language} by dateparser",)
    # It goes with the clock: some hours or minutes from now.
    if moved and (_is_elapsed(moment, asked) or period == "time"):
        exact = asked.reference.astimezone(UTC) + (moment - asked.now.replace(tzinfo=None))
        here = exact.astimezone(asked.zone.rules)
        return time_range(here, here, said, "second", asked, *notes, read_by="dateparser")
    if _CLOCK.search(asked.text) or (period == "time" and not moved):
        here, more = at_clock(moment.date(), moment.time(), asked.zone, asked.disambiguate)
        return time_range(here, here, said, "minute", asked, *notes, *more, read_by="dateparser")
    start, end = (
        day_start(moment.date(), asked.zone),
        day_start(moment.date() + timedelta(days=1), asked.zone),
    )
    return time_range(start, end, said, "day", asked, *notes, read_by="dateparser")


def _is_elapsed(moment: datetime, asked: Question) -> bool:
    """Return whether the clock shows another time than now: hours or minutes were counted, not days."""
    return (
        moment.time().replace(microsecond=0) != asked.now.time().replace(microsecond=0)
        and moment.time() != time()
    )
