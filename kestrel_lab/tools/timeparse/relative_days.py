"""Days and periods told from today: tomorrow, next Friday, the second Monday of next month, last quarter."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date, timedelta

from kestrel_lab.tools.timeparse.dates import DATES, MONTH, WEEKDAY, Rule, first_match, rule
from kestrel_lab.tools.timeparse.durations import Offset, move_day, read_offset, vague
from kestrel_lab.tools.timeparse.normalize import MONTH_NAMES, MONTHS, WEEKDAY_NAMES, WEEKDAYS, compiled, ordinal
from kestrel_lab.tools.timeparse.types import Question, Span, calendar_day, month_start, one_day, refuse, whole_month

DAYS: list[tuple[str, Rule]] = []
"""Rules for days and periods that are told from the reference."""

_NAMED = {
    "today": 0,
    "this day": 0,
    "tomorrow": 1,
    "tmr": 1,
    "next day": 1,
    "the next day": 1,
    "day after tomorrow": 2,
    "the day after tomorrow": 2,
    "yesterday": -1,
    "the previous day": -1,
    "day before yesterday": -2,
    "the day before yesterday": -2,
}
_SIDE = {
    "this": 0,
    "the current": 0,
    "current": 0,
    "next": 1,
    "the next": 1,
    "last": -1,
    "the last": -1,
    "previous": -1,
    "the previous": -1,
}
_WHICH = rf"(?P<which>{'|'.join(sorted(_SIDE, key=len, reverse=True))})"
_UNIT = r"(?P<unit>week|month|quarter|year|weekend)"


def day_or_period(text: str, asked: Question) -> Span | None:
    """The days that `text`, in canonical spelling, names; `None` if it is not of that kind."""
    return first_match(DAYS, text, asked) or first_match(DATES, text, asked)


def monday(day: date) -> date:
    """The first day of the week of `day`."""
    return day - timedelta(days=day.weekday())


@rule(DAYS, "|".join(_NAMED))
def _near(found: re.Match[str], asked: Question) -> Span:
    return one_day(asked.today + timedelta(days=_NAMED[found[0]]), found[0])


@rule(DAYS, WEEKDAY)
@rule(DAYS, rf"(?P<near>the coming|coming|the upcoming|upcoming|the most recent|most recent) {WEEKDAY}")
def _bare_weekday(found: re.Match[str], asked: Question) -> Span:
    weekday, near = WEEKDAYS[found["weekday"]], found.groupdict().get("near") or ""
    name, ahead = WEEKDAY_NAMES[weekday], (weekday - asked.today.weekday()) % 7
    if not near and ahead == 0:
        refuse(
            asked.text, f"today is a {name}", f"today, or a date: {asked.today + timedelta(days=7)} or {asked.today - timedelta(days=7)}"
        )
    future = "coming" in near if near else asked.prefer == "future"
    day = asked.today + timedelta(days=(ahead or 7) if future else -((-ahead) % 7 or 7))
    side = "coming" if future else "last"
    note = () if near else (f"which {name} was not said: the {side} one was taken",)
    return one_day(day, f"the {side} {name}", *note)


@rule(DAYS, rf"(?P<which>this|next|last|the last|the next|previous|the previous) {WEEKDAY}")
def _weekday_by_week(found: re.Match[str], asked: Question) -> Span:
    weekday, step = WEEKDAYS[found["weekday"]], _SIDE[found["which"]]
    name, week = WEEKDAY_NAMES[weekday], found["which"].removeprefix("the ")
    day = monday(asked.today) + timedelta(days=7 * step + weekday)
    ahead = (weekday - asked.today.weekday()) % 7
    nearest = asked.today + timedelta(days=(ahead or 7) if step >= 0 else -((-ahead) % 7 or 7))
    if step == 0 and day == asked.today:
        nearest = day
    what = f"{name} of {week if week != 'previous' else 'last'} week"
    if day == nearest:
        return one_day(day, what)
    other = "coming" if step >= 0 else "most recent"
    return one_day(day, what, f"read as the {what}, weeks from Monday; the {other} {name} is {nearest}")


@rule(DAYS, rf"{WEEKDAY},? (?:of |in )?(?P<which>this|next|last) week")
@rule(DAYS, rf"(?P<which>this|next|last) week,? (?:on )?{WEEKDAY}")
def _weekday_of_week(found: re.Match[str], asked: Question) -> Span:
    weekday, which = WEEKDAYS[found["weekday"]], found["which"]
    return one_day(monday(asked.today) + timedelta(days=7 * _SIDE[which] + weekday), f"{WEEKDAY_NAMES[weekday]} of {which} week")


@rule(DAYS, rf"(?:the )?(?P<count>\d)(?:st|nd|rd|th) {WEEKDAY}(?: (?:of|in) (?:{_WHICH} month|(?:the )?{MONTH}(?:,? (?P<year>\d{{4}}))?))?")
@rule(DAYS, rf"(?:the )?(?P<final>last) {WEEKDAY} (?:of|in) (?:{_WHICH} month|(?:the )?{MONTH}(?:,? (?P<year>\d{{4}}))?)")
def _counted_weekday(found: re.Match[str], asked: Question) -> Span:
    groups = found.groupdict()
    first, notes = _month_meant(found, asked)
    weekday = WEEKDAYS[found["weekday"]]
    fitting = [day for day in _days_of(first) if day.weekday() == weekday]
    name, month = WEEKDAY_NAMES[weekday], f"{MONTH_NAMES[first.month - 1]} {first.year}"
    if groups.get("final"):
        return one_day(fitting[-1], f"the last {name} of {month}", *notes)
    count = int(found["count"])
    if not 1 <= count <= len(fitting):
        refuse(asked.text, f"{month} has {len(fitting)} {name}s", f"the last {name} of {MONTH_NAMES[first.month - 1]}, or a date")
    return one_day(fitting[count - 1], f"the {ordinal(count)} {name} of {month}", *notes)


@rule(DAYS, rf"(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)?(?: day)? of {_WHICH} month")
@rule(DAYS, rf"{_WHICH} month,? (?:on )?(?:the )?(?P<day>\d{{1,2}})(?:st|nd|rd|th)")
def _number_in_month(found: re.Match[str], asked: Question) -> Span:
    first, _ = _month_meant(found, asked)
    return one_day(calendar_day(first.year, first.month, int(found["day"])), f"a day of {MONTH_NAMES[first.month - 1]} {first.year}")


@rule(DAYS, r"(?:the )?(?P<end>1st|last) day of (?P<period>.+)")
def _edge_of_period(found: re.Match[str], asked: Question) -> Span:
    period = _period(found["period"], asked)
    day = period.first if found["end"] == "1st" else period.end - timedelta(days=1)
    word = "first" if found["end"] == "1st" else "last"
    return one_day(day, f"the {word} day of {period.said}", *period.notes, relative=period.relative)


@rule(DAYS, rf"{_WHICH} {_UNIT}")
@rule(DAYS, r"(?P<which>the) (?P<unit>week|month|quarter|year|weekend)")
def _by_period(found: re.Match[str], asked: Question) -> Span:
    step, unit, today = _SIDE.get(found["which"], 0), found["unit"], asked.today
    said = f"{('this', 'next', 'last')[step]} {unit}"
    if unit == "month":
        return whole_month(today.year, today.month + step, said)
    if unit == "week":
        first = monday(today) + timedelta(days=7 * step)
        return Span(first=first, end=first + timedelta(days=7), precision="week", said=f"{said}, from Monday")
    if unit == "weekend":
        first = monday(today) + timedelta(days=7 * step + 5)
        return Span(
            first=first, end=first + timedelta(days=2), precision="weekend", said=f"Saturday and Sunday of {said.removesuffix('end')}"
        )
    if unit == "quarter":
        month = (today.month - 1) // 3 * 3 + 1 + 3 * step
        return Span(first=month_start(today.year, month), end=month_start(today.year, month + 3), precision="quarter", said=said)
    return Span(first=date(today.year + step, 1, 1), end=date(today.year + step + 1, 1, 1), precision="year", said=said)


@rule(DAYS, rf"(?P<which>this|next|last) {MONTH}")
def _month_by_side(found: re.Match[str], asked: Question) -> Span:
    month, which, today = MONTHS[found["month"]], found["which"], asked.today
    name = MONTH_NAMES[month - 1]
    if which == "this":
        return whole_month(today.year, month, f"{name} of this year")
    coming = today.year + (1 if month <= today.month else 0)
    year = coming if which == "next" else coming - 1 - (1 if month == today.month else 0)
    if abs((year - today.year) * 12 + month - today.month) < 6:
        by_year = today.year + (1 if which == "next" else -1)
        if by_year != year:
            refuse(asked.text, f"it may be {name} {year} or {name} {by_year}", "the month with its year")
    return whole_month(year, month, f"the {'coming' if which == 'next' else 'last'} {name}")


@rule(DAYS, MONTH)
def _bare_month(found: re.Match[str], asked: Question) -> Span:
    month, today = MONTHS[found["month"]], asked.today
    name = MONTH_NAMES[month - 1]
    if month == today.month:
        return whole_month(today.year, month, f"{name} of this year", "no year was given: this month was taken")
    year = today.year + ((month < today.month) if asked.prefer == "future" else -(month > today.month))
    side = "coming" if asked.prefer == "future" else "last"
    return whole_month(year, month, f"the {side} {name}", f"no year was given: the {side} {name} was taken")


@rule(DAYS, r"q(?P<quarter>[1-4])(?:[\s,/-]*(?P<year>\d{4}))?")
def _quarter(found: re.Match[str], asked: Question) -> Span:
    year, month = int(found["year"] or asked.today.year), int(found["quarter"]) * 3 - 2
    notes = () if found["year"] else ("no year was given: this year's was taken",)
    first, end = month_start(year, month), month_start(year, month + 3)
    return Span(first=first, end=end, precision="quarter", said="a calendar quarter", notes=notes, relative=not found["year"])


def _month_meant(found: re.Match[str], asked: Question) -> tuple[date, tuple[str, ...]]:
    """The first day of the month that a day was counted in."""
    groups = found.groupdict()
    if name := groups.get("month"):
        if groups.get("year"):
            return date(int(found["year"]), MONTHS[name], 1), ()
        period = _bare(name, asked)
        return period.first, period.notes
    if groups.get("which"):
        return month_start(asked.today.year, asked.today.month + _SIDE[found["which"]]), ()
    return asked.today.replace(day=1), ("no month was given: this month was taken",)


def _bare(name: str, asked: Question) -> Span:
    return _period(name, asked)


def _period(text: str, asked: Question) -> Span:
    period = day_or_period(text, asked)
    if period is None or period.is_day:
        refuse(asked.text, f"{text!r} is no week, month, quarter or year that is known here", "this month, next year, March 2030 …")
    return period


def _days_of(first: date) -> list[date]:
    end = month_start(first.year, first.month + 1)
    return [first + timedelta(days=step) for step in range((end - first).days)]


# Distances told from a moment: in 3 weeks, two days ago, a week from Friday, two days from tomorrow, two Mondays later.

_FORWARD = re.compile(
    r"in (?P<far>.+?)(?:'?s?'? time| from now)?|(?P<behind>.+?) (?:from (?:now|today)|later|hence|away|after (?:now|today))"
)
_BACKWARD = re.compile(r"(?P<far>.+?) (?:ago|earlier|back|before (?:now|today))")
_SIGNED = re.compile(r"[+-].+")
_ANCHORED = re.compile(r"(?P<far>.+?) (?P<side>from|after|before) (?P<anchor>.+)")
_FULL_NAMES = "|".join(name.lower() for name in WEEKDAY_NAMES)
_WEEKDAYS_ON = rf"(?:in )?(?P<count>\d{{1,2}}) (?P<weekday>{_FULL_NAMES})s? (?P<side>later|from now|ago|hence)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Shift:
    """A distance from the reference."""

    offset: Offset

    @property
    def whole_days(self) -> bool:
        """Whether it moves from day to day, without hours."""
        return self.offset.whole_days


def read_shift(text: str, asked: Question) -> Shift | None:
    """The distance from the reference that `text` names; raises `UsageError` for one without a number or a direction."""
    if (forward := _FORWARD.fullmatch(text)) is not None:
        far, sign = forward["far"] or forward["behind"], 1
    elif (backward := _BACKWARD.fullmatch(text)) is not None:
        far, sign = backward["far"], -1
    elif _SIGNED.fullmatch(text):
        far, sign = text, 1
    else:
        if read_offset(text) is not None:
            refuse(asked.text, "it has no direction", f"'in {text}' or '{text} ago'")
        return None
    far = far.removeprefix("in ")
    offset = read_offset(far)
    if offset is None:
        if (word := vague(far)) and read_offset(far.replace(word, "2", 1).removeprefix("a ")) is not None:
            refuse(asked.text, f"{word!r} is no number", f"how many, such as '{text.replace(f'a {word}', word).replace(word, '3', 1)}'")
        return None
    if not _SIGNED.fullmatch(text) and re.search(r"[+-]", far):
        refuse(asked.text, "it has a sign and a direction", f"'+…' or '-…' alone, or '{'in …' if sign > 0 else '… ago'} without a sign")
    return Shift(offset=offset if sign > 0 else -offset)


def shifted_day(text: str, asked: Question) -> Span | None:
    """The day at a distance in whole days from today or from another day."""
    if (counted := compiled(_WEEKDAYS_ON).fullmatch(text)) is not None:
        return _weekdays_on(counted, asked)
    if (shift := read_shift(text, asked)) is not None:
        if not shift.whole_days:
            return None
        day, notes = move_day(asked.today, shift.offset)
        return one_day(day, f"{shift.offset.said} from {asked.today}", *notes)
    if (anchored := _ANCHORED.fullmatch(text)) is None:
        return None
    offset, anchor = read_offset(anchored["far"]), day_or_period(anchored["anchor"].removeprefix("the day of "), asked)
    if offset is None or anchor is None or not anchor.is_day or not offset.whole_days:
        return None
    day, notes = move_day(anchor.first, -offset if anchored["side"] == "before" else offset)
    said = f"{offset.said} {'before' if anchored['side'] == 'before' else 'after'} {anchor.first}, {anchor.said}"
    return one_day(day, said, *anchor.notes, *notes, relative=anchor.relative)


def _weekdays_on(found: re.Match[str], asked: Question) -> Span:
    """The second Monday from now: today does not count."""
    weekday, count, back = WEEKDAYS[found["weekday"]], int(found["count"]), found["side"] == "ago"
    if count == 0:
        refuse(asked.text, "none is counted", "a number from 1")
    ahead = (weekday - asked.today.weekday()) % 7 or 7
    behind = (asked.today.weekday() - weekday) % 7 or 7
    days = -(behind + 7 * (count - 1)) if back else ahead + 7 * (count - 1)
    name = WEEKDAY_NAMES[weekday]
    return one_day(
        asked.today + timedelta(days=days), f"the {name} number {count} {'before' if back else 'after'} today, which does not count"
    )
