"""Counting on from a moment, and one moment on the clocks of another zone."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

from kestrel_lab.core.errors import UsageError
from kestrel_lab.tools.timeexpr.offsets import move, move_day, required_offset
from kestrel_lab.tools.timeexpr.reading import Reading
from kestrel_lab.tools.timeexpr.words import canonical
from kestrel_lab.tools.timeexpr.zones import Choice, Zone, at_clock, day_start, offset_name, zone_named, zone_of

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:Z|[+-]\d\d:?\d\d)?", re.ASCII | re.IGNORECASE)


def read_moment(text: str, zone: Zone | None, choice: Choice | None = None) -> tuple[datetime, Zone, tuple[str, ...]]:
    """An ISO 8601 time and its zone: `zone`, or the distance from UTC that is written.

    Raises `UsageError` for anything else, for a time with neither, and where the two contradict each other.
    """
    if not _TIME.fullmatch(text.strip()):
        msg = f"{text!r} is no ISO 8601 time: write it as 2030-12-31T20:15:00+01:00, or without the distance and with a zone"
        raise UsageError(msg)
    try:
        moment = datetime.fromisoformat(text.strip().upper())
    except ValueError as error:
        msg = f"{text!r} is no time: {error}"
        raise UsageError(msg) from None
    if moment.tzinfo is None:
        if zone is None:
            msg = f"{text!r} has no time zone: write {text.strip()}+00:00 if it is UTC, or say the zone, such as Europe/Vienna"
            raise UsageError(msg)
        found, notes = at_clock(moment.date(), moment.time(), zone, choice)
        return found, zone, notes
    if zone is None:
        return moment, zone_of(moment, "the time itself"), ()
    there = moment.astimezone(zone.rules)
    if there.utcoffset() != moment.utcoffset():
        was, now = offset_name(moment.utcoffset() or timedelta()), offset_name(there.utcoffset() or timedelta())
        msg = f"{text!r} is at {was}, but {zone.name} was then at {now}: leave out the one that is wrong"
        raise UsageError(msg)
    return there, zone, ()


def time_arithmetic(base: str | datetime, offset: str, *, zone: str | Zone | None = None, disambiguate: Choice | None = None) -> Reading:
    """Move `base` by `offset`, such as `+2 days` or `-1 month 90 minutes`.

    Years, months, days and weeks move the hands of the clock, hours and less count elapsed time; a month without such
    a day gives its last, which is said. A date moves to a date and takes whole days only.

    Args:
        base: A time with its zone or distance from UTC, or an ISO 8601 text.
        offset: A distance in English; a sign holds up to the next one.
        zone: Whose clocks are moved; needed where the base carries none.
        disambiguate: Which moment is meant where clocks show the result twice or not at all.

    Raises:
        UsageError: For what cannot be read, a base without a zone, a result that clocks skip or show twice.

    """
    place = zone_named(zone, "the arguments") if isinstance(zone, str) else zone
    far = required_offset(offset, canonical(offset))
    text = f"{base if isinstance(base, str) else base.isoformat()} {offset}"
    if isinstance(base, str) and _DATE.fullmatch(base.strip()):
        if not far.whole_days:
            msg = f"{base!r} is a date, and {offset!r} counts hours: write a time of day with it, such as {base.strip()}T00:00"
            raise UsageError(msg)
        if place is None:
            msg = f"{base!r} has no time zone: say which, such as Europe/Vienna or UTC"
            raise UsageError(msg)
        day, notes = move_day(_date(base.strip()), far)
        start, end = day_start(day, place), day_start(day + timedelta(days=1), place)
        return Reading(text=text, start=start, end=end, precision="day", interpretation=far.said, zone=place, notes=notes)
    moment, place, notes = _given(base, place, disambiguate)
    moved, said = move(moment, far, place, disambiguate)
    if place.fixed and place.name != "UTC" and (far.months or far.days or far.weekdays):
        said += (f"only the distance {place.name} is known: daylight saving time was not minded; for that say the zone",)
    return Reading(text=text, start=moved, end=moved, precision="second", interpretation=far.said, zone=place, notes=notes + said)


def normalize_timezone(
    time: str | datetime, to_zone: str, *, from_zone: str | Zone | None = None, disambiguate: Choice | None = None
) -> Reading:
    """The moment `time` on the clocks of `to_zone`.

    Args:
        time: A time with its zone or distance from UTC, or an ISO 8601 text.
        to_zone: IANA name, `UTC`, or a distance such as `+05:30`.
        from_zone: Whose clocks `time` was read from; needed where it carries no distance from UTC.
        disambiguate: Which moment is meant where the clocks of `from_zone` show the time twice or not at all.

    Raises:
        UsageError: For a zone that is not known or means several, a time without a zone, one that does not exist or comes twice.

    """
    origin = zone_named(from_zone, "the arguments") if isinstance(from_zone, str) else from_zone
    target = zone_named(to_zone, "the arguments")
    moment, source, notes = _given(time, origin, disambiguate)
    there = moment.astimezone(UTC).astimezone(target.rules)
    if target.short:
        at_clock(there.date(), there.time(), target)  # refuses CET in July
        notes += (f"{target.short} was read as {target.name}",)
    days = (there.date() - moment.date()).days
    if days:
        notes += (f"it is the {'next' if days > 0 else 'previous'} day there",)
    text = f"{time if isinstance(time, str) else time.isoformat()} in {to_zone}"
    said = f"{moment.isoformat()} in {source.name}"
    return Reading(text=text, start=there, end=there, precision="second", interpretation=said, zone=target, notes=notes)


def _given(time: str | datetime, zone: Zone | None, choice: Choice | None) -> tuple[datetime, Zone, tuple[str, ...]]:
    if isinstance(time, str):
        return read_moment(time, zone, choice)
    if time.tzinfo is None:
        return read_moment(time.isoformat(), zone, choice)
    return (time, zone_of(time, "the time itself"), ()) if zone is None else (time.astimezone(zone.rules), zone, ())


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        msg = f"{text!r} is no date: {error}"
        raise UsageError(msg) from None
