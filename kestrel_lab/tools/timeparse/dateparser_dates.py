"""Calendar dates in English, and any expression in another language, read by dateparser; accepted only where nothing was left to its choice."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from typing import Any

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeparse.normalize import MONTHS, WEEKDAY_NAMES, WEEKDAYS
from kestrel_lab.tools.timeparse.types import Question, Reading, Span, one_day, refuse, time_range
from kestrel_lab.tools.timeparse.zones import at_clock, day_start

_CLOCK = re.compile(r"\d[:.h]\d\d|\d\s?(?:uhr|heures?|h|hrs?|ora|horas?)\b|[ap]m\b", re.IGNORECASE)
_SHORT_YEAR = re.compile(r"(?<!\d)\d{1,2}[-/.]\d{1,2}[-/.]\d\d(?!\d)")
_WORDS = {"the", "of", "st", "nd", "rd", "th", *MONTHS, *WEEKDAYS}


def read_day(text: str, asked: Question) -> Span | None:
    """Return the day of the calendar that `text` names in English, such as `3 May 2030`; `None` if it names none.

    Raises `UsageError` where it could be several days, as `read_foreign` does, or falls on another weekday than it says.
    """
    words, numbers = re.findall(r"[a-z]+", text), re.findall(r"\d+", text)
    if not numbers or text.isdigit() or not {*words} <= _WORDS:
        return None
    asked = replace(asked, text=text)
    whole_year = any(len(number) == 4 for number in numbers)
    if not whole_year and len(numbers) > 2 - any(word in MONTHS for word in words):
        refuse(text, "its year has two digits, or days in a row are meant", "one day, the year with four digits")
    known = _agreed(asked, "en")
    if known is None or known[0] != known[1] or known[0][0].time() != time():
        return None
    day = known[0][0].date()
    if any(WEEKDAYS.get(word, day.weekday()) != day.weekday() for word in words):
        refuse(text, f"{day} is a {WEEKDAY_NAMES[day.weekday()]}", f"either the date or the weekday, such as {day}")
    if whole_year:
        return one_day(day, "a date", relative=False)
    return one_day(day, f"the {asked.side} such day", f"the date was not given in full: the {asked.side} one was taken")


def read_foreign(asked: Question, language: str) -> Reading:
    """Read `asked.text` in `language`, a code such as `de`.

    It is read several times: by clocks that differ, the day before the month and behind it, and with every number changed by
    one. Only what all agree on is accepted, unless the asker settled it, and only if every number changed the answer:
    dateparser passes over what it does not know. Raises `UsageError` otherwise.
    """
    from dateparser.data.languages_info import language_order  # loaded on use: this package is slow to load

    if language not in language_order:
        raise UsageError(f"there is no language {language!r} here: write a code such as de, es, fr, ja, pt, ru or zh")
    if _SHORT_YEAR.search(asked.text):
        refuse(asked.text, "its year has two digits", "the year with four")
    if (known := _agreed(asked, language)) is None:
        refuse(asked.text, f"it was not understood in the language {language!r}", "it in English, or a date such as 2030-12-31 20:15")
    moved = known[1][0] - known[0][0]
    if known[0][1] not in {"day", "time"} and not re.search(r"\d", asked.text):
        refuse(asked.text, f"it may be a whole {known[0][1]} or a day of it", "it in English, or a date")
    if moved and _CLOCK.search(asked.text) and not _elapsed(known[0][0], asked):
        refuse(asked.text, "its time of day was not understood", "it in English, or the time as 15:30")
    return _reading(asked, language, known[0], moved)


def _agreed(asked: Question, language: str) -> tuple[tuple[datetime, str], tuple[datetime, str]] | None:
    """Return the readings by the clock and by one a minute later, on which every order agrees; `None` for a text that is not understood."""
    orders = [asked.order] if asked.order else ["DMY", "MDY"]
    pairs = [(_read(asked, language, order, 0), _read(asked, language, order, 1)) for order in orders]
    known = [(now, later) for now, later in pairs if now is not None and later is not None]
    if not known:
        return None
    moments = {now[0] for now, _ in known}
    if len(moments) > 1:
        several = " or ".join(sorted(f"{moment:%Y-%m-%d %H:%M}" for moment in moments))
        refuse(asked.text, f"it may be {several}", "the full date, year first, or settle the order (MDY, DMY)")
    order = orders[pairs.index(known[0])]
    _every_number_counts(asked, language, order, known[0][0][0])
    _on_the_preferred_side(asked, language, order, known[0][0][0])
    return known[0]


def _every_number_counts(asked: Question, language: str, order: str, moment: datetime) -> None:
    """Refuse a text that means the same with another number in it: that number was not understood."""
    for number in re.finditer(r"\d+", asked.text):
        for other in {int(number[0]) + 1, abs(int(number[0]) - 1)}:
            changed = f"{asked.text[: number.start()]}{other:0{len(number[0])}d}{asked.text[number.end() :]}"
            found = _read(replace(asked, text=changed), language, order, 0)
            if found is not None and found[0] == moment:
                refuse(asked.text, f"the {number[0]} in it was not understood", "it in English, or a date such as 2030-12-31 20:15")


def _on_the_preferred_side(asked: Question, language: str, order: str, moment: datetime) -> None:
    """Refuse a date without its year or month that was taken from the other side: it stays while days pass and moves with the years."""
    days = (moment.date() - asked.today).days
    if not re.search(r"\d", asked.text) or (days >= 0 if asked.prefer == "future" else days <= 0):
        return
    tomorrow, later = (_read(asked, language, order, 24 * 60 * passed) for passed in (1, 366))
    if tomorrow is not None and tomorrow[0] == moment and later != tomorrow:
        refuse(asked.text, f"{moment:%Y-%m-%d} is not on the side of the {asked.prefer}", "the full date, year first")


def _read(asked: Question, language: str, order: str, shift: int) -> tuple[datetime, str] | None:
    """Return what dateparser says, in clock time, when now is `shift` minutes later than it is."""
    from dateparser.date import DateDataParser

    now = asked.now.replace(tzinfo=None) + timedelta(minutes=shift)
    settings: dict[str, Any] = {
        "RELATIVE_BASE": now,
        "PREFER_DATES_FROM": asked.prefer,
        "DATE_ORDER": order,
        "RETURN_TIME_AS_PERIOD": True,
        "RETURN_AS_TIMEZONE_AWARE": False,
        "STRICT_PARSING": False,
        "REQUIRE_PARTS": ["day"],
    }
    if language == "en":
        settings["PARSERS"] = ["absolute-time"]  # distances and days told from today are the grammar's
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its own use of the standard library
        got = DateDataParser(languages=[language], settings=settings).get_date_data(asked.text)
    if got.date_obj is None:
        return None
    if got.date_obj.tzinfo is not None:
        refuse(asked.text, "zones are read in English only", "the time without its zone, and the zone by itself")
    return got.date_obj, got.period


def _reading(asked: Question, language: str, found: tuple[datetime, str], moved: timedelta) -> Reading:
    moment, period = found
    said, notes = "a time in another language", (f"read in the language {language} by dateparser",)
    if moved and (_elapsed(moment, asked) or period == "time"):  # it goes with the clock: some hours or minutes from now
        exact = asked.reference.astimezone(UTC) + (moment - asked.now.replace(tzinfo=None))
        here = exact.astimezone(asked.zone.rules)
        return time_range(here, here, said, "second", asked, *notes, read_by="dateparser")
    if _CLOCK.search(asked.text) or (period == "time" and not moved):
        here, more = at_clock(moment.date(), moment.time(), asked.zone, asked.disambiguate)
        return time_range(here, here, said, "minute", asked, *notes, *more, read_by="dateparser")
    start, end = day_start(moment.date(), asked.zone), day_start(moment.date() + timedelta(days=1), asked.zone)
    return time_range(start, end, said, "day", asked, *notes, read_by="dateparser")


def _elapsed(moment: datetime, asked: Question) -> bool:
    """Return whether the clock shows another time than now: hours or minutes were counted, not days."""
    return moment.time().replace(microsecond=0) != asked.now.time().replace(microsecond=0) and moment.time() != time()
