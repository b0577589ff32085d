"""Days and periods in English: calendar dates, weekdays, tomorrow, next month, the second Monday of May, three days from Friday."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import date, timedelta

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.durations import Offset, move_day, read_offset, vague
from kestrel_lab.tools.timeparse.normalize import MONTH_NAMES, MONTHS, WEEKDAY_NAMES, WEEKDAYS, compiled, ordinal
from kestrel_lab.tools.timeparse.types import Question, Span, calendar_day, month_start, one_day, refuse, whole_months

Rule = Callable[["re.Match[str]", Question], Span]
_RULES: list[tuple[str, Rule]] = []

_MONTH = rf"(?P<month>{'|'.join(sorted(MONTHS, key=len, reverse=True))})\.?"
_WEEKDAY = rf"(?P<weekday>{'|'.join(sorted(WEEKDAYS, key=len, reverse=True))})\.?"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_GAP = r"[\s,./-]*"
_ROW = rf"{_DAY}\s*[-/]\s*(?P<last>\d{{1,2}})(?:st|nd|rd|th)?"
_WEEKDAY_FIRST = rf"(?:{_WEEKDAY}[\s,]+(?:the )?)?"
_NAMED = {
    **dict.fromkeys(("today", "this day"), 0),
    **dict.fromkeys(("tomorrow", "tmr", "next day", "the next day"), 1),
    **dict.fromkeys(("day after tomorrow", "the day after tomorrow"), 2),
    **dict.fromkeys(("yesterday", "the previous day"), -1),
    **dict.fromkeys(("day before yesterday", "the day before yesterday"), -2),
}
_SIDE = {"this": 0, "current": 0, "next": 1, "last": -1, "previous": -1}
_WHICH = rf"(?:the )?(?P<which>{'|'.join(_SIDE)})"
_OF_MONTH = rf"(?:of|in) (?:{_WHICH} month|(?:the )?{_MONTH}(?:,? (?P<year>\d{{4}}))?)"


def day_or_period(text: str, asked: Question) -> Span | None:
    """Return the days that `text`, in canonical spelling, names; `None` if no rule knows it."""
    for pattern, function in _RULES:
        if (found := compiled(pattern).fullmatch(text)) is not None:
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


def _existing(days: Iterable[tuple[int, int, int]]) -> list[date]:
    """Return those of `days`, each year, month and day, that the calendar has."""
    found = []
    for year, month, day in days:
        with suppress(ValueError):
            found.append(date(year, month, day))
    return found


def _nearest(days: Iterable[date], name: str, missing: str, asked: Question) -> Span:
    """Return the nearest of `days` on the preferred side; today counts. `missing` is what the text left out."""
    near = sorted(days, key=lambda day: abs(day - asked.today))
    fitting = [day for day in near if asked.fits(day)]
    if not fitting:
        why = f"the nearest {name} is {near[0]}, which is not the {asked.side} one" if near else f"no {name} is near"
        refuse(asked.text, why, "the full date")
    return one_day(fitting[0], f"the {asked.side} {name}", f"{missing}: the {asked.side} {name} was taken")


# Days and periods relative to today.


@_rule("|".join(_NAMED))
def _near(found: re.Match[str], asked: Question) -> Span:
    return one_day(asked.today + timedelta(days=_NAMED[found[0]]), found[0])


@_rule(rf"(?:(?:the )?(?P<near>coming|upcoming|most recent) )?{_WEEKDAY}")
def _bare_weekday(found: re.Match[str], asked: Question) -> Span:
    weekday, near, today = WEEKDAYS[found["weekday"]], found["near"] or "", asked.today
    name, ahead = WEEKDAY_NAMES[weekday], (weekday - today.weekday()) % 7
    if not near and ahead == 0:
        refuse(asked.text, f"today is a {name}", f"today, or a date: {today + timedelta(days=7)} or {today - timedelta(days=7)}")
    future = "coming" in near if near else asked.prefer == "future"
    side = "coming" if future else "last"
    note = () if near else (f"which {name} was not said: the {side} one was taken",)
    return one_day(today + timedelta(days=(ahead or 7) if future else (ahead or 7) - 7 or -7), f"the {side} {name}", *note)


@_rule(rf"(?:the )?(?P<which>this|next|last|previous) {_WEEKDAY}")
@_rule(rf"{_WEEKDAY},? (?:of |in )?(?P<week>this|next|last) week")
@_rule(rf"(?P<week>this|next|last) week,? (?:on )?{_WEEKDAY}")
def _weekday_of_week(found: re.Match[str], asked: Question) -> Span:
    weekday, which, today = WEEKDAYS[found["weekday"]], found.groupdict().get("which"), asked.today
    step = _SIDE[which or found["week"]]
    name = WEEKDAY_NAMES[weekday]
    day, what = _monday(today) + timedelta(days=7 * step + weekday), f"{name} of {('this', 'next', 'last')[step]} week"
    ahead = (weekday - today.weekday()) % 7 or 7
    nearest = today + timedelta(days=ahead if step >= 0 else ahead - 7 or -7)
    if which is None or day == nearest or (step == 0 and day == today):
        return one_day(day, what)
    other = "coming" if step >= 0 else "most recent"
    return one_day(day, what, f"read as the {what}, weeks from Monday; the {other} {name} is {nearest}")


@_rule(rf"(?:the )?(?P<count>\d)(?:st|nd|rd|th) {_WEEKDAY}(?: {_OF_MONTH})?")
@_rule(rf"(?:the )?last {_WEEKDAY} {_OF_MONTH}")
def _counted_weekday(found: re.Match[str], asked: Question) -> Span:
    first, notes = _month_meant(found, asked)
    weekday, count = WEEKDAYS[found["weekday"]], int(found.groupdict().get("count") or -1)
    days = _existing((first.year, first.month, day) for day in range(1, 32))
    fitting = [day for day in days if day.weekday() == weekday]
    name, month = WEEKDAY_NAMES[weekday], f"{MONTH_NAMES[first.month - 1]} {first.year}"
    if count < 0:
        return one_day(fitting[-1], f"the last {name} of {month}", *notes)
    if not 1 <= count <= len(fitting):
        refuse(asked.text, f"{month} has {len(fitting)} {name}s", f"the last {name} of {MONTH_NAMES[first.month - 1]}, or a date")
    return one_day(fitting[count - 1], f"the {ordinal(count)} {name} of {month}", *notes)


@_rule(rf"(?:the )?{_DAY}(?: day)? of {_WHICH} month")
@_rule(rf"{_WHICH} month,? (?:on )?(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)")
def _number_in_month(found: re.Match[str], asked: Question) -> Span:
    first, _ = _month_meant(found, asked)
    return one_day(calendar_day(first.year, first.month, int(found["day"])), f"a day of {MONTH_NAMES[first.month - 1]} {first.year}")


def _month_meant(found: re.Match[str], asked: Question) -> tuple[date, tuple[str, ...]]:
    """Return the first day of the month that a day is counted in."""
    groups = found.groupdict()
    if groups.get("year"):
        return date(int(found["year"]), MONTHS[found["month"]], 1), ()
    if name := groups.get("month"):
        period = _period(name, asked)
        return period.first, period.notes
    if groups.get("which"):
        return month_start(asked.today.year, asked.today.month + _SIDE[found["which"]]), ()
    return asked.today.replace(day=1), ("no month was given: this month was taken",)


@_rule(r"(?:the )?(?P<end>1st|last) day of (?P<period>.+)")
def _edge_of_period(found: re.Match[str], asked: Question) -> Span:
    period = _period(found["period"], asked)
    day, word = (period.first, "first") if found["end"] == "1st" else (period.end - timedelta(days=1), "last")
    return one_day(day, f"the {word} day of {period.said}", *period.notes, relative=period.relative)


def _period(text: str, asked: Question) -> Span:
    period = day_or_period(text, asked)
    if period is None or period.is_day:
        refuse(asked.text, f"{text!r} is not a week, month, quarter or year that is known here", "this month, next year, March 2030 …")
    return period


@_rule(rf"(?:{_WHICH}|the) (?P<unit>week|month|quarter|year|weekend)")
def _by_period(found: re.Match[str], asked: Question) -> Span:
    step, unit, today = _SIDE[found["which"] or "this"], found["unit"], asked.today
    said = f"{('this', 'next', 'last')[step]} {unit}"
    if months := {"month": 1, "quarter": 3, "year": 12}.get(unit):
        return whole_months(today.year, (today.month - 1) // months * months + 1 + months * step, months, said)
    first = _monday(today) + timedelta(days=7 * step)
    if unit == "week":
        return Span(first=first, end=first + timedelta(days=7), precision=unit, said=f"{said}, from Monday")
    said = f"Saturday and Sunday of {said.removesuffix('end')}"
    return Span(first=first + timedelta(days=5), end=first + timedelta(days=7), precision=unit, said=said)


@_rule(rf"(?P<which>this|next|last) {_MONTH}")
def _month_by_side(found: re.Match[str], asked: Question) -> Span:
    month, which, today = MONTHS[found["month"]], found["which"], asked.today
    name = MONTH_NAMES[month - 1]
    if which == "this":
        return whole_months(today.year, month, 1, f"{name} of this year")
    year = today.year + (month <= today.month) if which == "next" else today.year - (month >= today.month)
    by_year = today.year + _SIDE[which]
    if abs((year - today.year) * 12 + month - today.month) < 6 and by_year != year:
        refuse(asked.text, f"it may be {name} {year} or {name} {by_year}", "the month with its year")
    return whole_months(year, month, 1, f"the {'coming' if which == 'next' else 'last'} {name}")


@_rule(_MONTH)
def _bare_month(found: re.Match[str], asked: Question) -> Span:
    month, today = MONTHS[found["month"]], asked.today
    name = MONTH_NAMES[month - 1]
    if month == today.month:
        return whole_months(today.year, month, 1, f"{name} of this year", "no year was given: this month was taken")
    year = today.year + ((month < today.month) if asked.prefer == "future" else -(month > today.month))
    return whole_months(year, month, 1, f"the {asked.side} {name}", f"no year was given: the {asked.side} {name} was taken")


@_rule(r"q(?P<quarter>[1-4])(?:[\s,/-]*(?P<year>\d{4}))?")
def _quarter(found: re.Match[str], asked: Question) -> Span:
    year, notes = int(found["year"] or asked.today.year), () if found["year"] else ("no year was given: this year's was taken",)
    return whole_months(year, int(found["quarter"]) * 3 - 2, 3, "a calendar quarter", *notes, relative=not found["year"])


# Dates by their place in the calendar.


@_rule(rf"{_WEEKDAY_FIRST}(?P<year>\d{{4}})(?P<gap>[-/.])(?P<month>\d{{1,2}})(?P=gap)(?P<day>\d{{1,2}})")
@_rule(r"(?P<year>[12]\d{3})(?P<month>\d\d)(?P<day>\d\d)")
def _year_first(found: re.Match[str], asked: Question) -> Span:
    day = calendar_day(int(found["year"]), int(found["month"]), int(found["day"]))
    return _with_weekday(one_day(day, "a date, year first", relative=False), found, asked)


@_rule(rf"{_WEEKDAY_FIRST}(?P<a>\d{{1,2}})\s?(?P<gap>[-/.])\s?(?P<b>\d{{1,2}})\s?(?:(?P=gap)|,)\s?(?P<year>\d{{4}}|'?\d\d)")
@_rule(rf"{_WEEKDAY_FIRST}(?P<a>\d{{1,2}})(?P<gap>[-/])(?P<b>\d{{1,2}})")
def _numbers(found: re.Match[str], asked: Question) -> Span:
    written = found.groupdict().get("year")
    year = _full_year(written, asked) if written else None
    month, day, notes = _in_order(int(found["a"]), int(found["b"]), found["gap"], asked)
    if year is not None:
        return _with_weekday(one_day(calendar_day(year, month, day), "a date in numbers", *notes, relative=False), found, asked)
    span = _month_day(month, day, asked)
    return _with_weekday(replace(span, notes=(*notes, *span.notes)), found, asked)


def _full_year(written: str, asked: Question) -> int:
    """Return a year as a number; one of two digits is refused unless short years are allowed: 69 to 99 are 19xx."""
    digits = written.lstrip("'")
    if len(digits) == 4:
        return int(digits)
    if not asked.short_years:
        instead = f"the year with four, such as {2000 + int(digits)} (or allow short years: 69–99 are 19xx)"
        refuse(asked.text, f"the year {written} has two digits", instead)
    return int(digits) + (1900 if int(digits) >= 69 else 2000)


def _with_weekday(span: Span, found: re.Match[str], asked: Question) -> Span:
    """Return `span` if it falls on the weekday that is written with it; refuse it otherwise."""
    name = found.groupdict().get("weekday")
    if name and span.first.weekday() != WEEKDAYS[name]:
        actual = WEEKDAY_NAMES[span.first.weekday()]
        refuse(asked.text, f"{span.first} is a {actual}", f"either the date or the weekday, such as {span.first}")
    return span


def _month_day(month: int, day: int, asked: Question) -> Span:
    """Return a day of a month in the nearest year on the preferred side."""
    if not 1 <= month <= 12 or not _existing([(2000, month, day)]):  # 2000 had a 29 February
        raise UsageError(f"no year has a {day} {MONTH_NAMES[month - 1]}" if 1 <= month <= 12 else f"there is no month {month}")
    years = range(asked.today.year - 8, asked.today.year + 9)
    return _nearest(_existing((year, month, day) for year in years), f"{day} {MONTH_NAMES[month - 1]}", "no year was given", asked)


def _in_order(a: int, b: int, gap: str, asked: Question) -> tuple[int, int, tuple[str, ...]]:
    """Return month and day of two numbers, of which only one may be the month unless the caller gave an order."""
    if 0 in (a, b):
        raise UsageError(f"no month and no day is numbered 0: {asked.text!r}")
    if a == b:
        return a, b, ()
    if asked.order is not None:
        month, day = (a, b) if asked.order == "MDY" else (b, a)
        if month > 12:
            refuse(
                asked.text, f"{month} is not a month, and the order {asked.order} was asked for", "the date year first, such as 2030-12-31"
            )
        return month, day, (f"read in the order {asked.order} that was asked for",)
    if a <= 12 and b <= 12:
        instead = "the date year first, such as 2030-12-31, or the month by name, or say the order: MDY or DMY"
        refuse(asked.text, f"{a}{gap}{b} is {a} {MONTH_NAMES[b - 1]} or {b} {MONTH_NAMES[a - 1]}", instead)
    month, day = (a, b) if b > 12 else (b, a)
    if month > 12:
        raise UsageError(f"there is no month {month} in {asked.text!r}")
    return month, day, ()


@_rule(rf"{_WEEKDAY_FIRST}{_MONTH}{_GAP}(?:the )?{_ROW}(?:[\s,]+(?:of )?(?P<year>\d{{4}}|'\d\d))?")
@_rule(rf"{_WEEKDAY_FIRST}(?:the )?{_ROW} (?:of )?{_MONTH}(?:[\s,]+(?P<year>\d{{4}}|'?\d\d))?")
def _row_of_days(found: re.Match[str], asked: Question) -> Span:
    first, last, month = int(found["day"]), int(found["last"]), MONTHS[found["month"]]
    if found["year"] or len(found["last"]) == 1 or first < last <= 31:
        row = f"the days {first} to {last} {MONTH_NAMES[month - 1]}"
        refuse(asked.text, f"it may be {row}", f"one day, such as {first} {MONTH_NAMES[month - 1]}, or the year with four digits")
    day = calendar_day(_full_year(found["last"], asked), month, first)
    return _with_weekday(one_day(day, "a date", relative=False), found, asked)


@_rule(rf"{_WEEKDAY_FIRST}{_MONTH}{_GAP}(?:the )?{_DAY}(?:[\s,./-]+(?:of )?(?P<year>\d{{4}})|[\s,/-]+(?P<short>'?\d\d))?")
@_rule(rf"{_WEEKDAY_FIRST}(?:the )?{_DAY}{_GAP}(?:of )?{_MONTH}(?:{_GAP}(?P<year>\d{{4}})|[\s,./-]+(?P<short>'?\d\d))?")
@_rule(rf"(?P<year>\d{{4}}){_GAP}{_MONTH}{_GAP}(?:the )?{_DAY}")
def _named_month(found: re.Match[str], asked: Question) -> Span:
    groups = found.groupdict()
    month, day = MONTHS[found["month"]], int(found["day"])
    if written := groups["year"] or groups.get("short"):
        exact = calendar_day(_full_year(written, asked), month, day)
        return _with_weekday(one_day(exact, "a date", relative=False), found, asked)
    if groups.get("weekday"):
        years = range(asked.today.year - 6, asked.today.year + 7)
        return _on_weekday(_existing((year, month, day) for year in years), found, f"{day} {MONTH_NAMES[month - 1]}", asked)
    return _month_day(month, day, asked)


@_rule(rf"{_WEEKDAY},? the {_DAY}")
def _weekday_and_number(found: re.Match[str], asked: Question) -> Span:
    starts = [month_start(asked.today.year, asked.today.month + step) for step in range(-14, 15)]
    known = _existing((start.year, start.month, int(found["day"])) for start in starts)
    return _on_weekday(known, found, f"the {ordinal(int(found['day']))}", asked)


def _on_weekday(days: Iterable[date], found: re.Match[str], name: str, asked: Question) -> Span:
    weekday = WEEKDAYS[found["weekday"]]
    fitting = [day for day in days if day.weekday() == weekday]
    return _nearest(fitting, f"{WEEKDAY_NAMES[weekday]} {name}", "the date was not given in full", asked)


@_rule(r"(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)")
@_rule(r"the (?P<day>\d{1,2})")
def _number_of_a_day(found: re.Match[str], asked: Question) -> Span:
    day, today = int(found["day"]), asked.today
    if not 1 <= day <= 31:
        raise UsageError(f"no month has a day {day}")
    if day == today.day:
        refuse(asked.text, f"today is the {ordinal(day)}, and another month's may be meant", "today, or a full date")
    if not _existing([(today.year, today.month, day)]):
        refuse(asked.text, f"{MONTH_NAMES[today.month - 1]} has no {ordinal(day)}", "a full date")
    step = 1 if asked.prefer == "future" else -1
    months = [month_start(today.year, today.month + step * count) for count in range(3)]
    return _nearest(_existing((month.year, month.month, day) for month in months), ordinal(day), "no month was given", asked)


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
    return Span(first=first, end=first + timedelta(days=7), precision="week", said="an ISO week", relative=False)


@_rule(r"(?:the year )?(?P<year>(?:19|20|21)\d\d)")
def _year(found: re.Match[str], asked: Question) -> Span:
    return whole_months(int(found["year"]), 1, 12, "a whole year", relative=False)


# Distances from a day: in 3 weeks, two days ago, a week from Friday, two Mondays later.

_FORWARD = re.compile(
    r"in (?P<far>.+?)(?:'?s?'? time| from now)?|(?P<behind>.+?) (?:from (?:now|today)|later|hence|away|after (?:now|today))"
)
_BACKWARD = re.compile(r"(?P<far>.+?) (?:ago|earlier|back|before (?:now|today))")
_SIGNED = re.compile(r"[+-].+")
_ANCHORED = re.compile(r"(?P<far>.+?) (?P<side>from|after|before) (?P<anchor>.+)")
_WEEKDAYS_ON = rf"(?:in )?(?P<count>\d{{1,2}}) (?P<weekday>{'|'.join(map(str.lower, WEEKDAY_NAMES))})s? (?P<side>later|from now|ago|hence)"


def read_shift(text: str, asked: Question) -> Offset | None:
    """Return the distance from the reference that `text` names; raises `UsageError` for one without a number or a direction."""
    sign = 1
    if (forward := _FORWARD.fullmatch(text)) is not None:
        far = forward["far"] or forward["behind"]
    elif (backward := _BACKWARD.fullmatch(text)) is not None:
        far, sign = backward["far"], -1
    elif _SIGNED.fullmatch(text):
        far = text
    else:
        if read_offset(text) is not None:
            refuse(asked.text, "it has no direction", f"'in {text}' or '{text} ago'")
        return None
    far = far.removeprefix("in ")
    offset = read_offset(far)
    if offset is None:
        if (word := vague(far)) and read_offset(far.replace(word, "2", 1).removeprefix("a ")) is not None:
            refuse(asked.text, f"{word!r} is not a number", f"how many, such as '{text.replace(f'a {word}', word).replace(word, '3', 1)}'")
        return None
    if not _SIGNED.fullmatch(text) and re.search(r"[+-]", far):
        refuse(asked.text, "it has a sign and a direction", f"'+…' or '-…' alone, or '{'in …' if sign > 0 else '… ago'} without a sign")
    return offset if sign > 0 else -offset


def shifted_day(text: str, asked: Question) -> Span | None:
    """Return the day at a distance in whole days from today or from another day."""
    if (counted := compiled(_WEEKDAYS_ON).fullmatch(text)) is not None:
        return _weekdays_on(counted, asked)
    if (offset := read_shift(text, asked)) is not None:
        if not offset.whole_days:
            return None
        day, notes = move_day(asked.today, offset)
        return one_day(day, f"{offset.said} from {asked.today}", *notes)
    if (anchored := _ANCHORED.fullmatch(text)) is None:
        return None
    offset, anchor = read_offset(anchored["far"]), day_or_period(anchored["anchor"].removeprefix("the day of "), asked)
    if offset is None or anchor is None or not anchor.is_day or not offset.whole_days:
        return None
    back = anchored["side"] == "before"
    day, notes = move_day(anchor.first, -offset if back else offset)
    said = f"{offset.said} {'before' if back else 'after'} {anchor.first}, {anchor.said}"
    return one_day(day, said, *anchor.notes, *notes, relative=anchor.relative)


def _weekdays_on(found: re.Match[str], asked: Question) -> Span:
    """Return the second Monday from now: today does not count."""
    weekday, count, back = WEEKDAYS[found["weekday"]], int(found["count"]), found["side"] == "ago"
    if count == 0:
        refuse(asked.text, "zero is not a position", "a number from 1")
    far = ((asked.today.weekday() - weekday if back else weekday - asked.today.weekday()) % 7 or 7) + 7 * (count - 1)
    said = f"the {WEEKDAY_NAMES[weekday]} number {count} {'before' if back else 'after'} today, which does not count"
    return one_day(asked.today + timedelta(days=-far if back else far), said)
