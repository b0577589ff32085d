"""The input of the time parser, the days it finds on the way, and the reading it returns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Literal, NoReturn

from kestrel_lab.core.errors import UsageError
from kestrel_lab.core.json_types import Json
from kestrel_lab.core.sanitize import full_stop
from kestrel_lab.tools.timeparse.normalize import MONTH_NAMES
from kestrel_lab.tools.timeparse.zones import Choice, Zone
from kestrel_lab.views.html.fact_tables import FactsView

Order = Literal["MDY", "DMY"]
"""Reads 3/4 as March 4 (`MDY`) or April 3 (`DMY`)."""
Prefer = Literal["future", "past"]
"""Reads `Friday` as the coming or the last one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preferences:
    """What is meant where a time expression may mean several things."""

    prefer: Prefer = "future"
    """Which side a `Friday` or a `2 October` without a year is taken from."""
    order: Order | None = None
    """Whether the month or the day comes first in 3/4/2030; without it such a date is refused."""
    disambiguate: Choice | None = None
    """Which moment is meant where clocks show a time twice or not at all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Question(Preferences):
    """A time expression with its reference time, its zone and the preferences of the caller."""

    text: str
    reference: datetime
    zone: Zone

    @property
    def now(self) -> datetime:
        """The reference as clocks of the zone show it."""
        return self.reference.astimezone(self.zone.rules)

    @property
    def today(self) -> date:
        """The day of the reference in the zone."""
        return self.now.date()

    @property
    def side(self) -> str:
        """The preferred side in words: `coming` or `last`."""
        return "coming" if self.prefer == "future" else "last"

    def within(self, zone: Zone) -> Question:
        """Return the same question in another zone."""
        return replace(self, zone=zone)


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """Whole days, from `first` up to but not with `end`."""

    first: date
    end: date
    precision: str
    said: str
    """The expression as understood."""
    notes: tuple[str, ...] = ()
    relative: bool = True
    """True if it depends on the reference."""

    @property
    def is_day(self) -> bool:
        """True if it is one day, to which a time can be added."""
        return self.precision == "day"


def one_day(day: date, said: str, *notes: str, relative: bool = True) -> Span:
    """Return a single day."""
    return Span(
        first=day, end=day + timedelta(days=1), precision="day", said=said, notes=notes, relative=relative
    )


def whole_months(year: int, month: int, count: int, said: str, *notes: str, relative: bool = True) -> Span:
    """Return a month, a quarter or a year, which have 1, 3 and 12 months; `month` may run over the ends of
    the year.
    """
    precision = {1: "month", 3: "quarter", 12: "year"}[count]
    first, end = month_start(year, month), month_start(year, month + count)
    return Span(first=first, end=end, precision=precision, said=said, notes=notes, relative=relative)


def month_start(year: int, month: int) -> date:
    """Return the first day of a month; `month` may run over the ends of the year."""
    return date(year + (month - 1) // 12, (month - 1) % 12 + 1, 1)


def calendar_day(year: int, month: int, day: int) -> date:
    """Return that date; raises `UsageError` if there is none."""
    try:
        return date(year, month, day)
    except ValueError:
        if 1 <= month <= 12 and year >= 1:
            last = (month_start(year, month + 1) - timedelta(days=1)).day
            msg = f"there is no day {day} in {MONTH_NAMES[month - 1]} {year}, which has {last} days"
        else:
            msg = f"there is no date {year:04d}-{month:02d}-{day:02d}"
        raise UsageError(msg) from None


class NotATime(UsageError):
    """A text that no reading makes a time; one that could mean several times is another `UsageError`."""


def refuse_expression(text: str, why: str, instead: str) -> NoReturn:
    """Raise the `UsageError` of an expression that must not be guessed."""
    raise UsageError(f"cannot tell what {text!r} means: {full_stop(why)} Write {instead}")


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Reading(FactsView):
    """Meaning of a time expression; displays as a table."""

    text: str
    start: datetime
    """With its zone."""
    end: datetime
    """The first moment behind it; equal to `start` for an instant."""
    precision: str
    """`second`, `minute`, `hour`, `day`, `week`, `month`, `quarter`, `year` …"""
    interpretation: str
    zone: Zone
    reference: datetime | None = None
    """The time that the expression is relative to."""
    notes: tuple[str, ...] = ()
    """Ambiguities and how they were resolved."""
    read_by: str = "grammar"

    @property
    def instant(self) -> bool:
        """True if it is a moment, not a period."""
        return self.start == self.end

    def as_json(self) -> dict[str, Json]:
        """Return the reading for models and programs, with times as ISO 8601 and their offset from UTC."""
        found: dict[str, Json] = {"text": self.text, "start": self.start.isoformat()}
        if not self.instant:
            found["end"] = self.end.isoformat()
        found |= {
            "kind": "instant" if self.instant else "range",
            "precision": self.precision,
            "weekday": f"{self.start:%A}",
            "interpretation": self.interpretation,
            "zone": self.zone.name,
            "zone_from": self.zone.origin,
        }
        if self.reference is not None:
            found["reference"] = self.reference.isoformat()
        if self.notes:
            found["notes"] = [*self.notes]
        return found

    def rows(self) -> list[tuple[str, str]]:
        """Return names and values for a table."""
        shown = [("text", self.text)] if self.text else []
        if self.instant:
            shown.append(("moment", _time_text(self.start)))
        else:
            if self.precision == "day" and self.start.date() == (self.end - timedelta(microseconds=1)).date():
                shown.append(("day", f"{self.start:%A} {self.start:%Y-%m-%d}"))
            shown += [("from", _time_text(self.start)), ("until before", _time_text(self.end))]
        shown += [
            ("precision", self.precision),
            ("read as", self.interpretation),
            ("zone", f"{self.zone.name}, from {self.zone.origin}"),
        ]
        if self.reference is not None:
            shown.append(("relative to", _time_text(self.reference.astimezone(self.zone.rules))))
        if self.read_by != "grammar":
            shown.append(("read by", self.read_by))
        return shown + [("note", note) for note in self.notes]


def time_range(
    start: datetime,
    end: datetime,
    said: str,
    precision: str,
    asked: Question,
    *notes: str,
    read_by: str = "grammar",
) -> Reading:
    """Return the reading of `asked` from `start` to `end`; a moment if they are equal."""
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
        read_by=read_by,
    )


def _time_text(moment: datetime) -> str:
    return f"{moment.isoformat()} ({moment:%a})"
