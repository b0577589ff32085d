"""Time zones by name, abbreviation or offset, and clock times in them; ambiguous names and times are
refused.
"""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from functools import cache, lru_cache
from typing import Literal
from zoneinfo import TZPATH, ZoneInfo, ZoneInfoNotFoundError, available_timezones

from kestrel_lab.core.errors import UsageError, did_you_mean
from kestrel_lab.tools.timeparse.normalize import lazy_pattern

Choice = Literal["earlier", "later"]
"""Chooses between two moments when clocks go back; at a gap, the time before or after it."""

AMBIGUOUS = {
    "ACT": ("Australia/Sydney", "America/Rio_Branco"),
    "ADT": ("America/Halifax", "Asia/Baghdad"),
    "AMT": ("America/Manaus", "Asia/Yerevan"),
    "AST": ("America/Halifax", "Asia/Riyadh"),
    "BST": ("Europe/London", "Asia/Dhaka", "Pacific/Bougainville"),
    "CDT": ("America/Chicago", "America/Havana"),
    "CST": ("America/Chicago", "Asia/Shanghai", "America/Havana", "Australia/Adelaide"),
    "CT": ("America/Chicago", "Asia/Shanghai"),
    "ECT": ("America/Guayaquil", "America/Martinique"),
    "EDT": ("America/New_York", "Australia/Sydney"),
    "EST": ("America/New_York", "Australia/Sydney", "America/Panama"),
    "ET": ("America/New_York",),
    "GST": ("Asia/Dubai", "Pacific/Guam", "Atlantic/South_Georgia"),
    "IST": ("Asia/Kolkata", "Europe/Dublin", "Asia/Jerusalem"),
    "LMT": ("Europe/London",),
    "MSK": ("Europe/Moscow",),
    "MST": ("America/Denver", "America/Phoenix", "Asia/Kuala_Lumpur"),
    "MT": ("America/Denver", "America/Phoenix"),
    "NST": ("America/St_Johns", "Asia/Kathmandu"),
    "PST": ("America/Los_Angeles", "Asia/Manila", "Pacific/Pitcairn"),
    "PT": ("America/Los_Angeles", "Europe/Lisbon"),
    "SST": ("Pacific/Pago_Pago", "Asia/Singapore"),
    "WST": ("Australia/Perth", "Pacific/Apia"),
}
"""Ambiguous abbreviations, with zones that use or used them."""
ABBREVIATIONS = {
    "ACDT": (630, "Australia/Adelaide"),
    "ACST": (570, "Australia/Adelaide"),
    "AEDT": (660, "Australia/Sydney"),
    "AEST": (600, "Australia/Sydney"),
    "AKDT": (-480, "America/Anchorage"),
    "AKST": (-540, "America/Anchorage"),
    "AWST": (480, "Australia/Perth"),
    "CAT": (120, "Africa/Maputo"),
    "CEST": (120, "Europe/Berlin"),
    "CET": (60, "Europe/Berlin"),
    "EAT": (180, "Africa/Nairobi"),
    "EEST": (180, "Europe/Athens"),
    "EET": (120, "Europe/Athens"),
    "HKT": (480, "Asia/Hong_Kong"),
    "HST": (-600, "Pacific/Honolulu"),
    "IDT": (180, "Asia/Jerusalem"),
    "JST": (540, "Asia/Tokyo"),
    "KST": (540, "Asia/Seoul"),
    "MDT": (-360, "America/Denver"),
    "NZDT": (780, "Pacific/Auckland"),
    "NZST": (720, "Pacific/Auckland"),
    "PDT": (-420, "America/Los_Angeles"),
    "PKT": (300, "Asia/Karachi"),
    "SAST": (120, "Africa/Johannesburg"),
    "WAT": (60, "Africa/Lagos"),
    "WEST": (60, "Europe/Lisbon"),
    "WET": (0, "Europe/Lisbon"),
    "WIB": (420, "Asia/Jakarta"),
}
"""Abbreviations that mean one distance from UTC, in minutes, with a zone to see whether it is in force."""
_OFFSET = re.compile(r"(?:UTC|GMT)?\s?([+-])(\d{1,2})(?::?([0-5]\d))?", re.IGNORECASE)
_UTC_KEYS = {"UTC", "UCT", "Etc/UTC", "Etc/UCT", "Etc/Zulu", "Etc/Universal", "Universal"}
_ABBREVIATION = re.compile(r"[A-Z]{1,5}|[A-Z]{3}\d[A-Z]{3}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Zone:
    """A time zone and its source."""

    rules: tzinfo
    name: str
    """Of the IANA database, such as Europe/Vienna, or the distance from UTC."""
    origin: str
    """In words: `the text`, `the reference`, `this machine` …"""
    short: str = ""
    """The abbreviation it was given as."""

    @property
    def fixed(self) -> bool:
        """True for a constant offset from UTC without daylight saving time."""
        return not isinstance(self.rules, ZoneInfo)


@lru_cache(maxsize=64)
def zone_named(name: str, origin: str) -> Zone:
    """Return the zone of an IANA name, `UTC`, a distance such as `+05:30`, or an abbreviation that means one
    distance.

    Raises `UsageError` for any other, naming the zones that an ambiguous abbreviation could mean.
    """
    word = name.strip()
    if word.upper() in {"UTC", "GMT", "Z", "ZULU"}:
        return Zone(rules=UTC, name="UTC", origin=origin)
    if found := _OFFSET.fullmatch(word):
        minutes = (int(found[2]) * 60 + int(found[3] or 0)) * (-1 if found[1] == "-" else 1)
        return _fixed_zone(minutes, origin)
    if word.upper() in AMBIGUOUS:
        candidates = AMBIGUOUS[word.upper()]
        raise UsageError(
            f"{word!r} does not say which zone is meant: write {' or '.join(candidates)}, or a "
            "distance such as +05:30"
        )
    if word.upper() in ABBREVIATIONS:
        return _fixed_zone(ABBREVIATIONS[word.upper()][0], origin, short=word.upper())
    if (key := _key(word)) is None or (_ABBREVIATION.fullmatch(key) and "/" not in key):
        raise UsageError(
            f"there is no time zone {word!r}: "
            f"{did_you_mean(word, [key for key in _keys().values() if '/' in key])}, or write a "
            "distance such as +02:00"
        )
    return Zone(rules=ZoneInfo(key), name="UTC" if key in _UTC_KEYS else key, origin=origin)


@cache
def rules_version() -> str:
    """Return the edition of the time zone rules in use; answers may change with it."""
    for folder in TZPATH:
        try:
            with open(os.path.join(folder, "tzdata.zi"), encoding="utf-8") as file:
                return file.readline().strip("# \n")
        except OSError:
            continue
    # Loaded on use: it costs more than this package.
    from importlib.metadata import (
        PackageNotFoundError,
        version,
    )

    try:
        return f"tzdata {version('tzdata')}"
    except PackageNotFoundError:
        return "unknown"


def zone_of(moment: datetime, origin: str) -> Zone:
    """Return the zone of `moment`; raises `UsageError` if it has none."""
    if isinstance(moment.tzinfo, ZoneInfo) and (key := moment.tzinfo.key):
        return Zone(rules=moment.tzinfo, name="UTC" if key in _UTC_KEYS else key, origin=origin)
    offset = moment.utcoffset()
    if offset is None:
        raise UsageError(
            f"{moment.isoformat()} has no time zone: add one, such as {moment.isoformat()}+00:00, or "
            "say the zone's name"
        )
    return Zone(rules=timezone(offset), name=offset_name(offset), origin=origin)


def local_zone() -> Zone:
    """Return this machine's zone, or its present offset from UTC if it names none."""
    # Loaded on use: it reads the machine's settings.
    from tzlocal import get_localzone_name

    now = datetime.now().astimezone()
    try:
        with warnings.catch_warnings():
            # It warns where nothing is configured: what it then takes is compared below.
            warnings.simplefilter("ignore")
            key = get_localzone_name() or ""
        rules = ZoneInfo(key) if key else None
    except (ZoneInfoNotFoundError, ValueError, OSError):
        key, rules = "", None
    # EST is a key, too: it says little to a reader.
    named = "/" in key or key == "UTC"
    if named and rules is not None and (there := now.astimezone(rules)).utcoffset() == now.utcoffset():
        # Not by its name, except for UTC: to look one up the whole database is listed, hundreds of files.
        return zone_named(key, "this machine") if key == "UTC" else zone_of(there, "this machine")
    return zone_of(now, "this machine, which names no zone")


@cache
def _keys() -> dict[str, str]:
    """Return every name of the IANA database by its spelling in small letters."""
    return {key.casefold(): key for key in sorted(available_timezones())}


def _key(name: str) -> str | None:
    """Return the name as the database spells it; case and blanks for underscores do not matter."""
    return _keys().get(name.strip().replace(" ", "_").casefold())


def offset_name(offset: timedelta) -> str:
    """Return the name of an offset from UTC, such as `UTC` or `UTC+05:30`."""
    minutes = round(offset.total_seconds() / 60)
    return (
        f"UTC{'-' if minutes < 0 else '+'}{abs(minutes) // 60:02d}:{abs(minutes) % 60:02d}"
        if minutes
        else "UTC"
    )


def at_clock(
    day: date, clock: time, zone: Zone, choice: Choice | None = None
) -> tuple[datetime, tuple[str, ...]]:
    """Return the moment when clocks of `zone` show `clock` on `day`, and notes on how it was chosen.

    Raises `UsageError` where clocks skip that time or show it twice, unless `choice` says which moment is
    meant, and where the zone was given by an abbreviation that is not in force on that day.
    """
    wall = datetime.combine(day, clock)
    first, second = wall.replace(tzinfo=zone.rules, fold=0), wall.replace(tzinfo=zone.rules, fold=1)
    before, after = _offset(first), _offset(second)
    _in_force(wall, zone)
    if before == after:
        return first, ()
    early, late = sorted(
        (_real_moment(first, zone), _real_moment(second, zone)), key=lambda moment: moment.astimezone(UTC)
    )
    if before > after:
        what = (
            f"{wall:%H:%M} is shown twice on {day} in {zone.name}, where clocks are turned back: at "
            f"{early.isoformat()} and at {late.isoformat()}"
        )
        advice = "write one of these, or disambiguate: earlier or later"
    else:
        what = f"{wall:%H:%M} does not exist on {day} in {zone.name}, where clocks are put forward"
        advice = f"write {early.isoformat()} or {late.isoformat()}, or disambiguate: earlier or later"
    if choice is None:
        raise UsageError(f"{what}; {advice}")
    return (early if choice == "earlier" else late), (f"{what}; the {choice} was asked for",)


def on_clocks(moment: datetime, zone: Zone) -> datetime:
    """Return `moment` on the clocks of `zone`; `UsageError` beyond the years 1 to 9999."""
    try:
        return moment.astimezone(UTC).astimezone(zone.rules)
    except (OverflowError, ValueError):
        raise UsageError(f"{moment.isoformat()} leaves the years 1 to 9999 in {zone.name}") from None


def day_start(day: date, zone: Zone) -> datetime:
    """Return the first moment of `day` in `zone`, which need not be midnight; `UsageError` if the zone
    skipped the day.
    """
    first, second = (datetime.combine(day, time(), tzinfo=zone.rules).replace(fold=fold) for fold in (0, 1))
    low, high = sorted(moment.astimezone(UTC) for moment in (first, second))
    if _offset(first) >= _offset(second):
        return _real_moment(first, zone)
    # The moment when clocks were put forward lies between the two.
    while low < high:
        middle = low + (high - low) // 2
        if middle.astimezone(zone.rules).date() >= day:
            high = middle
        else:
            low = middle + timedelta(microseconds=1)
    start = high.astimezone(zone.rules)
    if start.date() != day:
        raise UsageError(f"there was no {day} in {zone.name}: the zone skipped that day")
    return start


def _fixed_zone(minutes: int, origin: str, short: str = "") -> Zone:
    if abs(minutes) >= 24 * 60:
        raise UsageError("a distance from UTC is less than 24 hours: write it as +HH:MM")
    offset = timedelta(minutes=minutes)
    return Zone(rules=timezone(offset), name=offset_name(offset), origin=origin, short=short)


def _in_force(wall: datetime, zone: Zone) -> None:
    """Raise `UsageError` if the zone's abbreviation is not in force then, such as CET in July."""
    if not zone.short:
        return
    minutes, example = ABBREVIATIONS[zone.short]
    there = [wall.replace(tzinfo=ZoneInfo(example), fold=fold) for fold in (0, 1)]
    if timedelta(minutes=minutes) not in map(_offset, there):
        instead = (
            f"{example} is on {there[0].tzname()} then. Write {example}, or {zone.name} if that is meant"
        )
        raise UsageError(f"{zone.short} is not in force on {wall:%Y-%m-%d}: {instead}")


def _offset(moment: datetime) -> timedelta:
    return moment.utcoffset() or timedelta()


def _real_moment(moment: datetime, zone: Zone) -> datetime:
    """Return the moment as clocks show it, which is another time if `moment` is in a gap."""
    return moment.astimezone(UTC).astimezone(zone.rules)


# Words for a time zone inside a time expression: 15:00 UTC, 3pm Europe/Vienna.

_KEY = re.compile(r"(?<![\w/])[A-Za-z]+(?:/[A-Za-z][A-Za-z_+\-0-9]*)+(?![\w/])")
_DISTANCE = re.compile(
    r"\b(?:UTC|GMT)\s?[+-]\d{1,2}(?::?\d\d)?\b|(?<=:\d\d)\s?[+-]\d\d:?\d\d\b", re.IGNORECASE
)
_UTC = re.compile(r"\b(?:UTC|GMT|Zulu)\b|(?<=\d)Z\b", re.IGNORECASE)
_SHORT = rf"\b(?:{'|'.join(sorted({*AMBIGUOUS, *ABBREVIATIONS}, key=len, reverse=True))})\b"
_LONG = "|".join(word for word in (*AMBIGUOUS, *ABBREVIATIONS) if len(word) > 2)
# In small letters only where no other word can be meant.
_AFTER_CLOCK = rf"(?<=[\dm])\s?(?:{_LONG})\b"
_OWN = re.compile(r"\b(?:my|our|local) (?:local )?time\b", re.IGNORECASE)


def split_zone(text: str) -> tuple[str, Zone | None]:
    """Return `text` without the words for a zone, and that zone, if there is one.

    Raises `UsageError` for a zone that is unknown or ambiguous, and for two zones.
    """
    text = _OWN.sub("", text)
    found: list[str] = []
    for pattern in (_DISTANCE, _KEY, _UTC, lazy_pattern(_SHORT), lazy_pattern(_AFTER_CLOCK, re.IGNORECASE)):
        for match in pattern.finditer(text):
            if pattern is not _KEY or _key(match[0]):
                found.append(match[0].strip())
                text = text.replace(match[0], " ", 1)
    if len(found) > 1:
        raise UsageError(f"two time zones are named, {' and '.join(found)}: name one")
    return text, zone_named(found[0], "the text") if found else None
