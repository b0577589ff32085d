"""Calendar dates as people write them: by number, by the name of the month, by the weekday."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date, timedelta

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.normalize import MONTH_NAMES, MONTHS, WEEKDAY_NAMES, WEEKDAYS, compiled, ordinal
from kestrel_lab.tools.timeparse.types import Question, Span, calendar_day, month_start, one_day, refuse, whole_month

Rule = Callable[["re.Match[str]", Question], Span]
DATES: list[tuple[str, Rule]] = []
"""Rules for days and months that are named by their place in the calendar."""

MONTH = rf"(?P<month>{'|'.join(sorted(MONTHS, key=len, reverse=True))})\.?"
WEEKDAY = rf"(?P<weekday>{'|'.join(sorted(WEEKDAYS, key=len, reverse=True))})\.?"
DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
YEAR = r"(?P<year>\d{4}|'?\d\d)"
_GAP = r"[\s,./-]*"
_ROW = rf"{DAY}\s*[-/]\s*(?P<last>\d{{1,2}})(?:st|nd|rd|th)?"
_WEEKDAY_FIRST = rf"(?:{WEEKDAY}[\s,]+(?:the )?)?"


def rule(table: list[tuple[str, Rule]], pattern: str) -> Callable[[Rule], Rule]:
    """Enter the decorated function into `table` for texts that match `pattern` from end to end."""

    def enter(function: Rule) -> Rule:
        table.append((pattern, function))
        return function

    return enter


def first_match(table: list[tuple[str, Rule]], text: str, asked: Question) -> Span | None:
    """What the first rule that knows `text` makes of it."""
    for pattern, function in table:
        if (found := compiled(pattern).fullmatch(text)) is not None:
            return function(found, asked)
    return None


def full_year(written: str, asked: Question) -> int:
    """A year as a number; one of two digits is refused unless the asker has settled how it is meant: 69 to 99 are 19xx."""
    number = int(written.lstrip("'"))
    if len(written.lstrip("'")) == 4:
        return number
    if not asked.short_years:
        refuse(
            asked.text,
            f"the year {written} has two digits",
            f"the year with four, such as {2000 + number} (or allow short years: 69–99 are 19xx)",
        )
    return number + (1900 if number >= 69 else 2000)


def with_weekday(span: Span, found: re.Match[str], asked: Question) -> Span:
    """`span`, if it falls on the weekday that was written with it."""
    name = found.groupdict().get("weekday")
    if name and span.first.weekday() != WEEKDAYS[name]:
        refuse(
            asked.text, f"{span.first} is a {WEEKDAY_NAMES[span.first.weekday()]}", f"either the date or the weekday, such as {span.first}"
        )
    return span


def month_day(month: int, day: int, asked: Question) -> Span:
    """A day of a month in the nearest year on the preferred side; today counts."""
    if not 1 <= month <= 12 or not _exists(2000, month, day):  # 2000 had a 29 February
        msg = f"no year has a {day} {MONTH_NAMES[month - 1]}" if 1 <= month <= 12 else f"there is no month {month}"
        raise UsageError(msg)
    years = range(asked.today.year, asked.today.year + 9) if asked.prefer == "future" else range(asked.today.year, asked.today.year - 9, -1)
    known = [date(year, month, day) for year in years if _exists(year, month, day)]
    fitting = [found for found in known if (found >= asked.today if asked.prefer == "future" else found <= asked.today)]
    side = "coming" if asked.prefer == "future" else "last"
    name = f"{day} {MONTH_NAMES[month - 1]}"
    return one_day(fitting[0], f"the {side} {name}", f"no year was given: the {side} {name} was taken")


def _exists(year: int, month: int, day: int) -> bool:
    return 1 <= year <= 9999 and 1 <= day <= ((month_start(year, month + 1) - timedelta(days=1)).day if year < 9999 else 31)


@rule(DATES, rf"{_WEEKDAY_FIRST}(?P<year>\d{{4}})(?P<gap>[-/.])(?P<month>\d{{1,2}})(?P=gap)(?P<day>\d{{1,2}})")
@rule(DATES, r"(?P<year>[12]\d{3})(?P<month>\d\d)(?P<day>\d\d)")
def _year_first(found: re.Match[str], asked: Question) -> Span:
    day = calendar_day(int(found["year"]), int(found["month"]), int(found["day"]))
    return with_weekday(one_day(day, "a date, year first", relative=False), found, asked)


@rule(DATES, rf"{_WEEKDAY_FIRST}(?P<a>\d{{1,2}})\s?(?P<gap>[-/.])\s?(?P<b>\d{{1,2}})\s?(?:(?P=gap)|,)\s?{YEAR}")
def _numbers(found: re.Match[str], asked: Question) -> Span:
    year = full_year(found["year"], asked)
    month, day, notes = _in_order(int(found["a"]), int(found["b"]), found["gap"], asked)
    return with_weekday(one_day(calendar_day(year, month, day), "a date in numbers", *notes, relative=False), found, asked)


@rule(DATES, rf"{_WEEKDAY_FIRST}(?P<a>\d{{1,2}})(?P<gap>[-/])(?P<b>\d{{1,2}})")
def _numbers_without_year(found: re.Match[str], asked: Question) -> Span:
    month, day, notes = _in_order(int(found["a"]), int(found["b"]), found["gap"], asked)
    span = month_day(month, day, asked)
    return with_weekday(replace(span, notes=(*notes, *span.notes)), found, asked)


def _in_order(a: int, b: int, gap: str, asked: Question) -> tuple[int, int, tuple[str, ...]]:
    """Month and day of two numbers, of which only one may be the month unless an order was settled."""
    if 0 in (a, b):
        msg = f"no month and no day is numbered 0: {asked.text!r}"
        raise UsageError(msg)
    if a == b:
        return a, b, ()
    if asked.order is not None:
        month, day = (a, b) if asked.order == "MDY" else (b, a)
        if month > 12:
            refuse(asked.text, f"{month} is no month, and the order {asked.order} was asked for", "the date year first, such as 2030-12-31")
        return month, day, (f"read in the order {asked.order} that was asked for",)
    if a <= 12 and b <= 12:
        refuse(
            asked.text,
            f"{a}{gap}{b} is {a} {MONTH_NAMES[b - 1]} or {b} {MONTH_NAMES[a - 1]}",
            "the date year first, such as 2030-12-31, or the month by name, or say the order: MDY or DMY",
        )
    month, day = (a, b) if b > 12 else (b, a)
    if month > 12:
        msg = f"there is no month {month} in {asked.text!r}"
        raise UsageError(msg)
    return month, day, ()


@rule(DATES, rf"{_WEEKDAY_FIRST}{MONTH}{_GAP}(?:the )?{_ROW}(?:[\s,]+(?:of )?(?P<year>\d{{4}}|'\d\d))?")
@rule(DATES, rf"{_WEEKDAY_FIRST}(?:the )?{_ROW} (?:of )?{MONTH}(?:[\s,]+(?P<year>\d{{4}}|'?\d\d))?")
def _row_of_days(found: re.Match[str], asked: Question) -> Span:
    first, last, month = int(found["day"]), int(found["last"]), MONTHS[found["month"]]
    if found["year"] or len(found["last"]) == 1 or first < last <= 31:
        row = f"the days {first} to {last} {MONTH_NAMES[month - 1]}"
        refuse(asked.text, f"it may be {row}", f"one day, such as {first} {MONTH_NAMES[month - 1]}, or the year with four digits")
    return with_weekday(one_day(calendar_day(full_year(found["last"], asked), month, first), "a date", relative=False), found, asked)


@rule(DATES, rf"{_WEEKDAY_FIRST}{MONTH}{_GAP}(?:the )?{DAY}(?:[\s,./-]+(?:of )?(?P<year>\d{{4}})|[\s,/-]+(?P<short>'?\d\d))?")
@rule(DATES, rf"{_WEEKDAY_FIRST}(?:the )?{DAY}{_GAP}(?:of )?{MONTH}(?:{_GAP}(?P<year>\d{{4}})|[\s,./-]+(?P<short>'?\d\d))?")
@rule(DATES, rf"(?P<year>\d{{4}}){_GAP}{MONTH}{_GAP}(?:the )?{DAY}")
def _named_month(found: re.Match[str], asked: Question) -> Span:
    groups = found.groupdict()
    month, day = MONTHS[found["month"]], int(found["day"])
    written = groups["year"] or groups.get("short")
    if written:
        return with_weekday(one_day(calendar_day(full_year(written, asked), month, day), "a date", relative=False), found, asked)
    if name := groups.get("weekday"):
        around = [date(year, month, day) for year in range(asked.today.year - 6, asked.today.year + 7) if _exists(year, month, day)]
        return _by_weekday(around, WEEKDAYS[name], f"{WEEKDAY_NAMES[WEEKDAYS[name]]} {day} {MONTH_NAMES[month - 1]}", asked)
    return month_day(month, day, asked)


def _by_weekday(dates: Iterable[date], weekday: int, name: str, asked: Question) -> Span:
    """The nearest of `dates` on that weekday that lies on the preferred side; today counts."""
    fitting = sorted((day for day in dates if day.weekday() == weekday), key=lambda day: abs(day - asked.today))
    wanted = [day for day in fitting if (day >= asked.today if asked.prefer == "future" else day <= asked.today)]
    side = "coming" if asked.prefer == "future" else "last"
    if not wanted:
        why = f"the nearest {name} is {fitting[0]}, which is not the {side} one" if fitting else f"no {name} is near"
        refuse(asked.text, why, "the full date")
    return one_day(wanted[0], f"the {side} {name}", f"the date was not given in full: the {side} {name} was taken")


@rule(DATES, rf"{WEEKDAY},? the (?P<day>\d{{1,2}})(?:st|nd|rd|th)?")
def _weekday_and_number(found: re.Match[str], asked: Question) -> Span:
    weekday, day = WEEKDAYS[found["weekday"]], int(found["day"])
    starts = [month_start(asked.today.year, asked.today.month + step) for step in range(-14, 15)]
    known = [date(start.year, start.month, day) for start in starts if day and _exists(start.year, start.month, day)]
    return _by_weekday(known, weekday, f"{WEEKDAY_NAMES[weekday]} the {ordinal(day)}", asked)


@rule(DATES, r"(?:the )?(?P<day>\d{1,2})(?:st|nd|rd|th)")
@rule(DATES, r"the (?P<day>\d{1,2})")
def _number_of_a_day(found: re.Match[str], asked: Question) -> Span:
    day = int(found["day"])
    if not 1 <= day <= 31:
        msg = f"no month has a day {day}"
        raise UsageError(msg)
    if day == asked.today.day:
        refuse(asked.text, f"today is the {ordinal(day)}, and another month's may be meant", "today, or a full date")
    step = 1 if asked.prefer == "future" else -1
    months = [month_start(asked.today.year, asked.today.month + step * count) for count in range(3)]
    known = [date(month.year, month.month, day) for month in months if _exists(month.year, month.month, day)]
    fitting = [one for one in known if (one > asked.today if step > 0 else one < asked.today)]
    side = "coming" if step > 0 else "last"
    if not _exists(asked.today.year, asked.today.month, day):
        refuse(asked.text, f"{MONTH_NAMES[asked.today.month - 1]} has no {ordinal(day)}", "a full date")
    return one_day(fitting[0], f"the {side} {ordinal(day)}", f"no month was given: the {side} {ordinal(day)} was taken")


@rule(DATES, rf"{MONTH}(?: of)?[\s,/-]*(?P<year>\d{{4}})")
@rule(DATES, rf"(?P<year>\d{{4}})[\s,/-]*{MONTH}")
def _month_of_year(found: re.Match[str], asked: Question) -> Span:
    return whole_month(int(found["year"]), MONTHS[found["month"]], "a whole month", relative=False)


@rule(DATES, r"(?P<year>\d{4})-(?P<month>0[1-9]|1[0-2])")
def _iso_month(found: re.Match[str], asked: Question) -> Span:
    return whole_month(int(found["year"]), int(found["month"]), "a whole month", relative=False)


@rule(DATES, r"(?P<year>\d{4})-?w(?P<week>\d\d)(?:-?(?P<weekday>[1-7]))?")
def _iso_week(found: re.Match[str], asked: Question) -> Span:
    year, week = int(found["year"]), int(found["week"])
    try:
        first = date.fromisocalendar(year, week, int(found["weekday"] or 1))
    except ValueError:
        msg = f"{year} has no ISO week {week}"
        raise UsageError(msg) from None
    if found["weekday"]:
        return one_day(first, "a day of an ISO week", relative=False)
    return Span(first=first, end=first + timedelta(days=7), precision="week", said="an ISO week", relative=False)


@rule(DATES, r"(?:the year )?(?P<year>(?:19|20|21)\d\d)")
def _year(found: re.Match[str], asked: Question) -> Span:
    year = int(found["year"])
    return Span(first=date(year, 1, 1), end=date(year + 1, 1, 1), precision="year", said="a whole year", relative=False)
